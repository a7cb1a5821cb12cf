/* Folders of output that appear whole. */
#ifndef CKPT_FILES_H
#define CKPT_FILES_H

#include <dirent.h>

struct s2s_error;

/* The next entry of a folder but "." and ".."; NULL: there is none, or, with *rc set and path in
 * err, it cannot be read, which is no end of the folder. */
struct dirent *s2s_ckpt_next_entry(DIR *dir, const char *path, int *rc, struct s2s_error *err);

/* Removes a folder and all in it; links are removed, not followed. Missing is fine. */
int s2s_ckpt_remove_tree(const char *path, struct s2s_error *err);
/* Renames a complete, synced folder to a name that is free, and syncs the folder above. */
int s2s_ckpt_rename_tree(const char *from, const char *to, struct s2s_error *err);

#endif
