/* What a file is, when it is not what was asked for. Inside lib/data. */
#ifndef S2S_DATA_WRONG_KIND_H
#define S2S_DATA_WRONG_KIND_H

#include "lib/data/lines.h"
#include "lib/data/source.h"

/*
 * Looks at the first line of a file that is to be of this kind. 0: it may be. FORMAT: it is of
 * another kind, which the text names, with the option or the command that takes it as a hint.
 */
int data_check_kind(const struct s2s_lines *file, enum s2s_lines_kind kind, struct s2s_error *err);

#endif
