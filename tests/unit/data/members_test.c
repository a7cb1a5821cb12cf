/* lib/data: members of tars by order and by place, what is copied before it is read, names of
 * shards.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka wants the four above first */
#include <cmocka.h>

#include <archive.h>
#include <archive_entry.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/base.h"
#include "lib/data/expand.h"
#include "lib/data/members.h"
#include "lib/data/spool.h"
#include "lib/data/tar_source.h"

enum { N_FILES = 4 };

/* The third name needs a header before its header. */
static const char *const names[N_FILES] = {
    "a.wav", "folder/b.wav",
    "folder/a-name-of-more-than-a-hundred-bytes-a-name-of-more-than-a-hundred-bytes-a-name-of-more-"
    "than-a-hundred-bytes-a-name-of-more-than-a-hundred-bytes-a-name-of-more-than-a-hundred.wav",
    "empty.wav"};
static const size_t sizes[N_FILES] = {3, 700, 512, 0};

static void content(char *bytes, size_t i)
{
    for (size_t k = 0; k < sizes[i]; k++)
        bytes[k] = (char)('a' + (k + i) % 26);
}

static void add(struct archive *out, const char *name, unsigned int type, const char *bytes,
                size_t len)
{
    struct archive_entry *entry = archive_entry_new();
    archive_entry_set_pathname(entry, name);
    archive_entry_set_filetype(entry, type);
    archive_entry_set_size(entry, (la_int64_t)len);
    archive_entry_set_perm(entry, 0644);
    assert_int_equal(archive_write_header(out, entry), ARCHIVE_OK);
    assert_int_equal(archive_write_data(out, bytes, len), (la_ssize_t)len);
    archive_entry_free(entry);
}

static char *write_tar(bool gzip)
{
    char *path = s2s_xstrdup("/tmp/s2s-members-test-XXXXXX"), bytes[1024];
    int fd = mkstemp(path);
    struct archive *out = archive_write_new();
    archive_write_set_format_pax_restricted(out);
    if (gzip)
        archive_write_add_filter_gzip(out);
    assert_int_equal(archive_write_open_fd(out, fd), ARCHIVE_OK);
    for (size_t i = 0; i < N_FILES; i++) {
        content(bytes, i);
        add(out, names[i], AE_IFREG, bytes, sizes[i]);
        if (i == 0)
            add(out, "folder", AE_IFDIR, NULL, 0);
    }
    assert_int_equal(archive_write_free(out), ARCHIVE_OK);
    close(fd);
    return path;
}

/* Walks all, then reads them from the last to the first. */
static void check_all(const char *path)
{
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_members *tar = NULL;
    struct s2s_member member, found[N_FILES];
    size_t n = 0;
    int rc;
    if (s2s_members_open(&tar, path, &err) < 0)
        fail_msg("%s", err.text);
    while ((rc = s2s_members_next(tar, &member, &err)) > 0) {
        assert_true(n < N_FILES);
        assert_string_equal(member.name, names[n]);
        assert_int_equal(member.len_bytes, sizes[n]);
        found[n++] = member;
    }
    if (rc < 0)
        fail_msg("%s", err.text);
    assert_int_equal(n, N_FILES);
    for (size_t i = N_FILES; i-- > 0;) {
        char want[1024];
        void *bytes;
        size_t len;
        content(want, i);
        if (s2s_members_read(tar, found[i].at, names[i], &bytes, &len, &err) < 0)
            fail_msg("%s", err.text);
        assert_int_equal(len, sizes[i]);
        assert_memory_equal(bytes, want, len);
        free(bytes);
    }
    void *none;
    size_t len;
    assert_int_equal(s2s_members_read(tar, found[0].at, names[1], &none, &len, &err), S2S_E_FORMAT);
    s2s_members_rewind(tar);
    assert_int_equal(s2s_members_next(tar, &member, &err), 1);
    assert_string_equal(member.name, names[0]);
    s2s_members_close(tar);
}

static void members_are_read_in_order_and_by_place(void **state)
{
    for (int gzip = 0; gzip < 2; gzip++) {
        char *path = write_tar(gzip), *piped = s2s_xasprintf("pipe:cat %s", path);
        check_all(path);
        check_all(piped);
        unlink(path);
        free(path);
        free(piped);
    }
}

/* Whether all members can be walked and read. */
static int read_all(const char *path, struct s2s_error *err)
{
    struct s2s_members *tar = NULL;
    struct s2s_member member;
    int rc = s2s_members_open(&tar, path, err);
    while (rc == 0 && (rc = s2s_members_next(tar, &member, err)) > 0) {
        char *name = s2s_xstrdup(member.name);
        void *bytes = NULL;
        size_t len;
        rc = s2s_members_read(tar, member.at, name, &bytes, &len, err);
        free(bytes);
        free(name);
    }
    s2s_members_close(tar);
    return rc;
}

/* Up to the end mark; what a writer pads it with may be missing. */
static void a_tar_cut_anywhere_is_refused(void **state)
{
    struct s2s_error err = S2S_ERROR_INIT;
    struct stat st;
    char *path = write_tar(false);
    assert_int_equal(read_all(path, &err), 0);
    assert_int_equal(stat(path, &st), 0);
    /* headers: four, the folder's, and two blocks before the long name's; data of three files */
    const long end = 7 * 512 + 512 + 1024 + 512;
    assert_true(st.st_size > end);
    for (long len = end; len >= 0; len -= 1) {
        assert_int_equal(truncate(path, len), 0);
        int rc = read_all(path, &err);
        if (rc != S2S_E_TRUNCATED && rc != S2S_E_FORMAT)
            fail_msg("cut to %ld bytes: %d", len, rc);
        assert_non_null(strstr(err.text, path));
    }
    unlink(path);
    free(path);
}

static void the_end_of_a_command_is_looked_at(void **state)
{
    struct s2s_error err = S2S_ERROR_INIT;
    static const struct {
        const char *path, *says;
    } cases[] = {
        {"pipe:echo all of it; exit 3", "failed with exit status 3"},
        {"pipe:echo a part; kill -9 $$", "ended by signal 9"},
        {"pipe:no-such-program-of-s2s 2>/dev/null", "failed with exit status 127"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(s2s_spool_open(cases[i].path, &err), S2S_E_IO);
        if (!strstr(err.text, cases[i].says) || !strstr(err.text, cases[i].path))
            fail_msg("%s", err.text);
    }
    int fd = s2s_spool_open("pipe:printf abc", &err);
    char bytes[4];
    assert_true(fd >= 0);
    assert_int_equal(read(fd, bytes, 4), 3);
    assert_memory_equal(bytes, "abc", 3);
    close(fd);
}

/* The names that braceexpand gives, after the brackets of NeMo are made braces. */
static void patterns_stand_for_names(void **state)
{
    static const struct {
        const char *pattern, *names;
    } cases[] = {
        {"a__OP_0..2_CL_.json", "a_0.json a_1.json a_2.json"},
        {"{00..02}", "00 01 02"},
        {"{8..10}", "8 9 10"},
        {"{08..10}", "08 09 10"},
        {"x<a..c>y", "xay xby xcy"},
        {"{1..10..4}", "1 5 9"},
        {"{3..1}", "3 2 1"},
        {"{-1..1}", "-1 0 1"},
        {"{a,b}[0..1]", "a0 a1 b0 b1"},
        {"{a,{b,c}}", "a b c"},
        {"n{,s}", "n ns"},
        {"a{x}b", "a{x}b"},
        {"(v2)/a.json", "(v2)/a.json"},
        {"a{0..", "a{0.."},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct s2s_error err = S2S_ERROR_INIT;
        struct s2s_buf got = S2S_BUF_INIT;
        char **found = NULL;
        size_t n = 0;
        assert_int_equal(s2s_data_expand(&found, &n, cases[i].pattern, &err), 0);
        for (size_t k = 0; k < n; k++) {
            s2s_buf_printf(&got, "%s%s", k > 0 ? " " : "", found[k]);
            free(found[k]);
        }
        assert_string_equal(got.data, cases[i].names);
        free(found);
        s2s_buf_release(&got);
    }
}

static void patterns_of_too_many_names_are_refused(void **state)
{
    static const char *const cases[] = {"{0..9999999}", "{0..9999}{0..9999}",
                                        "{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{a,b},c},d},e},f},g},"
                                        "h},i},j},k},l},m},n},o},p},q},r},s},t},u},v},w},x},y},z},"
                                        "a},b},c},d},e},f},g},h},i},j},k},l}"};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct s2s_error err = S2S_ERROR_INIT;
        char **found = NULL;
        size_t n = 0;
        assert_int_equal(s2s_data_expand(&found, &n, cases[i], &err), S2S_E_RANGE);
        assert_int_equal(n, 0);
        free(found);
    }
}

static void shards_are_known_by_the_last_number(void **state)
{
    assert_int_equal(s2s_data_shard_id("a/manifest_3.json", "manifest", ".json"), 3);
    assert_int_equal(s2s_data_shard_id("manifest__12_clean.jsonl.gz", "manifest", ".json"), 12);
    assert_int_equal(s2s_data_shard_id("pipe:cat x/audio_1_07.tar -", "audio", ".tar"), 7);
    assert_int_equal(s2s_data_shard_id("audio_5/clips.tar", "audio", ".tar"), -1);
    assert_int_equal(s2s_data_shard_id("clips_5.tar", "audio", ".tar"), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(members_are_read_in_order_and_by_place),
        cmocka_unit_test(a_tar_cut_anywhere_is_refused),
        cmocka_unit_test(the_end_of_a_command_is_looked_at),
        cmocka_unit_test(patterns_stand_for_names),
        cmocka_unit_test(patterns_of_too_many_names_are_refused),
        cmocka_unit_test(shards_are_known_by_the_last_number),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
