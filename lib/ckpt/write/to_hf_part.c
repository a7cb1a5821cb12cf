/* Extracts the small files of one part of a model from those of the whole model. */
#include "lib/base/base.h"
#include "lib/ckpt/model.h"
#include "lib/ckpt/write/to_hf_internal.h"

static bool is_share(const char *name)
{
    return ckpt_name_is_plain(name, strlen(name)) && ckpt_side_is_one(name);
}

/* Adds the part's share of a small file of the whole model. */
static void add_share(struct s2s_hf_output *out, const struct s2s_ckpt *ckpt, const char *name,
                      const char *bytes, size_t len)
{
    if (strcmp(name, "config.json") != 0) {
        if (ckpt_part_has_words(ckpt->part)) /* tokenizer files */
            ckpt_side_add(&out->files, name, bytes, len);
        return;
    }
    json_t *root = s2s_ckpt_parse_config(bytes, len, 0, NULL);
    if (!root) /* s2s_hf_check_kept reports it */
        ckpt_side_add(&out->files, name, bytes, len);
    json_t *own = ckpt_part_config(ckpt, root);
    char *text = s2s_ckpt_config_text(own);
    if (text)
        ckpt_side_add_text(&out->files, name, text);
    free(text);
    json_decref(own);
    json_decref(root);
}

/* Adds what NeMo's SALM keeps beside its language model, whose words may be outside of it. */
static int backbone_files(struct s2s_hf_output *out, const struct s2s_ckpt *ckpt,
                          struct s2s_error *err)
{
    static const char folder[] = "llm_backbone";
    struct ckpt_side_files found = {.n = 0};
    int rc = ckpt_side_take_folder(&found, ckpt, folder, err);
    for (size_t i = 0; i < found.n && rc == 0; i++)
        ckpt_side_add(&out->files, found.v[i].path + strlen(folder) + 1, found.v[i].bytes,
                      found.v[i].len);
    ckpt_side_release(&found);
    return rc;
}

int ckpt_hf_part_files(struct s2s_hf_output *out, const struct s2s_ckpt *ckpt,
                       struct s2s_error *err)
{
    struct ckpt_side_files all = {.n = 0};
    int rc = ckpt_name_is_plain(ckpt->part, strlen(ckpt->part))
                 ? ckpt_side_take_folder(&all, ckpt, ckpt->part, err)
                 : 0;
    const size_t n_own = all.n, skip = strlen(ckpt->part) + 1;
    if (rc == 0 && n_own == 0 && strcmp(ckpt->part, "llm") == 0)
        rc = backbone_files(out, ckpt, err);
    if (rc == 0 && n_own == 0)
        rc = ckpt_side_take_folder(&all, ckpt, "", err);
    for (size_t i = 0; i < all.n && rc == 0; i++) {
        const struct ckpt_side_file *file = &all.v[i];
        if (n_own)
            ckpt_side_add(&out->files, file->path + skip, file->bytes, file->len);
        else
            add_share(out, ckpt, file->path, file->bytes, file->len);
    }
    ckpt_side_release(&all);
    return rc;
}

void ckpt_hf_part_common(struct s2s_hf_output *out, const struct s2s_ckpt *ckpt)
{
    const json_t *common = ckpt->common;
    const size_t len = strlen(ckpt->part);
    const char *key;
    json_t *value;
    /* of a composite model the common state has each part's own */
    const bool whole = json_object_get(common, "config/composite") != NULL;
    char *own = s2s_xasprintf("config/%s", ckpt->part);
    if (whole)
        ckpt_side_add_json(&out->files, "config.json", json_object_get(common, own));
    free(own);
    value = whole ? NULL : json_object_get(common, "config/llm");
    if (json_is_string(value))
        add_share(out, ckpt, "config.json", json_string_value(value), json_string_length(value));
    json_object_foreach((json_t *)common, key, value)
    {
        const char *path = s2s_starts_with(key, "file/") ? key + 5 : NULL;
        if (!path || !json_is_string(value))
            continue;
        if (strncmp(path, ckpt->part, len) == 0 && path[len] == '/' && is_share(path + len + 1))
            ckpt_side_add_json(&out->files, path + len + 1, value);
        else if (!whole && is_share(path))
            add_share(out, ckpt, path, json_string_value(value), json_string_length(value));
    }
}
