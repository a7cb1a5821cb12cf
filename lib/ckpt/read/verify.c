/* Verification of what a checkpoint contains: CRC-32s, archives, common state, config.json. */
#include "lib/ckpt/plan.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/base.h"
#include "lib/ckpt/pickle/view.h"
#include "lib/ckpt/read/read.h"
#include "lib/ckpt/read/read_internal.h"
#include "lib/ckpt/read/torch_zip.h"

/* An entry of a hash table of verified storages; of several with the same hash the last stays. */
struct ckpt_verified {
    int64_t pos; /* 0: empty, because an archive starts with a header */
    int file;
};

/* Thousands of tensors may be views of one storage, which is then read only once. */
static struct ckpt_verified *verified_of(struct s2s_ckpt *ckpt, const struct ckpt_location *place)
{
    enum { N = 4093, MEMBER_ALIGN = 64 };
    if (!ckpt->verified)
        ckpt->verified = s2s_xcalloc(N, sizeof *ckpt->verified);
    return &ckpt->verified[(size_t)(place->store_pos / MEMBER_ALIGN + place->file) % N];
}

void ckpt_mark_verified(struct s2s_ckpt *ckpt, struct ckpt_location *place)
{
    *verified_of(ckpt, place) = (struct ckpt_verified){place->store_pos, place->file};
    place->checked = true;
}

static int verify_chunk(struct s2s_ckpt *ckpt, const struct s2s_ckpt_tensor *tensor, size_t k,
                        struct s2s_error *err)
{
    if (ckpt_place_at(tensor, k)->checked)
        return 0;
    int rc = ckpt_locate_whole(ckpt, tensor, k, err);
    struct ckpt_location *place = ckpt_place_at(tensor, k);
    int fd = rc < 0 ? rc : ckpt_file_fd(ckpt, place->file, err);
    if (fd < 0 || !place->has_crc)
        return fd < 0 ? fd : 0;
    const struct ckpt_verified *verified = verified_of(ckpt, place);
    if (verified->pos == place->store_pos && verified->file == place->file) {
        place->checked = true;
        return 0;
    }
    const struct ckpt_store store = {ckpt, place, fd, ckpt->files[place->file].name};
    for (int64_t done = 0; rc == 0 && done < place->store_len;) {
        int64_t left = place->store_len - done;
        size_t n = left < CKPT_SCRATCH ? (size_t)left : CKPT_SCRATCH;
        rc = ckpt_read_store(&store, place->store_pos + done, ckpt_piece(ckpt), n, err);
        done += (int64_t)n;
    }
    return rc;
}

static int by_place(const void *a, const void *b)
{
    const struct s2s_ckpt_tensor *x = *(const struct s2s_ckpt_tensor *const *)a;
    const struct s2s_ckpt_tensor *y = *(const struct s2s_ckpt_tensor *const *)b;
    if (x->n_chunks == 0 || y->n_chunks == 0)
        return (x->n_chunks > 0) - (y->n_chunks > 0);
    const struct ckpt_location *in_x = ckpt_place_at(x, 0), *in_y = ckpt_place_at(y, 0);
    if (in_x->file != in_y->file)
        return in_x->file < in_y->file ? -1 : 1;
    return (in_x->store_pos > in_y->store_pos) - (in_x->store_pos < in_y->store_pos);
}

const struct s2s_ckpt_tensor **s2s_ckpt_by_place(const struct s2s_ckpt *ckpt)
{
    const size_t n = ckpt->n_tensors;
    const struct s2s_ckpt_tensor **order = s2s_xmalloc((n + 1) * sizeof *order);
    for (size_t i = 0; i < n; i++)
        order[i] =
            ckpt_stored(&ckpt->tensors[i]) ? ckpt_stored(&ckpt->tensors[i]) : &ckpt->tensors[i];
    if (n)
        s2s_sort(order, n, sizeof *order, by_place);
    return order;
}

int s2s_ckpt_verify_tensor(struct s2s_ckpt *ckpt, const struct s2s_ckpt_tensor *tensor,
                           struct s2s_error *err)
{
    tensor = ckpt_stored(tensor) ? ckpt_stored(tensor) : tensor;
    for (size_t i = 0; i < tensor->n_chunks; i++) {
        int rc = verify_chunk(ckpt, tensor, i, err);
        if (rc < 0)
            return ckpt_at_name(ckpt, tensor->name, rc, err);
    }
    return 0;
}

static int read_file(struct s2s_ckpt *ckpt, int file, const struct s2s_ckpt_write *how,
                     struct s2s_error *err)
{
    const int64_t len = ckpt->files[file].len_bytes;
    const int fd = ckpt_file_fd(ckpt, file, err);
    int rc = fd < 0 ? fd : 0;
    for (int64_t at = 0; rc == 0 && at < len; at += CKPT_SCRATCH) {
        const int64_t n = len - at < CKPT_SCRATCH ? len - at : CKPT_SCRATCH;
        rc = ckpt_pread(fd, ckpt_piece(ckpt), (size_t)n, at, ckpt->files[file].name, err);
        how->progress(how->ctx, n);
    }
    return rc;
}

int s2s_ckpt_read_files(struct s2s_ckpt *ckpt, const struct s2s_ckpt_write *how,
                        struct s2s_error *err)
{
    int rc = 0;
    for (size_t i = 0; i < ckpt->n_files && rc == 0; i++)
        rc = read_file(ckpt, (int)i, how, err);
    return rc;
}

bool s2s_ckpt_has_crc(const struct s2s_ckpt_tensor *tensor)
{
    tensor = ckpt_stored(tensor) ? ckpt_stored(tensor) : tensor;
    for (size_t i = 0; i < tensor->n_chunks; i++) {
        const struct ckpt_location *place = ckpt_place_at(tensor, i);
        if (!place->has_crc && place->store_len > 0)
            return false;
    }
    return true;
}

bool s2s_ckpt_stored_crc(struct s2s_ckpt *ckpt, const struct s2s_ckpt_tensor *tensor, uint32_t *crc)
{
    struct s2s_error ignored = S2S_ERROR_INIT; /* reading the tensor gives the same error */
    if (tensor->n_chunks != 1 || ckpt_locate(ckpt, tensor, 0, &ignored) < 0)
        return false;
    const struct ckpt_chunk *chunk = &tensor->chunks[0];
    if (chunk->stride || chunk->place.is_view || chunk->data != chunk->place.store_pos ||
        !chunk->place.has_crc || chunk->place.store_len != s2s_ckpt_bytes(tensor))
        return false;
    *crc = chunk->place.crc;
    return true;
}

/* Verifies an archive: only data, and undamaged. object: its name, if it is an object; or NULL. */
static int verify_source(struct s2s_ckpt *ckpt, const struct s2s_zip_source *source,
                         const char *object, struct s2s_error *err)
{
    struct ckpt_archive archive;
    int rc = ckpt_archive_open(&archive, source, CKPT_CHECK, err);
    if (rc < 0)
        return rc;
    struct ckpt_view view;
    rc = ckpt_view_of(archive.pickle.root, &view, err);
    if (rc > 0)
        rc = s2s_error_set(err, S2S_E_FORMAT,
                           "holds a tensor where an object is expected: it would be lost");
    for (size_t i = 0; i < archive.zip.n_members && rc == 0; i++)
        rc = s2s_zip_check_member(&archive.zip, &archive.zip.members[i], ckpt_piece(ckpt),
                                  CKPT_SCRATCH, err);
    if (rc == 0 && object && strcmp(object, CKPT_COMMON_OBJECT) != 0) /* which warns when it is read
                                                                       */
        ckpt_warn_opaque(ckpt, &archive.pickle, object);
    ckpt_archive_release(&archive);
    return rc;
}

static int verify_archive(struct s2s_ckpt *ckpt, const char *file_name, int64_t begin, int64_t len,
                          const char *object, struct s2s_error *err)
{
    int file = ckpt_add_file(ckpt, file_name, err);
    int fd = ckpt_file_fd(ckpt, file, err);
    if (fd < 0)
        return fd;
    struct s2s_zip_source source = {
        .fd = fd, .begin = begin, .len_bytes = len < 0 ? ckpt->files[file].len_bytes : len};
    source.max_members = len < 0 ? 0 : CKPT_ITEM_MEMBERS;
    return verify_source(ckpt, &source, object, err);
}

int ckpt_verify_torch_file(struct s2s_ckpt *ckpt, const char *name, struct s2s_error *err)
{
    struct stat st;
    char to[PATH_MAX];
    const int fd = openat(ckpt->dir_fd, ckpt_in_hub(ckpt->dir_fd, name, to),
                          O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
    int rc = fd < 0 || fstat(fd, &st) < 0 ? s2s_error_errno(err, S2S_E_OPEN, "open") : 0;
    if (rc == 0 && !S_ISREG(st.st_mode))
        rc = s2s_error_set(err, S2S_E_FORMAT, "not a plain file");
    if (rc == 0)
        rc = verify_source(ckpt, &(struct s2s_zip_source){.fd = fd, .len_bytes = st.st_size}, NULL,
                           err);
    if (fd >= 0)
        close(fd);
    return rc < 0 ? ckpt_at_name(ckpt, name, rc, err) : 0;
}

int s2s_ckpt_verify_object(struct s2s_ckpt *ckpt, const struct s2s_ckpt_object *object,
                           struct s2s_error *err)
{
    if (!object->file)
        return 0;
    int rc = verify_archive(ckpt, object->file, object->pos, object->len_bytes, object->name, err);
    if (rc < 0)
        rc = s2s_error_add(err, rc, "%s: item at %lld", object->file, (long long)object->pos);
    return rc < 0 ? ckpt_at_name(ckpt, object->name, rc, err) : 0;
}

/* Verifies all members of an archive. *vouched: becomes false if one has no CRC-32. */
static int check_members(struct s2s_ckpt *ckpt, const struct s2s_zip *zip, bool *vouched,
                         struct s2s_error *err)
{
    int rc = 0;
    for (size_t i = 0; i < zip->n_members && rc == 0; i++) {
        *vouched &= zip->members[i].crc != 0 || zip->members[i].len_bytes == 0;
        rc = s2s_zip_check_member(zip, &zip->members[i], ckpt_piece(ckpt), CKPT_SCRATCH, err);
    }
    return rc;
}

int s2s_ckpt_verify_archives(struct s2s_ckpt *ckpt, size_t *n_unchecked, struct s2s_error *err)
{
    struct s2s_error ignored = S2S_ERROR_INIT;
    int rc = 0;
    for (size_t i = 0; i < ckpt->n_files && rc == 0; i++) {
        struct s2s_zip zip;
        const int fd = ckpt_file_fd(ckpt, (int)i, err);
        const struct s2s_zip_source source = {.fd = fd, .len_bytes = ckpt->files[i].len_bytes};
        bool vouched = true;
        if (fd < 0)
            return fd;
        if (s2s_zip_open(&zip, &source, &ignored) < 0) {
            s2s_error_clear(&ignored);
            ++*n_unchecked;
            continue;
        }
        rc = check_members(ckpt, &zip, &vouched, err);
        s2s_zip_release(&zip);
        *n_unchecked += !vouched;
        if (rc < 0)
            rc = s2s_error_add(err, rc, "%s", ckpt->files[i].name);
    }
    return rc;
}

void s2s_ckpt_find_lost(struct s2s_ckpt *ckpt)
{
    for (size_t i = 0; i < ckpt->n_objects; i++) {
        struct s2s_ckpt_object *object = &ckpt->objects[i];
        struct s2s_error ignored = S2S_ERROR_INIT; /* reported when the object is read */
        struct s2s_zip zip;
        if (!object->file || s2s_ckpt_is_state(object->name) || s2s_ckpt_is_sharded(object->name))
            continue;
        const int fd = ckpt_file_fd(ckpt, ckpt_add_file(ckpt, object->file, &ignored), &ignored);
        const struct s2s_zip_source source = {
            .fd = fd, .begin = object->pos, .len_bytes = object->len_bytes};
        if (fd < 0 || s2s_zip_open(&zip, &source, &ignored) < 0)
            continue;
        if (s2s_zip_find(&zip, "data/0")) {
            object->lost = "value with tensors in it";
            s2s_warn("ckpt", "%s: a %s, of which no tensor is read", object->name, object->lost);
        }
        s2s_zip_release(&zip);
    }
}

/* Checks that a folder's config.json, from which a Hugging Face model gets its sizes, and those of
 * a speech model's parts are JSON. */
static int verify_configs(const struct s2s_ckpt *ckpt, struct s2s_error *err)
{
    static const char *const paths[] = {"config.json", "encoder/config.json", "llm/config.json"};
    int rc = 0;
    if (!ckpt_has_word("hf hf_bin dcp_hf dcp torch_dist mp_rank", ckpt->format))
        return 0;
    for (size_t i = 0; i < sizeof paths / sizeof *paths && rc == 0; i++) {
        json_t *config = NULL;
        rc = ckpt_read_json(&config, ckpt, paths[i], err);
        json_decref(config);
    }
    return rc;
}

int ckpt_verify_common_file(struct s2s_ckpt *ckpt, struct s2s_error *err)
{
    if (ckpt->dir_fd < 0 || !ckpt->no_links || !s2s_is_there(ckpt->dir_fd, "common.pt"))
        return 0;
    int rc = verify_archive(ckpt, "common.pt", 0, -1, NULL, err);
    return rc < 0 ? ckpt_at_name(ckpt, "common.pt", rc, err) : 0;
}

int s2s_ckpt_verify_common(struct s2s_ckpt *ckpt, struct s2s_error *err)
{
    int rc = verify_configs(ckpt, err);
    if (rc < 0)
        return rc;
    if (ckpt->unfinished)
        return s2s_error_set(err, S2S_E_TRUNCATED, "%s: %s", ckpt->path, CKPT_UNFINISHED);
    if (strcmp(ckpt->format, "torch_dist") == 0 && !ckpt_has(ckpt, "common.pt") &&
        !ckpt_find_object(ckpt, CKPT_COMMON_OBJECT))
        return s2s_error_set(err, S2S_E_NOTFOUND,
                             "%s: common.pt is missing, without which Megatron-Core loads nothing",
                             ckpt->path);
    rc = ckpt_verify_common_file(ckpt, err);
    if (rc == 0 && ckpt->dir_fd >= 0 && ckpt->no_links &&
        s2s_is_there(ckpt->dir_fd, CKPT_LIGHTNING_META))
        rc = ckpt_verify_torch_file(ckpt, CKPT_LIGHTNING_META, err);
    return rc;
}

/* ---- copies ---- */

int s2s_ckpt_is_copy(struct s2s_ckpt *ckpt, const struct s2s_ckpt_tensor *a,
                     const struct s2s_ckpt_tensor *b, struct s2s_error *err)
{
    const size_t itemsize = s2s_dtype_size(a->dtype);
    struct s2s_ckpt_walk walk;
    int rc = 0;
    bool same = true;
    if (a->dtype != b->dtype || !ckpt_same_shape(a->shape, a->n_dims, b->shape, b->n_dims))
        return 0;
    char *x = s2s_xmalloc(S2S_CKPT_PIECE), *y = s2s_xmalloc(S2S_CKPT_PIECE);
    s2s_ckpt_walk_begin(&walk, a->shape, a->n_dims, itemsize);
    while (rc == 0 && same && s2s_ckpt_walk_next(&walk)) {
        rc = s2s_ckpt_read(ckpt, a, walk.begin, walk.box, x, err);
        if (rc == 0)
            rc = s2s_ckpt_read(ckpt, b, walk.begin, walk.box, y, err);
        if (rc == 0)
            same = memcmp(x, y, (size_t)ckpt_box_numel(walk.box, a->n_dims) * itemsize) == 0;
    }
    free(x);
    free(y);
    return rc < 0 ? rc : same;
}

static const char *file_of(const struct s2s_ckpt *ckpt, const struct s2s_ckpt_tensor *tensor)
{
    return ckpt->files[ckpt_place_at(tensor, 0)->file].name;
}

/* A chunk of a tensor, as one of its own. */
static struct s2s_ckpt_tensor alone(struct s2s_ckpt *ckpt, const struct s2s_ckpt_tensor *whole,
                                    size_t k)
{
    struct s2s_ckpt_tensor tensor = *whole;
    struct ckpt_chunk chunk = ckpt_chunk_at(whole, k);
    chunk.offset = ckpt_origin;
    tensor.shape = ckpt_arena_ints(ckpt, chunk.size, (size_t)whole->n_dims);
    ckpt_set_chunks(ckpt, &tensor, &chunk, 1);
    return tensor;
}

/* Is the copy the same as its chunk of `whole`, and undamaged? */
static int verify_copy(struct s2s_ckpt *ckpt, const struct s2s_ckpt_tensor *whole,
                       const struct ckpt_copy *of, struct s2s_error *err)
{
    const struct s2s_ckpt_tensor first = alone(ckpt, whole, of->chunk);
    const int same = s2s_ckpt_is_copy(ckpt, &first, &of->copy, err);
    int rc = same < 0 ? same : 0;
    if (same == 0)
        rc = s2s_error_set(err, S2S_E_FORMAT, "%s and %s have copies of it that differ",
                           file_of(ckpt, &first), file_of(ckpt, &of->copy));
    return rc < 0 ? ckpt_at_name(ckpt, whole->name, rc, err) : 0;
}

int s2s_ckpt_verify_copies(struct s2s_ckpt *ckpt, struct s2s_error *err)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < ckpt->n_copies; i++) {
        const struct ckpt_copy *of = &ckpt->copies[i];
        const struct s2s_ckpt_tensor *whole = s2s_ckpt_find(ckpt, of->copy.name);
        rc = s2s_ckpt_verify_tensor(ckpt, &of->copy, err);
        if (rc == 0 && whole)
            rc = verify_copy(ckpt, whole, of, err);
    }
    return rc;
}
