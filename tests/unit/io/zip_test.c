/* Stored zip archives, and their CRC-32. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "lib/base/base.h"
#include "lib/io/crc32.h"
#include "lib/io/zip.h"

/* bit by bit, as the polynomial division is defined */
static uint32_t slow_crc(const unsigned char *p, size_t len)
{
    uint32_t crc = 0xFFFFFFFFu;
    for (size_t i = 0; i < len; i++) {
        crc ^= p[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320u : 0);
    }
    return ~crc;
}

static void crc32_is_the_polynomial_division(void **state)
{
    unsigned char data[1000];
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (unsigned char)(i * 37 + i / 11);
    assert_int_equal(s2s_crc32(0, "123456789", 9), 0xCBF43926u);
    assert_int_equal(s2s_crc32(0, "", 0), 0);
    /* every length around the block sizes, every alignment, every way */
    for (size_t len = 0; len < 600; len++)
        for (size_t at = 0; at < 17; at++) {
            const uint32_t want = slow_crc(data + at, len);
            for (enum s2s_crc32_way way = S2S_CRC32_TABLES; way <= S2S_CRC32_AVX512; way++)
                assert_int_equal(s2s_crc32_by(way, 0, data + at, len), want);
        }
    for (size_t cut = 0; cut <= sizeof data; cut += 7) {
        const size_t rest = sizeof data - cut;
        const uint32_t begin = s2s_crc32(0, data, cut), want = slow_crc(data, sizeof data);
        assert_int_equal(s2s_crc32(begin, data + cut, rest), want);
        assert_int_equal(s2s_crc32_shift(begin, (int64_t)rest) ^ s2s_crc32(0, data + cut, rest),
                         want);
    }
}

static int to_buf(void *ctx, const void *bytes, size_t len, struct s2s_error *err)
{
    s2s_buf_add(ctx, bytes, len);
    return 0;
}

static void finish(struct s2s_zip_writer *zip, const struct s2s_buf *out)
{
    struct s2s_error err = S2S_ERROR_INIT;
    int64_t len = 0;
    assert_int_equal(s2s_zip_finish(zip, &len, &err), 0);
    assert_int_equal(len, out->len);
    s2s_zip_writer_free(zip);
}

static void make_archive(struct s2s_buf *out)
{
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_zip_writer *zip = s2s_zip_writer_new(to_buf, out);
    assert_int_equal(s2s_zip_add(zip, "archive/data.pkl", 64, "hello", 5, &err), 0);
    assert_int_equal(s2s_zip_begin(zip, "archive/data/0", 64, &err), 0);
    for (int i = 0; i < 100; i++)
        assert_int_equal(s2s_zip_write(zip, "0123456789", 10, &err), 0);
    assert_int_equal(s2s_zip_end(zip, &err), 0);
    assert_int_equal(s2s_zip_add(zip, "archive/empty", 1, "", 0, &err), 0);
    finish(zip, out);
}

static int open_bytes(struct s2s_zip *zip, const struct s2s_buf *bytes, struct s2s_error *err)
{
    struct s2s_zip_source source = {
        .fd = -1, .bytes = bytes->data, .len_bytes = (int64_t)bytes->len};
    return s2s_zip_open(zip, &source, err);
}

static void what_is_written_is_read(void **state)
{
    struct s2s_buf bytes = S2S_BUF_INIT;
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_zip zip;
    char *data;
    make_archive(&bytes);
    assert_int_equal(open_bytes(&zip, &bytes, &err), 0);
    assert_int_equal(zip.n_members, 3);
    const struct s2s_zip_member *member = s2s_zip_find(&zip, "data/0");
    assert_non_null(member);
    assert_int_equal(member->len_bytes, 1000);
    assert_int_equal(member->pos % 64, 0);
    assert_int_equal(s2s_zip_read_member(&zip, member, 1000, &data, &err), 0);
    assert_memory_equal(data + 990, "0123456789", 11);
    free(data);
    assert_int_equal(s2s_zip_read_member(&zip, member, 999, &data, &err), S2S_E_FORMAT);
    assert_null(s2s_zip_find(&zip, "data/1"));
    /* a flipped byte of the data */
    bytes.data[member->pos + 500] ^= 1;
    assert_int_equal(s2s_zip_read_member(&zip, member, 1000, &data, &err), S2S_E_DIGEST);
    s2s_zip_release(&zip);
    s2s_buf_release(&bytes);
}

static void every_truncation_is_refused(void **state)
{
    struct s2s_buf bytes = S2S_BUF_INIT;
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_zip zip;
    make_archive(&bytes);
    for (size_t whole = bytes.len; bytes.len > 0;) {
        bytes.len--;
        if (open_bytes(&zip, &bytes, &err) == 0)
            fail_msg("%zu of %zu bytes were taken for an archive", bytes.len, whole);
    }
    s2s_buf_release(&bytes);
}

/* the place of the n-th record of this signature */
static size_t find_record(const struct s2s_buf *bytes, const char *signature, int n)
{
    for (size_t i = 0; i + 4 <= bytes->len; i++)
        if (memcmp(bytes->data + i, signature, 4) == 0 && --n == 0)
            return i;
    fail_msg("no such record");
    return 0;
}

static int open_and_release(const struct s2s_buf *bytes, struct s2s_error *err)
{
    struct s2s_zip zip;
    /* exactly as large as the archive, so that ASan sees what is read behind it */
    char *exact = s2s_xmalloc(bytes->len);
    memcpy(exact, bytes->data, bytes->len);
    int rc = open_bytes(&zip, &(struct s2s_buf){.data = exact, .len = bytes->len}, err);
    if (rc == 0)
        s2s_zip_release(&zip);
    free(exact);
    return rc;
}

/* the field at this offset of the n-th record of a signature gets another value */
static int open_with(const char *signature, int n, size_t at, const void *value, size_t len,
                     struct s2s_error *err)
{
    struct s2s_buf bytes = S2S_BUF_INIT;
    make_archive(&bytes);
    memcpy(bytes.data + find_record(&bytes, signature, n) + at, value, len);
    int rc = open_and_release(&bytes, err);
    s2s_buf_release(&bytes);
    return rc;
}

static int open_changed(size_t at, const void *value, size_t len, struct s2s_error *err)
{
    return open_with("PK\1\2", 2, at, value, len, err);
}

static void lies_of_the_directory_are_refused(void **state)
{
    struct s2s_error err = S2S_ERROR_INIT;
    assert_int_equal(open_changed(10, "\x08", 1, &err), S2S_E_UNSUPPORTED); /* deflate */
    assert_non_null(strstr(err.text, "compressed"));
    assert_int_equal(open_changed(8, "\x09", 1, &err), S2S_E_UNSUPPORTED);      /* encrypted */
    assert_int_equal(open_changed(24, "\xff\xff", 2, &err), S2S_E_UNSUPPORTED); /* size lie */
    assert_int_equal(open_changed(20, "\xff\xff\0\0\xff\xff\0\0", 8, &err), S2S_E_FORMAT);
    assert_int_equal(open_changed(42, "\0\0\0\0", 4, &err), S2S_E_FORMAT); /* on the first */
    assert_non_null(strstr(err.text, "overlap"));
    assert_int_equal(open_changed(42, "\xff\xff\xff\x7f", 4, &err), S2S_E_FORMAT);
    assert_int_equal(open_changed(46 + 8, "X", 1, &err), 0); /* only another name */
    assert_int_equal(open_changed(46 + 8, "\0", 1, &err), S2S_E_FORMAT);
    assert_non_null(strstr(err.text, "zero byte"));
    assert_int_equal(open_changed(8, "\x48", 1, &err), S2S_E_UNSUPPORTED); /* strongly so */
    assert_non_null(strstr(err.text, "encrypted"));
    /* name, extra field and comment reach past the directory */
    for (size_t field = 28; field <= 32; field += 2) {
        assert_int_equal(open_changed(field, "\xff\xff", 2, &err), S2S_E_FORMAT);
        assert_non_null(strstr(err.text, "leaves the directory"));
    }
    /* 4 GiB less one, which only a zip64 field may say */
    assert_int_equal(open_changed(42, "\xff\xff\xff\xff", 4, &err), S2S_E_FORMAT);
    assert_non_null(strstr(err.text, "zip64"));
}

static void lies_of_local_headers_and_the_end_are_refused(void **state)
{
    struct s2s_error err = S2S_ERROR_INIT;
    assert_int_equal(open_with("PK\3\4", 2, 8, "\x08", 1, &err), S2S_E_FORMAT); /* deflate */
    assert_int_equal(open_with("PK\3\4", 2, 0, "PK\3\5", 4, &err), S2S_E_FORMAT);
    /* the last member's data begin behind the archive; its own size is 0 */
    assert_int_equal(open_with("PK\3\4", 3, 28, "\xff\xff", 2, &err), S2S_E_FORMAT);
    assert_non_null(strstr(err.text, "leaves the archive"));
    for (size_t disk = 4; disk <= 6; disk += 2) {
        assert_int_equal(open_with("PK\5\6", 1, disk, "\1", 1, &err), S2S_E_FORMAT);
        assert_non_null(strstr(err.text, "several disks"));
    }
    assert_int_equal(open_with("PK\5\6", 1, 8, "\2", 1, &err), S2S_E_FORMAT);
    assert_int_equal(open_with("PK\5\6", 1, 8, "\2\0\2", 3, &err), S2S_E_FORMAT);
    assert_non_null(strstr(err.text, "behind the last"));
    assert_int_equal(open_with("PK\5\6", 1, 8, "\4\0\4", 3, &err), S2S_E_FORMAT);
}

static void members_that_share_bytes_are_refused(void **state)
{
    struct s2s_buf bytes = S2S_BUF_INIT;
    struct s2s_error err = S2S_ERROR_INIT;
    /* the last member has 0 bytes; 40 do not fit, and 16 are its descriptor's */
    const unsigned char forty[8] = {40, 0, 0, 0, 40}, sixteen[8] = {16, 0, 0, 0, 16};
    assert_int_equal(open_with("PK\1\2", 3, 20, forty, 8, &err), S2S_E_FORMAT);
    assert_non_null(strstr(err.text, "leaves the archive"));
    assert_int_equal(open_with("PK\1\2", 3, 20, sixteen, 8, &err), 0);
    /* a whole local header among the bytes of the second */
    make_archive(&bytes);
    const size_t data = find_record(&bytes, "PK\3\4", 2) + 200;
    const uint32_t header = (uint32_t)data;
    memset(bytes.data + data, 0, 30);
    memcpy(bytes.data + data, "PK\3\4", 4);
    memcpy(bytes.data + find_record(&bytes, "PK\1\2", 3) + 42, &header, 4);
    assert_int_equal(open_and_release(&bytes, &err), S2S_E_FORMAT);
    assert_non_null(strstr(err.text, "overlap"));
    s2s_buf_release(&bytes);
}

static void a_name_is_there_once(void **state)
{
    struct s2s_buf bytes = S2S_BUF_INIT;
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_zip_writer *writer = s2s_zip_writer_new(to_buf, &bytes);
    assert_int_equal(s2s_zip_add(writer, "a/one", 1, "1", 1, &err), 0);
    assert_int_equal(s2s_zip_add(writer, "a/two", 1, "2", 1, &err), 0);
    assert_int_equal(s2s_zip_add(writer, "a/one", 1, "3", 1, &err), 0);
    finish(writer, &bytes);
    assert_int_equal(open_and_release(&bytes, &err), S2S_E_FORMAT);
    assert_non_null(strstr(err.text, "a/one is there twice"));
    s2s_buf_release(&bytes);
}

static void an_archive_may_be_empty_and_a_crc_unknown(void **state)
{
    struct s2s_buf bytes = S2S_BUF_INIT;
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_zip zip;
    char *data;
    finish(s2s_zip_writer_new(to_buf, &bytes), &bytes);
    assert_int_equal(bytes.len, 22);
    assert_int_equal(open_bytes(&zip, &bytes, &err), 0);
    assert_int_equal(zip.n_members, 0);
    s2s_zip_release(&zip);
    s2s_buf_clear(&bytes);
    /* torch writes 0 where it was told not to count */
    make_archive(&bytes);
    memset(bytes.data + find_record(&bytes, "PK\1\2", 1) + 16, 0, 4);
    assert_int_equal(open_bytes(&zip, &bytes, &err), 0);
    assert_int_equal(s2s_zip_read_member(&zip, s2s_zip_find(&zip, "data.pkl"), 5, &data, &err), 0);
    assert_string_equal(data, "hello");
    free(data);
    s2s_zip_release(&zip);
    s2s_buf_release(&bytes);
}

/* a directory that ends before the end record: what lies between belongs to nobody */
static void a_hole_before_the_end_is_refused(void **state)
{
    struct s2s_buf bytes = S2S_BUF_INIT, more = S2S_BUF_INIT;
    struct s2s_error err = S2S_ERROR_INIT;
    make_archive(&bytes);
    const size_t end = find_record(&bytes, "PK\5\6", 1);
    s2s_buf_add(&more, bytes.data, end);
    s2s_buf_puts(&more, "abc");
    s2s_buf_add(&more, bytes.data + end, bytes.len - end);
    assert_int_equal(open_and_release(&more, &err), S2S_E_FORMAT);
    assert_non_null(strstr(err.text, "does not end at"));
    s2s_buf_release(&bytes);
    s2s_buf_release(&more);
}

/* The archive, its second entry with extra fields (a zip64 one tells size and place), and the end
 * record that fits. */
static int open_with_extra(const void *extra, size_t len, bool is_far, struct s2s_error *err)
{
    struct s2s_buf bytes = S2S_BUF_INIT, more = S2S_BUF_INIT;
    make_archive(&bytes);
    const size_t entry = find_record(&bytes, "PK\1\2", 2);
    const size_t third = find_record(&bytes, "PK\1\2", 3), end = find_record(&bytes, "PK\5\6", 1);
    uint16_t extra_len = (uint16_t)len;
    uint32_t directory_len;
    memcpy(bytes.data + entry + 30, &extra_len, 2);
    if (is_far) {
        memset(bytes.data + entry + 20, 0xff, 8);
        memset(bytes.data + entry + 42, 0xff, 4);
    }
    memcpy(&directory_len, bytes.data + end + 12, 4);
    directory_len += extra_len;
    memcpy(bytes.data + end + 12, &directory_len, 4);
    s2s_buf_add(&more, bytes.data, third);
    s2s_buf_add(&more, extra, len);
    s2s_buf_add(&more, bytes.data + third, bytes.len - third);
    int rc = open_and_release(&more, err);
    s2s_buf_release(&bytes);
    s2s_buf_release(&more);
    return rc;
}

static void zip64_fields_are_read(void **state)
{
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_buf bytes = S2S_BUF_INIT;
    make_archive(&bytes);
    /* another field, then size (twice) and place of the second member */
    unsigned char extra[6 + 4 + 24] = {0x55, 0x54, 2, 0, 9, 9, 1, 0, 24, 0};
    const uint64_t size = 1000, header = find_record(&bytes, "PK\3\4", 2);
    memcpy(extra + 10, &size, 8);
    memcpy(extra + 18, &size, 8);
    memcpy(extra + 26, &header, 8);
    s2s_buf_release(&bytes);
    assert_int_equal(open_with_extra(extra, sizeof extra, true, &err), 0);
    assert_int_equal(open_with_extra(extra, sizeof extra, false, &err), 0);
    /* too short for three numbers; longer than the extra fields; another one alone */
    extra[8] = 16;
    assert_int_equal(open_with_extra(extra, sizeof extra - 8, true, &err), S2S_E_FORMAT);
    assert_non_null(strstr(err.text, "bad zip64 field"));
    extra[8] = 25;
    assert_int_equal(open_with_extra(extra, sizeof extra, true, &err), S2S_E_FORMAT);
    assert_int_equal(open_with_extra(extra, 6, true, &err), S2S_E_FORMAT);
    extra[8] = 24;
    extra[33] = 0x80; /* a place below 0 */
    assert_int_equal(open_with_extra(extra, sizeof extra, true, &err), S2S_E_FORMAT);
    assert_non_null(strstr(err.text, "lies outside"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(crc32_is_the_polynomial_division),
        cmocka_unit_test(what_is_written_is_read),
        cmocka_unit_test(every_truncation_is_refused),
        cmocka_unit_test(lies_of_the_directory_are_refused),
        cmocka_unit_test(lies_of_local_headers_and_the_end_are_refused),
        cmocka_unit_test(members_that_share_bytes_are_refused),
        cmocka_unit_test(a_name_is_there_once),
        cmocka_unit_test(an_archive_may_be_empty_and_a_crc_unknown),
        cmocka_unit_test(a_hole_before_the_end_is_refused),
        cmocka_unit_test(zip64_fields_are_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
