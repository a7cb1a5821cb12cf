/*
 * Long packs: what lies past 2^31 elements is found. Rows of matrices stand 2^28 elements apart,
 * and the matrices of a call side by side in between: address space of which few pages are ever
 * touched where device memory is the host's, and 13 GB on a GPU. The bytes are those of the same
 * call on matrices of their own.
 */
#include <sys/mman.h>

#include "tests/unit/kernels/kernel_test.h"

enum { ROWS = 12, COLS = 64, MOST_MATS = 12, HEADS = 2, DIM = COLS / HEADS };
static const int64_t apart = (int64_t)1 << 28;

/* A run gets matrices [ROWS, COLS], vectors of values and integers, and workspaces of `room`. */
struct call {
    const char *name;
    void (*run)(struct s2s_mat *m);
    int n_mats;
};

static float *gain;                 /* [ROWS * COLS] */
static float *stats;                /* [ROWS * COLS] that a call may write */
static int32_t cu[] = {0, 5, ROWS}; /* two sequences */
static int32_t ids[] = {11, 3, 7, 7, 0, 9, 1, 10, -1, 2, 11, 4};
static void run_axpby(struct s2s_mat *m)
{
    k->axpby(
        &queue,
        &(struct s2s_k_axpby){
            .x = m[0], .z = m[1], .y = m[2], .rows = ROWS, .cols = COLS, .alpha = 2, .beta = 3});
}

static void run_glu_backward(struct s2s_mat *m)
{
    k->glu_backward(&queue, &(struct s2s_k_glu_backward){.gate = m[0],
                                                         .up = m[1],
                                                         .dy = m[2],
                                                         .dgate = m[3],
                                                         .dup = m[4],
                                                         .rows = ROWS,
                                                         .cols = COLS});
}

static void run_transpose(struct s2s_mat *m)
{
    k->transpose(&queue, &(struct s2s_k_transpose){
                             .x = m[0], .y = m[1], .rows = ROWS, .a = 4, .b = COLS / 4});
}

static void run_rmsnorm(struct s2s_mat *m)
{
    k->rmsnorm(&queue, &(struct s2s_k_rmsnorm){.x = m[0],
                                               .residual = m[1],
                                               .sum = m[2],
                                               .y = m[3],
                                               .gain = vec(gain),
                                               .rows = ROWS,
                                               .cols = COLS,
                                               .eps = 1e-5f});
}

static void run_rows(struct s2s_mat *m)
{
    const struct s2s_k_rows rows = {
        .dst = m[1], .src = m[0], .idx = in(ids, sizeof ids), .n = ROWS, .cols = COLS};
    k->gather_rows(&queue, &rows);
    k->embedding(&queue, &(struct s2s_k_embedding){.table = m[0],
                                                   .y = m[2],
                                                   .ids = in(ids, sizeof ids),
                                                   .n = ROWS,
                                                   .cols = COLS,
                                                   .scale = 1});
}

static void run_rope(struct s2s_mat *m)
{
    k->rope(&queue, &(struct s2s_k_rope){.x = m[0],
                                         .y = m[1],
                                         .table = vec(gain),
                                         .n = ROWS,
                                         .n_heads = HEADS,
                                         .dim = DIM,
                                         .rotary_dim = DIM});
}

static void run_attention(struct s2s_mat *m)
{
    static const struct s2s_span spans[] = {{0, 5, 0, 5, 0}, {5, 7, 5, 7, 0}};
    static const int32_t groups[] = {0, 1, 2};
    struct s2s_k_attention_backward back = {.forward = {.q = m[0],
                                                        .k = m[1],
                                                        .v = m[2],
                                                        .o = m[3],
                                                        .lse = vec(stats),
                                                        .spans = in(spans, sizeof spans),
                                                        .groups = in(groups, sizeof groups),
                                                        .n_spans = 2,
                                                        .n_groups = 2,
                                                        .n_q = ROWS,
                                                        .n_k = ROWS,
                                                        .n_heads = HEADS,
                                                        .n_kv_heads = HEADS,
                                                        .dim = DIM,
                                                        .max_q = 7,
                                                        .max_k = 7,
                                                        .scale = 0.2f},
                                            .d_o = m[4],
                                            .dq = m[5],
                                            .dk = m[6],
                                            .dv = m[7]};
    back.forward.workspace = work(k->attention_workspace(&queue, &back.forward));
    k->attention(&queue, &back.forward);
    back.workspace = work(k->attention_backward_workspace(&queue, &back));
    k->attention_backward(&queue, &back);
}

static void run_relattention(struct s2s_mat *m)
{
    static const int32_t halves[] = {0, 6, ROWS};
    struct s2s_k_relattention_backward back = {.forward = {.q = m[0],
                                                           .k = m[1],
                                                           .value = m[2],
                                                           .o = m[3],
                                                           .p = m[4],
                                                           .u = vec(gain),
                                                           .v = (float *)vec(gain) + COLS,
                                                           .lse = vec(stats),
                                                           .cu = in(halves, sizeof halves),
                                                           .n_seqs = 2,
                                                           .n_heads = HEADS,
                                                           .dim = DIM,
                                                           .max_seqlen = 6,
                                                           .scale = 0.2f},
                                               .d_o = m[5],
                                               .dq = m[6],
                                               .dk = m[7],
                                               .dvalue = m[8],
                                               .dp = m[9]};
    back.forward.workspace = work(k->relattention_workspace(&queue, &back.forward));
    k->relattention(&queue, &back.forward);
    back.workspace = work(k->relattention_backward_workspace(&queue, &back));
    k->relattention_backward(&queue, &back);
}

static void run_xent(struct s2s_mat *m)
{
    static struct s2s_xent of[ROWS];
    k->xent_stats(&queue, &(struct s2s_k_xent_stats){.logits = m[0],
                                                     .labels = in(ids, sizeof ids),
                                                     .stats = on(of, sizeof of),
                                                     .rows = ROWS,
                                                     .cols = COLS,
                                                     .keep = true});
    k->xent_gradient(&queue, &(struct s2s_k_xent_gradient){.logits = m[0],
                                                           .dlogits = m[0],
                                                           .labels = in(ids, sizeof ids),
                                                           .part = on(of, sizeof of),
                                                           .total = on(of, sizeof of),
                                                           .rows = ROWS,
                                                           .cols = COLS,
                                                           .width = COLS,
                                                           .grad_scale = 1});
}

static void run_grouped(struct s2s_mat *m)
{
    k->gemm_grouped(&queue, &(struct s2s_k_gemm_grouped){.a = m[0],
                                                         .b = m[1],
                                                         .c = m[2],
                                                         .offsets = in(cu, sizeof cu),
                                                         .n_groups = 2,
                                                         .rows = ROWS,
                                                         .n = 6,
                                                         .k = COLS,
                                                         .step = 6 * m[1].stride,
                                                         .trans_b = true});
}

static void run_ssd(struct s2s_mat *m)
{
    struct s2s_k_ssd_backward back = {.forward = {.x = m[0],
                                                  .y = m[1],
                                                  .dt = m[2],
                                                  .b = m[3],
                                                  .c = m[4],
                                                  .a_log = vec(gain),
                                                  .cu = in(cu, sizeof cu),
                                                  .n_seqs = 2,
                                                  .n = ROWS,
                                                  .n_heads = HEADS,
                                                  .n_groups = HEADS,
                                                  .dim = DIM,
                                                  .state = DIM,
                                                  .max_seqlen = 7},
                                      .dy = m[5],
                                      .dx = m[6],
                                      .ddt = m[7],
                                      .db = m[8],
                                      .dc = m[9]};
    back.forward.workspace = work(k->ssd_workspace(&queue, &back.forward));
    k->ssd(&queue, &back.forward);
    back.workspace = work(k->ssd_backward_workspace(&queue, &back));
    k->ssd_backward(&queue, &back);
}

static void run_conv1d(struct s2s_mat *m)
{
    struct s2s_k_conv1d_backward back = {.forward = {.x = m[0],
                                                     .y = m[1],
                                                     .w = vec(gain),
                                                     .cu = in(cu, sizeof cu),
                                                     .n_seqs = 2,
                                                     .n = ROWS,
                                                     .channels = COLS,
                                                     .width = 3,
                                                     .silu = true},
                                         .dy = m[2],
                                         .dx = m[3],
                                         .dw = vec(stats)};
    back.forward.workspace = work(k->conv1d_workspace(&queue, &back.forward));
    k->conv1d(&queue, &back.forward);
    back.workspace = work(k->conv1d_backward_workspace(&queue, &back));
    k->conv1d_backward(&queue, &back);
}

static void run_dwconv(struct s2s_mat *m)
{
    struct s2s_k_dwconv_backward back = {.forward = {.x = m[0],
                                                     .y = m[1],
                                                     .w = vec(gain),
                                                     .cu = in(cu, sizeof cu),
                                                     .n_seqs = 2,
                                                     .n = ROWS,
                                                     .channels = COLS,
                                                     .width = 3},
                                         .dy = m[2],
                                         .dx = m[3],
                                         .dw = vec(stats)};
    back.forward.workspace = work(k->dwconv_workspace(&queue, &back.forward));
    k->dwconv(&queue, &back.forward);
    back.workspace = work(k->dwconv_backward_workspace(&queue, &back));
    k->dwconv_backward(&queue, &back);
}

static void run_conv2d(struct s2s_mat *m)
{
    static const int32_t half[] = {0, 3, 7};
    struct s2s_k_conv2d_backward back = {.forward = {.x = m[0],
                                                     .y = m[1],
                                                     .w = vec(gain),
                                                     .cu_in = in(cu, sizeof cu),
                                                     .cu_out = in(half, sizeof half),
                                                     .n_seqs = 2,
                                                     .n_in = ROWS,
                                                     .n_out = 7,
                                                     .in_width = 16,
                                                     .channels = COLS / 16},
                                         .dy = m[2],
                                         .dx = m[3],
                                         .dw = vec(stats)};
    back.forward.workspace = work(k->conv2d_workspace(&queue, &back.forward));
    k->conv2d(&queue, &back.forward);
    back.workspace = work(k->conv2d_backward_workspace(&queue, &back));
    k->conv2d_backward(&queue, &back);
}

static void run_gatednorm(struct s2s_mat *m)
{
    struct s2s_k_gatednorm_backward back = {.x = m[0],
                                            .z = m[1],
                                            .dy = m[2],
                                            .dx = m[3],
                                            .dz = m[4],
                                            .gain = vec(gain),
                                            .rstd = vec(stats),
                                            .rows = ROWS,
                                            .cols = COLS,
                                            .n_groups = 2};
    k->gatednorm(&queue, &(struct s2s_k_gatednorm){.x = m[0],
                                                   .z = m[1],
                                                   .y = m[5],
                                                   .gain = vec(gain),
                                                   .rstd = vec(stats),
                                                   .rows = ROWS,
                                                   .cols = COLS,
                                                   .n_groups = 2,
                                                   .eps = 1e-5f});
    back.workspace = work(k->gatednorm_backward_workspace(&queue, &back));
    k->gatednorm_backward(&queue, &back);
}

static void run_layernorm(struct s2s_mat *m)
{
    struct s2s_k_layernorm_backward back = {.h = m[0],
                                            .dy = m[1],
                                            .dx = m[2],
                                            .gain = vec(gain),
                                            .stats = vec(stats),
                                            .rows = ROWS,
                                            .cols = COLS,
                                            .alpha = 1};
    k->layernorm(&queue, &(struct s2s_k_layernorm){.x = m[0],
                                                   .y = m[3],
                                                   .gain = vec(gain),
                                                   .bias = (float *)vec(gain) + COLS,
                                                   .stats = vec(stats),
                                                   .rows = ROWS,
                                                   .cols = COLS,
                                                   .alpha = 1,
                                                   .eps = 1e-5f});
    back.workspace = work(k->layernorm_backward_workspace(&queue, &back));
    k->layernorm_backward(&queue, &back);
}

static void run_batchnorm(struct s2s_mat *m)
{
    struct s2s_k_batchnorm_backward back = {.forward = {.x = m[0],
                                                        .y = m[1],
                                                        .mean = vec(stats),
                                                        .var = (float *)vec(stats) + COLS,
                                                        .gain = vec(gain),
                                                        .bias = (float *)vec(gain) + COLS,
                                                        .rows = ROWS,
                                                        .cols = COLS,
                                                        .eps = 1e-5f,
                                                        .silu = true},
                                            .dy = m[2],
                                            .dx = m[3],
                                            .from_batch = true};
    struct s2s_k_column_stats columns = {.x = m[0],
                                         .mean = vec(stats),
                                         .var = (float *)vec(stats) + COLS,
                                         .rows = ROWS,
                                         .cols = COLS};
    columns.workspace = work(k->column_stats_workspace(&queue, &columns));
    k->column_stats(&queue, &columns);
    k->batchnorm(&queue, &back.forward);
    back.workspace = work(k->batchnorm_backward_workspace(&queue, &back));
    k->batchnorm_backward(&queue, &back);
}

static void run_dropout(struct s2s_mat *m)
{
    k->dropout(
        &queue,
        &(struct s2s_k_dropout){
            .x = m[0], .y = m[1], .rows = ROWS, .cols = COLS, .draw = draw_of(ROWS, 5, 0.3f)});
}

static const struct call calls[] = {{"axpby", run_axpby, 3},
                                    {"glu_backward", run_glu_backward, 5},
                                    {"transpose", run_transpose, 2},
                                    {"rmsnorm", run_rmsnorm, 4},
                                    {"rows", run_rows, 3},
                                    {"rope", run_rope, 2},
                                    {"attention", run_attention, 8},
                                    {"relattention", run_relattention, 10},
                                    {"xent", run_xent, 1},
                                    {"gemm_grouped", run_grouped, 3},
                                    {"ssd", run_ssd, 10},
                                    {"conv1d", run_conv1d, 4},
                                    {"dwconv", run_dwconv, 4},
                                    {"conv2d", run_conv2d, 4},
                                    {"gatednorm", run_gatednorm, 6},
                                    {"layernorm", run_layernorm, 4},
                                    {"batchnorm", run_batchnorm, 4},
                                    {"dropout", run_dropout, 2}};

static size_t element(void)
{
    return is_bf16 ? 2 : 4;
}

/* Matrices whose rows stand apart are columns of one. */
static char *far;

static size_t far_bytes(void)
{
    return (size_t)(ROWS * apart) * element();
}

static bool is_host(void)
{
    return strcmp(k->name, "cuda") != 0;
}

static void open_far(void)
{
    far = is_host() ? mmap(NULL, far_bytes(), PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
                    : k->alloc(&queue, far_bytes());
    assert_true(far && far != MAP_FAILED);
}

static void close_far(void)
{
    if (is_host())
        munmap(far, far_bytes());
    else
        k->free(&queue, far);
}

static char *row_of(const struct s2s_mat *m, int64_t row)
{
    return (char *)m->data + (size_t)(row * m->stride) * element();
}

/* Matrix i of the type under test, by itself and as one of those apart. */
static void make_mats(struct s2s_mat *near, struct s2s_mat *apart_mat, int i)
{
    const enum s2s_dtype dtype = is_bf16 ? S2S_BF16 : S2S_F32;
    const size_t bytes = COLS * element();
    float *x = values(ROWS, COLS, COLS, (uint64_t)i + 1);
    uint16_t *half = (uint16_t *)x;
    for (int64_t j = 0; is_bf16 && j < ROWS * COLS; j++)
        half[j] = s2s_f32_to_bf16(x[j]);
    *near = (struct s2s_mat){k->alloc(&queue, ROWS * bytes), COLS, dtype};
    *apart_mat = (struct s2s_mat){far + (size_t)i * bytes, apart, dtype};
    for (int64_t r = 0; r < ROWS; r++) {
        const char *from = (char *)x + (size_t)r * bytes;
        k->copy_in(&queue, row_of(near, r), from, bytes);
        k->copy_in(&queue, row_of(apart_mat, r), from, bytes);
    }
    free(x);
}

static void compare_mats(const char *name, const struct s2s_mat *near,
                         const struct s2s_mat *apart_mat, int i)
{
    char rows[2][COLS * sizeof(float)];
    const size_t bytes = COLS * element();
    for (int64_t r = 0; r < ROWS; r++) {
        k->copy_out(&queue, rows[0], row_of(near, r), bytes);
        k->copy_out(&queue, rows[1], row_of(apart_mat, r), bytes);
        if (memcmp(rows[0], rows[1], bytes) != 0)
            fail_msg("%s: row %lld of matrix %d differs", name, (long long)r, i);
    }
}

static void check(const struct call *call)
{
    struct s2s_mat near[MOST_MATS], apart_mats[MOST_MATS];
    for (int i = 0; i < call->n_mats; i++)
        make_mats(&near[i], &apart_mats[i], i);
    for (int i = 0; i < 2; i++) {
        float *before = values(ROWS, COLS, COLS, 98); /* what gradients are added to */
        memcpy(stats, before, ROWS * COLS * sizeof *stats);
        free(before);
        call->run(i ? apart_mats : near);
        done();
    }
    for (int i = 0; i < call->n_mats; i++) {
        compare_mats(call->name, &near[i], &apart_mats[i], i);
        k->free(&queue, near[i].data);
    }
}

static void rows_past_the_range_of_int_are_found(void **state)
{
    if (k == &guard_table)
        skip();
    is_bf16 = false;
    gain = values(ROWS, COLS, COLS, 99);
    stats = values(ROWS, COLS, COLS, 98);
    for (int type = 0; type < (strcmp(k->name, "cpu") == 0 ? 1 : 2); type++) {
        is_bf16 = type == 1;
        open_far();
        for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
            check(&calls[i]);
        close_far();
    }
    is_bf16 = false;
    free(gain);
    free(stats);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(rows_past_the_range_of_int_are_found)};
    return run_on_tables(tests);
}
