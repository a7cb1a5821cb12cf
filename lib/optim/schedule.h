/*
 * Learning rate and weight decay as functions of a counter: optimizer steps, samples, or a share of
 * the time that may be spent. Pure, in double. Megatron's OptimizerParamScheduler and the NeMo
 * schedulers of the same names; tests/oracle/models/lr_schedules pins both to 1e-12.
 *
 * Megatron: the first update uses counter 0, so with warm-up from 0 it changes nothing. NeMo: the
 * warm-up begins at lr / (warmup + 1).
 */
#ifndef S2S_OPTIM_SCHEDULE_H
#define S2S_OPTIM_SCHEDULE_H

struct s2s_conf;
struct s2s_error;

enum s2s_schedule_kind {
    S2S_SCHEDULE_CONSTANT,
    S2S_SCHEDULE_LINEAR,
    S2S_SCHEDULE_COSINE,
    S2S_SCHEDULE_INVERSE_SQRT,
    S2S_SCHEDULE_WSD,
    S2S_SCHEDULE_NEMO_COSINE,       /* CosineAnnealing */
    S2S_SCHEDULE_NEMO_INVERSE_SQRT, /* InverseSquareRootAnnealing */
    S2S_SCHEDULE_NEMO_HOLD_SQRT,    /* WarmupHoldAnnealOneMinusSquareRoot */
};

/* How WSD (warm-up, stable, decay) goes down. */
enum s2s_wsd_style { S2S_WSD_LINEAR, S2S_WSD_COSINE, S2S_WSD_EXPONENTIAL, S2S_WSD_MINUS_SQRT };

enum s2s_wd_style { S2S_WD_CONSTANT, S2S_WD_LINEAR, S2S_WD_COSINE };

/* NULL-ended lists of the names of the enums: "constant", "linear", .. */
extern const char *const s2s_schedule_names[];
extern const char *const s2s_wsd_names[];
extern const char *const s2s_wd_names[];

/* Counters are in whatever unit the caller counts. */
struct s2s_schedule {
    enum s2s_schedule_kind kind;
    double max_lr, min_lr, init_lr; /* init_lr: where Megatron's warm-up begins */
    double warmup, decay;           /* decay: where the curve ends, counted from 0 */
    double wsd;                     /* length of WSD's last part */
    enum s2s_wsd_style wsd_style;
    double hold; /* NeMo: constant_steps, hold_steps */
    double start_wd, end_wd, wd_steps;
    enum s2s_wd_style wd_style;
};

double s2s_schedule_lr(const struct s2s_schedule *schedule, double count);
/* The rate of parameters that learn lr_mult times as fast, and whose schedule ends at min_lr. */
double s2s_schedule_own_lr(const struct s2s_schedule *schedule, double count, double lr_mult,
                           double min_lr);
double s2s_schedule_wd(const struct s2s_schedule *schedule, double count);

/* RANGE when warm-up, decay and the rest do not fit each other; names them as the recipe does. */
int s2s_schedule_check(const struct s2s_schedule *schedule, struct s2s_error *err);

/*
 * The section `schedule` of a recipe (may be NULL: constant), with the optimizer's learning rate
 * and weight decay. decay_default is used where decay_steps is not given.
 */
int s2s_schedule_read(struct s2s_schedule *schedule, const struct s2s_conf *conf, double lr,
                      double weight_decay, double decay_default, struct s2s_error *err);

#endif
