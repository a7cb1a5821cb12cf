/* `s2s-pack buckets`: lengths to batches of like length. */
#include "tools/pack/batching.h"
#include "tools/pack/lengths.h"
#include "tools/pack/pack.h"

struct options {
    struct s2s_common common;
    struct pack_batching batching;
    int64_t shuffle, multiple;
    bool estimate;
    const char *input;
};

enum { KEY_SHUFFLE = 0x100, KEY_MULTIPLE, KEY_ESTIMATE };

static const struct argp_option option_table[] = {
    {"batch-size", PACK_KEY_BATCH_SIZE, "N", 0, "N lengths a batch at most", 1},
    {"batch-duration", PACK_KEY_BATCH_DURATION, "X", 0,
     "A batch's longest length times their number is at most X", 1},
    PACK_BATCHING_OPTIONS(1),
    {"shuffle", KEY_SHUFFLE, "N", 0,
     "Draw batches by --seed, and hold N lengths more in the buckets", 1},
    {"bins-multiple", KEY_MULTIPLE, "N", 0,
     "A multiple of N batches, N in a row of one bucket (default 1)", 1},
    {"estimate", KEY_ESTIMATE, NULL, 0, "Print the bounds of --buckets alone", 1},
    {0},
};

static void check_options(const struct options *opt, struct argp_state *state)
{
    if (opt->estimate && opt->batching.n_buckets == 0)
        argp_error(state, "--estimate goes with --buckets N");
    if (!opt->estimate)
        pack_batching_check(&opt->batching, state);
    if (!opt->estimate && !pack_batching_is_on(&opt->batching))
        argp_error(state, "--batch-size, --batch-duration or --bucket-sizes is needed");
    if (opt->shuffle > 0 && !pack_batching_has_buckets(&opt->batching))
        argp_error(state, "--shuffle goes with --buckets");
}

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
    struct options *opt = state->input;
    if (pack_batching_parse(&opt->batching, key, arg, state))
        return 0;
    switch (key) {
    case KEY_SHUFFLE:
        opt->shuffle = s2s_arg_i64(state, "shuffle", arg, 1, S2S_BUCKETS_MAX_BUFFER);
        return 0;
    case KEY_MULTIPLE:
        opt->multiple = s2s_arg_i64(state, "bins-multiple", arg, 1, 1 << 20);
        return 0;
    case KEY_ESTIMATE:
        opt->estimate = true;
        return 0;
    case ARGP_KEY_ARG:
        pack_lengths_take(state, &opt->input, arg);
        return 0;
    case ARGP_KEY_END:
        check_options(opt, state);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp buckets_argp = {
    .options = option_table,
    .parser = parse_option,
    .args_doc = "(--batch-size N | --batch-duration X | ..) [--buckets N|A,B,..] [LENGTHS.txt]",
    .doc =
        "Batch lengths, one a line, with others of like length, as Lhotse's samplers do it."
        "\vA line may have any number that is not negative, such as seconds; with bounds A:T two. "
        "A "
        "line of output is a batch: the indices of its lengths, from 0. With --json: {\"bounds\": "
        "[..], \"batches\": [[0,3],..], \"fill\": ..}.\n\n"
        "Examples:\n"
        "  printf '%s\\n' 4 1 3 2 | s2s-pack buckets --batch-size 2 --buckets 2.5,9\n"
        "  s2s-pack buckets --estimate --buckets 3 lengths.txt\n\n"
        "Exit status: 0 done, 1 a length is bad or a write failed, 2 bad command line or an "
        "input that cannot be opened.\n"
        "See also: s2s-pack(1)",
};

struct result {
    const struct options *opt;
    struct s2s_bins bins;
    double *bounds; /* [n_bounds] */
    size_t n_bounds, n_unfit;
};

static int work(void *ctx, const struct pack_lengths *lengths, struct s2s_error *err)
{
    struct result *r = ctx;
    const struct options *opt = r->opt;
    const struct pack_batching_of of = {.lens = lengths->reals,
                                        .lens2 = lengths->second,
                                        .n = lengths->n,
                                        .max = 1e300,
                                        .shuffle = (uint64_t)opt->shuffle,
                                        .seed = (uint64_t)opt->common.seed,
                                        .multiple = opt->multiple};
    r->n_bounds = pack_batching_bounds(&r->bounds, &opt->batching, &of);
    return opt->estimate ? 0 : pack_batching_run(&r->bins, &r->n_unfit, &opt->batching, &of, err);
}

/* What the batches have of what they would have if all lengths were their longest. */
static double fill_of(const struct s2s_bins *bins, const double *lens)
{
    double real = 0, padded = 0;
    for (size_t b = 0; b < bins->n_bins; b++) {
        double longest = 0;
        for (size_t i = bins->begin[b]; i < bins->begin[b + 1]; i++) {
            const double len = lens[bins->items[i]];
            real += len;
            longest = len > longest ? len : longest;
        }
        padded += longest * (double)(bins->begin[b + 1] - bins->begin[b]);
    }
    return padded > 0 ? real / padded : 0;
}

static void print_bounds(const struct result *r)
{
    for (size_t i = 0; i < r->n_bounds; i++) {
        printf("%s%.10g", i ? "," : "", r->bounds[i]);
        if (r->opt->batching.n_bins2 > 0)
            printf(":%.10g", r->opt->batching.bins2[i]);
    }
}

static void print_json(const struct result *r, double fill)
{
    fputs("{\"bounds\": [", stdout);
    for (size_t i = 0; i < r->n_bounds; i++) {
        fputs(i ? "," : "", stdout);
        if (r->opt->batching.n_bins2 > 0)
            printf("[%.17g,%.17g]", r->bounds[i], r->opt->batching.bins2[i]);
        else
            printf("%.17g", r->bounds[i]);
    }
    fputs("], \"batches\": [", stdout);
    for (size_t b = 0; b < r->bins.n_bins; b++) {
        fputs(b ? ",[" : "[", stdout);
        for (size_t i = r->bins.begin[b]; i < r->bins.begin[b + 1]; i++)
            printf("%s%u", i == r->bins.begin[b] ? "" : ",", r->bins.items[i]);
        putchar(']');
    }
    printf("], \"fill\": %.12g}\n", fill);
}

static void print(const void *ctx, const struct pack_lengths *lengths)
{
    const struct result *r = ctx;
    const double fill = fill_of(&r->bins, lengths->reals);
    if (r->opt->common.json) {
        print_json(r, fill);
    } else if (r->opt->estimate) {
        print_bounds(r);
        putchar('\n');
    }
    for (size_t b = 0; b < r->bins.n_bins && !r->opt->common.json; b++)
        for (size_t i = r->bins.begin[b]; i < r->bins.begin[b + 1]; i++)
            printf("%u%c", r->bins.items[i], i + 1 < r->bins.begin[b + 1] ? ' ' : '\n');
    if (r->n_unfit > 0)
        s2s_warn("pack", "%zu lengths fit no bucket, and are left out", r->n_unfit);
    s2s_info("pack", "%zu lengths in %zu batches, fill %.4f", lengths->n, r->bins.n_bins, fill);
}

int pack_buckets(int argc, char **argv, struct s2s_error *err)
{
    struct options opt = {.common = S2S_COMMON_DEFAULT, .multiple = 1};
    struct result result = {.opt = &opt, .bins = S2S_BINS_INIT};
    struct pack_lengths_command command = {.work = work, .print = print, .ctx = &result};
    s2s_tool_parse(&buckets_argp, argc, argv, &opt);
    command.n_columns = opt.batching.n_bins2 > 0 ? 2 : 1;
    int rc = pack_lengths_run(&command, opt.input, opt.common.out, err);
    s2s_bins_release(&result.bins);
    pack_batching_release(&opt.batching);
    free(result.bounds);
    return rc;
}
