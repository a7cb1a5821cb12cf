/*
 * y = act(gate) up and its backward, one pass each. silu'(z) = s (1 + z (1 - s)), s = sigmoid(z);
 * gelu_tanh(z) = z (1 + t) / 2, t = tanh(c (z + 0.044715 z^3)), c = sqrt(2 / pi).
 */
#include "kernels/cpu/cpu.h"

static inline float act_value(enum s2s_act act, float z)
{
    switch (act) {
    case S2S_ACT_SILU:
        return z * cpu_sigmoid(z);
    case S2S_ACT_GELU_TANH:
        return 0.5f * z * (1.0f + cpu_tanh(0.7978845608f * (z + 0.044715f * z * z * z)));
    case S2S_ACT_GELU:
        return 0.5f * z * (1.0f + erff(z * 0.7071067812f));
    case S2S_ACT_RELU:
        return z > 0 ? z : 0;
    case S2S_ACT_RELU2:
        return z > 0 ? z * z : 0;
    case S2S_ACT_SIGMOID:
        return cpu_sigmoid(z);
    }
    return 0;
}

static inline float act_slope(enum s2s_act act, float z)
{
    float s, t;
    switch (act) {
    case S2S_ACT_SILU:
        s = cpu_sigmoid(z);
        return s * (1.0f + z * (1.0f - s));
    case S2S_ACT_GELU_TANH:
        t = cpu_tanh(0.7978845608f * (z + 0.044715f * z * z * z));
        return 0.5f * (1.0f + t) +
               0.5f * z * (1.0f - t * t) * 0.7978845608f * (1.0f + 3 * 0.044715f * z * z);
    case S2S_ACT_GELU:
        return 0.5f * (1.0f + erff(z * 0.7071067812f)) + z * 0.3989422804f * cpu_exp(-0.5f * z * z);
    case S2S_ACT_RELU:
        return z > 0 ? 1 : 0;
    case S2S_ACT_RELU2:
        return z > 0 ? 2 * z : 0;
    case S2S_ACT_SIGMOID:
        s = cpu_sigmoid(z);
        return s * (1.0f - s);
    }
    return 0;
}

/* act is a constant in each call below, so that each becomes a loop of its own without branches */
static inline __attribute__((always_inline)) void forward_row(enum s2s_act act, const float *gate,
                                                              const float *up, float *y,
                                                              int64_t cols)
{
    if (up)
#pragma omp simd
        for (int64_t i = 0; i < cols; i++)
            y[i] = act_value(act, gate[i]) * up[i];
    else
#pragma omp simd
        for (int64_t i = 0; i < cols; i++)
            y[i] = act_value(act, gate[i]);
}

void cpu_glu(struct s2s_queue *queue, const struct s2s_k_glu *args)
{
    const int64_t cols = args->cols;
#pragma omp parallel for num_threads(queue->lanes) \
    schedule(static) if (args->rows * cols > CPU_PARALLEL_MIN)
    for (int64_t r = 0; r < args->rows; r++) {
        const float *gate = cpu_row(&args->gate, r);
        const float *up = args->up.data ? cpu_row(&args->up, r) : NULL;
        float *y = cpu_row(&args->y, r);
        switch (args->act) {
        case S2S_ACT_SILU:
            forward_row(S2S_ACT_SILU, gate, up, y, cols);
            break;
        case S2S_ACT_GELU_TANH:
            forward_row(S2S_ACT_GELU_TANH, gate, up, y, cols);
            break;
        case S2S_ACT_GELU:
            forward_row(S2S_ACT_GELU, gate, up, y, cols);
            break;
        case S2S_ACT_RELU:
            forward_row(S2S_ACT_RELU, gate, up, y, cols);
            break;
        case S2S_ACT_RELU2:
            forward_row(S2S_ACT_RELU2, gate, up, y, cols);
            break;
        case S2S_ACT_SIGMOID:
            forward_row(S2S_ACT_SIGMOID, gate, up, y, cols);
            break;
        }
    }
}

static inline __attribute__((always_inline)) void gate_row(enum s2s_act act, const float *gate,
                                                           const float *up, const float *dy,
                                                           float *dgate, int64_t cols,
                                                           bool accumulate)
{
    if (!dgate)
        return;
    /* two loops: a load that depends on a pointer being there keeps one from becoming vectors */
    if (up)
#pragma omp simd
        for (int64_t i = 0; i < cols; i++) {
            float d = act_slope(act, gate[i]) * dy[i] * up[i];
            dgate[i] = accumulate ? dgate[i] + d : d;
        }
    else
#pragma omp simd
        for (int64_t i = 0; i < cols; i++) {
            float d = act_slope(act, gate[i]) * dy[i];
            dgate[i] = accumulate ? dgate[i] + d : d;
        }
}

static inline __attribute__((always_inline)) void backward_row(
    enum s2s_act act, const struct s2s_k_glu_backward *args, int64_t r)
{
    const int64_t cols = args->cols;
    const float *gate = cpu_row(&args->gate, r), *dy = cpu_row(&args->dy, r);
    const float *up = args->up.data ? cpu_row(&args->up, r) : NULL;
    if (args->dup.data) {
        float *dup = cpu_row(&args->dup, r);
        if (args->accumulate_dup)
#pragma omp simd
            for (int64_t i = 0; i < cols; i++)
                dup[i] += act_value(act, gate[i]) * dy[i];
        else
#pragma omp simd
            for (int64_t i = 0; i < cols; i++)
                dup[i] = act_value(act, gate[i]) * dy[i];
    }
    float *dgate = args->dgate.data ? cpu_row(&args->dgate, r) : NULL;
    if (args->accumulate_dgate)
        gate_row(act, gate, up, dy, dgate, cols, true);
    else
        gate_row(act, gate, up, dy, dgate, cols, false);
}

void cpu_glu_backward(struct s2s_queue *queue, const struct s2s_k_glu_backward *args)
{
#pragma omp parallel for num_threads(queue->lanes) \
    schedule(static) if (args->rows * args->cols > CPU_PARALLEL_MIN)
    for (int64_t r = 0; r < args->rows; r++)
        switch (args->act) {
        case S2S_ACT_SILU:
            backward_row(S2S_ACT_SILU, args, r);
            break;
        case S2S_ACT_GELU_TANH:
            backward_row(S2S_ACT_GELU_TANH, args, r);
            break;
        case S2S_ACT_GELU:
            backward_row(S2S_ACT_GELU, args, r);
            break;
        case S2S_ACT_RELU:
            backward_row(S2S_ACT_RELU, args, r);
            break;
        case S2S_ACT_RELU2:
            backward_row(S2S_ACT_RELU2, args, r);
            break;
        case S2S_ACT_SIGMOID:
            backward_row(S2S_ACT_SIGMOID, args, r);
            break;
        }
}
