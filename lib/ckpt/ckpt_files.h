/* Folders of output that appear whole. */
#ifndef CKPT_FILES_H
#define CKPT_FILES_H

struct s2s_error;

/* Removes a folder and all in it; links are removed, not followed. Missing is fine. */
int s2s_ckpt_remove_tree(const char *path, struct s2s_error *err);
/* Renames a complete, synced folder to a name that is free, and syncs the folder above. */
int s2s_ckpt_rename_tree(const char *from, const char *to, struct s2s_error *err);

#endif
