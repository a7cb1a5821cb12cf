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

/* act and bf16 are constants in each call below, so that each becomes a loop of its own without
 * branches */
CPU_INLINE void forward_row(enum s2s_act act, const struct s2s_k_glu *args, int64_t r, bool bf16)
{
    const int64_t cols = args->cols;
    const void *gate = cpu_any_row(&args->gate, r);
    const void *up = args->up.data ? cpu_any_row(&args->up, r) : NULL;
    void *y = cpu_any_row(&args->y, r);
    if (up)
#pragma omp simd
        for (int64_t i = 0; i < cols; i++)
            cpu_store(y, i, act_value(act, cpu_load(gate, i, bf16)) * cpu_load(up, i, bf16), bf16);
    else
#pragma omp simd
        for (int64_t i = 0; i < cols; i++)
            cpu_store(y, i, act_value(act, cpu_load(gate, i, bf16)), bf16);
}

/* CALL(act, bf16) with both as constants */
#define OF_TYPE(act) \
    case act: \
        if (bf16) \
            CALL(act, true); \
        else \
            CALL(act, false); \
        break;
#define OF_EACH_ACT \
    OF_TYPE(S2S_ACT_SILU) \
    OF_TYPE(S2S_ACT_GELU_TANH) \
    OF_TYPE(S2S_ACT_GELU) \
    OF_TYPE(S2S_ACT_RELU) \
    OF_TYPE(S2S_ACT_RELU2) \
    OF_TYPE(S2S_ACT_SIGMOID)

void cpu_glu(struct s2s_queue *queue, const struct s2s_k_glu *args)
{
    const bool bf16 = cpu_is_bf16(&args->gate);
#pragma omp parallel for num_threads(queue->lanes) \
    schedule(static) if (args->rows * args->cols > CPU_PARALLEL_MIN)
    for (int64_t r = 0; r < args->rows; r++)
        switch (args->act) {
#define CALL(act, of_bf16) forward_row(act, args, r, of_bf16)
            OF_EACH_ACT
#undef CALL
        }
}

CPU_INLINE void gate_row(enum s2s_act act, const void *gate, const void *up, const void *dy,
                         void *dgate, int64_t cols, bool accumulate, bool bf16)
{
    if (!dgate)
        return;
    /* two loops: a load that depends on a pointer being there keeps one from becoming vectors */
    if (up)
#pragma omp simd
        for (int64_t i = 0; i < cols; i++) {
            float d = act_slope(act, cpu_load(gate, i, bf16)) * cpu_load(dy, i, bf16) *
                      cpu_load(up, i, bf16);
            cpu_store(dgate, i, accumulate ? cpu_load(dgate, i, bf16) + d : d, bf16);
        }
    else
#pragma omp simd
        for (int64_t i = 0; i < cols; i++) {
            float d = act_slope(act, cpu_load(gate, i, bf16)) * cpu_load(dy, i, bf16);
            cpu_store(dgate, i, accumulate ? cpu_load(dgate, i, bf16) + d : d, bf16);
        }
}

CPU_INLINE void backward_row(enum s2s_act act, const struct s2s_k_glu_backward *args, int64_t r,
                             bool bf16)
{
    const int64_t cols = args->cols;
    const void *gate = cpu_any_row(&args->gate, r), *dy = cpu_any_row(&args->dy, r);
    const void *up = args->up.data ? cpu_any_row(&args->up, r) : NULL;
    if (args->dup.data) {
        void *dup = cpu_any_row(&args->dup, r);
        if (args->accumulate_dup)
#pragma omp simd
            for (int64_t i = 0; i < cols; i++)
                cpu_store(dup, i,
                          cpu_load(dup, i, bf16) +
                              act_value(act, cpu_load(gate, i, bf16)) * cpu_load(dy, i, bf16),
                          bf16);
        else
#pragma omp simd
            for (int64_t i = 0; i < cols; i++)
                cpu_store(dup, i, act_value(act, cpu_load(gate, i, bf16)) * cpu_load(dy, i, bf16),
                          bf16);
    }
    void *dgate = args->dgate.data ? cpu_any_row(&args->dgate, r) : NULL;
    if (args->accumulate_dgate)
        gate_row(act, gate, up, dy, dgate, cols, true, bf16);
    else
        gate_row(act, gate, up, dy, dgate, cols, false, bf16);
}

void cpu_glu_backward(struct s2s_queue *queue, const struct s2s_k_glu_backward *args)
{
    const bool bf16 = cpu_is_bf16(&args->gate);
#pragma omp parallel for num_threads(queue->lanes) \
    schedule(static) if (args->rows * args->cols > CPU_PARALLEL_MIN)
    for (int64_t r = 0; r < args->rows; r++)
        switch (args->act) {
#define CALL(act, of_bf16) backward_row(act, args, r, of_bf16)
            OF_EACH_ACT
#undef CALL
        }
}
