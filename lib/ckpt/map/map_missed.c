/* Which sections of a map each layer of the source has, and which tensors these require: all that
 * it lacks are listed, with the nearest names that were not used. */
#include "lib/base/base.h"
#include "lib/base/distance.h"
#include "lib/ckpt/read/read.h"
#include "lib/ckpt/config/args_config.h"
#include "lib/ckpt/list.h"
#include "lib/ckpt/map/map_internal.h"
#include "lib/ckpt/names.h"

/* longer lists are cut off; also bounds the time if one layer number is far from the others */
enum { FEW = 4096, FEW_LAYERS = 16 };

void ckpt_map_miss(struct ckpt_map_engine *e, const char *name, const char *of)
{
    s2s_grow(&e->missed, e->n_missed, &e->cap_missed, sizeof *e->missed);
    e->missed[e->n_missed++] = (struct ckpt_map_missed){
        s2s_xstrdup(name), of ? ckpt_map_mtp_name(e, s2s_xstrdup(of)) : NULL};
}

void ckpt_map_miss_names(struct ckpt_map_engine *e, const char *pattern, int64_t layer,
                         int64_t expert)
{
    struct ckpt_match at = {.layer = layer, .expert = expert, .stacked = layer < 0};
    for (; at.item < ckpt_map_names(pattern); at.item++) {
        char *name = ckpt_map_fill(pattern, &at);
        if (!ckpt_map_find(e, name))
            ckpt_map_miss(e, name, NULL);
        free(name);
    }
}

void ckpt_map_counts_begin(struct ckpt_map_counts *counts, const struct ckpt_map_engine *e)
{
    *counts = (struct ckpt_map_counts){.e = e};
    counts->of = s2s_xcalloc(e->map.n_rules + 1, sizeof *counts->of);
}

int64_t *ckpt_map_count(struct ckpt_map_counts *counts, size_t rule, int64_t layer)
{
    const int group = counts->e->map.rules[rule].group;
    const int64_t n_layers = group < 0 ? 0 : counts->e->n_layers[group];
    if (layer >= n_layers)
        return NULL;
    if (!counts->of[rule])
        counts->of[rule] = s2s_xcalloc((size_t)n_layers + 1, sizeof **counts->of);
    return counts->of[rule][layer + 1];
}

void ckpt_map_counts_end(struct ckpt_map_counts *counts)
{
    for (size_t r = 0; r < counts->e->map.n_rules; r++)
        free(counts->of[r]);
    free(counts->of);
}

/* Counts, for each rule with experts and each layer, the highest expert number + 1 and the tensors.
 */
static void count_experts(const struct ckpt_map_engine *e, struct ckpt_map_counts *counts)
{
    struct ckpt_match match;
    for (size_t i = 0; i < e->n_sources; i++) {
        struct ckpt_map_tries tries = ckpt_map_tries(&e->index, e->sources[i].name);
        for (size_t r; ckpt_map_next_try(&tries, &r);) {
            const char *pattern = ckpt_map_source_side(e, &e->map.rules[r]);
            if (!ckpt_map_match(pattern, e->sources[i].name, &match) || match.expert < 0)
                continue;
            int64_t *count = ckpt_map_count(counts, r, match.layer);
            if (!count)
                continue;
            count[0] = match.expert >= count[0] ? match.expert + 1 : count[0];
            count[1]++;
        }
    }
}

/* Experts must be numbered from 0 without gaps, and each must have all tensors of a rule's list. */
void ckpt_map_miss_experts(struct ckpt_map_engine *e)
{
    struct ckpt_map_counts counts;
    ckpt_map_counts_begin(&counts, e);
    count_experts(e, &counts);
    for (size_t r = 0; r < e->map.n_rules; r++) {
        const struct ckpt_rule *rule = &e->map.rules[r];
        const char *pattern = ckpt_map_source_side(e, rule);
        const int items = ckpt_map_names(pattern);
        const int64_t *count;
        for (int64_t layer = -1; counts.of[r] && (count = ckpt_map_count(&counts, r, layer));
             layer++)
            for (int64_t expert = 0;
                 count[1] < count[0] * items && expert < count[0] && e->n_missed <= FEW; expert++)
                ckpt_map_miss_names(e, pattern, layer, expert);
    }
    ckpt_map_counts_end(&counts);
}

/* ---- which sections of a map each layer has, and which tensors those require ---- */

bool ckpt_map_has_item(const struct ckpt_map_engine *e, const char *pattern, int64_t layer,
                       int item)
{
    const struct ckpt_match at = {.layer = layer, .expert = 0, .item = item};
    const struct ckpt_match on_axis = {.layer = -1, .expert = 0, .item = item, .stacked = true};
    if (ckpt_map_find_at(e, pattern, &at))
        return true;
    const struct ckpt_map_source *all =
        e->to_megatron ? NULL : ckpt_map_find_at(e, pattern, &on_axis);
    return all && all->tensor->n_dims && layer < all->tensor->shape[0];
}

static bool is_there(const struct ckpt_map_engine *e, const char *pattern, int64_t layer)
{
    for (int i = 0; i < ckpt_map_names(pattern); i++)
        if (ckpt_map_has_item(e, pattern, layer, i))
            return true;
    return false;
}

bool ckpt_map_has_same(const struct ckpt_map_engine *e, size_t i_rule, int64_t layer)
{
    const struct ckpt_rule *rule = &e->map.rules[i_rule];
    for (size_t i = 0; rule->same && i < e->map.n_rules; i++) {
        const struct ckpt_rule *other = &e->map.rules[i];
        if (i != i_rule && other->same && other->section == rule->section &&
            other->transform != CKPT_MAP_AGAIN && strcmp(other->same, rule->same) == 0 &&
            is_there(e, ckpt_map_source_side(e, other), layer))
            return true;
    }
    return false;
}

static bool go_together(const struct ckpt_rule *a, const struct ckpt_rule *b)
{
    if (a->section != b->section || a->group != b->group || b->transform == CKPT_MAP_AGAIN ||
        b->transform == CKPT_MAP_DROP)
        return false;
    if (a->company && b->company)
        return strcmp(a->company, b->company) == 0;
    return strcmp(a->hf, b->hf) == 0;
}

/* Does any layer of its section have it, or a tensor that goes with it? */
static bool is_anywhere(const struct ckpt_map_engine *e, const struct ckpt_rule *rule)
{
    const int64_t n = rule->group < 0 ? 1 : e->n_layers[rule->group];
    for (size_t i = 0; i < e->map.n_rules; i++) {
        const struct ckpt_rule *other = &e->map.rules[i];
        for (int64_t layer = 0; go_together(rule, other) && layer < n; layer++)
            if (ckpt_map_in_section(e, rule->section, layer) &&
                is_there(e, ckpt_map_source_side(e, other), rule->group < 0 ? -1 : layer))
                return true;
    }
    return false;
}

bool ckpt_map_is_needed(const struct ckpt_map_engine *e, size_t i_rule)
{
    const struct ckpt_rule *rule = &e->map.rules[i_rule];
    signed char *needed = &e->needed[i_rule];
    if (!*needed)
        *needed = !ckpt_map_is_optional(e, rule) || is_anywhere(e, rule) ? 1 : -1;
    return *needed > 0;
}

/* Does the rule's name belong to no other section, so that a layer that has it has this section? */
static bool is_own(const struct ckpt_map_engine *e, const struct ckpt_rule *rule)
{
    for (size_t i = 0; i < e->map.n_rules; i++) {
        const struct ckpt_rule *other = &e->map.rules[i];
        if (other->section >= 0 && other->section != rule->section && other->group == rule->group &&
            strcmp(ckpt_map_source_side(e, other), ckpt_map_source_side(e, rule)) == 0)
            return false;
    }
    return true;
}

static bool look_up(const struct ckpt_map_engine *e, int section, int64_t layer)
{
    for (size_t i = 0; i < e->map.n_rules; i++) {
        const struct ckpt_rule *rule = &e->map.rules[i];
        if (rule->section == section && rule->group >= 0 && e->own[i] &&
            is_there(e, ckpt_map_source_side(e, rule), layer))
            return true;
    }
    return false;
}

void ckpt_map_sections_begin(struct ckpt_map_engine *e)
{
    e->needed = s2s_xcalloc(e->map.n_rules + 1, sizeof *e->needed);
    e->own = s2s_xcalloc(e->map.n_rules + 1, sizeof *e->own);
    for (size_t i = 0; i < e->map.n_rules; i++)
        e->own[i] = e->map.rules[i].section >= 0 && is_own(e, &e->map.rules[i]);
    for (size_t i = 0; i < e->map.n_stacks; i++)
        if (e->n_layers[i] > e->max_layers)
            e->max_layers = e->n_layers[i];
    e->in_section = s2s_xcalloc(e->map.n_sections * (size_t)e->max_layers + 1, 1);
}

bool ckpt_map_in_section(const struct ckpt_map_engine *e, int section, int64_t layer)
{
    if (section < 0)
        return true;
    layer = layer < 0 ? 0 : layer; /* a rule of the whole model */
    if (layer >= e->max_layers)
        return false;
    signed char *known = &e->in_section[section * e->max_layers + layer];
    if (!*known)
        *known = look_up(e, section, layer) ? 1 : -1;
    return *known > 0;
}

/* Does the source have anything of this layer of the stack? */
static bool has_layer(const struct ckpt_map_engine *e, int stack, int64_t layer)
{
    for (size_t i = 0; i < e->map.n_rules; i++)
        if (e->map.rules[i].group == stack &&
            (e->map.rules[i].section >= 0
                 ? ckpt_map_in_section(e, e->map.rules[i].section, layer)
                 : is_there(e, ckpt_map_source_side(e, &e->map.rules[i]), layer)))
            return true;
    return false;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct ckpt_map_missed *)a)->name,
                  ((const struct ckpt_map_missed *)b)->name);
}

/* Of the unused names, the nearest to a missing one; NULL: none is near. */
static const char *nearest(const struct ckpt_map_engine *e, const char *name)
{
    const char *found = NULL;
    int best = (int)strlen(name) / 4 + 1;
    for (size_t i = 0, n = 0; i < e->n_sources && n < FEW; i++) {
        if (e->sources[i].used)
            continue;
        n++;
        int d = s2s_name_distance(name, e->sources[i].name, best - 1);
        if (d < best) {
            best = d;
            found = e->sources[i].tensor->name;
        }
    }
    return found;
}

/* The source whose name ends with this one, behind a dot, as of a model that another one holds;
 * NULL: none. */
static const char *held(const struct ckpt_map_engine *e, const char *name)
{
    const size_t n = strlen(name);
    for (size_t i = 0; i < e->n_sources; i++) {
        const char *whole = e->sources[i].tensor->name;
        const size_t len = strlen(whole);
        if (len > n + 1 && whole[len - n - 1] == '.' && strcmp(whole + len - n, name) == 0)
            return whole;
    }
    return NULL;
}

/* Is the model there, but below a prefix? Then that can be told. */
static int hint_at_part(const struct ckpt_map_engine *e, int rc)
{
    const char *first = NULL;
    size_t len = 0, n = 0;
    for (size_t i = 0; i < e->n_missed && i < CKPT_SHORT_LIST; i++) {
        const char *name = e->missed[i].name;
        if (e->missed[i].of || s2s_starts_with(name, "all of "))
            continue;
        const char *whole = held(e, name);
        const size_t prefix = whole ? strlen(whole) - strlen(name) - 1 : 0;
        if (!whole || (first && (prefix != len || strncmp(whole, first, len) != 0)))
            return rc;
        first = whole;
        len = prefix;
        n++;
    }
    if (n < 2 || e->request->ckpt->part)
        return rc;
    return s2s_error_hint(e->err, rc, "they are below %.*s.: convert --part %.*s takes these",
                          (int)len, first, (int)len, first);
}

int ckpt_map_missed(struct ckpt_map_engine *e)
{
    struct ckpt_list list = {.n = 0};
    size_t n_there = 0;
    if (e->n_missed)
        qsort(e->missed, e->n_missed, sizeof *e->missed, by_name);
    for (size_t i = 0; i < e->n_missed; i++) {
        const struct ckpt_map_missed *m = &e->missed[i];
        if (i && strcmp(m[-1].name, m->name) == 0)
            continue; /* several rules may make the same name */
        const char *near = list.n < CKPT_SHORT_LIST ? nearest(e, m->of ? m->of : m->name) : NULL;
        struct s2s_buf line = S2S_BUF_INIT;
        s2s_buf_puts(&line, m->name);
        if (m->of)
            s2s_buf_printf(&line, " (of %s)", m->of);
        if (near)
            s2s_buf_printf(&line, " (nearest: %s)", near);
        ckpt_list_add(&list, "wanted but absent", line.data);
        n_there += ckpt_map_find(e, m->name) != NULL;
    }
    const size_t n = list.n + (size_t)e->n_missed_more;
    int rc = n ? s2s_error_set(e->err, S2S_E_NOTFOUND, "wanted but absent (%zu):", n) : 0;
    ckpt_list_end(&list, rc, e->err);
    if (n && n_there == n) /* --map was used on names that are its result */
        return s2s_error_hint(e->err, rc,
                              "the names are Hugging Face's already; without --map they are kept");
    return rc < 0 ? hint_at_part(e, rc) : rc;
}

void ckpt_map_missed_release(struct ckpt_map_engine *e)
{
    for (size_t i = 0; i < e->n_missed; i++) {
        free(e->missed[i].name);
        free(e->missed[i].of);
    }
    free(e->missed);
    free(e->own);
    free(e->needed);
    free(e->in_section);
}

/* ---- missing layers ---- */

/* A tensor of one layer, from which its name in a missing layer is derived. */
struct part {
    const struct ckpt_rule *rule;
    struct ckpt_match at;
    int64_t n_experts; /* experts on an axis of the source that get numbers in the target's names;
                        * or 1 */
};

/* The tensors of a layer of the stack, found on first use. */
struct layer {
    bool looked; /* determined already */
    struct part *parts;
    size_t n, cap, n_names; /* n_names: names for all experts */
};

static bool same_kind(const struct ckpt_map_engine *e, int stack, int64_t a, int64_t b)
{
    for (size_t i = 0; i < e->map.n_rules; i++) {
        const struct ckpt_rule *rule = &e->map.rules[i];
        if (rule->group == stack && rule->section >= 0 &&
            ckpt_map_in_section(e, rule->section, a) != ckpt_map_in_section(e, rule->section, b))
            return false;
    }
    return true;
}

/* Lists the tensors of the stack's first layer, if all its layers are alike: then a missing layer
 * would have them, too. Otherwise its kind is unknown: nothing. */
static void look_at_any(const struct ckpt_map_engine *e, int stack, struct layer *any)
{
    int64_t first = -1;
    any->looked = true;
    for (int64_t layer = 0; layer < e->n_layers[stack]; layer++) {
        if (!has_layer(e, stack, layer))
            continue;
        first = first < 0 ? layer : first;
        if (!same_kind(e, stack, first, layer))
            return;
    }
    for (size_t k = 0; k < e->n_sources && first >= 0; k++) {
        const struct s2s_ckpt_tensor *tensor = e->sources[k].tensor;
        struct part part = {.rule = ckpt_map_rule_at(e, &e->sources[k], first), .n_experts = 1};
        if (!part.rule || part.rule->group != stack || part.rule->transform == CKPT_MAP_DROP ||
            !ckpt_map_match(ckpt_map_source_side(e, part.rule), e->sources[k].name, &part.at) ||
            part.at.layer != first || !ckpt_map_in_section(e, part.rule->section, first))
            continue;
        if (part.rule->transform == CKPT_MAP_EXPERTS && part.at.expert < 0 && tensor->n_dims)
            part.n_experts = tensor->shape[0];
        s2s_grow(&any->parts, any->n, &any->cap, sizeof *any->parts);
        any->parts[any->n++] = part;
        any->n_names += (size_t)part.n_experts * (size_t)ckpt_map_names(part.rule->hf);
    }
}

static void miss_part(struct ckpt_map_engine *e, const struct part *part, int64_t layer)
{
    const struct ckpt_rule *rule = part->rule;
    /* lists on both sides correspond item by item */
    const bool alike = ckpt_map_items(rule->megatron) > 0;
    struct ckpt_match at = part->at;
    at.layer = layer;
    char *source = ckpt_map_fill(ckpt_map_source_side(e, rule), &at);
    if (e->to_megatron)
        ckpt_map_miss(e, source, NULL);
    for (int64_t k = 0; k < part->n_experts && !e->to_megatron; k++)
        for (int item = 0; item < (alike ? 1 : ckpt_map_names(rule->hf)); item++) {
            at.item = alike ? part->at.item : item;
            at.expert = part->at.expert < 0 ? k : part->at.expert;
            char *name = ckpt_map_fill(rule->hf, &at);
            ckpt_map_miss(e, name, source);
            free(name);
        }
    free(source);
}

/* Notes layers [begin, end) of a stack as missing: by tensor if their names are known and not too
 * many, else as a range. */
static void miss_run(struct ckpt_map_engine *e, int stack, struct layer *any, int64_t begin,
                     int64_t end)
{
    if (begin >= end)
        return;
    if (!any->looked)
        look_at_any(e, stack, any);
    if (any->n && end - begin <= FEW_LAYERS &&
        e->n_missed + any->n_names * (size_t)(end - begin) < FEW) {
        for (int64_t layer = begin; layer < end; layer++)
            for (size_t i = 0; i < any->n; i++)
                miss_part(e, &any->parts[i], layer);
        return;
    }
    char *prefix = ckpt_map_stack_name(e, (size_t)stack);
    char *name = end - begin == 1 ? s2s_xasprintf("all of %s%lld", prefix, (long long)begin)
                                  : s2s_xasprintf("all of %s%lld to %lld", prefix, (long long)begin,
                                                  (long long)end - 1);
    ckpt_map_miss(e, name, NULL);
    e->n_missed_more += end - begin - 1;
    free(name);
    free(prefix);
}

/* The section of this stack with this name; -1: none. */
static int section_of(const struct ckpt_map_engine *e, const char *stack, const char *name)
{
    char *whole = s2s_xasprintf("%s{N}.%s", stack, name);
    int found = -1;
    for (size_t i = 0; i < e->map.n_sections; i++)
        if (strcmp(e->map.sections[i], whole) == 0)
            found = (int)i;
    free(whole);
    return found;
}

/* A Qwen's layer has experts or one MLP, by names that both share: one that has nothing of either
 * is in neither section. Then the configuration decides what it lacks. */
static void miss_mlps(struct ckpt_map_engine *e, int stack)
{
    const char *prefix = e->map.stacks[stack].prefix;
    const json_t *config = ckpt_text_config(e->any_config);
    const int dense = section_of(e, prefix, "mlp.linear_fc2.weight");
    const int experts = section_of(e, prefix, "mlp.router.weight");
    for (int64_t layer = 0; dense >= 0 && experts >= 0 && layer < e->n_layers[stack]; layer++) {
        const int section = ckpt_config_has_experts(config, layer) ? experts : dense;
        if (!has_layer(e, stack, layer) || ckpt_map_in_section(e, dense, layer) ||
            ckpt_map_in_section(e, experts, layer))
            continue;
        for (size_t i = 0; i < e->map.n_rules; i++)
            if (e->map.rules[i].section == section && ckpt_map_is_needed(e, i))
                ckpt_map_miss_names(e, ckpt_map_source_side(e, &e->map.rules[i]), layer, 0);
    }
}

char *ckpt_map_stack_name(const struct ckpt_map_engine *e, size_t stack)
{
    const char *of = e->map.stacks[stack].prefix;
    size_t len = strlen(of);
    for (size_t i = 0; e->to_megatron && i < e->map.n_rules; i++)
        if (e->map.rules[i].group == (int)stack && strstr(e->map.rules[i].hf, "{N}")) {
            of = e->map.rules[i].hf;
            len = (size_t)(strstr(of, "{N}") - of);
            break;
        }
    return s2s_xstrndup(of, len);
}

/* Layers must be numbered from 0 without gaps, up to the number in configuration or arguments.
 * Names that are kept may lack even all of them, as no family is detected from these. */
void ckpt_map_miss_layers(struct ckpt_map_engine *e)
{
    for (size_t k = 0; k < e->map.n_stacks; k++) {
        const char *prefix = e->map.stacks[k].prefix;
        int64_t end = e->n_layers[k], begin = 0; /* a run of missing layers */
        int64_t said = ckpt_map_is_tower(e, prefix) || (!end && !e->request->is_exact)
                           ? 0
                           : ckpt_map_config_layers(e);
        struct layer any = {.looked = false};
        for (int64_t layer = 0; layer < end; layer++)
            if (has_layer(e, (int)k, layer)) {
                miss_run(e, (int)k, &any, begin, layer);
                begin = layer + 1;
            }
        miss_run(e, (int)k, &any, begin, said > end ? said : end);
        if (e->to_megatron)
            miss_mlps(e, (int)k);
        free(any.parts);
    }
}
