/*
 * The log of a run: log.jsonl (a line a step), eval.jsonl (a line a data set and evaluation),
 * TensorBoard events. When a run goes on from a checkpoint, lines of later steps are taken out
 * first, so that the log of a run that was killed reads like that of one that was not.
 */
#ifndef S2S_TRAIN_RUNLOG_H
#define S2S_TRAIN_RUNLOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct s2s_blame;
struct s2s_error;
struct s2s_runlog;

struct s2s_runlog_step {
    int64_t step, samples, tokens; /* samples and tokens since the run began */
    double loss, grad_norm, lr, tokens_per_s, step_s;
    bool balanced;          /* the next two are there */
    double balance, square; /* of mixtures of experts */
    int64_t peak_bytes;
    const struct s2s_blame *blame; /* NULL: the step was as any other */
    const char *answer;            /* to it: "stop", "skip", "warn" */
};

/* Steps up to and including `step` are kept. *evaluated: each of the n_sets data sets has its line
 * of that step; a run may have been killed between a save and the evaluation after it. */
int s2s_runlog_open(struct s2s_runlog **log, const char *dir, int64_t step, size_t n_sets,
                    bool *evaluated, struct s2s_error *err);
int s2s_runlog_add(struct s2s_runlog *log, const struct s2s_runlog_step *line,
                   struct s2s_error *err);
/* One data set: token_accuracy in [0,1]; wer negative: not measured. */
int s2s_runlog_eval(struct s2s_runlog *log, int64_t step, const char *name, double loss,
                    double token_accuracy, double wer, struct s2s_error *err);
int s2s_runlog_close(struct s2s_runlog *log, struct s2s_error *err); /* NULL is a no-op */

/* Draws DIR/log.jsonl's loss (and eval.jsonl's) with gnuplot; svg or png by the name's end. */
int s2s_runlog_plot(const char *dir, const char *out, struct s2s_error *err);

#endif
