/* Columns that ranks next to each other have of one matrix, put together on each of them. */
#include <string.h>

#include "lib/tensor/tensor_internal.h"

/* Who has which columns: rank first + k those from begin[k] on. */
struct columns {
    const struct s2s_group *group;
    int first, n, own; /* own: which of them is this rank */
    int64_t *begin;    /* [n + 1] */
};

static int64_t width_of(const struct columns *c, int k)
{
    return c->begin[k + 1] - c->begin[k];
}

/* A matrix's columns from `first` on. */
static struct s2s_mat from_column(const struct s2s_tensor *t, int64_t first)
{
    struct s2s_mat mat = s2s_tensor_mat(t);
    mat.data = (char *)mat.data + (size_t)first * s2s_dtype_size(mat.dtype);
    return mat;
}

/* Rows without gaps in the memory of a block of parts, `at` elements from its beginning. */
static struct s2s_mat packed(void *parts, int64_t at, int64_t width, enum s2s_dtype dtype)
{
    return (struct s2s_mat){(char *)parts + (size_t)at * s2s_dtype_size(dtype), width, dtype};
}

static void copy(struct s2s_tape *tape, struct s2s_mat dst, struct s2s_mat src, int64_t rows,
                 int64_t cols)
{
    tensor_k(tape)->copy(tensor_queue(tape),
                         &(struct s2s_k_copy){.src = src, .dst = dst, .rows = rows, .cols = cols});
}

/* One message to and one from each of the others: the matrices out[k] and in[k] [rows, ..]. */
static void exchange(struct s2s_tape *tape, const struct columns *c, const struct s2s_mat *out,
                     const struct s2s_mat *in, int64_t rows)
{
    struct s2s_transfer *list = s2s_tape_host_alloc(tape, 2 * (size_t)c->n * sizeof *list);
    int n = 0;
    for (int k = 0; k < c->n; k++) {
        if (k == c->own)
            continue;
        list[n++] = (struct s2s_transfer){out[k].data, rows * out[k].stride, out[k].dtype,
                                          c->first + k, true};
        list[n++] = (struct s2s_transfer){in[k].data, rows * in[k].stride, in[k].dtype,
                                          c->first + k, false};
    }
    c->group->ops->exchange(c->group, tensor_queue(tape), list, n);
}

/* Gradients of the others' columns go to them, and theirs of this rank's come. */
static void columns_backward(struct s2s_tape *tape, struct s2s_node *node)
{
    const struct columns *c = node->saved;
    const struct s2s_tensor *dy = s2s_tape_out_grad(node->out[0]);
    const int64_t rows = s2s_tensor_rows(dy), width = width_of(c, c->own);
    const size_t size = s2s_dtype_size(dy->dtype);
    bool accumulate;
    struct s2s_tensor *dx = s2s_tape_grad(tape, node->in[0], &accumulate);
    void *theirs = s2s_tape_scratch(tape, (size_t)(rows * c->begin[c->n]) * size);
    void *mine = s2s_tape_scratch(tape, (size_t)(rows * width * c->n) * size);
    struct s2s_mat *out = s2s_tape_host_alloc(tape, 2 * (size_t)c->n * sizeof *out),
                   *in = out + c->n;
    for (int k = 0; k < c->n; k++) {
        out[k] = packed(theirs, rows * c->begin[k], width_of(c, k), dy->dtype);
        in[k] = packed(mine, k * rows * width, width, dy->dtype);
        copy(tape, k == c->own ? in[k] : out[k], from_column(dy, c->begin[k]), rows,
             width_of(c, k));
    }
    exchange(tape, c, out, in, rows);
    /* in the order of the ranks, whoever adds */
    for (int k = 0; k < c->n; k++) {
        struct s2s_tensor part = *dx;
        part.data = in[k].data;
        part.row_stride = width;
        tensor_axpby(tape, 1, &part, accumulate || k > 0 ? 1 : 0, dx);
    }
    s2s_tape_scratch_end(tape);
}

static struct columns *who_has_what(struct s2s_tape *tape, const struct s2s_columns_of *ranks)
{
    struct columns *c = s2s_tape_host_alloc(tape, sizeof *c);
    *c = (struct columns){.group = ranks->group,
                          .first = ranks->first,
                          .n = ranks->n,
                          .own = ranks->group->rank - ranks->first};
    c->begin = s2s_tape_host_alloc(tape, (size_t)(c->n + 1) * sizeof *c->begin);
    for (int k = 0; k < c->n; k++)
        c->begin[k + 1] = c->begin[k] + ranks->widths[k];
    return c;
}

struct s2s_tensor *s2s_op_gather_columns(struct s2s_tape *tape, struct s2s_tensor *x,
                                         const struct s2s_columns_of *ranks)
{
    const int64_t rows = s2s_tensor_rows(x), width = s2s_tensor_cols(x);
    if (ranks->n == 1)
        return x;
    const struct columns *c = who_has_what(tape, ranks);
    if (c->own < 0 || c->own >= c->n || width_of(c, c->own) != width || x->row_stride != width)
        S2S_BUG("%s: %lld columns of rank %d of %s, which has others", tape->layer,
                (long long)width, ranks->group->rank, ranks->group->axis);
    tape->device->n_collectives++;
    struct s2s_tensor *y = s2s_tape_tensor(tape, x->dtype, 2, (int64_t[]){rows, c->begin[c->n]});
    void *theirs =
        s2s_tape_scratch(tape, (size_t)(rows * c->begin[c->n]) * s2s_dtype_size(x->dtype));
    struct s2s_mat *out = s2s_tape_host_alloc(tape, 2 * (size_t)c->n * sizeof *out),
                   *in = out + c->n;
    for (int k = 0; k < c->n; k++) {
        out[k] = s2s_tensor_mat(x);
        in[k] = packed(theirs, rows * c->begin[k], width_of(c, k), x->dtype);
    }
    exchange(tape, c, out, in, rows);
    in[c->own] = s2s_tensor_mat(x);
    for (int k = 0; k < c->n; k++)
        copy(tape, from_column(y, c->begin[k]), in[k], rows, width_of(c, k));
    s2s_tape_scratch_end(tape);
    if (s2s_tape_needs(tape, 1, &x)) {
        struct s2s_node *node =
            s2s_tape_push(tape, "gather_columns", columns_backward, 1, &x, 1, &y);
        node->saved = (void *)c;
        node->always = true;
    }
    return y;
}
