/* Makes ids of the pieces of a text, by the tokenizer's model, and remembers words. */
#include "lib/text/text_internal.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

/* Real text repeats its words, so each thread keeps the ids of those it has seen. */
enum { CACHE_SLOTS = 1 << 15, CACHE_WORD_MAX = 256, CACHE_ARENA_MAX = 8 << 20 };

struct cached {
    uint64_t hash; /* 0: free */
    uint32_t offset;
    uint16_t len, n_ids; /* in the arena: n_ids ids, then len bytes */
};

struct text_model_work {
    struct cached *cache;
    size_t n_cached;
    struct s2s_buf arena;
    struct text_bpe_work *bpe;
    struct text_unigram_work *unigram;
};

struct text_model_work *text_model_work_new(void)
{
    struct text_model_work *work = s2s_xcalloc(1, sizeof *work);
    work->cache = s2s_xcalloc(CACHE_SLOTS, sizeof *work->cache);
    work->bpe = text_bpe_work_new();
    work->unigram = text_unigram_work_new();
    return work;
}

void text_model_work_free(struct text_model_work *work)
{
    if (!work)
        return;
    free(work->cache);
    s2s_buf_release(&work->arena);
    text_bpe_work_free(work->bpe);
    text_unigram_work_free(work->unigram);
    free(work);
}

void text_model_release(struct text_model *model)
{
    text_vocab_free(model->vocab);
    text_bpe_free(model->bpe);
    text_unigram_free(model->unigram);
    text_lexicon_free(model->wordpiece.start);
    text_lexicon_free(model->wordpiece.rest);
    *model = (struct text_model){.unk = -1};
}

/* ---- WordPiece: the longest piece that fits, from the left ---- */

static bool has_more_characters(const char *word, size_t len, size_t most)
{
    size_t n_characters = 0;
    for (size_t i = 0; i < len; i++)
        n_characters += (word[i] & 0xc0) != 0x80;
    return n_characters > most;
}

static int wordpiece_encode(const struct text_model *model, struct s2s_ids *ids,
                            struct s2s_ids *lens, const char *word, size_t len)
{
    const size_t first = ids->len, first_len = lens ? lens->len : 0;
    bool fits = !has_more_characters(word, len, model->wordpiece.max_characters);
    for (size_t begin = 0, end; fits && begin < len; begin = end) {
        const struct text_lexicon *lexicon =
            begin == 0 ? model->wordpiece.start : model->wordpiece.rest;
        int32_t node = 0, value, id = -1;
        end = begin;
        for (size_t i = begin; i < len; i++) {
            node = text_lexicon_step(lexicon, node, (unsigned char)word[i], &value);
            if (node < 0)
                break;
            if (value >= 0) {
                id = value;
                end = i + 1;
            }
        }
        fits = id >= 0;
        if (fits)
            s2s_ids_add(ids, id);
        if (fits && lens)
            s2s_ids_add(lens, (int32_t)(end - begin));
    }
    if (fits)
        return 0;
    ids->len = first;
    if (model->unk < 0)
        return -1;
    s2s_ids_add(ids, model->unk);
    if (lens) {
        lens->len = first_len;
        s2s_ids_add(lens, (int32_t)len);
    }
    return 0;
}

static int wordlevel_encode(const struct text_model *model, struct s2s_ids *ids,
                            struct s2s_ids *lens, const char *word, size_t len)
{
    int32_t id = text_vocab_get(model->vocab, word, len);
    if (id < 0)
        id = model->unk;
    if (id < 0)
        return -1;
    s2s_ids_add(ids, id);
    if (lens)
        s2s_ids_add(lens, (int32_t)len);
    return 0;
}

/* ---- any model ---- */

static int encode_part(const struct text_model *model, struct text_model_work *work,
                       struct s2s_ids *ids, struct s2s_ids *lens, const char *part, size_t len)
{
    switch (model->kind) {
    case TEXT_BPE:
        return text_bpe_merge(model->bpe, work->bpe, ids, lens, part, len);
    case TEXT_UNIGRAM:
        return text_unigram_encode(model->unigram, work->unigram, ids, lens, part, len);
    case TEXT_WORDPIECE:
        return wordpiece_encode(model, ids, lens, part, len);
    default:
        return wordlevel_encode(model, ids, lens, part, len);
    }
}

static void remember(struct text_model_work *work, struct cached *slot, uint64_t hash,
                     const char *word, size_t len, const int32_t *ids, size_t n_ids)
{
    static const char zero[4] = "";
    *slot = (struct cached){hash, (uint32_t)work->arena.len, (uint16_t)len, (uint16_t)n_ids};
    if (n_ids > 0)
        s2s_buf_add(&work->arena, ids, n_ids * sizeof *ids);
    s2s_buf_add(&work->arena, word, len);
    s2s_buf_add(&work->arena, zero, (4 - len % 4) % 4); /* the next ids are aligned */
    work->n_cached++;
}

/* A part through the memory of words. */
static int encode_known(const struct text_model *model, struct text_model_work *work,
                        struct s2s_ids *ids, struct s2s_ids *lens, const char *word, size_t len)
{
    if (len > CACHE_WORD_MAX || lens)
        return encode_part(model, work, ids, lens, word, len);
    if (work->n_cached > CACHE_SLOTS / 2 || work->arena.len > CACHE_ARENA_MAX) {
        memset(work->cache, 0, CACHE_SLOTS * sizeof *work->cache);
        s2s_buf_clear(&work->arena);
        work->n_cached = 0;
    }
    uint64_t hash = XXH3_64bits(word, len);
    hash = hash ? hash : 1;
    size_t i = (size_t)hash % CACHE_SLOTS;
    for (;; i = (i + 1) % CACHE_SLOTS) {
        const struct cached *slot = &work->cache[i];
        if (!slot->hash)
            break;
        const char *at = work->arena.data + slot->offset;
        if (slot->hash == hash && slot->len == len &&
            !memcmp(at + slot->n_ids * sizeof(int32_t), word, len)) {
            for (size_t k = 0; k < slot->n_ids; k++)
                s2s_ids_add(ids, ((const int32_t *)(const void *)at)[k]);
            return 0;
        }
    }
    size_t first = ids->len;
    if (encode_part(model, work, ids, NULL, word, len) < 0)
        return -1;
    remember(work, &work->cache[i], hash, word, len, ids->len > first ? ids->data + first : NULL,
             ids->len - first);
    return 0;
}

int text_model_encode(const struct text_model *model, struct text_model_work *work,
                      struct s2s_ids *ids, struct s2s_ids *lens, const char *piece, size_t len,
                      struct s2s_error *err)
{
    if (len == 0)
        return 0;
    if (model->kind == TEXT_BPE && text_bpe_ignores_merges(model->bpe)) {
        int32_t id = text_vocab_get(model->vocab, piece, len);
        if (id >= 0) {
            s2s_ids_add(ids, id);
            if (lens)
                s2s_ids_add(lens, (int32_t)len);
            return 0;
        }
    }
    for (size_t begin = 0, end; begin < len; begin = end) {
        end = model->kind == TEXT_BPE ? text_bpe_part(model->bpe, piece, len, begin) : len;
        if (encode_known(model, work, ids, lens, piece + begin, end - begin) < 0)
            return s2s_error_set(err, S2S_E_NOTFOUND,
                                 "no token for a part of '%.*s', and none for unknown ones",
                                 (int)(len < 60 ? len : 60), piece);
    }
    return 0;
}
