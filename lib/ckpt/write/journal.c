/* Keeps the journal of completed files, by which a conversion is resumed. */
#include "lib/ckpt/write/journal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/base.h"
#include "lib/ckpt/ckpt_files.h"
#include "lib/ckpt/read/read.h"
#include "lib/ckpt/write/manifest.h"
#include "lib/io/digest.h"
#include "lib/io/durable.h"

#define NAME CKPT_JOURNAL
#define OWNER "process "

/* After a power cut, at most files of so many bytes are not in the journal, and written again:
 * syncing it for each of a thousand small files would take as long as syncing those. */
enum { SYNC_BYTES = 64 << 20 };

struct entry {
    char *path; /* below the folder */
    char digest[33];
    int64_t len, n_infinite;
};

struct ckpt_journal {
    char *dir, *name; /* name: of this rank's file: NAME, NAME.1, .. */
    int fd, lock_fd;  /* lock_fd: of dir, which is locked while we write into it */
    struct entry *entries;
    size_t n, cap;
    int64_t *n_infinite, n_noted; /* NULL or s2s_ckpt_journal_count's; of those, in the journal */
    int64_t unsynced;             /* bytes of the files noted since the journal was synced */
};

/* ---- reading it ---- */

/* Parses LENGTH DIGEST PATH [INFINITE] XXH3 into an entry; an altered line is ignored. */
static void take_line(struct ckpt_journal *journal, char *line)
{
    char *sum = strrchr(line, '\t'), hex[17], *end, *field[3];
    if (!sum)
        return;
    s2s_u64_hex(hex, s2s_xxh3_64(line, (size_t)(sum - line)));
    if (strcmp(sum + 1, hex) != 0)
        return;
    *sum = '\0';
    field[0] = line;
    for (int i = 1; i < 3; i++) {
        char *tab = strchr(field[i - 1], '\t');
        if (!tab)
            return;
        *tab = '\0';
        field[i] = tab + 1;
    }
    char *infinite = strchr(field[2], '\t');
    if (infinite)
        *infinite++ = '\0';
    long long len = strtoll(field[0], &end, 10);
    const long long n_infinite = infinite ? strtoll(infinite, NULL, 10) : 0;
    if (*end || len < 0 || n_infinite < 0 || n_infinite > len || strlen(field[1]) != 32)
        return;
    s2s_grow(&journal->entries, journal->n, &journal->cap, sizeof *journal->entries);
    struct entry *entry = &journal->entries[journal->n++];
    *entry = (struct entry){
        .path = s2s_xstrdup(field[2]), .len = (int64_t)len, .n_infinite = (int64_t)n_infinite};
    memcpy(entry->digest, field[1], sizeof entry->digest);
}

/* A journal in the folder, for reading; NULL: cannot be opened. */
static FILE *open_to_read(const struct ckpt_journal *journal, const char *name)
{
    char *path = s2s_xasprintf("%s/%s", journal->dir, name);
    /* O_NONBLOCK: do not wait for the other end of a pipe */
    int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    FILE *file = fd >= 0 ? fdopen(fd, "r") : NULL;
    if (!file && fd >= 0)
        close(fd);
    free(path);
    return file;
}

/* Reads a journal, which is ignored if its key differs. Returns whether it has this key. */
static bool load(struct ckpt_journal *journal, const char *name, const char *key)
{
    FILE *file = open_to_read(journal, name);
    char *line = NULL;
    size_t cap = 0;
    bool same = false;
    ssize_t n;
    while (file && (n = s2s_xgetline(&line, &cap, file)) > 0) {
        if (line[n - 1] != '\n')
            break; /* truncated by a kill */
        line[n - 1] = '\0';
        if (!same && strcmp(line, key) != 0)
            break;
        if (same)
            take_line(journal, line);
        same = true;
    }
    free(line);
    if (file)
        fclose(file);
    return same;
}

static bool is_journal(const char *name)
{
    return strcmp(name, NAME) == 0 || strncmp(name, NAME ".", strlen(NAME ".")) == 0;
}

static void load_all(struct ckpt_journal *journal, const char *key)
{
    DIR *dir = opendir(journal->dir);
    for (struct dirent *item; dir && (item = readdir(dir)) != NULL;)
        if (is_journal(item->d_name))
            (void)load(journal, item->d_name, key);
    if (dir)
        closedir(dir);
}

static struct entry *find(const struct ckpt_journal *journal, const char *path)
{
    for (size_t i = journal->n; i-- > 0;) /* the last one counts */
        if (strcmp(journal->entries[i].path, path) == 0)
            return &journal->entries[i];
    return NULL;
}

/* ---- opening ---- */

static bool is_plain(int dir_fd, const char *name)
{
    struct stat st;
    return fstatat(dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode);
}

/* Removes files that are not listed or not regular (a link would be written through), and then
 * empty folders. below: "" or "sub/". */
static int sweep(struct ckpt_journal *journal, int fd, const char *below, struct s2s_error *err)
{
    DIR *dir = fdopendir(fd);
    int rc = 0;
    if (!dir) {
        close(fd);
        return s2s_error_errno(err, S2S_E_IO, "%s/%s", journal->dir, below);
    }
    struct dirent *item;
    while (rc == 0 && (item = s2s_ckpt_next_entry(dir, journal->dir, &rc, err))) {
        const char *name = item->d_name;
        char *path = s2s_xasprintf("%s%s", below, name);
        int sub = openat(dirfd(dir), name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (sub >= 0) {
            char *deeper = s2s_xasprintf("%s/", path);
            rc = sweep(journal, sub, deeper, err);
            free(deeper);
            (void)unlinkat(dirfd(dir), name, AT_REMOVEDIR); /* fails if it is not empty */
        } else if (!(is_plain(dirfd(dir), name) && (find(journal, path) || is_journal(path))) &&
                   unlinkat(dirfd(dir), name, 0) < 0) {
            rc = s2s_error_errno(err, S2S_E_IO, "%s/%s: remove", journal->dir, path);
        }
        free(path);
    }
    closedir(dir);
    return rc;
}

/* Appends text about files of len bytes. */
static int append(struct ckpt_journal *journal, const struct s2s_buf *text, int64_t len,
                  struct s2s_error *err)
{
    for (size_t done = 0; done < text->len;) {
        ssize_t n = write(journal->fd, text->data + done, text->len - done);
        if (n < 0 && errno != EINTR)
            return s2s_error_errno(err, S2S_E_IO, "%s/%s: write", journal->dir, journal->name);
        done += n > 0 ? (size_t)n : 0;
    }
    journal->unsynced += len;
    if (journal->unsynced < SYNC_BYTES)
        return 0;
    journal->unsynced = 0;
    if (s2s_durable_sync(journal->fd) < 0)
        return s2s_error_errno(err, S2S_E_IO, "%s/%s: sync", journal->dir, journal->name);
    return 0;
}

/* The owner of the folder, from a journal: "process 12 on node3", or "another process". Gives:
 * free. */
static char *owner(const struct ckpt_journal *journal, const char *name)
{
    FILE *file = open_to_read(journal, name);
    char *line = NULL, *who = NULL;
    size_t cap = 0;
    while (file && s2s_xgetline(&line, &cap, file) > 0)
        if (strncmp(line, OWNER, strlen(OWNER)) == 0) { /* the last one counts */
            free(who);
            who = s2s_xstrndup(line, strcspn(line, "\n"));
        }
    if (file)
        fclose(file);
    free(line);
    return who ? who : s2s_xstrdup("another process");
}

static int taken(const struct ckpt_journal *journal, const char *who, struct s2s_error *err)
{
    int rc = s2s_error_set(err, S2S_E_IO, "%s: %.300s is writing there", journal->dir, who);
    return s2s_error_hint(err, rc, "wait for it, or share one conversion: mpirun -n N s2s-ckpt ..");
}

/* Locks the open file fd, if the file system supports it. name: the journal that tells the owner.
 */
static int lock(const struct ckpt_journal *journal, int fd, const char *name, struct s2s_error *err)
{
    if (flock(fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK)
        return 0;
    char *who = owner(journal, name);
    int rc = taken(journal, who, err);
    free(who);
    return rc;
}

/* Checks that no rank of another run is alive: each holds a lock on its journal, and may outlive
 * rank 0, which held the folder's. */
static int check_ranks(const struct ckpt_journal *journal, struct s2s_error *err)
{
    DIR *dir = opendir(journal->dir);
    int rc = 0;
    for (struct dirent *item;
         dir && rc == 0 && (item = s2s_ckpt_next_entry(dir, journal->dir, &rc, err));) {
        if (!is_journal(item->d_name))
            continue;
        int fd = openat(dirfd(dir), item->d_name, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
        if (fd >= 0) {
            rc = lock(journal, fd, item->d_name, err);
            close(fd);
        }
    }
    if (dir)
        closedir(dir);
    return rc;
}

static void unlock_folder(struct ckpt_journal *journal)
{
    if (journal->lock_fd >= 0)
        close(journal->lock_fd);
    journal->lock_fd = -1;
}

/* Has the folder that is locked its name still? */
static bool is_in_place(const struct ckpt_journal *journal)
{
    struct stat locked, named;
    return fstat(journal->lock_fd, &locked) == 0 && lstat(journal->dir, &named) == 0 &&
           locked.st_dev == named.st_dev && locked.st_ino == named.st_ino;
}

/* Locks the folder itself, so that there is one run at a time; the lock ends with the process.
 * lock_fd < 0, with errno: there is none that can be opened. */
static int lock_folder(struct ckpt_journal *journal, struct s2s_error *err)
{
    enum { TRIES = 100 };
    for (int i = 0; i < TRIES; i++) {
        journal->lock_fd = open(journal->dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (journal->lock_fd < 0)
            return 0;
        int rc = lock(journal, journal->lock_fd, NAME, err);
        if (rc < 0 || is_in_place(journal))
            return rc;
        unlock_folder(journal); /* who had it gave it OUT's name meanwhile: its files are whole */
    }
    return taken(journal, "another process", err);
}

static int open_append(struct ckpt_journal *journal, int flags, const char *head,
                       struct s2s_error *err)
{
    char *path = s2s_xasprintf("%s/%s", journal->dir, journal->name);
    struct s2s_buf text = S2S_BUF_INIT;
    char host[256] = "";
    int rc = 0;
    journal->fd = open(path, O_WRONLY | O_APPEND | O_NOFOLLOW | O_CLOEXEC | flags, 0666);
    s2s_buf_printf(&text, "%s\n", head); /* the newline also ends a truncated line */
    gethostname(host, sizeof host - 1);
    s2s_buf_printf(&text, OWNER "%ld on %s\n", (long)getpid(), host); /* not the line of a file */
    if (journal->fd < 0)
        rc = s2s_error_errno(err, S2S_E_IO, "%s: cannot create the file", path);
    if (rc == 0)
        rc = lock(journal, journal->fd, journal->name, err);
    if (rc == 0)
        rc = append(journal, &text, SYNC_BYTES, err);
    s2s_buf_release(&text);
    free(path);
    return rc;
}

/* Checks that an earlier run left the folder: that it has a journal, or the files that are written
 * just before the journal is removed, or is empty. Files of other programs are never removed. */
static int check_ours(const struct ckpt_journal *journal, struct s2s_error *err)
{
    DIR *dir = opendir(journal->dir);
    bool empty = dir != NULL, ours = false;
    int rc = 0;
    for (struct dirent *item; dir && (item = s2s_ckpt_next_entry(dir, journal->dir, &rc, err));) {
        const char *name = item->d_name;
        empty = false;
        ours |=
            is_journal(name) || strcmp(name, CKPT_MANIFEST) == 0 || strcmp(name, CKPT_TRACKER) == 0;
    }
    if (dir)
        closedir(dir);
    if (rc < 0 || empty || ours)
        return rc;
    rc = s2s_error_set(err, S2S_E_ARG, "%s: already exists, and no run of s2s-ckpt left it",
                       journal->dir);
    return s2s_error_hint(err, rc, "choose another OUT or remove it first");
}

/* Makes the folder and locks it. */
static int make_folder(struct ckpt_journal *journal, struct s2s_error *err)
{
    struct stat st;
    if (mkdir(journal->dir, 0777) < 0) {
        int rc = s2s_error_errno(err, S2S_E_IO, "%s: cannot create the folder", journal->dir);
        return errno == EEXIST && lstat(journal->dir, &st) == 0 && S_ISDIR(st.st_mode) &&
                       access(journal->dir, R_OK | X_OK) == 0
                   ? taken(journal, "another process", err)
                   : rc;
    }
    int rc = lock_folder(journal, err);
    if (rc == 0 && journal->lock_fd < 0 && errno == ENOENT) /* removed, to be made anew */
        rc = taken(journal, "another process", err);
    return rc;
}

static int begin_anew(struct ckpt_journal *journal, const char *key, struct s2s_error *err)
{
    /* remove only what we have locked; whoever creates the folder first owns it */
    const bool there = journal->lock_fd >= 0;
    int rc = there ? check_ours(journal, err) : 0;
    /* the journal is removed last: if we are killed here, the folder is recognised as ours */
    if (rc == 0 && there)
        rc = sweep(journal, dup(journal->lock_fd), "", err);
    if (rc == 0 && there)
        rc = s2s_ckpt_remove_tree(journal->dir, err);
    unlock_folder(journal);
    if (rc == 0)
        rc = make_folder(journal, err);
    if (rc < 0)
        return rc; /* such as: another process was faster */
    rc = open_append(journal, O_CREAT | O_EXCL, key, err);
    if (rc < 0) { /* such as a full disk, or no free descriptor */
        (void)unlinkat(journal->lock_fd, NAME, 0);
        (void)rmdir(journal->dir);
    }
    return rc;
}

static struct ckpt_journal *new_journal(const char *dir, int rank)
{
    struct ckpt_journal *journal = s2s_xcalloc(1, sizeof *journal);
    journal->dir = s2s_xstrdup(dir);
    journal->name = rank ? s2s_xasprintf(NAME ".%d", rank) : s2s_xstrdup(NAME);
    journal->fd = journal->lock_fd = -1;
    return journal;
}

static int opened(struct ckpt_journal **out, struct ckpt_journal *journal, int rc)
{
    if (rc < 0)
        s2s_ckpt_journal_close(journal);
    else
        *out = journal;
    return rc;
}

int s2s_ckpt_journal_open(struct ckpt_journal **out, const char *dir, const char *key, bool resume,
                          struct s2s_error *err)
{
    struct ckpt_journal *journal = new_journal(dir, 0);
    int rc = lock_folder(journal, err);
    if (rc == 0 && journal->lock_fd >= 0)
        rc = check_ranks(journal, err);
    if (rc == 0 && resume && journal->lock_fd >= 0 && load(journal, NAME, key)) {
        load_all(journal, key); /* of all ranks */
        rc = sweep(journal, dup(journal->lock_fd), "", err);
        if (rc == 0)
            rc = open_append(journal, 0, "", err);
    } else if (rc == 0) {
        rc = begin_anew(journal, key, err);
    }
    return opened(out, journal, rc);
}

int s2s_ckpt_journal_join(struct ckpt_journal **out, const char *dir, const char *key, int rank,
                          struct s2s_error *err)
{
    struct ckpt_journal *journal = new_journal(dir, rank);
    load_all(journal, key);
    bool there = load(journal, journal->name, key);
    return opened(out, journal, open_append(journal, O_CREAT, there ? "" : key, err));
}

/* ---- using it ---- */

static const char *below(const struct ckpt_journal *journal, const char *path)
{
    size_t n = strlen(journal->dir);
    if (strncmp(path, journal->dir, n) != 0 || path[n] != '/')
        S2S_BUG("%s is not in %s", path, journal->dir);
    return path + n + 1;
}

int64_t ckpt_journal_bytes(const struct ckpt_journal *journal)
{
    int64_t bytes = 0;
    for (size_t i = 0; journal && i < journal->n; i++)
        bytes += journal->entries[i].len;
    return bytes;
}

bool ckpt_journal_has(struct ckpt_journal *journal, const char *path, int64_t *len, char digest[33])
{
    struct stat st;
    struct entry *entry = journal ? find(journal, below(journal, path)) : NULL;
    if (!entry)
        return false;
    if (lstat(path, &st) < 0 || !S_ISREG(st.st_mode) || st.st_size != entry->len ||
        s2s_digest_file(digest, path, NULL) < 0 || strcmp(digest, entry->digest) != 0) {
        s2s_warn("resume", "%s: is not what was written; writing it again", path);
        return false;
    }
    *len = entry->len;
    if (journal->n_infinite && entry->n_infinite) {
        s2s_warn("resume",
                 "%s: an earlier run wrote it, and %lld values past float16's largest, 65504, as "
                 "infinite",
                 path, (long long)entry->n_infinite);
        *journal->n_infinite += entry->n_infinite;
        journal->n_noted += entry->n_infinite;
    }
    s2s_info("resume", "%s already exists", path);
    return true;
}

void s2s_ckpt_journal_count(struct ckpt_journal *journal, int64_t *n)
{
    journal->n_infinite = n;
    journal->n_noted = *n;
}

int ckpt_journal_add(struct ckpt_journal *journal, const char *path, int64_t len,
                     const char *digest, struct s2s_error *err)
{
    struct s2s_buf line = S2S_BUF_INIT;
    char hex[17];
    if (!journal)
        return 0;
    s2s_buf_printf(&line, "%lld\t%s\t%s", (long long)len, digest, below(journal, path));
    const int64_t n_infinite = journal->n_infinite ? *journal->n_infinite - journal->n_noted : 0;
    if (n_infinite)
        s2s_buf_printf(&line, "\t%lld", (long long)n_infinite);
    journal->n_noted += n_infinite;
    s2s_u64_hex(hex, s2s_xxh3_64(line.data, line.len));
    s2s_buf_printf(&line, "\t%s\n", hex);
    int rc = append(journal, &line, len, err);
    s2s_buf_release(&line);
    return rc;
}

int s2s_ckpt_journal_remove(struct ckpt_journal *journal, struct s2s_error *err)
{
    int rc = 0;
    DIR *dir = opendir(journal->dir);
    if (!dir)
        return s2s_error_errno(err, S2S_E_IO, "%s", journal->dir);
    struct dirent *item;
    while (rc == 0 && (item = s2s_ckpt_next_entry(dir, journal->dir, &rc, err)))
        if (is_journal(item->d_name) && unlinkat(dirfd(dir), item->d_name, 0) < 0)
            rc = s2s_error_errno(err, S2S_E_IO, "%s/%s: remove", journal->dir, item->d_name);
    closedir(dir);
    return rc;
}

static void close_file(struct ckpt_journal *journal)
{
    if (journal->fd >= 0)
        close(journal->fd);
    journal->fd = -1;
}

void s2s_ckpt_journal_discard(struct ckpt_journal *journal)
{
    close_file(journal); /* there may be no other descriptor to remove the folder by */
    if (journal->lock_fd >= 0 && is_in_place(journal))
        (void)s2s_ckpt_remove_tree(journal->dir, NULL);
}

void s2s_ckpt_journal_close(struct ckpt_journal *journal)
{
    if (!journal)
        return;
    close_file(journal);
    unlock_folder(journal);
    for (size_t i = 0; i < journal->n; i++)
        free(journal->entries[i].path);
    free(journal->entries);
    free(journal->dir);
    free(journal->name);
    free(journal);
}
