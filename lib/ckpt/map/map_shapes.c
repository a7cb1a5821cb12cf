/*
 * Checks that the shapes of a model fit each other. Rules give the shapes of Hugging Face tensors
 * in symbols. The value of a symbol is decided by majority of the tensors; those that disagree are
 * reported.
 */
#include <ctype.h>

#include "lib/base/base.h"
#include "lib/ckpt/config/args_config.h"
#include "lib/ckpt/list.h"
#include "lib/ckpt/map/map_internal.h"
#include "lib/ckpt/names.h"

enum { CONFIG = 1 << 30 };

/* A tensor with its rule. */
struct known {
    size_t i; /* index among all tensors */
    struct ckpt_map_shaped tensor;
    const struct ckpt_rule *rule;
    struct ckpt_match at;
    const char *shape; /* shape of the rule's item: up to "|" or "]" */
};

enum { THE_CONFIGURATION = -1 };

/* A value for a symbol, from a tensor (its index) or the configuration. */
struct vote {
    int scope, group; /* group -1 and layer -1: of the whole model */
    int64_t layer, value, tensor;
    char symbol;
    int64_t weight, elsewhere; /* number of votes for it, here and in all layers */
};

struct voting {
    struct ckpt_map_engine *e;
    uint16_t *rules; /* by tensor: 1 + index of its rule; 0: none */
    size_t n_tensors;
    struct vote *votes;
    size_t n_votes, cap_votes;
    size_t unite_at; /* votes are merged when there are this many */
};

/* ---- rules ---- */

size_t ckpt_map_n_shaped(const struct ckpt_map_engine *e)
{
    return e->to_megatron ? e->n_sources : e->plan->n_targets;
}

struct ckpt_map_shaped ckpt_map_shaped(const struct ckpt_map_engine *e, size_t i)
{
    if (!e->to_megatron) {
        const struct s2s_ckpt_target *t = &e->plan->targets[i];
        return (struct ckpt_map_shaped){s2s_ckpt_target_name(t), t->dtype, t->n_dims,
                                        s2s_ckpt_target_shape(t)};
    }
    const struct s2s_ckpt_tensor *t = e->sources[i].tensor;
    return (struct ckpt_map_shaped){e->sources[i].name, t->dtype, t->n_dims, t->shape};
}

static uint16_t find_rule(const struct ckpt_map_engine *e, const struct ckpt_map_index *index,
                          const char *name)
{
    struct ckpt_match at;
    struct ckpt_map_tries tries = ckpt_map_tries(index, name);
    for (size_t i; ckpt_map_next_try(&tries, &i);) {
        const struct ckpt_rule *rule = &e->map.rules[i];
        if (rule->shape && ckpt_map_match(rule->hf, name, &at) && !at.stacked &&
            ckpt_map_in_section(e, rule->section, at.layer))
            return (uint16_t)(i + 1);
    }
    return 0;
}

/* The next tensor that has a rule; false: none. Initialise *k to zero. */
static bool next_known(const struct voting *v, struct known *k)
{
    size_t i = k->rule ? k->i + 1 : 0;
    while (i < v->n_tensors && !v->rules[i])
        i++;
    if (i == v->n_tensors)
        return false;
    *k = (struct known){
        .i = i, .tensor = ckpt_map_shaped(v->e, i), .rule = &v->e->map.rules[v->rules[i] - 1]};
    ckpt_map_match(k->rule->hf, k->tensor.name, &k->at);
    k->shape = k->rule->shape + 1;
    for (int item = 0; item < k->at.item && strchr(k->shape, '|'); item++)
        k->shape = strchr(k->shape, '|') + 1;
    return true;
}

/* ---- axes: "H,q|..." ---- */

static int count_axes(const char *shape)
{
    int n = 0;
    if (!strchr(",|]", *shape) || *shape == ',')
        for (n = 1; !strchr("|]", *shape); shape++)
            n += *shape == ',';
    return n;
}

static const char *next_axis(const char *axis)
{
    axis += strcspn(axis, ",|]");
    return axis + (*axis == ',');
}

/* Is the axis a single symbol? */
static bool is_symbol(const char *axis)
{
    return isalpha((unsigned char)axis[0]) && strchr(",|]", axis[1]);
}

/* The parts of a model share H, the width of its words: what projections make. */
static struct vote vote_of(const struct known *k, char symbol)
{
    const bool whole = isupper((unsigned char)symbol) != 0;
    return (struct vote){.scope = symbol == 'H' ? 0 : k->rule->scope,
                         .group = whole ? -1 : k->rule->group,
                         .layer = whole ? -1 : k->at.layer,
                         .tensor = (int64_t)k->i,
                         .symbol = symbol,
                         .weight = 1};
}

/* ---- sizes by the configuration ---- */

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

/* The size that the configuration gives an axis with this symbol of the rule's shape (map_sizes.c);
 * *says: by which keys. 0: it gives none. */
static int64_t said_size(const struct ckpt_map_engine *e, const struct ckpt_rule *rule, char symbol,
                         const char **says)
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

/* ---- counting ---- */

static int by_place(const void *a, const void *b)
{
    const struct vote *x = a, *y = b;
    if (x->scope != y->scope)
        return x->scope < y->scope ? -1 : 1;
    if (x->symbol != y->symbol)
        return x->symbol < y->symbol ? -1 : 1;
    if (x->group != y->group)
        return x->group < y->group ? -1 : 1;
    return (x->layer > y->layer) - (x->layer < y->layer);
}

static int by_number(int64_t a, int64_t b)
{
    return (a > b) - (a < b);
}

static int by_place_and_value(const void *a, const void *b)
{
    const struct vote *x = a, *y = b;
    int order = by_place(a, b);
    if (order == 0)
        order = by_number(x->value, y->value);
    /* in order of tensors, the configuration first */
    return order ? order : by_number(x->tensor, y->tensor);
}

/* Sorts equal symbols and values of all layers together. */
static int by_value(const void *a, const void *b)
{
    struct vote x = *(const struct vote *)a, y = *(const struct vote *)b;
    x.layer = y.layer = -1;
    const int order = by_place(&x, &y);
    return order ? order : by_number(x.value, y.value);
}

static int by_place_and_weight(const void *a, const void *b)
{
    const struct vote *x = a, *y = b;
    int order = by_place(a, b);
    if (order == 0)
        order = by_number(y->weight, x->weight);
    return order ? order : by_number(y->elsewhere, x->elsewhere);
}

/* Merges equal votes. */
static void unite_votes(struct voting *v)
{
    size_t kept = 0;
    if (v->n_votes)
        qsort(v->votes, v->n_votes, sizeof *v->votes, by_place_and_value);
    for (size_t i = 0; i < v->n_votes; i++) {
        struct vote *last = kept ? &v->votes[kept - 1] : NULL;
        if (last && by_place(last, &v->votes[i]) == 0 && last->value == v->votes[i].value)
            last->weight += v->votes[i].weight;
        else
            v->votes[kept++] = v->votes[i];
    }
    v->n_votes = kept;
}

/* Adds a vote; merges from time to time, as a hundred thousand tensors give few different ones. */
static void add_vote(struct voting *v, const struct vote *vote)
{
    enum { AT_LEAST = 4096 };
    if (v->n_votes >= v->unite_at) {
        unite_votes(v);
        v->unite_at = 2 * v->n_votes + AT_LEAST;
    }
    s2s_grow(&v->votes, v->n_votes, &v->cap_votes, sizeof *v->votes);
    v->votes[v->n_votes++] = *vote;
}

static void add_votes(struct voting *v)
{
    for (struct known k = {.rule = NULL}; next_known(v, &k);) {
        const char *axis = k.shape;
        if (count_axes(k.shape) != k.tensor.n_dims)
            continue;
        for (int d = 0; d < k.tensor.n_dims; d++, axis = next_axis(axis)) {
            if (!is_symbol(axis))
                continue;
            struct vote vote = vote_of(&k, *axis);
            vote.value = k.tensor.shape[d];
            add_vote(v, &vote);
            /* the same for all experts of a layer */
            const char *says;
            vote.value = k.at.expert > 0 ? 0 : said_size(v->e, k.rule, *axis, &says);
            if (vote.value == 0)
                continue;
            vote.tensor = THE_CONFIGURATION;
            vote.weight = CONFIG;
            add_vote(v, &vote);
        }
    }
}

/* Sorts votes by symbol and place, most frequent first. If the tensors of one layer are divided,
 * votes of the other layers decide. */
static void count_votes(struct voting *v)
{
    unite_votes(v);
    if (!v->n_votes)
        return;
    qsort(v->votes, v->n_votes, sizeof *v->votes, by_value);
    for (size_t i = 0, end; i < v->n_votes; i = end) {
        int64_t all = 0;
        for (end = i; end < v->n_votes && by_value(&v->votes[i], &v->votes[end]) == 0; end++)
            all += v->votes[end].weight;
        for (size_t k = i; k < end; k++)
            v->votes[k].elsewhere = all;
    }
    qsort(v->votes, v->n_votes, sizeof *v->votes, by_place_and_weight);
}

/* The winning vote; NULL: none. */
static const struct vote *winner(const struct voting *v, const struct vote *place)
{
    size_t begin = 0, end = v->n_votes;
    while (begin < end) {
        const size_t mid = begin + (end - begin) / 2;
        if (by_place(&v->votes[mid], place) < 0)
            begin = mid + 1;
        else
            end = mid;
    }
    return begin < v->n_votes && by_place(&v->votes[begin], place) == 0 ? &v->votes[begin] : NULL;
}

/* ---- judging ---- */

/* The expected size of an axis; -1: any. *says: the winning vote, if the axis is a single symbol.
 */
static int64_t axis_size(const struct voting *v, const struct known *k, const char *axis,
                         const struct vote **says)
{
    int64_t sum = 0;
    for (; !strchr(",|]", *axis); axis += *axis == '+') {
        const struct vote place = vote_of(k, *axis);
        const struct vote *vote = isalpha((unsigned char)*axis) ? winner(v, &place) : NULL;
        int64_t number = vote ? vote->value : -1;
        if (isdigit((unsigned char)*axis))
            number = strtoll(axis, NULL, 10);
        if (is_symbol(axis))
            *says = vote;
        if (number < 0 || __builtin_add_overflow(sum, number, &sum))
            return -1;
        axis += strcspn(axis, "+,|]");
    }
    return sum;
}

static void put_shape(struct s2s_buf *out, const int64_t *shape, int n)
{
    s2s_buf_putc(out, '[');
    for (int d = 0; d < n; d++) {
        s2s_buf_puts(out, d ? ", " : "");
        if (shape[d] < 0)
            s2s_buf_putc(out, '*');
        else
            s2s_buf_printf(out, "%lld", (long long)shape[d]);
    }
    s2s_buf_putc(out, ']');
}

/* Appends the source's name, if it differs. */
static void put_origin(struct s2s_buf *out, const struct voting *v, const struct known *k)
{
    if (v->e->to_megatron)
        return;
    char *name = ckpt_map_mtp_name(v->e, ckpt_map_fill(k->rule->megatron, &k->at));
    s2s_buf_printf(out, " (of %s)", name);
    free(name);
}

static bool is_floating(enum s2s_dtype dtype)
{
    const char *name = s2s_dtype_name(dtype);
    return name[0] == 'F' || strcmp(name, "BF16") == 0;
}

/* The layer's number of experts by its router; 0: unknown. */
static int64_t count_experts(const struct voting *v, const struct known *k)
{
    const struct vote place = vote_of(k, 'e'), *said = winner(v, &place);
    return said ? said->value : 0;
}

/* ": shape [1, 2], expected [2, 2] (2 as NAME says)", or nothing */
static void judge_shape(struct s2s_buf *out, const struct voting *v, const struct known *k)
{
    const struct ckpt_map_shaped *t = &k->tensor;
    const int n = count_axes(k->shape);
    const struct vote *blamed = NULL;
    int64_t want[S2S_MAX_DIMS] = {0};
    const char *axis = k->shape;
    bool fits = n == t->n_dims;
    for (int d = 0; d < n && d < S2S_MAX_DIMS; d++, axis = next_axis(axis)) {
        const struct vote *says = NULL;
        want[d] = axis_size(v, k, axis, &says);
        if (d < t->n_dims && want[d] >= 0 && want[d] != t->shape[d]) {
            fits = false;
            blamed = blamed ? blamed : says;
        }
    }
    if (fits)
        return;
    s2s_buf_puts(out, ": shape ");
    put_shape(out, t->shape, t->n_dims);
    s2s_buf_puts(out, ", expected ");
    put_shape(out, want, n);
    if (blamed && blamed->tensor == THE_CONFIGURATION) {
        const char *says;
        said_size(v->e, k->rule, blamed->symbol, &says);
        s2s_buf_printf(out, " (%lld as %s of the configuration says)", (long long)blamed->value,
                       says ? says : "the size");
    } else if (blamed && blamed->tensor != (int64_t)k->i) {
        s2s_buf_printf(out, " (%lld as %s says)", (long long)blamed->value,
                       ckpt_map_shaped(v->e, (size_t)blamed->tensor).name);
    }
}

/* "NAME (of NAME): what does not fit", or NULL. Gives: free. */
static char *judge(const struct voting *v, const struct known *k)
{
    const struct ckpt_map_shaped *t = &k->tensor;
    struct s2s_buf out = S2S_BUF_INIT, fault = S2S_BUF_INIT;
    const int64_t n_experts = k->at.expert < 0 ? 0 : count_experts(v, k);
    if (!is_floating(t->dtype))
        s2s_buf_printf(&fault, ": dtype %s, expected a floating one", s2s_dtype_name(t->dtype));
    else if (n_experts && k->at.expert >= n_experts)
        s2s_buf_printf(&fault, ": expert %lld, where there are %lld", (long long)k->at.expert,
                       (long long)n_experts);
    else
        judge_shape(&fault, v, k);
    if (fault.len == 0)
        return NULL;
    s2s_buf_puts(&out, t->name);
    put_origin(&out, v, k);
    s2s_buf_puts(&out, fault.data);
    s2s_buf_release(&fault);
    return out.data;
}

/* Notes experts that are missing although the router has rows for them. */
static void miss_experts(struct voting *v)
{
    const struct ckpt_map *map = &v->e->map;
    struct ckpt_map_counts counts;
    ckpt_map_counts_begin(&counts, v->e);
    for (struct known k = {.rule = NULL}; next_known(v, &k);) {
        const size_t r = (size_t)(k.rule - map->rules);
        int64_t *end = k.at.expert < 0 ? NULL : ckpt_map_count(&counts, r, k.at.layer);
        if (!end || k.at.expert < end[0])
            continue;
        end[0] = k.at.expert + 1;
        end[1] = count_experts(v, &k); /* equal for all tensors of a layer */
    }
    for (size_t r = 0; r < map->n_rules; r++) {
        int64_t *end;
        for (int64_t layer = -1; counts.of[r] && (end = ckpt_map_count(&counts, r, layer)); layer++)
            for (; end[0] && end[0] < end[1] && end[0] < CKPT_MAX_LAYERS; end[0]++)
                ckpt_map_miss_names(v->e, map->rules[r].hf, layer, end[0]);
    }
    ckpt_map_counts_end(&counts);
}

/* ---- all of it ---- */

/* Reports a hidden_size that no tensor has as one line, instead of every tensor. */
static int check_hidden(struct voting *v)
{
    for (size_t i = 0; i + 1 < v->n_votes; i++) {
        const struct vote *said = &v->votes[i], *next = said + 1;
        if (said->symbol == 'H' && said->weight % CONFIG == 0 && by_place(said, next) == 0)
            return s2s_error_set(v->e->err, S2S_E_SHAPE,
                                 "the configuration says hidden_size %lld, the tensors %lld, such "
                                 "as %s",
                                 (long long)said->value, (long long)next->value,
                                 ckpt_map_shaped(v->e, (size_t)next->tensor).name);
    }
    return 0;
}

/* Are fc1's halves gate and up (as the map assumes) half as wide as what follows them? */
static bool lacks_gate(const struct voting *v)
{
    for (struct known k = {.rule = NULL}; !v->e->to_megatron && next_known(v, &k);) {
        const char *axis = k.shape;
        for (int d = 0; d < k.tensor.n_dims && is_symbol(axis); d++, axis = next_axis(axis)) {
            const struct vote place = vote_of(&k, *axis), *says = winner(v, &place);
            if (!says || says->tensor < 0 || k.tensor.shape[d] != 2 * says->value)
                continue;
            if (v->e->map.rules[v->rules[says->tensor] - 1].transform == CKPT_MAP_SPLIT)
                return true;
        }
    }
    return false;
}

static int list_wrong(struct voting *v)
{
    struct ckpt_list list = {.n = 0};
    for (struct known k = {.rule = NULL}; next_known(v, &k);) {
        char *line = judge(v, &k);
        if (line)
            ckpt_list_add(&list, "does not fit", line);
    }
    int rc = list.n ? s2s_error_set(v->e->err, S2S_E_SHAPE,
                                    "tensors that do not fit the others (%zu):", list.n)
                    : 0;
    rc = ckpt_list_end(&list, rc, v->e->err);
    if (rc < 0 && lacks_gate(v))
        return s2s_error_hint(v->e->err, rc,
                              "an MLP without a gate, as Megatron's has it without --swiglu, is in "
                              "no model known here but Nemotron's (--map nemotron, nemotron_h)");
    return rc;
}

/* Warns about Megatron's recipes with 8-bit weights, whose scales are in extra states. */
static void warn_of_scales(const struct voting *v)
{
    char *first = NULL;
    size_t n = 0;
    for (struct known k = {.rule = NULL}; !v->e->to_megatron && next_known(v, &k);)
        if (s2s_dtype_size(k.tensor.dtype) == 1 && n++ == 0)
            first = s2s_xstrdup(k.tensor.name);
    if (n)
        s2s_warn("ckpt",
                 "%s%s: weights of 8 bits, and without the scales that Megatron keeps in "
                 "extra states: right only where these are 1",
                 first, n > 1 ? " and others" : "");
    free(first);
}

int ckpt_map_check_shapes(struct ckpt_map_engine *e)
{
    struct voting v = {.e = e, .n_tensors = ckpt_map_n_shaped(e)};
    struct ckpt_map_index index;
    v.rules = s2s_xcalloc(v.n_tensors + 1, sizeof *v.rules);
    ckpt_map_index_begin(&index, &e->map, true);
    for (size_t i = 0; i < v.n_tensors; i++)
        v.rules[i] = find_rule(e, &index, ckpt_map_shaped(e, i).name);
    ckpt_map_index_end(&index);
    add_votes(&v);
    count_votes(&v);
    miss_experts(&v);
    int rc = ckpt_map_missed(e);
    if (rc == 0)
        rc = ckpt_map_check_layers(e);
    if (rc == 0)
        rc = ckpt_map_check_kind(e);
    if (rc == 0)
        rc = check_hidden(&v);
    if (rc == 0)
        rc = list_wrong(&v);
    if (rc == 0)
        warn_of_scales(&v);
    free(v.rules);
    free(v.votes);
    return rc;
}
