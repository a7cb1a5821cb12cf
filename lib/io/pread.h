/* Reading a place of a file that others may cut while it is read. */
#ifndef S2S_IO_PREAD_H
#define S2S_IO_PREAD_H

#include <stddef.h>
#include <stdint.h>

struct s2s_error;

/*
 * len bytes from pos of fd into out, whatever signals and short reads come between. TRUNCATED where
 * the file ends before, IO; neither names the file. What is checked and then used is read so and
 * not mapped: a mapping ends the process (SIGBUS) when the file becomes shorter, and changes under
 * the reader.
 */
int s2s_pread(int fd, void *out, size_t len, int64_t pos, struct s2s_error *err);

#endif
