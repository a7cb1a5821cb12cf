/* Medians of the last steps, and what is far above them. */
#include "lib/train/usual.h"

#include <stdlib.h>
#include <string.h>

#include "lib/base/base.h"

void s2s_usual_add(struct s2s_usual *u, double loss, double norm)
{
    u->loss[u->n % u->window] = loss;
    u->norm[u->n % u->window] = norm;
    u->n++;
}

static int by_value(const void *x, const void *y)
{
    const double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

/* Of an even number the lower one of the two in the middle. */
static double median(const double *values, int64_t n)
{
    double sorted[S2S_USUAL_MAX];
    memcpy(sorted, values, (size_t)n * sizeof *sorted);
    qsort(sorted, (size_t)n, sizeof *sorted, by_value);
    return sorted[(n - 1) / 2];
}

bool s2s_usual_is_spike(const struct s2s_usual *u, double loss, double norm, struct s2s_buf *what)
{
    if (u->n < u->window)
        return false;
    const double losses = median(u->loss, u->window), norms = median(u->norm, u->window);
    const bool high = loss > u->factor * losses, steep = norm > u->factor * norms;
    if (what && (high || steep))
        s2s_buf_printf(what, "%s %.4g, and the median of the last %lld steps is %.4g",
                       high ? "loss" : "gradient norm", high ? loss : norm, (long long)u->window,
                       high ? losses : norms);
    return high || steep;
}

json_t *s2s_usual_describe(const struct s2s_usual *u)
{
    json_t *list = json_array();
    for (int64_t i = u->n > u->window ? u->n - u->window : 0; i < u->n; i++)
        json_array_append_new(list,
                              json_pack("[f, f]", u->loss[i % u->window], u->norm[i % u->window]));
    return list;
}

void s2s_usual_restore(struct s2s_usual *u, const json_t *steps)
{
    for (size_t i = 0; i < json_array_size(steps); i++) {
        const json_t *step = json_array_get(steps, i), *loss = json_array_get(step, 0),
                     *norm = json_array_get(step, 1);
        if (json_is_number(loss) && json_is_number(norm))
            s2s_usual_add(u, json_number_value(loss), json_number_value(norm));
    }
}
