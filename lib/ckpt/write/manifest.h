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
struct s2s_error;
struct s2s_outfile;

#define CKPT_MANIFEST "s2s-manifest.json"
/* A file that is written alone has its own beside it: FILE.s2s-manifest.json, of the same form. */

/* One more entry of files (an object): digest is XXH3-128 in 32 hex digits. */
void ckpt_manifest_add(json_t *files, const char *name, int64_t len_bytes, const char *digest);
/* dir/name as fill writes it, synced; noted in manifest (borrowed) unless that is NULL. IO; what
 * fill failed with. */
typedef int ckpt_file_fill(struct ckpt_file *file, const void *ctx, struct s2s_error *err);
int ckpt_file_make(const char *dir, const char *name, ckpt_file_fill *fill, const void *ctx,
                   json_t *manifest, struct s2s_error *err);
/* The same of bytes in memory. */
int ckpt_file_put_noted(const char *dir, const char *name, const void *bytes, size_t len,
                        json_t *manifest, struct s2s_error *err);
int ckpt_file_put(const char *dir, const char *name, const void *bytes, size_t len,
                  struct s2s_error *err);
/* Writes the manifest of files (borrowed) into dir. */
int ckpt_manifest_write(const char *dir, json_t *files, struct s2s_error *err);
/* Begins the manifest of a file alone; *manifest is NULL where it has none: stdout, a pipe, a
 * device, or a name so long that it cannot be lengthened. ARG: a link lies there. IO. */
int ckpt_manifest_open(struct s2s_outfile **manifest, const char *path, struct s2s_error *err);
/* Gives `out` its name, path, and puts its manifest (NULL: none) there beside it, in place of one
 * that was there before. Takes both. IO. */
int ckpt_manifest_commit(struct s2s_outfile *out, struct s2s_outfile *manifest, const char *path,
                         const char *digest, struct s2s_error *err);

#endif
