/*
 * Opens what is to be read, and to be read again: a file, "-" for stdin, or "pipe:COMMAND" for what
 * a shell command writes. What is no file is copied to a temporary file without a name ($TMPDIR,
 * else /tmp).
 */
#ifndef S2S_DATA_SPOOL_H
#define S2S_DATA_SPOOL_H

#include <stdbool.h>
#include <stddef.h>

struct s2s_error;

/*
 * Returns a descriptor of a regular file that stands at 0. OPEN; IO: the command failed, after any
 * output (names its exit status or signal), or the copy did.
 */
int s2s_spool_open(const char *path, struct s2s_error *err);

/* How messages call it: "stdin" for "-", else the path. */
const char *s2s_spool_name(const char *path);
bool s2s_spool_is_pipe(const char *path);

/* A file without a name; returns its descriptor. For what messages call `path`. */
int s2s_spool_temporary(const char *path, struct s2s_error *err);
/* Appends to it. Returns 0, or IO. */
int s2s_spool_write(int fd, const void *bytes, size_t len, const char *path, struct s2s_error *err);

#endif
