/* Attention, gradient of queries, on Hopper: the sizes of tiles for each width of heads. */
#include "kernels/cuda/attention_dq_sm90.h"

bool att_backward_queries_sm90(struct s2s_queue *queue, const struct att_backward *b)
{
    if (!att_is_for_sm90(queue, b))
        return false;
    if (b->p.dim <= 64)
        return dq_sm90_run<dq_sm90_shape<64, 128, 2>>(queue, b);
    return dq_sm90_run<dq_sm90_shape<128, 128, 2>>(queue, b);
}
