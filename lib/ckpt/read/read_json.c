/* Configuration files beside the weights: JSON, and YAML converted to JSON. */

#include "lib/base/base.h"
#include "lib/ckpt/read/read.h"
#include "lib/conf/conf.h"

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
