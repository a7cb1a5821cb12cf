/* Names of shards: "audio__OP_0..127_CL_.tar". */
#ifndef S2S_DATA_EXPAND_H
#define S2S_DATA_EXPAND_H

#include <stddef.h>

struct s2s_error;

/*
 * The names that a pattern stands for, in order. A group is _OP_..._CL_, {...}, [...], (...) or
 * <...> around a range (0..127, 000..127 with its width kept, a..c, each perhaps with a step:
 * 0..10..2) or words with commas; groups multiply, the left one slowest, and may be nested.
 * Brackets around anything else are a part of the name, and so is all of the name of a file that is
 * there.
 *
 * Appends to paths [*n_paths] (strings and array: free). RANGE: more than a million names.
 *
 * Source: expand_sharded_filepaths of NeMo, over braceexpand.
 */
int s2s_data_expand(char ***paths, size_t *n_paths, const char *pattern, struct s2s_error *err);

#endif
