/* Peaks of arenas and pools, and sizes of what is there for good. */
#include "lib/train/memory.h"

#include "lib/base/base.h"
#include "lib/train/step.h"

const struct s2s_memory_part s2s_memory_parts[S2S_MEMORY_PARTS] = {
#define PART(key, title) \
    { \
#key, title, offsetof(struct s2s_train_memory, key) \
    }
    PART(parameters, "parameters"), PART(gradients, "gradients"),
    PART(optimizer, "optimizer"),   PART(activations, "activations"),
    PART(recompute, "recompute"),   PART(activation_gradients, "gradients of activations"),
    PART(scratch, "scratch"),       PART(results, "results of the step"),
#undef PART
};

int64_t s2s_train_memory_part(const struct s2s_train_memory *memory, int part)
{
    return *(const int64_t *)(const void *)((const char *)memory + s2s_memory_parts[part].offset);
}

int64_t s2s_train_memory_sum(const struct s2s_train_memory *m)
{
    int64_t sum = 0;
    for (int i = 0; i < S2S_MEMORY_PARTS; i++)
        sum += s2s_train_memory_part(m, i);
    return sum;
}

void s2s_train_memory_say(struct s2s_buf *buf, const struct s2s_train_memory *m)
{
    const char *before = " in use: ";
    s2s_buf_printf(buf, "%.1f MiB", (double)s2s_train_memory_sum(m) / (1 << 20));
    for (int i = 0; i < S2S_MEMORY_PARTS; i++) {
        if (s2s_train_memory_part(m, i) == 0)
            continue;
        s2s_buf_printf(buf, "%s%.1f MiB %s", before,
                       (double)s2s_train_memory_part(m, i) / (1 << 20), s2s_memory_parts[i].title);
        before = ", ";
    }
}

void s2s_train_memory_of(struct s2s_train_memory *m, const struct s2s_side *side)
{
    const struct s2s_params *params = side->model->params;
    const struct s2s_device *device = params->device;
    const int64_t f32 = (int64_t)sizeof(float);
    const int64_t n_whole = params->shards ? params->shards->n_grads : 0;
    *m = (struct s2s_train_memory){
        .parameters = s2s_params_bytes(params),
        .gradients = f32 * (params->n_stored + n_whole),
        .optimizer = s2s_optim_n_moments(side->optim) * f32 * side->optim->numel +
                     (int64_t)(S2S_CLASSES * sizeof *side->optim->sums) +
                     side->optim->n_ranges * (int64_t)sizeof *side->optim->ranges,
        .activations = (int64_t)s2s_flow_peak_bytes(&side->flow),
        .activation_gradients = (int64_t)device->pool.peak_bytes,
        .scratch = (int64_t)device->scratch.peak_bytes,
        .results = (int64_t)side->results.peak_bytes +
                   (side->running ? (int64_t)side->running->arena.peak_bytes : 0) +
                   (side->loads ? (int64_t)side->loads->arena.peak_bytes : 0),
    };
    for (int i = 0; i < device->n_children; i++)
        m->recompute += (int64_t)s2s_tape_peak_bytes(device->children[i]);
}
