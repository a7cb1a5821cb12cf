/* Index maps of the context-parallel partition, and copies by them. */
#include "lib/thd/cp.h"

#include <string.h>

#include "lib/base/base.h"

int s2s_thd_cp_check(const int32_t *cu, size_t n_seqs, int64_t n_slots, int cp_size, int cp_rank,
                     struct s2s_error *err)
{
    if (cp_size < 1 || cp_size > INT32_MAX / 2)
        return s2s_error_set(err, S2S_E_RANGE, "cp is %d, at least 1 expected", cp_size);
    if (cp_rank < 0 || cp_rank >= cp_size)
        return s2s_error_set(err, S2S_E_RANGE, "rank %d is not within cp %d", cp_rank, cp_size);
    if (cu[0] != 0)
        return s2s_error_set(err, S2S_E_SHAPE, "cu_seqlens[0] = %d, 0 expected", cu[0]);
    for (size_t i = 1; i <= n_seqs; i++) {
        if (cu[i] < cu[i - 1])
            return s2s_error_set(err, S2S_E_SHAPE,
                                 "cu_seqlens[%zu] = %d is less than cu_seqlens[%zu] = %d", i, cu[i],
                                 i - 1, cu[i - 1]);
        if (cp_size > 1 && cu[i] % (2 * cp_size) != 0) {
            int rc = s2s_error_set(err, S2S_E_SHAPE,
                                   "cu_seqlens[%zu] = %d is no multiple of 2 * cp = %d", i, cu[i],
                                   2 * cp_size);
            return s2s_error_hint(err, rc,
                                  "round every utterance up to 2 * cp slots when packing "
                                  "(s2s-pack --cp %d)",
                                  cp_size);
        }
    }
    if (cu[n_seqs] != n_slots)
        return s2s_error_set(err, S2S_E_SHAPE, "cu_seqlens ends at %d, there are %lld slots",
                             cu[n_seqs], (long long)n_slots);
    if (n_slots == 0)
        return s2s_error_set(err, S2S_E_SHAPE, "cu_seqlens holds no slot at all");
    return 0;
}

/* The slots of one rank as ranges: two an utterance (one with cp_size 1), ascending. */
struct walk {
    const int32_t *cu;
    size_t n_seqs, seq;
    int cp_size, cp_rank;
    bool second;
    int64_t begin, end; /* the range */
};

static bool next_range(struct walk *w)
{
    if (w->seq == w->n_seqs)
        return false;
    const int64_t first = w->cu[w->seq], len = w->cu[w->seq + 1] - first;
    if (w->cp_size == 1) {
        w->begin = first;
        w->end = first + len;
        w->seq++;
        return true;
    }
    const int64_t chunk = len / (2 * w->cp_size);
    w->begin = first + (w->second ? 2 * w->cp_size - 1 - w->cp_rank : w->cp_rank) * chunk;
    w->end = w->begin + chunk;
    w->seq += w->second;
    w->second = !w->second;
    return true;
}

static struct walk walk_of(const int32_t *cu, size_t n_seqs, int cp_size, int cp_rank)
{
    return (struct walk){.cu = cu, .n_seqs = n_seqs, .cp_size = cp_size, .cp_rank = cp_rank};
}

void s2s_thd_cp_index(int32_t *index, const int32_t *cu, size_t n_seqs, int cp_size, int cp_rank)
{
    struct walk w = walk_of(cu, n_seqs, cp_size, cp_rank);
    while (next_range(&w))
        for (int64_t slot = w.begin; slot < w.end; slot++)
            *index++ = (int32_t)slot;
}

void s2s_thd_cp_inverse(int32_t *inverse, const int32_t *cu, size_t n_seqs, int cp_size)
{
    int32_t at = 0;
    for (int rank = 0; rank < cp_size; rank++) {
        struct walk w = walk_of(cu, n_seqs, cp_size, rank);
        while (next_range(&w))
            for (int64_t slot = w.begin; slot < w.end; slot++)
                inverse[slot] = at++;
    }
}

void s2s_thd_cp_split(void *local, const void *global, size_t slot_bytes, const int32_t *cu,
                      size_t n_seqs, int cp_size, int cp_rank)
{
    struct walk w = walk_of(cu, n_seqs, cp_size, cp_rank);
    char *to = local;
    while (next_range(&w)) {
        size_t len = (size_t)(w.end - w.begin) * slot_bytes;
        memcpy(to, (const char *)global + (size_t)w.begin * slot_bytes, len);
        to += len;
    }
}

void s2s_thd_cp_join(void *global, const void *local, size_t slot_bytes, const int32_t *cu,
                     size_t n_seqs, int cp_size, int cp_rank)
{
    struct walk w = walk_of(cu, n_seqs, cp_size, cp_rank);
    const char *from = local;
    while (next_range(&w)) {
        size_t len = (size_t)(w.end - w.begin) * slot_bytes;
        memcpy((char *)global + (size_t)w.begin * slot_bytes, from, len);
        from += len;
    }
}

/* Slots become rows: how many rows lie before a slot. Asked for ascending slots only. */
struct row_count {
    const struct s2s_thd_clips *clips;
    size_t clip;      /* the first that does not end before the slot */
    int64_t n_before; /* rows of the clips before it */
};

static int64_t rows_before(struct row_count *count, int64_t slot)
{
    const struct s2s_thd_clips *c = count->clips;
    while (count->clip < c->n_clips &&
           (int64_t)c->slot[count->clip] + c->frames[count->clip] <= slot)
        count->n_before += c->frames[count->clip++];
    if (count->clip == c->n_clips || slot <= c->slot[count->clip])
        return count->n_before;
    return count->n_before + slot - c->slot[count->clip];
}

int64_t s2s_thd_cp_rows(const struct s2s_thd_clips *clips, const int32_t *cu, size_t n_seqs,
                        int cp_size, int cp_rank)
{
    struct walk w = walk_of(cu, n_seqs, cp_size, cp_rank);
    struct row_count count = {.clips = clips};
    int64_t n = 0;
    while (next_range(&w)) {
        int64_t begin = rows_before(&count, w.begin);
        n += rows_before(&count, w.end) - begin;
    }
    return n;
}

void s2s_thd_cp_split_rows(void *local, const void *global, size_t row_bytes,
                           const struct s2s_thd_clips *clips, const int32_t *cu, size_t n_seqs,
                           int cp_size, int cp_rank)
{
    struct walk w = walk_of(cu, n_seqs, cp_size, cp_rank);
    struct row_count count = {.clips = clips};
    char *to = local;
    while (next_range(&w)) {
        int64_t begin = rows_before(&count, w.begin), end = rows_before(&count, w.end);
        size_t len = (size_t)(end - begin) * row_bytes;
        if (len)
            memcpy(to, (const char *)global + (size_t)begin * row_bytes, len);
        to += len;
    }
}

void s2s_thd_cp_join_rows(void *global, const void *local, size_t row_bytes,
                          const struct s2s_thd_clips *clips, const int32_t *cu, size_t n_seqs,
                          int cp_size, int cp_rank)
{
    struct walk w = walk_of(cu, n_seqs, cp_size, cp_rank);
    struct row_count count = {.clips = clips};
    const char *from = local;
    while (next_range(&w)) {
        int64_t begin = rows_before(&count, w.begin), end = rows_before(&count, w.end);
        size_t len = (size_t)(end - begin) * row_bytes;
        if (len)
            memcpy((char *)global + (size_t)begin * row_bytes, from, len);
        from += len;
    }
}
