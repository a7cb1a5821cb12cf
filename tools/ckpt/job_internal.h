/* The parts of a job (job.c): inputs, outputs, and output folders that appear complete or not at
 * all. */
#ifndef CKPT_JOB_INTERNAL_H
#define CKPT_JOB_INTERNAL_H

#include "lib/ckpt/plan.h"
#include "tools/ckpt/job.h"

struct job {
    const struct ckpt_job_options *opt;
    char *out; /* opt->out without trailing slashes */
    struct s2s_ckpt *ckpt, **others;
    size_t n_others;
    enum ckpt_output to;
    json_t *config, *common, *metadata;
    char *config_text;
    char *config_path;   /* the file of --config, or NULL */
    char (*sources)[33]; /* s2s_ckpt_identity of each input when opened */
    struct s2s_ckpt_write how;
    struct s2s_progress progress;
    char family[64];           /* the name map used; "": names are kept */
    size_t n_tensors, n_shown; /* tensors of the output; of those, shown by --plan */
    size_t n_state;            /* number of tensors of optimizer and other state left out: */
    /* those whose names satisfy this; NULL: none */
    bool (*is_left)(const char *name);
    struct ckpt_map_names unused, dropped; /* weights that the output does not contain */
    int64_t bytes, rows_cut;               /* bytes of the output; padding rows removed */
    int64_t n_infinite;                    /* values that the cast made infinite */
    int temp; /* number of the folder that is written in lib/io/temps.h; -1: none */
};

bool ckpt_job_is_weight(const char *name);
/* From now on termination signals (lib/base/signals.h) do not end the program but make writing
 * fail, so that it can clean up. An ignored signal stays ignored. */
void ckpt_job_catch_signals(void);
/* From now on SIGPIPE ends the program again, if the reader of its report is gone: nothing is left
 * to clean up. */
void ckpt_job_mind_readers(void);

/* ---- inputs (job_input.c) ---- */

/* Opens the inputs; sets ckpt, others, sources and to. Refuses inputs that this job cannot process,
 * before anything is written. */
int ckpt_job_open(struct job *job, struct s2s_error *err);
/* Reads --config, if given: sets config (JSON), config_text and config_path. OPEN, IO, FORMAT. */
int ckpt_job_read_config(struct job *job, struct s2s_error *err);
/* Frees job's members; also after a failure. */
void ckpt_job_close(struct job *job);
/* Checks that no input changed since it was opened, which could mix two models. IO. */
int ckpt_job_check_source(const struct job *job, struct s2s_error *err);

/* ---- outputs (job_output.c); with --plan they are only shown ---- */

bool ckpt_job_is_folder(const struct job *job); /* is OUT a folder, by `to`? */
/* Writes the output: into the folder dir, which the caller renames to OUT (each rank has its own
 * result); or, with dir NULL, the single file OUT, on one rank only. */
int ckpt_job_fill(struct job *job, const char *dir, struct s2s_error *err);

/* ---- report (job_left_out.c, job_report.c) ---- */

enum { CKPT_MAX_KINDS = 128 };

/* What the source has and the output lacks. */
struct ckpt_left_out {
    size_t n_unused, n_dropped;         /* weights */
    size_t n_unread;                    /* objects that hold tensors which no reader takes */
    size_t n_state, n_objects, n_ranks; /* tensors, objects, rank folders with an optimizer */
    size_t n_values;                    /* values of merged rank folders, such as rng_state */
    int64_t rows_cut;
    bool common;
    /* of those tensors, objects and values: names of a kind ("rng_state",
     * "optimizer.state.exp_avg.*") and their number; n_of_others: of kinds that did not fit */
    struct {
        char name[96];
        size_t n;
    } kinds[CKPT_MAX_KINDS];
    size_t n_kinds, n_of_others;
    /* the same without unused weights, which come last, as there was a warning about them */
    size_t n_kinds_told, n_more_told;
};
void ckpt_job_left_out(struct ckpt_left_out *left, const struct job *job); /* -v: logs each name */

/* Collective. Rank 0: prints the summary on stderr, with --json the object on stdout, or with
 * --plan its end. */
void ckpt_job_say_done(const struct job *job, double start_s);

/* ---- OUT is a folder (job_folder.c): beside it first, renamed when whole. Agreed. ---- */

int ckpt_job_write_folder(struct job *job, struct s2s_error *err);

#endif
