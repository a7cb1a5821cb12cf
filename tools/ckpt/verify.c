/* s2s-ckpt verify: is all there that a checkpoint says it has, with the bytes it had? */
#include <stdatomic.h>

#include "lib/base/threads.h"
#include "lib/ckpt/plan.h"
#include "lib/ckpt/write/manifest.h"
#include "lib/ckpt/write/to_hf.h"
#include "tools/ckpt/beside.h"
#include "tools/ckpt/ckpt_tool.h"

struct options {
    struct s2s_common common;
    bool strict;
    const char *path;
};

enum { KEY_STRICT = 0x100 };

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct options *opt = state->input;
    if (key != KEY_STRICT)
        return ckpt_parse_path(&opt->path, key, arg, state);
    opt->strict = true;
    return 0;
}

static const struct argp_option options[] = {
    {"strict", KEY_STRICT, NULL, 0, "Also fail if tensors have neither checksum nor manifest", 1},
    {0},
};

static const struct argp argp = {
    options,
    parse,
    "PATH",
    "Read a whole checkpoint and check that every file is there, that its pieces cover each tensor "
    "exactly, that headers, metadata, checksums and manifests (s2s-manifest.json, integrity.json) "
    "agree, and that no pickle asks for code. Stops at the first fault, with exit status "
    "1.\vExamples:\n"
    "  s2s-ckpt verify checkpoints/\n\n"
    "See also: s2s-ckpt(1)",
    NULL,
    NULL,
    NULL};

struct counts {
    size_t n_tensors, n_objects, n_files, n_unchecked;
    size_t n_unread;    /* objects with tensors that cannot be read */
    size_t n_unvouched; /* files with such tensors and without checksums */
    int64_t bytes;
};

/* The manifest's digests, compared while the main thread verifies CRC-32s. */
struct digests {
    const struct s2s_ckpt *ckpt;
    struct ckpt_beside beside;
    struct s2s_progress progress;
    atomic_bool shown; /* no other progress line is on the terminal */
    _Atomic int64_t unseen_bytes;
    size_t n_files;
};

static void pass_digested(void *ctx, int64_t bytes)
{
    struct digests *d = ctx;
    atomic_fetch_add(&d->unseen_bytes, bytes);
    if (atomic_load(&d->shown))
        s2s_progress_add(&d->progress, atomic_exchange(&d->unseen_bytes, 0));
}

static int compare_digests(void *ctx, const struct s2s_ckpt_write *how, struct s2s_error *err)
{
    struct digests *d = ctx;
    return s2s_ckpt_verify_manifest(d->ckpt, how, &d->n_files, err);
}

static void begin_digests(struct digests *d, const struct s2s_ckpt *ckpt)
{
    *d = (struct digests){.ckpt = ckpt};
    s2s_progress_begin(&d->progress, "comparing digests", "bytes",
                       (int64_t)s2s_ckpt_files_bytes(ckpt));
    ckpt_beside_begin(&d->beside, compare_digests, d,
                      (struct s2s_ckpt_write){.progress = pass_digested, .ctx = d});
}

/* rc: result of the main thread; if negative, it takes precedence. */
static int end_digests(struct digests *d, int rc, struct s2s_error *err)
{
    atomic_store(&d->shown, true);
    rc = ckpt_beside_end(&d->beside, rc, err);
    s2s_progress_end(&d->progress);
    return rc;
}

static void add_progress(void *ctx, int64_t bytes)
{
    s2s_progress_add(ctx, bytes);
}

/* Reads all files from start to end. */
static int read_files(struct s2s_ckpt *ckpt, struct s2s_error *err)
{
    struct s2s_progress progress;
    const struct s2s_ckpt_write how = {.progress = add_progress, .ctx = &progress};
    s2s_progress_begin(&progress, "reading", "bytes", (int64_t)s2s_ckpt_files_bytes(ckpt));
    int rc = s2s_ckpt_read_files(ckpt, &how, err);
    s2s_progress_end(&progress);
    return rc;
}

static int verify_parts(struct s2s_ckpt *ckpt, struct counts *counts, struct s2s_error *err)
{
    struct s2s_progress progress;
    const struct s2s_ckpt_tensor **tensors = s2s_ckpt_by_place(ckpt);
    const struct s2s_ckpt_object *objects = s2s_ckpt_objects(ckpt, &counts->n_objects);
    size_t n_inside = s2s_ckpt_left_values(ckpt); /* of a file whose tensors are read */
    int rc = 0;
    (void)s2s_ckpt_tensors(ckpt, &counts->n_tensors);
    counts->bytes = ckpt_tensor_bytes(ckpt);
    counts->n_unread = s2s_ckpt_left_values(ckpt);
    s2s_ckpt_find_lost(ckpt);
    s2s_progress_begin(&progress, "verifying", "bytes", counts->bytes);
    for (size_t i = 0; i < counts->n_tensors && rc == 0; i++) {
        rc = s2s_ckpt_verify_tensor(ckpt, tensors[i], err);
        counts->n_unchecked += !s2s_ckpt_has_crc(tensors[i]);
        s2s_progress_add(&progress, s2s_ckpt_bytes(tensors[i]));
    }
    free(tensors);
    for (size_t i = 0; i < counts->n_objects && rc == 0; i++) {
        rc = s2s_ckpt_verify_object(ckpt, &objects[i], err);
        counts->n_unread += objects[i].lost != NULL;
        n_inside += objects[i].lost && !objects[i].file;
        if (rc == 0 && objects[i].lost && counts->n_tensors == 0)
            rc = s2s_error_set(err, S2S_E_UNSUPPORTED,
                               "%s: %s is a %s, and no tensor is read from the file",
                               s2s_ckpt_path(ckpt), objects[i].name, objects[i].lost);
    }
    if (rc == 0 && n_inside)
        rc = s2s_ckpt_verify_archives(ckpt, &counts->n_unvouched, err);
    if (rc == 0)
        rc = s2s_ckpt_verify_copies(ckpt, err);
    if (rc == 0)
        rc = s2s_ckpt_verify_common(ckpt, err);
    s2s_progress_end(&progress);
    return rc;
}

static int verify_all(struct s2s_ckpt *ckpt, struct counts *counts, struct s2s_error *err)
{
    struct digests digests;
    begin_digests(&digests, ckpt);
    int rc = end_digests(&digests, verify_parts(ckpt, counts, err), err);
    counts->n_files = digests.n_files;
    if (rc == 0) /* a manifest may list no files */
        rc = s2s_ckpt_verify_named(ckpt, err);
    return rc == 0 && counts->n_files == 0 && counts->n_unchecked ? read_files(ckpt, err) : rc;
}

static void report(const struct options *opt, const struct s2s_ckpt *ckpt,
                   const struct counts *counts)
{
    char bytes[32];
    if (opt->common.verbosity < 0 && !opt->common.json && !opt->common.out)
        return; /* only the exit status */
    if (opt->common.json) {
        printf("{\"ok\": true, \"format\": \"%s\", \"path\": ", s2s_ckpt_format(ckpt));
        ckpt_print_json_text(s2s_ckpt_path(ckpt));
        printf(", \"tensors\": %zu, \"bytes\": %lld, \"objects\": %zu, \"manifest_files\": %zu, "
               "\"tensors_without_checksum\": %zu, \"objects_with_unread_tensors\": %zu, ",
               counts->n_tensors, (long long)counts->bytes, counts->n_objects, counts->n_files,
               counts->n_unchecked, counts->n_unread);
        ckpt_print_warnings();
        puts("}");
        return;
    }
    ckpt_print_name(s2s_ckpt_path(ckpt));
    printf(": %s, %zu tensor%s, %s, %zu object%s: complete and consistent", s2s_ckpt_format(ckpt),
           counts->n_tensors, s2s_plural(counts->n_tensors), ckpt_bytes_text(bytes, counts->bytes),
           counts->n_objects, s2s_plural(counts->n_objects));
    if (counts->n_unread)
        printf("; the tensors in %zu object%s are not read", counts->n_unread,
               s2s_plural(counts->n_unread));
    if (counts->n_files)
        printf("; %zu file%s as the manifest says", counts->n_files, s2s_plural(counts->n_files));
    else if (counts->n_unchecked)
        printf("; no manifest, and no checksum of %zu tensor%s", counts->n_unchecked,
               s2s_plural(counts->n_unchecked));
    else /* only tensors have CRC-32s, not names, shapes or configuration */
        printf("; no manifest%s", counts->n_tensors ? ", CRC-32s of all tensors are right" : "");
    putchar('\n');
}

/* Further findings: damage that cannot be detected, an incomplete model. */
static int check_strictly(const struct options *opt, struct s2s_ckpt *ckpt,
                          const struct counts *counts, struct s2s_error *err)
{
    if (opt->strict && counts->n_unchecked && !counts->n_files)
        return s2s_error_set(
            err, S2S_E_DIGEST, "%s: no manifest, and no checksum of %zu tensor%s (--strict)",
            s2s_ckpt_path(ckpt), counts->n_unchecked, s2s_plural(counts->n_unchecked));
    if (opt->strict && counts->n_unvouched && !counts->n_files)
        return s2s_error_set(err, S2S_E_DIGEST,
                             "%s: no manifest, and no checksum of the tensors in %zu object%s, "
                             "which are not read (--strict)",
                             s2s_ckpt_path(ckpt), counts->n_unread, s2s_plural(counts->n_unread));
    if (!s2s_starts_with(s2s_ckpt_format(ckpt), "hf"))
        return 0;
    int rc = s2s_ckpt_add_other_names(ckpt, err);
    if (rc == 0)
        rc = s2s_hf_check_kept(ckpt, NULL, err);
    return rc < 0 ? s2s_error_add(err, rc, "%s", s2s_ckpt_path(ckpt)) : 0;
}

/* Reports a damaged checkpoint. The file of -o is not written if it may belong to a checkpoint that
 * could not be opened. */
static void report_bad(const struct options *opt, const struct s2s_printout *to,
                       const struct s2s_error *err)
{
    const char *out = opt->common.out;
    if (!opt->common.json || (!to->out && out && strcmp(out, "-") != 0))
        return;
    printf("{\"ok\": false, \"path\": ");
    ckpt_print_json_text(opt->path);
    printf(", \"error\": ");
    ckpt_print_json_text(err->text);
    fputs(", ", stdout);
    ckpt_print_warnings();
    puts("}");
}

static int verify_opened(const struct options *opt, struct s2s_ckpt *ckpt, struct s2s_printout *to,
                         struct s2s_error *err)
{
    struct counts counts = {.bytes = 0};
    struct s2s_error late = S2S_ERROR_INIT;
    int rc = s2s_ckpt_check_ranks(ckpt, err);
    if (rc == 0)
        rc = verify_all(ckpt, &counts, err);
    if (rc == 0)
        rc = check_strictly(opt, ckpt, &counts, err);
    if (rc == 0)
        report(opt, ckpt, &counts);
    else
        report_bad(opt, to, err);
    if (rc == 0 || !opt->common.json)
        return s2s_printout_end(to, rc, err);
    s2s_printout_end(to, 0, &late); /* the checkpoint's error takes precedence */
    return rc;
}

static int verify_path(const struct options *opt, struct s2s_error *err)
{
    struct s2s_ckpt *ckpt = NULL;
    struct s2s_printout to = {.out = NULL};
    int rc = s2s_ckpt_open(&ckpt, opt->path, err);
    if (rc < 0)
        report_bad(opt, &to, err);
    else
        rc = ckpt_report_begin(&to, &opt->common, ckpt, err);
    if (rc == 0)
        rc = verify_opened(opt, ckpt, &to, err);
    s2s_ckpt_close(ckpt);
    return rc;
}

int ckpt_verify(int argc, char **argv, struct s2s_error *err)
{
    struct options opt = {.common = S2S_COMMON_DEFAULT};
    s2s_tool_parse(&argp, argc, argv, &opt);
    int rc = ckpt_launch(&opt.common, err);
    return rc < 0 ? rc : ckpt_agree(ckpt_is_first() ? verify_path(&opt, err) : 0, err);
}
