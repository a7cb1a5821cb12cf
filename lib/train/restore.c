/* Checkpoints, read: each rank takes its own boxes out of what any mesh wrote. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/base.h"
#include "lib/ckpt/ckpt.h"
#include "lib/ckpt/plan.h"
#include "lib/ckpt/write/manifest.h"
#include "lib/train/share.h"
#include "lib/train/trainer.h"

/* Boxes of a tensor into this rank's elements; room: for as many. */
static int read_boxes(struct s2s_ckpt *ckpt, const char *name, const struct s2s_param *p,
                      const struct s2s_box *boxes, int n_boxes, float *local, float *room,
                      struct s2s_error *err)
{
    const struct s2s_ckpt_tensor *t = s2s_ckpt_find(ckpt, name);
    int rc = 0;
    if (!t)
        S2S_BUG("%s was found and is gone", name);
    for (int k = 0; rc == 0 && k < n_boxes; k++) {
        const int64_t begin = s2s_box_begin(&boxes[k], p);
        rc = s2s_ckpt_read(ckpt, t, boxes[k].offset, boxes[k].size,
                           begin < 0 ? room : local + begin, err);
        if (rc == 0 && begin < 0)
            s2s_box_unpack(&boxes[k], p, room, local);
    }
    return rc;
}

static int read_moments(struct s2s_ckpt *ckpt, struct s2s_optim *optim, const struct s2s_param *p,
                        int n_moments, float *host, float *room, struct s2s_error *err)
{
    struct s2s_box boxes[S2S_PARAM_BOXES];
    int rc = 0;
    for (int m = 0; rc == 0 && m < n_moments; m++) {
        char *name = s2s_xasprintf("%s.%s", train_moments[m], p->name);
        for (int64_t begin, end = 0; rc == 0 && s2s_optim_next(optim, p, &begin, &end);)
            rc = read_boxes(ckpt, name, p, boxes, s2s_param_range_boxes(boxes, p, begin, end), host,
                            room, err);
        if (rc == 0)
            s2s_optim_set(optim, p, m, host);
        free(name);
    }
    return rc;
}

/* Names and shapes of everything that is wanted, checked at once. */
static int check_names(struct s2s_ckpt *ckpt, const struct s2s_params *params, int n_moments,
                       struct s2s_error *err)
{
    struct s2s_ckpt_want *wants = s2s_xcalloc(4 * params->n + 1, sizeof *wants);
    size_t n = 0;
    for (size_t i = 0; i < params->n; i++) {
        const struct s2s_param *p = params->list[i];
        if (!s2s_param_is_here(p) || p->flags & S2S_PARAM_UNSAVED)
            continue;
        wants[n++] = (struct s2s_ckpt_want){p->name, S2S_F32, p->n_dims, p->shape};
        for (int m = 0; p->trained && m < n_moments; m++)
            wants[n++] = (struct s2s_ckpt_want){s2s_xasprintf("%s.%s", train_moments[m], p->name),
                                                S2S_F32, p->n_dims, p->shape};
    }
    int rc = s2s_ckpt_check(ckpt, wants, n, err);
    for (size_t i = 0; i < n; i++)
        if (strncmp(wants[i].name, "optimizer.state.", 16) == 0)
            free((char *)wants[i].name);
    free(wants);
    return rc;
}

static const char HEAD[] = "lm_head.weight", EMBED[] = "model.embed_tokens.weight";

int s2s_restore_own_head(struct s2s_ckpt *ckpt, const char *prefix, struct s2s_error *err)
{
    char *names[2] = {s2s_xasprintf("%s%s", prefix, HEAD), s2s_xasprintf("%s%s", prefix, EMBED)};
    const struct s2s_ckpt_tensor *head = s2s_ckpt_find(ckpt, names[0]);
    const struct s2s_ckpt_tensor *embed = s2s_ckpt_find(ckpt, names[1]);
    int same = head && embed ? s2s_ckpt_is_copy(ckpt, head, embed, err) : 1;
    free(names[0]);
    free(names[1]);
    return same < 0 ? same : !same;
}

enum s2s_head s2s_restore_head(const char *path)
{
    static const char *const prefixes[] = {"", "llm."};
    struct s2s_error unread = S2S_ERROR_INIT; /* by s2s_restore, which says so */
    struct s2s_ckpt *ckpt = NULL;
    enum s2s_head head = S2S_HEAD_BY_FILES;
    if (s2s_ckpt_open(&ckpt, path, &unread) < 0)
        return head;
    for (size_t i = 0; i < 2 && head == S2S_HEAD_BY_FILES; i++) {
        char *embed = s2s_xasprintf("%s%s", prefixes[i], EMBED);
        if (s2s_ckpt_find(ckpt, embed))
            head =
                s2s_restore_own_head(ckpt, prefixes[i], &unread) > 0 ? S2S_HEAD_OWN : S2S_HEAD_TIED;
        free(embed);
    }
    s2s_ckpt_close(ckpt);
    return head;
}

/* 1: a weight that the model has no place for, and that says something. */
static int is_unused(struct s2s_ckpt *ckpt, const struct s2s_params *params, const char *name,
                     struct s2s_error *err)
{
    if (s2s_ckpt_is_state(name) || s2s_ends_with(name, ".num_batches_tracked") ||
        s2s_params_find(params, name))
        return 0;
    if (!s2s_ends_with(name, HEAD))
        return 1;
    char *prefix = s2s_xstrndup(name, strlen(name) - strlen(HEAD));
    int rc = s2s_restore_own_head(ckpt, prefix, err);
    free(prefix);
    return rc;
}

/* The model is not quite the one that was trained. */
static int warn_unused(struct s2s_ckpt *ckpt, const struct s2s_params *params,
                       struct s2s_error *err)
{
    struct s2s_buf names = S2S_BUF_INIT;
    size_t n, n_unused = 0;
    const struct s2s_ckpt_tensor *tensors = s2s_ckpt_tensors(ckpt, &n);
    int rc = 0;
    for (size_t i = 0; rc >= 0 && i < n; i++)
        if ((rc = is_unused(ckpt, params, tensors[i].name, err)) > 0 && n_unused++ < 10)
            s2s_buf_printf(&names, " %s", tensors[i].name);
    if (n_unused)
        s2s_warn("train", "%s: %zu tensors are not used:%s%s", s2s_ckpt_path(ckpt), n_unused,
                 names.data, n_unused > 10 ? " .." : "");
    s2s_buf_release(&names);
    return rc < 0 ? rc : 0;
}

/* The boxes of what is stored here of a parameter: out [S2S_PARAM_BOXES]. */
static int stored_boxes(struct s2s_box *out, const struct s2s_param *p)
{
    if (p->stored_end - p->stored_begin == p->numel)
        return s2s_param_boxes(out, p, NULL);
    return s2s_param_range_boxes(out, p, p->stored_begin, p->stored_end);
}

static int read_tensors(struct s2s_ckpt *ckpt, struct s2s_params *params, struct s2s_optim *optim,
                        int n_moments, struct s2s_error *err)
{
    float *host, *room;
    int rc = train_alloc_host(&host, &room, params, err);
    for (size_t i = 0; rc == 0 && i < params->n; i++) {
        struct s2s_param *p = params->list[i];
        struct s2s_box boxes[S2S_PARAM_BOXES];
        if (!s2s_param_is_here(p) || p->flags & S2S_PARAM_UNSAVED)
            continue;
        const int n_boxes = stored_boxes(boxes, p);
        if ((rc = read_boxes(ckpt, p->name, p, boxes, n_boxes, host, room, err)) < 0)
            break;
        s2s_param_set_local(p, host);
        if (optim && p->trained)
            rc = read_moments(ckpt, optim, p, n_moments, host, room, err);
    }
    free(host);
    return rc;
}

static int read_state(struct s2s_ckpt *ckpt, struct s2s_optim *optim, struct s2s_run_state *state,
                      struct s2s_error *err)
{
    const json_t *common = s2s_ckpt_common(ckpt), *own = json_object_get(common, "train_state");
    json_int_t step, packs, samples, tokens, t, seed = -1, skipped = 0, in_row = 0;
    double elapsed_s;
    if (json_unpack((json_t *)common, "{s:I}", "iteration", &step) != 0 ||
        json_unpack((json_t *)own, "{s:I, s:I, s:I, s:I, s:F, s?I, s?I, s?I}", "packs", &packs,
                    "samples", &samples, "tokens", &tokens, "optimizer_steps", &t, "elapsed_s",
                    &elapsed_s, "seed", &seed, "skipped", &skipped, "skips_in_row", &in_row) != 0)
        return s2s_error_set(err, S2S_E_FORMAT, "its common state is none of a training run");
    json_t *data = json_object_get(own, "data");
    *state = (struct s2s_run_state){step,
                                    packs,
                                    samples,
                                    tokens,
                                    elapsed_s,
                                    seed,
                                    .data = json_is_array(data) ? json_incref(data) : NULL,
                                    .shuffled = json_is_true(json_object_get(own, "shuffle")),
                                    .base = json_incref(json_object_get(common, "base")),
                                    .skipped = skipped,
                                    .skips_in_row = in_row,
                                    .usual = json_incref(json_object_get(own, "usual"))};
    optim->t = t;
    return 0;
}

/* Those of a run that kept no average of its values are two, and it begins here. */
static int moments_in(struct s2s_ckpt *ckpt, const struct s2s_params *params,
                      const struct s2s_optim *optim)
{
    bool has = false;
    for (size_t i = 0; i < params->n && !has; i++) {
        char *name = s2s_xasprintf("%s.%s", train_moments[2], params->list[i]->name);
        has = s2s_ckpt_find(ckpt, name) != NULL;
        free(name);
    }
    return has ? s2s_optim_n_moments(optim) : 2;
}

int s2s_restore(const char *path, struct s2s_params *params, struct s2s_optim *optim,
                struct s2s_run_state *state, struct s2s_error *err)
{
    struct s2s_ckpt *ckpt = NULL;
    int rc = s2s_ckpt_open(&ckpt, path, err);
    if (rc < 0)
        return rc;
    const int n_moments = optim ? moments_in(ckpt, params, optim) : 0;
    rc = check_names(ckpt, params, n_moments, err); /* says the path */
    if (rc == 0) {
        rc = warn_unused(ckpt, params, err);
        if (rc == 0)
            rc = read_tensors(ckpt, params, optim, n_moments, err);
        if (rc == 0 && optim && n_moments == 2)
            s2s_optim_begin_ema(optim);
        if (rc == 0 && optim)
            rc = read_state(ckpt, optim, state, err);
        if (rc < 0)
            s2s_error_add(err, rc, "%s", s2s_ckpt_path(ckpt));
    }
    s2s_ckpt_close(ckpt);
    return rc;
}

int s2s_restore_check(const char *path, struct s2s_mesh *mesh, struct s2s_error *err)
{
    struct s2s_ckpt *ckpt = NULL;
    int rc = s2s_ckpt_open(&ckpt, path, err);
    if (rc < 0)
        return rc;
    rc = s2s_ckpt_verify_read(ckpt, &(struct s2s_ckpt_write){.mesh = mesh}, err);
    s2s_ckpt_close(ckpt);
    return rc;
}

static int read_averages(struct s2s_ckpt *ckpt, struct s2s_params *params, struct s2s_error *err)
{
    float *host, *room;
    int rc = train_alloc_host(&host, &room, params, err);
    for (size_t i = 0; rc == 0 && i < params->n; i++) {
        struct s2s_param *p = params->list[i];
        struct s2s_box boxes[S2S_PARAM_BOXES];
        char *name = s2s_xasprintf("%s.%s", train_moments[2], p->name);
        if (p->trained && !s2s_ckpt_find(ckpt, name)) {
            rc = s2s_error_set(err, S2S_E_NOTFOUND, "it has no averages of values (%s)", name);
            s2s_error_hint(err, rc, "train.ema_decay keeps them");
        } else if (p->trained) {
            rc = read_boxes(ckpt, name, p, boxes, s2s_param_boxes(boxes, p, NULL), host, room, err);
        }
        if (rc == 0 && p->trained)
            s2s_param_set_local(p, host);
        free(name);
    }
    free(host);
    return rc;
}

int s2s_restore_averages(const char *path, struct s2s_params *params, struct s2s_error *err)
{
    struct s2s_ckpt *ckpt = NULL;
    int rc = s2s_ckpt_open(&ckpt, path, err);
    if (rc < 0)
        return rc;
    if ((rc = read_averages(ckpt, params, err)) < 0)
        s2s_error_add(err, rc, "%s", s2s_ckpt_path(ckpt));
    s2s_ckpt_close(ckpt);
    return rc;
}
