/*
 * Output files that appear complete or not at all: a file is written without a name (O_TMPFILE),
 * synced, and only then linked. If the program fails or is killed nothing remains. An existing file
 * is replaced by rename: between the two calls there is a complete file .NAME.PID-N.tmp. On file
 * systems without unnamed files, that exists during all of the writing; SIGINT, SIGTERM and similar
 * signals remove it, SIGKILL and SIGQUIT leave it. An existing path that is not a regular file (a
 * device, a named pipe) is written in place.
 */
#ifndef S2S_IO_OUTFILE_H
#define S2S_IO_OUTFILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct s2s_error;
struct s2s_outfile;

/* Opens path for writing; "-" or NULL is stdout. */
int s2s_outfile_open(struct s2s_outfile **out, const char *path, struct s2s_error *err);
/* The same for large outputs: a thread writes while the caller produces more (lib/io/behind.h).
 * Flush and commit wait for it; s2s_outfile_write may return the error of an earlier write. */
int s2s_outfile_open_behind(struct s2s_outfile **out, const char *path, struct s2s_error *err);
/* Appends len bytes. Handles short writes and EINTR. IO: with path, offset, number of bytes and
 * reason. */
int s2s_outfile_write(struct s2s_outfile *out, const void *bytes, size_t len,
                      struct s2s_error *err);
/* Writes buffered bytes; cheap if there are none. For filters, after each record to a pipe. */
int s2s_outfile_flush(struct s2s_outfile *out, struct s2s_error *err);
int64_t s2s_outfile_offset(const struct s2s_outfile *out); /* bytes written so far */
/* Flushes, syncs, names and closes the file: it exists from here on. Frees out, also on failure
 * (the file does not appear then). */
int s2s_outfile_commit(struct s2s_outfile *out, struct s2s_error *err);
/* The same for one of many files of a folder, which the caller then syncs once: until then a power
 * cut may take the name away, but never leave it to a file that is not whole. */
int s2s_outfile_commit_in(struct s2s_outfile *out, struct s2s_error *err);
/* Removes the file. Frees out; NULL is a no-op. */
void s2s_outfile_abort(struct s2s_outfile *out);

/* Is `out` an existing file (not NULL or "-"), and the same file as `input`? Then it must not
 * replace its own input. */
bool s2s_outfile_is(const char *out, const char *input);
/* ARG if it is. */
int s2s_outfile_spares(const char *out, const char *input, struct s2s_error *err);
int s2s_outfile_spares_each(const char *out, const char *const *inputs, size_t n,
                            struct s2s_error *err);

#endif
