/* cat, split, shuffle: records move, their bytes do not change. */
#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/rng.h"
#include "lib/io/outfile.h"
#include "tools/shard/shard.h"

#define ZSTD_OPTION \
    { \
        "zstd", SHARD_KEY_ZSTD, "LEVEL", 0, \
            "Compress with zstd, 1 to 19 (default: 3 where the name of OUT ends in .zst)", 0 \
    }

/* Whether and how the bytes are compressed changes no byte of the stream itself. */
static const struct s2s_args_rule rules[] = {{"zstd", S2S_ARGS_DROP}, {NULL, 0}};

/* ---- several inputs that become one ---- */

/* Says how the packs were made, not what they are: may differ, and is dropped where it does. */
static bool may_differ(const char *config_key)
{
    static const char *const keys[] = {"seed",  "tokens", "batch_size", "algorithm", "shuffle",
                                       "split", "epochs", "report",     "too_long"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (!strcmp(keys[i], config_key))
            return true;
    return false;
}

static int differs(const char *path, const char *where, const char *key, struct s2s_error *err)
{
    int rc =
        s2s_error_set(err, S2S_E_FORMAT, "%s: header.json: %s'%s' differs from the first input",
                      path, where, key);
    return s2s_error_hint(err, rc, "only streams of one kind, made alike, can be one stream");
}

static int merge_config(json_t *merged, const json_t *other, const char *path,
                        struct s2s_error *err)
{
    const char *key;
    json_t *value;
    void *next;
    json_object_foreach((json_t *)other, key, value)
    {
        if (!may_differ(key) && !json_equal(value, json_object_get(merged, key)))
            return differs(path, "config: ", key, err);
    }
    json_object_foreach_safe(merged, next, key, value)
    {
        if (json_equal(value, json_object_get(other, key)))
            continue;
        if (!may_differ(key))
            return differs(path, "config: ", key, err);
        json_object_del(merged, key);
    }
    return 0;
}

/* Narrows the first header to what holds for this one too. */
static int merge_header(json_t *merged, const json_t *other, const char *path,
                        struct s2s_error *err)
{
    static const char *const keys[] = {"kind", "layout", "audio", "embed",
                                       "cp",   "parent", "schema"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const json_t *a = json_object_get(merged, keys[i]), *b = json_object_get(other, keys[i]);
        if (a != b && !json_equal(a, b))
            return differs(path, "", keys[i], err);
    }
    return merge_config(json_object_get(merged, "config"), json_object_get(other, "config"), path,
                        err);
}

struct inputs {
    struct s2s_stream **streams;
    char (*digests)[33]; /* of their ends */
    char **digest_list;
    size_t n;
    json_t *header; /* of all */
};

static void inputs_close(struct inputs *in)
{
    for (size_t i = 0; i < in->n; i++)
        s2s_stream_close(in->streams[i]);
    free(in->streams);
    free(in->digests);
    free(in->digest_list);
    json_decref(in->header);
}

static int inputs_open(struct inputs *in, const struct shard_options *opt, struct s2s_error *err)
{
    *in = (struct inputs){.streams = s2s_xcalloc(opt->n_inputs, sizeof(struct s2s_stream *)),
                          .digests = s2s_xcalloc(opt->n_inputs, 33),
                          .digest_list = s2s_xcalloc(opt->n_inputs, sizeof(char *))};
    for (size_t i = 0; i < opt->n_inputs; i++) {
        int rc = s2s_stream_open(&in->streams[i], opt->inputs[i], err);
        if (rc < 0)
            return rc;
        in->n++;
        in->digest_list[i] = in->digests[i];
        const json_t *header = s2s_stream_header(in->streams[i]);
        if (i == 0)
            in->header = json_deep_copy(header);
        else if ((rc = merge_header(in->header, header, opt->inputs[i], err)) < 0)
            return rc;
    }
    return 0;
}

/* After all were read. */
static int inputs_digests(struct inputs *in, struct s2s_error *err)
{
    for (size_t i = 0; i < in->n; i++) {
        int rc = s2s_stream_end_digest(in->streams[i], in->digests[i], err);
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* ---- one output ---- */

/* The command and its options, as provenance has them; `extra` (may be NULL) comes last. */
static char **make_args(const char *command, const char *extra, size_t *n)
{
    size_t n_options;
    char **options = s2s_tool_args(rules, &n_options);
    char **args = s2s_xcalloc(n_options + 2, sizeof *args);
    *n = 0;
    args[(*n)++] = s2s_xstrdup(command);
    for (size_t i = 0; i < n_options; i++)
        args[(*n)++] = options[i];
    if (extra)
        args[(*n)++] = s2s_xstrdup(extra);
    free(options);
    return args;
}

static int spare_inputs(const char *out, const struct shard_options *opt, struct s2s_error *err)
{
    return s2s_outfile_spares_each(out, (const char *const *)opt->inputs, opt->n_inputs, err);
}

static int create(struct s2s_stream_writer **out, const char *path, const struct inputs *in,
                  const struct shard_options *opt, const char *command, const char *extra,
                  struct s2s_error *err)
{
    struct s2s_stream_options options = {.zstd_level = opt->zstd_level, .jobs = opt->common.jobs};
    int rc = spare_inputs(path, opt, err);
    if (rc < 0)
        return rc;
    size_t n_args;
    char **args = make_args(command, extra, &n_args);
    rc = s2s_stream_create(out, path, in->header, in->header, args, n_args, &options, err);
    for (size_t i = 0; i < n_args; i++)
        free(args[i]);
    free(args);
    return rc;
}

static int commit(struct s2s_stream_writer *out, struct inputs *in, struct s2s_error *err)
{
    int rc = inputs_digests(in, err);
    if (rc < 0) {
        s2s_stream_abort(out);
        return rc;
    }
    return s2s_stream_commit(out, s2s_stream_inputs(in->streams[0]), in->digest_list, in->n, err);
}

static int check_output(const struct shard_options *opt, struct s2s_error *err)
{
    return opt->common.out && strcmp(opt->common.out, "-") ? 0 : s2s_tool_check_stdout(err);
}

/* ---- cat ---- */

static int copy_records(struct s2s_stream_writer *out, struct s2s_stream *in, struct s2s_error *err)
{
    struct s2s_record rec;
    int rc;
    while ((rc = s2s_stream_next(in, &rec, err)) > 0)
        if ((rc = s2s_stream_write_record(out, &rec, err)) < 0)
            break;
    return rc;
}

static int cat_one(const struct shard_options *opt, struct inputs *in, struct s2s_error *err)
{
    struct s2s_stream_options options = {.zstd_level = opt->zstd_level, .jobs = opt->common.jobs};
    struct s2s_stream_writer *out = NULL;
    struct s2s_stream *from = in->streams[0];
    int rc = spare_inputs(opt->common.out, opt, err);
    if (rc < 0 || (rc = s2s_stream_create_copy(&out, opt->common.out, from, &options, err)) < 0)
        return rc;
    if ((rc = copy_records(out, from, err)) < 0) {
        s2s_stream_abort(out);
        return rc;
    }
    return s2s_stream_commit_copy(out, from, err);
}

static int cat_many(const struct shard_options *opt, struct inputs *in, struct s2s_error *err)
{
    struct s2s_stream_writer *out = NULL;
    int rc = create(&out, opt->common.out, in, opt, "cat", NULL, err);
    if (rc < 0)
        return rc;
    for (size_t i = 0; i < in->n && rc == 0; i++)
        rc = copy_records(out, in->streams[i], err);
    if (rc < 0) {
        s2s_stream_abort(out);
        return rc;
    }
    return commit(out, in, err);
}

int shard_cat(int argc, char **argv, struct s2s_error *err)
{
    static const struct argp_option options[] = {ZSTD_OPTION, {0}};
    struct shard_options opt = SHARD_OPTIONS_DEFAULT;
    struct inputs in = {0};
    shard_parse(&opt, options,
                "Streams one behind the other, each record checked. One stream alone is copied "
                "exactly, compressed or not as asked."
                "\vExample: s2s-shard cat a.s2s b.s2s -o all.s2s.zst\nSee also: s2s-shard(1)",
                0, argc, argv);
    int rc = check_output(&opt, err);
    if (rc == 0)
        rc = inputs_open(&in, &opt, err);
    if (rc == 0)
        rc = in.n == 1 ? cat_one(&opt, &in, err) : cat_many(&opt, &in, err);
    inputs_close(&in);
    shard_options_release(&opt);
    return rc;
}

/* ---- split ---- */

/* The name of part i: the pattern's one %d or %0Nd replaced. Gives, or NULL. */
static char *part_name(const char *pattern, int64_t i)
{
    const char *percent = strchr(pattern, '%');
    if (!percent || strchr(percent + 1, '%'))
        return NULL;
    const char *p = percent + 1;
    int width = 0;
    while (isdigit((unsigned char)*p) && width < 100)
        width = width * 10 + (*p++ - '0');
    if (*p != 'd' || width > 18)
        return NULL;
    return s2s_xasprintf("%.*s%0*" PRId64 "%s", (int)(percent - pattern), pattern,
                         width ? width : 1, i, p + 1);
}

struct parts {
    struct s2s_stream_writer **out;
    size_t n, cap;
};

static int add_part(struct parts *parts, const struct shard_options *opt, const struct inputs *in,
                    struct s2s_error *err)
{
    struct s2s_stream_writer *out = NULL;
    char *path = part_name(opt->common.out, (int64_t)parts->n);
    char *extra = s2s_xasprintf("--part=%zu", parts->n);
    int rc = create(&out, path, in, opt, "split", extra, err);
    free(extra);
    free(path);
    if (rc < 0)
        return rc;
    s2s_grow(&parts->out, parts->n, &parts->cap, sizeof(struct s2s_stream_writer *));
    parts->out[parts->n++] = out;
    return 0;
}

static int split_records(struct parts *parts, const struct shard_options *opt, struct inputs *in,
                         struct s2s_error *err)
{
    struct s2s_record rec;
    int rc;
    while ((rc = s2s_stream_next(in->streams[0], &rec, err)) > 0) {
        size_t part = (size_t)(opt->parts ? rec.idx % opt->parts : rec.idx / opt->records);
        rc = part == parts->n ? add_part(parts, opt, in, err) : 0;
        if (rc == 0)
            rc = s2s_stream_write_record(parts->out[part], &rec, err);
        if (rc < 0)
            break;
    }
    return rc;
}

/* All parts appear at the end, or none: only then the input is known to be good. */
static int split(const struct shard_options *opt, struct inputs *in, struct s2s_error *err)
{
    struct parts parts = {0};
    int rc = 0;
    while (rc == 0 && (int64_t)parts.n < opt->parts)
        rc = add_part(&parts, opt, in, err);
    if (rc == 0)
        rc = split_records(&parts, opt, in, err);
    for (size_t i = 0; i < parts.n; i++) {
        if (rc == 0)
            rc = commit(parts.out[i], in, err);
        else
            s2s_stream_abort(parts.out[i]);
    }
    free(parts.out);
    return rc;
}

static int check_split(const struct shard_options *opt, struct s2s_error *err)
{
    if ((opt->parts != 0) == (opt->records != 0))
        return s2s_error_set(err, S2S_E_ARG, "split needs one of --parts and --records");
    char *name = opt->common.out ? part_name(opt->common.out, 0) : NULL;
    if (!name)
        return s2s_error_set(err, S2S_E_ARG,
                             "split needs -o with one %%d (or %%03d) for the number of the part");
    free(name);
    return 0;
}

int shard_split(int argc, char **argv, struct s2s_error *err)
{
    static const struct argp_option options[] = {
        {"parts", SHARD_KEY_PARTS, "N", 0, "N parts; record i goes to part i mod N", 0},
        {"records", SHARD_KEY_RECORDS, "N", 0, "As many parts as it takes, N records each", 0},
        ZSTD_OPTION,
        {0}};
    struct shard_options opt = SHARD_OPTIONS_DEFAULT;
    struct inputs in = {0};
    shard_parse(&opt, options,
                "One stream into several, named by -o with %d for the number of the part."
                "\vExample: s2s-shard split --parts 4 -o 'part%02d.s2s' packs.s2s\n"
                "See also: s2s-shard(1)",
                1, argc, argv);
    int rc = check_split(&opt, err);
    if (rc == 0)
        rc = inputs_open(&in, &opt, err);
    if (rc == 0)
        rc = split(&opt, &in, err);
    inputs_close(&in);
    shard_options_release(&opt);
    return rc;
}

/* ---- shuffle ---- */

/* Where a record lies: in a file, or, from a pipe, in memory. */
struct place {
    uint32_t input;
    bool is_lent; /* bytes are the window's, else their own */
    int64_t idx;
    void *bytes; /* NULL: in the file */
    size_t len;  /* of bytes, */
    uint64_t xxh3;
};

struct deck {
    struct place *places;
    size_t n, cap;
    char *window; /* records that are held together */
};

static void add_place(struct deck *deck, struct place place)
{
    s2s_grow(&deck->places, deck->n, &deck->cap, sizeof *deck->places);
    deck->places[deck->n++] = place;
}

static int hold(struct place *place, const struct s2s_record *rec, struct s2s_error *err)
{
    place->bytes = s2s_try_calloc(rec->len_bytes, 1, "a record to be shuffled", err);
    if (!place->bytes)
        return S2S_E_NOMEM;
    memcpy(place->bytes, rec->bytes, rec->len_bytes);
    place->len = rec->len_bytes;
    place->xxh3 = rec->xxh3;
    return 0;
}

static int add_input(struct deck *deck, struct s2s_stream *in, uint32_t input,
                     struct s2s_error *err)
{
    struct s2s_record rec;
    int rc;
    int64_t n_records = s2s_stream_n_records(in, err);
    for (int64_t i = 0; i < n_records; i++)
        add_place(deck, (struct place){.input = input, .idx = i});
    if (n_records != S2S_E_UNSUPPORTED)
        return n_records < 0 ? (int)n_records : 0;
    while ((rc = s2s_stream_next(in, &rec, err)) > 0) {
        struct place place = {.input = input, .idx = rec.idx};
        if ((rc = hold(&place, &rec, err)) < 0)
            break;
        add_place(deck, place);
    }
    return rc;
}

static void let_go(struct place *place)
{
    if (!place->is_lent)
        free(place->bytes);
    place->bytes = NULL;
    place->is_lent = false;
}

/* Fisher and Yates */
static void shuffle_deck(struct deck *deck, int64_t seed)
{
    uint64_t key = S2S_RNG_KEY((uint64_t)seed, s2s_rng_name("s2s-shard shuffle"));
    for (size_t i = deck->n; i > 1; i--) {
        size_t j = s2s_rng_below(key, i, i);
        struct place swap = deck->places[i - 1];
        deck->places[i - 1] = deck->places[j];
        deck->places[j] = swap;
    }
}

static int as_they_lie(const void *a, const void *b)
{
    const struct place *x = *(struct place *const *)a, *y = *(struct place *const *)b;
    if (x->input != y->input)
        return x->input < y->input ? -1 : 1;
    return x->idx < y->idx ? -1 : x->idx > y->idx;
}

/*
 * The records of compressed files from place `at` on are held, as many as WINDOW_BYTES take, and
 * read in the order in which they lie there: a frame is decoded once for all of them, not once for
 * each. Returns the first place that is not held.
 */
static int64_t hold_window(struct deck *deck, size_t at, struct inputs *in, struct s2s_error *err)
{
    enum { WINDOW_BYTES = 512 << 20 };
    struct place **window = s2s_xmalloc((deck->n - at) * sizeof(struct place *));
    size_t n = 0;
    uint64_t n_bytes = 0;
    for (; at < deck->n && n_bytes < WINDOW_BYTES; at++) {
        struct place *place = &deck->places[at];
        uint64_t size =
            place->bytes ? 0 : s2s_stream_packed_size(in->streams[place->input], place->idx);
        if (size > 0)
            window[n++] = place;
        n_bytes += size;
    }
    qsort(window, n, sizeof(struct place *), as_they_lie);
    free(deck->window);
    deck->window = n > 0 ? s2s_try_calloc(n_bytes, 1, "records to be shuffled", err) : NULL;
    char *room = deck->window;
    int rc = n > 0 && !room ? S2S_E_NOMEM : 0;
    s2s_wish_huge(room, n_bytes);
    for (size_t i = 0; i < n && rc == 0; i++) {
        struct place *place = window[i];
        struct s2s_record rec;
        rc = s2s_stream_read_at(in->streams[place->input], place->idx, &rec, err);
        if (rc < 0)
            break;
        memcpy(room, rec.bytes, rec.len_bytes);
        place->bytes = room;
        place->len = rec.len_bytes;
        place->xxh3 = rec.xxh3;
        place->is_lent = true;
        room += rec.len_bytes;
    }
    free(window);
    return rc < 0 ? rc : (int64_t)at;
}

static int write_deck(struct s2s_stream_writer *out, struct deck *deck, struct inputs *in,
                      struct s2s_error *err)
{
    int64_t held = 0;
    for (size_t i = 0; i < deck->n; i++) {
        struct place *place = &deck->places[i];
        if ((int64_t)i == held && (held = hold_window(deck, i, in, err)) < 0)
            return (int)held;
        struct s2s_record rec = {
            .bytes = place->bytes, .len_bytes = place->len, .xxh3 = place->xxh3};
        int rc = 0;
        if (!place->bytes)
            rc = s2s_stream_read_at(in->streams[place->input], place->idx, &rec, err);
        if (rc == 0)
            rc = s2s_stream_write_record(out, &rec, err);
        let_go(place);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int shuffle(const struct shard_options *opt, struct inputs *in, struct s2s_error *err)
{
    struct s2s_stream_writer *out = NULL;
    struct deck deck = {0};
    int rc = 0;
    for (size_t i = 0; i < in->n && rc == 0; i++)
        rc = add_input(&deck, in->streams[i], (uint32_t)i, err);
    shuffle_deck(&deck, opt->common.seed);
    if (rc == 0)
        rc = create(&out, opt->common.out, in, opt, "shuffle", NULL, err);
    if (rc == 0 && (rc = write_deck(out, &deck, in, err)) == 0)
        rc = commit(out, in, err);
    else
        s2s_stream_abort(out);
    for (size_t i = 0; i < deck.n; i++)
        let_go(&deck.places[i]);
    free(deck.places);
    free(deck.window);
    return rc;
}

int shard_shuffle(int argc, char **argv, struct s2s_error *err)
{
    static const struct argp_option options[] = {ZSTD_OPTION, {0}};
    struct shard_options opt = SHARD_OPTIONS_DEFAULT;
    struct inputs in = {0};
    shard_parse(&opt, options,
                "The records of all streams in an order that --seed decides. Files are read at "
                "random, the records of a pipe are held in memory."
                "\vExample: s2s-shard shuffle --seed 3 packs.s2s -o shuffled.s2s\n"
                "See also: s2s-shard(1)",
                0, argc, argv);
    int rc = check_output(&opt, err);
    if (rc == 0)
        rc = inputs_open(&in, &opt, err);
    if (rc == 0)
        rc = shuffle(&opt, &in, err);
    inputs_close(&in);
    shard_options_release(&opt);
    return rc;
}
