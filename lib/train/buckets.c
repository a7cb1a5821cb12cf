/* Buckets of gradients: cut once, started by the backward, waited for at the end of the step. */
#include "lib/train/buckets.h"

#include <stdlib.h>

#include "lib/base/base.h"
#include "lib/train/fsdp.h"

enum { ALIGN = 16 }; /* elements: as parameters begin */
/* after all of them: what two pipeline stages have is summed over these first */
enum { NO_BLOCK = -1 };

const char *const s2s_sharding_names[] = {"no_shard", "optim", "optim_grads_params", NULL};

static const struct s2s_group *group_of(const struct s2s_layout *layout, int class)
{
    return class == S2S_CLASS_EXPERT ? layout->expert_gradients : layout->gradients;
}

/* The norm counts what each rank of etp has of an expert: a copy would be counted as often. */
static void check_experts(const struct s2s_params *params, const struct s2s_layout *layout)
{
    for (size_t i = 0; i < params->n && s2s_group_size(layout->par.etp) > 1; i++) {
        const struct s2s_param *p = params->list[i];
        bool cut = !(p->flags & S2S_PARAM_EXPERT);
        for (int c = 0; c < S2S_PARAM_CUTS; c++)
            cut |= p->cuts[c].axis == S2S_AXIS_TP && s2s_group_size(p->cuts[c].group) > 1;
        if (!cut)
            S2S_BUG("parameter %s: an expert's that ranks of etp do not cut", p->name);
    }
}

void s2s_buckets_lay_out(struct s2s_model *model, const struct s2s_layout *layout,
                         enum s2s_sharding sharding)
{
    check_experts(model->params, layout);
    if (sharding == S2S_SHARD_ALL && s2s_group_size(layout->gradients) > 1) {
        const struct s2s_group *groups[S2S_CLASSES];
        for (int class = 0; class < S2S_CLASSES; class ++)
            groups[class] = group_of(layout, class);
        s2s_fsdp_lay_out(model, groups, s2s_comm_size(layout->comms[S2S_AXIS_PP]) > 1);
        return;
    }
    for (int class = 0; class < S2S_CLASSES; class ++)
        if (sharding != S2S_NO_SHARD)
            s2s_params_divide(model->params, (enum s2s_param_class) class,
                              s2s_group_size(group_of(layout, class)));
}

/* ---- cutting ---- */

static void add_bucket(struct s2s_buckets *b, size_t *cap, const struct s2s_bucket *bucket,
                       const int *blocks)
{
    const struct s2s_params *params = b->model->params;
    struct s2s_bucket own = *bucket;
    own.block = b->model->n_blocks - 1;
    for (size_t i = 0; i < params->n; i++) {
        const struct s2s_param *p = params->list[i];
        const int block = p->flags & S2S_PARAM_SHARED ? NO_BLOCK : blocks[i];
        if (p->trained && p->offset < own.end && p->offset + p->numel > own.begin &&
            block < own.block)
            own.block = block;
    }
    s2s_grow(&b->list, (size_t)b->n, cap, sizeof *b->list);
    b->list[b->n++] = own;
}

static int in_order(const void *x, const void *y)
{
    const struct s2s_bucket *a = x, *b = y;
    if (a->block != b->block)
        return a->block < b->block ? 1 : -1;
    return a->begin < b->begin ? 1 : -1;
}

static void cut(struct s2s_buckets *b, const struct s2s_buckets_options *options)
{
    const struct s2s_layout *layout = options->layout;
    const int64_t bytes =
        options->bucket_bytes > 0 ? options->bucket_bytes : (int64_t)(S2S_BUCKET_MB * (1 << 20));
    int *blocks = s2s_model_blocks_of_params(b->model);
    size_t cap = 0;
    for (int class = 0; class < S2S_CLASSES; class ++) {
        const struct s2s_group *group = group_of(layout, class);
        const int64_t unit = (int64_t)ALIGN * s2s_group_size(group); /* equal parts */
        const int64_t len = (bytes / (int64_t)sizeof(float) + unit - 1) / unit * unit;
        /* an optimizer of parts has all of its parts in the list */
        const bool is_listed = s2s_group_size(group) > 1 || b->sharding != S2S_NO_SHARD;
        int64_t begin, end;
        s2s_params_range(b->model->params, (enum s2s_param_class) class, &begin, &end);
        for (int64_t at = begin; at < end && is_listed; at += len) {
            const struct s2s_bucket bucket = {
                .begin = at, .end = at + len < end ? at + len : end, .group = group};
            add_bucket(b, &cap, &bucket, blocks);
        }
    }
    free(blocks);
    if (b->n > 0)
        qsort(b->list, (size_t)b->n, sizeof *b->list, in_order);
}

/* ---- a step ---- */

static void wait_for(struct s2s_buckets *b, const struct s2s_bucket *bucket)
{
    const struct s2s_group *group = bucket->group;
    if (group->size > 1)
        group->ops->wait(group, &b->model->params->device->queue, bucket->ticket);
}

/* Where ranks divide the bucket each has the sum of its own part alone. */
static void start_next(struct s2s_buckets *b)
{
    const struct s2s_params *params = b->model->params;
    struct s2s_bucket *bucket = &b->list[b->n_started++];
    const struct s2s_group *group = bucket->group;
    struct s2s_queue *queue = &params->device->queue;
    float *whole = params->grads + bucket->begin;
    int64_t begin, end;
    if (group->size == 1)
        return;
    s2s_buckets_own(b, bucket, &begin, &end);
    bucket->ticket =
        b->sharding == S2S_NO_SHARD
            ? group->ops->start_all_reduce(group, queue, whole, end - begin, S2S_F32, S2S_GROUP_SUM)
            : group->ops->start_reduce_scatter(group, queue, params->grads + begin, whole,
                                               end - begin, S2S_F32);
}

static void backward_left(void *ctx, int block)
{
    struct s2s_buckets *b = ctx;
    while (b->armed && b->n_started < b->n && b->list[b->n_started].block >= block)
        start_next(b);
}

void s2s_buckets_begin(struct s2s_buckets *b)
{
    b->n_started = 0;
    b->armed = false;
    if (b->fsdp)
        s2s_fsdp_begin(b->fsdp);
}

void s2s_buckets_arm(struct s2s_buckets *b)
{
    b->armed = b->overlap;
    if (b->fsdp)
        s2s_fsdp_arm(b->fsdp);
}

void s2s_buckets_finish(struct s2s_buckets *b)
{
    if (b->fsdp)
        s2s_fsdp_finish(b->fsdp);
    while (b->n_started < b->n)
        start_next(b);
    for (int i = 0; i < b->n; i++)
        wait_for(b, &b->list[i]);
}

void s2s_buckets_own(const struct s2s_buckets *b, const struct s2s_bucket *bucket, int64_t *begin,
                     int64_t *end)
{
    const int64_t part = (bucket->end - bucket->begin) / bucket->group->size;
    *begin = bucket->begin;
    *end = bucket->end;
    if (b->sharding == S2S_NO_SHARD)
        return;
    *begin += part * bucket->group->rank;
    *end = *begin + part;
}

/* ---- the update ---- */

int s2s_buckets_optim(struct s2s_optim **optim, struct s2s_buckets *b,
                      const struct s2s_adamw_options *options, struct s2s_error *err)
{
    struct s2s_params *params = b->model->params;
    if (b->fsdp)
        return s2s_fsdp_optim(optim, b->fsdp, options, err);
    if (b->sharding == S2S_NO_SHARD)
        return s2s_optim_new(optim, params, options, 0, params->n_trained, err);
    struct s2s_optim_slice *slices = s2s_xcalloc((size_t)b->n + 1, sizeof *slices);
    for (int i = 0; i < b->n; i++)
        s2s_buckets_own(b, &b->list[i], &slices[i].begin, &slices[i].end);
    qsort(slices, (size_t)b->n, sizeof *slices, s2s_optim_slice_order);
    for (int i = 0; i < b->n; i++) {
        struct s2s_optim_slice own;
        s2s_buckets_own(b, &b->list[i], &own.begin, &own.end);
        const struct s2s_optim_slice *at =
            bsearch(&own, slices, (size_t)b->n, sizeof *slices, s2s_optim_slice_order);
        b->list[i].slice = (size_t)(at - slices);
    }
    int rc = s2s_optim_new_slices(optim, params, options, slices, (size_t)b->n, err);
    free(slices);
    if (rc == 0)
        (*optim)->divided = true;
    return rc;
}

/* The first layers are needed first. */
static void update_parts(struct s2s_buckets *b, struct s2s_optim *optim, double lr,
                         double weight_decay, double grad_scale)
{
    struct s2s_params *params = b->model->params;
    float *values = params->master;
    for (int i = b->n - 1; i >= 0; i--) {
        struct s2s_bucket *bucket = &b->list[i];
        const struct s2s_group *group = bucket->group;
        int64_t begin, end;
        s2s_buckets_own(b, bucket, &begin, &end);
        s2s_optim_update(optim, bucket->slice, lr, weight_decay, grad_scale);
        if (group->size == 1)
            continue;
        bucket->ticket =
            group->ops->start_all_gather(group, &params->device->queue, values + bucket->begin,
                                         values + begin, end - begin, S2S_F32);
    }
    for (int i = b->n - 1; i >= 0; i--) {
        struct s2s_bucket *bucket = &b->list[i];
        wait_for(b, bucket);
        if (bucket->group->size > 1)
            s2s_params_round(params, bucket->begin, bucket->end - bucket->begin);
    }
}

void s2s_buckets_update(struct s2s_buckets *b, struct s2s_optim *optim, double lr,
                        double weight_decay, double grad_scale)
{
    if (b->fsdp) {
        s2s_fsdp_update(b->fsdp, optim, lr, weight_decay, grad_scale);
        return;
    }
    if (b->sharding == S2S_NO_SHARD) {
        s2s_optim_step(optim, lr, weight_decay, grad_scale);
        return;
    }
    s2s_optim_begin(optim);
    update_parts(b, optim, lr, weight_decay, grad_scale);
}

/* ---- life ---- */

struct s2s_buckets *s2s_buckets_new(struct s2s_model *model,
                                    const struct s2s_buckets_options *options)
{
    struct s2s_buckets *b = s2s_xcalloc(1, sizeof *b);
    *b = (struct s2s_buckets){
        .model = model, .sharding = options->sharding, .overlap = options->overlap};
    if (model->params->shards) {
        b->fsdp = s2s_fsdp_new(model, options->overlap);
        return b;
    }
    cut(b, options);
    if (b->n == 0 || !b->overlap)
        return b;
    for (int i = 0; i < 2; i++) {
        const struct s2s_group *g =
            i ? options->layout->expert_gradients : options->layout->gradients;
        if (s2s_group_size(g) > 1 && g->ops->run_beside)
            g->ops->run_beside(g);
    }
    b->watch = (struct s2s_block_watch){.ctx = b, .leave_backward = backward_left};
    model->watch = &b->watch;
    return b;
}

void s2s_buckets_free(struct s2s_buckets *b)
{
    if (!b)
        return;
    s2s_fsdp_free(b->fsdp);
    if (b->model->watch == &b->watch)
        b->model->watch = NULL;
    free(b->list);
    free(b);
}
