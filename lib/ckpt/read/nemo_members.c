/*
 * Lists the members of a .nemo. An uncompressed tar is read in place at the offsets that libarchive
 * reports. One in gzip is decompressed once into an unnamed temporary file, so that memory stays
 * bounded and nothing is left over after a crash.
 */
#include <archive.h>
#include <archive_entry.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include <zlib.h>

#include "lib/base/base.h"
#include "lib/ckpt/read/read_internal.h"
#include "lib/io/unnamed.h"

enum {
    MAX_MEMBERS = 1 << 16,
    MAX_NAME = 4096,
    READ_BLOCK = 1 << 16,
    MAX_DEPTH = 4, /* of folders in an unpacked archive */
};

/*
 * Decompression of a tar for libarchive, by zlib, which verifies the CRC-32 and length in the
 * trailer; libarchive's own filter does not. A few kilobytes can expand to gigabytes of tar headers
 * (decompression bomb), which libarchive would hold in memory before returning an entry: bytes are
 * counted here to stop it.
 */
struct inflate {
    gzFile gzip;
    int64_t packed_len, inflated;
    int64_t header; /* bytes of the current tar header so far; -1: outside of a header */
    char block[READ_BLOCK];
};

struct tar {
    struct s2s_ckpt *ckpt;
    const char *path;
    int fd, spill; /* spill: the unnamed temporary file; -1: members are read in place */
    const char *spill_dir;
    int64_t packed_len, spilled, declared;
    struct archive *in;
    json_t *member_idx; /* NULL until the first link; then an object: name -> index, of the first
                         * n_indexed members */
    size_t n_indexed;
    struct inflate *inflate; /* NULL: it is not compressed */
    struct s2s_error *err;
};

/* ---- decompression ---- */

bool ckpt_is_gzip(const unsigned char head[3])
{
    static const unsigned char magic[] = {0x1f, 0x8b, 8};
    return memcmp(head, magic, sizeof magic) == 0;
}

/* Is this a decompression bomb? Trained weights hardly compress; data that shrinks a hundredfold
 * was made to fill a disk. */
static bool inflates_too_much(int64_t packed_len, int64_t len_bytes)
{
    enum { MAX_RATIO = 100, FREE_BYTES = 256 << 20 /* not checked below this */ };
    return len_bytes > FREE_BYTES && len_bytes / MAX_RATIO > packed_len;
}

/* zlib's error message; NULL: no error, or only the end of the stream */
static const char *fault(struct inflate *inflate)
{
    int code = Z_OK;
    const char *text = gzerror(inflate->gzip, &code);
    const char *own = text ? strstr(text, ">: ") : NULL; /* strip the useless "<fd:5>: " */
    text = own ? own + 3 : text;
    return code == Z_OK || code == Z_STREAM_END ? NULL
           : text && *text                      ? text
                                                : "cannot be inflated";
}

static la_ssize_t fail(struct archive *in, const char *why)
{
    archive_set_error(in, EIO, "%s", why);
    return -1;
}

static la_ssize_t read_block(struct archive *in, void *ctx, const void **bytes)
{
    enum { MAX_HEADER = 1 << 20 };
    struct inflate *inflate = ctx;
    if (inflate->header > MAX_HEADER)
        return fail(in, "a header of more than 1 MiB");
    const int n = gzread(inflate->gzip, inflate->block, READ_BLOCK);
    const char *why = n > 0 ? NULL : fault(inflate);
    *bytes = inflate->block;
    if (n <= 0)
        return why ? fail(in, why) : n;
    inflate->inflated += n;
    if (inflates_too_much(inflate->packed_len, inflate->inflated))
        return fail(in, "it is made to fill the disk");
    if (inflate->header >= 0)
        inflate->header += n;
    return n;
}

static bool open_inflate(struct tar *t)
{
    const int own = lseek(t->fd, 0, SEEK_SET) == 0 ? fcntl(t->fd, F_DUPFD_CLOEXEC, 0) : -1;
    t->inflate = s2s_xcalloc(1, sizeof *t->inflate);
    t->inflate->packed_len = t->packed_len;
    t->inflate->gzip = own >= 0 ? gzdopen(own, "rb") : NULL;
    if (!t->inflate->gzip && own >= 0)
        close(own);
    return t->inflate->gzip && gzbuffer(t->inflate->gzip, READ_BLOCK) == 0 &&
           archive_read_open(t->in, t->inflate, NULL, read_block, NULL) == ARCHIVE_OK;
}

/* Reads what follows the archive's last member, up to the checksum; at most 64 MiB. NULL: the
 * checksum is right; otherwise what is wrong. */
static const char *finish_inflate(struct inflate *inflate)
{
    enum { MAX_AFTER = 64 << 20 };
    int n = 1;
    for (int64_t after = 0; after < MAX_AFTER && n > 0; after += n)
        n = gzread(inflate->gzip, inflate->block, READ_BLOCK);
    return n > 0 ? NULL : fault(inflate);
}

static void close_inflate(struct inflate *inflate)
{
    if (inflate && inflate->gzip)
        gzclose(inflate->gzip);
    free(inflate);
}

/* ---- members ---- */

static int bad_tar(const struct tar *t, const char *member)
{
    const char *why = archive_error_string(t->in);
    return s2s_error_set(t->err, S2S_E_FORMAT, "%s: %s%snot a whole %star archive: %s%s", t->path,
                         member ? member : "", member ? ": " : "", t->inflate ? "compressed " : "",
                         t->inflate ? "gzip: " : "", why ? why : "it ends too early");
}

static void add_member(struct s2s_ckpt *ckpt, const char *name, const struct ckpt_span *span)
{
    s2s_grow(&ckpt->members, ckpt->n_members, &ckpt->cap_members, sizeof *ckpt->members);
    ckpt->members[ckpt->n_members++] =
        (struct ckpt_member){ckpt_arena_text(ckpt, name, strlen(name)), *span};
}

/* Sorts by name. Duplicates are refused, because two readers might take different ones. */
static int sort_members(struct s2s_ckpt *ckpt, struct s2s_error *err)
{
    if (ckpt->n_members)
        qsort(ckpt->members, ckpt->n_members, sizeof *ckpt->members, ckpt_by_member_name);
    for (size_t i = 1; i < ckpt->n_members; i++)
        if (strcmp(ckpt->members[i - 1].name, ckpt->members[i].name) == 0)
            return s2s_error_set(err, S2S_E_FORMAT, "%s: holds %s twice", ckpt->path,
                                 ckpt->members[i].name);
    return 0;
}

/* ---- in place ---- */

/* Adds the current member, whose data begins at libarchive's current position; its first bytes are
 * compared to make sure. */
static int place_member(struct tar *t, const char *name, int64_t len_bytes)
{
    const void *first = NULL;
    size_t len = 0;
    la_int64_t at = 0;
    if (archive_read_data_block(t->in, &first, &len, &at) != ARCHIVE_OK || len == 0 || at != 0)
        return bad_tar(t, name);
    struct ckpt_span span = {.begin = archive_filter_bytes(t->in, 0), .len_bytes = len_bytes};
    if (span.begin < 0 || len_bytes > t->packed_len - span.begin)
        return s2s_error_set(t->err, S2S_E_TRUNCATED, "%s: %s leaves the archive", t->path, name);
    len = len < READ_BLOCK ? len : READ_BLOCK;
    char *bytes = s2s_xmalloc(len);
    int rc = ckpt_pread(t->fd, bytes, len, span.begin, t->path, t->err);
    if (rc == 0 && memcmp(bytes, first, len) != 0)
        rc =
            s2s_error_set(t->err, S2S_E_FORMAT, "%s: %s is not stored contiguously", t->path, name);
    free(bytes);
    if (rc == 0)
        add_member(t->ckpt, name, &span);
    return rc;
}

/* ---- what is decompressed ---- */

static int open_spill(struct tar *t)
{
    const char *wanted = getenv("TMPDIR");
    const char *const dirs[] = {wanted && *wanted ? wanted : "/var/tmp", "/tmp"};
    for (size_t i = 0; i < (wanted && *wanted ? 1 : 2) && t->spill < 0; i++) {
        t->spill_dir = dirs[i];
        t->spill = s2s_unnamed_temporary(dirs[i]);
    }
    if (t->spill >= 0)
        return 0;
    int rc = s2s_error_errno(t->err, S2S_E_IO,
                             "%s: compressed, and no file can be made in %s to "
                             "inflate it",
                             t->path, t->spill_dir);
    return s2s_error_hint(t->err, rc, "set TMPDIR to a folder with room for it");
}

static int check_room(struct tar *t, const char *name, int64_t len_bytes)
{
    struct statvfs fs;
    if (__builtin_add_overflow(t->declared, len_bytes, &t->declared) ||
        inflates_too_much(t->packed_len, t->declared)) {
        int rc =
            s2s_error_set(t->err, S2S_E_FORMAT,
                          "%s: its %lld bytes claim to hold %lld or more (%s): refused as made "
                          "to fill the disk",
                          t->path, (long long)t->packed_len, (long long)t->declared, name);
        return s2s_error_hint(t->err, rc, "if it is what you want, decompress it first");
    }
    if (fstatvfs(t->spill, &fs) == 0 && len_bytes / (int64_t)fs.f_frsize > (int64_t)fs.f_bavail) {
        int rc = s2s_error_set(t->err, S2S_E_IO,
                               "%s: compressed; %s needs %lld bytes in %s, where %lld are free",
                               t->path, name, (long long)len_bytes, t->spill_dir,
                               (long long)fs.f_bavail * (long long)fs.f_frsize);
        return s2s_error_hint(t->err, rc, "set TMPDIR to a folder with room for it");
    }
    return 0;
}

static int spill_write(struct tar *t, const char *bytes, size_t len)
{
    while (len) {
        ssize_t n = write(t->spill, bytes, len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            int rc =
                s2s_error_errno(t->err, S2S_E_IO, "%s: inflating it in %s", t->path, t->spill_dir);
            return s2s_error_hint(t->err, rc, "set TMPDIR to a folder with room for it");
        }
        bytes += n;
        len -= (size_t)n;
    }
    return 0;
}

static int spill_member(struct tar *t, const char *name, int64_t len_bytes)
{
    struct ckpt_span span = {.begin = t->spilled, .len_bytes = len_bytes};
    int rc = check_room(t, name, len_bytes);
    while (rc == 0 && t->spilled - span.begin < len_bytes) {
        const void *bytes = NULL;
        size_t len = 0;
        la_int64_t at = 0;
        int status = archive_read_data_block(t->in, &bytes, &len, &at);
        if (status != ARCHIVE_OK && status != ARCHIVE_WARN)
            return bad_tar(t, name);
        if (at != t->spilled - span.begin || (int64_t)len > len_bytes - at)
            return s2s_error_set(t->err, S2S_E_FORMAT, "%s: %s is not stored contiguously", t->path,
                                 name);
        rc = spill_write(t, bytes, len);
        t->spilled += (int64_t)len;
    }
    if (rc == 0)
        add_member(t->ckpt, name, &span);
    return rc;
}

/* ---- walking the archive ---- */

/* Normalises a path in the archive ("./", "//"), as two spellings are one file. NULL: it is
 * absolute or has a component that is not a plain name, such as "..". Gives: free. */
static char *plain_path(const char *name)
{
    char *path = s2s_xmalloc(strlen(name) + 1), *end = path;
    bool plain = *name != '/';
    for (size_t len; plain && *name; name += len + (name[len] == '/')) {
        len = strcspn(name, "/");
        if (len == 0 || (len == 1 && *name == '.'))
            continue;
        plain = ckpt_name_is_plain(name, len);
        if (end > path)
            *end++ = '/';
        memcpy(end, name, len);
        end += len;
    }
    *end = 0;
    if (!plain)
        free(path);
    return plain ? path : NULL;
}

/* An earlier member of this name; NULL: none. */
static const struct ckpt_member *find_earlier(struct tar *t, const char *name)
{
    const struct s2s_ckpt *ckpt = t->ckpt;
    if (!t->member_idx)
        t->member_idx = json_object();
    for (size_t i = t->n_indexed; i < ckpt->n_members; i++)
        json_object_set_new_nocheck(t->member_idx, ckpt->members[i].name,
                                    json_integer((json_int_t)i));
    t->n_indexed = ckpt->n_members;
    const json_t *i = json_object_get(t->member_idx, name);
    return i ? &ckpt->members[json_integer_value(i)] : NULL;
}

/* Adds a hard link: an earlier file under another name. */
static int add_link(struct tar *t, const char *name, const char *target)
{
    char *path = plain_path(target);
    const struct ckpt_member *member = path ? find_earlier(t, path) : NULL;
    free(path);
    if (!member)
        return s2s_error_set(t->err, S2S_E_FORMAT,
                             "%s: %s is a link to %s, which does not come before it", t->path, name,
                             target);
    const struct ckpt_span span = member->span;
    add_member(t->ckpt, name, &span);
    return 0;
}

static int take_member(struct tar *t, struct archive_entry *entry, const char *name)
{
    const char *target = archive_entry_hardlink(entry);
    const int64_t len_bytes = archive_entry_size(entry);
    if (target || archive_entry_filetype(entry) == AE_IFDIR) {
        /* skipped data is decompressed as well */
        int rc = t->spill >= 0 && len_bytes > 0 ? check_room(t, name, len_bytes) : 0;
        return rc == 0 && target ? add_link(t, name, target) : rc;
    }
    if (archive_entry_filetype(entry) != AE_IFREG)
        return s2s_error_set(t->err, S2S_E_FORMAT, "%s: %s is %s: refused", t->path, name,
                             archive_entry_filetype(entry) == AE_IFLNK ? "a symbolic link"
                                                                       : "not a plain file");
    if (archive_entry_sparse_count(entry) > 0)
        return s2s_error_set(t->err, S2S_E_UNSUPPORTED, "%s: %s is stored as a sparse file",
                             t->path, name);
    if (len_bytes == 0) {
        add_member(t->ckpt, name, &(struct ckpt_span){.file = 0});
        return 0;
    }
    return t->spill < 0 ? place_member(t, name, len_bytes) : spill_member(t, name, len_bytes);
}

/* Members are also unpacked by others: refuses paths outside of the folder and anything but regular
 * files. */
static int read_member(struct tar *t, struct archive_entry *entry)
{
    const char *name = archive_entry_pathname(entry);
    if (!name || strlen(name) > MAX_NAME || archive_entry_size(entry) < 0)
        return s2s_error_set(t->err, S2S_E_FORMAT, "%s: a member with an invalid header", t->path);
    char *path = plain_path(name);
    int rc = path ? take_member(t, entry, path)
                  : s2s_error_set(t->err, S2S_E_FORMAT,
                                  "%s: %s leads out of the folder, or is not a plain path: refused",
                                  t->path, name);
    free(path);
    return rc;
}

static int next_header(struct tar *t, struct archive_entry **entry)
{
    if (t->inflate)
        t->inflate->header = 0;
    int status = archive_read_next_header(t->in, entry);
    if (t->inflate)
        t->inflate->header = -1;
    return status;
}

static int walk(struct tar *t)
{
    struct archive_entry *entry;
    int rc = 0;
    if (t->spill >= 0 ? !open_inflate(t)
                      : archive_read_open_filename(t->in, t->path, READ_BLOCK) != ARCHIVE_OK)
        return bad_tar(t, NULL);
    for (int i = 0; rc == 0; i++) {
        int status = next_header(t, &entry);
        if (status == ARCHIVE_EOF &&
            archive_filter_bytes(t->in, 0) > archive_read_header_position(t->in))
            break;
        if (status == ARCHIVE_EOF) /* no end mark (zeros): members may be missing */
            rc = s2s_error_set(t->err, S2S_E_TRUNCATED,
                               "%s: the tar archive has no end mark: truncated", t->path);
        else if (status != ARCHIVE_OK && status != ARCHIVE_WARN)
            rc = bad_tar(t, NULL);
        else if (i >= MAX_MEMBERS)
            rc = s2s_error_set(t->err, S2S_E_FORMAT, "%s: more than %d members", t->path,
                               MAX_MEMBERS);
        else
            rc = read_member(t, entry);
        /* so that the rest of this member does not count as the next one's header */
        if (rc == 0 && t->inflate && archive_read_data_skip(t->in) < ARCHIVE_WARN)
            rc = bad_tar(t, NULL);
    }
    const char *why = rc == 0 && t->inflate ? finish_inflate(t->inflate) : NULL;
    if (why)
        rc = s2s_error_set(t->err, S2S_E_DIGEST, "%s: not a whole compressed tar archive: gzip: %s",
                           t->path, why);
    return rc;
}

/* Links: each rank's folder may have the weights of the first. */
static int check_links(const struct s2s_ckpt *ckpt, struct s2s_error *err)
{
    __int128 told = 0;
    for (size_t i = 0; i < ckpt->n_members; i++)
        told += ckpt->members[i].span.len_bytes;
    int rc = ckpt_check_told(ckpt, "members", told, 16, err);
    return rc < 0 ? s2s_error_add(err, rc, "%s", ckpt->path) : 0;
}

/* Replaces file 0 by the temporary file. */
static void take_spill(struct tar *t)
{
    struct ckpt_source_file *file = &t->ckpt->files[0];
    if (file->fd >= 0) {
        close(file->fd);
        t->ckpt->n_open--;
    }
    file->fd = t->spill;
    file->len_bytes = t->spilled;
    file->pinned = true;
}

int ckpt_nemo_members(struct s2s_ckpt *ckpt, struct s2s_error *err)
{
    struct tar t = {.ckpt = ckpt, .path = ckpt->path, .spill = -1, .err = err};
    unsigned char head[3] = {0};
    t.packed_len = ckpt->files[0].len_bytes;
    t.fd = ckpt_file_fd(ckpt, 0, err);
    int rc = t.fd < 0 ? t.fd : ckpt_pread(t.fd, head, sizeof head, 0, t.path, err);
    if (rc < 0)
        return rc;
    const bool compressed = ckpt_is_gzip(head);
    t.in = archive_read_new();
    if (!t.in)
        return s2s_error_set(err, S2S_E_NOMEM, "%s: no memory for the archive", t.path);
    archive_read_support_format_tar(t.in);
    rc = compressed ? open_spill(&t) : 0;
    if (rc == 0)
        rc = walk(&t);
    archive_read_free(t.in);
    json_decref(t.member_idx);
    close_inflate(t.inflate);
    if (rc == 0 && compressed)
        take_spill(&t);
    else if (t.spill >= 0)
        close(t.spill);
    if (rc == 0)
        rc = check_links(ckpt, err);
    return rc < 0 ? rc : sort_members(ckpt, err);
}

/* ---- unpacked archives ---- */

static bool is_weights(const char *name)
{
    return s2s_ends_with(name, ".ckpt") || s2s_ends_with(name, ".distcp");
}

static int add_file(struct s2s_ckpt *ckpt, const char *name, struct s2s_error *err)
{
    if (!is_weights(name) && ckpt_is_strange_link(ckpt->dir_fd, name)) {
        s2s_warn("ckpt", "%s: a link to a file elsewhere, left out", name);
        return 0;
    }
    if (ckpt->n_members >= MAX_MEMBERS)
        return s2s_error_set(err, S2S_E_FORMAT, "more than %d files", MAX_MEMBERS);
    struct ckpt_span span = {.file = ckpt_add_file(ckpt, name, err)};
    if (span.file < 0)
        return span.file;
    span.len_bytes = ckpt->files[span.file].len_bytes;
    add_member(ckpt, name, &span);
    return 0;
}

static int walk_folder(struct s2s_ckpt *ckpt, const char *folder, int depth, struct s2s_error *err)
{
    struct dirent **entries;
    int n = scandirat(ckpt->dir_fd, *folder ? folder : ".", &entries, NULL, alphasort), rc = 0;
    if (n < 0)
        return s2s_error_errno(err, S2S_E_OPEN, "%s: list folder", folder);
    for (int i = 0; i < n; i++) {
        char *name = s2s_xasprintf("%s%s", folder, entries[i]->d_name);
        struct stat st;
        bool own = strcmp(entries[i]->d_name, ".") == 0 || strcmp(entries[i]->d_name, "..") == 0;
        bool found = rc == 0 && !own && fstatat(ckpt->dir_fd, name, &st, 0) == 0;
        if (found && S_ISREG(st.st_mode)) {
            rc = add_file(ckpt, name, err);
        } else if (found && S_ISDIR(st.st_mode) && depth < MAX_DEPTH &&
                   fstatat(ckpt->dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
                   S_ISDIR(st.st_mode)) {
            char *below = s2s_xasprintf("%s/", name);
            rc = walk_folder(ckpt, below, depth + 1, err);
            free(below);
        }
        free(name);
        free(entries[i]);
    }
    free(entries);
    return rc;
}

int ckpt_nemo_folder(struct s2s_ckpt *ckpt, struct s2s_error *err)
{
    int rc = walk_folder(ckpt, "", 0, err);
    return rc < 0 ? rc : sort_members(ckpt, err);
}
