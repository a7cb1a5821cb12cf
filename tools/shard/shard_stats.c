/* stats: lengths, fill, hours, tokens of any number of streams. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/shard/shard.h"

static void add_length(struct shard_stats *s, int64_t length)
{
    s2s_grow(&s->lengths, s->n_lengths, &s->cap_lengths, sizeof *s->lengths);
    s->lengths[s->n_lengths++] = length;
}

/* Seconds of a record's audio: from the clips' own durations, else from samples and rate. */
static double record_seconds(const struct s2s_record *rec, const json_t *config)
{
    const char *clips = s2s_safetensors_meta(&rec->st, "audio");
    const char *one = s2s_safetensors_meta(&rec->st, "duration");
    double seconds = 0, value;
    if (one && s2s_parse_f64(&value, one, 0, 1e12, NULL) == 0)
        return value;
    json_t *list = clips ? json_loads(clips, 0, NULL) : NULL, *clip;
    size_t i, n_known = 0;
    json_array_foreach(list, i, clip)
    {
        const json_t *duration = json_object_get(clip, "duration");
        n_known += json_is_number(duration);
        seconds += json_number_value(duration);
    }
    bool all = n_known == json_array_size(list) && list;
    json_decref(list);
    if (all)
        return seconds;
    const struct s2s_st_tensor *pcm = s2s_safetensors_find(&rec->st, "audio_pcm");
    if (!pcm)
        pcm = s2s_safetensors_find(&rec->st, "pcm");
    double rate = json_number_value(json_object_get(config, "sampling_rate"));
    return pcm && rate > 0 ? (double)s2s_st_numel(pcm) / rate : -1;
}

static void add_spans(struct shard_stats *s, const struct s2s_st_tensor *bounds,
                      const struct s2s_st_tensor *lens)
{
    for (int64_t i = 0; i < s2s_st_numel(lens); i++) {
        s2s_grow(&s->spans, s->n_spans, &s->cap_spans, sizeof *s->spans);
        int64_t begin = shard_int(bounds, i);
        s->spans[s->n_spans++] = (struct shard_span){.pack = (int32_t)s->n_fills,
                                                     .idx = (int32_t)i,
                                                     .begin = begin,
                                                     .end = begin + shard_int(lens, i),
                                                     .padded = shard_int(bounds, i + 1)};
    }
}

static void add_pack(struct shard_stats *s, const struct s2s_safetensors *st)
{
    const struct s2s_st_tensor *bounds = shard_bounds(st);
    const struct s2s_st_tensor *lens = s2s_safetensors_find(st, "seq_lens");
    const struct s2s_st_tensor *frames = s2s_safetensors_find(st, "audio_frames");
    const struct s2s_st_tensor *labels = s2s_safetensors_find(st, "labels");
    int64_t slots = shard_int(bounds, s2s_st_numel(bounds) - 1), tokens = 0;
    if (s->n_fills < SHARD_MAX_DRAWN)
        add_spans(s, bounds, lens);
    for (int64_t i = 0; i < s2s_st_numel(lens); i++) {
        add_length(s, shard_int(lens, i));
        tokens += shard_int(lens, i);
    }
    for (int64_t i = 0; i < s2s_st_numel(labels); i++)
        s->n_trained += shard_int(labels, i) != -100;
    for (int64_t k = 0; k < s2s_st_numel(frames); k++)
        s->n_frames += shard_int(frames, k);
    s->n_utterances += s2s_st_numel(lens);
    s->n_clips += s2s_st_numel(frames);
    s->n_tokens += tokens;
    s->n_slots += slots;
    s2s_grow(&s->fills, s->n_fills, &s->cap_fills, sizeof *s->fills);
    s->fills[s->n_fills++] = slots ? (double)tokens / (double)slots : 0;
}

/* Streams of clips: one length a record. */
static void add_clip(struct shard_stats *s, const struct s2s_safetensors *st)
{
    static const char *const names[] = {"pcm", "mel", "embeds", "source_pcm", "bytes"};
    static const char *const units[] = {"samples", "mel frames", "frames", "samples", "bytes"};
    s->n_clips++;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const struct s2s_st_tensor *t = s2s_safetensors_find(st, names[i]);
        if (t && t->n_dims > 0) {
            add_length(s, t->shape[0]);
            s->unit = units[i];
            return;
        }
    }
}

static int gather(struct shard_stats *s, const char *path, struct s2s_error *err)
{
    struct s2s_stream *in = NULL;
    struct s2s_record rec;
    int rc = s2s_stream_open(&in, path, err);
    if (rc < 0)
        return rc;
    enum s2s_kind kind = s2s_stream_kind(in);
    const json_t *config = json_object_get(s2s_stream_header(in), "config");
    while ((rc = s2s_stream_next(in, &rec, err)) > 0) {
        double seconds = record_seconds(&rec, config);
        s->n_records++;
        s->seconds = seconds < 0 || s->seconds < 0 ? -1 : s->seconds + seconds;
        if (kind == S2S_KIND_AUDIO || kind == S2S_KIND_DUPLEX) {
            add_clip(s, &rec.st);
        } else {
            s->is_pack = true;
            s->unit = "tokens";
            add_pack(s, &rec.st);
        }
    }
    s2s_stream_close(in);
    return rc;
}

static int ascending(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static double mean_length(const struct shard_stats *s)
{
    double sum = 0;
    for (size_t i = 0; i < s->n_lengths; i++)
        sum += (double)s->lengths[i];
    return s->n_lengths ? sum / (double)s->n_lengths : 0;
}

/* The smallest length that a share q of all do not exceed. */
static int64_t quantile(const struct shard_stats *s, double q)
{
    if (s->n_lengths == 0)
        return 0;
    size_t i = (size_t)(q * (double)(s->n_lengths - 1) + 0.5);
    return s->lengths[i];
}

static double fill_of(const struct shard_stats *s)
{
    return s->n_slots ? (double)s->n_tokens / (double)s->n_slots : 0;
}

static void put_text(const struct shard_stats *s)
{
    printf("records     %" PRId64 "\n", s->n_records);
    if (s->is_pack) {
        printf("utterances  %" PRId64 "\n", s->n_utterances);
        printf("tokens      %" PRId64 " real in %" PRId64 " slots, %" PRId64 " trained on\n",
               s->n_tokens, s->n_slots, s->n_trained);
        printf("fill        %.4f (padding %" PRId64 " slots)\n", fill_of(s),
               s->n_slots - s->n_tokens);
        printf("frames      %" PRId64 " of %" PRId64 " clips\n", s->n_frames, s->n_clips);
    }
    if (s->seconds >= 0)
        printf("hours       %.4f\n", s->seconds / 3600);
    if (s->n_lengths)
        printf("lengths     mean %.1f  min %" PRId64 "  median %" PRId64 "  90%% %" PRId64
               "  99%% %" PRId64 "  max %" PRId64 " %s\n",
               mean_length(s), quantile(s, 0), quantile(s, 0.5), quantile(s, 0.9),
               quantile(s, 0.99), quantile(s, 1), s->unit);
}

static void put_json(const struct shard_stats *s)
{
    printf("{\"records\": %" PRId64 ", \"utterances\": %" PRId64 ", \"tokens\": %" PRId64
           ", \"slots\": %" PRId64 ", \"padding\": %" PRId64 ", \"trained_tokens\": %" PRId64
           ", \"fill\": %.9g, \"clips\": %" PRId64 ", \"frames\": %" PRId64 ", \"hours\": ",
           s->n_records, s->n_utterances, s->n_tokens, s->n_slots, s->n_slots - s->n_tokens,
           s->n_trained, fill_of(s), s->n_clips, s->n_frames);
    if (s->seconds >= 0)
        printf("%.9g", s->seconds / 3600);
    else
        fputs("null", stdout);
    printf(", \"lengths\": {\"unit\": \"%s\", \"count\": %zu, \"mean\": %.9g, \"min\": %" PRId64
           ", \"p50\": %" PRId64 ", \"p90\": %" PRId64 ", \"p99\": %" PRId64 ", \"max\": %" PRId64
           "}}\n",
           s->unit ? s->unit : "", s->n_lengths, mean_length(s), quantile(s, 0), quantile(s, 0.5),
           quantile(s, 0.9), quantile(s, 0.99), quantile(s, 1));
}

int shard_stats(int argc, char **argv, struct s2s_error *err)
{
    static const struct argp_option options[] = {
        {"plot", SHARD_KEY_PLOT, "F.svg|F.png", 0,
         "Draw the packing, the lengths and the fill into a file (with gnuplot)", 0},
        {0}};
    struct shard_options opt = SHARD_OPTIONS_DEFAULT;
    struct shard_stats s = {.n_records = 0};
    struct s2s_printout to = {.out = NULL};
    shard_parse(&opt, options,
                "Lengths, fill, hours and tokens of all streams together."
                "\vExample: s2s-shard stats --plot packing.svg packs.s2s\nSee also: s2s-shard(1)",
                0, argc, argv);
    int rc = shard_report_begin(&to, &opt, err);
    for (size_t i = 0; i < opt.n_inputs && rc == 0; i++)
        rc = gather(&s, opt.inputs[i], err);
    if (rc == 0) {
        if (s.n_lengths)
            qsort(s.lengths, s.n_lengths, sizeof *s.lengths, ascending);
        if (opt.plot)
            rc = shard_plot(&s, opt.plot, err);
    }
    if (rc == 0 && opt.common.json)
        put_json(&s);
    else if (rc == 0)
        put_text(&s);
    rc = s2s_printout_end(&to, rc, err);
    free(s.lengths);
    free(s.fills);
    free(s.spans);
    shard_options_release(&opt);
    return rc;
}
