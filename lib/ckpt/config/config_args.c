/*
 * Makes the arguments that Megatron's scripts read back (--use-checkpoint-args) and that describe
 * the tensors' layout, from a transformers config.json and the tensors.
 */
#include <math.h>

#include "lib/ckpt/config/args_config_internal.h"
#include "lib/ckpt/names.h"

struct maker {
    json_t *args;
    const json_t *config; /* the language model's section */
    const char *type;     /* its model_type, or "" */
    const struct s2s_ckpt_plan *plan;
    const char *words; /* the name of its word embedding, whose prefix all of its names share; or
                        * NULL */
};

static const char *find_embedding(const struct s2s_ckpt_plan *plan)
{
    for (size_t i = 0; i < plan->n_targets; i++)
        if (s2s_ends_with(s2s_ckpt_target_name(&plan->targets[i]),
                          "embedding.word_embeddings.weight"))
            return s2s_ckpt_target_name(&plan->targets[i]);
    return NULL;
}

/* Is it a tensor of the language model, which the arguments describe, not of a tower beside it? */
static bool is_own(const struct maker *m, const char *name)
{
    const size_t len = m->words ? strlen(m->words) - strlen("embedding.word_embeddings.weight") : 0;
    return !len || strncmp(name, m->words, len) == 0;
}

static bool has_target(const struct maker *m, const char *part)
{
    for (size_t i = 0; i < m->plan->n_targets; i++)
        if (is_own(m, s2s_ckpt_target_name(&m->plan->targets[i])) &&
            strstr(s2s_ckpt_target_name(&m->plan->targets[i]), part))
            return true;
    return false;
}

static void set(struct maker *m, const char *key, json_t *value)
{
    json_object_set_new(m->args, key, value);
}

/* Megatron's counts, and its base of positions, are integers. Gives a reference. */
static json_t *as_number(double value)
{
    return value == floor(value) && fabs(value) < 1e15 ? json_integer((json_int_t)value)
                                                       : json_real(value);
}

static int64_t config_int(const struct maker *m, const char *key)
{
    return json_integer_value(json_object_get(m->config, key));
}

/* ---- sizes ---- */

/* Along an axis that is counted from the last, of a target of the language model's own; 0: it has
 * none whose name ends so. */
static int64_t size_of(const struct maker *m, const char *end, int axis)
{
    for (size_t i = 0; i < m->plan->n_targets; i++) {
        const struct s2s_ckpt_target *t = &m->plan->targets[i];
        if (t->n_dims > axis && is_own(m, s2s_ckpt_target_name(t)) &&
            s2s_ends_with(s2s_ckpt_target_name(t), end))
            return s2s_ckpt_target_shape(t)[t->n_dims - 1 - axis];
    }
    return 0;
}

/* Layers lie on an axis of their own, or are numbered. */
static int64_t count_layers(const struct maker *m)
{
    int64_t n = 0, layer;
    size_t prefix_len;
    const char *rest;
    for (size_t i = 0; i < m->plan->n_targets; i++) {
        const struct s2s_ckpt_target *t = &m->plan->targets[i];
        const char *name = s2s_ckpt_target_name(t);
        if (!strstr(name, "decoder.layers.") || !is_own(m, name) || !t->n_dims ||
            !ckpt_name_layer(name, &prefix_len, &layer, &rest))
            continue;
        layer = layer < 0 ? s2s_ckpt_target_shape(t)[0] - 1 : layer;
        n = layer >= n ? layer + 1 : n;
    }
    return n;
}

/* The section of a model of several parts leaves out what its class takes by default: the tensors
 * say how large they are. */
static void add_sizes(struct maker *m)
{
    const struct {
        const char *key;
        int64_t size;
    } sizes[] = {
        {"num_layers", count_layers(m)},
        {"hidden_size", size_of(m, "embedding.word_embeddings.weight", 0)},
        {"ffn_hidden_size", size_of(m, ".mlp.linear_fc2.weight", 0)},
        {"num_experts", size_of(m, ".mlp.router.weight", 1)},
        {"moe_ffn_hidden_size", size_of(m, ".mlp.experts.experts.linear_fc2.weight", 0)},
        {"moe_shared_expert_intermediate_size",
         size_of(m, ".mlp.shared_experts.linear_fc2.weight", 0)},
    };
    for (size_t i = 0; m->words && i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i].size && !json_object_get(m->args, sizes[i].key))
            set(m, sizes[i].key, json_integer(sizes[i].size));
}

/* ---- layers ---- */

char ckpt_config_letter(const char *kind)
{
    static const struct {
        const char *kind;
        char letter;
    } kinds[] = {{"mamba", 'M'},     {"linear_attention", 'M'},
                 {"attention", '*'}, {"full_attention", '*'},
                 {"mlp", '-'},       {"moe", 'E'}};
    for (size_t i = 0; kind && i < sizeof kinds / sizeof *kinds; i++)
        if (strcmp(kinds[i].kind, kind) == 0)
            return kinds[i].letter;
    return 0;
}

/* Converts transformers' list of layer kinds to Megatron's letters, up to the first without one.
 * Gives: free. */
static char *letters_of(const json_t *kinds)
{
    const size_t n = json_array_size(kinds);
    char *letters = s2s_xcalloc(n + 1, 1);
    for (size_t i = 0; i < n; i++) {
        letters[i] = ckpt_config_letter(json_string_value(json_array_get(kinds, i)));
        if (!letters[i])
            break;
    }
    return letters;
}

/* The same as a JSON string; NULL, with a warning: one has no letter. Gives a reference. */
static json_t *as_letters(const json_t *kinds)
{
    char *letters = letters_of(kinds);
    const size_t n = strlen(letters);
    const char *odd = json_string_value(json_array_get(kinds, n));
    json_t *word = n == json_array_size(kinds) ? json_string(letters) : NULL;
    if (!word)
        s2s_warn("ckpt",
                 "config.json: layer %zu is \"%s\", for which Megatron's pattern has no letter", n,
                 odd ? odd : "?");
    free(letters);
    return word;
}

char *ckpt_config_letters(const json_t *config)
{
    const char *word = json_string_value(json_object_get(config, "hybrid_override_pattern"));
    const json_t *kinds = json_object_get(config, "layers_block_type");
    char *letters = json_is_array(kinds) ? letters_of(kinds) : s2s_xstrdup(word ? word : "");
    const size_t n = json_is_array(kinds) ? json_array_size(kinds) : strlen(letters);
    if (n > 0 && strspn(letters, "M*-E") == n)
        return letters;
    free(letters);
    return NULL;
}

int ckpt_config_has_experts(const json_t *config, int64_t layer)
{
    const char *type = ckpt_config_type(config);
    const json_t *dense = json_object_get(config, "mlp_only_layers");
    const json_t *every = json_object_get(config, "decoder_sparse_step");
    const int64_t step = json_is_integer(every) ? json_integer_value(every) : 1;
    size_t i;
    json_t *number;
    if ((strcmp(type, "qwen2_moe") != 0 && strcmp(type, "qwen3_moe") != 0) || (!dense && !every) ||
        step < 1)
        return -1;
    json_array_foreach(dense, i, number)
    {
        if (json_is_integer(number) && json_integer_value(number) == layer)
            return 0;
    }
    return (layer + 1) % step == 0;
}

static void add_pattern(struct maker *m)
{
    const json_t *kinds = json_object_get(m->config, "layers_block_type");
    kinds = kinds ? kinds : json_object_get(m->config, "layer_types");
    if (json_object_get(m->args, "hybrid_override_pattern") || !json_is_array(kinds))
        return;
    json_t *letters = as_letters(kinds);
    if (!letters)
        return;
    set(m, "hybrid_override_pattern", letters);
    if (!json_object_get(m->args, "num_layers"))
        set(m, "num_layers", json_integer((json_int_t)json_array_size(kinds)));
}

/* Adds the arguments of multi-token prediction, if the plan has it. */
static void add_mtp(struct maker *m)
{
    const int64_t depths = config_int(m, "num_nextn_predict_layers");
    const json_t *pattern = json_object_get(m->config, "mtp_hybrid_override_pattern");
    const json_t *kinds = json_object_get(m->config, "mtp_layers_block_type");
    const json_t *again = json_object_get(m->config, "mtp_use_repeated_layer");
    bool there = false;
    for (size_t i = 0; i < m->plan->n_targets && !there; i++)
        there = strstr(s2s_ckpt_target_name(&m->plan->targets[i]), "mtp.layers.") != NULL;
    if (!there || depths <= 0)
        return;
    set(m, "mtp_num_layers", json_integer(depths));
    json_t *letters = json_is_string(pattern) ? json_string(json_string_value(pattern))
                      : json_is_array(kinds)  ? as_letters(kinds)
                                              : NULL;
    if (letters)
        set(m, "mtp_hybrid_override_pattern", letters);
    if (json_is_boolean(again))
        set(m, "mtp_use_repeated_layer", json_boolean(json_is_true(again)));
}

/* Adds moe_layer_freq (1: layer with experts, 0: without), unless all layers have experts. */
static void add_moe_layers(struct maker *m)
{
    static const char stack[] = "decoder.layers.", router[] = ".mlp.router.weight";
    const int64_t n = json_integer_value(json_object_get(m->args, "num_layers"));
    int64_t n_routers = 0;
    json_t *freq = json_array();
    for (int64_t layer = 0; layer < n && n < CKPT_MAX_LAYERS; layer++)
        json_array_append_new(freq, json_integer(0));
    for (size_t i = 0; i < m->plan->n_targets; i++) {
        const char *at = strstr(s2s_ckpt_target_name(&m->plan->targets[i]), stack);
        char *end = NULL;
        const unsigned long layer = at ? strtoul(at + strlen(stack), &end, 10) : 0;
        if (at && end > at + strlen(stack) && strcmp(end, router) == 0 &&
            json_array_set_new(freq, layer, json_integer(1)) == 0)
            n_routers++;
    }
    if (n_routers && n_routers < n)
        json_object_set(m->args, "moe_layer_freq", freq);
    json_decref(freq);
}

/* ---- attention ---- */

static void add_scaling(struct maker *m, const json_t *rope)
{
    const char *kind = json_string_value(json_object_get(rope, "rope_type"));
    kind = kind ? kind : json_string_value(json_object_get(rope, "type"));
    json_t *factor = json_object_get(rope, "factor");
    if (!kind || strcmp(kind, "default") == 0)
        return;
    if (strcmp(kind, "linear") == 0) {
        json_object_set(m->args, "rotary_seq_len_interpolation_factor", factor);
        return;
    }
    const double low = json_number_value(json_object_get(rope, "low_freq_factor"));
    const double high = json_number_value(json_object_get(rope, "high_freq_factor"));
    const double before =
        json_number_value(json_object_get(rope, "original_max_position_embeddings"));
    if (strcmp(kind, "llama3") == 0) {
        set(m, "use_rope_scaling", json_true());
        json_object_set(m->args, "rope_scaling_factor", factor);
    }
    if (strcmp(kind, "llama3") != 0 || low != 1 || high != 4 || before != 8192)
        s2s_warn(
            "ckpt", "config.json: Megatron's arguments cannot say this rope_type \"%s\"%s", kind,
            strcmp(kind, "llama3") == 0 ? ": its own has factors 1 and 4 and 8192 positions before"
                                        : "");
}

/* Only Nemotron rotates a part of each head. Gives a reference. */
static json_t *rotary_percent(const struct maker *m, const json_t *rope)
{
    const json_t *part = json_object_get(rope, "partial_rotary_factor");
    part = part ? part : json_object_get(m->config, "partial_rotary_factor");
    if (strcmp(m->type, "nemotron") != 0)
        return json_real(1.0);
    return json_real(json_is_number(part) ? json_number_value(part) : 0.5);
}

/* rope_theta and rope_scaling are keys of their own, or in rope_parameters; Gemma 3 has two sets.
 */
static void add_rope(struct maker *m)
{
    const json_t *both = json_object_get(m->config, "rope_parameters");
    const json_t *far = json_object_get(both, "full_attention");
    const json_t *rope = json_is_object(far) ? far : both;
    const json_t *base = json_object_get(rope, "rope_theta");
    const json_t *in_window = json_object_get(both, "sliding_attention");
    const json_t *near = json_object_get(in_window, "rope_theta");
    const char *scaled = json_string_value(json_object_get(in_window, "rope_type"));
    base = base ? base : json_object_get(m->config, "rope_theta");
    near = near ? near : json_object_get(m->config, "rope_local_base_freq");
    const double global = json_is_number(base) ? json_number_value(base)
                                               : ckpt_config_default(m->config, "rope_theta");
    const double local = json_is_number(near)                  ? json_number_value(near)
                         : strcmp(m->type, "gemma3_text") == 0 ? 10000
                                                               : 0;
    if (global > 0 && local > 0)
        set(m, "rotary_base", json_pack("[o, o]", as_number(local), as_number(global)));
    else if (global > 0)
        set(m, "rotary_base", as_number(global));
    set(m, "position_embedding_type", json_string("rope"));
    set(m, "rotary_percent", rotary_percent(m, rope));
    if (scaled && strcmp(scaled, "default") != 0)
        s2s_warn("ckpt",
                 "config.json: Megatron's arguments cannot say rope_type \"%s\" of layers with a "
                 "window",
                 scaled);
    add_scaling(m, json_is_object(rope) ? rope : json_object_get(m->config, "rope_scaling"));
}

/* Has this layer a sliding window? Older configurations have no layer_types: the pattern is that of
 * their class. */
static bool has_window(const struct maker *m, int64_t layer)
{
    const json_t *kinds = json_object_get(m->config, "layer_types");
    const char *kind = json_string_value(json_array_get(kinds, (size_t)layer));
    const json_t *most = json_object_get(m->config, "max_window_layers");
    const int64_t pattern = config_int(m, "sliding_window_pattern");
    const int64_t end = json_is_integer(most) ? json_integer_value(most) : 28;
    if (json_is_array(kinds))
        return kind && strcmp(kind, "sliding_attention") == 0;
    if (strcmp(m->type, "gemma2") == 0)
        return layer % 2 == 0;
    if (strcmp(m->type, "gemma3_text") == 0)
        return (layer + 1) % (pattern > 0 ? pattern : 6) != 0;
    if (strcmp(m->type, "qwen2") == 0 || strcmp(m->type, "qwen3") == 0)
        return layer >= end;
    return strcmp(m->type, "qwen2_moe") != 0 || (layer % 2 == 0 && layer < end);
}

/* Megatron's window counts the tokens before the current one, transformers' includes it. */
static void add_window(struct maker *m)
{
    const json_t *use = json_object_get(m->config, "use_sliding_window");
    const json_t *kinds = json_object_get(m->config, "layer_types");
    const json_t *said = json_object_get(m->config, "sliding_window");
    const int64_t window =
        said ? json_integer_value(said) : (int64_t)ckpt_config_default(m->config, "sliding_window");
    const int64_t n = json_is_array(kinds)
                          ? (int64_t)json_array_size(kinds)
                          : json_integer_value(json_object_get(m->args, "num_layers"));
    json_t *freq = json_array();
    bool all = true, any = false;
    for (int64_t layer = 0; layer < n && n <= CKPT_MAX_LAYERS; layer++) {
        const bool windowed = has_window(m, layer);
        json_array_append_new(freq, json_integer(windowed));
        all &= windowed;
        any |= windowed;
    }
    /* Qwen's window has to be enabled */
    if (window > 0 && any && ckpt_config_has_window(m->type) &&
        (s2s_starts_with(m->type, "qwen") ? json_is_true(use) : !json_is_false(use))) {
        set(m, "window_size", json_pack("[I, i]", (json_int_t)(window - 1), 0));
        if (!all)
            json_object_set(m->args, "window_attn_skip_freq", freq);
    }
    json_decref(freq);
}

/* The head size from the rows of linear_qkv: it need not be hidden_size / heads. 0: unknown. */
static int64_t head_dim_of(const struct maker *m, int64_t heads, int64_t groups, int64_t hidden)
{
    for (size_t i = 0; i < m->plan->n_targets && heads < 1 << 30 && groups < 1 << 30; i++) {
        const struct s2s_ckpt_target *t = &m->plan->targets[i];
        if (is_own(m, s2s_ckpt_target_name(t)) &&
            s2s_ends_with(s2s_ckpt_target_name(t), "self_attention.linear_qkv.weight") &&
            t->n_dims >= 2 && s2s_ckpt_target_shape(t)[t->n_dims - 2] % (heads + 2 * groups) == 0)
            return s2s_ckpt_target_shape(t)[t->n_dims - 2] / (heads + 2 * groups);
    }
    return hidden % heads == 0 ? hidden / heads : 0;
}

static void add_attention(struct maker *m)
{
    json_t *args = m->args;
    const int64_t heads = json_integer_value(json_object_get(args, "num_attention_heads"));
    const int64_t groups = json_integer_value(json_object_get(args, "num_query_groups"));
    const int64_t hidden = json_integer_value(json_object_get(args, "hidden_size"));
    if (heads > 0)
        set(m, "group_query_attention", json_boolean(groups && groups != heads));
    if (heads > 0 && !json_object_get(args, "kv_channels")) {
        const int64_t dim = head_dim_of(m, heads, groups > 0 ? groups : heads, hidden);
        if (dim)
            set(m, "kv_channels", json_integer(dim));
    }
    if (!ckpt_config_class(m->type))
        return;
    if (json_is_true(json_object_get(m->config, "use_bidirectional_attention")))
        s2s_warn("ckpt", "config.json: Megatron's arguments cannot say "
                         "use_bidirectional_attention: there no token looks at later ones");
    set(m, "add_qkv_bias",
        json_boolean(has_target(m, "linear_qkv.bias") && !has_target(m, "linear_proj.bias")));
    set(m, "qk_layernorm", json_boolean(has_target(m, "self_attention.q_layernorm.weight")));
    if (strcmp(m->type, "nemotron_h") == 0) {
        set(m, "position_embedding_type", json_string("none"));
        return;
    }
    add_rope(m);
    add_window(m);
    const int64_t said = config_int(m, "query_pre_attn_scalar");
    const double scale =
        said > 0 ? (double)said : ckpt_config_default(m->config, "query_pre_attn_scalar");
    if (s2s_starts_with(m->type, "gemma") && scale > 0)
        set(m, "softmax_scale", json_real(1 / sqrt(scale)));
}

/* ---- MLP, norms, experts, embedding ---- */

static void add_activation(struct maker *m)
{
    static const char *const keys[] = {"hidden_act", "mlp_hidden_act", "hidden_activation"};
    const char *name = NULL;
    for (int i = 0; i < 3 && !name; i++)
        name = json_string_value(json_object_get(m->config, keys[i]));
    name = name ? name : ckpt_config_activation(m->type);
    if (!name)
        return;
    set(m, "swiglu", json_boolean(strcmp(name, "silu") == 0));
    set(m, "squared_relu", json_boolean(strcmp(name, "relu2") == 0));
}

static void add_norms(struct maker *m)
{
    if (!ckpt_config_class(m->type))
        return;
    const bool layernorm =
        strcmp(m->type, "nemotron") == 0; /* LayerNorm, which subtracts the mean */
    set(m, "normalization", json_string(layernorm ? "LayerNorm" : "RMSNorm"));
    set(m, "apply_layernorm_1p", json_boolean(layernorm || s2s_starts_with(m->type, "gemma")));
    const bool bias = has_target(m, "linear_fc1.bias");
    if (has_target(m, "linear_proj.bias") == bias)
        set(m, "add_bias_linear", json_boolean(bias));
}

static void add_router(struct maker *m)
{
    const json_t *divides = json_object_get(m->config, "norm_topk_prob");
    if (!ckpt_config_class(m->type) || !has_target(m, "mlp.router.weight"))
        return;
    if (config_int(m, "n_group") <= 1) { /* all experts are in one group */
        json_object_del(m->args, "moe_router_num_groups");
        json_object_del(m->args, "moe_router_group_topk");
    }
    const bool sigmoid = strcmp(m->type, "nemotron_h") == 0;
    set(m, "moe_router_score_function", json_string(sigmoid ? "sigmoid" : "softmax"));
    set(m, "moe_router_enable_expert_bias", json_boolean(has_target(m, "router.expert_bias")));
    set(m, "moe_shared_expert_gate", json_boolean(has_target(m, "shared_experts.gate_weight")));
    if (sigmoid)
        return;
    if (strcmp(m->type, "mixtral") == 0)
        json_object_set(m->args, "moe_ffn_hidden_size",
                        json_object_get(m->config, "intermediate_size"));
    set(m, "moe_router_pre_softmax",
        json_boolean(strcmp(m->type, "mixtral") != 0 && !json_is_true(divides)));
    add_moe_layers(m);
}

static void add_words(struct maker *m)
{
    bool output = false;
    for (size_t i = 0; i < m->plan->n_targets; i++) {
        const struct s2s_ckpt_target *t = &m->plan->targets[i];
        const bool words = strstr(s2s_ckpt_target_name(t), "word_embeddings.weight") != NULL;
        if (words && t->n_dims == 2) {
            set(m, "padded_vocab_size", json_integer(s2s_ckpt_target_shape(t)[0]));
            /* otherwise it is unknown which rows are padding */
            if (!json_object_get(m->args, "vocab_size"))
                set(m, "vocab_size", json_integer(s2s_ckpt_target_piece(t, 0).size[0]));
        }
        output |= strstr(s2s_ckpt_target_name(t), "output_layer.weight") != NULL;
    }
    set(m, "untie_embeddings_and_output_weights", json_boolean(output));
}

const json_t *ckpt_text_config(const json_t *config)
{
    const json_t *text = json_object_get(config, "text_config");
    text = text ? text : json_object_get(config, "llm_config");
    return text ? text : config;
}

bool ckpt_arg_can_be(const struct ckpt_arg_key *key, const json_t *value)
{
    enum { MAX_COUNT = 1 << 30 }; /* counts are multiplied by each other */
    const json_int_t n = json_integer_value(value);
    return key->kind == CKPT_ARG_TEXT     ? json_is_string(value)
           : key->kind == CKPT_ARG_NUMBER ? json_is_number(value)
                                          : json_is_integer(value) && n >= 0 && n < MAX_COUNT;
}

/* Does the value say that the model does not have the feature? Classes that do not know a key
 * ignore its value. */
static bool is_off(const struct ckpt_arg_key *key, const json_t *value)
{
    return !value || json_is_null(value) || json_is_false(value) ||
           (key->kind == CKPT_ARG_EXPERTS && json_integer_value(value) == -1);
}

int ckpt_config_check(const json_t *config, struct s2s_error *err)
{
    const json_t *words = ckpt_text_config(config);
    int rc = 0;
    for (const struct ckpt_arg_key *key = ckpt_arg_keys; key->config && rc == 0; key++) {
        const json_t *value = json_object_get(words, key->config);
        /* arrays have a value per layer; a float such as 128.0, the result of a division in Python,
         * counts as an integer */
        const double real = json_real_value(value);
        if (is_off(key, value) || json_is_array(value) || ckpt_arg_can_be(key, value) ||
            (key->kind <= CKPT_ARG_EXPERTS && real > 0 && real < 1e9 && real == (int64_t)real))
            continue;
        char *text = s2s_ckpt_config_text(value);
        rc = s2s_error_set(err, S2S_E_FORMAT, "the configuration says %s %.40s, which is no %s",
                           key->config, text ? text : "",
                           key->kind == CKPT_ARG_TEXT     ? "text"
                           : key->kind == CKPT_ARG_NUMBER ? "number"
                                                          : "count");
        free(text);
    }
    return rc;
}

/* Is it a number of layers or experts that a model can be made of? Python's range takes no 32.0. */
static bool is_possible(const json_t *section, const char *key, const json_t *value)
{
    const bool layers = strcmp(key, "num_hidden_layers") == 0;
    const json_int_t n = json_integer_value(value);
    if (json_is_integer(value))
        return n < CKPT_MAX_LAYERS && n >= (layers ? 1 : -1);
    /* classes without experts say null, too */
    return json_is_null(value) && !layers && !s2s_ends_with(ckpt_config_type(section), "_moe") &&
           strcmp(ckpt_config_type(section), "mixtral") != 0;
}

int ckpt_config_check_counts(const json_t *config, struct s2s_error *err)
{
    const char *key;
    json_t *value;
    int rc = 0;
    json_object_foreach((json_t *)config, key, value)
    {
        if (rc == 0 && json_is_object(value))
            rc = ckpt_config_check_counts(value, err);
        if (rc < 0 || is_possible(config, key, value) ||
            !ckpt_has_word("num_hidden_layers num_local_experts num_experts n_routed_experts", key))
            continue;
        char *text = s2s_ckpt_config_text(value);
        rc = s2s_error_set(err, S2S_E_FORMAT, "config.json: %s is %.40s, which is no number of %s",
                           key, text ? text : "",
                           strcmp(key, "num_hidden_layers") == 0 ? "layers" : "experts");
        free(text);
    }
    return rc;
}

/* Positions, norms, biases, windows and routers follow from the class, not from keys alone. */
static void warn_of_unknown(const struct maker *m)
{
    if (m->words && *m->type && !ckpt_config_class(m->type))
        s2s_warn(
            "ckpt",
            "config.json: what Megatron computes for a %.40s is not known here: common.pt says "
            "its sizes, and nothing of positions, norms, biases or windows",
            m->type);
}

json_t *ckpt_config_args(const json_t *config, const struct s2s_ckpt_plan *plan)
{
    const json_t *text = ckpt_text_config(config);
    struct maker m = {.args = json_object(),
                      .config = text,
                      .type = ckpt_config_type(text),
                      .plan = plan,
                      .words = find_embedding(plan)};
    json_t *value;
    for (const struct ckpt_arg_key *key = ckpt_arg_keys; key->config; key++) {
        const double own = ckpt_config_default(text, key->config);
        if (!is_off(key, value = json_object_get(text, key->config)))
            json_object_set(m.args, key->args, value);
        else if (own != 0 && strcmp(key->config, "rope_theta") != 0) { /* set by add_rope */
            json_t *number = as_number(own);
            set(&m, key->args, ckpt_arg_as_fraction(key->config, number));
            json_decref(number);
        }
    }
    if (strcmp(m.type, "nemotron_h") == 0)
        add_pattern(&m);
    add_sizes(&m);
    add_mtp(&m);
    add_attention(&m);
    add_activation(&m);
    add_norms(&m);
    add_router(&m);
    add_words(&m);
    /* Megatron-LM before 0.16 requires these; a model from elsewhere is not sharded */
    set(&m, "tensor_model_parallel_size", json_integer(1));
    set(&m, "pipeline_model_parallel_size", json_integer(1));
    ckpt_nemotron_h_differences(text);
    warn_of_unknown(&m);
    return m.args;
}
