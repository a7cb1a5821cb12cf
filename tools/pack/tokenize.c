/* `s2s-pack tokenize`: ids of text, and text of ids, line by line. */
#include "tools/pack/tokenize.h"

#include <errno.h>
#include <stdio.h>
#include <sys/stat.h>

#include <jansson.h>

#include "lib/base/base.h"
#include "lib/base/tool.h"
#include "lib/io/outfile.h"
#include "lib/text/prompt.h"
#include "lib/text/tokenizer.h"

struct options {
    struct s2s_common common;
    const char *tokenizer, *input, *prompt;
    bool decode, no_special, generate;
};

enum { KEY_TOKENIZER = 0x100, KEY_DECODE, KEY_NO_SPECIAL, KEY_PROMPT, KEY_GENERATE };

static const struct argp_option option_table[] = {
    {"tokenizer", KEY_TOKENIZER, "FILE", 0, "tokenizer.json, or its folder", 1},
    {"decode", KEY_DECODE, NULL, 0, "From lines of ids to lines of text", 1},
    {"no-special", KEY_NO_SPECIAL, NULL, 0,
     "Leave out the special tokens that the post-processor adds; with --decode leave out all "
     "special tokens",
     1},
    {"prompt", KEY_PROMPT, "NAME|F", 0,
     "Lines are conversations, [{\"role\": .., \"content\": ..}, ..] each, which become rows by "
     "this "
     "prompt format (see s2s-pack(1))",
     1},
    {"generate", KEY_GENERATE, NULL, 0, "With --prompt: end with what opens the answer", 1},
    {0},
};

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
    struct options *opt = state->input;
    switch (key) {
    case KEY_TOKENIZER:
        opt->tokenizer = arg;
        return 0;
    case KEY_DECODE:
        opt->decode = true;
        return 0;
    case KEY_NO_SPECIAL:
        opt->no_special = true;
        return 0;
    case KEY_PROMPT:
        opt->prompt = arg;
        return 0;
    case KEY_GENERATE:
        opt->generate = true;
        return 0;
    case ARGP_KEY_ARG:
        if (opt->input)
            argp_error(state, "one input at most, found '%s' behind '%s'", arg, opt->input);
        opt->input = arg;
        return 0;
    case ARGP_KEY_END:
        if (!opt->tokenizer)
            argp_error(state, "--tokenizer is missing");
        if (opt->prompt && (opt->decode || opt->no_special))
            argp_error(state, "--prompt goes with neither --decode nor --no-special");
        if (opt->generate && !opt->prompt)
            argp_error(state, "--generate is for --prompt");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp tokenize_argp = {
    .options = option_table,
    .parser = parse_option,
    .args_doc = "--tokenizer F [FILE]",
    .doc = "Lines of text to lines of token ids, or back with --decode."
           "\vWithout FILE, or with -, lines are read from stdin. With --json a line of text is a "
           "JSON string and a line of ids is {\"ids\": [..]}, with --prompt and a loss_mask beside "
           "it.\n\n"
           "Examples:\n"
           "  echo 'hello world' | s2s-pack tokenize --tokenizer tokenizer.json\n"
           "  echo '1 42 7' | s2s-pack tokenize --tokenizer tokenizer.json --decode\n\n"
           "Exit status: 0 done, 1 a line is bad or a write failed, 2 bad command line or an input "
           "that cannot be opened.\n"
           "See also: s2s-pack(1)",
};

/* ---- one line ---- */

static void add_number(struct s2s_buf *out, int32_t id)
{
    char digits[12], *at = digits + sizeof digits;
    do
        *--at = (char)('0' + id % 10);
    while ((id /= 10) > 0);
    s2s_buf_add(out, at, (size_t)(digits + sizeof digits - at));
}

static void add_ids(struct s2s_buf *out, const struct s2s_ids *ids, bool json)
{
    if (json)
        s2s_buf_puts(out, "{\"ids\": [");
    for (size_t i = 0; i < ids->len; i++) {
        if (i > 0 && json)
            s2s_buf_putc(out, ',');
        if (i > 0)
            s2s_buf_putc(out, ' ');
        add_number(out, ids->data[i]);
    }
    s2s_buf_puts(out, json ? "]}\n" : "\n");
}

static int encode_line(const struct options *opt, const struct s2s_tokenizer *tok,
                       struct s2s_buf *out, struct s2s_ids *ids, const char *line, size_t len,
                       struct s2s_error *err)
{
    json_t *text = NULL;
    json_error_t at;
    if (opt->common.json) {
        text =
            json_loadb(line, len, JSON_DECODE_ANY | JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, &at);
        if (!json_is_string(text)) {
            int rc = s2s_error_set(err, S2S_E_FORMAT, "not a JSON string%s%s", text ? "" : ": ",
                                   text ? "" : at.text);
            json_decref(text);
            return rc;
        }
        line = json_string_value(text);
        len = json_string_length(text);
    }
    int rc = s2s_tokenizer_encode(tok, ids, line, len, !opt->no_special, err);
    if (rc == 0)
        add_ids(out, ids, opt->common.json);
    json_decref(text);
    return rc;
}

/* ---- conversations ---- */

/* A message's role, content, and the other keys that are text, as a turn; part and fields [as many
 * as keys] are filled. */
static int read_turn(struct s2s_turn *turn, struct s2s_part *part, struct s2s_turn_field *fields,
                     const json_t *message, struct s2s_error *err)
{
    const json_t *content = json_object_get(message, "content");
    const char *key;
    json_t *value;
    *part = (struct s2s_part){json_string_value(content), json_string_length(content)};
    *turn = (struct s2s_turn){.role = json_string_value(json_object_get(message, "role")),
                              .parts = part,
                              .n_parts = 1,
                              .fields = fields};
    if (!turn->role || !part->text)
        return s2s_error_set(err, S2S_E_FORMAT, "no role or no content, which are text");
    json_object_foreach((json_t *)(uintptr_t)message, key, value)
    {
        if (json_is_string(value) && strcmp(key, "role") && strcmp(key, "content"))
            fields[turn->n_fields++] = (struct s2s_turn_field){key, json_string_value(value)};
    }
    return 0;
}

static int render_messages(const struct options *opt, const struct s2s_prompt *prompt,
                           struct s2s_rendered *rendered, const json_t *messages,
                           struct s2s_error *err)
{
    const size_t n = json_array_size(messages);
    size_t n_keys = 1;
    for (size_t i = 0; i < n; i++)
        n_keys += json_object_size(json_array_get(messages, i));
    struct s2s_turn *turns = s2s_xcalloc(n + 1, sizeof *turns);
    struct s2s_part *parts = s2s_xcalloc(n + 1, sizeof *parts);
    struct s2s_turn_field *fields = s2s_xcalloc(n_keys, sizeof *fields), *next = fields;
    int rc = 0;
    for (size_t i = 0; i < n && rc == 0; i++) {
        const json_t *message = json_array_get(messages, i);
        rc = read_turn(&turns[i], &parts[i], next, message, err);
        next += json_object_size(message);
        if (rc < 0)
            s2s_error_add(err, rc, "message %zu", i);
    }
    if (rc == 0)
        rc = s2s_prompt_render(prompt, rendered, turns, n, opt->generate, err);
    free(turns);
    free(parts);
    free(fields);
    return rc;
}

static int render_line(const struct options *opt, const struct s2s_prompt *prompt,
                       struct s2s_buf *out, const char *line, size_t len, struct s2s_error *err)
{
    struct s2s_rendered rendered = S2S_RENDERED_INIT;
    json_error_t at;
    json_t *root = json_loadb(line, len, JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, &at);
    const json_t *messages = json_is_object(root) ? json_object_get(root, "messages") : root;
    int rc = json_is_array(messages)
                 ? render_messages(opt, prompt, &rendered, messages, err)
                 : s2s_error_set(err, S2S_E_FORMAT, "not a JSON array of messages%s%s",
                                 root ? "" : ": ", root ? "" : at.text);
    if (rc == 0) {
        add_ids(out, &rendered.ids, opt->common.json);
        if (opt->common.json) {
            out->len -= 2; /* "}\n" */
            s2s_buf_puts(out, ", \"loss_mask\": [");
            for (size_t i = 0; i < rendered.ids.len; i++)
                s2s_buf_printf(out, i ? ", %d" : "%d", rendered.loss_mask[i]);
            s2s_buf_puts(out, "]}\n");
        }
    }
    s2s_rendered_release(&rendered);
    json_decref(root);
    return rc;
}

static int parse_ids_json(struct s2s_ids *ids, const char *line, size_t len, struct s2s_error *err)
{
    json_error_t at;
    json_t *root = json_loadb(line, len, JSON_REJECT_DUPLICATES, &at), *item;
    const json_t *list = json_is_object(root) ? json_object_get(root, "ids") : root;
    size_t i;
    int rc = json_is_array(list) ? 0 : s2s_error_set(err, S2S_E_FORMAT, "not {\"ids\": [..]}");
    json_array_foreach(list, i, item)
    {
        json_int_t id = json_is_integer(item) ? json_integer_value(item) : -1;
        if (id < 0 || id > INT32_MAX) {
            rc = s2s_error_set(err, S2S_E_FORMAT, "id %zu is not an integer from 0 on", i);
            break;
        }
        s2s_ids_add(ids, (int32_t)id);
    }
    json_decref(root);
    return rc;
}

static int parse_ids(struct s2s_ids *ids, char *line, size_t len, struct s2s_error *err)
{
    char *rest = line;
    if (memchr(line, 0, len))
        return s2s_error_set(err, S2S_E_FORMAT, "a NUL among the ids");
    for (char *word; (word = strsep(&rest, " \t\r"));) {
        int64_t id;
        if (!*word)
            continue;
        int rc = s2s_parse_i64(&id, word, 0, INT32_MAX, err);
        if (rc < 0) {
            err->code = S2S_E_FORMAT; /* the input is bad, not the command line */
            return S2S_E_FORMAT;
        }
        s2s_ids_add(ids, (int32_t)id);
    }
    return 0;
}

static int decode_line(const struct options *opt, const struct s2s_tokenizer *tok,
                       struct s2s_buf *out, struct s2s_ids *ids, char *line, size_t len,
                       struct s2s_error *err)
{
    struct s2s_buf text = S2S_BUF_INIT;
    int rc =
        opt->common.json ? parse_ids_json(ids, line, len, err) : parse_ids(ids, line, len, err);
    if (rc == 0)
        rc = s2s_tokenizer_decode(tok, &text, ids->data, ids->len, opt->no_special, err);
    if (rc == 0 && !opt->common.json && text.len && memchr(text.data, '\n', text.len)) {
        rc = s2s_error_set(err, S2S_E_FORMAT, "the text holds a line feed");
        s2s_error_hint(err, rc, "use --json");
    }
    if (rc == 0 && opt->common.json) {
        json_t *string = json_stringn_nocheck(text.data ? text.data : "", text.len);
        char *dump = json_dumps(string, JSON_ENCODE_ANY);
        s2s_buf_puts(out, dump);
        s2s_buf_putc(out, '\n');
        free(dump);
        json_decref(string);
    } else if (rc == 0) {
        s2s_buf_add(out, text.data, text.len);
        s2s_buf_putc(out, '\n');
    }
    s2s_buf_release(&text);
    return rc;
}

/* ---- batches of lines, so that threads have something to chew on ---- */

enum { BATCH_LINES = 512, BATCH_BYTES = 1 << 20 };

struct batch {
    struct s2s_buf in, out; /* in: lines, each ended by a NUL of ours */
    size_t *lens;
    size_t n_lines, cap;
    int64_t first_line;
};

struct job {
    const struct options *opt;
    const struct s2s_tokenizer *tok;
    const struct s2s_prompt *prompt; /* NULL: lines are texts, or ids */
    FILE *file;
    const char *name; /* of the file */
    char *line;
    size_t line_cap;
    int64_t n_lines;
    struct s2s_outfile *out;
};

static void batch_free(struct batch *batch)
{
    s2s_buf_release(&batch->in);
    s2s_buf_release(&batch->out);
    free(batch->lens);
    free(batch);
}

static int read_batch(void *ctx, void **item, struct s2s_error *err)
{
    struct job *job = ctx;
    struct batch *batch = s2s_xcalloc(1, sizeof *batch);
    ssize_t len = 0;
    batch->first_line = job->n_lines + 1;
    while (batch->n_lines < BATCH_LINES && batch->in.len < BATCH_BYTES &&
           (len = s2s_xgetline(&job->line, &job->line_cap, job->file)) >= 0) {
        if (len > 0 && job->line[len - 1] == '\n')
            len--;
        s2s_grow(&batch->lens, batch->n_lines, &batch->cap, sizeof *batch->lens);
        batch->lens[batch->n_lines++] = (size_t)len;
        s2s_buf_add(&batch->in, job->line, (size_t)len);
        s2s_buf_putc(&batch->in, 0);
        job->n_lines++;
    }
    if (ferror(job->file)) {
        batch_free(batch);
        return s2s_error_errno(err, S2S_E_IO, "%s:%lld", job->name, (long long)job->n_lines + 1);
    }
    if (batch->n_lines == 0) {
        batch_free(batch);
        return 0;
    }
    *item = batch;
    return 1;
}

static int work_batch(void *ctx, void *item, int worker, struct s2s_error *err)
{
    struct job *job = ctx;
    struct batch *batch = item;
    struct s2s_ids ids = S2S_IDS_INIT;
    char *line = batch->in.data;
    int rc = 0;
    for (size_t i = 0; i < batch->n_lines && rc == 0; i++) {
        s2s_ids_clear(&ids);
        rc = job->prompt
                 ? render_line(job->opt, job->prompt, &batch->out, line, batch->lens[i], err)
             : job->opt->decode
                 ? decode_line(job->opt, job->tok, &batch->out, &ids, line, batch->lens[i], err)
                 : encode_line(job->opt, job->tok, &batch->out, &ids, line, batch->lens[i], err);
        if (rc < 0)
            s2s_error_add(err, rc, "%s:%lld", job->name,
                          (long long)(batch->first_line + (int64_t)i));
        line += batch->lens[i] + 1;
    }
    s2s_ids_release(&ids);
    return rc;
}

static int write_batch(void *ctx, void *item, struct s2s_error *err)
{
    struct job *job = ctx;
    struct batch *batch = item;
    int rc = s2s_outfile_write(job->out, batch->out.data, batch->out.len, err);
    if (rc == 0)
        rc = s2s_outfile_flush(job->out, err);
    batch_free(batch);
    return rc;
}

static void drop_batch(void *ctx, void *item)
{
    batch_free(item);
}

static int run(struct job *job, struct s2s_error *err)
{
    const struct s2s_ordered stages = {.source = read_batch,
                                       .work = work_batch,
                                       .sink = write_batch,
                                       .drop = drop_batch,
                                       .ctx = job};
    int rc = s2s_outfile_open(&job->out, job->opt->common.out, err);
    if (rc < 0)
        return rc;
    rc = s2s_ordered_run(&stages, job->opt->common.jobs, err);
    free(job->line);
    if (rc < 0) {
        s2s_outfile_abort(job->out);
        return rc;
    }
    return s2s_outfile_commit(job->out, err);
}

/* what reading would find only at its first line */
static int check_input(const struct job *job, struct s2s_error *err)
{
    struct stat st;
    if (fstat(fileno(job->file), &st) < 0)
        return s2s_error_errno(err, S2S_E_OPEN, "%s: cannot open", job->name);
    return S_ISDIR(st.st_mode) ? s2s_error_set(err, S2S_E_OPEN, "%s: is a folder", job->name) : 0;
}

int pack_tokenize(int argc, char **argv, struct s2s_error *err)
{
    struct options opt = {.common = S2S_COMMON_DEFAULT};
    struct s2s_tokenizer *tok = NULL;
    struct s2s_prompt *prompt = NULL;
    s2s_tool_parse(&tokenize_argp, argc, argv, &opt);
    struct job job = {.opt = &opt, .file = stdin, .name = "stdin"};
    if (opt.input && strcmp(opt.input, "-")) {
        job.name = opt.input;
        job.file = fopen(opt.input, "rbe");
        if (!job.file)
            return s2s_error_errno(err, S2S_E_OPEN, "%s", opt.input);
    }
    int rc = check_input(&job, err);
    if (rc == 0)
        rc = s2s_outfile_spares(opt.common.out, opt.input, err);
    if (rc == 0)
        rc = s2s_outfile_spares(opt.common.out, opt.tokenizer, err);
    if (rc == 0)
        rc = s2s_tokenizer_open(&tok, opt.tokenizer, err);
    if (rc == 0 && opt.prompt)
        rc = s2s_prompt_open(&prompt, opt.prompt, tok, NULL, err);
    job.tok = tok;
    job.prompt = prompt;
    if (rc == 0)
        rc = run(&job, err);
    s2s_prompt_free(prompt);
    s2s_tokenizer_free(tok);
    if (job.file != stdin)
        fclose(job.file);
    return rc;
}
