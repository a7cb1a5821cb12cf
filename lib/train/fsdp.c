/* Units of parameters on their way: gathered before a block, summed after its backward. */
#include "lib/train/fsdp.h"

#include <stdlib.h>

#include "lib/base/base.h"

enum { NOBODY = -1 };

/* What a unit has under way: a ticket a piece, 0 where there is none. */
struct unit_state {
    int64_t gather[S2S_PIECES], reduce[S2S_PIECES];
    bool here; /* gathered, or on its way */
    bool reducing;
    bool summed; /* since the step began */
};

struct s2s_fsdp {
    struct s2s_model *model;
    struct s2s_params *params;
    struct s2s_shards *shards;
    int *unit_of; /* [model->n_blocks]; NOBODY: nothing of it is trained */
    int *uses;    /* [model->n_blocks] the unit of another block that it computes with, or NOBODY */
    int last;     /* the unit whose gradients begin in the forward, with the loss */
    struct unit_state *states;
    bool armed;
    struct s2s_block_watch watch;
};

/* ---- units ---- */

static bool is_trained_in(const struct s2s_model *model, size_t begin, size_t end)
{
    for (size_t i = begin; i < end; i++)
        if (s2s_param_learns(model->params->list[i]))
            return true;
    return false;
}

/* Whether a block after it computes with the block's parameters too. */
static bool is_used_later(const struct s2s_model *model, const struct s2s_block *block)
{
    bool found = false;
    for (int b = 0; b < model->n_blocks; b++)
        for (size_t i = block->param_begin; i < block->param_end; i++)
            found |= model->blocks[b].uses == model->params->list[i];
    return found;
}

void s2s_fsdp_lay_out(struct s2s_model *model, const struct s2s_group *const groups[S2S_CLASSES],
                      bool pipeline)
{
    struct s2s_param_unit *units = s2s_xcalloc((size_t)model->n_blocks + 1, sizeof *units);
    int n = 0;
    for (int b = 0; b < model->n_blocks; b++) {
        const struct s2s_block *block = &model->blocks[b];
        if (!is_trained_in(model, block->param_begin, block->param_end))
            continue;
        units[n++] = (struct s2s_param_unit){.begin = block->param_begin,
                                             .end = block->param_end,
                                             .kept = is_used_later(model, block)};
    }
    if (n > 0)
        units[n - 1].kept |= pipeline;
    s2s_params_shard(model->params, units, n, groups);
    free(units);
}

/* ---- pieces of a unit ---- */

static struct s2s_queue *queue_of(const struct s2s_fsdp *f)
{
    return &f->params->device->queue;
}

static const struct s2s_group *group_of(const struct s2s_fsdp *f,
                                        const struct s2s_param_piece *piece)
{
    return f->shards->groups[piece->class];
}

/* This rank's part of its gradients. */
static float *own_grads(const struct s2s_fsdp *f, const struct s2s_param_piece *piece)
{
    return f->shards->grads + piece->grad +
           s2s_piece_part(f->shards, piece) * s2s_group_rank(group_of(f, piece));
}

/* The next piece of the unit that has elements, from *i on, or NULL. */
static const struct s2s_param_piece *next_piece(const struct s2s_fsdp *f, int u, int *i)
{
    while (*i < S2S_PIECES) {
        const struct s2s_param_piece *piece = &f->shards->units[u].pieces[(*i)++];
        if (piece->end > piece->begin)
            return piece;
    }
    return NULL;
}

/* ---- values ---- */

static void wait_values(struct s2s_fsdp *f, int u)
{
    const struct s2s_param_piece *piece;
    for (int i = 0; (piece = next_piece(f, u, &i));) {
        int64_t *ticket = &f->states[u].gather[i - 1];
        if (*ticket)
            group_of(f, piece)->ops->wait(group_of(f, piece), queue_of(f), *ticket);
        *ticket = 0;
    }
}

/* Who stands in the place of u goes. */
static void make_place(struct s2s_fsdp *f, int u)
{
    const int place = f->shards->units[u].place;
    for (int v = 0; v < f->shards->n_units; v++)
        if (v != u && place >= 0 && f->shards->units[v].place == place && f->states[v].here) {
            wait_values(f, v);
            f->states[v].here = false;
        }
}

/* What layers use in another type is sent in it: a part is rounded where it stands in the whole. */
static int64_t gather(struct s2s_fsdp *f, const struct s2s_param_piece *piece)
{
    const struct s2s_group *group = group_of(f, piece);
    const int64_t part = s2s_piece_part(f->shards, piece);
    const size_t before = (size_t)(part * group->rank) * s2s_dtype_size(piece->dtype);
    void *whole = s2s_piece_values(f->shards, piece), *own = f->params->master + piece->stored;
    if (piece->dtype != S2S_F32) {
        const struct s2s_mat rounded = {(char *)whole + before, part, piece->dtype};
        f->params->device->kernels->copy(
            queue_of(f), &(struct s2s_k_copy){
                             .src = {own, part, S2S_F32}, .dst = rounded, .rows = 1, .cols = part});
        own = rounded.data;
    }
    return group->ops->start_all_gather(group, queue_of(f), whole, own, part, piece->dtype);
}

static void start_gather(struct s2s_fsdp *f, int u)
{
    struct unit_state *s = &f->states[u];
    const struct s2s_param_piece *piece;
    if (s->here)
        return;
    make_place(f, u);
    for (int i = 0; (piece = next_piece(f, u, &i));)
        s->gather[i - 1] = gather(f, piece);
    s->here = true;
}

/* The next unit in the direction of a pass, if it has not a place of its own; none beyond the
 * border of a stage. */
static void gather_ahead(struct s2s_fsdp *f, int block, int step)
{
    for (int b = block + step; b >= 0 && b < f->model->n_blocks; b += step) {
        const int u = f->unit_of[b];
        if (u == NOBODY || u == f->unit_of[block])
            continue;
        if (f->shards->units[u].numel == 0)
            return;
        if (f->shards->units[u].place >= 0) {
            start_gather(f, u);
            return;
        }
    }
}

/* ---- gradients ---- */

/* Each rank gets the sum of its part, in the place of that part. */
static void start_reduce(struct s2s_fsdp *f, int u)
{
    struct unit_state *s = &f->states[u];
    const struct s2s_param_piece *piece;
    for (int i = 0; (piece = next_piece(f, u, &i));) {
        const struct s2s_group *group = group_of(f, piece);
        s->reduce[i - 1] = group->ops->start_reduce_scatter(
            group, queue_of(f), own_grads(f, piece), f->shards->grads + piece->grad,
            s2s_piece_part(f->shards, piece), S2S_F32);
    }
    s->reducing = s->summed = true;
}

/* Adds what has come to the gradients of the step. */
static void finish_reduce(struct s2s_fsdp *f, int u)
{
    struct unit_state *s = &f->states[u];
    const struct s2s_kernels *k = f->params->device->kernels;
    const struct s2s_param_piece *piece;
    if (!s->reducing)
        return;
    for (int i = 0; (piece = next_piece(f, u, &i));) {
        const int64_t n = s2s_piece_part(f->shards, piece);
        group_of(f, piece)->ops->wait(group_of(f, piece), queue_of(f), s->reduce[i - 1]);
        const struct s2s_mat sum = {f->params->grads + piece->stored, n, S2S_F32},
                             part = {own_grads(f, piece), n, S2S_F32};
        k->axpby(queue_of(f),
                 &(struct s2s_k_axpby){
                     .x = part, .z = sum, .y = sum, .rows = 1, .cols = n, .alpha = 1, .beta = 1});
    }
    s->reducing = false;
}

static void zero_grads(struct s2s_fsdp *f, int u)
{
    const struct s2s_param_unit *unit = &f->shards->units[u];
    const int place = unit->place;
    for (int v = 0; v < f->shards->n_units; v++)
        if (place >= 0 && f->shards->units[v].place == place)
            finish_reduce(f, v);
    f->params->device->kernels->zero(queue_of(f), f->shards->grads + unit->grad,
                                     (size_t)unit->numel * sizeof(float));
}

/* ---- passes ---- */

static bool is_kept(const struct s2s_fsdp *f, int u)
{
    return f->shards->units[u].place < 0;
}

static void bring(struct s2s_fsdp *f, int u)
{
    start_gather(f, u);
    wait_values(f, u);
}

static void enter(void *ctx, int block)
{
    struct s2s_fsdp *f = ctx;
    const int u = f->unit_of[block];
    if (f->uses[block] != NOBODY)
        bring(f, f->uses[block]);
    if (u == NOBODY)
        return;
    bring(f, u);
    gather_ahead(f, block, 1);
    if (u == f->last && !is_kept(f, u))
        zero_grads(f, u);
}

static void enter_backward(void *ctx, int block)
{
    struct s2s_fsdp *f = ctx;
    const int u = f->unit_of[block];
    if (u == NOBODY)
        return;
    bring(f, u);
    gather_ahead(f, block, -1);
    if (u != f->last && !is_kept(f, u))
        zero_grads(f, u);
}

/* Two stages have a part of the sum each. */
static bool is_shared(const struct s2s_fsdp *f, int u)
{
    const struct s2s_param_unit *unit = &f->shards->units[u];
    for (size_t i = unit->begin; i < unit->end; i++)
        if (f->params->list[i]->flags & S2S_PARAM_SHARED)
            return true;
    return false;
}

static void leave_backward(void *ctx, int block)
{
    struct s2s_fsdp *f = ctx;
    const int u = f->unit_of[block];
    if (u != NOBODY && (!is_kept(f, u) || (f->armed && !is_shared(f, u))))
        start_reduce(f, u);
}

void s2s_fsdp_begin(struct s2s_fsdp *f)
{
    f->armed = false;
    for (int u = 0; u < f->shards->n_units; u++) {
        f->states[u].summed = false;
        if (is_kept(f, u))
            zero_grads(f, u);
    }
}

void s2s_fsdp_arm(struct s2s_fsdp *f)
{
    f->armed = true;
}

void s2s_fsdp_finish(struct s2s_fsdp *f)
{
    for (int u = 0; u < f->shards->n_units; u++)
        if (is_kept(f, u) && !f->states[u].summed)
            start_reduce(f, u);
    for (int u = 0; u < f->shards->n_units; u++)
        finish_reduce(f, u);
}

/* ---- the update ---- */

int s2s_fsdp_optim(struct s2s_optim **optim, struct s2s_fsdp *f,
                   const struct s2s_adamw_options *options, struct s2s_error *err)
{
    const struct s2s_shards *s = f->shards;
    struct s2s_optim_slice *slices =
        s2s_xcalloc((size_t)s->n_units * S2S_PIECES + 1, sizeof *slices);
    const struct s2s_param_piece *piece;
    size_t n = 0;
    for (int u = 0; u < s->n_units; u++)
        for (int i = 0; (piece = next_piece(f, u, &i));) {
            const int64_t part = s2s_piece_part(s, piece),
                          begin = piece->begin + part * group_of(f, piece)->rank;
            slices[n++] = (struct s2s_optim_slice){.begin = begin, .end = begin + part};
        }
    qsort(slices, n, sizeof *slices, s2s_optim_slice_order);
    int rc = s2s_optim_new_slices(optim, f->params, options, slices, n, err);
    free(slices);
    if (rc == 0)
        (*optim)->divided = true;
    return rc;
}

/* What was gathered is no longer the value. */
static void forget(struct s2s_fsdp *f)
{
    for (int u = 0; u < f->shards->n_units; u++) {
        wait_values(f, u);
        f->states[u].here = false;
    }
}

void s2s_fsdp_update(struct s2s_fsdp *f, struct s2s_optim *optim, double lr, double weight_decay,
                     double grad_scale)
{
    s2s_optim_step(optim, lr, weight_decay, grad_scale);
    forget(f);
}

/* ---- life ---- */

/* The unit that a parameter is in; NOBODY: it is not trained, or none. */
static int unit_with(const struct s2s_fsdp *f, const struct s2s_param *param)
{
    for (int u = 0; u < f->shards->n_units; u++)
        for (size_t i = f->shards->units[u].begin; i < f->shards->units[u].end; i++)
            if (f->params->list[i] == param)
                return u;
    return NOBODY;
}

struct s2s_fsdp *s2s_fsdp_new(struct s2s_model *model, bool overlap)
{
    struct s2s_fsdp *f = s2s_xcalloc(1, sizeof *f);
    *f = (struct s2s_fsdp){
        .model = model, .params = model->params, .shards = model->params->shards, .last = NOBODY};
    f->unit_of = s2s_xcalloc((size_t)model->n_blocks + 1, sizeof *f->unit_of);
    f->uses = s2s_xcalloc((size_t)model->n_blocks + 1, sizeof *f->uses);
    f->states = s2s_xcalloc((size_t)f->shards->n_units + 1, sizeof *f->states);
    for (int b = 0; b < model->n_blocks; b++) {
        f->unit_of[b] = NOBODY;
        f->uses[b] = unit_with(f, model->blocks[b].uses);
        for (int u = 0; u < f->shards->n_units; u++)
            if (f->shards->units[u].begin == model->blocks[b].param_begin &&
                f->shards->units[u].end == model->blocks[b].param_end)
                f->unit_of[b] = u;
        if (f->unit_of[b] != NOBODY)
            f->last = f->unit_of[b];
    }
    for (int c = 0; c < S2S_CLASSES; c++) {
        const struct s2s_group *group = f->shards->groups[c];
        if (overlap && group->ops->run_beside)
            group->ops->run_beside(group);
    }
    f->watch = (struct s2s_block_watch){.ctx = f,
                                        .enter = enter,
                                        .enter_backward = enter_backward,
                                        .leave_backward = leave_backward};
    model->watch = &f->watch;
    return f;
}

void s2s_fsdp_free(struct s2s_fsdp *f)
{
    if (!f)
        return;
    forget(f);
    if (f->model->watch == &f->watch)
        f->model->watch = NULL;
    free(f->unit_of);
    free(f->uses);
    free(f->states);
    free(f);
}
