/*
 * Writing a .nemo: a tar of model_config.yaml, model_weights.ckpt and the files of the tokenizer,
 * as NeMo's restore_from reads it. From transformers' Parakeet (with a CTC, RNN-T or TDT head), or
 * from a .nemo, whose configuration and files are kept.
 */
#ifndef CKPT_TO_NEMO_H
#define CKPT_TO_NEMO_H

#include "lib/base/mem.h"
#include "lib/ckpt/map/map.h"
#include "lib/ckpt/write/side_files.h"
#include "lib/io/zip.h"

/* ---- a state dict of torch.save (write_torch.c) ---- */

/* A tensor that no source has. */
struct ckpt_made {
    const char *name;
    enum s2s_dtype dtype;
    int n_dims;
    int64_t shape[S2S_MAX_DIMS];
    void *bytes; /* len of them */
    size_t len;
};

struct ckpt_torch_dict {
    const struct ckpt_made *made; /* these come first */
    size_t n_made;
    struct s2s_ckpt_plan *plan;
};

/* Writes it to the sink; *len_bytes is its length. how NULL: only measures, no tensor is read and
 * what the sink gets is worth nothing. */
int ckpt_write_torch(const struct ckpt_torch_dict *dict, const struct s2s_ckpt_write *how,
                     s2s_zip_sink *sink, void *ctx, int64_t *len_bytes, struct s2s_error *err);

/* ---- the archive ---- */

struct s2s_nemo_options {
    enum s2s_dtype dtype;   /* of floating tensors; NONE: as they are */
    const char *yaml;       /* a model_config.yaml to take as it is; NULL: made, or the source's */
    const json_t *config;   /* config.json instead of the folder's; NULL */
    const char *tokenizer;  /* path of a SentencePiece model; NULL: the folder's */
    bool without_tokenizer; /* a model of characters: its labels are the tokenizer's pieces */
};

struct s2s_nemo_output {
    struct s2s_ckpt_plan plan;
    struct ckpt_made made[2]; /* the featurizer's window and filters */
    size_t n_made;
    struct ckpt_side_files files; /* model_config.yaml first */
    struct ckpt_map_result map;   /* objects are among its unused */
};

/* Decides everything, reads no tensor data. NOTFOUND and UNSUPPORTED name what the archive needs
 * and the source lacks, or what NeMo has not. Release also after failure. */
int s2s_nemo_prepare(struct s2s_nemo_output *out, struct s2s_ckpt *ckpt,
                     const struct s2s_nemo_options *options, struct s2s_error *err);
/* The same input gives the same bytes. digest: NULL, or where the archive's
 * XXH3-128 goes. */
int s2s_nemo_write(struct s2s_nemo_output *out, struct s2s_outfile *file,
                   const struct s2s_ckpt_write *how, char digest[33], struct s2s_error *err);
void s2s_nemo_release(struct s2s_nemo_output *out);

/* ---- its small files (nemo_files.c) ---- */

#define CKPT_NEMO_TOKENIZER "tokenizer.model"
/* bytes of a name in an archive: what a tar header here takes, less "./" */
enum { CKPT_NEMO_MAX_NAME = 78 };

/* tokenizer.model, from the user or the folder, and what NeMo wants beside it. *labels gets its
 * pieces (json_decref), NULL where there is none. */
int ckpt_nemo_add_tokenizer(struct s2s_nemo_output *out, const struct s2s_ckpt *ckpt,
                            const struct s2s_nemo_options *options, json_t **labels,
                            struct s2s_error *err);
/* Every "nemo:FILE" of a configuration, from the folder. NOTFOUND names one that is not there. */
int ckpt_nemo_add_named(struct s2s_nemo_output *out, const struct s2s_ckpt *ckpt,
                        const json_t *config, struct s2s_error *err);
/* A model_config.yaml as a tree. Gives: json_decref. */
int ckpt_nemo_parse_yaml(json_t **tree, const char *text, struct s2s_error *err);

/* ---- from transformers' names (nemo_parakeet.c) ---- */

int ckpt_nemo_from_parakeet(struct s2s_nemo_output *out, struct s2s_ckpt *ckpt,
                            const struct s2s_nemo_options *options, struct s2s_error *err);

/* ---- its configuration (nemo_yaml.c, nemo_tokenizer.c) ---- */

enum ckpt_nemo_kind { CKPT_NEMO_CTC, CKPT_NEMO_RNNT, CKPT_NEMO_TDT };

struct ckpt_nemo_model {
    enum ckpt_nemo_kind kind;
    const json_t *config;   /* config.json of transformers' Parakeet */
    const json_t *features; /* preprocessor_config.json; NULL: its defaults */
    json_t *labels;         /* an array of as many texts as there are classes without the blank */
    bool pieces;            /* tokenizer.model is in the archive */
};

/* An integer of the encoder's configuration, or what transformers takes when it is absent. */
int64_t ckpt_parakeet_int(const json_t *config, const char *key);
/* Classes of the head, the blank with them, from config.json. */
int64_t ckpt_parakeet_classes(const json_t *config);
/* model_config.yaml. UNSUPPORTED names what a ConformerEncoder cannot be. */
int ckpt_nemo_yaml(struct s2s_buf *out, const struct ckpt_nemo_model *model, struct s2s_error *err);

/* Pieces of a SentencePiece model: *labels gets an array of them, vocab the text of tokenizer.vocab
 * and words that of vocab.txt. FORMAT. */
int ckpt_sentencepiece(json_t **labels, struct s2s_buf *vocab, struct s2s_buf *words,
                       const void *bytes, size_t len, struct s2s_error *err);
/* The first n pieces of a tokenizer.json (NULL: none); "<7>" for those it does not have. */
json_t *ckpt_tokenizer_labels(const json_t *tokenizer, int64_t n);

#endif
