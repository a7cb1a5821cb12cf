/* How Megatron's parallel ranks shard each kind of tensor: converts a local tensor to its boxes. */
#include "lib/ckpt/merge/merge_internal.h"

#include <fnmatch.h>

#include "lib/base/base.h"

enum cut {
    WHOLE,    /* replicated */
    AXIS_0,   /* sharded by rows */
    AXIS_1,   /* cut by columns */
    GATED,    /* rows of gate and up, each sharded; plain rows if the model is not gated */
    IN_PROJ,  /* rows of z, x, B, C, dt: five tensors */
    CONV,     /* rows of x, B, C: three tensors */
    FC1,      /* of an expert, gated or not */
    FC2,      /* of an expert, by columns */
    FC2_BIAS, /* of an expert, replicated */
    PACKED_1, /* all local experts' fc1 as [n, hidden, ffn] in one [hidden, n * ffn] */
    PACKED_2, /* all local experts' fc2 as [n, ffn, hidden] in one [n * ffn, hidden] */
};

/* The first pattern that matches a local name; others are replicated. {i} is the local expert. */
static const struct {
    const char *pattern;
    enum cut cut;
} table[] = {
    {"*embedding.word_embeddings.weight", AXIS_0},
    {"*output_layer.weight", AXIS_0},
    {"*output_layer.bias", AXIS_0},
    {"*attention.linear_qkv.weight", AXIS_0},
    {"*attention.linear_qkv.bias", AXIS_0},
    {"*attention.linear_q.weight", AXIS_0},
    {"*attention.linear_q.bias", AXIS_0},
    {"*attention.linear_kv.weight", AXIS_0},
    {"*attention.linear_kv.bias", AXIS_0},
    {"*attention.linear_q_proj.weight", AXIS_0},
    {"*attention.linear_q_up_proj.weight", AXIS_0},
    {"*attention.linear_kv_up_proj.weight", AXIS_0},
    {"*attention.linear_proj.weight", AXIS_1},
    {"*mlp.experts.local_experts.*.linear_fc1.weight", FC1},
    {"*mlp.experts.local_experts.*.linear_fc1.bias", FC1},
    {"*mlp.experts.local_experts.*.linear_fc2.weight", FC2},
    {"*mlp.experts.local_experts.*.linear_fc2.bias", FC2_BIAS},
    {"*mlp.experts.linear_fc1.weight[0-9]*", FC1},
    {"*mlp.experts.linear_fc1.bias[0-9]*", FC1},
    {"*mlp.experts.linear_fc2.weight[0-9]*", FC2},
    {"*mlp.experts.linear_fc2.bias[0-9]*", FC2_BIAS},
    {"*mlp.experts.weight1", PACKED_1},
    {"*mlp.experts.weight2", PACKED_2},
    {"*linear_fc1.weight", GATED},
    {"*linear_fc1.bias", GATED},
    {"*linear_fc2.weight", AXIS_1},
    {"*mixer.in_proj.weight", IN_PROJ},
    {"*mixer.conv1d.weight", CONV},
    {"*mixer.conv1d.bias", CONV},
    {"*mixer.A_log", AXIS_0},
    {"*mixer.D", AXIS_0},
    {"*mixer.dt_bias", AXIS_0},
    {"*mixer.norm.weight", AXIS_0},
    {"*mixer.out_proj.weight", AXIS_1},
    {"*embedder.weight", AXIS_0}, /* of RADIO's patches and videos */
    {"*embedder.bias", AXIS_0},
    {"*eh_proj.weight", AXIS_0},
};

/* A box at `offset` of a tensor of shape `whole` [n_dims]: `size` elements of the local tensor,
 * from element `from` on, with strides `stride`. */
struct box {
    int n_dims;
    int64_t whole[S2S_MAX_DIMS], offset[S2S_MAX_DIMS], size[S2S_MAX_DIMS], stride[S2S_MAX_DIMS];
    int64_t from;
};

static void add_part(struct merge *m, const struct merge_local *local, const char *name,
                     const struct box *box)
{
    const struct s2s_ckpt_tensor *tensor = local->tensor;
    s2s_grow(&m->parts, m->n_parts, &m->cap_parts, sizeof *m->parts);
    struct merge_part *part = &m->parts[m->n_parts++];
    *part =
        (struct merge_part){.tensor = {.name = ckpt_arena_text(m->ckpt, name, strlen(name)),
                                       .dtype = tensor->dtype,
                                       .n_dims = box->n_dims,
                                       .shape = ckpt_arena_ints(m->ckpt, box->whole, box->n_dims)},
                            .chunk = ckpt_chunk_at(tensor, 0),
                            .from = local->from ? local->from : tensor->name};
    part->chunk.offset = ckpt_arena_ints(m->ckpt, box->offset, box->n_dims);
    part->chunk.size = ckpt_arena_ints(m->ckpt, box->size, box->n_dims);
    part->chunk.stride = ckpt_arena_ints(m->ckpt, box->stride, box->n_dims);
    part->chunk.data += box->from * (int64_t)s2s_dtype_size(tensor->dtype);
}

/* The whole local tensor. */
static struct box box_of(const struct merge_local *local)
{
    const struct s2s_ckpt_tensor *t = local->tensor;
    const struct ckpt_chunk chunk = ckpt_chunk_at(t, 0);
    struct box box = {.n_dims = t->n_dims};
    ckpt_box_strides(box.stride, t->shape, t->n_dims);
    for (int d = 0; d < t->n_dims; d++) {
        box.whole[d] = box.size[d] = t->shape[d];
        if (chunk.stride)
            box.stride[d] = chunk.stride[d];
    }
    return box;
}

/* How an axis is sharded: rank `rank` of n_ranks has an equal part of it, or of each of its halves.
 */
struct along {
    int axis, n_halves, n_ranks, rank;
};

/* Adds the boxes of a local tensor that is sharded along one axis. */
static void add_along(struct merge *m, const struct merge_local *local, const char *name,
                      const struct box *all, struct along cut)
{
    const int64_t n = all->size[cut.axis] / cut.n_halves;
    struct box box = *all;
    box.whole[cut.axis] = all->size[cut.axis] * cut.n_ranks;
    box.size[cut.axis] = n;
    for (int half = 0; half < cut.n_halves; half++) {
        box.from = all->from + half * n * all->stride[cut.axis];
        box.offset[cut.axis] = half * n * cut.n_ranks + n * cut.rank;
        add_part(m, local, name, &box);
    }
}

/* Sharding over tensor-parallel ranks, and (by_etp) of experts over theirs. */
static struct along by_tp(const struct merge *m, const struct merge_local *local, int axis,
                          int n_halves)
{
    return (struct along){axis, n_halves, m->size[TP], local->rank->at[TP]};
}

static struct along by_etp(const struct merge *m, const struct merge_local *local, int axis,
                           int n_halves)
{
    return (struct along){axis, n_halves, m->etp, local->rank->at[TP] % m->etp};
}

static int bad_shape(const struct merge *m, const struct merge_local *local, const char *what)
{
    char text[200];
    return s2s_error_set(m->err, S2S_E_SHAPE, "%s: shape %s %s", local->tensor->name,
                         ckpt_shape_text(text, local->tensor->shape, local->tensor->n_dims), what);
}

/* The tensor of the same rank in whose name everything from `from` on is replaced by `to`. */
static const struct s2s_ckpt_tensor *sibling(const struct merge *m, const struct merge_local *local,
                                             const char *from, const char *to)
{
    const char *at = strstr(local->tensor->name, from);
    if (!at)
        return NULL;
    char *name = s2s_xasprintf("%.*s%s", (int)(at - local->tensor->name), local->tensor->name, to);
    const struct s2s_ckpt_tensor *found = s2s_ckpt_find(m->ckpt, name);
    free(name);
    return found;
}

/* Is an MLP's fc1 gated? Its own fc2 tells, as modules of one model differ (language model, vision
 * tower). */
static int find_gated(struct merge *m, const struct merge_local *local, bool *gated)
{
    const char *number = local->name + strlen(local->name);
    while (number > local->name && strchr("0123456789", number[-1]))
        number--;
    char *fc2 = s2s_xasprintf("linear_fc2.weight%s", number);
    const struct s2s_ckpt_tensor *fc1 = local->tensor,
                                 *down = sibling(m, local, "linear_fc1.", fc2);
    free(fc2);
    if (!down || fc1->n_dims < 1 || down->n_dims != 2)
        return s2s_error_set(m->err, S2S_E_NOTFOUND, "%s: its MLP has no linear_fc2 that fits",
                             fc1->name);
    *gated = fc1->shape[0] == 2 * down->shape[1];
    return *gated || fc1->shape[0] == down->shape[1]
               ? 0
               : s2s_error_set(m->err, S2S_E_SHAPE,
                               "%s: %lld rows, its linear_fc2 has %lld columns", fc1->name,
                               (long long)fc1->shape[0], (long long)down->shape[1]);
}

static int cut_rows(struct merge *m, const struct merge_local *local, const char *name, bool gated)
{
    const struct box all = box_of(local);
    const int n_halves = gated ? 2 : 1;
    if (all.n_dims < 1 || all.size[0] % n_halves)
        return bad_shape(m, local, "cannot be cut by rows");
    add_along(m, local, name, &all, by_tp(m, local, 0, n_halves));
    return 0;
}

static int cut_columns(struct merge *m, const struct merge_local *local, const char *name)
{
    const struct box all = box_of(local);
    if (all.n_dims != 2)
        return bad_shape(m, local, "cannot be cut by columns");
    add_along(m, local, name, &all, by_tp(m, local, 1, 1));
    return 0;
}

/* Splits rows into sections, each a tensor NAME.LETTER of its own. */
static int cut_sections(struct merge *m, const struct merge_local *local, const char *name,
                        const char *const *letters, const int64_t *rows, int n)
{
    const struct box all = box_of(local);
    int64_t at = 0, sum = 0;
    for (int i = 0; i < n; i++)
        sum += rows[i];
    if (all.n_dims < 1 || all.size[0] != sum)
        return bad_shape(m, local, "does not fit the Mamba layer's other tensors");
    for (int i = 0; i < n; at += rows[i++]) {
        struct box box = all;
        box.from = at * all.stride[0];
        box.size[0] = rows[i];
        char *section = s2s_xasprintf("%s.%s", name, letters[i]);
        add_along(m, local, section, &box, by_tp(m, local, 0, 1));
        free(section);
    }
    return 0;
}

/* The rows of z, x, B, C, dt on this rank follow from the layer's other tensors. */
static int mamba(struct merge *m, const struct merge_local *local, const char *name, enum cut cut)
{
    static const char *const letters[] = {"z", "x", "B", "C", "dt"};
    const struct s2s_ckpt_tensor *out = sibling(m, local, "mixer.", "mixer.out_proj.weight");
    const struct s2s_ckpt_tensor *conv = sibling(m, local, "mixer.", "mixer.conv1d.weight");
    const struct s2s_ckpt_tensor *heads = sibling(m, local, "mixer.", "mixer.A_log");
    if (!out || !conv || !heads || out->n_dims != 2 || conv->n_dims < 1 || heads->n_dims != 1 ||
        conv->shape[0] < out->shape[1] || (conv->shape[0] - out->shape[1]) % 2)
        return s2s_error_set(m->err, S2S_E_NOTFOUND,
                             "%s: its layer has no out_proj, conv1d and A_log that fit",
                             local->tensor->name);
    const int64_t inner = out->shape[1], state = (conv->shape[0] - inner) / 2;
    const int64_t rows[] = {inner, inner, state, state, heads->shape[0]};
    return cut == IN_PROJ ? cut_sections(m, local, name, letters, rows, 5)
                          : cut_sections(m, local, name, letters + 1, rows + 1, 3);
}

/* "experts.local_experts.3.linear_fc1.weight" and "experts.linear_fc1.weight3", whose number is
 * between begin and end, become "experts.experts.linear_fc1.weight". Gives: free. */
static char *name_of_all(const char *name, const char *begin, const char *end)
{
    const char *experts = strstr(name, "mlp.experts.") + strlen("mlp.experts.");
    return begin == experts ? s2s_xasprintf("%.*sexperts%s", (int)(begin - name), name, end)
                            : s2s_xasprintf("%.*sexperts.%.*s", (int)(experts - name), name,
                                            (int)(begin - experts), experts);
}

/* One expert: a box [1, ...] of the tensor of all experts. */
static int expert(struct merge *m, const struct merge_local *local, const char *name, enum cut cut)
{
    const char *begin, *end;
    const int64_t index = ckpt_merge_expert_of(name, &begin, &end);
    const struct box one = box_of(local);
    const size_t n_bytes = (size_t)one.n_dims * sizeof *one.size;
    bool gated = false;
    if (index < 0 || one.n_dims + 1 > S2S_MAX_DIMS || one.n_dims < 1 ||
        (cut == FC2 && one.n_dims != 2))
        return bad_shape(m, local, "is none of an expert");
    int rc = cut == FC1 ? find_gated(m, local, &gated) : 0;
    if (rc < 0)
        return rc;
    struct box box = {.n_dims = one.n_dims + 1};
    memcpy(box.whole + 1, one.whole, n_bytes);
    memcpy(box.size + 1, one.size, n_bytes);
    memcpy(box.stride + 1, one.stride, n_bytes);
    box.whole[0] = m->n_local * m->size[EP];
    box.size[0] = 1;
    box.offset[0] = local->rank->at[EP] * m->n_local + index;
    char *all = name_of_all(name, begin, end);
    if (cut == FC2_BIAS)
        add_part(m, local, all, &box);
    else
        add_along(m, local, all, &box, by_etp(m, local, cut == FC2 ? 2 : 1, gated ? 2 : 1));
    free(all);
    return 0;
}

/* All local experts in one tensor, which Megatron views as [n, hidden, ffn] or [n, ffn, hidden]. */
static int packed_experts(struct merge *m, const struct merge_local *local, const char *name,
                          enum cut cut)
{
    const bool first = cut == PACKED_1; /* becomes [n, ffn, hidden]; else [n, hidden, ffn] */
    const struct box all = box_of(local);
    const int64_t n = m->n_local;
    if (all.n_dims != 2 || n < 1 || all.size[first] % n || all.stride[1] != 1 ||
        all.stride[0] != all.size[1])
        return bad_shape(m, local, "does not divide into the rank's experts");
    const int64_t hidden = all.size[!first], ffn = all.size[first] / n;
    const struct s2s_ckpt_tensor *down = sibling(m, local, "weight1", "weight2");
    if (first && (!down || down->n_dims != 2 || down->shape[0] < 1 ||
                  (ffn * n != down->shape[0] && ffn * n != 2 * down->shape[0])))
        return bad_shape(m, local, "has no weight2 that fits");
    const bool gated = first && ffn * n != down->shape[0];
    const int f = first ? 1 : 2, h = first ? 2 : 1;
    struct box box = {.n_dims = 3, .offset = {local->rank->at[EP] * n}};
    box.whole[0] = n * m->size[EP];
    box.whole[h] = box.size[h] = hidden;
    box.size[0] = n;
    box.size[f] = ffn;
    box.stride[0] = hidden * ffn;
    box.stride[f] = first ? 1 : hidden;
    box.stride[h] = first ? ffn : 1;
    char *to = s2s_xasprintf("%.*sexperts.linear_fc%d.weight",
                             (int)(strlen(name) - strlen("weight1")), name, first ? 1 : 2);
    add_along(m, local, to, &box, by_etp(m, local, f, gated ? 2 : 1));
    free(to);
    return 0;
}

int ckpt_merge_cut(struct merge *m, const struct merge_local *local, const char *name)
{
    enum cut cut = WHOLE;
    bool gated;
    int rc;
    for (size_t i = 0; i < sizeof table / sizeof *table && cut == WHOLE; i++)
        if (fnmatch(table[i].pattern, name, 0) == 0)
            cut = table[i].cut;
    struct box box = box_of(local);
    switch (cut) {
    case WHOLE:
        add_part(m, local, name, &box);
        return 0;
    case AXIS_0:
        return cut_rows(m, local, name, false);
    case GATED:
        rc = find_gated(m, local, &gated);
        return rc < 0 ? rc : cut_rows(m, local, name, gated);
    case AXIS_1:
        return cut_columns(m, local, name);
    case IN_PROJ:
    case CONV:
        return mamba(m, local, name, cut);
    case PACKED_1:
    case PACKED_2:
        return packed_experts(m, local, name, cut);
    default:
        return expert(m, local, name, cut);
    }
}
