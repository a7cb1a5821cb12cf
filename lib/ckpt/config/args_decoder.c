/*
 * config.json of decoders with attention and a gated MLP, or experts, in every layer. The
 * model_type follows from the tensors, and so do sizes where shapes determine them.
 */
#include <math.h>

#include "lib/ckpt/config/args_config_internal.h"

/* ---- model_type ---- */

static bool is_gemma(const struct ckpt_config_draft *d)
{
    return s2s_starts_with(d->type, "gemma");
}

/* These added sliding windows, a softmax scale and soft caps to the first Gemma. */
static bool is_gemma_2_or_3(const struct ckpt_config_draft *d)
{
    return is_gemma(d) && strcmp(d->type, "gemma") != 0;
}

static bool is_nemotron(const struct ckpt_config_draft *d)
{
    return strcmp(d->type, "nemotron") == 0;
}

/* Megatron's window counts the tokens before the current one, transformers' includes it. */
static int64_t window_of(const struct ckpt_config_draft *d)
{
    const json_t *size = json_object_get(d->args, "window_size");
    const json_t *before = json_is_array(size) ? json_array_get(size, 0) : size;
    const json_int_t n = json_is_integer(before) ? json_integer_value(before) : -1;
    return n >= 0 && n < INT64_MAX ? n + 1 : 0;
}

static bool layer_has_window(const json_t *skip, int64_t layer)
{
    const json_int_t every = json_integer_value(skip);
    const json_t *own = json_array_get(skip, (size_t)layer);
    if (json_is_array(skip))
        return json_is_true(own) || json_integer_value(own) != 0;
    return every > 0 ? (layer + 1) % every != 0 : true;
}

static bool all_have_windows(const struct ckpt_config_draft *d)
{
    const json_t *skip = json_object_get(d->args, "window_attn_skip_freq");
    const int64_t n = ckpt_draft_layers(d);
    for (int64_t layer = 0; layer < n; layer++)
        if (!layer_has_window(skip, layer))
            return false;
    return true;
}

static bool heads_divide(const struct ckpt_config_draft *d)
{
    const int64_t heads = json_integer_value(json_object_get(d->args, "num_attention_heads"));
    return heads > 0 && ckpt_draft_size(d, "embed_tokens.weight", 1) % heads == 0;
}

static const char *choose_type(const struct ckpt_config_draft *d)
{
    const bool norm = ckpt_draft_target(d, "self_attn.q_norm.weight");
    const char *type = norm ? d->family->type_normed : d->family->type;
    if (type)
        return type;
    if (ckpt_draft_target(d, "self_attn.o_proj.bias") || ckpt_draft_target(d, "mlp.down_proj.bias"))
        return "llama";
    if (ckpt_draft_target(d, "self_attn.q_proj.bias"))
        return "qwen2";
    /* another gate than swiglu, and zero-centered norms */
    if (!ckpt_arg_is_true(d->args, "swiglu") && ckpt_arg_is_zero_centered(d->args))
        return "gemma";
    /* the same model, but transformers' Llama requires that the heads divide the width */
    return window_of(d) || !heads_divide(d) ? "mistral" : "llama";
}

/* ---- attention ---- */

static void add_biases(struct ckpt_config_draft *d)
{
    const bool q = ckpt_draft_target(d, "self_attn.q_proj.bias");
    const bool o = ckpt_draft_target(d, "self_attn.o_proj.bias");
    const bool only_qkv = strcmp(d->type, "qwen2") == 0 || strcmp(d->type, "qwen2_moe") == 0;
    if (strcmp(d->type, "qwen2_moe") == 0)
        ckpt_draft_set_bool(d, "qkv_bias", q);
    if (only_qkv ? o : q != o)
        ckpt_draft_hinder(d, "its attention has biases that transformers' model lacks");
    if (!only_qkv && q && o)
        ckpt_draft_set_bool(d, "attention_bias", true);
    if (ckpt_draft_target(d, "mlp.down_proj.bias")) {
        ckpt_draft_set_bool(d, "mlp_bias", true);
        if (!is_nemotron(d) && (strcmp(d->type, "llama") != 0 || !heads_divide(d)))
            ckpt_draft_hinder(d, "its linear layers have biases");
    }
    if (q && (strcmp(d->type, "mixtral") == 0 || strcmp(d->type, "mistral") == 0))
        ckpt_draft_hinder(d, "its attention has biases");
}

/* Llama 3.1's RoPE scaling: constants in Megatron-Core, numbers of the provider in Megatron-Bridge.
 */
static void add_llama3_scaling(struct ckpt_config_draft *d)
{
    double factor = 8, low = 1, high = 4, context = 8192;
    ckpt_arg_is_number(d->args, "rope_scaling_factor", &factor);
    ckpt_arg_is_number(d->args, "low_freq_factor", &low);
    ckpt_arg_is_number(d->args, "high_freq_factor", &high);
    ckpt_arg_is_number(d->args, "old_context_len", &context);
    json_object_set_new(d->config, "rope_scaling",
                        json_pack("{s:s, s:f, s:f, s:f, s:I}", "rope_type", "llama3", "factor",
                                  factor, "low_freq_factor", low, "high_freq_factor", high,
                                  "original_max_position_embeddings",
                                  (json_int_t)fmin(fmax(context, 0), 1e9)));
}

static void add_rope(struct ckpt_config_draft *d)
{
    double factor = 8;
    const json_t *base = json_object_get(d->args, "rotary_base");
    if (strcmp(d->type, "gemma3_text") == 0 && json_is_array(base) && json_array_size(base) == 2) {
        json_object_set(d->config, "rope_local_base_freq", json_array_get(base, 0));
        json_object_set(d->config, "rope_theta", json_array_get(base, 1));
    } else {
        ckpt_draft_need(d, "rope_theta");
        if (strcmp(d->type, "gemma3_text") == 0 &&
            !json_is_null(json_object_get(d->args, "window_size")))
            ckpt_draft_unsaid(d, "rope_local_base_freq");
    }
    if (ckpt_arg_is_true(d->args, "use_rope_scaling")) {
        add_llama3_scaling(d);
    } else if (ckpt_arg_is_number(d->args, "rotary_seq_len_interpolation_factor", &factor) &&
               factor != 1) {
        json_object_set_new(d->config, "rope_scaling",
                            json_pack("{s:s, s:f}", "rope_type", "linear", "factor", factor));
    }
    if (is_nemotron(d) && json_object_get(d->config, "rope_scaling"))
        ckpt_draft_hinder(d, "its rotary embedding is scaled");
}

static void add_layer_types(struct ckpt_config_draft *d, bool window)
{
    const json_t *skip = json_object_get(d->args, "window_attn_skip_freq");
    const int64_t n = ckpt_draft_layers(d);
    json_t *types = json_array();
    for (int64_t layer = 0; layer < n; layer++)
        json_array_append_new(types, json_string(window && layer_has_window(skip, layer)
                                                     ? "sliding_attention"
                                                     : "full_attention"));
    json_object_set_new(d->config, "layer_types", types);
}

static void add_window(struct ckpt_config_draft *d)
{
    const int64_t window = window_of(d);
    const bool by_layer =
        is_gemma(d) || s2s_starts_with(d->type, "qwen2") || strcmp(d->type, "qwen3") == 0;
    if (is_gemma_2_or_3(d)) {
        if (window)
            ckpt_draft_set_int(d, "sliding_window", window);
        if (window || json_is_null(json_object_get(d->args, "window_size")))
            add_layer_types(d, window);
        else
            ckpt_draft_unsaid(d, "sliding_window, layer_types");
        return;
    }
    if (s2s_starts_with(d->type, "mi") && !window) /* mistral, mixtral */
        json_object_set_new(d->config, "sliding_window", json_null());
    if (!window)
        return;
    if (!ckpt_config_has_window(d->type))
        ckpt_draft_hinder(d, "its attention has a window");
    if (!by_layer && !all_have_windows(d))
        ckpt_draft_hinder(d, "the attention of some of its layers has a window");
    ckpt_draft_set_int(d, "sliding_window", window);
    if (s2s_starts_with(d->type, "qwen")) {
        ckpt_draft_set_bool(d, "use_sliding_window", true);
        ckpt_draft_set_int(d, "max_window_layers", 0);
        if (by_layer)
            add_layer_types(d, true);
    }
}

/* Gemma 2 and 3 have a configurable softmax scale; others divide by the square root of the head
 * size. */
static void add_scale(struct ckpt_config_draft *d)
{
    const int64_t dim = json_integer_value(json_object_get(d->config, "head_dim"));
    double scale;
    if (!is_gemma_2_or_3(d)) {
        ckpt_draft_plain_scale(d);
        return;
    }
    if (!ckpt_arg_is_number(d->args, "softmax_scale", &scale)) {
        if (json_object_get(d->args, "softmax_scale") && dim > 0)
            ckpt_draft_set_int(d, "query_pre_attn_scalar", dim);
        else
            ckpt_draft_unsaid(d, "query_pre_attn_scalar");
    } else {
        const double squared = 1 / (scale * scale);
        /* transformers requires an integer */
        if (squared >= 1 && squared < 1e9 && fabs(squared - round(squared)) < 1e-6 * squared)
            ckpt_draft_set_int(d, "query_pre_attn_scalar", llround(squared));
        else
            ckpt_draft_hinder(d, "its softmax_scale is not 1 / sqrt(an integer)");
    }
    ckpt_draft_need(d, "attn_logit_softcapping");
    ckpt_draft_need(d, "final_logit_softcapping");
}

/* ---- MLPs ---- */

static void add_activation(struct ckpt_config_draft *d)
{
    const json_t *swiglu = json_object_get(d->args, "swiglu");
    const bool other =
        ckpt_arg_is_true(d->args, "squared_relu") || ckpt_arg_is_true(d->args, "quick_geglu");
    if (is_nemotron(d)) {
        if (!ckpt_arg_is_true(d->args, "squared_relu"))
            ckpt_draft_hinder(d, "its activation is not squared_relu");
        ckpt_draft_set_text(d, "hidden_act", "relu2");
        return;
    }
    if (!is_gemma(d)) {
        if (!json_is_true(swiglu))
            ckpt_draft_hinder(d, "its activation is not swiglu");
        ckpt_draft_set_text(d, "hidden_act", "silu");
        return;
    }
    const char *key = strcmp(d->type, "gemma") == 0 ? "hidden_act" : "hidden_activation";
    if (json_is_true(swiglu) || other)
        ckpt_draft_hinder(d, "its activation is not Gemma's gated gelu");
    ckpt_draft_set_text(d, key, "gelu_pytorch_tanh");
    ckpt_draft_unsaid(d, key);
}

static void add_dense_layers(struct ckpt_config_draft *d)
{
    const int64_t n = ckpt_draft_layers(d);
    char *has_router = s2s_xcalloc((size_t)n + 1, 1);
    json_t *dense = json_array();
    ckpt_draft_mark_layers(d, "mlp.gate.weight", 1, has_router);
    for (int64_t layer = 0; layer < n; layer++)
        if (!has_router[layer])
            json_array_append_new(dense, json_integer(layer));
    ckpt_draft_set_int(d, "decoder_sparse_step", 1);
    json_object_set_new(d->config, "mlp_only_layers", dense);
    free(has_router);
}

/* transformers' Qwen and Mixtral routers take the softmax of all logits, then the top k. */
static void add_router(struct ckpt_config_draft *d)
{
    const json_t *args = d->args, *pre = json_object_get(args, "moe_router_pre_softmax");
    const char *score = json_string_value(json_object_get(args, "moe_router_score_function"));
    const int64_t groups = json_integer_value(json_object_get(args, "moe_router_num_groups"));
    const int64_t k = json_integer_value(json_object_get(args, "moe_router_topk"));
    double factor;
    if (score && strcmp(score, "softmax") != 0)
        ckpt_draft_hinder(d, "its router's scores are not a softmax");
    if (ckpt_arg_is_number(args, "moe_router_topk_scaling_factor", &factor) && factor != 1)
        ckpt_draft_hinder(d, "its router scales the experts' weights");
    if (groups > 1 && groups != json_integer_value(json_object_get(args, "moe_router_group_topk")))
        ckpt_draft_hinder(d, "its router chooses experts of some groups only");
    if (ckpt_arg_is_true(args, "moe_router_enable_expert_bias"))
        ckpt_draft_hinder(d, "its router has a bias for each expert");
    ckpt_draft_need(d, "num_experts_per_tok");
    if (strcmp(d->type, "mixtral") == 0 && json_is_true(pre) && k != 1)
        ckpt_draft_hinder(d, "its router does not divide by the sum of the chosen weights");
    else if (strcmp(d->type, "mixtral") == 0 && json_is_true(pre))
        ckpt_draft_hinder(d, "its router scales the only expert it chooses");
    else if (strcmp(d->type, "mixtral") != 0 && json_is_boolean(pre))
        ckpt_draft_set_bool(d, "norm_topk_prob", !json_is_true(pre));
    else if (!pre)
        ckpt_draft_unsaid(d, "norm_topk_prob");
}

static void add_experts(struct ckpt_config_draft *d)
{
    const bool mixtral = strcmp(d->type, "mixtral") == 0;
    const bool shared = ckpt_draft_target(d, "shared_expert.down_proj.weight");
    add_router(d);
    if (mixtral) {
        ckpt_draft_set_size(d, "num_local_experts", "block_sparse_moe.gate.weight", 0);
        ckpt_draft_set_size(d, "intermediate_size", "experts.0.w1.weight", 0);
        return;
    }
    add_dense_layers(d);
    ckpt_draft_set_size(d, "num_experts", "mlp.gate.weight", 0);
    ckpt_draft_set_size(d, "moe_intermediate_size", "experts.0.gate_proj.weight", 0);
    if (strcmp(d->type, "qwen2_moe") != 0) {
        if (shared)
            ckpt_draft_hinder(d, "it has shared experts and q and k norms");
        return;
    }
    if (!shared)
        ckpt_draft_hinder(d, "Qwen2-MoE has a shared expert (with --map mixtral: Mixtral's names)");
    else if (!ckpt_draft_target(d, "shared_expert_gate.weight"))
        ckpt_draft_hinder(d, "its shared expert has no gate");
    ckpt_draft_set_size(d, "shared_expert_intermediate_size", "shared_expert.gate_proj.weight", 0);
}

/* ---- norms, positions, and all together ---- */

static void add_norms(struct ckpt_config_draft *d)
{
    const json_t *old = json_object_get(d->args, "apply_layernorm_1p");
    const json_t *around = old ? old : json_object_get(d->args, "layernorm_zero_centered_gamma");
    const struct ckpt_config_family *f = d->family;
    const bool wants_zero = is_gemma(d) || is_nemotron(d);
    if (json_is_true(around) && !wants_zero)
        ckpt_draft_hinder(d, "its norms have gains around 0");
    if (json_is_false(around) && wants_zero)
        ckpt_draft_hinder(d, "its norms have gains around 1");
    if (f->type && strcmp(f->type, f->type_normed) == 0 &&
        ckpt_draft_target(d, "self_attn.q_norm.weight"))
        ckpt_draft_hinder(d, "its queries and keys have norms");
    ckpt_draft_need(d, is_nemotron(d) ? "norm_eps" : "rms_norm_eps");
}

static void check_positions(struct ckpt_config_draft *d)
{
    const char *kind = json_string_value(json_object_get(d->args, "position_embedding_type"));
    const json_t *skip = json_object_get(d->args, "no_rope_freq");
    double percent;
    if (!kind || strcmp(kind, "rope") != 0)
        ckpt_draft_hinder(d, "its position embedding is not RoPE");
    const bool partial = ckpt_arg_is_number(d->args, "rotary_percent", &percent) && percent != 1;
    if (is_nemotron(d))
        json_object_set_new(d->config, "partial_rotary_factor", json_real(partial ? percent : 1));
    if ((partial && !is_nemotron(d)) || ckpt_arg_is_true(d->args, "rotary_interleaved"))
        ckpt_draft_hinder(d, "its rotary embedding is partial or interleaved");
    if (skip && !json_is_null(skip))
        ckpt_draft_hinder(d, "some of its layers have no position embedding");
}

void ckpt_draft_decoder(struct ckpt_config_draft *d)
{
    ckpt_draft_set_type(d, choose_type(d));
    if (is_gemma_2_or_3(d) && !heads_divide(d))
        ckpt_draft_hinder(d, "its number of heads does not divide its hidden size");
    check_positions(d);
    add_norms(d);
    ckpt_draft_set_int(d, "num_hidden_layers", ckpt_draft_layers(d));
    ckpt_draft_set_size(d, "hidden_size", "embed_tokens.weight", 1);
    if (ckpt_draft_size(d, "mlp.up_proj.weight", 0))
        ckpt_draft_set_size(d, "intermediate_size", "mlp.up_proj.weight", 0);
    else
        ckpt_draft_take(d, "intermediate_size");
    ckpt_draft_need(d, "max_position_embeddings");
    if (!ckpt_draft_heads(d, "self_attn.q_proj.weight", "self_attn.k_proj.weight")) {
        ckpt_draft_need(d, "head_dim");
        ckpt_draft_need(d, "num_key_value_heads");
    }
    add_biases(d);
    add_rope(d);
    add_window(d);
    add_scale(d);
    add_activation(d);
    if (d->family->experts)
        add_experts(d);
}
