/* Between the parts of merging: ranks and names, cutting into boxes, joining of the boxes. */
#ifndef CKPT_MERGE_INTERNAL_H
#define CKPT_MERGE_INTERNAL_H

#include "lib/ckpt/model.h"

/* tensor-, pipeline- and expert-parallel */
enum { TP, PP, EP, N_AXES };

/* One rank folder. */
struct merge_rank {
    char folder[32]; /* "mp_rank_00_001" */
    int at[N_AXES];
};

/* A stack of layers: how many a virtual stage of a pipeline rank has, and which comes first. */
struct merge_stack {
    char *prefix; /* "decoder.layers." */
    int64_t *n;   /* [n_chunks * pp] */
};

/* A box of a tensor to be. */
struct merge_part {
    struct s2s_ckpt_tensor tensor; /* name, dtype, whole shape */
    struct ckpt_chunk chunk;
    const char *from; /* the local name, for messages */
};

struct merge {
    struct s2s_ckpt *ckpt;
    struct s2s_error *err;
    struct merge_rank *ranks; /* by folder */
    size_t n_ranks, cap_ranks;
    int size[N_AXES], n_chunks; /* n_chunks: virtual stages of a pipeline rank */
    int etp;                    /* into how many parts experts are cut; rank r has part tp % etp */
    bool tied;
    int64_t n_local; /* experts of a rank */
    struct merge_stack *stacks;
    size_t n_stacks, cap_stacks;
    struct merge_part *parts;
    size_t n_parts, cap_parts;
    json_t *optimizer; /* NULL, or what the common state is to have of it */
};

/* A local tensor: whose, which virtual stage, its name without folder and stage. */
struct merge_local {
    const struct s2s_ckpt_tensor *tensor;
    const struct merge_rank *rank;
    int chunk;
    const char *name;
    const char *from; /* NULL, or what messages call it in place of the tensor's name */
};

/* The arguments that the first rank saved, and the integer of that name among them; `absent` when
 * there is none. */
const json_t *ckpt_merge_args(const struct merge *m);
int64_t ckpt_merge_arg(const struct merge *m, const char *name, int64_t absent);
/* Fills m->ranks (in the order of their folders) and m->size. FORMAT: no ranks, or an odd folder.
 */
int ckpt_merge_list_ranks(struct merge *m);
/* Is each rank there that the arguments and the other folders speak of, and are all of one run?
 * After m->n_local is known; finds m->etp. NOTFOUND, SHAPE, FORMAT, UNSUPPORTED. */
int ckpt_merge_check_ranks(struct merge *m);
/* Tensor-parallel ranks of the same stage and experts have tensors of the same names, dtypes and
 * shapes: NOTFOUND, SHAPE name one that has not. The tensors are in the order of their names. */
int ckpt_merge_check_peers(struct merge *m);
/* By the first len bytes of a name; NULL: no rank's. */
const struct merge_rank *ckpt_merge_find_rank(const struct merge *m, const char *folder,
                                              size_t len);

/* Whose it is, and what follows the folder and the stage in its name. FORMAT: no rank's. */
int ckpt_merge_find_local(struct merge_local *local, const struct merge *m,
                          const struct s2s_ckpt_tensor *t);
/* The name with the number of the layer counted over all stages. Gives: free. */
char *ckpt_merge_global_name(struct merge *m, const struct merge_local *local);

/* The index of the local expert that a name ends with or holds, -1 for others; *begin and *end are
 * where "local_experts.I" or the number stands. */
int64_t ckpt_merge_expert_of(const char *name, const char **begin, const char **end);

/* Adds the boxes of a local tensor, whose global name this is, to m->parts. */
int ckpt_merge_cut(struct merge *m, const struct merge_local *local, const char *name);

/*
 * Adds the boxes of the ranks' optimizers to m->parts, under the names of Megatron-Core's
 * torch_dist (optimizer.state.KEY.NAME; of several optimizers chained_I.optimizer.state.KEY.NAME),
 * and sets m->optimizer and ckpt->n_left_states. Where it is not certain which parameter a tensor
 * belongs to, nothing is added, with a warning that says why. After m->parts has the model's.
 */
int ckpt_merge_optimizer(struct merge *m);

/* Makes m->parts the tensors of m->ckpt. SHAPE or FORMAT name two ranks that contradict each other;
 * copies are compared bit for bit. */
int ckpt_merge_join(struct merge *m);

/* "decoder.layers.0.mlp.linear_fc1._extra_state": no weight, whatever it holds. */
bool ckpt_merge_is_extra(const char *name);
/* Makes the ranks' extra states the objects of m->ckpt; before ckpt_merge_join. */
int ckpt_merge_objects(struct merge *m);

#endif
