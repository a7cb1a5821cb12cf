/*
 * Layer numbers of multi-token prediction. Megatron-Core's hybrid models number depths, and layers
 * within a depth: mtp.layers.D.mtp_model_layer.layers.I.REST; a depth's other tensors are
 * mtp.layers.D.REST. Hugging Face's Nemotron-H, and so the tables, number all layers consecutively,
 * D * L + I with L layers per depth: mtp.layers.N.mtp_model_layer.REST. A depth's other tensors
 * belong to its first layer, its last norm to its last layer.
 */
#include "lib/base/base.h"
#include "lib/ckpt/map/map_internal.h"

static const char mtp[] = "mtp.layers.", inner[] = "mtp_model_layer.", layers[] = "layers.";

/* Parses a number and a dot; false: there is none. */
static bool read_number(const char **at, int64_t *number)
{
    const size_t digits = strspn(*at, "0123456789");
    if (digits == 0 || digits > 6 || (*at)[digits] != '.')
        return false;
    *number = strtoll(*at, NULL, 10);
    *at += digits + 1;
    return true;
}

/* Parses "PREFIXmtp.layers.D.REST": length up to D, D, and returns REST; NULL: another name. */
static const char *after_depth(const char *name, size_t *len, int64_t *depth)
{
    const char *at = strstr(name, mtp);
    if (!at || (at != name && at[-1] != '.'))
        return NULL;
    at += strlen(mtp);
    *len = (size_t)(at - name);
    return read_number(&at, depth) ? at : NULL;
}

/* "mtp_model_layer.layers.I.REST": REST, or NULL */
static const char *after_inner(const char *rest, int64_t *layer)
{
    if (!s2s_starts_with(rest, inner))
        return NULL;
    rest += strlen(inner);
    if (!s2s_starts_with(rest, layers))
        return NULL;
    rest += strlen(layers);
    return read_number(&rest, layer) ? rest : NULL;
}

/* The layer of a depth's own tensors: the last norm is the last layer's, the others are the
 * first's. */
static int64_t own_layer(const char *rest, int64_t n_layers)
{
    if (s2s_starts_with(rest, "final_layernorm."))
        return n_layers - 1;
    return s2s_starts_with(rest, "eh_proj.") || s2s_starts_with(rest, "enorm.") ||
                   s2s_starts_with(rest, "hnorm.")
               ? 0
               : -1;
}

/* Takes name. */
static char *flatten(char *name, int64_t n_layers)
{
    size_t len;
    int64_t depth, layer;
    const char *rest = after_depth(name, &len, &depth), *of_inner;
    char *out = NULL;
    if (!rest)
        return name;
    if (!n_layers && s2s_starts_with(rest, inner))
        out = s2s_xasprintf("%.*s%lld.transformer_layer.%s", (int)len, name, (long long)depth,
                            rest + strlen(inner));
    else if (n_layers && (of_inner = after_inner(rest, &layer)))
        out = s2s_xasprintf("%.*s%lld.%s%s", (int)len, name, (long long)(depth * n_layers + layer),
                            inner, of_inner);
    else if (n_layers && (layer = own_layer(rest, n_layers)) >= 0)
        out = s2s_xasprintf("%.*s%lld.%s", (int)len, name, (long long)(depth * n_layers + layer),
                            rest);
    else
        return name;
    free(name);
    return out;
}

/* Renumbers all sources as in the table, for a hybrid model (at least one layer per depth) or
 * another (one layer per depth). */
static void flatten_all(struct ckpt_map_engine *e)
{
    int64_t n_layers = 0, depth, layer;
    size_t len;
    for (size_t i = 0; i < e->n_sources; i++) {
        const char *rest = after_depth(e->sources[i].name, &len, &depth);
        if (rest && e->hybrid_mtp && n_layers == 0)
            n_layers = 1;
        if (rest && after_inner(rest, &layer) && layer >= n_layers)
            n_layers = layer + 1;
    }
    for (size_t i = 0; i < e->n_sources; i++)
        e->sources[i].name = flatten(e->sources[i].name, n_layers);
    ckpt_map_sort(e->sources, e->n_sources);
    e->mtp_layers = n_layers;
}

/* Finds the layers per depth from Hugging Face's names: the first final norm is in the last layer
 * of the first depth. Without one, all layers are one depth, whose norm is missing. */
static void find_depth(struct ckpt_map_engine *e)
{
    int64_t n_layers = 0, end = 0, layer;
    size_t len;
    for (size_t i = 0; i < e->n_sources; i++) {
        const char *rest = after_depth(e->sources[i].name, &len, &layer);
        if (!rest)
            continue;
        end = layer >= end ? layer + 1 : end;
        if (s2s_starts_with(rest, "final_layernorm.") && (!n_layers || layer < n_layers))
            n_layers = layer + 1;
    }
    e->mtp_layers = n_layers ? n_layers : end;
}

void ckpt_map_mtp_begin(struct ckpt_map_engine *e)
{
    bool known = false;
    for (size_t i = 0; i < e->map.n_rules && !known; i++) {
        const char *name = e->map.rules[i].megatron;
        known = strstr(name, "mtp.layers.{N}.mtp_model_layer.") ||
                strstr(name, "mtp.layers.{N}.transformer_layer.");
        e->hybrid_mtp = strstr(name, inner) != NULL;
    }
    if (known && e->to_megatron)
        find_depth(e);
    else if (known)
        flatten_all(e);
}

char *ckpt_map_mtp_name(const struct ckpt_map_engine *e, char *name)
{
    size_t len;
    int64_t layer;
    const char *rest = after_depth(name, &len, &layer);
    char *out;
    if (!rest || !e->mtp_layers || !e->hybrid_mtp)
        return name;
    const int64_t depth = layer / e->mtp_layers;
    if (s2s_starts_with(rest, inner))
        out = s2s_xasprintf("%.*s%lld.%s%s%lld.%s", (int)len, name, (long long)depth, inner, layers,
                            (long long)(layer % e->mtp_layers), rest + strlen(inner));
    else if (own_layer(rest, 1) >= 0)
        out = s2s_xasprintf("%.*s%lld.%s", (int)len, name, (long long)depth, rest);
    else
        return name;
    free(name);
    return out;
}

/* ---- what is missing ---- */

/* Notes the rule's source name at a layer as missing, if it is. */
static void need(struct ckpt_map_engine *e, const struct ckpt_rule *rule, int64_t layer)
{
    const struct ckpt_match at = {.layer = layer, .expert = -1, .item = -1};
    if (ckpt_map_find_at(e, ckpt_map_source_side(e, rule), &at))
        return;
    char *megatron = ckpt_map_fill(rule->megatron, &at), *hf = ckpt_map_fill(rule->hf, &at);
    ckpt_map_miss(e, hf, e->to_megatron ? NULL : megatron);
    free(megatron);
    free(hf);
}

/* Has the layer tensors of its own, beside those of its depth? */
static bool has_inner(const struct ckpt_map_engine *e, int group, int64_t layer)
{
    for (size_t i = 0; i < e->map.n_rules; i++) {
        const struct ckpt_rule *rule = &e->map.rules[i];
        if (rule->group == group && strstr(rule->megatron, inner) &&
            ckpt_map_in_section(e, rule->section, layer))
            return true;
    }
    return false;
}

void ckpt_map_miss_mtp(struct ckpt_map_engine *e)
{
    int group = -1;
    for (size_t i = 0; i < e->map.n_rules && e->mtp_layers && e->hybrid_mtp; i++) {
        const struct ckpt_rule *rule = &e->map.rules[i];
        const char *at = strstr(rule->megatron, mtp);
        int64_t layer = at ? own_layer(at + strlen("mtp.layers.{N}."), e->mtp_layers) : -1;
        for (; layer >= 0 && layer < e->n_layers[rule->group]; layer += e->mtp_layers)
            need(e, rule, layer);
        group = at ? rule->group : group;
    }
    for (int64_t layer = 0; group >= 0 && layer < e->n_layers[group]; layer++)
        if (!has_inner(e, group, layer)) {
            char *name = s2s_xasprintf("all layers' tensors of %s%lld", e->map.stacks[group].prefix,
                                       (long long)layer);
            ckpt_map_miss(e, name, NULL);
            free(name);
        }
}
