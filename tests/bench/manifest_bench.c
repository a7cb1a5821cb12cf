/*
 * Lines of a NeMo manifest to samples: MB of text a second of a processor, and beside it finding
 * the lines alone, reading them with simdjson alone, and with jansson alone.
 */
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include <jansson.h>

#include "lib/base/base.h"
#include "lib/data/data.h"
#include "lib/data/flat_json.h"
#include "tests/bench/goal.h"

enum { N_LINES = 200000, ROUNDS = 5 };

static void write_lines(FILE *f)
{
    static const char *const words[] = {"the",   "quick", "brown", "fox",
                                        "jumps", "over",  "a",     "dog"};
    for (uint64_t i = 0; i < N_LINES; i++) {
        fprintf(f,
                "{\"audio_filepath\": \"/data/train/%04d/utt_%07d.wav\", \"duration\": %.3f, "
                "\"lang\": \"en\", \"text\": \"",
                (int)(i / 1000), (int)i, 1 + (double)s2s_rng_below(1, i, 19000) / 1000);
        for (uint64_t k = 0; k < 4 + s2s_rng_below(2, i, 36); k++)
            fprintf(f, "%s ", words[s2s_rng_below(3, i * 64 + k, 8)]);
        fputs("\"}\n", f);
    }
}

static void walk_lines(const struct s2s_lines *lines, struct s2s_source *source)
{
    struct s2s_line line = {.number = 0};
    while (s2s_lines_next(lines, &line))
        ;
}

static void read_flat(const struct s2s_lines *lines, struct s2s_source *source)
{
    struct s2s_line line = {.number = 0};
    struct data_flat values[8];
    while (s2s_lines_next(lines, &line))
        if (data_flat_parse(values, 8, line.text, line.len) != 4)
            S2S_BUG("line %lld", (long long)line.number);
}

static void read_jansson(const struct s2s_lines *lines, struct s2s_source *source)
{
    struct s2s_line line = {.number = 0};
    while (s2s_lines_next(lines, &line))
        json_decref(json_loadb(line.text, line.len, JSON_REJECT_DUPLICATES, NULL));
}

static void load_samples(const struct s2s_lines *lines, struct s2s_source *source)
{
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_place place;
    s2s_source_rewind(source);
    while (s2s_source_next(source, &place, &err) > 0) {
        struct s2s_sample sample;
        if (s2s_source_load(source, &sample, &place, &err) != 1)
            S2S_BUG("%s", err.text);
        s2s_sample_release(&sample);
    }
}

static double cpu_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double best_mb_s(void (*work)(const struct s2s_lines *, struct s2s_source *),
                        const struct s2s_lines *lines, struct s2s_source *source)
{
    double best_s = 1e9;
    for (int round = 0; round < ROUNDS; round++) {
        const double start_s = cpu_s();
        work(lines, source);
        const double s = cpu_s() - start_s;
        best_s = s < best_s ? s : best_s;
    }
    return (double)lines->len / best_s / 1e6;
}

int main(void)
{
    char path[] = "/tmp/s2s-manifest-bench-XXXXXX";
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_source_options opt = S2S_SOURCE_OPTIONS_DEFAULT;
    struct s2s_source *source = NULL;
    struct s2s_lines lines;
    const char *const paths[] = {path};
    int fd = mkstemp(path);
    FILE *f = fd < 0 ? NULL : fdopen(fd, "w");
    if (!f)
        return 1;
    write_lines(f);
    if (fclose(f) != 0 || s2s_lines_open(&lines, path, &err) < 0 ||
        s2s_source_open_lines(&source, S2S_LINES_NEMO, paths, 1, &opt, &err) < 0)
        S2S_BUG("%s", err.text);
    unlink(path);
    const double samples = best_mb_s(load_samples, &lines, source);
    const double flat = best_mb_s(read_flat, &lines, NULL);
    printf(
        "manifest  %4.0f MB/s (%.2f M samples/s); lines alone %.0f, simdjson alone %.0f, jansson "
        "alone %.0f MB/s\n",
        samples, samples * 1e6 / (double)lines.len * N_LINES / 1e6,
        best_mb_s(walk_lines, &lines, NULL), flat, best_mb_s(read_jansson, &lines, NULL));
    add_goal(&(struct goal){.unit = "MB/s", .goal = 500, .figure = samples, .limit = flat},
             "lines of manifests (limit: simdjson alone)");
    s2s_source_close(source);
    s2s_lines_close(&lines);
    return 0;
}
