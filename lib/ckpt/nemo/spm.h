/*
 * A SentencePiece model: a protobuf message ModelProto, with the pieces in field 1 (1 text, 2
 * score, 3 type), TrainerSpec in field 2, NormalizerSpec in field 3 (sentencepiece_model.proto).
 */
#ifndef CKPT_SPM_H
#define CKPT_SPM_H

#include <stddef.h>

#include "lib/base/error.h"

enum ckpt_spm_type { CKPT_SPM_NORMAL = 1, CKPT_SPM_UNKNOWN, CKPT_SPM_CONTROL, CKPT_SPM_USER };

/* A piece of the vocabulary. text points into the model's bytes: UTF-8, len bytes, not
 * zero-terminated. */
struct ckpt_spm_piece {
    const char *text;
    size_t len;
    float score;
    int type; /* enum ckpt_spm_type, or another (byte, unused) */
};

struct ckpt_spm {
    struct ckpt_spm_piece *pieces;
    size_t n_pieces, cap_pieces;
    struct ckpt_spm_piece unknown; /* the unknown token; "<unk>" by default */
    const void *charsmap;          /* precompiled normalisation; NULL: none */
    size_t charsmap_len;
};

/* Parses a model, bytes [len], which are kept until release. FORMAT: not a model, or without
 * pieces. */
int ckpt_spm_read(struct ckpt_spm *spm, const void *bytes, size_t len, struct s2s_error *err);
void ckpt_spm_release(struct ckpt_spm *spm);

#endif
