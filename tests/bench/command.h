/*
 * Commands of the benchmarks. What failed has no speed, whichever part of a pipeline it was: then
 * the benchmark ends with exit status 1.
 */
#ifndef TESTS_BENCH_COMMAND_H
#define TESTS_BENCH_COMMAND_H

#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/base/base.h"

/* Runs a command of bash (sh knows no pipefail everywhere); its seconds. */
__attribute__((format(printf, 1, 2))) static inline double command_s(const char *fmt, ...)
{
    va_list ap;
    char *command = NULL;
    va_start(ap, fmt);
    if (vasprintf(&command, fmt, ap) < 0)
        abort();
    va_end(ap);
    char *argv[] = {"bash", "-o", "pipefail", "-c", command, NULL};
    const double start_s = s2s_now_s();
    pid_t pid;
    int status = -1;
    if (posix_spawnp(&pid, "bash", NULL, NULL, argv, environ) != 0 ||
        waitpid(pid, &status, 0) != pid || status != 0) {
        fprintf(stderr, "this failed: %s\n", command);
        exit(1);
    }
    const double s = s2s_now_s() - start_s;
    free(command);
    return s;
}

#endif
