/* lib/base: numbers, errors, ordered threads, provenance of arguments. */
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "lib/base/base.h"
#include "lib/base/distance.h"
#include "lib/base/tool.h"

static void numbers_are_read_whole_or_refused(void **state)
{
    int64_t i = -1;
    double x = -1;
    assert_int_equal(s2s_parse_i64(&i, "42", 0, 100, NULL), 0);
    assert_int_equal(i, 42);
    const char *bad_ints[] = {
        "", " 1", "1 ", "0x10", "1.0", "1e3", "--1", "101", "99999999999999999999", "abc"};
    for (size_t k = 0; k < sizeof bad_ints / sizeof *bad_ints; k++)
        assert_int_equal(s2s_parse_i64(&i, bad_ints[k], 0, 100, NULL), S2S_E_ARG);
    assert_int_equal(s2s_parse_f64(&x, "1e-3", 0, 1, NULL), 0);
    assert_true(fabs(x - 1e-3) < 1e-18);
    const char *bad_floats[] = {"", "nan", "inf", "0x1p3", "1.5x", "1e999", "2"};
    for (size_t k = 0; k < sizeof bad_floats / sizeof *bad_floats; k++)
        assert_int_equal(s2s_parse_f64(&x, bad_floats[k], 0, 1, NULL), S2S_E_ARG);
    struct {
        const char *text;
        int64_t size;
    } sizes[] = {
        {"0", 0},      {"512", 512}, {"8k", 8000}, {"1.5M", 1500000}, {"2Gi", INT64_C(2) << 30},
        {"4KiB", 4096}};
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        assert_int_equal(s2s_parse_size(&i, sizes[k].text, NULL), 0);
        assert_int_equal(i, sizes[k].size);
    }
    assert_int_equal(s2s_parse_size(&i, "1.5", NULL), S2S_E_ARG);
    assert_int_equal(s2s_parse_size(&i, "-1", NULL), S2S_E_ARG);
    struct s2s_error size_err = S2S_ERROR_INIT;
    assert_int_equal(s2s_parse_size(&i, "20000000T", &size_err), S2S_E_ARG);
    assert_string_equal(size_err.text, "'20000000T' is too large");
    uint32_t hex;
    assert_int_equal(s2s_parse_hex(&hex, "00aFx", 4), 0);
    assert_int_equal(hex, 0xaf);
    assert_int_equal(s2s_parse_hex(&hex, "FFFFFFFF", 8), 0);
    assert_int_equal(hex, 0xffffffff);
    assert_int_equal(s2s_parse_hex(&hex, "12g4", 4), -1);
    assert_int_equal(s2s_parse_hex(&hex, "12", 4), -1);
    assert_int_equal(s2s_parse_size(&i, "8kk", NULL), S2S_E_ARG);
}

static void errors_gain_context_in_front_and_keep_the_first_hint(void **state)
{
    struct s2s_error err = S2S_ERROR_INIT;
    int rc = s2s_error_set(&err, S2S_E_SHAPE, "cu_seqlens[3] = %d", 512);
    rc = s2s_error_hint(&err, rc, "first");
    rc = s2s_error_hint(&err, rc, "second");
    rc = s2s_error_add(&err, s2s_error_add(&err, rc, "record %d", 17), "packs.s2s");
    assert_int_equal(rc, S2S_E_SHAPE);
    assert_string_equal(err.text, "packs.s2s: record 17: cu_seqlens[3] = 512");
    assert_string_equal(err.hint, "first");
    char longer[4000];
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = 0;
    for (int i = 0; i < 3; i++)
        s2s_error_add(&err, rc, "%s", longer);
    assert_true(strlen(err.text) < sizeof err.text);
    assert_int_equal(s2s_error_set(NULL, S2S_E_IO, "x"), S2S_E_IO);
    assert_int_equal(s2s_errc_exit_status(S2S_E_OPEN), 2);
    assert_int_equal(s2s_errc_exit_status(S2S_E_IO), 1);
    assert_string_equal(s2s_errc_name(S2S_E_TRUNCATED), "TRUNCATED");
}

struct squares {
    int next, end, fail_at, n_out, n_dropped, n_ok;
    int most_items; /* at once */
    int values[1000];
};

static void errors_quote_names_on_one_line(void **state)
{
    struct s2s_error err = S2S_ERROR_INIT;
    int rc = s2s_error_set(&err, S2S_E_FORMAT, "tensor %s", "a\ns2s-ckpt: all is well\x1b[2J");
    rc = s2s_error_add(&err, rc, "%s", "file\r");
    s2s_error_line(&err, rc, "  %s", "x\ny");
    s2s_error_hint(&err, rc, "%s", "\x07");
    assert_string_equal(err.text, "file\\r: tensor a\\ns2s-ckpt: all is well\\x1b[2J\n  x\\ny");
    assert_string_equal(err.hint, "\\x07");
    /* what does not fit ends behind a whole character, whichever way it comes */
    char many[sizeof err.text];
    memset(many, '\x1b', sizeof many - 1);
    many[sizeof many - 1] = 0;
    s2s_error_set(&err, S2S_E_FORMAT, "%s", many);
    assert_int_equal(strlen(err.text) % 4, 0);
    for (int i = 0; i < 400; i++)
        s2s_error_line(&err, rc, "%s", "\x1b");
    assert_true(strlen(err.text) < sizeof err.text);
}

static int squares_source(void *ctx, void **item, struct s2s_error *err)
{
    struct squares *s = ctx;
    if (s->next == s->end)
        return 0;
    s->values[s->next] = s->next;
    *item = &s->values[s->next++];
    return 1;
}

static int squares_work(void *ctx, void *item, int worker, struct s2s_error *err)
{
    struct squares *s = ctx;
    int *value = item;
    if (*value >= s->fail_at)
        return s2s_error_set(err, S2S_E_RANGE, "item %d", *value);
    *value *= *value;
    return 0;
}

static int squares_sink(void *ctx, void *item, struct s2s_error *err)
{
    struct squares *s = ctx;
    const int n_items = s->next - s->n_out;
    s->most_items = n_items > s->most_items ? n_items : s->most_items;
    s->n_ok += *(int *)item == s->n_out * s->n_out;
    s->n_out++;
    return 0;
}

static void squares_drop(void *ctx, void *item)
{
    ((struct squares *)ctx)->n_dropped++;
}

static struct s2s_ordered squares_stages(struct squares *s)
{
    return (struct s2s_ordered){.source = squares_source,
                                .work = squares_work,
                                .sink = squares_sink,
                                .drop = squares_drop,
                                .ctx = s};
}

static void ordered_threads_keep_the_order_of_the_source(void **state)
{
    for (int n_threads = 1; n_threads <= 8; n_threads *= 2) {
        struct squares s = {.end = 1000, .fail_at = 1000};
        struct s2s_ordered stages = squares_stages(&s);
        struct s2s_error err = S2S_ERROR_INIT;
        assert_int_equal(s2s_ordered_run(&stages, n_threads, &err), 0);
        assert_int_equal(s.n_out, 1000);
        assert_int_equal(s.n_ok, 1000);
    }
}

static void ordered_threads_have_no_more_items_than_they_may(void **state)
{
    for (int n_items = 0; n_items < 12; n_items += 3) {
        struct squares s = {.end = 1000, .fail_at = 1000};
        struct s2s_ordered stages = squares_stages(&s);
        struct s2s_error err = S2S_ERROR_INIT;
        stages.n_items = n_items;
        assert_int_equal(s2s_ordered_run(&stages, 4, &err), 0);
        assert_int_equal(s.n_ok, 1000);
        assert_int_equal(s.most_items, n_items == 0 ? 16 : n_items < 4 ? 4 : n_items);
    }
}

static void ordered_threads_report_the_first_failure_in_order(void **state)
{
    for (int n_threads = 1; n_threads <= 8; n_threads *= 2) {
        struct squares s = {.end = 1000, .fail_at = 137};
        struct s2s_ordered stages = squares_stages(&s);
        struct s2s_error err = S2S_ERROR_INIT;
        assert_int_equal(s2s_ordered_run(&stages, n_threads, &err), S2S_E_RANGE);
        assert_string_equal(err.text, "item 137");
        assert_int_equal(s.n_out, 137);
        assert_int_equal(s.n_out + s.n_dropped, s.next);
    }
}

static void ordered_work_is_done_where_no_thread_can_be_had(void **state)
{
    (void)state;
    struct s2s_error err = S2S_ERROR_INIT;
    struct squares s = {.end = 1000, .fail_at = 1000};
    struct s2s_ordered stages = squares_stages(&s);
    pthread_attr_t before, after;
    assert_int_equal(pthread_getattr_default_np(&before), 0);
    assert_int_equal(pthread_attr_init(&after), 0);
    assert_int_equal(pthread_attr_setstacksize(&after, (size_t)1 << 46), 0);
    assert_int_equal(pthread_setattr_default_np(&after), 0);
    int rc = s2s_ordered_run(&stages, 4, &err);
    assert_int_equal(pthread_setattr_default_np(&before), 0);
    assert_int_equal(rc, 0);
    assert_int_equal(s.n_ok, 1000);
}

static _Noreturn void end_badly(void)
{
    abort();
}

static void no_memory_ends_the_program_with_a_word_and_without_destructors(void **state)
{
    (void)state;
    int ends[2], status = 0;
    assert_int_equal(pipe(ends), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        dup2(ends[1], STDERR_FILENO);
        stderr = fopen("/dev/null", "w"); /* as in a thread that decodes sound */
        atexit(end_badly);
        s2s_xrealloc(NULL, SIZE_MAX, 2);
        _exit(0);
    }
    close(ends[1]);
    char said[200] = "";
    assert_true(read(ends[0], said, sizeof said - 1) > 0);
    assert_non_null(strstr(said, ": out of memory: "));
    close(ends[0]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 1);
}

static ssize_t read_without_memory(void *cookie, char *bytes, size_t len)
{
    (void)bytes, (void)len;
    errno = *(const int *)cookie;
    return errno ? -1 : 0;
}

static void a_line_that_finds_no_memory_is_not_the_end(void **state)
{
    (void)state;
    const cookie_io_functions_t reader = {.read = read_without_memory};
    int error = 0, status = 0;
    char *line = NULL;
    size_t cap = 0;
    FILE *ends = fopencookie(&error, "r", reader);
    assert_non_null(ends);
    assert_int_equal(s2s_xgetline(&line, &cap, ends), -1);
    fclose(ends);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        error = ENOMEM;
        ends = fopencookie(&error, "r", reader);
        close(STDERR_FILENO);
        _exit(ends && s2s_xgetline(&line, &cap, ends) < 0 ? 0 : 2);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 1);
    free(line);
}

static void bf16_rounds_to_nearest_even_and_keeps_nan(void **state)
{
    assert_int_equal(s2s_f32_to_bf16(1.0f), 0x3f80);
    assert_int_equal(s2s_f32_to_bf16(1.00390625f), 0x3f80); /* halfway, to even */
    assert_int_equal(s2s_f32_to_bf16(1.01171875f), 0x3f82); /* halfway, to even */
    assert_int_equal(s2s_f32_to_bf16(NAN), 0x7fc0);
    assert_int_equal(s2s_f32_to_bf16(-NAN), 0xffc0);
    assert_true(isinf(s2s_bf16_to_f32(s2s_f32_to_bf16(3.4e38f))));
}

/* every one of the 65,536 halves, and the floats around each, against the compiler's own type */
static void f16_agrees_with_the_compiler(void **state)
{
#ifdef __FLT16_MAX__
    for (uint32_t bits = 0; bits < 65536; bits++) {
        uint16_t half_bits = (uint16_t)bits, back;
        _Float16 half;
        memcpy(&half, &half_bits, sizeof half);
        float x = s2s_f16_to_f32(half_bits), want = (float)half;
        if (isnan(want)) {
            assert_true(isnan(x));
            assert_int_equal(s2s_f32_to_f16(x), half_bits | 0x200); /* quiet, of its sign */
            continue;
        }
        assert_memory_equal(&x, &want, sizeof x);
        for (int step = -4096; step <= 4096; step += 4096 / 2) {
            uint32_t wide;
            memcpy(&wide, &want, sizeof wide);
            wide += (uint32_t)step;
            float near;
            memcpy(&near, &wide, sizeof near);
            _Float16 rounded = (_Float16)near;
            memcpy(&back, &rounded, sizeof back);
            if (!isnan(near))
                assert_int_equal(s2s_f32_to_f16(near), back);
        }
    }
#else
    skip();
#endif
}

struct tool_input {
    struct s2s_common common;
    const char *tokenizer;
    int64_t tokens;
};

static error_t parse_tool(int key, char *arg, struct argp_state *state)
{
    struct tool_input *input = state->input;
    switch (key) {
    case 't':
        input->tokens = s2s_arg_i64(state, "tokens", arg, 1, 1 << 20);
        return 0;
    case 'k':
        input->tokenizer = arg;
        return 0;
    case ARGP_KEY_ARG:
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static void provenance_keeps_only_what_can_change_a_byte(void **state)
{
    static const struct argp_option options[] = {
        {"tokens", 't', "N", 0, "", 0}, {"tokenizer", 'k', "F", 0, "", 0}, {0}};
    static const struct argp argp = {.options = options, .parser = parse_tool};
    static const struct s2s_args_rule rules[] = {{"tokenizer", S2S_ARGS_FILE}, {0}};
    char *argv[] = {"s2s-x",         "-t", "9",   "-j", "4", "--seed=3", "--tokenizer",
                    "/a/b/tok.json", "-o", "out", "in", NULL};
    struct tool_input input = {.common = S2S_COMMON_DEFAULT};
    s2s_tool_begin("s2s-x", 11, argv);
    s2s_tool_parse(&argp, 11, argv, &input);
    assert_int_equal(input.tokens, 9);
    assert_int_equal(input.common.jobs, 4);
    assert_int_equal(input.common.seed, 3);
    assert_string_equal(input.common.out, "out");
    size_t n;
    char **args = s2s_tool_args(rules, &n);
    assert_int_equal(n, 3);
    assert_string_equal(args[0], "--seed=3");
    assert_string_equal(args[1], "--tokenizer=tok.json");
    assert_string_equal(args[2], "--tokens=9");
    for (size_t i = 0; i < n; i++)
        free(args[i]);
    free(args);
}

static void pieces_lie_apart_and_are_zeroed(void **state)
{
    enum { N = 4000 };
    struct s2s_blocks blocks = {.last = NULL};
    unsigned char *piece[N];
    size_t len[N], used = 0;
    for (size_t i = 0; i < N; i++) {
        len[i] = i % 97 == 0 ? 100000 + i : i % 50;
        piece[i] = s2s_blocks_alloc(&blocks, len[i]);
        used += (len[i] + 7) / 8 * 8;
        assert_int_equal((uintptr_t)piece[i] % 8, 0);
        for (size_t k = 0; k < len[i]; k++)
            assert_int_equal(piece[i][k], 0);
        memset(piece[i], (int)(i % 255 + 1), len[i]);
    }
    assert_int_equal(blocks.used_bytes, used);
    for (size_t i = 0; i < N; i++)
        for (size_t k = 0; k < len[i]; k++)
            assert_int_equal(piece[i][k], i % 255 + 1);
    assert_string_equal(s2s_blocks_text(&blocks, "words and more", 5), "words");
    s2s_blocks_release(&blocks);
    assert_null(blocks.last);
}

/* small and large pieces and texts, whose room is given again, zeroed; what was before stays */
static void pieces_since_a_mark_are_given_back(void **state)
{
    enum { N = 300 };
    struct s2s_blocks blocks = {.last = NULL};
    for (size_t before = 0; before < N; before += 37) {
        unsigned char *kept = NULL;
        for (size_t i = 0; i < before; i++) {
            const size_t len = i % 7 == 3 ? 70000 : 300;
            kept = s2s_blocks_alloc(&blocks, len);
            memset(kept, 1, len);
        }
        const char *text = s2s_blocks_text(&blocks, "before", 6);
        const struct s2s_blocks_mark mark = s2s_blocks_mark(&blocks);
        const size_t used = blocks.used_bytes;
        for (size_t again = 0; again < 3; again++) {
            for (size_t i = 0; i < N; i++) {
                const size_t len = i % 5 == 2 ? 50000 : 8 * (i % 40);
                unsigned char *piece = s2s_blocks_alloc(&blocks, len);
                for (size_t k = 0; k < len; k++)
                    assert_int_equal(piece[k], 0);
                memset(piece, 2, len);
                (void)s2s_blocks_text(&blocks, "after", 5);
            }
            s2s_blocks_rewind(&blocks, &mark);
            assert_int_equal(blocks.used_bytes, used);
            assert_string_equal(text, "before");
            assert_true(!kept || kept[0] == 1);
        }
        s2s_blocks_release(&blocks);
    }
    assert_null(blocks.last);
}

static void what_is_left_of_a_file_or_pipe_is_read(void **state)
{
    enum { N = 200000 };
    struct s2s_buf text = S2S_BUF_INIT;
    struct s2s_error err = S2S_ERROR_INIT;
    char byte;
    int ends[2];
    FILE *file = tmpfile();
    for (int i = 0; i < N; i++)
        fputc('a' + i % 26, file);
    fflush(file);
    rewind(file);
    s2s_buf_puts(&text, "had ");
    assert_int_equal(read(fileno(file), &byte, 1), 1);
    assert_int_equal(s2s_buf_read(&text, fileno(file), N + 3, &err), 0);
    assert_int_equal(text.len, N + 3);
    assert_int_equal(text.data[text.len], 0);
    assert_memory_equal(text.data, "had bcde", 8);
    assert_int_equal(text.data[text.len - 1], 'a' + (N - 1) % 26);
    /* one byte too many, a pipe, nothing, and what cannot be read */
    rewind(file);
    s2s_buf_clear(&text);
    assert_int_equal(s2s_buf_read(&text, fileno(file), N - 1, &err), S2S_E_FORMAT);
    fclose(file);
    s2s_buf_release(&text);
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(write(ends[1], "words", 5), 5);
    close(ends[1]);
    assert_int_equal(s2s_buf_read(&text, ends[0], 5, &err), 0);
    assert_string_equal(text.data, "words");
    s2s_buf_release(&text);
    assert_int_equal(s2s_buf_read(&text, ends[0], 5, &err), 0);
    assert_string_equal(text.data, "");
    close(ends[0]);
    assert_int_equal(s2s_buf_read(&text, ends[0], 5, &err), S2S_E_IO);
    s2s_buf_release(&text);
}

struct pair {
    int key, place;
    char pad[40];
};

static int by_key(const void *a, const void *b)
{
    const struct pair *x = a, *y = b;
    return (x->key > y->key) - (x->key < y->key);
}

static void large_elements_are_sorted_and_equal_ones_keep_their_order(void **state)
{
    enum { N = 1000 };
    struct pair pairs[N];
    for (int times = 1; times <= N; times *= 10) { /* so many of each key; one: a permutation */
        for (int i = 0; i < N; i++)
            pairs[i] = (struct pair){.key = i * 7 % N / times, .place = i, .pad = {(char)i}};
        s2s_sort(pairs, N, sizeof *pairs, by_key);
        for (int i = 0; i < N; i++) {
            assert_int_equal(pairs[i].key, i / times);
            assert_int_equal(pairs[i].place * 7 % N / times, pairs[i].key);
            assert_int_equal(pairs[i].pad[0], (char)pairs[i].place);
            if (i && pairs[i].key == pairs[i - 1].key)
                assert_true(pairs[i].place > pairs[i - 1].place);
        }
    }
    s2s_sort(pairs, 0, sizeof *pairs, by_key);
    s2s_sort(pairs, N, sizeof *pairs, by_key); /* sorted */
    assert_int_equal(pairs[N - 1].place, N - 1);
}

/* By its definition: the least over all ways to edit the ends of a [n] and b [m]. */
static int plain_distance(const char *a, size_t n, const char *b, size_t m)
{
    if (n == 0 || m == 0)
        return (int)(n + m);
    int ways[4] = {plain_distance(a, n - 1, b, m) + 1, plain_distance(a, n, b, m - 1) + 1,
                   plain_distance(a, n - 1, b, m - 1) + (a[n - 1] != b[m - 1]), 1000};
    if (n > 1 && m > 1 && a[n - 1] == b[m - 2] && a[n - 2] == b[m - 1])
        ways[3] = plain_distance(a, n - 2, b, m - 2) + 1;
    int best = ways[0];
    for (int i = 1; i < 4; i++)
        best = ways[i] < best ? ways[i] : best;
    return best;
}

static void names_differ_by_letters_and_swaps(void **state)
{
    char a[7], b[7], longer[300];
    for (uint64_t i = 0; i < 3000; i++) {
        const size_t n = s2s_rng_below(1, i, sizeof a), m = s2s_rng_below(2, i, sizeof b);
        for (size_t k = 0; k < sizeof a; k++) {
            a[k] = k < n ? "abc"[s2s_rng_below(3, i * 8 + k, 3)] : 0;
            b[k] = k < m ? "abc"[s2s_rng_below(4, i * 8 + k, 3)] : 0;
        }
        const int distance = plain_distance(a, n, b, m);
        for (int most = 0; most < 7; most++)
            assert_int_equal(s2s_name_distance(a, b, most), distance <= most ? distance : most + 1);
    }
    memset(longer, 'x', sizeof longer);
    longer[257] = 0;
    assert_int_equal(s2s_name_distance(longer, longer, 3), 4); /* too long to tell */
    longer[256] = 0;
    assert_int_equal(s2s_name_distance(longer, longer, 3), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_differ_by_letters_and_swaps),
        cmocka_unit_test(large_elements_are_sorted_and_equal_ones_keep_their_order),
        cmocka_unit_test(pieces_lie_apart_and_are_zeroed),
        cmocka_unit_test(pieces_since_a_mark_are_given_back),
        cmocka_unit_test(what_is_left_of_a_file_or_pipe_is_read),
        cmocka_unit_test(numbers_are_read_whole_or_refused),
        cmocka_unit_test(errors_gain_context_in_front_and_keep_the_first_hint),
        cmocka_unit_test(errors_quote_names_on_one_line),
        cmocka_unit_test(ordered_threads_keep_the_order_of_the_source),
        cmocka_unit_test(ordered_threads_have_no_more_items_than_they_may),
        cmocka_unit_test(ordered_threads_report_the_first_failure_in_order),
        cmocka_unit_test(ordered_work_is_done_where_no_thread_can_be_had),
        cmocka_unit_test(no_memory_ends_the_program_with_a_word_and_without_destructors),
        cmocka_unit_test(a_line_that_finds_no_memory_is_not_the_end),
        cmocka_unit_test(bf16_rounds_to_nearest_even_and_keeps_nan),
        cmocka_unit_test(f16_agrees_with_the_compiler),
        cmocka_unit_test(provenance_keeps_only_what_can_change_a_byte),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
