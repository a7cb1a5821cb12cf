/*
 * Megatron's rank folders as one checkpoint. Each mp_rank_TT[_PPP][_EEE] holds the tensors of one
 * tensor-parallel, pipeline and expert-parallel rank under local names. Here every local tensor
 * becomes one or more boxes of a tensor with its global name and shape: nothing is copied, the
 * boxes point into the files. Names and layouts are those of Megatron-Core's torch_dist, so that
 * what reads that reads this.
 *
 *   tp  merge_cut.c has the table of which axis is cut; gated fc1 is [w_r; v_r] on each rank,
 *       Mamba's in_proj [z_r x_r B_r C_r dt_r], its conv1d [x_r B_r C_r]
 *   pp  layers count from 0 on each rank; with virtual stages chunk v of rank p comes before chunk
 *       v + 1 of any rank (Narayanan et al. 2021)
 *   ep  local experts i of rank e are the global ones e * n_local + i
 *
 * What several ranks hold whole must be equal bit for bit.
 */
#include "lib/ckpt/merge_internal.h"

#include "lib/base/base.h"

enum { MAX_EXPERTS = 1 << 16 };

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
    struct merge_rank rank = {.at = {0, 0, 0}};
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
        if (rc == 0 && strcmp(key, "model_config") != 0) /* NeMo's, of all ranks */
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

static int find_local(struct merge_local *local, const struct merge *m,
                      const struct s2s_ckpt_tensor *t)
{
    const char *slash = strchr(t->name, '/');
    *local = (struct merge_local){.tensor = t};
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

static struct merge_stack *stack_of(struct merge *m, const char *name, size_t len)
{
    for (size_t i = 0; i < m->n_stacks; i++)
        if (strlen(m->stacks[i].prefix) == len && memcmp(m->stacks[i].prefix, name, len) == 0)
            return &m->stacks[i];
    s2s_grow(&m->stacks, m->n_stacks, &m->cap_stacks, sizeof *m->stacks);
    m->stacks[m->n_stacks] = (struct merge_stack){
        s2s_xstrndup(name, len),
        s2s_xcalloc((size_t)m->n_chunks * (size_t)m->size[1], sizeof(int64_t))};
    return &m->stacks[m->n_stacks++];
}

int64_t ckpt_merge_expert_of(const char *name, const char **begin, const char **end)
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
    struct merge_local local;
    const char *begin, *end;
    int64_t layer;
    m->n_chunks = 1;
    for (size_t i = 0; i < m->ckpt->n_tensors; i++) {
        int rc = find_local(&local, m, &m->ckpt->tensors[i]);
        if (rc < 0)
            return rc;
        m->n_chunks = local.chunk >= m->n_chunks ? local.chunk + 1 : m->n_chunks;
        int64_t expert = ckpt_merge_expert_of(local.name, &begin, &end);
        if (expert >= MAX_EXPERTS)
            return s2s_error_set(m->err, S2S_E_FORMAT, "%s: absurd expert", local.name);
        m->n_local = expert >= m->n_local ? expert + 1 : m->n_local;
    }
    if (m->n_local == 0 && arg(m, "num_experts", 0) > 0)
        m->n_local = arg(m, "num_experts", 0) / m->size[2]; /* all of a rank in one tensor */
    if (m->n_local > MAX_EXPERTS)
        return s2s_error_set(m->err, S2S_E_FORMAT, "the saved arguments say num_experts %lld",
                             (long long)arg(m, "num_experts", 0));
    for (size_t i = 0; i < m->ckpt->n_tensors; i++) {
        find_local(&local, m, &m->ckpt->tensors[i]);
        const char *at = layer_of(local.name, &layer);
        if (!at)
            continue;
        struct merge_stack *stack = stack_of(m, local.name, (size_t)(at - local.name));
        int64_t *n = &stack->n[local.chunk * m->size[1] + local.rank->at[1]];
        *n = layer >= *n ? layer + 1 : *n;
    }
    return 0;
}

/* The name with the number of the layer counted over all stages. Gives: free. */
static char *global_name(struct merge *m, const struct merge_local *local)
{
    int64_t layer, first = 0;
    const char *at = layer_of(local->name, &layer), *output = strstr(local->name, "output_layer.");
    if (m->tied && output && strcmp(output, "output_layer.weight") == 0)
        return s2s_xasprintf("%.*sembedding.word_embeddings.weight", (int)(output - local->name),
                             local->name);
    if (!at)
        return s2s_xstrdup(local->name);
    const struct merge_stack *stack = stack_of(m, local->name, (size_t)(at - local->name));
    for (int i = 0; i < local->chunk * m->size[1] + local->rank->at[1]; i++)
        first += stack->n[i];
    return s2s_xasprintf("%.*s%lld%s", (int)(at - local->name), local->name,
                         (long long)(first + layer), at + strspn(at, "0123456789"));
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
    struct merge_local local;
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
        rc = ckpt_merge_cut(m, &local, name);
        free(name);
    }
    if (rc == 0)
        rc = ckpt_merge_join(m);
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
