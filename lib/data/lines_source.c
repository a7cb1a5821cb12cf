/* Samples that are lines of text files: manifests, cuts, conversations, texts, tokenized rows. */
#include <stdlib.h>
#include <string.h>

#include "lib/base/base.h"
#include "lib/base/pyrandom.h"
#include "lib/data/conversation.h"
#include "lib/data/line_json.h"
#include "lib/data/lines.h"
#include "lib/data/manifest.h"
#include "lib/data/source.h"
#include "lib/data/spool.h"
#include "lib/data/texts.h"
#include "lib/data/turns.h"
#include "lib/data/wrong_kind.h"
#include "lib/io/digest.h"

struct lines_source {
    struct s2s_source base;
    enum s2s_lines_kind kind;
    struct s2s_lines *files; /* [n_files] */
    size_t n_files;
    struct s2s_lines *answers; /* [n_answers], of pairs one a file; else NULL */
    size_t n_answers;
    struct data_texts questions; /* of pairs; none: n is 0 */
    struct data_fields *fields;
    struct s2s_source_options opt; /* its strings and tags are owned */
    char *text_field, *lang_field, *audio_field, *said_field;
    /* The order of files [n_files]: a walk that begins shuffles what the last one left, also under
     * one that is still going on, as upstream shuffles its list of paths in place */
    uint32_t *order;
    uint64_t epoch;
};

struct lines_walk {
    struct s2s_walk base;
    struct s2s_pyrandom random; /* of lines */
    bool drawn, in_file;
    size_t idx;                /* the place: in the source's order, */
    uint32_t part;             /* the file that was there when it was begun, */
    struct s2s_line line;      /* and its line last given, */
    struct s2s_line answer;    /* that of the other file of a pair, */
    struct s2s_line *shuffled; /* or how many of its shuffled lines [n_shuffled] are given */
    size_t n_shuffled, n_given;
    struct data_fields_walk *fields;
};

/* ---- walking ---- */

static bool is_conversation(enum s2s_lines_kind kind)
{
    return kind == S2S_LINES_CONVERSATION || kind == S2S_LINES_SHARE_GPT;
}

static struct s2s_walk *begin(struct s2s_source *base)
{
    struct lines_walk *w = s2s_xcalloc(1, sizeof *w);
    w->base.source = base;
    return &w->base;
}

/*
 * The order of files. Upstream's loaders differ: manifests and conversations add the number of the
 * epoch to the seed, texts do not; the latter two, and manifests of several files, shuffle what the
 * last epoch left, but pairs shuffle the files as they are given.
 */
static void draw(struct lines_walk *w, struct lines_source *s)
{
    const bool by_epoch = s->kind == S2S_LINES_NEMO || is_conversation(s->kind);
    w->drawn = true;
    w->fields = data_fields_begin(s->fields, s->opt.seed);
    for (size_t i = 0; s->kind == S2S_LINES_PAIRS && i < s->n_files; i++)
        s->order[i] = (uint32_t)i;
    if (s->kind == S2S_LINES_PAIRS)
        s2s_pyrandom_seed(&w->random, s->opt.seed);
    if (s->opt.shuffle && s->kind != S2S_LINES_CUTS && s->kind != S2S_LINES_TURNS &&
        s->kind != S2S_LINES_IDS) {
        s2s_pyrandom_seed(&w->random, s->opt.seed + (by_epoch ? s->epoch : 0));
        s2s_pyrandom_shuffle(&w->random, s->order, s->n_files);
    }
    s->epoch += s->kind == S2S_LINES_NEMO;
}

static void shuffle_lines(struct lines_walk *w, const struct s2s_lines *file)
{
    struct s2s_line line = {.number = 0}, *lines = NULL;
    size_t n = 0, cap = 0;
    while (s2s_lines_next(file, &line)) {
        s2s_grow(&lines, n, &cap, sizeof *lines);
        lines[n++] = line;
    }
    uint32_t *order = s2s_xmalloc((n + 1) * sizeof *order);
    for (size_t i = 0; i < n; i++)
        order[i] = (uint32_t)i;
    s2s_pyrandom_shuffle(&w->random, order, n);
    w->shuffled = s2s_xmalloc((n + 1) * sizeof *w->shuffled);
    for (size_t i = 0; i < n; i++)
        w->shuffled[i] = lines[order[i]];
    w->n_shuffled = n;
    w->n_given = 0;
    free(order);
    free(lines);
}

/* The next line of the file, in the order of this walk. */
static bool next_line(struct lines_walk *w, const struct lines_source *s,
                      const struct s2s_lines *file)
{
    /* both lines of a pair, also of one that is empty: it is drawn like others */
    if (s->kind == S2S_LINES_PAIRS)
        return s2s_lines_next_any(file, &w->line) &&
               s2s_lines_next_any(&s->answers[w->part], &w->answer);
    if (!s->opt.shuffle || !is_conversation(s->kind))
        return s2s_lines_next(file, &w->line);
    if (!w->shuffled)
        shuffle_lines(w, file);
    if (w->n_given == w->n_shuffled)
        return false;
    w->line = w->shuffled[w->n_given++];
    return true;
}

/* Is "_sk" in it? Many bytes at a time, which memmem of a short word is not. */
static bool may_have_skipme(const struct s2s_line *line)
{
    const unsigned char *t = (const unsigned char *)line->text;
    unsigned char least = 1; /* of what differs from these letters, at each place */
    for (size_t i = 0; i + 2 < line->len; i++) {
        const unsigned char differs = (t[i] ^ '_') | (t[i + 1] ^ 's') | (t[i + 2] ^ 'k');
        least = differs < least ? differs : least;
    }
    return least == 0;
}

/* Lines with _skipme are no samples. What cannot be parsed is left to `load`, which says why. */
static bool is_marked(const struct s2s_line *line)
{
    struct s2s_error ignored = S2S_ERROR_INIT;
    if (!may_have_skipme(line) || !memmem(line->text, line->len, "_skipme", 7))
        return false;
    json_t *object = data_load_object(line, &ignored);
    const json_t *custom = json_object_get(object, "custom");
    const bool marked = data_is_truthy(json_object_get(object, "_skipme")) ||
                        data_is_truthy(json_object_get(custom, "_skipme"));
    json_decref(object);
    return marked;
}

static bool may_be_marked(enum s2s_lines_kind kind)
{
    return kind != S2S_LINES_CUTS && kind != S2S_LINES_TURNS && kind != S2S_LINES_IDS &&
           kind != S2S_LINES_SHARE_GPT && kind != S2S_LINES_PAIRS && kind != S2S_LINES_TEXT;
}

static int next(struct s2s_walk *base, struct s2s_place *place, struct s2s_error *err)
{
    struct lines_walk *w = (struct lines_walk *)base;
    struct lines_source *s = (struct lines_source *)base->source;
    if (!w->drawn)
        draw(w, s);
    for (; w->idx < s->n_files; w->idx++) {
        w->part = w->in_file ? w->part : s->order[w->idx];
        w->in_file = true;
        while (next_line(w, s, &s->files[w->part])) {
            if (may_be_marked(s->kind) && is_marked(&w->line)) {
                s->base.n_marked++;
                continue;
            }
            *place = (struct s2s_place){.at = w->line.begin,
                                        .member = w->answer.begin,
                                        .line = w->line.number,
                                        .part = w->part};
            if (s->questions.n > 0)
                place->field = s2s_pyrandom_below(&w->random, (uint32_t)s->questions.n);
            int rc = data_fields_next(w->fields, &place->field, err);
            if (rc < 0)
                w->idx = s->n_files;
            return rc < 0 ? rc : 1;
        }
        w->in_file = false;
        w->line = w->answer = (struct s2s_line){.number = 0};
        free(w->shuffled);
        w->shuffled = NULL;
        s->epoch += is_conversation(s->kind) && w->idx + 1 == s->n_files;
    }
    return 0;
}

static void end(struct s2s_walk *base)
{
    struct lines_walk *w = (struct lines_walk *)base;
    free(w->shuffled);
    data_fields_end(w->fields);
    free(w);
}

/* ---- loading ---- */

static int load_ids(const struct lines_source *s, struct s2s_sample *sample,
                    const struct s2s_line *line, struct s2s_error *err)
{
    int rc = s2s_data_parse_ids(&sample->ids, line, s->opt.pad_id, err);
    if (rc < 0)
        return rc;
    sample->has_ids = true;
    sample->id = s2s_xstrdup(sample->ids.id);
    sample->text = sample->ids.text ? s2s_xstrdup(sample->ids.text) : NULL;
    return 1;
}

/* A sample of a manifest must have its transcript. */
static int with_text(struct s2s_sample *sample, int rc, struct s2s_error *err)
{
    if (rc <= 0 || sample->text)
        return rc;
    rc = s2s_error_set(err, S2S_E_FORMAT, "sample '%s' has no text", sample->id);
    if (json_is_string(json_object_get(sample->custom, "answer")))
        s2s_error_hint(err, rc, "--text-field answer takes its 'answer'");
    return rc;
}

static int parse_pair(const struct lines_source *s, struct s2s_sample *sample,
                      const struct s2s_line *line, const struct s2s_place *place,
                      struct s2s_error *err)
{
    const struct s2s_line answer =
        s2s_lines_at(&s->answers[place->part], place->member, place->line);
    size_t len = 0;
    const char *before =
        s->questions.n > 0 ? data_texts_at(&s->questions, place->field, &len) : NULL;
    return s2s_data_parse_pair(sample, line, &answer, before, len, err);
}

static int parse_line(const struct lines_source *s, struct s2s_sample *sample,
                      const struct s2s_line *line, const struct s2s_place *place,
                      struct s2s_error *err)
{
    const char *path = s->files[place->part].path;
    const struct s2s_manifest_options how = {s2s_spool_is_pipe(path) ? NULL : path,
                                             s->text_field,
                                             s->lang_field,
                                             s->audio_field,
                                             s->said_field,
                                             s->opt.window};
    switch (s->kind) {
    case S2S_LINES_NEMO:
        return with_text(sample, s2s_data_parse_nemo(sample, line, place->variant, &how, err), err);
    case S2S_LINES_CUTS:
        if (s->said_field)
            return s2s_data_parse_cut(sample, line, 0, &how, err);
        return with_text(sample, s2s_data_parse_cut(sample, line, place->variant, &how, err), err);
    case S2S_LINES_TURNS:
        return data_parse_turns(sample, line, &how, &s->opt.turns, err);
    case S2S_LINES_PAIRS:
        return parse_pair(s, sample, line, place, err);
    case S2S_LINES_CONVERSATION:
        return s2s_data_parse_conversation(sample, line, &how, err);
    case S2S_LINES_SHARE_GPT:
        return s2s_data_parse_share_gpt(sample, line, &how, s->opt.placeholders, err);
    case S2S_LINES_SFT:
        return s2s_data_parse_sft(sample, line, &how, err);
    case S2S_LINES_TEXT:
    case S2S_LINES_TEXT_JSONL:
        return s2s_data_parse_text(sample, line, s->kind == S2S_LINES_TEXT_JSONL, &how, err);
    case S2S_LINES_IDS:
        return load_ids(s, sample, line, err);
    }
    S2S_BUG("kind %d of lines", (int)s->kind);
}

static int load(const struct s2s_source *base, struct s2s_sample *sample,
                const struct s2s_place *place, struct s2s_error *err)
{
    const struct lines_source *s = (const struct lines_source *)base;
    const struct s2s_line line = s2s_lines_at(&s->files[place->part], place->at, place->line);
    int rc = parse_line(s, sample, &line, place, err);
    if (rc > 0)
        data_fields_give(s->fields, sample, place->field);
    if (rc > 0)
        s2s_sample_tag(sample, s->opt.tags, is_conversation(s->kind));
    return rc;
}

static char *where(const struct s2s_source *base, const struct s2s_place *place)
{
    const struct lines_source *s = (const struct lines_source *)base;
    return s2s_xasprintf("%s:%lld", s->files[place->part].path, (long long)place->line);
}

static bool digest(const struct s2s_source *base, size_t k, char hex[33])
{
    const struct lines_source *s = (const struct lines_source *)base;
    const size_t n = s->n_files + s->n_answers, has_questions = s->questions.n > 0;
    if (k >= n + has_questions)
        return data_fields_digest(s->fields, k - n - has_questions, hex);
    const struct s2s_lines *file = k < s->n_files ? &s->files[k]
                                   : k < n        ? &s->answers[k - s->n_files]
                                                  : &s->questions.file;
    s2s_xxh3_128_hex(hex, file->data, file->len);
    return true;
}

/* ---- opening ---- */

static void close_lines(struct s2s_source *base)
{
    struct lines_source *s = (struct lines_source *)base;
    for (size_t i = 0; i < s->n_files; i++)
        s2s_lines_close(&s->files[i]);
    for (size_t i = 0; i < s->n_answers; i++)
        s2s_lines_close(&s->answers[i]);
    free(s->files);
    data_texts_close(&s->questions);
    data_fields_close(s->fields);
    free(s->answers);
    free(s->order);
    free(s->text_field);
    free(s->lang_field);
    free(s->audio_field);
    free(s->said_field);
    data_drop_lists(&s->opt);
    free(s);
}

static const struct s2s_source_kind kind_of_lines = {begin, next,   end,        load,
                                                     where, digest, close_lines};

int s2s_source_open_lines(struct s2s_source **source, enum s2s_lines_kind kind,
                          const char *const *paths, size_t n_paths,
                          const struct s2s_source_options *opt, struct s2s_error *err)
{
    struct lines_source *s = s2s_xcalloc(1, sizeof *s);
    int rc = 0;
    s->base.kind = &kind_of_lines;
    s->kind = kind;
    s->opt = *opt;
    data_keep_lists(&s->opt);
    s->text_field = opt->text_field ? s2s_xstrdup(opt->text_field) : NULL;
    s->lang_field = opt->lang_field ? s2s_xstrdup(opt->lang_field) : NULL;
    s->audio_field = opt->audio_field ? s2s_xstrdup(opt->audio_field) : NULL;
    s->said_field = opt->said_field ? s2s_xstrdup(opt->said_field) : NULL;
    s->files = s2s_xcalloc(n_paths + 1, sizeof *s->files);
    s->order = s2s_xcalloc(n_paths + 1, sizeof *s->order);
    while (rc == 0 && s->n_files < n_paths) {
        rc = s2s_lines_open(&s->files[s->n_files], paths[s->n_files], err);
        s->order[s->n_files] = (uint32_t)s->n_files;
        s->n_files += rc == 0;
        if (rc == 0)
            rc = data_check_kind(&s->files[s->n_files - 1], kind, err);
    }
    if (rc == 0 && kind == S2S_LINES_NEMO)
        rc = data_fields_open(&s->fields, opt->fields, opt->n_fields, err);
    if (rc == 0)
        *source = &s->base;
    else
        close_lines(&s->base);
    return rc;
}

int s2s_source_open_pairs(struct s2s_source **source, const char *const *paths,
                          const char *const *answers, size_t n_paths,
                          const struct s2s_source_options *opt, struct s2s_error *err)
{
    struct s2s_source *base = NULL;
    int rc = s2s_source_open_lines(&base, S2S_LINES_PAIRS, paths, n_paths, opt, err);
    if (rc < 0)
        return rc;
    struct lines_source *s = (struct lines_source *)base;
    s->answers = s2s_xcalloc(n_paths + 1, sizeof *s->answers);
    while (rc == 0 && s->n_answers < n_paths) {
        rc = s2s_lines_open(&s->answers[s->n_answers], answers[s->n_answers], err);
        s->n_answers += rc == 0;
    }
    if (rc == 0 && opt->questions)
        rc = data_texts_open(&s->questions, opt->questions, err);
    if (rc == 0)
        *source = base;
    else
        close_lines(base);
    return rc;
}
