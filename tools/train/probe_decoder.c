/*
 * Probe of a bare decoder: input_ids, attention_mask and labels (not shifted), each [B, S]. Packed,
 * the masked slots are left out and the results put back at the places of the real ones; the other
 * places hold zeros.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/error.h"
#include "lib/base/mem.h"
#include "tools/train/probe.h"

struct rows {
    int64_t n_rows, n_cols; /* B, S of the inputs */
    int64_t *source;        /* [T] place in [B, S] of each slot; -1: a pad slot */
};

static bool decoder_matches(const struct s2s_model *model)
{
    return model->kind->embed != NULL;
}

struct inputs {
    const int32_t *ids, *mask, *labels; /* labels, mask may be NULL */
    const int64_t *shape;
};

static int read_inputs(struct probe *p, struct inputs *in, struct s2s_error *err)
{
    const int64_t *shape;
    int rc = probe_input_i32(p, &in->ids, &in->shape, "input_ids", 2, err);
    if (rc < 0)
        return rc;
    for (int64_t i = 0; i < in->shape[0] * in->shape[1]; i++)
        if (in->ids[i] < 0) /* which would be a slot without a token */
            return s2s_error_set(err, S2S_E_RANGE, "input_ids[%lld] = %d", (long long)i,
                                 in->ids[i]);
    struct {
        const char *name;
        const int32_t **data;
    } others[] = {{"attention_mask", &in->mask}, {"labels", &in->labels}};
    for (int i = 0; i < 2; i++) {
        if (!probe_has_input(p, others[i].name))
            continue;
        if ((rc = probe_input_i32(p, others[i].data, &shape, others[i].name, 2, err)) < 0)
            return rc;
        if (shape[0] != in->shape[0] || shape[1] != in->shape[1])
            return s2s_error_set(err, S2S_E_SHAPE, "%s is [%lld, %lld]; input_ids is [%lld, %lld]",
                                 others[i].name, (long long)shape[0], (long long)shape[1],
                                 (long long)in->shape[0], (long long)in->shape[1]);
    }
    return 0;
}

/* The slots of one utterance: which columns of the row they are. Gives their number. */
static int64_t utterance(const struct probe *p, const struct inputs *in, int64_t row,
                         int64_t *columns, struct s2s_error *err)
{
    const int32_t *mask = in->mask ? in->mask + row * in->shape[1] : NULL;
    int64_t n = 0;
    bool begun = false; /* a token is before column c */
    for (int64_t c = 0; mask && c < in->shape[1]; c++) {
        if (c > 0 && mask[c] && !mask[c - 1] && begun)
            return s2s_error_set(err, S2S_E_UNSUPPORTED,
                                 "attention_mask: row %lld has a hole before column %lld",
                                 (long long)row, (long long)c);
        if (c > 0 && mask[c] && !mask[c - 1] && p->layout == PROBE_BSHD)
            return s2s_error_hint(
                err,
                s2s_error_set(err, S2S_E_UNSUPPORTED,
                              "attention_mask: row %lld is not padded on the right",
                              (long long)row),
                "run it with --layout packed");
        begun |= mask[c] != 0;
    }
    for (int64_t c = 0; c < in->shape[1]; c++)
        if (p->layout == PROBE_BSHD || !mask || mask[c])
            columns[n++] = c;
    return n;
}

/* Everything [T] of the batch, sized for the worst case. */
struct slots {
    int32_t *ids, *labels, *positions, *cu, *lens;
    int64_t *source;
};

static struct slots alloc_slots(struct probe *p, const int64_t *shape)
{
    int64_t row = (shape[1] + p->multiple - 1) / p->multiple * p->multiple;
    size_t n = (size_t)(shape[0] * row) * sizeof(int32_t), b = (size_t)(shape[0] + 1);
    return (struct slots){probe_alloc(p, n),
                          probe_alloc(p, n),
                          probe_alloc(p, n),
                          probe_alloc(p, b * sizeof(int32_t)),
                          probe_alloc(p, b * sizeof(int32_t)),
                          probe_alloc(p, (size_t)(shape[0] * row) * sizeof(int64_t))};
}

/* Appends one utterance of n slots and its padding. */
static void append(struct probe *p, const struct inputs *in, struct slots *s, int64_t row,
                   const int64_t *columns, int64_t n)
{
    struct s2s_batch *b = &p->batch;
    int64_t padded = (n + p->multiple - 1) / p->multiple * p->multiple, begin = b->n_tokens;
    for (int64_t i = 0; i < padded; i++) {
        int64_t at = begin + i, place = i < n ? row * in->shape[1] + columns[i] : -1;
        s->source[at] = place;
        s->ids[at] = i < n ? in->ids[place] : 0;
        s->positions[at] = (int32_t)i;
        s->labels[at] = -100;
        /* the target of a slot is the next token of its own utterance */
        if (in->labels && i + 1 < n)
            s->labels[at] = in->labels[row * in->shape[1] + columns[i + 1]];
    }
    b->n_tokens += padded;
    b->max_seqlen = padded > b->max_seqlen ? padded : b->max_seqlen;
    s->lens[b->n_seqs] = (int32_t)n;
    s->cu[++b->n_seqs] = (int32_t)b->n_tokens;
}

static int decoder_prepare(struct probe *p, struct s2s_error *err)
{
    struct inputs in = {0};
    int rc = read_inputs(p, &in, err);
    if (rc < 0)
        return rc;
    struct slots s = alloc_slots(p, in.shape);
    int64_t *columns = probe_alloc(p, (size_t)in.shape[1] * sizeof *columns);
    for (int64_t row = 0; row < in.shape[0]; row++) {
        int64_t n = utterance(p, &in, row, columns, err);
        if (n < 0)
            return (int)n;
        append(p, &in, &s, row, columns, n);
    }
    struct s2s_batch *b = &p->batch;
    b->input_ids = s.ids;
    b->labels = in.labels ? s.labels : NULL;
    b->position_ids = s.positions;
    b->cu_seqlens = s.cu;
    b->seq_lens = s.lens;
    struct rows *rows = p->state = probe_alloc(p, sizeof *rows);
    *rows = (struct rows){in.shape[0], in.shape[1], s.source};
    int64_t n_labels = s2s_batch_n_labels(b);
    p->loss_scale = p->wanted.seed = n_labels ? 1.0 / (double)n_labels : 0;
    p->wanted.want_logits = true;
    return 0;
}

/* A [T, C] activation as [B, S, C]. */
static void add_rows(struct probe *p, const char *name, const struct s2s_tensor *t)
{
    const struct rows *rows = p->state;
    int64_t cols = s2s_tensor_cols(t), shape[] = {rows->n_rows, rows->n_cols, cols};
    float *values = s2s_xmalloc((size_t)(s2s_tensor_numel(t) + 1) * sizeof *values);
    float *out = probe_alloc(p, (size_t)(rows->n_rows * rows->n_cols * cols) * sizeof *out);
    s2s_tensor_read_f32(t, values);
    for (int64_t i = 0; i < s2s_tensor_rows(t); i++)
        if (rows->source[i] >= 0)
            memcpy(out + rows->source[i] * cols, values + i * cols, (size_t)cols * sizeof *out);
    free(values);
    probe_add(p, name, S2S_F32, 3, shape, out);
}

static int decoder_collect(struct probe *p, const struct s2s_forward *fwd, struct s2s_error *err)
{
    for (int i = 0; i < fwd->n_hidden; i++) {
        char name[32];
        snprintf(name, sizeof name, "hidden/%d", i);
        add_rows(p, name, fwd->hidden[i]);
    }
    add_rows(p, "logits", fwd->logits);
    return 0;
}

const struct probe_family probe_decoder = {decoder_matches, decoder_prepare, decoder_collect, NULL};
