/* Checkpoints: doc/CHECKPOINT.md says what is in them. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/base.h"
#include "lib/ckpt/ckpt.h"
#include "lib/ckpt/write/dist.h"
#include "lib/conf/conf.h"
#include "lib/model/salm.h"
#include "lib/train/trainer.h"

static const char *const moments[2] = {"optimizer.state.exp_avg", "optimizer.state.exp_avg_sq"};

/* Host memory for this rank's elements of any parameter, and *room for as many. Gives: free(*host),
 * also after NOMEM. */
static int alloc_host(float **host, float **room, const struct s2s_params *params,
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

/* ---- writing ---- */

/* Boxes of one tensor (prefix: a moment's); local: this rank's elements, room: for as many. */
static int write_boxes(struct s2s_dist_writer *w, const struct s2s_param *p, const char *prefix,
                       const struct s2s_box *boxes, int n_boxes, const float *local, float *room,
                       struct s2s_error *err)
{
    char *name = s2s_xasprintf("%s%s%s", prefix, *prefix ? "." : "", p->name);
    int rc = 0;
    for (int k = 0; rc == 0 && k < n_boxes; k++) {
        const int64_t begin = s2s_box_begin(&boxes[k], p);
        struct s2s_dist_chunk chunk = {.name = name,
                                       .dtype = S2S_F32,
                                       .n_dims = p->n_dims,
                                       .shape = p->shape,
                                       .offset = boxes[k].offset,
                                       .size = boxes[k].size};
        if (begin < 0)
            s2s_box_pack(&boxes[k], p, local, room);
        rc = s2s_dist_write_tensor(w, &chunk, begin < 0 ? room : local + begin, err);
    }
    free(name);
    return rc;
}

/* Whose turn it is: `at` of `total` elements stand before the tensor, n ranks hold it. */
static bool is_turn(int64_t at, int64_t total, int number, int n)
{
    return (at < total ? at * n / total : n - 1) == number;
}

static int write_moments(struct s2s_dist_writer *w, const struct s2s_optim *optim,
                         const struct s2s_param *p, float *host, float *room, struct s2s_error *err)
{
    struct s2s_box boxes[S2S_PARAM_BOXES];
    int rc = 0;
    for (int m = 0; rc == 0 && m < 2; m++) {
        s2s_optim_get(optim, p, m, host);
        for (int64_t begin, end = 0; rc == 0 && s2s_optim_next(optim, p, &begin, &end);) {
            const bool whole = end - begin == p->numel;
            const int n = whole ? s2s_param_boxes(boxes, p, NULL)
                                : s2s_param_range_boxes(boxes, p, begin, end);
            rc = write_boxes(w, p, moments[m], boxes, n, host, room, err);
        }
    }
    return rc;
}

/* The boxes of what is stored here of a parameter: out [S2S_PARAM_BOXES]. */
static int stored_boxes(struct s2s_box *out, const struct s2s_param *p)
{
    if (p->stored_end - p->stored_begin == p->numel)
        return s2s_param_boxes(out, p, NULL);
    return s2s_param_range_boxes(out, p, p->stored_begin, p->stored_end);
}

static int write_values(struct s2s_dist_writer *w, const struct s2s_param *p, float *host,
                        float *room, struct s2s_error *err)
{
    struct s2s_box boxes[S2S_PARAM_BOXES];
    s2s_param_get(p, host);
    return write_boxes(w, p, "", boxes, stored_boxes(boxes, p), host, room, err);
}

/* The same number on all ranks that have a part of it. */
static int64_t whole_numel(const struct s2s_param *p)
{
    int64_t n = s2s_param_is_here(p) ? 1 : 0;
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

int s2s_write_params(struct s2s_dist_writer *w, const struct s2s_params *params,
                     const struct s2s_optim *optim, const struct s2s_save_axes *axes,
                     struct s2s_error *err)
{
    const bool sharded = optim && optim->divided;
    const struct s2s_group *same[2][S2S_AXES],
        *others[2][S2S_AXES]; /* of values, of what ranks may divide */
    int64_t total = 0, at = 0;
    float *host, *room;
    int rc = alloc_host(&host, &room, params, err);
    for (int expert = 0; expert < 2; expert++) {
        find_copies(same[expert], expert ? axes->experts : axes->dense, false);
        find_copies(others[expert], expert ? axes->experts : axes->dense, sharded);
    }
    for (size_t i = 0; i < params->n; i++)
        total += whole_numel(params->list[i]);
    for (size_t i = 0; rc == 0 && i < params->n; i++) {
        const struct s2s_param *p = params->list[i];
        const bool expert = p->flags & S2S_PARAM_EXPERT;
        if (!s2s_param_is_here(p) || p->flags & S2S_PARAM_COPY)
            continue;
        int n, number = s2s_param_copy(p, p->divided ? others[expert] : same[expert], &n);
        if (is_turn(at, total, number, n))
            rc = write_values(w, p, host, room, err);
        number = s2s_param_copy(p, others[expert], &n);
        if (rc == 0 && optim && p->trained && is_turn(at, total, number, n))
            rc = write_moments(w, optim, p, host, room, err);
        at += whole_numel(p);
    }
    free(host);
    return rc;
}

static int write_share(struct s2s_trainer *t, struct s2s_buf *items, struct s2s_error *err)
{
    struct s2s_dist_writer *w = NULL;
    int rc = s2s_dist_open(&w, t->ckpt_root, t->state.step, s2s_mesh_rank(t->mesh), err);
    const struct s2s_save_axes axes = {t->layout.axes, t->layout.expert_axes};
    if (rc == 0)
        rc = s2s_write_params(w, t->bundle.model->params, t->optim, &axes, err);
    if (rc < 0) {
        s2s_dist_discard(w);
        return rc;
    }
    return s2s_dist_close(w, items, err);
}

/* A small file that belongs to the model, if it is there. */
static int add_file(json_t *to, const char *key, const char *path, struct s2s_error *err)
{
    FILE *in = fopen(path, "re");
    struct s2s_buf text = S2S_BUF_INIT;
    char piece[65536];
    size_t n;
    int rc = 0;
    if (!in)
        return errno == ENOENT ? 0 : s2s_error_errno(err, S2S_E_OPEN, "%s", path);
    while ((n = fread(piece, 1, sizeof piece, in)) > 0)
        s2s_buf_add(&text, piece, n);
    if (ferror(in))
        rc = s2s_error_errno(err, S2S_E_IO, "%s", path);
    fclose(in);
    if (rc == 0)
        json_object_set_new(to, key, json_stringn(text.data ? text.data : "", text.len));
    s2s_buf_release(&text);
    return rc;
}

/* Config and files of one part; folder is "llm/", or "" for a bare model. */
static int add_part(json_t *to, const struct s2s_model *part, const char *name, const char *folder,
                    struct s2s_error *err)
{
    static const char *const files[] = {"tokenizer.json", "tokenizer_config.json",
                                        "generation_config.json", "preprocessor_config.json",
                                        "processor_config.json"};
    struct s2s_buf text = S2S_BUF_INIT;
    char key[100];
    int rc = 0;
    s2s_conf_dump_json(&text, part->conf);
    snprintf(key, sizeof key, "config/%s", name);
    json_object_set_new(to, key, json_stringn(text.data, text.len));
    s2s_buf_release(&text);
    for (size_t i = 0; rc == 0 && part->dir && i < sizeof files / sizeof *files; i++) {
        char *path = s2s_xasprintf("%s/%s", part->dir, files[i]);
        snprintf(key, sizeof key, "file/%s%s", folder, files[i]);
        rc = add_file(to, key, path, err);
        free(path);
    }
    return rc;
}

/* What a directory of this composite has as config.json. */
static void add_composite(json_t *to, const struct s2s_model *model, int64_t placeholder)
{
    const struct s2s_model *encoder = s2s_salm_encoder(model), *llm = s2s_salm_llm(model);
    struct s2s_buf text = S2S_BUF_INIT;
    if (model->dir) {
        s2s_conf_dump_json(&text, model->conf);
    } else {
        s2s_buf_printf(&text,
                       "{\"model_type\": \"salm\", \"encoder\": \"encoder\", \"llm\": \"llm\", "
                       "\"projection\": {\"in\": %lld, \"out\": %lld, \"bias\": true}, "
                       "\"ignore_index\": -100, \"feature_extractor\": {\"feature_size\": %lld, "
                       "\"sampling_rate\": 16000}, \"pad_token_id\": ",
                       (long long)encoder->hidden_size, (long long)llm->hidden_size,
                       (long long)model->n_mels);
        s2s_buf_printf(&text, model->pad_token_id >= 0 ? "%d" : "null", model->pad_token_id);
        if (placeholder >= 0)
            s2s_buf_printf(&text, ", \"audio_locator_token_id\": %lld", (long long)placeholder);
        s2s_buf_putc(&text, '}');
    }
    json_object_set_new(to, "config/composite", json_stringn(text.data, text.len));
    s2s_buf_release(&text);
}

/* What describes the model, so that a checkpoint is enough to use it. */
static int add_configs(json_t *to, const struct s2s_trainer *t, struct s2s_error *err)
{
    const struct s2s_model *model = t->bundle.model;
    const bool composite = t->bundle.composite;
    int rc = 0;
    if (composite) {
        add_composite(to, model, t->recipe->placeholder_id);
        rc = add_part(to, s2s_salm_encoder(model), "encoder", "encoder/", err);
    }
    if (rc == 0)
        rc = add_part(to, composite ? s2s_salm_llm(model) : model, "llm", composite ? "llm/" : "",
                      err);
    if (rc == 0 && t->recipe->tokenizer)
        rc = add_file(to, composite ? "file/llm/tokenizer.json" : "file/tokenizer.json",
                      t->recipe->tokenizer, err);
    return rc;
}

static json_t *common_state(const struct s2s_trainer *t, struct s2s_error *err)
{
    struct s2s_buf recipe = S2S_BUF_INIT;
    s2s_conf_dump(&recipe, t->recipe->conf, false);
    json_t *common =
        json_pack("{s:I, s:f, s:{s:s, s:b}, s:{s:I, s:I, s:I, s:I, s:f, s:I}, s:s}", "iteration",
                  (json_int_t)t->state.step, "checkpoint_version", 3.0, "content_metadata",
                  "distrib_optim_sharding_type", "fully_reshardable", "singleton_local_shards", 0,
                  "train_state", "packs", (json_int_t)t->state.packs, "samples",
                  (json_int_t)t->state.samples, "tokens", (json_int_t)t->state.tokens,
                  "optimizer_steps", (json_int_t)t->optim->t, "elapsed_s", t->state.elapsed_s,
                  "seed", (json_int_t)t->recipe->seed, "recipe", recipe.data);
    s2s_buf_release(&recipe);
    if (!common)
        S2S_BUG("the common state is no JSON");
    json_t *data = s2s_feed_describe(t->feed), *own = json_object_get(common, "train_state");
    if (data) {
        json_object_set_new(own, "data", data);
        json_object_set_new(own, "shuffle", json_boolean(t->recipe->shuffle));
    }
    if (add_configs(common, t, err) < 0) {
        json_decref(common);
        return NULL;
    }
    return common;
}

static int commit(struct s2s_trainer *t, const struct s2s_buf *items, struct s2s_error *err)
{
    json_t *common = common_state(t, err);
    if (!common)
        return err->code ? err->code : S2S_E_IO;
    int rc = s2s_dist_commit(t->ckpt_root, t->state.step, items, (size_t)s2s_mesh_size(t->mesh),
                             common, err);
    json_decref(common);
    if (rc == 0)
        rc = s2s_dist_prune(t->ckpt_root, (int)t->recipe->ckpt_keep, err);
    return rc;
}

int s2s_trainer_save(struct s2s_trainer *t, struct s2s_error *err)
{
    const bool first = s2s_mesh_rank(t->mesh) == 0;
    struct s2s_buf items = S2S_BUF_INIT;
    s2s_mesh_note(t->mesh, t->state.step, "save");
    int rc = first ? s2s_dist_begin(t->ckpt_root, t->state.step, err) : 0;
    if ((rc = s2s_mesh_all_ok(t->mesh, rc, err)) == 0)
        rc = s2s_mesh_all_ok(t->mesh, write_share(t, &items, err), err);
    if (rc == 0) {
        struct s2s_buf *all = s2s_comm_gather_bufs(s2s_mesh_world(t->mesh), &items);
        rc = s2s_mesh_all_ok(t->mesh, first ? commit(t, all, err) : 0, err);
        for (int r = 0; r < s2s_mesh_size(t->mesh); r++)
            s2s_buf_release(&all[r]);
        free(all);
    }
    s2s_buf_release(&items);
    if (rc < 0) {
        if (first)
            s2s_dist_abort(t->ckpt_root, t->state.step);
        return s2s_error_add(err, rc, "checkpoint of step %lld", (long long)t->state.step);
    }
    t->saved = true;
    if (first)
        s2s_info("train", "checkpoint of step %lld", (long long)t->state.step);
    return 0;
}

/* ---- reading ---- */

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
                        float *host, float *room, struct s2s_error *err)
{
    struct s2s_box boxes[S2S_PARAM_BOXES];
    int rc = 0;
    for (int m = 0; rc == 0 && m < 2; m++) {
        char *name = s2s_xasprintf("%s.%s", moments[m], p->name);
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
static int check_names(struct s2s_ckpt *ckpt, const struct s2s_params *params, bool with_moments,
                       struct s2s_error *err)
{
    struct s2s_ckpt_want *wants = s2s_xcalloc(3 * params->n + 1, sizeof *wants);
    size_t n = 0;
    for (size_t i = 0; i < params->n; i++) {
        const struct s2s_param *p = params->list[i];
        if (!s2s_param_is_here(p))
            continue;
        wants[n++] = (struct s2s_ckpt_want){p->name, S2S_F32, p->n_dims, p->shape};
        for (int m = 0; with_moments && p->trained && m < 2; m++)
            wants[n++] = (struct s2s_ckpt_want){s2s_xasprintf("%s.%s", moments[m], p->name),
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

static int read_tensors(struct s2s_ckpt *ckpt, struct s2s_params *params, struct s2s_optim *optim,
                        struct s2s_error *err)
{
    float *host, *room;
    int rc = alloc_host(&host, &room, params, err);
    for (size_t i = 0; rc == 0 && i < params->n; i++) {
        struct s2s_param *p = params->list[i];
        struct s2s_box boxes[S2S_PARAM_BOXES];
        if (!s2s_param_is_here(p))
            continue;
        const int n_boxes = stored_boxes(boxes, p);
        if ((rc = read_boxes(ckpt, p->name, p, boxes, n_boxes, host, room, err)) < 0)
            break;
        s2s_param_set_local(p, host);
        if (optim && p->trained)
            rc = read_moments(ckpt, optim, p, host, room, err);
    }
    free(host);
    return rc;
}

static int read_state(struct s2s_ckpt *ckpt, struct s2s_optim *optim, struct s2s_run_state *state,
                      struct s2s_error *err)
{
    const json_t *common = s2s_ckpt_common(ckpt), *own = json_object_get(common, "train_state");
    json_int_t step, packs, samples, tokens, t, seed = -1;
    double elapsed_s;
    if (json_unpack((json_t *)common, "{s:I}", "iteration", &step) != 0 ||
        json_unpack((json_t *)own, "{s:I, s:I, s:I, s:I, s:F, s?I}", "packs", &packs, "samples",
                    &samples, "tokens", &tokens, "optimizer_steps", &t, "elapsed_s", &elapsed_s,
                    "seed", &seed) != 0)
        return s2s_error_set(err, S2S_E_FORMAT, "its common state is none of a training run");
    json_t *data = json_object_get(own, "data");
    *state = (struct s2s_run_state){step,
                                    packs,
                                    samples,
                                    tokens,
                                    elapsed_s,
                                    seed,
                                    .data = json_is_array(data) ? json_incref(data) : NULL,
                                    .shuffled = json_is_true(json_object_get(own, "shuffle"))};
    optim->t = t;
    return 0;
}

int s2s_restore(const char *path, struct s2s_params *params, struct s2s_optim *optim,
                struct s2s_run_state *state, struct s2s_error *err)
{
    struct s2s_ckpt *ckpt = NULL;
    int rc = s2s_ckpt_open(&ckpt, path, err);
    if (rc < 0)
        return rc;
    rc = check_names(ckpt, params, optim != NULL, err); /* says the path */
    if (rc == 0) {
        rc = warn_unused(ckpt, params, err);
        if (rc == 0)
            rc = read_tensors(ckpt, params, optim, err);
        if (rc == 0 && optim)
            rc = read_state(ckpt, optim, state, err);
        if (rc < 0)
            s2s_error_add(err, rc, "%s", s2s_ckpt_path(ckpt));
    }
    s2s_ckpt_close(ckpt);
    return rc;
}
