/* Makes text of tokens, as a tokenizer's decoders do, one step after the other. */
#include "lib/text/text_internal.h"

void text_strings_end(struct text_strings *strings)
{
    s2s_grow(&strings->ends, strings->len, &strings->cap, sizeof *strings->ends);
    strings->ends[strings->len++] = strings->bytes.len;
}

void text_strings_clear(struct text_strings *strings)
{
    s2s_buf_clear(&strings->bytes);
    strings->len = 0;
}

void text_strings_release(struct text_strings *strings)
{
    s2s_buf_release(&strings->bytes);
    free(strings->ends);
    *strings = (struct text_strings){S2S_BUF_INIT, NULL, 0, 0};
}

void text_decoders_release(struct text_decoders *decoders)
{
    for (size_t i = 0; i < decoders->len; i++) {
        text_needle_release(&decoders->data[i].needle);
        free(decoders->data[i].content);
        free(decoders->data[i].delimiter);
    }
    free(decoders->data);
    *decoders = (struct text_decoders){NULL, 0, 0};
}

/* A string of the list. */
struct view {
    const char *text;
    size_t len;
};

static struct view get(const struct text_strings *strings, size_t i)
{
    size_t begin = i > 0 ? strings->ends[i - 1] : 0;
    return (struct view){strings->bytes.data ? strings->bytes.data + begin : "",
                         strings->ends[i] - begin};
}

static bool begins_with(struct view view, const char *what, size_t len)
{
    return view.len >= len && (len == 0 || !memcmp(view.text, what, len));
}

/* Appends view with every `what` replaced; an empty `what` stands between all characters. */
static void replace(struct s2s_buf *out, struct view view, const char *what, size_t what_len,
                    const char *content, size_t content_len)
{
    const char *end = view.text + view.len, *at;
    if (what_len == 0) {
        for (size_t i = 0, n; i < view.len; i += n) {
            s2s_buf_add(out, content, content_len);
            text_utf8_get(view.text + i, &n);
            s2s_buf_add(out, view.text + i, n);
        }
        s2s_buf_add(out, content, content_len);
        return;
    }
    while ((at = memmem(view.text, (size_t)(end - view.text), what, what_len))) {
        s2s_buf_add(out, view.text, (size_t)(at - view.text));
        s2s_buf_add(out, content, content_len);
        view.text = at + what_len;
    }
    s2s_buf_add(out, view.text, (size_t)(end - view.text));
}

/* ---- the steps, from in to out ---- */

static void decode_bytes(struct text_strings *out, const struct text_strings *in)
{
    struct s2s_buf bytes = S2S_BUF_INIT;
    for (size_t i = 0; i < in->len; i++) {
        struct view view = get(in, i);
        s2s_buf_reserve(&bytes, view.len + 1);
        size_t n = text_bytes_of_token(bytes.data + bytes.len, view.text, view.len);
        if (n > 0)
            bytes.len += n;
        else
            s2s_buf_add(&bytes, view.text, view.len);
    }
    text_utf8_add_lossy(&out->bytes, bytes.data, bytes.len);
    text_strings_end(out);
    s2s_buf_release(&bytes);
}

static int decode_replace(const struct text_decoder *decoder, struct text_matcher *matcher,
                          struct text_strings *out, const struct text_strings *in,
                          struct s2s_error *err)
{
    for (size_t i = 0; i < in->len; i++, text_strings_end(out)) {
        struct view view = get(in, i);
        if (!decoder->needle.pattern) {
            if (view.len > 0)
                replace(&out->bytes, view, decoder->needle.string, decoder->needle.len,
                        decoder->content, decoder->content_len);
            continue;
        }
        size_t done = 0, from = 0;
        bool has_new = text_has_new_characters(view.text, view.len);
        struct text_span match;
        int rc = 1;
        while (view.len > 0 && from <= view.len &&
               (rc = text_pattern_find(decoder->needle.pattern, matcher, &match, view.text,
                                       view.len, from, has_new, err)) > 0) {
            size_t n = 0;
            if (match.begin == match.end) {
                n = 1;
                if (match.end < view.len)
                    text_utf8_get(view.text + match.end, &n);
            }
            from = match.end + n;
            if (n > 0 && match.begin == done && done > 0)
                continue;
            s2s_buf_add(&out->bytes, view.text + done, match.begin - done);
            s2s_buf_add(&out->bytes, decoder->content, decoder->content_len);
            done = match.end;
        }
        if (rc < 0)
            return rc;
        s2s_buf_add(&out->bytes, view.text + done, view.len - done);
    }
    return 0;
}

static void decode_metaspace(const struct text_decoder *decoder, struct text_strings *out,
                             const struct text_strings *in)
{
    size_t len = strlen(decoder->sign);
    for (size_t i = 0; i < in->len; i++, text_strings_end(out))
        replace(&out->bytes, get(in, i), decoder->sign, len, " ", !(i == 0 && decoder->drop_first));
}

/* The byte of "<0x41>", -1 for other tokens. */
static int byte_of(struct view view)
{
    static const char hex[] = "0123456789ABCDEFabcdef";
    if (view.len != 6 || memcmp(view.text, "<0x", 3) || view.text[5] != '>')
        return -1;
    int byte = 0;
    for (size_t i = 3; i < 5; i++) {
        const char *digit = view.text[i] ? strchr(hex, view.text[i]) : NULL;
        if (!digit && i == 3 && view.text[i] == '+') /* a number in Rust, too */
            continue;
        if (!digit)
            return -1;
        int value = (int)(digit - hex);
        byte = byte * 16 + (value < 16 ? value : value - 6);
    }
    return byte;
}

/* Bytes in a row that are UTF-8 become one string, others U+FFFD each. */
static void end_bytes(struct text_strings *out, struct s2s_buf *bytes)
{
    if (bytes->len == 0)
        return;
    bool whole = text_utf8_check(bytes->data, bytes->len) == bytes->len;
    if (whole) {
        s2s_buf_add(&out->bytes, bytes->data, bytes->len);
        text_strings_end(out);
    }
    for (size_t i = 0; i < bytes->len && !whole; i++) {
        s2s_buf_puts(&out->bytes, "\xef\xbf\xbd");
        text_strings_end(out);
    }
    s2s_buf_clear(bytes);
}

static void decode_byte_fallback(struct text_strings *out, const struct text_strings *in)
{
    struct s2s_buf bytes = S2S_BUF_INIT;
    for (size_t i = 0; i < in->len; i++) {
        struct view view = get(in, i);
        int byte = byte_of(view);
        if (byte >= 0) {
            s2s_buf_putc(&bytes, (char)byte);
            continue;
        }
        end_bytes(out, &bytes);
        s2s_buf_add(&out->bytes, view.text, view.len);
        text_strings_end(out);
    }
    end_bytes(out, &bytes);
    s2s_buf_release(&bytes);
}

static void decode_strip(const struct text_decoder *decoder, struct text_strings *out,
                         const struct text_strings *in)
{
    size_t len = strlen(decoder->sign);
    for (size_t i = 0; i < in->len; i++, text_strings_end(out)) {
        struct view view = get(in, i);
        for (size_t k = 0; k < decoder->n_start && begins_with(view, decoder->sign, len); k++) {
            view.text += len;
            view.len -= len;
        }
        for (size_t k = 0; k < decoder->n_end && view.len >= len &&
                           !memcmp(view.text + view.len - len, decoder->sign, len);
             k++)
            view.len -= len;
        s2s_buf_add(&out->bytes, view.text, view.len);
    }
}

/* What tokens of words need no space before. */
static void clean_up(struct s2s_buf *out, struct view view)
{
    static const char *const rules[][2] = {
        {" .", "."},   {" ?", "?"},     {" !", "!"},     {" ,", ","},
        {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},   {" do not", " don't"},
        {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"},
    };
    struct s2s_buf text = S2S_BUF_INIT, next = S2S_BUF_INIT;
    s2s_buf_puts(&text, "");
    s2s_buf_add(&text, view.text, view.len);
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        s2s_buf_clear(&next);
        s2s_buf_puts(&next, "");
        replace(&next, (struct view){text.data, text.len}, rules[i][0], strlen(rules[i][0]),
                rules[i][1], strlen(rules[i][1]));
        struct s2s_buf swap = text;
        text = next;
        next = swap;
    }
    s2s_buf_add(out, text.data, text.len);
    s2s_buf_release(&text);
    s2s_buf_release(&next);
}

static void decode_wordpiece(const struct text_decoder *decoder, struct text_strings *out,
                             const struct text_strings *in)
{
    struct s2s_buf token = S2S_BUF_INIT;
    for (size_t i = 0; i < in->len; i++, text_strings_end(out)) {
        struct view view = get(in, i);
        s2s_buf_clear(&token);
        s2s_buf_puts(&token, "");
        if (i > 0 && begins_with(view, decoder->content, decoder->content_len)) {
            view.text += decoder->content_len;
            view.len -= decoder->content_len;
        } else if (i > 0) {
            s2s_buf_putc(&token, ' ');
        }
        s2s_buf_add(&token, view.text, view.len);
        view = (struct view){token.data, token.len};
        if (decoder->clean)
            clean_up(&out->bytes, view);
        else
            s2s_buf_add(&out->bytes, view.text, view.len);
    }
    s2s_buf_release(&token);
}

static void decode_suffix(const struct text_decoder *decoder, struct text_strings *out,
                          const struct text_strings *in)
{
    for (size_t i = 0; i < in->len; i++, text_strings_end(out))
        replace(&out->bytes, get(in, i), decoder->content, decoder->content_len, " ",
                i + 1 < in->len);
}

static void decode_ctc(const struct text_decoder *decoder, struct text_strings *out,
                       const struct text_strings *in)
{
    struct s2s_buf token = S2S_BUF_INIT, cleaned = S2S_BUF_INIT;
    for (size_t i = 0; i < in->len; i++) {
        struct view view = get(in, i);
        struct view last = i > 0 ? get(in, i - 1) : (struct view){"", SIZE_MAX};
        if (view.len == last.len && !memcmp(view.text, last.text, view.len))
            continue;
        s2s_buf_clear(&token);
        s2s_buf_puts(&token, "");
        replace(&token, view, decoder->content, decoder->content_len, "", 0);
        size_t before = out->bytes.len;
        if (decoder->clean) {
            s2s_buf_clear(&cleaned);
            s2s_buf_puts(&cleaned, "");
            clean_up(&cleaned, (struct view){token.data, token.len});
            replace(&out->bytes, (struct view){cleaned.data, cleaned.len}, decoder->delimiter,
                    decoder->delimiter_len, " ", 1);
        } else {
            s2s_buf_add(&out->bytes, token.data, token.len);
        }
        if (out->bytes.len > before)
            text_strings_end(out);
    }
    s2s_buf_release(&token);
    s2s_buf_release(&cleaned);
}

static int run_one(const struct text_decoder *decoder, struct text_matcher *matcher,
                   struct text_strings *out, const struct text_strings *in, struct s2s_error *err)
{
    switch (decoder->kind) {
    case TEXT_DECODE_BYTES:
        decode_bytes(out, in);
        return 0;
    case TEXT_DECODE_REPLACE:
        return decode_replace(decoder, matcher, out, in, err);
    case TEXT_DECODE_METASPACE:
        decode_metaspace(decoder, out, in);
        return 0;
    case TEXT_DECODE_BYTE_FALLBACK:
        decode_byte_fallback(out, in);
        return 0;
    case TEXT_DECODE_FUSE:
        s2s_buf_add(&out->bytes, in->bytes.data ? in->bytes.data : "", in->bytes.len);
        text_strings_end(out);
        return 0;
    case TEXT_DECODE_STRIP:
        decode_strip(decoder, out, in);
        return 0;
    case TEXT_DECODE_WORDPIECE:
        decode_wordpiece(decoder, out, in);
        return 0;
    case TEXT_DECODE_SUFFIX:
        decode_suffix(decoder, out, in);
        return 0;
    case TEXT_DECODE_CTC:
        decode_ctc(decoder, out, in);
        return 0;
    }
    return 0;
}

int text_decoders_run(const struct text_decoders *decoders, struct text_strings *strings,
                      struct s2s_error *err)
{
    struct text_strings next = {S2S_BUF_INIT, NULL, 0, 0};
    struct text_matcher *matcher = NULL;
    int rc = 0;
    for (size_t i = 0; i < decoders->len && rc == 0; i++) {
        if (decoders->data[i].needle.pattern && !matcher)
            matcher = text_matcher_new();
        text_strings_clear(&next);
        s2s_buf_puts(&next.bytes, "");
        rc = run_one(&decoders->data[i], matcher, &next, strings, err);
        struct text_strings swap = *strings;
        *strings = next;
        next = swap;
    }
    text_matcher_free(matcher);
    text_strings_release(&next);
    return rc;
}
