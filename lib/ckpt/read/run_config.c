/*
 * Model configurations beside the tensors: Megatron-Bridge's run_config.yaml, and NeMo 2's
 * context/model.yaml beside weights/. One section of each has the fields of Megatron-Core's
 * TransformerConfig and of the model provider. They are translated to the names of Megatron-LM's
 * arguments. So is the model_config.yaml of NeMo 1's language models, whose names differ again.
 */
#include <math.h>
#include <strings.h>

#include "lib/base/base.h"
#include "lib/ckpt/read/read.h"
#include "lib/ckpt/read/read_internal.h"

static const struct {
    const char *name, *section;
} kinds[] = {{"run_config.yaml", "model"}, {"../context/model.yaml", "config"}};

bool ckpt_has_run_config(const struct s2s_ckpt *ckpt)
{
    return ckpt->dir_fd >= 0 && s2s_is_there(ckpt->dir_fd, kinds[0].name);
}

/* The name of a function in a configuration: an object with its path, or (newer models) the name.
 */
static const char *function_of(const json_t *model, const char *key)
{
    const json_t *function = json_object_get(model, key);
    const json_t *target = json_object_get(function, "_target_");
    const char *path = json_string_value(target ? target : function);
    const char *dot = path ? strrchr(path, '.') : NULL;
    return dot ? dot + 1 : path ? path : "";
}

static void rename_key(json_t *args, const char *from, const char *to)
{
    json_t *value = json_object_get(args, from);
    if (value && !json_is_null(value))
        json_object_set(args, to, value);
    json_object_del(args, from);
}

static void add_activation(json_t *args, const json_t *model)
{
    const bool gated = json_is_true(json_object_get(model, "gated_linear_unit"));
    const char *name = function_of(model, "activation_func");
    json_object_set_new(args, "swiglu", json_boolean(gated && strcmp(name, "silu") == 0));
    json_object_set_new(args, "squared_relu",
                        json_boolean(!gated && ckpt_has_word("squared_relu relu2", name)));
    json_object_set_new(args, "quick_geglu",
                        json_boolean(gated && strcmp(name, "quick_gelu") == 0));
}

/* Gemma 3's provider counts the window as transformers does, including the token itself, and has
 * the numbers of local and global layers that alternate, or the kind of each layer. */
static void add_interleaved_window(json_t *args, const json_t *model)
{
    const json_t *pattern = json_object_get(model, "interleaved_attn_pattern");
    const json_int_t window = json_integer_value(json_object_get(model, "window_size"));
    const json_int_t local = json_integer_value(json_array_get(pattern, 0));
    const json_int_t global = json_integer_value(json_array_get(pattern, 1));
    json_t *freq = json_array(), *kind;
    size_t i;
    if (json_is_string(json_array_get(pattern, 0))) {
        json_array_foreach(pattern, i, kind)
        {
            const char *text = json_string_value(kind);
            json_array_append_new(freq,
                                  json_integer(text && strcmp(text, "sliding_attention") == 0));
        }
    }
    json_object_del(args, "window_size"); /* unknown, unless the pattern of layers is known */
    if (window > 0 && (json_array_size(freq) || (local > 0 && global == 1))) {
        json_object_set_new(args, "window_size", json_pack("[I, i]", window - 1, 0));
        if (json_array_size(freq))
            json_object_set(args, "window_attn_skip_freq", freq);
        else
            json_object_set_new(args, "window_attn_skip_freq", json_integer(local + 1));
    }
    json_decref(freq);
}

/* Is the argument absent or null? Older releases of Megatron-Core lack some. */
static bool is_absent(const json_t *args, const char *key)
{
    const json_t *value = json_object_get(args, key);
    return !value || json_is_null(value);
}

/* NeMo counts a window as transformers does, including the token itself; Megatron does not. */
static void count_as_megatron(json_t *args)
{
    const json_t *window = json_object_get(args, "window_size");
    const json_int_t before = json_integer_value(json_array_get(window, 0));
    if (before > 0)
        json_object_set_new(args, "window_size",
                            json_pack("[I, O?]", before - 1, json_array_get(window, 1)));
}

static void add_attention(json_t *args, const json_t *model)
{
    const double scalar = json_number_value(json_object_get(model, "query_pre_attn_scalar"));
    if (is_absent(args, "num_query_groups"))
        json_object_set(args, "num_query_groups", json_object_get(args, "num_attention_heads"));
    json_object_set_new(args, "group_query_attention", json_true());
    if (json_is_integer(json_object_get(model, "window_size")))
        add_interleaved_window(args, model);
    if (scalar <= 0)
        return;
    /* Gemma 2: logits are divided by the square root of this, and every other layer has the window
     */
    if (!json_is_number(json_object_get(args, "softmax_scale")))
        json_object_set_new(args, "softmax_scale", json_real(1 / sqrt(scalar)));
    if (json_is_array(json_object_get(args, "window_size")) &&
        is_absent(args, "window_attn_skip_freq"))
        json_object_set_new(args, "window_attn_skip_freq", json_integer(2));
}

/* Llama 3.1's RoPE scaling: a switch and the factor, with Megatron-Core's constants, or (older
 * providers) all four numbers. Gemma 3's provider has no switch: its global layers divide their
 * frequencies by the factor. */
static void add_rope_scaling(json_t *args, const json_t *model)
{
    json_t *factor = json_object_get(model, "scale_factor");
    if (json_object_get(model, "interleaved_attn_pattern")) {
        json_object_set(args, "rotary_seq_len_interpolation_factor",
                        json_object_get(model, "rope_scaling_factor"));
    } else if (json_is_true(json_object_get(model, "rope_scaling"))) {
        json_object_set_new(args, "use_rope_scaling", json_true());
    } else if (json_is_number(factor) && json_object_get(model, "old_context_len")) {
        json_object_set_new(args, "use_rope_scaling", json_true());
        json_object_set(args, "rope_scaling_factor", factor);
    }
}

/* Gives a reference; NULL: no section of that kind. */
static json_t *args_of(const json_t *section, bool is_nemo)
{
    const char *key;
    json_t *value, *args, *model = json_object();
    json_object_update(model, (json_t *)section);
    /* newer models nest Megatron-Core's configuration in their own */
    json_object_update_missing(model, json_object_get(section, "transformer"));
    if (!json_is_integer(json_object_get(model, "num_layers"))) {
        json_decref(model);
        return NULL;
    }
    args = json_object();
    json_object_foreach(model, key, value)
    {
        if (!json_is_object(value))
            json_object_set(args, key, value);
    }
    rename_key(args, "num_moe_experts", "num_experts");
    rename_key(args, "seq_length", "max_position_embeddings");
    rename_key(args, "seq_len_interpolation_factor", "rotary_seq_len_interpolation_factor");
    /* only in memory: saved weights have gate before up */
    json_object_del(args, "moe_mlp_glu_interleave_size");
    json_object_del(args, "moe_shared_expert_glu_interleave_size");
    add_activation(args, model);
    if (is_nemo)
        count_as_megatron(args);
    add_attention(args, model);
    add_rope_scaling(args, model);
    json_decref(model);
    return args;
}

/* Gives a reference; NULL: unreadable (with a warning), or without the section. */
static json_t *read_section(const struct s2s_ckpt *ckpt, const char *name, const char *section)
{
    struct s2s_error err = S2S_ERROR_INIT;
    json_t *root = NULL;
    char *text;
    size_t len;
    int rc = ckpt_slurp(ckpt->dir_fd, name, CKPT_MAX_SIDE_FILE, &text, &len, &err);
    if (rc == 0) {
        rc = ckpt_parse_yaml(&root, text, len, name, &err);
        free(text);
    }
    if (rc < 0)
        s2s_warn("ckpt", "%s: not used: %s", ckpt->path, err.text);
    json_t *args = args_of(json_object_get(root, section), strcmp(section, "config") == 0);
    json_decref(root);
    return args;
}

void ckpt_read_run_config(struct s2s_ckpt *ckpt)
{
    if (ckpt_args(ckpt) || ckpt->dir_fd < 0)
        return;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds && !ckpt->run_args; i++)
        if (s2s_is_there(ckpt->dir_fd, kinds[i].name))
            ckpt->run_args = read_section(ckpt, kinds[i].name, kinds[i].section);
}

/* ---- NeMo 1 ---- */

static void set_default(json_t *model, const char *key, json_t *value)
{
    if (json_is_null(json_object_get(model, key)))
        json_object_del(model, key);
    json_object_update_missing_new(model, json_pack("{s:o}", key, value));
}

/* "fast-swiglu", "geglu", "squared-relu": gated if the name ends in "glu" */
static void name_activation(json_t *model)
{
    const char *name = json_string_value(json_object_get(model, "activation"));
    const bool silu = name && s2s_ends_with(name, "swiglu");
    const bool squared = name && strcmp(name, "squared-relu") == 0;
    json_object_set_new(model, "gated_linear_unit",
                        json_boolean(name && s2s_ends_with(name, "glu")));
    json_object_set_new(model, "activation_func",
                        json_string(silu      ? "silu"
                                    : squared ? "squared_relu"
                                              : "gelu"));
}

static void name_norm(json_t *model)
{
    const char *name = json_string_value(json_object_get(model, "normalization"));
    if (name && strcmp(name, "layernorm1p") == 0)
        json_object_set_new(model, "layernorm_zero_centered_gamma", json_true());
    json_object_set_new(
        model, "normalization",
        json_string(name && strcasecmp(name, "rmsnorm") == 0 ? "RMSNorm" : "LayerNorm"));
}

bool ckpt_read_nemo_args(struct s2s_ckpt *ckpt, const json_t *config)
{
    json_t *model = json_object();
    json_object_update(model, (json_t *)config);
    json_object_update(model, json_object_get(config, "mcore_customization_config"));
    name_activation(model);
    name_norm(model);
    rename_key(model, "rotary_percentage", "rotary_percent");
    rename_key(model, "bias", "add_bias_linear");
    rename_key(model, "qkv_bias", "add_qkv_bias");
    rename_key(model, "override_vocab_size", "vocab_size");
    if (!json_is_integer(json_object_get(model, "max_position_embeddings"))) /* "${..}" */
        rename_key(model, "encoder_seq_length", "max_position_embeddings");
    set_default(model, "rotary_percent", json_real(1));
    set_default(model, "rotary_base", json_integer(10000));
    set_default(model, "layernorm_epsilon", json_real(1e-5));
    set_default(model, "share_embeddings_and_output_weights", json_true());
    set_default(model, "add_bias_linear", json_true());
    set_default(model, "window_size", json_null());
    if (json_is_true(json_object_get(model, "scale_positional_embedding"))) {
        set_default(model, "scale_factor", json_integer(8));
        set_default(model, "old_context_len", json_integer(8192));
    }
    json_decref(ckpt->run_args);
    ckpt->run_args = json_is_integer(json_object_get(model, "num_attention_heads"))
                         ? args_of(model, true)
                         : NULL;
    json_decref(model);
    return ckpt->run_args;
}
