/* Shared by the files that merge rank folders: ranks and names, splitting into boxes, joining
 * boxes. */
#ifndef CKPT_MERGE_INTERNAL_H
#define CKPT_MERGE_INTERNAL_H

#include "lib/ckpt/model.h"

/* tensor-, pipeline- and expert-parallel */
enum { TP, PP, EP, N_AXES };

/* A rank folder and its rank on each axis. */
struct merge_rank {
    char folder[32]; /* "mp_rank_00_001" */
    int at[N_AXES];
};

/* A stack of layers, and how many of them each virtual stage of each pipeline rank has. */
struct merge_stack {
    char *prefix; /* "decoder.layers." */
    int64_t *n;   /* [n_chunks * pp], in execution order */
};

/* A box of a tensor of the merged model. */
struct merge_part {
    struct s2s_ckpt_tensor tensor; /* name, dtype and shape of the whole tensor */
    struct ckpt_chunk chunk;       /* the box, and its place in a rank's file */
    const char *from;              /* the rank's name of it, for messages */
};

struct merge {
    struct s2s_ckpt *ckpt;
    struct s2s_error *err;
    struct merge_rank *ranks; /* sorted by folder */
    size_t n_ranks, cap_ranks;
    int size[N_AXES]; /* number of ranks on each axis */
    int n_chunks;     /* virtual stages per pipeline rank */
    int etp;          /* expert tensor parallel size; tensor rank t has shard t % etp */
    bool tied;        /* word embedding and output layer are tied */
    int64_t n_local;  /* experts per rank */
    struct merge_stack *stacks;
    size_t n_stacks, cap_stacks;
    struct merge_part *parts;
    size_t n_parts, cap_parts;
};

/* A tensor of one rank. */
struct merge_local {
    const struct s2s_ckpt_tensor *tensor;
    const struct merge_rank *rank; /* whose it is */
    int chunk;                     /* virtual stage */
    const char *name;              /* name without folder and stage; points into the tensor's */
    const char *from;              /* name for messages; NULL: the tensor's */
};

/* The first rank's saved arguments; lent, NULL: none. */
const json_t *ckpt_merge_args(const struct merge *m);
/* An integer argument, or `absent`. */
int64_t ckpt_merge_arg(const struct merge *m, const char *name, int64_t absent);
/* Sets m->ranks and m->size. FORMAT: no ranks, or a folder with an unexpected name. */
int ckpt_merge_list_ranks(struct merge *m);
/* Checks that all ranks exist that the arguments and the other folders imply, and that all are of
 * one run. Needs m->n_local, sets m->etp. NOTFOUND, SHAPE, FORMAT; UNSUPPORTED: experts are sharded
 * in a way that cannot be merged. */
int ckpt_merge_check_ranks(struct merge *m);
/* Checks that tensor-parallel ranks of the same stage and experts have tensors of the same names,
 * dtypes and shapes. NOTFOUND, SHAPE name one that differs. */
int ckpt_merge_check_peers(struct merge *m);
/* The rank with this folder [len]; NULL: none. */
const struct merge_rank *ckpt_merge_find_rank(const struct merge *m, const char *folder,
                                              size_t len);

/* Parses the name of a tensor into *local. FORMAT: it does not start with a rank's folder. */
int ckpt_merge_find_local(struct merge_local *local, const struct merge *m,
                          const struct s2s_ckpt_tensor *t);
/* Its name in the merged model: layers are numbered across stages, a tied output matrix is the word
 * embedding, norms have Transformer Engine's names. Gives: free. */
char *ckpt_merge_global_name(struct merge *m, const struct merge_local *local);

/* The local expert number in a name; -1: none. *begin and *end then enclose "local_experts.I" or
 * the number at the name's end. */
int64_t ckpt_merge_expert_of(const char *name, const char **begin, const char **end);

/* Adds the boxes of a local tensor, whose global name is `name`, to m->parts. SHAPE, NOTFOUND: its
 * shape does not fit the way its kind is sharded. */
int ckpt_merge_cut(struct merge *m, const struct merge_local *local, const char *name);

/* Is it an extra state ("decoder.layers.0.mlp.linear_fc1._extra_state")? That is not a weight. */
bool ckpt_merge_is_extra(const char *name);
/* Counts a value of a rank that is left out, by name. */
void ckpt_merge_count_left(struct merge *m, const char *name);
/* Turns the ranks' extra states into objects of m->ckpt; before the parts are joined. */
int ckpt_merge_objects(struct merge *m);

#endif
