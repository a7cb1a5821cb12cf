/*
 * Finds the prefix of one part in a composite model: model authors and transformers releases put
 * different words in front of a family's names. It is the prefix under which the source has most
 * tensors of the family's layers.
 */
#include "lib/base/base.h"
#include "lib/ckpt/map/map_internal.h"
#include "lib/ckpt/names.h"

enum { MAX_PLACES = 16 };

struct place {
    char *prefix;
    bool *has; /* by rule: the source has a match under the prefix */
    size_t n;  /* number of those */
};

struct search {
    const struct ckpt_map *map;
    struct place places[MAX_PLACES];
    size_t n;
    bool too_many;
};

static struct place *place_of(struct search *s, const char *name, size_t len)
{
    for (size_t i = 0; i < s->n; i++)
        if (strncmp(s->places[i].prefix, name, len) == 0 && !s->places[i].prefix[len])
            return &s->places[i];
    if (s->n == MAX_PLACES) {
        s->too_many = true;
        return NULL;
    }
    s->places[s->n] = (struct place){.prefix = s2s_xstrndup(name, len),
                                     .has = s2s_xcalloc(s->map->n_rules + 1, 1)};
    return &s->places[s->n++];
}

/* Matches a layer rule against a name, after any prefix. */
static void look(struct search *s, size_t i_rule, const char *name)
{
    const char *pattern = s->map->rules[i_rule].hf;
    const size_t len = strcspn(pattern, "{");
    struct ckpt_match match;
    if (s->map->rules[i_rule].group < 0 || len == 0)
        return;
    for (const char *at = name; at; at = strchr(at, '.') ? strchr(at, '.') + 1 : NULL) {
        struct place *place =
            strncmp(at, pattern, len) == 0 && ckpt_map_match(pattern, at, &match) && !match.stacked
                ? place_of(s, name, (size_t)(at - name))
                : NULL;
        if (place && !place->has[i_rule]) {
            place->has[i_rule] = true;
            place->n++;
        }
    }
}

/* The place with the most matches; NULL: none, or a tie. */
static const struct place *best_of(const struct search *s)
{
    const struct place *best = NULL;
    bool alike = false;
    for (size_t i = 0; i < s->n && !s->too_many; i++) {
        alike = best && s->places[i].n == best->n ? true : alike;
        if (!best || s->places[i].n > best->n) {
            best = &s->places[i];
            alike = false;
        }
    }
    return alike ? NULL : best;
}

/* The number of matches of a family at its best place, and, if more than `most`, that prefix
 * (gives: free). *any becomes true if there is a place at all. */
static size_t search_family(const struct ckpt_map_engine *e, const char *family, size_t most,
                            char **prefix, bool *any)
{
    struct ckpt_map map;
    struct ckpt_map_index index;
    struct search s = {.map = &map};
    if (ckpt_map_parse(&map, NULL, NULL, family, NULL, NULL, NULL) < 0)
        return most;
    ckpt_map_index_begin(&index, &map, true);
    for (size_t i = 0; i < e->n_sources; i++) {
        struct ckpt_map_tries tries = ckpt_map_tries(&index, e->sources[i].name);
        for (size_t r; ckpt_map_next_try(&tries, &r);)
            look(&s, r, e->sources[i].name);
    }
    const struct place *best = best_of(&s);
    *any |= s.n > 0;
    if (best && best->n > most && ckpt_map_is_prefix(best->prefix) &&
        !strpbrk(best->prefix, " \t\r\n#")) {
        most = best->n;
        free(*prefix);
        *prefix = s2s_xstrdup(best->prefix);
    }
    for (size_t i = 0; i < s.n; i++) {
        free(s.places[i].prefix);
        free(s.places[i].has);
    }
    ckpt_map_index_end(&index);
    ckpt_map_release(&map);
    return most;
}

int ckpt_map_find_part(struct ckpt_map_engine *e, char **text, struct s2s_error *err)
{
    const char *type = e->request->name;
    struct ckpt_map_family next;
    char *family = NULL, *prefix = NULL;
    size_t most = 0;
    bool any = false;
    *text = NULL;
    for (int i = 0; ckpt_map_texts[i]; i++)
        for (size_t at = 0; ckpt_map_next_family(ckpt_map_texts[i], &at, &next);) {
            const size_t had = most;
            if (!ckpt_has_word(next.model_types, type))
                continue;
            most = search_family(e, next.name, most, &prefix, &any);
            if (most > had) {
                free(family);
                family = s2s_xstrdup(next.name);
            }
        }
    if (family)
        *text = s2s_xasprintf("family part\ninclude %s %s %s\n", family, *prefix ? prefix : "\"\"",
                              *prefix ? prefix : "\"\"");
    e->prefix = prefix;
    free(family);
    if (most)
        return 0;
    return s2s_error_set(err, any ? S2S_E_UNSUPPORTED : S2S_E_NOTFOUND,
                         any ? "it is unknown which layers are those of its %s"
                             : "wanted but absent: all layers of its %s",
                         type);
}
