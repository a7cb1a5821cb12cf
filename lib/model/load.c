/* Weights of a Hugging Face directory: one file, or shards with an index. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/affix.h"
#include "lib/base/error.h"
#include "lib/base/log.h"
#include "lib/base/mem.h"
#include "lib/conf/conf.h"
#include "lib/io/safetensors.h"
#include "lib/io/there.h"
#include "lib/model/model_internal.h"

/* The open files of a directory. */
struct weights {
    struct s2s_safetensors *files;
    char **paths;
    size_t n, cap, cap_paths;
};

static int open_file(struct weights *w, const char *dir, const char *name, struct s2s_error *err)
{
    char *path = s2s_xasprintf("%s/%s", dir, name);
    for (size_t i = 0; i < w->n; i++)
        if (strcmp(w->paths[i], path) == 0) {
            free(path);
            return 0;
        }
    s2s_grow(&w->files, w->n, &w->cap, sizeof *w->files);
    s2s_grow(&w->paths, w->n, &w->cap_paths, sizeof *w->paths);
    int rc = s2s_safetensors_open(&w->files[w->n], path, err);
    if (rc < 0) {
        free(path);
        return rc;
    }
    w->paths[w->n++] = path;
    return 0;
}

static void close_files(struct weights *w)
{
    for (size_t i = 0; i < w->n; i++) {
        s2s_safetensors_release(&w->files[i]);
        free(w->paths[i]);
    }
    free(w->files);
    free(w->paths);
}

static int open_shards(struct weights *w, const char *dir, const char *index_path,
                       struct s2s_error *err)
{
    struct s2s_conf *index = NULL;
    const struct s2s_conf *map;
    const char *name;
    int rc = s2s_conf_read(&index, index_path, S2S_CONF_JSON, err);
    if (rc < 0)
        return rc;
    rc = s2s_conf_get_map(&map, index, "weight_map", err);
    if (rc == 0 && !map)
        rc = s2s_error_set(err, S2S_E_FORMAT, "%s: no weight_map", index_path);
    for (size_t i = 0; rc == 0 && i < map->n_items; i++) {
        if ((rc = s2s_conf_as_str(&name, map->items[i], err)) < 0)
            break;
        if (strchr(name, '/'))
            rc = s2s_conf_error(err, S2S_E_FORMAT, map->items[i], "a shard outside the directory");
        else
            rc = open_file(w, dir, name, err);
    }
    s2s_conf_free(index);
    return rc;
}

static int open_dir(struct weights *w, const char *dir, struct s2s_error *err)
{
    char *index = s2s_xasprintf("%s/model.safetensors.index.json", dir);
    const bool sharded = s2s_is_there(AT_FDCWD, index);
    int rc =
        sharded ? open_shards(w, dir, index, err) : open_file(w, dir, "model.safetensors", err);
    free(index);
    if (rc == S2S_E_OPEN && !sharded)
        s2s_error_hint(err, rc, "s2s-ckpt convert --to hf makes a model of any checkpoint");
    return rc;
}

static const struct s2s_st_tensor *find(const struct weights *w, const char *prefix,
                                        const char *name, size_t *file)
{
    char *stored = s2s_xasprintf("%s%s", prefix, name);
    const struct s2s_st_tensor *t = NULL;
    for (*file = 0; *file < w->n; ++*file)
        if ((t = s2s_safetensors_find(&w->files[*file], stored)))
            break;
    free(stored);
    return t;
}

static double value_at(const struct s2s_st_tensor *t, size_t i)
{
    const char *at = (const char *)t->data + i * s2s_dtype_size(t->dtype);
    double wide;
    float single;
    uint16_t half;
    if (t->dtype == S2S_F64) {
        memcpy(&wide, at, sizeof wide);
        return wide;
    }
    if (t->dtype == S2S_F32) {
        memcpy(&single, at, sizeof single);
        return (double)single;
    }
    memcpy(&half, at, sizeof half);
    return (double)(t->dtype == S2S_F16 ? s2s_f16_to_f32(half) : s2s_bf16_to_f32(half));
}

static bool is_number(enum s2s_dtype dtype)
{
    return dtype == S2S_F64 || dtype == S2S_F32 || dtype == S2S_F16 || dtype == S2S_BF16;
}

/* Bit for bit, or in two dtypes value for value. */
static bool same_values(const struct s2s_st_tensor *a, const struct s2s_st_tensor *b)
{
    if (a->n_dims != b->n_dims ||
        memcmp(a->shape, b->shape, (size_t)a->n_dims * sizeof *a->shape) != 0)
        return false;
    if (a->dtype == b->dtype)
        return memcmp(a->data, b->data, a->len_bytes) == 0;
    if (!is_number(a->dtype) || !is_number(b->dtype))
        return false;
    for (size_t i = 0; i < a->len_bytes / s2s_dtype_size(a->dtype); i++)
        if (value_at(a, i) != value_at(b, i))
            return false;
    return true;
}

char *model_dir_differs(const struct s2s_model *model, const char *name, const char *other)
{
    struct weights w = {0};
    struct s2s_error unread = S2S_ERROR_INIT;
    size_t file, other_file;
    char *path = NULL;
    if (open_dir(&w, model->dir, &unread) == 0) {
        const struct s2s_st_tensor *a = find(&w, model->stored_prefix, name, &file);
        const struct s2s_st_tensor *b = find(&w, model->stored_prefix, other, &other_file);
        if (a && b && !same_values(a, b))
            path = s2s_xstrdup(w.paths[file]);
    }
    close_files(&w);
    return path;
}

bool model_dir_read(const struct s2s_model *model, const char *name, float *out, size_t n)
{
    struct weights w = {0};
    struct s2s_error unread = S2S_ERROR_INIT;
    const struct s2s_st_tensor *t = NULL;
    size_t file;
    if (open_dir(&w, model->dir, &unread) == 0)
        t = find(&w, model->stored_prefix, name, &file);
    const bool there = t && is_number(t->dtype) && s2s_st_numel(t) == (int64_t)n;
    for (size_t i = 0; there && i < n; i++)
        out[i] = (float)value_at(t, i);
    close_files(&w);
    return there;
}

int model_set_param(struct s2s_param *param, const struct s2s_st_tensor *t, struct s2s_error *err)
{
    bool same = t->n_dims == param->n_dims;
    for (int i = 0; same && i < t->n_dims; i++)
        same = t->shape[i] == param->shape[i];
    if (!same) {
        struct s2s_buf want = S2S_BUF_INIT, have = S2S_BUF_INIT;
        for (int i = 0; i < param->n_dims; i++)
            s2s_buf_printf(&want, "%s%lld", i ? ", " : "", (long long)param->shape[i]);
        for (int i = 0; i < t->n_dims; i++)
            s2s_buf_printf(&have, "%s%lld", i ? ", " : "", (long long)t->shape[i]);
        int rc = s2s_error_set(err, S2S_E_SHAPE, "%s is [%s]; the config asks for [%s]", t->name,
                               have.data ? have.data : "", want.data ? want.data : "");
        s2s_buf_release(&want);
        s2s_buf_release(&have);
        return rc;
    }
    if (!s2s_dtype_is_float(t->dtype))
        return s2s_error_set(err, S2S_E_DTYPE, "%s is %s; expected F32, BF16, F16 or F64", t->name,
                             s2s_dtype_name(t->dtype));
    s2s_param_set(param, t->data, t->dtype);
    return 0;
}

/* Counters of batch norm, which nothing depends on. */
static bool is_counter(const char *name)
{
    static const char end[] = ".num_batches_tracked";
    size_t len = strlen(name), n = sizeof end - 1;
    return len > n && strcmp(name + len - n, end) == 0;
}

static bool is_unused(const struct s2s_model *model, const char *name)
{
    for (const char *const *u = model->kind->unused; u && *u; u++)
        if (strcmp(*u, name) == 0)
            return true;
    return model->kind->is_copy && model->kind->is_copy(model, name);
}

/* Tensors that no parameter wants, in one line, and in another those that the kind drops; of a
 * larger model, those of its part. */
static void warn_extra(const struct s2s_model *model, const struct weights *w, const char *dir)
{
    struct s2s_buf names = S2S_BUF_INIT;
    size_t n = 0, n_dropped = 0, len = strlen(model->stored_prefix);
    const char *dropped = model->kind->dropped;
    for (size_t f = 0; f < w->n; f++)
        for (size_t i = 0; i < w->files[f].n_tensors; i++) {
            const char *name = w->files[f].tensors[i].name;
            if (strncmp(name, model->stored_prefix, len) != 0)
                continue;
            if (dropped && s2s_starts_with(name + len, dropped)) {
                n_dropped++;
                continue;
            }
            char *full = s2s_xasprintf("%s%s", model->prefix, name + len);
            const bool is_twin = model->twin[1] && strcmp(name + len, model->twin[1]) == 0;
            const bool is_known = is_twin || is_unused(model, name + len) || is_counter(name);
            if (!is_known && !s2s_params_find(model->params, full) && n++ < 10)
                s2s_buf_printf(&names, " %s", name);
            free(full);
        }
    if (n)
        s2s_warn("model", "%s: %zu tensors are not used:%s%s", dir, n, names.data,
                 n > 10 ? " .." : "");
    if (n_dropped)
        s2s_warn("model", "%s: %zu tensors %s* are left out: their layers are not trained", dir,
                 n_dropped, dropped);
    s2s_buf_release(&names);
}

int model_load_dir(struct s2s_model *model, const char *dir, struct s2s_error *err)
{
    struct weights w = {0};
    struct s2s_buf missing = S2S_BUF_INIT;
    size_t n_missing = 0, file;
    int rc = open_dir(&w, dir, err);
    for (size_t i = 0; rc == 0 && i < model->params->n; i++) {
        struct s2s_param *param = model->params->list[i];
        const char *name = s2s_model_local_name(model, param);
        if (!name || !s2s_param_is_here(param))
            continue;
        const struct s2s_st_tensor *t = find(&w, model->stored_prefix, name, &file);
        if (!t && model->twin[0] && strcmp(name, model->twin[0]) == 0)
            t = find(&w, model->stored_prefix, model->twin[1], &file);
        if (t) {
            if ((rc = model_set_param(param, t, err)) < 0)
                s2s_error_add(err, rc, "%s", w.paths[file]);
        } else if (!(param->flags & S2S_PARAM_OPTIONAL)) {
            n_missing++;
            s2s_buf_printf(&missing, " %s%s", model->stored_prefix, name);
        }
    }
    if (rc == 0 && n_missing)
        rc = s2s_error_hint(err,
                            s2s_error_set(err, S2S_E_NOTFOUND, "%s: %zu tensors are absent:%s", dir,
                                          n_missing, missing.data),
                            "check that config.json belongs to these weights");
    if (rc == 0)
        warn_extra(model, &w, dir);
    s2s_buf_release(&missing);
    close_files(&w);
    return rc;
}
