/* Splits text into pieces, as pre-tokenizers do. */
#include "lib/text/text_internal.h"

void text_spans_add(struct text_spans *spans, size_t begin, size_t end)
{
    s2s_grow(&spans->data, spans->len, &spans->cap, sizeof *spans->data);
    spans->data[spans->len++] = (struct text_span){begin, end};
}

static void add_stretch(struct text_split_work *work, size_t begin, size_t end, bool is_match)
{
    s2s_grow(&work->is_match, work->matches.len, &work->is_match_cap, sizeof *work->is_match);
    work->is_match[work->matches.len] = is_match;
    text_spans_add(&work->matches, begin, end);
}

/* Adds what lies before a match, and the match. */
static void add_match(const struct text_split *split, struct text_split_work *work, size_t *done,
                      size_t begin, size_t end)
{
    if (begin > *done)
        add_stretch(work, *done, begin, split->invert);
    add_stretch(work, begin, end, !split->invert);
    *done = end;
}

static int find_pattern(const struct text_split *split, struct text_split_work *work,
                        struct text_piece piece, size_t *done, struct s2s_error *err)
{
    const char *text = work->text.data + piece.begin;
    size_t len = piece.end - piece.begin, from = 0;
    while (from <= len) {
        struct text_span match;
        int found = text_pattern_find(split->needle.pattern, work->matcher, &match, text, len, from,
                                      work->has_new, err);
        if (found < 0)
            return found;
        if (!found)
            break;
        from = match.end;
        if (match.begin == match.end) {
            /* an empty match cuts where it stands, unless right behind the match before it */
            size_t n = 1;
            if (match.end < len)
                text_utf8_get(text + match.end, &n);
            from += n;
            if (piece.begin + match.begin == *done && work->matches.len > 0)
                continue;
        }
        add_match(split, work, done, piece.begin + match.begin, piece.begin + match.end);
    }
    return 0;
}

static void find_string(const struct text_split *split, struct text_split_work *work,
                        struct text_piece piece, size_t *done)
{
    const char *text = work->text.data, *at;
    while ((at = memmem(text + *done, piece.end - *done, split->needle.string, split->needle.len)))
        add_match(split, work, done, (size_t)(at - text), (size_t)(at - text) + split->needle.len);
}

static void find_class(const struct text_split *split, struct text_split_work *work,
                       struct text_piece piece, size_t *done)
{
    for (size_t i = piece.begin, n; i < piece.end; i += n)
        if (split->in_class(text_utf8_get(work->text.data + i, &n), split->delimiter))
            add_match(split, work, done, i, i + n);
}

/* Runs of word characters, and runs of what is neither that nor space. */
static void find_words(const struct text_split *split, struct text_split_work *work,
                       struct text_piece piece, size_t *done)
{
    enum { NONE, WORD, OTHER } kind = NONE;
    size_t begin = piece.begin;
    for (size_t i = piece.begin, n = 0; i <= piece.end; i += n) {
        uint32_t cp = i < piece.end ? text_utf8_get(work->text.data + i, &n) : ' ';
        int now = text_is_word(cp) ? WORD : text_is_space(cp) ? NONE : OTHER;
        if (now != (int)kind) {
            if (kind != NONE)
                add_match(split, work, done, begin, i);
            kind = now;
            begin = i;
        }
        if (i == piece.end)
            break;
    }
}

static void find_fixed(const struct text_split *split, struct text_split_work *work,
                       struct text_piece piece, size_t *done)
{
    size_t n_characters = 0;
    for (size_t i = piece.begin, n; i < piece.end; i += n) {
        text_utf8_get(work->text.data + i, &n);
        if (++n_characters % split->n_characters == 0)
            add_match(split, work, done, *done, i + n);
    }
}

/* All of piece as alternating stretches that match and that do not. */
static int find_all(const struct text_split *split, struct text_split_work *work,
                    struct text_piece piece, struct s2s_error *err)
{
    size_t done = piece.begin;
    int rc = 0;
    work->matches.len = 0;
    if (split->kind == TEXT_SPLIT_NEEDLE && split->needle.pattern)
        rc = find_pattern(split, work, piece, &done, err);
    else if (split->kind == TEXT_SPLIT_NEEDLE)
        find_string(split, work, piece, &done);
    else if (split->kind == TEXT_SPLIT_CLASS)
        find_class(split, work, piece, &done);
    else if (split->kind == TEXT_SPLIT_WORDS)
        find_words(split, work, piece, &done);
    else if (split->kind == TEXT_SPLIT_FIXED)
        find_fixed(split, work, piece, &done);
    if (rc == 0 && done < piece.end)
        add_stretch(work, done, piece.end, split->invert);
    return rc;
}

static void add_piece(struct text_split_work *work, struct text_piece piece)
{
    if (piece.begin >= piece.end)
        return;
    struct text_pieces *next = &work->next;
    s2s_grow(&next->data, next->len, &next->cap, sizeof *next->data);
    next->data[next->len++] = piece;
}

/* The part [begin, end) of a piece. */
static struct text_piece part_of(struct text_piece piece, size_t begin, size_t end)
{
    size_t first = piece.begin + piece.first;
    first = first > end ? end : first;
    return (struct text_piece){begin, end, first > begin ? first - begin : 0};
}

/* Joins stretches as the behaviour says. A joined match ends a piece (previous) or begins one
 * (next); of several matches in a row only the one nearest to the other text is joined. */
static void join_stretches(struct text_split_work *work, struct text_piece piece,
                           enum text_split_behavior behavior)
{
    const struct text_span *span = work->matches.data;
    const bool *is_match = work->is_match;
    size_t n = work->matches.len;
    for (size_t i = 0; i < n; i++) {
        size_t last = i;
        if (behavior == TEXT_SPLIT_REMOVED && is_match[i])
            continue;
        if (behavior == TEXT_SPLIT_CONTIGUOUS)
            while (last + 1 < n && is_match[last + 1] == is_match[i])
                last++;
        else if (behavior == TEXT_SPLIT_PREVIOUS)
            last += !is_match[i] && i + 1 < n && is_match[i + 1];
        else if (behavior == TEXT_SPLIT_NEXT)
            last += is_match[i] && i + 1 < n && !is_match[i + 1];
        add_piece(work, part_of(piece, span[i].begin, span[last].end));
        i = last;
    }
}

/* A copy of a piece at the end of the text: with spaces replaced, the prefix in front, or as the
 * alphabet of bytes. */
static struct text_piece changed(const struct text_split *split, struct text_split_work *work,
                                 struct text_piece piece)
{
    struct s2s_buf *text = &work->text;
    const char *space = *split->space ? split->space : " ";
    const size_t len = strlen(space), begin = text->len;
    size_t first = 0;
    /* each byte may become two characters of the alphabet, or a space a longer one */
    s2s_buf_reserve(text, 4 * (piece.end - piece.begin) + 8);
    const char *at = text->data + piece.begin, *end = text->data + piece.end;
    bool has_prefix =
        *at == ' ' || (*split->space && (size_t)(end - at) >= len && !memcmp(at, space, len));
    if (!has_prefix && (split->prefix == TEXT_PREFIX_ALWAYS ||
                        (split->prefix == TEXT_PREFIX_FIRST &&
                         (work->is_followed ? work->begins && piece.begin == 0 : piece.first > 0))))
        s2s_buf_puts(text, space);
    if (piece.first > 0)
        first = text->len;
    for (size_t i = 0; at < end; at++, i++) {
        if (split->kind == TEXT_SPLIT_BYTES)
            text_utf8_add(text, text_byte_char((unsigned char)*at));
        else if (*at == ' ' && *split->space)
            s2s_buf_puts(text, split->space);
        else
            s2s_buf_putc(text, *at);
        if (i < piece.first)
            first = text->len;
    }
    return (struct text_piece){begin, text->len, piece.first > 0 ? first - begin : 0};
}

/* Whether a step changes the text of pieces, and so needs copies. */
static bool changes(const struct text_split *split)
{
    return split->prefix != TEXT_PREFIX_NEVER || *split->space || split->kind == TEXT_SPLIT_BYTES;
}

static int run_one(const struct text_split *split, struct text_split_work *work,
                   struct s2s_error *err)
{
    work->next.len = 0;
    for (size_t p = 0; p < work->pieces.len; p++) {
        struct text_piece piece = work->pieces.data[p];
        if (changes(split))
            piece = changed(split, work, piece);
        if (split->kind == TEXT_SPLIT_WHOLE || split->kind == TEXT_SPLIT_BYTES) {
            add_piece(work, piece);
            continue;
        }
        int rc = find_all(split, work, piece, err);
        if (rc < 0)
            return rc;
        join_stretches(work, piece, split->behavior);
    }
    struct text_pieces swap = work->pieces;
    work->pieces = work->next;
    work->next = swap;
    return 0;
}

int text_split_run(const struct text_splits *splits, struct text_split_work *work, const char *text,
                   size_t len, size_t first, struct s2s_error *err)
{
    s2s_buf_clear(&work->text);
    s2s_buf_add(&work->text, text, len);
    work->pieces.len = work->next.len = 0;
    if (len > 0)
        add_piece(work, (struct text_piece){0, len, first < len ? first : len});
    struct text_pieces swap = work->pieces;
    work->pieces = work->next;
    work->next = swap;
    work->has_new = false;
    for (size_t s = 0; s < splits->len; s++)
        if (splits->data[s].needle.pattern && !work->has_new)
            work->has_new = text_has_new_characters(text, len);
    for (size_t s = 0; s < splits->len; s++) {
        int rc = run_one(&splits->data[s], work, err);
        if (rc < 0)
            return rc;
    }
    return 0;
}

void text_splits_release(struct text_splits *splits)
{
    for (size_t i = 0; i < splits->len; i++)
        text_needle_release(&splits->data[i].needle);
    free(splits->data);
    *splits = (struct text_splits){NULL, 0, 0};
}
