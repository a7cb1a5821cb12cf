/* Maps of elements by themselves: copies between types, sums of two, activations. Bound by memory.
 */
#include "kernels/cuda/map.h"

/* ---- copies ---- */

struct copy_floats {
    struct cuda_mat src, dst;
    template <int N> __device__ void at(int64_t row, int64_t col) const
    {
        float x[N];
        cuda_load(x, src, row, col);
        cuda_store(dst, row, col, x);
    }
};

/* Types that are rare: one element a thread. */
struct copy_any {
    const char *src;
    char *dst;
    int64_t src_stride, dst_stride;
    enum s2s_dtype from, to;
    template <int N> __device__ void at(int64_t row, int64_t col) const
    {
        const int64_t i = row * src_stride + col, o = row * dst_stride + col;
        double wide = 0; /* holds values of all types exactly */
        if (from == S2S_F64)
            wide = ((const double *)src)[i];
        else if (from == S2S_I32)
            wide = ((const int32_t *)src)[i];
        else if (from == S2S_BF16)
            wide = cuda_of_bf16(((const uint16_t *)src)[i]);
        else
            wide = ((const float *)src)[i];
        if (to == S2S_F64)
            ((double *)dst)[o] = wide;
        else if (to == S2S_I32)
            ((int32_t *)dst)[o] = (int32_t)wide;
        else if (to == S2S_BF16)
            ((uint16_t *)dst)[o] = cuda_to_bf16((float)wide);
        else
            ((float *)dst)[o] = (float)wide;
    }
};

static bool is_float(enum s2s_dtype dtype)
{
    return dtype == S2S_F32 || dtype == S2S_BF16;
}

void cuda_copy(struct s2s_queue *queue, const struct s2s_k_copy *args)
{
    const struct s2s_mat *src = &args->src, *dst = &args->dst;
    /* integers of 32 bits travel as floats do: loads and stores keep bits */
    const bool same = src->dtype == dst->dtype && src->dtype != S2S_F64;
    if (same || (is_float(src->dtype) && is_float(dst->dtype))) {
        const struct copy_floats map = {cuda_mat(src), cuda_mat(dst)};
        cuda_map(queue, map, args->rows, args->cols,
                 cuda_is_wide(src, args->cols) && cuda_is_wide(dst, args->cols));
        return;
    }
    const struct copy_any map = {(const char *)src->data,
                                 (char *)dst->data,
                                 src->stride,
                                 dst->stride,
                                 src->dtype,
                                 dst->dtype};
    cuda_map(queue, map, args->rows, args->cols, false);
}

struct fill {
    struct cuda_mat dst;
    float value;
    template <int N> __device__ void at(int64_t row, int64_t col) const
    {
        float x[N];
#pragma unroll
        for (int i = 0; i < N; i++)
            x[i] = value;
        cuda_store(dst, row, col, x);
    }
};

struct fill_any {
    char *dst;
    int64_t stride;
    double value;
    bool is_int;
    template <int N> __device__ void at(int64_t row, int64_t col) const
    {
        if (is_int)
            ((int32_t *)dst)[row * stride + col] = (int32_t)value;
        else
            ((double *)dst)[row * stride + col] = value;
    }
};

void cuda_fill(struct s2s_queue *queue, const struct s2s_k_fill *args)
{
    if (is_float(args->dst.dtype)) {
        const struct fill map = {cuda_mat(&args->dst), (float)args->value};
        cuda_map(queue, map, args->rows, args->cols, cuda_is_wide(&args->dst, args->cols));
        return;
    }
    const struct fill_any map = {(char *)args->dst.data, args->dst.stride, args->value,
                                 args->dst.dtype == S2S_I32};
    cuda_map(queue, map, args->rows, args->cols, false);
}

/* ---- sums of two ---- */

struct axpby {
    struct cuda_mat x, z, y;
    float alpha, beta;
    template <int N> __device__ void at(int64_t row, int64_t col) const
    {
        float a[N], b[N];
        cuda_load(a, x, row, col);
        if (z.data)
            cuda_load(b, z, row, col);
#pragma unroll
        for (int i = 0; i < N; i++)
            a[i] = z.data ? alpha * a[i] + beta * b[i] : alpha * a[i];
        cuda_store(y, row, col, a);
    }
};

void cuda_axpby(struct s2s_queue *queue, const struct s2s_k_axpby *args)
{
    const struct axpby map = {cuda_mat(&args->x), cuda_mat(&args->z), cuda_mat(&args->y),
                              args->alpha, args->beta};
    cuda_map(queue, map, args->rows, args->cols,
             cuda_is_wide(&args->x, args->cols) && cuda_is_wide(&args->z, args->cols) &&
                 cuda_is_wide(&args->y, args->cols));
}

/* ---- activations ---- */

static __device__ __forceinline__ float sigmoid(float z)
{
    return 1.0f / (1.0f + expf(-z));
}

/* act(z), and its slope into *slope */
static __device__ __forceinline__ float act_of(enum s2s_act act, float z, float *slope)
{
    float s, t;
    switch (act) {
    case S2S_ACT_SILU:
        s = sigmoid(z);
        *slope = s * (1.0f + z * (1.0f - s));
        return z * s;
    case S2S_ACT_GELU_TANH:
        t = tanhf(0.7978845608f * (z + 0.044715f * z * z * z));
        *slope = 0.5f * (1.0f + t) +
                 0.5f * z * (1.0f - t * t) * 0.7978845608f * (1.0f + 3 * 0.044715f * z * z);
        return 0.5f * z * (1.0f + t);
    case S2S_ACT_GELU:
        s = 0.5f * (1.0f + erff(z * 0.7071067812f));
        *slope = s + z * 0.3989422804f * expf(-0.5f * z * z);
        return z * s;
    case S2S_ACT_RELU:
        *slope = z > 0 ? 1.0f : 0.0f;
        return z > 0 ? z : 0.0f;
    case S2S_ACT_RELU2:
        *slope = z > 0 ? 2 * z : 0.0f;
        return z > 0 ? z * z : 0.0f;
    case S2S_ACT_SIGMOID:
        s = sigmoid(z);
        *slope = s * (1.0f - s);
        return s;
    }
    *slope = 0;
    return 0;
}

struct glu {
    struct cuda_mat gate, up, y;
    enum s2s_act act;
    template <int N> __device__ void at(int64_t row, int64_t col) const
    {
        float z[N], u[N], slope;
        cuda_load(z, gate, row, col);
        if (up.data)
            cuda_load(u, up, row, col);
#pragma unroll
        for (int i = 0; i < N; i++)
            z[i] = act_of(act, z[i], &slope) * (up.data ? u[i] : 1.0f);
        cuda_store(y, row, col, z);
    }
};

void cuda_glu(struct s2s_queue *queue, const struct s2s_k_glu *args)
{
    const struct glu map = {cuda_mat(&args->gate), cuda_mat(&args->up), cuda_mat(&args->y),
                            args->act};
    cuda_map(queue, map, args->rows, args->cols,
             cuda_is_wide(&args->gate, args->cols) && cuda_is_wide(&args->up, args->cols) &&
                 cuda_is_wide(&args->y, args->cols));
}

struct glu_backward {
    struct cuda_mat gate, up, dy, dgate, dup;
    enum s2s_act act;
    bool accumulate_dgate, accumulate_dup;
    template <int N> __device__ void at(int64_t row, int64_t col) const
    {
        float z[N], u[N], d[N], value[N], slope;
        cuda_load(z, gate, row, col);
        cuda_load(d, dy, row, col);
        if (up.data)
            cuda_load(u, up, row, col);
#pragma unroll
        for (int i = 0; i < N; i++) {
            value[i] = act_of(act, z[i], &slope) * d[i];
            z[i] = slope * d[i] * (up.data ? u[i] : 1.0f);
        }
        if (dgate.data)
            cuda_update(dgate, row, col, z, accumulate_dgate);
        if (dup.data)
            cuda_update(dup, row, col, value, accumulate_dup);
    }
};

void cuda_glu_backward(struct s2s_queue *queue, const struct s2s_k_glu_backward *args)
{
    const struct glu_backward map = {
        cuda_mat(&args->gate), cuda_mat(&args->up), cuda_mat(&args->dy),    cuda_mat(&args->dgate),
        cuda_mat(&args->dup),  args->act,           args->accumulate_dgate, args->accumulate_dup};
    const int64_t cols = args->cols;
    cuda_map(queue, map, args->rows, cols,
             cuda_is_wide(&args->gate, cols) && cuda_is_wide(&args->up, cols) &&
                 cuda_is_wide(&args->dy, cols) && cuda_is_wide(&args->dgate, cols) &&
                 cuda_is_wide(&args->dup, cols));
}
