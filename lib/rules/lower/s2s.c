/* Recipes of s2s-train (doc/RECIPE.md): their names, and every key they may have. */
#include "lib/rules/rules_internal.h"

#include <stdio.h>
#include <string.h>

#include "lib/base/error.h"
#include "lib/rules/memory.h"

static const struct rules_map map[] = {
    {"tp", "mesh.tp", "size", "1"},
    {"cp", "mesh.cp", "size", "1"},
    {"cp_comm", "mesh.cp_comm", "text", "all_gather"},
    {"pp", "mesh.pp", "size", "1"},
    {"ep", "mesh.ep", "size", "1"},
    {"etp_given", "mesh.etp", "size", ""},
    {"dp_cfg", "mesh.dp", "size", ""},
    {"mbs", "train.packs_per_microbatch", "int", "1"},
    {"gbs", "train.packs_per_step", "int", "1"},
    {"steps", "train.steps", "int", "?"},
    {"max_seconds", "train.max_seconds", "number", "0"},
    {"eval_every", "train.eval_every", "int", "0"},
    {"log_every", "train.log_every", "int", "10"},
    {"optimizer", "optimizer.name", "text", "adamw"},
    {"lr", "optimizer.lr", "number", "?"},
    {"eps", "optimizer.eps", "number", "1e-8"},
    {"weight_decay", "optimizer.weight_decay", "number", "0"},
    {"clip_norm", "optimizer.clip_norm", "number", "0"},
    {"betas", "optimizer.betas", "list", ""},
    {"schedule", "schedule.name", "text", "constant"},
    {"warmup", "schedule.warmup_steps", "int", "0"},
    {"decay", "schedule.decay_steps", "int", ""},
    {"wsd", "schedule.wsd_steps", "int", ""},
    {"wsd_style", "schedule.wsd_style", "text", ""},
    {"min_lr", "schedule.min_lr", "number", "0"},
    {"init_lr", "schedule.init_lr", "number", "0"},
    {"hold", "schedule.hold_steps", "int", "0"},
    {"wd_style", "schedule.wd_style", "text", "constant"},
    {"wd_steps", "schedule.wd_steps", "int", "0"},
    {"end_wd", "schedule.end_weight_decay", "number", "0"},
    {"model_path", "model.path", "text", ""},
    {"encoder_path", "model.encoder.path", "text", ""},
    {"encoder_config", "model.encoder.config", "any", ""},
    {"vision_path", "model.vision.path", "text", ""},
    {"vision_config", "model.vision.config", "any", ""},
    {"llm_path", "model.llm.path", "text", ""},
    {"llm_config", "model.llm.config", "any", ""},
    {"freeze_encoder", "model.encoder.freeze", "bool", "false"},
    {"freeze_projection", "model.projection.freeze", "bool", "false"},
    {"freeze_vision", "model.vision.freeze", "bool", "false"},
    {"freeze_vision_projection", "model.vision_projection.freeze", "bool", "false"},
    {"freeze_llm", "model.llm.freeze", "bool", "false"},
    {"batch_norm", "model.encoder.batch_norm", "text", "frozen"},
    {"train_data", "data.train", "any", ""},
    {"shuffle", "data.shuffle", "bool", ""},
    {"ckpt_every", "checkpoint.every", "int", "0"},
    {"ckpt_keep", "checkpoint.keep", "int", "1"},
    {"resume", "checkpoint.resume", "bool", "true"},
    {"async_save", "checkpoint.async_save", "bool", "false"},
    {"freq_masks", "train.spec_augment.freq_masks", "int", "0"},
    {"freq_width", "train.spec_augment.freq_width", "number", "0"},
    {"time_masks", "train.spec_augment.time_masks", "int", "0"},
    {"time_width", "train.spec_augment.time_width", "number", "0"},
    {"token_dropout", "train.token_dropout", "number", "0"},
    {"seed", "seed", "int", "0"},
    {"recompute", "train.recompute", "any", "false"},
    {"timeout", "mesh.timeout_s", "number", "600"},
    {"placeholder", "model.placeholder_id", "int", "0"},
    {"run", "run", "text", ""},
    {"features", "data.features", "text", ""},
    {0},
};

/* Every key of a recipe; below one that ends in .* anything goes. */
static const char *const keys[] = {
    "run",
    "seed",
    "device",
    "model.path",
    "model.encoder.path",
    "model.encoder.config.*",
    "model.encoder.freeze",
    "model.encoder.override.*",
    "model.encoder.batch_norm",
    "model.vision.path",
    "model.vision.config.*",
    "model.vision.freeze",
    "model.vision_projection.path",
    "model.vision_projection.freeze",
    "model.vision_projection.inner",
    "model.vision_projection.pixel_shuffle",
    "model.vision_projection.final_layernorm",
    "model.projection.path",
    "model.projection.freeze",
    "model.llm.path",
    "model.llm.config.*",
    "model.llm.freeze",
    "model.llm.override.*",
    "model.freeze.*",
    "model.unfreeze.*",
    "model.lora.rank",
    "model.lora.alpha",
    "model.lora.targets.*",
    "model.lora.path",
    "model.lora.dropout",
    "model.placeholder_id",
    "model.time_step_clamp",
    "data.train.*",
    "data.eval.*",
    "data.tokenizer",
    "data.shuffle",
    "data.features",
    "mesh.dp",
    "mesh.tp",
    "mesh.cp",
    "mesh.cp_comm",
    "mesh.pp",
    "mesh.ep",
    "mesh.etp",
    "mesh.sequence_parallel",
    "mesh.vpp",
    "mesh.vpp_group",
    "mesh.pp_layers.*",
    "mesh.timeout_s",
    "mesh.bucket_mb",
    "mesh.overlap_grad_reduce",
    "mesh.data_parallel_sharding_strategy",
    "optimizer.name",
    "optimizer.lr",
    "optimizer.betas.*",
    "optimizer.eps",
    "optimizer.weight_decay",
    "optimizer.clip_norm",
    "optimizer.groups.*",
    "schedule.name",
    "schedule.warmup_steps",
    "schedule.decay_steps",
    "schedule.min_lr",
    "schedule.wsd_steps",
    "schedule.wsd_style",
    "schedule.init_lr",
    "schedule.hold_steps",
    "schedule.end_weight_decay",
    "schedule.wd_steps",
    "schedule.wd_style",
    "train.steps",
    "train.max_seconds",
    "train.packs_per_step",
    "train.packs_per_microbatch",
    "train.eval_every",
    "train.log_every",
    "train.recompute",
    "train.precision",
    "train.ema_decay",
    "train.on_nan",
    "train.on_spike",
    "train.spike_factor",
    "train.spike_window",
    "train.max_skips",
    "train.moe_aux_loss_coeff",
    "train.moe_z_loss_coeff",
    "train.moe_router_load_balancing_type",
    "train.moe_router_bias_update_rate",
    "train.dropout.*",
    "train.token_dropout",
    "train.spec_augment.freq_masks",
    "train.spec_augment.freq_width",
    "train.spec_augment.time_masks",
    "train.spec_augment.time_width",
    "train.spec_augment.mask_value",
    "train.spec_augment.form",
    "train.dither",
    "checkpoint.every",
    "checkpoint.keep",
    "checkpoint.resume",
    "checkpoint.async_save",
    NULL,
};

enum match { NO_KEY, LEAF, INNER, OPEN_ENDED };

static enum match match_key(const char *path)
{
    size_t len = strlen(path);
    for (const char *const *k = keys; *k; k++) {
        size_t key_len = strlen(*k);
        bool open = key_len > 2 && !strcmp(*k + key_len - 2, ".*");
        if (open && key_len - 2 == len && !strncmp(*k, path, len))
            return OPEN_ENDED;
        if (!strcmp(*k, path))
            return LEAF;
        if (key_len > len && !strncmp(*k, path, len) && (*k)[len] == '.')
            return INNER;
    }
    return NO_KEY;
}

/* The names that may stand where `path` ends, for "did you mean". */
static void unknown_key(struct rules_check *check, const struct s2s_conf *node, const char *path)
{
    const char *dot = strrchr(path, '.');
    size_t prefix = dot ? (size_t)(dot - path) + 1 : 0;
    const char *names[64];
    size_t n = 0;
    for (const char *const *k = keys; *k && n + 1 < 64; k++) {
        if (strncmp(*k, path, prefix) != 0)
            continue;
        char *name = s2s_xstrndup(*k + prefix, strcspn(*k + prefix, "."));
        names[n++] = rules_keep(&check->facts, name);
    }
    names[n] = NULL;
    const char *nearest = s2s_conf_nearest(path + prefix, names);
    struct s2s_buf fix = S2S_BUF_INIT;
    if (nearest)
        s2s_buf_printf(&fix, "did you mean '%s'?", nearest);
    else
        s2s_buf_puts(&fix, "remove it; doc/RECIPE.md lists the keys");
    rules_find(check, "S2S-TRN-001", node, true, fix.data, "unknown key '%s'", node->key);
    s2s_buf_release(&fix);
}

static void check_keys(struct rules_check *check, const struct s2s_conf *map_node)
{
    for (size_t i = 0; i < map_node->n_items; i++) {
        const struct s2s_conf *item = map_node->items[i];
        struct s2s_buf path = S2S_BUF_INIT;
        s2s_conf_add_path(&path, item);
        enum match m = match_key(path.data);
        if (m == NO_KEY)
            unknown_key(check, item, path.data);
        else if (m == INNER && item->kind == S2S_CONF_MAP)
            check_keys(check, item);
        else if (m == INNER && item->kind != S2S_CONF_NULL)
            rules_find(check, "S2S-CFG-004", item, false, "", "expected a map, found %s",
                       s2s_conf_kind_name(item->kind));
        else if (m == LEAF && (item->kind == S2S_CONF_MAP || item->kind == S2S_CONF_LIST))
            rules_find(check, "S2S-CFG-004", item, false, "", "expected one value, found %s",
                       s2s_conf_kind_name(item->kind));
        s2s_buf_release(&path);
    }
}

/* data.train: a stream or a list of streams; "-" is a pipe. */
static void lower_data(struct rules_check *check)
{
    const struct s2s_conf *sets = s2s_conf_find(check->conf, "data.eval");
    if (sets && sets->kind != S2S_CONF_MAP && sets->kind != S2S_CONF_NULL)
        rules_find(check, "S2S-CFG-004", sets, false, "give each data set a name: {seen: seen.s2s}",
                   "expected a map, found %s", s2s_conf_kind_name(sets->kind));
    const struct s2s_conf *train = s2s_conf_find(check->conf, "data.train");
    int64_t n = 0, n_pipes = 0;
    if (train && train->kind == S2S_CONF_LIST)
        for (size_t i = 0; i < train->n_items; i++, n++)
            n_pipes += train->items[i]->text && !strcmp(train->items[i]->text, "-");
    else if (train && train->text && train->kind != S2S_CONF_NULL) {
        n = 1;
        n_pipes = !strcmp(train->text, "-");
    }
    rules_fact_set(&check->facts, "n_train", rules_int(n));
    rules_fact_set(&check->facts, "n_train_pipes", rules_int(n_pipes));
    rules_fact_set(&check->facts, "n_eval",
                   rules_int((int64_t)(s2s_conf_find(check->conf, "data.eval")
                                           ? s2s_conf_find(check->conf, "data.eval")->n_items
                                           : 0)));
}

/* A beta outside [0, 1) or another number of betas than two. */
static void lower_betas(struct rules_check *check)
{
    const struct s2s_conf *betas = s2s_conf_find(check->conf, "optimizer.betas");
    bool bad = false;
    if (betas && betas->kind == S2S_CONF_LIST) {
        bad = betas->n_items != 2;
        for (size_t i = 0; i < betas->n_items; i++) {
            double beta = -1;
            bad |= s2s_conf_as_f64(&beta, betas->items[i], NULL) < 0 || !(beta >= 0 && beta < 1);
        }
    }
    rules_fact_set(&check->facts, "betas_bad", rules_bool(bad));
}

int rules_lower_s2s(struct rules_check *check)
{
    static const struct rules_derived derived[] = {
        /* without a launcher the sizes that are written down are the world */
        {"world", "if(world_given == null, if(dp_cfg == null, unknown, dp_cfg*tp*cp*pp), "
                  "world_given)"},
        {"dp", "world / (tp*cp*pp)"},
        {"gtp", "1"},
        {"etp", "if(etp_given == null, tp, etp_given)"},
        {"gpus_per_node", "if(gpus_given == null, unknown, gpus_given)"},
        {"strategy", "null"},
        {"decay_end", "if(decay == null, steps, decay)"},
        {"model_parts",
         "set(encoder_path) or set(encoder_config) or set(vision_path) or set(vision_config) or "
         "set(llm_path) or set(llm_config)"},
        {0},
    };
    check_keys(check, check->conf);
    rules_lower_map(check, map);
    lower_data(check);
    lower_betas(check);
    rules_lower_derived(check, derived);
    return 0;
}

/* The place in the recipe that a message begins with, which is passed over; else that of node. */
static struct s2s_conf_place take_place(const char **text, const struct s2s_conf *node)
{
    struct s2s_conf_place place = node->place;
    const size_t len = place.source ? strlen(place.source->name) : 0;
    int n = 0;
    if (len && !strncmp(*text, place.source->name, len) &&
        sscanf(*text + len, ":%d:%d: %n", &place.line, &place.column, &n) == 2 && n > 0) {
        *text += len + (size_t)n;
        return place;
    }
    return node->place;
}

void rules_check_fit(struct rules_check *check)
{
    const struct s2s_conf *mesh = s2s_conf_find(check->conf, "mesh");
    struct s2s_error err = S2S_ERROR_INIT;
    for (size_t i = 0; i < check->report->n_findings; i++)
        if (check->report->findings[i].severity == S2S_SEVERITY_ERROR)
            return;
    if (check->report->dialect == S2S_DIALECT_S2S && check->opt->fits &&
        check->opt->fits(check->conf, (int64_t)rules_number(check, "world", 0), &err) ==
            S2S_E_RANGE) {
        const char *text = err.text;
        struct s2s_conf at = *(mesh ? mesh : check->conf);
        at.place = take_place(&text, &at);
        rules_find(check, "S2S-TRN-017", &at, text == err.text, err.hint, "%s", text);
    }
}
