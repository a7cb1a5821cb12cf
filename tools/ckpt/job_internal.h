/* The parts of a job (job.c): reading what is asked for, the outputs, folders that appear whole. */
#ifndef CKPT_JOB_INTERNAL_H
#define CKPT_JOB_INTERNAL_H

#include "lib/ckpt/plan.h"
#include "tools/ckpt/job.h"

struct job {
    const struct ckpt_job_options *opt;
    char *out; /* opt->out without the slashes behind it */
    struct s2s_ckpt *ckpt, **others;
    size_t n_others;
    enum ckpt_output to;
    json_t *config, *common, *metadata;
    char *config_text;
    char *config_path;   /* the file of --config, or NULL */
    char (*sources)[33]; /* s2s_ckpt_identity of each input when it was opened */
    struct s2s_ckpt_write how;
    struct s2s_progress progress;
    size_t n_tensors, n_shown; /* tensors of the output; how many of them --plan has shown */
    size_t n_state;            /* how many tensors of the optimizer and other state are left out: */
    /* those for whose names this is true; NULL: none */
    bool (*is_left)(const char *name);
    struct ckpt_map_names unused, dropped; /* weights that the output does not take */
    int64_t bytes, rows_cut; /* of the output; rows past the vocabulary that are left out */
};

bool ckpt_job_is_weight(const char *name);
/* From now on the signals that ask for an end (lib/base/signals.h) do not end the program but make
 * writing fail, so that it can clean up. One that is ignored stays ignored. */
void ckpt_job_catch_signals(void);
/* From now on SIGPIPE ends the program again, when the reader of its report has left: there is
 * nothing to clean up any more. */
void ckpt_job_mind_readers(void);

/* ---- what is read (job_input.c) ---- */

/* Opens the inputs; sets ckpt, others, sources and to. What this job cannot do with them is refused
 * before anything is written. */
int ckpt_job_open(struct job *job, struct s2s_error *err);
/* --config, if it was given: sets config (JSON), config_text and config_path. OPEN, IO, FORMAT. */
int ckpt_job_read_config(struct job *job, struct s2s_error *err);
/* Frees all that job has; also after a failure. */
void ckpt_job_close(struct job *job);
/* Checks that no input was written to since it was opened, which could give half of one model and
 * half of another. IO. */
int ckpt_job_check_source(const struct job *job, struct s2s_error *err);

/* ---- the outputs (job_output.c); with --plan they only tell ---- */

bool ckpt_job_is_folder(const struct job *job); /* OUT is one, of what `to` says */
/* Writes the output: into the folder dir, which the caller then renames to OUT (each rank has its
 * own result); or, dir NULL, the single file OUT, which only one rank does. */
int ckpt_job_fill(struct job *job, const char *dir, struct s2s_error *err);

/* ---- the end (job_left_out.c, job_report.c) ---- */

enum { CKPT_MAX_KINDS = 128 };

/* What the source has and the output has not. */
struct ckpt_left_out {
    size_t n_unused, n_dropped;         /* weights */
    size_t n_state, n_objects, n_ranks; /* tensors, objects, rank folders with an optimizer */
    int64_t rows_cut;
    bool common;
    /* of those tensors and objects: how many have a name like this one ("rng_state",
     * "optimizer.state.exp_avg.*"); of how many the kind found no room */
    struct {
        char name[96];
        size_t n;
    } kinds[CKPT_MAX_KINDS];
    size_t n_kinds, n_of_others;
    /* the same without the unused weights, which come last: they were warned of */
    size_t n_kinds_told, n_more_told;
};
void ckpt_job_left_out(struct ckpt_left_out *left, const struct job *job); /* -v: says each name */

/* Rank 0: the lines on stderr, and with --json the object on stdout, or with --plan its end. */
void ckpt_job_say_done(const struct job *job, double start_s);

/* ---- OUT is a folder (job_folder.c): beside it first, renamed when whole. Agreed. ---- */

int ckpt_job_write_folder(struct job *job, struct s2s_error *err);

#endif
