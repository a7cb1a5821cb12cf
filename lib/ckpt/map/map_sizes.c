/* Sizes of a model's axes, by its configuration. */
#include "lib/base/base.h"
#include "lib/ckpt/config/args_config.h"
#include "lib/ckpt/map/map_internal.h"
#include "lib/ckpt/names.h"

/* Keys that all families share, by the symbol that shapes have for the axis */
static const struct {
    char symbol;
    const char *key;
} keys[] = {{'f', "intermediate_size"},
            {'m', "moe_intermediate_size"},
            {'e', "num_experts"},
            {'e', "n_routed_experts"},
            {'e', "num_local_experts"},
            {'s', "shared_expert_intermediate_size"},
            {'s', "moe_shared_expert_intermediate_size"},
            {'x', "moe_latent_size"},
            {'n', "mamba_num_heads"},
            {'K', "conv_kernel"}};

static const char *key_of(const struct ckpt_map_engine *e, char symbol)
{
    const json_t *words = ckpt_text_config(e->config);
    /* Mixtral has no other MLPs than its experts */
    if (symbol == 'm' && strcmp(ckpt_config_type(words), "mixtral") == 0)
        symbol = 'f';
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (keys[i].symbol == symbol && json_is_integer(json_object_get(words, keys[i].key)))
            return keys[i].key;
    return NULL;
}

static int64_t number(const struct ckpt_map_engine *e, const char *key)
{
    return ckpt_map_number(e, key, "");
}

/* 0: unknown, as some classes have a default of their own */
static int64_t head_dim(const struct ckpt_map_engine *e)
{
    const json_t *words = ckpt_text_config(e->config);
    const int64_t said = number(e, "head_dim"), heads = number(e, "num_attention_heads");
    if (said || !heads ||
        !ckpt_has_word("llama mistral mixtral qwen2 qwen2_moe qwen3_moe nemotron",
                       ckpt_config_type(words)))
        return said;
    return number(e, "hidden_size") / heads;
}

static int64_t groups(const struct ckpt_map_engine *e)
{
    const int64_t said = number(e, "num_key_value_heads");
    return said ? said : number(e, "num_attention_heads");
}

/* Rows that are products of keys. Each number is less than 2^30. *says: the keys. 0: unknown. */
static int64_t product(const struct ckpt_map_engine *e, char symbol, const char **says)
{
    const int64_t inner = number(e, "mamba_num_heads") * number(e, "mamba_head_dim");
    const int64_t state = number(e, "n_groups") * number(e, "ssm_state_size");
    switch (symbol) {
    case 'q':
        *says = "num_attention_heads and head_dim";
        return number(e, "num_attention_heads") * head_dim(e);
    case 'k':
        *says = "num_key_value_heads and head_dim";
        return groups(e) * head_dim(e);
    case 'd':
        *says = "head_dim";
        return head_dim(e);
    case 'i':
        *says = "mamba_num_heads and mamba_head_dim";
        return inner;
    case 'c':
        *says = "mamba_num_heads, mamba_head_dim, n_groups and ssm_state_size";
        return inner && state ? inner + 2 * state : 0;
    default:
        return 0;
    }
}

int64_t ckpt_map_said_size(const struct ckpt_map_engine *e, const struct ckpt_rule *rule,
                           char symbol, const char **says)
{
    const json_t *words = ckpt_text_config(e->config);
    /* mapped weights are cut by these numbers, or refused where they are */
    const bool all = e->request->is_exact && ckpt_config_class(ckpt_config_type(words));
    *says = "hidden_size";
    if (symbol == 'H')
        return ckpt_map_number(e, *says, *says);
    *says = "vocab_size";
    if (symbol == 'V' && all && rule->transform == CKPT_MAP_VOCAB)
        return number(e, *says);
    if (rule->group < 0 || ckpt_map_is_tower(e, e->map.stacks[rule->group].prefix))
        return 0;
    if (!e->builtin) /* a user's letters mean nothing else than the same number */
        return 0;
    *says = key_of(e, symbol);
    if (*says)
        return number(e, *says);
    return all ? product(e, symbol, says) : 0;
}

int ckpt_map_attention(const struct ckpt_map_engine *e, const char *name, int64_t rows,
                       int64_t *heads, int64_t *groups, int64_t *dim)
{
    *heads = ckpt_map_number(e, "num_attention_heads", "num_attention_heads");
    *groups = ckpt_map_number(e, "num_key_value_heads", "num_query_groups");
    *dim = ckpt_map_number(e, "head_dim", "kv_channels");
    if (*heads && (!*groups || json_is_false(json_object_get(e->args, "group_query_attention"))))
        *groups = *heads;
    if (*heads && !*dim && rows % (*heads + 2 * *groups) == 0)
        *dim = rows / (*heads + 2 * *groups);
    if (!*heads || !*dim) {
        int rc = s2s_error_set(e->err, S2S_E_NOTFOUND,
                               "%s: how many heads and groups does it have? the checkpoint's "
                               "arguments do not say",
                               name);
        return s2s_error_hint(e->err, rc, "give the model's config.json with --config");
    }
    if (*heads % *groups || rows != (*heads + 2 * *groups) * *dim)
        return s2s_error_set(
            e->err, S2S_E_SHAPE, "%s: %lld rows are not %lld heads and 2 x %lld groups of %lld",
            name, (long long)rows, (long long)*heads, (long long)*groups, (long long)*dim);
    return 0;
}
