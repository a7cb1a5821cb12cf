/* Which rank encodes which clip, and `--plan`. */
#include <stdio.h>
#include <stdlib.h>

#include "lib/io/outfile.h"
#include "lib/io/printout.h"
#include "tools/encode/encode.h"

struct encode_share encode_share(const int64_t *lengths, int64_t n_clips, int n_ranks)
{
    struct encode_share share = {.n_clips = n_clips, .per_rank = (n_clips + n_ranks - 1) / n_ranks};
    for (int64_t i = 0; i < n_clips; i++)
        if (i == 0 || lengths[i] < share.dummy_len)
            share.dummy_len = lengths[i];
    return share;
}

void encode_share_range(const struct encode_share *share, int rank, int64_t *begin, int64_t *end)
{
    *begin = rank * share->per_rank;
    *end = *begin + share->per_rank;
    *begin = *begin < share->n_clips ? *begin : share->n_clips;
    *end = *end < share->n_clips ? *end : share->n_clips;
}

/* ---- --plan ---- */

static json_t *plan_object(const int64_t *lengths, int64_t n_clips, int n_ranks)
{
    struct encode_share share = encode_share(lengths, n_clips, n_ranks);
    json_t *ranks = json_array();
    for (int r = 0; r < n_ranks; r++) {
        json_t *slots = json_array();
        for (int64_t i = 0; i < share.per_rank; i++) {
            int64_t clip = r * share.per_rank + i;
            bool real = clip < n_clips;
            json_array_append_new(slots,
                                  json_pack("{s:I, s:I, s:I}", "slot", (json_int_t)i, "clip",
                                            (json_int_t)(real ? clip : -1), "length",
                                            (json_int_t)(real ? lengths[clip] : share.dummy_len)));
        }
        json_array_append_new(ranks, slots);
    }
    return json_pack("{s:I, s:I, s:o}", "per_rank", (json_int_t)share.per_rank, "dummy_len",
                     (json_int_t)share.dummy_len, "ranks", ranks);
}

static void print_text(const json_t *plan, size_t pack)
{
    const json_t *ranks = json_object_get(plan, "ranks");
    for (size_t r = 0; r < json_array_size(ranks); r++) {
        const json_t *slots = json_array_get(ranks, r);
        for (size_t i = 0; i < json_array_size(slots); i++) {
            const json_t *slot = json_array_get(slots, i);
            json_int_t clip = json_integer_value(json_object_get(slot, "clip"));
            printf("%zu\t%zu\t%zu\t", pack, r, i);
            if (clip < 0)
                printf("dummy");
            else
                printf("%lld", (long long)clip);
            printf("\t%lld\n", (long long)json_integer_value(json_object_get(slot, "length")));
        }
    }
}

static void print_plan(const json_t *plan, bool json)
{
    if (json) {
        char *text = json_dumps(plan, JSON_REAL_PRECISION(17));
        puts(text);
        free(text);
        return;
    }
    printf("pack\trank\tslot\tclip\tlength\n");
    if (json_is_object(plan))
        print_text(plan, 0);
    for (size_t i = 0; i < json_array_size(plan); i++)
        print_text(json_array_get(plan, i), i);
}

/* "900,400,700" */
static int parse_lengths(int64_t **lengths, size_t *n, const char *text, struct s2s_error *err)
{
    size_t cap = 0;
    char *copy = s2s_xstrdup(text), *rest = copy, *part;
    int rc = 0;
    while (rc == 0 && (part = strsep(&rest, ",")) && *text) {
        s2s_grow(lengths, *n, &cap, sizeof **lengths);
        rc = s2s_parse_i64(&(*lengths)[*n], part, 0, INT64_MAX, err);
        ++*n;
    }
    free(copy);
    return rc < 0 ? s2s_error_add(err, S2S_E_ARG, "--lengths") : 0;
}

static int plan_record(json_t *list, const struct encode_reader *reader,
                       const struct s2s_safetensors *st, int n_ranks, struct s2s_error *err)
{
    int64_t n = encode_n_clips(reader, st);
    int64_t *lengths = s2s_xcalloc((size_t)n + 1, sizeof *lengths);
    int rc = 0;
    for (int64_t k = 0; rc == 0 && k < n; k++)
        rc = encode_clip_length(&lengths[k], reader, st, k, err);
    if (rc == 0)
        json_array_append_new(list, plan_object(lengths, n, n_ranks));
    free(lengths);
    return rc;
}

static int plan_stream(json_t **plan, const char *path, int n_ranks, struct s2s_error *err)
{
    struct s2s_mel_config config = S2S_MEL_CONFIG_DEFAULT;
    config.n_mels = 0;
    struct encode_reader reader = {.mel = &config};
    struct s2s_stream *in = NULL;
    struct s2s_record rec;
    json_t *list = json_array();
    int rc = s2s_stream_open(&in, path, err);
    if (rc == 0 && (rc = s2s_schema_compile(&reader.schema, s2s_stream_header(in), err)) == 0) {
        rc = encode_check_stream(&reader, s2s_stream_header(in), err);
        while (rc == 0 && (rc = s2s_stream_next(in, &rec, err)) > 0) {
            int64_t idx = rec.idx;
            if ((rc = plan_record(list, &reader, &rec.st, n_ranks, err)) < 0)
                s2s_error_add(err, rc, "record %lld", (long long)idx);
        }
        s2s_schema_release(&reader.schema);
    }
    s2s_stream_close(in);
    if (rc < 0) {
        json_decref(list);
        return s2s_error_add(err, rc, "%s", path);
    }
    *plan = list;
    return 0;
}

int encode_plan(const struct encode_options *opt, int n_ranks, struct s2s_error *err)
{
    struct s2s_printout to = {.out = NULL};
    json_t *plan = NULL;
    int rc;
    if (opt->lengths) {
        int64_t *lengths = NULL;
        size_t n = 0;
        rc = parse_lengths(&lengths, &n, opt->lengths, err);
        if (rc == 0)
            plan = plan_object(lengths, (int64_t)n, n_ranks);
        free(lengths);
    } else {
        rc = plan_stream(&plan, opt->inputs[0], n_ranks, err);
    }
    if (rc == 0)
        rc = s2s_outfile_spares(opt->common.out, opt->lengths ? NULL : opt->inputs[0], err);
    if (rc == 0)
        rc = s2s_printout_begin(&to, opt->common.out, err);
    if (rc == 0)
        print_plan(plan, opt->common.json);
    rc = s2s_printout_end(&to, rc, err);
    json_decref(plan);
    return rc;
}
