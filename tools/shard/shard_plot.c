/* What `stats` counted as pictures: the script that gnuplot draws them by. */
#include <inttypes.h>
#include <stdio.h>

#include "lib/io/gnuplot.h"
#include "tools/shard/shard.h"

/* Neighbours must differ: hues step by the golden angle. */
static unsigned utterance_colour(int32_t idx)
{
    double hue = 6 * ((double)idx * 0.61803398875 - (int)((double)idx * 0.61803398875));
    int sector = (int)hue;
    double f = hue - sector, low = 0.35, high = 0.85;
    double up = low + (high - low) * f, down = high - (high - low) * f;
    const double rgb[6][3] = {{high, up, low},   {down, high, low}, {low, high, up},
                              {low, down, high}, {up, low, high},   {high, low, down}};
    return (unsigned)(255 * rgb[sector][0]) << 16 | (unsigned)(255 * rgb[sector][1]) << 8 |
           (unsigned)(255 * rgb[sector][2]);
}

static void put_box(FILE *script, double left, double right, int row, unsigned colour)
{
    if (right > left)
        fprintf(script, "%.9g %d %.9g %.9g %g %g %u\n", (left + right) / 2, row, left, right,
                row - 0.4, row + 0.4, colour);
}

/* A row a pack: its utterances in colours, its padding in grey. */
static void put_packing(FILE *script, const struct shard_stats *s)
{
    int n_rows = s->n_fills < SHARD_MAX_DRAWN ? (int)s->n_fills : SHARD_MAX_DRAWN;
    fprintf(script,
            "set title 'Packs: a row each, utterances in colours, padding in grey'\n"
            "set xlabel 'slots'\nset ylabel 'pack'\nset yrange [%g:-0.6]\nset xrange [0:*]\n"
            "unset key\nset style fill solid noborder\n"
            "plot '-' using 1:2:3:4:5:6:7 with boxxyerror lc rgb variable\n",
            n_rows - 0.4);
    for (size_t i = 0; i < s->n_spans; i++) {
        const struct shard_span *span = &s->spans[i];
        put_box(script, (double)span->begin, (double)span->end, span->pack,
                utterance_colour(span->idx));
        put_box(script, (double)span->end, (double)span->padded, span->pack, 0xbbbbbb);
    }
    fputs("e\nset yrange [*:*]\n", script);
}

static void put_lengths(FILE *script, const struct shard_stats *s)
{
    enum { BINS = 40 };
    int64_t counts[BINS] = {0};
    int64_t longest = s->n_lengths ? s->lengths[s->n_lengths - 1] : 0;
    double width = longest > 0 ? (double)longest / BINS : 1;
    for (size_t i = 0; i < s->n_lengths; i++) {
        int bin = (int)((double)s->lengths[i] / width);
        counts[bin < BINS ? bin : BINS - 1]++;
    }
    fprintf(script,
            "set title 'Lengths'\nset xlabel '%s'\nset ylabel 'count'\nset yrange [0:*]\n"
            "set xrange [0:*]\nunset key\nset style fill solid 0.7\nset boxwidth %.9g\n"
            "plot '-' using 1:2 with boxes lc rgb '#3366aa'\n",
            s->unit ? s->unit : "", width * 0.9);
    for (int i = 0; i < BINS; i++)
        fprintf(script, "%.9g %" PRId64 "\n", (i + 0.5) * width, counts[i]);
    fputs("e\n", script);
}

static void put_fill(FILE *script, const struct shard_stats *s)
{
    fprintf(script,
            "set title 'Fill'\nset xlabel 'pack'\nset ylabel 'real / all slots'\n"
            "set yrange [0:1.02]\nset xrange [-0.5:%g]\nunset key\n"
            "plot '-' using 1:2 with impulses lw 2 lc rgb '#33aa66'\n",
            (double)s->n_fills - 0.5);
    for (size_t i = 0; i < s->n_fills; i++)
        fprintf(script, "%zu %.9g\n", i, s->fills[i]);
    fputs("e\n", script);
}

static void put_script(FILE *script, bool is_svg, const void *stats)
{
    const struct shard_stats *s = stats;
    int height = s->is_pack ? 900 : 450;
    if (is_svg)
        fprintf(script, "set terminal svg size 1000,%d dynamic background 'white'\n", height);
    else
        fprintf(script, "set terminal pngcairo size 1000,%d background 'white'\n", height);
    fputs("set multiplot\n", script);
    if (s->is_pack) {
        fputs("set origin 0,0.4\nset size 1,0.6\n", script);
        put_packing(script, s);
        fputs("set origin 0,0\nset size 0.5,0.4\n", script);
        put_lengths(script, s);
        fputs("set origin 0.5,0\nset size 0.5,0.4\n", script);
        put_fill(script, s);
    } else {
        put_lengths(script, s);
    }
    fputs("unset multiplot\n", script);
}

int shard_plot(const struct shard_stats *stats, const char *path, struct s2s_error *err)
{
    if (!s2s_ends_with(path, ".svg") && !s2s_ends_with(path, ".png"))
        return s2s_error_set(err, S2S_E_ARG, "--plot %s: the name must end in .svg or .png", path);
    return s2s_gnuplot(path, put_script, stats, err);
}
