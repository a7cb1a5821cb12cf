/*
 * The table at the end of `make bench`: each goal beside what was measured, what the machine or the
 * libraries allow in the same run, and why a goal is not met. A benchmark adds its rows to the file
 * that run.sh names in BENCH_TABLE.
 */
#ifndef TESTS_BENCH_GOAL_H
#define TESTS_BENCH_GOAL_H

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "lib/base/threads.h"

struct goal {
    const char *unit;
    double goal, figure;
    double limit;    /* 0: none was measured */
    bool is_most;    /* the figure may be at most the goal, else at least */
    const char *why; /* the reason where the goal is not met; NULL: how near the limit is says it */
};

/* A figure this near to its limit is bounded by it. */
#define NEAR_LIMIT 0.8

static inline const char *goal_verdict(const struct goal *g, char *text, size_t cap)
{
    const double share = g->is_most ? g->limit / g->figure : g->figure / g->limit;
    if (g->is_most ? g->figure <= g->goal : g->figure >= g->goal)
        return "met";
    if (g->why)
        return g->why;
    double load = 0;
    if (getloadavg(&load, 1) == 1 && load > s2s_n_cores() + 1)
        snprintf(text, cap, "not met, beside other work (load %.0f)", load);
    else
        snprintf(text, cap, "not met");
    if (g->limit > 0 && share >= NEAR_LIMIT)
        snprintf(text, cap, "the limit: %.0f %% of it", 100 * share);
    return text;
}

/* Adds a row; fmt says what it is about. */
__attribute__((format(printf, 2, 3))) static inline void add_goal(const struct goal *g,
                                                                  const char *fmt, ...)
{
    const char *path = getenv("BENCH_TABLE");
    FILE *table = path ? fopen(path, "a") : NULL;
    char verdict[64];
    va_list ap;
    if (!table)
        return;
    va_start(ap, fmt);
    vfprintf(table, fmt, ap);
    va_end(ap);
    fprintf(table, "\t%s %.4g\t%.4g\t", g->is_most ? "<=" : ">=", g->goal, g->figure);
    fprintf(table, g->limit > 0 ? "%.4g" : "-", g->limit);
    fprintf(table, "\t%s\t%s\n", g->unit, goal_verdict(g, verdict, sizeof verdict));
    if (fclose(table) != 0)
        fprintf(stderr, "%s: cannot write\n", path);
}

#endif
