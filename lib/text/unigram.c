/* Finds the most likely pieces of a text, by the Unigram model. */
#include "lib/text/text_internal.h"

/*
 * Unigram: every piece has a score (log-probability); the best path over all ways to cut the text
 * is found from left to right (Viterbi). A character that no piece stands for alone may be unknown,
 * at a score below all others. Sums are made in the order of the library, in double precision, and
 * of equal sums the first one found stays: its choices are ours.
 */
struct text_unigram {
    struct text_lexicon *lexicon;
    const struct text_vocab *vocab;
    double *scores; /* by id */
    double unk_score;
    int32_t unk; /* -1: none */
    bool byte_fallback;
    int32_t byte_ids[256]; /* of <0x00>..<0xFF>, or -1 */
};

struct text_unigram *text_unigram_new(struct text_entry *pieces, double *scores, size_t n,
                                      const struct text_vocab *vocab, int32_t unk,
                                      bool byte_fallback)
{
    struct text_unigram *unigram = s2s_xcalloc(1, sizeof *unigram);
    double least = n > 0 ? scores[0] : 0;
    for (size_t i = 0; i < n; i++)
        least = scores[i] < least ? scores[i] : least;
    unigram->lexicon = text_lexicon_new(pieces, n);
    unigram->vocab = vocab;
    unigram->scores = scores;
    unigram->unk_score = least - 10;
    unigram->unk = unk;
    unigram->byte_fallback = byte_fallback;
    for (unsigned byte = 0; byte < 256; byte++) {
        char name[8];
        int len = snprintf(name, sizeof name, "<0x%02X>", byte);
        unigram->byte_ids[byte] = text_vocab_get(vocab, name, (size_t)len);
    }
    return unigram;
}

void text_unigram_free(struct text_unigram *unigram)
{
    if (!unigram)
        return;
    text_lexicon_free(unigram->lexicon);
    free(unigram->scores);
    free(unigram);
}

/* The best path to a place: its last piece and where that begins. */
struct step {
    double score;
    int32_t id;
    int32_t begin; /* -1: no path yet */
};

struct text_unigram_work {
    struct step *steps; /* [len + 1] */
    size_t cap;
    struct text_spans pieces; /* of the path, last first */
};

struct text_unigram_work *text_unigram_work_new(void)
{
    return s2s_xcalloc(1, sizeof(struct text_unigram_work));
}

void text_unigram_work_free(struct text_unigram_work *work)
{
    if (!work)
        return;
    free(work->steps);
    free(work->pieces.data);
    free(work);
}

static void offer(struct step *to, double score, int32_t id, size_t begin)
{
    if (to->begin < 0 || score > to->score)
        *to = (struct step){score, id, (int32_t)begin};
}

/* Fills steps; -1 when a character is unknown and there is no piece for that. */
static int find_path(const struct text_unigram *unigram, struct step *steps, const char *text,
                     size_t len)
{
    for (size_t i = 0; i <= len; i++)
        steps[i] = (struct step){0, -1, -1};
    for (size_t begin = 0, n; begin < len; begin += n) {
        double score = steps[begin].score;
        bool has_single = false;
        int32_t node = 0, id;
        text_utf8_get(text + begin, &n);
        for (size_t end = begin; end < len;) {
            node = text_lexicon_step(unigram->lexicon, node, (unsigned char)text[end++], &id);
            if (node < 0)
                break;
            if (id < 0)
                continue;
            offer(&steps[end], unigram->scores[id] + score, id, begin);
            has_single |= end - begin == n;
        }
        if (has_single)
            continue;
        if (unigram->unk < 0)
            return -1;
        offer(&steps[begin + n], unigram->unk_score + score, unigram->unk, begin);
    }
    return 0;
}

static int add_piece(const struct text_unigram *unigram, struct s2s_ids *ids, struct s2s_ids *lens,
                     const char *piece, size_t len)
{
    if (lens)
        s2s_ids_add(lens, (int32_t)len);
    int32_t id = text_vocab_get(unigram->vocab, piece, len);
    if (id >= 0) {
        s2s_ids_add(ids, id);
        return 0;
    }
    bool all = unigram->byte_fallback;
    for (size_t i = 0; i < len && all; i++)
        all = unigram->byte_ids[(unsigned char)piece[i]] >= 0;
    for (size_t i = 0; i < len && all; i++) {
        s2s_ids_add(ids, unigram->byte_ids[(unsigned char)piece[i]]);
        if (lens && i > 0)
            s2s_ids_add(lens, 0);
    }
    if (all)
        return 0;
    if (unigram->unk < 0)
        return -1;
    s2s_ids_add(ids, unigram->unk);
    return 0;
}

int text_unigram_encode(const struct text_unigram *unigram, struct text_unigram_work *work,
                        struct s2s_ids *ids, struct s2s_ids *lens, const char *piece, size_t len)
{
    if (len + 1 > work->cap) {
        work->cap = len < 256 ? 512 : 2 * len;
        work->steps = s2s_xrealloc(work->steps, work->cap, sizeof *work->steps);
    }
    if (find_path(unigram, work->steps, piece, len) < 0)
        return -1;
    work->pieces.len = 0;
    bool after_unk = false;
    for (size_t end = len; end > 0;) {
        const struct step *step = &work->steps[end];
        size_t begin = (size_t)step->begin;
        bool is_unk = unigram->unk >= 0 && step->id == unigram->unk;
        /* neighbours that are unknown are one piece */
        if (is_unk && after_unk)
            work->pieces.data[work->pieces.len - 1].begin = begin;
        else
            text_spans_add(&work->pieces, begin, end);
        after_unk = is_unk;
        end = begin;
    }
    for (size_t i = work->pieces.len; i-- > 0;) {
        struct text_span span = work->pieces.data[i];
        if (add_piece(unigram, ids, lens, piece + span.begin, span.end - span.begin) < 0)
            return -1;
    }
    return 0;
}
