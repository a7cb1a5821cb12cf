#include "lib/ckpt/read/fsdp_place.h"

#include "lib/base/base.h"

/* Meshes may share one tuple of ranks in the pickle, so that they are not bounded by its size. */
enum { MAX_MESHES = 4096, MAX_MESH_RANKS = 1 << 24 };

static int bad_mesh(const struct ckpt_node *node, const char *what, struct s2s_error *err)
{
    return s2s_error_set(err, S2S_E_FORMAT, "DeviceMesh at byte %u of the pickle: %s", node->offset,
                         what);
}

/* Do the ranks ascend along each axis? torch gathers what an axis cuts in the order of ranks,
 * whatever that of the mesh is. */
static bool ascends(const struct ckpt_mesh *mesh)
{
    int64_t stride[CKPT_MESH_AXES];
    ckpt_box_strides(stride, mesh->size, mesh->n_dims);
    for (int m = 0; m < mesh->n_dims; m++)
        for (int64_t i = 0; i + stride[m] < mesh->n_ranks; i++)
            if (i / stride[m] % mesh->size[m] + 1 < mesh->size[m] &&
                mesh->ranks[i + stride[m]] <= mesh->ranks[i])
                return false;
    return true;
}

/* Has the mesh each of the file's ranks once? Sets mesh->at to where this one is. */
static int check_ranks(const struct ckpt_fsdp_file *file, struct ckpt_fsdp_mesh *mesh,
                       const struct ckpt_mesh *said, struct s2s_error *err)
{
    int64_t found = -1;
    if (said->n_ranks != file->n_ranks)
        return s2s_error_set(err, S2S_E_UNSUPPORTED,
                             "DeviceMesh at byte %u of the pickle: of %lld ranks, where there are "
                             "files of %lld: tensors of a part of them are not read",
                             mesh->node->offset, (long long)said->n_ranks,
                             (long long)file->n_ranks);
    bool *seen = s2s_xcalloc((size_t)file->n_ranks, sizeof *seen);
    bool all = true;
    for (int64_t i = 0; i < said->n_ranks; i++) {
        const int64_t rank = said->ranks[i];
        all &= rank >= 0 && rank < file->n_ranks && !seen[rank];
        if (rank >= 0 && rank < file->n_ranks)
            seen[rank] = true;
        if (rank == file->rank)
            found = i;
    }
    free(seen);
    if (!all || found < 0)
        return bad_mesh(mesh->node, "it has not each rank once", err);
    if (!ascends(said))
        return s2s_error_set(err, S2S_E_UNSUPPORTED,
                             "DeviceMesh at byte %u of the pickle: its ranks do not ascend along "
                             "each axis, which is not read",
                             mesh->node->offset);
    for (int m = mesh->n_dims - 1; m >= 0; m--) {
        mesh->at[m] = found % mesh->size[m];
        found /= mesh->size[m];
    }
    if (said->has_own && !ckpt_same_shape(said->own, mesh->n_dims, mesh->at, mesh->n_dims))
        return bad_mesh(mesh->node, "it says that this is another rank's file", err);
    return 0;
}

/* The mesh of this node, which most tensors of a file share. */
static int find_mesh(struct ckpt_fsdp_file *file, struct s2s_ckpt *ckpt,
                     const struct ckpt_fsdp_mesh **out, const struct ckpt_node *node,
                     struct s2s_error *err)
{
    struct ckpt_mesh said;
    for (size_t i = file->n_meshes; i > 0; i--)
        if (file->meshes[i - 1].node == node) {
            *out = &file->meshes[i - 1];
            return 0;
        }
    if (file->n_meshes == MAX_MESHES || (int64_t)file->n_meshes >= MAX_MESH_RANKS / file->n_ranks)
        return s2s_error_set(err, S2S_E_FORMAT,
                             "DeviceMesh at byte %u of the pickle: one of more than %zu",
                             node->offset, file->n_meshes);
    int rc = ckpt_mesh_of(&said, node, err);
    if (rc < 0)
        return rc;
    struct ckpt_fsdp_mesh mesh = {.node = node, .n_dims = said.n_dims};
    memcpy(mesh.size, said.size, sizeof mesh.size);
    rc = check_ranks(file, &mesh, &said, err);
    if (rc == 0)
        mesh.ranks = ckpt_arena_ints(ckpt, said.ranks, (size_t)said.n_ranks);
    free(said.ranks);
    if (rc < 0)
        return rc;
    s2s_grow(&file->meshes, file->n_meshes, &file->cap_meshes, sizeof *file->meshes);
    file->meshes[file->n_meshes] = mesh;
    *out = &file->meshes[file->n_meshes++];
    return 0;
}

static void add_cut(struct ckpt_fsdp_file *file, const struct ckpt_fsdp_cut *cut)
{
    s2s_grow(&file->cuts, file->n_cuts, &file->cap_cuts, sizeof *file->cuts);
    file->cuts[file->n_cuts++] = *cut;
}

static void keep_cut(struct ckpt_fsdp_file *file, struct s2s_ckpt *ckpt,
                     const struct ckpt_fsdp_mesh *mesh, const struct ckpt_dtensor *d)
{
    int64_t v[2 * CKPT_MESH_AXES];
    const size_t n_dims = (size_t)mesh->n_dims;
    for (size_t m = 0; m < n_dims; m++) {
        v[m] = mesh->size[m];
        v[n_dims + m] = d->cut[m];
    }
    add_cut(file, &(struct ckpt_fsdp_cut){.v = ckpt_arena_ints(ckpt, v, 2 * n_dims),
                                          .n = 2 * n_dims,
                                          .ranks = mesh->ranks});
}

/* Cuts an axis of *size elements from *offset on into n parts and takes part k, as torch.chunk
 * does: all parts are as long as the first, but for the last that has any, and those behind it are
 * empty. */
static void take_part(int64_t *offset, int64_t *size, int64_t n, int64_t k)
{
    const int64_t part = *size / n + (*size % n != 0);
    const int64_t begin = part && k > *size / part ? *size : k * part;
    *offset += begin;
    *size = *size - begin < part ? *size - begin : part;
}

int ckpt_fsdp_place(struct ckpt_fsdp_file *file, struct s2s_ckpt *ckpt,
                    struct s2s_ckpt_tensor *tensor, const struct ckpt_dtensor *d,
                    struct s2s_error *err)
{
    const struct ckpt_fsdp_mesh *mesh = NULL;
    int64_t offset[S2S_MAX_DIMS] = {0}, size[S2S_MAX_DIMS] = {0};
    int rc = find_mesh(file, ckpt, &mesh, d->mesh, err);
    if (rc < 0)
        return rc;
    if (mesh->n_dims != d->n_mesh_dims)
        return bad_mesh(mesh->node, "a DTensor has not one placement for each of its axes", err);
    memcpy(size, d->shape, sizeof size);
    for (int m = 0; m < mesh->n_dims; m++)
        if (d->cut[m] >= 0)
            take_part(&offset[d->cut[m]], &size[d->cut[m]], mesh->size[m], mesh->at[m]);
    /* of an empty part only that it is empty matters */
    if (!ckpt_same_shape(tensor->shape, tensor->n_dims, size, d->n_dims) &&
        (s2s_ckpt_numel(tensor) || ckpt_box_numel(size, d->n_dims))) {
        char has[200], wanted[200], whole[200];
        return s2s_error_set(
            err, S2S_E_SHAPE, "the part is %s, that of this rank of a tensor %s is %s",
            ckpt_shape_text(has, tensor->shape, tensor->n_dims),
            ckpt_shape_text(whole, d->shape, d->n_dims), ckpt_shape_text(wanted, size, d->n_dims));
    }
    struct ckpt_chunk chunk = ckpt_chunk_at(tensor, 0);
    if (!ckpt_same_shape(tensor->shape, tensor->n_dims, size, d->n_dims))
        chunk.stride = NULL;
    chunk.offset = offset;
    chunk.size = size;
    tensor->n_dims = d->n_dims;
    tensor->shape = ckpt_arena_ints(ckpt, d->shape, (size_t)d->n_dims);
    ckpt_set_chunks(ckpt, tensor, &chunk, 1);
    keep_cut(file, ckpt, mesh, d);
    return 0;
}

void ckpt_fsdp_take_whole(struct ckpt_fsdp_file *file)
{
    add_cut(file, &(struct ckpt_fsdp_cut){.v = NULL});
}

bool ckpt_fsdp_same_cut(const struct ckpt_fsdp_cut *a, const struct ckpt_fsdp_cut *b,
                        int64_t n_ranks)
{
    if (a->n != b->n || !a->ranks != !b->ranks ||
        (a->n && memcmp(a->v, b->v, a->n * sizeof *a->v) != 0))
        return false;
    return a->ranks == b->ranks ||
           memcmp(a->ranks, b->ranks, (size_t)n_ranks * sizeof *a->ranks) == 0;
}

void ckpt_fsdp_release(struct ckpt_fsdp_file *file)
{
    free(file->meshes);
    free(file->cuts);
    *file = (struct ckpt_fsdp_file){.n_meshes = 0};
}
