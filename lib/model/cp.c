/* Batches whose sequences are cut over ranks, and whose clips are spread over them. */
#include <stdlib.h>

#include "lib/base/error.h"
#include "lib/base/mem.h"
#include "lib/conf/conf.h"
#include "lib/model/model_internal.h"
#include "lib/thd/cp.h"

int model_check_cp(const struct s2s_model *model, int64_t n_heads, int64_t n_kv_heads,
                   struct s2s_error *err)
{
    const struct s2s_par *par = model->par;
    const int cp = s2s_group_size(par->cp), tp = s2s_group_size(par->tp);
    const struct {
        const char *key, *what;
        int64_t n;
    } heads[] = {{"num_attention_heads", "attention heads", n_heads},
                 {"num_key_value_heads", "key-value heads", n_kv_heads}};
    for (int i = 0; cp > 1 && par->cp_comm == S2S_CP_ALL_TO_ALL && i < 2; i++) {
        if (heads[i].n % (cp * tp) == 0)
            continue;
        const struct s2s_conf *node = s2s_conf_find(model->conf, heads[i].key);
        int rc = s2s_conf_error(err, S2S_E_RANGE, node ? node : model->conf,
                                "%lld %s cannot be shared by cp %d x tp %d ranks, as mesh.cp_comm "
                                "a2a does",
                                (long long)heads[i].n, heads[i].what, cp, tp);
        return s2s_error_hint(err, rc, "use mesh.cp_comm: all_gather or p2p");
    }
    return 0;
}

static const struct s2s_group *cutting(const struct s2s_model *model, const struct s2s_pass *pass)
{
    return s2s_group_size(model->par->cp) > 1 && !pass->fwd->decode ? model->par->cp : NULL;
}

/* Where the slots of all stand when the rows of the ranks are laid one behind the other; the rows
 * that each has behind its slots come last. */
static int32_t *order_of(const struct s2s_batch *batch, int size, int64_t n_rows)
{
    const int64_t n = batch->n_tokens, n_slots = n * size;
    int32_t *all = s2s_xmalloc((size_t)(batch->n_seqs + 1) * sizeof *all);
    int32_t *order = s2s_xmalloc((size_t)(n_rows * size + 1) * sizeof *order);
    for (int64_t s = 0; s <= batch->n_seqs; s++)
        all[s] = batch->cu_seqlens[s] * size;
    s2s_thd_cp_inverse(order, all, (size_t)batch->n_seqs, size);
    for (int64_t i = 0; i < n_slots; i++)
        order[i] = (int32_t)(order[i] / n * n_rows + order[i] % n);
    for (int64_t i = 0; i < (n_rows - n) * size; i++)
        order[n_slots + i] = (int32_t)(i / (n_rows - n) * n_rows + n + i % (n_rows - n));
    free(all);
    return order;
}

const struct s2s_spans_cp *model_spans_cp(const struct s2s_model *model,
                                          const struct s2s_pass *pass, int64_t n_rows)
{
    return model_spans_cp_window(model, pass, n_rows, 0);
}

const struct s2s_spans_cp *model_spans_cp_window(const struct s2s_model *model,
                                                 const struct s2s_pass *pass, int64_t n_rows,
                                                 int64_t window)
{
    const struct s2s_batch *batch = pass->batch;
    const struct s2s_group *group = cutting(model, pass);
    if (!group)
        return NULL;
    struct s2s_spans_cp *spans = s2s_tape_host_alloc(pass->tape, sizeof *spans);
    int32_t *order = order_of(batch, group->size, n_rows);
    *spans = s2s_op_spans_cp(pass->tape, batch->cu_seqlens, batch->n_seqs, n_rows, order, group,
                             model->par->cp_comm);
    if (window > 0)
        s2s_op_spans_cp_window(pass->tape, spans, batch->cu_seqlens, batch->n_seqs, window);
    model_name_spans_cp(pass, spans, n_rows);
    free(order);
    return spans;
}

const struct s2s_trade *model_trade_cp(const struct s2s_model *model, const struct s2s_pass *pass,
                                       int64_t n_rows, struct s2s_seqs *seqs)
{
    const struct s2s_batch *batch = pass->batch;
    const struct s2s_group *group = cutting(model, pass);
    const int size = s2s_group_size(group);
    int32_t *all = s2s_xmalloc((size_t)(batch->n_seqs + 1) * sizeof *all);
    for (int64_t s = 0; s <= batch->n_seqs; s++)
        all[s] = batch->cu_seqlens[s] * size;
    *seqs = s2s_op_seqs(pass->tape, all, batch->n_seqs);
    free(all);
    if (!group)
        return NULL;
    struct s2s_trade *trade = s2s_tape_host_alloc(pass->tape, sizeof *trade);
    int32_t *order = order_of(batch, size, n_rows);
    *trade =
        (struct s2s_trade){group, n_rows, s2s_tape_upload_i32(pass->tape, order, n_rows * size)};
    free(order);
    return trade;
}

const struct s2s_group *model_spread(const struct s2s_model *encoder, const struct s2s_pass *pass)
{
    return encoder->options.batch_norm_batch ? NULL : cutting(encoder, pass);
}
