/*
 * Folders made of one input, for readers of checkpoints of many files. The input is a list of
 * files: a byte that chooses a name of the target's table, two bytes of length (little-endian), the
 * bytes; what is cut short goes to the end. Where the table says archive they are the pickle of a
 * torch.save archive: a mutated pickle in a zip would fail at its CRC-32 and reach nothing.
 */
#ifndef TESTS_FUZZ_FOLDER_H
#define TESTS_FUZZ_FOLDER_H

#include <fcntl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/base.h"
#include "lib/ckpt/ckpt.h"
#include "lib/ckpt/ckpt_files.h"
#include "lib/ckpt/write/manifest.h"
#include "lib/ckpt/write/to_dist.h"
#include "lib/ckpt/write/to_hf.h"
#include "lib/ckpt/nemo/to_nemo.h"
#include "lib/io/zip.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct folder_name {
    const char *name;
    bool archive;
};

static char folder[64];

static void folder_clean_up(void)
{
    s2s_ckpt_remove_tree(folder, NULL);
}

/* In memory where the system has a folder there. */
static void folder_make(void)
{
    if (*folder)
        return;
    s2s_log_set_verbosity(-1);
    snprintf(folder, sizeof folder, "%s/s2s-fuzz-XXXXXX",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    if (!mkdtemp(folder))
        abort();
    atexit(folder_clean_up);
}

static void folder_put(const char *name, const void *bytes, size_t len)
{
    char path[192];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    char *slash = strrchr(path, '/');
    if (strchr(name, '/')) {
        *slash = 0;
        mkdir(path, 0700);
        *slash = '/';
    }
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (fd < 0 || write(fd, bytes, len) != (ssize_t)len)
        abort();
    close(fd);
}

static int folder_collect(void *ctx, const void *bytes, size_t len, struct s2s_error *err)
{
    s2s_buf_add(ctx, bytes, len);
    return 0;
}

/* An archive of this pickle and storages 0 to 4 of 64, 32, 16, 8 and 4 bytes. */
static void folder_archive(struct s2s_buf *out, const void *pickle, size_t len)
{
    static const char zeros[64];
    struct s2s_zip_writer *zip = s2s_zip_writer_new(folder_collect, out);
    int64_t total;
    int rc = s2s_zip_add(zip, "archive/data.pkl", 1, pickle, len, NULL);
    for (int i = 0; rc == 0 && i < 5; i++) {
        char name[32];
        snprintf(name, sizeof name, "archive/data/%d", i);
        rc = s2s_zip_add(zip, name, 64, zeros, sizeof zeros >> i, NULL);
    }
    if (rc < 0 || s2s_zip_finish(zip, &total, NULL) < 0)
        abort();
    s2s_zip_writer_free(zip);
}

/* The next file of the input; false at its end. Gives: free bytes->data. */
static bool folder_next(const uint8_t **data, size_t *size, const struct folder_name *names,
                        size_t n_names, const char **name, struct s2s_buf *bytes)
{
    if (*size < 3)
        return false;
    const struct folder_name *chosen = &names[(*data)[0] % n_names];
    size_t len = (size_t)(*data)[1] | (size_t)(*data)[2] << 8;
    *data += 3;
    *size -= 3;
    len = len < *size ? len : *size;
    s2s_buf_clear(bytes);
    s2s_buf_reserve(bytes, 1);
    if (chosen->archive)
        folder_archive(bytes, *data, len);
    else
        s2s_buf_add(bytes, *data, len);
    *name = chosen->name;
    *data += len;
    *size -= len;
    return true;
}

/* Empties the folder and fills it. */
static inline void folder_fill(const uint8_t *data, size_t size, const struct folder_name *names,
                               size_t n_names)
{
    const char *name;
    struct s2s_buf bytes = S2S_BUF_INIT;
    folder_make();
    folder_clean_up();
    if (mkdir(folder, 0700) < 0)
        abort();
    for (int i = 0; i < 16 && folder_next(&data, &size, names, n_names, &name, &bytes); i++)
        folder_put(name, bytes.data, bytes.len);
    s2s_buf_release(&bytes);
}

/* Beside the folder: where things are written. Gives: free. */
static inline char *folder_out(void)
{
    char *out = s2s_xasprintf("%s-out", folder);
    s2s_ckpt_remove_tree(out, NULL);
    return out;
}

static int folder_ignore(void *ctx, const void *bytes, size_t len, struct s2s_error *err)
{
    return 0;
}

/* Reads what is there, as ls --sha256 and verify do. */
static inline void folder_read(struct s2s_ckpt *ckpt)
{
    struct s2s_error err = S2S_ERROR_INIT;
    size_t n, n_objects;
    const struct s2s_ckpt_tensor *tensors = s2s_ckpt_tensors(ckpt, &n);
    const struct s2s_ckpt_object *objects = s2s_ckpt_objects(ckpt, &n_objects);
    for (size_t i = 0; i < n; i++) {
        /* views may say "a thousand times this row" (stride 0): legal */
        if (s2s_ckpt_numel(&tensors[i]) < 1 << 12)
            s2s_ckpt_stream(ckpt, &tensors[i], NULL, NULL, folder_ignore, NULL, &err);
        s2s_ckpt_verify_tensor(ckpt, &tensors[i], &err);
        const struct s2s_ckpt_tensor *whole = s2s_ckpt_unflattened(ckpt, &tensors[i]);
        if (whole != &tensors[i] && s2s_ckpt_numel(whole) < 1 << 12)
            s2s_ckpt_stream(ckpt, whole, NULL, NULL, folder_ignore, NULL, &err);
    }
    for (size_t i = 0; i < n_objects; i++) {
        s2s_ckpt_verify_object(ckpt, &objects[i], &err);
        if (objects[i].file)
            s2s_ckpt_stream_object(ckpt, &objects[i], folder_ignore, NULL, &err);
    }
    char identity[33];
    s2s_ckpt_verify_common(ckpt, &err);
    s2s_ckpt_check_ranks(ckpt, &err);
    s2s_ckpt_identity(ckpt, identity, &err);
}

/* An error must say something, and where. */
static inline void folder_demand(int rc, const struct s2s_error *err)
{
    if (rc < 0 && !strstr(err->text, folder))
        S2S_BUG("an error that does not name its file: %s", err->text);
}

/* Opens what the folder (or the file that stands for it) is and reads all of it. NULL where that is
 * refused. */
static inline struct s2s_ckpt *folder_open(void)
{
    struct s2s_ckpt *ckpt;
    struct s2s_error err = S2S_ERROR_INIT;
    int rc = s2s_ckpt_open(&ckpt, folder, &err);
    folder_demand(rc, &err);
    if (rc < 0)
        return NULL;
    folder_read(ckpt);
    return ckpt;
}

static inline bool folder_is_small(const struct s2s_ckpt_plan *plan)
{
    enum { MAX_WRITTEN = 1 << 18 };
    int64_t bytes = 0;
    for (size_t i = 0; i < plan->n_targets && bytes <= MAX_WRITTEN; i++)
        bytes += s2s_ckpt_target_bytes(&plan->targets[i]);
    return bytes <= MAX_WRITTEN;
}

/* What was written at path is read again, and has what the plan says under `prefix`. */
static inline void folder_demand_written(const char *path, const struct s2s_ckpt_plan *plan,
                                         const char *prefix)
{
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_ckpt *ckpt;
    size_t n;
    if (s2s_ckpt_open(&ckpt, path, &err) < 0)
        S2S_BUG("what was written cannot be read: %s", err.text);
    for (size_t i = 0; i < plan->n_targets; i++) {
        const struct s2s_ckpt_target *target = &plan->targets[i];
        char *name = s2s_xasprintf("%s%s", prefix, s2s_ckpt_target_name(target));
        const struct s2s_ckpt_tensor *t = s2s_ckpt_find(ckpt, name);
        if (!t || t->dtype != target->dtype || t->n_dims != target->n_dims ||
            memcmp(t->shape, s2s_ckpt_target_shape(target), (size_t)t->n_dims * sizeof *t->shape) !=
                0)
            S2S_BUG("%s is not what was planned", name);
        if (s2s_ckpt_verify_tensor(ckpt, t, &err) < 0)
            S2S_BUG("%s", err.text);
        free(name);
    }
    if (s2s_ckpt_verify_manifest(ckpt, NULL, &n, &err) < 0)
        S2S_BUG("%s", err.text);
    s2s_ckpt_close(ckpt);
}

/* A copy as torch_dist; data may be refused while it is read. */
static inline void folder_reshard(struct s2s_ckpt *ckpt, int64_t n_files)
{
    const struct s2s_ckpt_write how = {.n_files = n_files};
    struct s2s_ckpt_plan plan = {.source = ckpt};
    struct s2s_error err = S2S_ERROR_INIT;
    size_t n;
    const struct s2s_ckpt_tensor *tensors = s2s_ckpt_tensors(ckpt, &n);
    char *out = folder_out();
    for (size_t i = 0; i < n; i++)
        s2s_ckpt_plan_copy(&plan, tensors[i].name, &tensors[i]);
    if (s2s_ckpt_plan_seal(&plan, &err) == 0 && folder_is_small(&plan) &&
        s2s_ckpt_write_dist(&plan, out, &how, &err) == 0)
        folder_demand_written(out, &plan, "");
    s2s_ckpt_plan_release(&plan);
    s2s_ckpt_remove_tree(out, NULL);
    free(out);
}

/* Plans the conversion to Hugging Face's names; S2S_DTYPE_NONE keeps dtypes. */
static inline void folder_plan_hf(struct s2s_ckpt *ckpt, enum s2s_dtype dtype)
{
    const struct s2s_hf_options options = {.dtype = dtype};
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_hf_output out;
    s2s_hf_prepare(&out, ckpt, &options, &err);
    s2s_hf_release(&out);
}

/* Plans a copy whose layers are named otherwise. */
static inline void folder_plan_layers(struct s2s_ckpt *ckpt, enum ckpt_layers how)
{
    struct s2s_ckpt_plan plan = {.source = ckpt};
    struct s2s_error err = S2S_ERROR_INIT;
    size_t n, n_changed;
    const struct s2s_ckpt_tensor *tensors = s2s_ckpt_tensors(ckpt, &n);
    for (size_t i = 0; i < n; i++)
        s2s_ckpt_plan_copy(&plan, tensors[i].name, &tensors[i]);
    int rc = s2s_ckpt_plan_layers(&plan, how, &n_changed, &err);
    folder_demand(rc, &err);
    if (rc == 0)
        s2s_ckpt_plan_seal(&plan, &err);
    s2s_ckpt_plan_release(&plan);
}

static inline void folder_plan_nemo(struct s2s_ckpt *ckpt)
{
    const struct s2s_nemo_options options = {.without_tokenizer = true};
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_nemo_output out;
    s2s_nemo_prepare(&out, ckpt, &options, &err);
    s2s_nemo_release(&out);
}

#endif
