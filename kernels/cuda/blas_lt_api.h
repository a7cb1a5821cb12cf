/*
 * The part of cublasLt's C interface that blas_lt.cu calls: types, numbers and signatures as in the
 * cublasLt.h of CUDA 12 and 13 (https://docs.nvidia.com/cuda/cublas/#using-the-cublaslt-api), which
 * keep them. Declared here so that a build needs no header of the library, which comes apart from
 * the compiler; the library itself is opened at run time.
 */
#ifndef S2S_KERNELS_CUDA_BLAS_LT_API_H
#define S2S_KERNELS_CUDA_BLAS_LT_API_H

#include <stddef.h>
#include <stdint.h>

typedef void *lt_handle, *lt_operation, *lt_layout, *lt_preference;

enum { LT_SUCCESS = 0, LT_NOT_SUPPORTED = 15 };
enum { LT_TYPE_F32 = 0, LT_TYPE_BF16 = 14 }; /* of cudaDataType_t */
enum { LT_COMPUTE_F32 = 68, LT_COMPUTE_TF32 = 77 };
enum { LT_OP_N = 0, LT_OP_T = 1 };
enum { LT_DESC_TRANS_A = 3, LT_DESC_TRANS_B = 4 };
enum { LT_LAYOUT_BATCH_COUNT = 5, LT_LAYOUT_BATCH_STEP = 6 };
enum {
    LT_PREF_WORKSPACE_BYTES = 1,
    LT_PREF_REDUCTIONS = 3,
    LT_PREF_ALIGN_A = 5,
    LT_PREF_ALIGN_B = 6,
    LT_PREF_ALIGN_C = 7,
    LT_PREF_ALIGN_D = 8
};
/* of split sums: none, or in the workspace in the type of computation */
enum { LT_REDUCTION_NONE = 0, LT_REDUCTION_COMPUTE = 2 };

struct lt_algo {
    uint64_t data[8];
};

struct lt_found {
    struct lt_algo algo;
    size_t workspace_bytes;
    int status;
    float waves;
    int reserved[4];
};

/* name in the library, then what it takes */
#define LT_FUNCTIONS(X) \
    X(cublasLtCreate, (lt_handle * handle)) \
    X(cublasLtDestroy, (lt_handle handle)) \
    X(cublasLtMatmulDescCreate, (lt_operation * operation, int compute, int scale_type)) \
    X(cublasLtMatmulDescDestroy, (lt_operation operation)) \
    X(cublasLtMatmulDescSetAttribute, \
      (lt_operation operation, int attribute, const void *value, size_t size)) \
    X(cublasLtMatrixLayoutCreate, \
      (lt_layout * layout, int type, uint64_t rows, uint64_t cols, int64_t ld)) \
    X(cublasLtMatrixLayoutDestroy, (lt_layout layout)) \
    X(cublasLtMatrixLayoutSetAttribute, \
      (lt_layout layout, int attribute, const void *value, size_t size)) \
    X(cublasLtMatmulPreferenceCreate, (lt_preference * preference)) \
    X(cublasLtMatmulPreferenceDestroy, (lt_preference preference)) \
    X(cublasLtMatmulPreferenceSetAttribute, \
      (lt_preference preference, int attribute, const void *value, size_t size)) \
    X(cublasLtMatmulAlgoGetHeuristic, \
      (lt_handle handle, lt_operation operation, lt_layout a, lt_layout b, lt_layout c, \
       lt_layout d, lt_preference preference, int n_wanted, struct lt_found *found, int *n_found)) \
    X(cublasLtMatmul, \
      (lt_handle handle, lt_operation operation, const void *alpha, const void *a, \
       lt_layout a_layout, const void *b, lt_layout b_layout, const void *beta, const void *c, \
       lt_layout c_layout, void *d, lt_layout d_layout, const struct lt_algo *algo, \
       void *workspace, size_t workspace_bytes, void *stream))

#endif
