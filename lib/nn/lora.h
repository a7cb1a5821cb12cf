/*
 * Low-rank adapters of linear maps (LoRA, Hu et al. 2021): y = x W^T + (alpha / rank) (x A^T) B^T
 * with A [rank, in] and B [out, rank], of which only A and B are trained. As in PEFT A begins
 * uniform in 1 / sqrt(in) and B at zero, so that nothing changes before the first step.
 */
#ifndef S2S_NN_LORA_H
#define S2S_NN_LORA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct s2s_conf;
struct s2s_error;

/* Which maps get one, and of which shape. */
struct s2s_lora {
    int64_t rank;
    double alpha;
    double dropout; /* of what A sees of x, in training */
    /* [n_targets] patterns over full names of maps ("llm.model.layers.0.mlp.up_proj"); of a PEFT
     * folder names, or what is behind a dot of them */
    char **targets;
    bool *used; /* [n_targets] it matched one */
    size_t n_targets;
    char *path; /* a PEFT folder to begin with, or NULL */
};

/*
 * The map at `conf`: {rank, alpha, targets}, or {path} of a PEFT folder, whose adapter_config.json
 * has the rest. FORMAT, RANGE and UNSUPPORTED name the place. Gives: s2s_lora_release.
 */
int s2s_lora_read(struct s2s_lora *lora, const struct s2s_conf *conf, struct s2s_error *err);
void s2s_lora_release(struct s2s_lora *lora);

/* Whether the map of this name gets an adapter; lora may be NULL. Notes what matched. */
bool s2s_lora_adapts(const struct s2s_lora *lora, const char *name);
/* NOTFOUND names a pattern that matched no map; conf as it was read. */
int s2s_lora_check(const struct s2s_lora *lora, const struct s2s_conf *conf, struct s2s_error *err);

/* The ends of names of the two matrices: "NAME.lora_A.weight". */
#define S2S_LORA_A "lora_A.weight"
#define S2S_LORA_B "lora_B.weight"
bool s2s_lora_is_adapter(const char *name);

#endif
