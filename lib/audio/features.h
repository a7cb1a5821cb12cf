/*
 * Log-mel features for whole inputs: the work of `s2s-encode --features mel`. A pack or audio
 * stream whose clips are pcm or flac becomes the same stream with clips of form mel; sound files
 * become an audio stream with a record each.
 */
#ifndef S2S_AUDIO_FEATURES_H
#define S2S_AUDIO_FEATURES_H

#include <stddef.h>

struct s2s_error;

struct s2s_features_options {
    const char *config;        /* preprocessor_config.json; NULL: the defaults of 80 mels */
    const char *const *inputs; /* one stream ("-" or *.s2s, *.s2s.zst) or sound files */
    size_t n_inputs;
    const char *out;   /* "-" is stdout */
    int jobs;          /* threads; the output does not depend on it */
    char *const *args; /* for the provenance, see s2s_tool_args */
    size_t n_args;
};

/* Errors of the streams and of lib/audio, with record or file named. */
int s2s_features_run(const struct s2s_features_options *opt, struct s2s_error *err);

#endif
