/* Folders: listing, removing, renaming. Also used by other rooms and tools for checkpoints. */
#ifndef CKPT_FILES_H
#define CKPT_FILES_H

#include <dirent.h>

struct s2s_error;

/* The next entry of an open folder, without "." and ".."; lent until the next call. NULL at the
 * end, and if reading fails: then *rc is IO and err names path. Otherwise *rc is not changed. */
struct dirent *s2s_ckpt_next_entry(DIR *dir, const char *path, int *rc, struct s2s_error *err);

/* Removes a folder and its contents. Links are removed, not followed. 0 also if the folder does not
 * exist. IO. */
int s2s_ckpt_remove_tree(const char *path, struct s2s_error *err);
/* Renames a folder whose files are complete and synced, and syncs its parent. `to` must not exist.
 * IO. */
int s2s_ckpt_rename_tree(const char *from, const char *to, struct s2s_error *err);

#endif
