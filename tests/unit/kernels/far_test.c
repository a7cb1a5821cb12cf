/*
 * Long packs: what lies past 2^31 elements is found. Rows of matrices stand 2^28 elements apart in
 * address space of which few pages are ever touched; the bytes are those of the same call on rows
 * side by side. For tables whose device memory is the host's.
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
static void *room;

static void *room_of(size_t bytes)
{
    free(room);
    return room = s2s_xcalloc(1, bytes + 64);
}

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
                                               .gain = gain,
                                               .rows = ROWS,
                                               .cols = COLS,
                                               .eps = 1e-5f});
}

static void run_rows(struct s2s_mat *m)
{
    const struct s2s_k_rows rows = {.dst = m[1], .src = m[0], .idx = ids, .n = ROWS, .cols = COLS};
    k->gather_rows(&queue, &rows);
    k->embedding(&queue,
                 &(struct s2s_k_embedding){
                     .table = m[0], .y = m[2], .ids = ids, .n = ROWS, .cols = COLS, .scale = 1});
}

static void run_rope(struct s2s_mat *m)
{
    k->rope(&queue, &(struct s2s_k_rope){.x = m[0],
                                         .y = m[1],
                                         .table = gain,
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
                                                        .lse = stats,
                                                        .spans = spans,
                                                        .groups = groups,
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
    back.forward.workspace = room_of(k->attention_workspace(&queue, &back.forward));
    k->attention(&queue, &back.forward);
    back.workspace = room_of(k->attention_backward_workspace(&queue, &back));
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
                                                           .u = gain,
                                                           .v = gain + COLS,
                                                           .lse = stats,
                                                           .cu = halves,
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
    back.forward.workspace = room_of(k->relattention_workspace(&queue, &back.forward));
    k->relattention(&queue, &back.forward);
    back.workspace = room_of(k->relattention_backward_workspace(&queue, &back));
    k->relattention_backward(&queue, &back);
}

static void run_xent(struct s2s_mat *m)
{
    struct s2s_xent of[ROWS];
    k->xent_stats(
        &queue,
        &(struct s2s_k_xent_stats){
            .logits = m[0], .labels = ids, .stats = of, .rows = ROWS, .cols = COLS, .keep = true});
    k->xent_gradient(&queue, &(struct s2s_k_xent_gradient){.logits = m[0],
                                                           .dlogits = m[0],
                                                           .labels = ids,
                                                           .part = of,
                                                           .total = of,
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
                                                         .offsets = cu,
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
                                                  .a_log = gain,
                                                  .cu = cu,
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
    back.forward.workspace = room_of(k->ssd_workspace(&queue, &back.forward));
    k->ssd(&queue, &back.forward);
    back.workspace = room_of(k->ssd_backward_workspace(&queue, &back));
    k->ssd_backward(&queue, &back);
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
                                    {"ssd", run_ssd, 10}};

static size_t element(void)
{
    return is_bf16 ? 2 : 4;
}

/* Matrix i, side by side, of the type under test. */
static struct s2s_mat near_mat(int i)
{
    float *x = values(ROWS, COLS, COLS, (uint64_t)i + 1);
    uint16_t *half = (uint16_t *)x;
    for (int64_t j = 0; is_bf16 && j < ROWS * COLS; j++)
        half[j] = s2s_f32_to_bf16(x[j]);
    return (struct s2s_mat){x, COLS, is_bf16 ? S2S_BF16 : S2S_F32};
}

static size_t far_bytes(void)
{
    return (size_t)(ROWS * apart) * element();
}

/* The same rows, far apart. */
static struct s2s_mat far_mat(const struct s2s_mat *from)
{
    char *at = mmap(NULL, far_bytes(), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    assert_true(at != MAP_FAILED);
    for (int64_t r = 0; r < ROWS; r++)
        memcpy(at + (size_t)(r * apart) * element(),
               (char *)from->data + (size_t)(r * COLS) * element(), COLS * element());
    return (struct s2s_mat){at, apart, from->dtype};
}

static void check(const struct call *call)
{
    struct s2s_mat near[MOST_MATS], far[MOST_MATS];
    for (int i = 0; i < call->n_mats; i++) {
        near[i] = near_mat(i);
        far[i] = far_mat(&near[i]);
    }
    call->run(near);
    call->run(far);
    k->sync(&queue);
    assert_int_equal(queue.status, 0);
    for (int i = 0; i < call->n_mats; i++) {
        for (int64_t r = 0; r < ROWS; r++)
            if (memcmp((char *)near[i].data + (size_t)(r * COLS) * element(),
                       (char *)far[i].data + (size_t)(r * apart) * element(),
                       COLS * element()) != 0)
                fail_msg("%s: row %lld of matrix %d differs", call->name, (long long)r, i);
        munmap(far[i].data, far_bytes());
        free(near[i].data);
    }
}

static void rows_past_the_range_of_int_are_found(void **state)
{
    if (k == &guard_table || strcmp(k->name, "cuda") == 0)
        skip();
    is_bf16 = false;
    gain = values(ROWS, COLS, COLS, 99);
    stats = values(ROWS, COLS, COLS, 98);
    for (int type = 0; type < (strcmp(k->name, "emu") == 0 ? 2 : 1); type++) {
        is_bf16 = type == 1;
        for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
            check(&calls[i]);
    }
    is_bf16 = false;
    free(gain);
    free(stats);
    free(room);
    room = NULL;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(rows_past_the_range_of_int_are_found)};
    return run_on_tables(tests);
}
