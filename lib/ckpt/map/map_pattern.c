/* Patterns of a map: syntax, matching of names, and an index of rules by name. */
#include <ctype.h>

#include "lib/base/base.h"
#include "lib/ckpt/map/map_internal.h"
#include "lib/io/digest.h"

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

int ckpt_map_names(const char *pattern)
{
    const int n = ckpt_map_items(pattern);
    return n ? n : 1;
}

bool ckpt_map_is_open(const char *pattern)
{
    return s2s_ends_with(pattern, "{*}");
}

/* Parses a layer or expert number. It is limited, as loops run up to the highest. */
static bool take_number(const char **name, int64_t *value)
{
    const char *end = *name;
    int64_t number = 0;
    for (; isdigit((unsigned char)*end) && end - *name <= 4; end++)
        number = 10 * number + (*end - '0');
    if (end == *name || end - *name > 4)
        return false;
    *value = number;
    *name = end;
    return true;
}

/* Is it "{N}" or "{E}"? */
static bool is_number(const char *hole, char which)
{
    return hole[1] == which && hole[2] == '}';
}

static bool match_from(const char *pattern, const char *name, struct ckpt_match *match);

/* Tries each item of the list at `pattern`. */
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
        if (*pattern != '.' && *pattern != '{') {
            if (*pattern++ != *name++)
                return false;
        } else if (*pattern == '.' && pattern[1] == '{' && is_number(pattern + 1, 'N') &&
                   !(name[0] == '.' && isdigit((unsigned char)name[1]))) {
            match->stacked = true;
            pattern += 4;
        } else if (*pattern == '{' && (is_number(pattern, 'N') || is_number(pattern, 'E'))) {
            if (!take_number(&name, pattern[1] == 'N' ? &match->layer : &match->expert))
                return false;
            pattern += 3;
        } else if (strcmp(pattern, "{*}") == 0) {
            match->rest = name;
            return *name;
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
        if (s2s_starts_with(pattern, ".{N}") && match->stacked && match->layer < 0) {
            pattern += 4;
        } else if (s2s_starts_with(pattern, "{N}") || s2s_starts_with(pattern, "{E}")) {
            s2s_buf_printf(&out, "%lld",
                           (long long)(pattern[1] == 'N' ? match->layer : match->expert));
            pattern += 3;
        } else if (strcmp(pattern, "{*}") == 0) {
            s2s_buf_puts(&out, match->rest ? match->rest : "");
            pattern += 3;
        } else if (*pattern == '{') {
            const char *item = pattern + 1;
            for (int i = 0; i < match->item; i++)
                item += strcspn(item, ",}") + 1;
            s2s_buf_add(&out, item, strcspn(item, ",}"));
            pattern = strchr(pattern, '}') + 1;
        } else {
            const size_t len = 1 + strcspn(pattern + 1, ".{");
            s2s_buf_add(&out, pattern, len);
            pattern += len;
        }
    }
    s2s_buf_putc(&out, 0);
    return out.data;
}

const char *ckpt_map_word_hole(const char *pattern)
{
    const char *hole = strchr(pattern, '{');
    while (hole && !((hole[1] == '1' || hole[1] == '2') && hole[2] == '}'))
        hole = strchr(hole + 1, '{');
    return hole;
}

char *ckpt_map_put_words(const char *pattern, const struct ckpt_words *words)
{
    struct s2s_buf out = S2S_BUF_INIT;
    for (const char *hole; (hole = ckpt_map_word_hole(pattern)); pattern = hole + 3) {
        const char *word = words->of[hole[1] - '1'];
        s2s_buf_add(&out, pattern, (size_t)(hole - pattern));
        s2s_buf_printf(&out, "%s%.*s", word, *word ? 0 : 3, hole);
    }
    s2s_buf_printf(&out, "%s", pattern);
    return out.data;
}

/* ---- syntax ---- */

/* Are two items of the list equal? */
static bool has_twins(const char *open, const char *close)
{
    for (const char *a = open + 1; a < close; a += strcspn(a, ",}") + 1)
        for (const char *b = a + strcspn(a, ",}") + 1; b < close; b += strcspn(b, ",}") + 1) {
            size_t len = strcspn(a, ",}");
            if (len == strcspn(b, ",}") && memcmp(a, b, len) == 0)
                return true;
        }
    return false;
}

bool ckpt_map_is_pattern(const char *word)
{
    int lists = 0;
    const char *star = strchr(word, '*');
    if (strchr(word, '?') || (star && !(ckpt_map_is_open(word) && star[1] == '}')))
        return false;
    for (const char *at = strpbrk(word, "{}"); at; at = strpbrk(at, "{}")) {
        const char *close = at + 1 + strcspn(at + 1, "{}");
        size_t len = (size_t)(close - at - 1);
        if (*at != '{' || *close != '}' || len == 0)
            return false;
        int items = 1;
        for (const char *c = at; c < close; c++)
            items += *c == ',';
        lists += items > 1;
        if (items == 1 && !(len == 1 && (at[1] == 'N' || at[1] == 'E')) &&
            !(len == 1 && at[1] == '*' && !close[1]))
            return false;
        if (items > CKPT_MAP_MAX_ITEMS || has_twins(at, close))
            return false;
        at = close + 1;
    }
    return lists <= 1;
}

bool ckpt_map_is_shape(const char *word)
{
    size_t len = strlen(word);
    bool wanted = true; /* a letter, a number, or, of a scalar, nothing */
    if (len < 2 || word[0] != '[' || word[len - 1] != ']')
        return false;
    for (const char *at = word + 1; at < word + len - 1; at++) {
        const size_t digits = strspn(at, "0123456789");
        if (strchr("|,+", *at)) {
            if (wanted && *at != '|')
                return false;
            wanted = true;
        } else if (!wanted || digits > 9 ||
                   !(digits || isalpha((unsigned char)*at) || *at == '*')) {
            return false;
        } else {
            at += digits ? digits - 1 : 0;
            wanted = false;
        }
    }
    return !wanted || strpbrk(word, ",+") == NULL;
}

bool ckpt_map_shape_fits(const struct ckpt_rule *rule)
{
    const int items = ckpt_map_items(rule->hf);
    int shapes = 1;
    for (const char *at = rule->shape; at && (at = strchr(at, '|')); at++)
        shapes++;
    return shapes == 1 || shapes == items;
}

bool ckpt_map_is_prefix(const char *word)
{
    return ckpt_map_is_pattern(word) && ckpt_map_items(word) == 0 && !ckpt_map_is_open(word);
}

bool ckpt_map_lists_fit(const struct ckpt_rule *rule)
{
    int m_items = ckpt_map_items(rule->megatron), h_items = ckpt_map_items(rule->hf);
    bool m_open = ckpt_map_is_open(rule->megatron), h_open = ckpt_map_is_open(rule->hf);
    if (m_open != h_open || (m_open && rule->transform != CKPT_MAP_COPY))
        return false;
    switch (rule->transform) {
    case CKPT_MAP_COPY:
        return m_items == h_items;
    case CKPT_MAP_QKV:
        return m_items == 0 && (h_items == 3 || h_items == 0);
    case CKPT_MAP_SPLIT:
        return m_items == 0 && h_items > 1;
    case CKPT_MAP_CONCAT:
        return m_items > 1 && h_items == 0;
    case CKPT_MAP_EXPERTS:
        return m_items == 0 && strstr(rule->hf, "{E}");
    case CKPT_MAP_AGAIN:
        return !strchr(rule->megatron, '{') && !strchr(rule->hf, '{');
    default:
        return m_items == 0 && h_items == 0;
    }
}

const char *ckpt_map_lost_number(const struct ckpt_rule *rule)
{
    static const char *const numbers[] = {"{N}", "{E}"};
    for (size_t i = 0; i < 2; i++) {
        bool m = strstr(rule->megatron, numbers[i]), h = strstr(rule->hf, numbers[i]);
        if (m != h && !(i == 1 && h && rule->transform == CKPT_MAP_EXPERTS))
            return numbers[i];
    }
    return NULL;
}

/* ---- index of rules by name ---- */

/* There are some sixty rules and up to a hundred thousand names, so only rules whose pattern ends
 * like the name are tried. */

/* The last two dot-separated words of a name. */
static const char *last_words(const char *name)
{
    size_t len = strlen(name);
    int dots = 0;
    while (len > 0 && (name[len - 1] != '.' || ++dots < 2))
        len--;
    return name + len;
}

/* Never 0, which stands for any end. */
static uint32_t hash_of(const char *end)
{
    const uint32_t hash = (uint32_t)s2s_xxh3_64(end, strlen(end));
    return hash ? hash : 1;
}

static uint32_t hash_of_filled(const char *pattern, int item, int64_t number)
{
    const struct ckpt_match at = {.layer = number, .expert = number, .item = item};
    char *name = ckpt_map_fill(pattern, &at);
    const uint32_t hash = hash_of(last_words(name));
    free(name);
    return hash;
}

/* Adds a key for each item of the pattern's list; a pattern that ends in a number matches any end.
 */
static void add_pattern(struct ckpt_map_index *index, const char *pattern, size_t rule)
{
    for (int item = 0; item < ckpt_map_names(pattern); item++) {
        const uint32_t hash = hash_of_filled(pattern, item, 0);
        const bool any = ckpt_map_is_open(pattern) || hash != hash_of_filled(pattern, item, 1);
        s2s_grow(&index->keys, index->n, &index->cap, sizeof *index->keys);
        index->keys[index->n++] = (struct ckpt_map_key){any ? 0 : hash, (uint16_t)rule};
    }
}

static int by_hash(const void *a, const void *b)
{
    const struct ckpt_map_key *x = a, *y = b;
    const int order = (x->hash > y->hash) - (x->hash < y->hash);
    return order ? order : (int)x->rule - (int)y->rule;
}

/* Index of the first key with this hash, or where it would be inserted. */
static size_t find_hash(const struct ckpt_map_index *index, uint32_t hash)
{
    size_t begin = 0, end = index->n;
    while (begin < end) {
        const size_t mid = begin + (end - begin) / 2;
        if (index->keys[mid].hash < hash)
            begin = mid + 1;
        else
            end = mid;
    }
    return begin;
}

void ckpt_map_index_begin(struct ckpt_map_index *index, const struct ckpt_map *map, bool hf)
{
    *index = (struct ckpt_map_index){.n = 0};
    for (size_t i = 0; i < map->n_rules; i++)
        add_pattern(index, hf ? map->rules[i].hf : map->rules[i].megatron, i);
    s2s_sort(index->keys, index->n, sizeof *index->keys, by_hash);
}

void ckpt_map_index_end(struct ckpt_map_index *index)
{
    free(index->keys);
}

struct ckpt_map_tries ckpt_map_tries(const struct ckpt_map_index *index, const char *name)
{
    const uint32_t hash = hash_of(last_words(name));
    return (struct ckpt_map_tries){index, hash, {0, find_hash(index, hash)}};
}

bool ckpt_map_next_try(struct ckpt_map_tries *tries, size_t *rule)
{
    const struct ckpt_map_key *keys = tries->index->keys, *next = NULL;
    const uint32_t hashes[2] = {0, tries->hash};
    for (int i = 0; i < 2; i++) {
        const size_t at = tries->at[i];
        if (at < tries->index->n && keys[at].hash == hashes[i] &&
            (!next || keys[at].rule < next->rule))
            next = &keys[at];
    }
    if (!next)
        return false;
    *rule = next->rule;
    /* several items of one list may end alike */
    for (int i = 0; i < 2; i++)
        while (tries->at[i] < tries->index->n && keys[tries->at[i]].hash == hashes[i] &&
               keys[tries->at[i]].rule == *rule)
            tries->at[i]++;
    return true;
}
