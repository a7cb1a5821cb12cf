#include "lib/train/moving.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/base.h"
#include "lib/nn/conformer.h"
#include "lib/train/trainer.h"

/* All statistics one behind the other: into values (get), or out of them. */
static void copy(struct s2s_trainer *t, float *values, bool get)
{
    const struct s2s_params *params = t->bundle.model->params;
    for (size_t i = 0; i < params->n; i++) {
        struct s2s_param *p = params->list[i];
        if (!(p->flags & S2S_PARAM_BUFFER))
            continue;
        if (get)
            s2s_param_get(p, values);
        else
            s2s_param_set(p, values, S2S_F32);
        values += p->numel;
    }
}

void train_moving_begin(struct train_moving *m, struct s2s_trainer *t, int64_t n_rows)
{
    const struct s2s_params *params = t->bundle.model->params;
    *m = (struct train_moving){.n_rows = n_rows};
    if (!t->recipe->batch_norm_batch || s2s_comm_size(t->dp) == 1)
        return;
    for (size_t i = 0; i < params->n; i++)
        m->width += params->list[i]->flags & S2S_PARAM_BUFFER ? params->list[i]->numel : 0;
    m->before = s2s_xcalloc((size_t)m->width + 1, sizeof *m->before);
    m->rows = s2s_xcalloc((size_t)(n_rows * (m->width + 1)), sizeof *m->rows);
    copy(t, m->before, true);
}

/* -0 is moved to +0 by a share of 0, so what is still -0 was not moved */
void train_moving_before(const struct train_moving *m, struct s2s_trainer *t)
{
    if (!m->width)
        return;
    float *empty = s2s_xmalloc((size_t)m->width * sizeof *empty);
    for (int64_t i = 0; i < m->width; i++)
        empty[i] = -0.0F;
    copy(t, empty, false);
    free(empty);
}

void train_moving_after(struct train_moving *m, struct s2s_trainer *t, int64_t row)
{
    if (!m->width)
        return;
    float *mine = m->rows + row * (m->width + 1);
    bool moved = false;
    copy(t, mine, true);
    for (int64_t i = 0; i < m->width; i++)
        moved |= mine[i] != 0 || !signbit(mine[i]);
    mine[m->width] = moved;
}

void train_moving_end(struct train_moving *m, struct s2s_trainer *t)
{
    if (!m->width)
        return;
    s2s_comm_all_reduce(t->dp, m->rows, m->n_rows * (m->width + 1), S2S_F32, S2S_GROUP_SUM);
    for (int64_t r = 0; r < m->n_rows; r++) {
        const float *row = m->rows + r * (m->width + 1);
        for (int64_t i = 0; i < m->width && row[m->width] > 0; i++)
            m->before[i] = (1 - S2S_NN_BATCH_MOMENTUM) * m->before[i] + row[i];
    }
    copy(t, m->before, false);
}

void train_moving_release(struct train_moving *m)
{
    free(m->before);
    free(m->rows);
    *m = (struct train_moving){0};
}
