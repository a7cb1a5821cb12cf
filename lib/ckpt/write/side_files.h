/* The small files beside weights: configurations, tokenizers, licences, each whole in memory. */
#ifndef CKPT_SIDE_FILES_H
#define CKPT_SIDE_FILES_H

#include <stdbool.h>
#include <stddef.h>

#include <jansson.h>

struct ckpt_member;
struct s2s_ckpt;
struct s2s_error;

/* The most files that are taken from a folder, and the most bytes of them together: with links, one
 * file can be many. (A single file, and all files out of an archive together, may have
 * CKPT_MAX_SIDE_FILE bytes: lib/ckpt/read/read.h.) */
enum { CKPT_MAX_SIDE_FILES = 4096, CKPT_MAX_SIDE_BYTES = 1 << 30 };

struct ckpt_side_file {
    char *path;  /* relative to the output */
    char *bytes; /* len of them, and a zero byte */
    size_t len;
};

struct ckpt_side_files {
    struct ckpt_side_file *v;
    size_t n, cap;
    size_t len_bytes; /* of all */
};

/* Adds a file with a copy of these bytes; does nothing if path is there already. */
void ckpt_side_add(struct ckpt_side_files *files, const char *path, const void *bytes, size_t len);
/* The same with a zero-ended text. */
void ckpt_side_add_text(struct ckpt_side_files *files, const char *path, const char *text);
/* The same with a JSON string, which may have zero bytes inside. Does nothing for other values. */
void ckpt_side_add_json(struct ckpt_side_files *files, const char *path, const json_t *text);
/* Reads the file dir_fd/name and adds it as path. Returns 1; 0, with a warning, if it is a link to
 * somewhere else (ckpt_is_strange_link), which is not copied. FORMAT: past the limits above, or no
 * plain file; OPEN, IO. */
int ckpt_side_take(struct ckpt_side_files *files, int dir_fd, const char *name, const char *path,
                   struct s2s_error *err);
/* The same with a member of a .nemo. UNSUPPORTED: past the limits above. */
int ckpt_side_take_member(struct ckpt_side_files *files, struct s2s_ckpt *ckpt,
                          const struct ckpt_member *member, const char *path,
                          struct s2s_error *err);
/* Are the weights an adapter of PEFT's? */
bool ckpt_is_adapter(const struct s2s_ckpt *ckpt);
/* Is this the name of a file that goes with a model: configuration, tokenizer, code, licence? Not
 * of weights or their index. */
bool ckpt_side_is_one(const char *name);
/* Adds such files of a folder of the checkpoint's ("": its own), if that is there. Errors as
 * ckpt_side_take. */
int ckpt_side_take_folder(struct ckpt_side_files *files, const struct s2s_ckpt *ckpt,
                          const char *folder, struct s2s_error *err);
/* The file of this path, lent until the next is added; NULL: there is none. */
const struct ckpt_side_file *ckpt_side_find(const struct ckpt_side_files *files, const char *path);
void ckpt_side_release(struct ckpt_side_files *files);

#endif
