/*
 * Checkpoints, written: at once, or by a thread while training goes on from a copy of what this
 * rank writes. doc/CHECKPOINT.md says what is in them.
 */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/base.h"
#include "lib/ckpt/write/dist.h"
#include "lib/conf/conf.h"
#include "lib/model/salm.h"
#include "lib/train/share.h"
#include "lib/train/trainer.h"

/* ---- the common state ---- */

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

static void describe_sound(struct s2s_buf *text, const struct s2s_model *model)
{
    s2s_buf_printf(text,
                   "\"projection\": {\"in\": %lld, \"out\": %lld, \"bias\": true}, "
                   "\"ignore_index\": -100, \"feature_extractor\": {\"feature_size\": %lld, "
                   "\"sampling_rate\": 16000}, ",
                   (long long)s2s_salm_encoder(model)->hidden_size, (long long)model->hidden_size,
                   (long long)model->n_mels);
}

static void describe_images(struct s2s_buf *text, const struct s2s_model *model)
{
    const struct s2s_vision_spec *spec = s2s_salm_vision_spec(model);
    s2s_buf_printf(text,
                   "\"vision\": \"vision\", \"vision_projection\": {\"in\": %lld, \"out\": %lld, "
                   "\"inner\": %lld, \"pixel_shuffle\": %lld, \"final_layernorm\": %s}, ",
                   (long long)s2s_salm_vision(model)->hidden_size, (long long)model->hidden_size,
                   (long long)spec->inner, (long long)spec->shuffle,
                   spec->final_norm ? "true" : "false");
}

/* What a directory of this composite has as config.json. */
static void add_composite(json_t *to, const struct s2s_model *model, int64_t placeholder)
{
    struct s2s_buf text = S2S_BUF_INIT;
    if (model->dir) {
        s2s_conf_dump_json(&text, model->conf);
    } else {
        s2s_buf_puts(&text, "{\"model_type\": \"salm\", ");
        if (s2s_salm_encoder(model))
            s2s_buf_puts(&text, "\"encoder\": \"encoder\", ");
        s2s_buf_puts(&text, "\"llm\": \"llm\", ");
        if (s2s_salm_encoder(model))
            describe_sound(&text, model);
        if (s2s_salm_vision(model))
            describe_images(&text, model);
        s2s_buf_puts(&text, "\"pad_token_id\": ");
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
        if (s2s_salm_encoder(model))
            rc = add_part(to, s2s_salm_encoder(model), "encoder", "encoder/", err);
        if (rc == 0 && s2s_salm_vision(model))
            rc = add_part(to, s2s_salm_vision(model), "vision", "vision/", err);
    }
    if (rc == 0)
        rc = add_part(to, composite ? s2s_salm_llm(model) : model, "llm", composite ? "llm/" : "",
                      err);
    if (rc == 0 && t->recipe->tokenizer)
        rc = add_file(to, composite ? "file/llm/tokenizer.json" : "file/tokenizer.json",
                      t->recipe->tokenizer, err);
    return rc;
}

/* Where the run stands now; reads no file. */
static json_t *common_state(const struct s2s_trainer *t)
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
    json_t *data = t->feed ? s2s_feed_describe(t->feed) : NULL,
           *own = json_object_get(common, "train_state");
    if (data) {
        json_object_set_new(own, "data", data);
        json_object_set_new(own, "shuffle", json_boolean(t->recipe->shuffle));
    }
    if (t->usual)
        json_object_set_new(own, "usual", s2s_usual_describe(t->usual));
    if (t->state.skipped > 0) {
        json_object_set_new(own, "skipped", json_integer(t->state.skipped));
        json_object_set_new(own, "skips_in_row", json_integer(t->state.skips_in_row));
    }
    if (t->base)
        json_object_set(common, "base", t->base);
    return common;
}

/* ---- the stages of a save ---- */

/*
 * Work that ranks do side by side, on their own thread or on one beside training; between two
 * stages all ranks agree on success. After the last one the checkpoint exists.
 */
enum stage {
    IDLE,   /* nothing is saved */
    BEGIN,  /* rank 0 makes the folder */
    WRITE,  /* each rank writes its file */
    COMMIT, /* rank 0 writes the rest, and names it */
};

struct s2s_save {
    struct s2s_trainer *t;
    struct s2s_share *share;
    bool copied; /* what is saved is the copy in share */
    enum stage stage;
    int64_t step;
    json_t *common;       /* rank 0: of that step */
    struct s2s_buf items; /* of this rank's file */
    struct s2s_buf *all;  /* [ranks] of all files, from COMMIT on */
    bool has_thread;      /* which does the stage, and sets done behind rc and err */
    pthread_t thread;
    atomic_bool done;
    int rc;
    struct s2s_error err;
};

static struct s2s_save *save_of(struct s2s_trainer *t)
{
    const struct s2s_save_axes axes = {t->layout.axes, t->layout.expert_axes};
    if (t->save)
        return t->save;
    t->save = s2s_xcalloc(1, sizeof *t->save);
    t->save->t = t;
    t->save->share = s2s_share_new(t->bundle.model->params, t->optim, &axes);
    return t->save;
}

static int write_share(struct s2s_save *s)
{
    struct s2s_dist_writer *w = NULL;
    struct s2s_trainer *t = s->t;
    int rc = s2s_dist_open(&w, t->ckpt_root, s->step, s2s_mesh_rank(t->mesh), &s->err);
    if (rc == 0)
        rc = s2s_share_write(s->share, w, s->copied, &s->err);
    if (rc == 0)
        return s2s_dist_close(w, &s->items, &s->err);
    s2s_dist_discard(w);
    return rc;
}

static int commit(struct s2s_save *s)
{
    const struct s2s_trainer *t = s->t;
    int rc = add_configs(s->common, t, &s->err);
    if (rc == 0)
        rc = s2s_dist_commit(t->ckpt_root, s->step, s->all, (size_t)s2s_mesh_size(t->mesh),
                             s->common, &s->err);
    return rc < 0 ? rc : s2s_dist_prune(t->ckpt_root, (int)t->recipe->ckpt_keep, &s->err);
}

/* On a thread beside training: of the trainer it reads only what stays as it is. */
static void *run_stage(void *arg)
{
    struct s2s_save *s = arg;
    const bool first = s2s_mesh_rank(s->t->mesh) == 0;
    if (s->stage == WRITE)
        s->rc = write_share(s);
    else if (first)
        s->rc = s->stage == BEGIN ? s2s_dist_begin(s->t->ckpt_root, s->step, &s->err) : commit(s);
    atomic_store(&s->done, true);
    return NULL;
}

/* behind: beside what the caller does next, if a thread can be had. */
static void start_stage(struct s2s_save *s, enum stage stage, bool behind)
{
    const bool works = stage == WRITE || s2s_mesh_rank(s->t->mesh) == 0;
    s->stage = stage;
    if (s->rc < 0 || !works) {
        atomic_store(&s->done, true);
        return;
    }
    atomic_store(&s->done, false);
    s->has_thread = behind && pthread_create(&s->thread, NULL, run_stage, s) == 0;
    if (!s->has_thread)
        run_stage(s);
}

static void begin(struct s2s_save *s, bool copied)
{
    struct s2s_trainer *t = s->t;
    s->copied = copied;
    s->step = t->state.step;
    s->rc = 0;
    s->err = (struct s2s_error)S2S_ERROR_INIT;
    if (s2s_mesh_rank(t->mesh) == 0)
        s->common = common_state(t);
    t->saved = true; /* or the run fails */
}

static void drop_items(struct s2s_save *s)
{
    for (int r = 0; s->all && r < s2s_mesh_size(s->t->mesh); r++)
        s2s_buf_release(&s->all[r]);
    free(s->all);
    s->all = NULL;
    s2s_buf_release(&s->items);
    json_decref(s->common);
    s->common = NULL;
}

/* Collective: waits for the stage on all ranks. */
static int end_stage(struct s2s_save *s, struct s2s_error *err)
{
    struct s2s_trainer *t = s->t;
    const bool first = s2s_mesh_rank(t->mesh) == 0;
    if (s->has_thread)
        pthread_join(s->thread, NULL);
    s->has_thread = false;
    s2s_mesh_note(t->mesh, s->step, "save");
    if (s->rc < 0)
        *err = s->err;
    int rc = s2s_mesh_all_ok(t->mesh, s->rc, err);
    if (rc == 0 && s->stage == WRITE)
        s->all = s2s_comm_gather_bufs(s2s_mesh_world(t->mesh), &s->items);
    if (rc == 0 && s->stage != COMMIT)
        return 0;
    drop_items(s);
    s->stage = IDLE;
    if (rc < 0 && first)
        s2s_dist_abort(t->ckpt_root, s->step);
    if (rc < 0)
        return s2s_error_add(err, rc, "checkpoint of step %lld", (long long)s->step);
    if (first)
        s2s_info("train", "checkpoint of step %lld", (long long)s->step);
    return 0;
}

/* From the stage it is in to its end. */
static int finish(struct s2s_save *s, struct s2s_error *err)
{
    int rc;
    while ((rc = end_stage(s, err)) == 0 && s->stage != IDLE)
        start_stage(s, s->stage + 1, false);
    return rc;
}

/* ---- the trainer's saves ---- */

int s2s_trainer_save_reserve(struct s2s_trainer *t, struct s2s_error *err)
{
    return s2s_mesh_all_ok(t->mesh, s2s_share_reserve(save_of(t)->share, err), err);
}

int64_t s2s_trainer_save_bytes(struct s2s_trainer *t)
{
    return s2s_share_bytes(save_of(t)->share);
}

int s2s_trainer_save_finish(struct s2s_trainer *t, struct s2s_error *err)
{
    return t->save && t->save->stage != IDLE ? finish(t->save, err) : 0;
}

int s2s_trainer_save(struct s2s_trainer *t, struct s2s_error *err)
{
    struct s2s_save *s = save_of(t);
    int rc = s2s_trainer_save_finish(t, err);
    if (rc < 0)
        return rc;
    begin(s, false);
    start_stage(s, BEGIN, false);
    return finish(s, err);
}

int s2s_trainer_save_model(struct s2s_trainer *t, const char *root, struct s2s_error *err)
{
    const struct s2s_params *params = t->bundle.model->params;
    const struct s2s_save_axes axes = {t->layout.axes, t->layout.expert_axes};
    struct s2s_save *s = save_of(t);
    for (size_t i = 0; i < params->n; i++) {
        unsigned *flags = &params->list[i]->flags;
        const bool merged = s2s_lora_is_adapter(params->list[i]->name);
        *flags = merged ? *flags | S2S_PARAM_UNSAVED : *flags & ~(unsigned)S2S_PARAM_UNSAVED;
    }
    json_decref(t->base);
    t->base = NULL;
    free(t->ckpt_root);
    t->ckpt_root = s2s_xstrdup(root);
    s2s_share_free(s->share);
    s->share = s2s_share_new(params, NULL, &axes);
    return s2s_trainer_save(t, err);
}

int s2s_trainer_save_behind(struct s2s_trainer *t, struct s2s_error *err)
{
    struct s2s_save *s = save_of(t);
    int rc = s2s_trainer_save_finish(t, err);
    if (rc < 0)
        return rc;
    begin(s, true);
    s->rc = s2s_share_copy(s->share, &s->err); /* a failure is told when the stage ends */
    start_stage(s, BEGIN, true);
    return 0;
}

bool s2s_trainer_save_is_busy(const struct s2s_trainer *t)
{
    return t->save && t->save->stage != IDLE && !atomic_load(&t->save->done);
}

int s2s_trainer_save_go_on(struct s2s_trainer *t, struct s2s_error *err)
{
    struct s2s_save *s = t->save;
    if (!s || s->stage == IDLE)
        return 0;
    int rc = end_stage(s, err);
    if (rc == 0 && s->stage != IDLE)
        start_stage(s, s->stage + 1, true);
    return rc;
}

void s2s_save_free(struct s2s_save *s)
{
    if (!s)
        return;
    if (s->has_thread)
        pthread_join(s->thread, NULL);
    drop_items(s);
    s2s_share_free(s->share);
    free(s);
}
