/* Plots drawn by gnuplot. */
#ifndef S2S_IO_GNUPLOT_H
#define S2S_IO_GNUPLOT_H

#include <stdbool.h>
#include <stdio.h>

struct s2s_error;

/*
 * Draws a plot into path, which appears complete or not at all (lib/io/outfile.h): SVG if is_svg,
 * otherwise PNG. put writes gnuplot's script for `what`. NOTFOUND: gnuplot is not installed; IO.
 */
int s2s_gnuplot(const char *path, void (*put)(FILE *script, bool is_svg, const void *what),
                const void *what, struct s2s_error *err);

#endif
