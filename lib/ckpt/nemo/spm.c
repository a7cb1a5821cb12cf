/* Reads the pieces and settings of a SentencePiece model. */
#include "lib/ckpt/nemo/spm.h"

#include "lib/base/base.h"
#include "lib/base/utf8.h"

enum { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5 };
/* field numbers of ModelProto, TrainerSpec and NormalizerSpec */
enum { PIECES = 1, TRAINER = 2, NORMALIZER = 3, UNK_PIECE = 45, CHARSMAP = 2 };

struct proto {
    const unsigned char *at, *end;
};

struct field {
    uint64_t number, value; /* value: a varint, or the bits of a float */
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

/* Reads the next field. 1: there is one; 0: end; -1: not a message. */
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

static bool is_text(const struct proto *p)
{
    return s2s_utf8_valid((const char *)p->at, (size_t)(p->end - p->at));
}

static bool read_piece(struct proto from, struct ckpt_spm_piece *piece)
{
    struct field f;
    int more;
    *piece = (struct ckpt_spm_piece){.type = CKPT_SPM_NORMAL};
    while ((more = next_field(&from, &f)) > 0) {
        if (f.number == 1 && f.wire == BYTES && is_text(&f.bytes)) {
            piece->text = (const char *)f.bytes.at;
            piece->len = (size_t)(f.bytes.end - f.bytes.at);
        } else if (f.number == 1) {
            return false;
        } else if (f.number == 2 && f.wire == FIXED32) {
            memcpy(&piece->score, &(uint32_t){(uint32_t)f.value}, 4);
        } else if (f.number == 3 && f.wire == VARINT) {
            piece->type = f.value < 16 ? (int)f.value : 0;
        }
    }
    return more == 0 && piece->text;
}

/* Finds a field of a submessage. */
static bool read_part(struct proto from, uint64_t number, struct proto *found)
{
    struct field f;
    int more;
    while ((more = next_field(&from, &f)) > 0)
        if (f.number == number && f.wire == BYTES)
            *found = f.bytes;
    return more == 0;
}

static bool read_field(struct ckpt_spm *spm, const struct field *f)
{
    struct ckpt_spm_piece piece;
    struct proto found = {NULL, NULL};
    if (f->wire != BYTES || f->number < PIECES || f->number > NORMALIZER)
        return true;
    if (f->number == PIECES) {
        if (!read_piece(f->bytes, &piece))
            return false;
        s2s_grow(&spm->pieces, spm->n_pieces, &spm->cap_pieces, sizeof *spm->pieces);
        spm->pieces[spm->n_pieces++] = piece;
        return true;
    }
    if (!read_part(f->bytes, f->number == TRAINER ? UNK_PIECE : CHARSMAP, &found))
        return false;
    if (found.at && f->number == TRAINER && is_text(&found))
        spm->unknown = (struct ckpt_spm_piece){.text = (const char *)found.at,
                                               .len = (size_t)(found.end - found.at)};
    if (found.at && f->number == NORMALIZER) {
        spm->charsmap = found.at;
        spm->charsmap_len = (size_t)(found.end - found.at);
    }
    return true;
}

int ckpt_spm_read(struct ckpt_spm *spm, const void *bytes, size_t len, struct s2s_error *err)
{
    struct proto model = {bytes, (const unsigned char *)bytes + len};
    struct field f;
    int more;
    *spm = (struct ckpt_spm){.unknown = {.text = "<unk>", .len = 5}};
    while ((more = next_field(&model, &f)) > 0 && read_field(spm, &f))
        ;
    if (more == 0 && spm->n_pieces)
        return 0;
    ckpt_spm_release(spm);
    return s2s_error_set(err, S2S_E_FORMAT, "no SentencePiece model");
}

void ckpt_spm_release(struct ckpt_spm *spm)
{
    free(spm->pieces);
    *spm = (struct ckpt_spm){.n_pieces = 0};
}
