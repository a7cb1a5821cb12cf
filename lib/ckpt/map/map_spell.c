/* Alternative names of a source: the lines "where" and "rename" of a map. */
#include "lib/base/base.h"
#include "lib/ckpt/map/map_internal.h"

/* Does the name match the pattern of a "where" line? Fills in the words that are unknown yet. */
static bool fits(const char *where, const char *name, struct ckpt_words *words)
{
    struct ckpt_match match;
    for (const char *hole; (hole = ckpt_map_word_hole(where)); where = hole + 3) {
        const size_t before = (size_t)(hole - where);
        char *word = words->of[hole[1] - '1'];
        if (strncmp(where, name, before) != 0)
            return false;
        name += before;
        const size_t len = strcspn(name, ".{}");
        if (len == 0 || len >= sizeof *words->of)
            return false;
        if (*word && (strncmp(word, name, len) != 0 || word[len]))
            return false;
        memcpy(word, name, len);
        word[len] = 0;
        name += len;
    }
    return ckpt_map_match(where, name, &match);
}

/* Does a source match the pattern? If several match with different words it is ambiguous: no. */
static bool find_where(const char *where, const struct ckpt_map_source *sources, size_t n,
                       struct ckpt_words *words)
{
    const struct ckpt_words known = *words;
    bool found = false;
    for (size_t i = 0; i < n; i++) {
        struct ckpt_words tried = known;
        if (!fits(where, sources[i].name, &tried))
            continue;
        if (found && memcmp(words, &tried, sizeof tried) != 0)
            return false;
        *words = tried;
        found = true;
    }
    return found;
}

/* Renames by the first line that matches. */
static void rename_source(struct ckpt_map_source *source, char *const (*lines)[2], size_t n_lines)
{
    struct ckpt_match match;
    for (size_t i = 0; i < n_lines; i++)
        if (ckpt_map_match(lines[i][0], source->name, &match)) {
            char *name = ckpt_map_fill(lines[i][1], &match);
            free(ckpt_map_take_name(source));
            ckpt_map_set_name(source, name);
            return;
        }
}

static void rename_all(const struct ckpt_spelling *lines, size_t n_lines,
                       const struct ckpt_words *words, struct ckpt_map_source *sources, size_t n)
{
    char *(*full)[2] = s2s_xcalloc(n_lines, sizeof *full);
    for (size_t i = 0; i < n_lines; i++) {
        full[i][0] = ckpt_map_put_words(lines[i].name, words);
        full[i][1] = ckpt_map_put_words(lines[i].as, words);
    }
    for (size_t i = 0; i < n; i++)
        rename_source(&sources[i], full, n_lines);
    for (size_t i = 0; i < n_lines; i++) {
        free(full[i][0]);
        free(full[i][1]);
    }
    free(full);
}

void ckpt_map_respell(struct ckpt_map_source *sources, size_t n, const char *text,
                      const char *family)
{
    struct ckpt_map map;
    if (ckpt_map_parse(&map, text, "", family, NULL, NULL, NULL) < 0)
        return; /* reported when the map is used */
    for (size_t at = 0, end; at < map.n_spellings; at = end) {
        struct ckpt_words words = {.of = {""}};
        bool holds = true;
        for (; at < map.n_spellings && !map.spellings[at].as; at++)
            holds = holds && find_where(map.spellings[at].name, sources, n, &words);
        for (end = at; end < map.n_spellings && map.spellings[end].as;)
            end++;
        if (holds && end > at)
            rename_all(&map.spellings[at], end - at, &words, sources, n);
    }
    if (map.n_spellings)
        ckpt_map_sort(sources, n);
    ckpt_map_release(&map);
}
