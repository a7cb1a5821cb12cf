/*
 * Probe of an LLM that hears or sees: text_ids [B, S], text_lens [B], loss_mask [B, S]. Of sound
 * input_features [K, L, n_mels] and features_mask of the clips in the order of the placeholders,
 * each of which becomes the frames of its clip; of images patches [P, 3 * side * side] and grid_hw
 * [N, 2], whose rows take the placeholders of images one by one, wherever they stand. The target of
 * a slot is the next token of its utterance where loss_mask has it, -100 elsewhere. Layouts: packed
 * (all slots), with --multiple N each utterance rounded up, and bshd: rows of equal length, written
 * without the last column (it has no target; it is run, as a clip may end there, and nothing before
 * it can see it).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/error.h"
#include "lib/base/mem.h"
#include "lib/conf/conf.h"
#include "lib/model/salm.h"
#include "tools/train/probe.h"

struct inputs {
    const int32_t *ids, *lens, *mask;
    const int64_t *shape;       /* B, S */
    int64_t placeholder, image; /* of sound, of a row of an image; -1: none */
};

struct slots {
    int32_t *ids, *targets, *positions;
    int32_t *cu, *lens, *cu_real;       /* [B + 1], [B], [B + 1] */
    int32_t *audio_slot, *audio_frames; /* [K] */
    int32_t *image_slot;                /* [rows of all images] */
    int64_t n_clips, n_image_rows;      /* placed so far */
};

static bool salm_matches(const struct s2s_model *model)
{
    return (model->n_mels > 0 || model->patch_dim > 0) && model->vocab_size > 0;
}

/* Images as the second list of the batch's media, whose slots are not known yet. */
static int read_images(struct probe *p, struct inputs *in, struct s2s_error *err)
{
    const int64_t *shape, *grid_shape;
    const int32_t *grid;
    const float *patches;
    int rc = s2s_conf_get_i64(&in->image, p->model->conf, "image_token_id", 0, INT32_MAX, err);
    if (rc < 0 || (rc = probe_input_f32(p, &patches, &shape, "patches", 2, err)) < 0 ||
        (rc = probe_input_i32(p, &grid, &grid_shape, "grid_hw", 2, err)) < 0)
        return rc;
    const int64_t n = grid_shape[0], s = s2s_salm_vision_spec(p->model)->shuffle;
    int64_t *cu = probe_alloc(p, (size_t)(n + 1) * sizeof *cu);
    int32_t *rows = probe_alloc(p, (size_t)(n + 1) * sizeof *rows);
    for (int64_t i = 0; grid_shape[1] == 2 && i < n; i++) {
        cu[i + 1] = cu[i] + (int64_t)grid[2 * i] * grid[2 * i + 1];
        rows[i] = (int32_t)(grid[2 * i] / s * (grid[2 * i + 1] / s));
    }
    if (cu[n] != shape[0])
        return s2s_error_set(err, S2S_E_SHAPE, "%lld patches; grid_hw has %lld",
                             (long long)shape[0], (long long)cu[n]);
    p->batch.n_media = 2;
    p->batch.media[1] = (struct s2s_media){.kind = S2S_MEDIA_IMAGE,
                                           .n = n,
                                           .rows = rows,
                                           .data = patches,
                                           .cu = cu,
                                           .grid = grid,
                                           .width = shape[1]};
    return 0;
}

/* Media of the kinds that the model takes. */
static int read_media(struct probe *p, struct inputs *in, struct s2s_error *err)
{
    int rc = 0;
    in->placeholder = in->image = -1;
    p->batch.media[0] = (struct s2s_media){.kind = S2S_MEDIA_AUDIO};
    if (p->model->n_mels > 0 &&
        ((rc = probe_input_mel(p, "features_mask", err)) < 0 ||
         (rc = s2s_conf_get_i64(&in->placeholder, p->model->conf, "audio_locator_token_id", 0,
                                INT32_MAX, err)) < 0))
        return rc;
    return p->model->patch_dim > 0 ? read_images(p, in, err) : 0;
}

static int read_inputs(struct probe *p, struct inputs *in, struct s2s_error *err)
{
    const int64_t *lens, *mask;
    int rc = probe_input_i32(p, &in->ids, &in->shape, "text_ids", 2, err);
    if (rc < 0 || (rc = probe_input_i32(p, &in->lens, &lens, "text_lens", 1, err)) < 0 ||
        (rc = probe_input_i32(p, &in->mask, &mask, "loss_mask", 2, err)) < 0 ||
        (rc = read_media(p, in, err)) < 0)
        return rc;
    if (lens[0] != in->shape[0] || mask[0] != in->shape[0] || mask[1] != in->shape[1])
        return s2s_error_set(err, S2S_E_SHAPE, "text_ids, text_lens and loss_mask do not agree");
    for (int64_t b = 0; b < in->shape[0]; b++)
        if (in->lens[b] < 0 || in->lens[b] > in->shape[1])
            return s2s_error_set(err, S2S_E_RANGE, "text_lens[%lld] = %d", (long long)b,
                                 in->lens[b]);
    return 0;
}

static int64_t clip_frames(const struct probe *p, int64_t k)
{
    const int64_t *cu = p->batch.media[0].cu;
    return s2s_model_frames(p->model, cu[k + 1] - cu[k]);
}

/* Every row of an image has a placeholder. */
static int count_image_rows(const struct probe *p, const struct inputs *in, struct s2s_error *err)
{
    const int64_t want = s2s_media_n_rows(&p->batch.media[1]);
    int64_t n = 0;
    for (int64_t b = 0; b < in->shape[0]; b++)
        for (int32_t i = 0; i < in->lens[b]; i++)
            n += in->image >= 0 && in->ids[b * in->shape[1] + i] == in->image;
    return n == want ? 0
                     : s2s_error_set(err, S2S_E_SHAPE, "%lld placeholders for %lld rows of images",
                                     (long long)n, (long long)want);
}

/* Slots of each utterance into lens; every placeholder has a clip. */
static int count_slots(struct probe *p, const struct inputs *in, int32_t *lens, int64_t *longest,
                       struct s2s_error *err)
{
    const int64_t n_clips = p->batch.media[0].n;
    int64_t k = 0;
    for (int64_t b = 0; b < in->shape[0]; b++) {
        for (int32_t i = 0; i < in->lens[b]; i++) {
            bool audio = in->ids[b * in->shape[1] + i] == in->placeholder;
            if (audio && k == n_clips)
                return s2s_error_set(err, S2S_E_SHAPE, "more placeholders than the %lld clips",
                                     (long long)k);
            lens[b] += audio ? (int32_t)clip_frames(p, k++) : 1;
        }
        *longest = lens[b] > *longest ? lens[b] : *longest;
    }
    if (k != n_clips)
        return s2s_error_set(err, S2S_E_SHAPE, "%lld placeholders and %lld clips", (long long)k,
                             (long long)n_clips);
    return 0;
}

/* The utterance's ids and unshifted targets from slot `at` on. */
static void splice(const struct probe *p, const struct inputs *in, struct slots *s, int64_t b,
                   int64_t at)
{
    for (int32_t i = 0; i < in->lens[b]; i++) {
        int64_t place = b * in->shape[1] + i;
        const bool image = in->ids[place] == in->image;
        if (image)
            s->image_slot[s->n_image_rows++] = (int32_t)at;
        if (in->ids[place] != in->placeholder) {
            s->ids[at] = in->ids[place];
            s->targets[at++] = in->mask[place] && !image ? in->ids[place] : -100;
            continue;
        }
        int64_t n = clip_frames(p, s->n_clips);
        s->audio_slot[s->n_clips] = (int32_t)at;
        s->audio_frames[s->n_clips++] = (int32_t)n;
        for (int64_t j = 0; j < n; j++) {
            s->ids[at] = (int32_t)in->placeholder;
            s->targets[at++] = -100;
        }
    }
}

/* Appends utterance b with `slots` slots, of which lens[b] are spliced ones. */
static void append(struct probe *p, const struct inputs *in, struct slots *s, int64_t b,
                   int64_t slots)
{
    int64_t begin = s->cu[b], n = s->lens[b];
    for (int64_t i = 0; i < slots; i++)
        s->targets[begin + i] = -100;
    splice(p, in, s, b, begin);
    for (int64_t i = 0; i < slots; i++) {
        s->positions[begin + i] = (int32_t)i;
        s->targets[begin + i] = i + 1 < n ? s->targets[begin + i + 1] : -100;
    }
    s->cu[b + 1] = (int32_t)(begin + slots);
    s->cu_real[b + 1] = s->cu_real[b] + s->lens[b];
}

static struct slots alloc_slots(struct probe *p, const struct inputs *in, int64_t longest)
{
    size_t row = (size_t)(longest + p->multiple), n = (size_t)(in->shape[0] + 1);
    size_t total = n * row * sizeof(int32_t), clips = (size_t)(p->batch.media[0].n + 1),
           image_rows = (size_t)(s2s_media_n_rows(&p->batch.media[1]) + 1);
    return (struct slots){.ids = probe_alloc(p, total),
                          .targets = probe_alloc(p, total),
                          .positions = probe_alloc(p, total),
                          .cu = probe_alloc(p, n * sizeof(int32_t)),
                          .cu_real = probe_alloc(p, n * sizeof(int32_t)),
                          .audio_slot = probe_alloc(p, clips * sizeof(int32_t)),
                          .image_slot = probe_alloc(p, image_rows * sizeof(int32_t)),
                          .audio_frames = probe_alloc(p, clips * sizeof(int32_t))};
}

static int salm_prepare(struct probe *p, struct s2s_error *err)
{
    struct inputs in = {0};
    int64_t longest = 0;
    int rc = read_inputs(p, &in, err);
    if (rc < 0)
        return rc;
    int32_t *lens = probe_alloc(p, (size_t)(in.shape[0] + 1) * sizeof *lens);
    if ((rc = count_slots(p, &in, lens, &longest, err)) < 0 ||
        (rc = count_image_rows(p, &in, err)) < 0)
        return rc;
    struct slots *s = p->state = probe_alloc(p, sizeof *s);
    *s = alloc_slots(p, &in, longest);
    s->lens = lens;
    struct s2s_batch *b = &p->batch;
    for (int64_t i = 0; i < in.shape[0]; i++) {
        int64_t slots = p->layout == PROBE_BSHD
                            ? longest
                            : (lens[i] + p->multiple - 1) / p->multiple * p->multiple;
        append(p, &in, s, i, slots);
        b->max_seqlen = slots > b->max_seqlen ? slots : b->max_seqlen;
    }
    b->n_seqs = in.shape[0];
    b->n_tokens = s->cu[b->n_seqs];
    b->input_ids = s->ids;
    b->labels = s->targets;
    b->position_ids = s->positions;
    b->cu_seqlens = s->cu;
    b->seq_lens = s->lens;
    struct s2s_media *audio = &b->media[0];
    audio->rows = s->audio_frames;
    p->clip_slot = s->audio_slot;
    int32_t *slots = probe_alloc(p, (size_t)(s2s_media_n_rows(audio) + 1) * sizeof *slots);
    s2s_media_slots(slots, s->audio_slot, s->audio_frames, audio->n);
    audio->slot_of_row = slots;
    b->media[1].slot_of_row = s->image_slot;
    int64_t n = s2s_batch_n_labels(b);
    p->loss_scale = p->wanted.seed = n ? 1.0 / (double)n : 0;
    p->wanted.want_logits = true;
    return 0;
}

/* ---- outputs ---- */

static const char *layout_name(const struct probe *p, char *buf, size_t size)
{
    if (p->layout == PROBE_BSHD)
        return "bshd";
    if (p->multiple > 1)
        snprintf(buf, size, "packed%d", p->multiple);
    else
        snprintf(buf, size, "packed");
    return buf;
}

static void add_named(struct probe *p, const char *what, enum s2s_dtype dtype, int n_dims,
                      const int64_t *shape, const void *data)
{
    char buf[32];
    char *name = s2s_xasprintf("%s/%s", layout_name(p, buf, sizeof buf), what);
    probe_add(p, name, dtype, n_dims, shape, data);
    free(name);
}

/* Rows of `longest` elements of `size` bytes lose their last one, in place. Returns what is left.
 */
static int64_t drop_last_column(const struct probe *p, void *data, size_t size)
{
    int64_t b = p->batch.n_seqs, longest = b ? p->batch.n_tokens / b : 0;
    int64_t kept = longest > 0 ? longest - 1 : 0;
    char *bytes = data;
    for (int64_t i = 1; i < b; i++)
        memmove(bytes + (size_t)(i * kept) * size, bytes + (size_t)(i * longest) * size,
                (size_t)kept * size);
    return kept;
}

/* A [T, cols] activation: as it is, or as rows. */
static void add_slots(struct probe *p, const char *what, const struct s2s_tensor *t)
{
    int64_t rows = s2s_tensor_rows(t), cols = s2s_tensor_cols(t), b = p->batch.n_seqs;
    float *values = probe_alloc(p, (size_t)(rows * cols + 1) * sizeof *values);
    s2s_tensor_read_f32(t, values);
    if (p->layout == PROBE_BSHD) {
        int64_t kept = drop_last_column(p, values, (size_t)cols * sizeof *values);
        add_named(p, what, S2S_F32, 3, (int64_t[]){b, kept, cols}, values);
    } else {
        add_named(p, what, S2S_F32, 2, (int64_t[]){rows, cols}, values);
    }
}

static void add_ids(struct probe *p, const char *what, const int32_t *ids)
{
    int64_t n = p->batch.n_tokens, b = p->batch.n_seqs;
    int64_t *wide = probe_alloc(p, (size_t)(n + 1) * sizeof *wide);
    for (int64_t i = 0; i < n; i++)
        wide[i] = ids[i];
    if (p->layout == PROBE_BSHD) {
        int64_t kept = drop_last_column(p, wide, sizeof *wide);
        add_named(p, what, S2S_I64, 2, (int64_t[]){b, kept}, wide);
    } else {
        add_named(p, what, S2S_I64, 1, &n, wide);
    }
}

static void add_bounds(struct probe *p)
{
    const struct slots *s = p->state;
    const int64_t n = p->batch.n_seqs + 1;
    if (p->layout == PROBE_BSHD) {
        int32_t *mask = probe_alloc(p, (size_t)(p->batch.n_tokens + 1) * sizeof *mask);
        for (int64_t b = 0; b + 1 < n; b++)
            for (int32_t i = 0; i < s->lens[b]; i++)
                mask[s->cu[b] + i] = 1;
        add_ids(p, "attention_mask", mask);
        return;
    }
    add_ids(p, "position_ids", s->positions);
    add_named(p, "cu_seqlens", S2S_I32, 1, &n, s->cu);
    add_named(p, "cu_seqlens_unpadded", S2S_I32, 1, &n, s->cu_real);
}

static void add_embeds(struct probe *p, const char *name, const struct s2s_tensor *t)
{
    if (!t)
        return;
    float *values = probe_alloc(p, (size_t)(s2s_tensor_numel(t) + 1) * sizeof *values);
    s2s_tensor_read_f32(t, values);
    probe_add(p, name, S2S_F32, 2, t->shape, values);
}

static int salm_collect(struct probe *p, const struct s2s_forward *fwd, struct s2s_error *err)
{
    add_embeds(p, "audio_embeds", fwd->audio_embeds);
    add_embeds(p, "image_embeds", fwd->image_embeds);
    add_slots(p, "inputs_embeds", fwd->hidden[0]);
    add_slots(p, "logits", fwd->logits);
    add_ids(p, "target_ids", p->batch.labels);
    add_bounds(p);
    if (p->layout == PROBE_PACKED && fwd->loss) {
        float *loss = probe_alloc(p, sizeof *loss);
        *loss = (float)(s2s_tensor_scalar(fwd->loss) * p->loss_scale);
        add_named(p, "loss", S2S_F32, 1, (int64_t[]){1}, loss);
    }
    return 0;
}

const struct probe_family probe_salm = {salm_matches, salm_prepare, salm_collect, NULL};
