/* Pictures drawn by gnuplot. */
#ifndef S2S_IO_GNUPLOT_H
#define S2S_IO_GNUPLOT_H

#include <stdbool.h>
#include <stdio.h>

struct s2s_error;

/*
 * Draws into path, which appears whole or not at all (lib/io/outfile.h), what `put` writes as
 * gnuplot's script: SVG where is_svg, else PNG. NOTFOUND: there is no gnuplot; IO.
 */
int s2s_gnuplot(const char *path, void (*put)(FILE *script, bool is_svg, const void *what),
                const void *what, struct s2s_error *err);

#endif
