/*
 * Files without a name (O_TMPFILE), which vanish if the process ends, by any signal or power
 * failure, before they are linked.
 */
#ifndef S2S_IO_UNNAMED_H
#define S2S_IO_UNNAMED_H

#include <stdbool.h>

/* Creates a file on the file system of path's folder, open for reading and writing, with the
 * permissions of open(2). Returns its descriptor, or -1 with errno. */
int s2s_unnamed_open(const char *path);
/* The same in a folder, of nobody else's (0600); where the file system has no unnamed files it has
 * a name until this returns. For what is never linked. */
int s2s_unnamed_temporary(const char *folder);
/* Links the file to path. 0, or -1 with errno: EEXIST if path exists, which is not replaced. */
int s2s_unnamed_link(int fd, const char *path);
/* Is this errno of the two calls above an error of the output, such as a full disk? Otherwise the
 * file system does not support unnamed files, or /proc is not mounted. */
bool s2s_unnamed_is_failure(int error);
/* Appends all of fd to the open file `to`. 0, or -1 with errno. */
int s2s_unnamed_copy(int fd, int to);

#endif
