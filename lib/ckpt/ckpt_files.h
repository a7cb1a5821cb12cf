/* Folders: listing, removing, renaming. For checkpoints in other rooms and tools, too. */
#ifndef CKPT_FILES_H
#define CKPT_FILES_H

#include <dirent.h>

struct s2s_error;

/* The next entry of an open folder, without "." and ".."; lent until the next call. NULL at the
 * end, and when reading fails: then *rc is set to IO and err names path. *rc is not touched
 * otherwise. */
struct dirent *s2s_ckpt_next_entry(DIR *dir, const char *path, int *rc, struct s2s_error *err);

/* Removes a folder and all that is in it. Links are removed, not followed. 0 also when the folder
 * is not there. IO. */
int s2s_ckpt_remove_tree(const char *path, struct s2s_error *err);
/* Renames a folder whose files are complete and synced, and syncs the folder above it. Nothing may
 * have the name `to`. IO. */
int s2s_ckpt_rename_tree(const char *from, const char *to, struct s2s_error *err);

#endif
