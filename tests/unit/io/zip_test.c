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
    /* every length around the block sizes, every alignment */
    for (size_t len = 0; len < 300; len++)
        for (size_t at = 0; at < 17; at++)
            assert_int_equal(s2s_crc32(0, data + at, len), slow_crc(data + at, len));
    for (size_t cut = 0; cut <= sizeof data; cut += 7)
        assert_int_equal(s2s_crc32(s2s_crc32(0, data, cut), data + cut, sizeof data - cut),
                         slow_crc(data, sizeof data));
}

static int to_buf(void *ctx, const void *bytes, size_t len, struct s2s_error *err)
{
    s2s_buf_add(ctx, bytes, len);
    return 0;
}

static void make_archive(struct s2s_buf *out)
{
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_zip_writer *zip = s2s_zip_writer_new(to_buf, out);
    int64_t len = 0;
    assert_int_equal(s2s_zip_add(zip, "archive/data.pkl", 64, "hello", 5, &err), 0);
    assert_int_equal(s2s_zip_begin(zip, "archive/data/0", 64, &err), 0);
    for (int i = 0; i < 100; i++)
        assert_int_equal(s2s_zip_write(zip, "0123456789", 10, &err), 0);
    assert_int_equal(s2s_zip_end(zip, &err), 0);
    assert_int_equal(s2s_zip_add(zip, "archive/empty", 1, "", 0, &err), 0);
    assert_int_equal(s2s_zip_finish(zip, &len, &err), 0);
    assert_int_equal(len, out->len);
    s2s_zip_writer_free(zip);
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

/* the field of the second directory entry at this offset gets another value */
static int open_changed(size_t at, const void *value, size_t len, struct s2s_error *err)
{
    struct s2s_buf bytes = S2S_BUF_INIT;
    struct s2s_zip zip;
    make_archive(&bytes);
    size_t entry = 0;
    for (size_t i = 0, n = 0; n < 2 && i + 4 < bytes.len; i++)
        if (memcmp(bytes.data + i, "PK\1\2", 4) == 0 && ++n == 2)
            entry = i;
    memcpy(bytes.data + entry + at, value, len);
    int rc = open_bytes(&zip, &bytes, err);
    if (rc == 0)
        s2s_zip_release(&zip);
    s2s_buf_release(&bytes);
    return rc;
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
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(crc32_is_the_polynomial_division),
        cmocka_unit_test(what_is_written_is_read),
        cmocka_unit_test(every_truncation_is_refused),
        cmocka_unit_test(lies_of_the_directory_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
