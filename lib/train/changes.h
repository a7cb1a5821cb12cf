/* What has changed in the streams that a run reads since a checkpoint was made. */
#ifndef S2S_TRAIN_CHANGES_H
#define S2S_TRAIN_CHANGES_H

#include <stdbool.h>
#include <stdint.h>

#include <jansson.h>

/*
 * Two lists of streams, [{"path", "packs", "digest"}, ..] in the order they are read: in words
 * which of them were added, removed, filled with other packs or moved in the order. A stream is its
 * digest; another path alone is no change. Gives: free. NULL: nothing changed.
 */
char *s2s_data_changes(const json_t *before, const json_t *now);

/*
 * Whether packs come twice or never in the epoch that a run goes on with at `position` (packs of
 * all epochs) when its streams or data.shuffle have changed. It is not so at the start of an epoch
 * of both, nor if the packs that were read, in order, are still the first ones.
 */
bool s2s_data_breaks_epoch(const json_t *before, bool shuffled_before, const json_t *now,
                           bool shuffled_now, int64_t position);

#endif
