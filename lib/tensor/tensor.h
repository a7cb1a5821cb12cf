/*
 * Tensors and the tape. A tensor is a view into an arena; a tape records coarse operations
 * (lib/tensor/ops.h) and walks them back. Nothing here reads tensor memory: values come in and go
 * out by s2s_tape_upload and s2s_tensor_read.
 *
 *     struct s2s_tape *tape = s2s_tape_new(device, true);
 *     for (each microbatch) {
 *         s2s_tape_reset(tape);
 *         struct s2s_tensor *h = s2s_op_embedding(tape, ...);
 *         ...
 *         struct s2s_tensor *loss = s2s_op_linear_xent(tape, ..., 1.0 / n_tokens_global);
 *         s2s_tape_backward(tape);
 *     }
 *
 * A loss operation is told the seed of its gradient (1/N, N the tokens of the global batch) when
 * it is recorded: so it can compute its gradient in the forward pass, and several losses of one
 * tape simply add; the walk back begins at each of them. Errors of shape are ours (S2S_BUG); data
 * was validated before it came here.
 */
#ifndef S2S_TENSOR_H
#define S2S_TENSOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/dtype.h"
#include "lib/tensor/arena.h"
#include "lib/tensor/device.h"
#include "lib/tensor/par.h"

struct s2s_error;
struct s2s_node;
struct s2s_param;
struct s2s_running;

enum { S2S_TENSOR_DIMS = 5 };

struct s2s_tensor {
    enum s2s_dtype dtype;
    int n_dims;
    int64_t shape[S2S_TENSOR_DIMS];
    int64_t row_stride; /* elements between rows; a row is the last dimension, contiguous */
    void *data;
    struct s2s_device *device;
    bool needs_grad;
    bool grad_written; /* the gradient holds something: the next writer adds */
    bool consumed;     /* an operation took over its memory, which must not be read any more */
    bool kept;         /* a backward reads it: its memory stays as it is */
    bool lent;         /* its memory is the pool's: see s2s_tape_lend */
    bool is_loss;      /* a backward begins here: its seed is in the operation that made it */
    struct s2s_tensor *grad; /* NULL before its first writer; same shape; of a parameter F32, else
                                of the tensor's dtype */
    struct s2s_tensor *root; /* whose memory and gradient this view shares; NULL: its own */
    struct s2s_tensor *parts, *next_part; /* column views whose gradients are columns of its own */
    struct s2s_node *maker;               /* of a lent one */
    struct s2s_tensor *next_alias;        /* of a lent one: others over its memory */
    struct s2s_param *param;              /* whose value this is, or NULL */
};

/* Product of all sizes but the last, the last, and both. A scalar has one row of one. */
int64_t s2s_tensor_rows(const struct s2s_tensor *tensor);
int64_t s2s_tensor_cols(const struct s2s_tensor *tensor);
int64_t s2s_tensor_numel(const struct s2s_tensor *tensor);
struct s2s_mat s2s_tensor_mat(const struct s2s_tensor *tensor); /* NULL: a NULL matrix */

/* Copies the values to host memory [numel] of the tensor's own dtype, waiting for them. */
void s2s_tensor_read(const struct s2s_tensor *tensor, void *host);
/* The same as floats, of an F32 or BF16 tensor. */
void s2s_tensor_read_f32(const struct s2s_tensor *tensor, float *host);
/* Copies host values of the tensor's dtype in. */
void s2s_tensor_write(struct s2s_tensor *tensor, const void *host);
/* dst = src on the device, of equal shapes; converts between F32 and BF16. */
void s2s_tensor_copy(struct s2s_tensor *dst, const struct s2s_tensor *src);
/* The value of a scalar (F32 or F64). */
double s2s_tensor_scalar(const struct s2s_tensor *tensor);

/* ---- tape ---- */

enum { S2S_NODE_INPUTS = 8, S2S_NODE_OUTPUTS = 8 };

struct s2s_tape;

/* One recorded operation. Its backward reads the gradients of out[] and adds to those of in[]. */
struct s2s_node {
    const char *op, *layer;
    void (*backward)(struct s2s_tape *tape, struct s2s_node *node);
    void (*again)(struct s2s_tape *tape, struct s2s_node *node); /* computes out[0] once more into
                                                                    its memory; NULL: cannot */
    struct s2s_tensor *in[S2S_NODE_INPUTS], *out[S2S_NODE_OUTPUTS];
    int n_in, n_out;
    unsigned activations; /* bit i: in[i] is no parameter (which may be gone before the tape) */
    bool always;          /* talks to other ranks or begins the backward: runs, with gradients of
                             0, also where none flowed in */
    void *saved;          /* from s2s_tape_host_alloc */
    struct s2s_node *prev, *next;
};

struct s2s_tape {
    struct s2s_device *device;
    struct s2s_arena arena; /* activations */
    struct s2s_arena host;  /* tensors, nodes, what they save */
    struct s2s_node *first, *last;
    const char *layer; /* name that new nodes carry */
    struct s2s_running
        *running;   /* of the step, which moves them; NULL: they move in the backward */
    bool recording; /* false: inference, nothing is kept for a backward */
    bool discards;  /* lent tensors are computed again in the backward */
    bool lends;     /* the next operation that can be computed again has a lent output */
};

/* Gives: s2s_tape_free. */
struct s2s_tape *s2s_tape_new(struct s2s_device *device, bool recording);
void s2s_tape_free(struct s2s_tape *tape);  /* NULL is a no-op */
void s2s_tape_reset(struct s2s_tape *tape); /* forgets all tensors and nodes, keeps the memory */
size_t s2s_tape_peak_bytes(const struct s2s_tape *tape);

/* Names the layer that records from here on, as checkpoints name it ("model.layers.3.mlp"). Copied
 * onto the tape. Returns the name before, for going back: tape->layer = before. */
const char *s2s_tape_layer(struct s2s_tape *tape, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* A new tensor of the tape, not initialised, without gradient. */
struct s2s_tensor *s2s_tape_tensor(struct s2s_tape *tape, enum s2s_dtype dtype, int n_dims,
                                   const int64_t *shape);
/* A matrix of activations, in the device's working dtype. */
struct s2s_tensor *s2s_tape_matrix(struct s2s_tape *tape, int64_t rows, int64_t cols);
/* A copy of host values [n_dims sizes]; the host buffer may be reused at once. */
struct s2s_tensor *s2s_tape_upload(struct s2s_tape *tape, enum s2s_dtype dtype, int n_dims,
                                   const int64_t *shape, const void *host);
/* Host floats as activations: in the device's working dtype. */
struct s2s_tensor *s2s_tape_upload_floats(struct s2s_tape *tape, int n_dims, const int64_t *shape,
                                          const float *host);
/* An int32 vector of host values. */
struct s2s_tensor *s2s_tape_upload_i32(struct s2s_tape *tape, const int32_t *host, int64_t n);
/* The same memory and gradient under another shape (contiguous tensors, equal numel). */
struct s2s_tensor *s2s_tape_view(struct s2s_tape *tape, struct s2s_tensor *tensor, int n_dims,
                                 const int64_t *shape);
/*
 * Views of the columns of x [rows, sum of widths]: out[i] [rows, widths[i]], whose rows stand as
 * far apart as those of x. Their gradients are columns of that of x, so that what made x (one
 * product for q, k and v) sees one gradient. Once a
 * tensor.
 */
void s2s_tape_split(struct s2s_tape *tape, struct s2s_tensor *x, int n, const int64_t *widths,
                    struct s2s_tensor **out);
/* Makes an uploaded tensor a leaf whose gradient is wanted (tests, checks by differences); the
 * gradient stays until the tape is reset. */
void s2s_tape_want_grad(struct s2s_tensor *tensor);
/* Adds src (the shape of out) to the gradient of out before a backward: what the stage after this
 * one sent back. */
void s2s_tape_seed_grad(struct s2s_tape *tape, struct s2s_tensor *out,
                        const struct s2s_tensor *src);
/* The gradient of a leaf after a backward, zeros if nothing flowed in: what the stage before this
 * one wants. Lent until the tape is reset. */
struct s2s_tensor *s2s_tape_take_grad(struct s2s_tape *tape, struct s2s_tensor *leaf);
/* The same, as device memory that outlives the tape's tensors: *bytes, to be given back with
 * s2s_pool_put(&device->pool, ..). The leaf then has none. */
void *s2s_tape_detach_grad(struct s2s_tape *tape, struct s2s_tensor *leaf, size_t *bytes);
/* Zeroed host memory that lives as long as the tape's tensors. */
void *s2s_tape_host_alloc(struct s2s_tape *tape, size_t bytes);

/* ---- for operations ---- */

/* Does this operation have to be recorded? True when the tape records and one of the n inputs
 * (NULL allowed) needs a gradient. */
bool s2s_tape_needs(const struct s2s_tape *tape, int n, struct s2s_tensor *const *in);
/* Appends a node, marks the outputs as needing a gradient. Returns the node, for `saved`. */
struct s2s_node *s2s_tape_push(struct s2s_tape *tape, const char *op,
                               void (*backward)(struct s2s_tape *, struct s2s_node *), int n_in,
                               struct s2s_tensor *const *in, int n_out,
                               struct s2s_tensor *const *out);
/*
 * The gradient of an input, to be written: *accumulate says whether to add to what is there. NULL
 * when it needs none (and for a NULL tensor).
 */
struct s2s_tensor *s2s_tape_grad(struct s2s_tape *tape, struct s2s_tensor *tensor,
                                 bool *accumulate);
/* The gradient of an output, to be read; NULL when nothing flowed into it. */
const struct s2s_tensor *s2s_tape_out_grad(const struct s2s_tensor *tensor);
/*
 * Lets `tensor` take over the gradient buffer of `output`, when it has none of its own yet (an
 * operation whose backward works in place). False: not possible, use s2s_tape_grad.
 */
bool s2s_tape_grad_steal(struct s2s_tensor *tensor, struct s2s_tensor *output);

/* Workspace of one kernel call: valid until the next s2s_tape_scratch_end. */
void *s2s_tape_scratch(struct s2s_tape *tape, size_t bytes);
void s2s_tape_scratch_end(struct s2s_tape *tape);
/* What was taken so far stays over the s2s_tape_scratch_end of other operations, until it is given
 * back: s2s_tape_scratch_release(tape, what hold returned). */
struct s2s_arena_mark s2s_tape_scratch_hold(struct s2s_tape *tape);
void s2s_tape_scratch_release(struct s2s_tape *tape, struct s2s_arena_mark before);

/* Walks the nodes from the last to the first. Gradients of activations are given back as soon as
 * they were read; those of parameters stay in their buckets. The tape can then only be reset. */
void s2s_tape_backward(struct s2s_tape *tape);

/* A part of a model: reads tensors other than parameters only through `in`, fills in `out`, and
 * gives the same result each time. */
typedef void s2s_tape_fn(struct s2s_tape *tape, void *ctx, struct s2s_tensor *const *in,
                         struct s2s_tensor **out);
/*
 * Records fn as one node that keeps only inputs and outputs: the backward runs fn again. On a tape
 * that does not record it only gives back fn's temporary memory. trained: fn uses parameters that
 * want a gradient. Outputs may be losses; fn may talk to other ranks. The inputs stay as they are
 * until the backward: fn takes over none of them.
 */
void s2s_tape_segment(struct s2s_tape *tape, s2s_tape_fn *fn, void *ctx, int n_in,
                      struct s2s_tensor *const *in, int n_out, struct s2s_tensor **out,
                      bool trained);

/*
 * Recomputation of what costs memory and little time: between s2s_tape_lend(tape, true) and a
 * reader that takes it over (s2s_nn_linear_enter and _leave), the output of one norm or activation
 * function stands in memory of the pool. s2s_tape_discard, after the last operation that reads it
 * and reads it by its node alone, gives the memory back; before the backward of these it is
 * computed again. Both are nothing where tape->discards is not set. s2s_tape_lend returns what was
 * set before.
 */
bool s2s_tape_lend(struct s2s_tape *tape, bool lends);
void s2s_tape_discard(struct s2s_tape *tape, struct s2s_tensor *tensor);

/* A place that a backward comes to when it has gone back over all that was recorded after it, also
 * where no gradient flows: calls passed(ctx, at). Nothing on a tape that does not record. */
typedef void s2s_tape_passed(void *ctx, int at);
void s2s_tape_mark(struct s2s_tape *tape, s2s_tape_passed *passed, void *ctx, int at);

/* Where the first NaN or Inf of the forward pass is. */
struct s2s_nonfinite {
    const char *layer, *op; /* live as long as the tape's tensors */
    int output;             /* which output of the operation */
    int64_t nth;            /* operation of the tape */
    int64_t count;
};
/* Looks through all outputs in the order they were computed; true when one was found. Nodes only
 * exist on a recording tape. */
bool s2s_tape_find_nonfinite(struct s2s_tape *tape, struct s2s_nonfinite *where);

#endif
