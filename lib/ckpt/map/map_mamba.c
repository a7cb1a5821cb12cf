/*
 * Fused tensors of a live Mamba mixer, which Megatron-FSDP saves as they are: for each
 * tensor-parallel rank in turn, the rows of z, x, B, C, dt (in_proj) or of x, B, C (conv1d).
 * Megatron's torch_dist has a tensor per section instead. Source: Megatron-Core's MambaMixer.
 */
#include "lib/base/base.h"
#include "lib/ckpt/map/map_internal.h"

enum { MAX_SECTIONS = 5 };

/* A tensor of the same mixer with this many axes: "X.mixer.D" beside "X.mixer.conv1d.bias". */
static const struct s2s_ckpt_tensor *beside(const struct ckpt_map_engine *e, const char *name,
                                            const char *other, int n_dims)
{
    static const char mixer[] = ".mixer.";
    const char *at = strstr(name, mixer);
    char *full =
        s2s_xasprintf("%.*s%s", at ? (int)(at - name) + (int)strlen(mixer) : 0, name, other);
    const struct ckpt_map_source *source = ckpt_map_find(e, full);
    free(full);
    return source && source->tensor->n_dims == n_dims ? source->tensor : NULL;
}

/* Rows of each section, summed over ranks. Returns the number of sections, or SHAPE. */
static int find_sections(const struct ckpt_map_engine *e, const struct ckpt_map_source *source,
                         int64_t rows, int64_t sections[MAX_SECTIONS])
{
    const struct s2s_ckpt_tensor *out = beside(e, source->name, "out_proj.weight", 2);
    const struct s2s_ckpt_tensor *heads = beside(e, source->name, "A_log", 1);
    const bool in_proj = strstr(source->name, "in_proj") != NULL;
    if (!out || !heads)
        return s2s_error_set(e->err, S2S_E_SHAPE,
                             "%s: the sizes of its sections are not known without the mixer's "
                             "out_proj.weight and A_log",
                             source->tensor->name);
    const int64_t inner = out->shape[1], n_heads = heads->shape[0];
    const int64_t both = rows - (in_proj ? 2 * inner + n_heads : inner); /* rows of B and C */
    if (both < 0 || both % 2)
        return s2s_error_set(
            e->err, S2S_E_SHAPE, "%s: %lld rows do not fit a mixer of %lld channels and %lld heads",
            source->tensor->name, (long long)rows, (long long)inner, (long long)n_heads);
    const int64_t all[] = {inner, inner, both / 2, both / 2, n_heads};
    memcpy(sections, in_proj ? all : all + 1, (in_proj ? 5 : 3) * sizeof *all);
    return in_proj ? 5 : 3;
}

/* The number of tensor-parallel ranks over which it is sharded. */
static int count_ranks(const struct ckpt_map_engine *e, const struct ckpt_map_source *source,
                       int64_t *n_ranks)
{
    static const char key[] = "tensor_model_parallel_size";
    *n_ranks = ckpt_map_number(e, key, key);
    if (*n_ranks)
        return 0;
    *n_ranks = 1;
    if (source->tensor->n_chunks <= 1)
        return 0;
    int rc = s2s_error_set(e->err, S2S_E_NOTFOUND,
                           "%s: by how many tensor-parallel ranks was it cut? the checkpoint's "
                           "arguments do not say",
                           source->tensor->name);
    return s2s_error_hint(e->err, rc, "give a config.json with \"%s\" with --config", key);
}

int ckpt_map_mamba(struct ckpt_map_engine *e, const struct ckpt_map_source *source, int64_t rows,
                   ckpt_map_rows *add, void *ctx)
{
    int64_t sections[MAX_SECTIONS] = {0}, n_ranks = 1, before = 0;
    int n = find_sections(e, source, rows, sections);
    int rc = n < 0 ? n : count_ranks(e, source, &n_ranks);
    if (rc < 0)
        return rc;
    for (int i = 0; i < n; i++)
        if (sections[i] % n_ranks)
            return s2s_error_set(e->err, S2S_E_SHAPE,
                                 "%s: a section of %lld rows cannot lie on %lld ranks",
                                 source->tensor->name, (long long)sections[i], (long long)n_ranks);
    for (int i = 0; i < n; i++) {
        for (int64_t r = 0; r < n_ranks; r++)
            add(ctx, r * (rows / n_ranks) + before / n_ranks, sections[i] / n_ranks);
        before += sections[i];
    }
    return 0;
}
