/* Cuts of parameters: the boxes of all ranks tile the tensor, and values are the same on any cut.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>

#include "lib/base/mem.h"
#include "lib/tensor/param.h"
#include "tests/unit/tensor/bug.h"

enum { N = 8 * 12 * 20 };

/* [8, 12, 20], cut in all ways */
static const struct layout {
    int dims[2], ranks[2]; /* of the cuts over tp and ep */
    int n_parts;
    int64_t parts[S2S_PARAM_PARTS];
} layouts[] = {
    {{0, 0}, {1, 1}, 0, {0}},
    {{0, 0}, {2, 1}, 0, {0}},
    {{1, 0}, {3, 1}, 0, {0}},
    {{2, 0}, {4, 1}, 0, {0}},
    {{0, 1}, {2, 2}, 0, {0}},
    {{2, 0}, {2, 4}, 0, {0}},
    {{0, 0}, {1, 4}, 0, {0}},
    {{0, 0}, {2, 1}, 3, {4, 2, 2}},
    {{1, 0}, {2, 1}, 5, {2, 4, 0, 2, 4}},
    {{2, 0}, {2, 4}, 3, {8, 6, 6}},
    {{1, 2}, {3, 2}, 2, {3, 9}},
    {{1, 0}, {1, 2}, 2, {3, 9}}, /* parts of what is not cut */
    {{1, 0}, {5, 1}, 0, {0}},    /* from here on ranks have unequal parts */
    {{2, 1}, {3, 5}, 0, {0}},
    {{1, 0}, {2, 1}, 3, {3, 4, 5}},
};
enum { N_LAYOUTS = sizeof layouts / sizeof *layouts };

static const int64_t shape[] = {8, 12, 20};
static struct s2s_device *device;

/* One rank's registry with the one parameter. */
struct cut {
    struct s2s_group tp, ep;
    struct s2s_params *params;
    struct s2s_param *param;
};

static struct cut *cut_open(const struct layout *l, int tp, int ep)
{
    struct cut *c = s2s_xcalloc(1, sizeof *c);
    c->tp = (struct s2s_group){.axis = "tp", .size = l->ranks[0], .rank = tp};
    c->ep = (struct s2s_group){.axis = "ep", .size = l->ranks[1], .rank = ep};
    c->params = s2s_params_new(device);
    struct s2s_param_spec spec = {
        .name = "w.weight",
        .n_dims = 3,
        .shape = {8, 12, 20},
        .cuts = {{S2S_AXIS_TP, l->dims[0], &c->tp}, {S2S_AXIS_EP, l->dims[1], &c->ep}},
        .n_parts = l->n_parts,
        .flags = S2S_PARAM_UNEVEN,
        .init = {S2S_INIT_NORMAL, 0.5}};
    memcpy(spec.parts, l->parts, sizeof spec.parts);
    c->param = s2s_params_add(c->params, &spec);
    assert_int_equal(s2s_params_finish(c->params, NULL), 0);
    return c;
}

static void cut_close(struct cut *c)
{
    s2s_params_free(c->params);
    free(c);
}

/* Which rank has index i of the cut dimension, and as which one of its own. */
static int64_t owner(const struct layout *l, int cut, int64_t i, int64_t *local)
{
    const int64_t all[] = {shape[l->dims[cut]]};
    const int64_t *parts = cut == 0 && l->n_parts ? l->parts : all;
    const int64_t ranks = l->ranks[cut];
    int64_t rank = 0;
    int k = 0;
    for (; i >= parts[k]; i -= parts[k++])
        ;
    while (i >= parts[k] * (rank + 1) / ranks)
        rank++;
    *local = i - parts[k] * rank / ranks;
    for (int before = 0; before < k; before++)
        *local += parts[before] * (rank + 1) / ranks - parts[before] * rank / ranks;
    return rank;
}

/* Local index of a global element on rank (tp, ep); -1: it is another's. Thought anew, without
 * boxes. */
static int64_t local_of(const struct layout *l, const struct s2s_param *p, int64_t global, int tp,
                        int ep)
{
    int64_t at[3] = {global / (12 * 20), global / 20 % 12, global % 20};
    const int ranks[] = {tp, ep};
    for (int c = 0; c < 2; c++)
        if (l->ranks[c] > 1 && owner(l, c, at[l->dims[c]], &at[l->dims[c]]) != ranks[c])
            return -1;
    return (at[0] * p->local[1] + at[1]) * p->local[2] + at[2];
}

/* check(layout, rank's parameter, the whole one's values) on every rank of every layout */
static void on_all_ranks(void (*check)(const struct layout *, struct cut *, int tp, int ep,
                                       const float *whole))
{
    float whole[N];
    struct cut *one = cut_open(&layouts[0], 0, 0);
    s2s_params_init(one->params, 3);
    s2s_param_get(one->param, whole);
    for (int k = 0; k < N_LAYOUTS; k++) {
        int64_t n_of_all = 0;
        for (int tp = 0; tp < layouts[k].ranks[0]; tp++)
            for (int ep = 0; ep < layouts[k].ranks[1]; ep++) {
                struct cut *c = cut_open(&layouts[k], tp, ep);
                n_of_all += c->param->numel;
                check(&layouts[k], c, tp, ep, whole);
                cut_close(c);
            }
        assert_int_equal(n_of_all, N);
    }
    cut_close(one);
}

static void check_values(const struct layout *l, struct cut *c, int tp, int ep, const float *whole)
{
    float local[N];
    for (int given = 0; given < 2; given++) {
        if (given)
            s2s_param_set(c->param, whole, S2S_F32);
        else
            s2s_params_init(c->params, 3);
        s2s_param_get(c->param, local);
        for (int64_t g = 0; g < N; g++) {
            int64_t i = local_of(l, c->param, g, tp, ep);
            if (i >= 0 && local[i] != whole[g])
                fail_msg("layout %d, rank %d %d, element %d: %g, expected %g", (int)(l - layouts),
                         tp, ep, (int)g, (double)local[i], (double)whole[g]);
        }
        memset(local, 0, sizeof local);
        s2s_param_set_local(c->param, local);
    }
}

static void values_do_not_depend_on_the_cut(void **state)
{
    on_all_ranks(check_values);
}

/* Which element of the global tensor each local one is, by the boxes; -1: in none. */
static void global_of(const struct s2s_param *p, const struct s2s_box *boxes, int n,
                      int64_t *global)
{
    float local[N], packed[N];
    for (int64_t i = 0; i < N; i++)
        global[i] = -1;
    for (int64_t i = 0; i < p->numel; i++)
        local[i] = (float)i;
    for (int k = 0; k < n; k++) {
        const struct s2s_box *b = &boxes[k];
        const int64_t begin = s2s_box_begin(b, p);
        s2s_box_pack(b, p, local, packed);
        for (int64_t i = 0; i < s2s_box_numel(b, 3); i++) {
            const int64_t row = i / b->size[2], at = (int64_t)packed[i];
            assert_true(begin < 0 || begin + i == at);
            assert_int_equal(global[at], -1); /* boxes do not overlap */
            global[at] =
                ((b->offset[0] + row / b->size[1]) * 12 + b->offset[1] + row % b->size[1]) * 20 +
                b->offset[2] + i % b->size[2];
        }
    }
}

static void check_boxes(const struct layout *l, struct cut *c, int tp, int ep, const float *whole)
{
    struct s2s_box boxes[S2S_PARAM_BOXES], others[S2S_PARAM_PARTS];
    int64_t global[N], n_mine = 0;
    const int n = s2s_param_boxes(boxes, c->param, NULL);
    global_of(c->param, boxes, n, global);
    for (int64_t g = 0; g < N; g++) {
        int64_t i = local_of(l, c->param, g, tp, ep);
        if (i >= 0)
            assert_int_equal(global[i], g);
        n_mine += i >= 0;
    }
    assert_int_equal(n_mine, c->param->numel);
    /* any other rank says the same of this one */
    struct cut *other = cut_open(l, l->ranks[0] - 1, 0);
    const int at[S2S_AXES] = {[S2S_AXIS_TP] = tp, [S2S_AXIS_EP] = ep};
    assert_int_equal(s2s_param_boxes(others, other->param, at), n);
    assert_memory_equal(others, boxes, (size_t)n * sizeof *boxes);
    cut_close(other);
}

static void boxes_tile_the_tensor(void **state)
{
    on_all_ranks(check_boxes);
}

static void check_ranges(const struct layout *l, struct cut *c, int tp, int ep, const float *whole)
{
    struct s2s_box boxes[S2S_PARAM_BOXES];
    int64_t all[N], some[N];
    float local[N], packed[N], again[N];
    global_of(c->param, boxes, s2s_param_boxes(boxes, c->param, NULL), all);
    s2s_param_set(c->param, whole, S2S_F32);
    s2s_param_get(c->param, local);
    for (int64_t begin = 0; begin < c->param->numel; begin += 37)
        for (int64_t end = begin; end <= c->param->numel; end += 53) {
            const int n = s2s_param_range_boxes(boxes, c->param, begin, end);
            global_of(c->param, boxes, n, some);
            memset(again, 0, sizeof again);
            for (int k = 0; k < n; k++) {
                s2s_box_pack(&boxes[k], c->param, local, packed);
                s2s_box_unpack(&boxes[k], c->param, packed, again);
            }
            for (int64_t i = 0; i < c->param->numel; i++) {
                const bool within = i >= begin && i < end;
                assert_int_equal(some[i], within ? all[i] : -1);
                assert_true(again[i] == (within ? local[i] : 0));
            }
        }
}

static void a_range_of_elements_is_boxes_too(void **state)
{
    on_all_ranks(check_ranges);
}

/* Larger than a piece of the conversion, rows of odd length, values at any address. */
static void every_dtype_is_cut_out_of_the_whole(void **state)
{
    enum { ROWS = 700, COLS = 402, ALL = ROWS * COLS };
    struct s2s_group tp = {.axis = "tp", .size = 2, .rank = 1};
    static const enum s2s_dtype dtypes[] = {S2S_F32, S2S_BF16, S2S_F16, S2S_F64};
    for (int cut = 0; cut < 2; cut++)
        for (int d = 0; d < 4; d++) {
            struct s2s_params *params = s2s_params_new(device);
            struct s2s_param *p = s2s_params_add(
                params, &(struct s2s_param_spec){.name = "w",
                                                 .n_dims = 2,
                                                 .shape = {ROWS, COLS},
                                                 .cuts = {{S2S_AXIS_TP, 1, cut ? &tp : NULL}}});
            assert_int_equal(s2s_params_finish(params, NULL), 0);
            const size_t size = s2s_dtype_size(dtypes[d]);
            char *whole = s2s_xmalloc(ALL * size + 1);
            for (int i = 0; i < ALL; i++) {
                const float x = (float)(i % 255 - 127) / 8; /* exact in each of them */
                const double wide = (double)x;
                const uint16_t half = dtypes[d] == S2S_F16 ? s2s_f32_to_f16(x) : s2s_f32_to_bf16(x);
                memcpy(whole + 1 + (size_t)i * size,
                       size == 2   ? (const void *)&half
                       : size == 4 ? (const void *)&x
                                   : (const void *)&wide,
                       size);
            }
            s2s_param_set(p, whole + 1, dtypes[d]);
            float *local = s2s_xmalloc((size_t)p->numel * sizeof *local);
            s2s_param_get(p, local);
            const int cols = (int)p->local[1];
            for (int i = 0; i < ROWS * cols; i++) {
                const int g = i / cols * COLS + (cut ? COLS / 2 : 0) + i % cols;
                assert_true(local[i] == (float)(g % 255 - 127) / 8);
            }
            free(local);
            free(whole);
            s2s_params_free(params);
        }
}

static void ranks_along_other_axes_hold_copies(void **state)
{
    struct s2s_group tp = {.size = 2, .rank = 1}, dp = {.size = 3, .rank = 2};
    const struct s2s_group *axes[S2S_AXES] = {[S2S_AXIS_TP] = &tp, [S2S_AXIS_DP] = &dp};
    struct s2s_params *params = s2s_params_new(device);
    struct s2s_param_spec spec = {.name = "cut", .n_dims = 1, .shape = {8}};
    spec.cuts[1] = (struct s2s_cut){S2S_AXIS_TP, 0, &tp};
    struct s2s_param *cut = s2s_params_add(params, &spec);
    spec = (struct s2s_param_spec){.name = "whole", .n_dims = 1, .shape = {8}};
    struct s2s_param *whole = s2s_params_add(params, &spec);
    int n;
    assert_int_equal(s2s_param_copy(cut, axes, &n), 2);
    assert_int_equal(n, 3);
    assert_int_equal(s2s_param_copy(whole, axes, &n), 1 * 3 + 2);
    assert_int_equal(n, 6);
    s2s_params_free(params);
}

static void add_spec(void *spec)
{
    s2s_params_add(s2s_params_new(device), spec);
}

static void sizes_that_do_not_divide_are_bugs(void **state)
{
    struct s2s_group three = {.size = 3}, two = {.size = 2};
    struct s2s_param_spec spec = {
        .name = "q.weight", .n_dims = 2, .shape = {6, 8}, .cuts = {{S2S_AXIS_TP, 1, &three}}};
    assert_bug(add_spec, &spec, "q.weight: 8 of dimension 1 over 3 ranks of tp");
    spec.cuts[0] = (struct s2s_cut){S2S_AXIS_TP, 0, &three};
    spec.n_parts = 2;
    spec.parts[0] = 2;
    spec.parts[1] = 4;
    assert_bug(add_spec, &spec, "q.weight: 2 of dimension 0 over 3 ranks of tp");
    spec.cuts[0].group = NULL; /* on one process too */
    spec.parts[1] = 3;
    assert_bug(add_spec, &spec, "q.weight: parts of 5 together, dimension 0 has 6");
    spec.n_parts = 0;
    spec.cuts[0].group = &three;
    spec.cuts[1] = (struct s2s_cut){S2S_AXIS_EP, 0, &two};
    assert_bug(add_spec, &spec, "q.weight is cut twice along dimension 0");
}

static int set_up(void **state)
{
    return s2s_device_open(&device, "cpu", NULL);
}

static int tear_down(void **state)
{
    s2s_device_close(device);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_do_not_depend_on_the_cut),
        cmocka_unit_test(boxes_tile_the_tensor),
        cmocka_unit_test(a_range_of_elements_is_boxes_too),
        cmocka_unit_test(every_dtype_is_cut_out_of_the_whole),
        cmocka_unit_test(ranks_along_other_axes_hold_copies),
        cmocka_unit_test(sizes_that_do_not_divide_are_bugs),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
