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

/* What [*begin, *end) has in common with this rank's range; false: nothing. */
static bool clip_range(const struct s2s_optim *o, int64_t *begin, int64_t *end)
{
    *begin = *begin > o->begin ? *begin : o->begin;
    *end = *end < o->end ? *end : o->end;
    return *begin < *end;
}

/* Neighbours in the flat buffers that are treated alike are a range; parameters follow each other
 * by class, and gaps hold zeros and may be updated. Gives: free. */
static struct s2s_adamw_range *find_ranges(const struct s2s_optim *o, int64_t *n_out)
{
    const struct s2s_params *params = o->params;
    struct s2s_adamw_range *ranges = NULL;
    size_t n = 0, cap = 0;
    for (int c = 0; c < S2S_CLASSES; c++)
        for (size_t i = 0; i < params->n; i++) {
            const struct s2s_param *p = params->list[i];
            int64_t begin = p->offset, end = p->offset + p->numel;
            if (!p->trained || (int)p->class != c || !clip_range(o, &begin, &end))
                continue;
            const double decay_mult = s2s_param_decays(p) ? p->decay_mult : 0;
            struct s2s_adamw_range *last = n > 0 ? ranges + n - 1 : NULL;
            if (last && last->lr_mult == p->lr_mult && last->decay_mult == decay_mult) {
                last->n = end - o->begin - last->begin;
                continue;
            }
            s2s_grow(&ranges, n, &cap, sizeof *ranges);
            ranges[n++] =
                (struct s2s_adamw_range){begin - o->begin, end - begin, p->lr_mult, decay_mult};
        }
    *n_out = (int64_t)n;
    return ranges;
}

int s2s_optim_new(struct s2s_optim **optim, struct s2s_params *params,
                  const struct s2s_adamw_options *options, int64_t begin, int64_t end,
                  struct s2s_error *err)
{
    struct s2s_device *device = params->device;
    const struct s2s_kernels *k = device->kernels;
    const size_t bytes = (size_t)(end > begin ? end - begin : 1) * sizeof(float);
    struct s2s_optim *o = s2s_xcalloc(1, sizeof *o);
    *o = (struct s2s_optim){.params = params, .options = *options, .begin = begin, .end = end};
    struct s2s_adamw_range *ranges = find_ranges(o, &o->n_ranges);
    const size_t range_bytes = (size_t)o->n_ranges * sizeof *ranges;
    o->m = k->alloc(&device->queue, bytes);
    o->v = k->alloc(&device->queue, bytes);
    o->sums = k->alloc(&device->queue, S2S_CLASSES * sizeof *o->sums);
    o->ranges =
        k->alloc(&device->queue, range_bytes ? range_bytes : 1); /* a stage may train none */
    *optim = o;
    if (!o->m || !o->v || !o->sums || !o->ranges) {
        free(ranges);
        s2s_optim_free(o);
        *optim = NULL;
        return s2s_error_set(err, S2S_E_NOMEM,
                             "no room for the optimizer's two moments of %.3g parameters",
                             (double)(end - begin));
    }
    k->zero(&device->queue, o->m, bytes);
    k->zero(&device->queue, o->v, bytes);
    k->copy_in(&device->queue, o->ranges, ranges, range_bytes);
    free(ranges);
    return 0;
}

void s2s_optim_free(struct s2s_optim *o)
{
    if (!o)
        return;
    const struct s2s_kernels *k = o->params->device->kernels;
    struct s2s_queue *queue = &o->params->device->queue;
    k->free(queue, o->m);
    k->free(queue, o->v);
    k->free(queue, o->sums);
    k->free(queue, o->ranges);
    free(o);
}

/* ---- the step ---- */

void s2s_optim_sumsq(struct s2s_optim *o, double *out)
{
    struct s2s_device *device = o->params->device;
    const struct s2s_kernels *k = device->kernels;
    device->queue.layer = "optimizer";
    for (int c = 0; c < S2S_CLASSES; c++) {
        int64_t begin, end;
        s2s_params_range(o->params, (enum s2s_param_class)c, &begin, &end);
        if (!clip_range(o, &begin, &end))
            begin = end = 0;
        struct s2s_k_reduce args = {.x = {o->params->grads + begin, end - begin, S2S_F32},
                                    .out = out + c,
                                    .rows = 1,
                                    .cols = end - begin,
                                    .what = S2S_REDUCE_SUMSQ};
        struct s2s_arena_mark mark = s2s_arena_mark(&device->scratch);
        args.workspace =
            s2s_arena_alloc(&device->scratch, k->reduce_workspace(&device->queue, &args));
        k->reduce(&device->queue, &args);
        s2s_arena_rewind(&device->scratch, mark);
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

void s2s_optim_step(struct s2s_optim *o, double lr, double weight_decay, double grad_scale)
{
    struct s2s_device *device = o->params->device;
    device->queue.layer = "optimizer";
    o->t++;
    device->kernels->adamw(&device->queue,
                           &(struct s2s_k_adamw){.p = o->params->master + o->begin,
                                                 .m = o->m,
                                                 .v = o->v,
                                                 .grad = o->params->grads + o->begin,
                                                 .ranges = o->ranges,
                                                 .n_ranges = o->n_ranges,
                                                 .n = o->end - o->begin,
                                                 .t = o->t,
                                                 .lr = lr,
                                                 .beta1 = o->options.beta1,
                                                 .beta2 = o->options.beta2,
                                                 .eps = o->options.eps,
                                                 .weight_decay = weight_decay,
                                                 .grad_scale = grad_scale});
}

/* ---- moments of a parameter ---- */

void s2s_optim_range(const struct s2s_optim *o, const struct s2s_param *param, int64_t *begin,
                     int64_t *end)
{
    *begin = param->offset;
    *end = param->trained ? param->offset + param->numel : param->offset;
    if (!clip_range(o, begin, end))
        *begin = *end = param->offset;
    *begin -= param->offset;
    *end -= param->offset;
}

/* The moments that are here, and which part of the local tensor they are. */
static float *moments_of(const struct s2s_optim *o, const struct s2s_param *param, int which,
                         int64_t *begin, size_t *bytes)
{
    int64_t end;
    s2s_optim_range(o, param, begin, &end);
    *bytes = (size_t)(end - *begin) * sizeof(float);
    return (which ? o->v : o->m) + (end > *begin ? param->offset + *begin - o->begin : 0);
}

void s2s_optim_get(const struct s2s_optim *o, const struct s2s_param *param, int which,
                   float *local)
{
    struct s2s_device *device = o->params->device;
    int64_t begin;
    size_t bytes;
    const float *here = moments_of(o, param, which, &begin, &bytes);
    device->kernels->copy_out(&device->queue, local + begin, here, bytes);
}

void s2s_optim_set(struct s2s_optim *o, const struct s2s_param *param, int which,
                   const float *local)
{
    struct s2s_device *device = o->params->device;
    int64_t begin;
    size_t bytes;
    float *here = moments_of(o, param, which, &begin, &bytes);
    device->kernels->copy_in(&device->queue, here, local + begin, bytes);
}
