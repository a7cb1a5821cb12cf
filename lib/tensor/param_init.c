/*
 * Values of parameters: initial ones, from whole tensors, and of this rank.
 *
 * A parameter is filled piece by piece, through buffers that stay in the cache: fresh pages for a
 * whole tensor cost more than the conversion. Threads take pieces as they come and meet only at the
 * end, so that one that has to wait for its core holds up nobody; one at a time copies.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/error.h"
#include "lib/base/half.h"
#include "lib/base/mem.h"
#include "lib/base/rng.h"
#include "lib/tensor/param_internal.h"

enum { PIECE = 1 << 16 }; /* elements */

/* Sets out to elements first .. first+n-1 of the global tensor. */
typedef void fill_fn(const void *ctx, float *out, int64_t n, int64_t first);

struct filling {
    struct s2s_param *param;
    struct s2s_box boxes[S2S_PARAM_PARTS];
    int n_boxes;
    fill_fn *fill;
    const void *ctx;
};

/* Local elements [begin, end), a sequence of runs that are contiguous in the global tensor. */
static void fill_piece(const struct filling *f, int64_t begin, int64_t end, float *out)
{
    int64_t global;
    for (int64_t i = begin, n; i < end; i += n, out += n) {
        n = tensor_param_run(f->param, f->boxes, f->n_boxes, i, &global);
        n = n < end - i ? n : end - i;
        f->fill(f->ctx, out, n, global);
    }
}

/* n values in host memory become those from stored element `begin` on; where there is no master,
 * the host's become BF16 on the way. */
static void put(struct s2s_param *p, int64_t begin, float *host, int64_t n)
{
    struct s2s_device *device = p->tensor->device;
    const size_t count = (size_t)n;
    if (p->master) {
        device->kernels->copy_in(&device->queue, p->master + begin, host, count * sizeof *host);
        return;
    }
    uint16_t *halves = (uint16_t *)(void *)host; /* each stands before its value */
    for (size_t i = 0; i < count; i++)
        halves[i] = s2s_f32_to_bf16(host[i]);
    device->kernels->copy_in(&device->queue, (uint16_t *)p->tensor->data + begin, halves,
                             count * sizeof *halves);
}

/* Working values that are not the master itself become its rounding. */
static void work_with_master(struct s2s_param *p)
{
    struct s2s_tensor master = *p->tensor;
    master.dtype = S2S_F32;
    master.data = p->master;
    if (p->master && !p->divided && p->tensor->dtype != S2S_F32 && p->numel > 0)
        s2s_tensor_copy(p->tensor, &master);
}

static void fill_param(struct s2s_param *p, fill_fn *fill, const void *ctx)
{
    struct filling f = {.param = p, .fill = fill, .ctx = ctx};
    const int64_t n = p->stored_end - p->stored_begin, room = n < PIECE ? n : PIECE;
    f.n_boxes = s2s_param_boxes(f.boxes, p, NULL);
#pragma omp parallel if (n > PIECE)
    {
        float *host = s2s_xmalloc((size_t)(room ? room : 1) * sizeof *host);
#pragma omp for schedule(dynamic)
        for (int64_t begin = 0; begin < n; begin += PIECE) {
            const int64_t end = n - begin < PIECE ? n : begin + PIECE;
            fill_piece(&f, p->stored_begin + begin, p->stored_begin + end, host);
#pragma omp critical(fill_param)
            put(p, begin, host, end - begin);
        }
        free(host);
    }
    work_with_master(p);
    p->set = true;
}

/* ---- initial values ---- */

struct init_ctx {
    struct s2s_init init;
    uint64_t key;
};

static float before_softplus(double y)
{
    return (float)(y + log(-expm1(-y)));
}

static void fill_init(const void *ctx, float *out, int64_t n, int64_t first)
{
    const struct init_ctx *c = ctx;
    const float value = (float)c->init.value;
    switch (c->init.kind) {
    case S2S_INIT_ZERO:
    case S2S_INIT_CONSTANT:
        for (int64_t i = 0; i < n; i++)
            out[i] = c->init.kind == S2S_INIT_ZERO ? 0 : value;
        break;
    case S2S_INIT_NORMAL:
        s2s_rng_fill_normal(out, (size_t)n, c->key, (uint64_t)first, 0, value);
        break;
    case S2S_INIT_UNIFORM:
        s2s_rng_fill_uniform(out, (size_t)n, c->key, (uint64_t)first);
        for (int64_t i = 0; i < n; i++)
            out[i] = value * (2 * out[i] - 1);
        break;
    case S2S_INIT_LOG_NUMBER:
        for (int64_t i = 0; i < n; i++)
            out[i] = (float)log((double)(first + i + 1));
        break;
    case S2S_INIT_STEP:
        s2s_rng_fill_uniform(out, (size_t)n, c->key, (uint64_t)first);
        for (int64_t i = 0; i < n; i++)
            out[i] = before_softplus(c->init.value * pow(100, out[i] - 1.0));
        break;
    }
}

void s2s_param_init(struct s2s_param *param, uint64_t seed)
{
    const struct init_ctx ctx = {param->init, S2S_RNG_KEY(seed, s2s_rng_name(param->name))};
    fill_param(param, fill_init, &ctx);
}

int64_t s2s_params_init(struct s2s_params *params, uint64_t seed)
{
    int64_t n = 0;
    for (size_t i = 0; i < params->n; i++) {
        struct s2s_param *p = params->list[i];
        if (p->set || !s2s_param_is_here(p))
            continue;
        s2s_param_init(p, seed);
        n += p->numel;
    }
    return n;
}

/* ---- given values ---- */

/* Values in a file may stand at any address. */
#define FILL(name, type, expression) \
    static void name(const void *whole, float *out, int64_t n, int64_t first) \
    { \
        const char *from = (const char *)whole + (size_t)first * sizeof(type); \
        for (int64_t i = 0; i < n; i++) { \
            type x; \
            memcpy(&x, from + (size_t)i * sizeof x, sizeof x); \
            out[i] = (expression); \
        } \
    }

FILL(fill_bf16, uint16_t, s2s_f32_of_bits(s2s_bits_bf16_to_f32(x)))
FILL(fill_f16, uint16_t, s2s_f32_of_bits(s2s_bits_f16_to_f32(x)))
FILL(fill_f32, float, x)
FILL(fill_f64, double, (float)x)

void s2s_param_set(struct s2s_param *param, const void *whole, enum s2s_dtype dtype)
{
    bool whole_here = dtype == S2S_F32 && param->master;
    for (int c = 0; c < S2S_PARAM_CUTS; c++)
        whole_here &= s2s_group_size(param->cuts[c].group) == 1;
    if (whole_here) {
        s2s_param_set_local(param, whole);
        return;
    }
    fill_fn *fill = dtype == S2S_BF16  ? fill_bf16
                    : dtype == S2S_F16 ? fill_f16
                    : dtype == S2S_F32 ? fill_f32
                    : dtype == S2S_F64 ? fill_f64
                                       : NULL;
    if (!fill)
        S2S_BUG("%s: %s values for a parameter", param->name, s2s_dtype_name(dtype));
    fill_param(param, fill, whole);
}

/* Through a buffer that is overwritten. */
static void fill_local(struct s2s_param *p, const float *local)
{
    float *host = s2s_xmalloc((size_t)(p->numel < PIECE ? p->numel : PIECE) * sizeof *host);
    for (int64_t begin = 0, n; begin < p->numel; begin += n) {
        n = p->numel - begin < PIECE ? p->numel - begin : PIECE;
        memcpy(host, local + begin, (size_t)n * sizeof *host);
        put(p, begin, host, n);
    }
    free(host);
}

void s2s_param_set_local(struct s2s_param *param, const float *local)
{
    struct s2s_device *device = param->tensor->device;
    const int64_t n = param->stored_end - param->stored_begin;
    if (n > 0 && param->master) {
        device->kernels->copy_in(&device->queue, param->master, local + param->stored_begin,
                                 (size_t)n * sizeof *local);
        work_with_master(param);
    } else if (n > 0) {
        fill_local(param, local);
    }
    param->set = true;
}

static void get_stored(const struct s2s_param *param, const float *stored, float *local)
{
    struct s2s_device *device = param->tensor->device;
    const int64_t n = param->stored_end - param->stored_begin;
    if (n > 0)
        device->kernels->copy_out(&device->queue, local + param->stored_begin, stored,
                                  (size_t)n * sizeof *local);
}

void s2s_param_get(const struct s2s_param *param, float *local)
{
    if (param->master)
        get_stored(param, param->master, local);
    else if (param->numel > 0)
        s2s_tensor_read_f32(param->tensor, local);
}

void s2s_param_get_stored(const struct s2s_param *param, float *stored)
{
    struct s2s_device *device = param->tensor->device;
    if (param->master)
        device->kernels->copy_out_async(&device->queue, stored, param->master,
                                        (size_t)(param->stored_end - param->stored_begin) *
                                            sizeof *stored);
    else if (param->numel > 0)
        s2s_tensor_read_f32(param->tensor, stored);
}

void s2s_param_get_grad(const struct s2s_param *param, float *local)
{
    if (param->trained)
        get_stored(param, param->grad_stored, local);
    else
        memset(local, 0, (size_t)param->numel * sizeof *local);
}
