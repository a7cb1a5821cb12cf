/* A tokenizer.model of sentencepiece: its library is opened when one is read. */
#include <dlfcn.h>

#include "lib/text/sentencepiece.h"
#include "lib/text/text_internal.h"

struct text_sp {
    const struct text_sentencepiece *calls;
    void *model;
    int32_t size;
};

static const struct text_sentencepiece *load(struct s2s_error *err)
{
    typedef const struct text_sentencepiece *get_table(void);
    text_end_without_memory();
    void *lib = dlopen("libs2s-sentencepiece.so", RTLD_NOW | RTLD_LOCAL);
    get_table *get = lib ? (get_table *)dlsym(lib, "text_sentencepiece_table") : NULL;
    if (get)
        return get();
    s2s_error_set(err, S2S_E_UNSUPPORTED,
                  "a tokenizer.model is read by sentencepiece, which is not there: %s", dlerror());
    s2s_error_hint(err, S2S_E_UNSUPPORTED,
                   "install libsentencepiece-dev and build again (libs2s-sentencepiece.so lies "
                   "beside the programs, "
                   "or in ../lib/s2s), or take the tokenizer.json of the same model");
    return NULL;
}

static void set_tokens(struct s2s_tokenizer *tok, struct text_sp *sp)
{
    for (int32_t id = 0; id < sp->size; id++) {
        size_t len;
        const char *piece = sp->calls->piece(sp->model, id, &len);
        text_tokenizer_set_token(tok, id, piece, len);
        tok->tokens[id].special = sp->calls->is_control(sp->model, id);
    }
    tok->bos = sp->calls->role(sp->model, 'b');
    tok->eos = sp->calls->role(sp->model, 'e');
    tok->pad = sp->calls->role(sp->model, 'p');
}

int text_sp_open(struct s2s_tokenizer *tok, const char *bytes, size_t len, struct s2s_error *err)
{
    char message[200] = "";
    const struct text_sentencepiece *calls = load(err);
    if (!calls)
        return S2S_E_UNSUPPORTED;
    void *model = calls->open(bytes, len, message, sizeof message);
    if (!model)
        return s2s_error_set(err, S2S_E_FORMAT, "no model of sentencepiece: %s", message);
    struct text_sp *sp = s2s_xcalloc(1, sizeof *sp);
    *sp = (struct text_sp){calls, model, calls->size(model)};
    tok->sp = sp;
    set_tokens(tok, sp);
    return 0;
}

void text_sp_close(struct text_sp *sp)
{
    if (!sp)
        return;
    sp->calls->close(sp->model);
    free(sp);
}

struct taken {
    struct s2s_ids *ids, *ends;
};

static void take_ids(void *ctx, const int *ids, const int *ends, size_t n)
{
    struct taken *taken = ctx;
    for (size_t i = 0; i < n; i++) {
        s2s_ids_add(taken->ids, ids[i]);
        if (ends)
            s2s_ids_add(taken->ends, ends[i]);
    }
}

int text_sp_encode(const struct text_sp *sp, struct s2s_ids *ids, struct s2s_ids *ends,
                   const char *text, size_t len, struct s2s_error *err)
{
    struct taken taken = {ids, ends};
    if (sp->calls->encode(sp->model, text, len, ends != NULL, &taken, take_ids) < 0)
        return s2s_error_set(err, S2S_E_FORMAT, "sentencepiece cannot encode the text");
    return 0;
}

static void take_text(void *ctx, const char *text, size_t len)
{
    text_utf8_add_lossy(ctx, text, len);
}

int text_sp_decode(const struct text_sp *sp, struct s2s_buf *out, const int32_t *ids, size_t n,
                   struct s2s_error *err)
{
    if (sp->calls->decode(sp->model, ids, n, out, take_text) < 0)
        return s2s_error_set(err, S2S_E_FORMAT, "sentencepiece cannot decode the ids");
    return 0;
}

int32_t text_sp_size(const struct text_sp *sp)
{
    return sp->size;
}

int text_sp_find_controls(struct s2s_tokenizer *tok, struct s2s_error *err)
{
    for (int32_t id = 0; tok->sp && id < tok->sp->size; id++) {
        const struct text_token *token = &tok->tokens[id];
        struct text_added added = {
            .content = token->content, .len = token->content_len, .id = id, .special = true};
        int rc = token->special && added.len > 0 ? text_tokenizer_add(tok, &added, err) : 0;
        if (rc < 0)
            return rc;
    }
    return 0;
}
