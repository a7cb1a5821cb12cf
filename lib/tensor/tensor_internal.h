/* Shared by the files of operations. */
#ifndef S2S_TENSOR_INTERNAL_H
#define S2S_TENSOR_INTERNAL_H

#include "lib/base/error.h"
#include "lib/tensor/ops.h"

/* The table and queue of a tape, for calls: tensor_k(tape)->gemm(tensor_queue(tape), &args). */
static inline const struct s2s_kernels *tensor_k(const struct s2s_tape *tape)
{
    return tape->device->kernels;
}

/* The queue knows the layer that runs, for messages, profiles and plans. */
static inline struct s2s_queue *tensor_queue(struct s2s_tape *tape)
{
    tape->device->queue.layer = tape->layer;
    return &tape->device->queue;
}

/* Ends the program unless the tensor is F32 or of the device's working dtype, with `cols` columns
 * (-1: any): our mistake, with the layer's name. */
void tensor_check(const struct s2s_tape *tape, const char *op, const struct s2s_tensor *tensor,
                  int64_t rows, int64_t cols);
/* y (+)= alpha x, equal shapes */
void tensor_axpby(struct s2s_tape *tape, float alpha, const struct s2s_tensor *x, float beta,
                  const struct s2s_tensor *y);
void tensor_zero(struct s2s_tape *tape, struct s2s_tensor *tensor);
/* Device memory of the tape for statistics, which are F32 whatever the working dtype. */
float *tensor_floats(struct s2s_tape *tape, int64_t rows, int64_t cols);
/* An F32 tensor without gradient in the working dtype: itself, or a copy. */
struct s2s_tensor *tensor_in_working(struct s2s_tape *tape, struct s2s_tensor *floats);
/* May an operation write its output where x stands? */
bool tensor_is_free(const struct s2s_tensor *x);
/* An output in the memory of x, which nobody reads any more: x is consumed. After s2s_tape_needs.
 */
struct s2s_tensor *tensor_take_over(struct s2s_tape *tape, struct s2s_tensor *x);
/* Another tensor over the memory of x, with a gradient of its own. */
struct s2s_tensor *tensor_alias(struct s2s_tape *tape, const struct s2s_tensor *x);
/* An output of like's shape and dtype: lent where the tape lends and the operation is recorded; its
 * node then sets `again`. */
struct s2s_tensor *tensor_output(struct s2s_tape *tape, const struct s2s_tensor *like, bool record);
/* Gives the memory of a lent tensor back; nothing of another one. */
void tensor_give_back(struct s2s_tensor *tensor);
/* The same, which a lent x takes along when it is computed again somewhere else. */
struct s2s_tensor *tensor_share(struct s2s_tape *tape, struct s2s_tensor *x);
/* Sum of a device vector into a F64 scalar of the tape. */
void tensor_sum(struct s2s_tape *tape, struct s2s_tensor *scalar, const float *x, int64_t n);

/* What a kernel draws by; rows NULL: nothing is left out (also drop NULL). */
struct s2s_draw tensor_draw(const struct s2s_dropout *drop);

/* Arguments of attention but for its matrices, lse and workspace. */
struct s2s_k_attention tensor_attention(const struct s2s_spans *spans,
                                        const struct s2s_attention_shape *shape);

/* y = x w^T + b (or NULL) into a tensor that is there, and the gradients of a linear map, dy of the
 * type of w: dx (+)= dy w; those of w and b, where they want one, are added to what they have. */
void tensor_linear(struct s2s_tape *tape, const struct s2s_tensor *x, const struct s2s_tensor *w,
                   const struct s2s_tensor *b, const struct s2s_tensor *y);
void tensor_linear_dx(struct s2s_tape *tape, struct s2s_mat dy, const struct s2s_tensor *w,
                      const struct s2s_tensor *dx, bool accumulate);
void tensor_linear_dw(struct s2s_tape *tape, struct s2s_mat dy, const struct s2s_tensor *x,
                      struct s2s_tensor *w);
void tensor_bias_grad(struct s2s_tape *tape, struct s2s_tensor *b, const struct s2s_tensor *dy);

/* Matrices by themselves: in scratch; the part that begins there; dst = src, dst += src. */
struct s2s_mat tensor_scratch_mat(struct s2s_tape *tape, int64_t rows, int64_t cols,
                                  enum s2s_dtype dtype);
struct s2s_mat tensor_mat_from(struct s2s_mat mat, int64_t row, int64_t col);
void tensor_mat_copy(struct s2s_tape *tape, struct s2s_mat dst, struct s2s_mat src, int64_t rows,
                     int64_t cols);
void tensor_mat_add(struct s2s_tape *tape, struct s2s_mat dst, struct s2s_mat src, int64_t rows,
                    int64_t cols);

/*
 * Rows traded for columns between R ranks that have n rows each of what is cut (op_trade.c).
 * order [n R]: where each row stands when the ranks' are laid one behind the other.
 */
struct tensor_trade {
    const struct s2s_group *group;
    int64_t n;
    const int32_t *order;
};
/* A matrix of this rank's rows, of which each rank gets `width` columns (so many ranks next to each
 * other the same ones), and where they stand among those of other matrices. */
struct tensor_part {
    struct s2s_mat mat;
    int64_t width, at;
    int sharing;
};
/* whole [n R, width]: this rank's columns of all rows, in order. */
void tensor_rows_to_columns(struct s2s_tape *tape, const struct tensor_trade *trade,
                            const struct tensor_part *parts, int n_parts, struct s2s_mat whole);
/* The way back, in scratch: [R, n, width], each rank's columns of this rank's rows. */
struct s2s_mat tensor_columns_to_rows(struct s2s_tape *tape, const struct tensor_trade *trade,
                                      struct s2s_mat whole);
/* Between the ranks' rows one behind the other (src) and their order (dst); back: the other way. */
void tensor_order_rows(struct s2s_tape *tape, const struct tensor_trade *trade, struct s2s_mat dst,
                       struct s2s_mat src, int64_t cols, bool back);

/* Forgets tensors and nodes, but gives no gradient back. */
void tensor_tape_forget(struct s2s_tape *tape);
/* Makes one whole of the gradient of a split tensor. */
void tensor_settle_grad(struct s2s_tape *tape, struct s2s_tensor *owner);

#endif
