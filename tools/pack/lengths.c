/* Reads lengths, and prints what becomes of them. */
#include "tools/pack/lengths.h"

#include "lib/data/lines.h"
#include "lib/io/outfile.h"
#include "lib/io/printout.h"
#include "tools/pack/pack.h"

void pack_lengths_take(struct argp_state *state, const char **input, const char *arg)
{
    if (*input)
        argp_error(state, "one input at most, found '%s' behind '%s'", arg, *input);
    *input = arg;
}

int pack_refuse_seed(const struct s2s_common *common, struct s2s_error *err)
{
    return common->seed_given
               ? s2s_error_set(err, S2S_E_ARG, "--seed is without effect here: nothing is drawn")
               : 0;
}

/* The next word of a line, NUL-terminated; false: it is none, or too long for a number. */
static bool next_word(char word[32], const struct s2s_line *line, size_t *at)
{
    while (*at < line->len && strchr(" \t", line->text[*at]))
        ++*at;
    const size_t begin = *at;
    while (*at < line->len && !strchr(" \t", line->text[*at]))
        ++*at;
    const size_t len = *at - begin;
    if (len == 0 || len >= 32)
        return false;
    memcpy(word, line->text + begin, len);
    word[len] = 0;
    return true;
}

static bool is_done(const struct s2s_line *line, size_t at)
{
    while (at < line->len && strchr(" \t", line->text[at]))
        at++;
    return at == line->len;
}

static int take_whole(struct pack_lengths *to, size_t *cap, const struct s2s_line *line,
                      struct s2s_error *err)
{
    char word[32];
    size_t at = 0;
    int64_t value = 0;
    if (!next_word(word, line, &at) || !is_done(line, at))
        return s2s_error_set(err, S2S_E_FORMAT, "not a length");
    int rc = s2s_parse_i64(&value, word, 0, INT32_MAX, err);
    s2s_grow(&to->lens, to->n, cap, sizeof *to->lens);
    to->lens[to->n] = (int32_t)value;
    return rc;
}

static int take_reals(struct pack_lengths *to, size_t cap[2], int n_columns,
                      const struct s2s_line *line, struct s2s_error *err)
{
    double **const columns[] = {&to->reals, &to->second};
    char word[32];
    size_t at = 0;
    int rc = 0;
    for (int k = 0; rc == 0 && k < n_columns; k++) {
        if (!next_word(word, line, &at))
            return s2s_error_set(err, S2S_E_FORMAT, "%s",
                                 k ? "a second length is missing" : "not a length");
        s2s_grow(columns[k], to->n, &cap[k], sizeof **columns[k]);
        rc = s2s_parse_f64(&(*columns[k])[to->n], word, 0, 1e300, err);
    }
    return rc < 0 || is_done(line, at) ? rc
                                       : s2s_error_set(err, S2S_E_FORMAT, "more than a length");
}

static int read_lengths(struct pack_lengths *to, const char *path, int n_columns,
                        struct s2s_error *err)
{
    struct s2s_lines lines = S2S_LINES_INIT;
    struct s2s_line line = {.number = 0};
    size_t cap[2] = {0, 0};
    int rc = s2s_lines_open(&lines, path, err);
    while (rc == 0 && s2s_lines_next(&lines, &line)) {
        rc = n_columns == 0 ? take_whole(to, cap, &line, err)
                            : take_reals(to, cap, n_columns, &line, err);
        if (rc < 0)
            rc = s2s_error_add(err, S2S_E_FORMAT, "%s:%lld", lines.path, (long long)line.number);
        else
            to->n++;
    }
    s2s_lines_close(&lines);
    return rc;
}

int pack_lengths_run(const struct pack_lengths_command *command, const char *input, const char *out,
                     struct s2s_error *err)
{
    struct pack_lengths lengths = {.n = 0};
    struct s2s_printout to = {.out = NULL};
    int rc = read_lengths(&lengths, input ? input : "-", command->n_columns, err);
    if (rc == 0)
        rc = command->work(command->ctx, &lengths, err);
    if (rc == 0)
        rc = s2s_outfile_spares(out, input, err);
    if (rc == 0)
        rc = s2s_printout_begin(&to, out, err);
    if (rc == 0)
        command->print(command->ctx, &lengths);
    rc = s2s_printout_end(&to, rc, err);
    free(lengths.lens);
    free(lengths.reals);
    free(lengths.second);
    return rc;
}
