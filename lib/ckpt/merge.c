/*
 * Megatron's rank folders as one checkpoint. Each mp_rank_TT[_PPP][_EEE] holds the tensors of one
 * tensor-parallel, pipeline and expert-parallel rank under local names. Here every local tensor
 * becomes one or more boxes of a tensor with its global name and shape: nothing is copied, the
 * boxes point into the files. Names and layouts are those of Megatron-Core's torch_dist, so that
 * what reads that reads this.
 *
 *   tp  the table below says which axis is cut; gated fc1 is [w_r; v_r] on each rank, Mamba's
 * in_proj [z_r x_r B_r C_r dt_r], its conv1d [x_r B_r C_r] pp  layers count from 0 on each rank;
 * with virtual stages chunk v of rank p comes before chunk v + 1 of any rank (Narayanan et al.
 * 2021) ep  local experts i of rank e are the global ones e * n_local + i
 *
 * What several ranks hold whole must be equal bit for bit.
 */
#include <fnmatch.h>

#include "lib/base/base.h"
#include "lib/ckpt/model.h"

enum cut {
    WHOLE,    /* every rank has all of it */
    AXIS_0,   /* cut by rows */
    AXIS_1,   /* cut by columns */
    GATED,    /* rows, of two halves each; rows alone where the model is not gated */
    IN_PROJ,  /* rows of z, x, B, C, dt: five tensors */
    CONV,     /* rows of x, B, C: three tensors */
    FC1,      /* an expert's, gated or not */
    FC2,      /* an expert's, cut by columns */
    FC2_BIAS, /* an expert's, whole */
    PACKED_1, /* all local experts' fc1 as [n, hidden, ffn] in one [hidden, n * ffn] */
    PACKED_2, /* all local experts' fc2 as [n, ffn, hidden] in one [n * ffn, hidden] */
};

/* The first that fits the end of a local name; others are whole. {i} is the local expert. */
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
    {"*vision_model.embedder.weight", AXIS_0},
    {"*vision_model.embedder.bias", AXIS_0},
    {"*radio_model.embedder.weight", AXIS_0},
    {"*radio_model.embedder.bias", AXIS_0},
    {"*vision_model.video_embedder.weight", AXIS_0},
    {"*eh_proj.weight", AXIS_0},
};

/* One rank folder. */
struct rank {
    char folder[32]; /* "mp_rank_00_001" */
    int at[3];       /* tp, pp, ep */
};

/* A stack of layers: how many a virtual stage of a pipeline rank has, and which comes first. */
struct stack {
    char *prefix; /* "decoder.layers." */
    int64_t *n;   /* [n_chunks * pp] */
};

/* A box of a tensor to be. */
struct part {
    struct s2s_ckpt_tensor tensor; /* name, dtype, whole shape */
    struct ckpt_chunk chunk;
    const char *from; /* the local name, for messages */
};

struct merge {
    struct s2s_ckpt *ckpt;
    struct s2s_error *err;
    struct rank *ranks;
    size_t n_ranks, cap_ranks;
    int size[3], n_chunks; /* tp, pp, ep; virtual stages of a pipeline rank */
    bool tied;
    int64_t n_local; /* experts of a rank */
    struct stack *stacks;
    size_t n_stacks, cap_stacks;
    struct part *parts;
    size_t n_parts, cap_parts;
};

/* A local tensor: whose, which virtual stage, its name without folder and stage. */
struct local {
    const struct s2s_ckpt_tensor *tensor;
    const struct rank *rank;
    int chunk;
    const char *name;
};

/* ---- ranks ---- */

static const json_t *args_of(const struct merge *m)
{
    const json_t *own = json_object_get(m->ckpt->common, m->ranks[0].folder);
    return json_object_get(own, "args");
}

/* The integer of that name among the arguments; `absent` when there is none. */
static int64_t arg(const struct merge *m, const char *name, int64_t absent)
{
    const json_t *value = json_object_get(args_of(m), name);
    return json_is_integer(value) ? json_integer_value(value) : absent;
}

static int add_rank(struct merge *m, const char *folder)
{
    struct rank rank = {.at = {0, 0, 0}};
    int second = -1, third = -1, end = 0;
    int n =
        sscanf(folder, "mp_rank_%2d%n_%3d%n_%3d%n", &rank.at[0], &end, &second, &end, &third, &end);
    if (n < 1 || rank.at[0] < 0 || second < -1 || third < -1 || folder[end] ||
        strlen(folder) >= sizeof rank.folder)
        return s2s_error_set(m->err, S2S_E_FORMAT, "%s: no folder of a Megatron rank", folder);
    snprintf(rank.folder, sizeof rank.folder, "%s", folder);
    rank.at[1] = second < 0 ? 0 : second;
    rank.at[2] = third < 0 ? 0 : third;
    s2s_grow(&m->ranks, m->n_ranks, &m->cap_ranks, sizeof *m->ranks);
    m->ranks[m->n_ranks++] = rank;
    /* without pipelines the second number is the expert rank */
    if (second >= 0 && third < 0 && arg(m, "pipeline_model_parallel_size", 2) == 1) {
        m->ranks[m->n_ranks - 1].at[1] = 0;
        m->ranks[m->n_ranks - 1].at[2] = second;
    }
    return 0;
}

static int list_ranks(struct merge *m)
{
    const char *key;
    json_t *value;
    int rc = 0;
    json_object_foreach(m->ckpt->common, key, value)
    {
        if (rc == 0)
            rc = add_rank(m, key);
    }
    if (rc == 0 && m->n_ranks == 0)
        rc = s2s_error_set(m->err, S2S_E_FORMAT, "no rank folder");
    for (size_t i = 0; rc == 0 && i < m->n_ranks; i++)
        for (int d = 0; d < 3; d++)
            m->size[d] = m->ranks[i].at[d] >= m->size[d] ? m->ranks[i].at[d] + 1 : m->size[d];
    return rc;
}

static int check_ranks(struct merge *m)
{
    static const char *const names[3] = {
        "tensor_model_parallel_size", "pipeline_model_parallel_size", "expert_model_parallel_size"};
    for (int d = 0; d < 3; d++) {
        int64_t said = arg(m, names[d], m->size[d]);
        if (said != m->size[d])
            return s2s_error_set(m->err, S2S_E_NOTFOUND,
                                 "the saved arguments say %s %lld, the rank folders are of %d",
                                 names[d], (long long)said, m->size[d]);
    }
    if ((size_t)m->size[0] * (size_t)m->size[1] * (size_t)m->size[2] != m->n_ranks)
        return s2s_error_set(m->err, S2S_E_NOTFOUND,
                             "%zu rank folders do not make tp %d x pp %d x ep %d: some are missing",
                             m->n_ranks, m->size[0], m->size[1], m->size[2]);
    int64_t etp = arg(m, "expert_tensor_parallel_size", m->size[0]);
    if (m->n_local && etp != m->size[0])
        return s2s_error_set(m->err, S2S_E_UNSUPPORTED,
                             "expert_tensor_parallel_size %lld is not tensor_model_parallel_size",
                             (long long)etp);
    return 0;
}

/* ---- local names ---- */

static int find_local(struct local *local, const struct merge *m, const struct s2s_ckpt_tensor *t)
{
    const char *slash = strchr(t->name, '/');
    *local = (struct local){.tensor = t};
    for (size_t i = 0; slash && i < m->n_ranks && !local->rank; i++)
        if (strlen(m->ranks[i].folder) == (size_t)(slash - t->name) &&
            strncmp(m->ranks[i].folder, t->name, (size_t)(slash - t->name)) == 0)
            local->rank = &m->ranks[i];
    if (!local->rank)
        return s2s_error_set(m->err, S2S_E_FORMAT, "%s belongs to no rank", t->name);
    local->name = slash + 1;
    size_t digits =
        strncmp(local->name, "model", 5) == 0 ? strspn(local->name + 5, "0123456789") : 0;
    if (digits && digits < 4 && local->name[5 + digits] == '.') {
        local->chunk = (int)strtol(local->name + 5, NULL, 10);
        local->name += digits + 6;
    }
    return 0;
}

/* Where the number of a layer stands: behind the first "layers." */
static const char *layer_of(const char *name, int64_t *layer)
{
    const char *at = strstr(name, "layers.");
    if (!at || (at > name && at[-1] != '.') || !strchr("0123456789", at[7]))
        return NULL;
    char *end;
    *layer = strtol(at + 7, &end, 10);
    return *layer < 1 << 20 && *end == '.' ? at + 7 : NULL;
}

static struct stack *stack_of(struct merge *m, const char *name, size_t len)
{
    for (size_t i = 0; i < m->n_stacks; i++)
        if (strlen(m->stacks[i].prefix) == len && memcmp(m->stacks[i].prefix, name, len) == 0)
            return &m->stacks[i];
    s2s_grow(&m->stacks, m->n_stacks, &m->cap_stacks, sizeof *m->stacks);
    m->stacks[m->n_stacks] =
        (struct stack){s2s_xstrndup(name, len),
                       s2s_xcalloc((size_t)m->n_chunks * (size_t)m->size[1], sizeof(int64_t))};
    return &m->stacks[m->n_stacks++];
}

/* The index of the local expert that a name ends with or holds, -1 for others; *begin and *end are
 * where "local_experts.I" or the number stands. */
static int64_t expert_of(const char *name, const char **begin, const char **end)
{
    static const char sequential[] = "experts.local_experts.";
    const char *at = strstr(name, sequential);
    char *stop;
    *begin = *end = name;
    if (at) {
        *begin = at + strlen("experts.");
        int64_t index = strtol(at + strlen(sequential), &stop, 10);
        *end = stop;
        return index;
    }
    if (!strstr(name, "mlp.experts.linear_fc"))
        return -1;
    at = name + strlen(name);
    *end = at;
    while (at > name && strchr("0123456789", at[-1]))
        at--;
    *begin = at;
    return *at ? strtol(at, NULL, 10) : -1;
}

/* Stages, layers and experts of each rank. */
static int survey(struct merge *m)
{
    struct local local;
    const char *begin, *end;
    int64_t layer;
    m->n_chunks = 1;
    for (size_t i = 0; i < m->ckpt->n_tensors; i++) {
        int rc = find_local(&local, m, &m->ckpt->tensors[i]);
        if (rc < 0)
            return rc;
        m->n_chunks = local.chunk >= m->n_chunks ? local.chunk + 1 : m->n_chunks;
        int64_t expert = expert_of(local.name, &begin, &end);
        if (expert >= 1 << 16)
            return s2s_error_set(m->err, S2S_E_FORMAT, "%s: absurd expert", local.name);
        m->n_local = expert >= m->n_local ? expert + 1 : m->n_local;
    }
    if (m->n_local == 0 && arg(m, "num_experts", 0) > 0)
        m->n_local = arg(m, "num_experts", 0) / m->size[2]; /* all of a rank in one tensor */
    for (size_t i = 0; i < m->ckpt->n_tensors; i++) {
        find_local(&local, m, &m->ckpt->tensors[i]);
        const char *at = layer_of(local.name, &layer);
        if (!at)
            continue;
        struct stack *stack = stack_of(m, local.name, (size_t)(at - local.name));
        int64_t *n = &stack->n[local.chunk * m->size[1] + local.rank->at[1]];
        *n = layer >= *n ? layer + 1 : *n;
    }
    return 0;
}

/* The name with the number of the layer counted over all stages. Gives: free. */
static char *global_name(struct merge *m, const struct local *local)
{
    int64_t layer, first = 0;
    const char *at = layer_of(local->name, &layer), *output = strstr(local->name, "output_layer.");
    if (m->tied && output && strcmp(output, "output_layer.weight") == 0)
        return s2s_xasprintf("%.*sembedding.word_embeddings.weight", (int)(output - local->name),
                             local->name);
    if (!at)
        return s2s_xstrdup(local->name);
    const struct stack *stack = stack_of(m, local->name, (size_t)(at - local->name));
    for (int i = 0; i < local->chunk * m->size[1] + local->rank->at[1]; i++)
        first += stack->n[i];
    return s2s_xasprintf("%.*s%lld%s", (int)(at - local->name), local->name,
                         (long long)(first + layer), at + strspn(at, "0123456789"));
}

/* ---- boxes ---- */

/* A box of `whole` [n_dims] at `offset`, of the `size` elements from element `from` of the local
 * tensor on, by `stride`. */
struct box {
    int n_dims;
    int64_t whole[S2S_MAX_DIMS], offset[S2S_MAX_DIMS], size[S2S_MAX_DIMS], stride[S2S_MAX_DIMS];
    int64_t from;
};

static void add_part(struct merge *m, const struct local *local, const char *name,
                     const struct box *box)
{
    const struct ckpt_chunk *chunk = local->tensor->chunks;
    s2s_grow(&m->parts, m->n_parts, &m->cap_parts, sizeof *m->parts);
    struct part *part = &m->parts[m->n_parts++];
    *part = (struct part){.tensor = *local->tensor, .chunk = *chunk, .from = local->tensor->name};
    part->tensor.name = ckpt_arena_text(m->ckpt, name, strlen(name));
    part->tensor.n_dims = box->n_dims;
    part->tensor.shape = ckpt_arena_ints(m->ckpt, box->whole, box->n_dims);
    part->chunk.offset = ckpt_arena_ints(m->ckpt, box->offset, box->n_dims);
    part->chunk.size = ckpt_arena_ints(m->ckpt, box->size, box->n_dims);
    part->chunk.stride = ckpt_arena_ints(m->ckpt, box->stride, box->n_dims);
    part->chunk.data += box->from * (int64_t)s2s_dtype_size(local->tensor->dtype);
}

/* The local tensor as it is. */
static struct box box_of(const struct local *local)
{
    const struct s2s_ckpt_tensor *t = local->tensor;
    struct box box = {.n_dims = t->n_dims};
    for (int d = 0; d < t->n_dims; d++) {
        box.whole[d] = box.size[d] = t->shape[d];
        box.stride[d] = t->chunks->stride[d];
    }
    return box;
}

/* Rows [begin, begin + n) of the local tensor, rank `r` of `t` in a tensor (or section) of t * n
 * rows that starts at row `first` of `rows`. */
static struct box rows_of(const struct box *all, int64_t begin, int64_t n, int64_t first,
                          int64_t rows, int r)
{
    struct box box = *all;
    box.from += begin * all->stride[0];
    box.size[0] = n;
    box.whole[0] = rows;
    box.offset[0] = first + n * r;
    return box;
}

static int bad_shape(const struct merge *m, const struct local *local, const char *what)
{
    char text[200];
    return s2s_error_set(m->err, S2S_E_SHAPE, "%s: shape %s %s", local->tensor->name,
                         ckpt_shape_text(text, local->tensor->shape, local->tensor->n_dims), what);
}

/* The tensor of the same rank whose name has `to` and what follows for `from` and what follows. */
static const struct s2s_ckpt_tensor *sibling(const struct merge *m, const struct local *local,
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

/* Whether the rows of an MLP's fc1 are two halves, which its own fc2 tells: modules of one model
 * differ (a language model and a vision tower). */
static int find_gated(struct merge *m, const struct local *local, bool *gated)
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

static int cut_rows(struct merge *m, const struct local *local, const char *name, bool halves)
{
    const int t = m->size[0], r = local->rank->at[0];
    const struct box all = box_of(local);
    const int64_t n = all.n_dims ? all.size[0] / (halves ? 2 : 1) : 0;
    if (all.n_dims < 1 || (halves && all.size[0] % 2))
        return bad_shape(m, local, "cannot be cut by rows");
    for (int64_t half = 0; half < (halves ? 2 : 1); half++) {
        struct box box = rows_of(&all, half * n, n, half * n * t, all.size[0] * t, r);
        add_part(m, local, name, &box);
    }
    return 0;
}

static int cut_columns(struct merge *m, const struct local *local, const char *name)
{
    struct box box = box_of(local);
    if (box.n_dims != 2)
        return bad_shape(m, local, "cannot be cut by columns");
    box.whole[1] *= m->size[0];
    box.offset[1] = box.size[1] * local->rank->at[0];
    add_part(m, local, name, &box);
    return 0;
}

/* Rows of sections, each a tensor NAME.LETTER of its own. */
static int cut_sections(struct merge *m, const struct local *local, const char *name,
                        const char *const *letters, const int64_t *rows, int n)
{
    const struct box all = box_of(local);
    int64_t at = 0, sum = 0;
    for (int i = 0; i < n; i++)
        sum += rows[i];
    if (all.n_dims < 1 || all.size[0] != sum)
        return bad_shape(m, local, "is none of the Mamba layer's other tensors");
    for (int i = 0; i < n; at += rows[i++]) {
        struct box box = rows_of(&all, at, rows[i], 0, rows[i] * m->size[0], local->rank->at[0]);
        char *section = s2s_xasprintf("%s.%s", name, letters[i]);
        add_part(m, local, section, &box);
        free(section);
    }
    return 0;
}

/* Rows of z, x, B, C, dt on this rank: the other tensors of the layer tell them. */
static int mamba(struct merge *m, const struct local *local, const char *name, enum cut cut)
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

/* One expert: box [1, ...] of the tensor of all. */
static int expert(struct merge *m, const struct local *local, const char *name, enum cut cut)
{
    const char *begin, *end;
    const int64_t index = expert_of(name, &begin, &end);
    const int t = m->size[0], r = local->rank->at[0];
    const struct box one = box_of(local);
    bool gated = false;
    if (index < 0 || one.n_dims + 1 > S2S_MAX_DIMS || one.n_dims < 1 ||
        (cut == FC2 && one.n_dims != 2))
        return bad_shape(m, local, "is none of an expert");
    int rc = cut == FC1 ? find_gated(m, local, &gated) : 0;
    if (rc < 0)
        return rc;
    struct box box = {.n_dims = one.n_dims + 1};
    memcpy(box.whole + 1, one.whole, sizeof(int64_t) * (size_t)one.n_dims);
    memcpy(box.size + 1, one.size, sizeof(int64_t) * (size_t)one.n_dims);
    memcpy(box.stride + 1, one.stride, sizeof(int64_t) * (size_t)one.n_dims);
    box.whole[0] = m->n_local * m->size[2];
    box.size[0] = 1;
    box.offset[0] = local->rank->at[2] * m->n_local + index;
    /* "experts.local_experts.3.linear_fc1.weight" and "experts.linear_fc1.weight3" are
     * "experts.experts.linear_fc1.weight" */
    const char *experts = strstr(name, "mlp.experts.") + strlen("mlp.experts.");
    char *all = begin == experts ? s2s_xasprintf("%.*sexperts%s", (int)(begin - name), name, end)
                                 : s2s_xasprintf("%.*sexperts.%.*s", (int)(experts - name), name,
                                                 (int)(begin - experts), experts);
    if (cut == FC2) {
        box.whole[2] *= t;
        box.offset[2] = one.size[1] * r;
        add_part(m, local, all, &box);
    } else if (cut == FC2_BIAS) {
        add_part(m, local, all, &box);
    } else {
        const int64_t halves = gated ? 2 : 1, n = one.size[0] / halves;
        box.whole[1] = one.size[0] * t;
        box.size[1] = n;
        for (int64_t half = 0; half < halves; half++) {
            struct box piece = box;
            piece.from = half * n * one.stride[0];
            piece.offset[1] = half * n * t + n * r;
            add_part(m, local, all, &piece);
        }
    }
    free(all);
    return 0;
}

/* All local experts in one tensor, which Megatron views as [n, hidden, ffn] or [n, ffn, hidden]. */
static int packed_experts(struct merge *m, const struct local *local, const char *name,
                          enum cut cut)
{
    const struct box all = box_of(local);
    const int64_t n = m->n_local;
    const int t = m->size[0], r = local->rank->at[0];
    if (all.n_dims != 2 || n < 1 || all.size[cut == PACKED_1] % n || all.stride[1] != 1 ||
        all.stride[0] != all.size[1])
        return bad_shape(m, local, "does not divide into the rank's experts");
    const int64_t hidden = all.size[cut == PACKED_1 ? 0 : 1];
    const int64_t ffn = all.size[cut == PACKED_1] / n;
    const struct s2s_ckpt_tensor *down = sibling(m, local, "weight1", "weight2");
    if (cut == PACKED_1 && (!down || down->n_dims != 2 || down->shape[0] < 1 ||
                            (ffn * n != down->shape[0] && ffn * n != 2 * down->shape[0])))
        return bad_shape(m, local, "has no weight2 that fits");
    const int64_t halves = cut == PACKED_1 && ffn * n != down->shape[0] ? 2 : 1;
    const int64_t piece = ffn / halves;
    struct box box = {.n_dims = 3, .offset = {local->rank->at[2] * n}};
    const bool first = cut == PACKED_1; /* [n, ffn, hidden]; else [n, hidden, ffn] */
    const int f = first ? 1 : 2, h = first ? 2 : 1;
    box.whole[0] = n * m->size[2];
    box.whole[f] = ffn * t;
    box.whole[h] = box.size[h] = hidden;
    box.size[0] = n;
    box.size[f] = piece;
    box.stride[0] = hidden * ffn;
    box.stride[f] = first ? 1 : hidden;
    box.stride[h] = first ? ffn : 1;
    char *to = s2s_xasprintf("%.*sexperts.linear_fc%d.weight",
                             (int)(strlen(name) - strlen("weight1")), name, first ? 1 : 2);
    for (int64_t half = 0; half < halves; half++) {
        box.from = half * piece;
        box.offset[f] = half * piece * t + piece * r;
        add_part(m, local, to, &box);
    }
    free(to);
    return 0;
}

static int add_local(struct merge *m, const struct local *local, const char *name)
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

/* ---- parts to tensors ---- */

static int compare_ints(const int64_t *a, const int64_t *b, int n)
{
    for (int d = 0; d < n; d++)
        if (a[d] != b[d])
            return a[d] < b[d] ? -1 : 1;
    return 0;
}

/* by name, then by place; equal ones in the order of their ranks */
static int by_place(const void *a, const void *b)
{
    const struct part *x = a, *y = b;
    int order = strcmp(x->tensor.name, y->tensor.name);
    if (order == 0)
        order = (x->tensor.n_dims > y->tensor.n_dims) - (x->tensor.n_dims < y->tensor.n_dims);
    if (order == 0)
        order = compare_ints(x->chunk.offset, y->chunk.offset, x->tensor.n_dims);
    return order ? order : strcmp(x->from, y->from);
}

static struct s2s_ckpt_tensor alone(const struct part *part, struct ckpt_chunk *chunk,
                                    const int64_t *zeros)
{
    struct s2s_ckpt_tensor tensor = part->tensor;
    *chunk = part->chunk;
    chunk->offset = zeros;
    tensor.shape = chunk->size;
    tensor.n_chunks = 1;
    tensor.chunks = chunk;
    return tensor;
}

/* Two ranks' copies of the same box. */
static int check_equal(struct merge *m, const struct part *a, const struct part *b)
{
    static const int64_t zeros[S2S_MAX_DIMS];
    const size_t itemsize = s2s_dtype_size(a->tensor.dtype);
    struct ckpt_chunk chunks[2];
    struct s2s_ckpt_tensor left = alone(a, &chunks[0], zeros), right = alone(b, &chunks[1], zeros);
    struct s2s_ckpt_walk walk;
    char *bytes = s2s_xmalloc(2 * S2S_CKPT_PIECE);
    int rc = 0;
    bool equal = true;
    s2s_ckpt_walk_begin(&walk, left.shape, left.n_dims, itemsize);
    while (rc == 0 && equal && s2s_ckpt_walk_next(&walk)) {
        size_t len = (size_t)ckpt_box_numel(walk.box, left.n_dims) * itemsize;
        rc = s2s_ckpt_read(m->ckpt, &left, walk.begin, walk.box, bytes, m->err);
        if (rc == 0)
            rc = s2s_ckpt_read(m->ckpt, &right, walk.begin, walk.box, bytes + S2S_CKPT_PIECE,
                               m->err);
        equal = rc < 0 || memcmp(bytes, bytes + S2S_CKPT_PIECE, len) == 0;
    }
    free(bytes);
    if (rc == 0 && !equal)
        rc = s2s_error_set(m->err, S2S_E_FORMAT,
                           "%s and %s should be copies of one tensor and differ", a->from, b->from);
    return rc;
}

/* Parts [begin, end) are one tensor. */
static int join(struct merge *m, struct s2s_ckpt_tensor *tensor, size_t begin, size_t end)
{
    const struct part *first = &m->parts[begin];
    *tensor = first->tensor;
    tensor->n_chunks = 0;
    tensor->chunks = ckpt_arena(m->ckpt, (end - begin) * sizeof *tensor->chunks);
    for (size_t i = begin; i < end; i++) {
        const struct part *part = &m->parts[i], *before = part - 1;
        if (part->tensor.n_dims != first->tensor.n_dims ||
            compare_ints(part->tensor.shape, first->tensor.shape, first->tensor.n_dims) ||
            part->tensor.dtype != first->tensor.dtype)
            return s2s_error_set(m->err, S2S_E_SHAPE, "%s and %s have other shapes or dtypes",
                                 first->from, part->from);
        if (i > begin &&
            compare_ints(part->chunk.offset, before->chunk.offset, first->tensor.n_dims) == 0) {
            int rc = check_equal(m, before, part);
            if (rc < 0)
                return rc;
            continue;
        }
        tensor->chunks[tensor->n_chunks++] = part->chunk;
    }
    return 0;
}

static int join_all(struct merge *m)
{
    struct s2s_ckpt *ckpt = m->ckpt;
    struct s2s_ckpt_tensor *tensors = s2s_xcalloc(m->n_parts + 1, sizeof *tensors);
    size_t n = 0;
    int rc = 0;
    if (m->n_parts)
        qsort(m->parts, m->n_parts, sizeof *m->parts, by_place);
    for (size_t begin = 0, end; rc == 0 && begin < m->n_parts; begin = end) {
        for (end = begin + 1; end < m->n_parts &&
                              strcmp(m->parts[end].tensor.name, m->parts[begin].tensor.name) == 0;)
            end++;
        rc = join(m, &tensors[n++], begin, end);
    }
    if (rc < 0) {
        free(tensors);
        return rc;
    }
    free(ckpt->tensors);
    ckpt->tensors = tensors;
    ckpt->n_tensors = n;
    ckpt->cap_tensors = m->n_parts + 1;
    return 0;
}

/* Of the ranks' states what belongs to the run as a whole. */
static void merge_common(struct merge *m)
{
    static const char *const keys[] = {"args", "checkpoint_version", "iteration",
                                       "opt_param_scheduler",
                                       "num_floating_point_operations_so_far"};
    const json_t *own = json_object_get(m->ckpt->common, m->ranks[0].folder);
    json_t *common = json_object();
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (json_object_get(own, keys[i]))
            json_object_set(common, keys[i], json_object_get(own, keys[i]));
    json_decref(m->ckpt->common);
    m->ckpt->common = common;
}

static void drop_objects(struct s2s_ckpt *ckpt)
{
    for (size_t i = 0; i < ckpt->n_objects; i++)
        json_decref(ckpt->objects[i].value);
    ckpt->n_objects = 0;
}

static int merge(struct merge *m)
{
    struct local local;
    int rc = list_ranks(m);
    if (rc == 0)
        rc = survey(m);
    if (rc == 0)
        rc = check_ranks(m);
    m->tied = rc == 0 &&
              json_is_false(json_object_get(args_of(m), "untie_embeddings_and_output_weights"));
    for (size_t i = 0; rc == 0 && i < m->ckpt->n_tensors; i++) {
        find_local(&local, m, &m->ckpt->tensors[i]);
        char *name = global_name(m, &local);
        rc = add_local(m, &local, name);
        free(name);
    }
    if (rc == 0)
        rc = join_all(m);
    if (rc < 0)
        return rc;
    drop_objects(m->ckpt);
    merge_common(m);
    return ckpt_seal(m->ckpt, m->err);
}

int s2s_ckpt_merge_ranks(struct s2s_ckpt *ckpt, struct s2s_error *err)
{
    struct merge m = {.ckpt = ckpt, .err = err};
    if (strcmp(ckpt->format, "mp_rank") != 0)
        return 0;
    int rc = merge(&m);
    for (size_t i = 0; i < m.n_stacks; i++) {
        free(m.stacks[i].prefix);
        free(m.stacks[i].n);
    }
    free(m.stacks);
    free(m.ranks);
    free(m.parts);
    return rc < 0 ? s2s_error_add(err, rc, "%s", ckpt->path) : 0;
}
