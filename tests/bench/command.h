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
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/base/base.h"

/* What a command took: seconds of the clock, and of all processors for it and what it started. */
struct spent {
    double wall_s, cpu_s;
};

static inline double seconds_of(const struct rusage *u)
{
    return (double)u->ru_utime.tv_sec + (double)u->ru_stime.tv_sec +
           1e-6 * (double)(u->ru_utime.tv_usec + u->ru_stime.tv_usec);
}

/* Runs a command of bash (sh knows no pipefail everywhere). */
static inline struct spent run_bash(const char *fmt, va_list ap)
{
    char *command = NULL;
    if (vasprintf(&command, fmt, ap) < 0)
        abort();
    char *argv[] = {"bash", "-o", "pipefail", "-c", command, NULL};
    const double start_s = s2s_now_s();
    struct rusage used;
    pid_t pid;
    int status = -1;
    if (posix_spawnp(&pid, "bash", NULL, NULL, argv, environ) != 0 ||
        wait4(pid, &status, 0, &used) != pid || status != 0) {
        fprintf(stderr, "this failed: %s\n", command);
        exit(1);
    }
    free(command);
    return (struct spent){s2s_now_s() - start_s, seconds_of(&used)};
}

__attribute__((format(printf, 1, 2))) static inline struct spent command(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    const struct spent spent = run_bash(fmt, ap);
    va_end(ap);
    return spent;
}

__attribute__((format(printf, 1, 2))) static inline double command_s(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    const struct spent spent = run_bash(fmt, ap);
    va_end(ap);
    return spent.wall_s;
}

#endif
