/* Pieces of tensors, listed once, and written from where they are or from a copy. */
#include "lib/train/share.h"

#include <stdlib.h>
#include <string.h>

#include "lib/base/base.h"
#include "lib/ckpt/write/dist.h"
#include "lib/tensor/device.h"

const char *const train_moments[3] = {"optimizer.state.exp_avg", "optimizer.state.exp_avg_sq",
                                      "optimizer.state.ema"};

/* Elements [begin, end) of a parameter's local tensor. */
struct piece {
    const struct s2s_param *param;
    int moment; /* -1: its value */
    int64_t begin, end;
    int64_t at; /* of the first one in the copy */
};

struct s2s_share {
    const struct s2s_params *params;
    const struct s2s_optim *optim;
    struct piece *pieces; /* [n] in the order of the file */
    size_t n, cap;
    int64_t numel;
    float *copy; /* [numel], or NULL */
};

int train_alloc_host(float **host, float **room, const struct s2s_params *params,
                     struct s2s_error *err)
{
    const char *name = "";
    int64_t largest = 1;
    for (size_t i = 0; i < params->n; i++)
        if (params->list[i]->numel > largest) {
            largest = params->list[i]->numel;
            name = params->list[i]->name;
        }
    *host = malloc((size_t)largest * 2 * sizeof **host);
    *room = *host ? *host + largest : NULL;
    return *host ? 0
                 : s2s_error_set(err, S2S_E_NOMEM, "no memory for a copy of %s: 2 x %lld bytes",
                                 name, (long long)largest * (int)sizeof **host);
}

/* ---- the list ---- */

static void add_piece(struct s2s_share *s, const struct s2s_param *p, int moment, int64_t begin,
                      int64_t end)
{
    if (begin == end)
        return;
    s2s_grow(&s->pieces, s->n, &s->cap, sizeof *s->pieces);
    s->pieces[s->n++] = (struct piece){p, moment, begin, end, s->numel};
    s->numel += end - begin;
}

/* Whose turn it is: `at` of `total` elements stand before the tensor, n ranks hold it. */
static bool is_turn(int64_t at, int64_t total, int number, int n)
{
    return (at < total ? at * n / total : n - 1) == number;
}

/* The same number on all ranks that have a part of it. */
static int64_t whole_numel(const struct s2s_param *p)
{
    int64_t n = s2s_param_is_here(p) && !(p->flags & S2S_PARAM_UNSAVED) ? 1 : 0;
    for (int i = 0; i < p->n_dims; i++)
        n *= p->shape[i];
    return n;
}

/* Who holds copies of the same values: no other stage does, and ranks of ep have other experts. */
static void find_copies(const struct s2s_group *out[S2S_AXES],
                        const struct s2s_group *const axes[S2S_AXES], bool sharded)
{
    memcpy(out, axes, S2S_AXES * sizeof *out);
    out[S2S_AXIS_PP] = out[S2S_AXIS_EP] = NULL;
    if (sharded)
        out[S2S_AXIS_DP] = out[S2S_AXIS_CP] = NULL;
}

static void add_moments(struct s2s_share *s, const struct s2s_param *p)
{
    for (int m = 0; m < s2s_optim_n_moments(s->optim); m++)
        for (int64_t begin, end = 0; s2s_optim_next(s->optim, p, &begin, &end);)
            add_piece(s, p, m, begin, end);
}

struct s2s_share *s2s_share_new(const struct s2s_params *params, const struct s2s_optim *optim,
                                const struct s2s_save_axes *axes)
{
    struct s2s_share *s = s2s_xcalloc(1, sizeof *s);
    const bool sharded = optim && optim->divided;
    const struct s2s_group *same[2][S2S_AXES],
        *others[2][S2S_AXES]; /* of values, of what ranks may divide */
    int64_t total = 0, at = 0;
    s->params = params;
    s->optim = optim;
    for (int expert = 0; expert < 2; expert++) {
        find_copies(same[expert], expert ? axes->experts : axes->dense, false);
        find_copies(others[expert], expert ? axes->experts : axes->dense, sharded);
    }
    for (size_t i = 0; i < params->n; i++)
        total += whole_numel(params->list[i]);
    for (size_t i = 0; i < params->n; i++) {
        const struct s2s_param *p = params->list[i];
        const bool expert = p->flags & S2S_PARAM_EXPERT;
        if (!s2s_param_is_here(p) || p->flags & (S2S_PARAM_COPY | S2S_PARAM_UNSAVED))
            continue;
        int n, number = s2s_param_copy(p, p->divided ? others[expert] : same[expert], &n);
        if (is_turn(at, total, number, n))
            add_piece(s, p, -1, p->stored_begin, p->stored_end);
        number = s2s_param_copy(p, others[expert], &n);
        if (optim && p->trained && is_turn(at, total, number, n))
            add_moments(s, p);
        at += whole_numel(p);
    }
    return s;
}

void s2s_share_free(struct s2s_share *s)
{
    if (!s)
        return;
    struct s2s_device *device = s->params->device;
    device->kernels->free_host(&device->queue, s->copy);
    free(s->pieces);
    free(s);
}

int64_t s2s_share_bytes(const struct s2s_share *s)
{
    return s->numel * (int64_t)sizeof *s->copy;
}

/* ---- the copy ---- */

int s2s_share_reserve(struct s2s_share *s, struct s2s_error *err)
{
    struct s2s_device *device = s->params->device;
    if (s->numel == 0)
        return 0;
    s->copy = device->kernels->alloc_host(&device->queue, (size_t)s2s_share_bytes(s));
    if (!s->copy)
        return s2s_error_set(err, S2S_E_NOMEM,
                             "no host memory for a copy of what this rank saves: %lld bytes",
                             (long long)s2s_share_bytes(s));
    memset(s->copy, 0, (size_t)s2s_share_bytes(s)); /* its pages are there before the first save */
    return 0;
}

/* Into out, in the order of the device's queue. */
static void fetch(const struct s2s_share *s, const struct piece *piece, float *out)
{
    if (piece->moment < 0)
        s2s_param_get_stored(piece->param, out);
    else
        s2s_optim_get_piece(s->optim, piece->param, piece->moment, piece->begin, out);
}

int s2s_share_copy(struct s2s_share *s, struct s2s_error *err)
{
    for (size_t i = 0; i < s->n; i++)
        fetch(s, &s->pieces[i], s->copy + s->pieces[i].at);
    return s2s_device_sync(s->params->device, err);
}

/* ---- the file ---- */

static int boxes_of(struct s2s_box *out, const struct piece *piece)
{
    const struct s2s_param *p = piece->param;
    return piece->end - piece->begin == p->numel
               ? s2s_param_boxes(out, p, NULL)
               : s2s_param_range_boxes(out, p, piece->begin, piece->end);
}

/* data: its elements; host and room are as train_alloc_host gives them. */
static int write_piece(struct s2s_dist_writer *w, const struct piece *piece, const float *data,
                       float *host, float *room, struct s2s_error *err)
{
    const struct s2s_param *p = piece->param;
    struct s2s_box boxes[S2S_PARAM_BOXES];
    const char *prefix = piece->moment < 0 ? "" : train_moments[piece->moment];
    char *name = s2s_xasprintf("%s%s%s", prefix, *prefix ? "." : "", p->name);
    const int n = boxes_of(boxes, piece);
    int rc = 0;
    for (int k = 0; rc == 0 && k < n; k++) {
        const int64_t begin = s2s_box_begin(&boxes[k], p);
        struct s2s_dist_chunk chunk = {.name = name,
                                       .dtype = S2S_F32,
                                       .n_dims = p->n_dims,
                                       .shape = p->shape,
                                       .offset = boxes[k].offset,
                                       .size = boxes[k].size};
        if (begin < 0) {
            if (data != host + piece->begin)
                memcpy(host + piece->begin, data,
                       (size_t)(piece->end - piece->begin) * sizeof *data);
            s2s_box_pack(&boxes[k], p, host, room);
        }
        rc =
            s2s_dist_write_tensor(w, &chunk, begin < 0 ? room : data + (begin - piece->begin), err);
    }
    free(name);
    return rc;
}

int s2s_share_write(const struct s2s_share *s, struct s2s_dist_writer *w, bool copied,
                    struct s2s_error *err)
{
    float *host, *room;
    int rc = train_alloc_host(&host, &room, s->params, err);
    for (size_t i = 0; rc == 0 && i < s->n; i++) {
        const struct piece *piece = &s->pieces[i];
        const float *data = copied ? s->copy + piece->at : host + piece->begin;
        if (!copied) {
            fetch(s, piece, host + piece->begin);
            if ((rc = s2s_device_sync(s->params->device, err)) < 0)
                break;
        }
        rc = write_piece(w, piece, data, host, room, err);
    }
    free(host);
    return rc;
}
