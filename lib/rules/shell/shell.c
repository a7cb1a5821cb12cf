/*
 * Launch scripts, read and never run: assignments, arrays, ${V:-d} and its kin, $(( )), quotes,
 * comments, line continuation. What cannot be told from the text ($(command), $1, variables of the
 * environment, names assigned under a condition) is unknown and stays so. The command that carries
 * Megatron's flags becomes the map MODEL_ARGS, exported variables ENV_VARS.
 */
#include "lib/rules/rules_internal.h"
#include "lib/rules/shell/shell_internal.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/error.h"

#define UNKNOWN RULES_SHELL_UNKNOWN

enum { MAX_DEPTH = 20 };

/* ---- words ---- */

static void step(struct rules_shell *sh)
{
    if (*sh->at == '\n') {
        sh->line++;
        sh->line_start = sh->at + 1;
        sh->n_inner_bytes = 0;
    }
    sh->n_inner_bytes += ((unsigned char)*sh->at & 0xc0) == 0x80;
    sh->at++;
}

/* of the place that is read now, in characters from 1 */
static int column_here(const struct rules_shell *sh)
{
    return (int)(sh->at - sh->line_start) - sh->n_inner_bytes + 1;
}

/* A comment line may speak to Slurm, which then sets variables. */
static void take_batch(struct rules_shell *sh, const char *begin)
{
    int before = sh->batch.line;
    rules_sbatch_line(&sh->batch, begin, (size_t)(sh->at - begin), sh->line);
    const struct rules_sbatch *b = &sh->batch;
    if (b->line == before)
        return;
    int64_t tasks = b->ntasks > 0 ? b->ntasks : b->nodes * b->ntasks_per_node;
    rules_shell_assign_number(sh, "SLURM_NNODES", b->nodes);
    rules_shell_assign_number(sh, "SLURM_JOB_NUM_NODES", b->nodes);
    rules_shell_assign_number(sh, "SLURM_NTASKS_PER_NODE", b->ntasks_per_node);
    rules_shell_assign_number(sh, "SLURM_NTASKS", tasks);
    rules_shell_assign_number(sh, "SLURM_NPROCS", tasks);
}

void rules_shell_skip(struct rules_shell *sh, bool over)
{
    while (sh->at < sh->end) {
        if (*sh->at == '\\' && sh->at + 1 < sh->end && sh->at[1] == '\n') {
            step(sh);
            step(sh);
        } else if (*sh->at == '#') {
            const char *begin = sh->at;
            while (sh->at < sh->end && *sh->at != '\n')
                sh->at++;
            if (begin == sh->line_start)
                take_batch(sh, begin);
        } else if (*sh->at == ' ' || *sh->at == '\t' || *sh->at == '\r' ||
                   (over && *sh->at == '\n')) {
            step(sh);
        } else {
            return;
        }
    }
}

/* Passes over one raw word; its bytes are [begin, sh->at). */
static void pass_word(struct rules_shell *sh)
{
    char quote = 0;
    while (sh->at < sh->end) {
        char c = *sh->at;
        if (quote == '\'') {
            quote = c == '\'' ? 0 : quote;
            step(sh);
        } else if (c == '\\' && sh->at + 1 < sh->end) {
            step(sh);
            step(sh);
        } else if (c == '$' && sh->at + 1 < sh->end && (sh->at[1] == '(' || sh->at[1] == '{')) {
            const char *stop =
                rules_past_close(sh->at + 2, sh->end, sh->at[1], sh->at[1] == '(' ? ')' : '}');
            while (sh->at < stop)
                step(sh);
        } else if (c == '`') {
            const char *stop = memchr(sh->at + 1, '`', (size_t)(sh->end - sh->at) - 1);
            for (stop = stop ? stop + 1 : sh->at + 1; sh->at < stop;)
                step(sh);
        } else if (c == '"') {
            quote = quote ? 0 : '"';
            step(sh);
        } else if (c == '\'' && !quote) {
            quote = '\'';
            step(sh);
        } else if (!quote && strchr(" \t\r\n;&|()<>", c)) {
            return;
        } else {
            step(sh);
        }
    }
}

/* a brace that is not the mark of an unknown part */
static bool has_brace(const char *text)
{
    for (const char *s = text; (s = strchr(s, '{')) != NULL; s++)
        if (s == text || s[-1] != '$')
            return true;
    return false;
}

/* A word that is nothing but an array or a variable brings the words of it, with their places. */
static bool add_array(struct rules_shell *sh, struct rules_words *out, const char *s,
                      const char *end)
{
    bool quoted = end - s > 2 && *s == '"' && end[-1] == '"';
    s += quoted;
    end -= quoted;
    if (end - s < 2 || *s != '$')
        return false;
    bool brace = s[1] == '{' && end[-1] == '}';
    const char *name = s + 1 + brace, *stop = end - brace;
    size_t len = rules_name_len(name, stop);
    bool all = stop - name - (ptrdiff_t)len == 3 && name[len] == '[' &&
               (name[len + 1] == '@' || name[len + 1] == '*');
    if (!len || (name + len != stop && !all))
        return false;
    const struct rules_variable *v = rules_shell_variable(sh, name, len);
    if (!v || (v->words.n != 1 && quoted && !all && !v->array))
        return false;
    for (size_t i = 0, n = v->array && !all ? v->words.n > 0 : v->words.n; i < n; i++) {
        const struct rules_word *w = &v->words.items[i];
        sh->n_spent += strlen(w->text) + sizeof *w;
        if (sh->n_spent > RULES_SHELL_SPENT) {
            rules_words_add(out, s2s_xstrdup(UNKNOWN), w->line, w->column, w->script);
            break;
        }
        /* unquoted, a value of several words falls apart */
        char *copy = s2s_xstrdup(w->text), *rest = copy;
        if (quoted || has_brace(w->text)) {
            rules_words_add(out, s2s_xstrdup(w->text), w->line, w->column, w->script);
        } else {
            for (char *part; (part = strsep(&rest, " \t\n")) != NULL;)
                if (*part)
                    rules_words_add(out, s2s_xstrdup(part), w->line, w->column, w->script);
        }
        free(copy);
    }
    return true;
}

static void add_word(struct rules_shell *sh, struct rules_words *out, const char *s,
                     const char *end, int line, int column)
{
    struct s2s_buf text = S2S_BUF_INIT;
    if (add_array(sh, out, s, end))
        return;
    s2s_buf_puts(&text, "");
    rules_shell_expand(sh, &text, s, end);
    rules_words_add(out, text.data ? text.data : s2s_xstrdup(""), line, column, sh->script);
}

/* ---- assignments ---- */

/* NAME=, NAME+= or NAME=( at s; the length of the name, or 0 */
static size_t assignment(const char *s, const char *end, bool *append, const char **value)
{
    size_t len = rules_name_len(s, end);
    if (!len || s + len >= end)
        return 0;
    *append = s[len] == '+' && s + len + 1 < end && s[len + 1] == '=';
    if (s[len] != '=' && !*append)
        return 0;
    *value = s + len + 1 + *append;
    return len;
}

void rules_shell_assign(struct rules_shell *sh, const char *name, size_t len, const char *text)
{
    struct rules_words words = {0};
    rules_words_add(&words, s2s_xstrdup(text), sh->line, column_here(sh), sh->script);
    rules_shell_assign_words(sh, name, len, &words, false);
}

/* at the bracket of NAME=( */
static void read_array(struct rules_shell *sh, struct rules_words *out)
{
    step(sh);
    for (;;) {
        rules_shell_skip(sh, true);
        if (sh->at >= sh->end)
            return;
        if (*sh->at == ')') {
            step(sh);
            return;
        }
        const char *begin = sh->at;
        int line = sh->line, column = column_here(sh);
        pass_word(sh);
        if (sh->at == begin)
            step(sh);
        else
            add_word(sh, out, begin, sh->at, line, column);
    }
}

/* ---- commands ---- */

bool rules_is_marker(const char *word)
{
    static const char *const markers[] = {"--tensor-model-parallel-size",
                                          "--num-layers",
                                          "--micro-batch-size",
                                          "--hybrid-layer-pattern",
                                          "--llm-tp",
                                          "--llm-dp",
                                          "--encoder-dp",
                                          NULL};
    for (int i = 0; markers[i]; i++)
        if (!strncmp(word, markers[i], strlen(markers[i])))
            return true;
    return false;
}

bool rules_is_any_of(const char *word, const char *const *names)
{
    for (; *names; names++)
        if (!strcmp(word, *names))
            return true;
    return false;
}

/* programs of other trainers share flags with Megatron's; these it does not have */
static bool is_of_lightning(const char *word)
{
    return !strncmp(word, "--devices", 9) || !strncmp(word, "--max-steps", 11) ||
           !strncmp(word, "--max_steps", 11) || !strncmp(word, "--experiment-dir", 16);
}

/* sh -c "torchrun .. --num-layers 12": the words inside, with the place of the whole */
static void split_quoted(struct rules_words *words)
{
    struct rules_words out = {0};
    for (size_t i = 0; i < words->n; i++) {
        const struct rules_word *w = &words->items[i];
        char *copy = s2s_xstrdup(w->text), *rest = copy;
        const char *flag = strstr(w->text, " --");
        if (!flag || !strchr(w->text, ' '))
            rules_words_add(&out, s2s_xstrdup(w->text), w->line, w->column, w->script);
        else
            for (char *part; (part = strsep(&rest, " \t\n")) != NULL;)
                if (*part && strcmp(part, "\\") != 0)
                    rules_words_add(&out, s2s_xstrdup(part), w->line, w->column, w->script);
        free(copy);
    }
    rules_words_release(words);
    *words = out;
}

static void drop_guard(struct rules_guard *guard)
{
    free(guard->text);
    free(guard->at.text);
    *guard = (struct rules_guard){0};
}

char rules_shell_terminator(const struct rules_shell *sh)
{
    return sh->at < sh->end ? *sh->at : '\n';
}

/* A test may guard what follows: behind "||" it runs if the test fails, else if it holds. Of
 * tests that hang together none is taken. */
static void take_test(struct rules_shell *sh, const struct rules_words *words)
{
    const char *parts[8];
    struct s2s_buf text = S2S_BUF_INIT;
    size_t n = words->n < 8 ? words->n : 0;
    for (size_t i = 0; i < n; i++)
        parts[i] = words->items[i].text;
    size_t left = rules_test_left(parts, n);
    bool is_if = left && !strcmp(parts[0], "if"), pending = sh->guard.text != NULL;
    bool twice = sh->at + 1 < sh->end && (*sh->at == '|' || *sh->at == '&') && sh->at[1] == *sh->at;
    drop_guard(&sh->guard);
    if (!left || pending || is_if == twice || sh->conditional > is_if)
        return;
    for (size_t i = left; i < left + 3; i++)
        s2s_buf_printf(&text, "%s%s", i > left ? " " : "", parts[i]);
    sh->guard = (struct rules_guard){.text = text.data,
                                     .holds = rules_test_holds(parts, n),
                                     .exits_if = is_if || rules_shell_terminator(sh) == '&',
                                     .is_if = is_if,
                                     .at = words->items[left]};
    sh->guard.at.text = NULL;
}

/* exit: if a test stands before it, the script may end here */
static void take_exit(struct rules_shell *sh)
{
    struct rules_guard *g = &sh->guard;
    if (g->text && g->holds == g->exits_if && !sh->failed.text) {
        sh->failed = *g;
        *g = (struct rules_guard){0};
    }
    drop_guard(g);
}

/* What a command means to the test that stands before it. */
static void follow_guard(struct rules_shell *sh, const struct rules_words *words)
{
    static const char *const tests[] = {"if",   "elif", "else", "fi",    "case",  "esac", "[[", "[",
                                        "test", "((",   "for",  "while", "until", "}",    NULL};
    const char *first = words->n ? words->items[0].text : "";
    bool brace = !strcmp(first, "{");
    const char *command = brace && words->n > 1 ? words->items[1].text : first;
    sh->guard.brace |= brace;
    if (rules_is_any_of(first, tests))
        take_test(sh, words);
    else if (!strcmp(command, "exit"))
        take_exit(sh);
    else if (words->n && rules_shell_terminator(sh) == '\n' && !sh->guard.is_if && !sh->guard.brace)
        drop_guard(&sh->guard);
}

static void assign_by_command(struct rules_shell *sh, const struct rules_words *words);

/* The end of a simple command: what it means to us. */
static void end_command(struct rules_shell *sh, struct rules_words *words)
{
    static const char *const texts[] = {"echo", "printf", NULL};
    rules_shell_follow(sh, words);
    assign_by_command(sh, words);
    if (sh->dead == sh->dead_lists)
        follow_guard(sh, words);
    bool marked = false;
    split_quoted(words);
    const char *first = words->n ? words->items[0].text : "";
    for (size_t i = 0; i < words->n; i++)
        marked |= rules_is_marker(words->items[i].text);
    for (size_t i = 0; i < words->n; i++)
        marked &= !is_of_lightning(words->items[i].text);
    bool spare = sh->dead || sh->n_definitions;
    struct rules_words *place = spare ? &sh->spare : &sh->command;
    if (marked && first[0] != '-' && !rules_is_any_of(first, texts) && !place->n) {
        *place = *words;
        *words = (struct rules_words){0};
        sh->command_maybe |= !spare && sh->conditional;
        return;
    }
    if (!strcmp(first, "return"))
        rules_shell_return(sh);
    else
        rules_shell_call(sh, words);
    rules_words_release(words);
}

/* <<WORD: passes over the document */
static void pass_document(struct rules_shell *sh)
{
    sh->at += 2;
    bool dash = sh->at < sh->end && *sh->at == '-';
    sh->at += dash;
    rules_shell_skip(sh, false);
    const char *begin = sh->at;
    pass_word(sh);
    struct s2s_buf tag = S2S_BUF_INIT;
    s2s_buf_puts(&tag, "");
    for (const char *s = begin; s < sh->at; s++)
        if (!strchr("'\"\\", *s))
            s2s_buf_putc(&tag, *s);
    while (sh->at < sh->end && *sh->at != '\n')
        sh->at++;
    while (sh->at < sh->end) {
        step(sh);
        const char *line = sh->at;
        while (sh->at < sh->end && *sh->at != '\n')
            sh->at++;
        while (dash && line < sh->at && *line == '\t')
            line++;
        if ((size_t)(sh->at - line) == tag.len && !memcmp(line, tag.data, tag.len))
            break;
    }
    s2s_buf_release(&tag);
}

/* export A=B marks A; `export`, `local` and `readonly` before an assignment mean nothing else */
static bool is_declaration(const struct rules_words *words)
{
    static const char *const words_of[] = {"export",  "local", "readonly", "declare",
                                           "typeset", "env",   NULL};
    for (size_t i = 0; i < words->n; i++)
        if (!rules_is_any_of(words->items[i].text, words_of) && words->items[i].text[0] != '-')
            return false;
    return true;
}

/* NAME+=TEXT goes on with the last word of NAME where no blank stands between them: true if text
 * is now the whole value. */
static bool prolong(const struct rules_shell *sh, const char *name, size_t len,
                    struct s2s_buf *text)
{
    const struct rules_variable *v = rules_shell_variable(sh, name, len);
    const char *before = v && v->words.n == 1 ? v->words.items[0].text : "";
    if (!*before || strlen(before) + text->len > RULES_SHELL_VALUE ||
        isspace((unsigned char)before[strlen(before) - 1]) || isspace((unsigned char)*text->data))
        return false;
    char *whole = s2s_xasprintf("%s%s", before, text->data);
    s2s_buf_clear(text);
    s2s_buf_puts(text, whole);
    free(whole);
    return true;
}

/* bash -c 'SCRIPT': at the quote; what runs inside is read where it stands, behind the words so far
 */
static bool read_inner(struct rules_shell *sh, struct rules_words *words)
{
    const char *end = sh->end, *close;
    bool asked = words->n > 0 && !strcmp(words->items[words->n - 1].text, "-c") && sh->at < end &&
                 *sh->at == '\'' && !sh->command.n;
    close = asked ? memchr(sh->at + 1, '\'', (size_t)(end - sh->at) - 1) : NULL;
    if (!close || ++sh->depth > MAX_DEPTH)
        return false;
    step(sh);
    sh->end = close;
    rules_shell_read(sh);
    rules_shell_join(sh, RULES_NO_COMMAND, 0);
    sh->at = close;
    sh->end = end;
    step(sh);
    sh->depth--;
    if (sh->command.n) {
        struct rules_words all = *words;
        for (size_t i = 0; i < sh->command.n; i++) {
            const struct rules_word *w = &sh->command.items[i];
            rules_words_add(&all, s2s_xstrdup(w->text), w->line, w->column, w->script);
        }
        rules_words_release(&sh->command);
        sh->command = all;
        *words = (struct rules_words){0};
    }
    return true;
}

/* local NAME; declare NAME, unless it is told that the variable is global */
static bool makes_local(const struct rules_words *words)
{
    static const char *const commands[] = {"local", "declare", "typeset", NULL};
    bool global =
        words->n > 1 && words->items[1].text[0] == '-' && strchr(words->items[1].text, 'g');
    return words->n && rules_is_any_of(words->items[0].text, commands) && !global;
}

/* behind NAME=..: does more of the command follow? */
static bool is_prefix(const struct rules_shell *sh)
{
    const char *at = sh->at;
    while (at < sh->end &&
           (strchr(" \t\r", *at) || (*at == '\\' && at + 1 < sh->end && at[1] == '\n')))
        at += *at == '\\' ? 2 : 1;
    return at < sh->end && !strchr("\n;&|()<>#", *at) && sh->n_prefix < RULES_SHELL_PREFIX;
}

static void one_word(struct rules_shell *sh, struct rules_words *words)
{
    if (read_inner(sh, words))
        return;
    const char *begin = sh->at, *value = NULL;
    int line = sh->line, column = column_here(sh);
    bool append = false, exported = words->n && !strcmp(words->items[0].text, "export");
    size_t len = is_declaration(words) ? assignment(begin, sh->end, &append, &value) : 0;
    if (!len) {
        pass_word(sh);
        if (sh->at == begin)
            step(sh);
        else
            add_word(sh, words, begin, sh->at, line, column);
        return;
    }
    struct rules_words got = {0};
    while (sh->at < value)
        step(sh);
    int value_column = column_here(sh);
    const bool array = sh->at < sh->end && *sh->at == '(';
    if (array) {
        read_array(sh, &got);
    } else {
        pass_word(sh);
        struct s2s_buf text = S2S_BUF_INIT;
        s2s_buf_puts(&text, "");
        rules_shell_expand(sh, &text, value, sh->at);
        append = append && !prolong(sh, begin, len, &text);
        rules_words_add(&got, text.data ? text.data : s2s_xstrdup(""), line, value_column,
                        sh->script);
    }
    const bool passing = !words->n && is_prefix(sh);
    if (passing)
        sh->prefix[sh->n_prefix++] = rules_shell_kept(sh, begin, len);
    sh->local = makes_local(words);
    rules_shell_assign_words(sh, begin, len, &got, append);
    sh->local = false;
    sh->assigned = true;
    struct rules_variable *v = rules_shell_variable(sh, begin, len);
    if (v && !sh->dead)
        v->array = array || (v->array && append);
    if (v && (exported || passing) && !sh->dead)
        v->exported = true;
}

static void forget(struct rules_shell *sh, const char *name)
{
    if (rules_name_len(name, name + strlen(name)) == strlen(name))
        rules_shell_assign(sh, name, strlen(name), UNKNOWN);
}

/* A sum as a command: NAME=.., NAME+=.., NAME++. Whatever else it assigns to is unknown then. */
static void run_sum(struct rules_shell *sh, const char *s, const char *end)
{
    struct s2s_buf sum = S2S_BUF_INIT, value = S2S_BUF_INIT;
    while (s < end && isspace((unsigned char)*s))
        s++;
    while (end > s && isspace((unsigned char)end[-1]))
        end--;
    size_t len = rules_name_len(s, end);
    const char *op = s + len;
    while (op < end && isspace((unsigned char)*op))
        op++;
    bool one = len && end - op == 2 && (*op == '+' || *op == '-') && op[1] == *op;
    bool binary = len && end - op > 2 && memchr("+-*/%", *op, 5) && op[1] == '=';
    bool plain = len && end - op > 1 && *op == '=' && op[1] != '=';
    if (one)
        s2s_buf_printf(&sum, "%.*s %c 1", (int)len, s, *op);
    else if (binary)
        s2s_buf_printf(&sum, "%.*s %c (%.*s)", (int)len, s, *op, (int)(end - op) - 2, op + 2);
    else if (plain)
        s2s_buf_add(&sum, op + 1, (size_t)(end - op) - 1);
    s2s_buf_puts(&sum, "");
    rules_shell_sum(sh, &value, sum.data, sum.data + sum.len);
    if (sum.len && !strpbrk(sum.data, "=,"))
        rules_shell_assign(sh, s, len, value.data);
    else
        for (; s < end; s += len ? len : 1) {
            struct s2s_buf name = S2S_BUF_INIT;
            len = rules_name_len(s, end);
            s2s_buf_add(&name, s, len);
            s2s_buf_puts(&name, "");
            if (len && memchr(s, '=', (size_t)(end - s)))
                forget(sh, name.data);
            s2s_buf_release(&name);
        }
    s2s_buf_release(&sum);
    s2s_buf_release(&value);
}

/* at "((": the words of a test over two sums; what it is otherwise is unknown */
static void read_sums(struct rules_shell *sh, struct rules_words *words)
{
    static const char *const operators[] = {"==", "!=", "<=", ">=", "<", ">", NULL};
    const char *begin = sh->at + 2, *stop = rules_past_close(begin, sh->end, '(', ')');
    int line = sh->line, column = column_here(sh) + 2;
    const char *end = stop > begin ? stop - 1 : begin, *at = end, *operator= NULL;
    for (int i = 0; operators[i] && !operator; i++)
        if ((at = memmem(begin, (size_t)(end - begin), operators[i], strlen(operators[i]))))
            operator= operators[i];
    struct s2s_buf left = S2S_BUF_INIT, right = S2S_BUF_INIT;
    rules_words_add(words, s2s_xstrdup("(("), line, column, sh->script);
    if (operator&& !memchr(begin, '&', (size_t)(end - begin)) &&
        !memchr(begin, '|', (size_t)(end - begin))) {
        rules_shell_sum(sh, &left, begin, at);
        rules_shell_sum(sh, &right, at + strlen(operator), end);
        rules_words_add(words, left.data, line, column, sh->script);
        rules_words_add(words, s2s_xstrdup(operator), line, column, sh->script);
        rules_words_add(words, right.data, line, column, sh->script);
    } else if (!operator) {
        run_sum(sh, begin, end);
    }
    rules_words_add(words, s2s_xstrdup("))"), line, column, sh->script);
    while (sh->at < stop)
        step(sh);
    if (sh->at < sh->end && *sh->at == ')')
        step(sh);
}

/* Commands that assign to the variables they name. */
static void assign_by_command(struct rules_shell *sh, const struct rules_words *words)
{
    static const char *const commands[] = {"for",       "read",   "unset", "mapfile",
                                           "readarray", "select", NULL};
    const char *first = words->n ? words->items[0].text : "";
    bool known = rules_is_any_of(first, commands);
    size_t n = !strcmp(first, "for") || !strcmp(first, "select") ? 2 : words->n;
    for (size_t i = 1; i < words->n && i < n && known; i++)
        forget(sh, words->items[i].text);
    for (size_t i = 1; i < words->n && makes_local(words); i++)
        rules_shell_keep(sh, words->items[i].text, strlen(words->items[i].text), true);
    for (size_t i = 1; i < words->n && !strcmp(first, "let"); i++)
        run_sum(sh, words->items[i].text, words->items[i].text + strlen(words->items[i].text));
    if (words->n > 2 && !strcmp(first, "printf") && !strcmp(words->items[1].text, "-v"))
        forget(sh, words->items[2].text);
}

/* at the second character of ;; or ;& or ;;& */
static void end_case(struct rules_shell *sh)
{
    bool falls = *sh->at == '&';
    step(sh);
    if (!falls && sh->at < sh->end && *sh->at == '&') {
        falls = true;
        step(sh);
    }
    rules_shell_next_case(sh, falls);
}

/* A PATTERN|PATTERN) of `case`; false: `esac` is there instead. */
static bool read_patterns(struct rules_shell *sh)
{
    static const char last[] = "esac";
    int holds = 0;
    rules_shell_skip(sh, true);
    const char *behind = sh->at + strlen(last);
    if (behind <= sh->end && !memcmp(sh->at, last, strlen(last)) &&
        (behind == sh->end || strchr(" \t\r\n;&|)", *behind))) {
        rules_shell_matched(sh, 0);
        return false;
    }
    if (sh->at < sh->end && *sh->at == '(')
        step(sh);
    for (;; step(sh)) {
        rules_shell_skip(sh, false);
        const char *begin = sh->at;
        pass_word(sh);
        const int one = rules_shell_matches(sh, begin, sh->at);
        holds = holds == 1 || one == 1 ? 1 : holds < 0 ? holds : one;
        rules_shell_skip(sh, false);
        if (sh->at >= sh->end || *sh->at != '|')
            break;
    }
    for (; sh->at < sh->end && *sh->at != ')' && *sh->at != '\n'; holds = -1)
        step(sh); /* of extglob: not understood */
    if (sh->at < sh->end)
        step(sh);
    rules_shell_matched(sh, holds);
    return true;
}

/* NAME=.. COMMAND is the environment of that command alone; of the one with the flags, which is the
 * last that counts, it stays. */
static void finish_command(struct rules_shell *sh, struct rules_words *words)
{
    const size_t found = sh->command.n + sh->spare.n;
    const bool any = words->n > 0;
    end_command(sh, words);
    while (sh->n_prefix > sh->outer_prefix) {
        struct rules_kept *k = &sh->prefix[--sh->n_prefix];
        if (any && sh->command.n + sh->spare.n == found)
            rules_shell_put_back(sh, k);
        rules_words_release(&k->before);
        free(k->name);
    }
}

/* at what ends a command: && and || go on with the list */
static void end_part(struct rules_shell *sh, struct rules_words *words)
{
    char c = *sh->at;
    bool twice = sh->at + 1 < sh->end && (c == '&' || c == '|') && sh->at[1] == c;
    bool any = words->n > 0 || sh->assigned;
    int status = any ? rules_shell_status(words) : RULES_NO_COMMAND;
    finish_command(sh, words);
    sh->assigned = false;
    if (twice) {
        rules_shell_join(sh, status, c);
        step(sh);
        step(sh);
        rules_shell_skip(sh, true);
    } else {
        if (c != '|' && c != '(')
            rules_shell_join(sh, status, 0);
        step(sh);
        if (c == ';' && sh->at < sh->end && (*sh->at == ';' || *sh->at == '&'))
            end_case(sh);
    }
}

/* A word that stands before a command, where one begins: read and passed over. */
static bool read_keyword(struct rules_shell *sh, struct rules_words *words)
{
    static const char *const keywords[] = {"then", "do", "else", "{", NULL};
    for (int i = 0; keywords[i] && !words->n; i++) {
        size_t len = strlen(keywords[i]);
        if ((size_t)(sh->end - sh->at) <= len || memcmp(sh->at, keywords[i], len) != 0 ||
            !strchr(" \t\r\n;", sh->at[len]))
            continue;
        int column = column_here(sh);
        sh->at += len;
        if (i == 0) {
            rules_shell_then(sh);
        } else if (i > 1) {
            rules_words_add(words, s2s_xstrdup(keywords[i]), sh->line, column, sh->script);
            end_command(sh, words);
        }
        return true;
    }
    return false;
}

/* `case WORD in` is complete: patterns follow */
static bool opens_case(const struct rules_words *words)
{
    return words->n > 2 && !strcmp(words->items[0].text, "case") &&
           !strcmp(words->items[words->n - 1].text, "in");
}

void rules_shell_read(struct rules_shell *sh)
{
    static const char *const conditions[] = {"if", "elif", "while", "until", "!", NULL};
    struct rules_words words = {0};
    const size_t outer_prefix = sh->outer_prefix;
    sh->outer_prefix = sh->n_prefix;
    while (sh->at < sh->end) {
        if (!words.n && !sh->assigned && rules_shell_at_pattern(sh) && read_patterns(sh))
            continue;
        rules_shell_skip(sh, false);
        if (sh->at >= sh->end)
            break;
        char c = *sh->at;
        if (c == '<' && sh->end - sh->at > 3 && !strncmp(sh->at, "<<<", 3)) {
            sh->at += 3; /* a word for stdin */
            rules_shell_skip(sh, false);
            pass_word(sh);
        } else if (c == '<' && sh->at + 1 < sh->end && sh->at[1] == '<') {
            pass_document(sh);
        } else if (c == '(' && sh->at + 1 < sh->end && sh->at[1] == '(' &&
                   (!words.n ||
                    (words.n == 1 && rules_is_any_of(words.items[0].text, conditions)))) {
            read_sums(sh, &words);
        } else if (c == '(' && !words.n && !sh->assigned) {
            rules_shell_open(sh);
            step(sh);
        } else if (rules_shell_define(sh, &words)) {
            rules_words_release(&words);
        } else if (strchr("\n;&|()", c)) {
            end_part(sh, &words);
            if (c == ')')
                rules_shell_close(sh);
        } else if (c == '<' || c == '>') {
            step(sh);
        } else if (!read_keyword(sh, &words)) {
            one_word(sh, &words);
            if (opens_case(&words))
                finish_command(sh, &words);
        }
    }
    finish_command(sh, &words);
    sh->outer_prefix = outer_prefix;
}

/* ---- scripts ---- */

struct s2s_conf *rules_read_scripts(const struct rules_script *scripts, size_t n)
{
    struct rules_shell sh = {0};
    struct s2s_conf **roots = s2s_xcalloc(n, sizeof(struct s2s_conf *));
    for (size_t i = 0; i < n; i++) {
        const char *text = scripts[i].text;
        roots[i] =
            s2s_conf_new_text(S2S_CONF_FROM_FILE, scripts[i].name, text, scripts[i].len_bytes);
        sh.text = sh.at = sh.line_start = text;
        sh.end = text + scripts[i].len_bytes;
        sh.line = 1;
        sh.n_inner_bytes = 0;
        sh.conditional = sh.dead = sh.dead_lists = sh.n_branches = sh.depth = 0;
        sh.assigned = false;
        sh.next_scope = RULES_SCOPE_NONE;
        sh.script = (int)i;
        drop_guard(&sh.guard);
        rules_shell_read(&sh);
        rules_shell_unwind(&sh, 0);
    }
    if (!sh.command.n) {
        sh.command = sh.spare;
        sh.spare = (struct rules_words){0};
    }
    struct s2s_conf *root = rules_shell_result(&sh, roots);
    for (size_t i = 1; i < n; i++)
        s2s_conf_free(roots[i]);
    for (size_t i = 0; i < sh.n_variables; i++) {
        free(sh.variables[i].name);
        rules_words_release(&sh.variables[i].words);
    }
    for (size_t i = 0; i < sh.n_functions; i++)
        free(sh.functions[i].name);
    free(roots);
    free(sh.variables);
    free(sh.functions);
    free(sh.kept);
    rules_words_release(&sh.command);
    rules_words_release(&sh.spare);
    drop_guard(&sh.guard);
    drop_guard(&sh.failed);
    return root;
}

struct s2s_conf *s2s_rules_read_shell(const char *text, size_t len_bytes, const char *name)
{
    return rules_read_scripts(&(struct rules_script){text, len_bytes, name}, 1);
}
