/* What is said in Lhotse's cuts, and beside them. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/base.h"
#include "lib/data/cut.h"
#include "lib/data/line_json.h"

struct piece {
    double start_s, end_s;
    const json_t *supervision;
    size_t idx;
};

static int by_start(const void *a, const void *b)
{
    const struct piece *x = a, *y = b;
    if (x->start_s != y->start_s)
        return x->start_s < y->start_s ? -1 : 1;
    return x->idx < y->idx ? -1 : x->idx > y->idx;
}

struct pieces {
    struct piece *all;
    size_t n, cap;
};

static int add_pieces(struct pieces *pieces, const json_t *cut, double offset_s,
                      struct s2s_error *err)
{
    const json_t *list = json_object_get(cut, "supervisions"), *one;
    size_t i;
    if (list && !json_is_null(list) && !json_is_array(list))
        return s2s_error_set(err, S2S_E_FORMAT, "'supervisions' is no list");
    json_array_foreach(list, i, one)
    {
        if (!json_is_object(one))
            return s2s_error_set(err, S2S_E_FORMAT, "'supervisions[%zu]' is no map", i);
        const double start_s = offset_s + json_number_value(json_object_get(one, "start"));
        const double end_s = start_s + json_number_value(json_object_get(one, "duration"));
        s2s_grow(&pieces->all, pieces->n, &pieces->cap, sizeof *pieces->all);
        pieces->all[pieces->n] = (struct piece){start_s, end_s, one, pieces->n};
        pieces->n++;
    }
    return 0;
}

static int collect(struct pieces *pieces, const json_t *cut, struct s2s_error *err)
{
    const json_t *tracks = json_object_get(cut, "tracks"), *track;
    size_t i;
    int rc = add_pieces(pieces, cut, 0, err);
    json_array_foreach(tracks, i,
                       track) if (rc == 0 && !json_is_true(json_object_get(track, "mute"))) rc =
        add_pieces(pieces, json_object_get(track, "cut"),
                   json_number_value(json_object_get(track, "offset")), err);
    return rc;
}

/* Texts with a space between them. */
static int append_text(char **text, const json_t *supervision, struct s2s_error *err)
{
    char *more = NULL;
    int rc = data_get_string(&more, supervision, "text", err);
    if (rc <= 0)
        return rc;
    char *both = *text && **text && *more ? s2s_xasprintf("%s %s", *text, more)
                                          : s2s_xstrdup(*text && **text ? *text : more);
    free(more);
    free(*text);
    *text = both;
    return 0;
}

int s2s_cut_words(struct s2s_cut_words *words, const json_t *cut, struct s2s_error *err)
{
    /* ends of aligned words are often some milliseconds late */
    static const double overlap_s = 0.1;
    struct pieces pieces = {.all = NULL};
    *words = (struct s2s_cut_words){.text = NULL};
    int rc = collect(&pieces, cut, err);
    if (pieces.n > 1)
        qsort(pieces.all, pieces.n, sizeof *pieces.all, by_start);
    for (size_t i = 0; rc == 0 && i + 1 < pieces.n; i++)
        if (pieces.all[i].end_s > pieces.all[i + 1].start_s + overlap_s) {
            rc = s2s_error_set(err, S2S_E_UNSUPPORTED,
                               "%zu supervisions, of which some overlap: their texts have no order",
                               pieces.n);
            s2s_error_hint(err, rc, "cut it up with cuts.trim_to_supervisions()");
        }
    for (size_t i = 0; rc == 0 && i < pieces.n; i++)
        rc = append_text(&words->text, pieces.all[i].supervision, err);
    if (rc == 0 && pieces.n > 0)
        rc = data_get_string(&words->lang, pieces.all[0].supervision, "language", err);
    if (rc >= 0 && pieces.n > 0)
        rc = data_get_string(&words->speaker, pieces.all[0].supervision, "speaker", err);
    free(pieces.all);
    if (rc >= 0)
        return 0;
    free(words->text);
    free(words->lang);
    free(words->speaker);
    return rc;
}

/* Length of <|digits|> at the beginning of text; 0: it is none. */
static size_t time_stamp(const char *text)
{
    if (strncmp(text, "<|", 2) != 0)
        return 0;
    const size_t n = strspn(text + 2, "0123456789");
    return n > 0 && !strncmp(text + 2 + n, "|>", 2) ? n + 4 : 0;
}

/* Length of one white space of Unicode, as Python's \s has it; 0: it is none. */
static size_t white_space(const char *text)
{
    static const char *const wide[] = {"\u00a0", "\xc2\x85", "\u1680", "\u2000", "\u2001",
                                       "\u2002", "\u2003",   "\u2004", "\u2005", "\u2006",
                                       "\u2007", "\u2008",   "\u2009", "\u200a", "\u2028",
                                       "\u2029", "\u202f",   "\u205f", "\u3000"};
    const unsigned char c = (unsigned char)*text;
    if (c < 128)
        return isspace(c) || (c >= 0x1c && c <= 0x1f);
    for (size_t i = 0; i < sizeof wide / sizeof *wide; i++)
        if (!strncmp(text, wide[i], strlen(wide[i])))
            return strlen(wide[i]);
    return 0;
}

void s2s_data_clean_text(struct s2s_buf *to, const char *text)
{
    struct s2s_buf bare = S2S_BUF_INIT;
    bool space = false;
    for (size_t n; *text; text += n) {
        n = time_stamp(text);
        if (n == 0)
            s2s_buf_add(&bare, text, n = 1);
    }
    for (const char *c = bare.data ? bare.data : "", *end = c + bare.len; c < end;) {
        const size_t n = white_space(c);
        space |= n > 0 && to->len > 0;
        if (n == 0 && space)
            s2s_buf_putc(to, ' ');
        if (n == 0)
            s2s_buf_putc(to, *c);
        space &= n > 0;
        c += n > 0 ? n : 1;
    }
    s2s_buf_release(&bare);
}

/* A time as Lhotse rounds it. */
static double to_8_decimals(double seconds)
{
    char text[64];
    snprintf(text, sizeof text, "%.8f", seconds);
    return strtod(text, NULL);
}

int s2s_cut_said(struct s2s_sample *sample, const json_t *cut, struct s2s_error *err)
{
    struct pieces pieces = {.all = NULL};
    int rc = collect(&pieces, cut, err);
    for (size_t i = 0; rc >= 0 && i < pieces.n; i++) {
        const struct piece *piece = &pieces.all[i];
        s2s_grow(&sample->said, sample->n_said, &sample->cap_said, sizeof *sample->said);
        struct s2s_said *said = &sample->said[sample->n_said++];
        *said = (struct s2s_said){.start_s = piece->start_s, .end_s = to_8_decimals(piece->end_s)};
        if (!(said->start_s >= 0 && said->end_s >= said->start_s))
            rc = s2s_error_set(err, S2S_E_RANGE, "supervision %zu is from %g s to %g s", i,
                               said->start_s, said->end_s);
        if (rc >= 0)
            rc = data_get_string(&said->speaker, piece->supervision, "speaker", err);
        if (rc >= 0)
            rc = data_get_string(&said->text, piece->supervision, "text", err);
    }
    free(pieces.all);
    return rc < 0 ? rc : 0;
}

json_t *s2s_cut_custom(const json_t *cut)
{
    const json_t *tracks = json_object_get(cut, "tracks"), *track;
    json_t *custom = json_object();
    size_t i;
    json_object_update(custom, json_object_get(cut, "custom"));
    json_array_foreach(tracks, i, track) if (!json_is_true(json_object_get(track, "mute")))
        json_object_update(custom, json_object_get(json_object_get(track, "cut"), "custom"));
    if (json_object_size(custom) > 0)
        return custom;
    json_decref(custom);
    return NULL;
}
