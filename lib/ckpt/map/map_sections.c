/* Which sections of a name map each layer of the source has, and which tensors those require. */
#include "lib/base/base.h"
#include "lib/ckpt/map/map_internal.h"

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

bool ckpt_map_has_layer(const struct ckpt_map_engine *e, int stack, int64_t layer)
{
    for (size_t i = 0; i < e->map.n_rules; i++)
        if (e->map.rules[i].group == stack &&
            (e->map.rules[i].section >= 0
                 ? ckpt_map_in_section(e, e->map.rules[i].section, layer)
                 : is_there(e, ckpt_map_source_side(e, &e->map.rules[i]), layer)))
            return true;
    return false;
}
