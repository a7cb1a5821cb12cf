/*
 * Lhotse's Shar: shards of cuts (cuts.000000.jsonl.gz), beside each of which every further field of
 * the cuts has a tar (recording.000000.tar) or lines (FIELD.000000.jsonl.gz), in the same order.
 */
#ifndef S2S_DATA_SHAR_H
#define S2S_DATA_SHAR_H

#include "lib/data/source.h"

/*
 * Specs [n_specs]: folders, or "FIELD=NAMES" with names of shards ("{000000..000127}", "-",
 * "pipe:COMMAND"), of which one FIELD is cuts. Fields of lines become part of the cut; of the tars
 * only the one of opt->audio_field (else "recording") is read. As Lhotse's reader: shards in order
 * of their names or, with opt->shuffle, shuffled with seed + epoch; the shortest field ends a
 * shard; slice_length cuts of each. OPEN, NOTFOUND, SHAPE: a field has more or fewer shards than
 * cuts.
 */
int s2s_source_open_shar(struct s2s_source **source, const char *const *specs, size_t n_specs,
                         const struct s2s_source_options *opt, struct s2s_error *err);
/* Lines of all shards of cuts of such a source. */
size_t s2s_shar_n_cuts(const struct s2s_source *source);

#endif
