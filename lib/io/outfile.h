/*
 * Files that appear whole or not at all: written without a name, synced, and only then given
 * theirs. Of a program that is killed or fails nothing stays. What was there under the name is
 * replaced by a rename: between the two calls a file .NAME.PID-N.tmp is there, complete. File
 * systems that know no files without names have it all the time; SIGINT, SIGTERM and their like
 * remove it, SIGKILL and SIGQUIT leave it. What exists and is no regular file (a device, a named
 * pipe) is written in place.
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
/* The same for large outputs: a thread writes while the caller makes more (lib/io/behind.h). Flush
 * and commit wait for it; s2s_outfile_write may return the error of an earlier write. */
int s2s_outfile_open_behind(struct s2s_outfile **out, const char *path, struct s2s_error *err);
/* Appends len bytes. Every short write, EINTR and full disk is handled or reported (IO: path, bytes
 * wanted, reason). */
int s2s_outfile_write(struct s2s_outfile *out, const void *bytes, size_t len,
                      struct s2s_error *err);
/* Pushes out what is buffered; a no-op cost where nothing is. For filters, after each record of a
 * pipe. */
int s2s_outfile_flush(struct s2s_outfile *out, struct s2s_error *err);
int64_t s2s_outfile_offset(const struct s2s_outfile *out); /* bytes written so far */
/* Flush, fsync, name, close: the file exists from here on. Frees out, also on failure (then
 * nothing appears). */
int s2s_outfile_commit(struct s2s_outfile *out, struct s2s_error *err);
/* Removes what was written. Frees out; NULL is a no-op. */
void s2s_outfile_abort(struct s2s_outfile *out);

/* Is `out`, where it is a file that exists (NULL and "-" are none), the file `input`? Whoever reads
 * the one must not replace it by the other. */
bool s2s_outfile_is(const char *out, const char *input);
/* ARG where it is. */
int s2s_outfile_spares(const char *out, const char *input, struct s2s_error *err);
int s2s_outfile_spares_each(const char *out, const char *const *inputs, size_t n,
                            struct s2s_error *err);

#endif
