/* Parts of long sound that are samples of their own. */
#ifndef S2S_DATA_WINDOW_H
#define S2S_DATA_WINDOW_H

#include <stdbool.h>

#include <jansson.h>

struct s2s_error;

/*
 * What is longer than length_s becomes windows of that length, one every hop_s seconds, of which
 * the last may be shorter; or its first or last length_s seconds alone.
 * Source: cut_into_windows and truncate of Lhotse's CutSet.
 */
struct s2s_window {
    double length_s; /* 0: sound stays whole */
    double hop_s;    /* of S2S_WINDOW_EACH */
    enum s2s_window_which { S2S_WINDOW_EACH, S2S_WINDOW_FIRST, S2S_WINDOW_LAST } which;
};

/* How many windows sound of duration_s has, at least one. RANGE: more than a million. */
int data_window_count(const struct s2s_window *window, double duration_s, struct s2s_error *err);
/* Window k of them. True: it is a part, and *offset_s and *duration_s, in which the whole is given,
 * become that part's. False: nothing is cut. */
bool data_window_part(const struct s2s_window *window, int k, double *offset_s, double *duration_s);

/*
 * Makes an object of a cut that of its k-th window in which something is said: its times, tracks,
 * supervisions (those of which more than a hundredth lies in it, whole), and its id, with the
 * window's begin and length in hundredths of a second behind it. Returns the number of such
 * windows; 1 where nothing is cut, or nothing is said (the cut is then its first window). RANGE.
 */
int data_window_cut(json_t *cut, const struct s2s_window *window, int k, struct s2s_error *err);

#endif
