/*
 * Packs cut over the ranks of context parallelism, as s2s-cpshard cuts streams (lib/thd/cp.h):
 * every sequence is padded to a multiple of 2 cp slots, and rank r has chunks r and 2 cp - 1 - r of
 * its 2 cp equal ones. Labels were shifted before and go with their slots, as positions do; slots
 * of padding are zero rows without a label.
 *
 * Sound: rows of embeddings stay where their slots are. Clips with features stay on all ranks, who
 * share the encoding (lib/nn/spread.h); rows whose slots another rank has are marked.
 */
#ifndef S2S_TRAIN_SPLIT_H
#define S2S_TRAIN_SPLIT_H

#include "lib/train/pack.h"

/* The pack becomes what the rank has of it; cp_size 1: it stays. n_labels are then its own, n_real
 * and the sequences still those of all. */
void s2s_pack_split(struct s2s_pack *pack, int cp_size, int cp_rank);

/*
 * The same of a pack whose ids, labels and positions are the rank's already, as s2s-cpshard writes
 * it: n_tokens is the rank's, bounds, seq_lens and clips are those of all, and clips have no data
 * yet. embeds: they will get embeddings, of which there are the rank's rows. clip_slot then only
 * says which sequence a clip is in. The stream's schema has checked the bounds.
 */
void s2s_pack_take_part(struct s2s_pack *pack, int cp_size, int cp_rank, bool embeds);

#endif
