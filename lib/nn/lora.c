/* What a recipe or a PEFT folder says about low-rank adapters. */
#include "lib/nn/lora.h"

#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/affix.h"
#include "lib/base/error.h"
#include "lib/base/mem.h"
#include "lib/conf/conf.h"

enum { MAX_RANK = 1 << 20 };

/* ---- targets ---- */

static void add_target(struct s2s_lora *lora, char *pattern)
{
    lora->targets = s2s_xrealloc(lora->targets, lora->n_targets + 1, sizeof *lora->targets);
    lora->used = s2s_xrealloc(lora->used, lora->n_targets + 1, sizeof *lora->used);
    lora->used[lora->n_targets] = false;
    lora->targets[lora->n_targets++] = pattern;
}

/* One or a list of them. */
static int read_targets(struct s2s_lora *lora, const struct s2s_conf *node, struct s2s_error *err)
{
    const size_t n = node->kind == S2S_CONF_LIST ? node->n_items : 1;
    for (size_t i = 0; i < n; i++) {
        const char *pattern;
        int rc =
            s2s_conf_as_str(&pattern, node->kind == S2S_CONF_LIST ? node->items[i] : node, err);
        if (rc < 0)
            return rc;
        add_target(lora, s2s_xstrdup(pattern));
    }
    return 0;
}

static int read_scale(struct s2s_lora *lora, const struct s2s_conf *conf, const char *rank,
                      const char *alpha, struct s2s_error *err)
{
    int rc = s2s_conf_get_i64_or(&lora->rank, conf, rank, 1, MAX_RANK, 8, err);
    if (rc < 0 || (rc = s2s_conf_get_f64_or(&lora->alpha, conf, alpha, 8, err)) < 0)
        return rc;
    if (!(lora->alpha > 0 && lora->alpha < 1e30))
        return s2s_conf_error(err, S2S_E_RANGE, s2s_conf_find(conf, alpha),
                              "expected a number above 0, found %g", lora->alpha);
    return 0;
}

/* ---- a PEFT folder ---- */

/* Keys that would make another map of it, and the values that do not. */
static int check_peft_key(const struct s2s_conf *item, struct s2s_error *err)
{
    static const struct {
        const char *key, *plain;
    } keys[] = {{"bias", "none"},
                {"fan_in_fan_out", "false"},
                {"use_rslora", "false"},
                {"use_dora", "false"},
                {"modules_to_save", NULL},
                {"layers_to_transform", NULL},
                {"rank_pattern", NULL},
                {"alpha_pattern", NULL},
                {"target_parameters", NULL},
                {"lora_bias", "false"},
                {"use_qalora", "false"},
                {"peft_type", "LORA"},
                {"layer_replication", NULL},
                {"trainable_token_indices", NULL}};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const bool list = item->kind == S2S_CONF_LIST || item->kind == S2S_CONF_MAP;
        const bool plain = item->kind == S2S_CONF_NULL || (list && item->n_items == 0) ||
                           (!list && keys[i].plain && strcmp(item->text, keys[i].plain) == 0);
        if (strcmp(item->key, keys[i].key) == 0 && !plain)
            return s2s_conf_error(err, S2S_E_UNSUPPORTED, item,
                                  "an adapter with this is not implemented; expected %s",
                                  keys[i].plain ? keys[i].plain : "null");
    }
    return 0;
}

static int read_dropout(struct s2s_lora *lora, const struct s2s_conf *conf, const char *key,
                        struct s2s_error *err)
{
    const int rc = s2s_conf_get_f64_or(&lora->dropout, conf, key, 0, err);
    if (rc == 0 && !(lora->dropout >= 0 && lora->dropout < 1))
        return s2s_conf_error(err, S2S_E_RANGE, s2s_conf_find(conf, key),
                              "expected a share of at least 0 and below 1, found %g",
                              lora->dropout);
    return rc;
}

static int read_peft(struct s2s_lora *lora, struct s2s_error *err)
{
    struct s2s_conf *conf = NULL;
    char *path = s2s_xasprintf("%s/adapter_config.json", lora->path);
    int rc = s2s_conf_read(&conf, path, S2S_CONF_JSON, err);
    for (size_t i = 0; rc == 0 && i < conf->n_items; i++)
        rc = check_peft_key(conf->items[i], err);
    if (rc == 0)
        rc = read_scale(lora, conf, "r", "lora_alpha", err);
    if (rc == 0)
        rc = read_dropout(lora, conf, "lora_dropout", err);
    const struct s2s_conf *targets = rc == 0 ? s2s_conf_find(conf, "target_modules") : NULL;
    if (rc == 0 && (!targets || targets->kind != S2S_CONF_LIST))
        rc = s2s_conf_error(err, S2S_E_UNSUPPORTED, targets ? targets : conf,
                            "expected a list of modules");
    if (rc == 0)
        rc = read_targets(lora, targets, err);
    s2s_conf_free(conf);
    free(path);
    return rc;
}

/* ---- the recipe ---- */

static int read_all(struct s2s_lora *lora, const struct s2s_conf *conf, struct s2s_error *err)
{
    static const char *const keys[] = {"rank", "alpha", "targets", "path", "dropout", NULL};
    const char *path;
    int rc = s2s_conf_check_keys(conf, "", keys, err);
    if (rc < 0 || (rc = s2s_conf_get_str_or(&path, conf, "path", NULL, err)) < 0)
        return rc;
    if (path) {
        for (int i = 0; i < 3; i++)
            if (!s2s_conf_is_unset(conf, keys[i]))
                return s2s_conf_error(err, S2S_E_FORMAT, s2s_conf_find(conf, keys[i]),
                                      "the folder at path says it");
        lora->path = s2s_xstrdup(path);
        if ((rc = read_peft(lora, err)) < 0 || s2s_conf_is_unset(conf, "dropout"))
            return rc;
        return read_dropout(lora, conf, "dropout", err);
    }
    if ((rc = read_scale(lora, conf, "rank", "alpha", err)) < 0 ||
        (rc = read_dropout(lora, conf, "dropout", err)) < 0)
        return rc;
    if (!s2s_conf_is_unset(conf, "targets"))
        return read_targets(lora, s2s_conf_find(conf, "targets"), err);
    add_target(lora, s2s_xstrdup("*_proj"));
    return 0;
}

int s2s_lora_read(struct s2s_lora *lora, const struct s2s_conf *conf, struct s2s_error *err)
{
    *lora = (struct s2s_lora){.rank = 0};
    int rc = read_all(lora, conf, err);
    if (rc < 0)
        s2s_lora_release(lora);
    return rc;
}

void s2s_lora_release(struct s2s_lora *lora)
{
    for (size_t i = 0; i < lora->n_targets; i++)
        free(lora->targets[i]);
    free(lora->targets);
    free(lora->used);
    free(lora->path);
    *lora = (struct s2s_lora){.rank = 0};
}

/* ---- maps ---- */

/* Of a PEFT folder they are names, or ends of names. What is `model.` in transformers' memory may
 * be `backbone.` in files (NemotronH). */
static bool matches(const struct s2s_lora *lora, const char *target, const char *name)
{
    static const char memory[] = "model.", file[] = "backbone.";
    if (!lora->path)
        return fnmatch(target, name, 0) == 0;
    if (s2s_has_tail(name, '.', target))
        return true;
    if (!s2s_starts_with(target, memory))
        return false;
    char *stored = s2s_xasprintf("%s%s", file, target + strlen(memory));
    const bool found = s2s_has_tail(name, '.', stored);
    free(stored);
    return found;
}

bool s2s_lora_adapts(const struct s2s_lora *lora, const char *name)
{
    bool any = false;
    for (size_t i = 0; lora && i < lora->n_targets; i++)
        if (matches(lora, lora->targets[i], name))
            any = lora->used[i] = true;
    return any;
}

int s2s_lora_check(const struct s2s_lora *lora, const struct s2s_conf *conf, struct s2s_error *err)
{
    for (size_t i = 0; i < lora->n_targets; i++)
        if (!lora->used[i])
            return s2s_error_hint(
                err,
                s2s_conf_error(err, S2S_E_NOTFOUND, conf, "no linear map's name matches '%s'",
                               lora->targets[i]),
                "names are those of a checkpoint without .weight; experts get no adapter");
    return 0;
}

bool s2s_lora_is_adapter(const char *name)
{
    return s2s_ends_with(name, "." S2S_LORA_A) || s2s_ends_with(name, "." S2S_LORA_B);
}
