/* Places the flat parts of FSDP ranks in their tensors. */
#include "lib/ckpt/read/fsdp_place.h"

#include "lib/base/base.h"
#include "lib/io/digest.h"

/* Meshes may share one tuple of ranks in the pickle, so that they are not bounded by its size. */
enum { MAX_MESHES = 4096, MAX_MESH_RANKS = 1 << 24 };

/* ---- meshes ---- */

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

/* Has the mesh each of the ranks once? Sets seen->at to where the one of this file is. */
static int check_ranks(const struct ckpt_fsdp *f, struct ckpt_fsdp_seen *seen,
                       const struct ckpt_mesh *said, struct s2s_error *err)
{
    int64_t found = -1;
    if (said->n_ranks != f->n_ranks)
        return s2s_error_set(err, S2S_E_UNSUPPORTED,
                             "DeviceMesh at byte %u of the pickle: of %lld ranks, where there are "
                             "files of %lld: tensors of a part of them are not read",
                             seen->node->offset, (long long)said->n_ranks, (long long)f->n_ranks);
    bool *is_there = s2s_xcalloc((size_t)f->n_ranks, sizeof *is_there);
    bool all = true;
    for (int64_t i = 0; i < said->n_ranks; i++) {
        const int64_t rank = said->ranks[i];
        all &= rank >= 0 && rank < f->n_ranks && !is_there[rank];
        if (rank >= 0 && rank < f->n_ranks)
            is_there[rank] = true;
        if (rank == f->rank)
            found = i;
    }
    free(is_there);
    if (!all || found < 0)
        return bad_mesh(seen->node, "it has not each rank once", err);
    if (!ascends(said))
        return s2s_error_set(err, S2S_E_UNSUPPORTED,
                             "DeviceMesh at byte %u of the pickle: its ranks do not ascend along "
                             "each axis, which is not read",
                             seen->node->offset);
    for (int m = seen->n_dims - 1; m >= 0; m--) {
        seen->at[m] = found % seen->size[m];
        found /= seen->size[m];
    }
    if (said->has_own && !ckpt_same_shape(said->own, seen->n_dims, seen->at, seen->n_dims))
        return bad_mesh(seen->node, "it says that this is another rank's file", err);
    return 0;
}

/* The index of the first rank's mesh that is as this one; the first rank's own are added. */
static int64_t same_mesh(struct ckpt_fsdp *f, const struct ckpt_mesh *said)
{
    const size_t len = (size_t)said->n_ranks * sizeof *said->ranks;
    struct ckpt_fsdp_mesh mesh = {.n_dims = said->n_dims, .hash = s2s_xxh3_64(said->ranks, len)};
    for (size_t i = 0; i < f->n_meshes; i++) {
        const struct ckpt_fsdp_mesh *had = &f->meshes[i];
        if (ckpt_same_shape(had->size, had->n_dims, said->size, said->n_dims) &&
            had->hash == mesh.hash && memcmp(had->ranks, said->ranks, len) == 0)
            return (int64_t)i;
    }
    if (f->rank > 0)
        return CKPT_FSDP_OTHER;
    memcpy(mesh.size, said->size, sizeof mesh.size);
    mesh.ranks = ckpt_arena_ints(f->ckpt, said->ranks, (size_t)said->n_ranks);
    s2s_grow(&f->meshes, f->n_meshes, &f->cap_meshes, sizeof *f->meshes);
    f->meshes[f->n_meshes] = mesh;
    return (int64_t)f->n_meshes++;
}

/* The mesh of this node, which most tensors of a file share. */
static int find_mesh(struct ckpt_fsdp *f, const struct ckpt_fsdp_seen **out,
                     const struct ckpt_node *node, struct s2s_error *err)
{
    struct ckpt_mesh said;
    for (size_t i = f->n_seen; i > 0; i--)
        if (f->seen[i - 1].node == node) {
            *out = &f->seen[i - 1];
            return 0;
        }
    if (f->n_seen == MAX_MESHES || (int64_t)f->n_seen >= MAX_MESH_RANKS / f->n_ranks)
        return s2s_error_set(err, S2S_E_FORMAT,
                             "DeviceMesh at byte %u of the pickle: one of more than %zu",
                             node->offset, f->n_seen);
    int rc = ckpt_mesh_of(&said, node, err);
    if (rc < 0)
        return rc;
    struct ckpt_fsdp_seen seen = {.node = node, .n_dims = said.n_dims};
    memcpy(seen.size, said.size, sizeof seen.size);
    rc = check_ranks(f, &seen, &said, err);
    if (rc == 0)
        seen.mesh = same_mesh(f, &said);
    free(said.ranks);
    if (rc < 0)
        return rc;
    s2s_grow(&f->seen, f->n_seen, &f->cap_seen, sizeof *f->seen);
    f->seen[f->n_seen] = seen;
    *out = &f->seen[f->n_seen++];
    return 0;
}

/* ---- boxes ---- */

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

/* The box that the rank at this place in a mesh has of a tensor; cut: as in struct ckpt_dtensor. */
static void make_box(int64_t *offset, int64_t *size, const int64_t *shape, int n_dims,
                     const int64_t *mesh_size, const int64_t *at, const int64_t *cut, int n_cuts)
{
    memset(offset, 0, (size_t)n_dims * sizeof *offset);
    memcpy(size, shape, (size_t)n_dims * sizeof *size);
    for (int m = 0; m < n_cuts; m++)
        if (cut[m] >= 0)
            take_part(&offset[cut[m]], &size[cut[m]], mesh_size[m], at[m]);
}

void ckpt_fsdp_boxes(const struct ckpt_fsdp *f, const struct s2s_ckpt_tensor *tensor,
                     int64_t *boxes)
{
    const int n = tensor->n_dims;
    const int64_t *way = tensor->shape + n, *cut = way + 1;
    const struct ckpt_fsdp_mesh *mesh = *way == CKPT_FSDP_WHOLE ? NULL : &f->meshes[*way];
    const int n_cuts = mesh ? mesh->n_dims : 0;
    int64_t at[CKPT_MESH_AXES] = {0};
    for (int64_t i = 0; i < f->n_ranks; i++) {
        int64_t *box = boxes + 2 * n * (mesh ? mesh->ranks[i] : i);
        make_box(box, box + n, tensor->shape, n, mesh ? mesh->size : NULL, at, cut, n_cuts);
        for (int m = n_cuts - 1; m >= 0 && ++at[m] == mesh->size[m]; m--)
            at[m] = 0;
    }
}

/* ---- tensors ---- */

/* A part of this rank: the shape of its whole tensor and, behind that, how it is cut. */
struct part {
    int n_dims, n_cuts;
    int64_t v[S2S_MAX_DIMS + 1 + CKPT_MESH_AXES];
    bool is_empty;
};

static int bad_part(const struct s2s_ckpt_tensor *tensor, const struct ckpt_dtensor *d,
                    const int64_t *size, struct s2s_error *err)
{
    char has[200], wanted[200], whole[200];
    return s2s_error_set(err, S2S_E_SHAPE, "the part is %s, that of this rank of a tensor %s is %s",
                         ckpt_shape_text(has, tensor->shape, tensor->n_dims),
                         ckpt_shape_text(whole, d->shape, d->n_dims),
                         ckpt_shape_text(wanted, size, d->n_dims));
}

static int take_dtensor(struct ckpt_fsdp *f, struct part *part,
                        const struct s2s_ckpt_tensor *tensor, const struct ckpt_dtensor *d,
                        struct s2s_error *err)
{
    const struct ckpt_fsdp_seen *seen = NULL;
    int64_t offset[S2S_MAX_DIMS], size[S2S_MAX_DIMS];
    int rc = find_mesh(f, &seen, d->mesh, err);
    if (rc < 0)
        return rc;
    if (seen->n_dims != d->n_mesh_dims)
        return bad_mesh(seen->node, "a DTensor has not one placement for each of its axes", err);
    int64_t *way = part->v + d->n_dims;
    part->n_dims = d->n_dims;
    part->n_cuts = d->n_mesh_dims;
    memcpy(part->v, d->shape, (size_t)d->n_dims * sizeof *part->v);
    *way = seen->mesh;
    for (int m = 0; m < d->n_mesh_dims; m++)
        way[1 + m] = d->cut[m];
    make_box(offset, size, d->shape, d->n_dims, seen->size, seen->at, way + 1, part->n_cuts);
    part->is_empty = ckpt_box_numel(size, d->n_dims) == 0;
    /* of an empty part only that it is empty matters */
    if (!ckpt_same_shape(tensor->shape, tensor->n_dims, size, d->n_dims) &&
        !(part->is_empty && s2s_ckpt_numel(tensor) == 0))
        return bad_part(tensor, d, size, err);
    return 0;
}

static int take(struct ckpt_fsdp *f, struct part *part, const char *name,
                const struct s2s_ckpt_tensor *tensor, const struct ckpt_dtensor *d,
                struct s2s_error *err)
{
    if (d) {
        const int rc = take_dtensor(f, part, tensor, d, err);
        return rc < 0 ? s2s_error_add(err, rc, "%s", name) : 0;
    }
    part->n_dims = tensor->n_dims;
    part->n_cuts = 0;
    memcpy(part->v, tensor->shape, (size_t)tensor->n_dims * sizeof *part->v);
    part->v[part->n_dims] = CKPT_FSDP_WHOLE;
    part->is_empty = s2s_ckpt_numel(tensor) == 0;
    return 0;
}

int ckpt_fsdp_place(struct ckpt_fsdp *f, const char *name, struct s2s_ckpt_tensor *tensor,
                    const struct ckpt_dtensor *d, struct s2s_error *err)
{
    struct part part;
    int rc = take(f, &part, name, tensor, d, err);
    if (rc < 0)
        return rc;
    struct ckpt_chunk chunk = ckpt_chunk_at(tensor, 0);
    tensor->n_dims = part.n_dims;
    tensor->shape = ckpt_arena_ints(f->ckpt, part.v, (size_t)(part.n_dims + 1 + part.n_cuts));
    if (part.is_empty) { /* it may have other axes */
        chunk.offset = ckpt_origin;
        chunk.size = tensor->shape;
        chunk.stride = NULL;
        ckpt_set_chunks(f->ckpt, tensor, &chunk, 1);
    }
    return 0;
}

/* Is a tensor of the first rank of this shape, and cut in this way? */
static bool same_way(const struct s2s_ckpt_tensor *first, const struct part *part)
{
    const int64_t *way = part->v + part->n_dims;
    return *way != CKPT_FSDP_OTHER && *way == first->shape[part->n_dims] &&
           memcmp(first->shape + part->n_dims, way, (size_t)(1 + part->n_cuts) * sizeof *way) == 0;
}

int ckpt_fsdp_put(struct ckpt_fsdp *f, const char *name, size_t len,
                  const struct s2s_ckpt_tensor *tensor, const struct ckpt_dtensor *d,
                  struct s2s_error *err)
{
    struct part part;
    int rc = take(f, &part, name, tensor, d, err);
    if (rc < 0)
        return rc;
    const struct s2s_ckpt_tensor *first = s2s_ckpt_find(f->ckpt, name);
    if (!first)
        return ckpt_fsdp_differ(f, S2S_E_NOTFOUND, "%s is in %s and not in %s", f->rank, 0, name,
                                err);
    if (tensor->dtype != first->dtype ||
        !ckpt_same_shape(part.v, part.n_dims, first->shape, first->n_dims))
        return ckpt_fsdp_differ(f, S2S_E_SHAPE, "%s has other shapes or dtypes in %s and %s", 0,
                                f->rank, name, err);
    if (!same_way(first, &part))
        return ckpt_fsdp_differ(f, S2S_E_FORMAT,
                                "%s is cut by other meshes or placements in %s and %s", 0, f->rank,
                                name, err);
    const size_t idx = (size_t)(first - f->ckpt->tensors);
    struct ckpt_chunk *chunk = &f->chunks[idx * f->n_columns + (size_t)f->rank];
    if (chunk->place.file >= 0)
        return ckpt_fsdp_differ(f, S2S_E_FORMAT, "%s is there twice, in %s", f->rank, f->rank, name,
                                err);
    *chunk = ckpt_chunk_at(tensor, 0);
    chunk->stride = part.is_empty ? NULL : chunk->stride;
    f->n_put++;
    return 0;
}

/* ---- files ---- */

/* Makes room for the places of twice as many ranks: not for all at once, of which the files may be
 * empty. */
static void add_columns(struct ckpt_fsdp *f)
{
    const size_t n = f->ckpt->n_tensors, had = f->n_columns;
    size_t now = had ? 2 * had : 2;
    now = now < (size_t)f->n_ranks ? now : (size_t)f->n_ranks;
    f->chunks = s2s_xrealloc(f->chunks, n * now + 1, sizeof *f->chunks);
    for (size_t i = n; i-- > 0;) {
        struct ckpt_chunk *row = &f->chunks[i * now];
        memmove(row, &f->chunks[i * had], had * sizeof *row);
        for (size_t k = had; k < now; k++)
            row[k] = (struct ckpt_chunk){.place = {.file = -1}};
    }
    f->n_columns = now;
}

void ckpt_fsdp_begin(struct ckpt_fsdp *f, int64_t rank)
{
    f->rank = rank;
    f->n_seen = f->n_put = 0;
    if (rank > 0 && (size_t)rank >= f->n_columns)
        add_columns(f);
}

void ckpt_fsdp_release(struct ckpt_fsdp *f)
{
    free(f->meshes);
    free(f->seen);
    free(f->chunks);
    *f = (struct ckpt_fsdp){.n_ranks = 0};
}

char *ckpt_fsdp_name(int64_t n_ranks, int64_t rank)
{
    return s2s_xasprintf(CKPT_FSDP_RANK "%lld_rank_%lld.pt", (long long)n_ranks, (long long)rank);
}

int ckpt_fsdp_differ(const struct ckpt_fsdp *f, enum s2s_errc code, const char *format, int64_t a,
                     int64_t b, const char *tensor, struct s2s_error *err)
{
    char *first = ckpt_fsdp_name(f->n_ranks, a), *second = ckpt_fsdp_name(f->n_ranks, b);
    int rc = s2s_error_set(err, code, format, tensor, first, second);
    free(first);
    free(second);
    return rc;
}
