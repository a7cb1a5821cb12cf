/* What the files that plan Hugging Face folders share. */
#ifndef CKPT_TO_HF_INTERNAL_H
#define CKPT_TO_HF_INTERNAL_H

#include "lib/ckpt/write/to_hf.h"

/* A part without targets; lent. */
struct s2s_hf_part *ckpt_hf_add_part(struct s2s_hf_output *out, struct s2s_ckpt *ckpt,
                                     const char *folder, const char *file);

/* A SALM under names of its own: llm. and encoder. */
bool ckpt_hf_is_composite(const struct s2s_ckpt *ckpt);

/* All small files of the output, once its family and parts are known. */
int ckpt_hf_files(struct s2s_hf_output *out, struct s2s_ckpt *ckpt,
                  const struct s2s_hf_options *options, struct s2s_error *err);
/* Those of NeMo's FastConformer. */
int ckpt_hf_nemo_files(struct s2s_hf_output *out, struct s2s_ckpt *ckpt,
                       const struct s2s_hf_options *options, struct s2s_error *err);
/* Changes what config.json says: the dtype (without a cast that of the weights, where the source is
 * no folder of Hugging Face's), whether words and output have one matrix, that rows past the
 * vocabulary were kept. */
void ckpt_hf_follow_in_configs(struct s2s_hf_output *out, const struct s2s_ckpt *ckpt,
                               const struct s2s_hf_options *options);

/* Of a checkpoint that is one part of a model (s2s_ckpt_select): what the source's files and common
 * state say of that part. */
int ckpt_hf_part_files(struct s2s_hf_output *out, const struct s2s_ckpt *ckpt,
                       struct s2s_error *err);
void ckpt_hf_part_common(struct s2s_hf_output *out, const struct s2s_ckpt *ckpt);

/* The one part of a SALM, whose names begin with encoder., llm. and proj., as three. */
void ckpt_hf_salm_split(struct s2s_hf_output *out, struct s2s_ckpt *ckpt);
/* Configurations and tokenizer of the three parts, as far as the source says them. */
int ckpt_hf_salm_files(struct s2s_hf_output *out, struct s2s_ckpt *ckpt,
                       const struct s2s_hf_options *options, struct s2s_error *err);
/* NeMo's configuration of the model: the user's, of a .nemo, of Lightning's checkpoint, or
 * config.json. NULL: there is none; gives a reference. */
int ckpt_hf_nemo_model(json_t **model, const struct s2s_ckpt *ckpt, const json_t *config,
                       struct s2s_error *err);

/* What trainers put around the names of a model: a dict ({"state_dict": .., "optimizer": ..}; "":
 * none; lent), and so many times their own "model." (Lightning's attribute, {"model": ..}), each
 * with the modules that wrap others: DDP's and DeepSpeed's, torch.compile's, FSDP's. Names of
 * Hugging Face's files have but the second. */
struct ckpt_hf_wrapping {
    const char *dict;
    int n_models;
};
struct ckpt_hf_wrapping ckpt_hf_wrapping_of(const struct s2s_ckpt *ckpt);
/* Are the weights' names without it those they have? */
bool ckpt_hf_keeps_names(const struct s2s_ckpt *ckpt, const struct ckpt_hf_wrapping *wrapping);
/* A weight's name without it; gives: free. NULL: of state, or outside of the dict. */
char *ckpt_hf_name(const struct s2s_ckpt *ckpt, const struct ckpt_hf_wrapping *wrapping,
                   const char *name);

#endif
