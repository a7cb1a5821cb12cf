/* Groups of parameters that a recipe freezes, or gives another learning rate or decay. */
#include "lib/optim/groups.h"

#include <stddef.h>

#include "lib/base/error.h"
#include "lib/conf/conf.h"
#include "lib/tensor/param.h"

static int matches_none(const struct s2s_conf *node, const char *pattern, struct s2s_error *err)
{
    int rc = s2s_conf_error(err, S2S_E_NOTFOUND, node, "no parameter's name matches '%s'", pattern);
    return s2s_error_hint(err, rc, "s2s-ckpt ls shows the names of a checkpoint");
}

static int freeze_one(struct s2s_params *params, const struct s2s_conf *node, struct s2s_error *err)
{
    const char *pattern;
    int rc = s2s_conf_as_str(&pattern, node, err);
    if (rc < 0)
        return rc;
    return s2s_params_freeze_match(params, pattern) > 0 ? 0 : matches_none(node, pattern, err);
}

int s2s_groups_freeze(struct s2s_params *params, const struct s2s_conf *node, struct s2s_error *err)
{
    int rc = 0;
    if (!node || node->kind == S2S_CONF_NULL)
        return 0;
    if (node->kind != S2S_CONF_LIST)
        return freeze_one(params, node, err);
    for (size_t i = 0; rc == 0 && i < node->n_items; i++)
        rc = freeze_one(params, node->items[i], err);
    return rc;
}

static int scale_one(struct s2s_params *params, const struct s2s_conf *node, struct s2s_error *err)
{
    static const char *const keys[] = {"match", "lr_mult", "weight_decay_mult", NULL};
    const char *pattern;
    double mults[2];
    if (node->kind != S2S_CONF_MAP)
        return s2s_conf_error(err, S2S_E_FORMAT, node,
                              "expected {match, lr_mult, weight_decay_mult}, found %s",
                              s2s_conf_kind_name(node->kind));
    int rc = s2s_conf_check_keys(node, "", keys, err);
    if (rc < 0 || (rc = s2s_conf_get_str(&pattern, node, "match", err)) < 0)
        return rc;
    for (int i = 0; i < 2; i++) {
        rc = s2s_conf_get_f64_or(&mults[i], node, keys[i + 1], 1, err);
        if (rc < 0)
            return rc;
        if (!(mults[i] >= 0 && mults[i] < 1e30))
            return s2s_conf_error(err, S2S_E_RANGE, s2s_conf_find(node, keys[i + 1]),
                                  "expected a factor of at least 0, found %g", mults[i]);
    }
    return s2s_params_scale_match(params, pattern, mults[0], mults[1]) > 0
               ? 0
               : matches_none(s2s_conf_find(node, "match"), pattern, err);
}

int s2s_groups_scale(struct s2s_params *params, const struct s2s_conf *node, struct s2s_error *err)
{
    int rc = 0;
    if (!node || node->kind == S2S_CONF_NULL)
        return 0;
    if (node->kind != S2S_CONF_LIST)
        return s2s_conf_error(err, S2S_E_FORMAT, node, "expected a list of groups, found %s",
                              s2s_conf_kind_name(node->kind));
    for (size_t i = 0; rc == 0 && i < node->n_items; i++)
        rc = scale_one(params, node->items[i], err);
    return rc;
}
