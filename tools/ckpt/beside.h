/* A check of files that runs in a thread beside what reads them for another purpose: each finds in
 * the page cache what the other has read, so that even large files are read from disk about once.
 */
#ifndef CKPT_BESIDE_H
#define CKPT_BESIDE_H

#include <pthread.h>

#include "lib/base/error.h"
#include "lib/ckpt/plan.h"

/* how: stop ends it with INTERRUPTED. */
typedef int ckpt_beside_check(void *ctx, const struct s2s_ckpt_write *how, struct s2s_error *err);

struct ckpt_beside {
    ckpt_beside_check *check;
    void *ctx;
    struct s2s_ckpt_write how, given;
    atomic_int stop;
    pthread_t thread;
    bool has_thread; /* false: there is no thread to be had; it runs at the end */
    int rc;
    struct s2s_error err;
};

/* Begins check(ctx, ..). how: its progress, ranks, and what a signal
 * stops it by (or NULL); copied. beside stays where it is until
 * ckpt_beside_end. */
void ckpt_beside_begin(struct ckpt_beside *beside, ckpt_beside_check *check, void *ctx,
                       struct s2s_ckpt_write how);
/* Waits for it. rc: result of the caller's own work; if negative, that is returned, and the check
 * stopped. */
int ckpt_beside_end(struct ckpt_beside *beside, int rc, struct s2s_error *err);

#endif
