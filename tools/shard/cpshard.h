/* The work of s2s-cpshard. */
#ifndef S2S_CPSHARD_H
#define S2S_CPSHARD_H

#include "lib/base/base.h"
#include "lib/base/tool.h"
#include "lib/stream/stream.h"
#include "lib/thd/cp.h"

struct cpshard_options {
    struct s2s_common common;
    bool join;
    int cp_size, tp_size;
    int cp_rank; /* -1: all, each into a file of its own */
    const char **inputs;
    size_t n_inputs, cap_inputs;
};

#define CPSHARD_OPTIONS_DEFAULT \
    { \
        .common = S2S_COMMON_DEFAULT, .tp_size = 1, .cp_rank = -1 \
    }

int cpshard_split(const struct cpshard_options *opt, struct s2s_error *err);
int cpshard_join(const struct cpshard_options *opt, struct s2s_error *err);

/* `s2s-cpshard index`, with its own command line. */
int cpshard_index(int argc, char **argv, struct s2s_error *err);

/* ---- what split and join share ---- */

/* How a tensor of a pack goes to the ranks. */
enum cpshard_share {
    CPSHARD_COPY,  /* whole to each */
    CPSHARD_SLOTS, /* each has its slots */
    CPSHARD_ROWS   /* each has the rows of its slots of clips */
};

enum cpshard_share cpshard_share_of(const char *tensor_name);

/* A record's lengths and clips, copied because data of a record may be unaligned. */
struct cpshard_bounds {
    int32_t *cu_seqlens, *slot, *frames;
    size_t n_seqs;
    struct s2s_thd_clips clips;
    int64_t n_slots;
};

/* From a record that the schema accepted: cu_seqlens_padded, else cu_seqlens. Overwrites bounds. */
void cpshard_bounds_read(struct cpshard_bounds *bounds, const struct s2s_safetensors *st);
void cpshard_bounds_release(struct cpshard_bounds *bounds);

/* Bytes of an element of the first axis; len_bytes of other sizes. */
size_t cpshard_stride(const struct s2s_st_tensor *tensor);

#endif
