/*
 * Probe of a bare speech encoder: input_features [B, L, n_mels], attention_mask [B, L], target
 * [B, F, width]. The loss is half the squared distance to target over the valid frames, divided by
 * their number times the width. Results are put back at the places of a padded batch, zeros
 * elsewhere.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/error.h"
#include "lib/base/mem.h"
#include "tools/train/probe.h"

struct frames {
    int64_t n_clips, n_padded; /* B, F */
    const int32_t *cu;         /* [B + 1] */
    struct s2s_encoder_trace trace;
};

int probe_input_mel(struct probe *probe, const char *mask_name, struct s2s_error *err)
{
    const float *features;
    const int32_t *mask;
    const int64_t *shape, *mask_shape;
    int rc = probe_input_f32(probe, &features, &shape, "input_features", 3, err);
    if (rc < 0 || (rc = probe_input_i32(probe, &mask, &mask_shape, mask_name, 2, err)) < 0)
        return rc;
    if (mask_shape[0] != shape[0] || mask_shape[1] != shape[1])
        return s2s_error_set(err, S2S_E_SHAPE,
                             "%s is [%lld, %lld]; input_features is [%lld, %lld, ..]", mask_name,
                             (long long)mask_shape[0], (long long)mask_shape[1],
                             (long long)shape[0], (long long)shape[1]);
    float *mel = probe_alloc(probe, (size_t)(shape[0] * shape[1] * shape[2]) * sizeof *mel);
    int64_t *cu = probe_alloc(probe, (size_t)(shape[0] + 1) * sizeof *cu);
    for (int64_t b = 0; b < shape[0]; b++) {
        int64_t n = 0;
        while (n < shape[1] && mask[b * shape[1] + n])
            n++;
        for (int64_t i = n; i < shape[1]; i++)
            if (mask[b * shape[1] + i])
                return s2s_error_set(err, S2S_E_UNSUPPORTED, "%s: row %lld has a gap", mask_name,
                                     (long long)b);
        memcpy(mel + cu[b] * shape[2], features + b * shape[1] * shape[2],
               (size_t)(n * shape[2]) * sizeof *mel);
        cu[b + 1] = cu[b] + n;
    }
    struct s2s_batch *batch = &probe->batch;
    batch->media[0] = (struct s2s_media){.kind = S2S_MEDIA_AUDIO,
                                         .n = shape[0],
                                         .data = mel,
                                         .cu = cu,
                                         .width = shape[2],
                                         .padded = shape[1]};
    batch->n_media = 1;
    return 0;
}

static bool encoder_matches(const struct s2s_model *model)
{
    return model->n_mels > 0 && model->vocab_size == 0;
}

/* target of the valid frames, end to end */
static int read_target(struct probe *p, const struct frames *f, struct s2s_error *err)
{
    const int64_t width = p->model->hidden_size, *shape;
    const float *padded;
    int rc = probe_input_f32(p, &padded, &shape, "target", 3, err);
    if (rc < 0)
        return rc;
    if (shape[0] != f->n_clips || shape[1] != f->n_padded || shape[2] != width)
        return s2s_error_set(err, S2S_E_SHAPE,
                             "target is [%lld, %lld, %lld]; expected [%lld, %lld, %lld]",
                             (long long)shape[0], (long long)shape[1], (long long)shape[2],
                             (long long)f->n_clips, (long long)f->n_padded, (long long)width);
    float *target = probe_alloc(p, (size_t)(f->cu[f->n_clips] * width + 1) * sizeof *target);
    for (int64_t b = 0; b < f->n_clips; b++)
        memcpy(target + f->cu[b] * width, padded + b * f->n_padded * width,
               (size_t)((f->cu[b + 1] - f->cu[b]) * width) * sizeof *target);
    p->batch.target = target;
    return 0;
}

static int encoder_prepare(struct probe *p, struct s2s_error *err)
{
    int rc = probe_input_mel(p, "attention_mask", err);
    if (rc < 0)
        return rc;
    struct frames *f = p->state = probe_alloc(p, sizeof *f);
    const struct s2s_media *clips = &p->batch.media[0];
    f->n_clips = clips->n;
    f->n_padded = s2s_model_frames(p->model, clips->padded);
    int32_t *cu = probe_alloc(p, (size_t)(f->n_clips + 1) * sizeof *cu);
    for (int64_t b = 0; b < f->n_clips; b++)
        cu[b + 1] = cu[b] + (int32_t)s2s_model_frames(p->model, clips->cu[b + 1] - clips->cu[b]);
    f->cu = cu;
    if (probe_has_input(p, "target") && (rc = read_target(p, f, err)) < 0)
        return rc;
    int64_t n = cu[f->n_clips] * p->model->hidden_size;
    p->loss_scale = p->wanted.seed = n ? 1.0 / (double)n : 0;
    p->wanted.trace = &f->trace;
    return 0;
}

/* Rows of the clips [cu[B], cols] as [B, n_padded, cols]. */
static void add_padded(struct probe *p, const char *name, const float *values, int64_t n_clips,
                       int64_t n_padded, int64_t cols, const int64_t *begin, const int64_t *end)
{
    int64_t shape[] = {n_clips, n_padded, cols};
    float *out = probe_alloc(p, (size_t)(n_clips * n_padded * cols) * sizeof *out);
    for (int64_t b = 0; b < n_clips; b++)
        memcpy(out + b * n_padded * cols, values + begin[b] * cols,
               (size_t)((end[b] - begin[b]) * cols) * sizeof *out);
    probe_add(p, name, S2S_F32, 3, shape, out);
}

static void add_frames(struct probe *p, const char *name, const struct s2s_tensor *t)
{
    const struct frames *f = p->state;
    if (!t)
        return;
    float *values = s2s_xmalloc((size_t)(s2s_tensor_numel(t) + 1) * sizeof *values);
    int64_t *cu = s2s_xmalloc((size_t)(f->n_clips + 1) * sizeof *cu);
    s2s_tensor_read_f32(t, values);
    for (int64_t b = 0; b <= f->n_clips; b++)
        cu[b] = f->cu[b];
    add_padded(p, name, values, f->n_clips, f->n_padded, s2s_tensor_cols(t), cu, cu + 1);
    free(cu);
    free(values);
}

static void add_output_mask(struct probe *p)
{
    const struct frames *f = p->state;
    int64_t *mask = probe_alloc(p, (size_t)(f->n_clips * f->n_padded) * sizeof *mask);
    for (int64_t b = 0; b < f->n_clips; b++)
        for (int64_t i = 0; i < f->cu[b + 1] - f->cu[b]; i++)
            mask[b * f->n_padded + i] = 1;
    probe_add(p, "output_mask", S2S_I64, 2, (int64_t[]){f->n_clips, f->n_padded}, mask);
}

static int encoder_collect(struct probe *p, const struct s2s_forward *fwd, struct s2s_error *err)
{
    const struct s2s_encoder_trace *trace = fwd->trace;
    for (int i = 1; i < fwd->n_hidden; i++) {
        char name[32];
        snprintf(name, sizeof name, "hidden/%d", i);
        add_frames(p, name, fwd->hidden[i]);
    }
    add_frames(p, "subsampling", trace->subsampling);
    add_frames(p, "layer0/ff1", trace->ff1);
    add_frames(p, "layer0/attn", trace->attention);
    add_frames(p, "layer0/conv", trace->conv);
    add_frames(p, "layer0/ff2", trace->ff2);
    add_output_mask(p);
    float *positions =
        probe_alloc(p, (size_t)(s2s_tensor_numel(trace->positions) + 1) * sizeof *positions);
    s2s_tensor_read_f32(trace->positions, positions);
    probe_add(p, "pos_emb", S2S_F32, 2, trace->positions->shape, positions);
    return 0;
}

/* Gradient of the features, and running statistics that the step has moved. */
static void encoder_collect_after(struct probe *p, const struct s2s_forward *fwd)
{
    const struct s2s_media *b = &p->batch.media[0];
    const struct s2s_tensor *grad = fwd->trace->mel->grad;
    if (grad) {
        float *values = s2s_xmalloc((size_t)(s2s_tensor_numel(grad) + 1) * sizeof *values);
        s2s_tensor_read_f32(grad, values);
        add_padded(p, "grad_input_features", values, b->n, b->padded, b->width, b->cu, b->cu + 1);
        free(values);
    }
    for (size_t i = 0; p->batch_norm_batch && i < p->model->params->n; i++) {
        const struct s2s_param *param = p->model->params->list[i];
        if (!(param->flags & S2S_PARAM_BUFFER))
            continue;
        float *values = probe_alloc(p, (size_t)param->numel * sizeof *values);
        s2s_param_get(param, values);
        char *name = s2s_xasprintf("buffer_after/%s", param->name);
        probe_add(p, name, S2S_F32, param->n_dims, param->local, values);
        free(name);
    }
}

const struct probe_family probe_encoder = {encoder_matches, encoder_prepare, encoder_collect,
                                           encoder_collect_after};
