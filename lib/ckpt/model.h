/*
 * The one model of a checkpoint that every format is read into: files, tensors cut into chunks,
 * objects. The readers (lib/ckpt/read) fill it; ckpt.c serves it.
 */
#ifndef CKPT_MODEL_H
#define CKPT_MODEL_H

#include "lib/ckpt/box.h"
#include "lib/ckpt/ckpt.h"
#include "lib/ckpt/ckpt_files.h"
#include "lib/ckpt/file.h"
#include "lib/ckpt/folder.h"
#include "lib/ckpt/list.h"
#include "lib/ckpt/names.h"
#include "lib/io/there.h"

/* A box of a tensor, made for who asks for it. Element [i0, i1, ..] of the box lies at
 * data + sum(i * stride) * itemsize; stride and data are known when the place is located. */
struct ckpt_chunk {
    const int64_t *offset, *size; /* [n_dims] */
    const int64_t *stride;        /* [n_dims], in elements; NULL: contiguous */
    int64_t data;                 /* position of element 0 in the file */
    struct ckpt_location place;
};

struct ckpt_chunk ckpt_chunk_at(const struct s2s_ckpt_tensor *tensor, size_t k);
/* What is known of where a chunk lies; it grows while the chunk is read. */
const struct ckpt_location *ckpt_place_at(const struct s2s_ckpt_tensor *tensor, size_t k);
struct ckpt_location *ckpt_edit_place(struct s2s_ckpt_tensor *tensor, size_t k);
/* A tensor, or view of one, that the checkpoint lent: who may change that may change its tensors.
 */
struct s2s_ckpt_tensor *ckpt_own_tensor(struct s2s_ckpt *ckpt,
                                        const struct s2s_ckpt_tensor *tensor);
/* The same with its stride and data, which may make it plain no longer; its box stays. */
void ckpt_put_chunk(struct s2s_ckpt *ckpt, struct s2s_ckpt_tensor *tensor, size_t k,
                    const struct ckpt_chunk *chunk);
/* Gives a tensor of a known shape these chunks and no others. */
void ckpt_set_chunks(struct s2s_ckpt *ckpt, struct s2s_ckpt_tensor *tensor,
                     const struct ckpt_chunk *chunks, size_t n_chunks);
/* The same in two steps: boxes [n_chunks][2][n_dims] (keeps them: ckpt_arena_ints), then room for
 * their places, in no file (-1), where there is none yet. */
void ckpt_set_boxes(struct s2s_ckpt_tensor *tensor, const int64_t *boxes, size_t n_chunks);
void ckpt_make_places(struct s2s_ckpt *ckpt, struct s2s_ckpt_tensor *tensor);
/* A tensor of the same name, dtype, shape and boxes, whose places are still to be made. */
struct s2s_ckpt_tensor ckpt_cut_like(const struct s2s_ckpt_tensor *like);
/* What s2s_ckpt_orig_shape (NULL: nothing) and ckpt_stored say from now on. */
void ckpt_keep_orig_shape(struct s2s_ckpt *ckpt, struct s2s_ckpt_tensor *tensor,
                          const int64_t *shape);
void ckpt_keep_stored(struct s2s_ckpt *ckpt, struct s2s_ckpt_tensor *tensor,
                      const struct s2s_ckpt_tensor *stored);
/* NULL, or what it is a view of (s2s_ckpt_unflattened, ckpt_transposed). */
const struct s2s_ckpt_tensor *ckpt_stored(const struct s2s_ckpt_tensor *tensor);

/* A file that is read. Few of perhaps thousands are open at a time (ckpt_file_fd). */
struct ckpt_source_file {
    char *name; /* relative to the folder; the path, if the checkpoint is a single file */
    int fd;     /* -1: not open now */
    int64_t len_bytes;
    bool pinned; /* it has no name (was unlinked), so fd could not be opened again: stays open */
};

/* A file, or a member of an archive: len_bytes bytes from `begin` of files[file] on. */
struct ckpt_span {
    int file;
    int64_t begin, len_bytes;
};

/* A member of a .nemo ("model_weights/common.pt") and where it lies. */
struct ckpt_member {
    const char *name;
    struct ckpt_span span;
};

/* A tensor of the optimizer of one of Megatron's ranks. It becomes one of the checkpoint's tensors
 * only when the ranks are merged. */
struct ckpt_state {
    struct s2s_ckpt_tensor tensor; /* "mp_rank_00/optimizer.0.state.3.exp_avg" */
    const char *key;    /* what it is: "exp_avg", "step"; "fp32_param" for master weights */
    const char *param;  /* the name of the model's tensor that it belongs to; NULL: not known */
    const char *folder; /* "mp_rank_00" */
    size_t optimizer;   /* which of several optimizers */
};

/* The optimizer, or several, of one of Megatron's ranks. */
struct ckpt_rank_state {
    const char *folder;
    const char *why; /* why it is not known which parameters its tensors belong to; NULL: it is */
    json_t *parts;   /* an array: for each optimizer what it has beside tensors, as in its dict */
};

struct s2s_ckpt {
    const char *format;
    char *path;        /* of the folder or file */
    int dir_fd;        /* of the folder; AT_FDCWD, which is below 0, for a single file */
    int64_t iteration; /* -1: not known */
    bool release;      /* Megatron's word for weights without a step, to start from */
    struct ckpt_source_file *files;
    size_t n_files, cap_files, n_open;
    json_t *file_idx;            /* an object: the index in files of each name */
    struct ckpt_member *members; /* of a .nemo, sorted by name */
    size_t n_members, cap_members;
    const char *root; /* which folder of the members the model is: "" or "NAME/" */
    /* where among the members a distributed checkpoint lies, put in front of its names; or NULL */
    const char *inside;
    struct s2s_ckpt_tensor *tensors;
    size_t n_tensors, cap_tensors;
    const uint16_t **paths; /* NULL, or [n_tensors]: the path of each, NULL: none (paths.c) */
    struct s2s_ckpt_object *objects;
    size_t n_objects, cap_objects;
    bool unfinished;  /* Megatron-Core's, without the metadata.json that it writes last */
    json_t *common;   /* the common state; small tensors in it as CKPT_SMALL_TENSOR says */
    json_t *run_args; /* "args" that common lacks (ckpt_read_args, ckpt_read_run_config); or NULL */
    struct s2s_blocks arena;     /* names, shapes, boxes, places */
    struct ckpt_vector *vectors; /* NULL, or the shapes and boxes in it (arena.c) */
    /* names that are there already are used again: those of `like` (NULL: none), where the next is
     * expected at like_idx; */
    const struct s2s_ckpt *like;
    size_t like_idx;
    /* and those of our own n_sorted tensors from first_sorted on, which are in order, where the
     * next is expected at sorted_idx */
    size_t first_sorted, n_sorted, sorted_idx;
    size_t chunk_idx;      /* of the chunk that s2s_ckpt_read read last: the next box is near it */
    void *scratch;         /* CKPT_SCRATCH bytes, of s2s_ckpt_read; NULL until wanted */
    char *piece;           /* ckpt_piece; NULL until wanted */
    struct ckpt_crc *crcs; /* NULL, or the sums of storages being read in order (read.c) */
    struct ckpt_verified *verified; /* NULL, or storages whose CRC-32 was compared (verify.c) */
    bool no_links;                  /* files of this format are never links: refuse them */
    bool warned_no_crc;             /* ckpt_warn_no_crc has warned */
    char *warned_opaque;            /* NULL, or the classes last warned of (ckpt_warn_opaque) */
    const char *part;               /* NULL, or which part of a model this is ("llm") */
    size_t name_bytes;              /* of all tensors' and objects' names */
    struct ckpt_state *states;      /* tensors of the ranks' optimizers */
    size_t n_states, cap_states;
    struct ckpt_rank_state *rank_states; /* one for each rank folder that has an optimizer */
    size_t n_rank_states, cap_rank_states;
    size_t n_left_states;         /* rank folders whose optimizer is not among the tensors */
    struct ckpt_reduced *reduced; /* NULL, or what s2s_ckpt_reduce left of the tensors */
};

/* Forgets tensors, objects, members and common state, and frees their memory. What is known of the
 * files remains. */
void ckpt_drop_tables(struct s2s_ckpt *ckpt);
void ckpt_reduced_free(struct ckpt_reduced *reduced); /* NULL is a no-op */

/* Where the file called name lies: in the folder, or among a .nemo's members. NOTFOUND, FORMAT,
 * OPEN, IO. */
int ckpt_find_span(struct s2s_ckpt *ckpt, const char *name, struct ckpt_span *span,
                   struct s2s_error *err);
/* What a checkpoint is made of ("items", ..) may share bytes. FORMAT: together it has more than so
 * many times the bytes of the files (small ones are taken for larger), and to read or write it all
 * is a bomb of time. */
int ckpt_check_told(const struct s2s_ckpt *ckpt, const char *what, __int128 told, int times,
                    struct s2s_error *err);
/* Is there such a file? */
bool ckpt_has(const struct s2s_ckpt *ckpt, const char *name);
/* Reads all bytes of a span; a zero byte follows. Gives: free *bytes. FORMAT: more than max_len;
 * IO, TRUNCATED, NOMEM. */
int ckpt_slurp_span(struct s2s_ckpt *ckpt, const struct ckpt_span *span, int64_t max_len,
                    char **bytes, struct s2s_error *err);
/* The member of this name, once they are sorted; NULL: there is none. */
const struct ckpt_member *ckpt_find_member(const struct s2s_ckpt *ckpt, const char *name);
/* The order of members, for qsort. */
int ckpt_by_member_name(const void *a, const void *b);

/* Memory that lives as long as the checkpoint, until ckpt_arena_release frees it (arena.c): len
 * bytes, zeroed; a copy of len bytes and a zero byte. */
void *ckpt_arena(struct s2s_ckpt *ckpt, size_t len);
char *ckpt_arena_text(struct s2s_ckpt *ckpt, const char *s, size_t len);
/* A copy of n numbers, never to be changed: equal ones that are kept are used again, for a layer
 * has the shapes and boxes of the one before it. */
const int64_t *ckpt_arena_ints(struct s2s_ckpt *ckpt, const int64_t *v, size_t n);
void ckpt_arena_release(struct s2s_ckpt *ckpt);

/* The index in files of the file called name, which is added if it is not among them. NOTFOUND;
 * FORMAT: no plain file, or a link where the format has none; OPEN: it must not be read; IO. */
int ckpt_add_file(struct s2s_ckpt *ckpt, const char *name, struct s2s_error *err);
/* The descriptor of files[file], opened if need be; valid until the next call, which may close it.
 * A negative file is returned as it is, so that a failure of ckpt_add_file can be handed on. OPEN,
 * IO. */
int ckpt_file_fd(struct s2s_ckpt *ckpt, int file, struct s2s_error *err);

/* FORMAT: the name is longer than CKPT_MAX_NAME bytes. Who puts a name together from parts of a
 * file calls this after each part: a small file can ask for a very long name. */
enum { CKPT_MAX_NAME = 4096 };
int ckpt_check_name_len(const char *name, size_t len, struct s2s_error *err);
/* Adds a tensor that has a name and nothing else yet; name [len] is copied. Lent until the next is
 * added. FORMAT: the name is not UTF-8 or too long, or all names together are. */
int ckpt_add_tensor(struct s2s_ckpt *ckpt, struct s2s_ckpt_tensor **tensor, const char *name,
                    size_t len, struct s2s_error *err);
/* The same for a zero-ended name that is kept, not copied: it lives as long as the checkpoint. */
int ckpt_add_tensor_named(struct s2s_ckpt *ckpt, struct s2s_ckpt_tensor **tensor, const char *name,
                          size_t len, struct s2s_error *err);
/* Adds an object in the same way; name is copied. */
int ckpt_add_object(struct s2s_ckpt *ckpt, struct s2s_ckpt_object **object, const char *name,
                    size_t len, struct s2s_error *err);
/* Sorts tensors and objects by name and checks them: to be called when all were added. FORMAT: a
 * name is there twice; SHAPE: chunks do not cover their tensor exactly, or a size is absurd. */
int ckpt_seal(struct s2s_ckpt *ckpt, struct s2s_error *err);

/* The index of one of the checkpoint's tensors; of a view, that of the tensor it shows. */
size_t ckpt_tensor_index(const struct s2s_ckpt *ckpt, const struct s2s_ckpt_tensor *tensor);
/* The order of sorted tensors, for qsort and bsearch. */
int ckpt_by_tensor_name(const void *a, const void *b);
/* The object of this name, or NULL. After ckpt_seal. */
struct s2s_ckpt_object *ckpt_find_object(const struct s2s_ckpt *ckpt, const char *name);

/* How the common state, which is JSON, has a small tensor of the optimizer (a step, a loss scale):
 * as an object of one key that begins so and names the dtype, {"tensor F32": 1.0}. A tensor of one
 * axis has a list of values. */
#define CKPT_SMALL_TENSOR "tensor "
/* The dtypes that such a tensor can have. */
static inline bool ckpt_is_small_dtype(enum s2s_dtype dtype)
{
    return dtype == S2S_F32 || dtype == S2S_I32 || dtype == S2S_I64;
}

#endif
