/* Runs work on several threads, with results in the order of the input. */
#ifndef S2S_BASE_THREADS_H
#define S2S_BASE_THREADS_H

#include <stddef.h>

struct s2s_error;

/* Number of cores that this process may use (its affinity mask), at least 1. */
int s2s_n_cores(void);

/*
 * A pipeline of three stages. source and sink are called by one thread at a time and in order; work
 * runs on n_threads threads. The sink's order is the source's, so output never depends on
 * n_threads.
 *
 *   source  gives the next item: 1 and *item set, 0 at the end, negative on error
 *   work    turns an item into what the sink takes, in place; worker is in [0, n_threads)
 *   sink    consumes it; called in order
 *   drop    frees an item that will not reach the sink, because another failed; NULL: none
 *   n_items how many exist at a time at most, and n_threads at least; 0: four a thread. Items of
 *           megabytes are few, as memory that is touched first costs more than to fill it
 *
 * The first failure in the order of the items is returned; items before it have reached the sink.
 */
struct s2s_ordered {
    int (*source)(void *ctx, void **item, struct s2s_error *err);
    int (*work)(void *ctx, void *item, int worker, struct s2s_error *err);
    int (*sink)(void *ctx, void *item, struct s2s_error *err);
    void (*drop)(void *ctx, void *item);
    void *ctx;
    int n_items;
};

/* Runs to the end of the source. With n_threads 1 no thread is started: the caller runs all three
 * stages. */
int s2s_ordered_run(const struct s2s_ordered *stages, int n_threads, struct s2s_error *err);

/* Calls fn(ctx, i, worker) for every i in [0, n) on n_threads threads, in any order, and returns
 * after the last call. */
void s2s_parallel_for(size_t n, int n_threads, void (*fn)(void *ctx, size_t i, int worker),
                      void *ctx);

#endif
