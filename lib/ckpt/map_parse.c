/* Reading a map, and names against its patterns. */
#include "lib/ckpt/map.h"

#include <ctype.h>

#include "lib/base/base.h"

enum { MAX_WORDS = 16, MAX_INCLUDE = 8, MAX_FAMILIES = 256 };

/* splits a line at white space; returns the words */
static int split_words(char *line, char *words[MAX_WORDS])
{
    int n = 0;
    char *hash = strchr(line, '#');
    if (hash)
        *hash = 0;
    for (char *at = line; n < MAX_WORDS;) {
        at += strspn(at, " \t\r");
        if (!*at)
            break;
        words[n++] = at;
        at += strcspn(at, " \t\r");
        if (*at)
            *at++ = 0;
    }
    return n;
}

/* the next line of text as a copy; NULL at the end. Gives: free. */
static char *next_line(const char *text, size_t *at)
{
    if (!text[*at])
        return NULL;
    size_t len = strcspn(text + *at, "\n");
    char *line = s2s_xstrndup(text + *at, len);
    *at += len + (text[*at + len] == '\n');
    return line;
}

bool ckpt_map_next_family(const char *text, size_t *at, char family[64], char detect[512])
{
    char *line, *words[MAX_WORDS];
    bool found = false;
    detect[0] = 0;
    for (size_t next = *at; (line = next_line(text, &next)) != NULL; *at = next) {
        int n = split_words(line, words);
        bool is_family = n == 2 && strcmp(words[0], "family") == 0;
        if (is_family && found) {
            free(line);
            return true;
        }
        if (is_family) {
            snprintf(family, 64, "%s", words[1]);
            found = true;
        }
        for (int i = 1, len = 0; n > 1 && strcmp(words[0], "detect") == 0 && i < n; i++)
            len += snprintf(detect + len, len < 500 ? (size_t)(512 - len) : 0, "%s ", words[i]);
        free(line);
    }
    return found;
}

static int find_transform(const char *word)
{
    static const char *const names[] = {"copy",  "vocab",  "qkv",     "heads",
                                        "split", "concat", "experts", "drop"};
    for (int i = 0; i < 8; i++)
        if (strcmp(word, names[i]) == 0)
            return i;
    return -1;
}

struct parser {
    struct ckpt_map *map;
    const char *text;
    int depth, n_families; /* of includes: how deep, how many in all */
    struct s2s_error *err;
};

static int stack_of(struct ckpt_map *map, const char *pattern)
{
    const char *hole = strstr(pattern, "{N}");
    if (!hole)
        return -1;
    size_t len = (size_t)(hole - pattern);
    for (size_t i = 0; i < map->n_stacks; i++)
        if (strlen(map->stacks[i].prefix) == len &&
            memcmp(map->stacks[i].prefix, pattern, len) == 0)
            return (int)i;
    s2s_grow(&map->stacks, map->n_stacks, &map->cap_stacks, sizeof *map->stacks);
    map->stacks[map->n_stacks] = (struct ckpt_stack){.prefix = s2s_xstrndup(pattern, len)};
    return (int)map->n_stacks++;
}

static struct ckpt_rule *add_rule(struct ckpt_map *map, char *megatron, char *hf, int section)
{
    s2s_grow(&map->rules, map->n_rules, &map->cap_rules, sizeof *map->rules);
    struct ckpt_rule *rule = &map->rules[map->n_rules++];
    *rule = (struct ckpt_rule){
        .megatron = megatron, .hf = hf, .section = section, .group = stack_of(map, megatron)};
    return rule;
}

/* braces in pairs, not nested, no empty hole, at most one list of at most 16 items */
static bool is_pattern(const char *word)
{
    int lists = 0;
    for (const char *at = strpbrk(word, "{}"); at; at = strpbrk(at, "{}")) {
        const char *close = at + 1 + strcspn(at + 1, "{}");
        size_t len = (size_t)(close - at - 1);
        if (*at != '{' || *close != '}' || len == 0)
            return false;
        int items = 1;
        for (const char *c = at; c < close; c++)
            items += *c == ',';
        lists += items > 1;
        if (items == 1 && !(len == 1 && (at[1] == 'N' || at[1] == 'E')))
            return false;
        if (items > 16)
            return false;
        at = close + 1;
    }
    return lists <= 1;
}

/* what included names begin with: no list, so that one of the name stays the only one */
static bool is_prefix(const char *word)
{
    return is_pattern(word) && ckpt_map_items(word) == 0;
}

static int parse_rule(struct parser *p, char **words, int n, int section, const char *m_prefix,
                      const char *h_prefix)
{
    for (int i = 0; i < 2 && i < n; i++)
        if (!is_pattern(words[i]))
            return s2s_error_set(p->err, S2S_E_FORMAT, "bad pattern \"%s\"", words[i]);
    int transform = n >= 3 ? find_transform(words[2]) : -1;
    bool optional = n == 4 && strcmp(words[3], "?") == 0;
    if (transform < 0 || n > 4 || (n == 4 && !optional))
        return s2s_error_set(p->err, S2S_E_FORMAT,
                             "expected MEGATRON-NAME HF-NAME TRANSFORM [?], found \"%s\"",
                             words[0]);
    char *megatron = s2s_xasprintf("%s%s", m_prefix, words[0]);
    char *hf = s2s_xasprintf("%s%s", h_prefix, words[1]);
    struct ckpt_rule *rule = add_rule(p->map, megatron, hf, section);
    rule->transform = (enum ckpt_transform)transform;
    rule->optional = optional;
    int m_items = ckpt_map_items(megatron), h_items = ckpt_map_items(hf);
    bool ok = true;
    switch (rule->transform) {
    case CKPT_MAP_COPY:
        ok = m_items == h_items;
        break;
    case CKPT_MAP_QKV:
        ok = m_items == 0 && h_items == 3;
        break;
    case CKPT_MAP_SPLIT:
        ok = m_items == 0 && h_items > 1;
        break;
    case CKPT_MAP_CONCAT:
        ok = m_items > 1 && h_items == 0;
        break;
    case CKPT_MAP_EXPERTS:
        ok = m_items == 0 && strstr(hf, "{E}");
        break;
    default:
        ok = m_items == 0 && h_items == 0;
    }
    return ok ? 0
              : s2s_error_set(p->err, S2S_E_FORMAT, "lists of %s and %s do not fit %s", words[0],
                              words[1], words[2]);
}

static int parse_family(struct parser *p, const char *family, const char *m_prefix,
                        const char *h_prefix);

static int parse_line(struct parser *p, char **words, int n, int *section, const char *m_prefix,
                      const char *h_prefix)
{
    struct ckpt_map *map = p->map;
    if (n == 0 || strcmp(words[0], "detect") == 0)
        return 0;
    for (int i = 1; i < n && i < 2; i++)
        if (!is_pattern(words[i]))
            return s2s_error_set(p->err, S2S_E_FORMAT, "bad pattern \"%s\"", words[i]);
    if (strcmp(words[0], "section") == 0 && n == 2) {
        s2s_grow(&map->sections, map->n_sections, &map->cap_sections, sizeof *map->sections);
        *section = (int)map->n_sections;
        map->sections[map->n_sections++] = s2s_xasprintf("%s%s", m_prefix, words[1]);
        return 0;
    }
    if (strcmp(words[0], "numbered") == 0 && n == 2) {
        char *pattern = s2s_xasprintf("%s%s{N}", m_prefix, words[1]);
        int stack = stack_of(map, pattern);
        map->stacks[stack].numbered = true;
        free(pattern);
        return 0;
    }
    if (strcmp(words[0], "drop") == 0 && n == 2) {
        add_rule(map, s2s_xasprintf("%s%s", m_prefix, words[1]), s2s_xstrdup(""), -1)->transform =
            CKPT_MAP_DROP;
        return 0;
    }
    if (strcmp(words[0], "include") == 0 && n == 4) {
        const char *m = strcmp(words[2], "\"\"") == 0 ? "" : words[2];
        const char *h = strcmp(words[3], "\"\"") == 0 ? "" : words[3];
        char *m_all = s2s_xasprintf("%s%s", m_prefix, m);
        char *h_all = s2s_xasprintf("%s%s", h_prefix, h);
        int rc = is_prefix(m_all) && is_prefix(h_all)
                     ? parse_family(p, words[1], m_all, h_all)
                     : s2s_error_set(p->err, S2S_E_FORMAT, "bad prefix \"%s\" or \"%s\"", m, h);
        free(m_all);
        free(h_all);
        return rc;
    }
    return parse_rule(p, words, n, *section, m_prefix, h_prefix);
}

static int parse_family(struct parser *p, const char *family, const char *m_prefix,
                        const char *h_prefix)
{
    char *line, *words[MAX_WORDS];
    bool inside = false, found = false;
    int section = -1, rc = 0, line_no = 0;
    if (++p->depth > MAX_INCLUDE || ++p->n_families > MAX_FAMILIES)
        return s2s_error_set(p->err, S2S_E_FORMAT, "includes more than %d deep, or more than %d",
                             MAX_INCLUDE, MAX_FAMILIES);
    for (size_t at = 0; rc == 0 && (line = next_line(p->text, &at)) != NULL;) {
        int n = split_words(line, words);
        line_no++;
        if (n == 2 && strcmp(words[0], "family") == 0) {
            inside = strcmp(words[1], family) == 0;
            found |= inside;
        } else if (inside) {
            rc = parse_line(p, words, n, &section, m_prefix, h_prefix);
            if (rc < 0 && p->depth == 1)
                s2s_error_add(p->err, rc, "line %d", line_no);
        }
        free(line);
    }
    p->depth--;
    if (rc == 0 && !found)
        rc = s2s_error_set(p->err, S2S_E_NOTFOUND, "no family %s", family);
    return rc;
}

int ckpt_map_parse(struct ckpt_map *map, const char *text, const char *family,
                   struct s2s_error *err)
{
    *map = (struct ckpt_map){.family = family};
    struct parser p = {.map = map, .text = text, .err = err};
    int rc = parse_family(&p, family, "", "");
    if (rc < 0)
        ckpt_map_release(map);
    return rc;
}

void ckpt_map_release(struct ckpt_map *map)
{
    for (size_t i = 0; i < map->n_rules; i++) {
        free(map->rules[i].megatron);
        free(map->rules[i].hf);
    }
    for (size_t i = 0; i < map->n_sections; i++)
        free(map->sections[i]);
    for (size_t i = 0; i < map->n_stacks; i++)
        free(map->stacks[i].prefix);
    free(map->stacks);
    free(map->rules);
    free(map->sections);
    *map = (struct ckpt_map){.n_rules = 0};
}

/* ---- patterns ---- */

int ckpt_map_items(const char *pattern)
{
    for (const char *open = strchr(pattern, '{'); open; open = strchr(open + 1, '{')) {
        const char *close = strchr(open, '}');
        int n = 1;
        for (const char *at = open; close && at < close; at++)
            n += *at == ',';
        if (n > 1)
            return n;
    }
    return 0;
}

static bool take_number(const char **name, int64_t *value)
{
    size_t n = strspn(*name, "0123456789");
    char text[20];
    if (n == 0 || n > 9)
        return false;
    snprintf(text, sizeof text, "%.*s", (int)n, *name);
    *name += n;
    return s2s_parse_i64(value, text, 0, INT64_MAX, NULL) == 0;
}

static bool match_from(const char *pattern, const char *name, struct ckpt_match *match);

/* tries each item of the list that begins at pattern */
static bool match_list(const char *pattern, const char *name, struct ckpt_match *match)
{
    const char *close = strchr(pattern, '}'), *item = pattern + 1;
    for (int i = 0; item < close; i++) {
        size_t len = strcspn(item, ",}");
        struct ckpt_match tried = *match;
        tried.item = i;
        if (strncmp(item, name, len) == 0 && match_from(close + 1, name + len, &tried)) {
            *match = tried;
            return true;
        }
        item += len + 1;
    }
    return false;
}

static bool match_from(const char *pattern, const char *name, struct ckpt_match *match)
{
    while (*pattern) {
        if (strncmp(pattern, ".{N}", 4) == 0 &&
            !(name[0] == '.' && isdigit((unsigned char)name[1]))) {
            match->stacked = true;
            pattern += 4;
        } else if (strncmp(pattern, "{N}", 3) == 0 || strncmp(pattern, "{E}", 3) == 0) {
            if (!take_number(&name, pattern[1] == 'N' ? &match->layer : &match->expert))
                return false;
            pattern += 3;
        } else if (*pattern == '{') {
            return match_list(pattern, name, match);
        } else if (*pattern++ != *name++) {
            return false;
        }
    }
    return !*name;
}

bool ckpt_map_match(const char *pattern, const char *name, struct ckpt_match *match)
{
    *match = (struct ckpt_match){.layer = -1, .expert = -1, .item = -1};
    return match_from(pattern, name, match);
}

char *ckpt_map_fill(const char *pattern, const struct ckpt_match *match)
{
    struct s2s_buf out = S2S_BUF_INIT;
    while (*pattern) {
        if (strncmp(pattern, ".{N}", 4) == 0 && match->stacked && match->layer < 0) {
            pattern += 4;
        } else if (strncmp(pattern, "{N}", 3) == 0 || strncmp(pattern, "{E}", 3) == 0) {
            s2s_buf_printf(&out, "%lld",
                           (long long)(pattern[1] == 'N' ? match->layer : match->expert));
            pattern += 3;
        } else if (*pattern == '{') {
            const char *item = pattern + 1;
            for (int i = 0; i < match->item; i++)
                item += strcspn(item, ",}") + 1;
            s2s_buf_add(&out, item, strcspn(item, ",}"));
            pattern = strchr(pattern, '}') + 1;
        } else {
            s2s_buf_putc(&out, *pattern++);
        }
    }
    s2s_buf_putc(&out, 0);
    return out.data;
}
