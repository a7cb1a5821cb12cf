/* Products of groups of rows: the sizes of tiles, and the entry. */
#include "kernels/cuda/gemm_grouped.h"

/* Rows of a group, on average, below which tiles are low. */
enum { FEW_ROWS = 96 };

static bool is_wide(const struct s2s_mat *mat, int64_t step)
{
    const int64_t group = mat->dtype == S2S_BF16 ? 8 : 4;
    return (uintptr_t)mat->data % 16 == 0 && mat->stride % group == 0 && step % group == 0;
}

static struct grouped grouped_of(const struct s2s_k_gemm_grouped *args)
{
    const int64_t size = args->a.dtype == S2S_BF16 ? 2 : 4;
    const int64_t step_b = args->of_weights ? 0 : args->step,
                  step_c = args->of_weights ? args->step : 0;
    const uintptr_t pair = args->c.dtype == S2S_BF16 ? 4 : 8;
    const struct grouped g = {(const char *)args->a.data,
                              (const char *)args->b.data,
                              args->a.stride * size,
                              args->b.stride * size,
                              cuda_mat(&args->c),
                              args->offsets,
                              args->step,
                              (int)args->n_groups,
                              (int)args->n,
                              (int)args->k,
                              is_wide(&args->a, 0),
                              is_wide(&args->b, step_b),
                              (uintptr_t)args->c.data % pair == 0 && args->c.stride % 2 == 0 &&
                                  step_c % 2 == 0,
                              args->accumulate};
    return g;
}

template <class P, grouped_form FORM, int M, int N, int MT, int NT>
static void run_tiles(struct s2s_queue *queue, const struct s2s_k_gemm_grouped *args)
{
    typedef grouped_shape<P, FORM, M, N, MT, NT> S;
    const int64_t cols = cuda_ceil_div(args->n, S::COLS);
    /* each group may end within a tile */
    const int64_t tiles = args->of_weights ? args->n_groups * cuda_ceil_div(args->k, S::ROWS)
                                           : args->rows / S::ROWS + args->n_groups;
    LAUNCH(queue, grouped_kernel<S>, (unsigned)(tiles * cols), S::THREADS, S::SHARED_BYTES,
           grouped_of(args));
}

template <grouped_form FORM>
static void run(struct s2s_queue *queue, const struct s2s_k_gemm_grouped *args)
{
    const int64_t high = args->of_weights ? args->k : args->rows / args->n_groups;
    if (args->a.dtype == S2S_BF16 && high >= FEW_ROWS)
        run_tiles<att_bf16, FORM, 2, 2, 4, 8>(queue, args);
    else if (args->a.dtype == S2S_BF16)
        run_tiles<att_bf16, FORM, 2, 2, 2, 8>(queue, args);
    else if (cuda_queue_of(queue)->tf32)
        run_tiles<grouped_tf32, FORM, 2, 2, 2, 8>(queue, args);
    else
        run_tiles<att_f32, FORM, 2, 2, 2, 8>(queue, args);
}

void cuda_gemm_grouped(struct s2s_queue *queue, const struct s2s_k_gemm_grouped *args)
{
    if (args->n == 0 || args->n_groups == 0)
        return;
    if (args->of_weights)
        run<GROUPED_TN>(queue, args);
    else if (args->trans_b)
        run<GROUPED_NT>(queue, args);
    else
        run<GROUPED_NN>(queue, args);
}
