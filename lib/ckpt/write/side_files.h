/* The small files beside weights: configurations, tokenizers, licences. Each is held in memory. */
#ifndef CKPT_SIDE_FILES_H
#define CKPT_SIDE_FILES_H

#include <stdbool.h>
#include <stddef.h>

#include <jansson.h>

struct ckpt_member;
struct s2s_ckpt;
struct s2s_error;

/* Limits for the files taken from a folder: their number, and their length together, as links can
 * make many of one file. (A single file, and all files of an archive together, may have
 * CKPT_MAX_SIDE_FILE bytes: lib/ckpt/read/read.h.) */
enum { CKPT_MAX_SIDE_FILES = 4096, CKPT_MAX_SIDE_BYTES = 1 << 30 };

struct ckpt_side_file {
    char *path;  /* relative to the output */
    char *bytes; /* [len], with a terminating NUL */
    size_t len;
};

struct ckpt_side_files {
    struct ckpt_side_file *v;
    size_t n, cap;
    size_t len_bytes; /* of all */
};

/* Adds a file with a copy of these bytes; does nothing if path exists already. */
void ckpt_side_add(struct ckpt_side_files *files, const char *path, const void *bytes, size_t len);
/* The same for a NUL-terminated string. */
void ckpt_side_add_text(struct ckpt_side_files *files, const char *path, const char *text);
/* The same for a JSON string, which may contain NULs. Does nothing for other values. */
void ckpt_side_add_json(struct ckpt_side_files *files, const char *path, const json_t *text);
/* Reads the file dir_fd/name and adds it as path. Returns 1; 0, with a warning, if it is a link to
 * an unrelated place (ckpt_is_strange_link), which is not copied. FORMAT: beyond the limits above,
 * or not a regular file; OPEN, IO. */
int ckpt_side_take(struct ckpt_side_files *files, int dir_fd, const char *name, const char *path,
                   struct s2s_error *err);
/* The same for a member of a .nemo; returns 0. UNSUPPORTED: beyond the limits above. */
int ckpt_side_take_member(struct ckpt_side_files *files, struct s2s_ckpt *ckpt,
                          const struct ckpt_member *member, const char *path,
                          struct s2s_error *err);
/* Are the weights a PEFT adapter? */
bool ckpt_is_adapter(const struct s2s_ckpt *ckpt);
/* Is this the name of a file that belongs to a model: configuration, tokenizer, code, licence? Not
 * of weights or their index. */
bool ckpt_side_is_one(const char *name);
/* Adds the files of a folder of the checkpoint ("": its own) for which ckpt_side_is_one is true;
 * does nothing if the folder does not exist. Errors as ckpt_side_take. */
int ckpt_side_take_folder(struct ckpt_side_files *files, const struct s2s_ckpt *ckpt,
                          const char *folder, struct s2s_error *err);
/* Warns of the files in the checkpoint's folder that are neither read nor in `files`; hidden files
 * and those that every writer makes anew do not count. texts: also those for which ckpt_side_is_one
 * is true; otherwise ckpt_side_take_folder has added them, or warned. IO. */
int ckpt_side_warn_left(const struct ckpt_side_files *files, const struct s2s_ckpt *ckpt,
                        bool texts, struct s2s_error *err);
/* The file of this path, lent until the next is added; NULL: none. */
const struct ckpt_side_file *ckpt_side_find(const struct ckpt_side_files *files, const char *path);
void ckpt_side_release(struct ckpt_side_files *files);

#endif
