/*
 * The registry of parameters: a model's build function adds them, everything else reads them here
 * (initial values, optimizer groups, reduction of gradients, checkpoints, export). Values and
 * gradients are flat buffers; a parameter is a range of them.
 *
 * A parameter has a global shape, and each rank holds boxes of it (s2s_param_boxes). A cut takes a
 * part along one dimension for each rank of a group. A matrix that is several matrices one
 * below the other (q|k|v, gate|up) says their sizes: each part is then cut by itself, and a rank
 * holds its pieces one after the other:
 *
 *     global [12, n], parts {8, 2, 2}, two ranks:     rank 0: rows 0-3, 8, 10; rank 1: 4-7, 9, 11
 */
#ifndef S2S_TENSOR_PARAM_H
#define S2S_TENSOR_PARAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/tensor/par.h"
#include "lib/tensor/tensor.h"

struct s2s_error;

enum s2s_param_flag {
    S2S_PARAM_NO_DECAY = 1, /* no weight decay whatever the shape says */
    S2S_PARAM_FROZEN = 2,   /* no gradient, not updated */
    S2S_PARAM_BUFFER =
        4, /* state that is saved with the model but no parameter (running statistics) */
    S2S_PARAM_EXPERT = 8,    /* one of a set of experts: its gradient is reduced over other ranks */
    S2S_PARAM_SP_SUM = 16,   /* used on a sequence shard: its gradient is summed over tp */
    S2S_PARAM_OPTIONAL = 32, /* a loader may find no value for it: then it keeps its initial one */
    S2S_PARAM_ABSENT = 64,   /* another pipeline stage's: name and shape, no memory here */
    S2S_PARAM_UNEVEN = 128,  /* the parts of a cut may differ by one; else a size that the ranks do
                              * not divide is our bug */
    S2S_PARAM_SHARED = 256,  /* two pipeline stages have it: its gradient is summed over both */
    S2S_PARAM_COPY = 512,    /* a shared one that the other stage counts and saves */
    S2S_PARAM_STACKED = 1024, /* stands right behind the parameter that was added before it, and is
                               * of its stack: see s2s_param_stack */
    S2S_PARAM_ROUTER = 2048,  /* scores experts: a matrix, or, if a buffer, the bias of its choice,
                               * which is added right behind it */
    S2S_PARAM_UNSAVED = 8192, /* in no checkpoint: it is frozen as the model's files have it */
    S2S_PARAM_F32 = 4096, /* stays F32 on a device that works in BF16: kernels take it as floats */
};

/* Over which ranks a gradient is reduced, and who counts it in the norm. Trained parameters stand
 * class after class, in this order. */
enum s2s_param_class {
    S2S_CLASS_REPLICATED, /* the same on all ranks of tp, and so is its gradient */
    S2S_CLASS_SP_SUM,     /* the same on all ranks of tp, its gradient a part of the sum */
    S2S_CLASS_CUT,        /* each rank of tp has its own part */
    S2S_CLASS_COPY,       /* S2S_PARAM_COPY, cut or not: not counted */
    S2S_CLASS_EXPERT,     /* S2S_PARAM_EXPERT: each rank of etp has its own part */
    S2S_CLASSES
};

enum s2s_init_kind {
    S2S_INIT_ZERO,
    S2S_INIT_CONSTANT,
    S2S_INIT_NORMAL,
    S2S_INIT_UNIFORM,
    S2S_INIT_LOG_NUMBER, /* the logarithms of 1, 2, 3 .. */
    S2S_INIT_STEP /* softplus of it is uniform in its logarithm, between value / 100 and value */
};

/* Initial values: a function of seed, name and global index, the same on any mesh. */
struct s2s_init {
    enum s2s_init_kind kind;
    double value; /* the constant, the standard deviation, or the bound of [-value, value) */
};

enum {
    S2S_PARAM_CUTS = 2,
    S2S_PARAM_PARTS = 8,
    /* what a range of elements can consist of at most: 2 x 5 - 1 boxes in each part */
    S2S_PARAM_BOXES = S2S_PARAM_PARTS * (2 * S2S_TENSOR_DIMS - 1)
};

/* Parts of dimension dim for the ranks of a group, one after the other. */
struct s2s_cut {
    enum s2s_axis axis;
    int dim;
    const struct s2s_group *group; /* kept; NULL or size 1: not cut */
};

/* What a layer says about a parameter. */
struct s2s_param_spec {
    const char *name; /* as the checkpoint has it, with the composite's prefix; copied */
    int n_dims;
    int64_t shape[S2S_TENSOR_DIMS];      /* global */
    struct s2s_cut cuts[S2S_PARAM_CUTS]; /* along different dimensions */
    int n_parts;                         /* 0: one part, all of it */
    int64_t parts[S2S_PARAM_PARTS];      /* [n_parts] sizes along the dimension of cuts[0] */
    const char *tie;                     /* NULL, or the name (added before) whose value this is:
                                          * one tensor, one gradient, stored once under that name */
    unsigned flags;
    double lr_mult, decay_mult; /* of learning rate and weight decay; 0: 1 */
    struct s2s_init init;
};

struct s2s_param {
    char *name;
    int n_dims;
    int64_t shape[S2S_TENSOR_DIMS]; /* global */
    int64_t local[S2S_TENSOR_DIMS]; /* of this rank */
    struct s2s_cut cuts[S2S_PARAM_CUTS];
    int n_parts; /* 0: one, or nothing is cut along them */
    int64_t parts[S2S_PARAM_PARTS];
    struct s2s_param *tied; /* whose value this is, or NULL */
    unsigned flags;
    enum s2s_param_class class;
    double lr_mult, decay_mult;
    double min_lr; /* at which its schedule ends; negative: as that of all, times lr_mult */
    struct s2s_init init;
    int64_t numel;   /* elements stored here: 0 for a tied or absent one */
    int64_t offset;  /* first element in its buffer */
    int64_t n_stack; /* of the first of a stack that is here: how many are */
    float *master;   /* its values in F32, device memory; NULL: they are BF16 alone */
    /* master and grad_stored have elements [stored_begin, stored_end) of the local tensor: all, or
     * of a divided one this rank's part */
    int64_t stored_begin, stored_end;
    float *grad_stored; /* NULL: it has no gradient */
    bool divided;
    bool trained;              /* has a gradient and optimizer state here */
    bool set;                  /* was initialised or loaded */
    struct s2s_tensor *tensor; /* its value (data NULL where it is absent); tensor->grad is its
                                * slice of the gradient buffer */
};

/* What ranks divide at once: of a unit what is of one class, and what layers use in one type. */
struct s2s_param_piece {
    enum s2s_param_class class;
    enum s2s_dtype dtype;
    int64_t begin, end;  /* elements of the trained buffers */
    int64_t stored;      /* where this rank's part is in master and grads of the registry */
    int64_t value, grad; /* where the whole is in what shards have */
};

enum { S2S_PIECES = 2 * S2S_CLASSES };

/*
 * Parameters that are gathered together. Where ranks divide values and gradients, each keeps an
 * equal part of each piece of a unit; the whole unit is only there while it is computed with. Units
 * take turns in two places; a kept one has its own.
 */
struct s2s_param_unit {
    size_t begin, end; /* of params->list */
    bool kept;
    /* set by s2s_params_finish */
    struct s2s_param_piece pieces[S2S_PIECES]; /* some without elements */
    int64_t grad, numel; /* the whole of its gradients; 0 elements: another pipeline stage has it */
    int place;           /* 0, 1; -1: kept, or not here */
};

struct s2s_shards {
    const struct s2s_group *groups[S2S_CLASSES]; /* kept: whose ranks divide a class */
    struct s2s_param_unit *units; /* [n_units] in the order in which they are computed with */
    int n_units;
    /* whole units, in device memory */
    float *grads; /* [n_grads] */
    float *wide;  /* [n_wide] values that layers use in F32 */
    void *narrow; /* [n_narrow] those that they use in the device's dtype, if it is another */
    int64_t n_grads, n_wide, n_narrow;
};

/*
 * All parameters of a model. Trained ones stand in one flat buffer, by class and then in the order
 * they were added, fixed ones (frozen, buffers) in another. Each starts at a multiple of 16
 * elements; the gaps hold zeros, in gradients too, so flat operations may run over them.
 *
 * On a device that works in BF16 layers use matrices (two or more dimensions, but for S2S_PARAM_F32
 * and buffers) in BF16. Trained ones have a master in F32, which is updated, set, read and saved;
 * their working values are its rounding. Fixed ones are BF16 alone. All else stays F32, and layers
 * use a master itself.
 */
struct s2s_params {
    struct s2s_device *device;
    struct s2s_param **list;
    size_t n, cap;
    struct s2s_param **slots; /* the list by hash of the name, open addressing */
    size_t n_slots;           /* 0 or a power of two */
    bool finished, complete;  /* complete: every value was seen to be set */
    float *master;            /* [n_stored], what the optimizer updates: device memory */
    void *values;             /* [n_trained] in the device's dtype; master where that is F32, or
                               * where ranks divide values */
    float *grads;             /* [n_stored] */
    float *fixed;             /* [n_fixed] */
    void *halves;             /* [n_halves], fixed ones of BF16 */
    int64_t n_trained, n_fixed, n_halves;
    int64_t class_end[S2S_CLASSES]; /* of the trained ones */
    int n_shards[S2S_CLASSES];      /* equal parts that a class can be divided into; 0: one */
    struct s2s_shards *shards;      /* NULL: all values and gradients are here */
    int64_t n_stored;               /* of the trained ones, here */
};

/* Gives: s2s_params_free. */
struct s2s_params *s2s_params_new(struct s2s_device *device);
void s2s_params_free(struct s2s_params *params); /* NULL is a no-op */

/* Adds one; a name twice is our bug. Lent until s2s_params_free. */
struct s2s_param *s2s_params_add(struct s2s_params *params, const struct s2s_param_spec *spec);
/* Makes it another pipeline stage's, S2S_PARAM_ABSENT; before s2s_params_finish. */
void s2s_param_remove(struct s2s_param *param);
/* Two pipeline stages have it; copy: the other one counts and saves it. Before s2s_params_finish.
 */
void s2s_param_share(struct s2s_param *param, bool copy);
/* Freezes everything whose name starts with prefix; before s2s_params_finish. */
void s2s_params_freeze(struct s2s_params *params, const char *prefix);
/* Freezes names that match a shell pattern, in which * matches dots too ("llm.*.norm.weight").
 * Returns how many there are; before s2s_params_finish. */
size_t s2s_params_freeze_match(struct s2s_params *params, const char *pattern);
/* Trains names that match, whatever froze them. Returns how many there are; before
 * s2s_params_finish. */
size_t s2s_params_unfreeze_match(struct s2s_params *params, const char *pattern);
/* Multiplies learning rate and weight decay of names that match, and sets the rate at which their
 * schedule ends (negative: leaves it). Returns how many there are. */
size_t s2s_params_scale_match(struct s2s_params *params, const char *pattern, double lr_mult,
                              double decay_mult, double min_lr);
/* Gives the class room for n equal parts, each a multiple of 16 elements; before
 * s2s_params_finish. */
void s2s_params_divide(struct s2s_params *params, enum s2s_param_class class, int n);
/* Values and gradients are divided between the ranks of a group for each class, unit by unit:
 * begin, end and kept of each count, in which every trained parameter is once. Before
 * s2s_params_finish. */
void s2s_params_shard(struct s2s_params *params, const struct s2s_param_unit *units, int n_units,
                      const struct s2s_group *const groups[S2S_CLASSES]);
/* How many elements of a piece each rank keeps. */
int64_t s2s_piece_part(const struct s2s_shards *shards, const struct s2s_param_piece *piece);
/* Where its whole values are, in its dtype. */
void *s2s_piece_values(const struct s2s_shards *shards, const struct s2s_param_piece *piece);
/* Lays out and allocates the buffers; then values and gradients exist (gradients zero, values
 * not set). Fails where the machine has no room for them, and where a part of a stack is frozen. */
int s2s_params_finish(struct s2s_params *params, struct s2s_error *err);

struct s2s_param *s2s_params_find(const struct s2s_params *params, const char *name); /* or NULL */

/*
 * Parameters of equal shapes, one behind the other, that operations take as one tensor: matrices of
 * experts. Each has its name, values and multipliers; all are trained, or none is. Those that are
 * absent here (other ranks' experts) leave no gap. first: of those that are here.
 */
struct s2s_stack {
    struct s2s_tensor *first; /* its gradient is followed by those of the others */
    int64_t n, step;          /* how many, and the elements from one to the next */
};
struct s2s_stack s2s_param_stack(const struct s2s_param *first);
/* Bytes of all values, masters and working ones. */
int64_t s2s_params_bytes(const struct s2s_params *params);
/* The working values of n trained elements from `begin` on that are not the masters themselves;
 * none where they are. */
struct s2s_mat s2s_params_working(const struct s2s_params *params, int64_t begin, int64_t n);
/* Makes them the rounding of the masters, which were changed by other means than the optimizer. */
void s2s_params_round(struct s2s_params *params, int64_t begin, int64_t n);

/* The elements [begin, end) of the trained buffers that belong to a class. */
void s2s_params_range(const struct s2s_params *params, enum s2s_param_class class, int64_t *begin,
                      int64_t *end);

/* Whether it is trained, here or on other ranks: the same answer on all of them. */
static inline bool s2s_param_learns(const struct s2s_param *param)
{
    return !param->tied && !(param->flags & (S2S_PARAM_FROZEN | S2S_PARAM_BUFFER));
}

/* Whether this rank stores it: it is neither tied nor absent. */
bool s2s_param_is_here(const struct s2s_param *param);

/* Initial values of whatever was not set before (names decide, not order). Returns the number of
 * elements. */
int64_t s2s_params_init(struct s2s_params *params, uint64_t seed);
void s2s_param_init(struct s2s_param *param, uint64_t seed);

/* Begins a step: that a parameter was never set is our bug. */
void s2s_params_zero_grads(struct s2s_params *params);

/* This rank's boxes out of a whole tensor in host memory (row-major, any float dtype, no particular
 * alignment). */
void s2s_param_set(struct s2s_param *param, const void *whole, enum s2s_dtype dtype);
/* What this rank holds, host memory [numel] in F32, in and out; of a divided one only what is
 * stored here. */
void s2s_param_set_local(struct s2s_param *param, const float *local);
void s2s_param_get(const struct s2s_param *param, float *local);
/* The elements [stored_begin, stored_end) alone, in the order of the device's queue: they are there
 * once the device was waited for. */
void s2s_param_get_stored(const struct s2s_param *param, float *stored);
void s2s_param_get_grad(const struct s2s_param *param, float *local);

/* The first parameter whose value holds a NaN or Inf; or the last one whose gradient does, where a
 * backward comes first. NULL: none. */
struct s2s_param *s2s_params_find_nonfinite(const struct s2s_params *params, bool gradient);

/* Megatron's rule: weights of two or more dimensions that are no biases are decayed. */
bool s2s_param_decays(const struct s2s_param *param);

/* ---- where the elements are (param_boxes.c) ---- */

/* Of n things in a row, cut for `ranks`: where the part of `rank` begins. Parts differ by one at
 * most; the one after the last begins at n. */
static inline int64_t s2s_cut_begin(int64_t n, int rank, int ranks)
{
    return n * rank / ranks;
}

/* A box of the global tensor, and where its first element is in the local one. */
struct s2s_box {
    int64_t offset[S2S_TENSOR_DIMS], size[S2S_TENSOR_DIMS], local_offset[S2S_TENSOR_DIMS];
};

/* The boxes that a rank holds, in the order of the parts: out [S2S_PARAM_PARTS]. at: the rank's
 * position in the group of each axis; NULL: this rank. Returns their number. The boxes of all
 * positions tile the tensor. */
int s2s_param_boxes(struct s2s_box *out, const struct s2s_param *param, const int at[S2S_AXES]);
/* The boxes that the elements [begin, end) of this rank's local tensor consist of: out
 * [S2S_PARAM_BOXES]. */
int s2s_param_range_boxes(struct s2s_box *out, const struct s2s_param *param, int64_t begin,
                          int64_t end);

int64_t s2s_box_numel(const struct s2s_box *box, int n_dims);
/* Index in the local tensor from which the box lies contiguous there; -1: it does not. */
int64_t s2s_box_begin(const struct s2s_box *box, const struct s2s_param *param);
/* Between the local tensor [numel] and the box by itself, row-major. */
void s2s_box_pack(const struct s2s_box *box, const struct s2s_param *param, const float *local,
                  float *packed);
void s2s_box_unpack(const struct s2s_box *box, const struct s2s_param *param, const float *packed,
                    float *local);

/*
 * Ranks along axes that do not cut a parameter hold copies of the same boxes. Gives this rank's
 * number among them, and how many there are. axes: the groups of the parameter's grid; NULL: not
 * counted.
 */
int s2s_param_copy(const struct s2s_param *param, const struct s2s_group *const axes[S2S_AXES],
                   int *n_copies);

#endif
