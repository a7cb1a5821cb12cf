/* AdamW over flat ranges, and the global norm. */
#include "lib/optim/optim.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/error.h"
#include "lib/base/mem.h"
#include "lib/conf/conf.h"

/* ---- options ---- */

static int check_range(const struct s2s_conf *conf, const char *key, double value, double min,
                       double below, struct s2s_error *err)
{
    if (value >= min && value < below)
        return 0;
    return s2s_conf_error(err, S2S_E_RANGE, s2s_conf_find(conf, key),
                          "expected a number of at least %g and below %g, found %g", min, below,
                          value);
}

static int read_betas(struct s2s_adamw_options *o, const struct s2s_conf *conf,
                      struct s2s_error *err)
{
    const struct s2s_conf *betas;
    int rc = s2s_conf_get_list(&betas, conf, "betas", err);
    if (rc < 0 || !betas)
        return rc;
    if (betas->n_items != 2)
        return s2s_conf_error(err, S2S_E_SHAPE, betas, "expected two numbers, found %zu",
                              betas->n_items);
    if ((rc = s2s_conf_as_f64(&o->beta1, betas->items[0], err)) < 0 ||
        (rc = s2s_conf_as_f64(&o->beta2, betas->items[1], err)) < 0 ||
        (rc = check_range(conf, "betas", o->beta1, 0, 1, err)) < 0)
        return rc;
    return check_range(conf, "betas", o->beta2, 0, 1, err);
}

int s2s_adamw_read(struct s2s_adamw_options *o, const struct s2s_conf *conf, struct s2s_error *err)
{
    static const char *const keys[] = {"name",         "lr",        "betas",  "eps",
                                       "weight_decay", "clip_norm", "groups", NULL};
    static const char *const names[] = {"adamw", NULL};
    struct {
        double *out;
        const char *key;
    } numbers[] = {{&o->lr, "lr"},
                   {&o->eps, "eps"},
                   {&o->weight_decay, "weight_decay"},
                   {&o->clip_norm, "clip_norm"}};
    int name;
    *o = (struct s2s_adamw_options)S2S_ADAMW_OPTIONS_DEFAULT;
    if (!conf)
        return 0;
    int rc = s2s_conf_check_keys(conf, "", keys, err);
    if (rc < 0 || (rc = s2s_conf_get_choice_or(&name, conf, "name", names, 0, err)) < 0)
        return rc;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        double *out = numbers[i].out;
        if ((rc = s2s_conf_get_f64_or(out, conf, numbers[i].key, *out, err)) < 0 ||
            (rc = check_range(conf, numbers[i].key, *out, 0, 1e30, err)) < 0)
            return rc;
    }
    return read_betas(o, conf, err);
}

/* ---- state ---- */

/* What [*begin, *end) has in common with a slice; false: nothing. */
static bool clip_range(const struct s2s_optim_slice *slice, int64_t *begin, int64_t *end)
{
    *begin = *begin > slice->begin ? *begin : slice->begin;
    *end = *end < slice->end ? *end : slice->end;
    return *begin < *end;
}

/* Beside what the kernel reads: how its rate follows the schedule. */
struct s2s_optim_range {
    struct s2s_adamw_range range;
    double lr_mult, min_lr; /* min_lr negative: as the schedule of all */
};

/* Neighbours in the flat buffers that are treated alike are a range; parameters follow each other
 * by class, and gaps hold zeros and may be updated. */
static void add_ranges(const struct s2s_params *params, struct s2s_optim_slice *slice,
                       struct s2s_optim_range **ranges, size_t *n, size_t *cap)
{
    slice->first_range = (int64_t)*n;
    for (int c = 0; c < S2S_CLASSES; c++)
        for (size_t i = 0; i < params->n; i++) {
            const struct s2s_param *p = params->list[i];
            int64_t begin = p->offset, end = p->offset + p->numel;
            if (!p->trained || (int)p->class != c || !clip_range(slice, &begin, &end))
                continue;
            const double decay_mult = s2s_param_decays(p) ? p->decay_mult : 0;
            struct s2s_optim_range *last =
                (int64_t)*n > slice->first_range ? *ranges + *n - 1 : NULL;
            if (last && last->lr_mult == p->lr_mult && last->min_lr == p->min_lr &&
                last->range.decay_mult == decay_mult) {
                last->range.n = end - slice->begin - last->range.begin;
                continue;
            }
            s2s_grow(ranges, *n, cap, sizeof **ranges);
            (*ranges)[(*n)++] = (struct s2s_optim_range){
                {begin - slice->begin, end - begin, p->min_lr < 0 ? p->lr_mult : 0, decay_mult, 0},
                p->lr_mult,
                p->min_lr};
        }
    slice->n_ranges = (int64_t)*n - slice->first_range;
}

/* Where the kernel finds them. */
static void upload_ranges(struct s2s_optim *o)
{
    struct s2s_device *device = o->params->device;
    struct s2s_adamw_range *host = s2s_xcalloc((size_t)o->n_ranges + 1, sizeof *host);
    for (int64_t i = 0; i < o->n_ranges; i++)
        host[i] = o->host_ranges[i].range;
    device->kernels->copy_in(&device->queue, o->ranges, host, (size_t)o->n_ranges * sizeof *host);
    free(host);
}

static int alloc_state(struct s2s_optim *o, struct s2s_error *err)
{
    struct s2s_device *device = o->params->device;
    const struct s2s_kernels *k = device->kernels;
    const size_t bytes = (size_t)(o->numel > 0 ? o->numel : 1) * sizeof(float);
    const size_t range_bytes = (size_t)o->n_ranges * sizeof *o->ranges;
    o->m = k->alloc(&device->queue, bytes);
    o->v = k->alloc(&device->queue, bytes);
    if (o->options.ema_decay > 0)
        o->ema = k->alloc(&device->queue, bytes);
    o->sums = k->alloc(&device->queue, S2S_CLASSES * sizeof *o->sums);
    o->ranges =
        k->alloc(&device->queue, range_bytes ? range_bytes : 1); /* a stage may train none */
    if (!o->m || !o->v || !o->sums || !o->ranges || (o->options.ema_decay > 0 && !o->ema)) {
        int rc = s2s_error_set(err, S2S_E_NOMEM,
                               "no room for the optimizer's two moments of %.3g parameters",
                               (double)o->numel);
        return s2s_error_hint(err, rc, "s2s-train plan says how much each part needs");
    }
    k->zero(&device->queue, o->m, bytes);
    k->zero(&device->queue, o->v, bytes);
    upload_ranges(o);
    return 0;
}

int s2s_optim_slice_order(const void *x, const void *y)
{
    const struct s2s_optim_slice *a = x, *b = y;
    return a->begin < b->begin ? -1 : a->begin > b->begin;
}

int s2s_optim_new_slices(struct s2s_optim **optim, struct s2s_params *params,
                         const struct s2s_adamw_options *options,
                         const struct s2s_optim_slice *slices, size_t n, struct s2s_error *err)
{
    struct s2s_optim *o = s2s_xcalloc(1, sizeof *o);
    size_t n_ranges = 0, cap = 0;
    *o = (struct s2s_optim){.params = params, .options = *options, .n_slices = n};
    o->slices = s2s_xcalloc(n + 1, sizeof *o->slices);
    for (size_t i = 0; i < n; i++) {
        struct s2s_optim_slice *slice = &o->slices[i];
        *slice = (struct s2s_optim_slice){slices[i].begin, slices[i].end, .at = o->numel};
        slice->stored = params->shards ? slice->at : slice->begin;
        if (i > 0 && slice->begin < slice[-1].end)
            S2S_BUG("slice %zu of the optimizer begins before the end of the last", i);
        add_ranges(params, slice, &o->host_ranges, &n_ranges, &cap);
        o->numel += slice->end - slice->begin;
    }
    o->n_ranges = (int64_t)n_ranges;
    int rc = alloc_state(o, err);
    if (rc < 0) {
        s2s_optim_free(o);
        o = NULL;
    }
    *optim = o;
    return rc;
}

int s2s_optim_new(struct s2s_optim **optim, struct s2s_params *params,
                  const struct s2s_adamw_options *options, int64_t begin, int64_t end,
                  struct s2s_error *err)
{
    const struct s2s_optim_slice one = {.begin = begin, .end = end};
    return s2s_optim_new_slices(optim, params, options, &one, 1, err);
}

void s2s_optim_free(struct s2s_optim *o)
{
    if (!o)
        return;
    const struct s2s_kernels *k = o->params->device->kernels;
    struct s2s_queue *queue = &o->params->device->queue;
    k->free(queue, o->m);
    k->free(queue, o->v);
    k->free(queue, o->ema);
    k->free(queue, o->sums);
    k->free(queue, o->ranges);
    free(o->host_ranges);
    free(o->slices);
    free(o);
}

/* ---- the step ---- */

/* *out (+)= the squares of n gradients, of which the first is stored at `at` */
static void add_squares(struct s2s_optim *o, int64_t at, int64_t n, double *out, bool accumulate)
{
    struct s2s_device *device = o->params->device;
    const struct s2s_kernels *k = device->kernels;
    struct s2s_k_reduce args = {.x = {o->params->grads + at, n, S2S_F32},
                                .out = out,
                                .rows = 1,
                                .cols = n,
                                .what = S2S_REDUCE_SUMSQ,
                                .accumulate = accumulate};
    struct s2s_arena_mark mark = s2s_arena_mark(&device->scratch);
    args.workspace = s2s_arena_alloc(&device->scratch, k->reduce_workspace(&device->queue, &args));
    k->reduce(&device->queue, &args);
    s2s_arena_rewind(&device->scratch, mark);
}

void s2s_optim_sumsq(struct s2s_optim *o, double *out)
{
    o->params->device->queue.layer = "optimizer";
    for (int c = 0; c < S2S_CLASSES; c++) {
        bool any = false;
        for (size_t i = 0; i < o->n_slices; i++) {
            const struct s2s_optim_slice *slice = &o->slices[i];
            int64_t begin, end;
            s2s_params_range(o->params, (enum s2s_param_class)c, &begin, &end);
            if (!clip_range(slice, &begin, &end))
                continue;
            add_squares(o, slice->stored + begin - slice->begin, end - begin, out + c, any);
            any = true;
        }
        if (!any)
            add_squares(o, 0, 0, out + c, false);
    }
}

double s2s_optim_grad_norm(struct s2s_optim *o)
{
    struct s2s_device *device = o->params->device;
    double sums[S2S_CLASSES], sum = 0;
    s2s_optim_sumsq(o, o->sums);
    device->kernels->copy_out(&device->queue, sums, o->sums, sizeof sums);
    for (int c = 0; c < S2S_CLASSES; c++)
        sum += sums[c];
    return sqrt(sum);
}

double s2s_optim_clip_factor(const struct s2s_optim *o, double norm)
{
    double factor = o->options.clip_norm > 0 ? o->options.clip_norm / (norm + 1e-6) : 1;
    return factor < 1 ? factor : 1;
}

void s2s_optim_follow(struct s2s_optim *o, const struct s2s_schedule *schedule, double count)
{
    bool any = false;
    for (int64_t i = 0; i < o->n_ranges; i++) {
        struct s2s_optim_range *r = &o->host_ranges[i];
        if (r->min_lr < 0)
            continue;
        r->range.own_lr = s2s_schedule_own_lr(schedule, count, r->lr_mult, r->min_lr);
        any = true;
    }
    if (any)
        upload_ranges(o);
}

void s2s_optim_begin(struct s2s_optim *o)
{
    o->t++;
}

/* ema = keep ema + (1 - keep) value, in a slice */
static void follow_values(struct s2s_optim *o, const struct s2s_optim_slice *slice, double keep)
{
    struct s2s_device *device = o->params->device;
    const int64_t n = slice->end - slice->begin;
    const struct s2s_mat ema = {o->ema + slice->at, n, S2S_F32};
    device->kernels->axpby(
        &device->queue, &(struct s2s_k_axpby){.x = {o->params->master + slice->stored, n, S2S_F32},
                                              .z = keep != 0 ? ema : (struct s2s_mat){0},
                                              .y = ema,
                                              .rows = 1,
                                              .cols = n,
                                              .alpha = (float)(1 - keep),
                                              .beta = (float)keep});
}

int s2s_optim_n_moments(const struct s2s_optim *o)
{
    return o->ema ? 3 : 2;
}

void s2s_optim_begin_ema(struct s2s_optim *o)
{
    for (size_t i = 0; o->ema && i < o->n_slices; i++)
        follow_values(o, &o->slices[i], 0);
}

void s2s_optim_update(struct s2s_optim *o, size_t i, double lr, double weight_decay,
                      double grad_scale)
{
    struct s2s_device *device = o->params->device;
    const struct s2s_optim_slice *slice = &o->slices[i];
    device->queue.layer = "optimizer";
    device->kernels->adamw(
        &device->queue,
        &(struct s2s_k_adamw){
            .p = o->params->master + slice->stored,
            .m = o->m + slice->at,
            .v = o->v + slice->at,
            .grad = o->params->grads + slice->stored,
            .working = s2s_params_working(o->params, slice->begin, slice->end - slice->begin),
            .ranges = o->ranges + slice->first_range,
            .n_ranges = slice->n_ranges,
            .n = slice->end - slice->begin,
            .t = o->t,
            .lr = lr,
            .beta1 = o->options.beta1,
            .beta2 = o->options.beta2,
            .eps = o->options.eps,
            .weight_decay = weight_decay,
            .grad_scale = grad_scale});
    if (o->ema)
        follow_values(o, slice, o->options.ema_decay);
}

void s2s_optim_step(struct s2s_optim *o, double lr, double weight_decay, double grad_scale)
{
    s2s_optim_begin(o);
    for (size_t i = 0; i < o->n_slices; i++)
        s2s_optim_update(o, i, lr, weight_decay, grad_scale);
}

/* ---- moments of a parameter ---- */

/* The first slice that has elements of a parameter at or after *end, and which; NULL: none. */
static const struct s2s_optim_slice *next_slice(const struct s2s_optim *o,
                                                const struct s2s_param *p, int64_t *begin,
                                                int64_t *end)
{
    const int64_t from = p->offset + *end, until = p->offset + (p->trained ? p->numel : 0);
    for (size_t i = 0; i < o->n_slices; i++) {
        int64_t b = from, e = until;
        if (!clip_range(&o->slices[i], &b, &e))
            continue;
        *begin = b - p->offset;
        *end = e - p->offset;
        return &o->slices[i];
    }
    return NULL;
}

bool s2s_optim_next(const struct s2s_optim *o, const struct s2s_param *p, int64_t *begin,
                    int64_t *end)
{
    return next_slice(o, p, begin, end) != NULL;
}

/* Where the moments of element `begin` are that a slice holds. */
static float *moments_at(const struct s2s_optim *o, const struct s2s_optim_slice *slice,
                         const struct s2s_param *p, int which, int64_t begin)
{
    float *const all[] = {o->m, o->v, o->ema};
    return all[which] + slice->at + (p->offset + begin - slice->begin);
}

void s2s_optim_get(const struct s2s_optim *o, const struct s2s_param *p, int which, float *local)
{
    struct s2s_device *device = o->params->device;
    const struct s2s_optim_slice *slice;
    for (int64_t begin, end = 0; (slice = next_slice(o, p, &begin, &end));)
        device->kernels->copy_out(&device->queue, local + begin,
                                  moments_at(o, slice, p, which, begin),
                                  (size_t)(end - begin) * sizeof *local);
}

void s2s_optim_get_piece(const struct s2s_optim *o, const struct s2s_param *p, int which,
                         int64_t begin, float *out)
{
    struct s2s_device *device = o->params->device;
    int64_t at, end = begin;
    const struct s2s_optim_slice *slice = next_slice(o, p, &at, &end);
    if (!slice || at != begin)
        S2S_BUG("%s: no moments of element %lld", p->name, (long long)begin);
    device->kernels->copy_out_async(&device->queue, out, moments_at(o, slice, p, which, begin),
                                    (size_t)(end - begin) * sizeof *out);
}

void s2s_optim_set(struct s2s_optim *o, const struct s2s_param *p, int which, const float *local)
{
    struct s2s_device *device = o->params->device;
    const struct s2s_optim_slice *slice;
    for (int64_t begin, end = 0; (slice = next_slice(o, p, &begin, &end));)
        device->kernels->copy_in(&device->queue, moments_at(o, slice, p, which, begin),
                                 local + begin, (size_t)(end - begin) * sizeof *local);
}
