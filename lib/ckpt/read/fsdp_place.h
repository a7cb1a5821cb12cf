/* Where what FSDP ranks have, DTensors or whole tensors, lies in the tensors. */
#ifndef CKPT_FSDP_PLACE_H
#define CKPT_FSDP_PLACE_H

#include "lib/ckpt/pickle/dtensor.h"
#include "lib/ckpt/read/read_internal.h"

/* The processes among which tensors are cut. */
struct ckpt_fsdp_mesh {
    int n_dims;
    int64_t size[CKPT_MESH_AXES];
    const int64_t *ranks; /* [n_ranks], each once */
    uint64_t hash;        /* of ranks */
};

/* A mesh in the file that is being read, checked. */
struct ckpt_fsdp_seen {
    const struct ckpt_node *node;
    int64_t mesh; /* index of the same one of the first rank; CKPT_FSDP_OTHER: it has none */
    int n_dims;
    int64_t size[CKPT_MESH_AXES], at[CKPT_MESH_AXES]; /* at: of this rank */
};

/* How a tensor is cut, behind its shape: the index of its mesh, and for each axis of that the axis
 * of the tensor that it cuts, or -1; or that it is no DTensor, and whole on each rank. */
enum { CKPT_FSDP_WHOLE = -1, CKPT_FSDP_OTHER = -2 };

/*
 * The files of all ranks, which are read one after the other. The tensors of the first one's are
 * those of the checkpoint, with its part as their only chunk. Of the other ranks' only the places
 * are kept.
 */
struct ckpt_fsdp {
    struct s2s_ckpt *ckpt;
    int64_t n_ranks, rank;         /* rank: that of the file that is being read */
    struct ckpt_fsdp_mesh *meshes; /* of the first rank */
    size_t n_meshes, cap_meshes;
    struct ckpt_fsdp_seen *seen; /* in this file */
    size_t n_seen, cap_seen;
    struct ckpt_chunk *chunks; /* [tensors of the checkpoint, sorted][n_columns], by rank, without
                                * their boxes; file -1: not yet */
    size_t n_columns;
    size_t n_put; /* in this file */
};

/* Of the first rank: sets the shape of a tensor that has the local part of d, or is whole (d NULL),
 * to that of the whole; it is added to the checkpoint next, under this name. SHAPE: the part is not
 * what torch gives this rank; FORMAT: the mesh is not of these ranks, or another rank's. */
int ckpt_fsdp_place(struct ckpt_fsdp *f, const char *name, struct s2s_ckpt_tensor *tensor,
                    const struct ckpt_dtensor *d, struct s2s_error *err);
/* Of a later rank: stores the place of such a part of the checkpoint's tensor of this name [len].
 * The same; NOTFOUND, SHAPE, FORMAT: the first rank has no such tensor, or one of another shape or
 * dtype, or cut in another way. */
int ckpt_fsdp_put(struct ckpt_fsdp *f, const char *name, size_t len,
                  const struct s2s_ckpt_tensor *part, const struct ckpt_dtensor *d,
                  struct s2s_error *err);
/* Begins the file of a rank: the first one, then, once the checkpoint's tensors are sorted, the
 * others. */
void ckpt_fsdp_begin(struct ckpt_fsdp *f, int64_t rank);
/* Sets boxes [n_ranks][2][n_dims], offset and size, to those of a tensor that each rank has. */
void ckpt_fsdp_boxes(const struct ckpt_fsdp *f, const struct s2s_ckpt_tensor *tensor,
                     int64_t *boxes);
void ckpt_fsdp_release(struct ckpt_fsdp *f);

/* The name of a rank's file. Gives: free. */
char *ckpt_fsdp_name(int64_t n_ranks, int64_t rank);
/* Sets an error that names a tensor and the files of two ranks. */
int ckpt_fsdp_differ(const struct ckpt_fsdp *f, enum s2s_errc code, const char *format, int64_t a,
                     int64_t b, const char *tensor, struct s2s_error *err);

#endif
