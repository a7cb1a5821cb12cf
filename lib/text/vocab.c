/* Tables of strings: contents to ids, and a trie over all of a vocabulary. */
#include "lib/text/text_internal.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

/* ---- strings to ids ---- */

struct entry {
    uint64_t hash; /* 0: free */
    size_t offset; /* of its bytes in text_vocab.bytes */
    uint32_t len;
    int32_t id;
};

struct text_vocab {
    struct entry *entries; /* open addressing, n_slots a power of two, at most half full */
    size_t n, n_slots;
    struct s2s_buf bytes;
};

static uint64_t hash_of(const char *bytes, size_t len)
{
    uint64_t hash = XXH3_64bits(bytes, len);
    return hash ? hash : 1;
}

struct text_vocab *text_vocab_new(void)
{
    struct text_vocab *vocab = s2s_xcalloc(1, sizeof *vocab);
    vocab->n_slots = 1024;
    vocab->entries = s2s_xcalloc(vocab->n_slots, sizeof *vocab->entries);
    s2s_buf_puts(&vocab->bytes, "");
    return vocab;
}

void text_vocab_free(struct text_vocab *vocab)
{
    if (!vocab)
        return;
    free(vocab->entries);
    s2s_buf_release(&vocab->bytes);
    free(vocab);
}

/* The slot of a string, or the free one where it belongs. */
static struct entry *slot_of(const struct text_vocab *vocab, uint64_t hash, const char *bytes,
                             size_t len)
{
    size_t i = (size_t)hash & (vocab->n_slots - 1);
    for (;; i = (i + 1) & (vocab->n_slots - 1)) {
        struct entry *entry = &vocab->entries[i];
        if (entry->hash == 0 || (entry->hash == hash && entry->len == len &&
                                 !memcmp(vocab->bytes.data + entry->offset, bytes, len)))
            return entry;
    }
}

static void grow(struct text_vocab *vocab)
{
    struct entry *old = vocab->entries;
    size_t n_old = vocab->n_slots;
    vocab->n_slots *= 2;
    vocab->entries = s2s_xcalloc(vocab->n_slots, sizeof *vocab->entries);
    for (size_t i = 0; i < n_old; i++)
        if (old[i].hash)
            *slot_of(vocab, old[i].hash, vocab->bytes.data + old[i].offset, old[i].len) = old[i];
    free(old);
}

void text_vocab_set(struct text_vocab *vocab, const char *key, size_t len, int32_t id)
{
    uint64_t hash = hash_of(key, len);
    struct entry *entry = slot_of(vocab, hash, key, len);
    if (entry->hash) {
        entry->id = id;
        return;
    }
    if (++vocab->n * 2 > vocab->n_slots) {
        grow(vocab);
        entry = slot_of(vocab, hash, key, len);
    }
    *entry = (struct entry){hash, vocab->bytes.len, (uint32_t)len, id};
    s2s_buf_add(&vocab->bytes, key, len);
}

int32_t text_vocab_get(const struct text_vocab *vocab, const char *key, size_t len)
{
    const struct entry *entry = slot_of(vocab, hash_of(key, len), key, len);
    return entry->hash ? entry->id : -1;
}

/* ---- a trie of known strings ---- */

/* Children of a node stand in a row, sorted by their byte. */
struct node {
    int32_t first, value;
    uint16_t n;
    unsigned char byte;
};

struct text_lexicon {
    struct node *nodes; /* 0 is the root */
    size_t n_nodes, cap;
    int32_t of_root[256]; /* its children by byte, or -1 */
};

static int by_key(const void *a, const void *b)
{
    const struct text_entry *left = a, *right = b;
    size_t shorter = left->len < right->len ? left->len : right->len;
    int order = shorter ? memcmp(left->key, right->key, shorter) : 0;
    if (order == 0)
        order = left->len != right->len ? (left->len < right->len ? -1 : 1) : 0;
    /* equal keys keep their order, which their place among the entries tells */
    return order ? order : (left->value > right->value) - (left->value < right->value);
}

/* Entries [begin, end) share the first `depth` bytes, which are those of a node. */
struct stretch {
    size_t begin, end, depth;
};

static int32_t add_node(struct text_lexicon *lexicon, struct stretch **stretches,
                        size_t *stretches_cap, struct stretch stretch, unsigned char byte)
{
    size_t at = lexicon->n_nodes++;
    s2s_grow(&lexicon->nodes, at, &lexicon->cap, sizeof *lexicon->nodes);
    s2s_grow(stretches, at, stretches_cap, sizeof **stretches);
    lexicon->nodes[at] = (struct node){-1, -1, 0, byte};
    (*stretches)[at] = stretch;
    return (int32_t)at;
}

/* Gives a node its value and its children. */
static void add_children(struct text_lexicon *lexicon, struct stretch **stretches,
                         size_t *stretches_cap, int32_t at, const struct text_entry *entries)
{
    struct stretch own = (*stretches)[at];
    size_t i = own.begin, next;
    for (; i < own.end && entries[i].len == own.depth; i++)
        lexicon->nodes[at].value = own.depth > 0 ? entries[i].value : -1;
    for (; i < own.end; i = next) {
        unsigned char byte = (unsigned char)entries[i].key[own.depth];
        for (next = i; next < own.end && (unsigned char)entries[next].key[own.depth] == byte;)
            next++;
        int32_t child = add_node(lexicon, stretches, stretches_cap,
                                 (struct stretch){i, next, own.depth + 1}, byte);
        if (lexicon->nodes[at].n++ == 0)
            lexicon->nodes[at].first = child;
    }
}

struct text_lexicon *text_lexicon_new(struct text_entry *entries, size_t n)
{
    struct text_lexicon *lexicon = s2s_xcalloc(1, sizeof *lexicon);
    struct stretch *stretches = NULL;
    size_t stretches_cap = 0;
    if (n > 0)
        qsort(entries, n, sizeof *entries, by_key);
    add_node(lexicon, &stretches, &stretches_cap, (struct stretch){0, n, 0}, 0);
    for (size_t at = 0; at < lexicon->n_nodes; at++)
        add_children(lexicon, &stretches, &stretches_cap, (int32_t)at, entries);
    free(stretches);
    memset(lexicon->of_root, 0xff, sizeof lexicon->of_root);
    const struct node *root = &lexicon->nodes[0];
    for (int32_t i = 0; i < root->n; i++)
        lexicon->of_root[lexicon->nodes[root->first + i].byte] = root->first + i;
    return lexicon;
}

void text_lexicon_free(struct text_lexicon *lexicon)
{
    if (!lexicon)
        return;
    free(lexicon->nodes);
    free(lexicon);
}

int32_t text_lexicon_step(const struct text_lexicon *lexicon, int32_t at, unsigned char byte,
                          int32_t *value)
{
    int32_t child = -1;
    if (at == 0) {
        child = lexicon->of_root[byte];
    } else {
        const struct node *node = &lexicon->nodes[at];
        int32_t low = node->first, high = node->first + node->n;
        while (low < high) {
            int32_t middle = low + (high - low) / 2;
            if (lexicon->nodes[middle].byte < byte)
                low = middle + 1;
            else
                high = middle;
        }
        if (low < node->first + node->n && lexicon->nodes[low].byte == byte)
            child = low;
    }
    if (child >= 0)
        *value = lexicon->nodes[child].value;
    return child;
}
