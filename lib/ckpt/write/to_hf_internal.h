/* Shared by the files that plan Hugging Face folders. */
#ifndef CKPT_TO_HF_INTERNAL_H
#define CKPT_TO_HF_INTERNAL_H

#include "lib/ckpt/write/to_hf.h"

/* Adds a part without targets; lent. */
struct s2s_hf_part *ckpt_hf_add_part(struct s2s_hf_output *out, struct s2s_ckpt *ckpt,
                                     const char *folder, const char *file);

/* Does it have the names of this project's own SALM, llm. and encoder.? */
bool ckpt_hf_is_composite(const struct s2s_ckpt *ckpt);

/* Collects the small files of the output, when its family and parts are known. */
int ckpt_hf_files(struct s2s_hf_output *out, struct s2s_ckpt *ckpt,
                  const struct s2s_hf_options *options, struct s2s_error *err);
/* The same for NeMo's FastConformer. */
int ckpt_hf_nemo_files(struct s2s_hf_output *out, struct s2s_ckpt *ckpt,
                       const struct s2s_hf_options *options, struct s2s_error *err);
/* Adds the files of a .nemo's tokenizer, under names without NeMo's digests. If there are several
 * of a name (a tokenizer for each language), each keeps its digest. */
int ckpt_hf_nemo_tokenizer(struct s2s_hf_output *out, struct s2s_ckpt *ckpt,
                           const struct s2s_hf_options *options, struct s2s_error *err);

/* Of s2s_hf_check_kept only what it says of, and does to, a config.json that ties too much. */
int ckpt_hf_untie(struct s2s_ckpt *ckpt, struct ckpt_side_files *files, struct s2s_error *err);

/* verl's folder of transformers' files, seen from its dist_ckpt/ beside. */
#define CKPT_VERL_FILES "../huggingface"
/* Is it such a dist_ckpt/, with a config.json in that folder? */
bool ckpt_hf_is_verl(const struct s2s_ckpt *ckpt);

/* Splits the single part of a SALM into three, by the prefixes encoder., llm. and proj. */
/* Whether a tensor of this name is of a part of a composite. */
bool ckpt_hf_salm_has(const char *name);
void ckpt_hf_salm_split(struct s2s_hf_output *out, struct s2s_ckpt *ckpt);
/* Collects configurations and tokenizer of the three parts, as far as the source has them. */
int ckpt_hf_salm_files(struct s2s_hf_output *out, struct s2s_ckpt *ckpt,
                       const struct s2s_hf_options *options, struct s2s_error *err);
/* Finds NeMo's configuration of the model: the user's, of a .nemo, of Lightning's checkpoint, or
 * config.json. Gives a reference in *model; NULL: none. */
int ckpt_hf_nemo_model(json_t **model, const struct s2s_ckpt *ckpt, const json_t *config,
                       struct s2s_error *err);

/* Prefixes that trainers add to the names of a model: a dict ({"state_dict": .., "optimizer": ..};
 * "": none; lent), and n_models times "model." (Lightning's attribute, or {"model": ..}), each with
 * the wrapper modules of DDP, DeepSpeed, torch.compile and FSDP. In Hugging Face's formats only
 * "model." is such a prefix. */
struct ckpt_hf_wrapping {
    const char *dict;
    int n_models;
};
struct ckpt_hf_wrapping ckpt_hf_wrapping_of(const struct s2s_ckpt *ckpt);
/* A weight's name without the prefixes. Gives: free. NULL: optimizer state, or not in the dict. */
char *ckpt_hf_name(const struct s2s_ckpt *ckpt, const struct ckpt_hf_wrapping *wrapping,
                   const char *name);

#endif
