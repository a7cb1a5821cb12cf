/*
 * WebDataset's tars, and Energon's folders of them: members that follow each other and have the
 * same name up to its first dot are a sample, what is behind the dot says what of it.
 */
#ifndef S2S_DATA_WEBDATASET_H
#define S2S_DATA_WEBDATASET_H

#include "lib/data/source.h"

/*
 * A sample's sound is its one member that is no text (wav, flac, mp3, ogg, opus, ..); its text that
 * of "txt", or of opt->text_field in "json", whose other keys go to `custom`. Its id is the name up
 * to the dot. paths [n_paths]: tars, "-", "pipe:COMMAND", lists of shards (*.json, wids), or
 * folders: of one that Energon has prepared (.nv-meta) the shards that its .info.json or .info.yaml
 * lists, of the split "train" if split.yaml or split.json names one, without what that excludes;
 * else all tars of the folder, sorted. Numbers of samples that a list tells are held against the
 * tars. OPEN, FORMAT, NOTFOUND.
 *
 * Where a tar has an index of Energon (x.tar.idx: 64-bit offsets of samples) it is not walked: each
 * sample is read where the index has it, and an index that is not of this tar is named by `next` or
 * `load`.
 *
 * Order: as given, or with opt->shuffle shards as CPython's shuffle with seed + epoch.
 */
int s2s_source_open_webdataset(struct s2s_source **source, const char *const *paths, size_t n_paths,
                               const struct s2s_source_options *opt, struct s2s_error *err);

#endif
