/* lib/io: safetensors bytes, digests, tar headers, files that appear whole. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/base.h"
#include "lib/io/digest.h"
#include "lib/io/outfile.h"
#include "lib/io/safetensors.h"
#include "lib/io/tar.h"
#include "lib/base/utf8.h"

static char folder[] = "/tmp/s2s-io-XXXXXX";
static char path[200];

static int make_folder(void **state)
{
    if (!mkdtemp(folder))
        return -1;
    snprintf(path, sizeof path, "%s/file", folder);
    return 0;
}

static int remove_folder(void **state)
{
    unlink(path);
    return rmdir(folder);
}

/* Two tensors and two keys, in either order. */
static void save(bool swapped)
{
    static const int32_t x[] = {1, -2, 3};
    static const double y = 0.5;
    struct s2s_st_tensor tensors[] = {
        {.name = "x", .dtype = S2S_I32, .n_dims = 2, .shape = {1, 3}, .data = x, .len_bytes = 12},
        {.name = "b", .dtype = S2S_F64, .data = &y, .len_bytes = 8}};
    struct s2s_st_meta meta[] = {{"z", "line\n\"quoted\" \\ \x01 \xc3\xa9"}, {"a", ""}};
    if (swapped) {
        struct s2s_st_tensor t = tensors[0];
        tensors[0] = tensors[1];
        tensors[1] = t;
        struct s2s_st_meta m = meta[0];
        meta[0] = meta[1];
        meta[1] = m;
    }
    assert_int_equal(s2s_safetensors_save(path, tensors, 2, meta, 2, NULL), 0);
}

static void equal_content_is_equal_bytes(void **state)
{
    char one[33], two[33];
    save(false);
    assert_int_equal(s2s_digest_file(one, path, NULL), 0);
    save(true);
    assert_int_equal(s2s_digest_file(two, path, NULL), 0);
    assert_string_equal(one, two);
}

static void the_bytes_are_those_of_the_format_document(void **state)
{
    static const char json[] =
        "{\"__metadata__\":{\"a\":\"\",\"z\":\"line\\n\\\"quoted\\\" \\\\ \\u0001 \xc3\xa9\"},"
        "\"b\":{\"dtype\":\"F64\",\"shape\":[],\"data_offsets\":[0,8]},"
        "\"x\":{\"dtype\":\"I32\",\"shape\":[1,3],\"data_offsets\":[8,20]}}";
    char bytes[1000];
    save(false);
    int fd = open(path, O_RDONLY);
    ssize_t len = read(fd, bytes, sizeof bytes);
    close(fd);
    uint64_t json_len = (sizeof json - 1 + 7) / 8 * 8;
    assert_int_equal(len, 8 + json_len + 20);
    assert_memory_equal(bytes, &json_len, 8);
    assert_memory_equal(bytes + 8, json, sizeof json - 1);
    for (size_t i = 8 + sizeof json - 1; i < 8 + json_len; i++)
        assert_int_equal(bytes[i], ' ');
}

static void what_is_written_is_read(void **state)
{
    struct s2s_safetensors st;
    save(false);
    assert_int_equal(s2s_safetensors_open(&st, path, NULL), 0);
    assert_int_equal(st.n_tensors, 2);
    const struct s2s_st_tensor *x = s2s_safetensors_find(&st, "x");
    assert_non_null(x);
    assert_int_equal(x->n_dims, 2);
    assert_int_equal(s2s_st_numel(x), 3);
    assert_int_equal(((const int32_t *)x->data)[1], -2);
    assert_int_equal(s2s_st_numel(s2s_safetensors_find(&st, "b")), 1);
    assert_string_equal(s2s_safetensors_meta(&st, "z"), "line\n\"quoted\" \\ \x01 \xc3\xa9");
    assert_string_equal(s2s_safetensors_meta(&st, "a"), "");
    assert_null(s2s_safetensors_meta(&st, "b"));
    assert_null(s2s_safetensors_find(&st, "a"));
    s2s_safetensors_release(&st);
}

/* tensors of a header as they come */
struct seen {
    struct seen_tensor {
        char name[400];
        int64_t shape;
        size_t begin, len;
    } * tensors;
    size_t n;
};

static int see(void *ctx, const struct s2s_st_tensor *tensor, size_t begin, struct s2s_error *err)
{
    struct seen *seen = ctx;
    struct seen_tensor *t = &seen->tensors[seen->n++];
    (void)err;
    assert_null(tensor->data);
    snprintf(t->name, sizeof t->name, "%s", tensor->name);
    t->shape = tensor->n_dims ? tensor->shape[0] : -1;
    t->begin = begin;
    t->len = tensor->len_bytes;
    return 0;
}

/* every shorter file is cut somewhere, and that is said */
static void a_header_is_read_without_its_data(void **state)
{
    struct s2s_safetensors st;
    struct s2s_error err = S2S_ERROR_INIT;
    struct seen_tensor tensors[2];
    struct seen seen = {tensors, 0};
    int64_t data_pos;
    save(false);
    int fd = open(path, O_RDWR);
    assert_int_equal(s2s_safetensors_read_header(&st, fd, &data_pos, see, &seen, NULL), 0);
    assert_int_equal(seen.n, 2);
    assert_string_equal(tensors[1].name, "x");
    assert_int_equal(tensors[1].shape, 1);
    assert_int_equal(tensors[1].len, 12);
    assert_int_equal(tensors[0].begin, 0); /* "b", of 8 bytes */
    assert_int_equal(tensors[1].begin, 8);
    assert_int_equal(st.n_tensors, 0);
    assert_string_equal(s2s_safetensors_meta(&st, "z"), "line\n\"quoted\" \\ \x01 \xc3\xa9");
    s2s_safetensors_release(&st);
    const int64_t whole = data_pos + 20;
    for (int64_t len = 0; len < whole; len++) {
        save(false);
        assert_int_equal(truncate(path, len), 0);
        close(fd);
        fd = open(path, O_RDWR);
        assert_true(s2s_safetensors_read_header(&st, fd, &data_pos, NULL, NULL, &err) < 0);
        assert_int_equal(err.code, S2S_E_TRUNCATED);
    }
    close(fd);
}

enum { MANY = 400 };

/* MANY tensors of a byte each; the data of their even ones comes last. Texts that look like the
 * ends of members stand everywhere, and the metadata in the middle. bad: -1, or which begins a byte
 * late.
 */
static void save_many(int bad)
{
    struct s2s_buf json = S2S_BUF_INIT;
    s2s_buf_puts(&json, "{");
    for (int i = 0; i < MANY; i++) {
        const int at = (i % 2 ? i / 2 : MANY / 2 + i / 2) + (i == bad);
        s2s_buf_printf(&json,
                       "%s\"%d},\\\"{\\\\%*s\": {\"shape\": [1], \"data_offsets\": [%d, %d], "
                       "\"dtype\": \"U8\"}",
                       i ? " ,\n" : "", i, i % 300, "]", at, at + 1);
        if (i == MANY / 2)
            s2s_buf_printf(&json, ",\"__metadata__\":{\"long\":\"%*s\",\"},\":\"\\u00e9\"}", 30000,
                           "{\\n");
    }
    s2s_buf_puts(&json, "}");
    const uint64_t len = json.len;
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fwrite(&len, sizeof len, 1, file);
    fwrite(json.data, 1, json.len, file);
    for (int i = 0; i < MANY; i++)
        fputc(i, file);
    assert_int_equal(fclose(file), 0);
    s2s_buf_release(&json);
}

static void a_header_in_parts_is_that_at_once(void **state)
{
    struct s2s_safetensors st, head;
    struct s2s_error err = S2S_ERROR_INIT;
    struct seen seen = {s2s_xcalloc(MANY, sizeof *seen.tensors), 0};
    int64_t data_pos;
    save_many(-1);
    int fd = open(path, O_RDONLY);
    assert_int_equal(s2s_safetensors_open(&st, path, NULL), 0);
    assert_int_equal(s2s_safetensors_read_header(&head, fd, &data_pos, see, &seen, NULL), 0);
    assert_int_equal(st.n_tensors, MANY);
    assert_int_equal(seen.n, MANY);
    const char *data = (const char *)s2s_safetensors_find(&st, seen.tensors[1].name)->data;
    for (size_t i = 0; i < MANY; i++) {
        const struct s2s_st_tensor *t = s2s_safetensors_find(&st, seen.tensors[i].name);
        assert_non_null(t);
        assert_int_equal((const char *)t->data - data, seen.tensors[i].begin);
        assert_int_equal(*(const unsigned char *)t->data, seen.tensors[i].begin % 256);
    }
    assert_int_equal(head.n_meta, 2);
    for (size_t i = 0; i < 2; i++) {
        assert_string_equal(head.meta[i].key, st.meta[i].key);
        /* of a long one the beginning */
        assert_true(s2s_starts_with(st.meta[i].value, head.meta[i].value));
    }
    s2s_safetensors_release(&st);
    s2s_safetensors_release(&head);
    close(fd);
    /* whoever reads it names the same tensor */
    save_many(8);
    fd = open(path, O_RDONLY);
    assert_int_equal(s2s_safetensors_open(&st, path, &err), S2S_E_FORMAT);
    const char *said = strstr(err.text, "tensor '8}");
    assert_non_null(said);
    char *copy = s2s_xstrdup(said);
    s2s_error_clear(&err);
    assert_int_equal(s2s_safetensors_read_header(&head, fd, &data_pos, NULL, NULL, &err),
                     S2S_E_FORMAT);
    assert_string_equal(err.text, copy);
    free(copy);
    free(seen.tensors);
    close(fd);
}

static void a_writer_refuses_what_a_reader_would(void **state)
{
    char *header = NULL;
    size_t len;
    int32_t x[2] = {0};
    struct s2s_st_tensor twice[] = {{.name = "x", .dtype = S2S_I32, .data = x, .len_bytes = 4},
                                    {.name = "x", .dtype = S2S_I32, .data = x, .len_bytes = 4}};
    struct s2s_st_tensor wrong = {.name = "x", .dtype = S2S_I32, .data = x, .len_bytes = 8};
    struct s2s_st_tensor wraps = {.name = "x",
                                  .dtype = S2S_I32,
                                  .n_dims = 2,
                                  .shape = {INT64_MAX, INT64_MAX},
                                  .data = x,
                                  .len_bytes = 4};
    struct s2s_st_meta bytes = {"k", "\xff"}, keys[] = {{"k", "1"}, {"k", "2"}};
    assert_int_equal(s2s_safetensors_header(&header, &len, twice, 2, NULL, 0, NULL), S2S_E_FORMAT);
    assert_int_equal(s2s_safetensors_header(&header, &len, &wrong, 1, NULL, 0, NULL), S2S_E_SHAPE);
    assert_int_equal(s2s_safetensors_header(&header, &len, &wraps, 1, NULL, 0, NULL), S2S_E_SHAPE);
    assert_int_equal(s2s_safetensors_header(&header, &len, NULL, 0, &bytes, 1, NULL), S2S_E_FORMAT);
    assert_int_equal(s2s_safetensors_header(&header, &len, NULL, 0, keys, 2, NULL), S2S_E_FORMAT);
    assert_null(header);
}

/* Whoever reads the header alone says the same, but for names that are there twice: it keeps none.
 */
static void demand_same(const struct s2s_buf *bytes, int want, const struct s2s_error *said)
{
    struct s2s_safetensors st;
    struct s2s_error err = S2S_ERROR_INIT;
    int64_t data_pos;
    FILE *file = fopen(path, "w+");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes->data, 1, bytes->len, file), bytes->len);
    assert_int_equal(fflush(file), 0);
    const int rc = s2s_safetensors_read_header(&st, fileno(file), &data_pos, NULL, NULL, &err);
    if (rc == 0)
        s2s_safetensors_release(&st);
    assert_int_equal(fclose(file), 0);
    if (want < 0 && strstr(said->text, "tensor 'a' twice"))
        return;
    assert_int_equal(rc, want);
    if (rc < 0)
        assert_string_equal(err.text, said->text);
}

/* a file of this header, so many bytes of data, and a length that may lie by so much */
static int parse_text(const char *json, size_t data_len, uint64_t lie, struct s2s_error *err)
{
    static const char zeros[64];
    struct s2s_buf bytes = S2S_BUF_INIT;
    struct s2s_safetensors st;
    const uint64_t told = strlen(json) + lie;
    s2s_buf_add(&bytes, &told, 8);
    s2s_buf_puts(&bytes, json);
    s2s_buf_add(&bytes, zeros, data_len);
    char *exact = s2s_xmalloc(bytes.len); /* ASan sees what is read behind it */
    memcpy(exact, bytes.data, bytes.len);
    int rc = s2s_safetensors_parse(&st, exact, bytes.len, err);
    if (rc == 0)
        s2s_safetensors_release(&st);
    free(exact);
    demand_same(&bytes, rc, err);
    s2s_buf_release(&bytes);
    return rc;
}

#define F32(name, shape, offsets) \
    "\"" name "\":{\"dtype\":\"F32\",\"shape\":[" shape "],\"data_offsets\":[" offsets "]}"

/* Texts of the metadata as they come, each behind its key. */
struct gathered {
    struct s2s_buf text;
    size_t n_pieces;
};

static int gather(void *ctx, const char *key, const char *piece, struct s2s_error *err)
{
    struct gathered *got = ctx;
    (void)err;
    if (key)
        s2s_buf_printf(&got->text, "\n%s=", key);
    s2s_buf_puts(&got->text, piece);
    got->n_pieces++;
    return 0;
}

/* A header whose metadata has a text of so many bits out of the first n_bits, in the middle of
 * tensors without elements. */
static void put_long_text(struct s2s_buf *json, size_t n, unsigned n_bits, unsigned *seed)
{
    static const char *const bits[] = {
        "\\ud83d\\ude00",    "\\\"",     "\\u00e9",           "\\\\", "\\n",
        "\xf0\x9f\x98\x80",  "\xc3\xa9", "},{\\\"a\\\": 1, ", ":",    "weight_of_the_first_layer",
        "bias_of_the_output"};
    s2s_buf_puts(json, "{" F32("a", "0", "0,0") ", \"__metadata__\" : {\"\\u0062\":\"\",\"c\": \"");
    for (size_t i = 0; i < n; i++)
        s2s_buf_puts(json, bits[(*seed = *seed * 1103515245 + 12345) / 65536 % n_bits]);
    s2s_buf_puts(json, "\" , \"d\":\"}\"}," F32("e", "0", "0,0") "}");
}

static void long_texts_come_in_pieces(void **state)
{
    unsigned seed = 1;
    for (unsigned n_bits = 1; n_bits <= 11; n_bits++) {
        struct s2s_buf json = S2S_BUF_INIT, want = S2S_BUF_INIT;
        struct gathered got = {S2S_BUF_INIT, 0};
        struct s2s_error err = S2S_ERROR_INIT;
        struct s2s_safetensors st;
        put_long_text(&json, 40000, n_bits, &seed);
        assert_int_equal(parse_text(json.data, 0, 0, &err), 0);
        int fd = open(path, O_RDONLY);
        assert_int_equal(s2s_safetensors_read_texts(fd, gather, &got, &err), 0);
        assert_int_equal(s2s_safetensors_open(&st, path, &err), 0);
        assert_int_equal(st.n_meta, 3);
        for (size_t i = 0; i < st.n_meta; i++)
            s2s_buf_printf(&want, "\n%s=%s", st.meta[i].key, st.meta[i].value);
        assert_string_equal(got.text.data, want.data);
        /* where nothing but escapes is, no cut */
        assert_true(n_bits < 6 ? got.n_pieces <= 4 : n_bits < 10 || got.n_pieces > 5);
        s2s_safetensors_release(&st);
        close(fd);
        /* damage is found at the same place */
        for (int i = 0; i < 40; i++) {
            seed = seed * 1103515245 + 12345;
            char *byte = json.data + seed / 16 % json.len;
            const char was = *byte;
            *byte = "\x01\\\"u\xff"[i % 5];
            parse_text(json.data, 0, 0, &err);
            s2s_error_clear(&err);
            *byte = was;
        }
        s2s_buf_release(&json);
        s2s_buf_release(&got.text);
        s2s_buf_release(&want);
    }
}

static void headers_that_lie_are_refused(void **state)
{
    static const struct {
        const char *json, *says;
        size_t data_len;
    } bad[] = {
        {"{" F32("a", "02", "0,8") "}", "expected a whole number", 8},
        {"{" F32("a", "2", "0,08") "}", "expected a whole number", 8},
        {"{" F32("a", "", "0,4") "," F32("a", "", "4,8") "}", "'a' twice", 8},
        {"{" F32("a", "2", "0,8") "}x", "after the object", 8},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"dtype\":\"F32\",\"data_offsets\":[0,4]}}",
         "repeated key", 4},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[4]}}", "two data_offsets", 4},
        {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", "without dtype, shape", 4},
        {"{" F32("\\udc00", "", "0,4") "}", "surrogate", 4},
        {"{" F32("\\ud800\\u0041", "", "0,4") "}", "surrogate", 4},
        {"{" F32("\\ud800", "", "0,4") "}", "surrogate", 4},
        {"{" F32("a\x1f", "", "0,4") "}", "control character", 4},
        {"{" F32("a\\u0000", "", "0,4") "}", "NUL", 4},
        {"{" F32("\xff", "", "0,4") "}", "UTF-8", 4},
        {"{\"__metadata__\":{},\"__metadata__\":{}}", "__metadata__ twice", 0},
        {"{\"__metadata__\":{\"k\":\"v\",\"k\":\"v\"}}", "'k' twice", 0},
        {"{" F32("a", "0,9223372036854775808", "0,0") "}", "overflows", 0},
        {"{" F32("a", "4294967296,4294967296", "0,0") "}", "overflows", 0},
        {"{" F32("a", "18446744073709551616", "0,0") "}", "past 64 bits", 0},
        {"{" F32("a", "", "4,0") "}", "data_offsets", 4},
        {"{" F32("a", "", "0,4") "," F32("b", "", "8,12") "}", "hole", 12},
        {"{" F32("a", "2", "0,8") "," F32("b", "", "4,8") "}", "overlap", 8},
        {"{" F32("a", "2", "0,8") "," F32("b", "0", "4,4") "}", "'b' begins at byte 4", 8},
        {"{" F32("a", "", "0,4") "," F32("b", "0", "8,8") "," F32("c", "", "4,8") "}",
         "end at byte 8", 9},
        {"{" F32("a", "", "0,4") "}", "end at byte 4", 5},
        {"{" F32("a", "", "0,4") "}", "the data has 3", 3},
        {"{" F32("a", "1,1,1,1,1,1,1,1,1", "0,4") "}", "more axes than the 8", 4},
        {"{" F32("a", "1", "0,4,4") "}", "more than two data_offsets", 4},
        {"{\"__metadata__\":nul," F32("a", "1", "0,4") "}", "expected {", 4},
    };
    struct s2s_error err = S2S_ERROR_INIT;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        if (parse_text(bad[i].json, bad[i].data_len, 0, &err) == 0)
            fail_msg("read: %s", bad[i].json);
        if (!strstr(err.text, bad[i].says))
            fail_msg("expected \"%s\" in: %s", bad[i].says, err.text);
    }
    /* what is odd and right */
    assert_int_equal(parse_text("{" F32("\\ud83d\\ude00", "0,9", "0,0") "}", 0, 0, &err), 0);
    assert_int_equal(parse_text("{" F32("b", "0", "4,4") "," F32("a", "", "0,4") "} ", 4, 0, &err),
                     0);
    /* without elements, and at a place that the tensors before it in the header have filled */
    assert_int_equal(parse_text("{" F32("a", "", "0,4") "," F32("b", "0", "0,0") "}", 4, 0, &err),
                     0);
    assert_int_equal(parse_text("{" F32("a", "", "0,4") "," F32("b", "", "4,8") "," F32(
                                    "c", "0", "4,4") "," F32("d", "", "8,12") "}",
                                12, 0, &err),
                     0);
    assert_int_equal(parse_text("{\"__metadata__\": null ," F32("a", "", "0,4") "}", 4, 0, &err),
                     0);
    assert_int_equal(parse_text("{}", 0, 0, &err), 0);
    /* the header ends behind the file, by one byte and by very many */
    assert_int_equal(parse_text("{}", 0, 1, &err), S2S_E_TRUNCATED);
    assert_int_equal(parse_text("{}", 0, 8, &err), S2S_E_TRUNCATED);
    assert_int_equal(parse_text("{}", 0, 100000001 - 2, &err), S2S_E_FORMAT);
    assert_int_equal(parse_text("{}", 0, (uint64_t)-3, &err), S2S_E_FORMAT);
}

static void digests_are_xxh3(void **state)
{
    /* values of the xxHash project's own sanity checks: empty input, seed 0 */
    char hex[33];
    assert_true(s2s_xxh3_64("", 0) == UINT64_C(0x2d06800538d394c2));
    s2s_xxh3_128_hex(hex, "", 0);
    assert_string_equal(hex, "99aa06d3014798d86001c324468d497f");
    char bytes[3000];
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (char)(i * i >> 3);
    struct s2s_digest *digest = s2s_digest_new(64);
    for (size_t at = 0; at < sizeof bytes; at += 500)
        s2s_digest_update(digest, bytes + at, 500);
    assert_true(s2s_digest_value(digest) == s2s_xxh3_64(bytes, sizeof bytes));
    s2s_digest_free(digest);
}

static void a_member_of_8_gib_has_a_pax_header(void **state)
{
    unsigned char header[S2S_TAR_MAX_HEADER];
    char name[101];
    uint64_t size, large = UINT64_C(8589934592);
    assert_int_equal(s2s_tar_header(header, "a", large - 1), 512);
    assert_false(s2s_tar_is_pax(header));
    assert_true(s2s_tar_read(header, false, name, &size));
    assert_true(size == large - 1);
    assert_int_equal(s2s_tar_header(header, "a", large), 1536);
    assert_true(s2s_tar_is_pax(header));
    assert_memory_equal(header + 512, "19 size=8589934592\n", 20);
    assert_true(s2s_tar_read(header, true, name, &size));
    assert_string_equal(name, "a");
    assert_true(size == large);
}

static void utf8_is_rfc_3629(void **state)
{
    static const char *const good[] = {"",
                                       "a",
                                       "\xc2\x80",
                                       "\xe0\xa0\x80",
                                       "\xed\x9f\xbf",
                                       "\xf4\x8f\xbf\xbf",
                                       "abcdefgh\xc3\xa9"};
    static const char *const bad[] = {"\x80",         "\xc0\x80",     "\xc1\xbf",
                                      "\xe0\x9f\xbf", "\xed\xa0\x80", "\xf4\x90\x80\x80",
                                      "\xf5",         "\xc3",         "abcdefgh\xe2\x82"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        assert_true(s2s_utf8_valid(good[i], strlen(good[i])));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_false(s2s_utf8_valid(bad[i], strlen(bad[i])));
}

static void a_file_appears_only_with_commit(void **state)
{
    struct s2s_outfile *out = NULL;
    struct stat st;
    char *large = s2s_xcalloc(3000000, 1);
    unlink(path);
    assert_int_equal(s2s_outfile_open(&out, path, NULL), 0);
    assert_int_equal(s2s_outfile_write(out, large, 3000000, NULL), 0);
    assert_int_equal(stat(path, &st), -1);
    s2s_outfile_abort(out);
    assert_int_equal(stat(path, &st), -1);
    assert_int_equal(s2s_outfile_open(&out, path, NULL), 0);
    for (int i = 0; i < 3000; i++)
        assert_int_equal(s2s_outfile_write(out, large, 1000, NULL), 0);
    assert_int_equal(s2s_outfile_offset(out), 3000000);
    assert_int_equal(s2s_outfile_commit(out, NULL), 0);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_size, 3000000);
    free(large);
    s2s_outfile_abort(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_content_is_equal_bytes),
        cmocka_unit_test(the_bytes_are_those_of_the_format_document),
        cmocka_unit_test(what_is_written_is_read),
        cmocka_unit_test(a_header_is_read_without_its_data),
        cmocka_unit_test(a_header_in_parts_is_that_at_once),
        cmocka_unit_test(a_writer_refuses_what_a_reader_would),
        cmocka_unit_test(long_texts_come_in_pieces),
        cmocka_unit_test(headers_that_lie_are_refused),
        cmocka_unit_test(digests_are_xxh3),
        cmocka_unit_test(a_member_of_8_gib_has_a_pax_header),
        cmocka_unit_test(utf8_is_rfc_3629),
        cmocka_unit_test(a_file_appears_only_with_commit),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
