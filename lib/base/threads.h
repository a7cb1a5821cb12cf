/* Work spread over threads whose results come out in the order of the input. */
#ifndef S2S_BASE_THREADS_H
#define S2S_BASE_THREADS_H

#include <stddef.h>

struct s2s_error;

/* Cores this process may use (its affinity mask), at least 1. */
int s2s_n_cores(void);

/*
 * A pipeline of three stages. source and sink are called by one thread at a time and in order; work
 * runs on n_threads threads. Order of the sink is the order of the source, whatever the threads, so
 * output never depends on n_threads.
 *
 *   source  gives the next item: 1 and *item set, 0 at the end, negative on error
 *   work    turns an item into what the sink takes, in place; worker is in [0, n_threads)
 *   sink    consumes it; called in order
 *   drop    frees an item that will not reach the sink, because something failed; NULL: nothing to
 * free
 *
 * The first failure in the order of the items is the one that is returned; items before it have
 * reached the sink.
 */
struct s2s_ordered {
    int (*source)(void *ctx, void **item, struct s2s_error *err);
    int (*work)(void *ctx, void *item, int worker, struct s2s_error *err);
    int (*sink)(void *ctx, void *item, struct s2s_error *err);
    void (*drop)(void *ctx, void *item);
    void *ctx;
};

/* Runs to the end of the source. At most four items a thread are alive at once. n_threads 1 starts
 * no thread: the caller does all three stages. */
int s2s_ordered_run(const struct s2s_ordered *stages, int n_threads, struct s2s_error *err);

/* Calls fn(ctx, i, worker) for every i in [0, n) on n_threads threads, in any order; returns when
 * all are done. */
void s2s_parallel_for(size_t n, int n_threads, void (*fn)(void *ctx, size_t i, int worker),
                      void *ctx);

#endif
