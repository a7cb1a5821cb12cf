/* Arguments of products, sums and pointwise maps of matrices. */
#ifndef S2S_KERNELS_DENSE_H
#define S2S_KERNELS_DENSE_H

#include "kernels/types.h"

/*
 * c[m,n] = alpha op(a) op(b) + bias (+ c), op(a) [m,k], op(b) [k,n]; with trans_a, a is stored
 * [k,m], with trans_b, b is stored [n,k]. bias.data [n] or NULL. With n_batch there are so many
 * products, whose matrices stand step_a, step_b, step_c elements apart (0: the same one for all; of
 * c not so); the bias is one. The bias is F32; c is of the type of a and b, or F32.
 */
struct s2s_k_gemm {
    struct s2s_mat a, b, c;
    struct s2s_mat bias; /* a vector: its stride is not read */
    int64_t m, n, k;
    bool trans_a, trans_b, accumulate;
    float alpha;
    int64_t n_batch; /* 0: one product */
    int64_t step_a, step_b, step_c;
};

/*
 * A product for each group of rows: group g is rows offsets[g] .. offsets[g+1], maybe none. Its
 * matrix stands g * step elements from the first.
 *   plain:      c[i] (+)= a[i] op(b_g) for the rows i of g, a [rows, k], op(b_g) [k, n] (with
 *               trans_b stored [n, k]), c [rows, n]; step is b's
 *   of_weights: c_g (+)= a_g^T b_g, sums over the rows of g, a [rows, k], b [rows, n], c_g [k, n];
 *               step is c's
 * Rows outside of all groups are neither read nor written. c is of the type of a and b, or F32.
 */
struct s2s_k_gemm_grouped {
    struct s2s_mat a, b, c;
    const int32_t *offsets; /* [n_groups + 1], rising, device memory */
    int64_t n_groups, rows; /* rows: offsets[n_groups] is not more */
    int64_t n, k, step;
    bool of_weights, trans_b, accumulate;
};

/*
 * dst = src, in the element type of dst: F32, BF16, F64 or I32 to any of them. F64 and I32 become
 * each other directly, all else goes through F32; to nearest even, to I32 towards zero (of values
 * that it has).
 */
struct s2s_k_copy {
    struct s2s_mat src, dst;
    int64_t rows, cols;
};

/* dst = value, of the types of copy */
struct s2s_k_fill {
    struct s2s_mat dst;
    int64_t rows, cols;
    double value;
};

/* y = alpha x + beta z (z.data NULL: y = alpha x). y may be x or z. x may be F32 beside BF16, and
 * its stride 0: the same row for all. */
struct s2s_k_axpby {
    struct s2s_mat x, z, y; /* of x and z a stride of 0 is one row for all */
    int64_t rows, cols;
    float alpha, beta;
};

/* out[n] (+)= sum over the rows of x[rows, n] */
struct s2s_k_colsum {
    struct s2s_mat x;
    float *out;
    int64_t rows, cols;
    bool accumulate;
    void *workspace; /* colsum_workspace bytes */
};

enum s2s_reduce { S2S_REDUCE_SUM, S2S_REDUCE_SUMSQ, S2S_REDUCE_NONFINITE };

/* *out (+)= sum of x, of x^2, or the number of NaN and Inf in x; sums in double */
struct s2s_k_reduce {
    struct s2s_mat x;
    double *out;
    int64_t rows, cols;
    enum s2s_reduce what;
    bool accumulate;
    void *workspace; /* reduce_workspace bytes */
};

/* y[r] (+)= the transpose of x[r], [a, b] -> [b, a], for each of `rows` */
struct s2s_k_transpose {
    struct s2s_mat x, y; /* [rows, a * b] */
    int64_t rows, a, b;
    bool accumulate;
};

enum s2s_act {
    S2S_ACT_SILU,
    S2S_ACT_GELU_TANH,
    S2S_ACT_GELU,
    S2S_ACT_RELU,
    S2S_ACT_RELU2,
    S2S_ACT_SIGMOID
};

/* y = act(gate) * up; up.data NULL: y = act(gate) */
struct s2s_k_glu {
    struct s2s_mat gate, up, y; /* [rows, cols] */
    int64_t rows, cols;
    enum s2s_act act;
};

/* dgate = act'(gate) * up * dy, dup = act(gate) * dy; either may be NULL */
struct s2s_k_glu_backward {
    struct s2s_mat gate, up, dy, dgate, dup;
    int64_t rows, cols;
    enum s2s_act act;
    bool accumulate_dgate, accumulate_dup;
};

#endif
