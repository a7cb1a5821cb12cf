/* The pieces of a tokenizer, from a SentencePiece model or a tokenizer.json. */
#include "lib/base/base.h"
#include "lib/ckpt/nemo/spm.h"
#include "lib/ckpt/nemo/to_nemo.h"

/* Adds a line to vocab.txt as NeMo's scripts do: "##" before pieces that do not start a word. */
static void add_word(struct s2s_buf *words, const struct ckpt_spm_piece *piece)
{
    static const char space[] = "\xe2\x96\x81";
    const char *text = piece->text;
    size_t len = piece->len;
    if (piece->type == CKPT_SPM_UNKNOWN || piece->type == CKPT_SPM_CONTROL)
        return;
    if (len > 3 && memcmp(text, space, 3) == 0) {
        text += 3;
        len -= 3;
    } else if (len != 3 || memcmp(text, space, 3) != 0) {
        s2s_buf_puts(words, "##");
    }
    s2s_buf_add(words, text, len);
    s2s_buf_putc(words, '\n');
}

int ckpt_sentencepiece(json_t **labels, struct s2s_buf *vocab, struct s2s_buf *words,
                       const void *bytes, size_t len, struct s2s_error *err)
{
    struct ckpt_spm spm;
    *labels = json_array();
    int rc = ckpt_spm_read(&spm, bytes, len, err);
    for (size_t i = 0; i < spm.n_pieces && rc == 0; i++) {
        const struct ckpt_spm_piece *piece = &spm.pieces[i];
        json_array_append_new(*labels, json_stringn(piece->text, piece->len));
        s2s_buf_add(vocab, piece->text, piece->len);
        s2s_buf_printf(vocab, "\t%g\n", (double)piece->score);
        add_word(words, piece);
    }
    ckpt_spm_release(&spm);
    return rc;
}

static void set_label(json_t *labels, const json_t *id, const char *text)
{
    if (json_is_integer(id) && json_integer_value(id) >= 0 &&
        json_integer_value(id) < (json_int_t)json_array_size(labels))
        json_array_set_new(labels, (size_t)json_integer_value(id), json_string(text));
}

json_t *ckpt_tokenizer_labels(const json_t *tokenizer, int64_t n)
{
    json_t *labels = json_array(), *value;
    const json_t *vocab = json_object_get(json_object_get(tokenizer, "model"), "vocab");
    char text[32];
    const char *key;
    size_t i;
    for (int64_t k = 0; k < n; k++) {
        snprintf(text, sizeof text, "<%lld>", (long long)k);
        json_array_append_new(labels, json_string(text));
    }
    json_object_foreach((json_t *)vocab, key, value)
    {
        set_label(labels, value, key);
    }
    json_array_foreach(vocab, i, value)
    {
        if (i < (size_t)n && json_is_string(json_array_get(value, 0)))
            json_array_set(labels, i, json_array_get(value, 0));
    }
    json_array_foreach(json_object_get(tokenizer, "added_tokens"), i, value)
    {
        const char *content = json_string_value(json_object_get(value, "content"));
        if (content)
            set_label(labels, json_object_get(value, "id"), content);
    }
    return labels;
}
