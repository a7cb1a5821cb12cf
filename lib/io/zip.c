/* Reads archives of stored members, and refuses ambiguous ones. */
#include "lib/io/zip.h"

#include "lib/base/base.h"
#include "lib/base/le.h"
#include "lib/io/crc32.h"
#include "lib/io/pread.h"

enum {
    LOCAL_LEN = 30,
    CENTRAL_LEN = 46,
    END_LEN = 22,
    END64_LEN = 56,
    LOCATOR_LEN = 20,
    MAX_MEMBERS = 1 << 20,
    MAX_DIRECTORY = 64 << 20, /* length of the central directory */
    MAX_ENTRY = CENTRAL_LEN + 3 * UINT16_MAX,
    WINDOW_LEN = 256 << 10,
};

int s2s_zip_read(const struct s2s_zip *zip, void *out, int64_t pos, size_t len,
                 struct s2s_error *err)
{
    const struct s2s_zip_source *source = &zip->source;
    if (pos < 0 || pos > source->len_bytes || len > (uint64_t)(source->len_bytes - pos))
        return s2s_error_set(err, S2S_E_TRUNCATED,
                             "%zu bytes at %lld are past the end of the archive (%lld bytes)", len,
                             (long long)pos, (long long)source->len_bytes);
    if (source->bytes) {
        memcpy(out, (const char *)source->bytes + source->begin + pos, len);
        return 0;
    }
    return s2s_pread(source->fd, out, len, source->begin + pos, err);
}

/* Location and number of entries of the central directory. */
struct directory {
    uint64_t pos, len, n;
};

static int find_directory(const struct s2s_zip *zip, struct directory *dir, struct s2s_error *err)
{
    unsigned char tail[END_LEN + LOCATOR_LEN + END64_LEN];
    int64_t len = zip->source.len_bytes;
    if (len < END_LEN)
        return s2s_error_set(err, S2S_E_TRUNCATED, "%lld bytes are too few for a zip archive",
                             (long long)len);
    size_t tail_len = len < (int64_t)sizeof tail ? (size_t)len : sizeof tail;
    int rc = s2s_zip_read(zip, tail, len - (int64_t)tail_len, tail_len, err);
    if (rc < 0)
        return rc;
    const unsigned char *end = tail + tail_len - END_LEN;
    if (memcmp(end, "PK\5\6", 4) != 0)
        return s2s_error_set(err, S2S_E_TRUNCATED,
                             "no zip end record at %lld: truncated, or not an archive",
                             (long long)len - END_LEN);
    if (s2s_le16(end + 4) || s2s_le16(end + 6) || s2s_le16(end + 8) != s2s_le16(end + 10))
        return s2s_error_set(err, S2S_E_FORMAT, "zip archive of several disks");
    *dir = (struct directory){s2s_le32(end + 16), s2s_le32(end + 12), s2s_le16(end + 10)};
    int64_t limit = len - END_LEN;
    if (tail_len >= END_LEN + LOCATOR_LEN && memcmp(end - LOCATOR_LEN, "PK\6\7", 4) == 0) {
        uint64_t pos64 = s2s_le64(end - LOCATOR_LEN + 8);
        if (tail_len < sizeof tail || pos64 != (uint64_t)(len - (int64_t)sizeof tail) ||
            memcmp(tail, "PK\6\6", 4) != 0)
            return s2s_error_set(err, S2S_E_FORMAT, "zip64 locator names %llu, no record is there",
                                 (unsigned long long)pos64);
        *dir = (struct directory){s2s_le64(tail + 48), s2s_le64(tail + 40), s2s_le64(tail + 32)};
        limit = len - (int64_t)sizeof tail;
    }
    if (dir->pos > (uint64_t)limit || dir->len != (uint64_t)limit - dir->pos)
        return s2s_error_set(
            err, S2S_E_FORMAT, "zip directory of %llu bytes at %llu does not end at %lld",
            (unsigned long long)dir->len, (unsigned long long)dir->pos, (long long)limit);
    const uint32_t most = zip->source.max_members ? zip->source.max_members : MAX_MEMBERS;
    if (dir->n > most)
        return s2s_error_set(err, S2S_E_FORMAT, "zip archive of %llu members: at most %u are read",
                             (unsigned long long)dir->n, most);
    if (dir->n * CENTRAL_LEN > dir->len || dir->len > MAX_DIRECTORY)
        return s2s_error_set(err, S2S_E_FORMAT, "zip directory of %llu bytes claims %llu members",
                             (unsigned long long)dir->len, (unsigned long long)dir->n);
    return 0;
}

/* Reads sizes and position that do not fit into 32 bits from the extra field with id 1, in this
 * order. -1: one of them is missing, or a field exceeds the len bytes. */
static int read_zip64_extra(const unsigned char *extra, size_t len, uint64_t *value[3])
{
    size_t size = 0; /* of the field, which begins at extra; 0: none */
    for (bool found = false; !found && len >= 4;) {
        const size_t field = s2s_le16(extra + 2);
        found = s2s_le16(extra) == 1;
        extra += 4;
        len -= 4;
        if (field > len)
            return -1;
        if (found)
            size = field;
        else
            extra += field;
        len -= field;
    }
    for (int i = 0; i < 3; i++) {
        if (*value[i] != UINT32_MAX)
            continue;
        if (size < 8)
            return -1;
        *value[i] = s2s_le64(extra);
        extra += 8;
        size -= 8;
    }
    return 0;
}

/* Reads an entry of the directory; *used is its length, pos that of the local header. Copies the
 * name to *names and advances that. */
static int read_entry(struct s2s_zip_member *member, const unsigned char *p, size_t left,
                      size_t *used, char **names, struct s2s_error *err)
{
    if (left < CENTRAL_LEN || memcmp(p, "PK\1\2", 4) != 0)
        return s2s_error_set(err, S2S_E_FORMAT, "bad zip directory entry");
    uint32_t flags = s2s_le16(p + 8), method = s2s_le16(p + 10);
    size_t name_len = s2s_le16(p + 28), extra_len = s2s_le16(p + 30),
           comment_len = s2s_le16(p + 32);
    if (name_len + extra_len + comment_len > left - CENTRAL_LEN)
        return s2s_error_set(err, S2S_E_FORMAT, "zip directory entry leaves the directory");
    uint64_t len = s2s_le32(p + 24), packed = s2s_le32(p + 20), header = s2s_le32(p + 42);
    if (read_zip64_extra(p + CENTRAL_LEN + name_len, extra_len,
                         (uint64_t *[]){&len, &packed, &header}) < 0)
        return s2s_error_set(err, S2S_E_FORMAT, "bad zip64 field");
    memcpy(*names, p + CENTRAL_LEN, name_len);
    (*names)[name_len] = 0;
    *member = (struct s2s_zip_member){
        .name = *names, .pos = (int64_t)header, .len_bytes = (int64_t)len, .crc = s2s_le32(p + 16)};
    if (name_len == 0 || strlen(*names) != name_len)
        return s2s_error_set(err, S2S_E_FORMAT, "zip member name is empty or holds a zero byte");
    *names += name_len + 1;
    *used = CENTRAL_LEN + name_len + extra_len + comment_len;
    if (flags & 0x41)
        return s2s_error_set(err, S2S_E_UNSUPPORTED, "zip member %s is encrypted", member->name);
    if (method != 0 || packed != len)
        return s2s_error_set(err, S2S_E_UNSUPPORTED,
                             "zip member %s is compressed (method %u, %llu bytes of %llu); only "
                             "stored members are read",
                             member->name, method, (unsigned long long)packed,
                             (unsigned long long)len);
    if (header > INT64_MAX / 2 || len > INT64_MAX / 2)
        return s2s_error_set(err, S2S_E_FORMAT, "zip member %s lies outside the archive",
                             member->name);
    return 0;
}

static int read_local_header(const struct s2s_zip *zip, struct s2s_zip_member *member, int64_t end,
                             struct s2s_error *err)
{
    unsigned char local[LOCAL_LEN];
    if (member->pos > end - LOCAL_LEN)
        return s2s_error_set(err, S2S_E_FORMAT, "zip member %s lies outside the archive",
                             member->name);
    int rc = s2s_zip_read(zip, local, member->pos, sizeof local, err);
    if (rc < 0)
        return rc;
    if (memcmp(local, "PK\3\4", 4) != 0 || s2s_le16(local + 8) != 0)
        return s2s_error_set(err, S2S_E_FORMAT, "zip member %s: no local header at %lld",
                             member->name, (long long)member->pos);
    member->header_len = LOCAL_LEN + s2s_le16(local + 26) + s2s_le16(local + 28);
    member->pos += member->header_len;
    if (member->pos > end || member->len_bytes > end - member->pos)
        return s2s_error_set(err, S2S_E_FORMAT,
                             "zip member %s (%lld bytes at %lld) leaves the archive", member->name,
                             (long long)member->len_bytes, (long long)member->pos);
    return 0;
}

static int64_t header_pos(const struct s2s_zip_member *member)
{
    return member->pos - member->header_len;
}

static int by_header(const void *a, const void *b)
{
    const int64_t x = header_pos(a), y = header_pos(b);
    return (x > y) - (x < y);
}

/* The name without the first folder, by which members are found. */
static const char *tail_of(const char *name)
{
    const char *slash = strchr(name, '/');
    return slash ? slash + 1 : name;
}

static int by_tail(const void *a, const void *b, void *members)
{
    const struct s2s_zip_member *m = members;
    return strcmp(tail_of(m[*(const uint32_t *)a].name), tail_of(m[*(const uint32_t *)b].name));
}

/* Checks that no two members overlap or have the same name, even in different first folders. */
static int check_members(struct s2s_zip *zip, struct s2s_error *err)
{
    struct s2s_zip_member *m = zip->members;
    size_t n = zip->n_members;
    s2s_sort(m, n, sizeof *m, by_header);
    for (size_t i = 1; i < n; i++)
        if (m[i - 1].pos + m[i - 1].len_bytes > header_pos(&m[i]))
            return s2s_error_set(err, S2S_E_FORMAT, "zip members %s and %s overlap", m[i - 1].name,
                                 m[i].name);
    uint32_t *order = s2s_xmalloc(n * sizeof *order);
    for (size_t i = 0; i < n; i++)
        order[i] = (uint32_t)i;
    qsort_r(order, n, sizeof *order, by_tail, m);
    int rc = 0;
    for (size_t i = 1; i < n && rc == 0; i++)
        if (by_tail(&order[i - 1], &order[i], m) == 0)
            rc = s2s_error_set(err, S2S_E_FORMAT, "zip member %s is there twice", m[order[i]].name);
    free(order);
    return rc;
}

/* A part of the central directory, which may have tens of megabytes. */
struct window {
    unsigned char *bytes; /* [WINDOW_LEN], or the whole directory if that is shorter */
    size_t at, end;       /* those not used yet */
    uint64_t pos, left;   /* of the directory, behind them */
};

/* Reads on, so that a whole entry is there unless the directory ends before. */
static int fill(struct window *w, const struct s2s_zip *zip, struct s2s_error *err)
{
    if (w->left == 0 || w->end - w->at >= MAX_ENTRY)
        return 0;
    memmove(w->bytes, w->bytes + w->at, w->end - w->at);
    w->end -= w->at;
    w->at = 0;
    const size_t room = WINDOW_LEN - w->end, n = w->left < room ? (size_t)w->left : room;
    const int rc = s2s_zip_read(zip, w->bytes + w->end, (int64_t)w->pos, n, err);
    w->end += n;
    w->pos += n;
    w->left -= n;
    return rc;
}

static int read_members(struct s2s_zip *zip, struct window *w, const struct directory *dir,
                        struct s2s_error *err)
{
    char *names = zip->internal;
    for (; zip->n_members < dir->n; zip->n_members++) {
        struct s2s_zip_member *member = &zip->members[zip->n_members];
        size_t used = 0;
        int rc = fill(w, zip, err);
        if (rc == 0)
            rc = read_entry(member, w->bytes + w->at, w->end - w->at, &used, &names, err);
        if (rc < 0 || (rc = read_local_header(zip, member, (int64_t)dir->pos, err)) < 0)
            return rc;
        w->at += used;
    }
    if (w->left || w->at != w->end)
        return s2s_error_set(err, S2S_E_FORMAT, "%llu bytes behind the last zip directory entry",
                             (unsigned long long)(w->left + w->end - w->at));
    return check_members(zip, err);
}

int s2s_zip_open(struct s2s_zip *zip, const struct s2s_zip_source *source, struct s2s_error *err)
{
    struct directory dir = {0, 0, 0};
    *zip = (struct s2s_zip){.source = *source};
    int rc = find_directory(zip, &dir, err);
    if (rc < 0)
        return rc;
    struct window window = {.pos = dir.pos, .left = dir.len};
    const size_t len = dir.len < WINDOW_LEN ? dir.len : WINDOW_LEN;
    window.bytes = s2s_try_calloc(len + 1, 1, "the zip directory", err);
    zip->members = s2s_try_calloc(dir.n + 1, sizeof *zip->members, "the zip members", err);
    /* each entry has 46 bytes besides its name, so the names and their NULs fit */
    zip->internal = s2s_try_calloc(dir.len + 1, 1, "the zip names", err);
    if (!window.bytes || !zip->members || !zip->internal)
        rc = S2S_E_NOMEM;
    if (rc == 0)
        rc = read_members(zip, &window, &dir, err);
    free(window.bytes);
    if (rc < 0)
        s2s_zip_release(zip);
    return rc;
}

void s2s_zip_release(struct s2s_zip *zip)
{
    if (!zip)
        return;
    s2s_zip_drop_members(zip);
    *zip = (struct s2s_zip){.n_members = 0};
}

void s2s_zip_drop_members(struct s2s_zip *zip)
{
    free(zip->members);
    free(zip->internal);
    zip->members = NULL;
    zip->internal = NULL;
    zip->n_members = 0;
}

const struct s2s_zip_member *s2s_zip_find(const struct s2s_zip *zip, const char *name)
{
    for (size_t i = 0; i < zip->n_members; i++) {
        const char *slash = strchr(zip->members[i].name, '/');
        if (slash && strcmp(slash + 1, name) == 0)
            return &zip->members[i];
    }
    return NULL;
}

static int compare_crc(const struct s2s_zip_member *member, uint32_t crc, struct s2s_error *err)
{
    return member->crc == 0 || crc == member->crc
               ? 0
               : s2s_error_set(err, S2S_E_DIGEST,
                               "zip member %s: CRC-32 is %08x, the archive says %08x", member->name,
                               crc, member->crc);
}

int s2s_zip_read_member(const struct s2s_zip *zip, const struct s2s_zip_member *member,
                        int64_t max_len, char **bytes, struct s2s_error *err)
{
    *bytes = NULL;
    if (member->len_bytes > max_len)
        return s2s_error_set(err, S2S_E_FORMAT, "zip member %s has %lld bytes, at most %lld are ok",
                             member->name, (long long)member->len_bytes, (long long)max_len);
    size_t len = (size_t)member->len_bytes;
    char *data = s2s_try_calloc(len + 1, 1, member->name, err);
    int rc = data ? s2s_zip_read(zip, data, member->pos, len, err) : S2S_E_NOMEM;
    uint32_t crc = rc == 0 ? s2s_crc32(0, data, len) : 0;
    if (rc == 0)
        rc = compare_crc(member, crc, err);
    if (rc < 0) {
        free(data);
        return rc;
    }
    *bytes = data;
    return 0;
}

int s2s_zip_check_member(const struct s2s_zip *zip, const struct s2s_zip_member *member,
                         void *piece, size_t piece_len, struct s2s_error *err)
{
    uint32_t crc = 0;
    int rc = 0;
    for (int64_t done = 0; rc == 0 && done < member->len_bytes;) {
        const int64_t left = member->len_bytes - done;
        const size_t n = left < (int64_t)piece_len ? (size_t)left : piece_len;
        rc = s2s_zip_read(zip, piece, member->pos + done, n, err);
        if (rc == 0)
            crc = s2s_crc32(crc, piece, n);
        done += (int64_t)n;
    }
    return rc < 0 ? rc : compare_crc(member, crc, err);
}
