/* Patches with positions, and the pixel shuffle: orders and weights are made on the host. */
#include "lib/nn/patches.h"

#include <math.h>
#include <stdlib.h>

#include "lib/base/error.h"
#include "lib/base/mem.h"

int64_t s2s_nn_images_patches(const struct s2s_nn_images *images)
{
    int64_t n = 0;
    for (int64_t i = 0; i < images->n; i++)
        n += (int64_t)images->grid[2 * i] * images->grid[2 * i + 1];
    return n;
}

/* ---- parameters ---- */

void s2s_nn_patches_init(struct s2s_nn_patches *layer, const struct s2s_nn_ctx *ctx,
                         const struct s2s_nn_patches_options *o)
{
    const struct s2s_init init = {S2S_INIT_NORMAL, ctx->init_std};
    *layer = (struct s2s_nn_patches){.side = o->side, .n_front = o->n_front};
    struct s2s_param_spec front = {.n_dims = 2, .shape = {o->n_front, o->width}, .init = init},
                          embedder = {.n_dims = 2, .shape = {o->width, o->patch_dim}, .init = init},
                          positions = {
                              .n_dims = 3, .shape = {1, o->side * o->side, o->width}, .init = init};
    char *name = s2s_xasprintf("%s.pos_embed", ctx->place);
    positions.name = name;
    layer->embedder = s2s_nn_add(ctx, "embedder", "weight", embedder);
    layer->positions = s2s_params_add(ctx->params, &positions);
    layer->front = s2s_nn_add(ctx, "cls_token", "token", front);
    free(name);
}

/* ---- positions ---- */

/* Where one of n points lies among the `side` of a line: the two beside it, and the share of the
 * second. */
struct place {
    int32_t first, second;
    double share;
};

static struct place place_of(int32_t i, int32_t n, int64_t side)
{
    const double at = ((double)i + 0.5) * (double)side / (double)n - 0.5;
    struct place p = {.share = at > 0 ? at : 0};
    p.first = (int32_t)floor(p.share);
    p.second = p.first + 1 < side ? p.first + 1 : p.first;
    p.share -= p.first;
    return p;
}

/* The four around a point, of which some weigh nothing. */
static void mix_four(int32_t *idx, float *weights, struct place y, struct place x, int64_t side)
{
    const int32_t rows[] = {y.first, y.second}, cols[] = {x.first, x.second};
    const double of_rows[] = {1 - y.share, y.share}, of_cols[] = {1 - x.share, x.share};
    for (int k = 0; k < S2S_NN_POSITION_SOURCES; k++) {
        weights[k] = (float)(of_rows[k / 2] * of_cols[k % 2]);
        idx[k] = weights[k] != 0 ? (int32_t)(rows[k / 2] * side + cols[k % 2]) : -1;
    }
}

void s2s_nn_positions(int32_t *idx, float *weights, int64_t side,
                      const struct s2s_nn_images *images)
{
    for (int64_t i = 0; i < images->n; i++) {
        const int32_t height = images->grid[2 * i], width = images->grid[2 * i + 1],
                      longer = height > width ? height : width;
        for (int32_t y = 0; y < height; y++)
            for (int32_t x = 0; x < width; x++) {
                mix_four(idx, weights, place_of(y, longer, side), place_of(x, longer, side), side);
                idx += S2S_NN_POSITION_SOURCES;
                weights += S2S_NN_POSITION_SOURCES;
            }
    }
}

static struct s2s_tensor *add_positions(struct s2s_tape *tape, const struct s2s_nn_patches *layer,
                                        struct s2s_tensor *x, const struct s2s_nn_images *images)
{
    const int64_t n = s2s_tensor_rows(x);
    const size_t room = (size_t)(n * S2S_NN_POSITION_SOURCES + 1);
    int32_t *idx = s2s_xmalloc(room * sizeof *idx);
    float *weights = s2s_xmalloc(room * sizeof *weights);
    s2s_nn_positions(idx, weights, layer->side, images);
    x = s2s_op_add_mixed_rows(
        tape, x, layer->positions->tensor,
        &(struct s2s_row_mix){
            .n = n, .n_sources = S2S_NN_POSITION_SOURCES, .idx = idx, .weights = weights});
    free(idx);
    free(weights);
    return x;
}

/* ---- patches ---- */

void s2s_nn_patches_bounds(const struct s2s_nn_patches *layer, const struct s2s_nn_images *images,
                           int32_t *cu)
{
    cu[0] = 0;
    for (int64_t i = 0; i < images->n; i++)
        cu[i + 1] = cu[i] + (int32_t)layer->n_front + images->grid[2 * i] * images->grid[2 * i + 1];
}

struct s2s_tensor *s2s_nn_patches(struct s2s_tape *tape, const struct s2s_nn_patches *layer,
                                  struct s2s_tensor *x, const struct s2s_nn_images *images)
{
    const int64_t n_patches = s2s_nn_images_patches(images),
                  n = n_patches + images->n * layer->n_front;
    if (s2s_tensor_rows(x) != n_patches)
        S2S_BUG("%s: %lld patches of images that have %lld", tape->layer,
                (long long)s2s_tensor_rows(x), (long long)n_patches);
    int32_t *front = s2s_xmalloc((size_t)(n + 1) * sizeof *front);
    int32_t *place = s2s_xmalloc((size_t)(n_patches + 1) * sizeof *place);
    int64_t row = 0, patch = 0;
    for (int64_t i = 0; i < images->n; i++) {
        for (int32_t k = 0; k < layer->n_front; k++)
            front[row++] = k;
        for (int32_t k = images->grid[2 * i] * images->grid[2 * i + 1]; k > 0; k--) {
            place[patch++] = (int32_t)row;
            front[row++] = -1;
        }
    }
    x = s2s_op_linear(tape, x, layer->embedder->tensor, NULL);
    x = add_positions(tape, layer, x, images);
    struct s2s_tensor *y = s2s_op_embedding(tape, layer->front->tensor, front, n, 1, -1);
    y = s2s_op_splice_rows(tape, y, x, s2s_tape_upload_i32(tape, place, n_patches));
    free(front);
    free(place);
    return y;
}

/* ---- pixel shuffle ---- */

void s2s_nn_shuffle_rows(int32_t *idx, const struct s2s_nn_images *images, int64_t n_front,
                         int factor)
{
    int32_t begin = 0;
    for (int64_t i = 0; i < images->n; i++) {
        const int32_t height = images->grid[2 * i], width = images->grid[2 * i + 1];
        begin += (int32_t)n_front;
        for (int32_t y = 0; y < height; y += factor)
            for (int32_t x = 0; x < width; x += factor)
                for (int32_t k = 0; k < factor * factor; k++)
                    *idx++ = begin + (y + k / factor) * width + x + k % factor;
        begin += height * width;
    }
}

struct s2s_tensor *s2s_nn_shuffle(struct s2s_tape *tape, struct s2s_tensor *x,
                                  const struct s2s_nn_images *images, int64_t n_front, int factor)
{
    const int64_t n = s2s_nn_images_patches(images), together = factor * factor;
    int32_t *idx = s2s_xmalloc((size_t)(n + 1) * sizeof *idx);
    s2s_nn_shuffle_rows(idx, images, n_front, factor);
    x = s2s_op_gather_rows(tape, x, s2s_tape_upload_i32(tape, idx, n));
    free(idx);
    return s2s_tape_view(tape, x, 2, (int64_t[]){n / together, together * s2s_tensor_cols(x)});
}
