/*
 * s2s-pack and s2s-cpshard beside their limits, in the same run:
 *   bins       lengths packed per second, 1 M of them, with the fill that is reached
 *   partition  bytes of bf16 rows of 1024 split per second, beside memcpy
 *   s2s-pack   hours of audio per second, beside decoding and resampling alone
 *   s2s-cpshard  bytes per second through pipes, beside cat
 * The last two need the programs in PATH and the speech of asterisk-core-sounds-en-wav.
 */
#include <glob.h>
#include <math.h>
#include <stdio.h>
#include <unistd.h>

#include "lib/audio/audio.h"
#include "lib/base/base.h"
#include "lib/thd/thd.h"

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

static void bench_bins(const int32_t *lens, const char *what)
{
    for (int a = S2S_BINS_CONCATENATIVE; a <= S2S_BINS_MFFD; a++) {
        struct s2s_bins_options opt = S2S_BINS_OPTIONS_DEFAULT;
        struct s2s_error err = S2S_ERROR_INIT;
        double best_s = 1e9, fill = 0;
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
        printf("bins %-14s %-6s  %6.1f M lengths/s  fill %.4f\n", s2s_thd_bin_algorithms[a], what,
               N_LENS / best_s / 1e6, fill);
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
    free(global);
    free(local);
}

/* ---- programs ---- */

/* What failed has no speed. */
static double run_s(const char *command)
{
    double start_s = s2s_now_s();
    if (system(command) != 0)
        S2S_BUG("this failed: %s", command);
    return s2s_now_s() - start_s;
}

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

static void bench_programs(const char *folder)
{
    glob_t files;
    double audio_s;
    if (glob("/usr/share/asterisk/sounds/en_US_f_Allison/*.wav", 0, NULL, &files) != 0) {
        printf("s2s-pack  no speech here (asterisk-core-sounds-en-wav)\n");
        return;
    }
    char *manifest = s2s_xasprintf("%s/m.jsonl", folder);
    write_manifest(manifest, &files);
    decode_all(&files, &audio_s); /* cold pages */
    double alone_s = decode_all(&files, &audio_s);
    printf("decode + resample alone       %6.2f h/s, 1 thread\n", audio_s / 3600 / alone_s);
    static const char *const forms[] = {"pcm", "mel", "path"};
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        char *command =
            s2s_xasprintf("s2s-pack -q -j 1 --manifest %s --tokenizer demo/tokenizer.json "
                          "--audio %s --tokens 4096 >/dev/null",
                          manifest, forms[i]);
        run_s(command);
        double s = run_s(command);
        printf("s2s-pack --audio %-4s -j 1     %6.2f h/s (%.2f of decode + resample)\n", forms[i],
               audio_s / 3600 / s, alone_s / s);
        free(command);
    }
    free(manifest);
    globfree(&files);
}

static void bench_cpshard(const char *folder)
{
    char *make =
        s2s_xasprintf("for i in 1 2 3 4 5 6; do cat %s/m.jsonl; done | s2s-pack -q --manifest - "
                      "--tokenizer demo/tokenizer.json --audio pcm --tokens 8192 --cp 2 -o "
                      "%s/big.s2s && stat -c %%s %s/big.s2s >%s/size",
                      folder, folder, folder, folder);
    char *split =
        s2s_xasprintf("cat %s/big.s2s | s2s-cpshard --cp 2 --rank 0 | cat >/dev/null", folder);
    char *cat = s2s_xasprintf("cat %s/big.s2s | cat | cat >/dev/null", folder);
    char *size = s2s_xasprintf("%s/size", folder);
    double bytes;
    run_s(make);
    FILE *f = fopen(size, "r");
    if (!f || fscanf(f, "%lf", &bytes) != 1)
        S2S_BUG("cannot read %s", size);
    fclose(f);
    run_s(cat);
    double cat_s = run_s(cat), split_s = run_s(split);
    printf("s2s-cpshard --rank 0 in a pipe %5.2f GB/s, cat in its place %5.2f GB/s (%.2f)\n",
           bytes / split_s / 1e9, bytes / cat_s / 1e9, cat_s / split_s);
    free(make);
    free(split);
    free(cat);
    free(size);
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
    bench_programs(folder);
    bench_cpshard(folder);
    char *clean = s2s_xasprintf("rm -rf %s", folder);
    int rc = system(clean);
    free(clean);
    return rc != 0;
}
