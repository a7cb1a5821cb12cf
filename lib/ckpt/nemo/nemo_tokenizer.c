/*
 * The pieces of a tokenizer: of a SentencePiece model (a protobuf message ModelProto, whose field 1
 * holds the pieces: 1 text, 2 score, 3 type; sentencepiece_model.proto) and of a tokenizer.json.
 */
#include "lib/base/base.h"
#include "lib/ckpt/nemo/to_nemo.h"
#include "lib/base/utf8.h"

enum { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5 };
enum { NORMAL = 1, UNKNOWN = 2, CONTROL = 3 };

struct proto {
    const unsigned char *at, *end;
};

struct field {
    uint64_t number, value; /* value: of a varint, or the bits of a float */
    int wire;
    struct proto bytes;
};

static bool read_varint(struct proto *p, uint64_t *value)
{
    *value = 0;
    for (int shift = 0; shift < 64 && p->at < p->end; shift += 7) {
        unsigned char byte = *p->at++;
        *value |= (uint64_t)(byte & 0x7F) << shift;
        if (byte < 0x80)
            return true;
    }
    return false;
}

static bool read_fixed(struct proto *p, uint64_t *value, size_t len)
{
    *value = 0;
    if ((size_t)(p->end - p->at) < len)
        return false;
    for (size_t i = 0; i < len; i++)
        *value |= (uint64_t)p->at[i] << 8 * i;
    p->at += len;
    return true;
}

/* 1: a field; 0: the end; -1: not a message */
static int next_field(struct proto *p, struct field *f)
{
    uint64_t tag, len;
    if (p->at == p->end)
        return 0;
    if (!read_varint(p, &tag))
        return -1;
    f->number = tag >> 3;
    f->wire = (int)(tag & 7);
    switch (f->wire) {
    case VARINT:
        return read_varint(p, &f->value) ? 1 : -1;
    case FIXED64:
        return read_fixed(p, &f->value, 8) ? 1 : -1;
    case FIXED32:
        return read_fixed(p, &f->value, 4) ? 1 : -1;
    case BYTES:
        if (!read_varint(p, &len) || len > (uint64_t)(p->end - p->at))
            return -1;
        f->bytes = (struct proto){p->at, p->at + len};
        p->at += len;
        return 1;
    default:
        return -1;
    }
}

struct piece {
    struct proto text;
    float score;
    uint64_t type;
};

static bool read_piece(struct proto from, struct piece *piece)
{
    struct field f;
    int more;
    *piece = (struct piece){.type = NORMAL};
    while ((more = next_field(&from, &f)) > 0) {
        if (f.number == 1 && f.wire == BYTES)
            piece->text = f.bytes;
        else if (f.number == 2 && f.wire == FIXED32)
            memcpy(&piece->score, &(uint32_t){(uint32_t)f.value}, 4);
        else if (f.number == 3 && f.wire == VARINT)
            piece->type = f.value;
    }
    return more == 0 && piece->text.at;
}

/* vocab.txt as NeMo's scripts write it: "##" in front of what does not begin a word */
static void add_word(struct s2s_buf *words, const struct piece *piece)
{
    static const char space[] = "\xe2\x96\x81";
    const char *text = (const char *)piece->text.at;
    size_t len = (size_t)(piece->text.end - piece->text.at);
    if (piece->type == UNKNOWN || piece->type == CONTROL)
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
    struct proto model = {bytes, (const unsigned char *)bytes + len};
    struct field f;
    struct piece piece;
    int more;
    *labels = json_array();
    while ((more = next_field(&model, &f)) > 0) {
        if (f.number != 1 || f.wire != BYTES)
            continue;
        json_t *text = read_piece(f.bytes, &piece)
                           ? json_stringn((const char *)piece.text.at,
                                          (size_t)(piece.text.end - piece.text.at))
                           : NULL;
        if (!text) {
            more = -1;
            break;
        }
        json_array_append_new(*labels, text);
        s2s_buf_add(vocab, piece.text.at, (size_t)(piece.text.end - piece.text.at));
        s2s_buf_printf(vocab, "\t%g\n", (double)piece.score);
        add_word(words, &piece);
    }
    return more == 0 && json_array_size(*labels)
               ? 0
               : s2s_error_set(err, S2S_E_FORMAT, "no SentencePiece model");
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
    if (json_is_object(vocab))
        json_object_foreach((json_t *)vocab, key, value) set_label(labels, value, key);
    if (json_is_array(vocab))
        json_array_foreach(vocab, i,
                           value) if (i < (size_t)n && json_is_string(json_array_get(value, 0)))
            json_array_set(labels, i, json_array_get(value, 0));
    json_array_foreach(json_object_get(tokenizer, "added_tokens"), i,
                       value) if (json_is_string(json_object_get(value, "content")))
        set_label(labels, json_object_get(value, "id"),
                  json_string_value(json_object_get(value, "content")));
    return labels;
}
