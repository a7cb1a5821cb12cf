/* Reads the config.json of decoders of the Llama type: keys, defaults and meanings of each class.
 */
#include "lib/model/llama_config.h"

#include <stdlib.h>
#include <string.h>

#include "lib/base/error.h"
#include "lib/base/mem.h"
#include "lib/conf/conf.h"
#include "lib/model/keys.h"

const char *const model_llama_types[] = {"llama", "mistral", "qwen2",     "qwen3",
                                         "gemma", "mixtral", "qwen3_moe", NULL};

enum {
    ALL = 127,
    L = 1 << LLAMA,
    M = 1 << MISTRAL,
    Q2 = 1 << QWEN2,
    Q3 = 1 << QWEN3,
    G = 1 << GEMMA,
    X = 1 << MIXTRAL,
    QM = 1 << QWEN3_MOE,
};

/* Keys of transformers' classes (5.24), and of published files. */
static const struct model_key keys[] = {
    {"vocab_size", MODEL_KEY_NEEDED, ALL, NULL, NULL},
    {"hidden_size", MODEL_KEY_NEEDED, ALL, NULL, NULL},
    {"intermediate_size", MODEL_KEY_NEEDED, ALL, NULL, NULL},
    {"num_hidden_layers", MODEL_KEY_NEEDED, ALL, NULL, NULL},
    {"num_attention_heads", MODEL_KEY_NEEDED, ALL, NULL, NULL},
    {"num_key_value_heads", MODEL_KEY_READ, ALL, NULL, NULL},
    {"head_dim", MODEL_KEY_READ, ALL, NULL, NULL},
    {"hidden_act", MODEL_KEY_READ, ALL, NULL, NULL},
    {"rms_norm_eps", MODEL_KEY_READ, ALL, NULL, NULL},
    {"initializer_range", MODEL_KEY_READ, ALL, NULL, NULL},
    {"pad_token_id", MODEL_KEY_READ, ALL, NULL, NULL},
    {"tie_word_embeddings", MODEL_KEY_READ, ALL, NULL, NULL},
    {"rope_parameters", MODEL_KEY_READ, ALL, NULL, NULL},
    {"rope_scaling", MODEL_KEY_READ, ALL, NULL, NULL},
    {"rope_theta", MODEL_KEY_READ, ALL, NULL, NULL},
    {"partial_rotary_factor", MODEL_KEY_READ, ALL, NULL, NULL},
    {"max_position_embeddings", MODEL_KEY_READ, ALL, NULL, NULL},
    {"original_max_position_embeddings", MODEL_KEY_READ, ALL, NULL, NULL},
    {"attention_bias", MODEL_KEY_READ, L | Q3 | G | QM, NULL, NULL},
    {"mlp_bias", MODEL_KEY_READ, L, NULL, NULL},
    {"sliding_window", MODEL_KEY_READ, M | Q2 | Q3 | X | QM, NULL, NULL},
    {"use_sliding_window", MODEL_KEY_READ, Q2 | Q3 | QM, NULL, NULL},
    {"max_window_layers", MODEL_KEY_READ, Q2 | Q3, NULL, NULL},
    {"max_window_layers", MODEL_KEY_QUIET, QM, NULL, NULL},
    {"layer_types", MODEL_KEY_READ, ALL, NULL, NULL},
    {"num_experts_per_tok", MODEL_KEY_READ, X | QM, NULL, NULL},
    {"num_local_experts", MODEL_KEY_READ, X | QM, NULL, NULL},
    {"num_experts", MODEL_KEY_READ, QM, NULL, NULL},
    {"moe_intermediate_size", MODEL_KEY_READ, QM, NULL, NULL},
    {"decoder_sparse_step", MODEL_KEY_READ, QM, NULL, NULL},
    {"mlp_only_layers", MODEL_KEY_READ, QM, NULL, NULL},
    {"norm_topk_prob", MODEL_KEY_READ, QM, NULL, NULL},
    {"router_aux_loss_coef", MODEL_KEY_QUIET, X | QM, NULL, NULL}, /* the recipe says it */
    {"output_router_logits", MODEL_KEY_OFF, X | QM, NULL,
     "it is not implemented; losses of balance are the recipe's (train.moe_aux_loss_coeff)"},
    {"router_jitter_noise", MODEL_KEY_OFF, X, NULL, NULL},
    {"pretraining_tp", MODEL_KEY_QUIET, ALL, NULL, NULL},
    {"attention_dropout", MODEL_KEY_READ, ALL, NULL, NULL},
    {"hidden_activation", MODEL_KEY_FIXED, G, "gelu_pytorch_tanh",
     "it is not read; hidden_act says the activation"},
    {"use_bidirectional_attention", MODEL_KEY_OFF, G, NULL,
     "attention to what comes later is not implemented"},
    {"is_causal", MODEL_KEY_READ, ALL, NULL, NULL},
    {"rope_interleaved", MODEL_KEY_OFF, ALL, NULL, NULL},
    {"use_mrope", MODEL_KEY_OFF, ALL, NULL, NULL},
};

/* What each class of transformers takes for an absent key; 0: it follows from other keys. */
static const struct {
    int64_t n_kv_heads, head_dim, pad, window, max_positions;
    double eps, theta;
} class_defaults[] = {
    [LLAMA] = {0, 0, -1, 0, 2048, 1e-6, 1e4},
    [MISTRAL] = {8, 0, -1, 4096, 131072, 1e-6, 1e4},
    [QWEN2] = {32, 0, -1, 4096, 32768, 1e-6, 1e4},
    [QWEN3] = {32, 128, -1, 4096, 32768, 1e-6, 1e4},
    [GEMMA] = {16, 256, 0, 0, 8192, 1e-6, 1e4},
    [MIXTRAL] = {8, 0, -1, 0, 131072, 1e-5, 1e6},
    [QWEN3_MOE] = {4, 0, -1, 4096, 32768, 1e-6, 1e4},
};

static int read_sizes(struct llama_config *c, const struct s2s_conf *conf, struct s2s_error *err)
{
    enum { BIG = 1 << 30 };
    const int64_t kv = class_defaults[c->family].n_kv_heads,
                  dim = class_defaults[c->family].head_dim;
    int rc;
    if ((rc = s2s_conf_get_i64(&c->vocab, conf, "vocab_size", 1, BIG, err)) < 0 ||
        (rc = s2s_conf_get_i64(&c->width, conf, "hidden_size", 1, BIG, err)) < 0 ||
        (rc = s2s_conf_get_i64(&c->inner, conf, "intermediate_size", 1, BIG, err)) < 0 ||
        (rc = s2s_conf_get_i64(&c->n_layers, conf, "num_hidden_layers", 0, 100000, err)) < 0 ||
        (rc = s2s_conf_get_i64(&c->n_heads, conf, "num_attention_heads", 1, 100000, err)) < 0 ||
        (rc = s2s_conf_get_i64_or(&c->n_kv_heads, conf, "num_key_value_heads", 1, 100000,
                                  c->n_heads, err)) < 0 ||
        (rc = s2s_conf_get_i64_or(&c->head_dim, conf, "head_dim", 1, BIG,
                                  dim ? dim : c->width / c->n_heads, err)) < 0 ||
        (rc = s2s_conf_get_i64_or(&c->pad, conf, "pad_token_id", -1, BIG,
                                  s2s_conf_find(conf, "pad_token_id") /* null is none */
                                      ? -1
                                      : class_defaults[c->family].pad,
                                  err)) < 0 ||
        (rc = s2s_conf_get_f64_or(&c->init_std, conf, "initializer_range", 0.02, err)) < 0 ||
        (rc = s2s_conf_get_f64_or(&c->eps, conf, "rms_norm_eps", class_defaults[c->family].eps,
                                  err)) < 0)
        return rc;
    if (c->pad < 0 && !s2s_conf_is_unset(conf, "pad_token_id"))
        c->pad += c->vocab; /* torch counts from the end */
    if (!s2s_conf_find(conf, "num_key_value_heads") && kv && c->n_heads % kv == 0)
        c->n_kv_heads = kv; /* with other numbers of heads transformers has no model either */
    if (c->n_heads % c->n_kv_heads)
        return s2s_conf_error(err, S2S_E_RANGE, s2s_conf_find(conf, "num_key_value_heads"),
                              "%lld attention heads cannot share %lld key-value heads",
                              (long long)c->n_heads, (long long)c->n_kv_heads);
    return 0;
}

static int read_act(struct llama_config *c, const struct s2s_conf *conf, struct s2s_error *err)
{
    static const char *const names[] = {"silu", "gelu_pytorch_tanh", "gelu_new", "gelu", "relu",
                                        NULL};
    static const enum s2s_act acts[] = {S2S_ACT_SILU, S2S_ACT_GELU_TANH, S2S_ACT_GELU_TANH,
                                        S2S_ACT_GELU, S2S_ACT_RELU};
    int choice;
    int rc = s2s_conf_get_choice_or(&choice, conf, "hidden_act", names, c->family == GEMMA, err);
    if (rc < 0)
        return rc;
    c->act = acts[choice];
    /* published Gemma files say "gelu" and mean the tanh form; the library corrects them so */
    if (c->family == GEMMA && c->act == S2S_ACT_GELU)
        c->act = S2S_ACT_GELU_TANH;
    return 0;
}

static int read_switches(struct llama_config *c, const struct s2s_conf *conf, struct s2s_error *err)
{
    bool attention_bias, causal;
    int rc;
    if ((rc = s2s_conf_get_bool_or(&c->tied, conf, "tie_word_embeddings", c->family == GEMMA,
                                   err)) < 0 ||
        (rc = s2s_conf_get_bool_or(&attention_bias, conf, "attention_bias", false, err)) < 0 ||
        (rc = s2s_conf_get_bool_or(&c->mlp_bias, conf, "mlp_bias", false, err)) < 0 ||
        (rc = s2s_conf_get_bool_or(&causal, conf, "is_causal", true, err)) < 0)
        return rc;
    c->qkv_bias = c->family == QWEN2 || attention_bias;
    c->o_bias = attention_bias;
    if (!causal)
        return s2s_conf_error(err, S2S_E_UNSUPPORTED, s2s_conf_find(conf, "is_causal"),
                              "attention to what comes later is not implemented");
    return read_act(c, conf, err);
}

/* ---- windows ---- */

/* The layers that have it, where no list says so: all, but for Qwen those from max_window_layers
 * on. */
static int window_by_number(struct llama_config *c, const struct s2s_conf *conf,
                            struct s2s_error *err)
{
    const bool later = c->family == QWEN2 || c->family == QWEN3;
    int64_t first;
    int rc =
        s2s_conf_get_i64_or(&first, conf, "max_window_layers", 0, INT32_MAX, later ? 28 : 0, err);
    for (int64_t i = 0; rc == 0 && i < c->n_layers; i++)
        c->in_window[i] = c->window > 0 && (!later || i >= first);
    return rc;
}

/* layer_types: the classes of Qwen read it; of others it may say what they do anyway. */
static int window_by_types(struct llama_config *c, const struct s2s_conf *list,
                           struct s2s_error *err)
{
    static const char *const types[] = {"full_attention", "sliding_attention", NULL};
    const bool reads = c->family == QWEN2 || c->family == QWEN3;
    if ((int64_t)list->n_items != c->n_layers)
        return s2s_conf_error(err, S2S_E_SHAPE, list, "%zu types for %lld layers", list->n_items,
                              (long long)c->n_layers);
    for (int64_t i = 0; i < c->n_layers; i++) {
        int type;
        int rc = s2s_conf_as_choice(&type, list->items[i], types, err);
        if (rc < 0)
            return rc;
        if (!reads && type != c->in_window[i])
            return s2s_conf_error(err, S2S_E_UNSUPPORTED, list->items[i],
                                  "transformers' class of %s has %s in every layer, whatever this "
                                  "list says",
                                  model_llama_types[c->family], types[c->in_window[i]]);
        if (type && c->window == 0)
            return s2s_conf_error(err, S2S_E_RANGE, list->items[i],
                                  "no window is given (sliding_window, use_sliding_window)");
        c->in_window[i] = type;
    }
    return 0;
}

static int read_window(struct llama_config *c, const struct s2s_conf *conf, struct s2s_error *err)
{
    const bool asks = c->family == QWEN2 || c->family == QWEN3 || c->family == QWEN3_MOE;
    const struct s2s_conf *list;
    bool used;
    int rc;
    if ((rc = s2s_conf_get_bool_or(&used, conf, "use_sliding_window", !asks, err)) < 0 ||
        (rc = s2s_conf_get_list(&list, conf, "layer_types", err)) < 0)
        return rc;
    const bool none = s2s_conf_find(conf, "sliding_window") /* null is none */
                      && s2s_conf_is_unset(conf, "sliding_window");
    if (used && !none && class_defaults[c->family].window + (c->family == MIXTRAL) > 0 &&
        (rc = s2s_conf_get_i64_or(&c->window, conf, "sliding_window", 1, INT32_MAX,
                                  class_defaults[c->family].window, err)) < 0)
        return rc;
    c->in_window = s2s_xcalloc((size_t)c->n_layers + 1, sizeof *c->in_window);
    rc = window_by_number(c, conf, err);
    return rc < 0 || !list ? rc : window_by_types(c, list, err);
}

/* ---- all of it ---- */

int model_read_llama(struct llama_config *c, const struct s2s_conf *conf, struct s2s_error *err)
{
    int family;
    *c = (struct llama_config){.window = 0};
    int rc = s2s_conf_get_choice(&family, conf, "model_type", model_llama_types, err);
    if (rc < 0)
        return rc;
    c->family = (enum llama_family)family;
    const struct model_keys known = {keys, sizeof keys / sizeof *keys, 1u << family,
                                     model_llama_types[family]};
    const struct model_rope_defaults rope = {.theta = class_defaults[family].theta,
                                             .max_position_embeddings =
                                                 class_defaults[family].max_positions,
                                             .family = model_llama_types[family]};
    if ((rc = model_check_keys(conf, &known, err)) < 0 || (rc = read_sizes(c, conf, err)) < 0 ||
        (rc = read_switches(c, conf, err)) < 0 || (rc = read_window(c, conf, err)) < 0)
        return rc;
    if (family >= MIXTRAL &&
        (rc = model_read_moe(&c->moe, family == MIXTRAL ? MODEL_MIXTRAL : MODEL_QWEN3_MOE, conf,
                             c->width, c->act, err)) < 0)
        return rc;
    return model_read_rope(&c->rope, conf, c->head_dim, &rope, err);
}

void model_llama_config_release(struct llama_config *c)
{
    model_rope_release(&c->rope);
    free(c->in_window);
}
