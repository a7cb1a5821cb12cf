/* Changes a text as a tokenizer's normalizers do, one step after the other. */
#include "lib/text/text_internal.h"

/*
 * Beside the text goes the number of its bytes that stem from the first character of what was
 * given: Metaspace with prepend_scheme "first" asks for them. A character that is put in has the
 * origin of the one before it, as in NormalizedString of HF tokenizers.
 */

void text_needle_release(struct text_needle *needle)
{
    text_pattern_free(needle->pattern);
    free(needle->string);
    *needle = (struct text_needle){NULL, NULL, 0};
}

void text_normals_release(struct text_normals *normals)
{
    for (size_t i = 0; i < normals->len; i++) {
        text_needle_release(&normals->data[i].needle);
        free(normals->data[i].content);
        text_charsmap_free(normals->data[i].charsmap);
    }
    free(normals->data);
    *normals = (struct text_normals){NULL, 0, 0};
}

/* ---- steps that look at one character at a time: text is appended to out ---- */

static void lower(struct s2s_buf *out, const char *text, size_t len)
{
    for (size_t i = 0, n; i < len; i += n)
        text_add_lower(out, text_utf8_get(text + i, &n));
}

static void without(struct s2s_buf *out, const char *text, size_t len, bool (*is_out)(uint32_t))
{
    for (size_t i = 0, n; i < len; i += n)
        if (!is_out(text_utf8_get(text + i, &n)))
            s2s_buf_add(out, text + i, n);
}

static void clean(struct s2s_buf *out, const char *text, size_t len)
{
    for (size_t i = 0, n; i < len; i += n) {
        uint32_t cp = text_utf8_get(text + i, &n);
        if (cp == 0 || cp == 0xfffd || text_is_other(cp))
            continue;
        if (text_is_space(cp))
            s2s_buf_putc(out, ' ');
        else
            s2s_buf_add(out, text + i, n);
    }
}

static bool is_chinese(uint32_t cp)
{
    return (cp >= 0x4e00 && cp <= 0x9fff) || (cp >= 0x3400 && cp <= 0x4dbf) ||
           (cp >= 0x20000 && cp <= 0x2a6df) || (cp >= 0x2a700 && cp <= 0x2b73f) ||
           (cp >= 0x2b740 && cp <= 0x2b81f) || (cp >= 0x2b920 && cp <= 0x2ceaf) ||
           (cp >= 0xf900 && cp <= 0xfaff) || (cp >= 0x2f800 && cp <= 0x2fa1f);
}

static void set_apart_chinese(struct s2s_buf *out, const char *text, size_t len)
{
    for (size_t i = 0, n; i < len; i += n) {
        bool apart = is_chinese(text_utf8_get(text + i, &n));
        if (apart)
            s2s_buf_putc(out, ' ');
        s2s_buf_add(out, text + i, n);
        if (apart)
            s2s_buf_putc(out, ' ');
    }
}

/* sentencepiece's rules without its table: control characters go, odd white space becomes ' '. */
static void nmt(struct s2s_buf *out, const char *text, size_t len)
{
    for (size_t i = 0, n; i < len; i += n) {
        uint32_t cp = text_utf8_get(text + i, &n);
        if ((cp >= 1 && cp <= 8) || cp == 0xb || (cp >= 0xe && cp <= 0x1f) || cp == 0x7f ||
            cp == 0x8f || cp == 0x9f)
            continue;
        if (cp == 9 || cp == 0xa || cp == 0xc || cp == 0xd || cp == 0x1680 ||
            (cp >= 0x200b && cp <= 0x200f) || cp == 0x2028 || cp == 0x2029 || cp == 0x2581 ||
            cp == 0xfeff || cp == 0xfffd)
            s2s_buf_putc(out, ' ');
        else
            s2s_buf_add(out, text + i, n);
    }
}

static void spell_bytes(struct s2s_buf *out, const char *text, size_t len)
{
    for (size_t i = 0; i < len; i++)
        text_utf8_add(out, text_byte_char((unsigned char)text[i]));
}

enum simple { LOWER, MARKS, NONSPACING, CLEAN, CHINESE, NMT, BYTES };

static void add_simple(enum simple what, struct s2s_buf *out, const char *text, size_t len)
{
    switch (what) {
    case LOWER:
        lower(out, text, len);
        return;
    case MARKS:
        without(out, text, len, text_is_mark);
        return;
    case NONSPACING:
        without(out, text, len, text_is_nonspacing);
        return;
    case CLEAN:
        clean(out, text, len);
        return;
    case CHINESE:
        set_apart_chinese(out, text, len);
        return;
    case NMT:
        nmt(out, text, len);
        return;
    case BYTES:
        spell_bytes(out, text, len);
        return;
    }
}

static void turn(struct text_normal_work *work, size_t first)
{
    struct s2s_buf swap = work->text;
    work->text = work->next;
    work->next = swap;
    work->first = first;
}

static void run_simple(struct text_normal_work *work, enum simple what)
{
    const char *text = work->text.data;
    s2s_buf_clear(&work->next);
    add_simple(what, &work->next, text, work->first);
    size_t first = work->next.len;
    add_simple(what, &work->next, text + work->first, work->text.len - work->first);
    turn(work, first);
}

/* ---- steps that look at more ---- */

static int run_form(struct text_normal_work *work, enum text_form form, struct s2s_error *err)
{
    int rc = 0;
    size_t first = 0;
    s2s_buf_clear(&work->next);
    if (work->first > 0) {
        rc = text_add_form(&work->next, form, work->text.data, work->first, err);
        first = work->next.len;
        s2s_buf_clear(&work->next);
    }
    if (rc == 0)
        rc = text_add_form(&work->next, form, work->text.data, work->text.len, err);
    if (rc < 0)
        return rc;
    turn(work, first < work->next.len ? first : work->next.len);
    return 0;
}

static void run_strip(struct text_normal_work *work, bool left, bool right)
{
    const char *text = work->text.data;
    size_t begin = 0, end = work->text.len, n;
    while (left && begin < end && text_is_space(text_utf8_get(text + begin, &n)))
        begin += n;
    while (right && end > begin) {
        size_t at = end - 1;
        while ((text[at] & 0xc0) == 0x80)
            at--;
        if (!text_is_space(text_utf8_get(text + at, &n)))
            break;
        end = at;
    }
    s2s_buf_clear(&work->next);
    s2s_buf_add(&work->next, text + begin, end - begin);
    size_t first = work->first > begin ? work->first - begin : 0;
    turn(work, first < work->next.len ? first : work->next.len);
}

static void run_prepend(struct text_normal_work *work, const char *content, size_t len)
{
    if (work->text.len == 0)
        return;
    s2s_buf_clear(&work->next);
    s2s_buf_add(&work->next, content, len);
    s2s_buf_add(&work->next, work->text.data, work->text.len);
    turn(work, work->first > 0 ? work->first + len : 0);
}

/* Next place of the needle at or behind `from`. 1 found, 0 none, negative on error. */
static int find(const struct text_needle *needle, struct text_matcher *matcher,
                struct text_span *match, const char *text, size_t len, size_t from, bool has_new,
                struct s2s_error *err)
{
    if (needle->pattern)
        return text_pattern_find(needle->pattern, matcher, match, text, len, from, has_new, err);
    const char *at = memmem(text + from, len - from, needle->string, needle->len);
    if (!at)
        return 0;
    match->begin = (size_t)(at - text);
    match->end = match->begin + needle->len;
    return 1;
}

static int run_replace(const struct text_normal *normal, struct text_normal_work *work,
                       struct s2s_error *err)
{
    const char *text = work->text.data;
    const size_t len = work->text.len;
    size_t done = 0, from = 0, first = 0;
    bool has_new = normal->needle.pattern && text_has_new_characters(text, len);
    s2s_buf_clear(&work->next);
    while (from <= len) {
        struct text_span match;
        int rc = find(&normal->needle, work->matcher, &match, text, len, from, has_new, err);
        if (rc < 0)
            return rc;
        if (rc == 0)
            break;
        from = match.end;
        if (match.begin == match.end) {
            size_t n = 1;
            if (match.end < len)
                text_utf8_get(text + match.end, &n);
            from += n;
            if (match.begin == done && done > 0) /* right behind the match before it */
                continue;
        }
        s2s_buf_add(&work->next, text + done, match.begin - done);
        if (work->first > done) /* the first character's part before the match */
            first = work->next.len - (match.begin > work->first ? match.begin - work->first : 0);
        s2s_buf_add(&work->next, normal->content, normal->content_len);
        /* what replaces has the origin of the last byte that is replaced */
        if (match.end == 0 || match.end <= work->first)
            first = work->next.len;
        done = match.end;
    }
    s2s_buf_add(&work->next, text + done, len - done);
    if (work->first > done)
        first = work->next.len - (len - work->first);
    turn(work, first);
    return 0;
}

static int run_bert(const struct text_normal *normal, struct text_normal_work *work,
                    struct s2s_error *err)
{
    int rc = 0;
    if (normal->clean)
        run_simple(work, CLEAN);
    if (normal->chinese)
        run_simple(work, CHINESE);
    if (normal->accents) {
        if ((rc = run_form(work, TEXT_NFD, err)) < 0)
            return rc;
        run_simple(work, NONSPACING);
    }
    if (normal->lower_case)
        run_simple(work, LOWER);
    return 0;
}

static int run_one(const struct text_normal *normal, struct text_normal_work *work,
                   struct s2s_error *err)
{
    switch (normal->kind) {
    case TEXT_NORMAL_FORM:
        return run_form(work, normal->form, err);
    case TEXT_NORMAL_LOWERCASE:
        run_simple(work, LOWER);
        return 0;
    case TEXT_NORMAL_STRIP:
        run_strip(work, normal->left, normal->right);
        return 0;
    case TEXT_NORMAL_STRIP_ACCENTS:
        run_simple(work, MARKS);
        return 0;
    case TEXT_NORMAL_BERT:
        return run_bert(normal, work, err);
    case TEXT_NORMAL_NMT:
        run_simple(work, NMT);
        return 0;
    case TEXT_NORMAL_CHARSMAP: {
        s2s_buf_clear(&work->next);
        size_t first = text_charsmap_add(normal->charsmap, &work->next, work->text.data,
                                         work->text.len, work->first);
        turn(work, first);
        return 0;
    }
    case TEXT_NORMAL_REPLACE:
        return run_replace(normal, work, err);
    case TEXT_NORMAL_PREPEND:
        run_prepend(work, normal->content, normal->content_len);
        return 0;
    case TEXT_NORMAL_BYTES:
        run_simple(work, BYTES);
        return 0;
    }
    return 0;
}

int text_normals_run(const struct text_normals *normals, struct text_normal_work *work,
                     const char *text, size_t len, size_t first, struct s2s_error *err)
{
    size_t n = first;
    s2s_buf_clear(&work->text);
    s2s_buf_puts(&work->text, "");
    s2s_buf_puts(&work->next, "");
    s2s_buf_add(&work->text, text, len);
    if (first == 0 && len > 0)
        text_utf8_get(text, &n);
    work->first = n;
    for (size_t i = 0; i < normals->len; i++) {
        int rc = run_one(&normals->data[i], work, err);
        if (rc < 0)
            return rc;
    }
    return 0;
}
