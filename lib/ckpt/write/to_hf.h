/*
 * Converts any checkpoint to Hugging Face folders: assigns tensors and their names to folders, and
 * collects the small files beside them.
 */
#ifndef CKPT_TO_HF_H
#define CKPT_TO_HF_H

#include "lib/ckpt/map/map.h"
#include "lib/ckpt/write/side_files.h"

/* One folder of the output or, for the projection, one file. */
struct s2s_hf_part {
    const char *folder; /* "", "encoder", "llm" */
    const char *file;   /* the only file; NULL: model*.safetensors, possibly shards */
    struct s2s_ckpt_plan plan;
};

struct s2s_hf_output {
    struct s2s_hf_part parts[5];
    size_t n_parts;
    struct ckpt_side_files files; /* config.json, tokenizer.json, .. */
    struct ckpt_map_result map;
};

struct s2s_hf_options {
    const char *map;      /* family, or file of a name map; NULL: detected from the names */
    enum s2s_dtype dtype; /* of floating-point tensors; NONE: unchanged */
    bool keep_vocab_padding;
    const json_t *config;    /* sizes that the source does not record (heads, groups, ..); NULL */
    const char *config_text; /* to be written as config.json instead of the source's; NULL */
};

/*
 * Plans parts and names, reading no tensor data except by s2s_hf_check_kept. Call s2s_hf_release
 * also after failure. NOTFOUND lists what the output needs and the source lacks; SHAPE, FORMAT,
 * UNSUPPORTED.
 */
int s2s_hf_prepare(struct s2s_hf_output *out, struct s2s_ckpt *ckpt,
                   const struct s2s_hf_options *options, struct s2s_error *err);
/* Checks a source whose names are kept: does it have all weights of the model that its config.json
 * describes, with matching shapes? The config.json is that of files, the small files of the output,
 * or (files NULL) of the source. transformers would initialise missing weights randomly. NOTFOUND
 * or SHAPE lists them; FORMAT for a config.json that cannot be read. Warns of a config.json that
 * ties an output matrix to an embedding with other values, and puts that of files right; for this
 * the two are read, up to their first difference. */
int s2s_hf_check_kept(struct s2s_ckpt *ckpt, struct ckpt_side_files *files, struct s2s_error *err);
/* Writes everything into folder dir, which exists and is empty. */
int s2s_hf_write(struct s2s_hf_output *out, const char *dir, const struct s2s_ckpt_write *how,
                 struct s2s_error *err);
void s2s_hf_release(struct s2s_hf_output *out);

/* Reads a JSON file of a Hugging Face folder, or of one that became this torch_dist folder, whose
 * common state keeps it. *value is NULL, and the result 0, if there is none. Gives: json_decref.
 * FORMAT. */
int s2s_hf_read_json(json_t **value, struct s2s_ckpt *ckpt, const char *path,
                     struct s2s_error *err);
/* Makes a common state for torch_dist from the small files of a Hugging Face folder, or from those
 * that such a common state keeps (doc/CHECKPOINT.md). names_kept: the tensors stay what
 * transformers calls them, so a config.json that ties too much is put right as in
 * s2s_hf_check_kept. Gives a reference in *common, which is NULL after a failure. */
int s2s_hf_common(json_t **common, struct s2s_ckpt *ckpt, bool names_kept, struct s2s_error *err);

#endif
