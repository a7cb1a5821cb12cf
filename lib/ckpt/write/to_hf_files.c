/*
 * Collects the small files of a Hugging Face folder: of the source's folder, of folders that
 * trainers keep beside it, of the common state, and config.json from saved arguments. The first
 * file of a name is kept.
 */

#include <dirent.h>

#include "lib/base/base.h"
#include "lib/ckpt/config/args_config.h"
#include "lib/ckpt/folder.h"
#include "lib/ckpt/model.h"
#include "lib/ckpt/names.h"
#include "lib/ckpt/nemo/from_nemo.h"
#include "lib/ckpt/read/read.h"
#include "lib/ckpt/write/dist.h"
#include "lib/ckpt/write/to_hf_internal.h"
#include "lib/io/there.h"

/* Kind of weights: with unchanged names, of a family, or of one of NeMo's two models. */
enum { KEPT = 1, FAMILY = 2, FASTCONFORMER = 4, SALM = 8, ALL = 15 };

static int kind_of(const struct s2s_hf_output *out)
{
    return s2s_starts_with(out->map.family, "salm")            ? SALM
           : s2s_starts_with(out->map.family, "fastconformer") ? FASTCONFORMER
           : *out->map.family                                  ? FAMILY
                                                               : KEPT;
}

/* ---- of one part of a model, from those of the whole ---- */

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

/* For a checkpoint that is one part of a model (s2s_ckpt_select): what the source's files and
 * common state contain for that part. */
static int files_of_part(struct s2s_hf_output *out, const struct s2s_ckpt *ckpt,
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

static void common_of_part(struct s2s_hf_output *out, const struct s2s_ckpt *ckpt)
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

/* Adds config.json of each part and other text files that s2s-train stores in the common state. */
static int files_of_common(struct s2s_hf_output *out, struct s2s_ckpt *ckpt,
                           const struct s2s_hf_options *options, struct s2s_error *err)
{
    const json_t *common = ckpt->common;
    const bool composite = kind_of(out) == SALM || ckpt_hf_is_composite(ckpt);
    if (!common)
        return 0;
    if (ckpt->part) {
        common_of_part(out, ckpt);
        return 0;
    }
    /* an encoder or LLM alone is a folder of its own */
    const struct {
        const char *key, *path;
    } configs[] = {{"config/composite", "config.json"},
                   {"config/encoder", composite ? "encoder/config.json" : "config.json"},
                   {"config/vision", "vision/config.json"},
                   {"config/llm", composite ? "llm/config.json" : "config.json"}};
    const char *key;
    json_t *value;
    for (size_t i = 0; i < sizeof configs / sizeof *configs; i++)
        ckpt_side_add_json(&out->files, configs[i].path, json_object_get(common, configs[i].key));
    json_object_foreach((json_t *)common, key, value)
    {
        if (!s2s_starts_with(key, "file/") || !json_is_string(value))
            continue;
        const char *path = key + strlen("file/"), *slash = strchr(path, '/');
        /* at most one folder, with a plain name in it */
        const char *name = slash ? slash + 1 : path;
        if (!ckpt_name_is_plain(name, strlen(name)) || !ckpt_side_is_one(name) ||
            (slash && !s2s_starts_with(path, "encoder/") && !s2s_starts_with(path, "vision/") &&
             !s2s_starts_with(path, "llm/")))
            return s2s_error_set(err, S2S_E_FORMAT, "common state: file name \"%s\" is refused",
                                 path);
        ckpt_side_add_json(&out->files, path, value);
    }
    return 0;
}

/* Does the folder contain files of a model? */
static bool is_of_model(int dir_fd, const char *folder)
{
    DIR *dir = ckpt_open_dir(dir_fd, folder);
    bool found = false;
    for (struct dirent *item; dir && !found && (item = readdir(dir));)
        found = ckpt_side_is_one(item->d_name) || s2s_ends_with(item->d_name, ".safetensors") ||
                s2s_ends_with(item->d_name, ".bin");
    if (dir)
        closedir(dir);
    return found;
}

/* Warns of folders that are not copied: further modules of sentence-transformers, templates, a copy
 * of the weights in another format. */
static int warn_of_folders(const struct s2s_ckpt *ckpt, struct s2s_error *err)
{
    static const char taken[] = "encoder llm llm_backbone";
    struct dirent **entries;
    struct s2s_buf list = S2S_BUF_INIT;
    const int n = scandirat(ckpt->dir_fd, ".", &entries, NULL, alphasort);
    if (n < 0)
        return s2s_error_errno(err, S2S_E_IO, "list folder");
    for (int i = 0; i < n; i++) {
        const char *name = entries[i]->d_name;
        if (name[0] != '.' && !ckpt_has_word(taken, name) && is_of_model(ckpt->dir_fd, name))
            s2s_buf_printf(&list, "%s%s/", list.len ? ", " : "", name);
        free(entries[i]);
    }
    free(entries);
    if (list.len)
        s2s_warn("ckpt", "%s: files in folders below are left out: %s", ckpt->path, list.data);
    s2s_buf_release(&list);
    return 0;
}

static int files_of_source(struct s2s_hf_output *out, struct s2s_ckpt *ckpt,
                           const struct s2s_hf_options *options, struct s2s_error *err)
{
    static const char *const folders[] = {"", "encoder", "llm"};
    int rc = 0;
    if (ckpt->dir_fd < 0 || strcmp(ckpt->format, "torch_dist") == 0)
        return 0;
    if (ckpt->part)
        return files_of_part(out, ckpt, err);
    for (int i = 0; i < 3 && rc == 0; i++)
        rc = ckpt_side_take_folder(&out->files, ckpt, folders[i], err);
    if (rc == 0 && s2s_starts_with(ckpt->format, "hf"))
        rc = warn_of_folders(ckpt, err);
    return rc < 0 ? rc : ckpt_side_warn_left(&out->files, ckpt, false, err);
}

/* Adds the files of a folder beside the weights, without the folder in their paths. config: also
 * the model's configuration; the folder of a tokenizer may contain another model's. */
static int files_beside(struct s2s_hf_output *out, const struct s2s_ckpt *ckpt, const char *folder,
                        bool config, struct s2s_error *err)
{
    struct ckpt_side_files found = {.n = 0};
    int rc = ckpt_side_take_folder(&found, ckpt, folder, err);
    for (size_t k = 0; k < found.n && rc == 0; k++) {
        const struct ckpt_side_file *file = &found.v[k];
        const char *name = file->path + strlen(folder) + 1;
        if ((config || (strcmp(name, "config.json") != 0 && !s2s_ends_with(name, ".yaml"))) &&
            !s2s_starts_with(name, "fqn_to_")) /* NeMo Automodel's lists of tensors */
            ckpt_side_add(&out->files, name, file->bytes, file->len);
    }
    ckpt_side_release(&found);
    return rc;
}

bool ckpt_hf_is_verl(const struct s2s_ckpt *ckpt)
{
    return ckpt->dir_fd >= 0 && s2s_has_tail(ckpt->path, '/', "dist_ckpt") &&
           s2s_is_there(ckpt->dir_fd, CKPT_VERL_FILES "/config.json");
}

/* Adds the tokenizer that Megatron-Bridge, NeMo 2 or verl keeps in a folder beside the weights. */
static int files_of_tokenizer(struct s2s_hf_output *out, struct s2s_ckpt *ckpt,
                              const struct s2s_hf_options *options, struct s2s_error *err)
{
    static const char *const folders[] = {"tokenizer", "../context/nemo_tokenizer",
                                          CKPT_VERL_FILES};
    const size_t n = sizeof folders / sizeof *folders - !ckpt_hf_is_verl(ckpt);
    int rc = 0;
    if (ckpt->dir_fd < 0 ||
        (strcmp(ckpt->format, "torch_dist") != 0 && !ckpt_has_run_config(ckpt)) ||
        (ckpt->part && !ckpt_part_has_words(ckpt->part)))
        return 0;
    for (size_t i = 0; i < n && rc == 0; i++)
        rc = files_beside(out, ckpt, folders[i], false, err);
    return rc;
}

/* Adds what NeMo Automodel keeps in .hf_metadata beside shards, verl in huggingface beside the
 * files of FSDP ranks, and NeMo RL in policy/tokenizer beside policy/weights, which may contain one
 * more folder. */
static int files_of_trainer(struct s2s_hf_output *out, struct s2s_ckpt *ckpt,
                            const struct s2s_hf_options *options, struct s2s_error *err)
{
    static const char weights[] = "/policy/weights";
    const char *at = ckpt->dir_fd >= 0 ? strstr(ckpt->path, weights) : NULL;
    const char *below = at ? at + strlen(weights) : "//";
    if (ckpt->dir_fd < 0 || ckpt->part)
        return 0;
    const bool is_fsdp = strcmp(ckpt->format, "fsdp_rank") == 0;
    int rc = files_beside(out, ckpt, is_fsdp ? CKPT_FSDP_FILES : ".hf_metadata", true, err);
    if (rc == 0 && !*below)
        rc = files_beside(out, ckpt, "../tokenizer", false, err);
    else if (rc == 0 && *below == '/' && !strchr(below + 1, '/'))
        rc = files_beside(out, ckpt, "../../tokenizer", false, err);
    return rc;
}

/* Makes config.json from the saved arguments, unless there is one. */
static int config_of_args(struct s2s_hf_output *out, struct s2s_ckpt *ckpt,
                          const struct s2s_hf_options *options, struct s2s_error *err)
{
    if (ckpt_side_find(&out->files, "config.json"))
        return 0;
    char *config = ckpt_args_config(out->map.family, ckpt_args(ckpt), &out->parts[0].plan);
    if (config)
        ckpt_side_add_text(&out->files, "config.json", config);
    else if (!ckpt_args_config_knows(out->map.family))
        s2s_warn(
            "ckpt",
            "no config.json: the arguments of a checkpoint do not make that of %s; give one with "
            "--config",
            out->map.family);
    free(config);
    return 0;
}

/* Adds the config.json that the user gave, or the share of a part in it. */
static int given_config(struct s2s_hf_output *out, struct s2s_ckpt *ckpt,
                        const struct s2s_hf_options *options, struct s2s_error *err)
{
    json_t *own = ckpt->part ? ckpt_part_config(ckpt, options->config) : NULL;
    char *share = s2s_ckpt_config_text(own);
    if (options->config_text)
        ckpt_side_add_text(&out->files, "config.json", share ? share : options->config_text);
    free(share);
    json_decref(own);
    return 0;
}

static int say_absent(struct s2s_hf_output *out, struct s2s_ckpt *ckpt,
                      const struct s2s_hf_options *options, struct s2s_error *err)
{
    if (!ckpt_side_find(&out->files, "config.json"))
        s2s_warn("ckpt", "config.json is not written: no model_config.yaml says what the encoder "
                         "is; --config takes one, or the model's config.json");
    return 0;
}

/* The language model of a composite is written alone, under its prefix; its config.json names the
 * other parts, too. */
static int say_whole_config(struct s2s_hf_output *out, struct s2s_ckpt *ckpt,
                            const struct s2s_hf_options *options, struct s2s_error *err)
{
    const struct ckpt_side_file *file = ckpt_side_find(&out->files, "config.json");
    json_t *config = file ? s2s_ckpt_parse_config(file->bytes, file->len, 0, NULL) : NULL;
    const bool whole = json_is_object(json_object_get(config, "text_config")) ||
                       json_is_object(json_object_get(config, "llm_config"));
    if (whole && strcmp(out->map.family, "language_model") == 0)
        s2s_warn("ckpt",
                 "config.json is that of the whole model (%s), of which only the language model is "
                 "written; --part language_model writes that as a model of its own",
                 ckpt_config_type(config));
    json_decref(config);
    return 0;
}

/* Warns of small files that are left out: of a .nemo, and of a folder of torch_dist, where they may
 * be of another model. */
static int say_loose(struct s2s_hf_output *out, struct s2s_ckpt *ckpt,
                     const struct s2s_hf_options *options, struct s2s_error *err)
{
    struct dirent **entries;
    struct s2s_buf list = S2S_BUF_INIT;
    ckpt_nemo_warn_left(&out->files, ckpt);
    if (ckpt->dir_fd < 0 || strcmp(ckpt->format, "torch_dist") != 0)
        return 0;
    const int n = scandirat(ckpt->dir_fd, ".", &entries, NULL, alphasort);
    if (n < 0)
        return s2s_error_errno(err, S2S_E_IO, "list folder");
    for (int i = 0; i < n; i++) {
        const char *name = entries[i]->d_name;
        if (ckpt_side_is_one(name) && !s2s_ends_with(name, ".yaml") &&
            !ckpt_side_find(&out->files, name))
            s2s_buf_printf(&list, "%s%s", list.len ? ", " : "", name);
        free(entries[i]);
    }
    free(entries);
    if (list.len)
        s2s_warn("ckpt", "%s: files beside the weights are left out: %s", ckpt->path, list.data);
    s2s_buf_release(&list);
    return 0;
}

/* A copy of Hugging Face's folder lacks only what that lacked, too; a part of it may have no share
 * in its config.json. */
static int say_absent_of_kept(struct s2s_hf_output *out, struct s2s_ckpt *ckpt,
                              const struct s2s_hf_options *options, struct s2s_error *err)
{
    const bool is_copy =
        !ckpt->part && (s2s_starts_with(ckpt->format, "hf") || ckpt_hf_is_composite(ckpt));
    if (!is_copy && out->parts[0].plan.n_targets && !ckpt_side_find(&out->files, "config.json") &&
        !ckpt_side_find(&out->files, "adapter_config.json"))
        s2s_warn("ckpt", "no config.json is written: give the model's with --config");
    return 0;
}

/* Run in this order, as the first file of a name is kept. Files beside NeMo's models describe
 * NeMo's format, and are not copied. */
static const struct {
    int of;
    int (*add)(struct s2s_hf_output *out, struct s2s_ckpt *ckpt,
               const struct s2s_hf_options *options, struct s2s_error *err);
} steps[] = {
    {FASTCONFORMER, ckpt_hf_nemo_files},
    {KEPT | FAMILY | FASTCONFORMER, given_config},
    {ALL, files_of_common},
    {SALM, ckpt_hf_salm_files},
    {FAMILY, config_of_args},
    {FAMILY, ckpt_hf_nemo_tokenizer},
    {KEPT | FAMILY, files_of_source},
    {KEPT | FAMILY, files_of_trainer},
    {FAMILY | FASTCONFORMER, files_of_tokenizer},
    {FASTCONFORMER, say_absent},
    {KEPT, say_absent_of_kept},
    {FAMILY, say_whole_config},
    {ALL, say_loose},
};

int ckpt_hf_files(struct s2s_hf_output *out, struct s2s_ckpt *ckpt,
                  const struct s2s_hf_options *options, struct s2s_error *err)
{
    int rc = 0;
    for (size_t i = 0; i < sizeof steps / sizeof *steps && rc == 0; i++)
        if (steps[i].of & kind_of(out))
            rc = steps[i].add(out, ckpt, options, err);
    return rc;
}

/* ---- small files in a common state ---- */

/* The key of a file in the common state. Gives: free. */
static char *common_key(const struct s2s_ckpt *ckpt, const char *path)
{
    static const char backbone[] = "llm_backbone/"; /* NeMo's name for llm/ */
    if (strcmp(path, "config.json") == 0)
        return s2s_xstrdup(ckpt_hf_is_composite(ckpt) ? "config/composite" : "config/llm");
    if (strcmp(path, "encoder/config.json") == 0)
        return s2s_xstrdup("config/encoder");
    if (strcmp(path, "vision/config.json") == 0)
        return s2s_xstrdup("config/vision");
    if (strcmp(path, "llm/config.json") == 0 || strcmp(path, "llm_backbone/config.json") == 0)
        return s2s_xstrdup("config/llm");
    if (s2s_starts_with(path, backbone))
        return s2s_xasprintf("file/llm/%s", path + strlen(backbone));
    return s2s_xasprintf("file/%s", path);
}

/* Stores NeMo's configuration of a multi-part model as JSON, like that of a .nemo. Returns whether
 * file is one. */
static bool keep_nemo_config(json_t *common, const struct ckpt_side_file *file)
{
    json_t *root = strcmp(file->path, "config.json") == 0
                       ? s2s_ckpt_parse_config(file->bytes, file->len, 0, NULL)
                       : NULL;
    bool is_nemo = json_is_object(json_object_get(root, "perception"));
    if (is_nemo)
        json_object_set(common, "model_config", root);
    json_decref(root);
    return is_nemo;
}

int s2s_hf_read_json(json_t **value, struct s2s_ckpt *ckpt, const char *path, struct s2s_error *err)
{
    struct s2s_hf_output out = {.n_parts = 0};
    int rc = ckpt_read_json(value, ckpt, path, err);
    if (rc == 0 && !*value)
        rc = files_of_common(&out, ckpt, NULL, err);
    const struct ckpt_side_file *file = ckpt_side_find(&out.files, path);
    if (rc == 0 && file)
        *value = s2s_ckpt_parse_config(file->bytes, file->len, 0, NULL);
    s2s_hf_release(&out);
    return rc;
}

int s2s_hf_common(json_t **common, struct s2s_ckpt *ckpt, bool names_kept, struct s2s_error *err)
{
    struct s2s_hf_output out = {.n_parts = 0};
    *common = json_pack("{s:I, s:f}", "iteration",
                        (json_int_t)(ckpt->iteration < 0 ? S2S_DIST_UNKNOWN : ckpt->iteration),
                        "checkpoint_version", 3.0);
    int rc = files_of_common(&out, ckpt, NULL, err);
    if (rc == 0)
        rc = files_of_source(&out, ckpt, NULL, err);
    if (rc == 0)
        rc = files_of_trainer(&out, ckpt, NULL, err);
    if (rc == 0 && ckpt->dir_fd >= 0 && s2s_is_there(ckpt->dir_fd, "llm_backbone"))
        rc = ckpt_side_take_folder(&out.files, ckpt, "llm_backbone", err);
    if (rc == 0 && names_kept && ckpt_side_find(&out.files, "config.json"))
        rc = ckpt_hf_untie(ckpt, &out.files, err);
    for (size_t i = 0; i < out.files.n && rc == 0; i++) {
        const struct ckpt_side_file *file = &out.files.v[i];
        if (keep_nemo_config(*common, file))
            continue;
        json_t *text = json_stringn(file->bytes, file->len);
        char *key = common_key(ckpt, file->path);
        if (text)
            json_object_set_new(*common, key, text);
        else
            s2s_warn("ckpt", "%s: is not text, left out", file->path);
        free(key);
    }
    s2s_hf_release(&out);
    if (rc < 0) {
        json_decref(*common);
        *common = NULL;
    }
    return rc;
}
