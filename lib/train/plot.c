/* The loss curve of a run, drawn by gnuplot from what log.jsonl and eval.jsonl hold. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "lib/base/base.h"
#include "lib/io/gnuplot.h"
#include "lib/train/runlog.h"

struct point {
    double step, loss;
};

struct curve {
    char *name;
    struct point *points;
    size_t n, cap;
};

struct curves {
    struct curve *v;
    size_t n, cap;
};

static struct curve *curve_named(struct curves *curves, const char *name)
{
    for (size_t i = 0; i < curves->n; i++)
        if (strcmp(curves->v[i].name, name) == 0)
            return &curves->v[i];
    s2s_grow(&curves->v, curves->n, &curves->cap, sizeof *curves->v);
    curves->v[curves->n] = (struct curve){.name = s2s_xstrdup(name)};
    return &curves->v[curves->n++];
}

/* Lines of a log into curves: one named "train", or one for each data set. */
static int read_curves(struct curves *curves, const char *dir, const char *file, bool needed,
                       struct s2s_error *err)
{
    char *path = s2s_xasprintf("%s/%s", dir, file), *line = NULL;
    size_t cap = 0;
    int rc = 0;
    FILE *in = fopen(path, "re");
    if (!in && (needed || errno != ENOENT))
        rc = s2s_error_errno(err, S2S_E_OPEN, "%s", path);
    while (in && s2s_xgetline(&line, &cap, in) > 0) {
        json_t *value = json_loads(line, 0, NULL);
        const char *set = json_string_value(json_object_get(value, "set"));
        const json_t *step = json_object_get(value, "step"), *loss = json_object_get(value, "loss");
        if (json_is_number(step) && json_is_number(loss)) {
            struct curve *c = curve_named(curves, set ? set : "train");
            s2s_grow(&c->points, c->n, &c->cap, sizeof *c->points);
            c->points[c->n++] = (struct point){json_number_value(step), json_number_value(loss)};
        }
        json_decref(value);
    }
    if (in)
        fclose(in);
    free(line);
    free(path);
    return rc;
}

/* A string of gnuplot in single quotes. */
static void put_quoted(FILE *to, const char *text)
{
    fputc('\'', to);
    for (; *text; text++) {
        if (*text == '\'')
            fputc('\'', to);
        if ((unsigned char)*text >= ' ')
            fputc(*text, to);
    }
    fputc('\'', to);
}

static void put_script(FILE *to, bool is_svg, const void *what)
{
    const struct curves *curves = what;
    fprintf(to, "set terminal %s\n",
            is_svg ? "svg size 900,560 dynamic background rgb 'white'" : "pngcairo size 900,560");
    fprintf(to, "set grid\nset xlabel 'step'\nset ylabel 'loss (nats a token)'\n"
                "set key top right noenhanced\nset yrange [0:*]\nplot ");
    for (size_t i = 0; i < curves->n; i++) {
        fprintf(to, "%s'-' using 1:2 with %s title ", i ? ", " : "",
                strcmp(curves->v[i].name, "train") == 0 ? "lines lw 1"
                                                        : "linespoints lw 2 pt 7 ps 0.5");
        put_quoted(to, curves->v[i].name);
    }
    fputc('\n', to);
    for (size_t i = 0; i < curves->n; i++) {
        for (size_t k = 0; k < curves->v[i].n; k++)
            fprintf(to, "%.9g %.9g\n", curves->v[i].points[k].step, curves->v[i].points[k].loss);
        fprintf(to, "e\n");
    }
}

int s2s_runlog_plot(const char *dir, const char *out, struct s2s_error *err)
{
    struct curves curves = {.v = NULL};
    int rc = read_curves(&curves, dir, "log.jsonl", true, err);
    if (rc == 0)
        rc = read_curves(&curves, dir, "eval.jsonl", false, err);
    if (rc == 0 && curves.n == 0)
        rc = s2s_error_set(err, S2S_E_RANGE, "%s/log.jsonl: no step to draw", dir);
    if (rc == 0)
        rc = s2s_gnuplot(out, put_script, &curves, err);
    for (size_t i = 0; i < curves.n; i++) {
        free(curves.v[i].name);
        free(curves.v[i].points);
    }
    free(curves.v);
    return rc;
}
