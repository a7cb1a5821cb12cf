/*
 * Dense products, twice: blas_lt.cu over cublasLt, which is opened at run time, and emu/blas.cc as
 * plain loops.
 */
#ifndef S2S_KERNELS_CUDA_BLAS_H
#define S2S_KERNELS_CUDA_BLAS_H

#include "kernels/cuda/rt.h"
#include "kernels/dense.h"

struct blas;

/* A library and its workspace for one stream: 0, or a status for blas_status_text. */
int blas_new(struct blas **blas, struct rt_stream *stream);
void blas_free(struct blas *blas);
const char *blas_status_text(int status); /* NULL: not one of this file's */
enum { BLAS_NO_MEMORY = 2001 };           /* for what products need beside their matrices */

/*
 * c = alpha op(a) op(b) + beta c, of struct s2s_k_gemm without its bias: a and b F32 or BF16, both
 * the same, c F32 or BF16; sums in fp32. tf32: F32 operands may be rounded to it. 0 or a status.
 */
int blas_gemm(struct blas *blas, const struct s2s_k_gemm *args, float beta, bool tf32);

#endif
