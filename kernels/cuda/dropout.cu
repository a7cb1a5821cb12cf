/* Dropout as a map: a thread draws the blocks that its elements are of. */
#include "kernels/cuda/map.h"

struct dropout {
    struct cuda_mat x, y;
    const uint32_t *rows;
    uint32_t key[2], limit;
    float scale;
    int64_t first;
    bool accumulate;

    __device__ void draw(uint32_t (&c)[4], int64_t row, uint32_t block) const
    {
        uint32_t k0 = key[0], k1 = key[1];
        c[0] = rows[2 * row];
        c[1] = rows[2 * row + 1];
        c[2] = block;
        c[3] = 0;
#pragma unroll
        for (int round = 0; round < 10; round++) {
            const uint64_t p0 = (uint64_t)0xd2511f53U * c[0], p1 = (uint64_t)0xcd9e8d57U * c[2];
            c[0] = (uint32_t)(p1 >> 32) ^ c[1] ^ k0;
            c[2] = (uint32_t)(p0 >> 32) ^ c[3] ^ k1;
            c[1] = (uint32_t)p1;
            c[3] = (uint32_t)p0;
            k0 += 0x9e3779b9U;
            k1 += 0xbb67ae85U;
        }
    }

    template <int N> __device__ void at(int64_t row, int64_t col) const
    {
        float v[N];
        uint32_t words[4];
        cuda_load(v, x, row, col);
#pragma unroll
        for (int i = 0; i < N; i++) {
            const int64_t e = first + col + i;
            if (i == 0 || e % 4 == 0)
                draw(words, row, (uint32_t)(e / 4));
            const uint32_t low = e & 1 ? words[1] : words[0], high = e & 1 ? words[3] : words[2];
            v[i] = (e & 2 ? high : low) < limit ? 0.0f : scale * v[i];
        }
        cuda_update(y, row, col, v, accumulate);
    }
};

void cuda_dropout(struct s2s_queue *queue, const struct s2s_k_dropout *args)
{
    const struct dropout map = {cuda_mat(&args->x),
                                cuda_mat(&args->y),
                                args->draw.rows,
                                {(uint32_t)args->draw.key, (uint32_t)(args->draw.key >> 32)},
                                (uint32_t)((double)args->draw.rate * 4294967296.0),
                                1.0f / (1.0f - args->draw.rate),
                                args->first,
                                args->accumulate};
    cuda_map(queue, map, args->rows, args->cols,
             cuda_is_wide(&args->x, args->cols) && cuda_is_wide(&args->y, args->cols));
}
