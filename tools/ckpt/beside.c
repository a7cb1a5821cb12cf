/* Runs a check of files in a thread beside the caller's own work. */
#include "tools/ckpt/beside.h"

#include "lib/base/base.h"
#include "lib/ckpt/write/share.h"

/* As the number of a signal: it was none that stopped the caller's work. */
enum { NO_SIGNAL = -1 };

static void *run(void *arg)
{
    struct ckpt_beside *b = arg;
    int none = 0;
    b->rc = b->check(b->ctx, &b->how, &b->err);
    /* a rank does not fail alone: with others the caller's work goes on to where all agree */
    if (b->rc < 0 && b->given.stop && ckpt_share_size(&b->given) == 1)
        b->ends_caller = atomic_compare_exchange_strong(b->given.stop, &none, NO_SIGNAL);
    return NULL;
}

/* A signal ends it as well, after the caller's own work too. */
static void pass(void *ctx, int64_t bytes)
{
    struct ckpt_beside *b = ctx;
    if (b->given.stop && *b->given.stop)
        b->stop = 1;
    if (b->given.progress)
        b->given.progress(b->given.ctx, bytes);
}

void ckpt_beside_begin(struct ckpt_beside *b, ckpt_beside_check *check, void *ctx,
                       struct s2s_ckpt_write how)
{
    *b = (struct ckpt_beside){
        .check = check, .ctx = ctx, .how = how, .given = how, .err = S2S_ERROR_INIT};
    b->how.stop = &b->stop;
    b->how.progress = pass;
    b->how.ctx = b;
    b->has_thread = pthread_create(&b->thread, NULL, run, b) == 0;
}

int ckpt_beside_end(struct ckpt_beside *b, int rc, struct s2s_error *err)
{
    b->stop = b->stop || rc < 0;
    if (b->has_thread)
        pthread_join(b->thread, NULL);
    else if (rc == 0)
        run(b);
    if (b->rc < 0 && (rc == 0 || (b->ends_caller && rc == S2S_E_INTERRUPTED))) {
        s2s_error_clear(err);
        *err = b->err;
        return b->rc;
    }
    s2s_error_clear(&b->err);
    return rc;
}
