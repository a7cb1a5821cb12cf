/* Plans and writes the output of a job, for each format. */
#include <libgen.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "lib/ckpt/nemo/to_nemo.h"
#include "lib/ckpt/write/journal.h"
#include "lib/ckpt/write/manifest.h"
#include "lib/ckpt/write/to_dist.h"
#include "lib/ckpt/write/to_hf.h"
#include "lib/ckpt/write/write_hf.h"
#include "lib/io/outfile.h"
#include "tools/ckpt/beside.h"
#include "tools/ckpt/job_internal.h"

/* Verifies Megatron-Core's digests before anything is written. */
static int check_integrity(struct job *job, const struct s2s_ckpt_write *how, struct s2s_error *err)
{
    __int128 bytes = s2s_ckpt_files_bytes(job->ckpt);
    for (size_t i = 0; i < job->n_others; i++)
        bytes += s2s_ckpt_files_bytes(job->others[i]);
    s2s_progress_begin(&job->progress, "comparing digests", "bytes", (int64_t)bytes);
    int rc = s2s_ckpt_verify_integrity(job->ckpt, how, err);
    for (size_t i = 0; rc == 0 && i < job->n_others; i++)
        rc = s2s_ckpt_verify_integrity(job->others[i], how, err);
    s2s_progress_end(&job->progress);
    return rc;
}

/* Compares the inputs with the digests that were written with them. */
static int compare_inputs(void *ctx, const struct s2s_ckpt_write *how, struct s2s_error *err)
{
    const struct job *job = ctx;
    int rc = s2s_ckpt_verify_read(job->ckpt, how, err);
    for (size_t i = 0; rc == 0 && i < job->n_others; i++)
        rc = s2s_ckpt_verify_read(job->others[i], how, err);
    return rc;
}

/* Warns at the start if the disk seems too small. Only a warning, as compressing file systems hold
 * more than they report. */
static void warn_of_room(const struct job *job)
{
    char need[32], room[32];
    struct statvfs fs;
    struct stat st;
    /* the target of a link is replaced; pipes and devices need no room */
    char *whole = realpath(job->out, NULL), *path = whole ? whole : s2s_xstrdup(job->out);
    const bool kept =
        !whole || (stat(whole, &st) == 0 && (S_ISREG(st.st_mode) || S_ISDIR(st.st_mode)));
    const char *folder = dirname(path);
    const int64_t bytes = job->bytes - ckpt_journal_bytes(job->how.journal);
    if (ckpt_is_first() && strcmp(job->out, "-") != 0 && kept && statvfs(folder, &fs) == 0 &&
        fs.f_blocks && bytes / (int64_t)fs.f_frsize > (int64_t)fs.f_bavail)
        s2s_warn("convert", "%s needs %s, and %s has room for %s", job->out,
                 ckpt_bytes_text(need, bytes), folder,
                 ckpt_bytes_text(room, (int64_t)fs.f_bavail * (int64_t)fs.f_frsize));
    free(path);
}

static void begin_progress(struct job *job)
{
    warn_of_room(job);
    s2s_progress_begin(&job->progress, "converting", "bytes", job->bytes);
}

/* A name with "*" for each number. Gives: free. */
static char *without_numbers(const char *name)
{
    char *kind = s2s_xcalloc(strlen(name) + 1, 1);
    for (size_t n = 0; *name; n++) {
        const size_t n_digits = strspn(name, "0123456789");
        kind[n] = n_digits ? '*' : *name;
        name += n_digits ? n_digits : 1;
    }
    return kind;
}

/* Counts unused names that differ only in numbers. Gives a reference. */
static json_t *count_kinds(const struct ckpt_map_names *unused)
{
    json_t *kinds = json_object();
    for (size_t i = 0; i < unused->n; i++) {
        char *kind = without_numbers(unused->of[i]);
        const json_int_t n = json_integer_value(json_object_get(kinds, kind));
        json_object_set_new(kinds, kind, json_integer(n + 1));
        free(kind);
    }
    return kinds;
}

/* Reports unused names: each if it is an error (strict), otherwise those of all layers in one line.
 */
static void say_unused(const struct ckpt_map_names *unused, bool strict)
{
    json_t *kinds = count_kinds(unused);
    for (size_t i = 0; i < unused->n; i++) {
        char *kind = without_numbers(unused->of[i]);
        const json_int_t n = json_integer_value(json_object_get(kinds, kind));
        if (strict || n == 1)
            s2s_log(strict ? S2S_LOG_ERROR : S2S_LOG_WARN, "convert",
                    "in checkpoint but unused: %s", unused->of[i]);
        else if (n > 1)
            s2s_warn("convert",
                     "in checkpoint but unused: %s and %lld more that differ from it in numbers "
                     "alone",
                     unused->of[i], (long long)n - 1);
        if (!strict)
            json_object_del(kinds, kind); /* once per kind */
        free(kind);
    }
    json_decref(kinds);
}

/* Takes the result of the name map into job. */
static int take_names(struct job *job, struct ckpt_map_result *map, struct s2s_error *err)
{
    job->n_state = map->n_state;
    job->is_left = map->is_left;
    job->rows_cut = map->rows_cut;
    job->unused = map->unused;
    job->dropped = map->dropped;
    memcpy(job->family, map->family, sizeof job->family);
    map->unused = map->dropped = (struct ckpt_map_names){.n = 0};
    if (ckpt_is_first()) {
        say_unused(&job->unused, job->opt->strict);
        say_unused(&map->unused_objects, job->opt->strict);
    }
    const size_t n_unused = job->unused.n + map->unused_objects.n;
    if (n_unused && job->opt->strict)
        return s2s_error_set(err, S2S_E_NOTFOUND,
                             "the checkpoint has %zu unused tensor%s (--strict)", n_unused,
                             s2s_plural(n_unused));
    if (*map->family)
        s2s_info("convert", "name map: %s", map->family);
    return 0;
}

static void show_plan(struct job *job, const struct s2s_ckpt_plan *plan, const char *folder)
{
    const bool json = job->opt->common.json;
    for (size_t i = 0; i < plan->n_targets && ckpt_is_first(); i++) {
        const struct s2s_ckpt_target *t = &plan->targets[i];
        const struct s2s_ckpt_tensor as_tensor = {.name = s2s_ckpt_target_name(t),
                                                  .dtype = t->dtype,
                                                  .n_dims = t->n_dims,
                                                  .shape = s2s_ckpt_target_shape(t)};
        if (json)
            fputs(job->n_shown++ ? ",\n    " : "{\n  \"tensors\": [\n    ", stdout);
        ckpt_print_tensor(&as_tensor, folder, json);
        fputs(json ? "}" : "\n", stdout);
    }
}

/* Are the texts of safetensors' metadata valid in the output, too? Some speak of tensors by name.
 */
static bool keeps_texts(const struct job *job)
{
    return (job->to == TO_HF || job->to == TO_SAFETENSORS) && !*job->family && !job->opt->part;
}

static void warn_of_texts(const struct job *job)
{
    char *lost = s2s_ckpt_lost_texts(job->ckpt, keeps_texts(job));
    if (lost && ckpt_is_first())
        s2s_warn("convert", "%s: texts in the metadata of its files are left out: %s",
                 s2s_ckpt_path(job->ckpt), lost);
    free(lost);
}

/* Prepares a plan for writing, or with --plan shows it. Its tensors are means over all inputs. */
static void take_plan(struct job *job, struct s2s_ckpt_plan *plan, const char *folder)
{
    plan->others = job->others;
    plan->n_others = job->n_others;
    plan->with_texts = keeps_texts(job) && !*folder;
    for (size_t i = 0; i < plan->n_targets; i++)
        job->bytes += s2s_ckpt_target_bytes(&plan->targets[i]);
    job->n_tensors += plan->n_targets;
    if (job->opt->plan)
        show_plan(job, plan, folder);
}

/* ---- Hugging Face ---- */

/* The plan of one format; the other members are unused. */
struct output {
    struct s2s_hf_output hf;
    struct s2s_ckpt_plan plan;
    struct s2s_nemo_output nemo;
};

static int plan_hf(struct job *job, struct output *out, struct s2s_error *err)
{
    struct s2s_hf_options hf = {.map = job->opt->map,
                                .dtype = job->opt->dtype,
                                .keep_vocab_padding = job->opt->keep_padding,
                                .config = job->config,
                                /* not if it is a model_config.yaml */
                                .config_text = job->config ? job->config_text : NULL};
    int rc = s2s_hf_prepare(&out->hf, job->ckpt, &hf, err);
    if (rc == 0)
        rc = take_names(job, &out->hf.map, err);
    for (size_t i = 0; i < out->hf.n_parts && rc == 0; i++)
        take_plan(job, &out->hf.parts[i].plan, out->hf.parts[i].folder);
    return rc;
}

static int write_hf(struct job *job, struct output *out, const char *dir, struct s2s_error *err)
{
    return s2s_hf_write(&out->hf, dir, &job->how, err);
}

/* ---- torch_dist, safetensors ---- */

/* Is it an object of a Megatron model, not of training state or another trainer? */
static bool is_megatrons(const char *object)
{
    return ckpt_job_is_weight(object) && s2s_ckpt_is_sharded(object);
}

/* Maps Hugging Face's names to Megatron's; sets the common state that belongs to them in job. */
static int plan_megatron(struct job *job, struct s2s_ckpt_plan *plan, struct s2s_error *err)
{
    struct ckpt_map_request request = {.ckpt = job->ckpt,
                                       .name = job->opt->map,
                                       .config = job->config,
                                       .vocab_multiple = job->opt->vocab_multiple,
                                       .layers = job->opt->layers};
    struct ckpt_map_result result = {.n_state = 0};
    int rc = s2s_megatron_prepare(plan, &job->common, &request, &result, err);
    if (rc == 0)
        rc = take_names(job, &result, err);
    if (rc == 0 && plan->n_targets == 0)
        rc = s2s_error_set(err, S2S_E_NOTFOUND, "no weights that %s names", result.family);
    if (rc == 0 && job->config_text)
        json_object_set_new(job->common, "config/llm", json_string(job->config_text));
    job->how.common = job->common;
    job->how.keep_object = is_megatrons;
    ckpt_map_free_result(&result);
    return rc;
}

/* Puts layers on an axis, or numbers them: as Megatron's model loads them if rank folders are
 * merged, otherwise only on request. The metadata must say that layers are numbered if Megatron
 * would expect an axis. */
static int name_layers(struct job *job, struct s2s_ckpt_plan *plan, struct s2s_error *err)
{
    const bool merged = strcmp(s2s_ckpt_format(job->ckpt), "mp_rank") == 0 && job->opt->merge_ranks;
    size_t n_changed = 0;
    if (job->to != TO_TORCH_DIST || job->opt->map || !(merged || job->opt->layers_given))
        return 0;
    int rc = s2s_ckpt_plan_layers(plan, job->opt->layers, &n_changed, err);
    if (rc == 0 && n_changed)
        s2s_info("convert", "%zu stack%s of layers %s now", n_changed, s2s_plural(n_changed),
                 job->opt->layers == CKPT_LAYERS_NUMBERED ? "numbered" : "on an axis");
    else if (rc == 0 && job->opt->layers)
        s2s_info("convert", "no stack of layers had to change");
    if (rc == 0)
        job->metadata = s2s_ckpt_layers_metadata(s2s_ckpt_common(job->ckpt), job->opt->layers);
    job->how.metadata = job->metadata;
    return rc;
}

/* Refuses to leave out everything. A checkpoint without anything gives one without anything. */
static int check_some(const struct job *job, const struct s2s_ckpt_plan *plan,
                      struct s2s_error *err)
{
    size_t n_objects;
    (void)s2s_ckpt_objects(job->ckpt, &n_objects);
    const bool none = job->n_state || (job->to == TO_SAFETENSORS && n_objects);
    return none && plan->n_targets == 0 ? s2s_error_set(err, S2S_E_NOTFOUND, "no weights") : 0;
}

/* Plans all tensors under their own names. A flattened tensor keeps its form in torch_dist, which
 * records the original shape and whose readers up to Megatron-Core 0.15 need it; elsewhere it gets
 * the shape of its parameter. */
static int plan_all(struct job *job, struct output *out, struct s2s_error *err)
{
    size_t n;
    struct s2s_ckpt_plan *plan = &out->plan;
    const struct s2s_ckpt_tensor *tensors = s2s_ckpt_tensors(job->ckpt, &n);
    int rc = job->opt->map ? plan_megatron(job, plan, err) : 0;
    plan->source = job->ckpt;
    if (job->opt->only_weights)
        job->is_left = s2s_ckpt_is_state;
    for (size_t i = 0; i < n && !job->opt->map; i++)
        if (job->is_left && job->is_left(tensors[i].name))
            job->n_state++;
        else
            s2s_ckpt_plan_copy(plan, tensors[i].name,
                               job->to == TO_TORCH_DIST
                                   ? &tensors[i]
                                   : s2s_ckpt_unflattened(job->ckpt, &tensors[i]));
    if (rc == 0)
        rc = check_some(job, plan, err);
    if (rc == 0)
        rc = name_layers(job, plan, err);
    if (job->opt->dtype)
        s2s_ckpt_plan_cast(plan, job->opt->dtype);
    if (rc == 0)
        rc = s2s_ckpt_plan_seal(plan, err);
    if (rc == 0 && job->to == TO_SAFETENSORS)
        rc = s2s_ckpt_plan_for_safetensors(plan, err);
    if (rc == 0)
        take_plan(job, plan, "");
    return rc;
}

static int write_torch_dist(struct job *job, struct output *out, const char *dir,
                            struct s2s_error *err)
{
    return s2s_ckpt_write_dist(&out->plan, dir, &job->how, err);
}

static int write_safetensors(struct job *job, struct output *out, struct s2s_outfile *file,
                             char digest[33], struct s2s_error *err)
{
    int rc = s2s_ckpt_write_safetensors(&out->plan, 0, out->plan.n_targets, file, &job->how, digest,
                                        err);
    return rc < 0 ? rc : s2s_ckpt_plan_verify(&out->plan, err);
}

/* ---- .nemo ---- */

static int plan_nemo(struct job *job, struct output *out, struct s2s_error *err)
{
    struct s2s_nemo_options options = {.dtype = job->opt->dtype,
                                       .yaml = job->config ? NULL : job->config_text,
                                       .config = job->config,
                                       .tokenizer = job->opt->tokenizer,
                                       .without_tokenizer = job->opt->without_tokenizer};
    int rc = s2s_nemo_prepare(&out->nemo, job->ckpt, &options, err);
    if (rc == 0)
        rc = take_names(job, &out->nemo.map, err);
    if (rc == 0)
        take_plan(job, &out->nemo.plan, "");
    return rc;
}

static int write_nemo(struct job *job, struct output *out, struct s2s_outfile *file,
                      char digest[33], struct s2s_error *err)
{
    return s2s_nemo_write(&out->nemo, file, &job->how, digest, err);
}

/* ---- formats ---- */

/* Functions of each format. Output is a folder or a single file; digest: receives the file's
 * XXH3-128 (NULL: none, such as for stdout, which has no manifest). */
static const struct {
    int (*plan)(struct job *job, struct output *out, struct s2s_error *err);
    int (*write_folder)(struct job *job, struct output *out, const char *dir,
                        struct s2s_error *err);
    int (*write_file)(struct job *job, struct output *out, struct s2s_outfile *file,
                      char digest[33], struct s2s_error *err);
} kinds[] = {
    [TO_HF] = {plan_hf, .write_folder = write_hf},
    [TO_TORCH_DIST] = {plan_all, .write_folder = write_torch_dist},
    [TO_SAFETENSORS] = {plan_all, .write_file = write_safetensors},
    [TO_NEMO] = {plan_nemo, .write_file = write_nemo},
};

bool ckpt_job_is_folder(const struct job *job)
{
    return kinds[job->to].write_folder;
}

static int write_one_file(struct job *job, struct output *made, struct s2s_error *err)
{
    const char *path = job->opt->out;
    struct s2s_outfile *out = NULL, *manifest = NULL;
    char digest[33];
    struct ckpt_beside inputs;
    int rc = s2s_outfile_open_behind(&out, path, err);
    if (rc == 0)
        rc = ckpt_manifest_open(&manifest, path, err);
    ckpt_beside_begin(&inputs, compare_inputs, job, (struct s2s_ckpt_write){.stop = job->how.stop});
    if (rc == 0)
        rc = kinds[job->to].write_file(job, made, out, manifest ? digest : NULL, err);
    rc = ckpt_beside_end(&inputs, rc, err);
    if (rc == 0)
        rc = ckpt_job_check_source(job, err);
    if (rc == 0)
        return ckpt_manifest_commit(out, manifest, path, digest, err);
    s2s_outfile_abort(out);
    s2s_outfile_abort(manifest);
    return rc;
}

static int write_one_folder(struct job *job, struct output *made, const char *dir,
                            struct s2s_mesh *mesh, struct s2s_error *err)
{
    struct ckpt_beside inputs;
    ckpt_beside_begin(&inputs, compare_inputs, job,
                      (struct s2s_ckpt_write){.mesh = mesh, .stop = job->how.stop});
    int rc = kinds[job->to].write_folder(job, made, dir, err);
    return ckpt_beside_end(&inputs, rc, err);
}

static int check_file(const struct job *job, struct s2s_error *err)
{
    const char *path = job->opt->out;
    int rc = ckpt_check_out(path, job->ckpt, err);
    for (size_t i = 0; i < job->n_others && rc == 0; i++)
        rc = ckpt_check_out(path, job->others[i], err);
    /* --config may be a file inside a folder */
    const char *const given[] = {job->config_path, job->opt->tokenizer};
    if (rc == 0)
        rc = s2s_outfile_spares_each(path, given, sizeof given / sizeof *given, err);
    return rc == 0 && !job->opt->plan && strcmp(path, "-") == 0 ? s2s_tool_check_stdout(err) : rc;
}

int ckpt_job_fill(struct job *job, const char *dir, struct s2s_error *err)
{
    struct output out = {.plan = {.source = NULL}};
    int rc = kinds[job->to].plan(job, &out, err);
    struct s2s_ckpt_write how = job->how;
    if (!dir)
        how.mesh = NULL;
    if (rc == 0 && !dir)
        rc = check_file(job, err);
    if (rc == 0)
        warn_of_texts(job);
    if (rc == 0 && !job->opt->plan)
        rc = check_integrity(job, &how, err);
    if (dir)
        rc = ckpt_agree(rc, err);
    if (rc == 0 && !job->opt->plan) {
        begin_progress(job);
        rc = dir ? write_one_folder(job, &out, dir, how.mesh, err) : write_one_file(job, &out, err);
    }
    s2s_hf_release(&out.hf);
    s2s_ckpt_plan_release(&out.plan);
    s2s_nemo_release(&out.nemo);
    return rc;
}
