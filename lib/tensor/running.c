/* Running statistics of batch norms: collected while a step computes, moved at its end. */
#include "lib/tensor/running.h"

#include <stdlib.h>
#include <string.h>

#include "lib/base/error.h"
#include "lib/base/mem.h"

struct s2s_running *s2s_running_new(struct s2s_params *params)
{
    struct s2s_running *r = s2s_xcalloc(1, sizeof *r);
    r->device = params->device;
    r->buffers = s2s_xcalloc(params->n + 1, sizeof(struct s2s_param *));
    r->at = s2s_xcalloc(params->n + 1, sizeof *r->at);
    for (size_t i = 0; i < params->n; i++) {
        struct s2s_param *p = params->list[i];
        if (!(p->flags & S2S_PARAM_BUFFER) || !s2s_param_is_here(p))
            continue;
        r->buffers[r->n_buffers++] = p;
        r->at[r->n_buffers] = r->at[r->n_buffers - 1] + p->numel;
    }
    s2s_arena_init(&r->arena, params->device, 1);
    return r;
}

void s2s_running_free(struct s2s_running *r)
{
    if (!r)
        return;
    s2s_arena_release(&r->arena);
    free(r->factors);
    free(r->buffers);
    free(r->at);
    free(r);
}

void s2s_running_begin(struct s2s_running *r, int64_t n_microbatches)
{
    const size_t n = (size_t)(n_microbatches * r->n_buffers);
    r->n_microbatches = n_microbatches;
    r->microbatch = 0;
    if (n == 0)
        return;
    r->factors = s2s_xrealloc(r->factors, n, sizeof *r->factors);
    memset(r->factors, 0, n * sizeof *r->factors);
    s2s_arena_reset(&r->arena);
    r->rows = s2s_arena_alloc(&r->arena,
                              (size_t)(n_microbatches * r->at[r->n_buffers]) * sizeof *r->rows);
}

void s2s_running_at(struct s2s_running *r, int64_t microbatch)
{
    r->microbatch = microbatch;
}

void s2s_running_see(struct s2s_running *r, const struct s2s_param *buffer, const float *seen,
                     struct s2s_running_factor factor)
{
    int64_t i = 0;
    while (i < r->n_buffers && r->buffers[i] != buffer)
        i++;
    if (i == r->n_buffers || r->microbatch >= r->n_microbatches)
        S2S_BUG("%s is no running statistic of this step", buffer->name);
    const int64_t row = r->microbatch * r->at[r->n_buffers];
    r->factors[r->microbatch * r->n_buffers + i] = factor;
    const int64_t n = buffer->numel;
    r->device->kernels->copy(&r->device->queue,
                             &(struct s2s_k_copy){.src = {(float *)seen, n, S2S_F32},
                                                  .dst = {r->rows + row + r->at[i], n, S2S_F32},
                                                  .rows = 1,
                                                  .cols = n});
}

/* buffer = take seen + keep buffer */
static void move(struct s2s_param *buffer, const float *seen, struct s2s_running_factor factor)
{
    const int64_t n = buffer->numel;
    const struct s2s_mat mat = {buffer->tensor->data, n, S2S_F32};
    struct s2s_device *device = buffer->tensor->device;
    device->kernels->axpby(&device->queue, &(struct s2s_k_axpby){.x = {(float *)seen, n, S2S_F32},
                                                                 .z = mat,
                                                                 .y = mat,
                                                                 .rows = 1,
                                                                 .cols = n,
                                                                 .alpha = factor.take,
                                                                 .beta = factor.keep});
}

void s2s_running_end(struct s2s_running *r, const struct s2s_group *dp,
                     const struct s2s_running_factor *factors)
{
    const int64_t width = r->at[r->n_buffers], rank_rows = r->n_microbatches * width;
    const int size = s2s_group_size(dp);
    const float *all = r->rows;
    if (rank_rows == 0)
        return;
    if (size > 1) {
        float *gathered = s2s_arena_alloc(&r->arena, (size_t)(rank_rows * size) * sizeof *gathered);
        dp->ops->all_gather(dp, &r->device->queue, gathered, r->rows, rank_rows, S2S_F32);
        all = gathered;
    }
    for (int64_t m = 0; m < r->n_microbatches; m++)
        for (int rank = 0; rank < size; rank++)
            for (int64_t i = 0; i < r->n_buffers; i++) {
                const int64_t row = rank * r->n_microbatches + m;
                const struct s2s_running_factor f = factors[row * r->n_buffers + i];
                if (f.take != 0 || f.keep != 0)
                    move(r->buffers[i], all + row * width + r->at[i], f);
            }
}
