/* Sets, overrides, removes and merges values of a tree. */
#include "lib/conf/conf_internal.h"

#include <stdlib.h>
#include <string.h>

#include "lib/base/error.h"
#include "lib/base/mem.h"

static int full(const struct conf_arena *arena, struct s2s_error *err)
{
    return s2s_error_set(err, S2S_E_FORMAT, "more than %zu values in a config", arena->max_nodes);
}

/* One step of a path: [*at, *at + *len); false at its end. */
static bool next_step(const char **at, size_t *len, const char **rest)
{
    const char *s = *rest;
    if (!*s)
        return false;
    *at = s;
    *len = strcspn(s, ".[]");
    s += *len;
    s += *s == ']';
    s += *s == '.' || *s == '[';
    *rest = s;
    return true;
}

static bool list_index(size_t *out, const struct s2s_conf *list, const char *digits)
{
    char *end;
    unsigned long idx = strtoul(digits, &end, 10);
    *out = idx;
    return *digits >= '0' && *digits <= '9' && !*end && idx < list->n_items;
}

/* The map or list that holds the last step of path; makes maps on the way. *last: the step. */
static int holder_of(struct s2s_conf **holder, char **last, struct s2s_conf *root, const char *path,
                     struct s2s_conf_place place, struct s2s_error *err)
{
    struct s2s_conf *node = root;
    const char *at = NULL, *rest = path;
    size_t len = 0, idx = 0;
    *last = NULL;
    while (next_step(&at, &len, &rest)) {
        free(*last);
        *last = s2s_xstrndup(at, len);
        if (node->kind == S2S_CONF_NULL)
            node->kind = S2S_CONF_MAP; /* an empty value may become a map */
        if (node->kind != S2S_CONF_MAP && node->kind != S2S_CONF_LIST)
            return s2s_conf_error(err, S2S_E_FORMAT, node,
                                  "cannot set '%s' in here: expected a map, found %s", path,
                                  s2s_conf_kind_name(node->kind));
        if (node->kind == S2S_CONF_LIST && !list_index(&idx, node, *last))
            return s2s_conf_error(err, S2S_E_FORMAT, node,
                                  "cannot set '%s': no item '%s' in a list of %zu", path, *last,
                                  node->n_items);
        if (!*rest)
            break;
        struct s2s_conf *child =
            node->kind == S2S_CONF_LIST ? node->items[idx] : conf_map_find(node, *last);
        if (!child) {
            child = conf_node_new(root->arena, S2S_CONF_MAP, place);
            if (!child)
                return full(root->arena, err);
            child->key = conf_strndup(root->arena, *last, strlen(*last));
            conf_map_put(node, child);
        }
        node = child;
    }
    if (!*last || !**last)
        return s2s_error_set(err, S2S_E_ARG, "'%s' is no path of keys", path);
    *holder = node;
    return 0;
}

int s2s_conf_set(struct s2s_conf *root, const char *path, const struct s2s_conf *value,
                 struct s2s_error *err)
{
    struct s2s_conf *holder = NULL;
    char *last = NULL;
    struct s2s_conf_place place = {value->place.source, value->place.line, value->place.column};
    int rc = holder_of(&holder, &last, root, path, place, err);
    struct s2s_conf *copy = rc < 0 ? NULL : conf_copy(root->arena, value);
    if (rc >= 0 && !copy)
        rc = full(root->arena, err);
    if (rc >= 0 && holder->kind == S2S_CONF_LIST) {
        size_t idx = strtoul(last, NULL, 10);
        copy->key = NULL;
        copy->parent = holder;
        holder->items[idx] = copy;
    } else if (rc >= 0) {
        copy->key = conf_strndup(root->arena, last, strlen(last));
        conf_map_put(holder, copy);
    }
    free(last);
    return rc;
}

int s2s_conf_set_scalar(struct s2s_conf *root, const char *path, const char *text, int line,
                        int column, struct s2s_error *err)
{
    struct s2s_conf value = {.kind = S2S_CONF_STRING,
                             .text = text,
                             .place = {root->place.source, line, column},
                             .arena = NULL};
    conf_resolve_scalar(&value);
    return s2s_conf_set(root, path, &value, err);
}

/* text[begin..] is YAML; the places count in text, which is `name`'s. */
static int set_from(struct s2s_conf *root, const char *path, const char *text, size_t begin,
                    enum s2s_conf_origin origin, const char *name, struct s2s_error *err)
{
    struct s2s_conf *value = NULL;
    char *copy = s2s_xstrdup(text);
    /* blanks before the value keep the columns right */
    memset(copy, ' ', begin);
    struct s2s_conf_source *source = conf_source_new(root->arena, origin, name, copy, strlen(copy));
    int rc = conf_parse_yaml(&value, root->arena, source, err);
    if (begin)
        memcpy(copy, text, begin);
    if (rc >= 0 && !value) {
        value = conf_node_new(root->arena, S2S_CONF_NULL,
                              (struct s2s_conf_place){source, 1, (int)begin + 1});
        if (!value)
            return full(root->arena, err);
        value->text = "";
    }
    return rc < 0 ? rc : s2s_conf_set(root, path, value, err);
}

int s2s_conf_set_text(struct s2s_conf *root, const char *path, const char *yaml,
                      enum s2s_conf_origin origin, const char *name, struct s2s_error *err)
{
    return set_from(root, path, yaml, 0, origin, name, err);
}

int s2s_conf_override(struct s2s_conf *root, const char *assignment, struct s2s_error *err)
{
    const char *equals = strchr(assignment, '=');
    if (!equals || equals == assignment) {
        s2s_error_set(err, S2S_E_ARG, "'%s' is no override", assignment);
        return s2s_error_hint(err, S2S_E_ARG, "write key=value, as in optimizer.lr=1e-4");
    }
    char *path = s2s_xstrndup(assignment, (size_t)(equals - assignment));
    int rc = set_from(root, path, assignment, (size_t)(equals - assignment) + 1, S2S_CONF_FROM_CLI,
                      "command line", err);
    free(path);
    return rc;
}

void s2s_conf_retype(struct s2s_conf *node)
{
    if (node->kind != S2S_CONF_STRING)
        return;
    node->quoted = false;
    conf_resolve_scalar(node);
}

bool s2s_conf_remove(struct s2s_conf *root, const char *path)
{
    struct s2s_conf *node = (struct s2s_conf *)s2s_conf_find(root, path);
    struct s2s_conf *parent = node ? node->parent : NULL;
    if (!parent)
        return false;
    size_t n = 0;
    struct s2s_conf **items = parent->items;
    size_t n_items = parent->n_items;
    parent->index = NULL;
    parent->index_size = 0;
    for (size_t i = 0; i < n_items; i++)
        if (items[i] != node)
            items[n++] = items[i];
    parent->n_items = n;
    return true;
}

static int merge_map(struct s2s_conf *into, const struct s2s_conf *over, struct s2s_error *err)
{
    for (size_t i = 0; i < over->n_items; i++) {
        const struct s2s_conf *item = over->items[i];
        struct s2s_conf *mine = conf_map_find(into, item->key);
        if (mine && mine->kind == S2S_CONF_MAP && item->kind == S2S_CONF_MAP) {
            int rc = merge_map(mine, item, err);
            if (rc < 0)
                return rc;
            continue;
        }
        struct s2s_conf *copy = conf_copy(into->arena, item);
        if (!copy)
            return full(into->arena, err);
        conf_map_put(into, copy);
    }
    return 0;
}

int s2s_conf_merge(struct s2s_conf *root, const struct s2s_conf *over, struct s2s_error *err)
{
    if (root->kind != S2S_CONF_MAP || over->kind != S2S_CONF_MAP)
        return s2s_conf_error(err, S2S_E_FORMAT, over->kind == S2S_CONF_MAP ? root : over,
                              "expected a map to merge, found %s",
                              s2s_conf_kind_name((over->kind == S2S_CONF_MAP ? root : over)->kind));
    conf_duplicates_copy(root->arena, over->arena);
    return merge_map(root, over, err);
}
