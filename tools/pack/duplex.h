/* Samples of duplex speech: a cut's two sounds, and what both sides say on the grid of frames. */
#ifndef TOOLS_PACK_DUPLEX_H
#define TOOLS_PACK_DUPLEX_H

#include "tools/pack/record.h"

/* ARG: the tokenizer has no bos or eos. */
int pack_duplex_check(const struct pack_loader *loader, struct s2s_error *err);
/* Makes the channels of the row's sample, a cut. FORMAT: it is no cut, or a turn has no text. */
int pack_duplex_channels(struct pack_row *row, const struct pack_loader *loader,
                         struct s2s_error *err);
/* As pack_record_make, of one row: record->audio has both of its sounds. */
void pack_duplex_record(struct pack_record *record, const struct pack_row *row,
                        const struct pack_loader *loader, bool exact16);
/* The header's keys kind and config, without what all streams have. */
json_t *pack_duplex_config(const struct pack_loader *loader);

#endif
