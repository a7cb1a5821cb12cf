/*
 * A progress line on stderr: done, rate, time left. It is redrawn in place if stderr is a terminal;
 * otherwise, only with -v, a line is added every 10 s. Silent with -q or S2S_NO_PROGRESS=1.
 * Thread-safe.
 */
#ifndef S2S_BASE_PROGRESS_H
#define S2S_BASE_PROGRESS_H

#include <stdint.h>

struct s2s_progress {
    /* "packing", "samples"; "bytes" are shown as MB, GB, ..; borrowed until s2s_progress_end */
    const char *label, *unit;
    int64_t done, total; /* total 0: unknown */
    double start_s, shown_s;
    char note[160]; /* shown after the rate, such as "loss 1.234" */
    int drawn;      /* columns drawn on the terminal */
};

void s2s_progress_begin(struct s2s_progress *progress, const char *label, const char *unit,
                        int64_t total);
void s2s_progress_add(struct s2s_progress *progress, int64_t n);
/* Sets the note and shows it with the next redraw. */
void s2s_progress_note(struct s2s_progress *progress, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
void s2s_progress_end(struct s2s_progress *progress); /* removes the line */

double s2s_now_s(void); /* monotonic clock, seconds */

#endif
