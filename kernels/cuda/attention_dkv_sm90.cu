/* Attention, gradients of keys and values, on Hopper: the sizes of tiles for each width of heads. */
#include "kernels/cuda/attention_dkv_sm90.h"

bool att_backward_keys_sm90(struct s2s_queue *queue, const struct att_backward *b)
{
    if (!att_is_for_sm90(queue, b))
        return false;
    if (b->p.dim <= 64)
        return dkv_sm90_run<dkv_sm90_shape<64, 64, 3>>(queue, b);
    return dkv_sm90_run<dkv_sm90_shape<128, 64, 3>>(queue, b);
}
