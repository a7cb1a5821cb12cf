/* Reads from a file that others may truncate in the meantime. */
#ifndef S2S_IO_PREAD_H
#define S2S_IO_PREAD_H

#include <stddef.h>
#include <stdint.h>

struct s2s_error;

/*
 * Reads len bytes from pos of fd into out, across signals and short reads. TRUNCATED: the file ends
 * before; IO. The messages do not name the file. Data that is verified and then used is read this
 * way instead of mapped: a mapping ends the process (SIGBUS) if the file is truncated, and its
 * bytes may change after they were verified.
 */
int s2s_pread(int fd, void *out, size_t len, int64_t pos, struct s2s_error *err);

#endif
