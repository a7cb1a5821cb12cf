/*
 * What loss and gradient norm usually are: the medians of the last steps that were taken. A step
 * whose loss or norm is more than a multiple of its median is a spike. Nothing is one before so
 * many steps are known.
 */
#ifndef S2S_TRAIN_USUAL_H
#define S2S_TRAIN_USUAL_H

#include <stdbool.h>
#include <stdint.h>

#include <jansson.h>

struct s2s_buf;

enum { S2S_USUAL_MAX = 1024 };

/* What becomes of a step whose loss or gradient norm is no number, or a spike. */
enum s2s_answer {
    S2S_STOP, /* RANGE, and nothing was changed */
    S2S_SKIP, /* nothing is changed: weights, moments, statistics; a warning */
    S2S_WARN, /* it is as any other */
    S2S_OFF,  /* nobody looks */
};

struct s2s_usual {
    int64_t window; /* steps; 1 .. S2S_USUAL_MAX */
    double factor;
    int64_t n; /* steps that were added, of which the last `window` are kept */
    double loss[S2S_USUAL_MAX], norm[S2S_USUAL_MAX];
};

void s2s_usual_add(struct s2s_usual *usual, double loss, double norm);
/* Of finite numbers. Says in `what` (NULL: it does not) which is how far above its median. */
bool s2s_usual_is_spike(const struct s2s_usual *usual, double loss, double norm,
                        struct s2s_buf *what);

/* The steps that are kept, oldest first: [[loss, norm], ..]. Gives a reference. */
json_t *s2s_usual_describe(const struct s2s_usual *usual);
/* Adds those of another run, described so; anything else is nothing. */
void s2s_usual_restore(struct s2s_usual *usual, const json_t *steps);

#endif
