/* `s2s-pack batches`: lengths to padded microbatches of like length (lib/thd/dynamic.h). */
#include "lib/thd/dynamic.h"
#include "tools/pack/lengths.h"
#include "tools/pack/pack.h"

struct options {
    struct s2s_common common;
    struct s2s_dynamic_options how;
    int64_t batch_size;
    const char *input;
};

enum { KEY_TOKENS = 0x100, KEY_DP, KEY_ROUND, KEY_WIDTH, KEY_BATCH_SIZE };

static const struct argp_option option_table[] = {
    {"tokens", KEY_TOKENS, "N", 0, "Rows times length of a microbatch at most", 1},
    {"dp", KEY_DP, "N", 0, "Data-parallel ranks (default 1)", 1},
    {"round", KEY_ROUND, "N", 0, "Round lengths up to a multiple of N (default 1)", 1},
    {"width", KEY_WIDTH, "N", 0, "But to no more than N", 1},
    {"batch-size", KEY_BATCH_SIZE, "N", 0, "Every N lengths are a global batch (default: all)", 1},
    {0},
};

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
    struct options *opt = state->input;
    switch (key) {
    case KEY_TOKENS:
        opt->how.max_tokens = s2s_arg_i64(state, "tokens", arg, 1, INT32_MAX);
        return 0;
    case KEY_DP:
        opt->how.dp_size = s2s_arg_i64(state, "dp", arg, 1, 1 << 20);
        return 0;
    case KEY_ROUND:
        opt->how.round = s2s_arg_i64(state, "round", arg, 1, INT32_MAX);
        return 0;
    case KEY_WIDTH:
        opt->how.width = s2s_arg_i64(state, "width", arg, 1, INT32_MAX);
        return 0;
    case KEY_BATCH_SIZE:
        opt->batch_size = s2s_arg_i64(state, "batch-size", arg, 1, INT32_MAX);
        return 0;
    case ARGP_KEY_ARG:
        pack_lengths_take(state, &opt->input, arg);
        return 0;
    case ARGP_KEY_END:
        if (opt->how.max_tokens == 0)
            argp_error(state, "--tokens is missing");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp batches_argp = {
    .options = option_table,
    .parser = parse_option,
    .args_doc = "--tokens N [LENGTHS.txt]",
    .doc = "Cut global batches of lengths, one a line, into padded microbatches of like length."
           "\vA line of output is a microbatch: the length of its rows, then for each "
           "data-parallel rank the indices of its lengths, from 0. With --json: {\"batches\": "
           "[[{\"length\": .., \"ranks\": [[..], ..]}, ..], ..], \"fill\": ..}.\n\n"
           "Examples:\n"
           "  printf '%s\\n' 4 1 3 2 1 3 4 5 | s2s-pack batches --tokens 8 --dp 2\n\n"
           "Exit status: 0 done, 1 a length is bad or a write failed, 2 bad command line or an "
           "input that cannot be opened.\n"
           "See also: s2s-pack(1)",
};

/* Indices of one rank in a microbatch; first: index of the global batch's first length. */
static void put_rank(struct s2s_buf *to, const struct s2s_dynamic *d, size_t m, int64_t rank,
                     int64_t dp_size, size_t first, bool json)
{
    s2s_buf_puts(to, json ? (rank ? ",[" : "[") : "\t");
    for (size_t j = d->begin[m]; j < d->begin[m + 1]; j++)
        s2s_buf_printf(to, "%s%zu",
                       j == d->begin[m] ? ""
                       : json           ? ","
                                        : " ",
                       first + d->order[j * (size_t)dp_size + (size_t)rank]);
    s2s_buf_puts(to, json ? "]" : "");
}

static void print_batch(const struct s2s_dynamic *d, const struct options *opt, size_t first)
{
    const bool json = opt->common.json;
    struct s2s_buf line = S2S_BUF_INIT;
    fputs(json ? (first ? ",[" : "[") : "", stdout);
    for (size_t m = 0; m < d->n_micro; m++) {
        s2s_buf_clear(&line);
        s2s_buf_printf(&line, json ? "%s{\"length\": %d, \"ranks\": [" : "%s%d",
                       json && m ? "," : "", d->len[m]);
        for (int64_t r = 0; r < opt->how.dp_size; r++)
            put_rank(&line, d, m, r, opt->how.dp_size, first, json);
        s2s_buf_puts(&line, json ? "]}" : "\n");
        fwrite(line.data, 1, line.len, stdout);
    }
    fputs(json ? "]" : "", stdout);
    s2s_buf_release(&line);
}

/* One s2s_dynamic a global batch of `each` lengths, but the last. */
struct result {
    const struct options *opt;
    struct s2s_dynamic *batches; /* [n] */
    size_t n, each;
};

static int work(void *ctx, const struct pack_lengths *lengths, struct s2s_error *err)
{
    struct result *r = ctx;
    const size_t n = lengths->n;
    r->each = r->opt->batch_size > 0 ? (size_t)r->opt->batch_size : n;
    r->batches = s2s_xcalloc(n > 0 ? (n - 1) / r->each + 1 : 1, sizeof *r->batches);
    for (size_t first = 0; first < n; first += r->each) {
        const size_t n_here = r->each < n - first ? r->each : n - first;
        int rc =
            s2s_thd_dynamic(&r->batches[r->n], lengths->lens + first, n_here, &r->opt->how, err);
        if (rc < 0)
            return s2s_error_add(err, rc, "lengths from %zu on", first);
        r->n++;
    }
    return 0;
}

static void print(const void *ctx, const struct pack_lengths *lengths)
{
    const struct result *r = ctx;
    int64_t real = 0, slots = 0;
    fputs(r->opt->common.json ? "{\"batches\": [" : "", stdout);
    for (size_t k = 0; k < r->n; k++) {
        const struct s2s_dynamic *d = &r->batches[k];
        print_batch(d, r->opt, k * r->each);
        for (size_t m = 0; m < d->n_micro; m++)
            slots += (int64_t)(d->begin[m + 1] - d->begin[m]) * r->opt->how.dp_size * d->len[m];
    }
    for (size_t i = 0; i < lengths->n; i++)
        real += lengths->lens[i];
    const double fill = slots > 0 ? (double)real / (double)slots : 0;
    if (r->opt->common.json)
        printf("], \"fill\": %.12g}\n", fill);
    s2s_info("pack", "%zu lengths, fill %.4f", lengths->n, fill);
}

int pack_batches(int argc, char **argv, struct s2s_error *err)
{
    struct options opt = {.common = S2S_COMMON_DEFAULT, .how = S2S_DYNAMIC_OPTIONS_DEFAULT};
    struct result result = {.opt = &opt};
    const struct pack_lengths_command command = {.work = work, .print = print, .ctx = &result};
    s2s_tool_parse(&batches_argp, argc, argv, &opt);
    int rc = pack_refuse_seed(&opt.common, err);
    if (rc == 0)
        rc = pack_lengths_run(&command, opt.input, opt.common.out, err);
    for (size_t k = 0; k < result.n; k++)
        s2s_dynamic_release(&result.batches[k]);
    free(result.batches);
    return rc;
}
