/* One part of a composite model: narrows a checkpoint to it, or finds its prefix. */
#include "lib/base/base.h"
#include "lib/ckpt/map/map_internal.h"
#include "lib/ckpt/model.h"
#include "lib/ckpt/names.h"

enum { MAX_SAID = 12 };

/* The key of config.json that holds a part's own section, by words in the part's name. */
static const struct {
    const char *mark, *key;
} config_keys[] = {
    {"language", "llm_config"},  {"language", "text_config"}, {"llm", "llm_config"},
    {"llm", "text_config"},      {"text", "text_config"},     {"vision", "vision_config"},
    {"visual", "vision_config"}, {"images", "vision_config"}, {"sound", "sound_config"},
    {"audio", "audio_config"},
};

bool ckpt_part_has_words(const char *part)
{
    return strstr(part, "language") || strstr(part, "llm") || strstr(part, "text");
}

json_t *ckpt_part_config(const struct s2s_ckpt *ckpt, const json_t *config)
{
    json_t *own = NULL;
    for (size_t i = 0; i < sizeof config_keys / sizeof *config_keys && !own; i++) {
        json_t *section = json_object_get(config, config_keys[i].key);
        if (strstr(ckpt->part, config_keys[i].mark) && json_is_object(section))
            own = json_copy(section);
    }
    /* in transformers 5 the whole model's setting counts, whatever the section says */
    if (own && ckpt_part_has_words(ckpt->part) && !s2s_ckpt_find(ckpt, "lm_head.weight") &&
        json_is_true(json_object_get(config, "tie_word_embeddings")))
        json_object_set_new(own, "tie_word_embeddings", json_true());
    return own;
}

/* Lists the first words of unwrapped names, each once; or, if the part is nested in one of them,
 * all that precedes it. */
static void list_beginnings(struct s2s_buf *out, const struct s2s_ckpt *ckpt, const char *prefix)
{
    char *within = s2s_xasprintf(".%s", prefix), *last = s2s_xstrdup("");
    size_t n = 0;
    for (size_t i = 0; i < ckpt->n_tensors; i++) {
        if (s2s_ckpt_is_state(ckpt->tensors[i].name))
            continue;
        char *name = ckpt_map_plain_name(ckpt->tensors[i].name), *at = strstr(name, within);
        const size_t len = at ? (size_t)(at - name) + strlen(within) - 1 : strcspn(name, ".");
        name[len] = 0;
        if (strcmp(name, last) != 0 && n++ < MAX_SAID)
            s2s_buf_printf(out, "%s%s.", n > 1 ? ", " : "", name);
        free(last);
        last = name;
    }
    free(last);
    free(within);
    s2s_buf_puts(out, n > MAX_SAID ? ", .." : "");
    s2s_buf_putc(out, 0);
}

/* The rest of a name after the prefix, in the name with or without wrappers and state-dict
 * prefixes; NULL: not in the part. Gives: free. */
static char *name_within(const char *name, const char *prefix)
{
    const size_t len = strlen(prefix);
    char *plain = ckpt_map_plain_name(name);
    const char *from = s2s_starts_with(plain, prefix)  ? plain
                       : s2s_starts_with(name, prefix) ? name
                                                       : NULL;
    char *rest = from && from[len] ? s2s_xstrdup(from + len) : NULL;
    free(plain);
    return rest;
}

/* ---- what lies outside of its part ---- */

/* NeMo's speech models take the words out of their language model `llm`; DuplexS2S takes the head,
 * too, and what is left under `llm` loses the "model." in front. */
struct inside {
    char *path;       /* of the layers within the part: "model.", ""; NULL: no such model */
    const char *lost; /* what is put in front again */
    bool has_words, has_head, has_mixers;
};

static void look_at_name(struct inside *in, const char *name)
{
    const char *at = strstr(name, "layers.");
    if (at && !in->path && (at == name || at[-1] == '.'))
        in->path = s2s_xstrndup(name, (size_t)(at - name));
    in->has_mixers |= at && strstr(at, ".mixer.");
    in->has_head |= s2s_has_tail(name, '.', "lm_head.weight");
    in->has_words |= s2s_has_tail(name, '.', "embed_tokens.weight") ||
                     s2s_has_tail(name, '.', "embeddings.weight") ||
                     s2s_has_tail(name, '.', "word_embeddings.weight");
}

/* Is it the tensor of this name, which lies in no part? */
static bool is_plainly(const char *whole, const char *name)
{
    char *plain =
        s2s_ends_with(whole, name) && !s2s_ckpt_is_state(whole) ? ckpt_map_plain_name(whole) : NULL;
    const bool is = plain && strcmp(plain, name) == 0;
    free(plain);
    return is;
}

static void look_inside(struct inside *in, const struct s2s_ckpt *ckpt, const char *prefix)
{
    bool has_outer_head = false;
    *in = (struct inside){.lost = ""};
    for (size_t i = 0; i < ckpt->n_tensors && strcmp(prefix, "llm.") == 0; i++) {
        const char *whole = ckpt->tensors[i].name;
        char *name = s2s_ckpt_is_state(whole) ? NULL : name_within(whole, prefix);
        if (name)
            look_at_name(in, name);
        has_outer_head |= is_plainly(whole, "lm_head.weight");
        free(name);
    }
    if (in->path && !*in->path && has_outer_head && !in->has_head)
        in->lost = in->has_mixers ? "backbone." : "model.";
}

/* The name within the part of a tensor that lies outside of it; NULL: it is not the part's. Gives:
 * free. */
static char *name_of_outside(const char *whole, const struct inside *in)
{
    if (in->path && !in->has_words && is_plainly(whole, "embed_tokens.weight"))
        return s2s_xasprintf("%s%s%s.weight", in->lost, in->path,
                             in->has_mixers ? "embeddings" : "embed_tokens");
    if (*in->lost && is_plainly(whole, "lm_head.weight"))
        return s2s_xstrdup("lm_head.weight");
    return NULL;
}

/* The tensor's name within the part; NULL: it is not the part's. Gives: free. */
static char *name_in_part(const char *whole, const char *prefix, const struct inside *in)
{
    char *rest = s2s_ckpt_is_state(whole) ? NULL : name_within(whole, prefix);
    if (!rest)
        return name_of_outside(whole, in);
    char *name = s2s_xasprintf("%s%s", in->lost, rest);
    free(rest);
    return name;
}

int s2s_ckpt_select(struct s2s_ckpt *ckpt, const char *part, struct s2s_error *err)
{
    size_t len = strlen(part), kept = 0;
    char *prefix = s2s_xasprintf("%s%s", part, len && part[len - 1] == '.' ? "" : ".");
    len = strlen(prefix);
    struct inside inside;
    look_inside(&inside, ckpt, prefix);
    for (size_t i = 0; i < ckpt->n_tensors; i++) {
        struct s2s_ckpt_tensor *t = &ckpt->tensors[i];
        char *name = name_in_part(t->name, prefix, &inside);
        if (name) {
            t->name = ckpt_arena_text(ckpt, name, strlen(name));
            ckpt->tensors[kept++] = *t;
        }
        free(name);
    }
    free(inside.path);
    struct s2s_buf others = S2S_BUF_INIT;
    if (!kept) /* names are still unchanged */
        list_beginnings(&others, ckpt, prefix);
    ckpt->n_tensors = kept;
    free(ckpt->paths); /* of the old names */
    ckpt->paths = NULL;
    for (size_t i = 0; i < ckpt->n_objects; i++)
        json_decref(ckpt->objects[i].value);
    ckpt->n_objects = 0;
    ckpt->part = ckpt_arena_text(ckpt, prefix, len - 1);
    int rc = kept ? ckpt_seal(ckpt, err)
                  : s2s_error_set(err, S2S_E_NOTFOUND, "%s: no tensor's name begins with %s",
                                  ckpt->path, prefix);
    if (!kept)
        s2s_error_hint(err, rc, "there are %s", others.data);
    s2s_buf_release(&others);
    free(prefix);
    return rc;
}

/* ---- the prefix of a part ---- */

/* Model authors and transformers releases put different words in front of a family's names. The
 * prefix is the one under which the source has most tensors of the family's layers. */

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
