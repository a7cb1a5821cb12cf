/*
 * s2s-encode: clips of a stream become embeddings, spread over the ranks of a launch.
 *   share.c   which rank encodes which clip, and --plan
 *   clips.c   clips of a record: lengths, and their features
 *   coder.c   the encoder: features to rows
 *   encode.c  the run: windows of records, gathering, the output stream
 */
#ifndef S2S_ENCODE_H
#define S2S_ENCODE_H

#include <stdbool.h>
#include <stdint.h>

#include "lib/audio/mel.h"
#include "lib/base/base.h"
#include "lib/base/tool.h"
#include "lib/mesh/mesh.h"
#include "lib/stream/schema.h"
#include "lib/stream/stream.h"

/* Without --batch-seconds: at least so many, and so many for each thread of all ranks, as threads
 * wait for the last clip of what is held. */
#define ENCODE_BATCH_SECONDS 60.0
#define ENCODE_THREAD_SECONDS 20.0

struct encode_options {
    struct s2s_common common;
    const char *encoder, *projection, *features, *config, *lengths;
    const char *device; /* NULL: the default one */
    bool bf16, plan;
    int ranks;            /* of the plan; 0: those of the launch */
    double batch_seconds; /* 0: not given */
    const char *const *inputs;
    size_t n_inputs;
};

/* ---- share.c ---- */

/* How n clips are spread over ranks: rank r has the slots [r * per_rank, (r + 1) * per_rank), of
 * which those from n on are dummies as long as the shortest clip. */
struct encode_share {
    int64_t n_clips, per_rank, dummy_len;
};
struct encode_share encode_share(const int64_t *lengths, int64_t n_clips, int n_ranks);
/* Real clips of a rank: [begin, end). */
void encode_share_range(const struct encode_share *share, int rank, int64_t *begin, int64_t *end);
int encode_plan(const struct encode_options *opt, int n_ranks, struct s2s_error *err);

/* ---- clips.c ---- */

/* Reads clips of records of one stream. */
struct encode_reader {
    struct s2s_schema schema;         /* of the header */
    const struct s2s_mel_config *mel; /* n_mels 0: any, only lengths are asked for */
};

/* Not UNSUPPORTED: the stream holds clips that can be encoded, as the features want them. */
int encode_check_stream(const struct encode_reader *reader, const json_t *header,
                        struct s2s_error *err);
/* Number of clips of a record. */
int64_t encode_n_clips(const struct encode_reader *reader, const struct s2s_safetensors *st);
/* Length of clip k: samples at the rate of the features, or mel frames of a mel stream. */
int encode_clip_length(int64_t *length, const struct encode_reader *reader,
                       const struct s2s_safetensors *st, int64_t k, struct s2s_error *err);
/* Features [*n_frames, n_mels] of clip k. Gives: free. */
int encode_clip_mel(float **features, int64_t *n_frames, const struct encode_reader *reader,
                    const struct s2s_mel *mel, struct s2s_mel_work *work,
                    const struct s2s_safetensors *st, int64_t k, struct s2s_error *err);
bool encode_is_clip_tensor(const char *name);

/* ---- coder.c ---- */

struct encode_coder;

/* Threads that encode: those of --jobs on the CPU. A GPU has one, as its kernels have threads of
 * their own. */
int encode_n_workers(const struct encode_options *opt);
/* Opens encoder and projection, on the index-th of the devices of that name, for
 * encode_n_workers threads. Gives: encode_coder_close. */
int encode_coder_open(struct encode_coder **coder, const struct encode_options *opt, int index,
                      struct s2s_error *err);
void encode_coder_close(struct encode_coder *coder);           /* NULL is a no-op */
int64_t encode_coder_width(const struct encode_coder *coder);  /* of what comes out */
int64_t encode_coder_n_mels(const struct encode_coder *coder); /* of what goes in */
int64_t encode_coder_frames(const struct encode_coder *coder, int64_t n_mel);
/* One clip on one thread: features [n_mel, n_mels] to rows [frames, width]. The rows are a function
 * of the clip alone. RANGE when they are not finite. */
int encode_coder_run(struct encode_coder *coder, int worker, float *rows, const float *features,
                     int64_t n_mel, struct s2s_error *err);
/* XXH3-128 of config and weights. */
int encode_digest_model(char hex[33], const char *dir, struct s2s_error *err);
char *encode_projection_path(const char *projection); /* a folder's file; gives: free */

/* ---- encode.c ---- */

int encode_run(const struct encode_options *opt, struct s2s_mesh *mesh, struct s2s_error *err);

#endif
