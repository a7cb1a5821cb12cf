/*
 * The packs of each training step, in an order that is a function of the seed alone: epoch after
 * epoch, each in an order of its own, whatever the number of ranks; so any run can go on where any
 * other one stopped. Step by step the global batch is the next packs_per_step packs; data-parallel
 * rank r takes microbatches r, r + dp, r + 2 dp, .. of them, so that a microbatch is the same packs
 * on any number of ranks. A thread prepares the next step while this one computes.
 *
 * A pipe ("-") is read by rank 0, handed out, and passed over once.
 */
#ifndef S2S_TRAIN_FEED_H
#define S2S_TRAIN_FEED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "lib/mesh/mesh.h"
#include "lib/train/pack.h"

struct s2s_error;
struct s2s_feed;

struct s2s_feed_options {
    /* streams of kind pack or embed, as if they were one; or, by names with %r for the rank, the
     * parts that s2s-cpshard made for each rank of the grid's cp */
    const char *const *paths;
    size_t n_paths;
    bool shuffle;
    uint64_t seed;
    int64_t packs_per_step, packs_per_microbatch;
    int64_t first_pack;    /* packs of all epochs that were used before */
    struct s2s_mesh *mesh; /* kept, as the grid */
    struct s2s_grid *grid; /* whose packs these are; a rank outside of it gets none */
    const char *features;  /* preprocessor_config.json, or NULL */
    const char *tokenizer; /* tokenizer.json, or NULL */
    int n_mels;            /* without features: 16 kHz and this many; 0: no sound is wanted */
    const struct s2s_spec_augment *augment; /* kept; NULL: none */
    float dither;                           /* s2s_audio_dither of clips of sound; 0: none */
    float token_dropout;                    /* share of the answer's input tokens that are hidden */
    bool draws; /* batches say what dropout draws by: seed, epoch and id of a sample (a pipe, which
                   does not say where an epoch begins, has the number of the pack in its place) */
    /* Collective over the launch, or NULL: whether to wait no longer for a pipe that has nothing to
     * say, which then reads as one that has ended. */
    bool (*give_up)(void *ctx);
    void *give_up_ctx;
};

/* What this rank has of one step: the same number of microbatches as every rank of its grid. Where
 * the step has no pack for one it is empty: no token, no sequence, no clip. */
struct s2s_feed_step {
    struct s2s_pack **microbatches; /* [n_microbatches], each the packs of one, joined */
    int64_t n_microbatches;
    int64_t n_global; /* packs of the step over all dp coordinates; 0: a pipe has ended */
};

/*
 * Collective over the launch: each rank opens one feed, for the grid it computes in. (Files alone
 * ask only the peers.) Checks every header; each message names its stream.
 */
int s2s_feed_open(struct s2s_feed **feed, const struct s2s_feed_options *options,
                  struct s2s_error *err);
/* Collective as s2s_feed_open: the next step, lent until the next call. A failure is this rank's
 * and its peers' own: the caller shares it (s2s_mesh_all_ok). */
int s2s_feed_next(struct s2s_feed *feed, const struct s2s_feed_step **step, struct s2s_error *err);
/* The streams, in the order they are read: [{"path", "packs", "digest" of the stream's end}, ..].
 * Gives a reference; NULL: a pipe, of which nothing is known. */
json_t *s2s_feed_describe(const struct s2s_feed *feed);
void s2s_feed_close(struct s2s_feed *feed); /* NULL is a no-op */

/* The name with the rank in place of %r. Gives: free. */
char *s2s_feed_path(const char *path, int cp_rank);

/* Index, in the concatenated streams, of pack `position` of all epochs. */
int64_t s2s_feed_order(uint64_t seed, bool shuffle, int64_t n_packs, int64_t position,
                       int64_t **cache, int64_t *cached_epoch);

#endif
