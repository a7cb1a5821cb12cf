/*
 * Word and character error rates: Levenshtein distance of two token sequences with its counts.
 * Among alignments of least cost the one is counted that a walk from the end finds which prefers a
 * match or substitution, then a deletion, then an insertion; the sum is unique, the counts are
 * by this rule.
 */
#ifndef S2S_TEXT_METRICS_H
#define S2S_TEXT_METRICS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct s2s_buf;
struct s2s_error;

/* Sums over utterances; start from zero, add up over ranks field by field. */
struct s2s_edits {
    int64_t n_utterances, n_wrong; /* n_wrong: at least one edit */
    int64_t n_ref, n_hyp;          /* words or characters */
    int64_t hits, substitutions, deletions, insertions;
};

enum s2s_text_unit { S2S_WORDS, S2S_CHARACTERS };

/* What is done to both texts before they are compared. White space is always cut at the ends and
 * joined to single spaces; words are what lies between. */
struct s2s_text_norm {
    bool lower;       /* Unicode lower case (simple mapping) */
    bool punctuation; /* take out punctuation and symbols, but keep ' between letters */
    bool nfkc;        /* compatibility composition */
};

/* Adds one utterance to sum. Characters are code points, spaces between words included. FORMAT when
 * a text is not UTF-8. O(n*m) time, O(m) memory. */
int s2s_edits_add(struct s2s_edits *sum, enum s2s_text_unit unit, const char *ref, size_t ref_len,
                  const char *hyp, size_t hyp_len, const struct s2s_text_norm *norm,
                  struct s2s_error *err);

/* (substitutions + deletions + insertions) / n_ref; with an empty reference 0 when nothing was
 * inserted, else 1. */
double s2s_edits_rate(const struct s2s_edits *sum);

/* Appends the normalised text to out. */
int s2s_text_normalize(struct s2s_buf *out, const char *text, size_t len,
                       const struct s2s_text_norm *norm, struct s2s_error *err);

#endif
