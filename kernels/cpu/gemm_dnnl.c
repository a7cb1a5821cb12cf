/*
 * The dense product of one thread, by oneDNN. Inside a parallel region oneDNN uses one thread; the
 * kernels are generated for the CPU at the first call.
 */
#include <dnnl.h>

#include "kernels/cpu/cpu.h"
#include "lib/base/error.h"

void cpu_sgemm(bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, float alpha,
               const float *a, int64_t lda, const float *b, int64_t ldb, float beta, float *c,
               int64_t ldc)
{
    if (dnnl_sgemm(trans_a ? 'T' : 'N', trans_b ? 'T' : 'N', m, n, k, alpha, a, lda, b, ldb, beta,
                   c, ldc) != dnnl_success)
        S2S_BUG("dnnl_sgemm refused %lld x %lld x %lld", (long long)m, (long long)n, (long long)k);
}
