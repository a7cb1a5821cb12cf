/*
 * An index of the rules that may match a name. There are some sixty rules and up to a hundred
 * thousand names, so only rules whose pattern ends like the name are tried.
 */
#include "lib/base/base.h"
#include "lib/ckpt/map/map_internal.h"
#include "lib/io/digest.h"

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
