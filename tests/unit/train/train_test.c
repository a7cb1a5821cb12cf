/* Order of the packs, CRC-32C of event files, the lock of a run directory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/base.h"
#include "lib/train/events.h"
#include "lib/train/feed.h"
#include "lib/train/lock.h"

static void each_epoch_is_a_permutation_of_its_own(void **state)
{
    (void)state;
    enum { N = 97 };
    int64_t *cache = NULL, epoch = -1, first[N];
    for (int e = 0; e < 3; e++) {
        int seen[N] = {0}, same = 0;
        for (int i = 0; i < N; i++) {
            int64_t idx = s2s_feed_order(7, true, N, (int64_t)e * N + i, &cache, &epoch);
            assert_in_range(idx, 0, N - 1);
            seen[idx]++;
            same += e > 0 && first[i] == idx;
            first[i] = idx;
        }
        for (int i = 0; i < N; i++)
            assert_int_equal(seen[i], 1);
        assert_true(same < 10);
    }
    /* any position may be asked for at any time */
    int64_t late = s2s_feed_order(7, true, N, 2 * N + 5, &cache, &epoch);
    assert_int_equal(late, first[5]);
    assert_int_equal(s2s_feed_order(7, false, N, 2 * N + 5, &cache, &epoch), 5);
    free(cache);
}

static void crc32c_of_known_strings(void **state)
{
    (void)state;
    /* RFC 3720, B.4 */
    unsigned char bytes[32];
    memset(bytes, 0, sizeof bytes);
    assert_int_equal(s2s_crc32c(bytes, 32), 0x8a9136aau);
    memset(bytes, 0xff, sizeof bytes);
    assert_int_equal(s2s_crc32c(bytes, 32), 0x62a8ab43u);
    for (int i = 0; i < 32; i++)
        bytes[i] = (unsigned char)i;
    assert_int_equal(s2s_crc32c(bytes, 32), 0x46dd794eu);
}

static void a_run_directory_is_locked_once(void **state)
{
    (void)state;
    char dir[] = "/tmp/s2s-lock-XXXXXX";
    assert_non_null(mkdtemp(dir));
    char *run = s2s_xasprintf("%s/a/b", dir);
    struct s2s_run_lock *lock = NULL, *other = NULL;
    struct s2s_error err = S2S_ERROR_INIT;
    assert_int_equal(s2s_run_lock(&lock, run, &err), 0);
    assert_int_equal(s2s_run_lock(&other, run, &err), S2S_E_RULE);
    char *owner = s2s_xasprintf("process %d on ", (int)getpid());
    assert_non_null(strstr(err.text, owner));
    s2s_run_unlock(lock);
    assert_int_equal(s2s_run_lock(&other, run, &err), 0);
    s2s_run_unlock(other);
    free(owner);
    assert_int_equal(rmdir(run), 0);
    char *parent = s2s_xasprintf("%s/a", dir);
    assert_int_equal(rmdir(parent), 0);
    assert_int_equal(rmdir(dir), 0);
    free(parent);
    free(run);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_epoch_is_a_permutation_of_its_own),
        cmocka_unit_test(crc32c_of_known_strings),
        cmocka_unit_test(a_run_directory_is_locked_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
