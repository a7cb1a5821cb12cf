/* The third step of a run, on a table and a mesh that count. */
#include "lib/train/plan.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/count/count.h"
#include "lib/base/base.h"
#include "lib/model/salm.h"
#include "lib/train/images.h"
#include "lib/train/split.h"
#include "lib/train/trainer.h"

enum { PLAN_STEPS = 3 };

/* ---- a made-up pack ---- */

/* Sound of an utterance: 20 s, as mel frames of 10 ms. Sides of its image, in pixels. */
enum { CLIP_FRAMES = 2000, IMAGE_PIXELS = 512 };

/* How a pack of `slots` is filled: sequences of `len`, whose first `rows` are sound, and the
 * `image_rows` behind them an image of side x side patches. */
struct filling {
    int64_t slots, n_seqs, len, rows, frames, image_rows, side;
};

static void *keep(struct s2s_pack *pack, size_t n, size_t size)
{
    s2s_grow(&pack->blocks, pack->n_blocks, &pack->cap_blocks, sizeof *pack->blocks);
    return pack->blocks[pack->n_blocks++] = s2s_xcalloc(n + 1, size);
}

/* An image of up to `most` rows. */
static void fill_image(struct filling *f, const struct s2s_model *model, int64_t most)
{
    const int64_t s = s2s_salm_vision_spec(model)->shuffle,
                  sides = IMAGE_PIXELS / (model->patch_size * s);
    int64_t n = sides > 1 ? sides : 1;
    while (n > 1 && n * n > most)
        n--;
    f->side = n * s;
    f->image_rows = n * n;
}

/* One sequence of text; where the model has an encoder, utterances of which half is text, and the
 * sound as long, the image as large as fits. */
static struct filling fill(const struct s2s_model *model, int64_t slots)
{
    struct filling f = {.slots = slots, .n_seqs = 1, .len = slots};
    const bool hears = model->n_mels > 0, sees = model->patch_dim > 0 && model->vocab_size > 0;
    const int64_t most = slots / (hears && sees ? 4 : 2);
    for (f.frames = CLIP_FRAMES; hears && f.frames > 1; f.frames /= 2)
        if ((f.rows = s2s_model_frames(model, f.frames)) <= most)
            break;
    if (sees)
        fill_image(&f, model, most);
    const int64_t rows = f.rows + f.image_rows;
    f.len = rows > 0 && 2 * rows <= slots ? 2 * rows : slots;
    f.n_seqs = slots / f.len;
    return f;
}

static void add_images(struct s2s_pack *pack, const struct s2s_model *model,
                       const struct filling *f)
{
    const int64_t n = f->n_seqs, patches = f->side * f->side;
    int32_t *rows = keep(pack, (size_t)n, sizeof *rows), *grid = keep(pack, (size_t)n, 8),
            *slots = keep(pack, (size_t)(n * f->image_rows), sizeof *slots);
    int64_t *cu = keep(pack, (size_t)n + 1, sizeof *cu);
    for (int64_t i = 0; i < n; i++) {
        rows[i] = (int32_t)f->image_rows;
        grid[2 * i] = grid[2 * i + 1] = (int32_t)f->side;
        cu[i + 1] = cu[i] + patches;
        for (int64_t k = 0; k < f->image_rows; k++)
            slots[i * f->image_rows + k] = (int32_t)(i * f->len + f->rows + k);
    }
    pack->batch.media[TRAIN_IMAGES] =
        (struct s2s_media){.kind = S2S_MEDIA_IMAGE,
                           .n = n,
                           .rows = rows,
                           .slot_of_row = slots,
                           .grid = grid,
                           .cu = cu,
                           .width = model->patch_dim,
                           .data = keep(pack, (size_t)(cu[n] * model->patch_dim), sizeof(float))};
    train_images_count(&pack->batch);
}

static void add_clips(struct s2s_pack *pack, const struct s2s_model *model, const struct filling *f)
{
    int32_t *rows = keep(pack, (size_t)f->n_seqs, sizeof *rows);
    int32_t *slots = keep(pack, (size_t)f->n_seqs, sizeof *slots);
    int32_t *slot_of_row = keep(pack, (size_t)(f->n_seqs * f->rows), sizeof *slot_of_row);
    int64_t *cu = keep(pack, (size_t)f->n_seqs + 1, sizeof *cu);
    for (int64_t i = 0; i < f->n_seqs; i++) {
        rows[i] = (int32_t)f->rows;
        slots[i] = (int32_t)(i * f->len);
        cu[i + 1] = cu[i] + f->frames;
    }
    s2s_media_slots(slot_of_row, slots, rows, f->n_seqs);
    pack->clip_slot = slots;
    pack->batch.n_media = 1;
    pack->batch.media[0] = (struct s2s_media){
        .n = f->n_seqs,
        .rows = rows,
        .slot_of_row = slot_of_row,
        .data = keep(pack, (size_t)(cu[f->n_seqs] * model->n_mels), sizeof(float)),
        .cu = cu,
        .width = model->n_mels};
}

/* The last sequence takes what is left over; each slot but those of sound and the last one of a
 * sequence has a label. */
static struct s2s_pack *made_up_pack(const struct s2s_model *model, const struct filling *f)
{
    struct s2s_pack *pack = s2s_xcalloc(1, sizeof *pack);
    int32_t *ids = keep(pack, (size_t)f->slots, sizeof *ids);
    int32_t *labels = keep(pack, (size_t)f->slots, sizeof *labels);
    int32_t *positions = keep(pack, (size_t)f->slots, sizeof *positions);
    int32_t *cu = keep(pack, (size_t)f->n_seqs + 1, sizeof *cu);
    for (int64_t s = 0; s < f->n_seqs; s++) {
        cu[s + 1] = (int32_t)(s + 1 < f->n_seqs ? (s + 1) * f->len : f->slots);
        for (int32_t i = cu[s]; i < cu[s + 1]; i++) {
            positions[i] = i - cu[s];
            labels[i] = positions[i] < f->rows + f->image_rows || i + 1 == cu[s + 1] ? -100 : 0;
            pack->n_labels += labels[i] >= 0;
        }
    }
    pack->batch = (struct s2s_batch){.n_tokens = f->slots,
                                     .n_seqs = f->n_seqs,
                                     .input_ids = ids,
                                     .labels = labels,
                                     .position_ids = positions,
                                     .cu_seqlens = cu,
                                     .max_seqlen = cu[f->n_seqs] - cu[f->n_seqs - 1]};
    pack->n_real = f->slots;
    pack->place = s2s_xstrdup("a made-up pack");
    if (f->rows > 0)
        add_clips(pack, model, f);
    if (f->image_rows > 0)
        add_images(pack, model, f);
    return pack;
}

static struct s2s_pack *made_up_microbatch(const struct s2s_model *model, const struct filling *f,
                                           int64_t n_packs)
{
    struct s2s_pack *pack = made_up_pack(model, f);
    if (n_packs == 1)
        return pack;
    struct s2s_pack **packs = s2s_xcalloc((size_t)n_packs, sizeof(struct s2s_pack *));
    for (int64_t i = 0; i < n_packs; i++)
        packs[i] = pack;
    struct s2s_pack *joined = s2s_pack_join(packs, (size_t)n_packs);
    free(packs);
    s2s_pack_free(pack);
    return joined;
}

/* ---- the steps ---- */

/* What is run: a trainer whose values are nowhere. */
struct planner {
    struct s2s_plan *plan;
    const struct s2s_plan_options *options;
    struct s2s_mesh *mesh;
    struct s2s_trainer *t;
    struct s2s_count *count;
    struct s2s_pack *made_up;   /* a microbatch; NULL: the streams' */
    struct s2s_pack **the_same; /* [of a step] */
    struct s2s_feed_step step;
};

/* Values are there as far as anybody can see. */
static void believe_values(struct s2s_params *params)
{
    for (size_t i = 0; i < params->n; i++)
        params->list[i]->set = true;
}

static bool streams_are_there(const struct planner *p, const struct s2s_recipe *r)
{
    const int cp_rank = s2s_comm_rank(p->t->layout.comms[S2S_AXIS_CP]);
    bool there = r->n_train > 0;
    for (size_t i = 0; there && i < r->n_train; i++) {
        char *path = s2s_feed_path(r->train[i], cp_rank);
        there = strcmp(path, "-") != 0 && access(path, R_OK) == 0;
        free(path);
    }
    return there;
}

static int64_t n_microbatches(const struct planner *p, const struct s2s_recipe *r)
{
    if (p->options->microbatches > 0)
        return p->options->microbatches;
    const int64_t dp = s2s_comm_size(p->t->layout.comms[S2S_AXIS_DP]),
                  all = r->packs_per_microbatch * dp;
    return (r->packs_per_step + all - 1) / all;
}

/* What a pack is filled with. */
static void describe(struct s2s_buf *text, const struct s2s_model *model, const struct filling *f)
{
    const long long pixels = f->side * model->patch_size;
    s2s_buf_printf(text, "%lld slots: ", (long long)f->slots);
    if (f->rows + f->image_rows == 0) {
        s2s_buf_puts(text, "one sequence");
        return;
    }
    s2s_buf_printf(text, "%lld utterance%s of ", (long long)f->n_seqs, s2s_plural(f->n_seqs));
    if (f->rows > 0)
        s2s_buf_printf(text, "%lld rows of sound (%lld mel frames), ", (long long)f->rows,
                       (long long)f->frames);
    if (f->image_rows > 0)
        s2s_buf_printf(text, "%lld rows of an image (%lld x %lld pixels), ",
                       (long long)f->image_rows, pixels, pixels);
    s2s_buf_puts(text, "then text");
}

static void make_up(struct planner *p, const struct s2s_recipe *r)
{
    const int64_t tokens = p->options->tokens > 0 ? p->options->tokens : S2S_PLAN_TOKENS;
    const struct filling f = fill(p->t->bundle.model, tokens);
    const int64_t n = n_microbatches(p, r);
    p->made_up = made_up_microbatch(p->t->bundle.model, &f, r->packs_per_microbatch);
    p->the_same = s2s_xcalloc((size_t)n, sizeof(struct s2s_pack *));
    for (int64_t i = 0; i < n; i++)
        p->the_same[i] = p->made_up;
    p->step = (struct s2s_feed_step){.microbatches = p->the_same,
                                     .n_microbatches = n,
                                     .n_global = n * r->packs_per_microbatch *
                                                 s2s_comm_size(p->t->layout.comms[S2S_AXIS_DP])};
    struct s2s_buf text = S2S_BUF_INIT;
    if (r->packs_per_microbatch > 1)
        s2s_buf_printf(&text, "%lld made-up packs, each of ", (long long)r->packs_per_microbatch);
    else
        s2s_buf_puts(&text, "a made-up pack of ");
    describe(&text, p->t->bundle.model, &f);
    struct s2s_comm *cp = p->t->layout.comms[S2S_AXIS_CP];
    if (s2s_comm_size(cp) > 1)
        s2s_buf_printf(&text, ", cut over %d ranks of cp", s2s_comm_size(cp));
    s2s_pack_split(p->made_up, s2s_comm_size(cp), s2s_comm_rank(cp));
    p->plan->batch = text.data;
}

static int open_streams(struct planner *p, const struct s2s_recipe *r, struct s2s_error *err)
{
    int rc = s2s_trainer_open_feed(p->t, err);
    p->plan->batch = s2s_xasprintf("the packs of step %d of data.train", PLAN_STEPS);
    return rc;
}

static void copy_sent(struct planner *p, bool begins)
{
    struct s2s_plan *plan = p->plan;
    struct s2s_mesh_sent now;
    for (size_t i = 0; s2s_mesh_sent_bytes(&now, p->mesh, i); i++) {
        if (begins) {
            plan->sent = s2s_xrealloc(plan->sent, plan->n_sent + 1, sizeof *plan->sent);
            plan->sent[plan->n_sent++] =
                (struct s2s_plan_sent){s2s_xstrdup(now.name), now.n_ranks, -now.sent_bytes};
        } else {
            plan->sent[i].bytes += now.sent_bytes;
        }
    }
}

static int one_step(struct planner *p, int64_t number, struct s2s_error *err)
{
    const struct s2s_feed_step *data = &p->step;
    struct s2s_step_result result;
    int rc = p->made_up ? 0 : s2s_feed_next(p->t->feed, &data, err);
    if (rc < 0)
        return rc;
    if (number == PLAN_STEPS) {
        s2s_tally_reset(&p->count->tally);
        copy_sent(p, true);
    }
    const struct s2s_step_options options = {.number = number,
                                             .lr = p->t->recipe->adamw.lr,
                                             .schedule = &p->t->recipe->schedule,
                                             .count = (double)number - 1};
    if ((rc = s2s_train_step(&p->t->side, data, &options, &result, err)) < 0)
        return rc;
    p->t->state.step++;
    if (number < PLAN_STEPS)
        return 0;
    copy_sent(p, false);
    p->plan->microbatches = data->n_microbatches;
    for (int64_t i = 0; i < data->n_microbatches; i++)
        p->plan->tokens += data->microbatches[i]->n_real;
    return 0;
}

static int run(struct planner *p, const struct s2s_recipe *r, struct s2s_error *err)
{
    int rc = 0;
    believe_values(p->t->bundle.model->params);
    if (p->options->tokens == 0 && p->options->microbatches == 0 && streams_are_there(p, r))
        rc = open_streams(p, r, err);
    else
        make_up(p, r);
    for (int64_t step = 1; rc == 0 && step <= PLAN_STEPS; step++)
        rc = one_step(p, step, err);
    return rc;
}

static void copy_stages(struct s2s_plan *plan, const struct s2s_bundle *bundle)
{
    const struct s2s_stages *stages = &bundle->stages;
    plan->pipeline = s2s_stages_pipeline(stages, plan->microbatches);
    plan->stage_rank = stages->rank;
    plan->stage_layers = s2s_xcalloc((size_t)stages->n_stages, sizeof *plan->stage_layers);
    for (int s = 0; s < stages->n_stages; s++)
        plan->stage_layers[s] = s2s_stages_layers(stages, bundle->model, s);
}

static void report(struct planner *p)
{
    struct s2s_plan *plan = p->plan;
    const struct s2s_params *params = p->t->bundle.model->params;
    for (size_t i = 0; i < params->n; i++) {
        const struct s2s_param *param = params->list[i];
        if (param->flags & S2S_PARAM_BUFFER || param->tied)
            continue;
        int64_t n = 1;
        for (int d = 0; d < param->n_dims; d++)
            n *= param->shape[d];
        plan->n_parameters += n;
        plan->n_trained += s2s_param_learns(param) ? n : 0;
    }
    copy_stages(plan, &p->t->bundle);
    s2s_train_memory_of(&plan->memory, &p->t->side);
    plan->lanes = p->t->bundle.device->queue.lanes;
    plan->peak_bytes = (int64_t)p->count->peak_bytes;
    if (p->t->recipe->async_save && p->t->recipe->ckpt_every > 0)
        plan->save_bytes = s2s_trainer_save_bytes(p->t);
    plan->tally = p->count->tally; /* taken */
    p->count->tally = (struct s2s_tally){0};
}

/* A trainer on a table that counts (*table, which must live as long). */
static int open_trainer(struct s2s_trainer **t, struct s2s_kernels *table,
                        const struct s2s_recipe *recipe, struct s2s_mesh *mesh,
                        struct s2s_error *err)
{
    const struct s2s_kernels *base;
    struct s2s_device *device;
    *t = NULL;
    int rc = s2s_device_kernels(&base, recipe->device, err);
    if (rc < 0)
        return rc;
    *table = s2s_count_over(base);
    rc = s2s_device_new(&device, table, err);
    return rc < 0 ? rc : s2s_trainer_open_on(t, recipe, mesh, device, err);
}

int s2s_plan_try(const struct s2s_recipe *recipe, struct s2s_mesh *mesh, struct s2s_error *err)
{
    struct s2s_kernels table;
    struct s2s_trainer *t;
    int rc = open_trainer(&t, &table, recipe, mesh, err);
    s2s_trainer_free(t);
    return rc;
}

int s2s_plan_make(struct s2s_plan *plan, const struct s2s_recipe *recipe, struct s2s_mesh *mesh,
                  const struct s2s_plan_options *options, struct s2s_error *err)
{
    struct planner p = {.plan = plan, .options = options, .mesh = mesh};
    struct s2s_kernels table;
    *plan = (struct s2s_plan){.batch = NULL};
    int rc = open_trainer(&p.t, &table, recipe, mesh, err);
    if (rc == 0) {
        p.count = s2s_count_of(&p.t->bundle.device->queue);
        rc = run(&p, recipe, err);
    }
    if (rc == 0)
        report(&p);
    s2s_trainer_free(p.t);
    s2s_pack_free(p.made_up);
    free(p.the_same);
    if (rc < 0)
        s2s_plan_release(plan);
    return rc;
}

void s2s_plan_release(struct s2s_plan *plan)
{
    for (size_t i = 0; i < plan->n_sent; i++)
        free(plan->sent[i].group);
    free(plan->sent);
    free(plan->stage_layers);
    free(plan->batch);
    s2s_tally_release(&plan->tally);
    *plan = (struct s2s_plan){.batch = NULL};
}
