/* Where the DTensors of one rank's file lie in their tensors. */
#ifndef CKPT_FSDP_PLACE_H
#define CKPT_FSDP_PLACE_H

#include "lib/ckpt/pickle/dtensor.h"
#include "lib/ckpt/read/read_internal.h"

/* A mesh of the file that is being read, checked. */
struct ckpt_fsdp_mesh {
    const struct ckpt_node *node;
    int n_dims;
    int64_t size[CKPT_MESH_AXES], at[CKPT_MESH_AXES]; /* at: of this rank */
    const int64_t *ranks;                             /* [n_ranks] of the file */
};

/* The file of one rank. */
struct ckpt_fsdp_file {
    int64_t rank, n_ranks;
    struct ckpt_fsdp_mesh *meshes;
    size_t n_meshes, cap_meshes;
    struct ckpt_fsdp_cut *cuts; /* of each of the checkpoint's tensors */
    size_t n_cuts, cap_cuts;
};
/* How a tensor is cut. */
struct ckpt_fsdp_cut {
    const int64_t *v; /* of each axis of the mesh its size, then the axis of the tensor */
    size_t n;
    const int64_t *ranks; /* of the mesh; NULL: it is no DTensor, and whole on each rank */
};

/* Sets the shape of a tensor that has the local part of d, to that of the whole, and its chunk's
 * offset in it; the tensor is added to the checkpoint next. SHAPE: the part is not what torch gives
 * this rank; FORMAT: the mesh is not of these ranks, or another rank's. */
int ckpt_fsdp_place(struct ckpt_fsdp_file *file, struct s2s_ckpt *ckpt,
                    struct s2s_ckpt_tensor *tensor, const struct ckpt_dtensor *d,
                    struct s2s_error *err);
/* The next tensor that is added is no DTensor. */
void ckpt_fsdp_take_whole(struct ckpt_fsdp_file *file);
bool ckpt_fsdp_same_cut(const struct ckpt_fsdp_cut *a, const struct ckpt_fsdp_cut *b,
                        int64_t n_ranks);
void ckpt_fsdp_release(struct ckpt_fsdp_file *file);

#endif
