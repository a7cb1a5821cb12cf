/* Packs tensors as soon as they are values of a dict or list: large torch.save files consist of
 * these, and a collection would have their records in memory twice. */
#include "lib/ckpt/pickle/dtensor.h"
#include "lib/ckpt/pickle/pickle_internal.h"

static bool may_be_dtensor(const struct pickle_machine *m, const struct ckpt_node *node)
{
    return m->taker && m->taker->packs_dtensors && node->kind == CKPT_RECORD &&
           ckpt_is_wrapped(node);
}

bool ckpt_pickle_may_pack(const struct pickle_machine *m, const struct ckpt_node *node)
{
    return ckpt_view_is_plain(node) || may_be_dtensor(m, node);
}

bool ckpt_pickle_put_tensor(struct pickle_machine *m, struct s2s_buf *out,
                            const struct ckpt_node *node)
{
    return may_be_dtensor(m, node) ? ckpt_dtensor_put(out, m->out, node) : ckpt_view_put(out, node);
}

bool ckpt_pickle_pack(struct pickle_machine *m, struct ckpt_node *node)
{
    struct s2s_buf *packed = &m->alone;
    s2s_buf_clear(packed);
    if (!ckpt_pickle_may_pack(m, node) || !ckpt_pickle_put_tensor(m, packed, node))
        return false;
    node->kind = CKPT_TENSOR;
    node->text = s2s_blocks_text(&m->out->kept, packed->data, packed->len);
    node->len = (uint32_t)packed->len;
    return true;
}

/* A copy of a node in memory that is never moved; other references to the original stay valid. */
static struct ckpt_node *keep_node(struct pickle_machine *m, const struct ckpt_node *node)
{
    struct ckpt_node *kept = s2s_blocks_alloc(&m->out->kept, sizeof *kept);
    *kept = *node;
    kept->is_kept = true;
    return kept;
}

void ckpt_pickle_pack_item(struct pickle_machine *m, struct ckpt_node **key,
                           struct ckpt_node **value)
{
    /* a DTensor's part is packed with it, and what is kept would not go */
    if (key && m->taker && m->taker->packs_dtensors && ckpt_str_is(*key, "_local_tensor"))
        return;
    if ((*value)->kind == CKPT_RECORD && ckpt_pickle_pack(m, *value)) {
        m->n_packed++;
        *value = keep_node(m, *value);
    }
    if ((*value)->kind == CKPT_TENSOR && key && (*key)->kind == CKPT_STR && !(*key)->opaque) {
        (*key)->text = s2s_blocks_text(&m->out->names, (*key)->text, (*key)->len);
        (*key)->opaque = true;
        *key = keep_node(m, *key);
    }
}
