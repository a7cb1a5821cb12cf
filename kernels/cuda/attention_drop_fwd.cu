/* Attention with dropout, forward: the sizes of tiles, of fewer queries and keys than without. */
#include "kernels/cuda/attention_fwd.h"

template <class P, int D, int N>
static void run(struct s2s_queue *queue, const struct att_forward *f)
{
    att_forward_run<P, D, 4, 1, N, 2, true>(queue, f);
}

void att_forward_dropped(struct s2s_queue *queue, const struct att_forward *f, bool bf16)
{
    const int width = att_width(f->p.dim);
    if (width <= 64)
        return bf16 ? run<att_bf16, 64, 64>(queue, f) : run<att_f32, 64, 32>(queue, f);
    if (width <= 128)
        return bf16 ? run<att_bf16, 128, 32>(queue, f) : run<att_f32, 128, 16>(queue, f);
    bf16 ? run<att_bf16, 256, 32>(queue, f) : run<att_f32, 256, 16>(queue, f);
}
