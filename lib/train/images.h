/*
 * Images of packs, the second list of a batch's media: tensors image_slot, image_rows, image_grid
 * and image_patches of a record (doc/FORMAT.md), joined, cut over ranks, and cut into utterances as
 * the rest of a pack is. Slots go up from row to row, and those of an image lie in one utterance.
 */
#ifndef S2S_TRAIN_IMAGES_H
#define S2S_TRAIN_IMAGES_H

#include "lib/io/safetensors.h"
#include "lib/train/pack.h"

enum { TRAIN_IMAGES = 1 }; /* where batch.media has them; 0 is sound */

/* How many lists the batch has, once sound and images are there. */
void train_images_count(struct s2s_batch *batch);

/*
 * The record's images, if it has some; bounds and ids of the pack are there. Pixels of bytes become
 * those of 0 to 1. NOTFOUND, DTYPE, SHAPE, RANGE name tensor and image. Of a part of a record (cut
 * over ranks) slots are those of the whole: bounds [n_seqs + 1] and real lengths are the whole's,
 * too.
 */
int train_images_read(struct s2s_pack *pack, const struct s2s_safetensors *st,
                      struct s2s_error *err);
/* Of all packs, where slots of each begin behind those of the ones before. */
void train_images_join(struct s2s_pack *to, struct s2s_pack *const *packs, size_t n);
/* Slots become moved[slot - first] (-1: gone); images whose slots are not all in [first, end) are
 * left out. from may be to. */
void train_images_move(struct s2s_pack *to, const struct s2s_pack *from, int64_t first, int64_t end,
                       const int32_t *moved);

#endif
