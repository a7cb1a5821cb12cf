/* Checkpoints: what ranks of one mesh write, ranks of another read, each its own boxes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/base.h"
#include "lib/ckpt/write/dist.h"
#include "lib/train/share.h"
#include "lib/train/trainer.h"

static struct s2s_device *device;

/* One rank of a mesh tp x dp whose moments are cut over dp. */
struct rank {
    struct s2s_group tp, dp;
    struct s2s_params *params;
    struct s2s_optim *optim;
};

static void add(struct rank *r, const char *name, int64_t rows, int64_t cols, int cut_dim,
                int n_parts, unsigned flags)
{
    const int64_t size = cut_dim == 1 ? cols : rows;
    struct s2s_param_spec spec = {.name = name,
                                  .n_dims = 2,
                                  .shape = {rows, cols},
                                  .flags = flags,
                                  .n_parts = n_parts,
                                  .parts = {size / 2, size / 4, size / 4}};
    if (cut_dim >= 0)
        spec.cuts[0] = (struct s2s_cut){S2S_AXIS_TP, cut_dim, &r->tp};
    s2s_params_add(r->params, &spec);
}

static struct rank *rank_open(int tp_size, int tp, int dp_size, int dp)
{
    static const struct s2s_adamw_options options = S2S_ADAMW_OPTIONS_DEFAULT;
    struct rank *r = s2s_xcalloc(1, sizeof *r);
    r->tp = (struct s2s_group){.axis = "tp", .size = tp_size, .rank = tp};
    r->dp = (struct s2s_group){.axis = "dp", .size = dp_size, .rank = dp};
    r->params = s2s_params_new(device);
    add(r, "qkv", 48, 5, 0, 3, 0);
    add(r, "out", 5, 24, 1, 0, 0);
    add(r, "wide", 6, 48, 1, 3, 0);
    add(r, "norm", 1, 31, -1, 0, 0);
    add(r, "embed", 12, 7, 0, 0, S2S_PARAM_FROZEN);
    add(r, "mean", 3, 3, -1, 0, S2S_PARAM_BUFFER);
    add(r, "elsewhere", 3, 3, -1, 0, S2S_PARAM_ABSENT);
    s2s_params_add(r->params, &(struct s2s_param_spec){.name = "head",
                                                       .n_dims = 2,
                                                       .shape = {12, 7},
                                                       .cuts = {{S2S_AXIS_TP, 0, &r->tp}},
                                                       .tie = "embed"});
    assert_int_equal(s2s_params_finish(r->params, NULL), 0);
    const int64_t n = r->params->n_trained;
    /* two buckets: each rank has a slice of both */
    const int64_t at[] = {0, n / 3, n};
    struct s2s_optim_slice slices[2];
    for (int i = 0; i < 2; i++)
        slices[i] =
            (struct s2s_optim_slice){.begin = at[i] + (at[i + 1] - at[i]) * dp / dp_size,
                                     .end = at[i] + (at[i + 1] - at[i]) * (dp + 1) / dp_size};
    assert_int_equal(s2s_optim_new_slices(&r->optim, r->params, &options, slices, 2, NULL), 0);
    r->optim->divided = dp_size > 1;
    return r;
}

static void rank_close(struct rank *r)
{
    s2s_optim_free(r->optim);
    s2s_params_free(r->params);
    free(r);
}

/* The whole tensor of a parameter (what 0) or of its moments (1, 2): numbers that occur once. */
static void whole_values(const struct s2s_param *p, int what, float *whole)
{
    for (int64_t i = 0; i < p->shape[0] * p->shape[1]; i++)
        whole[i] = (float)(what * 100000 + p->name[0] * 500 + (int)i);
}

static void fill(struct rank *r)
{
    float whole[400], local[400];
    for (size_t i = 0; i < r->params->n; i++) {
        struct s2s_param *p = r->params->list[i];
        for (int what = 2; what >= 0; what--) {
            whole_values(p, what, whole);
            s2s_param_set(p, whole, S2S_F32);
            s2s_param_get(p, local);
            if (what > 0 && p->trained)
                s2s_optim_set(r->optim, p, what - 1, local);
        }
    }
    r->optim->t = 9;
}

static void check(struct rank *r)
{
    float whole[400], local[400], moment[400];
    for (size_t i = 0; i < r->params->n; i++) {
        struct s2s_param *p = r->params->list[i];
        float was[400];
        if (!s2s_param_is_here(p))
            continue;
        assert_true(p->set);
        s2s_param_get(p, was);
        for (int what = 0; what < 3; what++) {
            whole_values(p, what, whole);
            s2s_param_set(p, whole, S2S_F32);
            s2s_param_get(p, local);
            if (what == 0) {
                assert_memory_equal(was, local, (size_t)p->numel * sizeof *local);
                continue;
            }
            s2s_optim_get(r->optim, p, what - 1, moment);
            for (int64_t begin, end = 0; s2s_optim_next(r->optim, p, &begin, &end);)
                assert_memory_equal(moment + begin, local + begin,
                                    (size_t)(end - begin) * sizeof *local);
        }
    }
    assert_int_equal(r->optim->t, 9);
}

/* What training does while a copy is written. */
static void spoil(struct rank *r)
{
    static const float zeros[400];
    for (size_t i = 0; i < r->params->n; i++) {
        s2s_param_set(r->params->list[i], zeros, S2S_F32);
        for (int which = 0; which < 2 && r->params->list[i]->trained; which++)
            s2s_optim_set(r->optim, r->params->list[i], which, zeros);
    }
}

/* copied: from a copy, whose tensors have changed since. */
static void write_rank(struct s2s_dist_writer *w, struct rank *r, bool copied)
{
    struct s2s_error err = S2S_ERROR_INIT;
    const struct s2s_group *axes[S2S_AXES] = {[S2S_AXIS_TP] = &r->tp, [S2S_AXIS_DP] = &r->dp};
    struct s2s_share *share =
        s2s_share_new(r->params, r->optim, &(struct s2s_save_axes){axes, axes});
    if (copied) {
        assert_int_equal(s2s_share_reserve(share, &err), 0);
        spoil(r);
        assert_int_equal(s2s_share_copy(share, &err), 0); /* of the save before */
        fill(r);
        assert_int_equal(s2s_share_copy(share, &err), 0);
        spoil(r);
    } else {
        fill(r);
    }
    assert_int_equal(s2s_share_write(share, w, copied, &err), 0);
    s2s_share_free(share);
}

static void write_all(const char *root, int tp_size, int dp_size, bool copied)
{
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_buf items[8] = {0};
    const int n = tp_size * dp_size;
    assert_int_equal(s2s_dist_begin(root, 3, &err), 0);
    for (int k = 0; k < n; k++) {
        struct s2s_dist_writer *w;
        struct rank *r = rank_open(tp_size, k % tp_size, dp_size, k / tp_size);
        assert_int_equal(s2s_dist_open(&w, root, 3, k, &err), 0);
        write_rank(w, r, copied);
        assert_int_equal(s2s_dist_close(w, &items[k], &err), 0);
        rank_close(r);
    }
    json_t *common =
        json_pack("{s:i, s:{s:i, s:i, s:i, s:i, s:f}}", "iteration", 3, "train_state", "packs", 1,
                  "samples", 1, "tokens", 1, "optimizer_steps", 9, "elapsed_s", 1.0);
    if (s2s_dist_commit(root, 3, items, (size_t)n, common, &err) < 0) /* holes, overlaps */
        fail_msg("%s", err.text);
    json_decref(common);
    for (int k = 0; k < n; k++)
        s2s_buf_release(&items[k]);
}

static void read_all(const char *root, int tp_size, int dp_size)
{
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_run_state state;
    for (int k = 0; k < tp_size * dp_size; k++) {
        struct rank *r = rank_open(tp_size, k % tp_size, dp_size, k / tp_size);
        if (s2s_restore(root, r->params, r->optim, &state, &err) < 0)
            fail_msg("%s", err.text);
        check(r);
        rank_close(r);
    }
}

static const int meshes[][2] = {{1, 1}, {2, 1}, {1, 3}, {2, 2}, {3, 2}};

static void run_and_free(char *command)
{
    assert_int_equal(system(command), 0);
    free(command);
}

static void any_mesh_reads_what_any_mesh_wrote(void **unused)
{
    char root[] = "/tmp/s2s-save-XXXXXX";
    assert_non_null(mkdtemp(root));
    for (int i = 0; i < 5; i++) {
        write_all(root, meshes[i][0], meshes[i][1], false);
        for (int k = 0; k < 5; k++)
            read_all(root, meshes[k][0], meshes[k][1]);
    }
    run_and_free(s2s_xasprintf("rm -r %s", root));
}

static void a_copy_is_written_as_what_it_is_of(void **unused)
{
    char root[] = "/tmp/s2s-save-XXXXXX", copied[] = "/tmp/s2s-save-XXXXXX";
    struct s2s_device *cpu = device, *gpu;
    assert_int_equal(setenv("S2S_CUDA", "libs2s-emu.so", 0), 0);
    assert_int_equal(s2s_device_open(&gpu, "cuda", NULL), 0);
    assert_non_null(mkdtemp(root));
    assert_non_null(mkdtemp(copied));
    for (int i = 0; i < 5; i++) {
        write_all(root, meshes[i][0], meshes[i][1], false);
        for (int on_gpu = 0; on_gpu < 2; on_gpu++) {
            device = on_gpu ? gpu : cpu;
            write_all(copied, meshes[i][0], meshes[i][1], true);
            run_and_free(s2s_xasprintf("diff -r %s %s", root, copied));
        }
        device = cpu;
    }
    s2s_device_close(gpu);
    run_and_free(s2s_xasprintf("rm -r %s %s", root, copied));
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
        cmocka_unit_test(any_mesh_reads_what_any_mesh_wrote),
        cmocka_unit_test(a_copy_is_written_as_what_it_is_of),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
