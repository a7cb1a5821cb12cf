/*
 * Redirects stdout to a file (-o OUT) between _begin and _end, for reports that are printed with
 * stdio. The file appears complete or not at all (lib/io/outfile.h).
 */
#ifndef S2S_IO_PRINTOUT_H
#define S2S_IO_PRINTOUT_H

#include <stdio.h>

#include "lib/base/error.h"

struct s2s_outfile;

struct s2s_printout {
    struct s2s_outfile *out; /* NULL: stdout is not redirected */
    FILE *stream, *stdout_before;
    struct s2s_error err; /* of the first failed write; stdio keeps none */
};

/* Redirects stdout to path; NULL or "-": does nothing. OPEN, IO. */
int s2s_printout_begin(struct s2s_printout *p, const char *path, struct s2s_error *err);
/* Restores stdout. rc >= 0: commits the file; otherwise removes it. Returns rc, or the error of
 * writing. May also be called after a failed _begin, and for a zeroed struct. */
int s2s_printout_end(struct s2s_printout *p, int rc, struct s2s_error *err);

#endif
