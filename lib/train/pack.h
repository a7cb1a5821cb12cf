/*
 * What a record of a pack or embed stream becomes in host memory, ready for a model: ids, labels,
 * bounds and features. Packs are joined to microbatches, and cut into their utterances for
 * evaluation.
 */
#ifndef S2S_TRAIN_PACK_H
#define S2S_TRAIN_PACK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/audio/augment.h"
#include "lib/audio/mel.h"
#include "lib/model/model.h"
#include "lib/stream/schema.h"
#include "lib/stream/stream.h"

struct s2s_buf;
struct s2s_error;

/* A record that was joined with others: so many sequences are its. */
struct s2s_pack_part {
    int64_t n_seqs;
    char *ids, *place;
};

/* All arrays are the pack's own; batch points at them. */
struct s2s_pack {
    struct s2s_batch batch;   /* media[0] are its clips, media[1] its images; n is 0 where it has
                                 none */
    const int32_t *clip_slot; /* [media[0].n] where each clip begins */
    int64_t n_labels;         /* that count */
    int64_t n_real;           /* slots that are no padding; of a cut pack those of all its ranks */
    char *ids, *texts;        /* JSON lists of the record's metadata, or NULL */
    uint64_t parent; /* hash of the record's parent, of which other ranks have the other parts */
    char *place;     /* "train.s2s: record 17" */
    struct s2s_pack_part *parts; /* [n_parts] of one that was joined, in their order */
    size_t n_parts;
    void **blocks; /* what is freed with it */
    size_t n_blocks, cap_blocks;
};

void s2s_pack_free(struct s2s_pack *pack); /* NULL is a no-op */

/* How sound becomes features, and what is done to them. One a thread. */
struct s2s_pack_reader {
    struct s2s_mel *mel; /* NULL: clips must come as mel or embeddings */
    struct s2s_mel_work *work;
    const struct s2s_spec_augment *augment; /* NULL: none */
    float dither;                           /* noise on the samples of clips; 0: none */
    float token_dropout;                    /* share of the answer's input ids that become -1 */
    bool draws;                             /* packs say what dropout draws by */
    bool need_audio;                        /* false: clips are left out (a bare LLM) */
};

/*
 * Reads a record of a stream with this header (schema borrowed). key: of random numbers, of which
 * each utterance draws its own by its id: the same in whatever pack it comes. Features and
 * embeddings are checked for NaN and Inf: RANGE names the sample. Gives: s2s_pack_free.
 */
int s2s_pack_read(struct s2s_pack **pack, struct s2s_pack_reader *reader,
                  const struct s2s_schema *schema, const struct s2s_safetensors *st,
                  const char *place, uint64_t key, struct s2s_error *err);

/* Room for n elements, freed with the pack. */
void *s2s_pack_alloc(struct s2s_pack *pack, int64_t n, size_t size);

/* Who sequence seq is, for messages: its id (its number where the stream does not say), and the
 * place of its record, which the pack lends. */
void s2s_pack_name(const struct s2s_pack *pack, int64_t seq, struct s2s_buf *id,
                   const char **place);

/* n packs as one: sequences one after the other. Clips of all of them have the same form. */
struct s2s_pack *s2s_pack_join(struct s2s_pack *const *packs, size_t n);

/*
 * Utterance `seq` of a pack without its padding. With a donor the sound of its first clip takes the
 * place of every clip, with as many slots as it has frames; positions go on after it. NULL when
 * the donor has no clip.
 */
struct s2s_pack *s2s_pack_utterance(const struct s2s_pack *pack, int64_t seq,
                                    const struct s2s_pack *donor);

/* ---- inside the room ---- */

/* A copy of the tensor that lives as long as the pack; NULL of NULL. */
const void *train_pack_copy(struct s2s_pack *pack, const struct s2s_st_tensor *tensor);
/* RANGE where data of media, whose k-th has rows cu[k] .. cu[k+1] - 1, holds NaN or Inf: says what,
 * which of them, and of which samples. */
int train_pack_check_finite(const struct s2s_pack *pack, const struct s2s_media *media,
                            const int64_t *cu, const char *what, struct s2s_error *err);

#endif
