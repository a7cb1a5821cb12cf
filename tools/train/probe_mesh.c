/*
 * Probe of a mesh: the batch goes through the trainer's own step, and what its ranks hold of
 * gradients and parameters is put together again.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "lib/base/base.h"
#include "lib/conf/conf.h"
#include "lib/train/split.h"
#include "lib/train/trainer.h"
#include "tools/train/commands.h"
#include "tools/train/probe.h"

/* ---- the recipe ---- */

/* Items of "tp=2,pp_layers=[1,1]" as overrides of the mesh. Gives: free each and the list. */
static size_t read_list(char ***out, const char *list)
{
    char **items = NULL;
    size_t n = 0, cap = 0;
    for (const char *at = list; *at;) {
        const char *end = at;
        for (int depth = 0; *end && (*end != ',' || depth > 0); end++)
            depth += *end == '[' ? 1 : *end == ']' ? -1 : 0;
        s2s_grow(&items, n, &cap, sizeof *items);
        items[n++] = s2s_xasprintf("mesh.%.*s", (int)(end - at), at);
        at = *end ? end + 1 : end;
    }
    *out = items;
    return n;
}

/* A recipe of the model alone, on the mesh that was asked for. Collective over the launch. */
static int launch(struct s2s_recipe *recipe, const struct probe_options *o, struct s2s_error *err)
{
    json_t *json = json_pack("{s:{s:s}, s:{s:[s]}, s:{s:i, s:s}}", "model", "path", o->model,
                             "data", "train", o->inputs, "train", "steps", 1, "precision",
                             o->dtype == S2S_BF16 ? "bf16-mixed" : "fp32");
    char *text = json ? json_dumps(json, 0) : NULL, **items = NULL;
    const size_t n = read_list(&items, o->mesh);
    struct s2s_conf *conf = NULL;
    int rc = text ? s2s_conf_parse(&conf, text, strlen(text), "--mesh", S2S_CONF_JSON, err)
                  : s2s_error_set(err, S2S_E_FORMAT, "%s: its name is not UTF-8", o->model);
    if (rc == 0)
        rc = train_launch_conf(recipe, conf, items, n, o->common, err);
    for (size_t i = 0; i < n; i++)
        free(items[i]);
    free(items);
    free(text);
    json_decref(json);
    return rc;
}

/* ---- the batch ---- */

/* Microbatch i of this rank: every dp-th utterance, all in one or, in a pipeline, each in its own.
 * Joined of none it is empty. */
static struct s2s_pack *take_microbatch(const struct s2s_pack *whole, const struct s2s_layout *l,
                                        int64_t i, int64_t n)
{
    const int dp = s2s_comm_size(l->comms[S2S_AXIS_DP]),
              rank = s2s_comm_rank(l->comms[S2S_AXIS_DP]);
    const struct s2s_comm *cp = l->comms[S2S_AXIS_CP];
    struct s2s_pack **list =
        s2s_xcalloc((size_t)whole->batch.n_seqs + 1, sizeof(struct s2s_pack *));
    size_t n_list = 0;
    for (int64_t s = rank + i * dp; s < whole->batch.n_seqs; s += n * dp)
        list[n_list++] = s2s_pack_utterance(whole, s, NULL);
    struct s2s_pack *pack = s2s_pack_join(list, n_list);
    s2s_pack_split(pack, s2s_comm_size(cp), s2s_comm_rank(cp));
    while (n_list > 0)
        s2s_pack_free(list[--n_list]);
    free(list);
    return pack;
}

static int make_step(struct s2s_feed_step *data, const struct probe *p, const char *inputs,
                     const struct s2s_layout *l, struct s2s_error *err)
{
    const struct s2s_pack whole = {
        .batch = p->batch, .clip_slot = p->clip_slot, .place = (char *)inputs};
    const int64_t dp = s2s_comm_size(l->comms[S2S_AXIS_DP]);
    if (!p->batch.labels)
        return s2s_error_set(err, S2S_E_NOTFOUND, "no tensor labels, and a step needs a loss");
    *data = (struct s2s_feed_step){.n_microbatches = 1, .n_global = p->batch.n_seqs};
    if (s2s_comm_size(l->comms[S2S_AXIS_PP]) > 1)
        data->n_microbatches = (p->batch.n_seqs + dp - 1) / dp;
    data->microbatches = s2s_xcalloc((size_t)data->n_microbatches + 1, sizeof(struct s2s_pack *));
    for (int64_t i = 0; i < data->n_microbatches; i++)
        data->microbatches[i] = take_microbatch(&whole, l, i, data->n_microbatches);
    return 0;
}

static void release_step(struct s2s_feed_step *data)
{
    for (int64_t i = 0; i < data->n_microbatches; i++)
        s2s_pack_free(data->microbatches[i]);
    free(data->microbatches);
}

/* ---- what ranks hold ---- */

enum what { VALUE, GRADIENT };

/* Boxes of elements [begin, end) of the local tensor, each followed by what is in it. */
static void write_piece(struct s2s_buf *to, const struct s2s_param *p, const float *local,
                        float *room, int64_t begin, int64_t end)
{
    struct s2s_box boxes[S2S_PARAM_BOXES];
    const int n = end - begin == p->numel ? s2s_param_boxes(boxes, p, NULL)
                                          : s2s_param_range_boxes(boxes, p, begin, end);
    for (int k = 0; k < n; k++) {
        s2s_box_pack(&boxes[k], p, local, room);
        s2s_buf_add(to, &boxes[k], sizeof boxes[k]);
        s2s_buf_add(to, room, (size_t)s2s_box_numel(&boxes[k], p->n_dims) * sizeof *room);
    }
}

/* Of values all that is stored; of gradients what this rank updates by them, as only that is the
 * sum of all ranks' where they divide the optimizer. */
static void write_own(struct s2s_buf *to, const struct s2s_optim *optim, const struct s2s_param *p,
                      enum what what)
{
    if (!s2s_param_is_here(p))
        return;
    float *local = s2s_xcalloc(2 * (size_t)p->numel + 1, sizeof *local), *room = local + p->numel;
    if (what == VALUE) {
        s2s_param_get(p, local);
        write_piece(to, p, local, room, p->stored_begin, p->stored_end);
    } else {
        s2s_param_get_grad(p, local);
        for (int64_t begin, end = 0; s2s_optim_next(optim, p, &begin, &end);)
            write_piece(to, p, local, room, begin, end);
    }
    free(local);
}

/* One row of a box: n elements from index `at` of the whole tensor on. */
static int put_row(float *whole, char *there, int64_t at, const float *row, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        if (there[at + i] && memcmp(&whole[at + i], &row[i], sizeof *row) != 0)
            return -1;
        whole[at + i] = row[i];
        there[at + i] = 1;
    }
    return 0;
}

/* Rows of a box into the whole tensor; -1: another rank gave other bits for an element. */
static int put_box(float *whole, char *there, const struct s2s_param *p, const struct s2s_box *box,
                   const float *values)
{
    const int last = p->n_dims - 1;
    const int64_t row = box->size[last], n = s2s_box_numel(box, p->n_dims);
    for (int64_t done = 0; done < n; done += row) {
        int64_t at = box->offset[last], step = p->shape[last], rest = done / row;
        for (int d = last - 1; d >= 0; d--) {
            at += (box->offset[d] + rest % box->size[d]) * step;
            rest /= box->size[d];
            step *= p->shape[d];
        }
        if (put_row(whole, there, at, values + done, row) < 0)
            return -1;
    }
    return 0;
}

/* What all ranks hold of a parameter, as one tensor of this rank's output. */
static int join(struct probe *probe, const char *prefix, const struct s2s_param *p,
                const struct s2s_buf *bufs, int n_ranks, struct s2s_error *err)
{
    int64_t numel = 1, n = 0;
    for (int d = 0; d < p->n_dims; d++)
        numel *= p->shape[d];
    float *whole = probe_alloc(probe, (size_t)numel * sizeof *whole);
    char *there = s2s_xcalloc((size_t)numel + 1, 1);
    int rc = 0;
    for (int r = 0; rc == 0 && r < n_ranks; r++)
        for (size_t at = 0; rc == 0 && at < bufs[r].len;) {
            struct s2s_box box;
            memcpy(&box, bufs[r].data + at, sizeof box);
            at += sizeof box;
            if (put_box(whole, there, p, &box, (const float *)(const void *)(bufs[r].data + at)))
                rc = s2s_error_set(err, S2S_E_DIGEST,
                                   "%s/%s: rank %d has another copy than those before it", prefix,
                                   p->name, r);
            at += (size_t)s2s_box_numel(&box, p->n_dims) * sizeof *whole;
        }
    for (int64_t i = 0; i < numel; i++)
        n += there[i];
    free(there);
    if (rc == 0 && n < numel)
        rc = s2s_error_set(err, S2S_E_NOTFOUND, "%s/%s: no rank has %lld of its %lld elements",
                           prefix, p->name, (long long)(numel - n), (long long)numel);
    char *name = s2s_xasprintf("%s/%s", prefix, p->name);
    probe_add(probe, name, S2S_F32, p->n_dims, p->shape, whole);
    free(name);
    return rc;
}

/* Every trained parameter. Collective; the ranks' answers are their own. */
static int gather(struct probe *p, const struct s2s_trainer *t, const char *prefix, enum what what,
                  struct s2s_error *err)
{
    const struct s2s_params *params = t->bundle.model->params;
    const int n_ranks = s2s_mesh_size(t->mesh);
    int rc = 0;
    for (size_t i = 0; i < params->n; i++) {
        const struct s2s_param *param = params->list[i];
        struct s2s_buf mine = S2S_BUF_INIT;
        if (!s2s_param_learns(param))
            continue;
        write_own(&mine, t->optim, param, what);
        struct s2s_buf *bufs = s2s_comm_gather_bufs(s2s_mesh_world(t->mesh), &mine);
        if (rc == 0 && s2s_mesh_rank(t->mesh) == 0)
            rc = join(p, prefix, param, bufs, n_ranks, err);
        for (int r = 0; r < n_ranks; r++)
            s2s_buf_release(&bufs[r]);
        free(bufs);
        s2s_buf_release(&mine);
    }
    return rc;
}

static void add_number(struct probe *p, const char *name, double value)
{
    float *number = probe_alloc(p, sizeof *number);
    *number = (float)value;
    probe_add(p, name, S2S_F32, 1, (int64_t[]){1}, number);
}

/* ---- the run ---- */

static int run_steps(struct probe *p, struct s2s_trainer *t, const struct s2s_feed_step *data,
                     const struct probe_options *o, const struct probe_optimizer *optimizer,
                     struct s2s_error *err)
{
    struct s2s_step_result result;
    char prefix[32];
    int rc = 0;
    for (int step = 0; rc == 0 && step < (o->steps ? o->steps : 1); step++) {
        const struct s2s_step_options how = {.number = step + 1,
                                             .lr = probe_lr(optimizer, step),
                                             .weight_decay = optimizer->options.weight_decay};
        rc = s2s_train_step(&t->side, data, &how, &result, err);
        if (rc < 0 || step > 0)
            continue;
        add_number(p, "loss", result.loss);
        add_number(p, "grad_norm", result.grad_norm);
        if (o->grads)
            rc = s2s_mesh_all_ok(t->mesh, gather(p, t, "grad", GRADIENT, err), err);
    }
    snprintf(prefix, sizeof prefix, "param%d", o->steps);
    if (rc == 0 && o->steps)
        rc = s2s_mesh_all_ok(t->mesh, gather(p, t, prefix, VALUE, err), err);
    return rc;
}

static int open_batch(struct probe *p, struct s2s_feed_step *data, struct s2s_trainer *t,
                      const char *inputs, struct s2s_error *err)
{
    p->model = t->bundle.model;
    int rc = probe_choose_family(p, err);
    if (rc == 0)
        rc = s2s_bundle_load(&t->bundle, 0, err);
    if (rc < 0 || (rc = s2s_safetensors_open(&p->inputs, inputs, err)) < 0)
        return rc;
    rc = p->family->prepare(p, err);
    if (rc == 0)
        rc = make_step(data, p, inputs, &t->layout, err);
    return rc < 0 ? s2s_error_add(err, rc, "%s", inputs) : 0;
}

int probe_mesh(struct probe *p, const struct probe_options *o,
               const struct probe_optimizer *optimizer, struct s2s_error *err)
{
    struct s2s_recipe recipe = S2S_RECIPE_INIT;
    struct s2s_trainer *t = NULL;
    struct s2s_feed_step data = {.microbatches = NULL};
    int rc = launch(&recipe, o, err);
    if (o->steps)
        recipe.adamw = optimizer->options;
    if (rc == 0)
        rc = s2s_trainer_open(&t, &recipe, train_mesh, err);
    if (rc == 0)
        rc = s2s_mesh_all_ok(train_mesh, open_batch(p, &data, t, o->inputs, err), err);
    if (rc == 0)
        rc = run_steps(p, t, &data, o, optimizer, err);
    if (rc == 0) {
        if (s2s_mesh_rank(train_mesh) == 0)
            rc = s2s_safetensors_save(o->out, p->out, p->n_out, NULL, 0, err);
        rc = s2s_mesh_all_ok(train_mesh, rc, err);
    }
    release_step(&data);
    s2s_trainer_free(t);
    s2s_recipe_release(&recipe);
    return rc;
}
