/* A list of findings, one line for each tensor or file, for an error that must stay readable when
 * there are thousands. */
#ifndef CKPT_LIST_H
#define CKPT_LIST_H

#include <stddef.h>

#include "lib/base/base.h"

/* The first CKPT_SHORT_LIST lines are kept for the error's text, those up to CKPT_LONG_LIST are
 * logged at once, the others are counted. Initialise to zero. */
enum { CKPT_SHORT_LIST = 8, CKPT_LONG_LIST = 200 };
struct ckpt_list {
    char *lines[CKPT_SHORT_LIST];
    size_t n; /* all lines */
};
/* Adds a line (takes it). what: put before it if it is logged. */
void ckpt_list_add(struct ckpt_list *list, const char *what, char *line);
/* Appends the kept lines to err, whose code is rc, and frees them. Returns rc. */
int ckpt_list_end(struct ckpt_list *list, int rc, struct s2s_error *err);

#endif
