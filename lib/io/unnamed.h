/*
 * Files that have no name until somebody gives them one: of a process that ends before that, by
 * whatever signal or power cut, nothing stays.
 */
#ifndef S2S_IO_UNNAMED_H
#define S2S_IO_UNNAMED_H

#include <stdbool.h>

/* A file of the file system that path's folder is on, for reading and writing; permissions as
 * open(2) gives them. Returns its descriptor, or -1 with errno. */
int s2s_unnamed_open(const char *path);
/* 0, or -1 with errno: EEXIST when path is there, which is not replaced. */
int s2s_unnamed_link(int fd, const char *path);
/* Is this errno of the two calls above about the file, such as a full disk? Else the file system
 * does not know files without names, or the system shows no /proc. */
bool s2s_unnamed_is_failure(int error);
/* Appends all of fd to the open file `to`. 0, or -1 with errno. */
int s2s_unnamed_copy(int fd, int to);

#endif
