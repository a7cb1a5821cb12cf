/* Parses a map: its lines, and the families that they include. */
#include "lib/ckpt/map/map.h"

#include "lib/base/base.h"

enum { MAX_WORDS = 16, MAX_INCLUDE = 8, MAX_FAMILIES = 256, MAX_CHOICES = 1024 };

/* Splits a line at white space; returns the number of words, MAX_WORDS + 1 if there are more. */
static int split_words(char *line, char *words[MAX_WORDS + 1])
{
    int n = 0;
    char *hash = strchr(line, '#');
    if (hash)
        *hash = 0;
    for (char *at = line; n <= MAX_WORDS;) {
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

/* A copy of the next line of text. Gives: free. */
static char *next_line(const char *text, size_t *at)
{
    size_t len = strcspn(text + *at, "\n");
    char *line = s2s_xstrndup(text + *at, len);
    *at += len + (text[*at + len] == '\n');
    return line;
}

/* Is this the line's first word? A cheap test, as a text is scanned once for each included family.
 */
static bool begins_with(const char *line, const char *word)
{
    return s2s_starts_with(line + strspn(line, " \t\r"), word);
}

static void skip_line(const char *text, size_t *at)
{
    const char *end = strchr(text + *at, '\n');
    *at = end ? (size_t)(end + 1 - text) : *at + strlen(text + *at);
}

static void join_words(char *out, size_t size, char **words, int n)
{
    for (size_t i = 1, len = 0; i < (size_t)n && len < size; i++)
        len += (size_t)snprintf(out + len, size - len, "%s ", words[i]);
}

bool ckpt_map_next_family(const char *text, size_t *at, struct ckpt_map_family *family)
{
    char *line, *words[MAX_WORDS + 1];
    bool found = false;
    *family = (struct ckpt_map_family){.name = ""};
    for (size_t next = *at; text[next]; *at = next) {
        if (!begins_with(text + next, "family") && !begins_with(text + next, "detect") &&
            !begins_with(text + next, "model_type") && !begins_with(text + next, "trains") &&
            !begins_with(text + next, "rename")) {
            skip_line(text, &next);
            continue;
        }
        line = next_line(text, &next);
        int n = split_words(line, words);
        bool is_family = n == 2 && strcmp(words[0], "family") == 0;
        if (is_family && found) {
            free(line);
            return true;
        }
        if (is_family) {
            snprintf(family->name, sizeof family->name, "%s", words[1]);
            found = true;
        }
        if (n > 1 && strcmp(words[0], "detect") == 0)
            join_words(family->detect, sizeof family->detect, words, n);
        if (n > 1 && strcmp(words[0], "model_type") == 0)
            join_words(family->model_types, sizeof family->model_types, words, n);
        family->trains |= n == 1 && strcmp(words[0], "trains") == 0;
        family->renames |= n == 3 && strcmp(words[0], "rename") == 0;
        free(line);
    }
    return found;
}

#define TRANSFORMS "copy, vocab, qkv, heads, split, concat, mamba, experts, again"

static int find_transform(const char *word)
{
    static const char *const names[] = {"copy",   "vocab", "qkv",     "heads", "split",
                                        "concat", "mamba", "experts", "again"};
    for (int i = 0; i < (int)(sizeof names / sizeof *names); i++)
        if (strcmp(word, names[i]) == 0)
            return i;
    return -1;
}

struct parser {
    struct ckpt_map *map;
    const char *text, *file; /* the user's text, and its name */
    int depth, n_families;   /* includes: current nesting, and total */
    int n_choices;           /* families tried for "part" lines: each searches all names */
    int n_named;             /* families that the user's own "part" lines name, checked to exist */
    int scope, n_scopes;     /* scope of the shapes' capital letters */
    int line;                /* in the user's file, while reading one of its own rules; else 0 */
    bool said_line;          /* the error names its line already */
    ckpt_map_choose *choose;
    void *ctx;
    struct s2s_error *err;
};

/* Where a family is included: prefixes; mirror: Hugging Face's names on both sides. */
struct place {
    const char *m_prefix, *h_prefix;
    bool mirror;
    int section;  /* current section; -1: none */
    char *marker; /* the section's tensor, as written in the family */
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

/* Takes the names; copies the strings of kind. */
static struct ckpt_rule *add_rule(struct parser *p, const struct ckpt_rule *kind, char *megatron,
                                  char *hf, int section)
{
    struct ckpt_map *map = p->map;
    s2s_grow(&map->rules, map->n_rules, &map->cap_rules, sizeof *map->rules);
    struct ckpt_rule *rule = &map->rules[map->n_rules++];
    *rule = *kind;
    rule->megatron = megatron;
    rule->hf = hf;
    rule->company = kind->company ? s2s_xstrdup(kind->company) : NULL;
    rule->shape = kind->shape ? s2s_xstrdup(kind->shape) : NULL;
    rule->section = section;
    rule->scope = p->scope;
    rule->line = p->line;
    rule->group = stack_of(map, megatron);
    return rule;
}

/* The pattern with this item of its list and expert 0, keeping {N}. Gives: free. */
static char *first_of(const char *pattern, int item)
{
    struct s2s_buf out = S2S_BUF_INIT;
    while (*pattern) {
        size_t len = strcspn(pattern, "{");
        s2s_buf_add(&out, pattern, len);
        pattern += len;
        if (s2s_starts_with(pattern, "{N}")) {
            s2s_buf_puts(&out, "{N}");
            pattern += 3;
        } else if (*pattern) {
            const char *at = pattern + 1;
            for (int i = 0; i < item && *at != '}'; i++)
                at += strcspn(at, ",}") + 1;
            if (s2s_starts_with(pattern, "{E}"))
                s2s_buf_putc(&out, '0');
            else
                s2s_buf_add(&out, at, strcspn(at, ",}"));
            pattern = strchr(pattern, '}') + 1;
        }
    }
    s2s_buf_putc(&out, 0);
    return out.data;
}

/*
 * Adds a rule of a family with Hugging Face's names on both sides. Only the first rule of a section
 * for a name is added; the one that makes the section's own tensor gives the section its new name.
 */
static void add_mirrored(struct parser *p, char **words, const struct ckpt_rule *kind,
                         const struct place *at)
{
    struct ckpt_map *map = p->map;
    struct ckpt_rule copy = *kind;
    const int section = at->section;
    struct ckpt_match match = {.layer = 0, .expert = 0, .item = 0};
    char *name = s2s_xasprintf("%s%s", at->m_prefix, words[1]);
    char *mark = ckpt_map_fill(at->marker ? at->marker : "", &match);
    if (section >= 0 && ckpt_map_match(words[0], mark, &match)) {
        free(map->sections[section]);
        char *own = first_of(words[1], match.item < 0 ? 0 : match.item);
        map->sections[section] = s2s_xasprintf("%s%s", at->m_prefix, own);
        free(own);
    }
    free(mark);
    for (size_t i = 0; i < map->n_rules; i++)
        if (map->rules[i].section == section && strcmp(map->rules[i].megatron, name) == 0) {
            free(name);
            return;
        }
    char *hf = s2s_xasprintf("%s%s", at->h_prefix, words[1]);
    copy.transform = CKPT_MAP_COPY;
    copy.transposed = false;
    struct ckpt_rule *rule = add_rule(p, &copy, name, hf, section);
    rule->same = s2s_xasprintf("%s%s", at->m_prefix, words[0]);
    if (rule->group >= 0)
        map->stacks[rule->group].numbered = true;
}

#define ABSENCES \
    "?, ?tied, ?conv_bias, ?projection, ?qkv_bias, ?bias, ?mlp_bias, ?mixer_bias, ?qk_norm, " \
    "?shared_gate, ?shared, ?+NAME"

static enum ckpt_absence find_absence(const char *word)
{
    static const char *const words[] = {[CKPT_MAY_BE_ABSENT] = "?",
                                        [CKPT_ABSENT_IF_TIED] = "?tied",
                                        [CKPT_ABSENT_IF_NO_CONV_BIAS] = "?conv_bias",
                                        [CKPT_ABSENT_IF_NO_PROJECTION] = "?projection",
                                        [CKPT_ABSENT_UNLESS_QKV_BIAS] = "?qkv_bias",
                                        [CKPT_ABSENT_UNLESS_BIAS] = "?bias",
                                        [CKPT_ABSENT_UNLESS_MLP_BIAS] = "?mlp_bias",
                                        [CKPT_ABSENT_UNLESS_MIXER_BIAS] = "?mixer_bias",
                                        [CKPT_ABSENT_UNLESS_QK_NORM] = "?qk_norm",
                                        [CKPT_ABSENT_UNLESS_SHARED_GATE] = "?shared_gate",
                                        [CKPT_ABSENT_UNLESS_SHARED] = "?shared"};
    for (size_t i = 1; i < sizeof words / sizeof *words; i++)
        if (strcmp(words[i], word) == 0)
            return (enum ckpt_absence)i;
    return CKPT_NEVER_ABSENT;
}

static int refuse_pattern(struct parser *p, const char *word)
{
    return s2s_error_set(
        p->err, S2S_E_FORMAT,
        "bad pattern \"%s\": names may hold {N}, {E}, one list such as {q,k,v}, or "
        "{*} at the end%s",
        word,
        strchr(word, '?')   ? "; ? is a word of its own behind them"
        : strchr(word, '*') ? "; a layer's number is {N}, not *"
                            : "");
}

static int refuse_line(struct parser *p, char **words);

/* Parses what follows the names: TRANSFORM [SHAPE] [?]; strings are lent by words. */
static int read_kind(struct parser *p, struct ckpt_rule *kind, char **words, int n)
{
    const int transform = n >= 3 ? find_transform(words[2]) : -1;
    *kind = (struct ckpt_rule){.transform = (enum ckpt_transform)transform};
    if (n < 3)
        return refuse_line(p, words);
    if (transform < 0)
        return s2s_error_set(p->err, S2S_E_FORMAT, "\"%s\" is no transform (" TRANSFORMS ")",
                             words[2]);
    for (int i = 3; i < n; i++) {
        if (!kind->company && s2s_starts_with(words[i], "?+") && words[i][2]) {
            kind->company = words[i] + 2;
        } else if (words[i][0] == '?') {
            if (kind->absence)
                return s2s_error_set(p->err, S2S_E_FORMAT, "\"%s\" is a second mark of absence",
                                     words[i]);
            kind->absence = find_absence(words[i]);
            if (!kind->absence)
                return s2s_error_set(p->err, S2S_E_FORMAT,
                                     "\"%s\" is no mark of absence (" ABSENCES ")", words[i]);
        } else if (!kind->shape && ckpt_map_is_shape(words[i])) {
            kind->shape = words[i];
        } else if (!kind->transposed && strcmp(words[i], "transposed") == 0 &&
                   (transform == CKPT_MAP_COPY || transform == CKPT_MAP_EXPERTS)) {
            kind->transposed = true;
        } else {
            return s2s_error_set(p->err, S2S_E_FORMAT,
                                 "\"%s\" is neither a shape such as [V,H] nor ?", words[i]);
        }
    }
    if (kind->company && !kind->absence)
        kind->absence = CKPT_MAY_BE_ABSENT;
    return 0;
}

/* Checks the last rule of the user's file against its other rules. */
static int check_own(struct parser *p)
{
    const struct ckpt_map *map = p->map;
    const struct ckpt_rule *rule = &map->rules[map->n_rules - 1];
    const char *lost = ckpt_map_lost_number(rule);
    if (!p->line || rule->transform == CKPT_MAP_AGAIN)
        return 0;
    if (lost)
        return s2s_error_set(p->err, S2S_E_FORMAT, "%s is in %s and not in %s", lost,
                             strstr(rule->hf, lost) ? rule->hf : rule->megatron,
                             strstr(rule->hf, lost) ? rule->megatron : rule->hf);
    if (rule->absence)
        return 0; /* another form of the first rule, for reading towards Megatron */
    for (const struct ckpt_rule *other = map->rules; other < rule; other++) {
        bool dropped = other->transform == CKPT_MAP_DROP;
        if (other->line && (dropped || other->section == rule->section) &&
            other->transform != CKPT_MAP_AGAIN && strcmp(other->megatron, rule->megatron) == 0)
            return s2s_error_set(p->err, S2S_E_FORMAT, "%s has a rule already, in line %d",
                                 rule->megatron, other->line);
    }
    return 0;
}

static int parse_rule(struct parser *p, char **words, int n, const struct place *at)
{
    struct ckpt_rule kind;
    int rc = read_kind(p, &kind, words, n);
    if (rc < 0)
        return rc;
    for (int i = 0; i < 2; i++)
        if (!ckpt_map_is_pattern(words[i]))
            return refuse_pattern(p, words[i]);
    if (at->mirror && kind.transform == CKPT_MAP_AGAIN)
        return 0;
    if (at->mirror) {
        add_mirrored(p, words, &kind, at);
        return 0;
    }
    char *megatron = s2s_xasprintf("%s%s", at->m_prefix, words[0]);
    char *hf = s2s_xasprintf("%s%s", at->h_prefix, words[1]);
    struct ckpt_rule *rule = add_rule(p, &kind, megatron, hf, at->section);
    rule->same = s2s_xstrdup(rule->megatron);
    if (!ckpt_map_lists_fit(rule))
        return s2s_error_set(p->err, S2S_E_FORMAT, "lists of %s and %s do not fit %s", words[0],
                             words[1], words[2]);
    if (!ckpt_map_shape_fits(rule))
        return s2s_error_set(p->err, S2S_E_FORMAT, "shapes %s do not fit %s", rule->shape,
                             words[1]);
    return check_own(p);
}

static int parse_family(struct parser *p, const char *family, struct place *at);

static const char *unquote(const char *word)
{
    return strcmp(word, "\"\"") == 0 ? "" : word;
}

/* apart: as a separate model with its own shapes */
static int include_family(struct parser *p, const char *family, const char *m, const char *h,
                          bool apart, const struct place *at)
{
    const bool mirror = at->mirror || *family == '=';
    const int outer = p->scope;
    char *m_all = s2s_xasprintf("%s%s", at->m_prefix, at->mirror ? h : m);
    char *h_all = s2s_xasprintf("%s%s", at->h_prefix, h);
    struct place inner = {m_all, h_all, mirror, -1, NULL};
    if (apart)
        p->scope = ++p->n_scopes;
    int rc = ckpt_map_is_prefix(m_all) && ckpt_map_is_prefix(h_all)
                 ? parse_family(p, family + (*family == '='), &inner)
                 : s2s_error_set(p->err, S2S_E_FORMAT, "bad prefix \"%s\" or \"%s\"", m, h);
    p->scope = outer;
    free(m_all);
    free(h_all);
    return rc;
}

/* ---- lines by first word; words [n] is the line ---- */

static int read_include(struct parser *p, char **words, int n, struct place *at)
{
    /* a user's file may include a family twice, such as two towers */
    const bool apart = p->text && p->depth == 1;
    return include_family(p, words[1], unquote(words[2]), unquote(words[3]), apart, at);
}

static const char *find_builtin(const char *text, const char *family);

/* Does the user's text or a built-in one have the family? */
static bool has_family(const struct parser *p, const char *family)
{
    struct ckpt_map_family own;
    bool found = false;
    for (size_t at = 0; !found && ckpt_map_next_family(p->text, &at, &own);)
        found = strcmp(own.name, family) == 0;
    for (int i = 0; ckpt_map_texts[i] && !found; i++)
        found = find_builtin(ckpt_map_texts[i], family) != NULL;
    return found;
}

/* Refuses a family that does not exist in a user's "part": it would be taken for one that the
 * source lacks. Each is looked for in all texts, hence the limit. */
static int check_choices(struct parser *p, const char *choices)
{
    int rc = 0;
    while (p->line && *choices && rc == 0 && p->n_named++ < MAX_CHOICES) {
        const size_t len = strcspn(choices, "|"), mark = *choices == '=';
        char *family = s2s_xstrndup(choices + mark, len - mark);
        if (!has_family(p, family))
            rc = s2s_error_set(p->err, S2S_E_NOTFOUND, "no family %s", family);
        free(family);
        choices += len + (choices[len] == '|');
    }
    return rc;
}

/* Includes the first of the families that the source has; if it has none and the part is required,
 * the first, so that its names are reported as missing. */
static int read_part(struct parser *p, char **words, int n, struct place *at)
{
    char family[64] = "", first[64] = "";
    const char *m = unquote(words[2]), *h = unquote(words[3]);
    bool found = false;
    if (n == 5 && strcmp(words[4], "?") != 0)
        return s2s_error_set(p->err, S2S_E_FORMAT, "expected \"?\", found \"%s\"", words[4]);
    int rc = check_choices(p, words[1]);
    if (rc < 0)
        return rc;
    for (const char *next = words[1]; *next && !found;) {
        size_t len = strcspn(next, "|");
        snprintf(family, sizeof family, "%.*s", (int)len, next);
        next += len + (next[len] == '|');
        if (++p->n_choices > MAX_CHOICES)
            return s2s_error_set(p->err, S2S_E_FORMAT, "parts of more than %d families",
                                 MAX_CHOICES);
        if (!*first)
            snprintf(first, sizeof first, "%s", family);
        char *m_all = s2s_xasprintf("%s%s", at->m_prefix, at->mirror ? h : m);
        char *h_all = s2s_xasprintf("%s%s", at->h_prefix, h);
        found = !p->choose || p->choose(p->ctx, p->text, family, m_all, h_all);
        free(m_all);
        free(h_all);
    }
    if (!found && n == 5)
        return 0;
    return include_family(p, found ? family : first, m, h, true, at);
}

static int read_drop(struct parser *p, char **words, int n, struct place *at)
{
    const struct ckpt_rule drop = {.transform = CKPT_MAP_DROP};
    const bool hf = strcmp(words[0], "drop_hf") == 0;
    if (at->mirror)
        return 0;
    char *dropped = s2s_xasprintf("%s%s", hf ? at->h_prefix : at->m_prefix, words[1]);
    char *none = s2s_xstrdup("");
    add_rule(p, &drop, hf ? none : dropped, hf ? dropped : none, -1);
    return 0;
}

/* The section of this name that the user's file has already, which goes on: that a name has two
 * rules there is seen; -1: none. */
static int own_section(const struct parser *p, const char *name)
{
    const struct ckpt_map *map = p->map;
    for (size_t i = 0; p->line && i < map->n_rules; i++) {
        const struct ckpt_rule *rule = &map->rules[i];
        if (rule->line && rule->section >= 0 && strcmp(map->sections[rule->section], name) == 0)
            return rule->section;
    }
    return -1;
}

static int read_section(struct parser *p, char **words, int n, struct place *at)
{
    struct ckpt_map *map = p->map;
    at->section = own_section(p, words[1]);
    if (at->section < 0) {
        s2s_grow(&map->sections, map->n_sections, &map->cap_sections, sizeof *map->sections);
        at->section = (int)map->n_sections;
        map->sections[map->n_sections++] = s2s_xasprintf("%s%s", at->m_prefix, words[1]);
    }
    free(at->marker);
    at->marker = s2s_xstrdup(words[1]);
    return 0;
}

static int read_numbered(struct parser *p, char **words, int n, struct place *at)
{
    if (at->mirror)
        return 0;
    char *pattern = s2s_xasprintf("%s%s{N}", at->m_prefix, words[1]);
    const int stack = stack_of(p->map, pattern);
    p->map->stacks[stack].numbered = true;
    free(pattern);
    return 0;
}

/* Adds a "rename" line or (as NULL) a name of a "where" line. */
static int add_spelling(struct parser *p, const char *name, const char *as, const struct place *at)
{
    static const struct ckpt_words any = {.of = {"x", "x"}};
    struct ckpt_map *map = p->map;
    char *a = ckpt_map_put_words(name, &any), *b = ckpt_map_put_words(as ? as : name, &any);
    const struct ckpt_rule rule = {.megatron = a, .hf = b};
    int rc = 0;
    if (!ckpt_map_is_pattern(a) || !ckpt_map_is_pattern(b))
        rc = refuse_pattern(p, ckpt_map_is_pattern(a) ? as : name);
    else if (!ckpt_map_lists_fit(&rule) || ckpt_map_lost_number(&rule))
        rc = s2s_error_set(p->err, S2S_E_FORMAT, "%s and %s do not have the same {}", name, as);
    free(a);
    free(b);
    if (rc < 0 || at->mirror)
        return rc;
    s2s_grow(&map->spellings, map->n_spellings, &map->cap_spellings, sizeof *map->spellings);
    map->spellings[map->n_spellings++] =
        (struct ckpt_spelling){s2s_xasprintf("%s%s", at->m_prefix, name),
                               as ? s2s_xasprintf("%s%s", at->m_prefix, as) : NULL};
    return 0;
}

static int read_rename(struct parser *p, char **words, int n, struct place *at)
{
    return add_spelling(p, words[1], words[2], at);
}

static int read_where(struct parser *p, char **words, int n, struct place *at)
{
    int rc = 0;
    for (int i = 1; i < n && rc == 0; i++)
        rc = add_spelling(p, words[i], NULL, at);
    return rc;
}

/* Refuses a line without names, or with more than ckpt_map_next_family keeps. */
static int check_family_line(struct parser *p, char **words, int n)
{
    const struct ckpt_map_family *family = NULL;
    const size_t most =
        strcmp(words[0], "detect") == 0 ? sizeof family->detect : sizeof family->model_types;
    size_t len = 0;
    if (n < 2)
        return s2s_error_set(p->err, S2S_E_FORMAT, "expected %s NAME.., found \"%s\"", words[0],
                             words[0]);
    for (int i = 1; i < n; i++)
        len += strlen(words[i]) + 1;
    return len < most ? 0
                      : s2s_error_set(p->err, S2S_E_FORMAT, "%s: names of more than %zu bytes",
                                      words[0], most - 1);
}

static const struct line {
    const char *form; /* usage; its first word is the line's */
    int n_min, n_max; /* words */
    int (*read)(struct parser *p, char **words, int n, struct place *at);
} lines[] = {
    {"section MEGATRON-NAME", 2, 2, read_section},
    {"numbered M-PREFIX", 2, 2, read_numbered},
    {"drop MEGATRON-NAME", 2, 2, read_drop},
    {"drop_hf HF-NAME", 2, 2, read_drop},
    {"where NAME..", 2, MAX_WORDS, read_where},
    {"rename NAME NAME", 3, 3, read_rename},
    {"include FAMILY M-PREFIX H-PREFIX", 4, 4, read_include},
    {"part FAMILY[|FAMILY..] M-PREFIX H-PREFIX [?]", 4, 5, read_part},
    {"family NAME", 0, 0, NULL}, /* only reached if malformed */
};

/* The kind of line with this first word; NULL: a rule. */
static const struct line *line_of(const char *word)
{
    const size_t len = strlen(word);
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        if (strcspn(lines[i].form, " ") == len && memcmp(word, lines[i].form, len) == 0)
            return &lines[i];
    return NULL;
}

/* Reports too few or too many words. */
static int refuse_line(struct parser *p, char **words)
{
    const struct line *line = line_of(words[0]);
    return s2s_error_set(p->err, S2S_E_FORMAT, "expected %s, found \"%s\"",
                         line ? line->form : "MEGATRON-NAME HF-NAME TRANSFORM [SHAPE] [?]",
                         words[0]);
}

static int parse_line(struct parser *p, char **words, int n, struct place *at)
{
    if (n > MAX_WORDS)
        return s2s_error_set(p->err, S2S_E_FORMAT, "more than %d words", MAX_WORDS);
    if (n == 0 || (n == 1 && strcmp(words[0], "trains") == 0))
        return 0;
    if (strcmp(words[0], "detect") == 0 || strcmp(words[0], "model_type") == 0)
        return check_family_line(p, words, n);
    if (p->map->n_rules + p->map->n_sections + p->map->n_stacks + p->map->n_spellings >=
        CKPT_MAP_MAX_RULES)
        return s2s_error_set(p->err, S2S_E_FORMAT, "more than %d rules and sections",
                             CKPT_MAP_MAX_RULES);
    const struct line *line = line_of(words[0]);
    if (n == 2 && !(line && line->read == read_where) && !ckpt_map_is_pattern(words[1]))
        return refuse_pattern(p, words[1]);
    return line && n >= line->n_min && n <= line->n_max ? line->read(p, words, n, at)
                                                        : parse_rule(p, words, n, at);
}

/* The line "family NAME" in a built-in text, or NULL. */
static const char *find_builtin(const char *text, const char *family)
{
    char *line = s2s_xasprintf("family %s\n", family);
    const char *at = strstr(text, line);
    while (at && at > text && at[-1] != '\n')
        at = strstr(at + 1, line);
    free(line);
    return at;
}

/* Parses the lines of one family of a text, or of a built-in one, up to the next family; *found: it
 * exists. */
static int parse_text(struct parser *p, const char *text, const char *family, struct place *at,
                      bool *found)
{
    char *line, *words[MAX_WORDS + 1];
    bool inside = false, begun = false; /* begun: a family line was seen */
    int rc = 0, line_no = 0;
    for (size_t next = 0; rc == 0 && text[next];) {
        line_no++;
        const bool own = text == p->text;
        if (!inside && !begins_with(text + next, "family") && (!own || begun)) {
            skip_line(text, &next);
            continue;
        }
        line = next_line(text, &next);
        int n = split_words(line, words);
        p->line = own && p->depth == 1 ? line_no : 0;
        if (n == 2 && strcmp(words[0], "family") == 0) {
            const bool over = inside && !own;
            inside = strcmp(words[1], family) == 0;
            *found |= inside;
            begun = true;
            if (over)
                next += strlen(text + next);
        } else if (inside) {
            rc = parse_line(p, words, n, at);
        } else if (n > 0 && own && !begun) {
            rc = s2s_error_set(p->err, S2S_E_FORMAT, "\"%s\" before the first line family NAME",
                               words[0]);
        }
        if (rc < 0 && own && !p->said_line)
            s2s_error_add(p->err, rc, "%s:%d", p->file, line_no);
        p->said_line |= rc < 0 && own;
        free(line);
    }
    free(at->marker);
    return rc;
}

static int parse_family(struct parser *p, const char *family, struct place *at)
{
    bool found = false;
    int rc = 0;
    if (++p->depth > MAX_INCLUDE || ++p->n_families > MAX_FAMILIES)
        return s2s_error_set(p->err, S2S_E_FORMAT, "includes more than %d deep, or more than %d",
                             MAX_INCLUDE, MAX_FAMILIES);
    if (p->text)
        rc = parse_text(p, p->text, family, at, &found);
    for (int i = 0; ckpt_map_texts[i] && rc == 0 && !found; i++) {
        const char *builtin = find_builtin(ckpt_map_texts[i], family);
        rc = builtin ? parse_text(p, builtin, family, at, &found) : 0;
    }
    p->depth--;
    if (rc == 0 && !found)
        rc = s2s_error_set(p->err, S2S_E_NOTFOUND, "no family %s", family);
    return rc;
}

int ckpt_map_parse(struct ckpt_map *map, const char *text, const char *file, const char *family,
                   ckpt_map_choose *choose, void *ctx, struct s2s_error *err)
{
    *map = (struct ckpt_map){.n_rules = 0};
    struct parser p = {
        .map = map, .text = text, .file = file, .choose = choose, .ctx = ctx, .err = err};
    struct place at = {"", "", *family == '=', -1, NULL};
    int rc = parse_family(&p, family + at.mirror, &at);
    if (rc < 0)
        ckpt_map_release(map);
    return rc;
}

void ckpt_map_release(struct ckpt_map *map)
{
    for (size_t i = 0; i < map->n_rules; i++) {
        free(map->rules[i].megatron);
        free(map->rules[i].hf);
        free(map->rules[i].shape);
        free(map->rules[i].same);
        free(map->rules[i].company);
    }
    for (size_t i = 0; i < map->n_sections; i++)
        free(map->sections[i]);
    for (size_t i = 0; i < map->n_stacks; i++)
        free(map->stacks[i].prefix);
    for (size_t i = 0; i < map->n_spellings; i++) {
        free(map->spellings[i].name);
        free(map->spellings[i].as);
    }
    free(map->spellings);
    free(map->stacks);
    free(map->rules);
    free(map->sections);
    *map = (struct ckpt_map){.n_rules = 0};
}
