/*
 * From any checkpoint to Hugging Face folders: which tensors go where under which names, and which
 * small files belong beside them.
 */
#ifndef CKPT_TO_HF_H
#define CKPT_TO_HF_H

#include "lib/ckpt/map/map.h"
#include "lib/ckpt/write/side_files.h"

/* One folder (or, for the projection, one file) of the output. */
struct s2s_hf_part {
    const char *folder; /* "", "encoder", "llm" */
    const char *file;   /* all tensors in this one file; NULL: model*.safetensors, perhaps shards */
    struct s2s_ckpt_plan plan;
};

struct s2s_hf_output {
    struct s2s_hf_part parts[3];
    size_t n_parts;
    struct ckpt_side_files files; /* config.json, tokenizer.json, .. */
    struct ckpt_map_result map;
};

struct s2s_hf_options {
    const char *map;      /* family or file of a name map; NULL: found from the names */
    enum s2s_dtype dtype; /* of floating tensors; NONE: as they are */
    bool keep_vocab_padding;
    bool strict;             /* names that are kept have to be all that the configuration wants */
    const json_t *config;    /* numbers that the source lacks (heads, groups, ..); NULL */
    const char *config_text; /* becomes config.json, whatever the source has; NULL */
};

/*
 * Decides what goes where, by which names; no tensor's data is read. s2s_hf_release also after
 * failure. NOTFOUND lists what the output needs and the source lacks; SHAPE, FORMAT, UNSUPPORTED.
 */
int s2s_hf_prepare(struct s2s_hf_output *out, struct s2s_ckpt *ckpt,
                   const struct s2s_hf_options *options, struct s2s_error *err);
/* Checks a source whose names are kept: does it have everything that the model of its config.json
 * needs, in shapes that fit? The config.json is that of files, the small files of the output, or
 * (files NULL) of the source. What is missing, transformers would set at random, so a warning names
 * it; strict: it is a failure, NOTFOUND or SHAPE. */
int s2s_hf_check_kept(struct s2s_ckpt *ckpt, const struct ckpt_side_files *files, bool strict,
                      struct s2s_error *err);
/* Writes everything into the folder dir, which exists and is empty. */
int s2s_hf_write(struct s2s_hf_output *out, const char *dir, const struct s2s_ckpt_write *how,
                 struct s2s_error *err);
void s2s_hf_release(struct s2s_hf_output *out);

/* Makes a common state for torch_dist of the small files of a Hugging Face folder
 * (doc/CHECKPOINT.md). Gives a reference in *common, which is NULL after a failure. */
int s2s_hf_common(json_t **common, struct s2s_ckpt *ckpt, struct s2s_error *err);

#endif
