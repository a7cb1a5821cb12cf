/*
 * Attention over sequences that are cut over ranks. The kernel takes spans of queries and the keys
 * that they see; so each way of sharing is a table of spans, and what is sent before and after.
 */
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/tensor/tensor_internal.h"

/* One call, for its forward and its backward. Matrices of this rank's rows: q, o [n, n_heads dim],
 * k, v [n, n_kv_heads dim]. */
struct attention {
    const struct s2s_spans_cp *cp;
    struct s2s_attention_shape shape;
    struct s2s_mat q, k, v, o;
    float *lse;                /* [n, n_heads] */
    struct s2s_mat in, out;    /* a2a: all rows of this rank's heads, q|k|v and o */
    int64_t q_width, kv_width; /* columns */
};

/* ---- spans ---- */

/* Chunks r and 2 R - 1 - r, over all keys up to their ends. */
static struct s2s_spans over_all_keys(struct s2s_tape *tape, const int32_t *cu, int64_t n_seqs,
                                      int64_t n, const struct s2s_group *group)
{
    const int32_t size = group->size, rank = group->rank;
    struct s2s_span *spans = s2s_xmalloc((size_t)(2 * n_seqs + 1) * sizeof *spans);
    for (int64_t s = 0; s < n_seqs; s++) {
        const int32_t len = (cu[s + 1] - cu[s]) / 2, first = cu[s] * size;
        for (int32_t half = 0; half < 2; half++) {
            const int32_t chunk = half ? 2 * size - 1 - rank : rank;
            spans[2 * s + half] =
                (struct s2s_span){cu[s] + half * len, len, first, (chunk + 1) * len, chunk * len};
        }
    }
    const struct s2s_spans out = s2s_op_spans_of(tape, spans, 2 * n_seqs, n, n * size);
    free(spans);
    return out;
}

/* Keys from a rank below: its first chunks come before both of ours, its second ones after. From a
 * rank above: both come before our second chunks, and after the first. */
static struct s2s_spans of_others(struct s2s_tape *tape, const int32_t *cu, int64_t n_seqs,
                                  int64_t n, bool higher)
{
    struct s2s_span *spans = s2s_xmalloc((size_t)(n_seqs + 1) * sizeof *spans);
    for (int64_t s = 0; s < n_seqs; s++) {
        const int32_t len = (cu[s + 1] - cu[s]) / 2;
        spans[s] = higher ? (struct s2s_span){cu[s] + len, len, cu[s], 2 * len, S2S_SPAN_ALL}
                          : (struct s2s_span){cu[s], 2 * len, cu[s], len, S2S_SPAN_ALL};
    }
    const struct s2s_spans out = s2s_op_spans_of(tape, spans, n_seqs, n, n);
    free(spans);
    return out;
}

/* Whole sequences, of which each rank has 1 / factor of the bounds. */
static struct s2s_spans of_sequences(struct s2s_tape *tape, const int32_t *cu, int64_t n_seqs,
                                     int64_t n, int32_t factor)
{
    struct s2s_span *spans = s2s_xmalloc((size_t)(n_seqs + 1) * sizeof *spans);
    for (int64_t s = 0; s < n_seqs; s++) {
        const int32_t first = cu[s] * factor, len = cu[s + 1] * factor - first;
        spans[s] = (struct s2s_span){first, len, first, len, 0};
    }
    const struct s2s_spans out = s2s_op_spans_of(tape, spans, n_seqs, n * factor, n * factor);
    free(spans);
    return out;
}

struct s2s_spans_cp s2s_op_spans_cp(struct s2s_tape *tape, const int32_t *cu, int64_t n_seqs,
                                    int64_t n, const int32_t *order, const struct s2s_group *group,
                                    enum s2s_cp_comm comm)
{
    const int size = s2s_group_size(group);
    struct s2s_spans_cp cp = {.group = group, .comm = comm, .n = n};
    for (int64_t s = 0; size > 1 && s <= n_seqs; s++)
        if (cu[s] % 2)
            S2S_BUG("%s: a sequence of two chunks ends at slot %d", tape->layer, cu[s]);
    if (size > 1 && comm != S2S_CP_P2P)
        cp.order = s2s_tape_upload_i32(tape, order, n * size);
    if (size > 1 && comm == S2S_CP_ALL_GATHER)
        cp.own = over_all_keys(tape, cu, n_seqs, n, group);
    else
        cp.own = of_sequences(tape, cu, n_seqs, n, comm == S2S_CP_ALL_TO_ALL ? size : 1);
    if (size > 1 && comm == S2S_CP_P2P) {
        cp.lower = of_others(tape, cu, n_seqs, n, false);
        cp.higher = of_others(tape, cu, n_seqs, n, true);
    }
    return cp;
}

/* Chunk `half` of what rank `from` has, with the nearest of which our queries are nearer than the
 * window. */
static struct s2s_spans of_chunk(struct s2s_tape *tape, const struct s2s_spans_cp *cp,
                                 const int32_t *cu, int64_t n_seqs, int32_t from, int32_t half)
{
    const int32_t last = 2 * cp->group->size - 1, rank = cp->group->rank;
    const int32_t own[] = {rank, last - rank}, chunk = half ? last - from : from;
    struct s2s_span *spans = s2s_xmalloc((size_t)(2 * n_seqs + 1) * sizeof *spans);
    int64_t n = 0;
    for (int64_t s = 0; s < n_seqs; s++) {
        const int32_t len = (cu[s + 1] - cu[s]) / 2;
        for (int32_t i = 0; i < 2; i++) {
            const int32_t shift = (own[i] - chunk) * len;
            if (own[i] >= chunk && shift - len + 1 < cp->window)
                spans[n++] =
                    (struct s2s_span){cu[s] + i * len, len, cu[s] + half * len, len, shift};
        }
    }
    const struct s2s_spans out = s2s_op_spans_of(tape, spans, n, cp->n, cp->n);
    free(spans);
    return out;
}

void s2s_op_spans_cp_window(struct s2s_tape *tape, struct s2s_spans_cp *cp, const int32_t *cu,
                            int64_t n_seqs, int64_t window)
{
    const int size = s2s_group_size(cp->group);
    cp->window = window;
    if (size == 1 || cp->comm != S2S_CP_P2P)
        return;
    cp->chunks = s2s_tape_host_alloc(tape, (size_t)(2 * size) * sizeof *cp->chunks);
    for (int32_t i = 0; i < 2 * size; i++)
        cp->chunks[i] = of_chunk(tape, cp, cu, n_seqs, i / 2, i % 2);
}

/* ---- rows and gradients ---- */

/* The gradient of an input (+)= g. */
static void give_grad(struct s2s_tape *tape, struct s2s_tensor *x, struct s2s_mat g)
{
    bool accumulate;
    struct s2s_tensor *dx = s2s_tape_grad(tape, x, &accumulate);
    if (!dx)
        return;
    const int64_t rows = s2s_tensor_rows(x), cols = s2s_tensor_cols(x);
    if (accumulate)
        tensor_mat_add(tape, s2s_tensor_mat(dx), g, rows, cols);
    else
        tensor_mat_copy(tape, s2s_tensor_mat(dx), g, rows, cols);
}

static struct tensor_trade trade_of(const struct s2s_spans_cp *cp)
{
    return (struct tensor_trade){cp->group, cp->n, cp->order->data};
}

/* ---- the kernels ---- */

static struct s2s_k_attention arguments(const struct attention *a, const struct s2s_spans *spans)
{
    struct s2s_k_attention args = tensor_attention(spans, &a->shape);
    args.q = a->q;
    args.k = a->k;
    args.v = a->v;
    args.o = a->o;
    args.lse = a->lse;
    return args;
}

static void run(struct s2s_tape *tape, struct s2s_k_attention *args)
{
    args->workspace =
        s2s_tape_scratch(tape, tensor_k(tape)->attention_workspace(tensor_queue(tape), args));
    tensor_k(tape)->attention(tensor_queue(tape), args);
    s2s_tape_scratch_end(tape);
}

static void run_backward(struct s2s_tape *tape, struct s2s_k_attention_backward *args)
{
    args->workspace = s2s_tape_scratch(
        tape, tensor_k(tape)->attention_backward_workspace(tensor_queue(tape), args));
    tensor_k(tape)->attention_backward(tensor_queue(tape), args);
    s2s_tape_scratch_end(tape);
}

/* Sets k and v to columns of kv [rows, 2 kv_width]. */
static void take_kv(const struct attention *a, struct s2s_mat kv, struct s2s_mat *k,
                    struct s2s_mat *v)
{
    *k = kv;
    *v = tensor_mat_from(kv, 0, a->kv_width);
}

/* This rank's keys and values as columns of kv [n, 2 kv_width]. */
static void pack_kv(struct s2s_tape *tape, const struct attention *a, struct s2s_mat kv)
{
    tensor_mat_copy(tape, kv, a->k, a->cp->n, a->kv_width);
    tensor_mat_copy(tape, tensor_mat_from(kv, 0, a->kv_width), a->v, a->cp->n, a->kv_width);
}

/* The gradients of q, k and v are wanted, or not, by all ranks alike. */
static bool wants_kv(const struct s2s_node *node)
{
    return node->in[1]->needs_grad || node->in[2]->needs_grad;
}

/* ---- all_gather ---- */

/* Keys and values of everybody, in order; all is room for as much. */
static struct s2s_mat gather_kv(struct s2s_tape *tape, const struct attention *a,
                                struct s2s_mat all)
{
    const struct s2s_spans_cp *cp = a->cp;
    const int64_t width = 2 * a->kv_width;
    const struct tensor_trade trade = trade_of(cp);
    struct s2s_mat mine = tensor_mat_from(all, cp->group->rank * cp->n, 0);
    struct s2s_mat kv = tensor_scratch_mat(tape, cp->n * cp->group->size, width, a->k.dtype);
    pack_kv(tape, a, mine);
    cp->group->ops->all_gather(cp->group, tensor_queue(tape), all.data, mine.data, cp->n * width,
                               a->k.dtype);
    tensor_order_rows(tape, &trade, kv, all, width, false);
    return kv;
}

static void gather_forward(struct s2s_tape *tape, const struct attention *a)
{
    struct s2s_k_attention args = arguments(a, &a->cp->own);
    struct s2s_mat all =
        tensor_scratch_mat(tape, a->cp->n * a->cp->group->size, 2 * a->kv_width, a->k.dtype);
    take_kv(a, gather_kv(tape, a, all), &args.k, &args.v);
    run(tape, &args);
}

static void gather_backward(struct s2s_tape *tape, const struct attention *a, struct s2s_node *node)
{
    const struct s2s_spans_cp *cp = a->cp;
    const int64_t rows = cp->n * cp->group->size, width = 2 * a->kv_width;
    struct s2s_k_attention_backward args = {.forward = arguments(a, &cp->own)};
    const struct tensor_trade trade = trade_of(a->cp);
    const bool kv_too = wants_kv(node);
    struct s2s_mat all = tensor_scratch_mat(tape, rows, width, a->k.dtype), d_kv = {0};
    take_kv(a, gather_kv(tape, a, all), &args.forward.k, &args.forward.v);
    args.d_o = s2s_tensor_mat(s2s_tape_out_grad(node->out[0]));
    args.dq = s2s_tensor_mat(s2s_tape_grad(tape, node->in[0], &args.accumulate_dq));
    if (kv_too) {
        d_kv = tensor_scratch_mat(tape, rows, width, a->k.dtype);
        take_kv(a, d_kv, &args.dk, &args.dv);
    }
    const struct s2s_arena_mark before = s2s_tape_scratch_hold(tape);
    run_backward(tape, &args);
    if (kv_too) {
        tensor_order_rows(tape, &trade, all, d_kv, width, true);
        /* d_kv was read: its first rows are room for this rank's */
        cp->group->ops->reduce_scatter(cp->group, tensor_queue(tape), d_kv.data, all.data,
                                       cp->n * width, a->k.dtype);
        give_grad(tape, node->in[1], d_kv);
        give_grad(tape, node->in[2], tensor_mat_from(d_kv, 0, a->kv_width));
    }
    s2s_tape_scratch_release(tape, before);
}

/* ---- a2a ---- */

/* The heads of this rank alone. */
static struct attention own_heads(const struct attention *a)
{
    const int size = a->cp->group->size;
    struct attention own = *a;
    own.shape.n_heads /= size;
    own.shape.n_kv_heads /= size;
    own.shape.first_head += a->cp->group->rank * own.shape.n_heads;
    own.q_width /= size;
    own.kv_width /= size;
    own.q = own.in;
    own.k = tensor_mat_from(own.in, 0, own.q_width);
    own.v = tensor_mat_from(own.in, 0, own.q_width + own.kv_width);
    own.o = own.out;
    return own;
}

static void trade_forward(struct s2s_tape *tape, const struct attention *a)
{
    const struct s2s_spans_cp *cp = a->cp;
    const struct attention own = own_heads(a);
    const struct tensor_trade trade = trade_of(cp);
    const struct tensor_part parts[] = {{a->q, own.q_width, 0, 1},
                                        {a->k, own.kv_width, own.q_width, 1},
                                        {a->v, own.kv_width, own.q_width + own.kv_width, 1}};
    struct s2s_k_attention args = arguments(&own, &cp->own);
    tensor_rows_to_columns(tape, &trade, parts, 3, own.in);
    s2s_tape_scratch_end(tape);
    run(tape, &args);
    const struct s2s_mat recv = tensor_columns_to_rows(tape, &trade, own.out);
    for (int r = 0; r < cp->group->size; r++)
        tensor_mat_copy(tape, tensor_mat_from(a->o, 0, r * own.q_width),
                        tensor_mat_from(recv, r * cp->n, 0), cp->n, own.q_width);
}

/* Heads of other ranks become columns of a gradient. */
static void give_heads(struct s2s_tape *tape, const struct s2s_spans_cp *cp, struct s2s_tensor *x,
                       struct s2s_mat heads, int64_t width)
{
    bool accumulate;
    const struct s2s_tensor *dx = s2s_tape_grad(tape, x, &accumulate);
    for (int r = 0; dx && r < cp->group->size; r++) {
        struct s2s_mat dst = tensor_mat_from(s2s_tensor_mat(dx), 0, r * width);
        if (accumulate)
            tensor_mat_add(tape, dst, tensor_mat_from(heads, r * cp->n, 0), cp->n, width);
        else
            tensor_mat_copy(tape, dst, tensor_mat_from(heads, r * cp->n, 0), cp->n, width);
    }
}

static void trade_backward(struct s2s_tape *tape, const struct attention *a, struct s2s_node *node)
{
    const struct s2s_spans_cp *cp = a->cp;
    const struct attention own = own_heads(a);
    const int64_t rows = cp->n * cp->group->size;
    const struct tensor_trade trade = trade_of(cp);
    const struct tensor_part part = {s2s_tensor_mat(s2s_tape_out_grad(node->out[0])), own.q_width,
                                     0, 1};
    struct s2s_k_attention_backward args = {.forward = arguments(&own, &cp->own)};
    args.d_o = tensor_scratch_mat(tape, rows, own.q_width, a->q.dtype);
    struct s2s_mat grads = tensor_scratch_mat(tape, rows, own.in.stride, a->q.dtype);
    args.dq = grads;
    take_kv(&own, tensor_mat_from(grads, 0, own.q_width), &args.dk, &args.dv);
    const struct s2s_arena_mark before = s2s_tape_scratch_hold(tape);
    tensor_rows_to_columns(tape, &trade, &part, 1, args.d_o);
    s2s_tape_scratch_end(tape);
    run_backward(tape, &args);
    const struct s2s_mat recv = tensor_columns_to_rows(tape, &trade, grads);
    give_heads(tape, cp, node->in[0], recv, own.q_width);
    give_heads(tape, cp, node->in[1], tensor_mat_from(recv, 0, own.q_width), own.kv_width);
    give_heads(tape, cp, node->in[2], tensor_mat_from(recv, 0, own.q_width + own.kv_width),
               own.kv_width);
    s2s_tape_scratch_release(tape, before);
}

/* ---- p2p ---- */

/* Keys and values on their way round: those at hand, and room for the next. */
struct ring {
    const struct s2s_group *group;
    struct s2s_mat kv[2];
    int64_t n; /* elements of a message */
    int64_t ticket;
};

static struct ring open_ring(struct s2s_tape *tape, const struct attention *a)
{
    const struct s2s_spans_cp *cp = a->cp;
    struct ring ring = {.group = cp->group, .n = cp->n * 2 * a->kv_width};
    for (int i = 0; i < 2; i++)
        ring.kv[i] = tensor_scratch_mat(tape, cp->n, 2 * a->kv_width, a->k.dtype);
    pack_kv(tape, a, ring.kv[0]);
    return ring;
}

/* Adds a message to the next rank, and the one that comes from the rank before. */
static int add_messages(struct s2s_transfer *list, const struct ring *ring, struct s2s_mat send,
                        struct s2s_mat recv)
{
    const int size = ring->group->size, rank = ring->group->rank;
    list[0] = (struct s2s_transfer){send.data, ring->n, send.dtype, (rank + 1) % size, true};
    list[1] =
        (struct s2s_transfer){recv.data, ring->n, recv.dtype, (rank + size - 1) % size, false};
    return 2;
}

static void start(struct s2s_tape *tape, struct ring *ring, const struct s2s_transfer *list, int n)
{
    ring->ticket =
        n > 0 ? ring->group->ops->start_exchange(ring->group, tensor_queue(tape), list, n) : 0;
}

static void wait_for(struct s2s_tape *tape, const struct ring *ring)
{
    if (ring->ticket > 0)
        ring->group->ops->wait(ring->group, tensor_queue(tape), ring->ticket);
}

/* What this rank's queries see of the keys that are here in a step, in up to two parts. Gives how
 * many there are: with a window a chunk each, as distances count. */
static int spans_at(const struct attention *a, int step, const struct s2s_spans **spans)
{
    const struct s2s_spans_cp *cp = a->cp;
    const int rank = cp->group->rank, size = cp->group->size;
    spans[0] = step == 0 ? &cp->own : step <= rank ? &cp->lower : &cp->higher;
    if (a->shape.window == 0)
        return 1;
    spans[0] = &cp->chunks[2 * ((rank + size - step) % size)];
    spans[1] = spans[0] + 1;
    return 2;
}

/* The call of a part of a step, whose keys are another rank's. */
static struct s2s_k_attention arguments_at(const struct attention *a, int step,
                                           const struct s2s_spans *spans)
{
    const struct s2s_group *group = a->cp->group;
    struct s2s_k_attention args = arguments(a, spans);
    if (a->cp->k_at)
        args.k_at = (const int32_t *)a->cp->k_at->data +
                    a->cp->n * ((group->rank + group->size - step) % group->size);
    return args;
}

/* The output of the first keys, or that of more of them, which is merged: o and lse of all rows. */
static void add_keys(struct s2s_tape *tape, const struct attention *a, int step,
                     const struct s2s_spans *spans, struct s2s_mat kv,
                     const struct s2s_k_attention_merge *merge)
{
    struct s2s_k_attention args = arguments_at(a, step, spans);
    take_kv(a, kv, &args.k, &args.v);
    if (merge) {
        args.o = merge->part;
        args.lse = (float *)merge->part_lse;
    }
    run(tape, &args);
    if (merge)
        tensor_k(tape)->attention_merge(tensor_queue(tape), merge);
}

static void ring_forward(struct s2s_tape *tape, const struct attention *a)
{
    const struct s2s_spans_cp *cp = a->cp;
    const int64_t n = cp->n, heads = a->shape.n_heads;
    struct s2s_k_attention_merge merge = {
        .o = a->o, .lse = a->lse, .n_q = n, .n_heads = heads, .dim = a->shape.dim};
    merge.part = tensor_scratch_mat(tape, n, a->q_width, a->o.dtype);
    merge.part_lse = s2s_tape_scratch(tape, (size_t)(n * heads) * sizeof(float));
    struct ring ring = open_ring(tape, a);
    const struct s2s_arena_mark before = s2s_tape_scratch_hold(tape);
    for (int step = 0; step < cp->group->size; step++) {
        struct s2s_transfer list[2];
        const struct s2s_spans *spans[2];
        const struct s2s_mat kv = ring.kv[step % 2];
        const int n_parts = spans_at(a, step, spans);
        const bool last = step + 1 == cp->group->size;
        start(tape, &ring, list, last ? 0 : add_messages(list, &ring, kv, ring.kv[1 - step % 2]));
        for (int i = 0; i < n_parts; i++)
            if (step + i == 0 || spans[i]->n_spans > 0)
                add_keys(tape, a, step, spans[i], kv, step + i == 0 ? NULL : &merge);
        wait_for(tape, &ring);
    }
    s2s_tape_scratch_release(tape, before);
}

/* All that the queries see of the keys kv: the first part stores the gradients of the keys, though
 * it may see none. */
static void run_parts(struct s2s_tape *tape, const struct attention *a, int step, struct s2s_mat kv,
                      struct s2s_k_attention_backward *args)
{
    const struct s2s_spans *spans[2];
    const int n_parts = spans_at(a, step, spans);
    struct s2s_k_attention_backward part = *args;
    for (int i = 0; i < n_parts; i++) {
        if (i > 0 && spans[i]->n_spans == 0)
            continue;
        part.forward = arguments_at(a, step, spans[i]);
        take_kv(a, kv, &part.forward.k, &part.forward.v);
        part.accumulate_dq = args->accumulate_dq || i > 0;
        part.accumulate_dk = part.accumulate_dv = i > 0;
        run_backward(tape, &part);
    }
}

/*
 * Keys go round again, and a step behind them what they have of gradients: each rank adds its own
 * and hands them on, and the last one to the rank whose keys they are, which kept its own.
 */
static void ring_backward(struct s2s_tape *tape, const struct attention *a, struct s2s_node *node)
{
    const struct s2s_spans_cp *cp = a->cp;
    const int size = cp->group->size;
    const int64_t n = cp->n, width = 2 * a->kv_width;
    const bool kv_too = wants_kv(node);
    struct ring ring = open_ring(tape, a);
    struct s2s_mat grads[2] = {{0}, {0}}, home = {0}, arrived = {0};
    struct s2s_k_attention_backward args = {.partial = true};
    args.d_o = s2s_tensor_mat(s2s_tape_out_grad(node->out[0]));
    args.dq = s2s_tensor_mat(s2s_tape_grad(tape, node->in[0], &args.accumulate_dq));
    if (kv_too) {
        home = tensor_scratch_mat(tape, n, width, a->k.dtype);
        arrived = tensor_scratch_mat(tape, n, width, a->k.dtype);
        grads[0] = tensor_scratch_mat(tape, n, width, a->k.dtype);
        grads[1] = tensor_scratch_mat(tape, n, width, a->k.dtype);
    }
    const struct s2s_arena_mark before = s2s_tape_scratch_hold(tape);
    for (int step = 0; step < size; step++) {
        struct s2s_transfer list[4];
        const struct s2s_mat kv = ring.kv[step % 2], d_kv = step ? grads[step % 2] : home;
        const bool passes_on = kv_too && step > 1;
        int n_messages = 0;
        if (step + 1 < size)
            n_messages += add_messages(list, &ring, kv, ring.kv[1 - step % 2]);
        if (passes_on)
            n_messages += add_messages(list + n_messages, &ring, grads[1 - step % 2], arrived);
        start(tape, &ring, list, n_messages);
        take_kv(a, d_kv, &args.dk, &args.dv);
        run_parts(tape, a, step, kv, &args);
        args.accumulate_dq = true;
        wait_for(tape, &ring);
        if (passes_on)
            tensor_mat_add(tape, d_kv, arrived, n, width);
    }
    if (kv_too) {
        struct s2s_transfer list[2];
        start(tape, &ring, list, add_messages(list, &ring, grads[(size - 1) % 2], arrived));
        wait_for(tape, &ring);
        tensor_mat_add(tape, home, arrived, n, width);
        give_grad(tape, node->in[1], home);
        give_grad(tape, node->in[2], tensor_mat_from(home, 0, a->kv_width));
    }
    s2s_tape_scratch_release(tape, before);
}

/* ---- the operation ---- */

static const struct {
    void (*forward)(struct s2s_tape *tape, const struct attention *a);
    void (*backward)(struct s2s_tape *tape, const struct attention *a, struct s2s_node *node);
} ways[] = {[S2S_CP_ALL_GATHER] = {gather_forward, gather_backward},
            [S2S_CP_ALL_TO_ALL] = {trade_forward, trade_backward},
            [S2S_CP_P2P] = {ring_forward, ring_backward}};

/* node: in q, k, v; saved the call */
static void attention_backward(struct s2s_tape *tape, struct s2s_node *node)
{
    const struct attention *a = node->saved;
    ways[a->cp->comm].backward(tape, a, node);
    s2s_tape_scratch_end(tape);
}

static void check(const struct s2s_tape *tape, const struct s2s_spans_cp *cp,
                  const struct s2s_attention_shape *shape)
{
    const int size = cp->group->size;
    if (cp->comm == S2S_CP_ALL_TO_ALL && (shape->n_heads % size || shape->n_kv_heads % size))
        S2S_BUG("%s: %lld heads and %lld of keys over %d ranks", tape->layer,
                (long long)shape->n_heads, (long long)shape->n_kv_heads, size);
    if (cp->comm == S2S_CP_P2P && shape->window > 0 && shape->window != cp->window)
        S2S_BUG("%s: a window of %lld in a ring; the spans are of %lld", tape->layer,
                (long long)shape->window, (long long)cp->window);
}

/* What is only wanted by a backward is in scratch where there is none. */
static void *room(struct s2s_tape *tape, bool record, int64_t rows, int64_t cols,
                  enum s2s_dtype dtype)
{
    return record ? s2s_tape_tensor(tape, dtype, 2, (int64_t[]){rows, cols})->data
                  : tensor_scratch_mat(tape, rows, cols, dtype).data;
}

struct s2s_tensor *s2s_op_attention_cp(struct s2s_tape *tape, struct s2s_tensor *q,
                                       struct s2s_tensor *k, struct s2s_tensor *v,
                                       const struct s2s_spans_cp *cp,
                                       const struct s2s_attention_shape *shape)
{
    const int size = s2s_group_size(cp->group);
    if (size == 1)
        return s2s_op_attention(tape, q, k, v, &cp->own, shape);
    const int64_t q_width = shape->n_heads * shape->dim, kv_width = shape->n_kv_heads * shape->dim;
    check(tape, cp, shape);
    tensor_check(tape, "attention", q, cp->n, q_width);
    tensor_check(tape, "attention", k, cp->n, kv_width);
    tensor_check(tape, "attention", v, cp->n, kv_width);
    struct s2s_tensor *ins[] = {q, k, v}, *o = s2s_tape_matrix(tape, cp->n, q_width);
    const bool record = s2s_tape_needs(tape, 3, ins), traded = cp->comm == S2S_CP_ALL_TO_ALL;
    struct attention *a = s2s_tape_host_alloc(tape, sizeof *a);
    *a = (struct attention){.cp = cp,
                            .shape = *shape,
                            .q = s2s_tensor_mat(q),
                            .k = s2s_tensor_mat(k),
                            .v = s2s_tensor_mat(v),
                            .o = s2s_tensor_mat(o),
                            .q_width = q_width,
                            .kv_width = kv_width};
    const int64_t rows = cp->n * size, heads = shape->n_heads;
    a->lse = traded ? room(tape, record, rows, heads / size, S2S_F32)
                    : room(tape, record, cp->n, heads, S2S_F32);
    if (traded) {
        const int64_t own = q_width / size, all = own + 2 * kv_width / size;
        a->in = (struct s2s_mat){room(tape, record, rows, all, q->dtype), all, q->dtype};
        a->out = (struct s2s_mat){room(tape, record, rows, own, q->dtype), own, q->dtype};
    }
    tape->device->n_collectives++;
    const struct s2s_arena_mark before = s2s_tape_scratch_hold(tape);
    ways[cp->comm].forward(tape, a);
    s2s_tape_scratch_release(tape, before);
    o->kept = record;
    if (record) {
        struct s2s_node *node =
            s2s_tape_push(tape, "attention_cp", attention_backward, 3, ins, 1, &o);
        node->saved = a;
        node->always = true;
    }
    return o;
}
