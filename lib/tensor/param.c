/* The registry: names, shapes, cuts, and the buffers that parameters stand in. */
#include "lib/tensor/param.h"

#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/error.h"
#include "lib/base/mem.h"
#include "lib/base/rng.h"
#include "lib/tensor/param_internal.h"

/* elements: more than any machine has; sizes come from configs */
static const int64_t MAX_NUMEL = (int64_t)1 << 56;

struct s2s_params *s2s_params_new(struct s2s_device *device)
{
    struct s2s_params *params = s2s_xcalloc(1, sizeof *params);
    params->device = device;
    return params;
}

static void free_shards(struct s2s_params *params)
{
    struct s2s_shards *s = params->shards;
    const struct s2s_kernels *k = params->device->kernels;
    if (!s)
        return;
    k->free(&params->device->queue, s->grads);
    k->free(&params->device->queue, s->wide);
    k->free(&params->device->queue, s->narrow);
    free(s->units);
    free(s);
}

void s2s_params_free(struct s2s_params *params)
{
    if (!params)
        return;
    const struct s2s_kernels *k = params->device->kernels;
    if (params->finished) {
        if (params->values != params->master)
            k->free(&params->device->queue, params->values);
        k->free(&params->device->queue, params->master);
        k->free(&params->device->queue, params->grads);
        k->free(&params->device->queue, params->fixed);
        k->free(&params->device->queue, params->halves);
    }
    for (size_t i = 0; i < params->n; i++) {
        struct s2s_param *p = params->list[i];
        if (!p->tied) {
            free(p->tensor->grad);
            free(p->tensor);
        }
        free(p->name);
        free(p);
    }
    free_shards(params);
    free(params->list);
    free(params->slots);
    free(params);
}

/* ---- look-up ---- */

/* Where name is, or would be put. */
static struct s2s_param **slot_of(const struct s2s_params *params, const char *name)
{
    size_t i = s2s_rng_name(name) & (params->n_slots - 1);
    while (params->slots[i] && strcmp(params->slots[i]->name, name) != 0)
        i = (i + 1) & (params->n_slots - 1);
    return &params->slots[i];
}

/* Half of the slots stay free. */
static void grow_slots(struct s2s_params *params)
{
    if (2 * (params->n + 1) <= params->n_slots)
        return;
    free(params->slots);
    params->n_slots = params->n_slots ? 2 * params->n_slots : 256;
    params->slots = s2s_xcalloc(params->n_slots, sizeof *params->slots);
    for (size_t i = 0; i < params->n; i++)
        *slot_of(params, params->list[i]->name) = params->list[i];
}

struct s2s_param *s2s_params_find(const struct s2s_params *params, const char *name)
{
    return params->n_slots ? *slot_of(params, name) : NULL;
}

/* ---- adding ---- */

static void check_parts(const struct s2s_param *p)
{
    int64_t sum = 0;
    if (p->n_parts > S2S_PARAM_PARTS)
        S2S_BUG("parameter %s has %d parts", p->name, p->n_parts);
    for (int k = 0; k < p->n_parts; k++)
        sum += p->parts[k];
    if (p->n_parts > 0 && sum != p->shape[p->cuts[0].dim])
        S2S_BUG("parameter %s: parts of %lld together, dimension %d has %lld", p->name,
                (long long)sum, p->cuts[0].dim, (long long)p->shape[p->cuts[0].dim]);
}

static void check_cut(const struct s2s_param *p, int c)
{
    static const char *const names[] = {"tp", "cp", "ep", "dp", "pp"};
    const struct s2s_cut *cut = &p->cuts[c];
    const int ranks = s2s_group_size(cut->group);
    if (ranks == 1)
        return;
    if (cut->axis < 0 || cut->axis >= S2S_AXES || cut->dim < 0 || cut->dim >= p->n_dims)
        S2S_BUG("parameter %s: a cut of dimension %d of %d, axis %d", p->name, cut->dim, p->n_dims,
                (int)cut->axis);
    if (c > 0 && s2s_group_size(p->cuts[0].group) > 1 && p->cuts[0].dim == cut->dim)
        S2S_BUG("parameter %s is cut twice along dimension %d", p->name, cut->dim);
    const bool parted = c == 0 && p->n_parts > 0;
    const int64_t *sizes = parted ? p->parts : p->shape + cut->dim;
    for (int k = 0; k < (parted ? p->n_parts : 1); k++)
        if (sizes[k] % ranks != 0 && !(p->flags & S2S_PARAM_UNEVEN))
            S2S_BUG("parameter %s: %lld of dimension %d over %d ranks of %s", p->name,
                    (long long)sizes[k], cut->dim, ranks, names[cut->axis]);
}

static enum s2s_param_class class_of(const struct s2s_param *p)
{
    if (p->flags & S2S_PARAM_EXPERT)
        return S2S_CLASS_EXPERT;
    if (p->flags & S2S_PARAM_COPY)
        return S2S_CLASS_COPY;
    for (int c = 0; c < S2S_PARAM_CUTS; c++)
        if (p->cuts[c].axis == S2S_AXIS_TP && s2s_group_size(p->cuts[c].group) > 1)
            return S2S_CLASS_CUT;
    return p->flags & S2S_PARAM_SP_SUM ? S2S_CLASS_SP_SUM : S2S_CLASS_REPLICATED;
}

static bool same_shape(const struct s2s_param *a, const struct s2s_param *b)
{
    return a->n_dims == b->n_dims && memcmp(a->shape, b->shape, sizeof a->shape) == 0 &&
           memcmp(a->local, b->local, sizeof a->local) == 0;
}

static void tie(struct s2s_params *params, struct s2s_param *p, const char *name)
{
    struct s2s_param *to = s2s_params_find(params, name);
    if (!to || to->tied)
        S2S_BUG("parameter %s is tied to %s, which is not there", p->name, name);
    if (!same_shape(p, to))
        S2S_BUG("parameter %s is tied to %s, which has another shape", p->name, name);
    p->tied = to;
    p->tensor = to->tensor;
    p->numel = 0;
    p->set = true;
}

/* How much of n the rank has of a cut. */
static int64_t part_of(const struct s2s_cut *cut, int64_t n)
{
    const int ranks = s2s_group_size(cut->group), rank = s2s_group_rank(cut->group);
    return s2s_cut_begin(n, rank + 1, ranks) - s2s_cut_begin(n, rank, ranks);
}

static void set_sizes(struct s2s_param *p)
{
    p->numel = 1;
    memcpy(p->local, p->shape, sizeof p->local);
    for (int c = 0; c < S2S_PARAM_CUTS; c++) {
        int64_t *local = &p->local[p->cuts[c].dim];
        if (s2s_group_size(p->cuts[c].group) == 1)
            continue;
        if (c > 0 || p->n_parts == 0)
            *local = part_of(&p->cuts[c], *local);
        else
            for (int k = *local = 0; k < p->n_parts; k++)
                *local += part_of(&p->cuts[c], p->parts[k]);
    }
    for (int i = 0; i < p->n_dims; i++)
        if (__builtin_mul_overflow(p->numel, p->local[i], &p->numel))
            p->numel = MAX_NUMEL + 1;
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
    p->n_parts = spec->n_parts;
    p->flags = spec->flags;
    p->lr_mult = spec->lr_mult != 0 ? spec->lr_mult : 1;
    p->decay_mult = spec->decay_mult != 0 ? spec->decay_mult : 1;
    p->min_lr = -1;
    p->init = spec->init;
    memcpy(p->shape, spec->shape, (size_t)spec->n_dims * sizeof *p->shape);
    memcpy(p->cuts, spec->cuts, sizeof p->cuts);
    memcpy(p->parts, spec->parts, sizeof p->parts);
    check_parts(p);
    for (int c = 0; c < S2S_PARAM_CUTS; c++)
        check_cut(p, c);
    if (s2s_group_size(p->cuts[0].group) == 1)
        p->n_parts = 0;
    set_sizes(p);
    p->class = class_of(p);
    if (spec->tie)
        tie(params, p, spec->tie);
    else
        p->tensor = s2s_xcalloc(1, sizeof *p->tensor);
    if (p->flags & S2S_PARAM_ABSENT)
        p->numel = 0;
    grow_slots(params);
    s2s_grow(&params->list, params->n, &params->cap, sizeof *params->list);
    params->list[params->n++] = p;
    *slot_of(params, p->name) = p;
    return p;
}

void s2s_param_remove(struct s2s_param *p)
{
    p->flags |= S2S_PARAM_ABSENT;
    p->numel = 0;
}

void s2s_param_share(struct s2s_param *p, bool copy)
{
    p->flags |= S2S_PARAM_SHARED | (copy ? S2S_PARAM_COPY : 0);
    p->class = class_of(p);
}

void s2s_params_freeze(struct s2s_params *params, const char *prefix)
{
    if (params->finished)
        S2S_BUG("%s is frozen after the buffers were laid out", prefix);
    for (size_t i = 0; i < params->n; i++)
        if (strncmp(params->list[i]->name, prefix, strlen(prefix)) == 0)
            params->list[i]->flags |= S2S_PARAM_FROZEN;
}

/* Sets or clears the flag where a name matches; how many do. */
static size_t set_frozen(struct s2s_params *params, const char *pattern, bool frozen)
{
    size_t n = 0;
    if (params->finished)
        S2S_BUG("%s is frozen after the buffers were laid out", pattern);
    for (size_t i = 0; i < params->n; i++) {
        unsigned *flags = &params->list[i]->flags;
        if (fnmatch(pattern, params->list[i]->name, 0) != 0)
            continue;
        *flags = frozen ? *flags | S2S_PARAM_FROZEN : *flags & ~(unsigned)S2S_PARAM_FROZEN;
        n++;
    }
    return n;
}

size_t s2s_params_freeze_match(struct s2s_params *params, const char *pattern)
{
    return set_frozen(params, pattern, true);
}

size_t s2s_params_unfreeze_match(struct s2s_params *params, const char *pattern)
{
    return set_frozen(params, pattern, false);
}

size_t s2s_params_scale_match(struct s2s_params *params, const char *pattern, double lr_mult,
                              double decay_mult, double min_lr)
{
    size_t n = 0;
    for (size_t i = 0; i < params->n; i++)
        if (fnmatch(pattern, params->list[i]->name, 0) == 0) {
            params->list[i]->lr_mult *= lr_mult;
            params->list[i]->decay_mult *= decay_mult;
            if (min_lr >= 0)
                params->list[i]->min_lr = min_lr;
            n++;
        }
    return n;
}

void s2s_params_divide(struct s2s_params *params, enum s2s_param_class class, int n)
{
    if (params->finished)
        S2S_BUG("a class is divided after the buffers were laid out");
    params->n_shards[class] = n;
}

/* ---- buffers ---- */

static void set_header(struct s2s_tensor *t, const struct s2s_param *p, struct s2s_device *device,
                       enum s2s_dtype dtype, void *data)
{
    t->dtype = dtype;
    t->n_dims = p->n_dims;
    memcpy(t->shape, p->local, sizeof t->shape);
    t->row_stride = s2s_tensor_cols(t);
    t->data = data;
    t->device = device;
}

enum s2s_dtype tensor_working_dtype(const struct s2s_params *params, const struct s2s_param *p)
{
    const bool matrix = p->n_dims >= 2 && !(p->flags & (S2S_PARAM_F32 | S2S_PARAM_BUFFER));
    return matrix ? params->device->dtype : S2S_F32;
}

static bool has_working(const struct s2s_params *params)
{
    return params->device->dtype != S2S_F32;
}

/* The buffers, zeroed; none of them if there is no room for all. Working values are the masters
 * where both are F32. */
static int alloc_buffers(struct s2s_params *params, struct s2s_error *err)
{
    const struct s2s_kernels *k = params->device->kernels;
    const size_t size = s2s_dtype_size(params->device->dtype);
    struct s2s_shards none = {.n_units = 0}, *s = params->shards ? params->shards : &none;
    const int64_t n = params->n_stored;
    const bool works = has_working(params), whole = s == &none;
    const struct {
        int64_t n; /* -1: not needed */
        size_t size;
        void **data;
    } buffers[] = {{n, sizeof(float), (void **)&params->master},
                   {works && whole ? n : -1, size, &params->values},
                   {n, sizeof(float), (void **)&params->grads},
                   {params->n_fixed, sizeof(float), (void **)&params->fixed},
                   {params->n_halves, size, &params->halves},
                   {whole ? -1 : s->n_grads, sizeof(float), (void **)&s->grads},
                   {whole ? -1 : s->n_wide, sizeof(float), (void **)&s->wide},
                   {works && !whole ? s->n_narrow : -1, size, &s->narrow}};
    enum { N = sizeof buffers / sizeof *buffers };
    bool room = params->n_trained <= MAX_NUMEL && params->n_fixed <= MAX_NUMEL &&
                params->n_halves <= MAX_NUMEL;
    for (int i = 0; i < N; i++) {
        const size_t bytes = (size_t)(buffers[i].n > 0 ? buffers[i].n : 1) * buffers[i].size;
        *buffers[i].data = NULL;
        if (!room || buffers[i].n < 0)
            continue;
        *buffers[i].data = k->alloc(&params->device->queue, bytes);
        room = *buffers[i].data != NULL;
        if (room)
            k->zero(&params->device->queue, *buffers[i].data, bytes);
    }
    if (room) {
        params->values = params->values ? params->values : params->master;
        return 0;
    }
    for (int i = 0; i < N; i++) {
        k->free(&params->device->queue, *buffers[i].data);
        *buffers[i].data = NULL;
    }
    int rc = s2s_error_set(err, S2S_E_NOMEM, "no room for the model's %.3g parameters",
                           (double)params->n_trained + (double)params->n_fixed +
                               (double)params->n_halves);
    return s2s_error_hint(
        err, rc, "check the sizes in its config; s2s-train plan says how much each part needs");
}

/* Elements from p to what stands behind it. */
static int64_t room_of(const struct s2s_param *p)
{
    return (p->numel + PARAM_ALIGN - 1) / PARAM_ALIGN * PARAM_ALIGN;
}

void tensor_place(struct s2s_param *p, int64_t *end)
{
    p->offset = *end;
    if (*end <= MAX_NUMEL && p->numel <= MAX_NUMEL)
        *end += room_of(p);
    else
        *end = MAX_NUMEL + 1;
}

void tensor_round_up(int64_t *end, int n)
{
    const int64_t step = PARAM_ALIGN * (int64_t)(n > 0 ? n : 1);
    if (*end <= MAX_NUMEL)
        *end = (*end + step - 1) / step * step;
}

/* In the order they were added. */
static void lay_out_class(struct s2s_params *params, int c)
{
    for (size_t i = 0; i < params->n; i++)
        if (params->list[i]->trained && (int)params->list[i]->class == c)
            tensor_place(params->list[i], &params->n_trained);
    tensor_round_up(&params->n_trained, params->n_shards[c]);
}

static void lay_out(struct s2s_params *params)
{
    params->n_trained = params->n_stored = params->n_fixed = params->n_halves = 0;
    for (size_t i = 0; i < params->n; i++) {
        struct s2s_param *p = params->list[i];
        p->trained = s2s_param_learns(p) && !(p->flags & S2S_PARAM_ABSENT);
        if (!p->trained)
            tensor_place(p, tensor_working_dtype(params, p) == S2S_F32 ? &params->n_fixed
                                                                       : &params->n_halves);
    }
    for (int c = 0; c < S2S_CLASSES; c++) {
        (params->shards ? tensor_lay_out_pieces : lay_out_class)(params, c);
        params->class_end[c] = params->n_trained;
    }
    if (params->shards)
        tensor_place_units(params);
    else
        params->n_stored = params->n_trained;
}

/* Ranks record the same operations only where all of a stack, here or not, is trained or not. */
static int check_stacks(const struct s2s_params *params, struct s2s_error *err)
{
    for (size_t i = 1; i < params->n; i++) {
        const struct s2s_param *p = params->list[i], *before = params->list[i - 1];
        if (!(p->flags & S2S_PARAM_STACKED))
            continue;
        if (!same_shape(p, before))
            S2S_BUG("parameter %s is stacked behind %s, which has another shape", p->name,
                    before->name);
        if ((p->flags & S2S_PARAM_FROZEN) == (before->flags & S2S_PARAM_FROZEN))
            continue;
        const bool frozen = p->flags & S2S_PARAM_FROZEN;
        int rc = s2s_error_set(err, S2S_E_RULE, "%s is frozen, but %s is not",
                               frozen ? p->name : before->name, frozen ? before->name : p->name);
        return s2s_error_hint(err, rc, "freeze all experts of a layer, or none of them");
    }
    return 0;
}

/* The first of each stack that is here counts those that are. */
static void count_stacks(struct s2s_params *params)
{
    struct s2s_param *first = NULL;
    for (size_t i = 0; i < params->n; i++) {
        struct s2s_param *p = params->list[i];
        if (!(p->flags & S2S_PARAM_STACKED))
            first = NULL;
        if (!s2s_param_is_here(p))
            continue;
        first = first ? first : p;
        if (p->offset != first->offset + first->n_stack * room_of(p))
            S2S_BUG("parameter %s does not stand behind its stack", p->name);
        first->n_stack++;
    }
}

struct s2s_stack s2s_param_stack(const struct s2s_param *first)
{
    if (first->n_stack == 0)
        S2S_BUG("parameter %s is not the first of a stack", first->name);
    return (struct s2s_stack){first->tensor, first->n_stack, room_of(first)};
}

/* Where its values are: the masters, and what layers use; and its gradient. */
static void set_values(struct s2s_params *params, struct s2s_param *p, size_t idx)
{
    const enum s2s_dtype dtype = tensor_working_dtype(params, p);
    const bool wide = dtype == S2S_F32, absent = p->flags & S2S_PARAM_ABSENT;
    const struct s2s_shards *s = p->trained ? params->shards : NULL;
    float *masters = p->trained ? params->master : params->fixed, *grads = params->grads;
    void *values = wide ? masters : p->trained ? params->values : params->halves;
    int64_t at = p->offset, grad_at = at;
    p->master = absent || (!p->trained && !wide) ? NULL : masters + at;
    p->grad_stored = p->trained ? grads + at : NULL;
    p->stored_end = p->numel;
    if (s) {
        const struct s2s_param_piece *piece = tensor_store_part(params, idx);
        at = p->offset - piece->begin;
        values = s2s_piece_values(s, piece);
        grads = s->grads;
        grad_at = piece->grad + at;
    }
    void *data = (char *)values + at * (int64_t)s2s_dtype_size(dtype);
    set_header(p->tensor, p, params->device, dtype, absent ? NULL : data);
    p->tensor->param = p;
    if (!p->trained)
        return;
    p->tensor->needs_grad = true;
    p->tensor->grad_written = true; /* the bucket is zeroed once a step, then everybody adds */
    p->tensor->grad = s2s_xcalloc(1, sizeof *p->tensor->grad);
    set_header(p->tensor->grad, p, params->device, S2S_F32, grads + grad_at);
}

int s2s_params_finish(struct s2s_params *params, struct s2s_error *err)
{
    int rc = check_stacks(params, err);
    if (rc < 0)
        return rc;
    lay_out(params);
    rc = alloc_buffers(params, err);
    if (rc < 0)
        return rc;
    for (size_t i = 0; i < params->n; i++)
        if (!params->list[i]->tied)
            set_values(params, params->list[i], i);
    count_stacks(params);
    params->finished = true;
    return 0;
}

int64_t s2s_params_bytes(const struct s2s_params *params)
{
    const int64_t wide = (int64_t)sizeof(float);
    const int64_t size = (int64_t)s2s_dtype_size(params->device->dtype);
    const struct s2s_shards *s = params->shards;
    const int64_t n_working = s ? s->n_narrow : has_working(params) ? params->n_trained : 0;
    return wide * (params->n_stored + (s ? s->n_wide : 0) + params->n_fixed) +
           size * (n_working + params->n_halves);
}

struct s2s_mat s2s_params_working(const struct s2s_params *params, int64_t begin, int64_t n)
{
    const enum s2s_dtype dtype = params->device->dtype;
    if (!has_working(params) || params->shards)
        return (struct s2s_mat){0};
    char *values = params->values;
    return (struct s2s_mat){values + begin * (int64_t)s2s_dtype_size(dtype), n, dtype};
}

void s2s_params_round(struct s2s_params *params, int64_t begin, int64_t n)
{
    struct s2s_device *device = params->device;
    if (has_working(params) && !params->shards)
        device->kernels->copy(&device->queue,
                              &(struct s2s_k_copy){.src = {params->master + begin, n, S2S_F32},
                                                   .dst = s2s_params_working(params, begin, n),
                                                   .rows = 1,
                                                   .cols = n});
}

void s2s_params_range(const struct s2s_params *params, enum s2s_param_class class, int64_t *begin,
                      int64_t *end)
{
    *begin = class > 0 ? params->class_end[class - 1] : 0;
    *end = params->class_end[class];
}

void s2s_params_zero_grads(struct s2s_params *params)
{
    for (size_t i = 0; i < params->n && !params->complete; i++)
        if (!params->list[i]->set && s2s_param_is_here(params->list[i]))
            S2S_BUG("parameter %s was neither loaded nor initialised", params->list[i]->name);
    params->complete = true;
    params->device->kernels->zero(&params->device->queue, params->grads,
                                  (size_t)params->n_stored * sizeof(float));
}

struct s2s_param *s2s_params_find_nonfinite(const struct s2s_params *params, bool gradient)
{
    struct s2s_device *dev = params->device;
    for (size_t i = 0; i < params->n; i++) {
        struct s2s_param *p = params->list[gradient ? params->n - 1 - i : i];
        if (!s2s_param_is_here(p) || (gradient && !p->trained))
            continue;
        const int64_t n = p->stored_end - p->stored_begin;
        struct s2s_k_reduce args = {.x = {gradient ? p->grad_stored : p->master, n, S2S_F32},
                                    .rows = 1,
                                    .cols = n,
                                    .what = S2S_REDUCE_NONFINITE};
        if (!gradient && !p->divided)
            args.x = (struct s2s_mat){p->tensor->data, n, p->tensor->dtype};
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

bool s2s_param_is_here(const struct s2s_param *param)
{
    return !param->tied && !(param->flags & S2S_PARAM_ABSENT);
}

bool s2s_param_decays(const struct s2s_param *param)
{
    size_t len = strlen(param->name);
    bool bias = len >= 5 && strcmp(param->name + len - 5, ".bias") == 0;
    return param->n_dims >= 2 && !bias && !(param->flags & S2S_PARAM_NO_DECAY);
}
