/* Merges the characters or bytes of a word to tokens, by byte-pair encoding. */
#include "lib/text/text_internal.h"

/*
 * Byte pair encoding: a word is its characters' tokens (or, where ByteLevel made it, its bytes');
 * as long as two neighbours form a merge, the one of lowest rank (leftmost among equals) is done. A
 * queue of candidate merges makes that n log n; an outdated candidate is known by what it would
 * make, as in HF tokenizers' Word::merge_all.
 *
 * Where no pre-tokenizer cuts, as with sentencepiece's models, a word is a whole text. A border of
 * two characters that no merge has in its middle is never crossed, so the parts between such
 * borders are merged alone: short, and known by heart after a while.
 */

struct merge {
    uint64_t pair; /* left << 32 | right; EMPTY: free */
    int32_t rank, merged;
};

static const uint64_t EMPTY = UINT64_MAX;
enum { N_LOW = 0x10000, PART_MIN = 24 };

struct text_bpe {
    struct text_bpe_options options;
    const struct text_vocab *vocab;
    int32_t unk;           /* for what has no token; -1: it vanishes; -2: it is an error */
    int32_t byte_ids[256]; /* of bytes, or of the tokens <0x00>..<0xFF>; -1: none */
    int32_t *low_ids;      /* [N_LOW] of characters below U+10000 */
    struct merge *merges;
    size_t n_merges, n_merge_slots;
    uint64_t *borders; /* left << 32 | right, as merges */
    size_t n_borders, n_border_slots;
};

static size_t pair_slot(uint64_t pair, size_t n_slots)
{
    return (size_t)((pair * UINT64_C(0x9e3779b97f4a7c15)) >> 20) & (n_slots - 1);
}

static uint64_t pair_of(int32_t left, int32_t right)
{
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

static void find_byte_tokens(struct text_bpe *bpe)
{
    for (unsigned byte = 0; byte < 256; byte++) {
        char name[8] = {(char)byte};
        int len = bpe->options.is_bytes ? 1 : snprintf(name, sizeof name, "<0x%02X>", byte);
        bpe->byte_ids[byte] = text_vocab_get(bpe->vocab, name, (size_t)len);
    }
}

/* The token of one character, -1 when there is none. */
static int32_t character_id(const struct text_bpe *bpe, uint32_t cp, const char *bytes, size_t len)
{
    return cp < N_LOW ? bpe->low_ids[cp] : text_vocab_get(bpe->vocab, bytes, len);
}

static void find_character_tokens(struct text_bpe *bpe)
{
    struct s2s_buf bytes = S2S_BUF_INIT;
    bpe->low_ids = s2s_xmalloc(N_LOW * sizeof *bpe->low_ids);
    for (uint32_t cp = 0; cp < N_LOW; cp++) {
        s2s_buf_clear(&bytes);
        if (cp < 0xd800 || cp > 0xdfff)
            text_utf8_add(&bytes, cp);
        bpe->low_ids[cp] = bytes.len ? text_vocab_get(bpe->vocab, bytes.data, bytes.len) : -1;
    }
    s2s_buf_release(&bytes);
}

struct text_bpe *text_bpe_new(const struct text_bpe_options *options,
                              const struct text_vocab *vocab, int32_t unk)
{
    struct text_bpe *bpe = s2s_xcalloc(1, sizeof *bpe);
    bpe->options = *options;
    bpe->vocab = vocab;
    bpe->unk = unk;
    bpe->n_merge_slots = bpe->n_border_slots = 1024;
    bpe->merges = s2s_xcalloc(bpe->n_merge_slots, sizeof *bpe->merges);
    for (size_t i = 0; i < bpe->n_merge_slots; i++)
        bpe->merges[i].pair = EMPTY;
    bpe->borders = s2s_xmalloc(bpe->n_border_slots * sizeof *bpe->borders);
    memset(bpe->borders, 0xff, bpe->n_border_slots * sizeof *bpe->borders);
    find_byte_tokens(bpe);
    if (!options->is_bytes)
        find_character_tokens(bpe);
    return bpe;
}

void text_bpe_free(struct text_bpe *bpe)
{
    if (!bpe)
        return;
    free(bpe->options.prefix);
    free(bpe->options.suffix);
    free(bpe->low_ids);
    free(bpe->merges);
    free(bpe->borders);
    free(bpe);
}

bool text_bpe_ignores_merges(const struct text_bpe *bpe)
{
    return bpe->options.ignore_merges;
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

void text_bpe_add_merge(struct text_bpe *bpe, int32_t left, int32_t right, int32_t rank,
                        int32_t merged)
{
    if (++bpe->n_merges * 2 > bpe->n_merge_slots)
        grow_merges(bpe);
    /* a pair that comes twice counts with its last rank, as in the library's map */
    *merge_slot(bpe, pair_of(left, right)) = (struct merge){pair_of(left, right), rank, merged};
}

static uint64_t *border_slot(const struct text_bpe *bpe, uint64_t pair)
{
    size_t i = pair_slot(pair, bpe->n_border_slots);
    while (bpe->borders[i] != EMPTY && bpe->borders[i] != pair)
        i = (i + 1) & (bpe->n_border_slots - 1);
    return &bpe->borders[i];
}

void text_bpe_add_border(struct text_bpe *bpe, uint32_t left, uint32_t right)
{
    uint64_t pair = (uint64_t)left << 32 | right;
    if (*border_slot(bpe, pair) == pair)
        return;
    if (++bpe->n_borders * 2 > bpe->n_border_slots) {
        uint64_t *old = bpe->borders;
        size_t n_old = bpe->n_border_slots;
        bpe->n_border_slots *= 2;
        bpe->borders = s2s_xmalloc(bpe->n_border_slots * sizeof *bpe->borders);
        memset(bpe->borders, 0xff, bpe->n_border_slots * sizeof *bpe->borders);
        for (size_t i = 0; i < n_old; i++)
            if (old[i] != EMPTY)
                *border_slot(bpe, old[i]) = old[i];
        free(old);
    }
    *border_slot(bpe, pair) = pair;
}

size_t text_bpe_part(const struct text_bpe *bpe, const char *piece, size_t len, size_t begin)
{
    if (len - begin < PART_MIN || bpe->options.is_bytes || bpe->options.prefix ||
        bpe->options.suffix)
        return len;
    uint32_t before = 0;
    bool is_token = false; /* whether the character before is one */
    for (size_t i = begin, n; i < len; i += n) {
        uint32_t cp = text_utf8_get(piece + i, &n);
        bool was_token = is_token;
        is_token = character_id(bpe, cp, piece + i, n) >= 0;
        if (was_token && is_token && *border_slot(bpe, (uint64_t)before << 32 | cp) == EMPTY)
            return i;
        before = cp;
    }
    return len;
}

/* ---- one thread's memory ---- */

struct symbol {
    int32_t id, previous, next; /* neighbours, -1 at the ends; id -2: merged away */
    int32_t len;                /* bytes of the word */
};

struct candidate {
    int32_t rank, at, merged;
};

struct text_bpe_work {
    struct symbol *symbols;
    size_t n_symbols, symbols_cap;
    struct candidate *queue; /* a heap, least rank, then least place first */
    size_t n_queue, queue_cap;
    struct s2s_buf name; /* of a character with prefix and suffix */
};

struct text_bpe_work *text_bpe_work_new(void)
{
    return s2s_xcalloc(1, sizeof(struct text_bpe_work));
}

void text_bpe_work_free(struct text_bpe_work *work)
{
    if (!work)
        return;
    free(work->symbols);
    free(work->queue);
    s2s_buf_release(&work->name);
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

static void add_symbol(struct text_bpe_work *work, int32_t id, size_t len)
{
    int32_t n = (int32_t)work->n_symbols++;
    s2s_grow(&work->symbols, (size_t)n, &work->symbols_cap, sizeof *work->symbols);
    work->symbols[n] = (struct symbol){id, n - 1, n + 1, (int32_t)len};
}

/* The tokens of a character's bytes, where all have one. */
static bool add_bytes(const struct text_bpe *bpe, struct text_bpe_work *work, const char *bytes,
                      size_t len)
{
    if (!bpe->options.byte_fallback)
        return false;
    for (size_t i = 0; i < len; i++)
        if (bpe->byte_ids[(unsigned char)bytes[i]] < 0)
            return false;
    for (size_t i = 0; i < len; i++)
        add_symbol(work, bpe->byte_ids[(unsigned char)bytes[i]], 1);
    return true;
}

/* The token of the character at word[i], n bytes; *name is what it is called, with what belongs to
 * its place. */
static int32_t placed_id(const struct text_bpe *bpe, struct text_bpe_work *work, const char *word,
                         size_t len, size_t i, size_t n, struct text_span *name)
{
    const char *prefix = i > 0 ? bpe->options.prefix : NULL;
    const char *suffix = i + n == len ? bpe->options.suffix : NULL;
    *name = (struct text_span){0, 0};
    if (!prefix && !suffix) {
        size_t n_bytes;
        return character_id(bpe, text_utf8_get(word + i, &n_bytes), word + i, n);
    }
    s2s_buf_clear(&work->name);
    s2s_buf_puts(&work->name, prefix ? prefix : "");
    s2s_buf_add(&work->name, word + i, n);
    s2s_buf_puts(&work->name, suffix ? suffix : "");
    name->end = work->name.len;
    return text_vocab_get(bpe->vocab, work->name.data, work->name.len);
}

/* The word's characters or bytes as symbols. An unknown one is written where the next known one
 * comes, so bytes of a later one may come before it, as in the library. */
static int load_symbols(const struct text_bpe *bpe, struct text_bpe_work *work, const char *word,
                        size_t len)
{
    size_t pending = 0; /* bytes */
    work->n_symbols = 0;
    for (size_t i = 0, n = 1; i < len; i += n) {
        struct text_span name = {0, 0};
        int32_t id;
        if (bpe->options.is_bytes) {
            id = bpe->byte_ids[(unsigned char)word[i]];
        } else {
            text_utf8_get(word + i, &n);
            id = placed_id(bpe, work, word, len, i, n, &name);
        }
        if (id >= 0) {
            if (pending)
                add_symbol(work, bpe->unk, pending);
            pending = 0;
            add_symbol(work, id, n);
            continue;
        }
        if (name.end > 0 ? add_bytes(bpe, work, work->name.data, name.end)
                         : add_bytes(bpe, work, word + i, n))
            continue;
        if (bpe->unk == -2)
            return -1;
        if (bpe->unk < 0)
            continue;
        if (pending && !bpe->options.fuse_unk) {
            add_symbol(work, bpe->unk, pending);
            pending = 0;
        }
        pending += n;
    }
    if (pending)
        add_symbol(work, bpe->unk, pending);
    if (work->n_symbols > 0)
        work->symbols[work->n_symbols - 1].next = -1;
    return 0;
}

static void merge_symbols(const struct text_bpe *bpe, struct text_bpe_work *work)
{
    struct symbol *symbols = work->symbols;
    work->n_queue = 0;
    for (int32_t i = 0; i + 1 < (int32_t)work->n_symbols; i++)
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
        left->len += right->len;
        left->next = right->next;
        right->id = -2;
        if (left->next >= 0)
            symbols[left->next].previous = top.at;
        offer(bpe, work, left->previous, top.at);
        offer(bpe, work, top.at, left->next);
    }
}

int text_bpe_merge(const struct text_bpe *bpe, struct text_bpe_work *work, struct s2s_ids *ids,
                   struct s2s_ids *lens, const char *part, size_t len)
{
    if (load_symbols(bpe, work, part, len) < 0)
        return -1;
    merge_symbols(bpe, work);
    for (int32_t i = work->n_symbols > 0 ? 0 : -1; i >= 0; i = work->symbols[i].next) {
        s2s_ids_add(ids, work->symbols[i].id);
        if (lens)
            s2s_ids_add(lens, work->symbols[i].len);
    }
    return 0;
}
