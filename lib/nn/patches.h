/*
 * The two ends of an image encoder over packed images, whose sizes differ: patches become rows with
 * positions behind rows of the image's own, and neighbours among the results become one.
 */
#ifndef S2S_NN_PATCHES_H
#define S2S_NN_PATCHES_H

#include "lib/nn/linear.h"

/* Images one behind the other: image i has height x width patches, row by row. */
struct s2s_nn_images {
    int64_t n;
    const int32_t *grid; /* [n, 2] height and width in patches, 1 or more; host memory */
};
int64_t s2s_nn_images_patches(const struct s2s_nn_images *images); /* of all */

/*
 * embedder [width, patch_dim] without bias, pos_embed [1, side * side, width] of the largest image,
 * row by row, and cls_token [n_front, width]: rows in front of each image, without a position. (C-
 * RADIO's class and register tokens.)
 */
struct s2s_nn_patches {
    struct s2s_param *embedder, *positions, *front;
    int64_t side, n_front;
};
struct s2s_nn_patches_options {
    int64_t patch_dim, width, side, n_front;
};
void s2s_nn_patches_init(struct s2s_nn_patches *layer, const struct s2s_nn_ctx *ctx,
                         const struct s2s_nn_patches_options *options);
/* x [patches, patch_dim] -> [patches + n * n_front, width]: of each image its front, its patches.
 */
struct s2s_tensor *s2s_nn_patches(struct s2s_tape *tape, const struct s2s_nn_patches *layer,
                                  struct s2s_tensor *x, const struct s2s_nn_images *images);
/* Bounds of the images among those rows: cu [n + 1]. */
void s2s_nn_patches_bounds(const struct s2s_nn_patches *layer, const struct s2s_nn_images *images,
                           int32_t *cu);

/*
 * Positions of images in a table of side x side: it is resized to a square of the image's longer
 * side (bilinear, corners of pixels aligned, nothing smoothed), of which the image has the top left
 * corner. (C-RADIO's cropped position embeddings, at evaluation.) idx, weights [patches, 4]; a
 * weight of 0 has the index -1.
 */
enum { S2S_NN_POSITION_SOURCES = 4 };
void s2s_nn_positions(int32_t *idx, float *weights, int64_t side,
                      const struct s2s_nn_images *images);

/*
 * Pixel shuffle: factor x factor patches next to each other become one row of as many times the
 * width, line by line: (2i, 2j), (2i, 2j + 1), (2i + 1, 2j), (2i + 1, 2j + 1). Drops the n_front
 * rows of each image. x [patches + n * n_front, width] -> [patches / factor^2, factor^2 width];
 * heights and widths are multiples of the factor.
 */
struct s2s_tensor *s2s_nn_shuffle(struct s2s_tape *tape, struct s2s_tensor *x,
                                  const struct s2s_nn_images *images, int64_t n_front, int factor);
/* The rows of x in their new order, idx [patches]. */
void s2s_nn_shuffle_rows(int32_t *idx, const struct s2s_nn_images *images, int64_t n_front,
                         int factor);

#endif
