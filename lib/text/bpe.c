/* Merges the bytes of a word to tokens, by byte-pair encoding. */
#include "lib/text/text_internal.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

/*
 * Byte pair encoding: a word is its bytes' tokens; as long as two neighbours form a merge, the one
 * of lowest rank (leftmost among equals) is done. A queue of candidate merges makes that n log n;
 * an outdated candidate is known by what it would make, as in HF tokenizers' Word::merge_all. Real
 * text repeats its words, so each thread keeps the ids of those it has seen.
 */

struct word {
    uint64_t hash; /* 0: free */
    size_t offset; /* of its bytes in text_bpe.bytes */
    uint32_t len;
    int32_t id;
};

struct merge {
    uint64_t pair; /* left << 32 | right; EMPTY: free */
    int32_t rank, merged;
};

static const uint64_t EMPTY = UINT64_MAX;

struct text_bpe {
    bool ignore_merges, fuse_unk;
    int32_t unk;           /* for bytes without a token; -1: they vanish */
    int32_t byte_ids[256]; /* -1: none */
    struct word *words;    /* open addressing, n_slots a power of two, at most half full */
    size_t n_words, n_word_slots;
    struct s2s_buf bytes;
    struct merge *merges;
    size_t n_merges, n_merge_slots;
};

static uint64_t hash_of(const char *bytes, size_t len)
{
    uint64_t hash = XXH3_64bits(bytes, len);
    return hash ? hash : 1;
}

static size_t pair_slot(uint64_t pair, size_t n_slots)
{
    return (size_t)((pair * UINT64_C(0x9e3779b97f4a7c15)) >> 20) & (n_slots - 1);
}

struct text_bpe *text_bpe_new(bool ignore_merges, int32_t unk, bool fuse_unk)
{
    struct text_bpe *bpe = s2s_xcalloc(1, sizeof *bpe);
    bpe->ignore_merges = ignore_merges;
    bpe->fuse_unk = fuse_unk;
    bpe->unk = unk;
    memset(bpe->byte_ids, 0xff, sizeof bpe->byte_ids);
    bpe->n_word_slots = bpe->n_merge_slots = 1024;
    bpe->words = s2s_xcalloc(bpe->n_word_slots, sizeof *bpe->words);
    bpe->merges = s2s_xcalloc(bpe->n_merge_slots, sizeof *bpe->merges);
    for (size_t i = 0; i < bpe->n_merge_slots; i++)
        bpe->merges[i].pair = EMPTY;
    return bpe;
}

void text_bpe_free(struct text_bpe *bpe)
{
    if (!bpe)
        return;
    free(bpe->words);
    free(bpe->merges);
    s2s_buf_release(&bpe->bytes);
    free(bpe);
}

/* The slot of a word, or the free one where it belongs. */
static struct word *word_slot(const struct text_bpe *bpe, uint64_t hash, const char *bytes,
                              size_t len)
{
    size_t i = (size_t)hash & (bpe->n_word_slots - 1);
    for (;; i = (i + 1) & (bpe->n_word_slots - 1)) {
        struct word *word = &bpe->words[i];
        if (word->hash == 0 || (word->hash == hash && word->len == len &&
                                !memcmp(bpe->bytes.data + word->offset, bytes, len)))
            return word;
    }
}

static void grow_words(struct text_bpe *bpe)
{
    struct word *old = bpe->words;
    size_t n_old = bpe->n_word_slots;
    bpe->n_word_slots *= 2;
    bpe->words = s2s_xcalloc(bpe->n_word_slots, sizeof *bpe->words);
    for (size_t i = 0; i < n_old; i++)
        if (old[i].hash)
            *word_slot(bpe, old[i].hash, bpe->bytes.data + old[i].offset, old[i].len) = old[i];
    free(old);
}

void text_bpe_add_word(struct text_bpe *bpe, const char *bytes, size_t len, int32_t id)
{
    if (len == 0)
        return;
    if (++bpe->n_words * 2 > bpe->n_word_slots)
        grow_words(bpe);
    uint64_t hash = hash_of(bytes, len);
    struct word *word = word_slot(bpe, hash, bytes, len);
    *word = (struct word){hash, bpe->bytes.len, (uint32_t)len, id};
    s2s_buf_add(&bpe->bytes, bytes, len);
    if (len == 1)
        bpe->byte_ids[(unsigned char)bytes[0]] = id;
}

static struct merge *merge_slot(const struct text_bpe *bpe, uint64_t pair)
{
    size_t i = pair_slot(pair, bpe->n_merge_slots);
    while (bpe->merges[i].pair != EMPTY && bpe->merges[i].pair != pair)
        i = (i + 1) & (bpe->n_merge_slots - 1);
    return &bpe->merges[i];
}

static void grow_merges(struct text_bpe *bpe)
{
    struct merge *old = bpe->merges;
    size_t n_old = bpe->n_merge_slots;
    bpe->n_merge_slots *= 2;
    bpe->merges = s2s_xcalloc(bpe->n_merge_slots, sizeof *bpe->merges);
    for (size_t i = 0; i < bpe->n_merge_slots; i++)
        bpe->merges[i].pair = EMPTY;
    for (size_t i = 0; i < n_old; i++)
        if (old[i].pair != EMPTY)
            *merge_slot(bpe, old[i].pair) = old[i];
    free(old);
}

static uint64_t pair_of(int32_t left, int32_t right)
{
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

void text_bpe_add_merge(struct text_bpe *bpe, int32_t left, int32_t right, int32_t rank,
                        int32_t merged)
{
    if (++bpe->n_merges * 2 > bpe->n_merge_slots)
        grow_merges(bpe);
    /* a pair that comes twice counts with its last rank, as in the library's map */
    *merge_slot(bpe, pair_of(left, right)) = (struct merge){pair_of(left, right), rank, merged};
}

/* ---- one thread's memory ---- */

struct symbol {
    int32_t id, previous, next; /* neighbours, -1 at the ends; id -2: merged away */
};

struct candidate {
    int32_t rank, at, merged;
};

enum { CACHE_SLOTS = 1 << 15, CACHE_WORD_MAX = 256, CACHE_ARENA_MAX = 8 << 20 };

struct cached {
    uint64_t hash; /* 0: free */
    uint32_t offset;
    uint16_t len, n_ids; /* in the arena: n_ids ids, then len bytes */
};

struct text_bpe_work {
    struct symbol *symbols;
    size_t symbols_cap;
    struct candidate *queue; /* a heap, least rank, then least place first */
    size_t n_queue, queue_cap;
    struct cached *cache;
    size_t n_cached;
    struct s2s_buf arena;
};

struct text_bpe_work *text_bpe_work_new(void)
{
    struct text_bpe_work *work = s2s_xcalloc(1, sizeof *work);
    work->cache = s2s_xcalloc(CACHE_SLOTS, sizeof *work->cache);
    return work;
}

void text_bpe_work_free(struct text_bpe_work *work)
{
    if (!work)
        return;
    free(work->symbols);
    free(work->queue);
    free(work->cache);
    s2s_buf_release(&work->arena);
    free(work);
}

static bool comes_first(struct candidate a, struct candidate b)
{
    return a.rank != b.rank ? a.rank < b.rank : a.at < b.at;
}

static void queue_push(struct text_bpe_work *work, struct candidate candidate)
{
    s2s_grow(&work->queue, work->n_queue, &work->queue_cap, sizeof *work->queue);
    size_t i = work->n_queue++;
    for (; i > 0 && comes_first(candidate, work->queue[(i - 1) / 2]); i = (i - 1) / 2)
        work->queue[i] = work->queue[(i - 1) / 2];
    work->queue[i] = candidate;
}

static struct candidate queue_pop(struct text_bpe_work *work)
{
    struct candidate first = work->queue[0], last = work->queue[--work->n_queue];
    size_t i = 0, n = work->n_queue;
    for (size_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && comes_first(work->queue[child + 1], work->queue[child]))
            child++;
        if (!comes_first(work->queue[child], last))
            break;
        work->queue[i] = work->queue[child];
    }
    work->queue[i] = last;
    return first;
}

static void offer(const struct text_bpe *bpe, struct text_bpe_work *work, int32_t left,
                  int32_t right)
{
    if (left < 0 || right < 0)
        return;
    const struct merge *merge =
        merge_slot(bpe, pair_of(work->symbols[left].id, work->symbols[right].id));
    if (merge->pair != EMPTY)
        queue_push(work, (struct candidate){merge->rank, left, merge->merged});
}

/* The word's bytes as symbols; returns their number. */
static int32_t load_symbols(const struct text_bpe *bpe, struct text_bpe_work *work,
                            const char *word, size_t len)
{
    int32_t n = 0;
    bool after_unk = false;
    if (len > work->symbols_cap) {
        work->symbols_cap = len < 128 ? 128 : 2 * len;
        work->symbols = s2s_xrealloc(work->symbols, work->symbols_cap, sizeof *work->symbols);
    }
    for (size_t i = 0; i < len; i++) {
        int32_t id = bpe->byte_ids[(unsigned char)word[i]];
        bool unk = id < 0;
        if (unk && (bpe->unk < 0 || (bpe->fuse_unk && after_unk)))
            continue;
        after_unk = unk;
        work->symbols[n] = (struct symbol){unk ? bpe->unk : id, n - 1, n + 1};
        n++;
    }
    if (n > 0)
        work->symbols[n - 1].next = -1;
    return n;
}

static void merge_word(const struct text_bpe *bpe, struct text_bpe_work *work, struct s2s_ids *ids,
                       const char *word, size_t len)
{
    int32_t n = load_symbols(bpe, work, word, len);
    struct symbol *symbols = work->symbols;
    work->n_queue = 0;
    for (int32_t i = 0; i + 1 < n; i++)
        offer(bpe, work, i, i + 1);
    while (work->n_queue > 0) {
        struct candidate top = queue_pop(work);
        struct symbol *left = &symbols[top.at];
        if (left->id == -2 || left->next < 0)
            continue;
        struct symbol *right = &symbols[left->next];
        const struct merge *merge = merge_slot(bpe, pair_of(left->id, right->id));
        if (merge->pair == EMPTY || merge->merged != top.merged)
            continue;
        left->id = top.merged;
        left->next = right->next;
        right->id = -2;
        if (left->next >= 0)
            symbols[left->next].previous = top.at;
        offer(bpe, work, left->previous, top.at);
        offer(bpe, work, top.at, left->next);
    }
    for (int32_t i = n > 0 ? 0 : -1; i >= 0; i = symbols[i].next)
        s2s_ids_add(ids, symbols[i].id);
}

static void add_ids(struct s2s_ids *ids, const int32_t *new_ids, size_t n)
{
    for (size_t i = 0; i < n; i++)
        s2s_ids_add(ids, new_ids[i]);
}

static void remember(struct text_bpe_work *work, struct cached *slot, uint64_t hash,
                     const char *word, size_t len, const int32_t *ids, size_t n_ids)
{
    static const char zero[4] = "";
    *slot = (struct cached){hash, (uint32_t)work->arena.len, (uint16_t)len, (uint16_t)n_ids};
    s2s_buf_add(&work->arena, ids, n_ids * sizeof *ids);
    s2s_buf_add(&work->arena, word, len);
    s2s_buf_add(&work->arena, zero, (4 - len % 4) % 4); /* the next ids are aligned */
    work->n_cached++;
}

void text_bpe_encode(const struct text_bpe *bpe, struct text_bpe_work *work, struct s2s_ids *ids,
                     const char *word, size_t len)
{
    if (len == 0)
        return;
    uint64_t hash = hash_of(word, len);
    if (bpe->ignore_merges) {
        const struct word *known = word_slot(bpe, hash, word, len);
        if (known->hash) {
            s2s_ids_add(ids, known->id);
            return;
        }
    }
    if (len > CACHE_WORD_MAX) {
        merge_word(bpe, work, ids, word, len);
        return;
    }
    if (work->n_cached > CACHE_SLOTS / 2 || work->arena.len > CACHE_ARENA_MAX) {
        memset(work->cache, 0, CACHE_SLOTS * sizeof *work->cache);
        s2s_buf_clear(&work->arena);
        work->n_cached = 0;
    }
    size_t i = (size_t)hash % CACHE_SLOTS;
    for (;; i = (i + 1) % CACHE_SLOTS) {
        const struct cached *slot = &work->cache[i];
        if (!slot->hash)
            break;
        const char *at = work->arena.data + slot->offset;
        if (slot->hash == hash && slot->len == len &&
            !memcmp(at + slot->n_ids * sizeof(int32_t), word, len)) {
            add_ids(ids, (const int32_t *)(const void *)at, slot->n_ids);
            return;
        }
    }
    size_t first = ids->len;
    merge_word(bpe, work, ids, word, len);
    remember(work, &work->cache[i], hash, word, len, ids->len > first ? ids->data + first : NULL,
             ids->len - first);
}
