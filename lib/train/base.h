/*
 * The files that a run of adapters leaves its frozen parameters to. A checkpoint of it has what is
 * trained, and the digests of these files, so that it never goes on over other weights.
 */
#ifndef S2S_TRAIN_BASE_H
#define S2S_TRAIN_BASE_H

#include <jansson.h>

struct s2s_error;
struct s2s_recipe;

/* *base becomes [{"path": as the recipe says, "files": {name: XXH3-128 in hex}}], one for each part
 * that has files; reads all of them. OPEN, IO. Gives: json_decref. */
int s2s_base_describe(json_t **base, const struct s2s_recipe *recipe, struct s2s_error *err);
/* RULE where files differ, with the first that does. The folders may have moved. stored NULL: there
 * is nothing to compare. */
int s2s_base_check(const json_t *stored, const json_t *now, struct s2s_error *err);

#endif
