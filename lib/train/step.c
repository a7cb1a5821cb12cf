/* One step of training, read from the top of s2s_train_step. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/base.h"
#include "lib/train/moving.h"
#include "lib/train/trainer.h"

/* ---- parts of the step ---- */

/* Labels of the global batch: the loss is their mean, whoever has them. */
static int64_t count_labels(struct s2s_trainer *t, const struct s2s_feed_step *data)
{
    int64_t n = 0;
    for (int64_t i = 0; i < data->n_microbatches; i++)
        n += data->microbatches[i]->n_labels;
    s2s_comm_all_reduce(t->dp, &n, 1, S2S_I64, S2S_GROUP_SUM);
    return n;
}

static int bad_loss(struct s2s_trainer *t, const struct s2s_pack *pack, double loss,
                    struct s2s_error *err)
{
    struct s2s_nonfinite where;
    const struct s2s_param *p = s2s_params_find_nonfinite(t->bundle.model->params, false);
    const char *holds = p ? "; parameter " : "", *name = p ? p->name : "",
               *what = p ? " holds NaN or Inf" : "";
    const char *samples = pack->ids ? pack->ids : pack->place;
    if (s2s_tape_find_nonfinite(t->tape, &where))
        return s2s_error_set(err, S2S_E_RANGE,
                             "loss %g: the first NaN or Inf is in %s, output %d of %s (%lld "
                             "values)%s%s%s; samples %.300s",
                             loss, where.layer, where.output, where.op, (long long)where.count,
                             holds, name, what, samples);
    return s2s_error_set(err, S2S_E_RANGE, "loss %g in the last layer%s%s%s; samples %.300s", loss,
                         holds, name, what, samples);
}

/* Adds the gradients of one microbatch, times seed, and its loss to *sum. */
static int forward_backward(struct s2s_trainer *t, const struct s2s_pack *pack, double seed,
                            double *sum, struct s2s_error *err)
{
    struct s2s_forward fwd = {.seed = seed, .recompute = t->recipe->recompute};
    int rc = s2s_model_check(t->bundle.model, &pack->batch, err);
    if (rc < 0)
        return s2s_error_add(err, rc, "%s", pack->place);
    s2s_tape_reset(t->tape);
    s2s_mesh_note(t->mesh, t->state.step + 1, "forward");
    s2s_model_forward(t->bundle.model, t->tape, &pack->batch, &fwd);
    double loss = s2s_tensor_scalar(fwd.loss);
    if (!isfinite(loss))
        return bad_loss(t, pack, loss, err);
    *sum += loss;
    s2s_mesh_note(t->mesh, t->state.step + 1, "backward");
    s2s_tape_backward(t->tape);
    return s2s_device_sync(t->bundle.device, err);
}

/* Empty ones, too: whatever communicates runs on every rank. */
static int all_microbatches(struct s2s_trainer *t, const struct s2s_feed_step *data, double seed,
                            struct train_moving *moving, double *loss, struct s2s_error *err)
{
    for (int64_t i = 0; i < data->n_microbatches; i++) {
        train_moving_before(moving, t);
        int rc = forward_backward(t, data->microbatches[i], seed, loss, err);
        train_moving_after(moving, t, s2s_comm_rank(t->dp) + i * s2s_comm_size(t->dp));
        if (rc < 0)
            return rc;
    }
    return 0;
}

static void reduce_gradients(struct s2s_trainer *t)
{
    const struct s2s_params *params = t->bundle.model->params;
    s2s_mesh_note(t->mesh, t->state.step + 1, "reduce gradients");
    s2s_comm_all_reduce(t->dp, params->grads, params->n_trained, S2S_F32, S2S_GROUP_SUM);
}

static int bad_gradient(struct s2s_trainer *t, double norm, struct s2s_error *err)
{
    const struct s2s_param *p = s2s_params_find_nonfinite(t->bundle.model->params, true);
    return p ? s2s_error_set(err, S2S_E_RANGE,
                             "gradient norm %g: the first NaN or Inf is in the gradient of %s",
                             norm, p->name)
             : s2s_error_set(err, S2S_E_RANGE, "gradient norm %g", norm);
}

/* What the step was made of, over all ranks. */
static void share_counts(struct s2s_trainer *t, const struct s2s_feed_step *data, double loss,
                         struct s2s_step_result *result)
{
    double mine[3] = {loss, 0, 0}, peak = (double)s2s_peak_memory_bytes();
    for (int64_t i = 0; i < data->n_microbatches; i++) {
        mine[1] += (double)data->microbatches[i]->batch.n_seqs;
        mine[2] += (double)data->microbatches[i]->n_real;
    }
    s2s_comm_all_reduce(t->dp, mine, 3, S2S_F64, S2S_GROUP_SUM);
    s2s_comm_all_reduce(t->dp, &peak, 1, S2S_F64, S2S_GROUP_MAX);
    result->loss = result->labels > 0 ? mine[0] / (double)result->labels : 0;
    result->samples = (int64_t)mine[1];
    result->tokens = (int64_t)mine[2];
    result->peak_bytes = (int64_t)peak;
}

/* ---- the step ---- */

int s2s_train_step(struct s2s_trainer *t, const struct s2s_feed_step *data, double count,
                   struct s2s_step_result *result, struct s2s_error *err)
{
    double loss = 0;
    *result = (struct s2s_step_result){.labels = count_labels(t, data)};
    result->lr = s2s_schedule_lr(&t->recipe->schedule, count);

    s2s_params_zero_grads(t->bundle.model->params);
    struct train_moving moving;
    int rc = 0;
    train_moving_begin(&moving, t, data->n_microbatches * s2s_comm_size(t->dp));
    if (result->labels > 0)
        rc = all_microbatches(t, data, 1.0 / (double)result->labels, &moving, &loss, err);
    rc = s2s_mesh_all_ok(t->mesh, rc, err);
    if (rc == 0 && result->labels > 0)
        train_moving_end(&moving, t);
    train_moving_release(&moving);
    if (rc < 0)
        return rc;

    reduce_gradients(t);
    s2s_mesh_note(t->mesh, t->state.step + 1, "update");
    result->grad_norm = s2s_optim_grad_norm(t->optim);
    if (!isfinite(result->grad_norm))
        return bad_gradient(t, result->grad_norm, err); /* the same on every rank */
    if (result->labels > 0)
        s2s_optim_step(t->optim, result->lr, s2s_schedule_wd(&t->recipe->schedule, count),
                       s2s_optim_clip_factor(t->optim, result->grad_norm));
    else
        s2s_warn("train", "step %lld has no label: nothing was learned",
                 (long long)t->state.step + 1);
    share_counts(t, data, loss, result);
    return 0;
}
