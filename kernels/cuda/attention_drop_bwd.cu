/* Attention with dropout, backward: the sizes of tiles, of fewer queries and keys than without. */
#include "kernels/cuda/attention_dkv.h"
#include "kernels/cuda/attention_dq.h"

template <class Pass>
static void run(struct s2s_queue *queue, const struct att_backward *b, bool bf16)
{
    const int width = att_width(b->p.dim);
    if (width <= 64)
        return bf16 ? Pass::template run<att_bf16, 64, 4, 32, 32>(queue, b)
                    : Pass::template run<att_f32, 64, 4, 32, 16>(queue, b);
    if (width <= 128)
        return bf16 ? Pass::template run<att_bf16, 128, 4, 32, 32>(queue, b)
                    : Pass::template run<att_f32, 128, 4, 16, 16>(queue, b);
    bf16 ? Pass::template run<att_bf16, 256, 4, 16, 16>(queue, b)
         : Pass::template run<att_f32, 256, 1, 16, 16>(queue, b);
}

struct of_queries {
    template <class P, int D, int WARPS, int N, int C>
    static void run(struct s2s_queue *queue, const struct att_backward *b)
    {
        att_queries_run<P, D, WARPS, 1, N, C, 2, true>(queue, b);
    }
};

struct of_keys {
    template <class P, int D, int WARPS, int N, int C>
    static void run(struct s2s_queue *queue, const struct att_backward *b)
    {
        att_keys_run<P, D, WARPS, 1, N, C, false, true>(queue, b);
    }
};

void att_backward_queries_dropped(struct s2s_queue *queue, const struct att_backward *b, bool bf16)
{
    run<of_queries>(queue, b, bf16);
}

void att_backward_keys_dropped(struct s2s_queue *queue, const struct att_backward *b, bool bf16)
{
    run<of_keys>(queue, b, bf16);
}
