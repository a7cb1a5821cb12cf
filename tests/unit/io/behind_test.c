/* Bytes that a thread passes on: their order, and failures. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "lib/base/base.h"
#include "lib/io/behind.h"

enum { LEN = 3000000 };

struct taken {
    struct s2s_buf bytes;
    size_t n_calls, fails_at; /* 0: never */
};

static int take(void *ctx, const void *bytes, size_t len, struct s2s_error *err)
{
    struct taken *taken = ctx;
    if (++taken->n_calls == taken->fails_at)
        return s2s_error_set(err, S2S_E_IO, "call %zu", taken->n_calls);
    s2s_buf_add(&taken->bytes, bytes, len);
    return 0;
}

static char *some_bytes(void)
{
    char *bytes = s2s_xmalloc(LEN);
    for (size_t i = 0; i < LEN; i++)
        bytes[i] = (char)(i * 37 + i / 251);
    return bytes;
}

/* steps grow by `step`; flushed after each `flushed` of them, and at the end */
static void add_all(struct s2s_behind *behind, const char *bytes, size_t step, size_t flushed)
{
    size_t n = 0;
    for (size_t at = 0, len = 1; at < LEN; at += len, len += step) {
        len = LEN - at < len ? LEN - at : len;
        assert_int_equal(s2s_behind_add(behind, bytes + at, len, NULL), 0);
        if (++n % flushed == 0)
            assert_int_equal(s2s_behind_flush(behind, NULL), 0);
    }
    assert_int_equal(s2s_behind_flush(behind, NULL), 0);
    assert_int_equal(s2s_behind_flush(behind, NULL), 0);
}

static void all_bytes_arrive_in_order(void **state)
{
    static const size_t steps[] = {7, 1000, 99991, LEN}, flushed[] = {3, 17, SIZE_MAX};
    char *bytes = some_bytes();
    for (int threaded = 0; threaded < 2; threaded++)
        for (size_t i = 0; i < sizeof steps / sizeof *steps; i++)
            for (size_t k = 0; k < sizeof flushed / sizeof *flushed; k++) {
                struct taken taken = {.fails_at = 0};
                struct s2s_behind *behind = s2s_behind_new(take, &taken, threaded);
                add_all(behind, bytes, steps[i], flushed[k]);
                assert_int_equal(taken.bytes.len, LEN); /* before it is freed */
                assert_memory_equal(taken.bytes.data, bytes, LEN);
                s2s_behind_free(behind);
                s2s_buf_release(&taken.bytes);
            }
    free(bytes);
}

static void a_failure_is_told_and_the_sink_left_alone(void **state)
{
    char *bytes = some_bytes(), want[16];
    for (int threaded = 0; threaded < 2; threaded++)
        for (size_t fails_at = 1; fails_at <= LEN / S2S_BEHIND_PIECE + 1; fails_at++) {
            struct taken taken = {.fails_at = fails_at};
            struct s2s_error err = S2S_ERROR_INIT;
            struct s2s_behind *behind = s2s_behind_new(take, &taken, threaded);
            int rc = 0;
            for (size_t at = 0; rc == 0 && at < LEN; at += 1000)
                rc = s2s_behind_add(behind, bytes + at, 1000, &err);
            if (rc == 0)
                rc = s2s_behind_flush(behind, &err);
            assert_int_equal(rc, S2S_E_IO);
            snprintf(want, sizeof want, "call %zu", fails_at);
            assert_string_equal(err.text, want);
            s2s_behind_free(behind);
            assert_int_equal(taken.n_calls, fails_at);
            assert_int_equal(taken.bytes.len, (fails_at - 1) * S2S_BEHIND_PIECE);
            s2s_buf_release(&taken.bytes);
        }
    free(bytes);
}

static void what_is_not_flushed_is_lost(void **state)
{
    char *bytes = some_bytes();
    struct taken taken = {.fails_at = 0};
    struct s2s_behind *behind = s2s_behind_new(take, &taken, true);
    assert_int_equal(s2s_behind_add(behind, bytes, 100, NULL), 0);
    s2s_behind_free(behind);
    assert_int_equal(taken.n_calls, 0);
    behind = s2s_behind_new(take, &taken, true);
    assert_int_equal(s2s_behind_add(behind, bytes, LEN, NULL), 0);
    s2s_behind_free(behind);
    assert_int_equal(taken.bytes.len % S2S_BEHIND_PIECE, 0);
    assert_memory_equal(taken.bytes.data, bytes, taken.bytes.len);
    s2s_buf_release(&taken.bytes);
    s2s_behind_free(s2s_behind_new(take, &taken, true));
    s2s_behind_free(NULL);
    free(bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_bytes_arrive_in_order),
        cmocka_unit_test(a_failure_is_told_and_the_sink_left_alone),
        cmocka_unit_test(what_is_not_flushed_is_lost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
