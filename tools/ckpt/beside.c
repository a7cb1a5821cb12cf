/* Runs a check of files in a thread beside the caller's own work. */
#include "tools/ckpt/beside.h"

#include "lib/base/base.h"

static void *run(void *arg)
{
    struct ckpt_beside *b = arg;
    b->rc = b->check(b->ctx, &b->how, &b->err);
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
    if (rc == 0 && b->rc < 0) {
        *err = b->err;
        return b->rc;
    }
    s2s_error_clear(&b->err);
    return rc;
}
