/*
 * `defaults:` of NeMo-RL: one parent or a list, relative to the file that names them. Parents merge
 * depth first, the later wins, the child last. A top-level map with `_override_: true` replaces the
 * inherited one. Every value keeps the place in the file that set it.
 */
#include "lib/rules/rules_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "lib/base/error.h"

enum { MAX_PARENTS = 32 };

struct chain {
    const struct chain *child;
    const char *path;
};

/* The folder of a path with a '/', or "" */
static char *sibling(const char *path, const char *parent)
{
    const char *slash = strrchr(path, '/');
    if (parent[0] == '/' || !slash)
        return s2s_xstrdup(parent);
    return s2s_xasprintf("%.*s/%s", (int)(slash - path), path, parent);
}

static int depth_of(const struct chain *chain)
{
    int depth = 0;
    for (; chain; chain = chain->child)
        depth++;
    return depth;
}

static bool is_in(const struct chain *chain, const char *path)
{
    for (; chain; chain = chain->child)
        if (!strcmp(chain->path, path))
            return true;
    return false;
}

static int merge(struct s2s_conf *into, const struct s2s_conf *over, struct s2s_error *err)
{
    for (size_t i = 0; i < over->n_items; i++) {
        const struct s2s_conf *mark = s2s_conf_key(over->items[i], "_override_");
        if (mark && mark->kind == S2S_CONF_BOOL && mark->as_bool)
            s2s_conf_remove(into, over->items[i]->key);
    }
    return s2s_conf_merge(into, over, err);
}

static int compose(struct rules_check *check, struct s2s_conf **out, const struct s2s_conf *own,
                   const struct chain *chain);

static int add_parent(struct rules_check *check, struct s2s_conf *into, const struct s2s_conf *name,
                      const struct chain *chain)
{
    struct s2s_conf *parent = NULL, *whole = NULL;
    struct s2s_error why = S2S_ERROR_INIT;
    if (name->kind != S2S_CONF_STRING || strstr(name->text, "${")) {
        check->incomplete = true;
        return 0;
    }
    char *path = sibling(chain->path, name->text);
    struct chain link = {chain, path};
    struct stat st;
    /* a device or a pipe is no parent: it could keep us reading for ever */
    bool there = stat(path, &st) == 0 && S_ISREG(st.st_mode);
    int rc = 0;
    if (is_in(chain, path) || depth_of(chain) >= MAX_PARENTS) {
        rc = s2s_conf_error(check->err, S2S_E_FORMAT, name, "'%.200s' leads back to itself",
                            name->text);
    } else if (!there || s2s_conf_read(&parent, path, S2S_CONF_YAML, &why) == S2S_E_OPEN) {
        rules_find(check, "S2S-CFG-006", name, false,
                   "mend the path, or check the file where its "
                   "parents are",
                   "the parent '%s' is not there", path);
        check->incomplete = true;
    } else if (!parent) {
        *check->err = why;
        rc = S2S_E_FORMAT;
    } else if ((rc = compose(check, &whole, parent, &link)) >= 0) {
        rc = merge(into, whole, check->err);
    }
    s2s_conf_free(parent);
    s2s_conf_free(whole);
    free(path);
    return rc;
}

/* *out: own with its parents below it, a tree of its own */
static int compose(struct rules_check *check, struct s2s_conf **out, const struct s2s_conf *own,
                   const struct chain *chain)
{
    const struct s2s_conf *defaults = s2s_conf_key(own, "defaults");
    struct s2s_conf *child = s2s_conf_copy(own);
    int rc = 0;
    *out = child;
    if (!defaults || own->kind != S2S_CONF_MAP)
        return 0;
    s2s_conf_remove(child, "defaults");
    struct s2s_conf *whole = s2s_conf_new(S2S_CONF_FROM_FILE, chain->path);
    whole->place = own->place;
    if (defaults->kind == S2S_CONF_LIST)
        for (size_t i = 0; rc >= 0 && i < defaults->n_items; i++)
            rc = add_parent(check, whole, defaults->items[i], chain);
    else
        rc = add_parent(check, whole, defaults, chain);
    if (rc >= 0)
        rc = merge(whole, child, check->err);
    s2s_conf_free(child);
    *out = rc < 0 ? NULL : whole;
    if (rc < 0)
        s2s_conf_free(whole);
    return rc;
}

int rules_inherit(struct rules_check *check, const char *path)
{
    struct chain chain = {NULL, path};
    struct s2s_conf *whole = NULL;
    int rc = compose(check, &whole, check->conf, &chain);
    if (rc < 0)
        return rc;
    for (size_t i = 0; i < whole->n_items; i++)
        if (whole->items[i]->kind == S2S_CONF_MAP)
            s2s_conf_remove(whole->items[i], "_override_");
    /* findings made so far point into the tree as it was read */
    check->report->raw = check->conf;
    check->report->conf = check->conf = whole;
    return 0;
}
