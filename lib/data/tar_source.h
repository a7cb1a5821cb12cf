/* Samples whose lines are in manifests and whose sound is in tars. */
#ifndef S2S_DATA_TAR_SOURCE_H
#define S2S_DATA_TAR_SOURCE_H

#include "lib/data/source.h"

/*
 * Shards of a manifest and a tar each. "-" and "pipe:COMMAND" as for other files; tars are opened
 * when they come to their turn, and what cannot be read of one is an error of `next`, which then
 * goes on with the next shard.
 *
 * S2S_LINES_NEMO: the samples come in the order of the tar's members. A line belongs to the member
 * of its audio_filepath, without "-subN" before the suffix; lines of one member come in the order
 * of their audio_filepath. What the member lasts longer or shorter than the line's duration by less
 * than 0.2 s is taken whole. Manifests and tars are matched by the number in their names
 * (manifest_3.json, audio_3.tar); one manifest for several tars names them by its shard_id.
 *
 * S2S_LINES_CONVERSATION, _SHARE_GPT: the samples come in the order of the lines, whose clips are
 * the tar's members one after the other, with the names that the turns have. The k-th manifest
 * belongs to the k-th tar.
 *
 * Source: LazyNeMoTarredIterator and the tarred conversations of NeMo.
 */
int s2s_source_open_tars(struct s2s_source **source, enum s2s_lines_kind kind,
                         const char *const *manifests, size_t n_manifests, const char *const *tars,
                         size_t n_tars, const struct s2s_source_options *opt,
                         struct s2s_error *err);

/* The number of a shard in the name of its manifest (word "manifest", suffix ".json") or tar
 * ("audio", ".tar"): the one behind the last underscore of the name; -1: there is none. */
int64_t s2s_data_shard_id(const char *path, const char *word, const char *suffix);

#endif
