/* The encoder of s2s-encode: opens models, and turns features into rows. */
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "lib/conf/conf.h"
#include "lib/io/digest.h"
#include "lib/io/safetensors.h"
#include "lib/io/there.h"
#include "lib/model/model.h"
#include "lib/model/projection.h"
#include "tools/encode/encode.h"

/* A thread's own: operations share the memory of their device, so each thread has one. The one
 * thread of a GPU has the parameters' own, whose queue they were loaded in. */
struct worker {
    struct s2s_device *device;
    struct s2s_tape *tape;
};

struct encode_coder {
    struct s2s_device *device; /* of the parameters */
    struct s2s_params *params;
    struct s2s_model *model;
    struct s2s_nn_linear projection; /* its w is NULL where there is none */
    struct worker *workers;
    int n_workers;
};

/* ---- projection ---- */

char *encode_projection_path(const char *projection)
{
    struct stat st;
    if (stat(projection, &st) == 0 && S_ISDIR(st.st_mode))
        return s2s_xasprintf("%s/projection.safetensors", projection);
    return s2s_xstrdup(projection);
}

static int add_projection(struct encode_coder *c, const struct s2s_safetensors *st,
                          struct s2s_error *err)
{
    const struct s2s_nn_ctx ctx = {.params = c->params, .par = c->model->par, .place = ""};
    int64_t width;
    bool bias;
    int rc = s2s_projection_look(&width, &bias, st, c->model->hidden_size, err);
    if (rc == 0)
        s2s_projection_init(&c->projection, &ctx, width, c->model->hidden_size, bias);
    return rc;
}

/* ---- opening ---- */

static int open_encoder(struct encode_coder *c, const char *dir, struct s2s_error *err)
{
    int rc;
    c->params = s2s_params_new(c->device);
    /* its parameters bear a prefix, so that the loader leaves the projection alone */
    struct s2s_model_options options = {.prefix = "encoder.", .params = c->params};
    if ((rc = s2s_model_open(&c->model, c->device, NULL, dir, &options, err)) < 0)
        return rc;
    if (c->model->n_mels == 0 || c->model->vocab_size != 0)
        return s2s_error_hint(
            err,
            s2s_error_set(err, S2S_E_UNSUPPORTED, "%s is no speech encoder", c->model->config_path),
            "of a composite name its encoder/ folder");
    return 0;
}

/* Memory for all of it, frozen, and the encoder's values. */
static int load_encoder(struct encode_coder *c, struct s2s_error *err)
{
    s2s_params_freeze(c->params, "");
    int rc = s2s_params_finish(c->params, err);
    return rc < 0 ? rc : s2s_model_load(c->model, err);
}

static int load_with_projection(struct encode_coder *c, const char *path, struct s2s_error *err)
{
    struct s2s_safetensors st;
    int rc = s2s_safetensors_open(&st, path, err);
    if (rc < 0)
        return rc;
    if ((rc = add_projection(c, &st, err)) < 0) {
        s2s_error_add(err, rc, "%s", path);
    } else if ((rc = load_encoder(c, err)) == 0) {
        rc = s2s_projection_load(&c->projection, &st, err);
        if (rc < 0)
            s2s_error_add(err, rc, "%s", path);
    }
    s2s_safetensors_release(&st);
    return rc;
}

static int load_all(struct encode_coder *c, const char *projection, struct s2s_error *err)
{
    if (!projection)
        return load_encoder(c, err);
    char *path = encode_projection_path(projection);
    int rc = load_with_projection(c, path, err);
    free(path);
    return rc;
}

static bool is_cpu(const char *device)
{
    return !device || strcmp(device, s2s_device_names[0]) == 0;
}

int encode_n_workers(const struct encode_options *opt)
{
    return is_cpu(opt->device) ? opt->common.jobs : 1;
}

static int open_worker(struct encode_coder *c, const char *device, struct s2s_error *err)
{
    struct worker *w = &c->workers[c->n_workers];
    int rc = 0;
    w->device = c->device;
    if (is_cpu(device) && (rc = s2s_device_open(&w->device, device, err)) == 0)
        w->device->queue.lanes = 1; /* clips are what runs at the same time */
    if (rc < 0)
        return rc;
    w->tape = s2s_tape_new(w->device, false);
    c->n_workers++;
    return 0;
}

int encode_coder_open(struct encode_coder **coder, const struct encode_options *opt, int index,
                      struct s2s_error *err)
{
    struct encode_coder *c = *coder = s2s_xcalloc(1, sizeof *c);
    const int n_workers = encode_n_workers(opt);
    int rc = s2s_device_open_at(&c->device, opt->device, index, err);
    if (rc < 0 || (rc = open_encoder(c, opt->encoder, err)) < 0 ||
        (rc = load_all(c, opt->projection, err)) < 0)
        return rc;
    c->workers = s2s_xcalloc((size_t)n_workers, sizeof *c->workers);
    while (rc == 0 && c->n_workers < n_workers)
        rc = open_worker(c, opt->device, err);
    return rc;
}

void encode_coder_close(struct encode_coder *c)
{
    if (!c)
        return;
    for (int i = 0; i < c->n_workers; i++) {
        s2s_tape_free(c->workers[i].tape);
        if (c->workers[i].device != c->device)
            s2s_device_close(c->workers[i].device);
    }
    free(c->workers);
    s2s_model_free(c->model);
    s2s_params_free(c->params);
    s2s_device_close(c->device);
    free(c);
}

int64_t encode_coder_width(const struct encode_coder *coder)
{
    const struct s2s_param *w = coder->projection.w;
    return w ? w->shape[0] : coder->model->hidden_size;
}

int64_t encode_coder_n_mels(const struct encode_coder *coder)
{
    return coder->model->n_mels;
}

int64_t encode_coder_frames(const struct encode_coder *coder, int64_t n_mel)
{
    return s2s_model_frames(coder->model, n_mel);
}

/* ---- one clip ---- */

static bool all_finite(const float *x, int64_t n)
{
    float sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += x[i] * 0; /* 0 * Inf and 0 * NaN are NaN */
    return sum == 0;
}

int encode_coder_run(struct encode_coder *c, int worker, float *rows, const float *features,
                     int64_t n_mel, struct s2s_error *err)
{
    struct s2s_tape *tape = c->workers[worker].tape;
    const int64_t cu[] = {0, n_mel};
    const struct s2s_batch batch = {
        .media = {{.n = 1, .data = features, .cu = cu, .width = c->model->n_mels}}, .n_media = 1};
    struct s2s_forward fwd = {0};
    int rc = s2s_model_check(c->model, &batch, err);
    if (rc < 0)
        return rc;
    s2s_tape_reset(tape);
    s2s_model_forward(c->model, tape, &batch, &fwd);
    struct s2s_tensor *y = fwd.output;
    if (c->projection.w)
        y = s2s_nn_linear(tape, &c->projection, y);
    s2s_tensor_read_f32(y, rows);
    if ((rc = s2s_device_sync(c->workers[worker].device, err)) < 0)
        return rc;
    if (!all_finite(rows, s2s_tensor_numel(y)))
        return s2s_error_set(err, S2S_E_RANGE, "the encoder's output holds NaN or Inf");
    return 0;
}

/* ---- digest ---- */

/* Adds the digest of a file that may be absent. */
static int add_file(struct s2s_digest *digest, const char *dir, const char *name, bool *found,
                    struct s2s_error *err)
{
    char hex[33], *path = s2s_xasprintf("%s/%s", dir, name);
    int rc = 0;
    *found = s2s_is_there(AT_FDCWD, path);
    if (*found && (rc = s2s_digest_file(hex, path, err)) == 0)
        s2s_digest_update(digest, hex, 32);
    free(path);
    return rc;
}

static int add_shards(struct s2s_digest *digest, const char *dir, struct s2s_error *err)
{
    struct s2s_conf *index = NULL;
    const struct s2s_conf *map;
    const char *name, *last = "";
    char *path = s2s_xasprintf("%s/model.safetensors.index.json", dir);
    bool found;
    int rc = s2s_conf_read(&index, path, S2S_CONF_JSON, err);
    free(path);
    if (rc == 0)
        rc = s2s_conf_get_map(&map, index, "weight_map", err);
    for (size_t i = 0; rc == 0 && map && i < map->n_items; i++)
        if ((rc = s2s_conf_as_str(&name, map->items[i], err)) == 0 && strcmp(name, last)) {
            rc = add_file(digest, dir, name, &found, err);
            last = name;
        }
    s2s_conf_free(index);
    return rc;
}

int encode_digest_model(char hex[33], const char *dir, struct s2s_error *err)
{
    struct s2s_digest *digest = s2s_digest_new(128);
    bool found, sharded = false;
    int rc = add_file(digest, dir, "config.json", &found, err);
    if (rc == 0)
        rc = add_file(digest, dir, "model.safetensors.index.json", &sharded, err);
    if (rc == 0)
        rc = sharded ? add_shards(digest, dir, err)
                     : add_file(digest, dir, "model.safetensors", &found, err);
    s2s_digest_hex(digest, hex);
    s2s_digest_free(digest);
    return rc;
}
