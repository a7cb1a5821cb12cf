/* Folders and symbolic links. Listing, removing and renaming folders, which other rooms do too, is
 * in ckpt_files.h. */
#ifndef CKPT_FOLDER_H
#define CKPT_FOLDER_H

#include <dirent.h>
#include <limits.h>
#include <stdbool.h>

struct s2s_error;

/* fsync of a folder, after which the names in it are on disk. IO. */
int ckpt_sync_dir(const char *dir, struct s2s_error *err);
/* Opens the folder at/name (at as in openat) to list its entries. Gives: closedir. NULL: it does
 * not exist, or cannot be listed. */
DIR *ckpt_open_dir(int at, const char *name);

/* Is dir_fd/name a symbolic link whose target should not be copied into a folder that may be
 * published? Links within the folder are fine, and so are those of the Hugging Face hub's cache
 * (../../blobs/NAME). */
bool ckpt_is_strange_link(int dir_fd, const char *name);
/* For callers that open files with O_NOFOLLOW but trust the hub's cache: the path to open. If
 * dir_fd/name is a link of that cache, this is its target, stored in `to`; otherwise name. */
const char *ckpt_in_hub(int dir_fd, const char *name, char to[PATH_MAX]);

#endif
