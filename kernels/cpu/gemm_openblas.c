/* The dense product of one thread, by a CBLAS (where oneDNN is absent). */
#include <cblas.h>

#include "kernels/cpu/cpu.h"
#include "lib/base/error.h"

/* OpenBLAS' own switch: our threads divide the work, in blocks that do not depend on their number
 */
void openblas_set_num_threads(int n);

void cpu_sgemm(bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, float alpha,
               const float *a, int64_t lda, const float *b, int64_t ldb, float beta, float *c,
               int64_t ldc)
{
    static _Thread_local bool ready;
    if (!ready) {
        openblas_set_num_threads(1);
        ready = true;
    }
    cblas_sgemm(CblasRowMajor, trans_a ? CblasTrans : CblasNoTrans,
                trans_b ? CblasTrans : CblasNoTrans, (int)m, (int)n, (int)k, alpha, a, (int)lda, b,
                (int)ldb, beta, c, (int)ldc);
}

bool cpu_has_bgemm(void)
{
    return false;
}

void cpu_bgemm(const struct s2s_k_gemm *args)
{
    S2S_BUG("a product of BF16, which this build has not");
}

struct cpu_room *cpu_bgemm_room(const struct s2s_k_gemm *args)
{
    return NULL;
}

void cpu_bgemm_order(const struct s2s_k_gemm *args, struct cpu_room *room, int64_t n0, int64_t n)
{
    S2S_BUG("an order of BF16, which this build has not");
}

void cpu_bgemm_ordered(const struct s2s_k_gemm *args, const struct cpu_room *room)
{
    S2S_BUG("a product of BF16, which this build has not");
}

void cpu_gemm_open(void)
{
}
