/*
 * Probe of a bare image encoder. As rows: pixel_values [B, 3, H, W], target [B, S, width]. Packed:
 * packed/patches [patches, 3 * side * side], packed/grid_hw [images, 2] and packed/target [rows,
 * width]. The loss is half the squared distance to target, divided by its size; without a target
 * there is none. Rows are class and register tokens, then patches, of each image.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/error.h"
#include "lib/base/mem.h"
#include "lib/conf/conf.h"
#include "lib/model/radio.h"
#include "tools/train/probe.h"

struct images {
    int64_t n, n_front, n_rows;
    int32_t *grid;         /* [n, 2] */
    int64_t *cu;           /* [n + 1] patches */
    int64_t *summary_idxs; /* [n_summary] of the class tokens */
    size_t n_summary;
};

static bool image_matches(const struct s2s_model *model)
{
    return model->patch_dim > 0 && model->vocab_size == 0;
}

/* Which class tokens are the summary of an image: of config.json, the first two unless it says. */
static int read_summary(struct images *im, struct probe *p, struct s2s_error *err)
{
    const struct s2s_conf *list;
    int rc = s2s_conf_get_list(&list, p->model->conf, "summary_idxs", err);
    if (rc < 0)
        return rc;
    im->n_summary = list ? list->n_items : 2;
    im->summary_idxs = probe_alloc(p, (im->n_summary + 1) * sizeof *im->summary_idxs);
    for (size_t i = 0; i < im->n_summary; i++) {
        im->summary_idxs[i] = (int64_t)i;
        if (list && (rc = s2s_conf_as_i64(&im->summary_idxs[i], list->items[i], 0, im->n_front - 1,
                                          err)) < 0)
            return rc;
    }
    return 0;
}

static void bound(struct images *im, struct probe *p)
{
    im->cu = probe_alloc(p, (size_t)(im->n + 1) * sizeof *im->cu);
    for (int64_t i = 0; i < im->n; i++)
        im->cu[i + 1] = im->cu[i] + (int64_t)im->grid[2 * i] * im->grid[2 * i + 1];
    im->n_rows = im->cu[im->n] + im->n * im->n_front;
}

/* Pixels [B, 3, H, W] as patches. */
static int read_rows(struct images *im, struct probe *p, const float **data, struct s2s_error *err)
{
    const int64_t side = p->model->patch_size, *shape;
    const float *pixels;
    int rc = probe_input_f32(p, &pixels, &shape, "pixel_values", 4, err);
    if (rc < 0)
        return rc;
    const int64_t n_colours = shape[1], height = shape[2], width = shape[3];
    if (n_colours * side * side != p->model->patch_dim || height % side || width % side)
        return s2s_error_set(err, S2S_E_SHAPE,
                             "pixel_values is [%lld, %lld, %lld, %lld]; expected 3 colours and "
                             "multiples of %lld pixels",
                             (long long)shape[0], (long long)n_colours, (long long)height,
                             (long long)width, (long long)side);
    im->n = shape[0];
    im->grid = probe_alloc(p, (size_t)(2 * im->n + 1) * sizeof *im->grid);
    float *to = probe_alloc(p, (size_t)(im->n * n_colours * height * width + 1) * sizeof *to);
    *data = to;
    for (int64_t i = 0; i < im->n; i++) {
        im->grid[2 * i] = (int32_t)(height / side);
        im->grid[2 * i + 1] = (int32_t)(width / side);
        for (int64_t patch = 0; patch < height / side * (width / side); patch++)
            for (int64_t line = 0; line < n_colours * side; line++, to += side) {
                const int64_t y = patch / (width / side) * side + line % side,
                              x = patch % (width / side) * side;
                memcpy(to, pixels + ((i * n_colours + line / side) * height + y) * width + x,
                       (size_t)side * sizeof *to);
            }
    }
    return 0;
}

static int read_packed(struct images *im, struct probe *p, const float **data,
                       struct s2s_error *err)
{
    const int64_t *shape, *grid_shape;
    const int32_t *grid;
    int rc = probe_input_f32(p, data, &shape, "packed/patches", 2, err);
    if (rc < 0 || (rc = probe_input_i32(p, &grid, &grid_shape, "packed/grid_hw", 2, err)) < 0)
        return rc;
    int64_t n = 0;
    for (int64_t i = 0; grid_shape[1] == 2 && i < grid_shape[0]; i++)
        n += (int64_t)grid[2 * i] * grid[2 * i + 1];
    if (n != shape[0] || shape[1] != p->model->patch_dim)
        return s2s_error_set(err, S2S_E_SHAPE,
                             "packed/patches is [%lld, %lld]; packed/grid_hw has %lld patches, "
                             "of %lld numbers each",
                             (long long)shape[0], (long long)shape[1], (long long)n,
                             (long long)p->model->patch_dim);
    im->n = grid_shape[0];
    im->grid = (int32_t *)grid;
    return 0;
}

static int read_target(struct images *im, struct probe *p, struct s2s_error *err)
{
    const bool packed = p->layout == PROBE_PACKED;
    const char *name = packed ? "packed/target" : "target";
    const int64_t *shape, width = p->model->hidden_size;
    if (!probe_has_input(p, name))
        return 0;
    int rc = probe_input_f32(p, &p->batch.target, &shape, name, packed ? 2 : 3, err);
    if (rc < 0)
        return rc;
    const int64_t rows = packed ? shape[0] : shape[0] * shape[1];
    if (rows != im->n_rows || shape[packed ? 1 : 2] != width)
        return s2s_error_set(err, S2S_E_SHAPE, "%s has %lld rows; expected %lld of %lld", name,
                             (long long)rows, (long long)im->n_rows, (long long)width);
    p->loss_scale = p->wanted.seed = rows > 0 ? 1.0 / (double)(rows * width) : 0;
    return 0;
}

static int image_prepare(struct probe *p, struct s2s_error *err)
{
    struct images *im = p->state = probe_alloc(p, sizeof *im);
    const float *data;
    int rc =
        p->layout == PROBE_PACKED ? read_packed(im, p, &data, err) : read_rows(im, p, &data, err);
    if (rc < 0)
        return rc;
    im->n_front = model_radio_n_front(p->model);
    bound(im, p);
    p->batch.media[0] = (struct s2s_media){.kind = S2S_MEDIA_IMAGE,
                                           .n = im->n,
                                           .data = data,
                                           .cu = im->cu,
                                           .grid = im->grid,
                                           .width = p->model->patch_dim};
    p->batch.n_media = 1;
    rc = read_summary(im, p, err);
    return rc < 0 ? rc : read_target(im, p, err);
}

/* Rows of all images, or [B, rows of one, cols]. */
static void add_rows(struct probe *p, const char *name, const float *values, int64_t n_rows,
                     int64_t cols)
{
    const struct images *im = p->state;
    const bool packed = p->layout == PROBE_PACKED;
    const int64_t flat[] = {n_rows, cols}, padded[] = {im->n, im->n ? n_rows / im->n : 0, cols};
    float *copy = probe_alloc(p, (size_t)(n_rows * cols + 1) * sizeof *copy);
    memcpy(copy, values, (size_t)(n_rows * cols) * sizeof *copy);
    probe_add(p, name, S2S_F32, packed ? 2 : 3, packed ? flat : padded, copy);
}

/* The patches without what stands in front of them, and the class tokens of the summary. */
static void add_parts(struct probe *p, const float *rows, const char *prefix)
{
    const struct images *im = p->state;
    const int64_t width = p->model->hidden_size, n_summary = (int64_t)im->n_summary;
    float *features = s2s_xmalloc((size_t)(im->cu[im->n] * width + 1) * sizeof *features);
    float *summary = probe_alloc(p, (size_t)(im->n * n_summary * width + 1) * sizeof *summary);
    for (int64_t i = 0; i < im->n; i++) {
        const float *first = rows + (im->cu[i] + i * im->n_front) * width;
        for (int64_t k = 0; k < n_summary; k++)
            memcpy(summary + (i * n_summary + k) * width, first + im->summary_idxs[k] * width,
                   (size_t)width * sizeof *summary);
        memcpy(features + im->cu[i] * width, first + im->n_front * width,
               (size_t)((im->cu[i + 1] - im->cu[i]) * width) * sizeof *features);
    }
    char name[32];
    snprintf(name, sizeof name, "%sfeatures", prefix);
    add_rows(p, name, features, im->cu[im->n], width);
    snprintf(name, sizeof name, "%ssummary", prefix);
    probe_add(p, name, S2S_F32, 2, (int64_t[]){im->n, n_summary * width}, summary);
    free(features);
}

static int image_collect(struct probe *p, const struct s2s_forward *fwd, struct s2s_error *err)
{
    const struct images *im = p->state;
    const bool packed = p->layout == PROBE_PACKED;
    const int64_t width = p->model->hidden_size;
    float *values = s2s_xmalloc((size_t)(im->n_rows * width + 1) * sizeof *values);
    for (int i = 0; i < fwd->n_hidden; i++) {
        char name[32];
        snprintf(name, sizeof name, "%shidden/%d", packed ? "packed/" : "", i);
        s2s_tensor_read_f32(fwd->hidden[i], values);
        add_rows(p, name, values, im->n_rows, width);
    }
    s2s_tensor_read_f32(fwd->output, values);
    if (packed)
        add_rows(p, "packed/last_hidden_state", values, im->n_rows, width);
    add_parts(p, values, packed ? "packed/" : "");
    free(values);
    return 0;
}

const struct probe_family probe_image = {image_matches, image_prepare, image_collect, NULL};
