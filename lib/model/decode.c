/* What models keep of sequences that go on, for generation. */
#include <stdlib.h>
#include <string.h>

#include "lib/base/error.h"
#include "lib/base/mem.h"
#include "lib/model/model_internal.h"

/* ---- memory ---- */

static int alloc_state(struct s2s_decode *decode, const struct s2s_block *block,
                       struct s2s_block_state *state, struct s2s_error *err)
{
    struct s2s_device *device = decode->device;
    for (int part = 0; block->state_bytes && part < S2S_STATES; part++) {
        const size_t bytes = block->state_bytes(block, decode->cap, part);
        const size_t all = bytes * (size_t)decode->n_seqs;
        if (bytes == 0)
            continue;
        state->bytes[part] = bytes;
        state->parts[part] = device->kernels->alloc(&device->queue, all);
        if (!state->parts[part])
            return s2s_error_set(
                err, S2S_E_NOMEM,
                "no room for the %zu bytes that %s keeps of %lld sequences of %lld "
                "tokens",
                all, block->layer, (long long)decode->n_seqs, (long long)decode->cap);
        device->kernels->zero(&device->queue, state->parts[part], all);
    }
    return 0;
}

/* Sequences that change places go through it; one alone never does. */
static int make_room(struct s2s_decode *decode, struct s2s_error *err)
{
    size_t most = 0;
    for (int i = 0; i < decode->n_blocks; i++)
        for (int part = 0; part < S2S_STATES; part++)
            most = decode->states[i].bytes[part] > most ? decode->states[i].bytes[part] : most;
    most *= (size_t)decode->n_seqs;
    if (decode->n_seqs == 1 || most == 0)
        return 0;
    decode->room = decode->device->kernels->alloc(&decode->device->queue, most);
    return decode->room ? 0
                        : s2s_error_set(err, S2S_E_NOMEM,
                                        "no room for the %zu bytes through which %lld sequences "
                                        "change places",
                                        most, (long long)decode->n_seqs);
}

int s2s_decode_new(struct s2s_decode **out, const struct s2s_model *model, int64_t n_seqs,
                   int64_t cap, struct s2s_error *err)
{
    struct s2s_decode *decode = s2s_xcalloc(1, sizeof *decode);
    int rc = 0;
    if (cap > INT32_MAX / n_seqs)
        rc = s2s_error_set(err, S2S_E_RANGE, "%lld sequences of %lld tokens go on: too many",
                           (long long)n_seqs, (long long)cap);
    *decode = (struct s2s_decode){
        .device = model->params->device, .n_seqs = n_seqs, .cap = cap, .n_blocks = model->n_blocks};
    decode->lens = s2s_xcalloc((size_t)n_seqs, sizeof *decode->lens);
    decode->states = s2s_xcalloc((size_t)model->n_blocks, sizeof *decode->states);
    for (int i = 0; rc == 0 && i < model->n_blocks; i++)
        rc = alloc_state(decode, &model->blocks[i], &decode->states[i], err);
    if (rc == 0)
        rc = make_room(decode, err);
    if (rc < 0) {
        s2s_decode_free(decode);
        decode = NULL;
    }
    *out = decode;
    return rc;
}

void s2s_decode_free(struct s2s_decode *decode)
{
    if (!decode)
        return;
    const struct s2s_kernels *k = decode->device->kernels;
    for (int i = 0; i < decode->n_blocks; i++)
        for (int part = 0; part < S2S_STATES; part++)
            k->free(&decode->device->queue, decode->states[i].parts[part]);
    k->free(&decode->device->queue, decode->room);
    free(decode->states);
    free(decode->lens);
    free(decode);
}

/* ---- choosing ---- */

static struct s2s_mat part_of(void *memory, size_t bytes, int64_t at)
{
    return (struct s2s_mat){(char *)memory + bytes * (size_t)at, (int64_t)(bytes / 4), S2S_F32};
}

static void copy(const struct s2s_decode *decode, struct s2s_mat dst, struct s2s_mat src)
{
    decode->device->kernels->copy(
        &decode->device->queue,
        &(struct s2s_k_copy){.src = src, .dst = dst, .rows = 1, .cols = src.stride});
}

/* Through the room, as what is read may be written. */
static void choose_part(const struct s2s_decode *decode, void *memory, size_t bytes,
                        const int32_t *from, int64_t n)
{
    for (int64_t s = 0; s < n; s++)
        if (from[s] != s)
            copy(decode, part_of(decode->room, bytes, s), part_of(memory, bytes, from[s]));
    for (int64_t s = 0; s < n; s++)
        if (from[s] != s)
            copy(decode, part_of(memory, bytes, s), part_of(decode->room, bytes, s));
}

void s2s_decode_choose(struct s2s_decode *decode, const int32_t *from, int64_t n)
{
    int64_t *lens = s2s_xcalloc((size_t)decode->n_seqs, sizeof *lens), n_moved = 0;
    memcpy(lens, decode->lens, (size_t)decode->n_seqs * sizeof *lens);
    for (int64_t s = 0; s < n; s++) {
        decode->lens[s] = lens[from[s]];
        n_moved += from[s] != s;
    }
    free(lens);
    if (n_moved == 0)
        return;
    for (int i = 0; i < decode->n_blocks; i++)
        for (int part = 0; part < S2S_STATES; part++)
            if (decode->states[i].parts[part])
                choose_part(decode, decode->states[i].parts[part], decode->states[i].bytes[part],
                            from, n);
}

/* ---- what attention sees ---- */

/* Each sequence's keys are rows of a cache that all share: those it has, then those that come. */
static struct s2s_spans spans_of_caches(const struct s2s_pass *pass)
{
    const struct s2s_decode *decode = pass->fwd->decode;
    const struct s2s_batch *batch = pass->batch;
    struct s2s_span *spans = s2s_xmalloc((size_t)(batch->n_seqs + 1) * sizeof *spans);
    for (int64_t s = 0; s < batch->n_seqs; s++) {
        const int32_t begin = batch->cu_seqlens[s], n = batch->cu_seqlens[s + 1] - begin;
        const int32_t seen = (int32_t)decode->lens[s];
        if (seen + n > decode->cap)
            S2S_BUG("sequence %lld: caches of %lld tokens are full", (long long)s,
                    (long long)decode->cap);
        spans[s] = (struct s2s_span){begin, n, (int32_t)(s * decode->cap), seen + n, seen};
    }
    const struct s2s_spans out = s2s_op_spans_of(pass->tape, spans, batch->n_seqs, batch->n_tokens,
                                                 decode->n_seqs * decode->cap);
    free(spans);
    return out;
}

/* Behind the last token there is a sequence of rows that nobody reads. */
static struct s2s_spans spans_of_rows(const struct s2s_pass *pass, int64_t n_rows)
{
    const struct s2s_batch *batch = pass->batch;
    const int64_t n_seqs = batch->n_seqs + 1;
    int32_t *cu = s2s_xcalloc((size_t)n_seqs + 1, sizeof *cu);
    memcpy(cu, batch->cu_seqlens, (size_t)n_seqs * sizeof *cu);
    cu[n_seqs] = (int32_t)n_rows;
    const struct s2s_spans spans = s2s_op_spans(pass->tape, cu, cu, n_seqs, true);
    free(cu);
    return spans;
}

struct s2s_spans model_spans(const struct s2s_pass *pass, int64_t n_rows)
{
    const struct s2s_batch *batch = pass->batch;
    if (pass->fwd->decode)
        return spans_of_caches(pass);
    struct s2s_spans spans =
        n_rows > batch->n_tokens
            ? spans_of_rows(pass, n_rows)
            : s2s_op_spans(pass->tape, batch->cu_seqlens, batch->cu_seqlens, batch->n_seqs, true);
    model_name_spans(pass, &spans, n_rows);
    return spans;
}

struct s2s_tensor *model_cache_rows(const struct s2s_pass *pass)
{
    const struct s2s_decode *decode = pass->fwd->decode;
    const struct s2s_batch *batch = pass->batch;
    if (!decode)
        return NULL;
    int32_t *rows = s2s_xmalloc((size_t)(batch->n_tokens + 1) * sizeof *rows);
    for (int64_t s = 0; s < batch->n_seqs; s++)
        for (int64_t i = batch->cu_seqlens[s]; i < batch->cu_seqlens[s + 1]; i++)
            rows[i] = (int32_t)(s * decode->cap + decode->lens[s] + i - batch->cu_seqlens[s]);
    struct s2s_tensor *out = s2s_tape_upload_i32(pass->tape, rows, batch->n_tokens);
    free(rows);
    return out;
}
