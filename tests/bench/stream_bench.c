/*
 * Streams beside what the machine gives for the same bytes in the same run: reading with all checks
 * against cat, writing with digests against cp (in memory, where neither waits for a disk), against
 * cp with a sync (ours syncs too) and against cp without one, compressed writing against zstd -T,
 * s2s-shard shuffle of many records to a frame against zstd -d.
 * One untimed round first (cold pages); then the pairs alternate and the median of their ratios is
 * printed.
 *
 *   stream_bench [MEGABYTES [FOLDER]]      default 256 in /tmp
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/base.h"
#include "lib/stream/stream.h"
#include "tests/bench/command.h"
#include "tests/bench/goal.h"

enum { ROUNDS = 5, CLIP_SAMPLES = 4 << 20, N_SLOTS = 8192 };

static char folder[300], memory[300];
static int64_t n_records;

/* ---- the content: packs with 8 MiB of speech-like PCM16, and packs without audio ---- */

static struct {
    int16_t *pcm;
    int32_t ids[N_SLOTS], labels[N_SLOTS], positions[N_SLOTS];
} content;

static void make_content(void)
{
    uint32_t state = 1;
    double level = 0;
    content.pcm = s2s_xmalloc(2 * CLIP_SAMPLES);
    for (int i = 0; i < CLIP_SAMPLES; i++) {
        state = state * 1664525u + 1013904223u;
        if (i % 4000 == 0)
            level = (state >> 16) % 3 ? 300 : 4000;
        content.pcm[i] = (int16_t)(((int32_t)(state >> 8) % 4096 - 2048) * level / 2048);
    }
    for (int i = 0; i < N_SLOTS; i++) {
        state = state * 1664525u + 1013904223u;
        content.ids[i] = (int32_t)((state >> 16) % 100 * ((state >> 10) % 300));
        content.labels[i] = i % 2 ? -100 : content.ids[i];
        content.positions[i] = i;
    }
}

static void check(int rc, const struct s2s_error *err)
{
    if (rc >= 0)
        return;
    fprintf(stderr, "stream_bench: %s\n", err->text);
    exit(1);
}

#define TENSOR(n, d, x, len) \
    { \
        .name = n, .dtype = d, .n_dims = 1, .shape = {len}, .data = x, \
        .len_bytes = (len)*s2s_dtype_size(d) \
    }
#define SCALAR(n, d, x) \
    { \
        .name = n, .dtype = d, .data = x, .len_bytes = s2s_dtype_size(d) \
    }

/* Without audio a record takes some 12 bytes a slot. */
static void write_stream(const char *path, bool audio, int32_t slots, int64_t n, int jobs)
{
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_stream_writer *out = NULL;
    struct s2s_stream_options options = {.jobs = jobs};
    json_t *header = json_pack("{s:s, s:s, s:s, s:{}}", "kind", "pack", "layout", "salm", "audio",
                               audio ? "pcm" : "none", "config");
    check(s2s_stream_create(&out, path, header, NULL, NULL, 0, &options, &err), &err);
    int32_t bounds[] = {0, slots}, slot = 1, frames = 4096;
    int64_t tokens = slots, one = 1, cu_samples[] = {0, CLIP_SAMPLES};
    for (int64_t i = 0; i < n; i++) {
        int64_t k = audio ? 1 : 0;
        struct s2s_st_tensor tensors[] = {
            TENSOR("input_ids", S2S_I32, content.ids, slots),
            TENSOR("labels", S2S_I32, content.labels, slots),
            TENSOR("position_ids", S2S_I32, content.positions, slots),
            TENSOR("seq_lens", S2S_I32, &slots, 1),
            TENSOR("seq_lens_padded", S2S_I32, &slots, 1),
            TENSOR("cu_seqlens", S2S_I32, bounds, 2),
            SCALAR("max_seqlen", S2S_I32, &slots),
            SCALAR("num_tokens", S2S_I64, &tokens),
            SCALAR("num_examples", S2S_I64, &one),
            TENSOR("audio_slot", S2S_I32, &slot, k),
            TENSOR("audio_frames", S2S_I32, &frames, k),
            TENSOR("audio_pcm", S2S_I16, content.pcm, CLIP_SAMPLES),
            TENSOR("audio_cu_samples", S2S_I64, cu_samples, 2),
        };
        struct s2s_st_meta meta[] = {{"qkv_format", "thd"}, {"ids", "[\"u\"]"}};
        check(s2s_stream_write(out, tensors, audio ? 13 : 11, meta, 2, &err), &err);
    }
    check(s2s_stream_commit(out, NULL, NULL, 0, &err), &err);
    json_decref(header);
}

/* Reads and checks every record. */
static void read_stream(const char *path)
{
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_stream *in = NULL;
    struct s2s_record rec;
    int rc;
    check(s2s_stream_open(&in, path, &err), &err);
    while ((rc = s2s_stream_next(in, &rec, &err)) > 0)
        n_records++;
    check(rc, &err);
    s2s_stream_close(in);
}

/* ---- pairs ---- */

static double size_gb(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 ? (double)st.st_size / 1e9 : 0;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values)
{
    qsort(values, ROUNDS, sizeof *values, ascending);
    return values[ROUNDS / 2];
}

static double cpu_s(int who)
{
    struct rusage u;
    getrusage(who, &u);
    return (double)u.ru_utime.tv_sec + (double)u.ru_stime.tv_sec +
           1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

/* Runs ours and the peer alternately over gb; a ratio above 1 means that ours is faster, which is
 * the goal where `why` (or "") says what else is done than by the peer. */
static void compare(const char *what, const char *peer_name, const char *why, double gb,
                    void (*ours)(void), void (*peer)(void))
{
    double ours_s[ROUNDS], peer_s[ROUNDS], ratio[ROUNDS], cpu = 0;
    for (int i = -1; i < ROUNDS; i++) {
        double begin = s2s_now_s(), cpu_begin = cpu_s(RUSAGE_SELF) + cpu_s(RUSAGE_CHILDREN);
        ours();
        double middle = s2s_now_s(), cpu_end = cpu_s(RUSAGE_SELF) + cpu_s(RUSAGE_CHILDREN);
        peer();
        double end = s2s_now_s();
        if (i < 0)
            continue;
        cpu += cpu_end - cpu_begin;
        ours_s[i] = middle - begin;
        peer_s[i] = end - middle;
        ratio[i] = peer_s[i] / ours_s[i];
    }
    printf("%-34s %6.2f GB/s (%.2f GB a cpu-second)  %-22s %6.2f GB/s  ratio %.2f\n", what,
           gb / median(ours_s), gb * ROUNDS / cpu, peer_name, gb / median(peer_s), median(ratio));
    if (why)
        add_goal(&(struct goal){.unit = "of the peer",
                                .goal = 1,
                                .figure = median(ratio),
                                .limit = 1,
                                .why = *why ? why : NULL},
                 "%s (peer: %s)", what, peer_name);
}

static char audio_path[400], plain_path[400], out_path[400], copy_path[400], zst_path[400],
    small_path[400];
static int64_t n_audio, n_plain, n_small;
static int jobs;

static void read_audio(void)
{
    read_stream(audio_path);
}
static void read_plain(void)
{
    read_stream(plain_path);
}
static void cat_audio(void)
{
    command_s("cat '%s' >/dev/null", audio_path);
}
static void cat_plain(void)
{
    command_s("cat '%s' >/dev/null", plain_path);
}
static void write_audio(void)
{
    unlink(out_path);
    write_stream(out_path, true, N_SLOTS, n_audio, 1);
}
static void write_plain(void)
{
    unlink(out_path);
    write_stream(out_path, false, N_SLOTS, n_plain, 1);
}
static void cp_audio(void)
{
    command_s("rm -f '%s'; cp '%s' '%s'", copy_path, audio_path, copy_path);
}
static void cp_plain(void)
{
    command_s("rm -f '%s'; cp '%s' '%s'", copy_path, plain_path, copy_path);
}
static void cp_audio_sync(void)
{
    command_s("rm -f '%s'; cp '%s' '%s' && sync '%s'", copy_path, audio_path, copy_path, copy_path);
}
static void write_zst(void)
{
    unlink(zst_path);
    write_stream(zst_path, true, N_SLOTS, n_audio, jobs);
}
static void zstd_audio(void)
{
    command_s("zstd -q -f -3 -T%d --check '%s' -o '%s'", jobs, audio_path, copy_path);
}
static void read_zst(void)
{
    read_stream(zst_path);
}
static void zstd_d(void)
{
    command_s("zstd -q -dc '%s' >/dev/null", zst_path);
}
static void shuffle_zst(void)
{
    command_s("s2s-shard shuffle -q -o - '%s' | cat >/dev/null", small_path);
}
static void cat_zst(void)
{
    command_s("zstd -q -dc '%s' | cat >/dev/null", small_path);
}
static void pipe_read(void)
{
    command_s("cat '%s' | s2s-shard verify -q -", audio_path);
}
static void pipe_dd(void)
{
    command_s("dd if='%s' bs=1M status=none | dd of=/dev/null bs=1M status=none", audio_path);
}

int main(int argc, char **argv)
{
    int64_t megabytes = argc > 1 ? strtol(argv[1], NULL, 10) : 256;
    snprintf(folder, sizeof folder, "%s/s2s-stream-bench.%ld", argc > 2 ? argv[2] : "/tmp",
             (long)getpid());
    if (megabytes < 16 || mkdir(folder, 0777) < 0) {
        fprintf(stderr, "stream_bench: bad size or folder\n");
        return 2;
    }
    snprintf(audio_path, sizeof audio_path, "%s/audio.s2s", folder);
    snprintf(plain_path, sizeof plain_path, "%s/plain.s2s", folder);
    snprintf(out_path, sizeof out_path, "%s/out.s2s", folder);
    snprintf(zst_path, sizeof zst_path, "%s/out.s2s.zst", folder);
    snprintf(copy_path, sizeof copy_path, "%s/copy", folder);
    n_audio = megabytes * 1000000 / (2 * CLIP_SAMPLES);
    snprintf(small_path, sizeof small_path, "%s/small.s2s.zst", folder);
    n_plain = megabytes * 1000000 / (12 * N_SLOTS);
    n_small = n_plain * 2; /* a quarter of the bytes */
    jobs = s2s_n_cores();
    make_content();
    write_audio();
    rename(out_path, audio_path);
    write_plain();
    rename(out_path, plain_path);
    double audio_gb = size_gb(audio_path), plain_gb = size_gb(plain_path);
    printf("%.2f GB; median of %d pairs after an untimed one\n", audio_gb, ROUNDS);
    compare("read, records of 8 MiB", "cat", "each record is held against its digest and schema",
            audio_gb, read_audio, cat_audio);
    compare("read, records of 100 kB", "cat", "each record is held against its digest and schema",
            plain_gb, read_plain, cat_plain);
    compare("read through a pipe (verify)", "dd | dd",
            "each record is held against its digest and schema", audio_gb, pipe_read, pipe_dd);
    compare("write and sync, records of 8 MiB", "cp and sync", "each record is hashed as well",
            audio_gb, write_audio, cp_audio_sync);
    compare("write and sync, records of 8 MiB", "cp without sync", NULL, audio_gb, write_audio,
            cp_audio);
    compare("write .zst, all cores", "zstd -3 -T", "each record is hashed as well", audio_gb,
            write_zst, zstd_audio);
    printf("%-34s %.4f of the plain bytes; zstd's %.4f\n", "compressed size",
           size_gb(zst_path) / audio_gb, size_gb(copy_path) / audio_gb);
    compare("read .zst", "zstd -d", "each record is held against its digest and schema", audio_gb,
            read_zst, zstd_d);
    /* a frame has many such records: who decodes one for each of them takes thirty times as long */
    write_stream(small_path, false, N_SLOTS / 8, n_small, jobs);
    compare("shuffle .zst, records of 12 kB", "zstd -dc | cat",
            "each record is held against its digest and schema", n_small * 12e-9 * (N_SLOTS / 8),
            shuffle_zst, cat_zst);
    command_s("rm -f '%s' '%s'", out_path, copy_path);
    if (snprintf(memory, sizeof memory, "/dev/shm/s2s-stream-bench.%ld", (long)getpid()) > 0 &&
        mkdir(memory, 0777) == 0) {
        snprintf(out_path, sizeof out_path, "%s/out.s2s", memory);
        snprintf(copy_path, sizeof copy_path, "%s/copy", memory);
        compare("write in memory, records of 8 MiB", "cp", "each record is hashed as well",
                audio_gb, write_audio, cp_audio);
        compare("write in memory, records of 100 kB", "cp", "each record is hashed as well",
                plain_gb, write_plain, cp_plain);
        command_s("rm -rf '%s'", memory);
    }
    command_s("rm -rf '%s'", folder);
    free(content.pcm);
    return n_records == 0;
}
