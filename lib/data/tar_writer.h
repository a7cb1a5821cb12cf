/* Tars of many small members, which appear whole or not at all. libarchive writes them. */
#ifndef S2S_DATA_TAR_WRITER_H
#define S2S_DATA_TAR_WRITER_H

#include <stddef.h>

struct s2s_error;
struct s2s_tar_writer;

/* OPEN, IO. */
int s2s_tar_writer_open(struct s2s_tar_writer **tar, const char *path, struct s2s_error *err);
/* Appends a regular file: mode 0644, of nobody, of no time. IO. */
int s2s_tar_writer_add(struct s2s_tar_writer *tar, const char *name, const void *bytes,
                       size_t len_bytes, struct s2s_error *err);
/* Ends the tar, and names it. Frees it, also on failure. */
int s2s_tar_writer_commit(struct s2s_tar_writer *tar, struct s2s_error *err);
/* Removes it; NULL is a no-op. */
void s2s_tar_writer_abort(struct s2s_tar_writer *tar);

#endif
