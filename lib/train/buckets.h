/*
 * The gradients of a step on their way over the ranks that have other tokens: buckets of the flat
 * buffer, whose sums are started while the backward of the last microbatch still runs, as soon as
 * it has left all blocks that add to them.
 *
 *     s2s_buckets_begin(buckets);
 *     for (each microbatch) { forward; if (it is the last) s2s_buckets_arm(buckets); backward; }
 *     s2s_buckets_finish(buckets);
 *
 * Which buckets there are, and in which order they are started, follows from the model alone, so it
 * is the same on all ranks. Sums are those of one reduction of the whole buffer, bit for bit.
 *
 * With a distributed optimizer (Megatron's, ZeRO's first stage; Rajbhandari et al. 2020) each rank
 * gets the sum of its equal part of each bucket alone, updates that, and all gather the values.
 */
#ifndef S2S_TRAIN_BUCKETS_H
#define S2S_TRAIN_BUCKETS_H

#include "lib/model/model.h"
#include "lib/optim/optim.h"
#include "lib/train/layout.h"

struct s2s_bucket {
    int64_t begin, end;            /* elements of the trained buffers */
    const struct s2s_group *group; /* over which they are summed */
    int block;                     /* the first that adds to them: the last in a backward */
    int64_t ticket;                /* of what was started */
    size_t slice;                  /* of the optimizer, where ranks divide the bucket */
};

/* What ranks that have other tokens divide between them; the names are Megatron's. */
enum s2s_sharding { S2S_NO_SHARD, S2S_SHARD_OPTIM, S2S_SHARD_ALL };

/* NULL-ended: "no_shard", "optim", "optim_grads_params" */
extern const char *const s2s_sharding_names[];

struct s2s_buckets {
    struct s2s_model *model; /* kept */
    enum s2s_sharding sharding;
    struct s2s_bucket *list; /* in the order in which a backward completes them */
    int n, n_started;
    bool overlap, armed;
    struct s2s_fsdp *fsdp; /* NULL, or what takes the place of the list (lib/train/fsdp.h) */
    struct s2s_block_watch watch;
};

struct s2s_buckets_options {
    const struct s2s_layout *layout; /* kept */
    int64_t bucket_bytes;            /* of a bucket at most; 0: the default */
    bool overlap;                    /* with the backward; else all are started at its end */
    enum s2s_sharding sharding;
};

#define S2S_BUCKET_MB 25.0

/* Before s2s_params_finish: room for equal parts. */
void s2s_buckets_lay_out(struct s2s_model *model, const struct s2s_layout *layout,
                         enum s2s_sharding sharding);
/* Over a finished registry; sets model->watch. Collective over the layout's groups. Gives:
 * s2s_buckets_free. */
struct s2s_buckets *s2s_buckets_new(struct s2s_model *model,
                                    const struct s2s_buckets_options *options);
void s2s_buckets_free(struct s2s_buckets *buckets); /* NULL is a no-op */

void s2s_buckets_begin(struct s2s_buckets *buckets);
/* The backward that follows is the last one of the step that adds to gradients. */
void s2s_buckets_arm(struct s2s_buckets *buckets);
/* Starts what was not, and waits for all. */
void s2s_buckets_finish(struct s2s_buckets *buckets);
/* The elements of a bucket whose sum this rank has after that: all, or its part. */
void s2s_buckets_own(const struct s2s_buckets *buckets, const struct s2s_bucket *bucket,
                     int64_t *begin, int64_t *end);
/* What this rank updates. Gives: s2s_optim_free; NOMEM as there. */
int s2s_buckets_optim(struct s2s_optim **optim, struct s2s_buckets *buckets,
                      const struct s2s_adamw_options *options, struct s2s_error *err);
/* One step of that optimizer (s2s_optim_step); all ranks have the new values after it. */
void s2s_buckets_update(struct s2s_buckets *buckets, struct s2s_optim *optim, double lr,
                        double weight_decay, double grad_scale);

#endif
