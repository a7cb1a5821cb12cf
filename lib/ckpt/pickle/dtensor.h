/*
 * DTensors as torch.save writes them (torch 2.2 to 2.14): one process's part of a tensor that
 * torch.distributed.tensor has cut along the axes of a mesh of processes.
 */
#ifndef CKPT_PICKLE_DTENSOR_H
#define CKPT_PICKLE_DTENSOR_H

#include "lib/ckpt/pickle/view.h"

enum { CKPT_MESH_AXES = S2S_MAX_DIMS };

/* The processes that share tensors, as a row-major array of their ranks. */
struct ckpt_mesh {
    int n_dims;
    int64_t size[CKPT_MESH_AXES];
    int64_t *ranks; /* [n_ranks] */
    int64_t n_ranks;
    bool has_own; /* the mesh says where in it the process is that wrote the file: */
    int64_t own[CKPT_MESH_AXES];
};

struct ckpt_dtensor {
    struct ckpt_view local; /* this process's part */
    int n_dims;             /* of the whole tensor */
    int64_t shape[S2S_MAX_DIMS];
    const struct ckpt_node *mesh; /* for ckpt_mesh_of */
    int n_mesh_dims;
    int cut[CKPT_MESH_AXES]; /* the axis of the tensor that each axis of the mesh cuts; -1: it
                              * repeats the tensor */
};

/* Is it a tensor of a class of its own, such as a DTensor? */
bool ckpt_is_wrapped(const struct ckpt_node *node);
/* Reads a tensor for which ckpt_is_wrapped is true. UNSUPPORTED, with its name: of another class,
 * or placed in another way than by Shard and Replicate; FORMAT: no such DTensor can be. */
int ckpt_dtensor_of(struct ckpt_dtensor *tensor, const struct ckpt_node *node,
                    struct s2s_error *err);
/* Reads a DTensor's mesh. Gives: free mesh->ranks. FORMAT. */
int ckpt_mesh_of(struct ckpt_mesh *mesh, const struct ckpt_node *node, struct s2s_error *err);

#endif
