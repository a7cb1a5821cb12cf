/* Groups of parameters that a recipe freezes, or gives another learning rate or decay. */
#include "lib/optim/groups.h"

#include <fnmatch.h>
#include <stddef.h>

#include "lib/base/error.h"
#include "lib/conf/conf.h"
#include "lib/tensor/param.h"

static int matches_none(const struct s2s_conf *node, const char *pattern, struct s2s_error *err)
{
    int rc = s2s_conf_error(err, S2S_E_NOTFOUND, node, "no parameter's name matches '%s'", pattern);
    return s2s_error_hint(err, rc, "s2s-ckpt ls shows the names of a checkpoint");
}

typedef size_t match_fn(struct s2s_params *params, const char *pattern);

static int match_one(struct s2s_params *params, const struct s2s_conf *node, match_fn *match,
                     struct s2s_error *err)
{
    const char *pattern;
    int rc = s2s_conf_as_str(&pattern, node, err);
    if (rc < 0)
        return rc;
    return match(params, pattern) > 0 ? 0 : matches_none(node, pattern, err);
}

/* One pattern, or a list of them. */
static int match_all(struct s2s_params *params, const struct s2s_conf *node, match_fn *match,
                     struct s2s_error *err)
{
    int rc = 0;
    if (!node || node->kind == S2S_CONF_NULL)
        return 0;
    if (node->kind != S2S_CONF_LIST)
        return match_one(params, node, match, err);
    for (size_t i = 0; rc == 0 && i < node->n_items; i++)
        rc = match_one(params, node->items[i], match, err);
    return rc;
}

int s2s_groups_freeze(struct s2s_params *params, const struct s2s_conf *node, struct s2s_error *err)
{
    return match_all(params, node, s2s_params_freeze_match, err);
}

int s2s_groups_unfreeze(struct s2s_params *params, const struct s2s_conf *node,
                        struct s2s_error *err)
{
    return match_all(params, node, s2s_params_unfreeze_match, err);
}

/* No parameter's schedule ends above where it begins. */
static int check_rates(const struct s2s_params *params, const char *pattern, double lr,
                       const struct s2s_conf *node, struct s2s_error *err)
{
    for (size_t i = 0; i < params->n; i++) {
        const struct s2s_param *p = params->list[i];
        if (p->min_lr > lr * p->lr_mult && fnmatch(pattern, p->name, 0) == 0)
            return s2s_conf_error(err, S2S_E_RANGE, node,
                                  "min_lr %g is above the learning rate of %s, %g", p->min_lr,
                                  p->name, lr * p->lr_mult);
    }
    return 0;
}

static int scale_one(struct s2s_params *params, const struct s2s_conf *node, double lr,
                     struct s2s_error *err)
{
    static const char *const keys[] = {"match", "lr_mult", "weight_decay_mult", "min_lr", NULL};
    const char *pattern;
    double values[3];
    if (node->kind != S2S_CONF_MAP)
        return s2s_conf_error(err, S2S_E_FORMAT, node,
                              "expected {match, lr_mult, weight_decay_mult, min_lr}, found %s",
                              s2s_conf_kind_name(node->kind));
    int rc = s2s_conf_check_keys(node, "", keys, err);
    if (rc < 0 || (rc = s2s_conf_get_str(&pattern, node, "match", err)) < 0)
        return rc;
    for (int i = 0; i < 3; i++) {
        const bool given = !s2s_conf_is_unset(node, keys[i + 1]);
        rc = s2s_conf_get_f64_or(&values[i], node, keys[i + 1], i < 2 ? 1 : -1, err);
        if (rc < 0)
            return rc;
        if (given && !(values[i] >= 0 && values[i] < 1e30))
            return s2s_conf_error(err, S2S_E_RANGE, s2s_conf_find(node, keys[i + 1]),
                                  "expected a %s of at least 0, found %g",
                                  i < 2 ? "factor" : "rate", values[i]);
    }
    if (s2s_params_scale_match(params, pattern, values[0], values[1], values[2]) == 0)
        return matches_none(s2s_conf_find(node, "match"), pattern, err);
    return check_rates(params, pattern, lr, node, err);
}

int s2s_groups_scale(struct s2s_params *params, const struct s2s_conf *node, double lr,
                     struct s2s_error *err)
{
    int rc = 0;
    if (!node || node->kind == S2S_CONF_NULL)
        return 0;
    if (node->kind != S2S_CONF_LIST)
        return s2s_conf_error(err, S2S_E_FORMAT, node, "expected a list of groups, found %s",
                              s2s_conf_kind_name(node->kind));
    for (size_t i = 0; rc == 0 && i < node->n_items; i++)
        rc = scale_one(params, node->items[i], lr, err);
    return rc;
}
