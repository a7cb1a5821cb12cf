/* The job behind convert, prune, reshard and average: read checkpoints, write one. */
#ifndef CKPT_JOB_H
#define CKPT_JOB_H

#include "lib/ckpt/map/map.h"
#include "tools/ckpt/ckpt_tool.h"

enum ckpt_output { TO_NONE, TO_HF, TO_TORCH_DIST, TO_SAFETENSORS, TO_NEMO };
/* Values of --to, from TO_HF on; ends with NULL. */
extern const char *const ckpt_output_names[];

struct ckpt_job_options {
    struct s2s_common common;
    enum ckpt_output to; /* TO_NONE: the format of the first input */
    const char *from, *map, *config, *part, *tokenizer, *out;
    const char **in;
    size_t n_in, cap_in;
    enum s2s_dtype dtype;
    int64_t max_shard_bytes, n_files;
    enum ckpt_layers layers;
    bool layers_given, shard_given;
    int64_t vocab_multiple;
    bool strict, keep_padding, merge_ranks, plan, resume, no_sync;
    bool only_weights; /* prune: unchanged names, without the optimizer */
    bool reshard, average;
    bool without_tokenizer; /* TO_NEMO only */
};

int ckpt_job_run(struct ckpt_job_options *opt, struct s2s_error *err);

#endif
