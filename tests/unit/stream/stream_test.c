/* lib/stream: what is written is read; what is damaged is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "lib/base/base.h"
#include "lib/io/digest.h"
#include "lib/io/outfile.h"
#include "lib/stream/stream.h"

/* ---- the worked example of a pack: two utterances, three clips, cp 2 ---- */

struct pack {
    int32_t input_ids[20], labels[20], position_ids[20], seq_lens[2], seq_lens_padded[2],
        cu_seqlens[3], max_seqlen, audio_slot[3], audio_frames[3];
    int64_t num_tokens, num_examples;
    struct s2s_st_tensor tensors[16];
    size_t n_tensors;
    struct s2s_st_meta meta[4];
    size_t n_meta;
};

static struct s2s_st_tensor *add(struct pack *p, const char *name, enum s2s_dtype dtype,
                                 const void *data, int64_t n)
{
    struct s2s_st_tensor *t = &p->tensors[p->n_tensors++];
    *t = (struct s2s_st_tensor){.name = name,
                                .dtype = dtype,
                                .n_dims = n >= 0,
                                .shape = {n},
                                .data = data,
                                .len_bytes = s2s_dtype_size(dtype) * (size_t)(n < 0 ? 1 : n)};
    return t;
}

static void pack_init(struct pack *p, int salt)
{
    *p = (struct pack){.seq_lens = {11, 5},
                       .seq_lens_padded = {12, 8},
                       .cu_seqlens = {0, 12, 20},
                       .max_seqlen = 12,
                       .audio_slot = {1, 7, 13},
                       .audio_frames = {4, 3, 2},
                       .num_tokens = 16,
                       .num_examples = 2};
    for (int i = 0; i < 20; i++) {
        p->input_ids[i] = 100 + i + salt;
        p->labels[i] = i % 3 ? -100 : i;
        p->position_ids[i] = i < 12 ? i : i - 12;
    }
    add(p, "input_ids", S2S_I32, p->input_ids, 20);
    add(p, "labels", S2S_I32, p->labels, 20);
    add(p, "position_ids", S2S_I32, p->position_ids, 20);
    add(p, "seq_lens", S2S_I32, p->seq_lens, 2);
    add(p, "seq_lens_padded", S2S_I32, p->seq_lens_padded, 2);
    add(p, "cu_seqlens", S2S_I32, p->cu_seqlens, 3);
    add(p, "max_seqlen", S2S_I32, &p->max_seqlen, -1);
    add(p, "num_tokens", S2S_I64, &p->num_tokens, -1);
    add(p, "num_examples", S2S_I64, &p->num_examples, -1);
    add(p, "audio_slot", S2S_I32, p->audio_slot, 3);
    add(p, "audio_frames", S2S_I32, p->audio_frames, 3);
    p->meta[p->n_meta++] = (struct s2s_st_meta){"qkv_format", "thd"};
    p->meta[p->n_meta++] = (struct s2s_st_meta){"ids", "[\"u0\",\"u,[1\"]"};
    p->meta[p->n_meta++] = (struct s2s_st_meta){"audio", "[{\"source\":\"a]b\"}, {}, {}]"};
}

static json_t *pack_header(void)
{
    json_t *header = json_pack("{s:s, s:s, s:s, s:{s:i, s:i}}", "kind", "pack", "layout", "salm",
                               "audio", "none", "config", "cp", 2, "tokens", 20);
    assert_non_null(header);
    return header;
}

static void write_packs(const char *path, int n, int zstd_level, int jobs)
{
    struct s2s_stream_writer *out = NULL;
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_stream_options options = {.zstd_level = zstd_level, .jobs = jobs};
    json_t *header = pack_header();
    char *args[] = {"--tokens=20"};
    char digest[] = "0123456789abcdef0123456789abcdef";
    char *inputs[] = {digest};
    if (s2s_stream_create(&out, path, header, NULL, args, 1, &options, &err) < 0)
        fail_msg("%s", err.text);
    for (int i = 0; i < n; i++) {
        struct pack p;
        pack_init(&p, i);
        if (s2s_stream_write(out, p.tensors, p.n_tensors, p.meta, p.n_meta, &err) < 0)
            fail_msg("%s", err.text);
    }
    if (s2s_stream_commit(out, NULL, inputs, 1, &err) < 0)
        fail_msg("%s", err.text);
    json_decref(header);
}

/* Reads to the end; the number of records or the error. Records of a damaged pipe come before its
 * end tells so: what was read counts only when the whole stream is good. */
static int read_packs(const char *path, struct s2s_error *err)
{
    struct s2s_stream *in = NULL;
    struct s2s_record rec;
    int n = 0, n_wrong = 0, rc = s2s_stream_open(&in, path, err);
    if (rc < 0)
        return rc;
    while ((rc = s2s_stream_next(in, &rec, err)) > 0) {
        int32_t first;
        memcpy(&first, s2s_safetensors_find(&rec.st, "input_ids")->data, 4);
        n_wrong += first != 100 + n || rec.idx != n;
        n++;
    }
    s2s_stream_close(in);
    if (rc == 0)
        assert_int_equal(n_wrong, 0);
    return rc < 0 ? rc : n;
}

static char folder[] = "/tmp/s2s-stream-XXXXXX";
static char path[200];

static int make_folder(void **state)
{
    if (!mkdtemp(folder))
        return -1;
    snprintf(path, sizeof path, "%s/a.s2s", folder);
    return 0;
}

static int remove_folder(void **state)
{
    char command[300];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command);
}

/* Every test runs on a plain stream and on a compressed one. */
static void each_form(void (*test)(int zstd_level))
{
    test(0);
    test(3);
}

static void written_is_read(int zstd_level)
{
    struct s2s_error err = S2S_ERROR_INIT;
    for (int n = 0; n < 4; n++) {
        write_packs(path, n, zstd_level, 1);
        int found = read_packs(path, &err);
        if (found != n)
            fail_msg("%d records: %s", found, err.text);
    }
}

static void what_is_written_is_read(void **state)
{
    each_form(written_is_read);
}

static void read_by_number(int zstd_level)
{
    struct s2s_stream *in = NULL;
    struct s2s_record rec;
    write_packs(path, 9, zstd_level, 1);
    assert_int_equal(s2s_stream_open(&in, path, NULL), 0);
    assert_int_equal(s2s_stream_n_records(in, NULL), 9);
    for (int i = 8; i >= 0; i -= 3) {
        assert_int_equal(s2s_stream_read_at(in, i, &rec, NULL), 0);
        int32_t first;
        memcpy(&first, s2s_safetensors_find(&rec.st, "input_ids")->data, 4);
        assert_int_equal(first, 100 + i);
        assert_int_equal(rec.xxh3, s2s_xxh3_64(rec.bytes, rec.len_bytes));
    }
    assert_int_equal(s2s_stream_read_at(in, 9, &rec, NULL), S2S_E_RANGE);
    assert_int_equal(s2s_stream_next(in, &rec, NULL), 1); /* reading in order is not disturbed */
    assert_int_equal(rec.idx, 0);
    s2s_stream_close(in);
}

static void any_record_of_a_file_is_read_by_its_number(void **state)
{
    each_form(read_by_number);
}

static char *slurp(const char *from, size_t *len)
{
    struct stat st;
    int fd = open(from, O_RDONLY);
    assert_true(fd >= 0 && fstat(fd, &st) == 0);
    char *bytes = malloc((size_t)st.st_size + 1);
    assert_int_equal(read(fd, bytes, (size_t)st.st_size), st.st_size);
    close(fd);
    *len = (size_t)st.st_size;
    return bytes;
}

/* Feeds bytes (no more than a pipe holds) through a pipe on stdin to the reader. */
static int read_through_pipe(const char *bytes, size_t len, struct s2s_error *err)
{
    int ends[2], saved = dup(STDIN_FILENO);
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(write(ends[1], bytes, len), len);
    close(ends[1]);
    dup2(ends[0], STDIN_FILENO);
    close(ends[0]);
    int rc = read_packs("-", err);
    dup2(saved, STDIN_FILENO);
    close(saved);
    return rc;
}

static void pipe_reads(int zstd_level)
{
    struct s2s_error err = S2S_ERROR_INIT;
    size_t len;
    write_packs(path, 5, zstd_level, 1);
    char *bytes = slurp(path, &len);
    int n = read_through_pipe(bytes, len, &err);
    if (n != 5)
        fail_msg("%d: %s", n, err.text);
    free(bytes);
}

static void a_pipe_gives_the_same_records(void **state)
{
    each_form(pipe_reads);
}

static void put_file(const char *to, const char *bytes, size_t len)
{
    int fd = open(to, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, bytes, len), len);
    close(fd);
}

static void cuts_are_refused(int zstd_level)
{
    struct s2s_error err = S2S_ERROR_INIT;
    char cut[220];
    size_t len;
    snprintf(cut, sizeof cut, "%s/cut.s2s", folder);
    write_packs(path, 2, zstd_level, 1);
    char *bytes = slurp(path, &len);
    put_file(cut, bytes, len);
    for (size_t at = len; at-- > 0;) {
        struct s2s_stream *in = NULL;
        assert_int_equal(truncate(cut, (off_t)at), 0);
        if (read_packs(cut, &err) >= 0)
            fail_msg("a file cut at byte %zu of %zu is read", at, len);
        if (s2s_stream_open(&in, cut, NULL) == 0 && s2s_stream_n_records(in, NULL) >= 0)
            fail_msg("a file cut at byte %zu of %zu has records", at, len);
        s2s_stream_close(in);
        if (read_through_pipe(bytes, at, &err) >= 0)
            fail_msg("a pipe cut at byte %zu of %zu is read", at, len);
    }
    free(bytes);
}

static void a_cut_at_any_byte_is_refused(void **state)
{
    each_form(cuts_are_refused);
}

static void flips_are_found(int zstd_level)
{
    struct s2s_error err = S2S_ERROR_INIT;
    char bad[220];
    size_t len;
    snprintf(bad, sizeof bad, "%s/bad.s2s", folder);
    write_packs(path, 1, zstd_level, 1);
    char *bytes = slurp(path, &len);
    put_file(bad, bytes, len);
    int fd = open(bad, O_WRONLY);
    /* of each byte one, another one every day, or all that it has */
    const char *all = getenv("S2S_LONG");
    const int step = all && *all ? 1 : 8, day = (int)(time(NULL) / 86400);
    for (size_t at = 0; at < len; at++)
        for (int bit = step == 1 ? 0 : (int)((at + (size_t)day) % 8); bit < 8; bit += step) {
            bytes[at] ^= (char)(1 << bit);
            assert_int_equal(pwrite(fd, &bytes[at], 1, (off_t)at), 1);
            if (read_packs(bad, &err) >= 0)
                fail_msg("bit %d of byte %zu of %zu was flipped and not found", bit, at, len);
            if (read_through_pipe(bytes, len, &err) >= 0)
                fail_msg("bit %d of byte %zu of %zu in a pipe was not found", bit, at, len);
            bytes[at] ^= (char)(1 << bit);
            assert_int_equal(pwrite(fd, &bytes[at], 1, (off_t)at), 1);
        }
    close(fd);
    free(bytes);
}

static void any_flipped_bit_is_found(void **state)
{
    each_form(flips_are_found);
}

static void threads_change_no_byte(void **state)
{
    size_t len_one, len_many;
    write_packs(path, 3000, 3, 1); /* several frames */
    char *one = slurp(path, &len_one);
    write_packs(path, 3000, 3, 4);
    char *many = slurp(path, &len_many);
    assert_int_equal(len_one, len_many);
    assert_memory_equal(one, many, len_one);
    assert_int_equal(read_packs(path, NULL), 3000);
    free(one);
    free(many);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_is_read),
        cmocka_unit_test(any_record_of_a_file_is_read_by_its_number),
        cmocka_unit_test(a_pipe_gives_the_same_records),
        cmocka_unit_test(a_cut_at_any_byte_is_refused),
        cmocka_unit_test(any_flipped_bit_is_found),
        cmocka_unit_test(threads_change_no_byte),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
