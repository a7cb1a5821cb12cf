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

struct fsdp {
    struct s2s_ckpt *ckpt;
    int64_t n_ranks;
    struct ckpt_fsdp parts;
    size_t n_objects; /* of the first rank */
    struct s2s_error *err;
};

/* ---- files ---- */

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
    char *again = is ? ckpt_fsdp_name(*n_ranks, *rank) : NULL;
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
        char *name = ckpt_fsdp_name(f->n_ranks, rank);
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
    char *first = ckpt_fsdp_name(f->n_ranks, 0);
    int rc = s2s_error_set(f->err, S2S_E_FORMAT,
                           "the values beside tensors are not the same in %s and %s", first, file);
    free(first);
    return rc;
}

/* Sorts the first rank's tensors, so that those of the others find theirs. */
static int sort_tensors(struct fsdp *f)
{
    struct s2s_ckpt *ckpt = f->ckpt;
    if (ckpt->n_tensors)
        s2s_sort(ckpt->tensors, ckpt->n_tensors, sizeof *ckpt->tensors, ckpt_by_tensor_name);
    for (size_t i = 1; i < ckpt->n_tensors; i++)
        if (strcmp(ckpt->tensors[i - 1].name, ckpt->tensors[i].name) == 0)
            return ckpt_fsdp_differ(&f->parts, S2S_E_FORMAT, "%s is there twice, in %s", 0, 0,
                                    ckpt->tensors[i].name, f->err);
    return 0;
}

/* Has this rank all tensors of the first? */
static int check_all(struct fsdp *f)
{
    const struct ckpt_fsdp *parts = &f->parts;
    const size_t n = f->ckpt->n_tensors;
    size_t i = 0;
    if (parts->n_put == n)
        return 0;
    while (parts->chunks[i * parts->n_columns + (size_t)parts->rank].place.file >= 0)
        i++;
    return ckpt_fsdp_differ(parts, S2S_E_NOTFOUND, "%s is in %s and not in %s", 0, parts->rank,
                            f->ckpt->tensors[i].name, f->err);
}

static int read_rank(struct fsdp *f, const char *name, int64_t rank)
{
    const size_t had = f->ckpt->name_bytes;
    const struct ckpt_torch_source source = {
        .file = name, .prefix = "", .len_bytes = -1, .fsdp = &f->parts};
    ckpt_fsdp_begin(&f->parts, rank);
    int rc = ckpt_read_torch(f->ckpt, &source, f->err);
    if (rc < 0)
        return rc;
    if (rank == 0) {
        f->n_objects = f->ckpt->n_objects;
        return sort_tensors(f);
    }
    rc = check_all(f);
    if (rc == 0)
        rc = compare_objects(f, name);
    f->ckpt->name_bytes = had; /* they are the same names */
    return rc;
}

/* ---- tensors ---- */

/* What a rank has of a tensor. */
struct piece {
    struct ckpt_chunk chunk;
    int n_dims;
};

/* By where they begin, parts without elements last. */
static int by_offset(const void *a, const void *b)
{
    const struct piece *x = a, *y = b;
    const bool empty = ckpt_box_numel(x->chunk.size, x->n_dims) == 0;
    if (empty != (ckpt_box_numel(y->chunk.size, y->n_dims) == 0))
        return empty ? 1 : -1;
    for (int d = 0; d < x->n_dims; d++)
        if (x->chunk.offset[d] != y->chunk.offset[d])
            return x->chunk.offset[d] < y->chunk.offset[d] ? -1 : 1;
    return 0;
}

/* Sets pieces to what the ranks have of tensor idx; boxes: memory for theirs. */
static void find_pieces(const struct fsdp *f, struct piece *pieces, int64_t *boxes, size_t idx)
{
    const struct ckpt_fsdp *parts = &f->parts;
    const struct s2s_ckpt_tensor *tensor = &f->ckpt->tensors[idx];
    const int n = tensor->n_dims;
    ckpt_fsdp_boxes(parts, tensor, boxes);
    for (int64_t r = 0; r < f->n_ranks; r++, boxes += 2 * n) {
        pieces[r].chunk =
            r ? parts->chunks[idx * parts->n_columns + (size_t)r] : ckpt_chunk_at(tensor, 0);
        pieces[r].chunk.offset = boxes;
        pieces[r].chunk.size = boxes + n;
        pieces[r].n_dims = n;
    }
}

static void add_copy(struct fsdp *f, const struct s2s_ckpt_tensor *tensor, size_t k,
                     const struct piece *piece)
{
    struct s2s_ckpt *ckpt = f->ckpt;
    struct ckpt_chunk chunk = piece->chunk;
    struct s2s_ckpt_tensor copy = {.name = tensor->name,
                                   .dtype = tensor->dtype,
                                   .n_dims = tensor->n_dims,
                                   .shape = ckpt_arena_ints(ckpt, chunk.size, piece->n_dims)};
    chunk.offset = ckpt_origin;
    ckpt_set_chunks(ckpt, &copy, &chunk, 1);
    s2s_grow(&ckpt->copies, ckpt->n_copies, &ckpt->cap_copies, sizeof *ckpt->copies);
    ckpt->copies[ckpt->n_copies++] = (struct ckpt_copy){copy, (uint32_t)k};
}

/* Sorts the pieces of a tensor and drops empty ones and copies, which are noted. Returns how many
 * are left. */
static size_t sort_pieces(struct fsdp *f, const struct s2s_ckpt_tensor *tensor,
                          struct piece *pieces)
{
    const int n_dims = tensor->n_dims;
    size_t n = 0;
    s2s_sort(pieces, (size_t)f->n_ranks, sizeof *pieces, by_offset);
    for (int64_t r = 0; r < f->n_ranks; r++) {
        const struct ckpt_chunk *chunk = &pieces[r].chunk;
        if (n && ckpt_box_numel(chunk->size, n_dims) == 0)
            continue;
        if (n && ckpt_same_shape(chunk->offset, n_dims, pieces[n - 1].chunk.offset, n_dims))
            add_copy(f, tensor, n - 1, &pieces[r]);
        else
            pieces[n++] = pieces[r];
    }
    return n;
}

/* Makes the pieces of each tensor its chunks. */
static void join_all(struct fsdp *f)
{
    struct s2s_ckpt *ckpt = f->ckpt;
    const size_t n = (size_t)f->n_ranks;
    struct piece *pieces = s2s_xmalloc(n * sizeof *pieces);
    struct ckpt_chunk *chunks = s2s_xmalloc(n * sizeof *chunks);
    int64_t *boxes = s2s_xmalloc(n * 2 * S2S_MAX_DIMS * sizeof *boxes);
    for (size_t i = 0; i < ckpt->n_tensors; i++) {
        struct s2s_ckpt_tensor *tensor = &ckpt->tensors[i];
        find_pieces(f, pieces, boxes, i);
        size_t n_chunks = sort_pieces(f, tensor, pieces);
        if (s2s_ckpt_numel(tensor) == 0) { /* no part has an element */
            pieces->chunk.offset = ckpt_origin;
            pieces->chunk.size = tensor->shape;
            pieces->chunk.stride = NULL;
            n_chunks = 1;
        }
        for (size_t k = 0; k < n_chunks; k++)
            chunks[k] = pieces[k].chunk;
        ckpt_set_chunks(ckpt, tensor, chunks, n_chunks);
    }
    free(pieces);
    free(chunks);
    free(boxes);
}

int ckpt_read_fsdp(struct s2s_ckpt *ckpt, struct s2s_error *err)
{
    struct fsdp f = {.ckpt = ckpt, .parts = {.ckpt = ckpt}, .err = err};
    char **names;
    size_t n;
    int rc = ckpt_list_suffix(ckpt, "", ".pt", &names, &n, err);
    if (rc == 0)
        rc = count_ranks(&f, names, n);
    if (rc == 0)
        rc = check_config(&f);
    f.parts.n_ranks = f.n_ranks;
    for (int64_t rank = 0; rc == 0 && rank < f.n_ranks; rank++) {
        char *name = ckpt_fsdp_name(f.n_ranks, rank);
        rc = read_rank(&f, name, rank);
        free(name);
    }
    if (rc == 0 && f.n_ranks > 1)
        join_all(&f);
    if (rc == 0)
        warn_of_states(&f, names, n);
    ckpt_free_list(names, n);
    ckpt_fsdp_release(&f.parts);
    return rc;
}
