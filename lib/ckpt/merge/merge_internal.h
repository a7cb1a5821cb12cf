/* Between the parts of merging: ranks and names, cutting into boxes, joining of the boxes. */
#ifndef CKPT_MERGE_INTERNAL_H
#define CKPT_MERGE_INTERNAL_H

#include "lib/ckpt/model.h"

/* tensor-, pipeline- and expert-parallel */
enum { TP, PP, EP, N_AXES };

/* One rank folder, and which rank it is of on each axis. */
struct merge_rank {
    char folder[32]; /* "mp_rank_00_001" */
    int at[N_AXES];
};

/* A stack of layers: how many of them each virtual stage of each pipeline rank has. */
struct merge_stack {
    char *prefix; /* "decoder.layers." */
    int64_t *n;   /* [n_chunks * pp], in the order in which data goes through the stages */
};

/* A box of a tensor of the whole model. */
struct merge_part {
    struct s2s_ckpt_tensor tensor; /* name, dtype and shape of the whole tensor */
    struct ckpt_chunk chunk;       /* the box, and where a rank's file has it */
    const char *from;              /* what messages call the rank's tensor */
};

struct merge {
    struct s2s_ckpt *ckpt;
    struct s2s_error *err;
    struct merge_rank *ranks; /* sorted by folder */
    size_t n_ranks, cap_ranks;
    int size[N_AXES]; /* how many ranks there are on each axis */
    int n_chunks;     /* how many virtual stages a pipeline rank has */
    int etp;          /* into how many parts experts are cut; tensor rank t has part t % etp */
    bool tied;        /* words and outputs share one matrix */
    int64_t n_local;  /* how many experts a rank has */
    struct merge_stack *stacks;
    size_t n_stacks, cap_stacks;
    struct merge_part *parts;
    size_t n_parts, cap_parts;
    json_t *optimizer; /* NULL, or what the common state is to have of it */
};

/* A tensor as one rank has it. */
struct merge_local {
    const struct s2s_ckpt_tensor *tensor;
    const struct merge_rank *rank; /* whose it is */
    int chunk;                     /* of which virtual stage */
    const char *name;              /* its name without folder and stage; points into the whole */
    const char *from;              /* what messages call it; NULL: the tensor's name */
};

/* The arguments that the first rank saved; lent, NULL: none. */
const json_t *ckpt_merge_args(const struct merge *m);
/* The integer of this name among them, or `absent`. */
int64_t ckpt_merge_arg(const struct merge *m, const char *name, int64_t absent);
/* Sets m->ranks and m->size. FORMAT: there are no ranks, or a folder has an odd name. */
int ckpt_merge_list_ranks(struct merge *m);
/* Checks that all ranks are there of which the arguments and the other folders speak, and that all
 * are of the same run. Needs m->n_local, sets m->etp. NOTFOUND, SHAPE, FORMAT; UNSUPPORTED: experts
 * are cut in a way that cannot be put together. */
int ckpt_merge_check_ranks(struct merge *m);
/* Checks that tensor-parallel ranks of the same stage and experts have tensors of the same names,
 * dtypes and shapes. NOTFOUND, SHAPE name one that has not. */
int ckpt_merge_check_peers(struct merge *m);
/* The rank whose folder has this name [len]; NULL: none. */
const struct merge_rank *ckpt_merge_find_rank(const struct merge *m, const char *folder,
                                              size_t len);

/* Sets *local to what the name of a tensor says. FORMAT: it names no rank's folder. */
int ckpt_merge_find_local(struct merge_local *local, const struct merge *m,
                          const struct s2s_ckpt_tensor *t);
/* The name that it has in the whole model: layers are counted over all stages, a tied output matrix
 * is that of the words, norms have Transformer Engine's names. Gives: free. */
char *ckpt_merge_global_name(struct merge *m, const struct merge_local *local);

/* The index of the local expert that a name is about; -1: of none. *begin and *end then enclose
 * "local_experts.I" or the number at the name's end. */
int64_t ckpt_merge_expert_of(const char *name, const char **begin, const char **end);

/* Adds the boxes of a local tensor, which is called name in the whole model, to m->parts. SHAPE,
 * NOTFOUND: it cannot be cut as its kind is. */
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
