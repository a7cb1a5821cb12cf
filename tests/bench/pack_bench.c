/*
 * s2s-pack and s2s-cpshard beside their limits, in the same run:
 *   bins       lengths packed per second, 1 M of them, with the fill that is reached
 *   partition  bytes of bf16 rows of 1024 split per second, beside memcpy
 *   parts      s2s-pack of the parts of one long recording, beside decoding it once
 *   s2s-cpshard  bytes per second through pipes, beside cat
 * The last two need the programs in PATH, the last one the speech of asterisk-core-sounds-en-wav.
 * From files to packs: chain_bench.c.
 */
#include <glob.h>
#include <math.h>
#include <sndfile.h>
#include <stdio.h>
#include <sys/stat.h>

#include "lib/audio/audio.h"
#include "lib/base/base.h"
#include "lib/thd/thd.h"
#include "tests/bench/command.h"
#include "tests/bench/goal.h"

enum { N_LENS = 1000000, CAPACITY = 4096, ROW_BYTES = 2048, ROUNDS = 5 };

/* ---- bins ---- */

/* Speech: a log-normal of 3 to 20 s in 80 ms frames with text; mixed: half of that and half up to
 * the capacity. */
static void make_lens(int32_t *lens, bool mixed)
{
    for (uint64_t i = 0; i < N_LENS; i++) {
        float z;
        s2s_rng_fill_normal(&z, 1, 42, i, 0, 1);
        double len = 140 * exp(0.6 * (double)z);
        if (mixed && i % 2)
            len = 1 + (double)s2s_rng_below(43, i, CAPACITY);
        lens[i] = len < 1 ? 1 : len > CAPACITY ? CAPACITY : (int32_t)len;
    }
}

static void add_bins_goals(int algorithm, const char *what, double speed, double fill)
{
    const bool is_bfd = algorithm == S2S_BINS_BFD;
    if (!is_bfd && algorithm != S2S_BINS_FFD && algorithm != S2S_BINS_MFFD)
        return;
    const char *name = s2s_thd_bin_algorithms[algorithm];
    add_goal(&(struct goal){.unit = "M lengths/s", .goal = is_bfd ? 20 : 5, .figure = speed},
             "bins, %s, %s", name, what);
    if (is_bfd)
        add_goal(&(struct goal){.unit = "of the bins", .goal = .9995, .figure = fill, .limit = 1},
                 "fill, %s, %s", name, what);
}

static void bench_bins(const int32_t *lens, const char *what)
{
    static const int64_t windows[] = {64, 1024};
    for (int a = S2S_BINS_CONCATENATIVE; a <= S2S_BINS_BFD + 2; a++) {
        struct s2s_bins_options opt = S2S_BINS_OPTIONS_DEFAULT;
        const int window = a - S2S_BINS_BFD - 1;
        char name[32];
        struct s2s_error err = S2S_ERROR_INIT;
        double best_s = 1e9, fill = 0;
        if (window >= 0)
            opt.lookahead = windows[window];
        else
            opt.algorithm = (enum s2s_bin_algorithm)a;
        opt.capacity = CAPACITY;
        for (int round = 0; round < ROUNDS; round++) {
            struct s2s_bins bins;
            double start_s = s2s_now_s();
            if (s2s_thd_bins(&bins, lens, N_LENS, &opt, &err) < 0)
                S2S_BUG("%s", err.text);
            double s = s2s_now_s() - start_s;
            best_s = s < best_s ? s : best_s;
            fill = s2s_thd_bins_fill(&bins, lens, &opt);
            s2s_bins_release(&bins);
        }
        if (window >= 0)
            snprintf(name, sizeof name, "lookahead %lld", (long long)windows[window]);
        else
            snprintf(name, sizeof name, "%s", s2s_thd_bin_algorithms[a]);
        printf("bins %-14s %-6s  %6.1f M lengths/s  fill %.5f\n", name, what, N_LENS / best_s / 1e6,
               fill);
        add_bins_goals(window < 0 ? a : -1, what, N_LENS / best_s / 1e6, fill);
    }
}

/* ---- partition ---- */

static void bench_partition(int cp_size)
{
    enum { N_SEQS = 200, LEN = 512 };
    const size_t n_slots = (size_t)N_SEQS * LEN, len_bytes = n_slots * ROW_BYTES;
    char *global = s2s_xmalloc(len_bytes), *local = s2s_xmalloc(len_bytes);
    int32_t cu[N_SEQS + 1];
    double copy_s = 1e9, split_s = 1e9;
    for (int i = 0; i <= N_SEQS; i++)
        cu[i] = i * LEN;
    memset(global, 1, len_bytes);
    memset(local, 2, len_bytes);
    for (int round = 0; round < ROUNDS; round++) {
        double start_s = s2s_now_s();
        memcpy(local, global, len_bytes);
        double s = s2s_now_s() - start_s;
        copy_s = s < copy_s ? s : copy_s;
        start_s = s2s_now_s();
        for (int rank = 0; rank < cp_size; rank++)
            s2s_thd_cp_split(local + len_bytes / (size_t)cp_size * (size_t)rank, global, ROW_BYTES,
                             cu, N_SEQS, cp_size, rank);
        s = s2s_now_s() - start_s;
        split_s = s < split_s ? s : split_s;
    }
    printf("partition cp=%d  %5.1f GB/s, memcpy %5.1f GB/s (%.2f)\n", cp_size,
           (double)len_bytes / split_s / 1e9, (double)len_bytes / copy_s / 1e9, copy_s / split_s);
    add_goal(&(struct goal){.unit = "GB/s",
                            .goal = 10,
                            .figure = (double)len_bytes / split_s / 1e9,
                            .limit = (double)len_bytes / copy_s / 1e9},
             "rows in memory, cp %d (limit: memcpy)", cp_size);
    free(global);
    free(local);
}

/* ---- programs ---- */

/* Decoding and resampling of all files alone, one thread; seconds of audio in *audio_s. */
static double decode_all(const glob_t *files, double *audio_s)
{
    const double start_s = s2s_now_s();
    *audio_s = 0;
    for (size_t i = 0; i < files->gl_pathc; i++) {
        struct s2s_audio_options opt = S2S_AUDIO_OPTIONS_DEFAULT;
        struct s2s_error err = S2S_ERROR_INIT;
        struct s2s_audio audio;
        opt.rate_hz = 16000;
        if (s2s_audio_decode_file(&audio, files->gl_pathv[i], &opt, &err) < 0)
            S2S_BUG("%s", err.text);
        *audio_s += (double)audio.n_samples / 16000;
        s2s_audio_release(&audio);
    }
    return s2s_now_s() - start_s;
}

static void write_manifest(const char *path, const glob_t *files)
{
    FILE *f = fopen(path, "w");
    for (size_t i = 0; f && i < files->gl_pathc; i++)
        fprintf(f, "{\"audio_filepath\": \"%s\", \"duration\": 0, \"text\": \"some words\"}\n",
                files->gl_pathv[i]);
    if (!f || fclose(f) != 0)
        S2S_BUG("cannot write %s", path);
}

/* False where there is no speech. */
static bool write_speech_manifest(const char *folder)
{
    glob_t files;
    if (glob("/usr/share/asterisk/sounds/en_US_f_Allison/*.wav", 0, NULL, &files) != 0) {
        printf("s2s-cpshard  no speech here (asterisk-core-sounds-en-wav)\n");
        return false;
    }
    char *manifest = s2s_xasprintf("%s/m.jsonl", folder);
    write_manifest(manifest, &files);
    free(manifest);
    globfree(&files);
    return true;
}

/* ---- parts of one long recording ---- */

enum { PART_S = 3, PARTS_RATE = 16000 };

static void write_recording(const char *path, int format, int n_parts)
{
    SF_INFO info = {.samplerate = PARTS_RATE, .channels = 1, .format = format};
    SNDFILE *file = sf_open(path, SFM_WRITE, &info);
    const sf_count_t len = PART_S * PARTS_RATE;
    float *pcm = s2s_xmalloc((size_t)len * sizeof *pcm);
    double level = 0; /* of compression: the least gives Opus the most bytes to hold in check */
    if (file && (format & SF_FORMAT_SUBMASK) == SF_FORMAT_OPUS)
        sf_command(file, SFC_SET_COMPRESSION_LEVEL, &level, sizeof level);
    s2s_rng_fill_normal(pcm, (size_t)len, 1, 0, 0, 0.05F);
    for (int i = 0; file && i < n_parts; i++)
        if (sf_writef_float(file, pcm, len) != len)
            S2S_BUG("cannot write %s", path);
    if (!file || sf_close(file) != 0)
        S2S_BUG("cannot write %s", path);
    free(pcm);
}

/* Beside decoding the recording once, whole: what it would take if all of it were one sample. A
 * program that holds the file against its checksums for each part falls to a hundredth (WAV) or a
 * half (Opus). */
static void bench_parts(const char *folder, const char *kind, int format, int n_parts)
{
    char *path = s2s_xasprintf("%s/long.%s", folder, kind);
    char *manifest = s2s_xasprintf("%s/parts.jsonl", folder);
    glob_t file = {.gl_pathc = 1, .gl_pathv = &path};
    double audio_s, whole_s = 1e9, parts_s = 1e9;
    write_recording(path, format, n_parts);
    FILE *f = fopen(manifest, "w");
    for (int i = 0; f && i < n_parts; i++)
        fprintf(f,
                "{\"audio_filepath\": \"%s\", \"offset\": %d, \"duration\": %d, \"text\": \"x\"}\n",
                path, i * PART_S, PART_S);
    if (!f || fclose(f) != 0)
        S2S_BUG("cannot write %s", manifest);
    for (int round = 0; round < 3; round++) {
        whole_s = fmin(whole_s, decode_all(&file, &audio_s));
        parts_s = fmin(parts_s, command_s("s2s-pack -q -j 1 --manifest %s --tokenizer "
                                          "demo/tokenizer.json --tokens 4096 >/dev/null",
                                          manifest));
    }
    printf("s2s-pack, %4d parts of a %-4s -j 1 %6.2f h/s (%.2f of decoding it once)\n", n_parts,
           kind, audio_s / 3600 / parts_s, whole_s / parts_s);
    free(path);
    free(manifest);
}

static void bench_cpshard(const char *folder)
{
    command_s("for i in 1 2 3 4 5 6; do cat %s/m.jsonl; done | s2s-pack -q --manifest - "
              "--tokenizer demo/tokenizer.json --audio pcm --tokens 8192 --cp 2 -o %s/big.s2s",
              folder, folder);
    struct spent cat = {1e9, 1e9}, split = cat;
    struct stat st;
    char *big = s2s_xasprintf("%s/big.s2s", folder);
    if (stat(big, &st) < 0)
        S2S_BUG("cannot read %s", big);
    for (int round = 0; round < ROUNDS; round++) {
        struct spent now = command("cat %s | cat | cat >/dev/null", big);
        cat = (struct spent){fmin(cat.wall_s, now.wall_s), fmin(cat.cpu_s, now.cpu_s)};
        now = command("cat %s | s2s-cpshard --cp 2 --rank 0 -o - | cat >/dev/null", big);
        split = (struct spent){fmin(split.wall_s, now.wall_s), fmin(split.cpu_s, now.cpu_s)};
    }
    printf("s2s-cpshard --rank 0 in a pipe %5.2f GB/s, cat in its place %5.2f GB/s: %.2f by the "
           "clock, %.2f by processors\n",
           (double)st.st_size / split.wall_s / 1e9, (double)st.st_size / cat.wall_s / 1e9,
           cat.wall_s / split.wall_s, cat.cpu_s / split.cpu_s);
    add_goal(&(struct goal){.unit = "of cat",
                            .goal = 1,
                            .figure = cat.wall_s / split.wall_s,
                            .limit = 1,
                            .why = "each record is held whole and hashed twice, cat does neither"},
             "s2s-cpshard in a pipe");
    free(big);
}

int main(void)
{
    char folder[] = "/tmp/s2s-pack-bench-XXXXXX";
    int32_t *lens = s2s_xmalloc(N_LENS * sizeof *lens);
    make_lens(lens, false);
    bench_bins(lens, "speech");
    make_lens(lens, true);
    bench_bins(lens, "mixed");
    free(lens);
    bench_partition(2);
    bench_partition(8);
    if (!mkdtemp(folder))
        return 1;
    bench_parts(folder, "wav", SF_FORMAT_WAV | SF_FORMAT_PCM_16, 1200);
    bench_parts(folder, "opus", SF_FORMAT_OGG | SF_FORMAT_OPUS, 100);
    if (write_speech_manifest(folder))
        bench_cpshard(folder);
    command_s("rm -rf %s", folder);
    return 0;
}
