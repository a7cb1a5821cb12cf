/* The calls of sentencepiece for C: a library of its own, opened when a tokenizer.model is read. */
#include "lib/text/sentencepiece.h"

#include <sentencepiece_processor.h>

#include <cstdio>
#include <string>
#include <vector>

using sentencepiece::SentencePieceProcessor;

static SentencePieceProcessor *of(void *model)
{
    return static_cast<SentencePieceProcessor *>(model);
}

static void *open_model(const char *bytes, size_t len, char *message, size_t message_len)
{
    auto *processor = new SentencePieceProcessor;
    auto status = processor->LoadFromSerializedProto(std::string(bytes, len));
    if (status.ok())
        return processor;
    snprintf(message, message_len, "%s", status.ToString().c_str());
    delete processor;
    return nullptr;
}

static void close_model(void *model)
{
    delete of(model);
}

static int size_of(void *model)
{
    return of(model)->GetPieceSize();
}

static const char *piece_of(void *model, int id, size_t *len)
{
    const std::string &piece = of(model)->IdToPiece(id);
    *len = piece.size();
    return piece.data();
}

static int is_control(void *model, int id)
{
    return of(model)->IsControl(id) || of(model)->IsUnknown(id);
}

static int role_of(void *model, char role)
{
    return role == 'b' ? of(model)->bos_id() : role == 'e' ? of(model)->eos_id() : of(model)->pad_id();
}

static int encode(void *model, const char *text, size_t len, int want_ends, void *ctx,
                  void (*take)(void *ctx, const int *ids, const int *ends, size_t n))
{
    std::vector<int> ids, ends;
    if (want_ends) {
        auto pieces = of(model)->EncodeAsImmutableProto(absl::string_view(text, len));
        for (size_t i = 0; i < pieces.pieces_size(); i++) {
            ids.push_back((int)pieces.pieces((int)i).id());
            ends.push_back((int)pieces.pieces((int)i).end());
        }
    } else if (!of(model)->Encode(absl::string_view(text, len), &ids).ok()) {
        return -1;
    }
    take(ctx, ids.data(), want_ends ? ends.data() : nullptr, ids.size());
    return 0;
}

static int decode(void *model, const int *ids, size_t n, void *ctx, void (*take)(void *ctx, const char *text, size_t len))
{
    std::string text;
    if (!of(model)->Decode(std::vector<int>(ids, ids + n), &text).ok())
        return -1;
    take(ctx, text.data(), text.size());
    return 0;
}

const struct text_sentencepiece *text_sentencepiece_table(void)
{
    static const struct text_sentencepiece table = {open_model, close_model, size_of, piece_of, is_control, role_of, encode, decode};
    return &table;
}
