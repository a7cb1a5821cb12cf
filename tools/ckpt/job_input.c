/* The inputs of a job: opens and checks the checkpoints, and reads --config. */
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/ckpt/number.h"
#include "tools/ckpt/job_internal.h"

static struct s2s_ckpt *input(const struct job *job, size_t i)
{
    return i == 0 ? job->ckpt : job->others[i - 1];
}

static int identify_all(struct job *job, struct s2s_error *err)
{
    int rc = 0;
    job->sources = s2s_xcalloc(job->n_others + 1, sizeof *job->sources);
    for (size_t i = 0; i <= job->n_others && rc == 0; i++)
        rc = s2s_ckpt_identity(input(job, i), job->sources[i], err);
    return rc;
}

int ckpt_job_check_source(const struct job *job, struct s2s_error *err)
{
    char now[33];
    int rc = 0;
    for (size_t i = 0; i <= job->n_others && rc == 0; i++) {
        rc = s2s_ckpt_identity(input(job, i), now, err);
        if (rc == 0 && strcmp(now, job->sources[i]) != 0)
            rc = s2s_error_set(err, S2S_E_IO, "%s: changed while it was read",
                               s2s_ckpt_path(input(job, i)));
    }
    return rc;
}

/* Gives: free. */
static int read_text(char **text, const char *path, struct s2s_error *err)
{
    enum { MAX_TEXT = 16 << 20 };
    struct s2s_buf buf = S2S_BUF_INIT;
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return s2s_error_errno(err, S2S_E_OPEN, "%s", path);
    int rc = s2s_buf_read(&buf, fd, MAX_TEXT, err);
    close(fd);
    if (rc == 0 && strlen(buf.data) != buf.len)
        rc = s2s_error_set(err, S2S_E_FORMAT, "no text: byte %zu is 0", strlen(buf.data));
    if (rc < 0) {
        s2s_buf_release(&buf);
        return s2s_error_add(err, rc, "%s", path);
    }
    *text = buf.data;
    return 0;
}

static bool is_yaml(const char *path)
{
    return s2s_ends_with(path, ".yaml") || s2s_ends_with(path, ".yml");
}

/* Towards NeMo a model_config.yaml is kept unchanged; what NeMo requires of it is checked when
 * writing. */
static int read_yaml(struct job *job, struct s2s_error *err)
{
    const char *path = job->config_path;
    int rc = read_text(&job->config_text, path, err);
    return rc < 0 || job->to == TO_NEMO
               ? rc
               : s2s_ckpt_take_nemo_config(job->ckpt, job->config_text, path, err);
}

int ckpt_job_read_config(struct job *job, struct s2s_error *err)
{
    if (!job->opt->config)
        return 0;
    json_error_t at;
    struct stat st;
    /* a folder stands for its config.json */
    const bool is_folder = stat(job->opt->config, &st) == 0 && S_ISDIR(st.st_mode);
    job->config_path = s2s_xasprintf("%s%s", job->opt->config, is_folder ? "/config.json" : "");
    if ((job->to == TO_NEMO || job->to == TO_HF) && is_yaml(job->config_path))
        return read_yaml(job, err);
    const char *path = job->config_path;
    char *text = NULL;
    int rc = read_text(&text, path, err);
    if (rc == 0)
        job->config = s2s_ckpt_parse_config(text, strlen(text), JSON_REJECT_DUPLICATES, &at);
    if (rc == 0 && !job->config)
        rc = s2s_error_set(err, S2S_E_FORMAT, "%s:%d: %s", path, at.line, at.text);
    else if (rc == 0 && !json_is_object(job->config))
        rc = s2s_error_set(err, S2S_E_FORMAT, "%s: no configuration: not an object", path);
    if (rc == 0)
        job->config_text = s2s_ckpt_config_text(job->config);
    free(text);
    return rc;
}

/* Without --to (average) that of the input, if it can be written. */
static enum ckpt_output output_of(const struct ckpt_job_options *opt, const struct s2s_ckpt *ckpt)
{
    const char *format = s2s_ckpt_format(ckpt);
    return opt->to                              ? opt->to
           : s2s_starts_with(format, "hf")      ? TO_HF
           : strcmp(format, "safetensors") == 0 ? TO_SAFETENSORS
           : strcmp(format, "nemo") == 0        ? TO_NEMO
                                                : TO_TORCH_DIST;
}

static int open_one(struct job *job, const char *path, struct s2s_ckpt **ckpt,
                    struct s2s_error *err)
{
    int rc = s2s_ckpt_open(ckpt, path, err);
    if (rc == 0 && job->opt->from && strcmp(job->opt->from, s2s_ckpt_format(*ckpt)) != 0)
        return s2s_error_set(err, S2S_E_FORMAT, "%s: is %s, not %s", path, s2s_ckpt_format(*ckpt),
                             job->opt->from);
    if (rc == 0 && (job->opt->merge_ranks || job->opt->to == TO_HF))
        rc = s2s_ckpt_merge_ranks(*ckpt, err);
    /* where names are kept, load_model wants those of the file alone */
    if (rc == 0 &&
        (job->opt->map || (output_of(job->opt, *ckpt) == TO_HF && ckpt_map_wanted(*ckpt))))
        rc = s2s_ckpt_add_other_names(*ckpt, err);
    if (rc == 0 && job->opt->part)
        rc = s2s_ckpt_select(*ckpt, job->opt->part, err);
    return rc;
}

/* How the optimizer's tensors are sharded, or NULL. With several optimizers (dense and expert
 * layers) each says so, under its number. */
static const char *sharding_type(const json_t *common)
{
    static const char key[] = "param_state_sharding_type";
    const json_t *optimizer = json_object_get(common, "optimizer");
    const char *type = json_string_value(json_object_get(
        json_object_get(common, "content_metadata"), "distrib_optim_sharding_type"));
    const char *number;
    json_t *one;
    if (!type)
        type = json_string_value(json_object_get(optimizer, key));
    json_object_foreach((json_t *)optimizer, number, one)
    {
        if (!type)
            type = json_string_value(json_object_get(one, key));
    }
    return type;
}

/* Has it optimizer tensors? A checkpoint without may still say how they were sharded. */
static bool has_optimizer(const struct s2s_ckpt *ckpt)
{
    size_t n_tensors, n_objects;
    const struct s2s_ckpt_tensor *tensors = s2s_ckpt_tensors(ckpt, &n_tensors);
    const struct s2s_ckpt_object *objects = s2s_ckpt_objects(ckpt, &n_objects);
    bool found = false;
    for (size_t i = 0; i < n_tensors && !found; i++)
        found = strstr(tensors[i].name, "optimizer.") != NULL;
    for (size_t i = 0; i < n_objects && !found; i++)
        found = strstr(objects[i].name, "optimizer.") != NULL;
    return found;
}

/* Refuses optimizer states that only the same training job can load. */
static int check_optimizer(const struct job *job, struct s2s_error *err)
{
    static const char *const refused[] = {"dp_zero_gather_scatter", "fully_sharded_bucket_space"};
    const char *type = sharding_type(s2s_ckpt_common(job->ckpt));
    if (!type || !has_optimizer(job->ckpt))
        return 0;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (strcmp(type, refused[i]) == 0) {
            int rc =
                s2s_error_set(err, S2S_E_UNSUPPORTED,
                              "%s: its optimizer is saved as %s, which only the job that wrote it "
                              "can take apart",
                              s2s_ckpt_path(job->ckpt), type);
            return s2s_error_hint(err, rc, "s2s-ckpt prune leaves the optimizer out");
        }
    if (strcmp(type, "dp_reshardable") == 0)
        s2s_info("reshard",
                 "the optimizer is %s: its buckets are kept as they are, for the same "
                 "tensor and pipeline parallelism",
                 type);
    return 0;
}

/* Refuses objects with tensors that cannot be read, and with --strict tensors that rank folders
 * have in other values; a warning named each. */
static int check_lost(const struct job *job, struct s2s_error *err)
{
    size_t n_tensors, n, n_lost = 0;
    const struct s2s_ckpt_object *objects = s2s_ckpt_objects(job->ckpt, &n), *first = NULL;
    s2s_ckpt_tensors(job->ckpt, &n_tensors);
    for (size_t i = 0; i < n; i++) {
        if (!objects[i].lost || !ckpt_job_is_weight(objects[i].name))
            continue;
        first = first ? first : &objects[i];
        n_lost++;
    }
    const size_t n_left = s2s_ckpt_left_values(job->ckpt);
    if (n_left && job->opt->strict)
        return s2s_error_set(
            err, S2S_E_UNSUPPORTED,
            "%s: the tensors in %zu value%s of rank folders are not used (--strict)",
            s2s_ckpt_path(job->ckpt), n_left, s2s_plural(n_left));
    if (!n_lost || (n_tensors && !job->opt->strict))
        return 0;
    int rc = s2s_error_set(err, S2S_E_UNSUPPORTED, "%s: %s is a %s, of which no tensor is read%s",
                           s2s_ckpt_path(job->ckpt), first->name, first->lost,
                           n_tensors ? " (--strict)" : "");
    return n_tensors ? rc
                     : s2s_error_hint(err, rc, "save the state_dict() of a module, dense tensors");
}

/* ---- averaging ---- */

static int check_dtypes(const struct job *job, struct s2s_error *err)
{
    size_t n;
    const struct s2s_ckpt_tensor *tensors = s2s_ckpt_tensors(job->ckpt, &n);
    const char *adapted = NULL;
    for (size_t i = 0; i < n; i++) {
        if (!adapted && ckpt_map_is_adapted(tensors[i].name))
            adapted = tensors[i].name;
        const bool quantised = ckpt_map_is_quantised(tensors[i].name);
        if (ckpt_job_is_weight(tensors[i].name) &&
            (quantised || !s2s_ckpt_can_average(tensors[i].dtype)))
            return s2s_error_set(err, S2S_E_DTYPE,
                                 "%s: %s is %s, which cannot be averaged; average the checkpoints "
                                 "it was made from",
                                 s2s_ckpt_path(job->ckpt), tensors[i].name,
                                 quantised ? "of quantised weights"
                                           : s2s_dtype_name(tensors[i].dtype));
    }
    if (adapted)
        s2s_warn("ckpt",
                 "%s: has LoRA adapters, such as %s: the means of their two matrices do not "
                 "multiply to the mean of what they add to the weights; for that, merge them first",
                 s2s_ckpt_path(job->ckpt), adapted);
    return 0;
}

static struct s2s_ckpt_want want_of(const struct s2s_ckpt_tensor *tensor)
{
    return (struct s2s_ckpt_want){tensor->name, tensor->dtype, tensor->n_dims, tensor->shape};
}

/* Is each weight of the first input in this one? Only to say which are not is there a list of all.
 */
static int check_wanted(const struct job *job, const struct s2s_ckpt *other, struct s2s_error *err)
{
    struct s2s_error ignored = S2S_ERROR_INIT;
    size_t n, n_wants = 0;
    const struct s2s_ckpt_tensor *tensors = s2s_ckpt_tensors(job->ckpt, &n);
    int rc = 0;
    for (size_t i = 0; i < n && rc == 0; i++) {
        const struct s2s_ckpt_want want = want_of(&tensors[i]);
        if (ckpt_job_is_weight(want.name))
            rc = s2s_ckpt_check(other, &want, 1, &ignored);
    }
    if (rc == 0)
        return 0;
    struct s2s_ckpt_want *wants = s2s_xcalloc(n + 1, sizeof *wants);
    for (size_t i = 0; i < n; i++)
        if (ckpt_job_is_weight(tensors[i].name))
            wants[n_wants++] = want_of(&tensors[i]);
    rc = s2s_ckpt_check(other, wants, n_wants, err);
    free(wants);
    return rc;
}

/* Other inputs must have the same weights as the first. */
static int check_alike(const struct job *job, const struct s2s_ckpt *other, struct s2s_error *err)
{
    size_t n;
    const struct s2s_ckpt_tensor *tensors = s2s_ckpt_tensors(other, &n);
    int rc = check_wanted(job, other, err);
    for (size_t i = 0; i < n && rc == 0; i++)
        if (ckpt_job_is_weight(tensors[i].name) && !s2s_ckpt_find(job->ckpt, tensors[i].name))
            rc = s2s_error_set(err, S2S_E_NOTFOUND, "%s is in %s, but not in %s", tensors[i].name,
                               s2s_ckpt_path(other), s2s_ckpt_path(job->ckpt));
    return rc;
}

static int open_others(struct job *job, struct s2s_error *err)
{
    int rc = check_dtypes(job, err);
    job->others = s2s_xcalloc(job->opt->n_in, sizeof(struct s2s_ckpt *));
    for (size_t i = 1; i < job->opt->n_in && rc == 0; i++) {
        struct s2s_ckpt **other = &job->others[job->n_others++];
        rc = open_one(job, job->opt->in[i], other, err);
        if (rc == 0)
            rc = check_alike(job, *other, err);
    }
    return rc;
}

/* Does the output stay plain torch.distributed.checkpoint? Megatron-LM tells FSDP's checkpoints
 * from torch_dist by the absence of metadata.json. */
static bool stays_dcp(const struct job *job)
{
    const struct ckpt_job_options *opt = job->opt;
    return (opt->average ? !opt->to : opt->reshard || opt->only_weights) &&
           strcmp(s2s_ckpt_format(job->ckpt), "dcp") == 0;
}

int ckpt_job_open(struct job *job, struct s2s_error *err)
{
    int rc = open_one(job, job->opt->in[0], &job->ckpt, err);
    if (rc == 0 && job->opt->average)
        rc = open_others(job, err);
    if (rc == 0) {
        job->to = output_of(job->opt, job->ckpt);
        job->how.dcp = stays_dcp(job);
    }
    if (rc == 0 && job->to != TO_TORCH_DIST)
        s2s_ckpt_find_lost(job->ckpt);
    if (rc == 0)
        rc = check_lost(job, err);
    if (rc == 0)
        rc = identify_all(job, err);
    if (rc == 0 && job->opt->reshard)
        rc = check_optimizer(job, err);
    return rc;
}

void ckpt_job_close(struct job *job)
{
    for (size_t i = 0; i < job->n_others; i++)
        s2s_ckpt_close(job->others[i]);
    s2s_ckpt_close(job->ckpt);
    free(job->others);
    free(job->sources);
    json_decref(job->config);
    json_decref(job->common);
    json_decref(job->metadata);
    free(job->config_text);
    free(job->config_path);
    free(job->unused.of);
    free(job->dropped.of);
    free(job->out);
}
