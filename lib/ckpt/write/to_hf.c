/* Assigns tensors to Hugging Face folders, and writes them. */
#include "lib/ckpt/write/to_hf.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

#include "lib/base/base.h"
#include "lib/ckpt/box.h"
#include "lib/ckpt/config/args_config.h"
#include "lib/ckpt/map/map.h"
#include "lib/ckpt/model.h"
#include "lib/ckpt/names.h"
#include "lib/ckpt/pickle/torch_dtype.h"
#include "lib/ckpt/read/read.h"
#include "lib/ckpt/write/manifest.h"
#include "lib/ckpt/write/share.h"
#include "lib/ckpt/write/to_hf_internal.h"
#include "lib/ckpt/write/write_hf.h"

bool ckpt_hf_is_composite(const struct s2s_ckpt *ckpt)
{
    bool llm = false, encoder = false;
    for (size_t i = 0; i < ckpt->n_tensors; i++) {
        llm |= s2s_starts_with(ckpt->tensors[i].name, "llm.");
        encoder |= s2s_starts_with(ckpt->tensors[i].name, "encoder.") ||
                   s2s_starts_with(ckpt->tensors[i].name, "vision.radio_model.");
    }
    return llm && encoder;
}

/* ---- names without the prefixes and wrapper modules of trainers ---- */

/* In Hugging Face's formats there are no wrapper modules in names. */
static bool is_hf(const struct s2s_ckpt *ckpt)
{
    return ckpt_has_word("hf hf_bin safetensors", ckpt->format);
}

/* The name without the wrapper modules of DDP, DeepSpeed, torch.compile and FSDP. Gives: free. */
static char *unwrapped(const struct s2s_ckpt *ckpt, const char *name)
{
    return is_hf(ckpt) ? s2s_xstrdup(name) : ckpt_map_unwrapped(name, false);
}

/* The prefix of the dict that contains the model, or "". A prefix counts if all weights have it.
 * The first two, which are never modules, also count if only some weights have them, unless another
 * prefix of the table occurs, too: then they may contain something else, and the model be beside
 * them. "model." is only in the table for that. */
static const char *dict_of(const struct s2s_ckpt *ckpt)
{
    static const char *const dicts[] = {"state_dict.", "model_state_dict.", "app.",
                                        "dcp.",        "module.",           "model."};
    enum { N = sizeof dicts / sizeof *dicts, MODEL = N - 1 };
    size_t n = 0, inside[N] = {0}, n_dicts = 0;
    for (size_t i = 0; i < ckpt->n_tensors && !is_hf(ckpt); i++) {
        if (s2s_ckpt_is_state(ckpt->tensors[i].name))
            continue;
        n++;
        for (size_t k = 0; k < N; k++)
            inside[k] += s2s_starts_with(ckpt->tensors[i].name, dicts[k]);
    }
    for (size_t k = 0; k < N; k++)
        n_dicts += inside[k] > 0;
    for (size_t k = 0; k < MODEL; k++)
        if (inside[k] && (inside[k] == n || (k < 2 && n_dicts == 1)))
            return dicts[k];
    return "";
}

static const char model[] = "model.";

char *ckpt_hf_name(const struct s2s_ckpt *ckpt, const struct ckpt_hf_wrapping *wrapping,
                   const char *name)
{
    if (s2s_ckpt_is_state(name) || !s2s_starts_with(name, wrapping->dict))
        return NULL;
    char *inner = unwrapped(ckpt, name + strlen(wrapping->dict));
    for (int i = 0; i < wrapping->n_models; i++) {
        char *outer = inner;
        inner = unwrapped(ckpt, outer + strlen(model));
        free(outer);
    }
    return inner;
}

/* Do all names have one more "model." that is a trainer's? */
static bool is_within_model(const struct s2s_ckpt *ckpt, const struct ckpt_hf_wrapping *wrapping)
{
    bool optimizer = false, doubled = false, outside = false, own = false, any = false;
    for (size_t i = 0; i < ckpt->n_tensors; i++) {
        if (s2s_ckpt_is_state(ckpt->tensors[i].name)) {
            optimizer = true;
            continue;
        }
        char *name = ckpt_hf_name(ckpt, wrapping, ckpt->tensors[i].name);
        if (!name)
            continue;
        any = true;
        if (s2s_starts_with(name, "model.model.") || s2s_starts_with(name, "model.lm_head.") ||
            (!is_hf(ckpt) && s2s_starts_with(name, "model.module.")))
            doubled = true;
        else if (!s2s_starts_with(name, model))
            outside = true;
        /* of a tied model that is stored beside its optimizer without a dict */
        own |=
            s2s_starts_with(name, "model.layers.") || s2s_starts_with(name, "model.embed_tokens.");
        free(name);
    }
    const bool beside_optimizer =
        optimizer && !own && wrapping->n_models == 0 && strcmp(ckpt->format, "dcp") == 0;
    return any && !outside && (doubled || beside_optimizer);
}

struct ckpt_hf_wrapping ckpt_hf_wrapping_of(const struct s2s_ckpt *ckpt)
{
    enum { MOST = 4 };
    struct ckpt_hf_wrapping wrapping = {.dict = dict_of(ckpt)};
    /* a folder's names are those of its class: ShieldGemma 2's begin with model.model. */
    const bool is_folder = ckpt_has_word("hf hf_bin", ckpt->format);
    while (!is_folder && wrapping.n_models < MOST && is_within_model(ckpt, &wrapping))
        wrapping.n_models++;
    return wrapping;
}

/* ---- parts and names ---- */

struct s2s_hf_part *ckpt_hf_add_part(struct s2s_hf_output *out, struct s2s_ckpt *ckpt,
                                     const char *folder, const char *file)
{
    struct s2s_hf_part *part = &out->parts[out->n_parts++];
    *part = (struct s2s_hf_part){.folder = folder, .file = file, .plan = {.source = ckpt}};
    return part;
}

static void plan_composite(struct s2s_hf_output *out, struct s2s_ckpt *ckpt)
{
    struct s2s_hf_part *all = ckpt_hf_add_part(out, ckpt, "", NULL);
    out->map.is_left = s2s_ckpt_is_state;
    for (size_t i = 0; i < ckpt->n_tensors; i++) {
        const struct s2s_ckpt_tensor *t = &ckpt->tensors[i];
        if (s2s_ckpt_is_state(t->name))
            out->map.n_state++;
        else if (ckpt_hf_salm_has(t->name))
            s2s_ckpt_plan_copy(&all->plan, t->name, t);
        else
            ckpt_map_add_name(&out->map.unused, t->name);
    }
    ckpt_hf_salm_split(out, ckpt);
}

static void plan_plain(struct s2s_hf_output *out, struct s2s_ckpt *ckpt)
{
    /* PEFT expects an adapter under this name */
    const bool adapter = ckpt_is_adapter(ckpt) && ckpt->n_files == 1;
    struct s2s_hf_part *part =
        ckpt_hf_add_part(out, ckpt, "", adapter ? "adapter_model.safetensors" : NULL);
    const struct ckpt_hf_wrapping wrapping = ckpt_hf_wrapping_of(ckpt);
    out->map.is_left = s2s_ckpt_is_state;
    for (size_t i = 0; i < ckpt->n_tensors; i++) {
        const struct s2s_ckpt_tensor *t = &ckpt->tensors[i];
        if (s2s_ckpt_is_state(t->name)) {
            out->map.n_state++;
            continue;
        }
        char *name = ckpt_hf_name(ckpt, &wrapping, t->name);
        if (name)
            s2s_ckpt_plan_copy(&part->plan, name, t);
        else
            ckpt_map_add_name(&out->map.unused, t->name);
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
    json_t *beside = NULL;
    /* errors are reported when it is read again to be copied */
    if (!options->config && ckpt_hf_nemo_model(&beside, ckpt, NULL, NULL) < 0)
        beside = NULL;
    request.beside = beside;
    int rc = ckpt_map_to_hf(&part->plan, &request, &out->map, err);
    json_decref(beside);
    return rc;
}

/* Refuses Megatron's names, which nothing loads from a Hugging Face folder. */
static int refuse_megatron(const struct s2s_ckpt *ckpt, struct s2s_error *err)
{
    const char *name = ckpt_map_megatron_name(ckpt);
    int rc = name ? ckpt_map_refuse(ckpt, true, err) : 0;
    if (!name || rc < 0)
        return rc;
    rc = s2s_error_set(err, S2S_E_NOTFOUND,
                       "the names are Megatron's, such as %s, and of no family known here", name);
    return s2s_error_hint(err, rc,
                          "--map takes a family or a file of rules, --part one part of a model, "
                          "and --to safetensors keeps the names");
}

/* Refuses the format of experts that NeMo Automodel trains with, all of a layer in one tensor:
 * which half is the gate, and the names in transformers, are known for some families only. No class
 * of transformers loads these names. */
static int refuse_native_experts(const struct s2s_hf_output *out, struct s2s_error *err)
{
    for (size_t i = 0; i < out->n_parts; i++)
        for (size_t k = 0; k < out->parts[i].plan.n_targets; k++) {
            const char *name = s2s_ckpt_target_name(&out->parts[i].plan.targets[k]);
            if (!s2s_ends_with(name, ".experts.gate_and_up_projs") &&
                !s2s_ends_with(name, ".experts.down_projs"))
                continue;
            int rc = s2s_error_set(err, S2S_E_UNSUPPORTED,
                                   "the experts are as NeMo Automodel trains them, such as %s, of "
                                   "a model whose Hugging Face names are not known here",
                                   name);
            return s2s_error_hint(err, rc,
                                  "Automodel's own consolidated checkpoint has them "
                                  "(save_consolidated); --to safetensors keeps these names");
        }
    return 0;
}

static int plan_names(struct s2s_hf_output *out, struct s2s_ckpt *ckpt,
                      const struct s2s_hf_options *options, struct s2s_error *err)
{
    if (options->map || ckpt_map_wanted(ckpt)) {
        int rc = plan_mapped(out, ckpt, options, err);
        if (rc == 0 && s2s_starts_with(out->map.family, "salm"))
            ckpt_hf_salm_split(out, ckpt);
        return rc;
    }
    int rc = refuse_megatron(ckpt, err);
    if (rc == 0 && ckpt_hf_is_composite(ckpt))
        plan_composite(out, ckpt);
    else if (rc == 0)
        plan_plain(out, ckpt);
    return rc;
}

/* ---- config.json of the weights as written ---- */

/* Sets the dtype of the weights, if config.json has one. Returns whether it changed. dtype 0:
 * leaves it. */
static bool set_dtype(json_t *config, enum s2s_dtype dtype)
{
    static const char *const keys[] = {"dtype", "torch_dtype"};
    bool changed = false;
    for (int k = 0; k < 2 && dtype; k++) {
        const char *said = json_string_value(json_object_get(config, keys[k]));
        if (!said || strcmp(said, ckpt_torch_dtype(dtype)) == 0)
            continue;
        json_object_set_new(config, keys[k], json_string(ckpt_torch_dtype(dtype)));
        changed = true;
    }
    return changed;
}

/* The dtype of the largest floating-point tensor: norms and the like may be wider. */
static enum s2s_dtype weights_dtype(const struct s2s_ckpt_plan *plan)
{
    enum s2s_dtype found = S2S_DTYPE_NONE;
    int64_t most = 0;
    for (size_t i = 0; i < plan->n_targets; i++) {
        const struct s2s_ckpt_target *target = &plan->targets[i];
        const int64_t numel = ckpt_box_numel(s2s_ckpt_target_shape(target), target->n_dims);
        if (s2s_dtype_is_float(target->dtype) && numel > most) {
            most = numel;
            found = target->dtype;
        }
    }
    return found;
}

/* The dtype for the config.json at this path; NONE: no weights are beside it. */
static enum s2s_dtype dtype_beside(const struct s2s_hf_output *out, const char *path)
{
    const char *slash = strrchr(path, '/');
    const size_t len = slash ? (size_t)(slash - path) : 0;
    for (size_t i = 0; i < out->n_parts; i++)
        if (!out->parts[i].file && strlen(out->parts[i].folder) == len &&
            strncmp(out->parts[i].folder, path, len) == 0)
            return weights_dtype(&out->parts[i].plan);
    return S2S_DTYPE_NONE;
}

/* Sets tie_word_embeddings and vocab_size, also of the text model inside. rows: 0, or of the
 * embedding matrix if padding rows were kept, which are vocabulary to transformers. Returns whether
 * it changed. */
static bool set_words(json_t *config, enum ckpt_tie tie, int64_t rows)
{
    static const char *const inner[] = {"text_config", "llm_config"};
    const json_t *said = json_object_get(config, "vocab_size");
    const json_t *tied = json_object_get(config, "tie_word_embeddings");
    const bool is_whole = !json_is_object(json_object_get(config, inner[0])) &&
                          !json_is_object(json_object_get(config, inner[1]));
    /* if it is absent, the default of the class applies */
    const bool ties = tie != CKPT_TIE_AS_SAID &&
                      (json_is_boolean(tied) ? json_is_true(tied) != (tie == CKPT_TIED) : is_whole);
    const bool grows = rows > 0 && json_is_integer(said) && json_integer_value(said) < rows;
    bool changed = ties || grows;
    if (ties)
        json_object_set_new(config, "tie_word_embeddings", json_boolean(tie == CKPT_TIED));
    if (grows)
        json_object_set_new(config, "vocab_size", json_integer(rows));
    for (int k = 0; k < 2; k++)
        if (json_is_object(json_object_get(config, inner[k])))
            changed |= set_words(json_object_get(config, inner[k]), tie, rows);
    return changed;
}

/* Removes quantization_config: mapped weights are not quantised, and readers would require scales.
 * Returns whether there was one. */
static bool drop_quantization(json_t *config)
{
    static const char key[] = "quantization_config";
    const char *name;
    json_t *inner;
    bool there = json_is_object(json_object_get(config, key));
    json_object_foreach(config, name, inner)
    {
        there |= strcmp(name, key) != 0 && drop_quantization(inner);
    }
    if (json_is_object(json_object_get(config, key)))
        json_object_del(config, key);
    return there;
}

/* Rows of the embedding matrix; 0: none. */
static int64_t vocab_rows(const struct s2s_hf_output *out)
{
    const struct s2s_ckpt_plan *plan = &out->parts[0].plan;
    for (size_t i = 0; i < plan->n_targets; i++)
        if (s2s_ends_with(s2s_ckpt_target_name(&plan->targets[i]), ".embed_tokens.weight") ||
            s2s_ends_with(s2s_ckpt_target_name(&plan->targets[i]), "backbone.embeddings.weight"))
            return s2s_ckpt_target_shape(&plan->targets[i])[0];
    return 0;
}

/* Updates config.json to the weights as written: dtype (that of the weights if there is no cast and
 * the source is no Hugging Face folder), whether input and output embeddings are tied, and
 * vocab_size if padding rows were kept. */
static void follow_in_configs(struct s2s_hf_output *out, const struct s2s_ckpt *ckpt,
                              const struct s2s_hf_options *options)
{
    /* in a copy of a Hugging Face folder the source's value is kept */
    const bool is_own = ckpt_has_word("hf hf_bin dcp_hf safetensors", ckpt->format);
    const bool is_mapped = *out->map.family;
    const enum s2s_dtype dtype = options->dtype;
    for (size_t i = 0; i < out->files.n; i++) {
        struct ckpt_side_file *file = &out->files.v[i];
        json_t *root = s2s_has_tail(file->path, '/', "config.json")
                           ? s2s_ckpt_parse_config(file->bytes, file->len, 0, NULL)
                           : NULL;
        if (!root)
            continue;
        bool changed = set_dtype(
            root, dtype || (is_own && !is_mapped) ? dtype : dtype_beside(out, file->path));
        changed |= set_words(root, out->map.tie,
                             options->keep_vocab_padding && is_mapped ? vocab_rows(out) : 0);
        if (is_mapped && drop_quantization(root)) {
            s2s_warn("ckpt", "%s: quantization_config is left out: the weights are not quantised",
                     file->path);
            changed = true;
        }
        if (changed) {
            free(file->bytes);
            file->bytes = s2s_ckpt_config_text(root);
            file->len = strlen(file->bytes);
        }
        json_decref(root);
    }
}

/* ---- all of it ---- */

static int seal_parts(struct s2s_hf_output *out, const struct s2s_ckpt *ckpt, enum s2s_dtype dtype,
                      struct s2s_error *err)
{
    size_t n = 0;
    int rc = 0;
    for (size_t i = 0; i < out->n_parts && rc == 0; i++) {
        if (dtype)
            s2s_ckpt_plan_cast(&out->parts[i].plan, dtype);
        rc = s2s_ckpt_plan_seal(&out->parts[i].plan, err);
        if (rc == 0)
            rc = s2s_ckpt_plan_for_safetensors(&out->parts[i].plan, err);
        n += out->parts[i].plan.n_targets;
    }
    if (rc == 0 && n == 0)
        rc = s2s_error_set(err, S2S_E_NOTFOUND,
                           *out->map.family ? "no weights that %s names" : "no weights",
                           out->map.family);
    return rc;
}

/* A config.json of transformers beside Megatron's weights (or beside verl's folder of them) is used
 * as if given by --config: sets options->config (a reference) and config_text, which is *text
 * (gives: free). One of NeMo is handled elsewhere. */
static int config_beside(struct s2s_hf_options *options, char **text, const struct s2s_ckpt *ckpt,
                         struct s2s_error *err)
{
    const char *name = ckpt_hf_is_verl(ckpt) ? CKPT_VERL_FILES "/config.json" : "config.json";
    json_t *config;
    size_t len;
    if (options->config || (!options->map && !ckpt_map_wanted(ckpt)))
        return 0;
    int rc = ckpt_read_json(&config, ckpt, name, err);
    const char *type = ckpt_config_type(config);
    json_t *share = ckpt->part ? ckpt_part_config(ckpt, config) : NULL;
    if (ckpt->part && !share)
        type = "";
    json_decref(share);
    if (rc == 0 && *type && strcmp(type, "salm") != 0 && !json_object_get(config, "perception") &&
        s2s_is_there(ckpt->dir_fd, name) &&
        (rc = ckpt_slurp(ckpt->dir_fd, name, CKPT_MAX_SIDE_FILE, text, &len, err)) == 0) {
        options->config = json_incref(config);
        options->config_text = *text;
    }
    json_decref(config);
    return rc;
}

static int prepare(struct s2s_hf_output *out, struct s2s_ckpt *ckpt,
                   const struct s2s_hf_options *options, struct s2s_error *err)
{
    int rc = plan_names(out, ckpt, options, err);
    if (rc == 0)
        rc = refuse_native_experts(out, err);
    if (rc == 0 && options->config)
        ckpt_args_check_norms(out->map.family, ckpt_args(ckpt), options->config);
    if (rc == 0)
        rc = ckpt_hf_files(out, ckpt, options, err);
    if (rc == 0 && !*out->map.family)
        rc = s2s_hf_check_kept(ckpt, &out->files, err);
    if (rc == 0)
        rc = seal_parts(out, ckpt, options->dtype, err);
    if (rc == 0)
        follow_in_configs(out, ckpt, options);
    return rc;
}

int s2s_hf_prepare(struct s2s_hf_output *out, struct s2s_ckpt *ckpt,
                   const struct s2s_hf_options *options, struct s2s_error *err)
{
    struct s2s_hf_options full = *options;
    char *text = NULL;
    *out = (struct s2s_hf_output){.n_parts = 0};
    int rc = config_beside(&full, &text, ckpt, err);
    if (rc == 0)
        rc = prepare(out, ckpt, &full, err);
    if (full.config != options->config)
        json_decref((json_t *)full.config);
    free(text);
    return rc;
}

/* ---- writing ---- */

static int write_weights(struct s2s_hf_part *part, const char *path,
                         const struct s2s_ckpt_write *how, struct s2s_error *err)
{
    /* another rank or an earlier run may have made the folder */
    bool may_be_there = how->journal || ckpt_share_size(how) > 1;
    if (*part->folder && mkdir(path, 0777) < 0 && !(may_be_there && errno == EEXIST))
        return s2s_error_errno(err, S2S_E_IO, "%s: cannot create the folder", path);
    const struct ckpt_shard only = {part->file, 0, part->plan.n_targets, 0};
    return part->file ? ckpt_write_shard(&part->plan, &only, path, how, err)
                      : s2s_ckpt_write_hf(&part->plan, path, how, err);
}

static int write_part(struct s2s_hf_part *part, const char *dir, struct s2s_ckpt_write how,
                      struct s2s_error *err)
{
    char *path = s2s_xasprintf("%s%s%s", dir, *part->folder ? "/" : "", part->folder);
    json_t *manifest = how.manifest;
    /* a subfolder is a model in itself, with its own manifest */
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
    if (rc == 0 && *part->folder && ckpt_share_rank(&how) == 0)
        rc = ckpt_manifest_check(path, how.manifest, err);
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
        /* files of a part without weights are left out */
        if (s2s_is_there(AT_FDCWD, folder)) {
            rc = ckpt_file_put_noted(dir, out->files.v[i].path, out->files.v[i].bytes,
                                     out->files.v[i].len, slash ? NULL : manifest, err);
            if (rc == 0 && slash)
                rc = ckpt_sync_dir(folder, err);
        }
        free(folder);
    }
    if (rc == 0)
        rc = ckpt_manifest_write(dir, manifest, err);
    if (rc == 0)
        rc = ckpt_sync_dir(dir, err);
    return rc < 0 ? rc : ckpt_manifest_check(dir, manifest, err);
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
    ckpt_map_free_result(&out->map);
    *out = (struct s2s_hf_output){.n_parts = 0};
}
