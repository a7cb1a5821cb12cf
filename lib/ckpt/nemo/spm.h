/*
 * A SentencePiece model: a protobuf message ModelProto, whose field 1 holds the pieces (1 text, 2
 * score, 3 type), field 2 how it was trained, field 3 how text is normalized
 * (sentencepiece_model.proto).
 */
#ifndef CKPT_SPM_H
#define CKPT_SPM_H

#include <stddef.h>

#include "lib/base/error.h"

enum ckpt_spm_type { CKPT_SPM_NORMAL = 1, CKPT_SPM_UNKNOWN, CKPT_SPM_CONTROL, CKPT_SPM_USER };

/* A piece of text that the model knows. text points into the model's bytes: UTF-8, len bytes, not
 * zero-ended. */
struct ckpt_spm_piece {
    const char *text;
    size_t len;
    float score;
    int type; /* enum ckpt_spm_type, or of bytes and unused pieces */
};

struct ckpt_spm {
    struct ckpt_spm_piece *pieces;
    size_t n_pieces, cap_pieces;
    struct ckpt_spm_piece unknown; /* stands for text that no piece covers; "<unk>" if not said */
    const void *charsmap;          /* the precompiled normalization; NULL: none */
    size_t charsmap_len;
};

/* Reads a model, bytes [len], which are kept until release. FORMAT: it is none, or has no pieces.
 */
int ckpt_spm_read(struct ckpt_spm *spm, const void *bytes, size_t len, struct s2s_error *err);
void ckpt_spm_release(struct ckpt_spm *spm);

#endif
