/* Counts word and character errors. */
#include "lib/text/metrics.h"

#include <utf8proc.h>

#include "lib/text/text_internal.h"

/* ---- normalisation ---- */

static bool is_letter_or_digit(uint32_t cp)
{
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
    return c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_NO;
}

static bool is_punctuation(uint32_t cp)
{
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
    return c >= UTF8PROC_CATEGORY_PC && c <= UTF8PROC_CATEGORY_SO;
}

/* ' and its typographic form, between two letters or digits */
static bool is_inner_apostrophe(uint32_t cp, uint32_t before, const char *behind, size_t len)
{
    size_t n;
    return (cp == '\'' || cp == 0x2019) && is_letter_or_digit(before) && len > 0 &&
           is_letter_or_digit(text_utf8_get(behind, &n));
}

static void add_code_point(struct s2s_buf *out, uint32_t cp)
{
    utf8proc_uint8_t bytes[4];
    s2s_buf_add(out, bytes, (size_t)utf8proc_encode_char((utf8proc_int32_t)cp, bytes));
}

static void clean(struct s2s_buf *out, const char *text, size_t len,
                  const struct s2s_text_norm *norm)
{
    bool space = false;
    size_t start = out->len;
    uint32_t before = ' ';
    for (size_t i = 0, n; i < len; i += n) {
        uint32_t cp = text_utf8_get(text + i, &n);
        bool cut = norm->punctuation && is_punctuation(cp) &&
                   !is_inner_apostrophe(cp, before, text + i + n, len - i - n);
        before = cp;
        if (text_is_space(cp) || (cut && cp != '\'' && cp != 0x2019)) {
            space = true; /* a dash or a slash parts words */
            continue;
        }
        if (cut)
            continue;
        if (space && out->len > start)
            s2s_buf_putc(out, ' ');
        space = false;
        if (norm->punctuation && cp == 0x2019)
            cp = '\'';
        add_code_point(out, norm->lower ? (uint32_t)utf8proc_tolower((utf8proc_int32_t)cp) : cp);
    }
}

int s2s_text_normalize(struct s2s_buf *out, const char *text, size_t len,
                       const struct s2s_text_norm *norm, struct s2s_error *err)
{
    static const struct s2s_text_norm none = {false, false, false};
    size_t bad = text_utf8_check(text, len);
    if (bad < len)
        return s2s_error_set(err, S2S_E_FORMAT, "byte %zu of the text (0x%02x) is not UTF-8", bad,
                             (unsigned char)text[bad]);
    norm = norm ? norm : &none;
    if (!norm->nfkc) {
        clean(out, text, len, norm);
        return 0;
    }
    utf8proc_uint8_t *composed = NULL;
    utf8proc_ssize_t n =
        utf8proc_map((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)len, &composed,
                     UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT);
    if (n < 0)
        return s2s_error_set(err, S2S_E_NOMEM, "composing (NFKC): %s", utf8proc_errmsg(n));
    clean(out, (const char *)composed, (size_t)n, norm);
    free(composed);
    return 0;
}

/* ---- distance ---- */

struct units {
    uint64_t *data; /* a code point, or the number of a word */
    size_t len, cap;
};

static void add_unit(struct units *units, uint64_t unit)
{
    s2s_grow(&units->data, units->len, &units->cap, sizeof *units->data);
    units->data[units->len++] = unit;
}

/* Words become the offset of their first occurrence in either text, so that they compare as
 * numbers. */
struct word_table {
    const char **words; /* open addressing */
    size_t *lens;
    size_t n_slots;
};

static uint64_t word_number(struct word_table *table, const char *word, size_t len)
{
    uint64_t h = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < len; i++)
        h = (h ^ (unsigned char)word[i]) * UINT64_C(0x100000001b3);
    size_t i = (size_t)(h ^ (h >> 32)) & (table->n_slots - 1);
    while (table->words[i] && (table->lens[i] != len || memcmp(table->words[i], word, len)))
        i = (i + 1) & (table->n_slots - 1);
    table->words[i] = word;
    table->lens[i] = len;
    return i;
}

static void cut(struct units *units, enum s2s_text_unit unit, const struct s2s_buf *text,
                struct word_table *table)
{
    for (size_t i = 0, n; i < text->len; i += n) {
        if (unit == S2S_CHARACTERS) {
            add_unit(units, text_utf8_get(text->data + i, &n));
            continue;
        }
        const char *space = memchr(text->data + i, ' ', text->len - i);
        n = space ? (size_t)(space - text->data) - i : text->len - i;
        add_unit(units, word_number(table, text->data + i, n));
        n += space != NULL;
    }
}

/* The best alignment of prefixes: its cost and what it is made of. */
struct cell {
    int64_t cost, substitutions, deletions, insertions;
};

/* Two rows of the usual table; each cell carries the counts of the path that a walk back from it
 * would take. */
static struct cell align(const struct units *ref, const struct units *hyp)
{
    struct cell *row = s2s_xcalloc(hyp->len + 1, sizeof *row);
    for (size_t j = 0; j <= hyp->len; j++)
        row[j] = (struct cell){(int64_t)j, 0, 0, (int64_t)j};
    for (size_t i = 1; i <= ref->len; i++) {
        struct cell diagonal = row[0];
        row[0].cost++;
        row[0].deletions++;
        for (size_t j = 1; j <= hyp->len; j++) {
            bool equal = ref->data[i - 1] == hyp->data[j - 1];
            struct cell up = row[j], best = diagonal;
            best.cost += !equal;
            best.substitutions += !equal;
            if (up.cost + 1 < best.cost) {
                best = up;
                best.cost++;
                best.deletions++;
            }
            if (row[j - 1].cost + 1 < best.cost) {
                best = row[j - 1];
                best.cost++;
                best.insertions++;
            }
            diagonal = up;
            row[j] = best;
        }
    }
    struct cell last = row[hyp->len];
    free(row);
    return last;
}

static void add_counts(struct s2s_edits *sum, const struct units *ref, const struct units *hyp)
{
    struct cell cell = align(ref, hyp);
    sum->n_utterances++;
    sum->n_wrong += cell.cost > 0;
    sum->n_ref += (int64_t)ref->len;
    sum->n_hyp += (int64_t)hyp->len;
    sum->hits += (int64_t)ref->len - cell.substitutions - cell.deletions;
    sum->substitutions += cell.substitutions;
    sum->deletions += cell.deletions;
    sum->insertions += cell.insertions;
}

int s2s_edits_add(struct s2s_edits *sum, enum s2s_text_unit unit, const char *ref, size_t ref_len,
                  const char *hyp, size_t hyp_len, const struct s2s_text_norm *norm,
                  struct s2s_error *err)
{
    struct s2s_buf texts[2] = {S2S_BUF_INIT, S2S_BUF_INIT};
    struct units units[2] = {{NULL, 0, 0}, {NULL, 0, 0}};
    struct word_table table = {.n_slots = 64};
    int rc = s2s_text_normalize(&texts[0], ref, ref_len, norm, err);
    rc = rc < 0 ? s2s_error_add(err, rc, "reference")
                : s2s_text_normalize(&texts[1], hyp, hyp_len, norm, err);
    if (rc == 0) {
        while (table.n_slots < texts[0].len + texts[1].len + 2)
            table.n_slots *= 2;
        table.words = s2s_xcalloc(table.n_slots, sizeof *table.words);
        table.lens = s2s_xcalloc(table.n_slots, sizeof *table.lens);
        cut(&units[0], unit, &texts[0], &table);
        cut(&units[1], unit, &texts[1], &table);
        add_counts(sum, &units[0], &units[1]);
    }
    for (int i = 0; i < 2; i++) {
        s2s_buf_release(&texts[i]);
        free(units[i].data);
    }
    free(table.words);
    free(table.lens);
    return rc;
}

double s2s_edits_rate(const struct s2s_edits *sum)
{
    int64_t edits = sum->substitutions + sum->deletions + sum->insertions;
    if (sum->n_ref == 0)
        return edits > 0;
    return (double)edits / (double)sum->n_ref;
}
