/*
 * The common state of a distributed checkpoint (common.pt or a byte object), and the arguments of
 * its training run, wherever they are stored.
 */

#include "lib/base/base.h"
#include "lib/ckpt/read/read.h"
#include "lib/ckpt/read/read_internal.h"
#include "lib/ckpt/read/torch_zip.h"
#include "lib/conf/conf.h"

/* Converts the payload of an archive to JSON. list: the payload is the only element of a list.
 * Gives a reference. */
static int archive_json(struct s2s_ckpt *ckpt, json_t **out, const struct s2s_zip_source *source,
                        bool list, const char *name, struct s2s_error *err)
{
    struct ckpt_archive archive;
    int rc = ckpt_archive_open(&archive, source, CKPT_OPEN, err);
    if (rc < 0)
        return s2s_error_add(err, rc, "%s", name);
    const struct ckpt_node *root = archive.pickle.root;
    if (list && root->kind == CKPT_LIST && root->n == 1)
        root = root->items[0];
    struct ckpt_json_left left = ckpt_json_limit(archive.pickle.len);
    *out = ckpt_node_json(root, &left);
    if (left.nodes == 0 || left.cut)
        s2s_warn("ckpt", "%s: its values repeat without end, and are known in part", name);
    ckpt_warn_opaque(ckpt, &archive.pickle, name);
    ckpt_archive_release(&archive);
    return 0;
}

static int object_json(struct s2s_ckpt *ckpt, json_t **out, const struct s2s_ckpt_object *object,
                       bool list, struct s2s_error *err)
{
    int file = ckpt_add_file(ckpt, object->file, err);
    int fd = ckpt_file_fd(ckpt, file, err);
    if (fd < 0)
        return fd;
    struct s2s_zip_source source = {.fd = fd, .begin = object->pos, .len_bytes = object->len_bytes};
    return archive_json(ckpt, out, &source, list, object->name, err);
}

static int file_json(struct s2s_ckpt *ckpt, json_t **out, const char *name, struct s2s_error *err)
{
    struct ckpt_span span;
    int rc = ckpt_find_span(ckpt, name, &span, err);
    int fd = rc < 0 ? rc : ckpt_file_fd(ckpt, span.file, err);
    if (fd < 0)
        return fd;
    struct s2s_zip_source source = {.fd = fd, .begin = span.begin, .len_bytes = span.len_bytes};
    return archive_json(ckpt, out, &source, false, name, err);
}

/* What Lightning keeps beside the tensors of a folder has the configuration of NeMo's models. */
static void read_lightning(struct s2s_ckpt *ckpt)
{
    struct s2s_error err = S2S_ERROR_INIT;
    json_t *meta = NULL;
    if (!ckpt_has(ckpt, CKPT_LIGHTNING_META))
        return;
    if (file_json(ckpt, &meta, CKPT_LIGHTNING_META, &err) < 0)
        s2s_warn("ckpt", "%s: not used: %s", ckpt->path, err.text);
    json_t *model = json_object_get(json_object_get(meta, "hyper_parameters"), "cfg");
    if (json_is_object(model))
        ckpt->common = json_pack("{s:O}", "model_config", model);
    json_decref(meta);
}

int ckpt_read_common(struct s2s_ckpt *ckpt, struct s2s_error *err)
{
    const struct s2s_ckpt_object *object = ckpt_find_object(ckpt, CKPT_COMMON_OBJECT);
    if (object && ckpt_has(ckpt, "common.pt")) /* a release of Megatron-Core writes one of them */
        s2s_warn(
            "ckpt",
            "%s: there is a common state in common.pt and another in the object " CKPT_COMMON_OBJECT
            ": one is of another save; common.pt is taken, as Megatron-Core does",
            ckpt->path);
    if (ckpt_has(ckpt, "common.pt"))
        return file_json(ckpt, &ckpt->common, "common.pt", err);
    if (object)
        return object_json(ckpt, &ckpt->common, object, true, err);
    read_lightning(ckpt);
    return 0;
}

void ckpt_read_args(struct s2s_ckpt *ckpt)
{
    struct s2s_error err = S2S_ERROR_INIT;
    const struct s2s_ckpt_object *object = ckpt_find_object(ckpt, "args");
    if (!object || json_object_get(ckpt->common, "args"))
        return;
    json_decref(ckpt->run_args);
    ckpt->run_args = NULL;
    if (object_json(ckpt, &ckpt->run_args, object, false, &err) < 0)
        s2s_warn("ckpt", "%s: not used: %s", ckpt->path, err.text);
}

const json_t *ckpt_args(const struct s2s_ckpt *ckpt)
{
    const json_t *args = json_object_get(ckpt->common, "args");
    return args ? args : ckpt->run_args;
}

/* ---- configuration files beside the weights: JSON, and YAML converted to it ---- */

int ckpt_read_json(json_t **value, const struct s2s_ckpt *ckpt, const char *name,
                   struct s2s_error *err)
{
    char *text;
    size_t len;
    json_error_t at;
    /* NeMo Automodel stores them here while the weights are sharded */
    char *aside = s2s_xasprintf(".hf_metadata/%s", name);
    int rc = 0;
    *value = NULL;
    if (ckpt->dir_fd >= 0 && !s2s_is_there(ckpt->dir_fd, name))
        name = aside;
    if (ckpt->dir_fd < 0 || !s2s_is_there(ckpt->dir_fd, name))
        goto out;
    rc = ckpt_slurp(ckpt->dir_fd, name, CKPT_MAX_SIDE_FILE, &text, &len, err);
    if (rc < 0) {
        s2s_error_add(err, rc, "%s", ckpt->path);
        goto out;
    }
    *value = s2s_ckpt_parse_config(text, len, 0, &at);
    free(text);
    if (!*value)
        rc = s2s_error_set(err, S2S_E_FORMAT, "%s/%s:%d: %s", ckpt->path, name, at.line, at.text);
out:
    free(aside);
    return rc;
}

static void say_duplicates(const struct s2s_conf *conf)
{
    size_t n;
    const struct s2s_conf_duplicate *found = s2s_conf_duplicates(conf, &n);
    for (size_t i = 0; i < n && i < 10; i++)
        s2s_warn("ckpt", "%s:%d: %s is there twice, first in line %d; the later one counts",
                 found[i].second.source->name, found[i].second.line, found[i].key,
                 found[i].first.line);
}

int ckpt_parse_yaml(json_t **tree, const char *text, size_t len, const char *name,
                    struct s2s_error *err)
{
    struct s2s_conf *conf = NULL;
    struct s2s_buf json = S2S_BUF_INIT;
    int rc = s2s_conf_parse(&conf, text, len, name, S2S_CONF_YAML, err);
    *tree = NULL;
    if (rc < 0)
        return rc;
    say_duplicates(conf);
    s2s_conf_dump_json(&json, conf);
    *tree = json_loadb(json.data, json.len, JSON_DECODE_ANY, NULL);
    s2s_buf_release(&json);
    s2s_conf_free(conf);
    return 0;
}
