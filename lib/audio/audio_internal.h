/* Inside lib/audio. */
#ifndef S2S_AUDIO_INTERNAL_H
#define S2S_AUDIO_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include "lib/audio/audio.h"
#include "lib/base/base.h"

/* What the container says about the bytes of a file, found without decoding. */
struct audio_container {
    const char *kind;  /* "WAV", "AIFF", "Ogg", .., or "other" */
    size_t begin;      /* bytes of an ID3 tag in front of what is no MP3; places are behind it */
    int64_t n_samples; /* promised, a channel; -1: not said */
    size_t pcm;        /* WAV of 16-bit samples: where they begin (may be unaligned); else 0 */
    int rate_hz, channels; /* with pcm */
    /* what a sample is depends on what was decoded before it */
    bool has_memory;
    int64_t untold; /* MP3 without a tag that says how long it is: its samples; else 0 */
    int64_t tail;   /* Vorbis: first sample of the last page; else INT64_MAX */
};

/*
 * Checks that the file is whole: sizes of chunks against bytes there are, checksums and last page
 * of Ogg, whole frames of MP3. TRUNCATED (says what was promised and what is there), FORMAT.
 */
int audio_container_check(struct audio_container *container, const unsigned char *bytes, size_t len,
                          struct s2s_error *err);

/* Does audio_container_check look at nothing after the first n bytes of the file? */
bool audio_container_needs_head(const unsigned char *head, size_t n);

/* What a file is that libsndfile does not read ("MPEG-4 (m4a, mp4, mov)", ..); NULL: not known. */
const char *audio_foreign_kind(const unsigned char *bytes, size_t len);

/* What takes the whole of a file to find out. */
struct audio_facts {
    bool is_checked; /* container and info are known */
    struct audio_container container;
    struct s2s_audio_info info;
    bool is_seekable; /* for the decoder */
    char xxh3[33];    /* empty: not known */
};

/* Nothing is found where known is NULL or the file small. */
void audio_known_find(struct audio_facts *facts, struct s2s_audio_known *known,
                      const struct stat *st);
void audio_known_add(struct s2s_audio_known *known, const struct stat *st,
                     const struct audio_facts *facts);

struct audio_room {
    void *data;
    size_t cap_bytes;
};

struct s2s_audio_space {
    struct audio_room file, chunk, decoded, changed;
};

/* At least len_bytes, in which what was there before still is. */
void *audio_room_reserve(struct audio_room *room, size_t len_bytes);
void audio_space_release(struct s2s_audio_space *space);

/* Between these two, what codecs of this thread print to stderr is dropped. */
void audio_quiet_begin(void);
void audio_quiet_end(void);

#endif
