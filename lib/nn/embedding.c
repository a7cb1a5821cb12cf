/* Tables whose rows ranks share out. */
#include "lib/nn/embedding.h"

#include <stdlib.h>

#include "lib/base/mem.h"

struct s2s_param_spec s2s_nn_table_spec(const struct s2s_par *par, int64_t n, int64_t width,
                                        double init_std)
{
    return (struct s2s_param_spec){.n_dims = 2,
                                   .shape = {n, width},
                                   .cuts = {{S2S_AXIS_TP, 0, par->tp}},
                                   .flags = S2S_PARAM_UNEVEN,
                                   .init = {S2S_INIT_NORMAL, init_std}};
}

struct s2s_nn_table s2s_nn_table_of(struct s2s_param *w)
{
    return (struct s2s_nn_table){w, {w->cuts[0].group, w->shape[0]}};
}

/* The row of an id in this rank's part of the table; -1: it has none. */
static int32_t row_of(const struct s2s_classes *classes, int32_t id)
{
    const int size = s2s_group_size(classes->group), rank = s2s_group_rank(classes->group);
    const int64_t begin = s2s_cut_begin(classes->n, rank, size),
                  end = s2s_cut_begin(classes->n, rank + 1, size);
    return id >= begin && id < end ? (int32_t)(id - begin) : -1;
}

struct s2s_tensor *s2s_nn_embed(struct s2s_tape *tape, const struct s2s_nn_table *table,
                                const struct s2s_nn_tp *tp, const int32_t *ids, int64_t n,
                                float scale, int32_t skip_id)
{
    const int64_t n_rows = s2s_nn_rows(tp, n);
    int32_t *rows = s2s_xmalloc((size_t)(n_rows + 1) * sizeof *rows);
    for (int64_t i = 0; i < n_rows; i++)
        rows[i] = i < n ? row_of(&table->classes, ids[i]) : -1;
    struct s2s_tensor *y = s2s_op_embedding(tape, table->w->tensor, rows, n_rows, scale,
                                            row_of(&table->classes, skip_id));
    free(rows);
    return s2s_nn_leave(tape, tp, y);
}

struct s2s_tensor *s2s_nn_logits(struct s2s_tape *tape, const struct s2s_nn_table *table,
                                 struct s2s_tensor *x)
{
    const struct s2s_group *group = table->classes.group;
    const int size = s2s_group_size(group);
    const bool recording = tape->recording;
    tape->recording = false;
    struct s2s_tensor *logits = s2s_op_logits(tape, x, table->w->tensor);
    if (size > 1) {
        int64_t *widths = s2s_tape_host_alloc(tape, (size_t)size * sizeof *widths);
        for (int r = 0; r < size; r++)
            widths[r] = s2s_cut_begin(table->classes.n, r + 1, size) -
                        s2s_cut_begin(table->classes.n, r, size);
        logits =
            s2s_op_gather_columns(tape, logits, &(struct s2s_columns_of){group, 0, size, widths});
    }
    tape->recording = recording;
    return logits;
}
