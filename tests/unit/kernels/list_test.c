/* The list of kernels, and what the CPU table makes of it: every entry is there, and a matrix of an
 * element type that an entry has not ends the program with the names of both. */
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit/kernels/kernel_test.h"

static void every_entry_of_the_list_is_a_member(void **state)
{
#define PLAIN(name)
#define WORKSPACE(name) assert_non_null(k->name##_workspace);
#define X(name, suffix, kind, mats) \
    assert_non_null(k->name); \
    kind(name)
    S2S_KERNELS(X)
#undef X
#undef PLAIN
#undef WORKSPACE
}

/* What the child that runs `call` says before it ends; it must end by abort. */
static void dies(char *said, size_t cap, void (*call)(void *args), void *args)
{
    int ends[2], status;
    assert_int_equal(pipe(ends), 0);
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        dup2(ends[1], STDERR_FILENO);
        signal(SIGABRT, SIG_DFL);
        signal(SIGSEGV, SIG_DFL);
        call(args);
        _exit(0);
    }
    close(ends[1]);
    size_t n = 0;
    for (ssize_t got; (got = read(ends[0], said + n, cap - 1 - n)) > 0;)
        n += (size_t)got;
    said[n] = '\0';
    close(ends[0]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGABRT)
        fail_msg("went on: %s", said);
}

/* BF16 for entries whose matrices stay F32 on the CPU; no other has 8-bit floats. */
static enum s2s_dtype lacked(const char *entry)
{
    const bool of_gpu = strcmp(k->name, "emu") == 0 || strcmp(k->name, "cuda") == 0;
    return !of_gpu && strcmp(entry, "xent_stats") == 0 ? S2S_BF16 : S2S_F8_E4M3;
}

/* A call with one matrix of a type that the entry has not, all else zero: did it take it, it would
 * do nothing. */
#define X(name, suffix, kind, mats) \
    static void call_##name(void *args) \
    { \
        k->name(&queue, args); \
    }
S2S_KERNELS(X)
#undef X

static void refuses(const char *entry, const char *field, void (*call)(void *args), void *args)
{
    char said[1000];
    dies(said, sizeof said, call, args);
    if (!strstr(said, entry) || !strstr(said, field) ||
        !strstr(said, s2s_dtype_name(lacked(entry))))
        fail_msg("%s with %s said: %s", entry, field, said);
}

static void an_element_type_that_an_entry_has_not_is_named(void **state)
{
    const float host[4] = {0};
    void *data = in(host, sizeof host);
#define MAT(field) \
    args.field = (struct s2s_mat){data, 2, lacked(entry)}; \
    refuses(entry, #field, call, &args); \
    args.field = (struct s2s_mat){0};
#define X(name, suffix, kind, mats) \
    { \
        struct s2s_k_##suffix args = {0}; \
        static const char entry[] __attribute__((unused)) = #name; \
        void (*call)(void *) = call_##name; \
        mats(void) args; \
        (void)call; \
    }
    S2S_KERNELS(X)
#undef X
#undef MAT
    done();
}

static void an_absent_matrix_has_no_element_type(void **state)
{
    struct s2s_k_axpby args = {.x = {NULL, 0, S2S_BF16}};
    k->axpby(&queue, &args);
}

/* Two queues of a device: what one copied in is there for the other after the event. */
static void bytes_come_back_from_the_queue_that_waited(void **state)
{
    enum { N = 100003 };
    struct s2s_queue other = queue;
    if (!queue.wrapped)
        assert_int_equal(k->open(&other, 0), 0);
    assert_true(queue.lanes > 0);
    char *host = k->alloc_host(&queue, N), *back = k->alloc_host(&queue, N);
    char *device = k->alloc(&queue, N);
    assert_int_equal((uintptr_t)device % 256, 0);
    struct s2s_event *event = k->event_new(&queue);
    assert_non_null(event);
    for (int i = 0; i < N; i++)
        host[i] = (char)(i * 31);
    k->copy_in_async(&queue, device, host, N);
    k->zero(&queue, device + 10, 20);
    k->event_record(&queue, event);
    k->event_wait(&other, event);
    k->copy_out_async(&other, back, device, N);
    k->sync(&other);
    k->sync(&queue);
    memset(host + 10, 0, 20);
    assert_memory_equal(back, host, N);
    k->copy_in(&queue, device, host + 1, N - 1);
    k->copy_out(&queue, back, device, N - 1);
    assert_memory_equal(back, host + 1, N - 1);
    assert_string_equal(k->status_text(0), "no failure");
    k->event_free(&queue, event);
    k->free(&queue, device);
    k->free(&queue, NULL);
    k->free_host(&queue, host);
    k->free_host(&queue, back);
    if (!queue.wrapped)
        k->close(&other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_entry_of_the_list_is_a_member),
        cmocka_unit_test(an_element_type_that_an_entry_has_not_is_named),
        cmocka_unit_test(bytes_come_back_from_the_queue_that_waited),
        cmocka_unit_test(an_absent_matrix_has_no_element_type),
    };
    return run_on_tables(tests);
}
