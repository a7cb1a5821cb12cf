/* The list of a model's blocks, and the one loop that runs any part of it. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/error.h"
#include "lib/base/mem.h"
#include "lib/model/model_internal.h"

const char *const s2s_recompute_names[] = {"none", "full", "selective", NULL};

/* ---- the list ---- */

static struct s2s_block *append(struct s2s_model *model, const struct s2s_block *block)
{
    const struct s2s_block *last = model->n_blocks ? &model->blocks[model->n_blocks - 1] : NULL;
    const int before = last ? last->n_carried + last->n_out : 0;
    if (before != block->n_carried + block->n_in || before > S2S_BLOCK_TENSORS ||
        block->n_carried + block->n_out > S2S_BLOCK_TENSORS)
        S2S_BUG("%s: a block of %d tensors past %d after one of %d", block->layer, block->n_in,
                block->n_carried, before);
    s2s_grow(&model->blocks, (size_t)model->n_blocks, &model->cap_blocks, sizeof *model->blocks);
    model->blocks[model->n_blocks] = *block;
    if (block->hidden >= model->n_hidden)
        model->n_hidden = block->hidden + 1;
    return &model->blocks[model->n_blocks++];
}

void model_add_block(struct s2s_model *model, const struct s2s_block *block, const char *fmt, ...)
{
    char name[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(name, sizeof name, fmt, ap);
    va_end(ap);
    struct s2s_block own = *block;
    own.model = model;
    own.layer = s2s_xasprintf("%s%s", model->prefix, name);
    own.param_end = model->params->n;
    append(model, &own);
}

void model_take_blocks(struct s2s_model *model, const struct s2s_model *part, int begin, int end,
                       int n_carried, bool hidden)
{
    for (int i = begin; i < end; i++) {
        struct s2s_block own = part->blocks[i];
        own.layer = s2s_xstrdup(own.layer);
        own.hidden = hidden ? own.hidden : -1;
        own.n_carried = n_carried;
        append(model, &own);
    }
}

void model_free_blocks(struct s2s_model *model)
{
    for (int i = 0; i < model->n_blocks; i++)
        free(model->blocks[i].layer);
    free(model->blocks);
}

/* ---- running ---- */

struct s2s_pass *s2s_model_prepare(const struct s2s_model *model, struct s2s_tape *tape,
                                   const struct s2s_batch *batch, struct s2s_forward *fwd)
{
    struct s2s_pass *pass = s2s_tape_host_alloc(tape, sizeof *pass);
    if (fwd->decode && tape->recording)
        S2S_BUG("a sequence cannot go on on a tape that records");
    *pass = (struct s2s_pass){.model = model, .tape = tape, .batch = batch, .fwd = fwd};
    if (fwd->decode && batch->n_seqs > fwd->decode->n_seqs)
        S2S_BUG("%lld sequences go on; there is room for %lld", (long long)batch->n_seqs,
                (long long)fwd->decode->n_seqs);
    /* a sequence that goes on has one token at a time */
    tape->discards = fwd->recompute == S2S_RECOMPUTE_SELECTIVE && !fwd->trace;
    pass->tp = (struct s2s_nn_tp){.group = model->par->tp, .sp = model->par->sp && !fwd->decode};
    model_name_rows(pass);
    fwd->n_hidden = model->n_hidden;
    fwd->hidden = s2s_tape_host_alloc(tape, (size_t)model->n_hidden * sizeof *fwd->hidden);
    return pass;
}

/* What the blocks of one part share, made before the first of them runs. */
static void *shared_of(struct s2s_pass *pass, const struct s2s_model *part)
{
    for (int i = 0; i < pass->n_parts; i++)
        if (pass->parts[i].model == part)
            return pass->parts[i].shared;
    if (pass->n_parts == S2S_MODEL_PARTS)
        S2S_BUG("a model of more than %d parts", S2S_MODEL_PARTS);
    void *shared = part->kind->prepare ? part->kind->prepare(part, pass) : NULL;
    pass->parts[pass->n_parts].model = part;
    pass->parts[pass->n_parts++].shared = shared;
    return shared;
}

static void run_in_segment(struct s2s_tape *tape, void *ctx, struct s2s_tensor *const *in,
                           struct s2s_tensor **out)
{
    const struct s2s_block_ctx *c = ctx;
    c->block->run(tape, c, in, out);
}

static bool is_trained(const struct s2s_block *block)
{
    for (size_t i = block->param_begin; i < block->param_end; i++)
        if (block->model->params->list[i]->trained)
            return true;
    return false;
}

/* In a segment a block keeps its result alone. It goes into one where it can be run again, or where
 * no gradient will want the rest: the encoder of sound below the lowest parameter that is trained
 * is as good as an evaluation. A trace wants to look inside. */
static bool runs_apart(const struct s2s_pass *pass, const struct s2s_block *block,
                       struct s2s_tensor *const *in)
{
    const struct s2s_forward *fwd = pass->fwd;
    const bool hears = block < pass->model->blocks + pass->model->n_media_blocks;
    const bool keeps =
        is_trained(block) ? pass->tape->recording : s2s_tape_needs(pass->tape, block->n_in, in);
    if (fwd->trace)
        return false;
    return keeps ? block->pure && fwd->recompute == S2S_RECOMPUTE_FULL : block->pure || hears;
}

/* The tensors before the block become those after it; carried ones are not touched. */
static void run_block(struct s2s_pass *pass, const struct s2s_block *block,
                      struct s2s_tensor **tensors)
{
    struct s2s_tape *tape = pass->tape;
    const struct s2s_forward *fwd = pass->fwd;
    struct s2s_tensor *in[S2S_BLOCK_TENSORS] = {NULL};
    struct s2s_block_ctx *ctx = s2s_tape_host_alloc(tape, sizeof *ctx);
    *ctx = (struct s2s_block_ctx){
        .block = block, .shared = shared_of(pass, block->model), .pass = pass};
    if (fwd->decode)
        ctx->state = &fwd->decode->states[block - pass->model->blocks];
    tensors += block->n_carried;
    for (int i = 0; i < block->n_in; i++)
        in[i] = tensors[i];
    s2s_tape_layer(tape, "%s", block->layer);
    if (runs_apart(pass, block, in))
        s2s_tape_segment(tape, run_in_segment, ctx, block->n_in, in, block->n_out, tensors,
                         is_trained(block));
    else
        block->run(tape, ctx, in, tensors);
    if (block->hidden >= 0)
        fwd->hidden[block->hidden] = tensors[0];
}

/* What stands before a block on the tape comes after it in the backward. */
static void watch_block(struct s2s_pass *pass, int i, struct s2s_tensor **tensors)
{
    static const struct s2s_block_watch nobody = {NULL};
    const struct s2s_block_watch *w = pass->model->watch ? pass->model->watch : &nobody;
    if (w->enter)
        w->enter(w->ctx, i);
    if (w->leave_backward)
        s2s_tape_mark(pass->tape, w->leave_backward, w->ctx, i);
    run_block(pass, &pass->model->blocks[i], tensors);
    if (w->enter_backward)
        s2s_tape_mark(pass->tape, w->enter_backward, w->ctx, i);
    if (w->leave)
        w->leave(w->ctx, i);
}

void s2s_model_run(struct s2s_pass *pass, int begin, int end, struct s2s_tensor *const *in,
                   struct s2s_tensor **out)
{
    const struct s2s_block *blocks = pass->model->blocks;
    const struct s2s_block *last = &blocks[end - 1];
    struct s2s_tensor *tensors[S2S_BLOCK_TENSORS] = {NULL};
    for (int i = 0; i < blocks[begin].n_carried + blocks[begin].n_in; i++)
        tensors[i] = in[i];
    for (int i = begin; i < end; i++)
        watch_block(pass, i, tensors);
    for (int i = 0; i < last->n_carried + last->n_out; i++)
        out[i] = tensors[i];
}

void s2s_model_forward(const struct s2s_model *model, struct s2s_tape *tape,
                       const struct s2s_batch *batch, struct s2s_forward *fwd)
{
    struct s2s_tensor *in[S2S_BLOCK_TENSORS] = {NULL}, *out[S2S_BLOCK_TENSORS];
    /* whoever shares a sequence goes on with it in the same way: only here an encoder may rest */
    const bool goes_on = fwd->decode && fwd->decode->lens[0] > 0 && batch->n_media == 0;
    s2s_model_run(s2s_model_prepare(model, tape, batch, fwd), goes_on ? model->n_media_blocks : 0,
                  model->n_blocks, in, out);
    for (int64_t s = 0; fwd->decode && s < batch->n_seqs; s++)
        fwd->decode->lens[s] += batch->cu_seqlens[s + 1] - batch->cu_seqlens[s];
}
