#include "lib/optim/optim.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/error.h"
#include "lib/base/mem.h"
#include "lib/conf/conf.h"

/* Neighbours in the flat buffer that are treated alike: one kernel call. */
struct optim_run {
    int64_t begin, n;
    bool decays;
};

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
    static const char *const keys[] = {"name",         "lr",        "betas", "eps",
                                       "weight_decay", "clip_norm", NULL};
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

static float *zeroed(struct s2s_device *device, int64_t n)
{
    size_t bytes = (size_t)(n > 0 ? n : 1) * sizeof(float);
    float *ptr = device->kernels->alloc(&device->queue, bytes);
    if (!ptr)
        S2S_BUG("out of device memory: %zu bytes of optimizer state", bytes);
    device->kernels->zero(&device->queue, ptr, bytes);
    return ptr;
}

/* Parameters follow each other in the order they were added; gaps hold zeros and may be updated. */
static void find_runs(struct s2s_optim *o)
{
    size_t cap = 0;
    for (size_t i = 0; i < o->params->n; i++) {
        const struct s2s_param *p = o->params->list[i];
        if (!p->trained)
            continue;
        bool decays = s2s_param_decays(p);
        struct optim_run *last = o->n_runs > 0 ? o->runs + o->n_runs - 1 : NULL;
        if (last && last->decays == decays) {
            last->n = p->offset + p->numel - last->begin;
            continue;
        }
        s2s_grow(&o->runs, o->n_runs, &cap, sizeof *o->runs);
        o->runs[o->n_runs++] =
            (struct optim_run){.begin = p->offset, .n = p->numel, .decays = decays};
    }
}

struct s2s_optim *s2s_optim_new(struct s2s_params *params, const struct s2s_adamw_options *options)
{
    struct s2s_optim *o = s2s_xcalloc(1, sizeof *o);
    o->params = params;
    o->options = *options;
    o->end = params->n_trained;
    o->m = zeroed(params->device, o->end - o->begin);
    o->v = zeroed(params->device, o->end - o->begin);
    o->scalar = params->device->kernels->alloc(&params->device->queue, sizeof *o->scalar);
    if (!o->scalar)
        S2S_BUG("out of device memory: a scalar");
    find_runs(o);
    return o;
}

void s2s_optim_free(struct s2s_optim *o)
{
    if (!o)
        return;
    const struct s2s_kernels *k = o->params->device->kernels;
    k->free(&o->params->device->queue, o->m);
    k->free(&o->params->device->queue, o->v);
    k->free(&o->params->device->queue, o->scalar);
    free(o->runs);
    free(o);
}

/* ---- the step ---- */

double s2s_optim_grad_norm(struct s2s_optim *o)
{
    struct s2s_device *device = o->params->device;
    const struct s2s_kernels *k = device->kernels;
    struct s2s_k_reduce args = {.x = o->params->grads,
                                .out = o->scalar,
                                .n = o->params->n_trained,
                                .what = S2S_REDUCE_SUMSQ};
    struct s2s_arena_mark mark = s2s_arena_mark(&device->scratch);
    args.workspace = s2s_arena_alloc(&device->scratch, k->reduce_workspace(&device->queue, &args));
    k->reduce(&device->queue, &args);
    double sum;
    k->copy_out(&device->queue, &sum, o->scalar, sizeof sum);
    s2s_arena_rewind(&device->scratch, mark);
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
    o->t++;
    for (size_t i = 0; i < o->n_runs; i++) {
        int64_t begin = o->runs[i].begin, end = begin + o->runs[i].n;
        begin = begin > o->begin ? begin : o->begin;
        end = end < o->end ? end : o->end;
        if (begin >= end)
            continue;
        struct s2s_k_adamw args = {.p = o->params->master + begin,
                                   .m = o->m + (begin - o->begin),
                                   .v = o->v + (begin - o->begin),
                                   .grad = o->params->grads + begin,
                                   .n = end - begin,
                                   .t = o->t,
                                   .lr = lr,
                                   .beta1 = o->options.beta1,
                                   .beta2 = o->options.beta2,
                                   .eps = o->options.eps,
                                   .weight_decay = o->runs[i].decays ? weight_decay : 0,
                                   .grad_scale = grad_scale};
        device->kernels->adamw(&device->queue, &args);
    }
}

static float *moment(const struct s2s_optim *o, const struct s2s_param *param, int which)
{
    if (!param->trained || param->offset < o->begin || param->offset + param->numel > o->end)
        S2S_BUG("no moments of %s here", param->name);
    return (which ? o->v : o->m) + (param->offset - o->begin);
}

void s2s_optim_get(const struct s2s_optim *o, const struct s2s_param *param, int which, float *out)
{
    struct s2s_device *device = o->params->device;
    device->kernels->copy_out(&device->queue, out, moment(o, param, which),
                              (size_t)param->numel * sizeof *out);
}

void s2s_optim_set(struct s2s_optim *o, const struct s2s_param *param, int which, const float *in)
{
    struct s2s_device *device = o->params->device;
    device->kernels->copy_in(&device->queue, moment(o, param, which), in,
                             (size_t)param->numel * sizeof *in);
}
