/* Attention, forward: the sizes of tiles for each width of heads and element type, and the entry.
 */
#include "kernels/cuda/attention_fwd.h"
#include "kernels/cuda/attention_sm90.h"

static void run_bf16(struct s2s_queue *queue, const struct att_forward *f)
{
    typedef att_bf16 P;
    switch (att_width(f->p.dim)) {
    case 64:
        return f->p.is_short ? att_forward_run<P, 64, 4, 1, 64, 4>(queue, f)
                             : att_forward_run<P, 64, 4, 2, 128, 2>(queue, f);
    case 96:
        return att_forward_run<P, 96, 4, 2, 64>(queue, f);
    case 128:
        return f->p.is_short ? att_forward_run<P, 128, 4, 1, 64, 3>(queue, f)
                             : att_forward_run<P, 128, 4, 2, 64, 2>(queue, f);
    case 192:
        return att_forward_run<P, 192, 4, 1, 64>(queue, f);
    case 256:
        return att_forward_run<P, 256, 4, 1, 64>(queue, f);
    }
}

static void run_f32(struct s2s_queue *queue, const struct att_forward *f)
{
    typedef att_f32 P;
    switch (att_width(f->p.dim)) {
    case 64:
        return att_forward_run<P, 64, 4, 1, 32>(queue, f);
    case 96:
        return att_forward_run<P, 96, 4, 1, 32>(queue, f);
    case 128:
        return att_forward_run<P, 128, 4, 1, 32>(queue, f);
    case 192:
        return att_forward_run<P, 192, 4, 1, 16>(queue, f);
    case 256:
        return att_forward_run<P, 256, 4, 1, 16>(queue, f);
    }
}

size_t cuda_attention_workspace(const struct s2s_queue *queue, const struct s2s_k_attention *args)
{
    return att_list_bytes(args->n_q, args->n_spans);
}

void cuda_attention(struct s2s_queue *queue, const struct s2s_k_attention *args)
{
    char *workspace = (char *)args->workspace;
    const bool bf16 = att_is_bf16(args, args->q.dtype);
    const struct att_forward f = {att_problem_of(args),
                                  att_list_take(&workspace, args->n_q, args->n_spans),
                                  att_source_of(&args->q, args->dim),
                                  att_source_of(&args->k, args->dim),
                                  att_source_of(&args->v, args->dim),
                                  att_target_of(&args->o, args->dim, false),
                                  args->lse};
    if (args->n_q == 0 || args->n_heads == 0)
        return;
    if (args->draw.rows)
        att_forward_dropped(queue, &f, bf16);
    else if (!bf16)
        run_f32(queue, &f);
    else if (!att_forward_sm90(queue, &f))
        run_bf16(queue, &f);
}
