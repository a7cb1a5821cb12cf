#include "lib/tensor/param.h"

#include <stdlib.h>
#include <string.h>

#include "lib/base/error.h"
#include "lib/base/mem.h"
#include "lib/base/rng.h"

enum { PARAM_ALIGN = 16 }; /* elements: a cache line of fp32 */
/* elements: more than any machine has; sizes come from configs */
static const int64_t MAX_NUMEL = (int64_t)1 << 56;

struct s2s_params *s2s_params_new(struct s2s_device *device)
{
    struct s2s_params *params = s2s_xcalloc(1, sizeof *params);
    params->device = device;
    return params;
}

void s2s_params_free(struct s2s_params *params)
{
    if (!params)
        return;
    const struct s2s_kernels *k = params->device->kernels;
    if (params->finished) {
        k->free(&params->device->queue, params->values);
        k->free(&params->device->queue, params->grads);
        k->free(&params->device->queue, params->fixed);
    }
    for (size_t i = 0; i < params->n; i++) {
        free(params->list[i]->tensor->grad);
        free(params->list[i]->tensor);
        free(params->list[i]->name);
        free(params->list[i]);
    }
    free(params->list);
    free(params);
}

struct s2s_param *s2s_params_find(const struct s2s_params *params, const char *name)
{
    for (size_t i = 0; i < params->n; i++)
        if (strcmp(params->list[i]->name, name) == 0)
            return params->list[i];
    return NULL;
}

struct s2s_param *s2s_params_add(struct s2s_params *params, const struct s2s_param_spec *spec)
{
    if (params->finished)
        S2S_BUG("parameter %s is added after the buffers were laid out", spec->name);
    if (s2s_params_find(params, spec->name))
        S2S_BUG("parameter %s is added twice", spec->name);
    struct s2s_param *p = s2s_xcalloc(1, sizeof *p);
    p->name = s2s_xstrdup(spec->name);
    p->n_dims = spec->n_dims;
    p->cut_dim = spec->cut_dim;
    p->cut_axis = s2s_group_size(spec->cut_group) > 1 ? spec->cut_axis : S2S_AXIS_NONE;
    p->flags = spec->flags;
    p->init = spec->init;
    p->numel = 1;
    for (int i = 0; i < spec->n_dims; i++) {
        p->shape[i] = p->local[i] = spec->shape[i];
        if (p->cut_axis != S2S_AXIS_NONE && i == spec->cut_dim) {
            int size = spec->cut_group->size;
            if (spec->shape[i] % size)
                S2S_BUG("parameter %s: %lld rows over %d ranks", p->name, (long long)p->shape[i],
                        size);
            p->local[i] /= size;
            p->cut_begin = p->local[i] * spec->cut_group->rank;
        }
        if (__builtin_mul_overflow(p->numel, p->local[i], &p->numel))
            p->numel = MAX_NUMEL + 1;
    }
    p->tensor = s2s_xcalloc(1, sizeof *p->tensor);
    s2s_grow(&params->list, params->n, &params->cap, sizeof *params->list);
    params->list[params->n++] = p;
    return p;
}

void s2s_params_freeze(struct s2s_params *params, const char *prefix)
{
    if (params->finished)
        S2S_BUG("%s is frozen after the buffers were laid out", prefix);
    for (size_t i = 0; i < params->n; i++)
        if (strncmp(params->list[i]->name, prefix, strlen(prefix)) == 0)
            params->list[i]->flags |= S2S_PARAM_FROZEN;
}

static void set_header(struct s2s_tensor *t, const struct s2s_param *p, struct s2s_device *device,
                       float *data)
{
    t->dtype = S2S_F32;
    t->n_dims = p->n_dims;
    memcpy(t->shape, p->local, sizeof t->shape);
    t->row_stride = s2s_tensor_cols(t);
    t->data = data;
    t->device = device;
}

/* The three buffers, zeroed; none of them if there is no room for all. */
static int alloc_buffers(struct s2s_params *params, struct s2s_error *err)
{
    const struct s2s_kernels *k = params->device->kernels;
    const int64_t sizes[] = {params->n_trained, params->n_trained, params->n_fixed};
    float **const buffers[] = {&params->values, &params->grads, &params->fixed};
    bool room = params->n_trained <= MAX_NUMEL && params->n_fixed <= MAX_NUMEL;
    size_t bytes[3];
    for (int i = 0; i < 3; i++) {
        bytes[i] = (size_t)(sizes[i] ? sizes[i] : 1) * sizeof(float);
        *buffers[i] = room ? k->alloc(&params->device->queue, bytes[i]) : NULL;
        room = *buffers[i] != NULL;
    }
    for (int i = 0; i < 3; i++)
        if (room) {
            k->zero(&params->device->queue, *buffers[i], bytes[i]);
        } else {
            k->free(&params->device->queue, *buffers[i]);
            *buffers[i] = NULL;
        }
    if (room)
        return 0;
    int rc = s2s_error_set(err, S2S_E_NOMEM, "no room for the model's %.3g parameters",
                           (double)params->n_trained + (double)params->n_fixed);
    return s2s_error_hint(err, rc, "check the sizes in its config");
}

int s2s_params_finish(struct s2s_params *params, struct s2s_error *err)
{
    params->n_trained = params->n_fixed = 0;
    for (size_t i = 0; i < params->n; i++) {
        struct s2s_param *p = params->list[i];
        p->trained = !(p->flags & (S2S_PARAM_FROZEN | S2S_PARAM_BUFFER));
        int64_t *end = p->trained ? &params->n_trained : &params->n_fixed;
        p->offset = *end;
        if (*end <= MAX_NUMEL && p->numel <= MAX_NUMEL)
            *end += (p->numel + PARAM_ALIGN - 1) / PARAM_ALIGN * PARAM_ALIGN;
        else
            *end = MAX_NUMEL + 1;
    }
    int rc = alloc_buffers(params, err);
    if (rc < 0)
        return rc;
    for (size_t i = 0; i < params->n; i++) {
        struct s2s_param *p = params->list[i];
        struct s2s_tensor *t = p->tensor;
        set_header(t, p, params->device, (p->trained ? params->values : params->fixed) + p->offset);
        t->param = p;
        if (!p->trained)
            continue;
        t->needs_grad = true;
        t->grad_written = true; /* the bucket is zeroed once a step, then everybody adds */
        t->grad = s2s_xcalloc(1, sizeof *t->grad);
        set_header(t->grad, p, params->device, params->grads + p->offset);
    }
    params->finished = true;
    return 0;
}

void s2s_params_zero_grads(struct s2s_params *params)
{
    params->device->kernels->zero(&params->device->queue, params->grads,
                                  (size_t)params->n_trained * sizeof(float));
}

/* Global index of the i-th local element. */
static int64_t global_index(const struct s2s_param *p, int64_t i)
{
    if (p->cut_axis == S2S_AXIS_NONE)
        return i;
    int64_t inner = 1;
    for (int d = p->cut_dim + 1; d < p->n_dims; d++)
        inner *= p->local[d];
    int64_t cut = p->local[p->cut_dim];
    int64_t outer = i / (cut * inner), rest = i % (cut * inner);
    return (outer * p->shape[p->cut_dim] + p->cut_begin) * inner + rest;
}

/* Elements first.. of the global tensor into out. */
static void init_run(const struct s2s_param *p, uint64_t key, float *out, int64_t n, int64_t first)
{
    float value = (float)p->init.value;
    switch (p->init.kind) {
    case S2S_INIT_ZERO:
    case S2S_INIT_CONSTANT:
        for (int64_t i = 0; i < n; i++)
            out[i] = p->init.kind == S2S_INIT_ZERO ? 0 : value;
        break;
    case S2S_INIT_NORMAL:
        s2s_rng_fill_normal(out, (size_t)n, key, (uint64_t)first, 0, value);
        break;
    case S2S_INIT_UNIFORM:
        s2s_rng_fill_uniform(out, (size_t)n, key, (uint64_t)first);
        for (int64_t i = 0; i < n; i++)
            out[i] = value * (2 * out[i] - 1);
        break;
    }
}

void s2s_param_init(struct s2s_param *param, uint64_t seed)
{
    const uint64_t key = S2S_RNG_KEY(seed, s2s_rng_name(param->name));
    /* pieces that are contiguous in the global tensor too */
    int64_t run = param->numel;
    if (param->cut_axis != S2S_AXIS_NONE) {
        run = 1;
        for (int d = param->cut_dim; d < param->n_dims; d++)
            run *= param->local[d];
    }
    enum { PIECE = 1 << 16 };
    float *host = s2s_xmalloc((size_t)(param->numel ? param->numel : 1) * sizeof *host);
    for (int64_t begin = 0; begin < param->numel; begin += run) {
        int64_t first = global_index(param, begin);
#pragma omp parallel for schedule(static) if (run > PIECE)
        for (int64_t at = 0; at < run; at += PIECE)
            init_run(param, key, host + begin + at, run - at < PIECE ? run - at : PIECE,
                     first + at);
    }
    s2s_tensor_write(param->tensor, host);
    free(host);
}

void s2s_params_init(struct s2s_params *params, uint64_t seed)
{
    for (size_t i = 0; i < params->n; i++)
        s2s_param_init(params->list[i], seed);
}

static float element(const unsigned char *bytes, int64_t i, enum s2s_dtype dtype, const char *name)
{
    uint16_t half;
    float single;
    double dbl;
    switch (dtype) {
    case S2S_F32:
        memcpy(&single, bytes + i * 4, 4);
        return single;
    case S2S_BF16:
        memcpy(&half, bytes + i * 2, 2);
        return s2s_bf16_to_f32(half);
    case S2S_F16:
        memcpy(&half, bytes + i * 2, 2);
        return s2s_f16_to_f32(half);
    case S2S_F64:
        memcpy(&dbl, bytes + i * 8, 8);
        return (float)dbl;
    default:
        S2S_BUG("%s: %s values for a parameter", name, s2s_dtype_name(dtype));
    }
}

void s2s_param_set(struct s2s_param *param, const void *whole, enum s2s_dtype dtype)
{
    if (dtype == S2S_F32 && param->cut_axis == S2S_AXIS_NONE) {
        s2s_tensor_write(param->tensor, whole);
        return;
    }
    float *host = s2s_xmalloc((size_t)(param->numel ? param->numel : 1) * sizeof *host);
    for (int64_t i = 0; i < param->numel; i++)
        host[i] = element(whole, global_index(param, i), dtype, param->name);
    s2s_tensor_write(param->tensor, host);
    free(host);
}

void s2s_param_get(const struct s2s_param *param, float *local)
{
    s2s_tensor_read(param->tensor, local);
}

void s2s_param_get_grad(const struct s2s_param *param, float *local)
{
    if (param->trained)
        s2s_tensor_read(param->tensor->grad, local);
    else
        memset(local, 0, (size_t)param->numel * sizeof *local);
}

struct s2s_param *s2s_params_find_nonfinite(const struct s2s_params *params, bool gradient)
{
    struct s2s_device *dev = params->device;
    for (size_t i = 0; i < params->n; i++) {
        struct s2s_param *p = params->list[i];
        if (gradient && !p->trained)
            continue;
        struct s2s_k_reduce args = {.x = gradient ? p->tensor->grad->data : p->tensor->data,
                                    .n = p->numel,
                                    .what = S2S_REDUCE_NONFINITE};
        args.out = s2s_arena_alloc(&dev->scratch, sizeof(double));
        args.workspace =
            s2s_arena_alloc(&dev->scratch, dev->kernels->reduce_workspace(&dev->queue, &args));
        dev->kernels->reduce(&dev->queue, &args);
        double count;
        dev->kernels->copy_out(&dev->queue, &count, args.out, sizeof count);
        s2s_arena_reset(&dev->scratch);
        if (count > 0)
            return p;
    }
    return NULL;
}

bool s2s_param_decays(const struct s2s_param *param)
{
    size_t len = strlen(param->name);
    bool bias = len >= 5 && strcmp(param->name + len - 5, ".bias") == 0;
    return param->n_dims >= 2 && !bias && !(param->flags & S2S_PARAM_NO_DECAY);
}
