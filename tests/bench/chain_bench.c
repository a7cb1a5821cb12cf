/*
 * s2s-pack from a manifest to the samples or features of packs, in seconds of a processor, which do
 * not change with what else the machine does: beside libsndfile and libsoxr alone on the same files
 * (the limit; for features our own log-mel comes on top), on two threads beside one, and beside
 * lhotse where PYTHON has it.
 *
 *   chain_bench [MINUTES of each kind of file]     default 6
 *
 * The goal is within 1.25 of the limit for pcm, twice lhotse for both, and two threads that need no
 * more than one (1.1 for what a second core loses).
 */
#include <math.h>
#include <stdio.h>
#include <sys/stat.h>
#include <time.h>

#include <sndfile.h>
#include <soxr.h>

#include "lib/audio/mel.h"
#include "lib/base/base.h"
#include "tests/bench/command.h"
#include "tests/bench/goal.h"

/* A manifest names its files REPEATS times, so that the start of a program counts for little. */
enum { RATE = 16000, ROUNDS = 3, REPEATS = 6, MOST_FILES = 1000 };

static const struct kind {
    const char *name, *suffix;
    int format, rate_hz;
    double longest_s;
} kinds[] = {
    {"wav 16 kHz", "wav", SF_FORMAT_WAV | SF_FORMAT_PCM_16, 16000, 30},
    {"flac 16 kHz", "flac", SF_FORMAT_FLAC | SF_FORMAT_PCM_16, 16000, 30},
    {"flac 44.1 kHz", "flac", SF_FORMAT_FLAC | SF_FORMAT_PCM_16, 44100, 30},
    {"wav 8 kHz, short", "wav", SF_FORMAT_WAV | SF_FORMAT_PCM_16, 8000, 4},
};

static char folder[] = "/tmp/s2s-chain-bench-XXXXXX";
static char *files[MOST_FILES];
static size_t n_files;
static double hours;

static double cpu_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- files: harmonics of a voice that rises and falls, under noise ---- */

static void make_speech(int16_t *out, int n, int rate_hz, uint64_t seed)
{
    double phase = 0;
    for (int i = 0; i < n; i++) {
        const double t = (double)i / rate_hz, level = 0.5 + 0.5 * sin(19.5 * t + (double)seed);
        double x = 0;
        phase += 2 * M_PI * (110 + 40 * sin(4.4 * t)) / rate_hz;
        for (int k = 1; k < 6; k++)
            x += sin(k * phase) / k;
        const double noise = (double)s2s_rng_below(seed, (uint64_t)i, 200) - 100;
        out[i] = (int16_t)(4000 * x * level * level + noise);
    }
}

static void write_files(const struct kind *kind, size_t index, double seconds)
{
    char *manifest = s2s_xasprintf("%s/m%zu.jsonl", folder, index);
    int16_t *pcm = s2s_xmalloc((size_t)(30 * kind->rate_hz) * sizeof *pcm);
    FILE *lines = fopen(manifest, "w");
    hours = 0;
    for (n_files = 0; lines && hours * 3600 < seconds && n_files < MOST_FILES; n_files++) {
        const double x = (double)s2s_rng_below(11, n_files, 1000) / 1000;
        const int n = (int)((0.7 + (kind->longest_s - 0.7) * x * x) * kind->rate_hz);
        SF_INFO info = {.samplerate = kind->rate_hz, .channels = 1, .format = kind->format};
        files[n_files] = s2s_xasprintf("%s/%zu-%zu.%s", folder, index, n_files, kind->suffix);
        SNDFILE *file = sf_open(files[n_files], SFM_WRITE, &info);
        make_speech(pcm, n, kind->rate_hz, n_files);
        if (!file || sf_writef_short(file, pcm, n) != n || sf_close(file) != 0)
            S2S_BUG("cannot write %s", files[n_files]);
        for (int k = 0; k < REPEATS; k++)
            fprintf(lines,
                    "{\"audio_filepath\": \"%s\", \"duration\": %.4f, \"text\": \"some words\"}\n",
                    files[n_files], (double)n / kind->rate_hz);
        hours += (double)n / kind->rate_hz / 3600;
    }
    if (!lines || fclose(lines) != 0)
        S2S_BUG("cannot write %s", manifest);
    free(pcm);
    free(manifest);
}

/* ---- the limit ---- */

struct limit {
    double pcm_s, mel_s; /* of a processor: the libraries; and log-mel after them */
};

/* One file as a program would read it that does nothing else. Gives samples at RATE. */
static float *read_alone(const char *path, size_t *n)
{
    SF_INFO info = {0};
    SNDFILE *file = sf_open(path, SFM_READ, &info);
    float *in = s2s_xmalloc((size_t)info.frames * sizeof *in);
    sf_readf_float(file, in, info.frames);
    sf_close(file);
    *n = (size_t)info.frames;
    if (info.samplerate == RATE)
        return in;
    const soxr_io_spec_t io = soxr_io_spec(SOXR_FLOAT32_I, SOXR_FLOAT32_I);
    const soxr_quality_spec_t quality = soxr_quality_spec(SOXR_HQ, 0);
    const soxr_runtime_spec_t one_thread = soxr_runtime_spec(1);
    const size_t cap = (size_t)info.frames * RATE / (size_t)info.samplerate + 1;
    float *out = s2s_xmalloc(cap * sizeof *out);
    soxr_oneshot(info.samplerate, RATE, 1, in, *n, NULL, out, cap, n, &io, &quality, &one_thread);
    free(in);
    return out;
}

static void measure_limit(struct limit *best, const struct s2s_mel *mel, struct s2s_mel_work *work)
{
    struct limit here = {0};
    for (size_t i = 0; i < n_files; i++) {
        size_t n;
        const double start_s = cpu_s();
        float *pcm = read_alone(files[i], &n);
        const double read_s = cpu_s();
        float *features = s2s_xmalloc((size_t)(s2s_mel_frames(mel, n) * 80 + 1) * sizeof *features);
        s2s_mel_compute(mel, work, features, pcm, n);
        here.mel_s += cpu_s() - read_s;
        here.pcm_s += read_s - start_s;
        free(features);
        free(pcm);
    }
    best->pcm_s = fmin(best->pcm_s, here.pcm_s);
    best->mel_s = fmin(best->mel_s, here.mel_s);
}

/* ---- programs ---- */

static double pack_s(size_t index, const char *form, int jobs)
{
    return command("s2s-pack -q -j %d --manifest %s/m%zu.jsonl --tokenizer demo/tokenizer.json "
                   "--audio %s --tokens 4096 -o - >/dev/null",
                   jobs, folder, index, form)
        .cpu_s;
}

/* Seconds of a processor that lhotse takes, its import left out; 0: it is not there. */
static double lhotse_s(size_t index, const char *form)
{
    char *line = s2s_xasprintf("\"${PYTHON:-python3}\" tests/bench/peer_audio.py %s/m%zu.jsonl %s "
                               "2>/dev/null",
                               folder, index, form);
    FILE *in = popen(line, "r");
    double s = 0;
    if (!in || fscanf(in, "%lf", &s) != 1)
        s = 0;
    if (in)
        pclose(in);
    free(line);
    return s;
}

/* The rows of the table. Where the libraries alone leave no room for twice lhotse, they are the
 * limit: lhotse uses them too. */
static void add_goals(const char *what, double ratio, double two_threads, double times,
                      double most_times)
{
    const char *parts = "more is done than by the libraries: lines, ids, digests, records";
    add_goal(&(struct goal){.unit = "of the libraries",
                            .goal = 1.25,
                            .figure = ratio,
                            .limit = 1,
                            .is_most = true,
                            .why = parts},
             "%s", what);
    add_goal(&(struct goal){.unit = "of one thread",
                            .goal = 1.1,
                            .figure = two_threads,
                            .limit = 1,
                            .is_most = true,
                            .why = "packs pass from core to core, in memory that is touched first"},
             "%s, -j 2", what);
    if (times > 0)
        add_goal(
            &(struct goal){.unit = "times lhotse", .goal = 2, .figure = times, .limit = most_times},
            "%s", what);
}

static void bench_kind(size_t index, const struct s2s_mel *mel, struct s2s_mel_work *work)
{
    static const char *const forms[] = {"pcm", "mel"};
    struct limit limit = {INFINITY, INFINITY};
    double ours_s[2] = {INFINITY, INFINITY}, two_s[2] = {INFINITY, INFINITY};
    for (int round = 0; round < ROUNDS; round++) {
        measure_limit(&limit, mel, work);
        for (int f = 0; f < 2; f++) {
            ours_s[f] = fmin(ours_s[f], pack_s(index, forms[f], 1));
            two_s[f] = fmin(two_s[f], pack_s(index, forms[f], 2));
        }
    }
    for (int f = 0; f < 2; f++) {
        const double limit_s = REPEATS * (limit.pcm_s + (f ? limit.mel_s : 0));
        const double ratio = ours_s[f] / limit_s, peer_s = lhotse_s(index, forms[f]);
        char *what = s2s_xasprintf("%s to %s", kinds[index].name, forms[f]);
        printf("%-24s %6.2f h a cpu-second, limit %6.2f: %.2f; -j 2 %.2f", what,
               REPEATS * hours / ours_s[f], REPEATS * hours / limit_s, ratio, two_s[f] / ours_s[f]);
        if (peer_s > 0)
            printf("; lhotse %5.2f: %.1f times", REPEATS * hours / peer_s, peer_s / ours_s[f]);
        add_goals(what, ratio, two_s[f] / ours_s[f], peer_s / ours_s[f], peer_s / limit_s);
        free(what);
        putchar('\n');
    }
}

int main(int argc, char **argv)
{
    const struct s2s_mel_config config = S2S_MEL_CONFIG_DEFAULT;
    struct s2s_mel *mel = NULL;
    double minutes = 6;
    if (argc > 1 && s2s_parse_f64(&minutes, argv[1], 0.1, 100, NULL) < 0)
        return 2;
    if (!mkdtemp(folder) || s2s_mel_new(&mel, &config, NULL) < 0)
        return 1;
    struct s2s_mel_work *work = s2s_mel_work_new(mel);
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        write_files(&kinds[k], k, 60 * minutes);
        bench_kind(k, mel, work);
        for (size_t i = 0; i < n_files; i++)
            free(files[i]);
    }
    s2s_mel_work_free(work);
    s2s_mel_free(mel);
    command("rm -rf %s", folder);
    return 0;
}
