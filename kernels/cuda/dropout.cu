/* Dropout as a map: a thread draws the blocks that its elements are of. */
#include "kernels/cuda/draw.h"
#include "kernels/cuda/map.h"

struct dropout {
    struct cuda_mat x, y;
    struct cuda_draw draw;
    int64_t first;
    bool accumulate;

    template <int N> __device__ void at(int64_t row, int64_t col) const
    {
        float v[N];
        uint32_t words[4];
        cuda_load(v, x, row, col);
#pragma unroll
        for (int i = 0; i < N; i++) {
            const int64_t e = first + col + i;
            if (i == 0 || e % 4 == 0)
                cuda_draw_words(words, draw, row, (uint32_t)(e / 4), 0);
            v[i] = cuda_draw_pick(words, (uint32_t)e) < draw.limit ? 0.0f : draw.scale * v[i];
        }
        cuda_update(y, row, col, v, accumulate);
    }
};

void cuda_dropout(struct s2s_queue *queue, const struct s2s_k_dropout *args)
{
    const struct dropout map = {cuda_mat(&args->x), cuda_mat(&args->y),
                                cuda_draw_of(&args->draw, 0), args->first, args->accumulate};
    cuda_map(queue, map, args->rows, args->cols,
             cuda_is_wide(&args->x, args->cols) && cuda_is_wide(&args->y, args->cols));
}
