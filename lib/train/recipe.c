/* Reads a recipe and checks it. */
#include "lib/train/recipe.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/base.h"
#include "lib/conf/conf.h"
#include "lib/rules/rules.h"
#include "lib/tensor/device.h"

static int read_part(struct s2s_recipe_part *part, const struct s2s_conf *conf, const char *name,
                     struct s2s_error *err)
{
    const struct s2s_conf *map;
    int rc = s2s_conf_get_map(&map, conf, name, err);
    if (rc < 0 || !map)
        return rc;
    if ((rc = s2s_conf_get_str_or(&part->path, map, "path", NULL, err)) < 0 ||
        (rc = s2s_conf_get_bool_or(&part->freeze, map, "freeze", false, err)) < 0 ||
        (rc = s2s_conf_get_map(&part->override, map, "override", err)) < 0)
        return rc;
    part->config = s2s_conf_is_unset(map, "config") ? NULL : s2s_conf_find(map, "config");
    if (part->path && part->config)
        return s2s_conf_error(err, S2S_E_FORMAT, part->config,
                              "a part has a path or a config, not both");
    return 0;
}

/* Whether anything says what the model is. */
static bool has_model(const struct s2s_recipe *r)
{
    const struct s2s_recipe_part *parts[] = {&r->encoder, &r->vision, &r->llm};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (parts[i]->path || parts[i]->config)
            return true;
    return r->model_path != NULL;
}

static int read_vision(struct s2s_recipe *r, struct s2s_error *err)
{
    const struct s2s_conf *map;
    int rc = read_part(&r->vision, r->conf, "model.vision", err);
    if (rc < 0 ||
        (rc = read_part(&r->vision_projection, r->conf, "model.vision_projection", err)) < 0 ||
        (rc = s2s_conf_get_map(&map, r->conf, "model.vision_projection", err)) < 0)
        return rc;
    return s2s_vision_spec_read(&r->vision_spec, map, err);
}

/* Keys of parts that a whole model, given by its path, would pass over. */
static int check_whole(const struct s2s_recipe *r, struct s2s_error *err)
{
    static const char *const parts[] = {"model.encoder.override",
                                        "model.llm.override",
                                        "model.vision.override",
                                        "model.vision_projection.inner",
                                        "model.vision_projection.pixel_shuffle",
                                        "model.vision_projection.final_layernorm"};
    for (size_t i = 0; r->model_path && i < sizeof parts / sizeof *parts; i++) {
        const struct s2s_conf *said = s2s_conf_find(r->conf, parts[i]);
        if (said && said->kind != S2S_CONF_NULL) {
            int rc = s2s_conf_error(err, S2S_E_FORMAT, said, "it has no effect beside model.path");
            return s2s_error_hint(err, rc,
                                  "give the parts by model.encoder, model.vision, model.llm");
        }
    }
    return 0;
}

static int read_model(struct s2s_recipe *r, struct s2s_error *err)
{
    static const char *const stats[] = {"frozen", "batch", NULL};
    const struct s2s_conf *conf = r->conf;
    int mode = 0, rc;
    if ((rc = s2s_conf_get_str_or(&r->model_path, conf, "model.path", NULL, err)) < 0 ||
        (rc = read_part(&r->encoder, conf, "model.encoder", err)) < 0 ||
        (rc = read_part(&r->projection, conf, "model.projection", err)) < 0 ||
        (rc = read_vision(r, err)) < 0 || (rc = read_part(&r->llm, conf, "model.llm", err)) < 0 ||
        (rc = s2s_conf_get_bool_or(&r->step_clamp, conf, "model.time_step_clamp", false, err)) <
            0 ||
        (rc = s2s_conf_get_choice_or(&mode, conf, "model.encoder.batch_norm", stats, 0, err)) < 0)
        return rc;
    r->batch_norm_batch = mode == 1;
    if ((rc = check_whole(r, err)) < 0)
        return rc;
    if (!has_model(r))
        return s2s_conf_error(err, S2S_E_NOTFOUND,
                              s2s_conf_find(conf, "model") ? s2s_conf_find(conf, "model") : conf,
                              "no model: give model.path, or model.llm with model.encoder, "
                              "model.vision or both");
    const struct s2s_conf *lora;
    if ((rc = s2s_conf_get_map(&lora, conf, "model.lora", err)) < 0 ||
        (lora && (rc = s2s_lora_read(&r->lora, lora, err)) < 0))
        return rc;
    r->has_lora = lora != NULL;
    return s2s_conf_get_i64_or(&r->placeholder_id, conf, "model.placeholder_id", 0, INT32_MAX, -1,
                               err);
}

/* One name or a list of names. */
static int read_train_data(struct s2s_recipe *r, struct s2s_error *err)
{
    const struct s2s_conf *node = s2s_conf_find(r->conf, "data.train");
    if (!node || node->kind == S2S_CONF_NULL)
        return 0;
    size_t n = node->kind == S2S_CONF_LIST ? node->n_items : 1;
    r->train = s2s_xcalloc(n + 1, sizeof *r->train);
    for (size_t i = 0; i < n; i++) {
        int rc =
            s2s_conf_as_str(&r->train[i], node->kind == S2S_CONF_LIST ? node->items[i] : node, err);
        if (rc < 0)
            return rc;
        r->n_train++;
        if (n > 1 && strcmp(r->train[i], "-") == 0)
            return s2s_conf_error(err, S2S_E_FORMAT, node,
                                  "'-' cannot be read beside other streams");
    }
    return 0;
}

static int read_data(struct s2s_recipe *r, struct s2s_error *err)
{
    const struct s2s_conf *eval;
    int rc = read_train_data(r, err);
    if (rc < 0 || (rc = s2s_conf_get_map(&eval, r->conf, "data.eval", err)) < 0)
        return rc;
    r->eval = s2s_xcalloc(eval ? eval->n_items + 1 : 1, sizeof *r->eval);
    for (size_t i = 0; eval && i < eval->n_items; i++) {
        r->eval[i].name = eval->items[i]->key;
        if ((rc = s2s_conf_as_str(&r->eval[i].path, eval->items[i], err)) < 0)
            return rc;
        r->n_eval++;
    }
    if ((rc = s2s_conf_get_str_or(&r->tokenizer, r->conf, "data.tokenizer", NULL, err)) < 0 ||
        (rc = s2s_conf_get_str_or(&r->features, r->conf, "data.features", NULL, err)) < 0)
        return rc;
    return s2s_conf_get_bool_or(&r->shuffle, r->conf, "data.shuffle", true, err);
}

/* How gradients go over the ranks that have other tokens. */
static int read_gradients(struct s2s_recipe *r, struct s2s_error *err)
{
    int rc = s2s_conf_get_f64_or(&r->bucket_mb, r->conf, "mesh.bucket_mb", S2S_BUCKET_MB, err);
    if (rc == 0 && !(r->bucket_mb > 0 && r->bucket_mb <= 1 << 20))
        return s2s_conf_error(err, S2S_E_RANGE, s2s_conf_find(r->conf, "mesh.bucket_mb"),
                              "expected MiB above 0, at most %d, found %g", 1 << 20, r->bucket_mb);
    int sharding = S2S_NO_SHARD;
    if (rc == 0)
        rc = s2s_conf_get_bool_or(&r->overlap_grad_reduce, r->conf, "mesh.overlap_grad_reduce",
                                  true, err);
    if (rc >= 0)
        rc = s2s_conf_get_choice_or(&sharding, r->conf, "mesh.data_parallel_sharding_strategy",
                                    s2s_sharding_names, S2S_NO_SHARD, err);
    r->sharding = (enum s2s_sharding)sharding;
    return rc;
}

/* mesh.pp_layers: layers of each stage, first to last. */
static int read_layers(struct s2s_recipe *r, struct s2s_error *err)
{
    const struct s2s_conf *list;
    int rc = s2s_conf_get_list(&list, r->conf, "mesh.pp_layers", err);
    if (rc < 0 || !list)
        return rc;
    r->stages.layers = s2s_xcalloc(list->n_items, sizeof *r->stages.layers);
    for (size_t i = 0; i < list->n_items; i++) {
        if ((rc = s2s_conf_as_i64(&r->stages.layers[i], list->items[i], 0, INT32_MAX, err)) < 0)
            return rc;
        r->stages.n_layers++;
    }
    return 0;
}

/* The stages of a pipeline, after its ranks. */
static int read_stages(struct s2s_recipe *r, struct s2s_error *err)
{
    int64_t n_chunks;
    int rc = s2s_conf_get_i64_or(&n_chunks, r->conf, "mesh.vpp", 1, 1 << 16, 1, err);
    if (rc < 0 || (rc = s2s_conf_get_i64_or(&r->stages.group, r->conf, "mesh.vpp_group", 1,
                                            INT32_MAX, 0, err)) < 0)
        return rc;
    r->stages.n_chunks = (int)n_chunks;
    return read_layers(r, err);
}

static int read_mesh(struct s2s_recipe *r, struct s2s_error *err)
{
    static const char *const cp_comms[] = {"all_gather", "a2a", "p2p", NULL};
    for (int axis = 0; axis < S2S_AXES; axis++) {
        char key[16];
        int64_t size;
        snprintf(key, sizeof key, "mesh.%s", s2s_mesh_axis_name((enum s2s_axis)axis));
        int rc = s2s_conf_get_i64_or(&size, r->conf, key, 1, INT32_MAX, axis == S2S_AXIS_DP ? 0 : 1,
                                     err);
        if (rc < 0)
            return rc;
        r->mesh.size[axis] = (int)size;
    }
    int64_t etp;
    int comm, rc = s2s_conf_get_choice_or(&comm, r->conf, "mesh.cp_comm", cp_comms, 0, err);
    if (rc < 0 ||
        (rc = s2s_conf_get_i64_or(&etp, r->conf, "mesh.etp", 1, INT32_MAX,
                                  r->mesh.size[S2S_AXIS_TP], err)) < 0 ||
        (rc = s2s_conf_get_bool_or(&r->mesh.sequence_parallel, r->conf, "mesh.sequence_parallel",
                                   false, err)) < 0 ||
        (rc = read_stages(r, err)) < 0)
        return rc;
    r->mesh.etp = (int)etp;
    r->mesh.cp_comm = (enum s2s_cp_comm)comm;
    rc = s2s_conf_get_f64_or(&r->timeout_s, r->conf, "mesh.timeout_s", S2S_MESH_TIMEOUT_S, err);
    if (rc == 0 && !(r->timeout_s > 0))
        return s2s_conf_error(err, S2S_E_RANGE, s2s_conf_find(r->conf, "mesh.timeout_s"),
                              "expected seconds above 0, found %g", r->timeout_s);
    return rc < 0 ? rc : read_gradients(r, err);
}

static int read_augment(struct s2s_recipe *r, struct s2s_error *err)
{
    static const struct s2s_spec_augment def = S2S_SPEC_AUGMENT_DEFAULT;
    static const char *const forms[] = {"vectorized", "legacy", NULL};
    const struct s2s_conf *map;
    int64_t n_freq, width, n_time;
    double share, value;
    int form, rc = s2s_conf_get_f64_or(&r->dither, r->conf, "train.dither", 0, err);
    if (rc == 0 && !(r->dither >= 0 && r->dither <= 1))
        return s2s_conf_error(err, S2S_E_RANGE, s2s_conf_find(r->conf, "train.dither"),
                              "expected a deviation of 0 to 1 (NeMo's is 1.0e-5), found %g",
                              r->dither);
    if (rc < 0 || (rc = s2s_conf_get_map(&map, r->conf, "train.spec_augment", err)) < 0 || !map)
        return rc;
    if ((rc = s2s_conf_get_i64_or(&n_freq, map, "freq_masks", 0, 1000, def.n_freq, err)) < 0 ||
        (rc = s2s_conf_get_i64_or(&width, map, "freq_width", 0, 1000, def.freq_width, err)) < 0 ||
        (rc = s2s_conf_get_i64_or(&n_time, map, "time_masks", 0, 1000, def.n_time, err)) < 0 ||
        (rc = s2s_conf_get_f64_or(&share, map, "time_width", (double)def.time_width, err)) < 0 ||
        (rc = s2s_conf_get_f64_or(&value, map, "mask_value", 0, err)) < 0 ||
        (rc = s2s_conf_get_choice_or(&form, map, "form", forms, 0, err)) < 0)
        return rc;
    if (!isfinite(value))
        return s2s_conf_error(err, S2S_E_RANGE, s2s_conf_find(map, "mask_value"),
                              "expected a number, found %g", value);
    if (!(share >= 0))
        return s2s_conf_error(err, S2S_E_RANGE, s2s_conf_find(map, "time_width"),
                              "expected at least 0, found %g", share);
    r->augment = true;
    r->spec_augment = (struct s2s_spec_augment){.n_freq = (int)n_freq,
                                                .freq_width = (int)width,
                                                .n_time = (int)n_time,
                                                .time_width = (float)share,
                                                .value = (float)value,
                                                .legacy = form == 1};
    return 0;
}

static int read_rate(double *rate, const struct s2s_conf *node, struct s2s_error *err)
{
    int rc = s2s_conf_as_f64(rate, node, err);
    if (rc == 0 && !(*rate >= 0 && *rate < 1))
        return s2s_conf_error(err, S2S_E_RANGE, node,
                              "expected a share of at least 0 and below 1, found %g", *rate);
    return rc;
}

/* train.dropout: one share for all, or some by name. */
static int read_dropout(struct s2s_recipe *r, struct s2s_error *err)
{
    struct s2s_dropout_rates *d = &r->dropout;
    const struct {
        const char *key;
        double *rate;
    } rates[] = {{"hidden", &d->hidden},
                 {"attention", &d->attention},
                 {"encoder", &d->encoder},
                 {"encoder_input", &d->input},
                 {"encoder_positions", &d->positions},
                 {"encoder_attention", &d->encoder_attention}};
    enum { N = sizeof rates / sizeof *rates };
    const struct s2s_conf *node = s2s_conf_find(r->conf, "train.dropout");
    const char *names[N + 1] = {NULL};
    double all;
    int rc = 0;
    *d = (struct s2s_dropout_rates)S2S_DROPOUT_RATES_INIT;
    if (!node || node->kind == S2S_CONF_NULL)
        return 0;
    if (node->kind != S2S_CONF_MAP) {
        if ((rc = read_rate(&all, node, err)) == 0)
            *d = (struct s2s_dropout_rates){all, all, all, all, all, all};
        return rc;
    }
    for (size_t i = 0; i < N; i++)
        names[i] = rates[i].key;
    rc = s2s_conf_check_keys(node, "", names, err);
    for (size_t i = 0; rc == 0 && i < N; i++)
        if (!s2s_conf_is_unset(node, rates[i].key))
            rc = read_rate(rates[i].rate, s2s_conf_find(node, rates[i].key), err);
    return rc;
}

/* Named as Lightning and NeMo name it. */
static int read_precision(struct s2s_recipe *r, struct s2s_error *err)
{
    static const char *const names[] = {"fp32", "bf16-mixed", NULL};
    static const enum s2s_dtype dtypes[] = {S2S_F32, S2S_BF16};
    int choice, rc = s2s_conf_get_choice_or(&choice, r->conf, "train.precision", names, 0, err);
    if (rc == 0)
        r->dtype = dtypes[choice];
    return rc;
}

/* In Megatron's words. */
static int read_balance(struct s2s_recipe *r, struct s2s_error *err)
{
    static const char *const types[] = {"aux_loss", "seq_aux_loss", "global_aux_loss", NULL};
    const struct {
        double *out;
        const char *key;
    } factors[] = {{&r->balance.balance, "train.moe_aux_loss_coeff"},
                   {&r->balance.square, "train.moe_z_loss_coeff"},
                   {&r->bias_rate, "train.moe_router_bias_update_rate"}};
    int type;
    for (int i = 0; i < 3; i++) {
        int rc = s2s_conf_get_f64_or(factors[i].out, r->conf, factors[i].key, 0, err);
        if (rc < 0)
            return rc;
        if (!(*factors[i].out >= 0 && *factors[i].out < 1e30))
            return s2s_conf_error(err, S2S_E_RANGE, s2s_conf_find(r->conf, factors[i].key),
                                  "expected a factor of at least 0, found %g", *factors[i].out);
    }
    int rc = s2s_conf_get_choice_or(&type, r->conf, "train.moe_router_load_balancing_type", types,
                                    0, err);
    r->balance.by_sequence = rc == 0 && type == 1;
    r->balance.over_step = rc == 0 && type == 2 && r->balance.balance > 0;
    return rc;
}

/* One of three words; true is full. */
static int read_recompute(struct s2s_recipe *r, struct s2s_error *err)
{
    const struct s2s_conf *node = s2s_conf_find(r->conf, "train.recompute");
    bool full;
    int choice = 0, rc;
    if (node && node->kind == S2S_CONF_BOOL) {
        rc = s2s_conf_get_bool(&full, r->conf, "train.recompute", err);
        choice = full ? S2S_RECOMPUTE_FULL : S2S_RECOMPUTE_NONE;
    } else {
        rc = s2s_conf_get_choice_or(&choice, r->conf, "train.recompute", s2s_recompute_names, 0,
                                    err);
    }
    r->recompute = (enum s2s_recompute)choice;
    return rc;
}

/* Steps whose loss is no number, or far from what is usual. */
static int read_trouble(struct s2s_recipe *r, struct s2s_error *err)
{
    static const char *const on_nan[] = {"stop", "skip", NULL};
    static const char *const on_spike[] = {"off", "warn", "skip", "stop", NULL};
    static const enum s2s_answer answers[] = {S2S_OFF, S2S_WARN, S2S_SKIP, S2S_STOP};
    const struct s2s_conf *c = r->conf;
    int nan, spike, rc = s2s_conf_get_choice_or(&nan, c, "train.on_nan", on_nan, 0, err);
    if (rc < 0 ||
        (rc = s2s_conf_get_choice_or(&spike, c, "train.on_spike", on_spike, 0, err)) < 0 ||
        (rc = s2s_conf_get_f64_or(&r->spike_factor, c, "train.spike_factor", 4, err)) < 0 ||
        (rc = s2s_conf_get_i64_or(&r->spike_window, c, "train.spike_window", 1, S2S_USUAL_MAX, 32,
                                  err)) < 0 ||
        (rc = s2s_conf_get_i64_or(&r->max_skips, c, "train.max_skips", 0, INT32_MAX, 10, err)) < 0)
        return rc;
    r->on_nan = nan == 1 ? S2S_SKIP : S2S_STOP;
    r->on_spike = answers[spike];
    if (!(r->spike_factor > 1 && r->spike_factor < 1e30))
        return s2s_conf_error(err, S2S_E_RANGE, s2s_conf_find(c, "train.spike_factor"),
                              "expected a factor above 1, found %g", r->spike_factor);
    return 0;
}

static int read_loop(struct s2s_recipe *r, struct s2s_error *err)
{
    const struct s2s_conf *c = r->conf;
    /* the packs of a step are in memory together */
    const int64_t any = INT64_MAX / 4, packs = 1 << 20;
    struct {
        int64_t *out;
        const char *key;
        int64_t min, max, other;
    } numbers[] = {
        {&r->steps, "train.steps", 0, any, -1},
        {&r->packs_per_step, "train.packs_per_step", 1, packs, 1},
        {&r->packs_per_microbatch, "train.packs_per_microbatch", 1, packs, 1},
        {&r->eval_every, "train.eval_every", 0, any, 0},
        {&r->log_every, "train.log_every", 1, any, 10},
        {&r->ckpt_every, "checkpoint.every", 0, any, 0},
        {&r->ckpt_keep, "checkpoint.keep", 1, INT32_MAX, 1},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        int rc = s2s_conf_get_i64_or(numbers[i].out, c, numbers[i].key, numbers[i].min,
                                     numbers[i].max, numbers[i].other, err);
        if (rc < 0)
            return rc;
    }
    int rc = s2s_conf_get_f64_or(&r->max_seconds, c, "train.max_seconds", 0, err);
    if (rc < 0 || (rc = s2s_conf_get_bool_or(&r->resume, c, "checkpoint.resume", true, err)) < 0 ||
        (rc = s2s_conf_get_bool_or(&r->async_save, c, "checkpoint.async_save", false, err)) < 0 ||
        (rc = read_recompute(r, err)) < 0 || (rc = read_precision(r, err)) < 0)
        return rc;
    if (!(r->max_seconds >= 0))
        return s2s_conf_error(err, S2S_E_RANGE, s2s_conf_find(c, "train.max_seconds"),
                              "expected seconds, found %g", r->max_seconds);
    if ((rc = s2s_conf_get_f64_or(&r->token_dropout, c, "train.token_dropout", 0, err)) < 0)
        return rc;
    if (!(r->token_dropout >= 0 && r->token_dropout <= 1))
        return s2s_conf_error(err, S2S_E_RANGE, s2s_conf_find(c, "train.token_dropout"),
                              "expected a share from 0 to 1, found %g", r->token_dropout);
    rc = read_trouble(r, err);
    return rc < 0 ? rc : read_augment(r, err);
}

static int read_optimizer(struct s2s_recipe *r, struct s2s_error *err)
{
    const struct s2s_conf *optimizer, *schedule;
    int rc = s2s_conf_get_map(&optimizer, r->conf, "optimizer", err);
    if (rc < 0 || (rc = s2s_adamw_read(&r->adamw, optimizer, err)) < 0 ||
        (rc = s2s_conf_get_f64_or(&r->adamw.ema_decay, r->conf, "train.ema_decay", 0, err)) < 0 ||
        (rc = s2s_conf_get_map(&schedule, r->conf, "schedule", err)) < 0)
        return rc;
    if (!(r->adamw.ema_decay >= 0 && r->adamw.ema_decay < 1))
        return s2s_conf_error(err, S2S_E_RANGE, s2s_conf_find(r->conf, "train.ema_decay"),
                              "expected a number of at least 0 and below 1, found %g",
                              r->adamw.ema_decay);
    rc = s2s_schedule_read(&r->schedule, schedule, r->adamw.lr, r->adamw.weight_decay,
                           r->steps > 0 ? (double)r->steps : INFINITY, err);
    /* a run that only the time ends counts shares of it */
    if (rc == 0 && r->max_seconds > 0 && isinf(r->schedule.decay))
        r->schedule.decay = 1;
    return rc;
}

static int read_run(struct s2s_recipe *r, struct s2s_error *err)
{
    int device, rc = s2s_conf_get_str_or(&r->run, r->conf, "run", NULL, err);
    if (rc == 0 && r->run && !*r->run)
        return s2s_conf_error(err, S2S_E_RANGE, s2s_conf_find(r->conf, "run"),
                              "expected a folder, found ''");
    if (rc < 0 ||
        (rc = s2s_conf_get_choice_or(&device, r->conf, "device", s2s_device_names, 0, err)) < 0)
        return rc;
    r->device = s2s_device_names[device];
    return s2s_conf_get_i64_or(&r->seed, r->conf, "seed", 0, INT64_MAX, 0, err);
}

int s2s_recipe_take(struct s2s_recipe *r, struct s2s_conf *conf, char *const *overrides, size_t n,
                    struct s2s_error *err)
{
    int rc = 0;
    *r = (struct s2s_recipe){.conf = conf};
    if (r->conf->kind != S2S_CONF_MAP)
        rc = s2s_conf_error(err, S2S_E_FORMAT, r->conf, "a recipe is a map, found %s",
                            s2s_conf_kind_name(r->conf->kind));
    else
        rc = s2s_conf_check_duplicates(r->conf, err);
    for (size_t i = 0; rc >= 0 && i < n; i++)
        rc = s2s_conf_override(r->conf, overrides[i], err);
    if (rc < 0 || (rc = read_run(r, err)) < 0 || (rc = read_model(r, err)) < 0 ||
        (rc = read_data(r, err)) < 0 || (rc = read_mesh(r, err)) < 0 ||
        (rc = read_loop(r, err)) < 0 || (rc = read_dropout(r, err)) < 0 ||
        (rc = read_balance(r, err)) < 0 || (rc = read_optimizer(r, err)) < 0)
        s2s_recipe_release(r);
    return rc < 0 ? rc : 0;
}

int s2s_recipe_read(struct s2s_recipe *r, const char *path, char *const *overrides, size_t n,
                    struct s2s_error *err)
{
    struct s2s_conf *conf;
    *r = (struct s2s_recipe)S2S_RECIPE_INIT;
    int rc = s2s_conf_read(&conf, path, S2S_CONF_YAML, err);
    return rc < 0 ? rc : s2s_recipe_take(r, conf, overrides, n, err);
}

static void say_warnings(const struct s2s_report *report)
{
    for (size_t i = 0; i < report->n_findings; i++) {
        const struct s2s_finding *f = report->findings + i;
        if (f->severity != S2S_SEVERITY_WARNING)
            continue;
        struct s2s_buf place = S2S_BUF_INIT;
        s2s_buf_puts(&place, "");
        if (f->place.source)
            s2s_conf_add_place(&place, &f->place);
        s2s_warn("recipe", "%s: %s%s%s [%s]", place.len ? place.data : report->path, f->message,
                 *f->fix ? "; " : "", f->fix, f->rule->id);
        s2s_buf_release(&place);
    }
}

static int fit_mesh(struct s2s_recipe *r, int world_size, struct s2s_error *err)
{
    const int others = s2s_layout_peers(&r->mesh);
    int *dp = &r->mesh.size[S2S_AXIS_DP];
    if (*dp == 0)
        *dp = world_size / others > 0 ? world_size / others : 1;
    if (*dp * others == world_size)
        return 0;
    const struct s2s_conf *node = s2s_conf_find(r->conf, "mesh.dp");
    int rc = s2s_conf_error(err, S2S_E_RANGE, node ? node : r->conf,
                            "the mesh has %d ranks, but %d were started", *dp * others, world_size);
    return s2s_error_hint(err, rc, "start with mpirun -n %d, or give mesh.dp=%d", *dp * others,
                          world_size / others);
}

/* Ranks of a stage, laid out for experts: each group of etp x ep has all of them. */
static int fit_experts(const struct s2s_recipe *r, struct s2s_error *err)
{
    const int *size = r->mesh.size, ep = size[S2S_AXIS_EP], etp = r->mesh.etp;
    const int64_t stage = (int64_t)size[S2S_AXIS_TP] * size[S2S_AXIS_CP] * size[S2S_AXIS_DP];
    const struct s2s_conf *node = s2s_conf_find(r->conf, ep > 1 ? "mesh.ep" : "mesh.etp");
    if (stage % ((int64_t)etp * ep) == 0)
        return 0;
    int rc =
        s2s_conf_error(err, S2S_E_RANGE, node ? node : r->conf,
                       "experts on etp %d x ep %d ranks do not divide the %lld of tp x cp x dp",
                       etp, ep, (long long)stage);
    return etp > 1 && !s2s_conf_find(r->conf, "mesh.etp")
               ? s2s_error_hint(err, rc, "mesh.etp is mesh.tp unless it is given")
               : rc;
}

/* Chunks and uneven stages against the ranks of the pipeline. */
static int check_stages(const struct s2s_recipe *r, struct s2s_error *err)
{
    const int pp = r->mesh.size[S2S_AXIS_PP];
    const int64_t n_stages = (int64_t)pp * r->stages.n_chunks;
    if (r->stages.n_chunks > 1 && pp == 1)
        return s2s_conf_error(err, S2S_E_RANGE, s2s_conf_find(r->conf, "mesh.vpp"),
                              "%d chunks a rank need a pipeline: mesh.pp is 1", r->stages.n_chunks);
    if (r->stages.layers && (int64_t)r->stages.n_layers != n_stages)
        return s2s_conf_error(err, S2S_E_RANGE, s2s_conf_find(r->conf, "mesh.pp_layers"),
                              "expected the layers of each of %lld stages (pp x vpp), found %zu "
                              "numbers",
                              (long long)n_stages, r->stages.n_layers);
    return 0;
}

static struct s2s_pipeline pipeline_of(const struct s2s_recipe *r)
{
    const int dp = r->mesh.size[S2S_AXIS_DP];
    const int64_t all = (r->packs_per_step + r->packs_per_microbatch - 1) / r->packs_per_microbatch;
    return (struct s2s_pipeline){.n_ranks = r->mesh.size[S2S_AXIS_PP],
                                 .n_chunks = r->stages.n_chunks,
                                 .n_microbatches = (all + dp - 1) / dp,
                                 .group = r->stages.group};
}

/* Whether the microbatches of a step go through the pipeline. */
static int check_pipeline(const struct s2s_recipe *r, struct s2s_error *err)
{
    const struct s2s_pipeline pipeline = pipeline_of(r);
    int rc = s2s_pipeline_check(&pipeline, err);
    if (rc == 0)
        return 0;
    s2s_error_hint(err, rc, "change train.packs_per_step, mesh.vpp_group or mesh.vpp");
    const struct s2s_conf *node = s2s_conf_find(r->conf, "mesh.vpp");
    struct s2s_buf place = S2S_BUF_INIT;
    s2s_conf_add_place(&place, &(node ? node : r->conf)->place);
    s2s_error_add(err, rc, "%s: mesh.vpp", place.data);
    s2s_buf_release(&place);
    return rc;
}

static void say_waiting(const struct s2s_recipe *r)
{
    const struct s2s_pipeline p = pipeline_of(r);
    if (p.n_ranks > 1 && p.n_microbatches < p.n_ranks)
        s2s_warn("recipe", "%lld microbatch%s a step for %d pipeline ranks: most of them wait",
                 (long long)p.n_microbatches, p.n_microbatches == 1 ? "" : "es", p.n_ranks);
}

int s2s_recipe_fit(struct s2s_recipe *r, int world_size, bool trains, struct s2s_error *err)
{
    int rc = fit_mesh(r, world_size, err);
    if (rc == 0)
        rc = fit_experts(r, err);
    if (rc == 0)
        rc = check_stages(r, err);
    return rc == 0 && trains ? check_pipeline(r, err) : rc;
}

int s2s_recipe_check(struct s2s_recipe *r, int world_size, bool trains, struct s2s_error *err)
{
    struct s2s_report report = S2S_REPORT_INIT;
    int rc = s2s_rules_check_recipe(r->conf, world_size, trains ? NULL : "S2S-BAT", &report, err);
    if (rc >= 0) {
        say_warnings(&report);
        rc = s2s_recipe_fit(r, world_size, trains, err);
    }
    if (rc == 0 && trains)
        say_waiting(r);
    s2s_report_release(&report);
    return rc;
}

void s2s_recipe_release(struct s2s_recipe *r)
{
    free(r->train);
    free(r->eval);
    free(r->stages.layers);
    s2s_lora_release(&r->lora);
    s2s_conf_free(r->conf);
    *r = (struct s2s_recipe)S2S_RECIPE_INIT;
}
