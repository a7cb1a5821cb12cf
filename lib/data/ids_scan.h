/* The plain line of ids, read at the speed of memory. Inside lib/data. */
#ifndef S2S_DATA_IDS_SCAN_H
#define S2S_DATA_IDS_SCAN_H

#include <stdbool.h>

#include "lib/data/manifest.h"

/* Fills the row (s2s_ids_row_release) as s2s_data_parse_ids would; false: the line is another one,
 * and the row holds nothing. */
bool data_scan_ids(struct s2s_ids_row *row, const struct s2s_line *line);

#endif
