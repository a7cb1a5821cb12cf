/* Attention, gradient of queries: the sizes of tiles for each width of heads and element type. */
#include "kernels/cuda/attention_dq.h"
#include "kernels/cuda/attention_sm90.h"

static void run_bf16(struct s2s_queue *queue, const struct att_backward *b)
{
    typedef att_bf16 P;
    switch (att_width(b->p.dim)) {
    case 64:
        return att_queries_run<P, 64, 4, 2, 64, 32, 3>(queue, b);
    case 96:
        return att_queries_run<P, 96, 4, 2, 32, 32>(queue, b);
    case 128:
        return b->p.is_short ? att_queries_run<P, 128, 4, 1, 64, 64>(queue, b)
                             : att_queries_run<P, 128, 4, 2, 32, 32>(queue, b);
    case 192:
        return att_queries_run<P, 192, 4, 1, 32, 32>(queue, b);
    case 256:
        return att_queries_run<P, 256, 4, 1, 16, 16>(queue, b);
    }
}

static void run_f32(struct s2s_queue *queue, const struct att_backward *b)
{
    typedef att_f32 P;
    switch (att_width(b->p.dim)) {
    case 64:
        return att_queries_run<P, 64, 4, 1, 32, 16>(queue, b);
    case 96:
        return att_queries_run<P, 96, 4, 1, 16, 16>(queue, b);
    case 128:
        return att_queries_run<P, 128, 4, 1, 16, 16>(queue, b);
    case 192:
        return att_queries_run<P, 192, 2, 1, 16, 16>(queue, b);
    case 256:
        return att_queries_run<P, 256, 1, 1, 16, 16>(queue, b);
    }
}

void att_backward_queries(struct s2s_queue *queue, const struct att_backward *b, bool bf16)
{
    if (b->p.draw.rows)
        att_backward_queries_dropped(queue, b, bf16);
    else if (!bf16)
        run_f32(queue, b);
    else if (!att_backward_queries_sm90(queue, b))
        run_bf16(queue, b);
}
