/* One step of training, read from s2s_train_step at the end. */
#include "lib/train/step.h"

#include <math.h>
#include <stdlib.h>

#include "lib/base/base.h"
#include "lib/train/memory.h"

/* ONCE: squares of gradients that all ranks of tp have */
enum { LOSS, ONCE, CUT, EXPERT, BALANCE, SQUARE, ROUTED, N_SUMS };

enum { N_BALANCE = 3 }; /* losses of struct s2s_model_balance */

/* What the parts of one step share. */
struct step {
    struct s2s_side *side;
    const struct s2s_feed_step *data;
    const struct s2s_step_options *options;
    double loss; /* sum over all labels */
    struct s2s_step_result *result;
};

/* ---- a side ---- */

/* There is no memory left: who has what there is. */
static _Noreturn void end_job(void *ctx, const struct s2s_error *err)
{
    const struct s2s_side *side = ctx;
    struct s2s_error say = *err;
    struct s2s_train_memory memory;
    struct s2s_buf parts = S2S_BUF_INIT;
    s2s_train_memory_of(&memory, side);
    s2s_train_memory_say(&parts, &memory);
    snprintf(say.text, sizeof say.text, "%.300s beside %s", err->text, parts.data);
    s2s_buf_release(&parts);
    s2s_mesh_fail(side->mesh, &say);
}

void s2s_side_init(struct s2s_side *side, struct s2s_mesh *mesh, struct s2s_model *model,
                   struct s2s_optim *optim, const struct s2s_side_options *options)
{
    static const struct s2s_stages_spec one = S2S_STAGES_SPEC_INIT;
    struct s2s_device *device = model->params->device;
    *side = (struct s2s_side){.mesh = mesh,
                              .layout = options->layout,
                              .model = model,
                              .optim = optim,
                              .buckets = options->buckets,
                              .balance = options->balance,
                              .bias_rate = (float)options->bias_rate,
                              .recompute = options->recompute};
    /* the other ranks wait for one that has no memory left */
    device->fail = end_job;
    device->fail_ctx = side;
    if (!side->buckets) {
        const struct s2s_buckets_options whole = {.layout = options->layout};
        side->buckets = s2s_buckets_new(model, &whole);
    }
    if (!options->stages)
        s2s_stages_init(&side->whole, model, &one, 1, 0, NULL);
    s2s_flow_init(&side->flow, model, options->stages ? options->stages : &side->whole,
                  options->layout->axes[S2S_AXIS_PP]);
    if (options->batch_norm_batch)
        side->running = s2s_running_new(model->params);
    if (options->bias_rate > 0 || options->balance.over_step)
        side->loads = side->balance.loads = s2s_loads_new(model->params);
    side->sums = s2s_sums_new(device, N_SUMS);
    s2s_arena_init(&side->results, device, 1);
    side->squares = s2s_arena_alloc(&side->results, S2S_CLASSES * sizeof *side->squares);
    side->balance.losses =
        s2s_arena_alloc(&side->results, N_BALANCE * sizeof *side->balance.losses);
}

void s2s_side_release(struct s2s_side *side)
{
    if (!side->sums)
        return;
    s2s_flow_release(&side->flow);
    s2s_stages_release(&side->whole);
    s2s_buckets_free(side->buckets);
    s2s_running_free(side->running);
    s2s_loads_free(side->loads);
    s2s_sums_free(side->sums);
    s2s_arena_release(&side->results);
    *side = (struct s2s_side){.mesh = NULL};
}

/* ---- before anything is computed ---- */

/* Ranks of cp that read parts of their own have those of the same packs. */
static int check_parts(const struct step *s, struct s2s_error *err)
{
    const int64_t n = s->data->n_microbatches;
    struct s2s_comm *cp = s->side->layout->comms[S2S_AXIS_CP];
    int64_t *most = s2s_xcalloc(2 * (size_t)n + 1, sizeof *most);
    int rc = 0;
    for (int64_t i = 0; i < n; i++) {
        most[2 * i] = (int64_t)(s->data->microbatches[i]->parent >> 1);
        most[2 * i + 1] = -most[2 * i];
    }
    s2s_comm_all_reduce(cp, most, 2 * n, S2S_I64, S2S_GROUP_MAX);
    for (int64_t i = 0; i < n && rc == 0; i++)
        if (most[2 * i] != -most[2 * i + 1]) {
            rc = s2s_error_set(err, S2S_E_SHAPE,
                               "%s: other ranks of cp have parts of another record",
                               s->data->microbatches[i]->place);
            s2s_error_hint(err, rc, "cut the stream again, for all ranks at once");
        }
    free(most);
    return rc;
}

/* Nobody leaves the others alone in the middle of a step: what a rank can refuse it refuses here.
 */
static int validate(const struct step *s, struct s2s_error *err)
{
    int rc = s2s_comm_size(s->side->layout->comms[S2S_AXIS_CP]) > 1 ? check_parts(s, err) : 0;
    for (int64_t i = 0; rc == 0 && i < s->data->n_microbatches; i++) {
        const struct s2s_pack *pack = s->data->microbatches[i];
        if ((rc = s2s_model_check(s->side->model, &pack->batch, err)) < 0)
            s2s_error_add(err, rc, "%s", pack->place);
    }
    return s2s_mesh_all_ok(s->side->mesh, rc, err);
}

/* Labels of the global batch: the loss is their mean, whoever has them. */
static void count_labels(struct step *s)
{
    int64_t n = 0;
    for (int64_t i = 0; i < s->data->n_microbatches; i++)
        n += s->data->microbatches[i]->n_labels;
    s2s_comm_all_reduce(s->side->layout->data, &n, 1, S2S_I64, S2S_GROUP_SUM);
    s->result->labels = n;
}

static bool is_balanced(const struct s2s_side *side)
{
    return side->balance.balance > 0 || side->balance.square > 0;
}

static void begin(struct step *s)
{
    const struct s2s_pipeline pipeline =
        s2s_stages_pipeline(s->side->flow.stages, s->data->n_microbatches);
    s2s_params_zero_grads(s->side->model->params);
    s2s_buckets_begin(s->side->buckets);
    if (s->side->running)
        s2s_running_begin(s->side->running, pipeline.n_microbatches);
    if (s->side->loads)
        s2s_loads_begin(s->side->loads);
    if (is_balanced(s->side))
        s->side->model->params->device->kernels->zero(&s->side->model->params->device->queue,
                                                      s->side->balance.losses,
                                                      N_BALANCE * sizeof *s->side->balance.losses);
}

/* ---- actions ---- */

/* In the last backward sums of gradients may start that are complete then. */
static void begin_action(void *ctx, const struct s2s_action *action, bool last)
{
    const struct step *s = ctx;
    const bool goes_back = action->kind == S2S_ACTION_BACKWARD;
    s2s_mesh_note(s->side->mesh, s->options->number, goes_back ? "backward" : "forward");
    if (last && goes_back)
        s2s_buckets_arm(s->side->buckets);
}

static void add_loss(void *ctx, const struct s2s_flow_seen *seen)
{
    const struct step *s = ctx;
    if (seen->last)
        s2s_sums_add(s->side->sums, LOSS, seen->fwd->loss);
}

static struct s2s_flow_options flow_of(struct step *s)
{
    return (struct s2s_flow_options){
        .packs = s->data->microbatches,
        .n_packs = s->data->n_microbatches,
        .seed = 1.0 / (double)s->result->labels,
        .recompute = s->side->recompute,
        .balance = is_balanced(s->side) || s->side->loads ? &s->side->balance : NULL,
        .running = s->side->running,
        .begins = begin_action,
        .seen = add_loss,
        .ctx = s};
}

static void run_actions(struct step *s)
{
    const struct s2s_flow_options flow = flow_of(s);
    s2s_flow_run(&s->side->flow, &flow);
}

/* ---- sums over ranks ---- */

/* Of a slice each rank of tp may have a part of the sum. */
static void sum_over_tp(const struct step *s, const struct s2s_optim_slice *slice)
{
    const struct s2s_group *tp = s->side->layout->axes[S2S_AXIS_TP];
    const struct s2s_params *params = s->side->model->params;
    int64_t begin, end;
    s2s_params_range(params, S2S_CLASS_SP_SUM, &begin, &end);
    begin = begin > slice->begin ? begin : slice->begin;
    end = end < slice->end ? end : slice->end;
    if (s2s_group_size(tp) > 1 && begin < end)
        tp->ops->all_reduce(tp, &params->device->queue,
                            params->grads + slice->stored + (begin - slice->begin), end - begin,
                            S2S_F32, S2S_GROUP_SUM);
}

/* Over ranks that have other tokens; then, of what this rank updates, over those of tp. */
static void finish_reductions(struct step *s)
{
    const struct s2s_optim *optim = s->side->optim;
    s2s_mesh_note(s->side->mesh, s->options->number, "reduce gradients");
    s2s_flow_sum_shared(&s->side->flow);
    s2s_buckets_finish(s->side->buckets);
    for (size_t i = 0; i < optim->n_slices; i++)
        sum_over_tp(s, &optim->slices[i]);
}

/* Losses and squares of the gradients of this rank, in the one wait of the step. */
static void read_sums(struct step *s, double sums[N_SUMS])
{
    static const int sum_of[S2S_CLASSES] = {[S2S_CLASS_REPLICATED] = ONCE,
                                            [S2S_CLASS_SP_SUM] = ONCE,
                                            [S2S_CLASS_CUT] = CUT,
                                            [S2S_CLASS_EXPERT] = EXPERT};
    struct s2s_side *side = s->side;
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_tensor square = {
        .dtype = S2S_F64, .row_stride = 1, .device = side->model->params->device};
    s2s_optim_sumsq(side->optim, side->squares);
    for (int c = 0; c < S2S_CLASSES; c++) {
        if (c == S2S_CLASS_COPY) /* another stage counts it */
            continue;
        square.data = side->squares + c;
        s2s_sums_add(side->sums, sum_of[c], &square);
    }
    for (int i = 0; i < N_BALANCE && is_balanced(side); i++) {
        square.data = side->balance.losses + i;
        s2s_sums_add(side->sums, BALANCE + i, &square);
    }
    if (s2s_sums_read(side->sums, sums, &err) < 0)
        s2s_mesh_fail(side->mesh, &err);
}

static bool is_first(const struct s2s_comm *comm)
{
    return s2s_comm_rank(comm) == 0;
}

/* Leaves of the sums what no rank before this one has, so that all ranks together count each
 * element and each label once. Losses of balance stay: ranks of tp that see the same tokens count
 * all of them as often, and their mean is asked for. */
static void leave_copies(const struct s2s_side *side, double sums[N_SUMS])
{
    const struct s2s_layout *layout = side->layout;
    const bool divided = side->buckets->sharding != S2S_NO_SHARD,
               first = is_first(layout->comms[S2S_AXIS_TP]),
               own = divided || is_first(layout->data);
    sums[LOSS] = first ? sums[LOSS] : 0;
    sums[ONCE] = first && own ? sums[ONCE] : 0;
    sums[CUT] = own ? sums[CUT] : 0;
    sums[EXPERT] = divided || is_first(layout->expert_data) ? sums[EXPERT] : 0;
}

/* What this rank's packs are, unless one of its peers counts them. */
static void count_packs(const struct step *s, double *samples, double *tokens)
{
    const struct s2s_layout *layout = s->side->layout;
    *samples = *tokens = 0;
    if (!is_first(layout->comms[S2S_AXIS_TP]) || !is_first(layout->comms[S2S_AXIS_CP]) ||
        !is_first(layout->comms[S2S_AXIS_PP]))
        return;
    for (int64_t i = 0; i < s->data->n_microbatches; i++) {
        *samples += (double)s->data->microbatches[i]->batch.n_seqs;
        *tokens += (double)s->data->microbatches[i]->n_real;
    }
}

/* Losses, the norm of the gradients and what the step was made of, over all ranks: in one sum. Of a
 * pipeline the last stage alone has a loss. */
static void share_results(struct step *s)
{
    enum { SAMPLES = N_SUMS, TOKENS, N_SHARED };
    struct s2s_comm *world = s2s_mesh_world(s->side->mesh);
    struct s2s_step_result *result = s->result;
    double all[N_SHARED], peak = (double)s2s_peak_memory_bytes();
    read_sums(s, all);
    leave_copies(s->side, all);
    count_packs(s, &all[SAMPLES], &all[TOKENS]);
    s2s_comm_all_reduce(world, all, N_SHARED, S2S_F64, S2S_GROUP_SUM);
    s2s_comm_all_reduce(world, &peak, 1, S2S_F64, S2S_GROUP_MAX);
    s->loss = all[LOSS];
    result->loss = result->labels > 0 ? s->loss / (double)result->labels : 0;
    result->grad_norm = sqrt(all[ONCE] + all[CUT] + all[EXPERT]);
    result->balanced = all[ROUTED] > 0;
    result->balance = result->balanced ? all[BALANCE] / all[ROUTED] : 0;
    result->square = result->balanced ? all[SQUARE] / all[ROUTED] : 0;
    result->samples = (int64_t)all[SAMPLES];
    result->tokens = (int64_t)all[TOKENS];
    result->peak_bytes = (int64_t)peak;
}

/* ---- steps in trouble ---- */

/* The gradients that these packs alone would have given. */
static bool fails(void *ctx, struct s2s_pack *const *packs)
{
    struct step *s = ctx;
    struct s2s_flow_options flow = flow_of(s);
    flow.packs = packs;
    flow.seen = NULL;
    begin(s);
    s2s_flow_run(&s->side->flow, &flow);
    finish_reductions(s);
    uint8_t anybody = s2s_params_find_nonfinite(s->side->model->params, true) != NULL;
    s2s_comm_all_reduce(s2s_mesh_world(s->side->mesh), &anybody, 1, S2S_U8, S2S_GROUP_MAX);
    return anybody;
}

/* What the step is to be told of, in words; all ranks have the same. */
static void blame(struct step *s, enum s2s_trouble trouble, struct s2s_buf *text)
{
    const struct s2s_flow_options flow = flow_of(s);
    const struct s2s_blame_step step = {.layout = s->side->layout,
                                        .world = s2s_mesh_world(s->side->mesh),
                                        .flow = &s->side->flow,
                                        .passes = &flow,
                                        .loss = s->result->loss,
                                        .trouble = trouble,
                                        .fails = fails,
                                        .ctx = s};
    s2s_mesh_note(s->side->mesh, s->options->number, "look for bad samples");
    s2s_blame_find(&s->result->blame, &step);
    if (!isfinite(s->loss))
        s2s_buf_printf(text, "loss %g", s->result->loss);
    else if (trouble == S2S_TROUBLE_NAN)
        s2s_buf_printf(text, "gradient norm %g", s->result->grad_norm);
    s2s_buf_puts(text, ": ");
    s2s_blame_say(text, &s->result->blame);
}

static void warn(const struct step *s, const char *what, const char *text)
{
    if (s2s_mesh_rank(s->side->mesh) == 0)
        s2s_warn("train", "step %lld%s: %s", (long long)s->options->number, what, text);
}

static int refuse(const struct step *s, const char *text, struct s2s_error *err)
{
    const struct s2s_blame *blame = &s->result->blame;
    int rc = s2s_error_set(err, S2S_E_RANGE, "%.1200s", text);
    if (blame->poisoned)
        return s2s_error_hint(err, rc, "go on from a checkpoint or weights without it");
    return s2s_error_hint(err, rc, "look at these samples; train.%s=skip passes over such steps",
                          blame->trouble == S2S_TROUBLE_NAN ? "on_nan" : "on_spike");
}

/* Every rank has the same loss and norm here, and comes to the same decision. */
static int judge(struct step *s, struct s2s_error *err)
{
    const struct s2s_step_options *o = s->options;
    const double loss = s->result->loss, norm = s->result->grad_norm;
    struct s2s_buf text = S2S_BUF_INIT;
    enum s2s_answer answer = S2S_OFF;
    int rc = 0;
    if (!isfinite(loss) || !isfinite(norm)) {
        blame(s, S2S_TROUBLE_NAN, &text);
        /* no other data helps where a parameter is no number */
        answer = s->result->blame.poisoned ? S2S_STOP : o->on_nan;
    } else if (o->usual && o->on_spike != S2S_OFF &&
               s2s_usual_is_spike(o->usual, loss, norm, &text)) {
        blame(s, S2S_TROUBLE_SPIKE, &text);
        answer = o->on_spike;
    }
    s->result->answer = answer;
    if (answer == S2S_STOP)
        rc = refuse(s, text.data, err);
    else if (answer != S2S_OFF)
        warn(s, answer == S2S_SKIP ? " is skipped" : "", text.data);
    s2s_buf_release(&text);
    return rc;
}

/* ---- what the step changes ---- */

static void update(struct step *s)
{
    struct s2s_optim *optim = s->side->optim;
    s2s_mesh_note(s->side->mesh, s->options->number, "update");
    if (s->options->schedule)
        s2s_optim_follow(optim, s->options->schedule, s->options->count);
    s2s_buckets_update(s->side->buckets, optim, s->options->lr, s->options->weight_decay,
                       s2s_optim_clip_factor(optim, s->result->grad_norm));
}

/* The biases of routers' choices move by the experts that all ranks' tokens went to. */
static void move_biases(struct step *s)
{
    const struct s2s_layout *layout = s->side->layout;
    const struct s2s_group *const groups[] = {layout->gradients, layout->axes[S2S_AXIS_TP]};
    if (s->side->loads && s->side->bias_rate > 0)
        s2s_loads_end(s->side->loads, groups, 2, s->side->bias_rate);
}

/* Running statistics of batch norms move by what all ranks have seen. */
static void publish(struct step *s)
{
    struct s2s_running *running = s->side->running;
    if (!running || running->n_buffers == 0)
        return;
    const int64_t n = running->n_microbatches * running->n_buffers;
    struct s2s_comm *dp = s->side->layout->comms[S2S_AXIS_DP];
    const int size = s2s_comm_size(dp);
    struct s2s_running_factor *all = s2s_xcalloc((size_t)(n * size) + 1, sizeof *all);
    s2s_comm_all_gather(dp, all, running->factors, 2 * n, S2S_F32);
    s2s_running_end(running, s->side->layout->axes[S2S_AXIS_DP], all);
    free(all);
}

int s2s_train_step(struct s2s_side *side, const struct s2s_feed_step *data,
                   const struct s2s_step_options *options, struct s2s_step_result *result,
                   struct s2s_error *err)
{
    struct step s = {.side = side, .data = data, .options = options, .result = result};
    *result = (struct s2s_step_result){.lr = options->lr};
    int rc = validate(&s, err);
    if (rc < 0)
        return rc;
    count_labels(&s);
    begin(&s);
    if (result->labels > 0) {
        run_actions(&s);
        finish_reductions(&s);
    }
    share_results(&s);
    if ((rc = judge(&s, err)) < 0 || result->answer == S2S_SKIP)
        return rc;
    if (result->labels == 0) {
        s2s_warn("train", "step %lld has no label: nothing was learned",
                 (long long)options->number);
        return 0;
    }
    update(&s);
    move_biases(&s);
    publish(&s);
    return 0;
}
