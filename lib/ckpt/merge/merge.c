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
 *   etp where experts are cut into fewer parts than other layers, tensor rank t has part t % etp
 *
 * What several ranks hold whole must be equal bit for bit.
 */
#include "lib/ckpt/merge/merge_internal.h"

#include "lib/base/base.h"
#include "lib/ckpt/read/read.h"

/* real models have one or two stacks; each takes memory for every stage */
enum { MAX_EXPERTS = 1 << 16, MAX_STACKS = 256 };

/* ---- local names ---- */

int ckpt_merge_find_local(struct merge_local *local, const struct merge *m,
                          const struct s2s_ckpt_tensor *t)
{
    const char *slash = strchr(t->name, '/');
    *local = (struct merge_local){.tensor = t};
    if (slash)
        local->rank = ckpt_merge_find_rank(m, t->name, (size_t)(slash - t->name));
    if (!local->rank)
        return s2s_error_set(m->err, S2S_E_FORMAT, "%s belongs to no rank", t->name);
    local->name = slash + 1;
    size_t digits =
        s2s_starts_with(local->name, "model") ? strspn(local->name + 5, "0123456789") : 0;
    if (digits && digits < 4 && local->name[5 + digits] == '.') {
        local->chunk = (int)strtol(local->name + 5, NULL, 10);
        local->name += digits + 6;
    }
    return 0;
}

/* Pointer to the layer number in a name; NULL: none. */
static const char *layer_of(const char *name, int64_t *layer)
{
    const char *rest;
    size_t prefix_len;
    return ckpt_name_layer(name, &prefix_len, layer, &rest) && *layer >= 0 ? name + prefix_len
                                                                           : NULL;
}

static struct merge_stack *stack_of(struct merge *m, const char *name, size_t len)
{
    for (size_t i = 0; i < m->n_stacks; i++)
        if (strlen(m->stacks[i].prefix) == len && memcmp(m->stacks[i].prefix, name, len) == 0)
            return &m->stacks[i];
    s2s_grow(&m->stacks, m->n_stacks, &m->cap_stacks, sizeof *m->stacks);
    m->stacks[m->n_stacks] = (struct merge_stack){
        s2s_xstrndup(name, len),
        s2s_xcalloc((size_t)m->n_chunks * (size_t)m->size[PP], sizeof(int64_t))};
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

/* ---- boxes of all ranks, joined to whole tensors ---- */

static int compare_ints(const int64_t *a, const int64_t *b, int n)
{
    for (int d = 0; d < n; d++)
        if (a[d] != b[d])
            return a[d] < b[d] ? -1 : 1;
    return 0;
}

/* By name, then by offset; copies in the order of their ranks. */
static int by_place(const void *a, const void *b)
{
    const struct merge_part *x = a, *y = b;
    int order = strcmp(x->tensor.name, y->tensor.name);
    if (order == 0)
        order = (x->tensor.n_dims > y->tensor.n_dims) - (x->tensor.n_dims < y->tensor.n_dims);
    if (order == 0)
        order = compare_ints(x->chunk.offset, y->chunk.offset, x->tensor.n_dims);
    return order ? order : strcmp(x->from, y->from);
}

static struct s2s_ckpt_tensor alone(const struct merge *m, const struct merge_part *part)
{
    struct s2s_ckpt_tensor tensor = part->tensor;
    struct ckpt_chunk chunk = part->chunk;
    chunk.offset = ckpt_origin;
    tensor.shape = chunk.size;
    ckpt_set_chunks(m->ckpt, &tensor, &chunk, 1);
    return tensor;
}

/* Compares two ranks' copies of the same box. */
static int check_equal(struct merge *m, const struct merge_part *a, const struct merge_part *b)
{
    struct s2s_ckpt_tensor left = alone(m, a), right = alone(m, b);
    const int equal = s2s_ckpt_is_copy(m->ckpt, &left, &right, m->err);
    if (equal == 0)
        return s2s_error_set(m->err, S2S_E_FORMAT,
                             "%s and %s should be copies of one tensor and differ", a->from,
                             b->from);
    return equal < 0 ? equal : 0;
}

/* Joins parts [begin, end) to one tensor; chunks is scratch space for theirs. */
static int join(struct merge *m, struct s2s_ckpt_tensor *tensor, size_t begin, size_t end,
                struct ckpt_chunk *chunks)
{
    const struct merge_part *first = &m->parts[begin];
    size_t n_chunks = 0;
    *tensor = first->tensor;
    for (size_t i = begin; i < end; i++) {
        const struct merge_part *part = &m->parts[i], *before = i > begin ? part - 1 : NULL;
        const int n = first->tensor.n_dims;
        const bool copy = before && n == part->tensor.n_dims &&
                          compare_ints(part->chunk.offset, before->chunk.offset, n) == 0;
        if (part->tensor.n_dims != n || compare_ints(part->tensor.shape, first->tensor.shape, n) ||
            part->tensor.dtype != first->tensor.dtype ||
            (copy && compare_ints(part->chunk.size, before->chunk.size, n)))
            return s2s_error_set(m->err, S2S_E_SHAPE, "%s and %s have other shapes or dtypes",
                                 first->from, part->from);
        if (copy) {
            int rc = check_equal(m, before, part);
            if (rc < 0)
                return rc;
            continue;
        }
        chunks[n_chunks++] = part->chunk;
    }
    ckpt_set_chunks(m->ckpt, tensor, chunks, n_chunks);
    return 0;
}

/* Joins m->parts to the tensors of m->ckpt. Copies are compared bit for bit. SHAPE or FORMAT name
 * two ranks that disagree. */
static int join_parts(struct merge *m)
{
    struct s2s_ckpt *ckpt = m->ckpt;
    struct s2s_ckpt_tensor *tensors = s2s_xcalloc(m->n_parts + 1, sizeof *tensors);
    struct ckpt_chunk *chunks = s2s_xmalloc((m->n_parts + 1) * sizeof *chunks);
    size_t n = 0;
    int rc = 0;
    if (m->n_parts)
        qsort(m->parts, m->n_parts, sizeof *m->parts, by_place);
    for (size_t begin = 0, end; rc == 0 && begin < m->n_parts; begin = end) {
        for (end = begin + 1; end < m->n_parts &&
                              strcmp(m->parts[end].tensor.name, m->parts[begin].tensor.name) == 0;)
            end++;
        rc = join(m, &tensors[n++], begin, end, chunks);
    }
    free(chunks);
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

/* ---- the whole model ---- */

/* Counts stages, layers and experts of each rank. */
static int survey(struct merge *m)
{
    struct merge_local local;
    const char *begin, *end;
    int64_t layer;
    m->n_chunks = 1;
    for (size_t i = 0; i < m->ckpt->n_tensors; i++) {
        int rc = ckpt_merge_find_local(&local, m, &m->ckpt->tensors[i]);
        if (rc < 0)
            return rc;
        m->n_chunks = local.chunk >= m->n_chunks ? local.chunk + 1 : m->n_chunks;
        int64_t expert = ckpt_merge_expert_of(local.name, &begin, &end);
        if (expert >= MAX_EXPERTS)
            return s2s_error_set(m->err, S2S_E_FORMAT, "%s: the expert's number is too large",
                                 local.name);
        m->n_local = expert >= m->n_local ? expert + 1 : m->n_local;
    }
    if (m->n_local == 0 && ckpt_merge_arg(m, "num_experts", 0) > 0)
        m->n_local = ckpt_merge_arg(m, "num_experts", 0) / m->size[EP]; /* all experts of a rank in
                                                                         * one tensor */
    if (m->n_local > MAX_EXPERTS)
        return s2s_error_set(m->err, S2S_E_FORMAT, "the saved arguments say num_experts %lld",
                             (long long)ckpt_merge_arg(m, "num_experts", 0));
    for (size_t i = 0; i < m->ckpt->n_tensors; i++) {
        ckpt_merge_find_local(&local, m, &m->ckpt->tensors[i]);
        const char *at = layer_of(local.name, &layer);
        if (!at)
            continue;
        struct merge_stack *stack = stack_of(m, local.name, (size_t)(at - local.name));
        if (m->n_stacks > MAX_STACKS)
            return s2s_error_set(m->err, S2S_E_FORMAT, "%s: more than %d stacks of layers",
                                 m->ckpt->tensors[i].name, MAX_STACKS);
        int64_t *n = &stack->n[local.chunk * m->size[PP] + local.rank->at[PP]];
        *n = layer >= *n ? layer + 1 : *n;
    }
    return 0;
}

/*
 * Megatron-Core's local (unfused) layers have norms as separate modules, but torch_dist stores them
 * under the names of Transformer Engine's fused layers (sharded_state_dict_keys_map of the GPT,
 * BERT and T5 layers; vision layers have none). at: after "layers.7." and a wrapping layer; *len:
 * length of what is replaced. NULL: keep the name.
 */
static const char *fused_norm(const struct merge *m, const struct merge_local *local,
                              const char *at, size_t *len)
{
    static const char *const names[][2] = {
        {"input_layernorm.", "self_attention.linear_qkv.layer_norm_"},
        {"pre_mlp_layernorm.", "mlp.linear_fc1.layer_norm_"}};
    static const char *const beside[] = {"input_layernorm.weight",
                                         "self_attention.linear_qkv.weight"};
    const char *fused = NULL;
    for (size_t i = 0; i < 2 && !fused; i++) {
        *len = strlen(names[i][0]);
        fused = strncmp(at, names[i][0], *len) == 0 ? names[i][1] : NULL;
    }
    bool keep = !fused || strstr(local->name, "vision") || strstr(local->name, "radio");
    for (size_t i = 0; i < 2 && !keep; i++) {
        char *name = s2s_xasprintf("%.*s%s", (int)(at - local->tensor->name), local->tensor->name,
                                   beside[i]);
        keep = s2s_ckpt_find(m->ckpt, name) == NULL;
        free(name);
    }
    return keep ? NULL : fused;
}

/* The rest of a name inside of the transformer layer that a multi-token prediction layer wraps.
 * *outer: what torch_dist calls that: of a GPT model always "transformer_layer.", though the live
 * one is mtp_model_layer since Megatron-Core 0.17; a hybrid model has a stack of layers there. */
static const char *inner_layer(const char *rest, const char **outer)
{
    static const char *const names[] = {"transformer_layer.", "mtp_model_layer."};
    *outer = "";
    for (size_t i = 0; i < 2; i++)
        if (s2s_starts_with(rest, names[i])) {
            rest += strlen(names[i]);
            *outer = names[s2s_starts_with(rest, "layers.") ? i : 0];
            return rest;
        }
    return rest;
}

char *ckpt_merge_global_name(struct merge *m, const struct merge_local *local)
{
    int64_t layer, first = 0;
    const char *at = layer_of(local->name, &layer), *output = strstr(local->name, "output_layer.");
    if (m->tied && output && strcmp(output, "output_layer.weight") == 0)
        return s2s_xasprintf("%.*sembedding.word_embeddings.weight", (int)(output - local->name),
                             local->name);
    if (!at)
        return s2s_xstrdup(local->name);
    const struct merge_stack *stack = stack_of(m, local->name, (size_t)(at - local->name));
    for (int i = 0; i < local->chunk * m->size[PP] + local->rank->at[PP]; i++)
        first += stack->n[i];
    size_t len = 0;
    const char *outer, *norm = inner_layer(at + strspn(at, "0123456789") + 1, &outer);
    const char *fused = fused_norm(m, local, norm, &len);
    return s2s_xasprintf("%.*s%lld.%s%s%s", (int)(at - local->name), local->name,
                         (long long)(first + layer), outer, fused ? fused : "",
                         norm + (fused ? len : 0));
}

void ckpt_merge_count_left(struct merge *m, const char *name)
{
    json_t **left = &m->ckpt->rank_values;
    *left = *left ? *left : json_object();
    const json_int_t n = json_integer_value(json_object_get(*left, name));
    json_object_set_new(*left, name, json_integer(n + 1));
}

/* Counts what the ranks have beside what is kept (random states, ..), by name. */
static void count_left(struct merge *m, const json_t *kept)
{
    json_t *value;
    const char *key;
    for (size_t i = 0; i < m->n_ranks; i++)
        json_object_foreach(json_object_get(m->ckpt->common, m->ranks[i].folder), key, value)
        {
            if (!json_is_null(value) && !json_object_get(kept, key))
                ckpt_merge_count_left(m, key);
        }
}

/* The saved arguments say what was not saved, so that Megatron-LM does not ask for it. */
static json_t *args_of(const struct merge *m)
{
    json_t *args = json_copy((json_t *)ckpt_merge_args(m));
    if (json_object_get(m->ckpt->rank_values, "rng_state"))
        json_object_set_new(args, "no_save_rng", json_true());
    json_object_set_new(args, "no_save_optim", json_true());
    return args;
}

/* Keeps the part of the first rank's state that describes the whole run. */
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
    count_left(m, common);
    if (json_is_object(json_object_get(common, "args")))
        json_object_set_new(common, "args", args_of(m));
    json_decref(m->ckpt->common);
    m->ckpt->common = common;
}

/* Refuses Megatron-LM's layers from before Megatron-Core: sharded alike, but with other names, and
 * fused q, k, v in one of three orders, by checkpoint_version. */
static int check_names(const struct merge *m)
{
    static const char *const older[] = {".query_key_value.", ".dense_h_to_4h.", ".dense_4h_to_h."};
    for (size_t i = 0; i < m->ckpt->n_tensors; i++)
        for (size_t k = 0; k < sizeof older / sizeof *older; k++)
            if (strstr(m->ckpt->tensors[i].name, older[k])) {
                int rc =
                    s2s_error_set(m->err, S2S_E_UNSUPPORTED,
                                  "%s is a name from before Megatron-Core: the rank folders of "
                                  "such a model are not put together",
                                  m->ckpt->tensors[i].name);
                return s2s_error_hint(m->err, rc,
                                      "Megatron-LM's tools/checkpoint/convert.py turns them into "
                                      "a model of Megatron-Core");
            }
    return 0;
}

static int merge(struct merge *m)
{
    struct merge_local local;
    int rc = ckpt_merge_list_ranks(m);
    if (rc == 0)
        rc = survey(m);
    if (rc == 0)
        rc = ckpt_merge_check_ranks(m);
    if (rc == 0)
        rc = check_names(m);
    m->tied = rc == 0 && json_is_false(json_object_get(ckpt_merge_args(m),
                                                       "untie_embeddings_and_output_weights"));
    for (size_t i = 0; rc == 0 && i < m->ckpt->n_tensors; i++) {
        if (ckpt_merge_is_extra(m->ckpt->tensors[i].name))
            continue;
        ckpt_merge_find_local(&local, m, &m->ckpt->tensors[i]);
        char *name = ckpt_merge_global_name(m, &local);
        rc = ckpt_merge_cut(m, &local, name);
        free(name);
    }
    if (rc == 0)
        rc = ckpt_merge_objects(m);
    if (rc == 0)
        rc = join_parts(m);
    if (rc < 0)
        return rc;
    merge_common(m);
    return ckpt_seal(m->ckpt, m->err);
}

static void release(struct merge *m)
{
    for (size_t i = 0; i < m->n_stacks; i++) {
        free(m->stacks[i].prefix);
        free(m->stacks[i].n);
    }
    free(m->stacks);
    free(m->ranks);
    free(m->parts);
}

/* Since 0.17 the convolution's parameters belong to the mixer itself (conv1d_weight); torch_dist
 * still stores them as a module's (conv1d.weight). NULL: another name. */
static const char *convolution_name(struct s2s_ckpt *ckpt, const char *name)
{
    static const char conv[] = ".mixer.conv1d_";
    const char *at = strstr(name, conv);
    if (!at)
        return NULL;
    char *renamed = ckpt_arena_text(ckpt, name, strlen(name));
    renamed[at - name + (ptrdiff_t)strlen(conv) - 1] = '.';
    return renamed;
}

static int name_convolutions(struct s2s_ckpt *ckpt, struct s2s_error *err)
{
    const char *renamed;
    bool any = false;
    for (size_t i = 0; i < ckpt->n_tensors; i++)
        if ((renamed = convolution_name(ckpt, ckpt->tensors[i].name)) != NULL) {
            ckpt->tensors[i].name = renamed;
            any = true;
        }
    return any ? ckpt_seal(ckpt, err) : 0; /* sorted again */
}

int s2s_ckpt_merge_ranks(struct s2s_ckpt *ckpt, struct s2s_error *err)
{
    struct merge m = {.ckpt = ckpt, .err = err};
    if (strcmp(ckpt->format, "mp_rank") != 0)
        return 0;
    int rc = name_convolutions(ckpt, err);
    if (rc == 0)
        rc = merge(&m);
    release(&m);
    return rc < 0 ? s2s_error_add(err, rc, "%s", ckpt->path) : 0;
}

int s2s_ckpt_check_ranks(struct s2s_ckpt *ckpt, struct s2s_error *err)
{
    struct merge m = {.ckpt = ckpt, .err = err};
    if (strcmp(ckpt->format, "mp_rank") != 0)
        return 0;
    int rc = ckpt_merge_list_ranks(&m);
    if (rc == 0)
        rc = survey(&m);
    if (rc == 0)
        rc = ckpt_merge_check_ranks(&m);
    if (rc == 0)
        rc = ckpt_merge_check_peers(&m);
    release(&m);
    /* complete, but cannot be merged: not damaged */
    if (rc == S2S_E_UNSUPPORTED) {
        s2s_error_clear(err);
        return 0;
    }
    return rc < 0 ? s2s_error_add(err, rc, "%s", ckpt->path) : 0;
}
