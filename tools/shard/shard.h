/* The commands of s2s-shard and what they share. */
#ifndef S2S_SHARD_H
#define S2S_SHARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/base.h"
#include "lib/base/tool.h"
#include "lib/io/printout.h"
#include "lib/stream/stream.h"

/* Options without a short name. */
enum {
    SHARD_KEY_RECORD = 0x100,
    SHARD_KEY_TENSOR,
    SHARD_KEY_QUICK,
    SHARD_KEY_PLOT,
    SHARD_KEY_PARTS,
    SHARD_KEY_RECORDS,
    SHARD_KEY_ZSTD,
    SHARD_KEY_TO,
    SHARD_KEY_SHARD_SIZE
};

struct shard_options {
    struct s2s_common common;
    char **inputs; /* at least one; "-" is stdin */
    size_t n_inputs, cap_inputs;
    int64_t record;     /* view: -1 is all */
    const char *tensor; /* view: NULL is all */
    bool keep_going, quick;
    const char *plot;
    int64_t parts, records; /* split: one of them is not 0 */
    int zstd_level;         /* 0: as the name says */
    bool webdataset;        /* export: not Shar */
    int64_t shard_size;     /* export: utterances a shard */
};

#define SHARD_OPTIONS_DEFAULT \
    { \
        .common = S2S_COMMON_DEFAULT, .record = -1, .shard_size = 1000 \
    }

/* Parses a command's options and inputs; without inputs it is stdin, if that is no terminal.
 * max_inputs 0: any number. */
void shard_parse(struct shard_options *opt, const struct argp_option *options, const char *doc,
                 size_t max_inputs, int argc, char **argv);
void shard_options_release(struct shard_options *opt);
/* What is printed goes to -o OUT from here to s2s_printout_end; OUT is none of the inputs. */
int shard_report_begin(struct s2s_printout *to, const struct shard_options *opt,
                       struct s2s_error *err);

int shard_ls(int argc, char **argv, struct s2s_error *err);
int shard_head(int argc, char **argv, struct s2s_error *err);
int shard_view(int argc, char **argv, struct s2s_error *err);
int shard_verify(int argc, char **argv, struct s2s_error *err);
int shard_stats(int argc, char **argv, struct s2s_error *err);
int shard_cat(int argc, char **argv, struct s2s_error *err);
int shard_split(int argc, char **argv, struct s2s_error *err);
int shard_export(int argc, char **argv, struct s2s_error *err);
int shard_shuffle(int argc, char **argv, struct s2s_error *err);

/* An integer of a tensor of I32 or I64; 0 where there is no such element. */
int64_t shard_int(const struct s2s_st_tensor *tensor, int64_t i);
/* The vector that bounds slots, or NULL where the record is no pack. */
const struct s2s_st_tensor *shard_bounds(const struct s2s_safetensors *st);
/* Prints a JSON string with its quotes. */
void shard_put_json(const char *text);

/* What stats gathers. */
struct shard_stats {
    int64_t n_records, n_utterances, n_tokens, n_slots, n_trained, n_clips, n_frames;
    double seconds;   /* of audio; negative where nobody knows */
    int64_t *lengths; /* of every utterance in tokens, of a clip in samples or frames */
    size_t n_lengths, cap_lengths;
    double *fills; /* of every pack */
    size_t n_fills, cap_fills;
    /* the first packs, for the picture: utterance i of pack p covers [begin, end) and is padded up
     * to `padded` */
    struct shard_span {
        int32_t pack, idx;
        int64_t begin, end, padded;
    } * spans;
    size_t n_spans, cap_spans;
    bool is_pack;
    const char *unit; /* of lengths */
};

enum { SHARD_MAX_DRAWN = 40 }; /* packs in the picture */

/* Draws stats with gnuplot into an .svg or .png file. */
int shard_plot(const struct shard_stats *stats, const char *path, struct s2s_error *err);

#endif
