/* Attention, forward, on Hopper: the sizes of tiles for each width of heads. */
#include "kernels/cuda/attention_fwd_sm90.h"

bool att_forward_sm90(struct s2s_queue *queue, const struct att_forward *f)
{
    if (!cuda_queue_of(queue)->wgmma || f->p.n_k == 0 || !f->q.is_wide || !f->k.is_wide ||
        !f->v.is_wide)
        return false;
    if (f->p.dim <= 64)
        return forward_sm90_run<forward_sm90_shape<64, 128, 3>>(queue, f);
    if (f->p.dim <= 128)
        return forward_sm90_run<forward_sm90_shape<128, 128, 2>>(queue, f);
    return forward_sm90_run<forward_sm90_shape<256, 64, 2>>(queue, f);
}
