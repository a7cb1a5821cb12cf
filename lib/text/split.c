/* Splits text at the matches of a pattern, as pre-tokenizers do. */
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

/* All of piece as alternating stretches that match and that do not. */
static int find_all(const struct text_split *split, struct text_split_work *work,
                    struct text_span piece, struct s2s_error *err)
{
    const char *text = work->text.data + piece.begin;
    size_t len = piece.end - piece.begin, from = 0, previous = 0;
    work->matches.len = 0;
    while (from <= len) {
        struct text_span match;
        int found = text_pattern_find(split->pattern, work->matcher, &match, text, len, from,
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
            if (match.begin == previous && work->matches.len > 0)
                continue;
        }
        if (match.begin > previous)
            add_stretch(work, piece.begin + previous, piece.begin + match.begin, split->invert);
        add_stretch(work, piece.begin + match.begin, piece.begin + match.end, !split->invert);
        previous = match.end;
    }
    if (previous < len)
        add_stretch(work, piece.begin + previous, piece.end, split->invert);
    return 0;
}

static void add_piece(struct text_split_work *work, size_t begin, size_t end)
{
    if (begin < end)
        text_spans_add(&work->next, begin, end);
}

/* Joins stretches as the behaviour says. A joined match ends a piece (previous) or begins one
 * (next); of several matches in a row only the one nearest to the other text is joined. */
static void join_stretches(struct text_split_work *work, enum text_split_behavior behavior)
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
        add_piece(work, span[i].begin, span[last].end);
        i = last;
    }
}

static struct text_span with_prefix_space(struct s2s_buf *text, struct text_span piece)
{
    size_t len = piece.end - piece.begin;
    if (text->data[piece.begin] == ' ')
        return piece;
    size_t begin = text->len;
    s2s_buf_reserve(text, len + 2);
    s2s_buf_putc(text, ' ');
    s2s_buf_add(text, text->data + piece.begin, len);
    return (struct text_span){begin, begin + len + 1};
}

int text_split_run(const struct text_splits *splits, struct text_split_work *work, const char *text,
                   size_t len, struct s2s_error *err)
{
    s2s_buf_clear(&work->text);
    s2s_buf_add(&work->text, text, len);
    work->has_new =
        text_find_in_ranges(text, len, text_new_characters, text_n_new_characters) < len;
    work->pieces.len = 0;
    if (len > 0)
        text_spans_add(&work->pieces, 0, len);
    for (size_t s = 0; s < splits->len; s++) {
        const struct text_split *split = &splits->data[s];
        work->next.len = 0;
        for (size_t p = 0; p < work->pieces.len; p++) {
            struct text_span piece = work->pieces.data[p];
            if (split->add_prefix_space)
                piece = with_prefix_space(&work->text, piece);
            if (!split->pattern) {
                add_piece(work, piece.begin, piece.end);
                continue;
            }
            int rc = find_all(split, work, piece, err);
            if (rc < 0)
                return rc;
            join_stretches(work, split->behavior);
        }
        struct text_spans swap = work->pieces;
        work->pieces = work->next;
        work->next = swap;
    }
    return 0;
}

void text_splits_release(struct text_splits *splits)
{
    for (size_t i = 0; i < splits->len; i++)
        text_pattern_free(splits->data[i].pattern);
    free(splits->data);
    *splits = (struct text_splits){NULL, 0, 0};
}
