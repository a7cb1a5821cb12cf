/*
 * A report that is printed with stdio and asked for in a file (-o OUT): from _begin to _end stdout
 * is that file, which appears whole or not at all (lib/io/outfile.h).
 */
#ifndef S2S_IO_PRINTOUT_H
#define S2S_IO_PRINTOUT_H

#include <stdio.h>

#include "lib/base/error.h"

struct s2s_outfile;

struct s2s_printout {
    struct s2s_outfile *out; /* NULL: stdout is as it was */
    FILE *stream, *stdout_before;
    struct s2s_error err; /* the first failed write, which stdio would forget */
};

/* path NULL or "-": stdout stays what it is. OPEN, IO. */
int s2s_printout_begin(struct s2s_printout *p, const char *path, struct s2s_error *err);
/* rc >= 0: the file appears; else nothing does. Returns rc, or the failure of the writing. Also
 * after a _begin that failed, and for one that is all zero. */
int s2s_printout_end(struct s2s_printout *p, int rc, struct s2s_error *err);

#endif
