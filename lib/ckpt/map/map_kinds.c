/*
 * Do the tensors fit config.json in model_type, number and kinds of layers? transformers ignores
 * tensors that its class does not have, and initialises missing ones randomly. Source:
 * transformers' models.
 */
#include "lib/base/base.h"
#include "lib/ckpt/config/args_config.h"
#include "lib/ckpt/map/map_internal.h"
#include "lib/ckpt/names.h"

#define NORMED "qwen3 qwen3_moe gemma3_text "
#define GATED "llama mistral qwen2 gemma gemma2 qwen2_moe " NORMED
#define MIXED "mixtral qwen2_moe qwen3_moe "

/* Parts of names of a layer's tensors, and which model types have them. */
static const struct {
    const char *part;
    const char *types;  /* model types that may have it */
    const char *key;    /* or that have it if they heed this key and it is true; NULL: none */
    const char *always; /* model types that always have it in some layer */
} kinds[] = {
    {".mixer.", "nemotron_h ", NULL, "nemotron_h "},
    {".self_attn.q_proj.weight", "nemotron mixtral " GATED, NULL, ""},
    {".self_attn.q_proj.bias", "qwen2 qwen2_moe ", "attention_bias", ""},
    {".self_attn.o_proj.bias", "", "attention_bias", ""},
    {".self_attn.q_norm.weight", NORMED, NULL, ""}, /* map_absence.c reports missing ones */
    {".mlp.gate_proj.weight", GATED, NULL, ""},
    {".mixer.q_proj.bias", "", "attention_bias", ""},
    {".mixer.o_proj.bias", "", "attention_bias", ""},
    {".mlp.down_proj.bias", "", "mlp_bias", ""},
    {".input_layernorm.bias", "nemotron ", NULL, "nemotron "},
    {".pre_feedforward_layernorm.weight", "gemma2 gemma3_text ", NULL, "gemma2 gemma3_text "},
    {".block_sparse_moe.", "mixtral ", NULL, ""},
    {".experts.", "nemotron_h " MIXED, NULL, "mixtral "},
    {".mlp.experts.0.", "qwen2_moe qwen3_moe ", NULL, ""}, /* in memory Mixtral's have this name too
                                                            */
    {".mlp.shared_expert.", "qwen2_moe ", NULL, ""},
};

static bool is_words(const struct ckpt_map_engine *e, const char *name)
{
    static const char *const stacks[] = {"model.layers.", "backbone.layers.",
                                         "language_model.model.layers.",
                                         "language_model.backbone.layers."};
    const size_t len = e->prefix ? strlen(e->prefix) : 0;
    if (len && strncmp(name, e->prefix, len) != 0)
        return false;
    for (size_t i = 0; i < sizeof stacks / sizeof *stacks; i++)
        if (s2s_starts_with(name + len, stacks[i]))
            return true;
    return false;
}

/* Qwen2-MoE alone has a key that takes the biases of q, k and v from its class. */
static bool is_off(const json_t *words, const char *type, const char *part)
{
    return strcmp(type, "qwen2_moe") == 0 && strcmp(part, ".self_attn.q_proj.bias") == 0 &&
           json_is_false(json_object_get(words, "qkv_bias"));
}

static int refuse(struct ckpt_map_engine *e, int rc)
{
    return s2s_error_hint(e->err, rc, "--config takes the config.json of this model");
}

/* A tensor that the class lacks. Names that are kept lose nothing by it: the class ignores it. */
static int refuse_surplus(struct ckpt_map_engine *e, const char *name, const char *type,
                          const char *key)
{
    const char *without = key ? " without " : "";
    key = key ? key : "";
    if (!e->request->is_exact)
        return refuse(e, s2s_error_set(e->err, S2S_E_SHAPE,
                                       "%s: the configuration says that this is a %s, which has "
                                       "none%s%s",
                                       name, type, without, key));
    s2s_warn("ckpt",
             "%s: the configuration says that this is a %s, which has none%s%s: transformers "
             "ignores it",
             name, type, without, key);
    return 0;
}

/* What a table calls the tensors is right for more types than it knows, as for Granite's dense
 * models and not for its mixtures. */
static void warn_of_unknown(const struct ckpt_map_engine *e, const char *type)
{
    size_t i = 0;
    if (!*type || !e->builtin || e->to_megatron || e->request->is_exact ||
        ckpt_map_knows_type(type))
        return;
    while (i < ckpt_map_n_shaped(e) && !is_words(e, ckpt_map_shaped(e, i).name))
        i++;
    if (i < ckpt_map_n_shaped(e))
        s2s_warn("ckpt",
                 "the configuration says that this is a %.40s, for which there is no map: the "
                 "names are those of %s, and transformers may want others (--map takes a file)",
                 type, e->builtin);
}

int ckpt_map_check_kind(struct ckpt_map_engine *e)
{
    const json_t *config = e->any_config;
    const json_t *words = ckpt_text_config(config);
    const char *type = ckpt_config_type(words);
    bool any = false, seen[sizeof kinds / sizeof *kinds] = {false};
    warn_of_unknown(e, type);
    /* custom code may have anything */
    if (json_object_get(config, "auto_map") ||
        !ckpt_has_word("nemotron_h nemotron mixtral " GATED, type))
        return 0;
    for (size_t i = 0; i < ckpt_map_n_shaped(e); i++) {
        const char *name = ckpt_map_shaped(e, i).name;
        const bool is_layer = is_words(e, name);
        any |= is_layer;
        for (size_t k = 0; is_layer && k < sizeof kinds / sizeof *kinds; k++) {
            if (seen[k] || !strstr(name, kinds[k].part))
                continue;
            seen[k] = true;
            const bool off = is_off(words, type, kinds[k].part);
            const char *key = off ? "qkv_bias" : kinds[k].key;
            if (key && !ckpt_config_heeds(type, key))
                key = NULL;
            if ((ckpt_has_word(kinds[k].types, type) && !off) ||
                (key && json_is_true(json_object_get(words, key))))
                continue;
            int rc = refuse_surplus(e, name, type, key);
            if (rc < 0)
                return rc;
        }
    }
    for (size_t k = 0; any && k < sizeof kinds / sizeof *kinds; k++)
        if (!seen[k] && ckpt_has_word(kinds[k].always, type))
            return refuse(e, s2s_error_set(e->err, S2S_E_SHAPE,
                                           "the configuration says that this is a %s, whose layers "
                                           "have \"%s\": no tensor is called so",
                                           type, kinds[k].part));
    return 0;
}

bool ckpt_map_knows_type(const char *type)
{
    struct ckpt_map_family next;
    bool known = false;
    for (int i = 0; *type && ckpt_map_texts[i]; i++)
        for (size_t at = 0; !known && ckpt_map_next_family(ckpt_map_texts[i], &at, &next);)
            known = ckpt_has_word(next.model_types, type);
    return known;
}

int ckpt_map_check_family(const struct ckpt_map_engine *e, const char *family,
                          struct s2s_error *err)
{
    const json_t *config = e->any_config;
    const char *type = ckpt_config_type(ckpt_text_config(config));
    struct ckpt_map_family next, other = {.name = ""};
    bool has_types = false;
    for (size_t at = 0; ckpt_map_next_family(ckpt_map_tables, &at, &next);) {
        const bool is_type = ckpt_has_word(next.model_types, type);
        if (strcmp(next.name, family) != 0)
            other = is_type ? next : other;
        else if (is_type)
            return 0;
        else
            has_types |= *next.model_types != 0;
    }
    if (!has_types || !*other.name || json_object_get(config, "auto_map"))
        return 0;
    int rc = s2s_error_set(err, S2S_E_SHAPE, "--map %s: the configuration says that this is a %s",
                           e->request->name, type);
    return s2s_error_hint(err, rc, "--map %s is that family's", other.name);
}

/* ---- layers: their number and kinds ---- */

/* The number of layers that a config.json gives, as a count or as letters; 0: neither. */
static int64_t layers_of(const json_t *config)
{
    const json_t *words = ckpt_text_config(config);
    const json_int_t said = json_integer_value(json_object_get(words, "num_hidden_layers"));
    char *letters = ckpt_config_letters(words);
    const int64_t n = said ? said : letters ? (int64_t)strlen(letters) : 0;
    free(letters);
    return n;
}

/* The number of layers by the configuration, else by the arguments, else by the language model's
 * own configuration; 0: unknown */
int64_t ckpt_map_config_layers(const struct ckpt_map_engine *e)
{
    int64_t said = layers_of(e->config);
    said = said ? said : ckpt_map_number(e, "num_hidden_layers", "num_layers");
    said = said ? said : layers_of(e->own_config);
    return said > 0 && said < CKPT_MAX_LAYERS ? said : 0;
}

/* Has this layer of the stack a section with this name? */
static bool has_section(const struct ckpt_map_engine *e, const char *stack, const char *section,
                        int64_t layer)
{
    const size_t len = strlen(stack);
    for (size_t s = 0; s < e->map.n_sections; s++) {
        const char *name = e->map.sections[s];
        if (strncmp(name, stack, len) == 0 && s2s_starts_with(name + len, "{N}.") &&
            strcmp(name + len + 4, section) == 0 && ckpt_map_in_section(e, (int)s, layer))
            return true;
    }
    return false;
}

static const char router[] = "mlp.router.weight";

/* The kind of a layer in a hybrid stack; 0: another stack, or unknown. */
static char letter_of_layer(const struct ckpt_map_engine *e, const char *stack, int64_t layer)
{
    static const struct {
        const char *name;
        char letter;
    } letters[] = {{"mixer.in_proj.weight.z", 'M'},
                   {"self_attention.linear_qkv.weight", '*'},
                   {"mlp.linear_fc1.weight", '-'},
                   {router, 'E'}};
    for (size_t i = 0; i < sizeof letters / sizeof *letters; i++)
        if (has_section(e, stack, letters[i].name, layer))
            return letters[i].letter;
    return 0;
}

/* Checks that the layers of a hybrid stack have the kinds of the configuration's pattern. */
static int check_letters(struct ckpt_map_engine *e)
{
    char *letters = ckpt_config_letters(ckpt_text_config(e->config));
    int rc = 0;
    for (size_t k = 0; letters && k < e->map.n_stacks && rc == 0; k++) {
        const char *stack = e->map.stacks[k].prefix;
        char *name = ckpt_map_stack_name(e, k);
        const int64_t n = (int64_t)strlen(letters);
        for (int64_t i = 0; !ckpt_map_is_tower(e, stack) && i < e->n_layers[k] && i < n; i++) {
            const char letter = letter_of_layer(e, stack, i);
            if (rc == 0 && letter && letter != letters[i])
                rc = s2s_error_set(e->err, S2S_E_SHAPE,
                                   "%s%lld: the configuration says kind %c (%s), its tensors are "
                                   "those of %c",
                                   name, (long long)i, letters[i], letters, letter);
        }
        free(name);
    }
    free(letters);
    return rc;
}

static int refuse_experts(struct ckpt_map_engine *e, size_t stack, int64_t layer, bool said)
{
    char *name = ckpt_map_stack_name(e, stack);
    int rc = s2s_error_set(e->err, S2S_E_SHAPE,
                           "%s%lld: the configuration says that it has %s experts "
                           "(mlp_only_layers, decoder_sparse_step), its tensors are those of a "
                           "layer with %s",
                           name, (long long)layer, said ? "some" : "no", said ? "none" : "some");
    free(name);
    return rc;
}

/* Checks that exactly those layers have experts for which the configuration says so. */
static int check_experts(struct ckpt_map_engine *e)
{
    const json_t *config = ckpt_text_config(e->config);
    for (size_t k = 0; k < e->map.n_stacks; k++) {
        const char *stack = e->map.stacks[k].prefix;
        const bool words = s2s_ends_with(stack, "decoder.layers.") && !ckpt_map_is_tower(e, stack);
        for (int64_t i = 0; words && i < e->n_layers[k]; i++) {
            const int said = ckpt_config_has_experts(config, i);
            const char *other = said ? "mlp.linear_fc2.weight" : router;
            if (said >= 0 && has_section(e, stack, other, i))
                return refuse_experts(e, k, i, said);
        }
    }
    return 0;
}

/* More layers than the configuration says: names that are kept lose none by it. */
static int refuse_layers(struct ckpt_map_engine *e, size_t stack, int64_t said)
{
    char *prefix = ckpt_map_stack_name(e, stack);
    const int64_t n = e->n_layers[stack];
    int rc = 0;
    if (e->request->is_exact)
        s2s_warn(
            "ckpt",
            "%s%lld: the configuration says %lld layers, the checkpoint has %lld: transformers "
            "ignores the others",
            prefix, (long long)said, (long long)said, (long long)n);
    else
        rc = s2s_error_set(e->err, S2S_E_SHAPE,
                           "%s%lld: the configuration says %lld layers, the checkpoint has %lld",
                           prefix, (long long)said, (long long)said, (long long)n);
    free(prefix);
    return rc;
}

int ckpt_map_check_layers(struct ckpt_map_engine *e)
{
    const int64_t said = ckpt_map_config_layers(e);
    int rc = 0;
    for (size_t k = 0; k < e->map.n_stacks && said && rc == 0; k++)
        if (!ckpt_map_is_tower(e, e->map.stacks[k].prefix) && e->n_layers[k] > said)
            rc = refuse_layers(e, k, said);
    if (rc == 0)
        rc = check_letters(e);
    return rc < 0 ? rc : check_experts(e);
}
