/* For tests that a call is our bug: it ends the process with a message that names what it should.
 */
#ifndef TESTS_UNIT_TENSOR_BUG_H
#define TESTS_UNIT_TENSOR_BUG_H

#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

/* Fails unless call(ctx), in a process of its own, aborts after saying `text`. */
static void assert_bug(void (*call)(void *ctx), void *ctx, const char *text)
{
    char said[2000] = "";
    size_t len = 0;
    int ends[2], status;
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        signal(SIGABRT, SIG_DFL); /* cmocka catches it */
        setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
        dup2(ends[1], 2);
        close(ends[0]);
        call(ctx);
        _exit(0);
    }
    close(ends[1]);
    for (ssize_t n; (n = read(ends[0], said + len, sizeof said - 1 - len)) > 0;)
        len += (size_t)n;
    close(ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGABRT || !strstr(said, text))
        fail_msg("expected a bug that says \"%s\", found status %d: %s", text, status, said);
}

#endif
