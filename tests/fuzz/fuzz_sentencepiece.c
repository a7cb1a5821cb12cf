/* Pieces of tokenizers. First byte even: a SentencePiece model; odd: a tokenizer.json, of which as
 * many pieces are taken as that byte says. */
#include <stdint.h>
#include <stdlib.h>

#include "lib/base/base.h"
#include "lib/ckpt/nemo/from_nemo.h"
#include "lib/ckpt/nemo/to_nemo.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* tokenizer.json of the same pieces: JSON, or said why not */
static void make_tokenizer(const uint8_t *data, size_t size, json_int_t n_pieces)
{
    struct ckpt_nemo_texts texts = {.config = NULL};
    struct s2s_error err = S2S_ERROR_INIT;
    json_t *config =
        json_pack("{s:s, s:I}", "model_type", "parakeet_ctc", "vocab_size", n_pieces + 1);
    int rc = ckpt_nemo_tokenizer(&texts, config, data, size, &err);
    json_t *made = rc == 0 ? json_loads(texts.tokenizer, 0, NULL) : NULL;
    if (rc == 0 && !made)
        S2S_BUG("a tokenizer.json that is none");
    if (rc < 0 && !*err.text)
        S2S_BUG("an error without a text");
    json_decref(made);
    json_decref(config);
    free(texts.tokenizer);
    free(texts.tokenizer_config);
    free(texts.processor);
}

static void read_model(const uint8_t *data, size_t size)
{
    json_t *labels = NULL;
    struct s2s_buf vocab = S2S_BUF_INIT, words = S2S_BUF_INIT;
    struct s2s_error err = S2S_ERROR_INIT;
    int rc = ckpt_sentencepiece(&labels, &vocab, &words, data, size, &err);
    if (rc < 0 && !*err.text)
        S2S_BUG("an error without a text");
    /* a piece is a field of its own: a tag and a length at least */
    if (rc == 0 && (json_array_size(labels) == 0 || json_array_size(labels) > size / 2))
        S2S_BUG("%zu pieces of %zu bytes", json_array_size(labels), size);
    if (rc == 0)
        make_tokenizer(data, size, (json_int_t)json_array_size(labels));
    json_decref(labels);
    s2s_buf_release(&vocab);
    s2s_buf_release(&words);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    if (data[0] % 2 == 0) {
        read_model(data + 1, size - 1);
        return 0;
    }
    json_t *tokenizer = json_loadb((const char *)data + 1, size - 1, JSON_DECODE_ANY, NULL);
    json_t *labels = ckpt_tokenizer_labels(tokenizer, data[0]);
    if (json_array_size(labels) != data[0])
        S2S_BUG("%zu pieces where %d are wanted", json_array_size(labels), data[0]);
    json_decref(labels);
    json_decref(tokenizer);
    return 0;
}
