#include "lib/ckpt/pickle/torch_dtype.h"
#include "lib/ckpt/write/to_hf.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/base.h"
#include "lib/ckpt/config/args_config.h"
#include "lib/ckpt/write/manifest.h"
#include "lib/ckpt/map/map.h"
#include "lib/ckpt/model.h"
#include "lib/ckpt/write/to_hf_internal.h"
#include "lib/ckpt/write/share.h"

static bool starts(const char *s, const char *prefix)
{
    return strncmp(s, prefix, strlen(prefix)) == 0;
}

static bool ends(const char *s, const char *suffix)
{
    size_t len = strlen(s), n = strlen(suffix);
    return len >= n && strcmp(s + len - n, suffix) == 0;
}

static void add_unused(struct s2s_hf_output *out, const char *name)
{
    s2s_grow(&out->unused, out->n_unused, &out->cap_unused, sizeof *out->unused);
    out->unused[out->n_unused++] = s2s_xstrdup(name);
}

static bool is_composite(const struct s2s_ckpt *ckpt)
{
    bool llm = false, encoder = false;
    for (size_t i = 0; i < ckpt->n_tensors; i++) {
        llm |= starts(ckpt->tensors[i].name, "llm.");
        encoder |= starts(ckpt->tensors[i].name, "encoder.");
    }
    return llm && encoder;
}

/* ---- small files ---- */

bool ckpt_hf_is_side_file(const char *name)
{
    static const char *const suffixes[] = {".json", ".jinja", ".txt",      ".model", ".py",   ".md",
                                           ".yaml", ".jsonl", ".tiktoken", ".spm",   ".vocab"};
    if (name[0] == '.' || ends(name, ".index.json") || strcmp(name, "metadata.json") == 0 ||
        strcmp(name, CKPT_MANIFEST) == 0 || strcmp(name, "integrity.json") == 0)
        return false;
    if (starts(name, "LICENSE") || starts(name, "NOTICE"))
        return true;
    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++)
        if (ends(name, suffixes[i]))
            return true;
    return false;
}

/* config.json of each part and other texts that s2s-train keeps in the common state */
static int files_of_common(struct s2s_hf_output *out, const struct s2s_ckpt *ckpt, bool composite,
                           struct s2s_error *err)
{
    const json_t *common = ckpt->common;
    if (ckpt->part) {
        ckpt_hf_part_common(out, ckpt);
        return 0;
    }
    /* a bare encoder or LLM is a folder of its own */
    const struct {
        const char *key, *path;
    } configs[] = {{"config/composite", "config.json"},
                   {"config/encoder", composite ? "encoder/config.json" : "config.json"},
                   {"config/llm", composite ? "llm/config.json" : "config.json"}};
    const char *key;
    json_t *value;
    for (size_t i = 0; i < sizeof configs / sizeof *configs; i++) {
        value = json_object_get(common, configs[i].key);
        if (json_is_string(value))
            ckpt_side_add(&out->files, configs[i].path, json_string_value(value),
                          json_string_length(value));
    }
    json_object_foreach((json_t *)common, key, value)
    {
        if (!starts(key, "file/") || !json_is_string(value))
            continue;
        const char *path = key + strlen("file/"), *slash = strchr(path, '/');
        /* one folder at most, and a plain name in it */
        const char *name = slash ? slash + 1 : path;
        if (!ckpt_name_is_plain(name, strlen(name)) || !ckpt_hf_is_side_file(name) ||
            (slash && !starts(path, "encoder/") && !starts(path, "llm/")))
            return s2s_error_set(err, S2S_E_FORMAT, "common state: file name \"%s\" is refused",
                                 path);
        ckpt_side_add(&out->files, path, json_string_value(value), json_string_length(value));
    }
    return 0;
}

/* "tokenizer.model" of "9a..f_tokenizer.model" in the folder of the model; NULL: it is none */
static const char *tokenizer_name(const struct s2s_ckpt *ckpt, const struct ckpt_member *member)
{
    static const char *const names[] = {"tokenizer.model", "tokenizer.vocab", "vocab.txt"};
    const char *root = ckpt->root ? ckpt->root : "", *name = member->name + strlen(root);
    if (!starts(member->name, root) || strchr(name, '/'))
        return NULL;
    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        const size_t len = strlen(name), plain = strlen(names[k]);
        if (ends(name, names[k]) && (len == plain || name[len - plain - 1] == '_'))
            return names[k];
    }
    return NULL;
}

/* The files of the tokenizer, by the names that they have without NeMo's digests. Where there are
 * several of a name (a tokenizer for each language) each keeps its own. */
static int tokenizer_of_nemo(struct s2s_hf_output *out, struct s2s_ckpt *ckpt,
                             struct s2s_error *err)
{
    int rc = 0;
    for (size_t i = 0; i < ckpt->n_members && rc == 0; i++) {
        const struct ckpt_member *member = &ckpt->members[i];
        const char *plain = tokenizer_name(ckpt, member);
        size_t n = 0;
        char *bytes;
        for (size_t k = 0; plain && k < ckpt->n_members; k++)
            n += tokenizer_name(ckpt, &ckpt->members[k]) == plain;
        if (!plain)
            continue;
        rc = ckpt_slurp_span(ckpt, &member->span, CKPT_MAX_SIDE_FILE, &bytes, err);
        if (rc == 0)
            ckpt_side_add(&out->files,
                          n > 1 ? member->name + strlen(ckpt->root ? ckpt->root : "") : plain,
                          bytes, (size_t)member->span.len_bytes);
        free(bytes);
    }
    return rc;
}

/* what transformers opens, out of tokenizer.model; without it the weights are of use all the same
 */
static void processor_of_nemo(struct s2s_hf_output *out, struct ckpt_nemo_texts *texts,
                              const json_t *user)
{
    json_t *own = texts->config ? json_loads(texts->config, 0, NULL) : NULL;
    const struct ckpt_side_file *model = ckpt_side_find(&out->files, "tokenizer.model");
    struct s2s_error why = S2S_ERROR_INIT;
    if (model && ckpt_nemo_tokenizer(texts, own ? own : user, model->bytes, model->len, &why) < 0) {
        s2s_warn("ckpt", "tokenizer.json is not written: tokenizer.model: %s", why.text);
        s2s_error_clear(&why);
    }
    json_decref(own);
}

/* takes the texts */
static void add_texts(struct s2s_hf_output *out, struct ckpt_nemo_texts *texts)
{
    const struct {
        const char *name;
        char *text;
    } all[] = {{"config.json", texts->config},
               {"preprocessor_config.json", texts->features},
               {"generation_config.json", texts->generation},
               {"tokenizer.json", texts->tokenizer},
               {"tokenizer_config.json", texts->tokenizer_config},
               {"processor_config.json", texts->processor}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (all[i].text)
            ckpt_side_add_text(&out->files, all[i].name, all[i].text);
        free(all[i].text);
    }
}

static int files_of_nemo(struct s2s_hf_output *out, struct s2s_ckpt *ckpt, const json_t *user,
                         struct s2s_error *err)
{
    struct ckpt_nemo_texts texts = {.config = NULL};
    /* a config.json of the user's needs nothing; NeMo's configuration does */
    const bool any = user && !json_object_get(user, "perception");
    json_t *model;
    int rc = ckpt_hf_nemo_model(&model, ckpt, user, err);
    if (rc == 0)
        rc = ckpt_nemo_config(&texts, ckpt, model, out->family, any, err);
    json_decref(model);
    if (rc < 0)
        return rc;
    if (!texts.config && !any && starts(out->family, "fastconformer"))
        s2s_warn("ckpt", "config.json is not written: no model_config.yaml says what the encoder "
                         "is; --config takes the model's config.json");
    rc = tokenizer_of_nemo(out, ckpt, err);
    if (rc == 0)
        processor_of_nemo(out, &texts, any ? user : NULL);
    add_texts(out, &texts);
    return rc;
}

int ckpt_hf_folder_files(struct s2s_hf_output *out, const struct s2s_ckpt *ckpt, const char *folder,
                         struct s2s_error *err)
{
    int fd = openat(ckpt->dir_fd, *folder ? folder : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    struct dirent **entries;
    if (fd < 0)
        return 0;
    int n = scandirat(fd, ".", &entries, NULL, alphasort), rc = 0;
    for (int i = 0; i < n; i++) {
        const char *name = entries[i]->d_name;
        struct stat st;
        if (rc < 0 || !ckpt_hf_is_side_file(name)) {
            free(entries[i]);
            continue;
        }
        if (fstatat(fd, name, &st, 0) < 0) {
            s2s_warn("ckpt", "%s: %s, left out", name,
                     errno == ENOENT ? "a link to nothing" : strerror(errno));
        } else if (!S_ISREG(st.st_mode)) {
            s2s_warn("ckpt", "%s: not a plain file, left out", name);
        } else {
            char *path = s2s_xasprintf("%s%s%s", folder, *folder ? "/" : "", name);
            rc = ckpt_side_take(&out->files, fd, name, path, err);
            free(path);
        }
        free(entries[i]);
    }
    if (n >= 0)
        free(entries);
    close(fd);
    return rc < 0 ? rc : 0;
}

static int files_of_source(struct s2s_hf_output *out, const struct s2s_ckpt *ckpt,
                           struct s2s_error *err)
{
    static const char *const folders[] = {"", "encoder", "llm"};
    int rc = 0;
    if (ckpt->dir_fd < 0 || strcmp(ckpt->format, "torch_dist") == 0)
        return 0;
    if (ckpt->part)
        return ckpt_hf_part_files(out, ckpt, err);
    for (int i = 0; i < 3 && rc == 0; i++)
        rc = ckpt_hf_folder_files(out, ckpt, folders[i], err);
    return rc;
}

/* The files of a folder beside the weights, by their names alone; config: of the model, not of the
 * tokenizer. */
static int files_beside(struct s2s_hf_output *out, const struct s2s_ckpt *ckpt, const char *folder,
                        bool config, struct s2s_error *err)
{
    struct s2s_hf_output found = {.n_parts = 0};
    int rc = ckpt_hf_folder_files(&found, ckpt, folder, err);
    for (size_t k = 0; k < found.files.n && rc == 0; k++) {
        const struct ckpt_side_file *file = &found.files.v[k];
        const char *name = file->path + strlen(folder) + 1;
        if ((config || (strcmp(name, "config.json") != 0 && !ends(name, ".yaml"))) &&
            !starts(name, "fqn_to_")) /* Automodel's own lists of tensors */
            ckpt_side_add(&out->files, name, file->bytes, file->len);
    }
    s2s_hf_release(&found);
    return rc;
}

/* Tokenizers that Megatron-Bridge and NeMo 2 keep in folders of their own beside the weights. */
static int files_of_tokenizer(struct s2s_hf_output *out, const struct s2s_ckpt *ckpt,
                              struct s2s_error *err)
{
    static const char *const folders[] = {"tokenizer", "../context/nemo_tokenizer"};
    int rc = 0;
    if (ckpt->dir_fd < 0 || strcmp(ckpt->format, "torch_dist") != 0 ||
        (ckpt->part && !ckpt_part_has_words(ckpt->part)))
        return 0;
    for (size_t i = 0; i < sizeof folders / sizeof *folders && rc == 0; i++)
        rc = files_beside(out, ckpt, folders[i], false, err);
    return rc;
}

/* What NeMo Automodel keeps in .hf_metadata beside shards, and NeMo RL in policy/tokenizer beside
 * policy/weights, in which there may be one more folder. */
static int files_of_trainer(struct s2s_hf_output *out, const struct s2s_ckpt *ckpt,
                            struct s2s_error *err)
{
    static const char weights[] = "/policy/weights";
    const char *at = ckpt->dir_fd >= 0 ? strstr(ckpt->path, weights) : NULL;
    const char *below = at ? at + strlen(weights) : "//";
    if (ckpt->dir_fd < 0 || ckpt->part)
        return 0;
    int rc = files_beside(out, ckpt, ".hf_metadata", true, err);
    if (rc == 0 && !*below)
        rc = files_beside(out, ckpt, "../tokenizer", false, err);
    else if (rc == 0 && *below == '/' && !strchr(below + 1, '/'))
        rc = files_beside(out, ckpt, "../../tokenizer", false, err);
    return rc;
}

/* Where a file of a folder goes in the common state. Gives: free. */
static char *common_key(const struct s2s_ckpt *ckpt, const char *path)
{
    static const char backbone[] = "llm_backbone/"; /* NeMo's name for llm/ */
    if (strcmp(path, "config.json") == 0)
        return s2s_xstrdup(is_composite(ckpt) ? "config/composite" : "config/llm");
    if (strcmp(path, "encoder/config.json") == 0)
        return s2s_xstrdup("config/encoder");
    if (strcmp(path, "llm/config.json") == 0 || strcmp(path, "llm_backbone/config.json") == 0)
        return s2s_xstrdup("config/llm");
    if (starts(path, backbone))
        return s2s_xasprintf("file/llm/%s", path + strlen(backbone));
    return s2s_xasprintf("file/%s", path);
}

/* NeMo's configuration of a model of several parts is data, as that of a .nemo is */
static bool keep_nemo_config(json_t *common, const struct ckpt_side_file *file)
{
    json_t *root =
        strcmp(file->path, "config.json") == 0 ? json_loadb(file->bytes, file->len, 0, NULL) : NULL;
    bool is_nemo = json_is_object(json_object_get(root, "perception"));
    if (is_nemo)
        json_object_set(common, "model_config", root);
    json_decref(root);
    return is_nemo;
}

int s2s_hf_common(json_t **common, const struct s2s_ckpt *ckpt, struct s2s_error *err)
{
    struct s2s_hf_output out = {.n_parts = 0};
    *common = json_pack("{s:I, s:f}", "iteration",
                        (json_int_t)(ckpt->iteration < 0 ? 0 : ckpt->iteration),
                        "checkpoint_version", 3.0);
    int rc = files_of_source(&out, ckpt, err);
    if (rc == 0)
        rc = files_of_trainer(&out, ckpt, err);
    if (rc == 0 && ckpt->dir_fd >= 0 && faccessat(ckpt->dir_fd, "llm_backbone", F_OK, 0) == 0)
        rc = ckpt_hf_folder_files(&out, ckpt, "llm_backbone", err);
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
    if (rc < 0)
        json_decref(*common);
    return rc;
}

/* config.json says which dtype the weights have: it must follow a cast (dtype 0: there is none) */
static bool set_dtype(json_t *config, enum s2s_dtype dtype)
{
    static const char *const keys[] = {"dtype", "torch_dtype"};
    bool changed = false;
    for (int k = 0; k < 2 && dtype; k++)
        if (json_is_string(json_object_get(config, keys[k]))) {
            json_object_set_new(config, keys[k], json_string(ckpt_torch_dtype(dtype)));
            changed = true;
        }
    return changed;
}

/* the words of the output have a matrix of their own now */
static bool set_untied(json_t *config)
{
    static const char *const inner[] = {"text_config", "llm_config"};
    bool changed = json_is_true(json_object_get(config, "tie_word_embeddings"));
    if (changed)
        json_object_set_new(config, "tie_word_embeddings", json_false());
    for (int k = 0; k < 2; k++)
        if (json_is_object(json_object_get(config, inner[k])))
            changed |= set_untied(json_object_get(config, inner[k]));
    return changed;
}

/* rows past the vocabulary were kept: to transformers they are words */
static bool set_vocab(json_t *config, int64_t rows)
{
    static const char *const inner[] = {"text_config", "llm_config"};
    const json_t *said = json_object_get(config, "vocab_size");
    bool changed = json_is_integer(said) && json_integer_value(said) < rows;
    if (changed)
        json_object_set_new(config, "vocab_size", json_integer(rows));
    for (int k = 0; k < 2; k++)
        if (json_is_object(json_object_get(config, inner[k])))
            changed |= set_vocab(json_object_get(config, inner[k]), rows);
    return changed;
}

/* rows of the matrix of words; 0: there is none */
static int64_t vocab_rows(const struct s2s_hf_output *out)
{
    const struct s2s_ckpt_plan *plan = &out->parts[0].plan;
    for (size_t i = 0; i < plan->n_targets; i++)
        if (ends(plan->targets[i].name, ".embed_tokens.weight") ||
            ends(plan->targets[i].name, "backbone.embeddings.weight"))
            return plan->targets[i].shape[0];
    return 0;
}

static void follow_in_configs(struct s2s_hf_output *out, enum s2s_dtype dtype, bool untied,
                              bool padded)
{
    for (size_t i = 0; i < out->files.n; i++) {
        struct ckpt_side_file *file = &out->files.v[i];
        json_t *root = ends(file->path, "config.json") &&
                               (strlen(file->path) == 11 || ends(file->path, "/config.json"))
                           ? json_loadb(file->bytes, file->len, 0, NULL)
                           : NULL;
        bool changed = set_dtype(root, dtype);
        if (untied)
            changed |= set_untied(root);
        if (padded)
            changed |= set_vocab(root, vocab_rows(out));
        if (changed) {
            free(file->bytes);
            file->bytes = json_dumps(root, JSON_INDENT(2));
            file->len = strlen(file->bytes);
        }
        json_decref(root);
    }
}

/* ---- which names ---- */

struct s2s_hf_part *ckpt_hf_add_part(struct s2s_hf_output *out, struct s2s_ckpt *ckpt,
                                     const char *folder, const char *file)
{
    struct s2s_hf_part *part = &out->parts[out->n_parts++];
    *part = (struct s2s_hf_part){.folder = folder, .file = file, .plan = {.source = ckpt}};
    return part;
}

static void plan_composite(struct s2s_hf_output *out, struct s2s_ckpt *ckpt)
{
    struct s2s_hf_part *encoder = ckpt_hf_add_part(out, ckpt, "encoder", NULL);
    struct s2s_hf_part *llm = ckpt_hf_add_part(out, ckpt, "llm", NULL);
    struct s2s_hf_part *proj = ckpt_hf_add_part(out, ckpt, "", "projection.safetensors");
    for (size_t i = 0; i < ckpt->n_tensors; i++) {
        const struct s2s_ckpt_tensor *t = &ckpt->tensors[i];
        if (starts(t->name, "encoder."))
            s2s_ckpt_plan_copy(&encoder->plan, t->name + strlen("encoder."), t);
        else if (starts(t->name, "llm."))
            s2s_ckpt_plan_copy(&llm->plan, t->name + strlen("llm."), t);
        else if (starts(t->name, "proj."))
            s2s_ckpt_plan_copy(&proj->plan, t->name, t);
        else if (s2s_ckpt_is_state(t->name))
            out->n_optimizer++;
        else
            add_unused(out, t->name);
    }
    if (proj->plan.n_targets == 0)
        out->n_parts--;
}

static void plan_plain(struct s2s_hf_output *out, struct s2s_ckpt *ckpt)
{
    struct s2s_hf_part *part = ckpt_hf_add_part(out, ckpt, "", NULL);
    const size_t len = ckpt_hf_wrapping_len(ckpt);
    for (size_t i = 0; i < ckpt->n_tensors; i++) {
        const struct s2s_ckpt_tensor *t = &ckpt->tensors[i];
        if (s2s_ckpt_is_state(t->name)) {
            out->n_optimizer++;
            continue;
        }
        char *name = ckpt_hf_unwrapped(ckpt, t->name + len);
        s2s_ckpt_plan_copy(&part->plan, name, t);
        free(name);
    }
}

static int plan_mapped(struct s2s_hf_output *out, struct s2s_ckpt *ckpt,
                       const struct s2s_hf_options *options, struct s2s_error *err)
{
    struct s2s_hf_part *part = ckpt_hf_add_part(out, ckpt, "", NULL);
    struct ckpt_map_request request = {.ckpt = ckpt,
                                       .name = options->map,
                                       .config = options->config,
                                       .keep_vocab_padding = options->keep_vocab_padding};
    struct ckpt_map_result result = {.n_unused = 0};
    int rc = ckpt_map_to_hf(&part->plan, &request, &result, err);
    for (size_t i = 0; i < result.n_unused; i++)
        add_unused(out, result.unused[i]);
    free(result.unused);
    out->n_optimizer += result.n_optimizer;
    out->untied = result.untied;
    snprintf(out->family, sizeof out->family, "%s", result.family);
    return rc;
}

/* Hugging Face's folder with Megatron's names would open nowhere. */
static int refuse_megatron(const struct s2s_ckpt *ckpt, struct s2s_error *err)
{
    const char *name = ckpt_map_megatron_name(ckpt);
    if (!name)
        return 0;
    int rc =
        s2s_error_set(err, S2S_E_NOTFOUND,
                      "the names are Megatron's, such as %s, and of no family known here", name);
    return s2s_error_hint(err, rc,
                          "--map takes a family or a file of rules, --part one part of a model, "
                          "and --to safetensors keeps the names");
}

int s2s_hf_prepare(struct s2s_hf_output *out, struct s2s_ckpt *ckpt,
                   const struct s2s_hf_options *options, struct s2s_error *err)
{
    *out = (struct s2s_hf_output){.n_parts = 0};
    int rc = 0;
    if (options->map || ckpt_map_wanted(ckpt))
        rc = plan_mapped(out, ckpt, options, err);
    else if ((rc = refuse_megatron(ckpt, err)) == 0 && is_composite(ckpt))
        plan_composite(out, ckpt);
    else if (rc == 0)
        plan_plain(out, ckpt);
    const bool salm = starts(out->family, "salm"), nemo = starts(out->family, "fastconformer");
    if (rc == 0 && nemo)
        rc = files_of_nemo(out, ckpt, options->config, err);
    if (rc == 0 && options->config)
        ckpt_args_check_norms(out->family, ckpt_args(ckpt), options->config);
    if (rc == 0 && options->config_text && !salm)
        ckpt_side_add_text(&out->files, "config.json", options->config_text);
    if (rc == 0 && ckpt->common)
        rc = files_of_common(out, ckpt, salm || is_composite(ckpt), err);
    if (rc == 0 && salm) {
        ckpt_hf_salm_split(out, ckpt);
        rc = ckpt_hf_salm_files(out, ckpt, options->config, err);
        ckpt_hf_salm_say_absent(out);
    }
    if (rc == 0 && *out->family && !ckpt_side_find(&out->files, "config.json")) {
        char *config = ckpt_args_config(out->family, ckpt_args(ckpt), &out->parts[0].plan);
        if (config)
            ckpt_side_add_text(&out->files, "config.json", config);
        else if (!salm && !nemo && !ckpt_args_config_knows(out->family))
            s2s_warn("ckpt",
                     "no config.json: arguments do not make that of a model of several parts "
                     "(%s); --config takes one",
                     out->family);
        free(config);
    }
    if (rc == 0 && !salm && !nemo) /* what lies beside them describes NeMo's model */
        rc = files_of_source(out, ckpt, err);
    if (rc == 0 && !salm && !nemo)
        rc = files_of_trainer(out, ckpt, err);
    if (rc == 0 && !salm && *out->family)
        rc = files_of_tokenizer(out, ckpt, err);
    size_t n = 0;
    for (size_t i = 0; i < out->n_parts && rc == 0; i++) {
        if (options->dtype)
            s2s_ckpt_plan_cast(&out->parts[i].plan, options->dtype);
        rc = s2s_ckpt_plan_seal(&out->parts[i].plan, err);
        if (rc == 0)
            rc = s2s_ckpt_plan_for_safetensors(&out->parts[i].plan, err);
        n += out->parts[i].plan.n_targets;
    }
    if (rc == 0 && n == 0)
        rc = s2s_error_set(err, S2S_E_NOTFOUND, "%s holds no weights", ckpt->path);
    if (rc == 0)
        follow_in_configs(out, options->dtype, out->untied,
                          options->keep_vocab_padding && *out->family);
    return rc;
}

/* ---- writing ---- */

static int write_weights(struct s2s_hf_part *part, const char *path,
                         const struct s2s_ckpt_write *how, struct s2s_error *err)
{
    /* the folder may be another rank's, or an earlier run's */
    bool may_be_there = how->journal || ckpt_share_size(how) > 1;
    if (*part->folder && mkdir(path, 0777) < 0 && !(may_be_there && errno == EEXIST))
        return s2s_error_errno(err, S2S_E_IO, "%s: cannot make the folder", path);
    return part->file ? ckpt_write_file(&part->plan, 0, part->plan.n_targets, 0, path, part->file,
                                        how, err)
                      : s2s_ckpt_write_hf(&part->plan, path, how, err);
}

static int write_part(struct s2s_hf_part *part, const char *dir, struct s2s_ckpt_write how,
                      struct s2s_error *err)
{
    char *path = s2s_xasprintf("%s%s%s", dir, *part->folder ? "/" : "", part->folder);
    json_t *manifest = how.manifest;
    /* a part in a folder of its own is a model of its own, with its own manifest */
    if (*part->folder)
        how.manifest = json_object();
    int rc = ckpt_share_agree(&how, write_weights(part, path, &how, err), err);
    if (rc == 0)
        rc = ckpt_share_verify(&part->plan, &how, err);
    if (rc == 0)
        ckpt_share_manifest(&how);
    if (rc == 0 && *part->folder && ckpt_share_rank(&how) == 0)
        rc = ckpt_manifest_write(path, how.manifest, err);
    if (rc == 0)
        rc = ckpt_sync_dir(path, err);
    if (how.manifest != manifest)
        json_decref(how.manifest);
    free(path);
    return ckpt_share_agree(&how, rc, err);
}

static int write_side_files(const struct s2s_hf_output *out, const char *dir, json_t *manifest,
                            struct s2s_error *err)
{
    int rc = 0;
    for (size_t i = 0; i < out->files.n && rc == 0; i++) {
        const char *slash = strchr(out->files.v[i].path, '/');
        char *folder = slash ? s2s_xasprintf("%s/%.*s", dir, (int)(slash - out->files.v[i].path),
                                             out->files.v[i].path)
                             : s2s_xstrdup(dir);
        struct stat st;
        /* files of a part that has no weights here are left out with it */
        if (stat(folder, &st) == 0)
            rc = ckpt_file_put_noted(dir, out->files.v[i].path, out->files.v[i].bytes,
                                     out->files.v[i].len, slash ? NULL : manifest, err);
        free(folder);
    }
    if (rc == 0)
        rc = ckpt_manifest_write(dir, manifest, err);
    return rc < 0 ? rc : ckpt_sync_dir(dir, err);
}

int s2s_hf_write(struct s2s_hf_output *out, const char *dir, const struct s2s_ckpt_write *how,
                 struct s2s_error *err)
{
    struct s2s_ckpt_write noted = *how;
    int rc = 0;
    noted.manifest = json_object();
    for (size_t i = 0; i < out->n_parts && rc == 0; i++) {
        noted.turn = (int)i;
        rc = write_part(&out->parts[i], dir, noted, err);
    }
    if (rc == 0 && ckpt_share_rank(how) == 0)
        rc = write_side_files(out, dir, noted.manifest, err);
    json_decref(noted.manifest);
    return ckpt_share_agree(how, rc, err);
}

void s2s_hf_release(struct s2s_hf_output *out)
{
    for (size_t i = 0; i < out->n_parts; i++)
        s2s_ckpt_plan_release(&out->parts[i].plan);
    ckpt_side_release(&out->files);
    for (size_t i = 0; i < out->n_unused; i++)
        free(out->unused[i]);
    free(out->unused);
    *out = (struct s2s_hf_output){.n_parts = 0};
}
