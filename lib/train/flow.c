/* Walking a schedule: tapes are taken and given back, messages become exchanges. */
#include "lib/train/flow.h"

#include <stdlib.h>

#include "lib/base/error.h"
#include "lib/base/mem.h"
#include "lib/nn/linear.h"
#include "lib/train/split.h"

enum { LIST = 8 }; /* messages of one exchange at most */

struct run {
    struct s2s_flow *flow;
    const struct s2s_flow_options *options;
    struct s2s_pp_schedule schedule;
};

/* ---- life ---- */

void s2s_flow_init(struct s2s_flow *flow, const struct s2s_model *model,
                   const struct s2s_stages *stages, const struct s2s_group *pp)
{
    const struct s2s_group *cp = model->par->cp;
    *flow = (struct s2s_flow){
        .model = model, .stages = stages, .pp = pp, .nothing = s2s_pack_join(NULL, 0)};
    s2s_pack_split(flow->nothing, s2s_group_size(cp), s2s_group_rank(cp));
}

void s2s_flow_release(struct s2s_flow *flow)
{
    for (size_t i = 0; i < flow->n_lanes; i++)
        s2s_tape_free(flow->lanes[i].tape);
    free(flow->lanes);
    free(flow->mail);
    s2s_pack_free(flow->nothing);
    *flow = (struct s2s_flow){.model = NULL};
}

size_t s2s_flow_peak_bytes(const struct s2s_flow *flow)
{
    size_t bytes = 0;
    for (size_t i = 0; i < flow->n_lanes; i++)
        bytes += s2s_tape_peak_bytes(flow->lanes[i].tape);
    return bytes;
}

/* ---- lanes ---- */

static struct s2s_lane *find_lane(const struct run *r, int chunk, int64_t microbatch)
{
    for (size_t i = 0; i < r->flow->n_lanes; i++) {
        struct s2s_lane *lane = &r->flow->lanes[i];
        if (lane->taken && lane->chunk == chunk && lane->microbatch == microbatch)
            return lane;
    }
    S2S_BUG("microbatch %lld is not in chunk %d", (long long)microbatch, chunk);
}

static struct s2s_lane *take_lane(struct run *r, int chunk, int64_t microbatch)
{
    struct s2s_flow *flow = r->flow;
    size_t i = 0;
    while (i < flow->n_lanes && flow->lanes[i].taken)
        i++;
    if (i == flow->n_lanes) {
        s2s_grow(&flow->lanes, flow->n_lanes, &flow->cap_lanes, sizeof *flow->lanes);
        flow->lanes[flow->n_lanes++] =
            (struct s2s_lane){.tape = s2s_tape_new(flow->model->params->device, true)};
    }
    struct s2s_lane *lane = &flow->lanes[i];
    *lane = (struct s2s_lane){
        .tape = lane->tape, .taken = true, .chunk = chunk, .microbatch = microbatch};
    s2s_tape_reset(lane->tape);
    lane->tape->recording = !r->options->forward_only || r->options->records;
    lane->tape->running = r->options->running;
    return lane;
}

static int stage_of(const struct run *r, int chunk)
{
    return s2s_pipeline_stage(&r->flow->stages->pipeline, r->flow->stages->rank, chunk);
}

static bool is_last(const struct run *r, int stage)
{
    return stage == r->flow->stages->n_stages - 1;
}

static const struct s2s_batch *batch_of(const struct run *r, int64_t microbatch)
{
    const struct s2s_flow_options *o = r->options;
    return microbatch < o->n_packs ? &o->packs[microbatch]->batch : &r->flow->nothing->batch;
}

/* Whether gradients go back from this stage to the one before: something there is trained. */
static bool goes_back(const struct run *r, int stage)
{
    return !r->options->forward_only && r->flow->stages->trained[stage];
}

/* ---- messages ---- */

/* Rows of activations between two layers: the tokens, or this rank's of them. */
static int64_t n_rows(const struct run *r, int64_t microbatch)
{
    const struct s2s_par *par = r->flow->model->par;
    const struct s2s_nn_tp tp = {.group = par->tp, .sp = par->sp};
    const int64_t rows = s2s_nn_rows(&tp, batch_of(r, microbatch)->n_tokens);
    return par->sp ? rows / s2s_group_size(par->tp) : rows;
}

/* What a stage takes, before it is there: [rows, width]. */
static void take_input(struct run *r, struct s2s_transfer *t, const struct s2s_message *m)
{
    struct s2s_lane *lane = take_lane(r, m->chunk, m->microbatch);
    lane->in = s2s_tape_matrix(lane->tape, n_rows(r, m->microbatch), r->flow->model->hidden_size);
    if (goes_back(r, stage_of(r, m->chunk)))
        s2s_tape_want_grad(lane->in);
    t->buf = lane->in->data;
    t->n = s2s_tensor_numel(lane->in);
    t->dtype = lane->in->dtype;
}

static void send_output(struct run *r, struct s2s_transfer *t, const struct s2s_message *m)
{
    const struct s2s_tensor *out = find_lane(r, m->chunk, m->microbatch)->out;
    t->buf = out->data;
    t->n = s2s_tensor_numel(out);
    t->dtype = out->dtype;
}

/* Straight into the place of the gradient of what the stage gave. */
static void take_gradient(struct run *r, struct s2s_transfer *t, const struct s2s_message *m)
{
    struct s2s_lane *lane = find_lane(r, m->chunk, m->microbatch);
    bool accumulate;
    struct s2s_tensor *grad = s2s_tape_grad(lane->tape, lane->out, &accumulate);
    if (!grad || accumulate)
        S2S_BUG("stage %d: a gradient that nobody wants", stage_of(r, m->chunk));
    t->buf = grad->data;
    t->n = s2s_tensor_numel(grad);
    t->dtype = grad->dtype;
}

static void send_gradient(struct run *r, struct s2s_transfer *t, const struct s2s_message *m)
{
    const struct s2s_flow *flow = r->flow;
    const enum s2s_dtype dtype = flow->model->params->device->dtype;
    size_t i = 0;
    while (i < flow->n_mail &&
           (flow->mail[i].chunk != m->chunk || flow->mail[i].microbatch != m->microbatch))
        i++;
    if (i == flow->n_mail)
        S2S_BUG("stage %d: no gradient to send", stage_of(r, m->chunk));
    t->buf = flow->mail[i].data;
    t->n = (int64_t)(flow->mail[i].bytes / s2s_dtype_size(dtype));
    t->dtype = dtype;
}

/* A gradient goes over the border before stage s where something before it is trained. */
static bool is_wanted(const struct run *r, const struct s2s_message *m)
{
    const int stage = stage_of(r, m->chunk);
    return !m->gradient || goes_back(r, m->send ? stage : stage + 1);
}

/* Outputs of a forward without backward are not needed any more; nor are gradients. */
static void clear_sent(struct run *r, const struct s2s_message *list, int64_t n)
{
    struct s2s_flow *flow = r->flow;
    struct s2s_pool *pool = &flow->model->params->device->pool;
    for (int64_t j = 0; j < n; j++)
        if (r->options->forward_only && list[j].send)
            find_lane(r, list[j].chunk, list[j].microbatch)->taken = false;
    while (flow->n_mail > 0) {
        const struct s2s_flow_mail *mail = &flow->mail[--flow->n_mail];
        s2s_pool_put(pool, mail->data, mail->bytes);
    }
}

/* Everything of list i at once. */
static void exchange(struct run *r, int64_t i)
{
    const struct s2s_pp_schedule *s = &r->schedule;
    const struct s2s_group *pp = r->flow->pp;
    struct s2s_queue *queue = &r->flow->model->params->device->queue;
    struct s2s_transfer list[LIST];
    int n = 0;
    for (int64_t j = s->list[i]; j < s->list[i + 1]; j++) {
        const struct s2s_message *m = &s->messages[j];
        if (!is_wanted(r, m))
            continue;
        if (n == LIST)
            S2S_BUG("an exchange of more than %d messages", LIST);
        struct s2s_transfer *t = &list[n++];
        *t = (struct s2s_transfer){.peer = m->peer, .send = m->send};
        if (m->gradient)
            (m->send ? send_gradient : take_gradient)(r, t, m);
        else
            (m->send ? send_output : take_input)(r, t, m);
    }
    if (n > 0)
        pp->ops->exchange(pp, queue, list, n);
    if (s->list[i + 1] > s->list[i])
        clear_sent(r, s->messages + s->list[i], s->list[i + 1] - s->list[i]);
}

/* ---- actions ---- */

static void forward(struct run *r, const struct s2s_action *a)
{
    const struct s2s_flow_options *o = r->options;
    const int stage = stage_of(r, a->chunk), *bounds = r->flow->stages->bounds;
    struct s2s_lane *lane =
        stage == 0 ? take_lane(r, a->chunk, a->microbatch) : find_lane(r, a->chunk, a->microbatch);
    struct s2s_tensor *in[S2S_BLOCK_TENSORS] = {lane->in}, *out[S2S_BLOCK_TENSORS];
    lane->fwd = (struct s2s_forward){.seed = o->seed,
                                     .recompute = o->recompute,
                                     .want_hits = o->want_hits,
                                     .want_rows = o->want_rows,
                                     .balance = o->balance};
    struct s2s_pass *pass =
        s2s_model_prepare(r->flow->model, lane->tape, batch_of(r, a->microbatch), &lane->fwd);
    s2s_model_run(pass, bounds[stage], bounds[stage + 1], in, out);
    lane->out = is_last(r, stage) ? NULL : out[0];
    if (o->seen)
        o->seen(o->ctx, &(struct s2s_flow_seen){.stage = stage,
                                                .last = is_last(r, stage),
                                                .microbatch = a->microbatch,
                                                .tape = lane->tape,
                                                .fwd = &lane->fwd});
    if (o->forward_only && is_last(r, stage))
        lane->taken = false;
}

/* The tape is free then; the gradient of what the stage took waits to be sent. */
static void backward(struct run *r, const struct s2s_action *a)
{
    struct s2s_flow *flow = r->flow;
    struct s2s_lane *lane = find_lane(r, a->chunk, a->microbatch);
    if (r->options->running)
        s2s_running_at(r->options->running, a->microbatch);
    s2s_tape_backward(lane->tape);
    if (lane->in && lane->in->needs_grad) {
        struct s2s_flow_mail mail = {.chunk = a->chunk, .microbatch = a->microbatch};
        mail.data = s2s_tape_detach_grad(lane->tape, lane->in, &mail.bytes);
        s2s_grow(&flow->mail, flow->n_mail, &flow->cap_mail, sizeof *flow->mail);
        flow->mail[flow->n_mail++] = mail;
    }
    lane->taken = false;
}

void s2s_flow_run(struct s2s_flow *flow, const struct s2s_flow_options *options)
{
    struct run r = {.flow = flow, .options = options};
    struct s2s_pipeline pipeline = s2s_stages_pipeline(flow->stages, options->n_packs);
    pipeline.forward_only = options->forward_only;
    s2s_pp_schedule_init(&r.schedule, &pipeline, flow->stages->rank);
    const int64_t n = r.schedule.n_actions;
    exchange(&r, 0);
    for (int64_t i = 0; i < n; i++) {
        const struct s2s_action *a = &r.schedule.actions[i];
        if (options->begins)
            options->begins(options->ctx, a, i == n - 1);
        if (a->kind == S2S_ACTION_FORWARD)
            forward(&r, a);
        else
            backward(&r, a);
        exchange(&r, i + 1);
    }
    s2s_pp_schedule_release(&r.schedule);
}

void s2s_flow_sum_shared(struct s2s_flow *flow)
{
    const struct s2s_param *p = flow->stages->shared;
    if (!p || !p->trained)
        return;
    struct s2s_device *device = flow->model->params->device;
    const int64_t n = p->numel;
    const int peer = s2s_group_rank(flow->pp) == 0 ? s2s_group_size(flow->pp) - 1 : 0;
    const size_t bytes = (size_t)n * sizeof(float);
    float *mine = p->tensor->grad->data, *theirs = s2s_pool_get(&device->pool, bytes);
    const struct s2s_transfer list[] = {{mine, n, S2S_F32, peer, true},
                                        {theirs, n, S2S_F32, peer, false}};
    flow->pp->ops->exchange(flow->pp, &device->queue, list, 2);
    const struct s2s_mat to = {mine, n, S2S_F32}, from = {theirs, n, S2S_F32};
    device->kernels->axpby(
        &device->queue,
        &(struct s2s_k_axpby){
            .x = from, .z = to, .y = to, .rows = 1, .cols = n, .alpha = 1, .beta = 1});
    s2s_pool_put(&device->pool, theirs, bytes);
}
