/* Memory of the CPU table, and the table itself. */
#include <stdlib.h>

#include "kernels/cpu/cpu.h"

static void *cpu_alloc(size_t bytes)
{
    void *ptr = NULL;
    return posix_memalign(&ptr, 64, bytes ? bytes : 1) ? NULL : ptr;
}

static void cpu_copy_in(struct s2s_queue *queue, void *dst, const void *host, size_t bytes)
{
    memcpy(dst, host, bytes);
}

static void cpu_zero(struct s2s_queue *queue, void *dst, size_t bytes)
{
    char *to = dst;
    const size_t block = 1 << 20;
#pragma omp parallel for schedule(static) if (bytes > 2 * block)
    for (size_t at = 0; at < bytes; at += block)
        memset(to + at, 0, bytes - at < block ? bytes - at : block);
}

static void cpu_sync(struct s2s_queue *queue)
{
}

const struct s2s_kernels s2s_kernels_cpu = {
    .name = "cpu",
    .alloc = cpu_alloc,
    .free = free,
    .copy_in = cpu_copy_in,
    .copy_out = cpu_copy_in,
    .zero = cpu_zero,
    .sync = cpu_sync,
    .gemm = cpu_gemm,
    .axpby = cpu_axpby,
    .colsum = cpu_colsum,
    .embedding = cpu_embedding,
    .embedding_backward = cpu_embedding_backward,
    .gather_rows = cpu_gather_rows,
    .scatter_rows = cpu_scatter_rows,
    .rmsnorm = cpu_rmsnorm,
    .rmsnorm_backward = cpu_rmsnorm_backward,
    .rope_table = cpu_rope_table,
    .rope = cpu_rope,
    .attention = cpu_attention,
    .attention_backward = cpu_attention_backward,
    .glu = cpu_glu,
    .glu_backward = cpu_glu_backward,
    .conv2d = cpu_conv2d,
    .conv2d_backward = cpu_conv2d_backward,
    .dwconv = cpu_dwconv,
    .dwconv_backward = cpu_dwconv_backward,
    .layernorm = cpu_layernorm,
    .layernorm_backward = cpu_layernorm_backward,
    .column_stats = cpu_column_stats,
    .batchnorm = cpu_batchnorm,
    .batchnorm_backward = cpu_batchnorm_backward,
    .relpos_table = cpu_relpos_table,
    .relattention = cpu_relattention,
    .relattention_backward = cpu_relattention_backward,
    .transpose = cpu_transpose,
    .cross_entropy = cpu_cross_entropy,
    .sqdist = cpu_sqdist,
    .reduce = cpu_reduce,
    .adamw = cpu_adamw,
    .colsum_workspace = cpu_colsum_workspace,
    .rmsnorm_backward_workspace = cpu_rmsnorm_backward_workspace,
    .attention_workspace = cpu_attention_workspace,
    .attention_backward_workspace = cpu_attention_backward_workspace,
    .conv2d_workspace = cpu_conv2d_workspace,
    .conv2d_backward_workspace = cpu_conv2d_backward_workspace,
    .dwconv_workspace = cpu_dwconv_workspace,
    .dwconv_backward_workspace = cpu_dwconv_backward_workspace,
    .layernorm_backward_workspace = cpu_layernorm_backward_workspace,
    .column_stats_workspace = cpu_column_stats_workspace,
    .batchnorm_backward_workspace = cpu_batchnorm_backward_workspace,
    .relattention_workspace = cpu_relattention_workspace,
    .relattention_backward_workspace = cpu_relattention_backward_workspace,
    .reduce_workspace = cpu_reduce_workspace,
};
