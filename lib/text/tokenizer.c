/* Encodes text to ids and decodes ids to text. */
#include "lib/text/tokenizer.h"

#include <jansson.h>

#include "lib/io/digest.h"
#include "lib/text/text_internal.h"

void s2s_ids_add(struct s2s_ids *ids, int32_t id)
{
    if (ids->len == ids->cap)
        s2s_grow(&ids->data, ids->len, &ids->cap, sizeof *ids->data);
    ids->data[ids->len++] = id;
}

void s2s_ids_clear(struct s2s_ids *ids)
{
    ids->len = 0;
}

void s2s_ids_release(struct s2s_ids *ids)
{
    free(ids->data);
    *ids = (struct s2s_ids)S2S_IDS_INIT;
}

/* ---- what one encoding thread borrows ---- */

struct text_worker {
    struct text_worker *next;
    struct text_normal_work normal;
    struct text_split_work split;
    struct text_model_work *model;
    struct text_spans raw, normalized; /* of added tokens: alternating text and token */
    struct s2s_ids raw_ids, normalized_ids;
    struct text_strings strings;
    struct s2s_buf bytes;
};

struct text_pool {
    pthread_mutex_t lock;
    struct text_worker *free;
};

static struct text_worker *borrow_worker(struct text_pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    struct text_worker *worker = pool->free;
    if (worker)
        pool->free = worker->next;
    pthread_mutex_unlock(&pool->lock);
    if (!worker) {
        worker = s2s_xcalloc(1, sizeof *worker);
        worker->split.matcher = worker->normal.matcher = text_matcher_new();
        worker->model = text_model_work_new();
    }
    return worker;
}

static void return_worker(struct text_pool *pool, struct text_worker *worker)
{
    pthread_mutex_lock(&pool->lock);
    worker->next = pool->free;
    pool->free = worker;
    pthread_mutex_unlock(&pool->lock);
}

static void worker_free(struct text_worker *worker)
{
    text_matcher_free(worker->split.matcher);
    text_model_work_free(worker->model);
    s2s_buf_release(&worker->normal.text);
    s2s_buf_release(&worker->normal.next);
    free(worker->split.pieces.data);
    free(worker->split.next.data);
    free(worker->split.matches.data);
    free(worker->split.is_match);
    s2s_buf_release(&worker->split.text);
    free(worker->raw.data);
    free(worker->normalized.data);
    s2s_ids_release(&worker->raw_ids);
    s2s_ids_release(&worker->normalized_ids);
    text_strings_release(&worker->strings);
    s2s_buf_release(&worker->bytes);
    free(worker);
}

/* ---- life ---- */

static struct s2s_tokenizer *tokenizer_new(void)
{
    struct s2s_tokenizer *tok = s2s_xcalloc(1, sizeof *tok);
    tok->contents = text_vocab_new();
    tok->names = json_object();
    tok->model.unk = -1;
    tok->raw_trie = text_trie_new();
    tok->normalized_trie = text_trie_new();
    tok->bos = tok->eos = tok->pad = -1;
    tok->pool = s2s_xcalloc(1, sizeof *tok->pool);
    pthread_mutex_init(&tok->pool->lock, NULL);
    return tok;
}

void s2s_tokenizer_free(struct s2s_tokenizer *tok)
{
    if (!tok)
        return;
    for (int32_t i = 0; i < tok->n_tokens; i++) {
        free(tok->tokens[i].content);
        free(tok->tokens[i].bytes);
    }
    free(tok->tokens);
    text_vocab_free(tok->contents);
    json_decref(tok->names);
    free(tok->chat_template);
    text_normals_release(&tok->normals);
    text_splits_release(&tok->splits);
    text_model_release(&tok->model);
    text_sp_close(tok->sp);
    text_decoders_release(&tok->decoders);
    for (size_t i = 0; i < tok->n_added; i++)
        free(tok->added[i].content);
    free(tok->added);
    text_trie_free(tok->raw_trie);
    text_trie_free(tok->normalized_trie);
    for (size_t i = 0; i < tok->n_post; i++)
        s2s_ids_release(&tok->post[i].ids);
    free(tok->post);
    for (struct text_worker *worker = tok->pool->free, *next; worker; worker = next) {
        next = worker->next;
        worker_free(worker);
    }
    pthread_mutex_destroy(&tok->pool->lock);
    free(tok->pool);
    free(tok);
}

/* The first of the names that is a token. */
static int32_t first_of(const struct s2s_tokenizer *tok, const char *const *names, size_t n)
{
    int32_t id = -1;
    for (size_t i = 0; i < n && id < 0; i++)
        id = s2s_tokenizer_id(tok, names[i]);
    return id;
}

static void guess_roles(struct s2s_tokenizer *tok)
{
    static const char *const bos[] = {"<s>", "<|begin_of_text|>", "<bos>", "<|startoftext|>",
                                      "<|bos|>"};
    static const char *const eos[] = {"</s>",  "<|end_of_text|>", "<|endoftext|>",
                                      "<eos>", "<|eos|>",         "<|im_end|>"};
    static const char *const pad[] = {"<pad>", "<|pad|>", "[PAD]", "<|finetune_right_pad_id|>",
                                      "<|endoftext|>"};
    tok->bos = first_of(tok, bos, sizeof bos / sizeof *bos);
    tok->eos = first_of(tok, eos, sizeof eos / sizeof *eos);
    tok->pad = first_of(tok, pad, sizeof pad / sizeof *pad);
}

/* Whether bytes begin as a model of sentencepiece does: with a piece (field 1, a message) whose
 * first field is its text. */
static bool is_sentencepiece(const char *bytes, size_t len)
{
    return len > 4 && bytes[0] == '\n' && (unsigned char)bytes[1] < 0x80 && bytes[2] == '\n' &&
           (unsigned char)bytes[3] < (unsigned char)bytes[1];
}

int s2s_tokenizer_parse(struct s2s_tokenizer **out, const char *json, size_t len,
                        struct s2s_error *err)
{
    struct s2s_tokenizer *tok = tokenizer_new();
    const bool is_sp = is_sentencepiece(json, len);
    int rc = is_sp ? text_sp_open(tok, json, len, err) : text_tokenizer_load(tok, json, len, err);
    if (rc < 0) {
        s2s_tokenizer_free(tok);
        return rc;
    }
    s2s_xxh3_128_hex(tok->digest, json, len);
    if (!is_sp)
        guess_roles(tok);
    *out = tok;
    return 0;
}

const char *s2s_tokenizer_chat_template(const struct s2s_tokenizer *tok)
{
    return tok->chat_template;
}

/* ---- added tokens ---- */

static size_t space_at_start(const char *text, size_t len)
{
    size_t i = 0;
    for (size_t n; i < len && text_is_space(text_utf8_get(text + i, &n)); i += n)
        ;
    return i;
}

/* Start of the white space that text ends with. */
static size_t space_at_end(const char *text, size_t len)
{
    size_t end = len, n;
    while (end > 0) {
        size_t begin = end - 1;
        while ((text[begin] & 0xc0) == 0x80)
            begin--;
        if (!text_is_space(text_utf8_get(text + begin, &n)))
            break;
        end = begin;
    }
    return end;
}

static bool word_around(const char *text, size_t len, struct text_span match)
{
    size_t n, before = match.begin;
    if (match.end < len && text_is_word(text_utf8_get(text + match.end, &n)))
        return true;
    if (before == 0)
        return false;
    do
        before--;
    while ((text[before] & 0xc0) == 0x80);
    return text_is_word(text_utf8_get(text + before, &n));
}

/*
 * Cuts text at added tokens: spans with the token's id, or -1 for text. Follows find_matches of HF
 * tokenizers: a token's own white space joins it, and matches never start before the last one's
 * end.
 */
static void cut_added(const struct s2s_tokenizer *tok, const struct text_trie *trie,
                      struct text_spans *spans, struct s2s_ids *ids, const char *text, size_t len)
{
    size_t from = 0, done = 0;
    int32_t index;
    struct text_span match;
    spans->len = ids->len = 0;
    while ((index = text_trie_find(trie, &match, text, len, from)) >= 0) {
        const struct text_added *added = &tok->added[index];
        from = match.end;
        if (added->single_word && word_around(text, len, match))
            continue;
        if (added->lstrip) {
            match.begin = space_at_end(text, match.begin);
            if (match.begin < done)
                match.begin = done;
        }
        if (added->rstrip)
            match.end += space_at_start(text + match.end, len - match.end);
        if (match.begin >= match.end) /* the last one's white space was all of it */
            continue;
        if (done < match.begin) {
            text_spans_add(spans, done, match.begin);
            s2s_ids_add(ids, -1);
        }
        text_spans_add(spans, match.begin, match.end);
        s2s_ids_add(ids, added->id);
        done = match.end;
    }
    if (done < len) {
        text_spans_add(spans, done, len);
        s2s_ids_add(ids, -1);
    }
}

/* ---- encoding ---- */

static int encode_plain(const struct s2s_tokenizer *tok, struct text_worker *worker,
                        struct s2s_ids *ids, const char *text, size_t len, size_t first,
                        struct s2s_error *err)
{
    worker->split.is_followed = false;
    int rc = text_split_run(&tok->splits, &worker->split, text, len, first, err);
    for (size_t i = 0; i < worker->split.pieces.len && rc == 0; i++) {
        struct text_piece piece = worker->split.pieces.data[i];
        rc = text_model_encode(&tok->model, worker->model, ids, NULL,
                               worker->split.text.data + piece.begin, piece.end - piece.begin, err);
    }
    return rc;
}

/* A stretch without raw added tokens: normalise, cut at normalised added tokens. */
static int encode_stretch(const struct s2s_tokenizer *tok, struct text_worker *worker,
                          struct s2s_ids *ids, const char *text, size_t len, bool is_start,
                          struct s2s_error *err)
{
    if (tok->sp)
        return text_sp_encode(tok->sp, ids, NULL, text, len, err);
    int rc = text_normals_run(&tok->normals, &worker->normal, text, len, 0, err);
    if (rc < 0)
        return rc;
    const struct text_normal_work *normal = &worker->normal;
    const size_t first = is_start ? normal->first : 0;
    text = normal->text.data;
    cut_added(tok, tok->normalized_trie, &worker->normalized, &worker->normalized_ids, text,
              normal->text.len);
    for (size_t i = 0; i < worker->normalized.len && rc == 0; i++) {
        struct text_span span = worker->normalized.data[i];
        if (worker->normalized_ids.data[i] >= 0)
            s2s_ids_add(ids, worker->normalized_ids.data[i]);
        else
            rc = encode_plain(tok, worker, ids, text + span.begin, span.end - span.begin,
                              first > span.begin ? first - span.begin : 0, err);
    }
    return rc;
}

static int encode_text(const struct s2s_tokenizer *tok, struct text_worker *worker,
                       struct s2s_ids *ids, const char *text, size_t len, struct s2s_error *err)
{
    int rc = 0;
    cut_added(tok, tok->raw_trie, &worker->raw, &worker->raw_ids, text, len);
    for (size_t i = 0; i < worker->raw.len && rc == 0; i++) {
        struct text_span span = worker->raw.data[i];
        if (worker->raw_ids.data[i] >= 0)
            s2s_ids_add(ids, worker->raw_ids.data[i]);
        else
            rc = encode_stretch(tok, worker, ids, text + span.begin, span.end - span.begin,
                                span.begin == 0, err);
    }
    return rc;
}

static int check_text(const char *text, size_t len, struct s2s_error *err)
{
    size_t bad = text_utf8_check(text, len);
    if (bad == len)
        return 0;
    return s2s_error_set(err, S2S_E_FORMAT, "byte %zu of the text (0x%02x) is not UTF-8", bad,
                         (unsigned char)text[bad]);
}

int s2s_tokenizer_encode(const struct s2s_tokenizer *tok, struct s2s_ids *ids, const char *text,
                         size_t len, bool special, struct s2s_error *err)
{
    int rc = check_text(text, len, err);
    if (rc < 0)
        return rc;
    struct text_worker *worker = borrow_worker(tok->pool);
    if (!tok->post)
        rc = encode_text(tok, worker, ids, text, len, err);
    for (size_t i = 0; i < tok->n_post && rc == 0; i++) {
        const struct text_post_piece *piece = &tok->post[i];
        if (piece->is_text)
            rc = encode_text(tok, worker, ids, text, len, err);
        else if (special)
            for (size_t k = 0; k < piece->ids.len; k++)
                s2s_ids_add(ids, piece->ids.data[k]);
    }
    return_worker(tok->pool, worker);
    return rc;
}

/* ---- which ids belong to a stretch of the text ---- */

/* Adds how many ids of a piece end at or before a place, before which `first` of its bytes stand.
 */
static int count_piece(const struct s2s_tokenizer *tok, struct text_worker *worker, size_t *n_ended,
                       struct text_piece piece, struct s2s_error *err)
{
    struct s2s_ids ids = S2S_IDS_INIT, lens = S2S_IDS_INIT;
    int rc = piece.first == 0 ? 0
                              : text_model_encode(&tok->model, worker->model, &ids, &lens,
                                                  worker->split.text.data + piece.begin,
                                                  piece.end - piece.begin, err);
    size_t end = 0;
    for (size_t i = 0; i < lens.len && rc == 0; i++) {
        end += (size_t)lens.data[i];
        *n_ended += end <= piece.first;
    }
    s2s_ids_release(&ids);
    s2s_ids_release(&lens);
    return rc;
}

static int count_sp(const struct s2s_tokenizer *tok, size_t *n_ended, const char *text, size_t len,
                    size_t place, struct s2s_error *err)
{
    struct s2s_ids ids = S2S_IDS_INIT, ends = S2S_IDS_INIT;
    int rc = text_sp_encode(tok->sp, &ids, &ends, text, len, err);
    for (size_t i = 0; i < ends.len; i++)
        *n_ended += (size_t)ends.data[i] <= place;
    s2s_ids_release(&ids);
    s2s_ids_release(&ends);
    return rc;
}

/* Adds how many ids of a stretch without raw added tokens end at or before its byte `place`. */
static int count_stretch(const struct s2s_tokenizer *tok, struct text_worker *worker,
                         size_t *n_ended, const char *text, struct text_span stretch, size_t place,
                         struct s2s_error *err)
{
    if (place <= stretch.begin)
        return 0;
    if (tok->sp)
        return count_sp(tok, n_ended, text + stretch.begin, stretch.end - stretch.begin,
                        place - stretch.begin, err);
    int rc = text_normals_run(&tok->normals, &worker->normal, text + stretch.begin,
                              stretch.end - stretch.begin, place - stretch.begin, err);
    if (rc < 0)
        return rc;
    const struct text_normal_work *normal = &worker->normal;
    cut_added(tok, tok->normalized_trie, &worker->normalized, &worker->normalized_ids,
              normal->text.data, normal->text.len);
    for (size_t i = 0; i < worker->normalized.len && rc == 0; i++) {
        struct text_span span = worker->normalized.data[i];
        size_t first = normal->first > span.begin ? normal->first - span.begin : 0;
        if (worker->normalized_ids.data[i] >= 0) {
            *n_ended += first >= span.end - span.begin;
            continue;
        }
        worker->split.is_followed = true;
        worker->split.begins = stretch.begin == 0 && span.begin == 0;
        rc = text_split_run(&tok->splits, &worker->split, normal->text.data + span.begin,
                            span.end - span.begin, first, err);
        for (size_t k = 0; k < worker->split.pieces.len && rc == 0; k++)
            rc = count_piece(tok, worker, n_ended, worker->split.pieces.data[k], err);
    }
    return rc;
}

/* Marks the ids of one stretch [span) of the text, which are those from `begin` on, that belong to
 * what is wanted. */
static int learn_stretch(const struct s2s_tokenizer *tok, struct text_worker *worker,
                         struct s2s_buf *learned, const char *text, struct text_span span,
                         size_t begin, struct text_span want, struct s2s_error *err)
{
    size_t from = begin, to = begin, last = want.end;
    if (want.end <= span.begin || want.begin >= span.end)
        return 0;
    do
        last--;
    while ((text[last] & 0xc0) == 0x80);
    int rc = count_stretch(tok, worker, &from, text, span, want.begin, err);
    if (rc == 0 && last < span.end)
        rc = count_stretch(tok, worker, &to, text, span, last, err);
    to = last < span.end && to < learned->len ? to + 1 : learned->len;
    if (rc == 0 && from < to)
        memset(learned->data + from, 1, to - from);
    return rc;
}

int text_tokenizer_encode_learned(const struct s2s_tokenizer *tok, struct s2s_ids *ids,
                                  struct s2s_buf *learned, const char *text, size_t len,
                                  const struct text_spans *stretches, struct s2s_error *err)
{
    int rc = check_text(text, len, err);
    if (rc < 0)
        return rc;
    struct text_worker *worker = borrow_worker(tok->pool);
    cut_added(tok, tok->raw_trie, &worker->raw, &worker->raw_ids, text, len);
    for (size_t i = 0; i < worker->raw.len && rc == 0; i++) {
        struct text_span span = worker->raw.data[i];
        const size_t begin = ids->len;
        if (worker->raw_ids.data[i] >= 0)
            s2s_ids_add(ids, worker->raw_ids.data[i]);
        else
            rc = encode_stretch(tok, worker, ids, text + span.begin, span.end - span.begin,
                                span.begin == 0, err);
        while (learned->len < ids->len)
            s2s_buf_putc(learned, 0);
        for (size_t k = 0; k < stretches->len && rc == 0; k++) {
            struct text_span want = stretches->data[k];
            if (worker->raw_ids.data[i] < 0)
                rc = learn_stretch(tok, worker, learned, text, span, begin, want, err);
            else if (want.begin < span.end && want.end > span.begin)
                learned->data[begin] = 1;
        }
    }
    return_worker(tok->pool, worker);
    return rc;
}

/* Bytes of the tokens in a row, or, with strings, each as one of them. */
static int gather(const struct s2s_tokenizer *tok, struct s2s_buf *bytes,
                  struct text_strings *strings, const int32_t *ids, size_t n_ids, bool skip_special,
                  struct s2s_error *err)
{
    for (size_t i = 0; i < n_ids; i++) {
        int32_t id = ids[i];
        if (id < 0 || id >= tok->n_tokens || !tok->tokens[id].content)
            return s2s_error_set(err, S2S_E_RANGE, "token %zu: no token has the id %d", i, id);
        const struct text_token *token = &tok->tokens[id];
        if (skip_special && token->skipped)
            continue;
        s2s_buf_add(bytes, token->bytes, token->bytes_len);
        if (strings)
            text_strings_end(strings);
    }
    return 0;
}

/* Stretches of the model's ids by its library, between tokens that were added. */
static int decode_sp(const struct s2s_tokenizer *tok, struct s2s_buf *out, const int32_t *ids,
                     size_t n_ids, bool skip_special, struct s2s_error *err)
{
    int rc = 0;
    for (size_t i = 0, end; i < n_ids && rc == 0; i = end) {
        for (end = i; end < n_ids && ids[end] >= 0 && ids[end] < text_sp_size(tok->sp);)
            end++;
        if (end > i) {
            rc = text_sp_decode(tok->sp, out, ids + i, end - i, err);
            continue;
        }
        const char *token = s2s_tokenizer_token(tok, ids[i], NULL);
        if (!token)
            return s2s_error_set(err, S2S_E_RANGE, "token %zu: no token has the id %d", i, ids[i]);
        if (!skip_special)
            s2s_buf_puts(out, token);
        end = i + 1;
    }
    return rc;
}

int s2s_tokenizer_decode(const struct s2s_tokenizer *tok, struct s2s_buf *out, const int32_t *ids,
                         size_t n_ids, bool skip_special, struct s2s_error *err)
{
    if (tok->sp)
        return decode_sp(tok, out, ids, n_ids, skip_special, err);
    struct text_worker *worker = borrow_worker(tok->pool);
    struct text_strings *strings = &worker->strings;
    int rc;
    s2s_buf_clear(&worker->bytes);
    text_strings_clear(strings);
    if (tok->decodes_bytes) {
        rc = gather(tok, &worker->bytes, NULL, ids, n_ids, skip_special, err);
        if (rc == 0)
            text_utf8_add_lossy(out, worker->bytes.data, worker->bytes.len);
        return_worker(tok->pool, worker);
        return rc;
    }
    rc = gather(tok, &strings->bytes, strings, ids, n_ids, skip_special, err);
    if (rc == 0)
        rc = text_decoders_run(&tok->decoders, strings, err);
    if (rc == 0 && tok->has_decoder) {
        s2s_buf_add(out, strings->bytes.data ? strings->bytes.data : "", strings->bytes.len);
    } else if (rc == 0) { /* without a decoder, tokens with spaces between */
        for (size_t i = 0, begin = 0; i < strings->len; begin = strings->ends[i++]) {
            if (i > 0)
                s2s_buf_putc(out, ' ');
            s2s_buf_add(out, strings->bytes.data + begin, strings->ends[i] - begin);
        }
    }
    return_worker(tok->pool, worker);
    return rc;
}

/* ---- tokens ---- */

int32_t s2s_tokenizer_id(const struct s2s_tokenizer *tok, const char *token)
{
    return text_vocab_get(tok->contents, token, strlen(token));
}

const char *s2s_tokenizer_token(const struct s2s_tokenizer *tok, int32_t id, size_t *len)
{
    if (id < 0 || id >= tok->n_tokens || !tok->tokens[id].content)
        return NULL;
    if (len)
        *len = tok->tokens[id].content_len;
    return tok->tokens[id].content;
}

bool s2s_tokenizer_is_special(const struct s2s_tokenizer *tok, int32_t id)
{
    return id >= 0 && id < tok->n_tokens && tok->tokens[id].special;
}

int32_t s2s_tokenizer_size(const struct s2s_tokenizer *tok)
{
    return tok->n_tokens;
}

int32_t s2s_tokenizer_bos(const struct s2s_tokenizer *tok)
{
    return tok->bos;
}

int32_t s2s_tokenizer_eos(const struct s2s_tokenizer *tok)
{
    return tok->eos;
}

int32_t s2s_tokenizer_pad(const struct s2s_tokenizer *tok)
{
    return tok->pad;
}

const char *s2s_tokenizer_digest(const struct s2s_tokenizer *tok)
{
    return tok->digest;
}

void text_tokenizer_set_token(struct s2s_tokenizer *tok, int32_t id, const char *content,
                              size_t len)
{
    if (id >= tok->n_tokens) {
        size_t old = tok->tokens_cap;
        if ((size_t)id >= tok->tokens_cap) {
            tok->tokens_cap = (size_t)id + (size_t)id / 2 + 64;
            tok->tokens = s2s_xrealloc(tok->tokens, tok->tokens_cap, sizeof *tok->tokens);
            memset(tok->tokens + old, 0, (tok->tokens_cap - old) * sizeof *tok->tokens);
        }
        tok->n_tokens = id + 1;
    }
    struct text_token *token = &tok->tokens[id];
    if (token->content) /* an added token of the vocabulary: the same content */
        return;
    token->content = s2s_xmalloc(len + 1);
    memcpy(token->content, content, len);
    token->content[len] = 0;
    token->content_len = len;
    text_vocab_set(tok->contents, content, len, id);
}

/* What decoding begins with: a content, or what the normalizers made of an added one. */
static void set_bytes(struct s2s_tokenizer *tok, struct text_token *token)
{
    if (!token->content)
        return;
    if (!token->bytes) {
        token->bytes = s2s_xmalloc(token->content_len + 1);
        memcpy(token->bytes, token->content, token->content_len);
        token->bytes_len = token->content_len;
    }
    /* the library asks whether the text is that of a special token */
    int32_t same = text_vocab_get(tok->contents, token->bytes, token->bytes_len);
    token->skipped = same >= 0 && tok->tokens[same].special;
    if (!tok->decodes_bytes)
        return;
    /* a token with characters that stand for no byte decodes to itself */
    char *bytes = s2s_xmalloc(token->bytes_len + 1);
    size_t n = text_bytes_of_token(bytes, token->bytes, token->bytes_len);
    if (n == 0) {
        free(bytes);
        return;
    }
    free(token->bytes);
    token->bytes = bytes;
    token->bytes_len = n;
}

void text_tokenizer_set_bytes(struct s2s_tokenizer *tok)
{
    for (int32_t id = 0; id < tok->n_tokens; id++)
        set_bytes(tok, &tok->tokens[id]);
}

int text_tokenizer_add(struct s2s_tokenizer *tok, const struct text_added *added,
                       struct s2s_error *err)
{
    struct text_normal_work normal = {.matcher = NULL};
    const char *key = added->content;
    size_t len = added->len;
    if (added->normalized && tok->normals.len > 0) {
        normal.matcher = text_matcher_new();
        int rc = text_normals_run(&tok->normals, &normal, added->content, added->len, 0, err);
        key = normal.text.data;
        len = normal.text.len;
        text_matcher_free(normal.matcher);
        if (rc < 0) {
            s2s_buf_release(&normal.text);
            s2s_buf_release(&normal.next);
            return rc;
        }
    }
    s2s_grow(&tok->added, tok->n_added, &tok->added_cap, sizeof *tok->added);
    text_trie_add(added->normalized ? tok->normalized_trie : tok->raw_trie, key, len,
                  (int32_t)tok->n_added);
    tok->added[tok->n_added] = *added;
    tok->added[tok->n_added++].content = s2s_xstrndup(added->content, added->len);
    text_tokenizer_set_token(tok, added->id, added->content, added->len);
    struct text_token *token = &tok->tokens[added->id];
    token->special |= added->special;
    if (key != added->content) {
        free(token->bytes);
        token->bytes = s2s_xmalloc(len + 1);
        memcpy(token->bytes, key, len);
        token->bytes_len = len;
    }
    s2s_buf_release(&normal.text);
    s2s_buf_release(&normal.next);
    return 0;
}

int32_t s2s_tokenizer_add_special(struct s2s_tokenizer *tok, const char *token,
                                  struct s2s_error *err)
{
    size_t len = strlen(token);
    if (len == 0 || text_utf8_check(token, len) < len)
        return s2s_error_set(err, S2S_E_ARG, "a special token must be text, and not empty");
    int32_t id = s2s_tokenizer_id(tok, token);
    if (id >= 0 && tok->tokens[id].special)
        return id;
    struct text_added added = {(char *)(uintptr_t)token,
                               len,
                               id >= 0 ? id : tok->n_tokens,
                               false,
                               false,
                               false,
                               false,
                               true};
    int rc = text_tokenizer_add(tok, &added, err);
    if (rc < 0)
        return rc;
    free(tok->tokens[added.id].bytes);
    tok->tokens[added.id].bytes = NULL;
    set_bytes(tok, &tok->tokens[added.id]);
    return added.id;
}
