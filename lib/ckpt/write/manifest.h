/*
 * Files of a folder that appear whole, and s2s-manifest.json beside them: XXH3-128 and length of
 * every file but itself.
 *   {"algorithm": "xxh3-128", "files": {"__0_0.distcp": {"bytes": 1234, "digest": "0f.."}}}
 * integrity.json of Megatron-Core 0.20 ({"algorithm": "sha256", "files": {name: hex}}) is read too.
 */
#ifndef CKPT_MANIFEST_H
#define CKPT_MANIFEST_H

#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

struct ckpt_file;
struct s2s_ckpt;
struct s2s_ckpt_write;
struct s2s_error;
struct s2s_outfile;

#define CKPT_MANIFEST "s2s-manifest.json"
/* A file that is written alone has its own beside it: FILE.s2s-manifest.json, of the same form. */

/* Adds an entry to files, the object "files" of a manifest: digest is the XXH3-128 in 32 hex
 * digits. */
void ckpt_manifest_add(json_t *files, const char *name, int64_t len_bytes, const char *digest);
/* Writes the content of a file (ckpt_file_write), which is open already. */
typedef int ckpt_file_fill(struct ckpt_file *file, const void *ctx, struct s2s_error *err);
/* Makes the file dir/name, lets fill write it, and syncs it. manifest: NULL, or the object
 * (borrowed) that gets an entry for it. IO, or what fill failed with. */
int ckpt_file_make(const char *dir, const char *name, ckpt_file_fill *fill, const void *ctx,
                   json_t *manifest, struct s2s_error *err);
/* The same with the content in memory: noted in a manifest, or not. */
int ckpt_file_put_noted(const char *dir, const char *name, const void *bytes, size_t len,
                        json_t *manifest, struct s2s_error *err);
int ckpt_file_put(const char *dir, const char *name, const void *bytes, size_t len,
                  struct s2s_error *err);
/* Writes s2s-manifest.json with these files (borrowed) into dir. IO. */
int ckpt_manifest_write(const char *dir, json_t *files, struct s2s_error *err);
/* Is each of files in dir, of its length? Whoever clears a disk of strange folders may have taken
 * some in the hours of writing. IO. */
int ckpt_manifest_check(const char *dir, json_t *files, struct s2s_error *err);
/* Opens the manifest that will lie beside the single file path. *manifest is NULL, which is no
 * error, if that gets none: stdout, a pipe, a device, or a name that is too long to be lengthened.
 * ARG: a link or a pipe has the manifest's name; IO. */
int ckpt_manifest_open(struct s2s_outfile **manifest, const char *path, struct s2s_error *err);
/* Gives out its name, path, and manifest (NULL: none) its own, in place of an older one. Takes
 * both. digest: of out's bytes, 32 hex digits. IO. */
int ckpt_manifest_commit(struct s2s_outfile *out, struct s2s_outfile *manifest, const char *path,
                         const char *digest, struct s2s_error *err);

/* ---- comparing ---- */

/*
 * Compares the files with what a manifest says of them: s2s-manifest.json or integrity.json of the
 * folder, FILE.s2s-manifest.json beside a single file. *n_files: how many were compared; 0: there
 * is no manifest. how: its progress is told and its stop obeyed; may be NULL. Other threads may
 * read the checkpoint meanwhile. DIGEST, TRUNCATED, NOTFOUND: a file is not what was noted; FORMAT,
 * UNSUPPORTED: the manifest itself is damaged; INTERRUPTED.
 */
int s2s_ckpt_verify_manifest(const struct s2s_ckpt *ckpt, const struct s2s_ckpt_write *how,
                             size_t *n_files, struct s2s_error *err);
/* Does the manifest of the folder, if there is one, name every file that is read? FORMAT. */
int s2s_ckpt_verify_named(const struct s2s_ckpt *ckpt, struct s2s_error *err);
/* Compares the files of the source's folder with its integrity.json, if it has one. Each file is
 * compared by one of the ranks of how->mesh, and the ranks do not agree on the result: that is the
 * caller's. An algorithm that is not known is only warned of. DIGEST, NOTFOUND, FORMAT, OPEN, IO,
 * INTERRUPTED. */
int s2s_ckpt_verify_integrity(const struct s2s_ckpt *ckpt, const struct s2s_ckpt_write *how,
                              struct s2s_error *err);

#endif
