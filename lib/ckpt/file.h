/* Files: one that is written from start to end, and reads whose errors name the file. */
#ifndef CKPT_FILE_H
#define CKPT_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/base.h"

/* An output file, written sequentially. It is created under its final name, so its folder must be a
 * temporary one that is renamed when complete. */
struct ckpt_file {
    char *path;
    int fd;
    int64_t pos;               /* bytes appended so far */
    struct s2s_digest *digest; /* XXH3-128 of what was appended */
    struct s2s_behind *behind; /* buffers and writes, perhaps on a thread, which owns these: */
    int64_t written;           /* bytes passed to write(2) */
    int64_t started;           /* of those, whose writeback to disk was started */
};

/* Creates the file, or truncates it. IO: then neither _close nor _discard is needed. */
int ckpt_file_create(struct ckpt_file *file, const char *path, struct s2s_error *err);
/* Appends len bytes. IO. */
int ckpt_file_write(struct ckpt_file *file, const void *bytes, size_t len, struct s2s_error *err);
/* Flushes the buffer, syncs and closes. digest: NULL, or receives the XXH3-128 of the file as 32
 * hex digits. Releases file, also on failure. IO. */
int ckpt_file_close(struct ckpt_file *file, char digest[33], struct s2s_error *err);
/* Closes and releases without flushing; what was written so far stays on disk. */
void ckpt_file_discard(struct ckpt_file *file);

/* s2s_pread (lib/io/pread.h) with the path in its errors: len bytes at offset pos. IO, TRUNCATED.
 */
int ckpt_pread(int fd, void *out, size_t len, int64_t pos, const char *path, struct s2s_error *err);
/* Reads the whole file dir_fd/name; *len is its length, and a zero byte follows. Gives: free
 * *bytes. FORMAT: not a regular file, or longer than max_len bytes; OPEN: no permission; IO, NOMEM.
 */
int ckpt_slurp(int dir_fd, const char *name, int64_t max_len, char **bytes, size_t *len,
               struct s2s_error *err);

#endif
