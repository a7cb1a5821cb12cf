/*
 * Folders of one torch.save file a rank, as FSDP trainers such as verl and SkyRL write them:
 * model_world_size_N_rank_R.pt. A rank has its part of each tensor as a DTensor, or the whole one.
 * The parts become the boxes of one tensor. What several ranks have is read from the first of them;
 * those of the others are copies, which `verify` compares with it.
 */

#include "lib/base/base.h"
#include "lib/ckpt/read/fsdp_place.h"
#include "lib/ckpt/read/read.h"

enum { MAX_RANKS = 1 << 16 };

/* A tensor in the file of one rank. */
struct piece {
    struct s2s_ckpt_tensor tensor; /* of the whole tensor's shape, with one chunk */
    struct ckpt_fsdp_cut cut;
    int64_t rank;
};

struct fsdp {
    struct s2s_ckpt *ckpt;
    int64_t n_ranks;
    struct piece *pieces; /* of all ranks */
    size_t n_pieces, cap_pieces;
    size_t n_objects; /* of the first rank */
    struct s2s_error *err;
};

/* ---- files ---- */

/* Gives: free. */
static char *name_of(int64_t n_ranks, int64_t rank)
{
    return s2s_xasprintf(CKPT_FSDP_RANK "%lld_rank_%lld.pt", (long long)n_ranks, (long long)rank);
}

/* Splits the name of a rank's file, exactly as trainers write it. */
static bool parse_name(const char *name, int64_t *n_ranks, int64_t *rank)
{
    static const char between[] = "_rank_";
    const char *n = name + strlen(CKPT_FSDP_RANK), *at = strstr(n, between);
    if (!at)
        return false;
    const char *r = at + strlen(between);
    char *n_text = s2s_xstrndup(n, (size_t)(at - n)), *r_text = s2s_xstrndup(r, strcspn(r, "."));
    bool is = s2s_parse_i64(n_ranks, n_text, 1, MAX_RANKS, NULL) == 0 &&
              s2s_parse_i64(rank, r_text, 0, *n_ranks - 1, NULL) == 0;
    free(n_text);
    free(r_text);
    char *again = is ? name_of(*n_ranks, *rank) : NULL;
    is = again && strcmp(again, name) == 0;
    free(again);
    return is;
}

/* Takes the number of ranks from the files' names: all have one, and each rank has its file. */
static int count_ranks(struct fsdp *f, char **names, size_t n)
{
    const char *first = NULL;
    int64_t n_ranks, rank;
    size_t n_found = 0;
    for (size_t i = 0; i < n; i++) {
        if (!s2s_starts_with(names[i], CKPT_FSDP_RANK))
            continue;
        if (!parse_name(names[i], &n_ranks, &rank))
            return s2s_error_set(f->err, S2S_E_FORMAT,
                                 "%s: a rank's file is named " CKPT_FSDP_RANK
                                 "N_rank_R.pt, with R below N",
                                 names[i]);
        if (first && n_ranks != f->n_ranks) {
            int rc = s2s_error_set(f->err, S2S_E_FORMAT,
                                   "files of two saves: %s is of %lld ranks, %s of %lld", first,
                                   (long long)f->n_ranks, names[i], (long long)n_ranks);
            return s2s_error_hint(f->err, rc, "move those of one of them elsewhere");
        }
        first = first ? first : names[i];
        f->n_ranks = n_ranks;
        n_found++;
    }
    for (rank = 0; n_found < (size_t)f->n_ranks; rank++) {
        char *name = name_of(f->n_ranks, rank);
        const bool is = s2s_is_there(f->ckpt->dir_fd, name);
        int rc = is ? 0
                    : s2s_error_set(f->err, S2S_E_NOTFOUND,
                                    "%s is missing: there are files of %zu of %lld ranks", name,
                                    n_found, (long long)f->n_ranks);
        free(name);
        if (rc < 0)
            return s2s_error_hint(f->err, rc, "copy the files of all ranks into one folder");
    }
    return 0;
}

/* verl writes the number of ranks there, too. */
static int check_config(const struct fsdp *f)
{
    json_t *config = NULL;
    int rc = ckpt_read_json(&config, f->ckpt, CKPT_FSDP_CONFIG, f->err);
    const json_t *said = json_object_get(config, "world_size");
    if (rc == 0 && json_is_integer(said) && json_integer_value(said) != f->n_ranks)
        rc = s2s_error_set(f->err, S2S_E_FORMAT,
                           CKPT_FSDP_CONFIG " says world_size %lld, the files are of %lld ranks",
                           (long long)json_integer_value(said), (long long)f->n_ranks);
    json_decref(config);
    return rc;
}

/* Names the files beside that are not read. */
static void warn_of_states(const struct fsdp *f, char **names, size_t n)
{
    static const char *const kinds[][2] = {
        {CKPT_FSDP_OPTIM, "the optimizer's state"},
        {CKPT_FSDP_EXTRA, "states of schedulers and random generators"}};
    for (size_t k = 0; k < 2; k++)
        for (size_t i = 0; i < n; i++)
            if (s2s_starts_with(names[i], kinds[k][0])) {
                s2s_warn("ckpt", "%s: %s*.pt are not read: %s", f->ckpt->path, kinds[k][0],
                         kinds[k][1]);
                break;
            }
}

/* ---- one rank ---- */

/* Other ranks have the objects of the first. */
static int compare_objects(struct fsdp *f, const char *file)
{
    struct s2s_ckpt_object *all = f->ckpt->objects;
    const size_t n = f->ckpt->n_objects - f->n_objects;
    bool same = n == f->n_objects;
    for (size_t i = 0; i < n && same; i++) {
        const struct s2s_ckpt_object *a = &all[i], *b = &all[n + i];
        same = strcmp(a->name, b->name) == 0 && json_equal(a->value, b->value) &&
               a->pickle_len == b->pickle_len &&
               (!a->pickle_len || memcmp(a->pickle, b->pickle, a->pickle_len) == 0);
    }
    while (f->ckpt->n_objects > f->n_objects)
        json_decref(all[--f->ckpt->n_objects].value);
    if (same)
        return 0;
    char *first = name_of(f->n_ranks, 0);
    int rc = s2s_error_set(f->err, S2S_E_FORMAT,
                           "the values beside tensors are not the same in %s and %s", first, file);
    free(first);
    return rc;
}

static int read_rank(struct fsdp *f, const char *name, int64_t rank)
{
    struct s2s_ckpt *ckpt = f->ckpt;
    const size_t had = ckpt->name_bytes;
    struct ckpt_fsdp_file file = {.rank = rank, .n_ranks = f->n_ranks};
    const struct ckpt_torch_source source = {
        .file = name, .prefix = "", .len_bytes = -1, .fsdp = &file};
    int rc = ckpt_read_torch(ckpt, &source, f->err);
    for (size_t i = 0; rc == 0 && i < ckpt->n_tensors; i++) {
        s2s_grow(&f->pieces, f->n_pieces, &f->cap_pieces, sizeof *f->pieces);
        f->pieces[f->n_pieces++] = (struct piece){ckpt->tensors[i], file.cuts[i], rank};
    }
    ckpt->n_tensors = 0;
    ckpt_fsdp_release(&file);
    if (rc == 0 && rank == 0)
        f->n_objects = ckpt->n_objects;
    else if (rc == 0)
        rc = compare_objects(f, name);
    if (rank)
        ckpt->name_bytes = had; /* they are the same names */
    return rc;
}

/* ---- tensors ---- */

static int by_name(const void *a, const void *b)
{
    const struct piece *x = a, *y = b;
    const int order = strcmp(x->tensor.name, y->tensor.name);
    return order ? order : (x->rank > y->rank) - (x->rank < y->rank);
}

/* By where they begin; copies in the order of their ranks, parts without elements last. */
static int by_offset(const void *a, const void *b)
{
    const struct piece *x = a, *y = b;
    const struct ckpt_chunk p = ckpt_chunk_at(&x->tensor, 0), q = ckpt_chunk_at(&y->tensor, 0);
    const bool empty = ckpt_box_numel(p.size, x->tensor.n_dims) == 0;
    if (empty != (ckpt_box_numel(q.size, y->tensor.n_dims) == 0))
        return empty ? 1 : -1;
    for (int d = 0; d < x->tensor.n_dims; d++)
        if (p.offset[d] != q.offset[d])
            return p.offset[d] < q.offset[d] ? -1 : 1;
    return (x->rank > y->rank) - (x->rank < y->rank);
}

/* Sets an error that names a tensor and the files of two ranks. */
static int differ(const struct fsdp *f, enum s2s_errc code, const char *format, int64_t a,
                  int64_t b, const char *tensor)
{
    char *first = name_of(f->n_ranks, a), *second = name_of(f->n_ranks, b);
    int rc = s2s_error_set(f->err, code, format, tensor, first, second);
    free(first);
    free(second);
    return rc;
}

/* Has each rank the tensor once, of the same shape and dtype, cut in the same way? */
static int check_ranks(const struct fsdp *f, const struct piece *pieces, size_t n)
{
    const struct s2s_ckpt_tensor *first = &pieces->tensor;
    for (size_t i = 0; i < n || i < (size_t)f->n_ranks; i++) {
        const int64_t rank = (int64_t)i;
        if (i < n && i && pieces[i].rank == pieces[i - 1].rank)
            return differ(f, S2S_E_FORMAT, "%s is there twice, in %s", rank - 1, rank, first->name);
        if (i >= n || pieces[i].rank != rank)
            return differ(f, S2S_E_NOTFOUND, "%s is in %s and not in %s", pieces->rank, rank,
                          first->name);
        const struct s2s_ckpt_tensor *t = &pieces[i].tensor;
        if (t->dtype != first->dtype ||
            !ckpt_same_shape(t->shape, t->n_dims, first->shape, first->n_dims))
            return differ(f, S2S_E_SHAPE, "%s has other shapes or dtypes in %s and %s", 0, rank,
                          first->name);
        if (!ckpt_fsdp_same_cut(&pieces->cut, &pieces[i].cut, f->n_ranks))
            return differ(f, S2S_E_FORMAT, "%s is cut by other meshes or placements in %s and %s",
                          0, rank, first->name);
    }
    return 0;
}

/* What the piece has, as a tensor of its own. */
static struct s2s_ckpt_tensor alone(struct fsdp *f, const struct piece *piece)
{
    struct s2s_ckpt_tensor tensor = piece->tensor;
    struct ckpt_chunk chunk = ckpt_chunk_at(&tensor, 0);
    chunk.offset = ckpt_origin;
    tensor.shape = ckpt_arena_ints(f->ckpt, chunk.size, (size_t)tensor.n_dims);
    ckpt_set_chunks(f->ckpt, &tensor, &chunk, 1);
    return tensor;
}

static void add_copy(struct fsdp *f, const struct piece *first, const struct piece *copy)
{
    struct s2s_ckpt *ckpt = f->ckpt;
    s2s_grow(&ckpt->copies, ckpt->n_copies, &ckpt->cap_copies, sizeof *ckpt->copies);
    ckpt->copies[ckpt->n_copies++] = (struct ckpt_copy){alone(f, first), alone(f, copy)};
}

/* Joins the pieces of one tensor; chunks is scratch space for theirs. */
static int join(struct fsdp *f, struct piece *pieces, size_t n, struct ckpt_chunk *chunks)
{
    struct s2s_ckpt *ckpt = f->ckpt;
    size_t n_chunks = 0, last = 0;
    int rc = check_ranks(f, pieces, n);
    if (rc < 0)
        return rc;
    s2s_sort(pieces, n, sizeof *pieces, by_offset);
    for (size_t i = 0; i < n; i++) {
        const struct ckpt_chunk chunk = ckpt_chunk_at(&pieces[i].tensor, 0);
        const int n_dims = pieces[i].tensor.n_dims;
        const bool empty = ckpt_box_numel(chunk.size, n_dims) == 0;
        if (i && empty)
            continue;
        if (i && ckpt_same_shape(chunk.offset, n_dims, chunks[n_chunks - 1].offset, n_dims)) {
            add_copy(f, &pieces[last], &pieces[i]);
            continue;
        }
        last = i;
        chunks[n_chunks++] = chunk;
    }
    struct s2s_ckpt_tensor whole = pieces->tensor;
    if (s2s_ckpt_numel(&whole) == 0) { /* no part has an element */
        chunks->offset = ckpt_origin;
        chunks->size = whole.shape;
        chunks->stride = NULL;
        n_chunks = 1;
    }
    ckpt_set_chunks(ckpt, &whole, chunks, n_chunks);
    s2s_grow(&ckpt->tensors, ckpt->n_tensors, &ckpt->cap_tensors, sizeof *ckpt->tensors);
    ckpt->tensors[ckpt->n_tensors++] = whole;
    return 0;
}

static int join_all(struct fsdp *f)
{
    struct ckpt_chunk *chunks = s2s_xmalloc((f->n_pieces + 1) * sizeof *chunks);
    int rc = 0;
    if (f->n_pieces)
        s2s_sort(f->pieces, f->n_pieces, sizeof *f->pieces, by_name);
    for (size_t begin = 0, end; rc == 0 && begin < f->n_pieces; begin = end) {
        const char *name = f->pieces[begin].tensor.name;
        for (end = begin + 1; end < f->n_pieces && strcmp(f->pieces[end].tensor.name, name) == 0;)
            end++;
        rc = join(f, &f->pieces[begin], end - begin, chunks);
    }
    free(chunks);
    return rc;
}

int ckpt_read_fsdp(struct s2s_ckpt *ckpt, struct s2s_error *err)
{
    struct fsdp f = {.ckpt = ckpt, .err = err};
    char **names;
    size_t n;
    int rc = ckpt_list_suffix(ckpt, "", ".pt", &names, &n, err);
    if (rc == 0)
        rc = count_ranks(&f, names, n);
    if (rc == 0)
        rc = check_config(&f);
    for (int64_t rank = 0; rc == 0 && rank < f.n_ranks; rank++) {
        char *name = name_of(f.n_ranks, rank);
        rc = read_rank(&f, name, rank);
        free(name);
    }
    if (rc == 0)
        rc = join_all(&f);
    if (rc == 0)
        warn_of_states(&f, names, n);
    ckpt_free_list(names, n);
    free(f.pieces);
    return rc;
}
