/* Plans Hugging Face tensors from Megatron's, by the rules of a map. */
#include "lib/base/base.h"
#include "lib/ckpt/map/map_internal.h"
#include "lib/ckpt/model.h"
#include "lib/ckpt/names.h"

/* ---- boxes of a source: one layer of it, and rows of that ---- */

struct view {
    const struct s2s_ckpt_tensor *t;
    int lead;      /* number of leading axes before the rows: layer, expert */
    int64_t at[2]; /* index on each of them */
    int64_t rows;
};

static struct view view_of(const struct s2s_ckpt_tensor *t, bool stacked, int64_t layer)
{
    struct view v = {.t = t, .lead = stacked, .at = {layer, 0}};
    v.rows = t->n_dims > v.lead ? t->shape[v.lead] : 1;
    return v;
}

static void add_rows(struct ckpt_map_engine *e, struct s2s_ckpt_target *target,
                     const struct view *v, int64_t begin, int64_t n_rows)
{
    int64_t first[S2S_MAX_DIMS] = {0}, size[S2S_MAX_DIMS];
    for (int d = 0; d < v->t->n_dims; d++) {
        first[d] = d < v->lead ? v->at[d] : 0;
        size[d] = d < v->lead ? 1 : v->t->shape[d];
    }
    if (v->t->n_dims > v->lead) {
        first[v->lead] = begin;
        size[v->lead] = n_rows;
    }
    s2s_ckpt_plan_piece(e->plan, target, v->t, first, size);
}

/* Adds a target with this many rows and the other axes of the view. */
static struct s2s_ckpt_target *add_target(struct ckpt_map_engine *e, const char *pattern,
                                          const struct ckpt_match *match, const struct view *v,
                                          int64_t rows)
{
    int64_t shape[S2S_MAX_DIMS];
    int n = v->t->n_dims - v->lead;
    for (int d = 0; d < n; d++)
        shape[d] = v->t->shape[d + v->lead];
    if (n)
        shape[0] = rows;
    char *name = ckpt_map_fill(pattern, match);
    struct s2s_ckpt_target *target = s2s_ckpt_plan_add(e->plan, name, v->t->dtype, n, shape);
    free(name);
    return target;
}

/* ---- transforms ---- */

static int make_vocab(struct ckpt_map_engine *e, const struct ckpt_rule *rule,
                      const struct ckpt_match *match, const struct view *v)
{
    int64_t vocab = ckpt_map_number(e, "vocab_size", "vocab_size");
    bool cut = !e->request->keep_vocab_padding && vocab > 0 && vocab < v->rows;
    if (!e->request->keep_vocab_padding && vocab == 0)
        s2s_warn("ckpt",
                 "%s: the vocabulary's size is not known (the tokenizer had it): all %lld rows are "
                 "kept, padding included",
                 v->t->name, (long long)v->rows);
    if (vocab > v->rows)
        return s2s_error_set(e->err, S2S_E_SHAPE, "%s: %lld rows for a vocabulary of %lld",
                             v->t->name, (long long)v->rows, (long long)vocab);
    int64_t rows = cut ? vocab : v->rows;
    if (v->rows - rows > e->rows_cut)
        e->rows_cut = v->rows - rows;
    add_rows(e, add_target(e, rule->hf, match, v, rows), v, 0, rows);
    return 0;
}

static int make_qkv(struct ckpt_map_engine *e, const struct ckpt_rule *rule,
                    struct ckpt_match match, const struct view *v)
{
    int64_t heads, groups, dim;
    int rc = ckpt_map_attention(e, v->t->name, v->rows, &heads, &groups, &dim);
    if (rc < 0)
        return rc;
    int64_t q = heads / groups * dim, stride = q + 2 * dim;
    int64_t begin[3] = {0, q, q + dim}, rows[3] = {q, dim, dim};
    const bool fused = ckpt_map_items(rule->hf) == 0;
    struct s2s_ckpt_target *target = fused ? add_target(e, rule->hf, &match, v, v->rows) : NULL;
    for (int part = 0; part < 3; part++) {
        if (!fused) {
            match.item = part;
            target = add_target(e, rule->hf, &match, v, groups * rows[part]);
        }
        for (int64_t g = 0; g < groups; g++)
            add_rows(e, target, v, g * stride + begin[part], rows[part]);
    }
    return 0;
}

static int make_heads(struct ckpt_map_engine *e, const struct ckpt_rule *rule,
                      const struct ckpt_match *match, const struct view *v)
{
    int64_t heads;
    int rc = ckpt_map_vision_heads(e, v->t, v->rows, &heads);
    if (rc < 0)
        return rc;
    int64_t dim = v->rows / 3 / heads;
    struct s2s_ckpt_target *target = add_target(e, rule->hf, match, v, v->rows);
    for (int part = 0; part < 3; part++)
        for (int64_t h = 0; h < heads; h++)
            add_rows(e, target, v, (h * 3 + part) * dim, dim);
    return 0;
}

/* Refuses gate and up that Megatron-Core up to 0.18 has mixed. With --use-torch-fsdp2 a
 * data-parallel rank holds a range of their rows; it saves half of the range among the gates and
 * half among the ups, whatever it is. Since 0.19 a range is saved whole, where it belongs. */
static int refuse_mixed(const struct ckpt_map_engine *e, const struct view *v)
{
    const char *format = json_string_value(json_object_get(e->args, "ckpt_format"));
    if (!json_is_true(json_object_get(e->args, "use_torch_fsdp2")) || !format ||
        strcmp(format, "torch_dist") != 0)
        return 0;
    static const char *const keys[] = {"data_parallel_size", "context_parallel_size",
                                       "tensor_model_parallel_size"};
    __int128 sharing = 1, ranks = 1;
    for (size_t i = 0; i < 3; i++) {
        const int64_t n = ckpt_map_number(e, keys[i], keys[i]);
        ranks *= n ? n : 1;
        sharing = i < 2 ? ranks : sharing;
    }
    const int64_t rows = v->t->n_chunks ? ckpt_chunk_at(v->t, 0).size[v->lead] : 0;
    if (sharing == 1 || v->rows == 0 || (rows && v->rows / rows == ranks))
        return 0;
    int rc = s2s_error_set(e->err, S2S_E_UNSUPPORTED,
                           "%s: trained with --use-torch-fsdp2, of which Megatron-Core up to 0.18 "
                           "saves the rows of gate and up mixed",
                           v->t->name);
    return s2s_error_hint(e->err, rc, "load and save it with Megatron-Core 0.19 or later");
}

static int make_split(struct ckpt_map_engine *e, const struct ckpt_rule *rule,
                      struct ckpt_match match, const struct view *v)
{
    int n = ckpt_map_items(rule->hf);
    if (v->rows % n)
        return s2s_error_set(e->err, S2S_E_SHAPE, "%s: %lld rows cannot be cut into %d", v->t->name,
                             (long long)v->rows, n);
    int rc = n == 2 ? refuse_mixed(e, v) : 0;
    for (match.item = 0; match.item < n && rc == 0; match.item++)
        add_rows(e, add_target(e, rule->hf, &match, v, v->rows / n), v, match.item * (v->rows / n),
                 v->rows / n);
    return rc;
}

static int make_experts(struct ckpt_map_engine *e, const struct ckpt_rule *rule,
                        struct ckpt_match match, struct view v)
{
    int n_items = ckpt_map_items(rule->hf);
    int axis = v.lead++, rc = 0;
    if (v.t->n_dims < v.lead + 1)
        return s2s_error_set(e->err, S2S_E_SHAPE, "%s: no expert axis", v.t->name);
    v.rows = v.t->shape[v.lead];
    for (match.expert = 0; rc == 0 && match.expert < v.t->shape[axis]; match.expert++) {
        v.at[axis] = match.expert;
        if (n_items)
            rc = make_split(e, rule, match, &v);
        else
            add_rows(e, add_target(e, rule->hf, &match, &v, v.rows), &v, 0, v.rows);
    }
    return rc;
}

/* Concatenates the rows of all items of the Megatron list. */
static int make_concat(struct ckpt_map_engine *e, const struct ckpt_rule *rule,
                       struct ckpt_match match, int64_t layer)
{
    int n = ckpt_map_items(rule->megatron);
    struct view views[CKPT_MAP_MAX_ITEMS] = {{.t = NULL}};
    int64_t rows = 0;
    struct ckpt_match hole = match;
    for (int i = 0; i < n; i++) {
        hole.item = i;
        hole.layer = match.stacked ? -1 : layer;
        struct ckpt_map_source *part = ckpt_map_find_at(e, rule->megatron, &hole);
        if (!part)
            return 0; /* check_whole lists it */
        part->used = true;
        views[i] = view_of(part->tensor, match.stacked, layer);
        rows += views[i].rows;
        int rc = ckpt_map_check_alike(e, views[0].t, views[i].t, views[i].lead);
        if (rc < 0)
            return rc;
    }
    match.layer = layer;
    struct s2s_ckpt_target *target = add_target(e, rule->hf, &match, &views[0], rows);
    for (int i = 0; i < n; i++)
        add_rows(e, target, &views[i], 0, views[i].rows);
    return 0;
}

/* ---- a Mamba mixer ---- */

enum { MAX_SECTIONS = 5 };

/* A tensor of the same mixer with this many axes: "X.mixer.D" beside "X.mixer.conv1d.bias". */
static const struct s2s_ckpt_tensor *beside(const struct ckpt_map_engine *e, const char *name,
                                            const char *other, int n_dims)
{
    static const char mixer[] = ".mixer.";
    const char *at = strstr(name, mixer);
    char *full =
        s2s_xasprintf("%.*s%s", at ? (int)(at - name) + (int)strlen(mixer) : 0, name, other);
    const struct ckpt_map_source *source = ckpt_map_find(e, full);
    free(full);
    return source && source->tensor->n_dims == n_dims ? source->tensor : NULL;
}

/* Rows of each section, summed over ranks. Returns the number of sections, or SHAPE. */
static int find_sections(const struct ckpt_map_engine *e, const struct ckpt_map_source *source,
                         int64_t rows, int64_t sections[MAX_SECTIONS])
{
    const struct s2s_ckpt_tensor *out = beside(e, source->name, "out_proj.weight", 2);
    const struct s2s_ckpt_tensor *heads = beside(e, source->name, "A_log", 1);
    const bool in_proj = strstr(source->name, "in_proj") != NULL;
    if (!out || !heads)
        return s2s_error_set(e->err, S2S_E_SHAPE,
                             "%s: the sizes of its sections are not known without the mixer's "
                             "out_proj.weight and A_log",
                             source->tensor->name);
    const int64_t inner = out->shape[1], n_heads = heads->shape[0];
    const int64_t both = rows - (in_proj ? 2 * inner + n_heads : inner); /* rows of B and C */
    if (both < 0 || both % 2)
        return s2s_error_set(
            e->err, S2S_E_SHAPE, "%s: %lld rows do not fit a mixer of %lld channels and %lld heads",
            source->tensor->name, (long long)rows, (long long)inner, (long long)n_heads);
    const int64_t all[] = {inner, inner, both / 2, both / 2, n_heads};
    memcpy(sections, in_proj ? all : all + 1, (in_proj ? 5 : 3) * sizeof *all);
    return in_proj ? 5 : 3;
}

/* The number of tensor-parallel ranks over which it is sharded. */
static int count_ranks(const struct ckpt_map_engine *e, const struct ckpt_map_source *source,
                       int64_t *n_ranks)
{
    static const char key[] = "tensor_model_parallel_size";
    *n_ranks = ckpt_map_number(e, key, key);
    if (*n_ranks)
        return 0;
    *n_ranks = 1;
    if (source->tensor->n_chunks <= 1)
        return 0;
    int rc = s2s_error_set(e->err, S2S_E_NOTFOUND,
                           "%s: by how many tensor-parallel ranks was it cut? the checkpoint's "
                           "arguments do not say",
                           source->tensor->name);
    return s2s_error_hint(e->err, rc, "give a config.json with \"%s\" with --config", key);
}

/* A fused tensor of a live mixer, which Megatron-FSDP saves as it is: for each tensor-parallel rank
 * in turn, the rows of z, x, B, C, dt (in_proj) or of x, B, C (conv1d). Megatron's torch_dist has a
 * tensor per section instead. Source: Megatron-Core's MambaMixer. */
static int make_mamba(struct ckpt_map_engine *e, const struct ckpt_rule *rule,
                      const struct ckpt_match *match, const struct ckpt_map_source *source,
                      const struct view *v)
{
    const int64_t rows = v->rows;
    int64_t sections[MAX_SECTIONS] = {0}, n_ranks = 1, before = 0;
    int n = find_sections(e, source, rows, sections);
    int rc = n < 0 ? n : count_ranks(e, source, &n_ranks);
    if (rc < 0)
        return rc;
    for (int i = 0; i < n; i++)
        if (sections[i] % n_ranks)
            return s2s_error_set(e->err, S2S_E_SHAPE,
                                 "%s: a section of %lld rows cannot lie on %lld ranks",
                                 source->tensor->name, (long long)sections[i], (long long)n_ranks);
    struct s2s_ckpt_target *target = add_target(e, rule->hf, match, v, rows);
    for (int i = 0; i < n; i++) {
        for (int64_t r = 0; r < n_ranks; r++)
            add_rows(e, target, v, r * (rows / n_ranks) + before / n_ranks, sections[i] / n_ranks);
        before += sections[i];
    }
    return 0;
}

/* ---- the layers of a source ---- */

static int make_layer(struct ckpt_map_engine *e, const struct ckpt_rule *rule,
                      struct ckpt_match match, const struct ckpt_map_source *source, int64_t layer)
{
    struct view v = view_of(ckpt_map_tensor(e, rule, source), match.stacked, layer);
    if (rule->transform == CKPT_MAP_CONCAT)
        return match.item == 0 ? make_concat(e, rule, match, layer) : 0;
    match.layer = layer;
    switch (rule->transform) {
    case CKPT_MAP_VOCAB:
    case CKPT_MAP_AGAIN:
        return make_vocab(e, rule, &match, &v);
    case CKPT_MAP_QKV:
        return make_qkv(e, rule, match, &v);
    case CKPT_MAP_HEADS:
        return make_heads(e, rule, &match, &v);
    case CKPT_MAP_SPLIT:
        return make_split(e, rule, match, &v);
    case CKPT_MAP_MAMBA:
        return make_mamba(e, rule, &match, source, &v);
    case CKPT_MAP_EXPERTS:
        return make_experts(e, rule, match, v);
    default:
        add_rows(e, add_target(e, rule->hf, &match, &v, v.rows), &v, 0, v.rows);
        return 0;
    }
}

/* Limits axes whose entries become tensors: an empty tensor, or one that repeats an element (stride
 * 0), may have any size. */
static int check_axes(const struct ckpt_map_engine *e, const struct ckpt_rule *rule,
                      const struct s2s_ckpt_tensor *t, bool stacked)
{
    enum { MOST = 1 << 20 };
    const int n = stacked + (rule->transform == CKPT_MAP_EXPERTS);
    int64_t tensors = 1;
    for (int d = 0; d < n && d < t->n_dims; d++) {
        /* numbers in names are limited likewise; loops go through all layers */
        if (t->shape[d] > CKPT_MAX_LAYERS)
            return s2s_error_set(e->err, S2S_E_SHAPE, "%s: %lld %s: more than %d", t->name,
                                 (long long)t->shape[d], d || !stacked ? "experts" : "layers",
                                 CKPT_MAX_LAYERS);
        if (__builtin_mul_overflow(tensors, t->shape[d], &tensors) || tensors > MOST)
            return s2s_error_set(e->err, S2S_E_SHAPE, "%s: more than %d layers and experts",
                                 t->name, MOST);
    }
    return 0;
}

/* Refuses interleaved gate and up: Megatron-Core can train a grouped MLP with alternating groups of
 * rows of each, and Megatron-LM saves it so. */
static int refuse_interleaved(const struct ckpt_map_engine *e, const struct ckpt_rule *rule,
                              const char *name)
{
    static const char *const kinds[][3] = {
        {".shared_experts.", "moe_shared_expert_glu_interleave_size",
         "use_grouped_gemm_for_shared_expert"},
        {".experts.", "moe_mlp_glu_interleave_size", "moe_grouped_gemm"}};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        const json_t *size = json_object_get(e->args, kinds[i][1]);
        if (!strstr(rule->megatron, kinds[i][0]) || !ckpt_map_items(rule->hf) ||
            !json_is_integer(size) || json_is_false(json_object_get(e->args, kinds[i][2])))
            continue;
        int rc = s2s_error_set(e->err, S2S_E_UNSUPPORTED,
                               "%s: gate and up lie in it in turn, %lld rows of each (%s)", name,
                               (long long)json_integer_value(size), kinds[i][1]);
        return s2s_error_hint(e->err, rc,
                              "put all rows of gate before those of up first; --to torch_dist or "
                              "safetensors keeps them as they are");
    }
    return 0;
}

/* The rule of a source, or NULL. */
static const struct ckpt_rule *first_rule(const struct ckpt_map_engine *e,
                                          const struct ckpt_map_source *source)
{
    const struct ckpt_rule *rule = source->rule ? &e->map.rules[source->rule - 1] : NULL;
    return rule && rule->transform != CKPT_MAP_DROP ? rule : NULL;
}

static int count_layers(struct ckpt_map_engine *e, struct ckpt_map_source *source)
{
    const struct ckpt_rule *rule = first_rule(e, source);
    const struct s2s_ckpt_tensor *t = source->tensor;
    struct ckpt_match match;
    source->used = source->rule;
    source->dropped = source->rule && !rule;
    if (!rule)
        return 0;
    ckpt_map_match(rule->megatron, source->name, &match);
    if (match.stacked && t->n_dims == 0)
        return s2s_error_set(e->err, S2S_E_SHAPE, "%s: no layer axis", t->name);
    const int rc = check_axes(e, rule, t, match.stacked);
    const int64_t end = match.stacked ? t->shape[0] : match.layer + 1;
    if (rc == 0 && rule->group >= 0 && end > e->n_layers[rule->group])
        e->n_layers[rule->group] = end;
    return rc;
}

static int make_source(struct ckpt_map_engine *e, const struct ckpt_map_source *source)
{
    const struct ckpt_rule *rule = first_rule(e, source), *checked = NULL;
    struct ckpt_match match;
    int rc = 0;
    if (!rule)
        return 0;
    ckpt_map_match(rule->megatron, source->name, &match);
    const int64_t begin = match.stacked ? 0 : match.layer;
    const int64_t end = match.stacked ? source->tensor->shape[0] : match.layer + 1;
    for (int64_t layer = begin; layer < end && rc == 0; layer++) {
        rule = ckpt_map_rule_at(e, source, layer);
        if (rule != checked) {
            rc = check_axes(e, rule, source->tensor, match.stacked);
            rc = rc < 0 ? rc : refuse_interleaved(e, rule, source->tensor->name);
            checked = rule;
        }
        if (rc == 0)
            rc = make_layer(e, rule, match, source, layer);
    }
    return rc;
}

/* Is this an output matrix that is untied? */
static bool is_wanted(const struct ckpt_map_engine *e, const char *hf)
{
    for (size_t i = 0; i < e->map.n_rules; i++)
        if (e->map.rules[i].absence == CKPT_ABSENT_IF_TIED && strcmp(e->map.rules[i].hf, hf) == 0)
            return !ckpt_map_is_optional(e, &e->map.rules[i]);
    return false;
}

/* Writes a tied matrix again: transformers' NemotronH never ties, and would initialise a missing
 * output matrix randomly. */
static int make_again(struct ckpt_map_engine *e, const struct ckpt_rule *rule,
                      struct ckpt_map_result *result)
{
    struct ckpt_match match = {.layer = -1, .expert = -1, .item = -1};
    const struct ckpt_map_source *source = ckpt_map_find(e, rule->megatron);
    if (!source || s2s_ckpt_plan_find(e->plan, rule->hf) || is_wanted(e, rule->hf))
        return 0;
    result->tie = CKPT_UNTIED;
    if (ckpt_map_says_tied(e))
        s2s_info("ckpt", "%s is tied to %s: written as a copy of it", rule->hf, source->name);
    else
        s2s_warn("ckpt",
                 "%s is not there and nothing says that it is tied to %s: written as a copy of it",
                 rule->hf, source->name);
    return make_layer(e, rule, match, source, -1);
}

/* Sets result->tie. Megatron stores an output matrix only if untied; if config.json said otherwise,
 * transformers would ignore it or initialise one randomly. */
static void note_tie(const struct ckpt_map_engine *e, struct ckpt_map_result *result)
{
    for (size_t i = 0; i < e->map.n_rules && result->tie == CKPT_TIE_AS_SAID; i++) {
        const struct ckpt_rule *rule = &e->map.rules[i];
        if (rule->absence != CKPT_ABSENT_IF_TIED ||
            !s2s_ends_with(rule->megatron, "output_layer.weight"))
            continue;
        const bool there = ckpt_map_find(e, rule->megatron);
        if (there && ckpt_map_config_ties(e)) {
            result->tie = CKPT_UNTIED;
            s2s_warn("ckpt",
                     "%s is a matrix of its own, though the configuration ties it to the word "
                     "embeddings: config.json gets tie_word_embeddings false",
                     rule->megatron);
        } else if (!there && ckpt_map_config_unties(e)) {
            result->tie = CKPT_TIED;
            s2s_warn("ckpt",
                     "%s is tied to the word embeddings by the arguments, but not by the "
                     "configuration: config.json gets tie_word_embeddings true",
                     rule->megatron);
        }
    }
}

/* ---- completeness ---- */

/* Names of the targets, sorted. Gives: free. */
static const char **list_made(const struct s2s_ckpt_plan *plan)
{
    const char **made = s2s_xmalloc((plan->n_targets + 1) * sizeof *made);
    for (size_t i = 0; i < plan->n_targets; i++)
        made[i] = s2s_ckpt_target_name(&plan->targets[i]);
    qsort(made, plan->n_targets, sizeof *made, ckpt_by_text);
    return made;
}

/* Notes the missing items of a list that becomes one tensor. */
static void note_absent_items(struct ckpt_map_engine *e, const struct ckpt_rule *rule,
                              int64_t layer)
{
    for (int i = 0; i < ckpt_map_items(rule->megatron); i++) {
        const struct ckpt_match at = {.layer = layer, .item = i};
        if (ckpt_map_has_item(e, rule->megatron, layer, i))
            continue;
        char *name = ckpt_map_fill(rule->megatron, &at);
        ckpt_map_miss(e, name, NULL);
        free(name);
    }
}

/* Notes the targets that a rule requires at a layer (-1: the model) and that were not made. */
static void note_absent(struct ckpt_map_engine *e, const struct ckpt_rule *rule, int64_t layer,
                        const char *const *made)
{
    int items = ckpt_map_items(rule->hf);
    struct ckpt_match match = {.layer = layer, .expert = 0};
    for (; match.item < ckpt_map_names(rule->hf); match.item++) {
        char *name = ckpt_map_fill(rule->hf, &match);
        const bool is_made = bsearch(&name, made, e->plan->n_targets, sizeof *made, ckpt_by_text);
        if (!is_made && rule->transform == CKPT_MAP_CONCAT) {
            note_absent_items(e, rule, layer);
        } else if (!is_made) {
            struct ckpt_match from = {.layer = layer, .expert = 0, .item = 0};
            from.item = ckpt_map_items(rule->megatron) == items ? match.item : 0;
            char *source = ckpt_map_fill(rule->megatron, &from);
            ckpt_map_miss(e, name, source);
            free(source);
        }
        free(name);
    }
}

/* Does an earlier rule of the section make the same target from another name? */
static bool is_second(const struct ckpt_map_engine *e, size_t i_rule)
{
    const struct ckpt_rule *rule = &e->map.rules[i_rule];
    for (size_t i = 0; i < i_rule; i++)
        if (e->map.rules[i].section == rule->section && strcmp(e->map.rules[i].hf, rule->hf) == 0)
            return true;
    return false;
}

static int check_whole(struct ckpt_map_engine *e)
{
    const char **made = list_made(e->plan);
    for (size_t i = 0; i < e->map.n_rules; i++) {
        const struct ckpt_rule *rule = &e->map.rules[i];
        if (rule->transform == CKPT_MAP_DROP || rule->transform == CKPT_MAP_AGAIN ||
            ckpt_map_is_open(rule->hf) || is_second(e, i) || !ckpt_map_is_needed(e, i))
            continue;
        if (rule->group < 0 && ckpt_map_in_section(e, rule->section, 0))
            note_absent(e, rule, -1, made);
        for (int64_t layer = 0; rule->group >= 0 && layer < e->n_layers[rule->group]; layer++)
            if (ckpt_map_in_section(e, rule->section, layer) && !ckpt_map_has_same(e, i, layer))
                note_absent(e, rule, layer, made);
    }
    free(made);
    ckpt_map_miss_experts(e);
    ckpt_map_miss_mtp(e);
    ckpt_map_miss_layers(e);
    return ckpt_map_missed(e);
}

/* ---- mapping ---- */

int ckpt_map_to_hf(struct s2s_ckpt_plan *plan, const struct ckpt_map_request *request,
                   struct ckpt_map_result *result, struct s2s_error *err)
{
    struct ckpt_map_engine e;
    int rc = ckpt_map_begin(&e, plan, request, false, result, err);
    if (rc == 0)
        ckpt_map_match_sources(&e);
    for (size_t i = 0; i < e.n_sources && rc == 0; i++)
        rc = count_layers(&e, &e.sources[i]);
    if (rc == 0)
        ckpt_map_sections_begin(&e);
    for (size_t i = 0; i < e.n_sources && rc == 0; i++)
        rc = make_source(&e, &e.sources[i]);
    for (size_t i = 0; i < e.map.n_rules && rc == 0; i++)
        if (e.map.rules[i].transform == CKPT_MAP_AGAIN)
            rc = make_again(&e, &e.map.rules[i], result);
    if (rc == 0)
        note_tie(&e, result);
    if (rc == 0)
        rc = check_whole(&e);
    if (rc == 0)
        rc = ckpt_map_check_shapes(&e);
    ckpt_map_end(&e, result);
    return rc;
}
