/* Lists of whole numbers, which are nearly all of the text of a tokenized row, without a JSON value
 * for each number. */
#ifndef S2S_DATA_SKIM_H
#define S2S_DATA_SKIM_H

#include <stddef.h>
#include <stdint.h>

#include "lib/data/lines.h"

/* One list. values is NULL where it was left in the text: it is not there, or not of plain numbers
 * from 0 to max. */
struct data_list {
    const char *key;
    int32_t max;
    int32_t *values; /* [n] */
    size_t n;
};

/* Takes the lists of these keys out of the line's object; gives what is left, with [] in place of
 * each, for a JSON parser. NULL where none was taken, or the text is not simple enough to be sure
 * that the parser would see the same (a key twice, or spelled with escapes). */
char *data_skim(struct data_list *lists, size_t n_lists, const struct s2s_line *line,
                size_t *rest_len);
void data_skim_release(struct data_list *lists, size_t n_lists);

#endif
