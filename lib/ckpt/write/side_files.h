/* The small files beside weights: configurations, tokenizers, licences, each whole in memory. */
#ifndef CKPT_SIDE_FILES_H
#define CKPT_SIDE_FILES_H

#include <stdbool.h>
#include <stddef.h>

#include <jansson.h>

struct s2s_ckpt;
struct s2s_error;

/* of all that are taken from a folder, where links make many files of one; one of them, and all
 * that come out of an archive, have at most CKPT_MAX_SIDE_FILE (model.h) */
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

/* Takes copies; a path that is there already stays as it is. */
void ckpt_side_add(struct ckpt_side_files *files, const char *path, const void *bytes, size_t len);
/* The same of a text. */
void ckpt_side_add_text(struct ckpt_side_files *files, const char *path, const char *text);
/* The same of a text in JSON, which may have zero bytes; of anything else nothing. */
void ckpt_side_add_json(struct ckpt_side_files *files, const char *path, const json_t *text);
/*
 * Takes the file dir_fd/name as `path`. 1; 0 and a warning where it is a link to a file elsewhere,
 * which is not to travel along; FORMAT past the limits above, and as for reading a file.
 */
int ckpt_side_take(struct ckpt_side_files *files, int dir_fd, const char *name, const char *path,
                   struct s2s_error *err);
/* Are the weights an adapter of PEFT's, in one file or several? */
bool ckpt_is_adapter(const struct s2s_ckpt *ckpt);
/* Text that goes with a model: configuration, tokenizer, code, licence; no weights, no index. */
bool ckpt_side_is_one(const char *name);
/* Takes such files of a folder of the checkpoint's ("": of its own), if it is there. */
int ckpt_side_take_folder(struct ckpt_side_files *files, const struct s2s_ckpt *ckpt,
                          const char *folder, struct s2s_error *err);
/* Lent until the next is added; NULL if there is none. */
const struct ckpt_side_file *ckpt_side_find(const struct ckpt_side_files *files, const char *path);
void ckpt_side_release(struct ckpt_side_files *files);

#endif
