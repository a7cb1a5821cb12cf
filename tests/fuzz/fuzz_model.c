/*
 * Models of any names, shapes and configurations, in every direction. The input is JSON:
 *
 *     {"tensors": {NAME: [DTYPE, SIZE, ..]}, "files": {NAME: a text, or a value}, "config": {},
 *      "common": {}, "format": "torch_dist", "part": "llm", "to": "megatron", "map": a family, or
 * the text of a map, "write": true}
 *
 * all of it optional; "to" is hf where it says nothing else. The tensors are zeros, in a file with
 * holes. With "write" what is planned is also written while it is small, and must be what the plan
 * says when it is read again.
 */
/* run.sh: max_len=16384 */
#include "lib/ckpt/number.h"
#include "lib/ckpt/read/read_internal.h"
#include "lib/ckpt/write/to_dist.h"
#include "lib/ckpt/write/write_hf.h"
#include "lib/io/outfile.h"
#include "tests/fuzz/folder.h"
#include "tests/fuzz/json_mutator.h"

enum { MAX_TENSORS = 1024 };

/* beside the folder of the source */
static char out_dir[80];

static void remove_out(void)
{
    s2s_ckpt_remove_tree(out_dir, NULL);
}

/* model.safetensors of what is sound in `tensors` */
static void put_tensors(json_t *tensors)
{
    struct s2s_st_tensor *list = s2s_xcalloc(MAX_TENSORS + 1, sizeof *list);
    size_t n = 0, len, total = 0;
    const char *name;
    char *header, path[96];
    json_t *said;
    json_object_foreach(tensors, name, said)
    {
        struct s2s_st_tensor *t = &list[n];
        const char *dtype = json_string_value(json_array_get(said, 0));
        const size_t n_dims = json_array_size(said) ? json_array_size(said) - 1 : 0;
        *t = (struct s2s_st_tensor){.name = name, .n_dims = (int)n_dims};
        t->dtype = dtype ? s2s_dtype_parse(dtype) : S2S_DTYPE_NONE;
        if (n_dims > S2S_MAX_DIMS)
            continue;
        for (size_t i = 0; i < n_dims; i++)
            t->shape[i] = json_integer_value(json_array_get(said, i + 1));
        const int64_t numel = ckpt_box_numel(t->shape, t->n_dims);
        if (!t->dtype || numel < 0 || numel > (int64_t)1 << 40 || n == MAX_TENSORS)
            continue;
        t->len_bytes = (size_t)numel * s2s_dtype_size(t->dtype);
        total += t->len_bytes;
        n++;
    }
    if (s2s_safetensors_header(&header, &len, list, n, NULL, 0, NULL) < 0) {
        free(list); /* an axis of no credible size beside an empty one */
        return;
    }
    folder_put("model.safetensors", header, len);
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    if (truncate(path, (off_t)(len + total)) < 0)
        abort();
    free(header);
    free(list);
}

static void put_files(json_t *files)
{
    const char *name;
    json_t *value;
    int n = 0;
    json_object_foreach(files, name, value)
    {
        char *text =
            json_is_string(value) ? NULL : json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);
        const char *bytes = text ? text : json_string_value(value);
        if (ckpt_name_is_plain(name, strlen(name)) && strlen(name) < 80 &&
            strcmp(name, "model.safetensors") != 0 && n++ < 16)
            folder_put(name, bytes, strlen(bytes));
        free(text);
    }
}

/* as if another format's reader had filled it */
static struct s2s_ckpt *open_as(const json_t *root)
{
    static const char *const formats[] = {"torch_dist", "dcp", "nemo", "torch", "mp_rank"};
    const char *format = json_string_value(json_object_get(root, "format"));
    const char *part = json_string_value(json_object_get(root, "part"));
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_ckpt *ckpt;
    int rc = s2s_ckpt_open(&ckpt, folder, &err);
    folder_demand(rc, &err);
    if (rc < 0)
        return NULL;
    for (size_t i = 0; format && i < sizeof formats / sizeof *formats; i++)
        if (strcmp(format, formats[i]) == 0)
            ckpt->format = formats[i];
    if (json_is_object(json_object_get(root, "common"))) {
        json_decref(ckpt->common);
        ckpt->common = json_deep_copy(json_object_get(root, "common"));
    }
    ckpt_read_run_config(ckpt);
    if (part && (rc = s2s_ckpt_select(ckpt, part, &err)) < 0) {
        folder_demand(rc, &err);
        s2s_ckpt_close(ckpt);
        return NULL;
    }
    return ckpt;
}

/* A family, or the path of the map that the input gives. Gives: free. */
static char *map_of(const json_t *root)
{
    const char *map = json_string_value(json_object_get(root, "map"));
    if (!map || (!strchr(map, '\n') && strpbrk(map, "./")))
        return NULL;
    if (!strchr(map, '\n'))
        return s2s_xstrdup(map);
    folder_put("mine.map", map, strlen(map));
    return s2s_xasprintf("%s/mine.map", folder);
}

static void write_hf(struct s2s_hf_output *out, const struct s2s_ckpt_write *how)
{
    struct s2s_error err = S2S_ERROR_INIT;
    for (size_t i = 0; i < out->n_parts; i++)
        if (!folder_is_small(&out->parts[i].plan))
            return;
    remove_out();
    if (mkdir(out_dir, 0700) < 0)
        abort();
    if (s2s_hf_write(out, out_dir, how, &err) < 0)
        S2S_BUG("%s", err.text);
    for (size_t i = 0; i < out->n_parts; i++) {
        char *prefix =
            s2s_xasprintf("%s%s", out->parts[i].folder, *out->parts[i].folder ? "." : "");
        folder_demand_written(out_dir, &out->parts[i].plan, prefix);
        free(prefix);
    }
}

static void try_hf(struct s2s_ckpt *ckpt, const json_t *root, const char *map,
                   const struct s2s_ckpt_write *how)
{
    const json_t *config = json_object_get(root, "config");
    char *text = config ? json_dumps(config, JSON_ENCODE_ANY) : NULL;
    const struct s2s_hf_options options = {
        .map = map,
        .config = json_is_object(config) ? config : NULL,
        .config_text = json_is_object(config) ? text : NULL,
        .keep_vocab_padding = json_is_true(json_object_get(root, "padding")),
        .dtype = json_is_true(json_object_get(root, "cast")) ? S2S_BF16 : S2S_DTYPE_NONE};
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_hf_output out;
    if (s2s_hf_prepare(&out, ckpt, &options, &err) == 0 && how)
        write_hf(&out, how);
    else if (how == NULL && !*err.text && out.n_parts == 0)
        S2S_BUG("an error without a text");
    s2s_hf_release(&out);
    free(text);
}

static void write_dist(struct s2s_ckpt_plan *plan, const json_t *common,
                       const struct s2s_ckpt_write *how)
{
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_ckpt_write with = *how;
    with.common = common;
    if (!folder_is_small(plan))
        return;
    remove_out();
    if (s2s_ckpt_write_dist(plan, out_dir, &with, &err) < 0)
        S2S_BUG("%s", err.text);
    folder_demand_written(out_dir, plan, "");
}

static void try_megatron(struct s2s_ckpt *ckpt, const json_t *root, const char *map,
                         const struct s2s_ckpt_write *how)
{
    const json_t *config = json_object_get(root, "config");
    const struct ckpt_map_request request = {
        .ckpt = ckpt,
        .name = map ? map : "llama",
        .config = json_is_object(config) ? config : NULL,
        .vocab_multiple = json_is_true(json_object_get(root, "padding")) ? 8 : 0,
        .layers = (enum ckpt_layers)(json_integer_value(json_object_get(root, "layers")) & 1)};
    struct ckpt_map_result result = {.n_state = 0};
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_ckpt_plan plan = {.source = ckpt};
    json_t *common = NULL;
    if (s2s_megatron_prepare(&plan, &common, &request, &result, &err) == 0 &&
        s2s_ckpt_plan_seal(&plan, &err) == 0 && how)
        write_dist(&plan, common, how);
    s2s_ckpt_plan_release(&plan);
    json_decref(common);
    ckpt_map_free_result(&result);
}

static void try_nemo(struct s2s_ckpt *ckpt, const json_t *root, const struct s2s_ckpt_write *how)
{
    const json_t *config = json_object_get(root, "config");
    const struct s2s_nemo_options options = {
        .config = json_is_object(config) ? config : NULL,
        .yaml = json_string_value(json_object_get(root, "yaml")),
        .without_tokenizer = !json_is_false(json_object_get(root, "labels"))};
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_nemo_output out;
    struct s2s_outfile *file;
    char path[96], digest[33];
    if (s2s_nemo_prepare(&out, ckpt, &options, &err) == 0 && how && folder_is_small(&out.plan)) {
        remove_out();
        if (mkdir(out_dir, 0700) < 0)
            abort();
        snprintf(path, sizeof path, "%s/a.nemo", out_dir);
        if (s2s_outfile_open(&file, path, &err) < 0 ||
            s2s_nemo_write(&out, file, how, digest, &err) < 0)
            S2S_BUG("%s", err.text);
        if (s2s_outfile_commit(file, &err) < 0)
            S2S_BUG("%s", err.text);
        folder_demand_written(path, &out.plan, "");
    }
    s2s_nemo_release(&out);
}

/* the first names, some of which are not there, with the right shape or with another */
static void try_check(const struct s2s_ckpt *ckpt)
{
    enum { MAX_WANTS = 6 };
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_ckpt_want wants[MAX_WANTS];
    char *names[MAX_WANTS];
    size_t n;
    const struct s2s_ckpt_tensor *tensors = s2s_ckpt_tensors(ckpt, &n);
    n = n < MAX_WANTS ? n : MAX_WANTS;
    for (size_t i = 0; i < n; i++) {
        const struct s2s_ckpt_tensor *other = &tensors[(i + 1) % n];
        names[i] = s2s_xasprintf("%s%s", tensors[i].name, i % 3 ? "" : "x");
        wants[i] = (struct s2s_ckpt_want){.name = names[i],
                                          .dtype = i % 5 ? other->dtype : S2S_F64,
                                          .n_dims = other->n_dims,
                                          .shape = other->shape};
    }
    if (s2s_ckpt_check(ckpt, wants, n, &err) < 0 && !*err.text)
        S2S_BUG("an error without a text");
    for (size_t i = 0; i < n; i++)
        free(names[i]);
}

/* The mean of it and itself, or copies, as one file. */
static void try_file(struct s2s_ckpt *ckpt, const json_t *root)
{
    const struct s2s_ckpt_write how = {.max_shard_bytes = 0};
    struct s2s_ckpt *others[2] = {NULL};
    struct s2s_ckpt_plan plan = {.source = ckpt, .others = others};
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_outfile *file;
    size_t n;
    const struct s2s_ckpt_tensor *tensors = s2s_ckpt_tensors(ckpt, &n);
    for (size_t i = 0; i < 2 && json_is_true(json_object_get(root, "average")); i++)
        others[i] = open_as(root);
    plan.n_others = (others[0] != NULL) + (others[1] != NULL);
    for (size_t i = 0; i < n; i++)
        if (!plan.n_others || s2s_ckpt_can_average(tensors[i].dtype))
            s2s_ckpt_plan_copy(&plan, tensors[i].name, &tensors[i]);
    if (json_is_true(json_object_get(root, "cast")))
        s2s_ckpt_plan_cast(&plan, S2S_F16);
    if (s2s_ckpt_plan_seal(&plan, &err) == 0 && s2s_ckpt_plan_for_safetensors(&plan, &err) == 0 &&
        folder_is_small(&plan)) {
        char path[96];
        remove_out();
        if (mkdir(out_dir, 0700) < 0)
            abort();
        snprintf(path, sizeof path, "%s/a.safetensors", out_dir);
        if (s2s_outfile_open(&file, path, &err) < 0 ||
            s2s_ckpt_write_safetensors(&plan, 0, plan.n_targets, file, &how, NULL, &err) < 0 ||
            s2s_outfile_commit(file, &err) < 0)
            S2S_BUG("%s", err.text);
        folder_demand_written(path, &plan, "");
    }
    s2s_ckpt_plan_release(&plan);
    s2s_ckpt_close(others[0]);
    s2s_ckpt_close(others[1]);
}

static void try_model(struct s2s_ckpt *ckpt, const json_t *root, const char *map)
{
    const struct s2s_ckpt_write small = {.max_shard_bytes = 4096};
    const struct s2s_ckpt_write *how = json_is_true(json_object_get(root, "write")) ? &small : NULL;
    const char *to = json_string_value(json_object_get(root, "to"));
    if (to && strcmp(to, "megatron") == 0) {
        try_megatron(ckpt, root, map, how);
    } else if (to && strcmp(to, "nemo") == 0) {
        try_nemo(ckpt, root, how);
    } else if (to && strcmp(to, "same") == 0) {
        try_check(ckpt);
        if (how)
            try_file(ckpt, root);
        folder_plan_layers(ckpt, (enum ckpt_layers)(json_object_size(root) % 3));
    } else {
        try_hf(ckpt, root, map, how);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    json_t *root = json_loadb((const char *)data, size, 0, NULL);
    if (!root)
        return 0;
    folder_fill(NULL, 0, NULL, 0);
    if (!*out_dir) {
        snprintf(out_dir, sizeof out_dir, "%s-out", folder);
        atexit(remove_out);
    }
    put_files(json_object_get(root, "files"));
    put_tensors(json_object_get(root, "tensors"));
    char *map = map_of(root);
    struct s2s_ckpt *ckpt = open_as(root);
    if (ckpt)
        try_model(ckpt, root, map);
    s2s_ckpt_close(ckpt);
    free(map);
    json_decref(root);
    return 0;
}
