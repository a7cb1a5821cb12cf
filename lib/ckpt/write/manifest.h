/*
 * Creates files of a folder, and s2s-manifest.json beside them: XXH3-128 and length of every other
 * file.
 *   {"algorithm": "xxh3-128", "files": {"__0_0.distcp": {"bytes": 1234, "digest": "0f.."}}}
 * integrity.json of Megatron-Core 0.20 ({"algorithm": "sha256", "files": {name: hex}}) is read,
 * too.
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
/* The manifest of a single file is FILE.s2s-manifest.json beside it, with the same form. */

/* Adds an entry to files, the object "files" of a manifest. digest: XXH3-128 as 32 hex digits. */
void ckpt_manifest_add(json_t *files, const char *name, int64_t len_bytes, const char *digest);
/* Writes the content of a file, which is open (ckpt_file_write). */
typedef int ckpt_file_fill(struct ckpt_file *file, const void *ctx, struct s2s_error *err);
/* Creates the file dir/name, has fill write it, and syncs it. manifest: NULL, or the object
 * (borrowed) to which an entry for it is added. IO, or the error of fill. */
int ckpt_file_make(const char *dir, const char *name, ckpt_file_fill *fill, const void *ctx,
                   json_t *manifest, struct s2s_error *err);
/* The same for content in memory; ckpt_file_put adds no entry. */
int ckpt_file_put_noted(const char *dir, const char *name, const void *bytes, size_t len,
                        json_t *manifest, struct s2s_error *err);
int ckpt_file_put(const char *dir, const char *name, const void *bytes, size_t len,
                  struct s2s_error *err);
/* Writes s2s-manifest.json with these files (borrowed) into dir. IO. */
int ckpt_manifest_write(const char *dir, json_t *files, struct s2s_error *err);
/* Checks that each of files is still in dir, with its length: a cleanup job may have deleted some
 * during the hours of writing. IO. */
int ckpt_manifest_check(const char *dir, json_t *files, struct s2s_error *err);
/* Opens the manifest for the single file path. Sets *manifest to NULL, without an error, if there
 * can be none: for stdout, a pipe, a device, or a name too long to be extended. ARG: a link or a
 * pipe has the manifest's name; IO. */
int ckpt_manifest_open(struct s2s_outfile **manifest, const char *path, struct s2s_error *err);
/* Commits out under its name, path, and manifest (NULL: none) under its own, replacing an older
 * one. Takes both. digest: of out's bytes, 32 hex digits. IO. */
int ckpt_manifest_commit(struct s2s_outfile *out, struct s2s_outfile *manifest, const char *path,
                         const char *digest, struct s2s_error *err);

/* ---- verification ---- */

/*
 * Verifies files against a manifest: s2s-manifest.json or integrity.json of the folder,
 * FILE.s2s-manifest.json beside a single file. *n_files: number of files verified; 0: there is no
 * manifest. how: for progress, stop and ranks; may be NULL. Other threads may read the checkpoint
 * at the same time. DIGEST, TRUNCATED, NOTFOUND: a file differs from its entry; FORMAT,
 * UNSUPPORTED: the manifest itself is corrupt; INTERRUPTED.
 */
int s2s_ckpt_verify_manifest(const struct s2s_ckpt *ckpt, const struct s2s_ckpt_write *how,
                             size_t *n_files, struct s2s_error *err);
/*
 * Compares the files that the checkpoint reads with the digests that were written with them, in
 * s2s-manifest.json: what is made of a damaged file would get digests of its own. Each file is
 * compared by one of the ranks of how->mesh; agreeing on the result is up to the caller. how: for
 * stop and ranks; may be NULL. Other threads may read the checkpoint at the same time. 0: all are
 * equal, or there is no manifest. Errors as above.
 */
int s2s_ckpt_verify_read(const struct s2s_ckpt *ckpt, const struct s2s_ckpt_write *how,
                         struct s2s_error *err);
/* Checks that the manifest of the folder, if there is one, lists every file that is read. FORMAT.
 */
int s2s_ckpt_verify_named(const struct s2s_ckpt *ckpt, struct s2s_error *err);
/* Verifies the files of the source's folder against its integrity.json, if it has one. Each file is
 * verified by one of the ranks of how->mesh; agreeing on the result is up to the caller. Only warns
 * of an unknown algorithm. DIGEST, NOTFOUND, FORMAT, OPEN, IO, INTERRUPTED. */
int s2s_ckpt_verify_integrity(const struct s2s_ckpt *ckpt, const struct s2s_ckpt_write *how,
                              struct s2s_error *err);

#endif
