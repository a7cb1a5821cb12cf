/* Outputs of cheap operations that are computed again in the backward instead of being kept. */
#include "lib/tensor/tensor_internal.h"

static size_t bytes_of(const struct s2s_tensor *t)
{
    return (size_t)s2s_tensor_numel(t) * s2s_dtype_size(t->dtype);
}

bool s2s_tape_lend(struct s2s_tape *tape, bool lends)
{
    const bool before = tape->lends;
    tape->lends = lends && tape->discards && tape->recording;
    return before;
}

struct s2s_tensor *tensor_output(struct s2s_tape *tape, const struct s2s_tensor *like, bool record)
{
    struct s2s_tensor *t;
    if (!tape->lends || !record)
        return s2s_tape_tensor(tape, like->dtype, like->n_dims, like->shape);
    tape->lends = false;
    t = tensor_alias(tape, like);
    t->row_stride = s2s_tensor_cols(t);
    tensor_queue(tape);
    t->data = s2s_pool_get(&tape->device->pool, bytes_of(t));
    t->lent = true;
    return t;
}

static void point_to(struct s2s_tensor *t, void *data)
{
    for (; t; t = t->next_alias)
        t->data = data;
}

void tensor_give_back(struct s2s_tensor *t)
{
    if (!t->lent || !t->data)
        return;
    s2s_pool_put(&t->device->pool, t->data, bytes_of(t));
    point_to(t, NULL);
}

/* Before the backward of its readers: they find it where it is now. */
static void compute_again(struct s2s_tape *tape, struct s2s_node *node)
{
    struct s2s_node *maker = node->saved;
    struct s2s_tensor *t = maker->out[0];
    point_to(t, s2s_pool_get(&tape->device->pool, bytes_of(t)));
    maker->again(tape, maker);
}

void s2s_tape_discard(struct s2s_tape *tape, struct s2s_tensor *t)
{
    if (!t->lent || !t->data)
        return;
    if (!t->maker || !t->maker->again || t->maker->out[0] != t)
        S2S_BUG("%s: nobody computes a tensor again", tape->layer);
    tensor_give_back(t);
    struct s2s_node *node = s2s_tape_push(tape, "again", compute_again, 0, NULL, 0, NULL);
    node->saved = t->maker;
    node->always = true;
}
