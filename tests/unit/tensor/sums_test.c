/* Sums of scalars that are on their way from the device. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "lib/base/base.h"
#include "lib/tensor/ops.h"
#include "lib/tensor/sums.h"

/* A device that is behind: what is copied out arrives when it is waited for. */
static struct {
    double *to, value;
} on_their_way[4096];
static int n_on_their_way, n_waits;

static void copy_later(struct s2s_queue *queue, void *host, const void *src, size_t bytes)
{
    assert_int_equal(bytes, sizeof(double));
    on_their_way[n_on_their_way].to = host;
    memcpy(&on_their_way[n_on_their_way++].value, src, bytes);
}

static void catch_up(struct s2s_queue *queue)
{
    for (int i = 0; i < n_on_their_way; i++)
        *on_their_way[i].to = on_their_way[i].value;
    n_on_their_way = 0;
    n_waits++;
}

static void copy_out(struct s2s_queue *queue, void *host, const void *src, size_t bytes)
{
    fail_msg("a read that waits");
}

static struct s2s_device *open_late(void)
{
    static struct s2s_kernels late;
    struct s2s_device *device = NULL;
    late = s2s_kernels_cpu;
    late.copy_out_async = copy_later;
    late.copy_out = copy_out;
    late.sync = catch_up;
    assert_int_equal(s2s_device_new(&device, &late, NULL), 0);
    n_waits = 0;
    return device;
}

static void add(struct s2s_sums *sums, struct s2s_tape *tape, int i, double value)
{
    s2s_tape_reset(tape);
    s2s_sums_add(sums, i, s2s_tape_upload(tape, S2S_F64, 0, NULL, &value));
}

static void a_sum_is_read_with_one_wait_however_many_tapes_there_were(void **state)
{
    struct s2s_device *device = open_late();
    struct s2s_tape *tape = s2s_tape_new(device, false);
    struct s2s_sums *sums = s2s_sums_new(device, 2);
    double want[2] = {0, 0}, got[2];
    for (int i = 0; i < 1000; i++) {
        const double value = 1.0 / (i + 1);
        want[i % 2] += value;
        add(sums, tape, i % 2, value);
    }
    assert_int_equal(n_waits, 0);
    assert_int_equal(s2s_sums_read(sums, got, NULL), 0);
    assert_int_equal(n_waits, 1);
    assert_memory_equal(got, want, sizeof want);
    /* and begins anew */
    add(sums, tape, 1, 3);
    assert_int_equal(s2s_sums_read(sums, got, NULL), 0);
    assert_true(got[0] == 0 && got[1] == 3);
    s2s_sums_free(sums);
    s2s_tape_free(tape);
    s2s_device_close(device);
}

static void a_sum_takes_more_than_fit_on_the_way(void **state)
{
    struct s2s_device *device = open_late();
    struct s2s_tape *tape = s2s_tape_new(device, false);
    struct s2s_sums *sums = s2s_sums_new(device, 1);
    double want = 0, got;
    for (int i = 0; i < 2500; i++) {
        want += 0.1 * i;
        add(sums, tape, 0, 0.1 * i);
    }
    assert_true(n_waits < 4);
    assert_int_equal(s2s_sums_read(sums, &got, NULL), 0);
    assert_true(got == want);
    /* what is on its way still has where to go */
    add(sums, tape, 0, 1);
    s2s_sums_free(sums);
    assert_int_equal(n_on_their_way, 0);
    s2s_tape_free(tape);
    s2s_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_sum_is_read_with_one_wait_however_many_tapes_there_were),
        cmocka_unit_test(a_sum_takes_more_than_fit_on_the_way),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
