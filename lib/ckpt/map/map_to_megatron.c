/* Plans Megatron tensors from Hugging Face's: the rules of a map, read from right to left. */
#include "lib/base/base.h"
#include "lib/ckpt/box.h"
#include "lib/ckpt/map/map_internal.h"

/* A box of a source, or zeros (source NULL: size[0] of them). */
struct box {
    const struct s2s_ckpt_tensor *source;
    int64_t begin[S2S_MAX_DIMS], size[S2S_MAX_DIMS];
};

/* What a rule makes for a layer: boxes of sources, concatenated. */
struct part {
    const struct s2s_ckpt_tensor *first; /* dtype and trailing axes */
    int64_t shape[S2S_MAX_DIMS];
    int n_dims;
    struct box *pieces;
    size_t n_pieces, cap_pieces;
};

static struct box *add_piece(struct part *part)
{
    s2s_grow(&part->pieces, part->n_pieces, &part->cap_pieces, sizeof *part->pieces);
    struct box *piece = &part->pieces[part->n_pieces++];
    *piece = (struct box){.source = NULL};
    return piece;
}

static void add_rows(struct part *part, const struct s2s_ckpt_tensor *t, int64_t begin,
                     int64_t n_rows)
{
    struct box *piece = add_piece(part);
    piece->source = t;
    for (int d = 0; d < t->n_dims; d++)
        piece->size[d] = t->shape[d];
    if (t->n_dims) {
        piece->begin[0] = begin;
        piece->size[0] = n_rows;
    }
}

static int64_t rows_of(const struct s2s_ckpt_tensor *t)
{
    return t->n_dims ? t->shape[0] : 1;
}

static void add_whole(struct part *part, const struct s2s_ckpt_tensor *t)
{
    add_rows(part, t, 0, rows_of(t));
}

/* Sets the shape to that of t, with another number of rows. */
static void set_shape(struct part *part, const struct s2s_ckpt_tensor *t, int64_t rows)
{
    part->first = t;
    part->n_dims = t->n_dims;
    for (int d = 0; d < t->n_dims; d++)
        part->shape[d] = t->shape[d];
    if (t->n_dims)
        part->shape[0] = rows;
}

/* ---- finding ---- */

static struct ckpt_match hole(int64_t layer, int64_t expert, int item)
{
    return (struct ckpt_match){.layer = layer, .expert = expert, .item = item};
}

/* Finds the sources of a rule's items at a layer and returns their number; *n: the number it
 * requires. */
static int find_items(const struct ckpt_map_engine *e, const struct ckpt_rule *rule, int64_t layer,
                      int64_t expert, struct ckpt_map_source *items[CKPT_MAP_MAX_ITEMS], int *n)
{
    int found = 0;
    *n = ckpt_map_names(rule->hf);
    for (int i = 0; i < *n; i++) {
        struct ckpt_match at = hole(layer, expert, i);
        items[i] = ckpt_map_find_at(e, rule->hf, &at);
        found += items[i] != NULL;
    }
    return found;
}

/* ---- transforms ---- */

static int back_vocab(struct ckpt_map_engine *e, struct part *part, const struct s2s_ckpt_tensor *t)
{
    int64_t rows = rows_of(t), multiple = e->request->vocab_multiple, padded = rows;
    if (t->n_dims != 2)
        return s2s_error_set(e->err, S2S_E_SHAPE, "%s: is no matrix", t->name);
    const int64_t vocab = ckpt_map_number(e, "vocab_size", "vocab_size");
    if (vocab > rows)
        return s2s_error_set(e->err, S2S_E_SHAPE, "%s: %lld rows for a vocabulary of %lld", t->name,
                             (long long)rows, (long long)vocab);
    if (multiple > 0 && rows % multiple)
        padded = rows + multiple - rows % multiple;
    set_shape(part, t, padded);
    add_whole(part, t);
    if (padded > rows)
        add_piece(part)->size[0] = (padded - rows) * t->shape[1];
    return 0;
}

/* Checks q and k against the configuration's number and size of heads, if known. */
static int check_heads(struct ckpt_map_engine *e, const struct s2s_ckpt_tensor *q,
                       const struct s2s_ckpt_tensor *k, int64_t groups)
{
    const int64_t heads = ckpt_map_number(e, "num_attention_heads", "num_attention_heads");
    const int64_t said = ckpt_map_number(e, "head_dim", "kv_channels");
    const int64_t dim = said ? said : rows_of(k) / groups;
    if (rows_of(k) == groups * dim && (!heads || rows_of(q) == heads * dim))
        return 0;
    return s2s_error_set(
        e->err, S2S_E_SHAPE,
        "%s: %lld rows (k: %lld) are not %lld heads and %lld groups of %lld, which "
        "the configuration says",
        q->name, (long long)rows_of(q), (long long)rows_of(k), (long long)heads, (long long)groups,
        (long long)dim);
}

static int back_qkv(struct ckpt_map_engine *e, struct part *part,
                    struct ckpt_map_source *const items[3])
{
    const struct s2s_ckpt_tensor *q = items[0]->tensor, *k = items[1]->tensor;
    const struct s2s_ckpt_tensor *v = items[2]->tensor;
    int64_t groups = ckpt_map_number(e, "num_key_value_heads", "num_query_groups");
    int rc = ckpt_map_check_alike(e, q, k, 0);
    if (rc == 0)
        rc = ckpt_map_check_alike(e, k, v, 0);
    if (rc < 0)
        return rc;
    if (!groups)
        groups = ckpt_map_number(e, "num_attention_heads", "num_attention_heads");
    if (!groups) {
        rc = s2s_error_set(e->err, S2S_E_NOTFOUND, "%s: how many groups does it have?", k->name);
        return s2s_error_hint(e->err, rc, "give the model's config.json with --config");
    }
    if (rows_of(k) != rows_of(v) || rows_of(k) % groups || rows_of(q) % groups ||
        rows_of(q) % (rows_of(k) / groups ? rows_of(k) / groups : 1))
        return s2s_error_set(
            e->err, S2S_E_SHAPE, "%s: %lld rows (k: %lld, v: %lld) are not %lld groups", q->name,
            (long long)rows_of(q), (long long)rows_of(k), (long long)rows_of(v), (long long)groups);
    if ((rc = check_heads(e, q, k, groups)) < 0)
        return rc;
    set_shape(part, q, rows_of(q) + 2 * rows_of(k));
    int64_t of_q = rows_of(q) / groups, of_k = rows_of(k) / groups;
    for (int64_t g = 0; g < groups; g++) {
        add_rows(part, q, g * of_q, of_q);
        add_rows(part, k, g * of_k, of_k);
        add_rows(part, v, g * of_k, of_k);
    }
    return 0;
}

/* The same from one tensor with all q, all k, all v. */
static int back_fused_qkv(struct ckpt_map_engine *e, struct part *part,
                          const struct s2s_ckpt_tensor *t)
{
    int64_t heads, groups, dim;
    int rc = ckpt_map_attention(e, t->name, rows_of(t), &heads, &groups, &dim);
    if (rc < 0)
        return rc;
    const int64_t of_q = heads / groups * dim, k = heads * dim, v = k + groups * dim;
    set_shape(part, t, rows_of(t));
    for (int64_t g = 0; g < groups; g++) {
        add_rows(part, t, g * of_q, of_q);
        add_rows(part, t, k + g * dim, dim);
        add_rows(part, t, v + g * dim, dim);
    }
    return 0;
}

static int back_heads(struct ckpt_map_engine *e, struct part *part, const struct s2s_ckpt_tensor *t)
{
    int64_t rows = rows_of(t), heads;
    int rc = ckpt_map_vision_heads(e, t, rows, &heads);
    if (rc < 0)
        return rc;
    int64_t dim = rows / 3 / heads;
    set_shape(part, t, rows);
    for (int64_t h = 0; h < heads; h++)
        for (int64_t which = 0; which < 3; which++)
            add_rows(part, t, (which * heads + h) * dim, dim);
    return 0;
}

/* Appends the rows of all items, and sets the shape of the part to that of these. For an expert
 * after the first, the number of rows must be the same. */
static int back_split(struct ckpt_map_engine *e, const struct ckpt_rule *rule, struct part *part,
                      struct ckpt_map_source *const *items, int n)
{
    const struct s2s_ckpt_tensor *before = part->first, *first = NULL;
    const int64_t rows_before = part->shape[0];
    int64_t rows = 0;
    int rc = 0;
    for (int i = 0; i < n && rc == 0; i++) {
        const struct s2s_ckpt_tensor *t = ckpt_map_tensor(e, rule, items[i]);
        items[i]->used = true;
        first = first ? first : t;
        rc = ckpt_map_check_alike(e, before ? before : first, t, 0);
        if (rc == 0 && rows_of(t) != rows_of(first))
            rc = s2s_error_set(e->err, S2S_E_SHAPE, "%s and %s should have as many rows",
                               first->name, t->name);
        rows += rows_of(t);
        add_whole(part, t);
    }
    set_shape(part, first, rows);
    if (rc == 0 && before && rows != rows_before)
        rc = s2s_error_set(e->err, S2S_E_SHAPE, "%s: has another number of rows than expert 0",
                           first->name);
    return rc;
}

/* Stacks all experts on a leading axis. */
static int back_experts(struct ckpt_map_engine *e, const struct ckpt_rule *rule, int64_t layer,
                        struct part *part)
{
    struct ckpt_map_source *items[CKPT_MAP_MAX_ITEMS];
    struct part one = {.first = NULL};
    int64_t expert = 0;
    int n, rc = 0;
    if (rule->transposed && ckpt_map_items(rule->hf))
        return s2s_error_set(
            e->err, S2S_E_UNSUPPORTED,
            "%s: columns of several tensors are not put side by side: only the way to "
            "Hugging Face is known",
            rule->megatron);
    /* stops at the first incomplete expert */
    for (; rc == 0 && find_items(e, rule, layer, expert, items, &n) == n; expert++)
        rc = back_split(e, rule, &one, items, n);
    int64_t said = ckpt_map_number(e, "n_routed_experts", "num_experts");
    if (!said)
        said = ckpt_map_number(e, "num_experts", "num_experts");
    if (rc == 0 && said && said != expert)
        rc = s2s_error_set(e->err, S2S_E_NOTFOUND, "%s of layer %lld: %lld experts, wanted %lld",
                           rule->hf, (long long)layer, (long long)expert, (long long)said);
    if (rc == 0 && one.n_dims >= S2S_MAX_DIMS - 1)
        rc = s2s_error_set(e->err, S2S_E_SHAPE, "%s: too many axes", one.first->name);
    *part = one;
    part->n_dims = one.n_dims + 1;
    part->shape[0] = expert;
    for (int d = 0; d < one.n_dims && rc == 0; d++)
        part->shape[d + 1] = one.shape[d];
    return rc;
}

/*
 * Sets the rows of a fused tensor that belong to each item of the Megatron list. Mamba-2's follow
 * from neighbouring tensors: z and x have as many rows as the inner norm, dt one per head (D), B
 * and C share the rest. Other lists are split equally.
 */
static int concat_rows(struct ckpt_map_engine *e, const struct ckpt_rule *rule, int64_t layer,
                       const struct s2s_ckpt_tensor *t, int64_t rows[CKPT_MAP_MAX_ITEMS])
{
    int n = ckpt_map_items(rule->megatron), n_rest = 0;
    const char *list = strchr(rule->megatron, ','), *mixer = strstr(rule->hf, "mixer.");
    int64_t rest = rows_of(t), inner = 0, heads = 0;
    while (list > rule->megatron && *list != '{')
        list--;
    if (mixer) {
        struct ckpt_match at = hole(layer, -1, -1);
        char *norm = s2s_xasprintf("%.*smixer.norm.weight", (int)(mixer - rule->hf), rule->hf);
        char *d = s2s_xasprintf("%.*smixer.D", (int)(mixer - rule->hf), rule->hf);
        const struct ckpt_map_source *a = ckpt_map_find_at(e, norm, &at),
                                     *b = ckpt_map_find_at(e, d, &at);
        inner = a ? rows_of(a->tensor) : 0;
        heads = b ? rows_of(b->tensor) : 0;
        free(norm);
        free(d);
    }
    for (int i = 0; i < n; i++) {
        const char *item = ++list;
        size_t len = strcspn(item, ",}");
        bool is_inner = len == 1 && (*item == 'z' || *item == 'x');
        rows[i] = is_inner ? inner : len == 2 && s2s_starts_with(item, "dt") ? heads : 0;
        rest -= rows[i];
        n_rest += rows[i] == 0;
        list += len;
    }
    if (rest < 0 || (n_rest ? rest % n_rest : rest != 0))
        return s2s_error_set(e->err, S2S_E_SHAPE, "%s: %lld rows do not make %s", t->name,
                             (long long)rows_of(t), rule->megatron);
    for (int i = 0; i < n; i++)
        rows[i] = rows[i] ? rows[i] : rest / n_rest;
    return 0;
}

/* ---- one rule ---- */

static int back_item(struct ckpt_map_engine *e, const struct ckpt_rule *rule, int64_t layer,
                     int item, struct ckpt_map_source *const *items, int n, struct part *part)
{
    const struct s2s_ckpt_tensor *t = items[0]->tensor;
    int64_t rows[CKPT_MAP_MAX_ITEMS], begin = 0;
    int rc;
    switch (rule->transform) {
    case CKPT_MAP_VOCAB:
        return back_vocab(e, part, t);
    case CKPT_MAP_QKV:
        return n == 3 ? back_qkv(e, part, items) : back_fused_qkv(e, part, t);
    case CKPT_MAP_HEADS:
        return back_heads(e, part, t);
    case CKPT_MAP_SPLIT:
        return back_split(e, rule, part, items, n);
    case CKPT_MAP_EXPERTS:
        return back_experts(e, rule, layer, part);
    case CKPT_MAP_CONCAT:
        rc = concat_rows(e, rule, layer, t, rows);
        for (int i = 0; rc == 0 && i < item; i++)
            begin += rows[i];
        if (rc == 0) {
            set_shape(part, t, rows[item]);
            add_rows(part, t, begin, rows[item]);
        }
        return rc;
    case CKPT_MAP_MAMBA:
        return s2s_error_hint(
            e->err,
            s2s_error_set(e->err, S2S_E_SHAPE,
                          "%s: Megatron has its rows rank by rank, so the same rows are others on "
                          "another number of ranks",
                          t->name),
            "without --map names stay as they are");
    default:
        t = ckpt_map_tensor(e, rule, items[item]);
        set_shape(part, t, rows_of(t));
        add_whole(part, t);
        return 0;
    }
}

/* Adds the part to the plan as a target, or as the next layer of the last target. */
static int put_part(struct ckpt_map_engine *e, const struct ckpt_rule *rule,
                    const struct ckpt_match *at, int64_t n_layers, const struct part *part)
{
    int64_t shape[S2S_MAX_DIMS];
    int lead = n_layers > 0;
    if (part->n_dims + lead > S2S_MAX_DIMS)
        return s2s_error_set(e->err, S2S_E_SHAPE, "%s: too many axes", part->first->name);
    shape[0] = n_layers;
    for (int d = 0; d < part->n_dims; d++)
        shape[d + lead] = part->shape[d];
    char *name = ckpt_map_mtp_name(e, ckpt_map_fill(rule->megatron, at));
    struct s2s_ckpt_target *target =
        e->plan->n_targets ? &e->plan->targets[e->plan->n_targets - 1] : NULL;
    bool more = target && lead && strcmp(s2s_ckpt_target_name(target), name) == 0;
    if (!more)
        target = s2s_ckpt_plan_add(e->plan, name, part->first->dtype, part->n_dims + lead, shape);
    free(name);
    if (more && (target->dtype != part->first->dtype ||
                 !ckpt_same_shape(s2s_ckpt_target_shape(target), target->n_dims, shape,
                                  part->n_dims + lead)))
        return s2s_error_hint(e->err,
                              s2s_error_set(e->err, S2S_E_SHAPE,
                                            "%s: another shape or dtype than in layer 0, so layers "
                                            "cannot lie on one axis",
                                            part->first->name),
                              "--layers numbered");
    for (size_t i = 0; i < part->n_pieces; i++) {
        const struct box *piece = &part->pieces[i];
        s2s_ckpt_plan_piece(e->plan, target, piece->source, piece->begin, piece->size);
    }
    return 0;
}

/* Is it the first of the layer's rules for its Hugging Face names? */
static bool applies(const struct ckpt_map_engine *e, size_t i_rule, int64_t layer)
{
    const struct ckpt_rule *rule = &e->map.rules[i_rule];
    if (rule->transform == CKPT_MAP_DROP || rule->transform == CKPT_MAP_AGAIN ||
        !ckpt_map_in_section(e, rule->section, layer))
        return false;
    for (size_t i = 0; i < i_rule; i++) {
        const struct ckpt_rule *before = &e->map.rules[i];
        if (before->group == rule->group && before->transform != CKPT_MAP_DROP &&
            strcmp(before->hf, rule->hf) == 0 && ckpt_map_in_section(e, before->section, layer))
            return false;
    }
    return true;
}

/* Runs a rule at one layer, for one expert if these have separate names; stacked if n_layers > 0.
 * Returns 1; 0: its sources are missing; or an error. */
static int make_rule(struct ckpt_map_engine *e, size_t i_rule, int64_t layer, int64_t n_layers,
                     int item, int64_t expert)
{
    const struct ckpt_rule *rule = &e->map.rules[i_rule];
    struct ckpt_map_source *items[CKPT_MAP_MAX_ITEMS] = {NULL};
    const struct ckpt_match at = {
        .layer = n_layers ? -1 : layer, .expert = expert, .item = item, .stacked = n_layers > 0};
    struct part part = {.first = NULL};
    int n;
    if (!applies(e, i_rule, layer) || find_items(e, rule, layer, expert, items, &n) < n)
        return 0;
    int rc = back_item(e, rule, layer, item, items, n, &part);
    for (int i = 0; i < n; i++)
        items[i]->used = true;
    if (rc == 0)
        rc = put_part(e, rule, &at, n_layers, &part);
    free(part.pieces);
    return rc < 0 ? rc : 1;
}

/* ---- all rules ---- */

static bool is_open_rule(const struct ckpt_rule *rule)
{
    return ckpt_map_is_open(rule->hf) || rule->transform == CKPT_MAP_DROP;
}

/* Have the rule's sources the same shape and dtype in all layers? */
static bool has_one_shape(const struct ckpt_map_engine *e, const struct ckpt_rule *rule)
{
    struct ckpt_map_source *first[CKPT_MAP_MAX_ITEMS], *items[CKPT_MAP_MAX_ITEMS];
    int n;
    find_items(e, rule, 0, 0, first, &n);
    for (int64_t layer = 1; layer < e->n_layers[rule->group]; layer++) {
        find_items(e, rule, layer, 0, items, &n);
        for (int i = 0; i < n; i++) {
            const struct s2s_ckpt_tensor *a = first[i] ? first[i]->tensor : NULL;
            const struct s2s_ckpt_tensor *b = items[i] ? items[i]->tensor : NULL;
            if (a && b &&
                (a->dtype != b->dtype ||
                 !ckpt_same_shape(a->shape, a->n_dims, b->shape, b->n_dims)))
                return false;
        }
    }
    return true;
}

/* Have all layers of a stack the same sections, with tensors of the same shapes? */
static bool is_alike(const struct ckpt_map_engine *e, int group)
{
    for (size_t i = 0; i < e->map.n_rules; i++) {
        const struct ckpt_rule *rule = &e->map.rules[i];
        if (rule->group != group)
            continue;
        bool first = ckpt_map_in_section(e, rule->section, 0);
        for (int64_t layer = 1; layer < e->n_layers[group]; layer++)
            if (ckpt_map_in_section(e, rule->section, layer) != first)
                return false;
        if (!is_open_rule(rule) && !has_one_shape(e, rule))
            return false;
    }
    return true;
}

/* Numbers the layers of heterogeneous stacks, as Megatron-Core does; they could not lie on one
 * axis. */
static void number_stacks(struct ckpt_map_engine *e)
{
    const enum ckpt_layers how = e->request->layers;
    for (size_t k = 0; k < e->map.n_stacks; k++)
        e->map.stacks[k].numbered |=
            how == CKPT_LAYERS_NUMBERED || (how == CKPT_LAYERS_AUTO && !is_alike(e, (int)k));
}

/* Runs a rule that ends in {*}: for every source that matches and that no earlier rule took; or a
 * "drop" rule, for the names that exist. */
static void run_open_rule(struct ckpt_map_engine *e, const struct ckpt_rule *rule)
{
    struct ckpt_match match;
    for (size_t i = 0; i < e->n_sources; i++) {
        struct ckpt_map_source *source = &e->sources[i];
        if (source->used || !ckpt_map_match(rule->hf, source->name, &match))
            continue;
        source->used = true;
        source->dropped = rule->transform == CKPT_MAP_DROP;
        if (source->dropped)
            continue;
        char *name = ckpt_map_fill(rule->megatron, &match);
        s2s_ckpt_plan_copy(e->plan, name, source->tensor);
        free(name);
    }
}

/* Notes what a rule requires and the source lacks, at the layers where it applies. */
static void note_rule(struct ckpt_map_engine *e, size_t i_rule)
{
    const struct ckpt_rule *rule = &e->map.rules[i_rule];
    struct ckpt_map_source *items[CKPT_MAP_MAX_ITEMS];
    int64_t n_layers = rule->group < 0 ? 1 : e->n_layers[rule->group];
    int n;
    for (int64_t i = 0; !is_open_rule(rule) && i < n_layers; i++) {
        int64_t layer = rule->group < 0 ? -1 : i;
        if (!applies(e, i_rule, layer))
            continue;
        int found = find_items(e, rule, layer, 0, items, &n);
        for (int k = 0; k < n; k++)
            if (items[k])
                items[k]->used = true; /* not a candidate for "nearest" */
        if (found < n && (found || ckpt_map_is_needed(e, i_rule)) &&
            !ckpt_map_has_same(e, i_rule, layer) && !ckpt_map_has_tied(e, rule))
            ckpt_map_miss_names(e, rule->hf, layer, 0);
    }
}

/* Runs one item and expert of a rule at all layers where it applies. Returns the number of layers,
 * or an error. */
static int run_layers(struct ckpt_map_engine *e, size_t i_rule, int item, int64_t expert)
{
    const struct ckpt_rule *rule = &e->map.rules[i_rule];
    const int64_t n_layers = rule->group < 0 ? 1 : e->n_layers[rule->group];
    const bool stacked = rule->group >= 0 && !e->map.stacks[rule->group].numbered;
    int present = 0, rc = 0;
    for (int64_t i = 0; rc >= 0 && i < n_layers; i++) {
        rc = make_rule(e, i_rule, rule->group < 0 ? -1 : i, stacked ? n_layers : 0, item, expert);
        present += rc > 0;
    }
    if (rc >= 0 && stacked && present && present != n_layers) {
        rc = s2s_error_set(e->err, S2S_E_SHAPE,
                           "%s: in %d of %lld layers only, so layers cannot lie on one axis",
                           rule->hf, present, (long long)n_layers);
        s2s_error_hint(e->err, rc, "--layers numbered");
    }
    return rc < 0 ? rc : present;
}

/* Runs a rule: all layers of a target in order, as put_part requires. */
static int run_rule(struct ckpt_map_engine *e, size_t i_rule)
{
    const struct ckpt_rule *rule = &e->map.rules[i_rule];
    const int n_items = ckpt_map_names(rule->megatron);
    const bool by_expert = rule->transform != CKPT_MAP_EXPERTS && strstr(rule->hf, "{E}");
    int rc = 0;
    if (is_open_rule(rule)) {
        if (*rule->hf)
            run_open_rule(e, rule);
        return 0;
    }
    for (int item = 0; rc >= 0 && item < n_items; item++)
        for (int64_t expert = 0; expert == 0 || (by_expert && rc > 0); expert++)
            rc = run_layers(e, i_rule, item, expert);
    return rc < 0 ? rc : 0;
}

/* Checks that what the family requires is present, and that shapes fit. */
static int check_sources(struct ckpt_map_engine *e)
{
    ckpt_map_match_sources(e);
    ckpt_map_sections_begin(e);
    for (size_t i = 0; i < e->map.n_rules; i++)
        note_rule(e, i);
    ckpt_map_miss_experts(e);
    ckpt_map_miss_mtp(e);
    ckpt_map_miss_layers(e);
    int rc = ckpt_map_missed(e);
    return rc == 0 ? ckpt_map_check_shapes(e) : rc;
}

int ckpt_map_to_megatron(struct s2s_ckpt_plan *plan, const struct ckpt_map_request *request,
                         struct ckpt_map_result *result, struct s2s_error *err)
{
    struct ckpt_map_engine e;
    int rc = ckpt_map_begin(&e, plan, request, true, result, err);
    if (rc == 0)
        rc = ckpt_map_leave_out_copy(&e);
    if (rc == 0)
        rc = check_sources(&e);
    if (rc == 0)
        number_stacks(&e);
    for (size_t i = 0; i < e.map.n_rules && rc == 0; i++)
        rc = run_rule(&e, i);
    ckpt_map_end(&e, result);
    return rc;
}

int ckpt_map_check_hf(const struct ckpt_map_request *request, struct s2s_error *err)
{
    struct ckpt_map_engine e;
    struct ckpt_map_result result = {.n_state = 0};
    int rc = ckpt_map_begin(&e, NULL, request, true, &result, err);
    if (rc == 0)
        rc = check_sources(&e);
    ckpt_map_end(&e, &result);
    ckpt_map_free_result(&result);
    return rc;
}

int ckpt_map_own_head(const struct ckpt_map_request *request, struct ckpt_own_head *head,
                      struct s2s_error *err)
{
    struct ckpt_map_engine e;
    struct ckpt_map_result result = {.n_state = 0};
    struct s2s_error unknown = S2S_ERROR_INIT;
    int rc = 0;
    *head = (struct ckpt_own_head){NULL, NULL};
    if (ckpt_map_begin(&e, NULL, request, true, &result, &unknown) == 0) {
        e.err = err;
        rc = ckpt_map_find_own_head(&e, head);
    }
    ckpt_map_end(&e, &result);
    ckpt_map_free_result(&result);
    return rc;
}
