/* Computes and checks schedules of learning rate and weight decay. */
#include "lib/optim/schedule.h"

#include <math.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/error.h"
#include "lib/conf/conf.h"

const char *const s2s_schedule_names[] = {
    "constant",          "linear",         "cosine", "inverse_sqrt", "wsd", "nemo_cosine",
    "nemo_inverse_sqrt", "nemo_hold_sqrt", NULL};
const char *const s2s_wsd_names[] = {"linear", "cosine", "exponential", "minus_sqrt", NULL};
const char *const s2s_wd_names[] = {"constant", "linear", "cosine", NULL};

/* ---- Megatron (models.md gives the formulas of core/optimizer_param_scheduler.py) ---- */

static double wsd_share(const struct s2s_schedule *s, double c)
{
    const double begin = s->decay - s->wsd;
    if (c <= begin)
        return 1;
    const double y = (c - begin) / s->wsd;
    switch (s->wsd_style) {
    case S2S_WSD_LINEAR:
        return 1 - y;
    case S2S_WSD_COSINE:
        return 0.5 * (cos(M_PI * y) + 1);
    case S2S_WSD_EXPONENTIAL:
        return 2 * pow(0.5, y) - 1;
    case S2S_WSD_MINUS_SQRT:
        return 1 - sqrt(y);
    }
    return 1;
}

static double megatron_lr(const struct s2s_schedule *s, double c)
{
    if (s->warmup > 0 && c <= s->warmup)
        return s->init_lr + (s->max_lr - s->init_lr) * c / s->warmup;
    if (s->kind == S2S_SCHEDULE_CONSTANT)
        return s->max_lr;
    if (c > s->decay)
        return s->min_lr;
    if (s->kind == S2S_SCHEDULE_INVERSE_SQRT)
        return fmax(s->min_lr, s->max_lr * sqrt(fmax(s->warmup, 1)) / sqrt(fmax(c, 1)));
    const double x = s->decay > s->warmup ? (c - s->warmup) / (s->decay - s->warmup) : 1;
    const double share = s->kind == S2S_SCHEDULE_LINEAR   ? 1 - x
                         : s->kind == S2S_SCHEDULE_COSINE ? 0.5 * (cos(M_PI * x) + 1)
                                                          : wsd_share(s, c);
    return s->min_lr + share * (s->max_lr - s->min_lr);
}

/* ---- NeMo (nemo/core/optim/lr_scheduler.py) ---- */

static double nemo_lr(const struct s2s_schedule *s, double t)
{
    if (s->warmup > 0 && t <= s->warmup)
        return s->kind == S2S_SCHEDULE_NEMO_COSINE && s->hold > 0
                   ? s->max_lr * t / s->warmup
                   : s->max_lr * (t + 1) / (s->warmup + 1);
    if (s->kind == S2S_SCHEDULE_NEMO_HOLD_SQRT && t < s->warmup + s->hold)
        return s->max_lr;
    if (t > s->decay)
        return s->min_lr;
    if (s->kind == S2S_SCHEDULE_NEMO_INVERSE_SQRT)
        return s->max_lr * sqrt((s->warmup + 1) / (t + 1));
    const double span = s->max_lr - s->min_lr;
    const double tail = s->decay - s->warmup - s->hold;
    if (s->kind == S2S_SCHEDULE_NEMO_HOLD_SQRT)
        return fmax(s->min_lr, s->max_lr * (1 - sqrt((t - s->warmup - s->hold) / tail)));
    const double x = (t - s->warmup) / tail;
    return x > 1 && s->hold > 0 ? s->min_lr : s->min_lr + span * 0.5 * (1 + cos(M_PI * x));
}

double s2s_schedule_lr(const struct s2s_schedule *s, double count)
{
    return s->kind >= S2S_SCHEDULE_NEMO_COSINE ? nemo_lr(s, count) : megatron_lr(s, count);
}

double s2s_schedule_own_lr(const struct s2s_schedule *s, double count, double lr_mult,
                           double min_lr)
{
    struct s2s_schedule own = *s;
    own.max_lr *= lr_mult;
    own.init_lr *= lr_mult;
    own.min_lr = min_lr;
    return s2s_schedule_lr(&own, count);
}

double s2s_schedule_wd(const struct s2s_schedule *s, double count)
{
    if (s->wd_style == S2S_WD_CONSTANT || count > s->wd_steps)
        return s->end_wd;
    const double x = count / s->wd_steps;
    const double share = s->wd_style == S2S_WD_LINEAR ? x : 0.5 * (cos(M_PI * (1 - x)) + 1);
    return s->start_wd + share * (s->end_wd - s->start_wd);
}

/* ---- from a recipe ---- */

int s2s_schedule_check(const struct s2s_schedule *s, struct s2s_error *err)
{
    const bool bounded = s->kind != S2S_SCHEDULE_CONSTANT;
    if (bounded && s->decay <= s->warmup)
        return s2s_error_set(err, S2S_E_RANGE,
                             "schedule: decay_steps %.15g is not more than warmup_steps %.15g",
                             s->decay, s->warmup);
    if (s->kind == S2S_SCHEDULE_WSD && (s->wsd <= 0 || s->wsd > s->decay - s->warmup))
        return s2s_error_set(err, S2S_E_RANGE,
                             "schedule: wsd_steps %.15g is not between 1 and the %.15g steps from "
                             "the end of the warm-up to decay_steps",
                             s->wsd, s->decay - s->warmup);
    if (s->kind >= S2S_SCHEDULE_NEMO_COSINE && s->hold >= s->decay - s->warmup && s->hold > 0)
        return s2s_error_set(err, S2S_E_RANGE,
                             "schedule: hold_steps %.15g leave nothing of the %.15g steps after "
                             "the warm-up",
                             s->hold, s->decay - s->warmup);
    if (s->min_lr > s->max_lr)
        return s2s_error_set(err, S2S_E_RANGE, "schedule: min_lr %g is above optimizer.lr %g",
                             s->min_lr, s->max_lr);
    if (s->wd_style != S2S_WD_CONSTANT && s->wd_steps <= 0)
        return s2s_error_set(err, S2S_E_RANGE, "schedule: wd_style needs wd_steps");
    return 0;
}

/* A number of at least 0 at key, or other where there is none. */
static int get_number(double *out, const struct s2s_conf *conf, const char *key, double other,
                      struct s2s_error *err)
{
    int rc = s2s_conf_get_f64_or(out, conf, key, other, err);
    if (rc == 0 && !s2s_conf_is_unset(conf, key) && !(*out >= 0 && *out < 1e300))
        return s2s_conf_error(err, S2S_E_RANGE, s2s_conf_find(conf, key),
                              "expected a number of at least 0, found %g", *out);
    return rc;
}

int s2s_schedule_read(struct s2s_schedule *s, const struct s2s_conf *conf, double lr,
                      double weight_decay, double decay_default, struct s2s_error *err)
{
    static const char *const keys[] = {
        "name",      "warmup_steps", "decay_steps",      "min_lr",   "init_lr",  "wsd_steps",
        "wsd_style", "hold_steps",   "end_weight_decay", "wd_steps", "wd_style", NULL};
    int kind = 0, wsd = 0, wd = 0;
    *s = (struct s2s_schedule){
        .max_lr = lr, .decay = decay_default, .start_wd = weight_decay, .end_wd = weight_decay};
    if (!conf)
        return 0;
    struct {
        double *out;
        const char *key;
        double other;
    } numbers[] = {
        {&s->warmup, "warmup_steps", 0}, {&s->decay, "decay_steps", decay_default},
        {&s->min_lr, "min_lr", 0},       {&s->init_lr, "init_lr", 0},
        {&s->wsd, "wsd_steps", 0},       {&s->hold, "hold_steps", 0},
        {&s->wd_steps, "wd_steps", 0},   {&s->end_wd, "end_weight_decay", weight_decay},
    };
    int rc = s2s_conf_check_keys(conf, "", keys, err);
    for (size_t i = 0; rc == 0 && i < sizeof numbers / sizeof *numbers; i++)
        rc = get_number(numbers[i].out, conf, numbers[i].key, numbers[i].other, err);
    if (rc < 0 ||
        (rc = s2s_conf_get_choice_or(&kind, conf, "name", s2s_schedule_names, 0, err)) < 0 ||
        (rc = s2s_conf_get_choice_or(&wsd, conf, "wsd_style", s2s_wsd_names, S2S_WSD_EXPONENTIAL,
                                     err)) < 0 ||
        (rc = s2s_conf_get_choice_or(&wd, conf, "wd_style", s2s_wd_names, S2S_WD_CONSTANT, err)) <
            0)
        return rc;
    s->kind = (enum s2s_schedule_kind)kind;
    s->wsd_style = (enum s2s_wsd_style)wsd;
    s->wd_style = (enum s2s_wd_style)wd;
    if (s->wd_style == S2S_WD_CONSTANT)
        s->end_wd = weight_decay;
    rc = s2s_schedule_check(s, err);
    if (rc < 0) {
        struct s2s_buf place = S2S_BUF_INIT;
        s2s_conf_add_place(&place, &conf->place);
        s2s_error_add(err, rc, "%s", place.data);
        s2s_buf_release(&place);
    }
    return rc;
}
