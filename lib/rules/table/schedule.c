/* What a recipe may say of its schedule: what lib/optim/schedule.c refuses, and what never ends. */
#include "lib/rules/rules_internal.h"

#define S2S S2S_DIALECT_S2S
#define ERROR S2S_SEVERITY_ERROR

#define NOT_NEGATIVE(name, condition) \
    { \
        .id = "S2S-TRN-015", .dialects = S2S, .severity = ERROR, .when = condition, .at = name, \
        .message = "{@" name "} {" name "}", .fix = "use a number of at least 0", \
        .why = "Lengths, learning rates and decays of a schedule are such.", \
        .source = "doc/RECIPE.md", \
    }

const struct s2s_rule rules_trn_schedule[] = {
    NOT_NEGATIVE("init_lr", "not (init_lr >= 0 and init_lr < 1e300)"),
    NOT_NEGATIVE("min_lr", "not (min_lr < 0) and not (min_lr >= 0 and min_lr < 1e300)"),
    NOT_NEGATIVE("end_wd", "not (end_wd >= 0 and end_wd < 1e300)"),
    NOT_NEGATIVE("wd_steps", "wd_steps < 0"),
    NOT_NEGATIVE("hold", "hold < 0"),
    NOT_NEGATIVE("wsd", "wsd < 0"),
    NOT_NEGATIVE("decay", "decay < 0"),
    {
        .id = "S2S-TRN-015",
        .dialects = S2S,
        .severity = ERROR,
        .when = "wsd_style not in (null, 'linear', 'cosine', 'exponential', 'minus_sqrt')",
        .at = "wsd_style",
        .message = "wsd_style '{wsd_style}' is none that s2s-train has",
        .fix = "use linear, cosine, exponential or minus_sqrt",
        .why = "Names are compared as they are written.",
        .source = "doc/RECIPE.md",
    },
    {
        .id = "S2S-TRN-015",
        .dialects = S2S,
        .severity = ERROR,
        .when = "wd_style not in ('constant', 'linear', 'cosine')",
        .at = "wd_style",
        .message = "wd_style '{wd_style}' is none that s2s-train has",
        .fix = "use constant, linear or cosine",
        .why = "Names are compared as they are written.",
        .source = "doc/RECIPE.md",
    },
    {
        .id = "S2S-TRN-015",
        .dialects = S2S,
        .severity = ERROR,
        .when = "wd_style in ('linear', 'cosine') and wd_steps == 0",
        .at = "wd_style",
        .message = "wd_style {wd_style} without wd_steps",
        .fix = "say in how many steps the weight decay changes: schedule.wd_steps",
        .why = "The weight decay goes from one value to the other in that many steps.",
        .source = "doc/RECIPE.md",
    },
    {
        .id = "S2S-TRN-015",
        .dialects = S2S,
        .severity = ERROR,
        .when = "decay == 0 and schedule != 'constant'",
        .at = "decay",
        .message = "a {schedule} schedule of 0 steps",
        .fix = "give decay_steps, or leave it out to end with the run",
        .why = "Nothing would be left of it.",
        .source = "doc/RECIPE.md",
    },
    {
        .id = "S2S-TRN-015",
        .dialects = S2S,
        .severity = ERROR,
        .when = "starts(schedule, 'nemo') and hold > 0 and hold >= decay_end - warmup",
        .at = "hold",
        .message = "hold_steps {hold} leave nothing of the {decay_end - warmup} steps after the "
                   "warmup",
        .fix = "use a shorter hold or a longer decay",
        .why = "The decay counts from the start and includes warmup and hold.",
        .source = "nemo/core/optim/lr_scheduler.py",
    },
    {
        .id = "S2S-TRN-016",
        .dialects = S2S,
        .severity = ERROR,
        .when = "decay == null and not set(steps) and ((max_seconds == 0 and schedule not in "
                "('constant', 'inverse_sqrt', 'nemo_inverse_sqrt')) or (max_seconds > 0 and "
                "(warmup > 0 or hold > 0 or schedule == 'wsd')))",
        .at = "schedule",
        .message = "a {schedule} schedule whose end is not known: neither schedule.decay_steps nor "
                   "train.steps is given",
        .fix = "give schedule.decay_steps",
        .why = "The learning rate goes down to the end of the schedule, which is that of the run "
               "unless decay_steps says otherwise; where time ends the run, the lengths of the "
               "schedule's parts are shares of it.",
        .source = "doc/RECIPE.md",
    },
    RULES_END,
};
