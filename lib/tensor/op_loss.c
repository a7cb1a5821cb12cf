/* Losses: sums, whose gradient is told its seed when they are recorded. */
#include <stdlib.h>

#include "lib/base/mem.h"
#include "lib/tensor/param.h"
#include "lib/tensor/tensor_internal.h"

/* Rows of logits that exist at a time at least, for the products with the output matrix not to wait
 * for memory. */
enum { LOGITS_MIN_ROWS = 64 };

static struct s2s_tensor *new_scalar(struct s2s_tape *tape)
{
    struct s2s_tensor *t = s2s_tape_tensor(tape, S2S_F64, 0, NULL);
    tensor_k(tape)->zero(tensor_queue(tape), t->data, sizeof(double));
    return t;
}

static struct s2s_tensor *new_loss(struct s2s_tape *tape)
{
    struct s2s_tensor *t = new_scalar(tape);
    t->is_loss = true;
    return t;
}

/* The rows that carry a label, and their labels, on the tape. */
struct labelled {
    int64_t n;
    struct s2s_tensor *idx, *labels;
};

static struct labelled find_labelled(struct s2s_tape *tape, const int32_t *labels, int64_t t,
                                     int64_t vocab)
{
    struct labelled found = {0};
    int32_t *host = s2s_xmalloc((size_t)(2 * t + 1) * sizeof *host), *kept = host + t;
    for (int64_t i = 0; i < t; i++)
        if (labels[i] >= 0) {
            if (labels[i] >= vocab)
                S2S_BUG("%s: label %d of %lld classes", tape->layer, labels[i], (long long)vocab);
            host[found.n] = (int32_t)i;
            kept[found.n++] = labels[i];
        }
    found.idx = s2s_tape_upload_i32(tape, host, found.n);
    found.labels = s2s_tape_upload_i32(tape, kept, found.n);
    free(host);
    return found;
}

static struct s2s_mat rows_from(const struct s2s_tensor *t, int64_t row)
{
    struct s2s_mat mat = s2s_tensor_mat(t);
    mat.data = (char *)mat.data + (size_t)(row * mat.stride) * s2s_dtype_size(mat.dtype);
    return mat;
}

/* Room for rows [rows, vocab] of logits, until s2s_tape_scratch_end. */
static struct s2s_mat new_logits(struct s2s_tape *tape, int64_t rows, int64_t vocab,
                                 enum s2s_dtype dtype)
{
    const size_t bytes = (size_t)(rows * vocab) * s2s_dtype_size(dtype);
    return (struct s2s_mat){s2s_tape_scratch(tape, bytes), vocab, dtype};
}

/* Where gradients of logits stand, for products with matrices of the working dtype: in their place
 * where that is F32, as they are. */
static struct s2s_mat new_dlogits(struct s2s_tape *tape, struct s2s_mat logits, int64_t rows)
{
    const enum s2s_dtype dtype = tape->device->dtype;
    return dtype == logits.dtype ? logits : new_logits(tape, rows, logits.stride, dtype);
}

/* Device memory of some rows: their labels in, their losses and hits (NULL: not wanted) out. */
struct xent_part {
    const int32_t *labels;
    float *loss, *hits;
    struct s2s_mat logits, dlogits;
    struct s2s_xent *stats, *all; /* scratch: of the classes here, of everybody's (may be stats) */
};

/* Statistics of all classes; those of the classes here stay for the gradient. */
static void xent_all_parts(struct s2s_tape *tape, const struct s2s_classes *classes,
                           const struct xent_part *part, int64_t n)
{
    const struct s2s_group *group = classes->group;
    const int size = s2s_group_size(group);
    if (size > 1)
        group->ops->all_gather(group, tensor_queue(tape), part->all, part->stats,
                               n * (int64_t)(sizeof *part->stats / sizeof(int32_t)), S2S_I32);
    tensor_k(tape)->xent_finish(tensor_queue(tape),
                                &(struct s2s_k_xent_finish){.parts = part->all,
                                                            .labels = part->labels,
                                                            .total = part->all,
                                                            .loss = part->loss,
                                                            .hits = part->hits,
                                                            .rows = n,
                                                            .n_parts = size});
}

/* The first class that this rank has. */
static int64_t first_class(const struct s2s_classes *classes)
{
    return s2s_cut_begin(classes->n, s2s_group_rank(classes->group),
                         s2s_group_size(classes->group));
}

/* Logits, loss and (where wanted) gradients of rows [begin, begin + n) of x. */
static void xent_slice(struct s2s_tape *tape, struct s2s_tensor *x, struct s2s_tensor *w,
                       const struct s2s_classes *classes, int64_t begin, int64_t n,
                       const struct xent_part *part, double seed, struct s2s_tensor *dx,
                       struct s2s_tensor *dw, bool accumulate_dw)
{
    const struct s2s_kernels *k = tensor_k(tape);
    int64_t vocab = s2s_tensor_rows(w), width = s2s_tensor_cols(w);
    k->gemm(tensor_queue(tape), &(struct s2s_k_gemm){.a = rows_from(x, begin),
                                                     .b = s2s_tensor_mat(w),
                                                     .c = part->logits,
                                                     .m = n,
                                                     .n = vocab,
                                                     .k = width,
                                                     .trans_b = true,
                                                     .alpha = 1});
    k->xent_stats(tensor_queue(tape), &(struct s2s_k_xent_stats){.logits = part->logits,
                                                                 .labels = part->labels,
                                                                 .stats = part->stats,
                                                                 .rows = n,
                                                                 .cols = vocab,
                                                                 .first_col = first_class(classes),
                                                                 .want_best = part->hits,
                                                                 .keep = dx || dw});
    xent_all_parts(tape, classes, part, n);
    if (dx || dw)
        k->xent_gradient(tensor_queue(tape),
                         &(struct s2s_k_xent_gradient){.logits = part->logits,
                                                       .dlogits = part->dlogits,
                                                       .labels = part->labels,
                                                       .part = part->stats,
                                                       .total = part->all,
                                                       .rows = n,
                                                       .cols = vocab,
                                                       .width = vocab,
                                                       .first_col = first_class(classes),
                                                       .grad_scale = (float)seed});
    if (dx)
        k->gemm(tensor_queue(tape), &(struct s2s_k_gemm){.a = part->dlogits,
                                                         .b = s2s_tensor_mat(w),
                                                         .c = rows_from(dx, begin),
                                                         .m = n,
                                                         .n = width,
                                                         .k = vocab,
                                                         .alpha = 1});
    if (dw)
        k->gemm(tensor_queue(tape), &(struct s2s_k_gemm){.a = part->dlogits,
                                                         .b = rows_from(x, begin),
                                                         .c = s2s_tensor_mat(dw),
                                                         .m = vocab,
                                                         .n = width,
                                                         .k = n,
                                                         .trans_a = true,
                                                         .alpha = 1,
                                                         .accumulate = accumulate_dw});
}

/* Rows of logits that exist at a time: slices of n rows of about equal size. */
static int64_t slice_rows(const struct s2s_tape *tape, int64_t n, int64_t vocab)
{
    int64_t rows = (int64_t)(tensor_k(tape)->logits_bytes / sizeof(float)) / vocab;
    if (rows < LOGITS_MIN_ROWS)
        rows = LOGITS_MIN_ROWS;
    if (rows >= n)
        return n;
    int64_t n_slices = (n + rows - 1) / rows;
    return (n + n_slices - 1) / n_slices;
}

/* What comes out: scalars, hits NULL where not wanted; all F32 [T, 1] or NULL, zeros at first, of
 * which x has the rows idx. */
struct xent_out {
    struct s2s_tensor *loss, *hits, *all;
    const struct s2s_tensor *idx;
};

static void put_losses(struct s2s_tape *tape, const struct xent_out *out, float *losses, int64_t n)
{
    tensor_sum(tape, out->loss, losses, n);
    if (out->all)
        tensor_k(tape)->scatter_rows(tensor_queue(tape),
                                     &(struct s2s_k_rows){.dst = s2s_tensor_mat(out->all),
                                                          .src = {losses, 1, S2S_F32},
                                                          .idx = out->idx->data,
                                                          .n = n,
                                                          .cols = 1});
}

/* Over all rows of x, slice by slice, which are the same on all ranks; dx, dw NULL where not
 * wanted. */
static void xent_rows(struct s2s_tape *tape, const struct xent_out *out, struct s2s_tensor *x,
                      struct s2s_tensor *w, const struct s2s_classes *classes,
                      const struct s2s_tensor *labels, double seed, struct s2s_tensor *dx,
                      struct s2s_tensor *dw, bool accumulate_dw)
{
    const int size = s2s_group_size(classes->group);
    int64_t n = s2s_tensor_rows(x), vocab = s2s_tensor_rows(w);
    int64_t rows = slice_rows(tape, n, (classes->n + size - 1) / size);
    struct s2s_mat logits = new_logits(tape, rows, vocab, S2S_F32);
    struct s2s_mat dlogits = dx || dw ? new_dlogits(tape, logits, rows) : logits;
    float *losses = s2s_tape_scratch(tape, (size_t)n * sizeof(float));
    float *hit = out->hits ? s2s_tape_scratch(tape, (size_t)n * sizeof(float)) : NULL;
    struct s2s_xent *stats = s2s_tape_scratch(tape, (size_t)rows * sizeof *stats), *all = stats;
    if (size > 1)
        all = s2s_tape_scratch(tape, (size_t)(rows * size) * sizeof *all);
    for (int64_t begin = 0; begin < n; begin += rows) {
        struct xent_part part = {(const int32_t *)labels->data + begin,
                                 losses + begin,
                                 hit ? hit + begin : NULL,
                                 logits,
                                 dlogits,
                                 stats,
                                 all};
        xent_slice(tape, x, w, classes, begin, n - begin < rows ? n - begin : rows, &part, seed, dx,
                   dw, accumulate_dw || begin > 0);
    }
    put_losses(tape, out, losses, n);
    if (out->hits)
        tensor_sum(tape, out->hits, hit, n);
    s2s_tape_scratch_end(tape);
}

struct xent_saved {
    struct s2s_tensor *drows; /* gradient of the labelled rows */
    struct s2s_tensor *idx;   /* where they stand */
};

/* node: in x, w; the gradient of w was added in the forward pass */
static void xent_backward(struct s2s_tape *tape, struct s2s_node *node)
{
    const struct xent_saved *saved = node->saved;
    bool accumulate;
    struct s2s_tensor *dx = s2s_tape_grad(tape, node->in[0], &accumulate);
    if (!accumulate)
        tensor_zero(tape, dx);
    tensor_k(tape)->scatter_rows(tensor_queue(tape),
                                 &(struct s2s_k_rows){.dst = s2s_tensor_mat(dx),
                                                      .src = s2s_tensor_mat(saved->drows),
                                                      .idx = saved->idx->data,
                                                      .n = s2s_tensor_rows(saved->drows),
                                                      .cols = s2s_tensor_cols(dx),
                                                      .accumulate = true});
}

/* The rows that carry a label as one rectangle; x itself when that is all of them. */
static struct s2s_tensor *labelled_rows(struct s2s_tape *tape, struct s2s_tensor *x,
                                        const struct labelled *found)
{
    int64_t width = s2s_tensor_cols(x);
    if (found->n == s2s_tensor_rows(x))
        return x;
    struct s2s_tensor *rows = s2s_tape_tensor(tape, x->dtype, 2, (int64_t[]){found->n, width});
    tensor_k(tape)->gather_rows(tensor_queue(tape),
                                &(struct s2s_k_rows){.dst = s2s_tensor_mat(rows),
                                                     .src = s2s_tensor_mat(x),
                                                     .idx = found->idx->data,
                                                     .n = found->n,
                                                     .cols = width});
    return rows;
}

struct s2s_tensor *s2s_op_linear_xent(struct s2s_tape *tape, struct s2s_tensor *x,
                                      struct s2s_tensor *w, const int32_t *labels, double seed,
                                      struct s2s_tensor **hits)
{
    const struct s2s_classes here = {NULL, s2s_tensor_rows(w)};
    return s2s_op_linear_xent_of(tape, x, w, &here, labels, seed, hits, NULL);
}

struct s2s_tensor *s2s_op_linear_xent_of(struct s2s_tape *tape, struct s2s_tensor *x,
                                         struct s2s_tensor *w, const struct s2s_classes *classes,
                                         const int32_t *labels, double seed,
                                         struct s2s_tensor **hits, struct s2s_tensor **all)
{
    const struct s2s_group *group = classes->group;
    const int64_t t = s2s_tensor_rows(x), width = s2s_tensor_cols(x);
    const int64_t end = s2s_cut_begin(classes->n, s2s_group_rank(group) + 1, s2s_group_size(group));
    tensor_check(tape, "cross entropy", x, -1, -1);
    tensor_check(tape, "cross entropy", w, end - first_class(classes), width);
    if (s2s_group_size(group) > 1)
        tape->device->n_collectives++;
    struct s2s_tensor *loss = new_loss(tape), *ins[] = {x, w};
    if (hits)
        *hits = new_scalar(tape);
    if (all) {
        *all = s2s_tape_tensor(tape, S2S_F32, 2, (int64_t[]){t, 1});
        tensor_zero(tape, *all);
    }
    struct labelled found = find_labelled(tape, labels, t, classes->n);
    if (found.n == 0)
        return loss;
    struct s2s_tensor *rows = labelled_rows(tape, x, &found), *drows = NULL, *dw = NULL;
    bool accumulate_dw = false;
    if (s2s_tape_needs(tape, 2, ins)) {
        if (x->needs_grad)
            drows = s2s_tape_tensor(tape, x->dtype, 2, (int64_t[]){found.n, width});
        dw = s2s_tape_grad(tape, w, &accumulate_dw);
    }
    const struct xent_out out = {loss, hits ? *hits : NULL, all ? *all : NULL, found.idx};
    xent_rows(tape, &out, rows, w, classes, found.labels, seed, drows, dw, accumulate_dw);
    if (drows) {
        struct xent_saved *saved = s2s_tape_host_alloc(tape, sizeof *saved);
        *saved = (struct xent_saved){drows, found.idx};
        struct s2s_node *node = s2s_tape_push(tape, "linear_xent", xent_backward, 2, ins, 1, &loss);
        node->saved = saved;
        node->always = true;
    }
    return loss;
}

/* ---- log-probabilities ---- */

/* One slice of rows: logits, and what they come to. */
struct logprob_slice {
    struct s2s_mat logits, dlogits;
    struct s2s_xent *stats;
    const int32_t *labels;
    int64_t n;
};

static void logprob_stats(struct s2s_tape *tape, const struct logprob_slice *s, struct s2s_mat x,
                          const struct s2s_tensor *w, float *logprob)
{
    const struct s2s_kernels *k = tensor_k(tape);
    int64_t vocab = s2s_tensor_rows(w);
    k->gemm(tensor_queue(tape), &(struct s2s_k_gemm){.a = x,
                                                     .b = s2s_tensor_mat(w),
                                                     .c = s->logits,
                                                     .m = s->n,
                                                     .n = vocab,
                                                     .k = s2s_tensor_cols(w),
                                                     .trans_b = true,
                                                     .alpha = 1});
    k->xent_stats(tensor_queue(tape), &(struct s2s_k_xent_stats){.logits = s->logits,
                                                                 .labels = s->labels,
                                                                 .stats = s->stats,
                                                                 .rows = s->n,
                                                                 .cols = vocab,
                                                                 .keep = !logprob});
    k->xent_finish(tensor_queue(tape), &(struct s2s_k_xent_finish){.parts = s->stats,
                                                                   .labels = s->labels,
                                                                   .total = s->stats,
                                                                   .logprob = logprob,
                                                                   .rows = s->n,
                                                                   .n_parts = 1});
}

/* Room for a slice of at most `rows`, until s2s_tape_scratch_end. */
static struct logprob_slice new_slice(struct s2s_tape *tape, int64_t rows, int64_t vocab)
{
    return (struct logprob_slice){
        .logits = new_logits(tape, rows, vocab, S2S_F32),
        .stats = s2s_tape_scratch(tape, (size_t)rows * sizeof(struct s2s_xent))};
}

/* node: in x, w; saved: labels. The logits are computed again. */
static void logprob_backward(struct s2s_tape *tape, struct s2s_node *node)
{
    const struct s2s_kernels *k = tensor_k(tape);
    const struct s2s_tensor *labels = node->saved, *dy = s2s_tape_out_grad(node->out[0]);
    struct s2s_tensor *x = node->in[0], *w = node->in[1];
    int64_t n = s2s_tensor_rows(x), vocab = s2s_tensor_rows(w), width = s2s_tensor_cols(w);
    int64_t rows = slice_rows(tape, n, vocab);
    bool accumulate_dx = false, accumulate_dw = false;
    struct s2s_tensor *dx = s2s_tape_grad(tape, x, &accumulate_dx);
    struct s2s_tensor *dw = s2s_tape_grad(tape, w, &accumulate_dw);
    struct logprob_slice s = new_slice(tape, rows, vocab);
    s.dlogits = new_dlogits(tape, s.logits, rows);
    for (int64_t begin = 0; begin < n; begin += rows) {
        s.n = n - begin < rows ? n - begin : rows;
        s.labels = (const int32_t *)labels->data + begin;
        logprob_stats(tape, &s, rows_from(x, begin), w, NULL);
        /* d logprob = onehot - softmax */
        k->xent_gradient(tensor_queue(tape),
                         &(struct s2s_k_xent_gradient){.logits = s.logits,
                                                       .dlogits = s.dlogits,
                                                       .labels = s.labels,
                                                       .weights = (const float *)dy->data + begin,
                                                       .part = s.stats,
                                                       .total = s.stats,
                                                       .rows = s.n,
                                                       .cols = vocab,
                                                       .width = vocab,
                                                       .grad_scale = -1});
        if (dx)
            k->gemm(tensor_queue(tape), &(struct s2s_k_gemm){.a = s.dlogits,
                                                             .b = s2s_tensor_mat(w),
                                                             .c = rows_from(dx, begin),
                                                             .m = s.n,
                                                             .n = width,
                                                             .k = vocab,
                                                             .alpha = 1,
                                                             .accumulate = accumulate_dx});
        if (dw)
            k->gemm(tensor_queue(tape),
                    &(struct s2s_k_gemm){.a = s.dlogits,
                                         .b = rows_from(x, begin),
                                         .c = s2s_tensor_mat(dw),
                                         .m = vocab,
                                         .n = width,
                                         .k = s.n,
                                         .trans_a = true,
                                         .alpha = 1,
                                         .accumulate = accumulate_dw || begin > 0});
    }
    s2s_tape_scratch_end(tape);
}

struct s2s_tensor *s2s_op_linear_logprob(struct s2s_tape *tape, struct s2s_tensor *x,
                                         struct s2s_tensor *w, const int32_t *labels)
{
    int64_t n = s2s_tensor_rows(x), vocab = s2s_tensor_rows(w), rows = slice_rows(tape, n, vocab);
    tensor_check(tape, "log-probabilities", x, -1, -1);
    tensor_check(tape, "log-probabilities", w, -1, s2s_tensor_cols(x));
    for (int64_t i = 0; i < n; i++)
        if (labels[i] >= vocab)
            S2S_BUG("%s: label %d of %lld classes", tape->layer, labels[i], (long long)vocab);
    struct s2s_tensor *ids = s2s_tape_upload_i32(tape, labels, n), *ins[] = {x, w};
    struct s2s_tensor *y = s2s_tape_tensor(tape, S2S_F32, 2, (int64_t[]){n, 1});
    struct logprob_slice s = new_slice(tape, rows, vocab);
    for (int64_t begin = 0; begin < n; begin += rows) {
        s.n = n - begin < rows ? n - begin : rows;
        s.labels = (const int32_t *)ids->data + begin;
        logprob_stats(tape, &s, rows_from(x, begin), w, (float *)y->data + begin);
    }
    s2s_tape_scratch_end(tape);
    if (s2s_tape_needs(tape, 2, ins))
        s2s_tape_push(tape, "linear_logprob", logprob_backward, 2, ins, 1, &y)->saved = ids;
    return y;
}

/* ---- distances ---- */

struct sqdist_saved {
    struct s2s_tensor *target;
    double seed;
};

/* The distance of each row to scratch, and the gradient, where it is wanted. */
static float *sqdist_rows(struct s2s_tape *tape, struct s2s_tensor *x, struct s2s_tensor *target,
                          struct s2s_tensor *dx, double seed, bool accumulate)
{
    int64_t rows = s2s_tensor_rows(x);
    struct s2s_k_sqdist args = {.x = s2s_tensor_mat(x),
                                .target = s2s_tensor_mat(target),
                                .dx = s2s_tensor_mat(dx),
                                .loss = s2s_tape_scratch(tape, (size_t)rows * sizeof(float)),
                                .rows = rows,
                                .cols = s2s_tensor_cols(x),
                                .grad_scale = (float)seed,
                                .accumulate = accumulate};
    tensor_k(tape)->sqdist(tensor_queue(tape), &args);
    return args.loss;
}

static void sqdist_backward(struct s2s_tape *tape, struct s2s_node *node)
{
    const struct sqdist_saved *saved = node->saved;
    bool accumulate;
    struct s2s_tensor *dx = s2s_tape_grad(tape, node->in[0], &accumulate);
    sqdist_rows(tape, node->in[0], saved->target, dx, saved->seed, accumulate);
    s2s_tape_scratch_end(tape);
}

struct s2s_tensor *s2s_op_sqdist(struct s2s_tape *tape, struct s2s_tensor *x,
                                 struct s2s_tensor *target, double seed)
{
    int64_t rows = s2s_tensor_rows(x);
    tensor_check(tape, "squared distance", x, -1, -1);
    tensor_check(tape, "squared distance", target, rows, s2s_tensor_cols(x));
    struct s2s_tensor *loss = new_loss(tape);
    float *each = sqdist_rows(tape, x, target, NULL, 0, false);
    tensor_sum(tape, loss, each, rows);
    s2s_tape_scratch_end(tape);
    if (s2s_tape_needs(tape, 1, &x)) {
        struct sqdist_saved *saved = s2s_tape_host_alloc(tape, sizeof *saved);
        *saved = (struct sqdist_saved){target, seed};
        struct s2s_node *node = s2s_tape_push(tape, "sqdist", sqdist_backward, 1, &x, 1, &loss);
        node->saved = saved;
        node->always = true;
    }
    return loss;
}
