/* Takes windows of long sound. */
#include "lib/data/window.h"

#include <math.h>
#include <stdlib.h>

#include "lib/audio/audio.h"
#include "lib/base/base.h"
#include "lib/data/line_json.h"

/* As compute_num_windows of Lhotse. */
int data_window_count(const struct s2s_window *window, double duration_s, struct s2s_error *err)
{
    enum { MOST = 1000000 };
    if (!(window->length_s > 0) || duration_s <= window->length_s ||
        window->which != S2S_WINDOW_EACH)
        return 1;
    const double n = ceil((duration_s - window->length_s) / window->hop_s);
    if (n >= MOST)
        return s2s_error_set(err, S2S_E_RANGE, "more than %d windows", (int)MOST);
    return (int)n + (duration_s - n * window->hop_s > 0);
}

static double begin_of(const struct s2s_window *window, int k, double duration_s)
{
    return window->which == S2S_WINDOW_EACH   ? k * window->hop_s
           : window->which == S2S_WINDOW_LAST ? duration_s - window->length_s
                                              : 0;
}

bool data_window_part(const struct s2s_window *window, int k, double *offset_s, double *duration_s)
{
    if (!(window->length_s > 0) || *duration_s <= window->length_s)
        return false;
    const double begin_s = begin_of(window, k, *duration_s);
    *offset_s += begin_s;
    *duration_s = fmin(window->length_s, *duration_s - begin_s);
    return true;
}

/* ---- cuts ---- */

static double number_of(const json_t *object, const char *key)
{
    return json_number_value(json_object_get(object, key));
}

static void set_number(json_t *object, const char *key, double value)
{
    json_object_set_new(object, key, json_real(value));
}

/* Times of Lhotse are sums of whole samples. rate 0: unknown. */
static double on_samples(double seconds, int rate_hz)
{
    return rate_hz > 0 ? (double)s2s_audio_n_samples(seconds, rate_hz) / rate_hz : seconds;
}

static int rate_of(const json_t *cut)
{
    const double rate = json_is_object(json_object_get(cut, "recording"))
                            ? number_of(json_object_get(cut, "recording"), "sampling_rate")
                            : number_of(cut, "sampling_rate");
    return rate >= 1 && rate <= INT32_MAX ? (int)rate : 0;
}

/* The share of the shorter of two spans that both have. */
static bool overlaps(double start_s, double end_s, double begin_s, double until_s)
{
    const double shared_s =
        start_s <= begin_s ? end_s - begin_s : until_s - start_s; /* of the one that is first */
    const double shorter_s = fmin(end_s - start_s, until_s - begin_s);
    return shared_s > 0 && shared_s > 0.01 * shorter_s;
}

/* Supervisions of which enough lies in [begin, until), in its time. Gives. */
static json_t *said_within(const json_t *list, double begin_s, double until_s)
{
    json_t *out = json_array();
    const json_t *one;
    size_t i;
    json_array_foreach(list, i, one)
    {
        const double start_s = number_of(one, "start");
        if (!overlaps(start_s, start_s + number_of(one, "duration"), begin_s, until_s))
            continue;
        json_t *moved = json_copy((json_t *)one);
        set_number(moved, "start", start_s - begin_s);
        json_array_append_new(out, moved);
    }
    return out;
}

/* [begin, begin + length) of a cut that is no mix. */
static void take_part(json_t *cut, double begin_s, double length_s, int rate_hz)
{
    const double start_s = number_of(cut, "start"), duration_s = number_of(cut, "duration");
    const double end_s = on_samples(start_s, rate_hz) + on_samples(duration_s, rate_hz);
    const double from_s = on_samples(start_s, rate_hz) + on_samples(begin_s, rate_hz);
    const double part_s = fmin(on_samples(length_s, rate_hz), end_s - from_s);
    json_t *said = said_within(json_object_get(cut, "supervisions"), begin_s, begin_s + part_s);
    json_object_set_new(cut, "supervisions", said);
    if (json_object_get(cut, "start") || begin_s > 0)
        set_number(cut, "start", from_s);
    set_number(cut, "duration", part_s);
}

/* The same of a mix: of each track what lies in it. Gives the new list. */
static json_t *tracks_within(const json_t *tracks, double begin_s, double length_s)
{
    json_t *out = json_array();
    const json_t *track;
    size_t i;
    json_array_foreach(tracks, i, track)
    {
        const json_t *cut = json_object_get(track, "cut");
        const double offset_s = number_of(track, "offset"), own_s = number_of(cut, "duration");
        const double cut_off_s = fmax(begin_s - offset_s, 0);
        const double end_s = fmin(offset_s + own_s, begin_s + length_s);
        const double part_s = end_s - offset_s - cut_off_s;
        if (part_s <= 1e-9)
            continue;
        json_t *part = json_copy((json_t *)track), *inner = json_copy((json_t *)cut);
        take_part(inner, cut_off_s, part_s, rate_of(cut));
        json_object_set_new(part, "cut", inner);
        set_number(part, "offset", fmax(offset_s - begin_s, 0));
        json_array_append_new(out, part);
    }
    return out;
}

static double duration_of(const json_t *cut)
{
    const json_t *tracks = json_object_get(cut, "tracks"), *track;
    double end_s = 0;
    size_t i;
    if (!json_is_array(tracks))
        return number_of(cut, "duration");
    json_array_foreach(tracks, i, track) if (!json_is_true(json_object_get(track, "mute"))) end_s =
        fmax(end_s,
             number_of(track, "offset") + number_of(json_object_get(track, "cut"), "duration"));
    return round(end_s * 1e8) / 1e8;
}

/* Windows of a cut, and those in which something is said. */
struct marks {
    const struct s2s_window *window;
    double whole_s;
    uint8_t *said; /* [n] */
    int n;
};

static int within(double i, int n)
{
    return i < 0 ? 0 : i > n - 1 ? n - 1 : (int)i;
}

/* Marks the windows that have supervisions of a cut that lies at offset_s and lasts own_s. */
static void mark(const struct marks *marks, const json_t *list, double offset_s, double own_s)
{
    const struct s2s_window *w = marks->window;
    const json_t *one;
    size_t i;
    json_array_foreach(list, i, one)
    {
        const double start_s = number_of(one, "start"),
                     end_s = start_s + number_of(one, "duration");
        const bool every = w->which == S2S_WINDOW_EACH;
        const int first =
            every ? within(floor((offset_s + start_s - w->length_s) / w->hop_s), marks->n) : 0;
        const int last = every ? within(ceil((offset_s + end_s) / w->hop_s), marks->n) : 0;
        for (int k = first; k <= last; k++) {
            double begin_s = 0, length_s = marks->whole_s;
            data_window_part(w, k, &begin_s, &length_s);
            const double from_s = fmax(begin_s - offset_s, 0);
            const double until_s = fmin(begin_s + length_s - offset_s, own_s);
            marks->said[k] |= until_s > from_s && overlaps(start_s, end_s, from_s, until_s);
        }
    }
}

static void mark_all(const struct marks *marks, const json_t *cut)
{
    const json_t *tracks = json_object_get(cut, "tracks"), *track;
    size_t i;
    mark(marks, json_object_get(cut, "supervisions"), 0, marks->whole_s);
    json_array_foreach(tracks, i, track)
    {
        const json_t *inner = json_object_get(track, "cut");
        if (!json_is_true(json_object_get(track, "mute")))
            mark(marks, json_object_get(inner, "supervisions"), number_of(track, "offset"),
                 number_of(inner, "duration"));
    }
}

/* The cut's object as that of [begin, begin + length). Gives. */
static json_t *part_of(const json_t *cut, double begin_s, double length_s)
{
    json_t *part = json_copy((json_t *)cut);
    if (json_is_array(json_object_get(cut, "tracks"))) {
        json_object_set_new(part, "tracks",
                            tracks_within(json_object_get(cut, "tracks"), begin_s, length_s));
        json_t *said =
            said_within(json_object_get(cut, "supervisions"), begin_s, begin_s + length_s);
        json_object_set_new(part, "supervisions", said);
    } else {
        take_part(part, begin_s, length_s, rate_of(cut));
    }
    return part;
}

static void name_part(json_t *part, double begin_s, double length_s)
{
    const char *id = json_string_value(json_object_get(part, "id"));
    char *name = s2s_xasprintf("%s-%06.0f-%06.0f", id ? id : "", nearbyint(begin_s * 1e2),
                               nearbyint(length_s * 1e2));
    json_object_set_new(part, "id", json_string(name));
    free(name);
}

/* Makes the cut that of window i. */
static void become_part(json_t *cut, const struct s2s_window *window, int i, double whole_s)
{
    double begin_s = 0, length_s = whole_s;
    data_window_part(window, i, &begin_s, &length_s);
    json_t *part = part_of(cut, begin_s, length_s);
    name_part(part, begin_s, length_s);
    json_object_update(cut, part);
    json_decref(part);
}

int data_window_cut(json_t *cut, const struct s2s_window *window, int k, struct s2s_error *err)
{
    const double whole_s = duration_of(cut);
    const int n = data_window_count(window, whole_s, err);
    int n_said = 0, found = -1;
    if (n < 0 || !(window->length_s > 0) || whole_s <= window->length_s)
        return n;
    const struct marks marks = {window, whole_s, s2s_xcalloc((size_t)n, 1), n};
    mark_all(&marks, cut);
    for (int i = 0; i < n; i++) {
        found = marks.said[i] && n_said == k ? i : found;
        n_said += marks.said[i];
    }
    free(marks.said);
    if (n_said > 0 && found < 0)
        return s2s_error_set(err, S2S_E_RANGE, "there is no window %d", k);
    become_part(cut, window, found < 0 ? 0 : found, whole_s);
    return n_said > 0 ? n_said : 1;
}
