/*
 * The data model of a checkpoint that every format is read into: files, tensors split into chunks,
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

/* A chunk of a tensor. Element [i0, i1, ..] of its box is at data + sum(i * stride) * itemsize;
 * stride and data are known once the place is located. */
struct ckpt_chunk {
    const int64_t *offset, *size; /* [n_dims] */
    const int64_t *stride;        /* [n_dims], in elements; NULL: contiguous */
    int64_t data;                 /* offset of element 0 in the file */
    struct ckpt_location place;
};

static inline struct ckpt_chunk ckpt_chunk_at(const struct s2s_ckpt_tensor *tensor, size_t k)
{
    return tensor->chunks[k];
}
/* What is known about the location of a chunk; updated while it is read. */
static inline struct ckpt_location *ckpt_place_at(const struct s2s_ckpt_tensor *tensor, size_t k)
{
    return &tensor->chunks[k].place;
}
/* Stores a chunk's place, stride and data; its box stays. */
void ckpt_put_chunk(struct s2s_ckpt *ckpt, const struct s2s_ckpt_tensor *tensor, size_t k,
                    const struct ckpt_chunk *chunk);
/* Replaces the chunks of a tensor whose shape is set. */
void ckpt_set_chunks(struct s2s_ckpt *ckpt, struct s2s_ckpt_tensor *tensor,
                     const struct ckpt_chunk *chunks, size_t n_chunks);
/* The same, with boxes [n_chunks][2][n_dims] (keeps them) in no file yet (-1). */
void ckpt_set_boxes(struct s2s_ckpt *ckpt, struct s2s_ckpt_tensor *tensor, const int64_t *boxes,
                    size_t n_chunks);
/* The tensor that it is a view of (s2s_ckpt_unflattened, ckpt_transposed), or NULL. */
static inline const struct s2s_ckpt_tensor *ckpt_stored(const struct s2s_ckpt_tensor *tensor)
{
    return tensor->stored;
}

/* A file that is read. Of possibly thousands only some are open at a time (ckpt_file_fd). */
struct ckpt_source_file {
    char *name; /* relative to the folder; the path if the checkpoint is one file */
    int fd;     /* -1: not open */
    int64_t len_bytes;
    bool pinned; /* it has no name (unlinked), so fd stays open */
};

/* A file or a member of an archive: bytes [begin, begin + len_bytes) of files[file]. */
struct ckpt_span {
    int file;
    int64_t begin, len_bytes;
};

/* A member of a .nemo ("model_weights/common.pt") and its location. */
struct ckpt_member {
    const char *name;
    struct ckpt_span span;
};

/* What a rank has of a tensor, as one of its own, which must be the same as a chunk of the tensor
 * of that name. */
struct ckpt_copy {
    struct s2s_ckpt_tensor copy;
    uint32_t chunk;
};

struct s2s_ckpt {
    const char *format;
    char *path;        /* of the folder or file */
    int dir_fd;        /* of the folder; AT_FDCWD (negative) for a single file */
    int64_t iteration; /* -1: not known */
    bool release;      /* a Megatron "release": weights without a step, to start from */
    struct ckpt_source_file *files;
    size_t n_files, cap_files, n_open;
    json_t *file_idx;            /* an object: name -> index in files */
    struct ckpt_member *members; /* of a .nemo, sorted by name */
    size_t n_members, cap_members;
    const char *root; /* the model's folder among the members: "" or "NAME/" */
    /* prefix of the distributed checkpoint among the members; or NULL */
    const char *inside;
    struct s2s_ckpt_tensor *tensors;
    size_t n_tensors, cap_tensors;
    json_t *other_names; /* NULL, or an object: names that are not among the tensors, of those that
                            are (s2s_ckpt_add_other_names) */
    /* NULL, or objects: texts in the metadata of safetensors files, by key, and (nulls) those that
     * differ between files or are too long (texts.c) */
    json_t *texts, *lost_texts;
    size_t len_texts;       /* bytes that texts takes */
    const uint16_t **paths; /* NULL, or [n_tensors]: their paths, NULL: none */
    struct s2s_ckpt_object *objects;
    size_t n_objects, cap_objects;
    bool unfinished;  /* a Megatron-Core folder without metadata.json, which is written last */
    json_t *common;   /* the common state; small tensors as CKPT_SMALL_TENSOR */
    json_t *run_args; /* "args" if common lacks them (ckpt_read_args, ckpt_read_run_config) */
    struct s2s_blocks arena;        /* names, shapes, boxes, places */
    size_t chunk_idx;               /* chunk that s2s_ckpt_read read last: the next is near */
    void *scratch;                  /* CKPT_SCRATCH bytes for s2s_ckpt_read; NULL until needed */
    char *piece;                    /* for ckpt_piece; NULL until needed */
    struct ckpt_crc *crcs;          /* NULL, or CRC-32s of storages being read (read.c) */
    struct ckpt_verified *verified; /* NULL, or storages whose CRC-32 was verified (verify.c) */
    bool no_links;                  /* files of this format are never links: refuse those */
    bool warned_no_crc;             /* ckpt_warn_no_crc has warned */
    char *warned_opaque;            /* NULL, or the classes of the last warning (ckpt_warn_opaque)
                                     */
    const char *part;               /* NULL, or the part of a model that this is ("llm") */
    size_t name_bytes;              /* total length of names of tensors and objects */
    struct ckpt_copy *copies;       /* of FSDP ranks: only `verify` reads them */
    size_t n_copies, cap_copies;
    size_t n_left_values; /* values of rank files with tensors that are not read */
    size_t n_left_states; /* rank folders whose optimizer is not among the tensors */
    json_t *rank_values;  /* NULL, or how many merged rank folders had a value, by name */
};

/* Frees tensors, objects, members and common state. The files stay known. */
void ckpt_drop_tables(struct s2s_ckpt *ckpt);

/* Finds the file called name: in the folder, or among a .nemo's members. NOTFOUND, FORMAT, OPEN,
 * IO. */
int ckpt_find_span(struct s2s_ckpt *ckpt, const char *name, struct ckpt_span *span,
                   struct s2s_error *err);
/* What a checkpoint is made of ("items", ..) may share bytes. FORMAT: together it has more than so
 * many times the bytes of the files (small ones are taken for larger), and to read or write it all
 * is a bomb of time. */
int ckpt_check_told(const struct s2s_ckpt *ckpt, const char *what, __int128 told, int times,
                    struct s2s_error *err);
/* The same of all tensors and objects. FORMAT. */
int ckpt_check_total(const struct s2s_ckpt *ckpt, struct s2s_error *err);
/* Does such a file exist? */
bool ckpt_has(const struct s2s_ckpt *ckpt, const char *name);
/* Reads a whole span; a zero byte follows. Gives: free *bytes. FORMAT: more than max_len; IO,
 * TRUNCATED, NOMEM. */
int ckpt_slurp_span(struct s2s_ckpt *ckpt, const struct ckpt_span *span, int64_t max_len,
                    char **bytes, struct s2s_error *err);
/* The member of this name; members must be sorted. NULL: none. */
const struct ckpt_member *ckpt_find_member(const struct s2s_ckpt *ckpt, const char *name);
/* Compares members by name, for qsort. */
int ckpt_by_member_name(const void *a, const void *b);

/* Memory that lives as long as the checkpoint: len bytes, zeroed; a copy of len bytes and a zero
 * byte; a copy of n numbers. */
void *ckpt_arena(struct s2s_ckpt *ckpt, size_t len);
char *ckpt_arena_text(struct s2s_ckpt *ckpt, const char *s, size_t len);
const int64_t *ckpt_arena_ints(struct s2s_ckpt *ckpt, const int64_t *v, size_t n);

/* The index in files of the file called name, which is added if new. NOTFOUND; FORMAT: not a
 * regular file, or a link in a format without links; OPEN: may not be read; IO. */
int ckpt_add_file(struct s2s_ckpt *ckpt, const char *name, struct s2s_error *err);
/* The descriptor of files[file], opened if necessary; valid until the next call, which may close
 * it. A negative file is returned unchanged, to pass on a failure of ckpt_add_file. OPEN, IO. */
int ckpt_file_fd(struct s2s_ckpt *ckpt, int file, struct s2s_error *err);

/* FORMAT: the name is longer than CKPT_MAX_NAME bytes. To be called after each part when a name is
 * assembled from parts of a file: a small file can describe a very long name. */
enum { CKPT_MAX_NAME = 4096 };
int ckpt_check_name_len(const char *name, size_t len, struct s2s_error *err);
/* Adds a tensor with only a name so far; name [len] is copied. Lent until the next is added.
 * FORMAT: the name is not UTF-8 or too long, or all names together are. */
int ckpt_add_tensor(struct s2s_ckpt *ckpt, struct s2s_ckpt_tensor **tensor, const char *name,
                    size_t len, struct s2s_error *err);
/* Adds an object likewise; name is copied. */
int ckpt_add_object(struct s2s_ckpt *ckpt, struct s2s_ckpt_object **object, const char *name,
                    size_t len, struct s2s_error *err);
/* Sorts tensors and objects by name and checks them, once all were added. FORMAT: duplicate names;
 * SHAPE: chunks do not cover their tensor exactly, or an impossible size. */
int ckpt_seal(struct s2s_ckpt *ckpt, struct s2s_error *err);

/* The index of one of the checkpoint's tensors; of a view, that of its source. */
size_t ckpt_tensor_index(const struct s2s_ckpt *ckpt, const struct s2s_ckpt_tensor *tensor);
/* Compares tensors by name, for qsort and bsearch. */
int ckpt_by_tensor_name(const void *a, const void *b);
/* The object of this name, or NULL. After ckpt_seal. */
struct s2s_ckpt_object *ckpt_find_object(const struct s2s_ckpt *ckpt, const char *name);

/* Form of a small optimizer tensor (a step, a loss scale) in the common state, which is JSON: an
 * object with one key that starts so and names the dtype, {"tensor F32": 1.0}. A tensor with one
 * axis has a list of values. */
#define CKPT_SMALL_TENSOR "tensor "
/* The dtypes that such a tensor can have. */
static inline bool ckpt_is_small_dtype(enum s2s_dtype dtype)
{
    return dtype == S2S_F32 || dtype == S2S_I32 || dtype == S2S_I64;
}

#endif
