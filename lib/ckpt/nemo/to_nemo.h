/*
 * Writes a .nemo: a tar of model_config.yaml, model_weights.ckpt and the tokenizer's files, as
 * NeMo's restore_from reads it. The source is transformers' Parakeet (with a CTC, RNN-T or TDT
 * head), or a .nemo, whose configuration and files are copied.
 */
#ifndef CKPT_TO_NEMO_H
#define CKPT_TO_NEMO_H

#include "lib/base/mem.h"
#include "lib/ckpt/map/map.h"
#include "lib/ckpt/write/side_files.h"
#include "lib/io/zip.h"

/* A tensor that is computed, without a source. */
struct ckpt_made {
    const char *name;
    enum s2s_dtype dtype;
    int n_dims;
    int64_t shape[S2S_MAX_DIMS];
    void *bytes; /* its data, len bytes */
    size_t len;
};

/* All borrowed. */
struct s2s_nemo_options {
    enum s2s_dtype dtype;   /* dtype to cast floating tensors to; NONE: unchanged */
    const char *yaml;       /* text of a model_config.yaml to use; NULL: made, or the source's */
    const json_t *config;   /* replaces the folder's config.json; or NULL */
    const char *tokenizer;  /* path of a SentencePiece model; NULL: that of the folder */
    bool without_tokenizer; /* make a character model, with the tokenizer's pieces as labels */
};

struct s2s_nemo_output {
    struct s2s_ckpt_plan plan;
    struct ckpt_made made[2]; /* the featurizer's window and filters */
    size_t n_made;
    struct ckpt_side_files files; /* model_config.yaml first */
    struct ckpt_map_result map;
};

/* Plans the archive without reading tensor data. Call s2s_nemo_release also after failure.
 * NOTFOUND: the source lacks something required; UNSUPPORTED: NeMo has no such model; SHAPE,
 * FORMAT. */
int s2s_nemo_prepare(struct s2s_nemo_output *out, struct s2s_ckpt *ckpt,
                     const struct s2s_nemo_options *options, struct s2s_error *err);
/* Writes the archive to file, without committing or aborting it. The same input gives the same
 * bytes. digest: NULL, or receives the XXH3-128 of the archive. */
int s2s_nemo_write(struct s2s_nemo_output *out, struct s2s_outfile *file,
                   const struct s2s_ckpt_write *how, char digest[33], struct s2s_error *err);
void s2s_nemo_release(struct s2s_nemo_output *out);

/* ---- its small files (nemo_files.c) ---- */

#define CKPT_NEMO_TOKENIZER "tokenizer.model"
/* Limit in bytes for names in the archive: what a header of lib/io/tar.h takes, less "./". */
enum { CKPT_NEMO_MAX_NAME = 78 };

/* Adds tokenizer.model, the user's or the folder's, and the files that NeMo requires beside it, to
 * out->files. *labels: an array of its pieces; NULL: there is no tokenizer. Gives: json_decref. */
int ckpt_nemo_add_tokenizer(struct s2s_nemo_output *out, const struct s2s_ckpt *ckpt,
                            const struct s2s_nemo_options *options, json_t **labels,
                            struct s2s_error *err);
/* Adds all files that a configuration refers to as "nemo:FILE", from the folder. NOTFOUND names a
 * missing one. */
int ckpt_nemo_add_named(struct s2s_nemo_output *out, const struct s2s_ckpt *ckpt,
                        const json_t *config, struct s2s_error *err);
/* Parses the text of a model_config.yaml. Gives: json_decref. FORMAT. */
int ckpt_nemo_parse_yaml(json_t **tree, const char *text, struct s2s_error *err);
/* Parses a SentencePiece model (bytes [len]): *labels becomes an array of its pieces (gives:
 * json_decref); appends the text of tokenizer.vocab to vocab, and that of vocab.txt to words.
 * FORMAT. */
int ckpt_sentencepiece(json_t **labels, struct s2s_buf *vocab, struct s2s_buf *words,
                       const void *bytes, size_t len, struct s2s_error *err);
/* An array of the first n pieces of a tokenizer.json (NULL: none), with "<7>" for a missing piece
 * 7. Gives a reference. */
json_t *ckpt_tokenizer_labels(const json_t *tokenizer, int64_t n);

/* ---- from Parakeet (nemo_parakeet.c) ---- */

/* s2s_nemo_prepare for a Hugging Face folder of Parakeet. */
int ckpt_nemo_from_parakeet(struct s2s_nemo_output *out, struct s2s_ckpt *ckpt,
                            const struct s2s_nemo_options *options, struct s2s_error *err);

/* ---- configuration (nemo_yaml.c) ---- */

enum ckpt_nemo_kind { CKPT_NEMO_CTC, CKPT_NEMO_RNNT, CKPT_NEMO_TDT };

struct ckpt_nemo_model {
    enum ckpt_nemo_kind kind;
    const json_t *config;   /* config.json of transformers' Parakeet */
    const json_t *features; /* preprocessor_config.json; NULL: its defaults */
    json_t *labels;         /* an array of strings, one per class except the blank */
    bool pieces;            /* the archive contains a tokenizer.model */
};

/* An integer of the encoder's section of config.json, or transformers' default. */
int64_t ckpt_parakeet_int(const json_t *config, const char *key);
/* The number of classes of the head by config.json, including the blank. */
int64_t ckpt_parakeet_classes(const json_t *config);
/* Appends the text of model_config.yaml to out. UNSUPPORTED names what NeMo's ConformerEncoder does
 * not support. */
int ckpt_nemo_yaml(struct s2s_buf *out, const struct ckpt_nemo_model *model, struct s2s_error *err);

#endif
