/* Shared by the parts of the feed: streams as one, who reads what, packs that go between ranks. */
#ifndef TRAIN_FEED_INTERNAL_H
#define TRAIN_FEED_INTERNAL_H

#include <pthread.h>

#include "lib/train/feed.h"

/* The streams of a data set, opened. */
struct train_streams {
    struct s2s_stream **in;
    struct s2s_schema *schema;
    const char *const *paths;
    int64_t *first; /* [n + 1] number of the first record of each; files only */
    size_t n;
    bool pipe;
};

/* What of each record a rank reads: all, or (streams of s2s-cpshard) its chunks of the sequences.
 */
struct train_part {
    int cp_size, cp_rank;
};
/* part NULL: whole records. pipe: reads "-" by order only. */
int train_streams_open(struct train_streams *streams, const char *const *paths, size_t n,
                       const struct train_part *part, struct s2s_error *err);
void train_streams_close(struct train_streams *streams);
/* Warns of streams whose ids are not those of `tokenizer`, a tokenizer.json (NULL: of the first of
 * them); streams that do not say whose ids they hold are believed. */
int train_streams_tokenizer(const struct train_streams *streams, const char *tokenizer,
                            struct s2s_error *err);
/* [{"path", "packs", "digest"}, ..] of files: s2s_feed_describe. */
json_t *train_streams_describe(const struct train_streams *streams);
int64_t train_streams_n_records(const struct train_streams *streams);
/* Record idx of all; place gets "path: record n". */
int train_streams_read(struct train_streams *streams, int64_t idx, struct s2s_record *rec,
                       const struct s2s_schema **schema, char place[512], struct s2s_error *err);

/* Log-mel tables for a stream whose clips are sound; leaves reader->mel NULL when not needed. */
int train_reader_open(struct s2s_pack_reader *reader, const char *features, int n_mels,
                      struct s2s_error *err);
/* UNSUPPORTED when the sound of a stream is not as the reader's features want it. */
int train_reader_fits(const struct s2s_pack_reader *reader, const json_t *header,
                      struct s2s_error *err);
int train_reader_fits_all(const struct s2s_pack_reader *reader, const struct train_streams *streams,
                          struct s2s_error *err);
void train_reader_close(struct s2s_pack_reader *reader);

/* Where a rank stands in its grid: what it computes on, and what of that it reads. */
struct train_place {
    int32_t dp, n_dp;      /* dp -1: outside of the grid */
    int32_t peer, n_peers; /* among the ranks of the same dp coordinate */
};

/* Microbatches of each dp coordinate in a step of n packs. */
int64_t train_place_microbatches(const struct train_place *at, int64_t n, int64_t together);
/* Whether pack i of a step, of which `together` are a microbatch, is one of this dp coordinate's;
 * *nth counts them. */
bool train_place_has(const struct train_place *at, int64_t i, int64_t together, int64_t *nth);
/* Whether this rank reads it. */
bool train_place_reads(const struct train_place *at, int64_t i, int64_t together);

/* A pack as bytes, for another rank of this launch. */
void train_pack_write(struct s2s_buf *to, const struct s2s_pack *pack);
/* From *at on, which moves on after it. Gives: s2s_pack_free. */
struct s2s_pack *train_pack_take(const char **at);

/* Raw records of a pipe, read ahead by a thread of rank 0 and handed out step by step. */
struct train_pipe;
/* Every rank of the launch gets the schema; reader: for which its sound must be. at: this rank's.
 * Without a record where the options give up before the header has come. */
int train_pipe_open(struct train_pipe **pipe, const struct s2s_feed_options *options,
                    const struct train_place *at, struct s2s_schema *schema,
                    const struct s2s_pack_reader *reader, struct s2s_error *err);
/* Of rank 0; of the others without any. */
const struct train_streams *train_pipe_streams(const struct train_pipe *pipe);
/* Collective over the launch: 1 with the bytes of the packs that this rank reads among the next n,
 * of which `together` are a microbatch; *n_global is how many there were. Without wait, 0 where
 * they have not all come yet. */
int train_pipe_take(struct train_pipe *pipe, int64_t n, int64_t together, bool wait,
                    struct s2s_buf **mine, size_t *n_mine, int64_t *n_global,
                    struct s2s_error *err);
void train_pipe_close(struct train_pipe *pipe);

#endif
