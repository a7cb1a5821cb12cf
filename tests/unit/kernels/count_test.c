/* The table that counts: costs by hand, sums by layer, memory that nobody can touch. */
#include <omp.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "kernels/count/count.h"

static struct s2s_kernels k;
static struct s2s_queue queue;

static int open_queue(void **state)
{
    queue = (struct s2s_queue){0};
    k = s2s_count_over(&s2s_kernels_cpu);
    return k.open(&queue, 0);
}

static int close_queue(void **state)
{
    k.close(&queue);
    return 0;
}

static struct s2s_cost of(enum s2s_entry entry)
{
    return s2s_tally_sum(&s2s_count_of(&queue)->tally, entry).cost;
}

#define ASSERT_COST(cost, f, r, w) \
    do { \
        struct s2s_cost got_ = cost; \
        assert_true(got_.flops == (f)); \
        assert_true(got_.read_bytes == (r)); \
        assert_true(got_.written_bytes == (w)); \
    } while (0)

static struct s2s_mat mat(int64_t rows, int64_t cols)
{
    return (struct s2s_mat){k.alloc(&queue, (size_t)(rows * cols) * 4), cols, S2S_F32};
}

/* c[2,3] = a[2,5] b[5,3]: 60 operations; a sum reads c too, half a type is half the bytes. */
static void a_product_is_two_operations_a_triple(void **state)
{
    struct s2s_k_gemm args = {
        .a = mat(2, 5), .b = mat(5, 3), .c = mat(2, 3), .m = 2, .n = 3, .k = 5, .alpha = 1};
    k.gemm(&queue, &args);
    ASSERT_COST(of(S2S_ENTRY_gemm), 60, 4 * (10 + 15), 4 * 6);
    s2s_tally_reset(&s2s_count_of(&queue)->tally);
    args.accumulate = true;
    args.a.dtype = S2S_BF16;
    k.gemm(&queue, &args);
    ASSERT_COST(of(S2S_ENTRY_gemm), 60, 2 * 10 + 4 * 15 + 4 * 6, 4 * 6);
    /* four products with one b and a bias */
    s2s_tally_reset(&s2s_count_of(&queue)->tally);
    args.accumulate = false;
    args.bias = mat(1, 3);
    args.n_batch = 4;
    args.step_a = 10;
    args.step_c = 6;
    k.gemm(&queue, &args);
    ASSERT_COST(of(S2S_ENTRY_gemm), 4 * 60, 4 * 2 * 10 + 4 * 15 + 4 * 3, 4 * 4 * 6);
}

/* Three groups of 4 rows together, of the 9 that there may be. */
static void groups_count_the_rows_they_have(void **state)
{
    const int32_t host[] = {1, 2, 2, 5};
    int32_t *offsets = k.alloc(&queue, sizeof host);
    struct s2s_k_gemm_grouped args = {.a = mat(9, 5),
                                      .b = mat(3 * 5, 7),
                                      .c = mat(9, 7),
                                      .offsets = offsets,
                                      .n_groups = 3,
                                      .rows = 9,
                                      .n = 7,
                                      .k = 5,
                                      .step = 35};
    k.gemm_grouped(&queue, &args);
    assert_true(of(S2S_ENTRY_gemm_grouped).flops == 2 * 9 * 7 * 5); /* at most */
    s2s_tally_reset(&s2s_count_of(&queue)->tally);
    k.copy_in(&queue, offsets, host, sizeof host);
    k.gemm_grouped(&queue, &args);
    ASSERT_COST(of(S2S_ENTRY_gemm_grouped), 2 * 4 * 7 * 5, 4 * (4 * 5 + 3 * 35 + 4), 4 * 4 * 7);
    struct s2s_k_embedding_backward back = {
        .dtable = mat(9, 5), .dy = mat(9, 5), .starts = offsets, .n_ids = 3, .cols = 5, .scale = 1};
    k.embedding_backward(&queue, &back);
    ASSERT_COST(of(S2S_ENTRY_embedding_backward), 2 * 5 * 5,
                4 * (5 * 5 + 3 * 5) + 4 * (2 * 3 + 1 + 5), 4 * 3 * 5);
}

/* Pairs that a naive look at every query and key finds. */
static int naive_pairs(const struct s2s_span *span, int window)
{
    int n = 0;
    for (int i = 0; i < span->nq; i++)
        for (int j = 0; j < span->nk; j++)
            n += span->shift == S2S_SPAN_ALL ||
                 (j <= i + span->shift && (window == 0 || j > i + span->shift - window));
    return n;
}

static void count_attention(const struct s2s_span *span, int64_t n_spans, int64_t window,
                            int64_t pairs)
{
    const size_t bytes = (size_t)n_spans * sizeof *span;
    struct s2s_span *spans = k.alloc(&queue, bytes);
    struct s2s_k_attention args = {.q = mat(8, 16),
                                   .k = mat(9, 8),
                                   .v = mat(9, 8),
                                   .o = mat(8, 16),
                                   .spans = spans,
                                   .n_spans = n_spans,
                                   .n_q = 8,
                                   .n_k = 9,
                                   .n_heads = 2,
                                   .n_kv_heads = 1,
                                   .dim = 8,
                                   .window = window};
    struct s2s_k_attention_backward back = {
        .forward = args, .d_o = mat(8, 16), .dq = mat(8, 16), .dk = mat(9, 8), .dv = mat(9, 8)};
    s2s_tally_reset(&s2s_count_of(&queue)->tally);
    k.copy_in(&queue, spans, span, bytes);
    k.attention(&queue, &args);
    ASSERT_COST(of(S2S_ENTRY_attention), 2 * (double)pairs * (4 * 8 + 4), 4 * (8 * 16 + 2 * 9 * 8),
                4 * 8 * 16);
    k.attention_backward(&queue, &back);
    ASSERT_COST(of(S2S_ENTRY_attention_backward), 2 * (double)pairs * (10 * 8 + 6),
                4 * (3 * 8 * 16 + 2 * 9 * 8), 4 * (8 * 16 + 2 * 9 * 8));
}

static void attention_counts_the_pairs_that_see_each_other(void **state)
{
    const struct s2s_span packed[] = {{0, 3, 0, 3, 0}, {3, 5, 3, 5, 0}};
    count_attention(packed, 2, 0, 6 + 15);
    const struct s2s_span all = {0, 4, 0, 7, S2S_SPAN_ALL};
    count_attention(&all, 1, 3, 28);
    for (int shift = -6; shift <= 9; shift++)
        for (int window = 0; window < 5; window++)
            for (int nk = 0; nk < 8; nk++) {
                const struct s2s_span span = {0, 5, 0, nk, shift};
                count_attention(&span, 1, window, naive_pairs(&span, window));
            }
}

static void sums_are_kept_by_entry_and_layer(void **state)
{
    struct s2s_k_axpby args = {.x = mat(2, 3), .y = mat(2, 3), .rows = 2, .cols = 3, .alpha = 2};
    char layer[] = "layers.0";
    queue.layer = layer;
    k.axpby(&queue, &args);
    k.axpby(&queue, &args);
    layer[7] = '1'; /* the tape's memory is used again */
    k.axpby(&queue, &args);
    k.zero(&queue, args.y.data, 24);
    const struct s2s_tally *tally = &s2s_count_of(&queue)->tally;
    assert_int_equal(tally->n, 3);
    assert_string_equal(tally->rows[0].layer, "layers.0");
    assert_int_equal(tally->rows[0].calls, 2);
    assert_string_equal(tally->rows[1].layer, "layers.1");
    assert_int_equal(tally->rows[1].calls, 1);
    assert_int_equal(tally->rows[2].entry, S2S_ENTRY_zero);
    ASSERT_COST(of(S2S_ENTRY_axpby), 3 * 6, 3 * 24, 3 * 24);
    assert_int_equal(s2s_tally_sum(tally, S2S_ENTRIES).calls, 4);
    assert_string_equal(s2s_entry_name(S2S_ENTRY_axpby), "axpby");
    assert_string_equal(s2s_entry_name(S2S_ENTRY_sync), "sync");
}

static void many_rows_are_found_again(void **state)
{
    struct s2s_tally tally = {0};
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < 5000; i++) {
            char layer[16];
            snprintf(layer, sizeof layer, "layer.%d", i / 2);
            s2s_tally_row(&tally, i % 2 ? S2S_ENTRY_gemm : S2S_ENTRY_glu, layer)->calls++;
        }
    assert_int_equal(tally.n, 5000);
    for (size_t i = 0; i < tally.n; i++)
        assert_int_equal(tally.rows[i].calls, 2);
    s2s_tally_release(&tally);
}

/* What was copied last to a place counts, whole or in part. */
static void uploads_take_each_others_place(void **state)
{
    struct s2s_uploads uploads = {0};
    const char *at = (const char *)(uintptr_t)0x1000;
    s2s_uploads_add(&uploads, at, "abcdefgh", 8);
    s2s_uploads_add(&uploads, at + 16, "ijkl", 4);
    assert_memory_equal(s2s_uploads_find(&uploads, at, 8), "abcdefgh", 8);
    assert_memory_equal(s2s_uploads_find(&uploads, at + 2, 3), "cde", 3);
    assert_memory_equal(s2s_uploads_find(&uploads, at + 16, 4), "ijkl", 4);
    assert_null(s2s_uploads_find(&uploads, at, 9));
    assert_null(s2s_uploads_find(&uploads, at + 8, 1));
    assert_null(s2s_uploads_find(&uploads, at - 1, 2));
    assert_null(s2s_uploads_find(NULL, at, 1));
    s2s_uploads_add(&uploads, at + 6, "0123456789AB", 12); /* over both */
    assert_int_equal(uploads.n, 1);
    assert_null(s2s_uploads_find(&uploads, at, 2));
    assert_memory_equal(s2s_uploads_find(&uploads, at + 16, 2), "AB", 2);
    static char large[300 << 10];
    s2s_uploads_add(&uploads, at, large, sizeof large);
    assert_int_equal(uploads.n, 0);
    s2s_uploads_release(&uploads);
}

static void memory_is_counted_but_not_there(void **state)
{
    const struct s2s_count *count = s2s_count_of(&queue);
    const size_t all = (size_t)1 << 44; /* 16 TiB */
    char *a = k.alloc(&queue, all), *b = k.alloc(&queue, 1000);
    assert_non_null(a);
    assert_non_null(b);
    assert_true(count->bytes == all + 1000);
    k.free(&queue, a);
    k.free(&queue, NULL);
    assert_true(count->bytes == 1000 && count->peak_bytes == all + 1000);
    double out = 7;
    k.copy_out(&queue, &out, b, sizeof out);
    assert_true(out == 0);
    pid_t pid = fork();
    if (pid == 0) {
        signal(SIGSEGV, SIG_DFL);
        _exit(*(volatile char *)b);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
    char *host = k.alloc_host(&queue, 10);
    memset(host, 1, 10);
    k.free_host(&queue, host);
}

/* A plan is for the lanes it is told, on the memory it is told of. */
static void workspaces_and_name_are_those_of_the_base(void **state)
{
    struct s2s_k_attention args = {.n_spans = 1, .n_heads = 1, .dim = 8, .max_q = 64, .max_k = 64};
    assert_string_equal(k.name, s2s_kernels_cpu.name);
    assert_int_equal(queue.lanes, omp_get_max_threads());
    size_t before = 0;
    for (queue.lanes = 1; queue.lanes < 6; queue.lanes += 2) {
        const size_t bytes = k.attention_workspace(&queue, &args);
        assert_int_equal(bytes, s2s_kernels_cpu.attention_workspace(&queue, &args));
        assert_true(bytes > before);
        before = bytes;
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, open_queue, close_queue)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_product_is_two_operations_a_triple),
        TEST(groups_count_the_rows_they_have),
        TEST(attention_counts_the_pairs_that_see_each_other),
        TEST(sums_are_kept_by_entry_and_layer),
        TEST(many_rows_are_found_again),
        TEST(uploads_take_each_others_place),
        TEST(memory_is_counted_but_not_there),
        TEST(workspaces_and_name_are_those_of_the_base),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
