/*
 * s2s-manifest.json beside what we write: XXH3-128 and length of every file of a folder but itself.
 *   {"algorithm": "xxh3-128", "files": {"__0_0.distcp": {"bytes": 1234, "digest": "0f.."}}}
 * integrity.json of Megatron-Core 0.20 ({"algorithm": "sha256", "files": {name: hex}}) is read too.
 */
#ifndef CKPT_MANIFEST_H
#define CKPT_MANIFEST_H

#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

struct s2s_error;

#define CKPT_MANIFEST "s2s-manifest.json"

/* One more entry of files (an object): digest is XXH3-128 in 32 hex digits. */
void ckpt_manifest_add(json_t *files, const char *name, int64_t len_bytes, const char *digest);
/* Writes it into dir. files is borrowed. */
int ckpt_manifest_write(const char *dir, json_t *files, struct s2s_error *err);
/* Compares every file that the folder's manifests name; *n is how many were compared, 0 without a
 * manifest. DIGEST, TRUNCATED, NOTFOUND: a file is not what was noted; FORMAT, UNSUPPORTED: the
 * manifest itself. */
int ckpt_manifest_verify(const char *dir, size_t *n, struct s2s_error *err);

#endif
