/* Positions that are resized and the pixel shuffle, held to worked examples and to the formula. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "lib/nn/patches.h"

enum { ROOM = 4096 };

static int32_t idx[ROOM];
static float weights[ROOM];

/* Values of positions of a table that holds 0, 1, 2, .. */
static void look(double *out, int64_t side, const struct s2s_nn_images *images)
{
    s2s_nn_positions(idx, weights, side, images);
    for (int64_t i = 0; i < s2s_nn_images_patches(images); i++) {
        out[i] = 0;
        for (int64_t k = 4 * i; k < 4 * i + 4; k++)
            out[i] += idx[k] < 0 ? 0 : (double)weights[k] * (double)idx[k];
    }
}

static void expect(const double *want, int64_t n, int64_t side, const struct s2s_nn_images *images)
{
    double got[ROOM];
    assert_int_equal(s2s_nn_images_patches(images), n);
    look(got, side, images);
    for (int64_t i = 0; i < n; i++)
        if (!(fabs(got[i] - want[i]) < 1e-4))
            fail_msg("position %lld: %g, expected %g", (long long)i, got[i], want[i]);
}

/* A table of 4 x 4 for 2 x 3 patches: the first two lines of 3 x 3. */
static void positions_are_the_corner_of_a_square(void **state)
{
    static const int32_t grid[] = {2, 3};
    static const double want[] = {0.83333, 2.16667, 3.5, 6.16667, 7.5, 8.83333};
    expect(want, 6, 4, &(struct s2s_nn_images){1, grid});
}

static void positions_of_the_largest_image_are_the_table(void **state)
{
    static const int32_t grid[] = {4, 4};
    double want[16];
    for (int i = 0; i < 16; i++)
        want[i] = i;
    expect(want, 16, 4, &(struct s2s_nn_images){1, grid});
    for (int i = 0; i < 64; i++)
        assert_int_equal(idx[i] >= 0, i % 4 == 0);
}

/* A line of 0..3 on six points; of another image in front nothing is seen. */
static void positions_are_stretched_past_the_table(void **state)
{
    static const int32_t grid[] = {1, 1, 1, 6};
    /* down, each column reads at (0.5 * 4 / 6 - 0.5 = -0.17): the first line */
    static const double want[] = {7.5, 0, 0.5, 1.16667, 1.83333, 2.5, 3};
    expect(want, 7, 4, &(struct s2s_nn_images){2, grid});
}

static void patches_side_by_side_become_one_row(void **state)
{
    static const int32_t grid[] = {4, 6, 2, 2};
    static const int32_t want[] = {0,  1,  6,  7,  2,  3,  8,  9,  4,  5,  10, 11, 12, 13,
                                   18, 19, 14, 15, 20, 21, 16, 17, 22, 23, 29, 30, 31, 32};
    const struct s2s_nn_images images = {2, grid};
    s2s_nn_shuffle_rows(idx, &images, 5, 2);
    for (int i = 0; i < 28; i++) /* five rows in front of each */
        assert_int_equal(idx[i], want[i] + 5);
    s2s_nn_shuffle_rows(idx, &images, 0, 1);
    for (int i = 0; i < 28; i++)
        assert_int_equal(idx[i], i);
}

static void bounds_count_what_stands_in_front(void **state)
{
    static const int32_t grid[] = {4, 6, 1, 1};
    const struct s2s_nn_patches layer = {.n_front = 3};
    int32_t cu[3] = {-1, -1, -1};
    s2s_nn_patches_bounds(&layer, &(struct s2s_nn_images){2, grid}, cu);
    assert_int_equal(cu[0], 0);
    assert_int_equal(cu[1], 27);
    assert_int_equal(cu[2], 31);
    s2s_nn_patches_bounds(&layer, &(struct s2s_nn_images){0, NULL}, cu);
    assert_int_equal(cu[0], 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(positions_are_the_corner_of_a_square),
        cmocka_unit_test(positions_of_the_largest_image_are_the_table),
        cmocka_unit_test(positions_are_stretched_past_the_table),
        cmocka_unit_test(patches_side_by_side_become_one_row),
        cmocka_unit_test(bounds_count_what_stands_in_front),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
