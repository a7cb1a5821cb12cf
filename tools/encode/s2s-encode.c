/* s2s-encode: audio spans to embeddings, spread over ranks. */
#include <math.h>
#include <unistd.h>

#include "lib/audio/features.h"
#include "lib/io/outfile.h"
#include "lib/tensor/device.h"
#include "tools/encode/encode.h"

enum {
    KEY_ENCODER = 0x100,
    KEY_PROJECTION,
    KEY_DTYPE,
    KEY_BATCH_SECONDS,
    KEY_DEVICE,
    KEY_FEATURES,
    KEY_CONFIG,
    KEY_PLAN,
    KEY_RANKS,
    KEY_LENGTHS
};

static const struct argp_option option_table[] = {
    {NULL, 0, NULL, 0, "Embeddings:", 1},
    {"encoder", KEY_ENCODER, "DIR", 0,
     "Encoder: config.json and weights, preprocessor_config.json or processor_config.json if it "
     "has one",
     1},
    {"projection", KEY_PROJECTION, "DIR|F", 0,
     "Also map to the language model's width: projection.safetensors", 1},
    {"dtype", KEY_DTYPE, "f32|bf16", 0, "Of the stored embeddings (default f32)", 1},
    {"batch-seconds", KEY_BATCH_SECONDS, "S", 0,
     "Seconds of sound that are held and encoded together; changes no byte (default 60, or 20 a "
     "thread)",
     1},
    {"device", KEY_DEVICE, "cpu|cuda", 0, "What runs the encoder (default cpu; doc/GPU.md)", 1},
    {NULL, 0, NULL, 0, "Features only:", 2},
    {"features", KEY_FEATURES, "mel", 0, "Log-mel features of a stream or of sound files", 2},
    {"config", KEY_CONFIG, "F", 0, "preprocessor_config.json (also with --encoder)", 2},
    {NULL, 0, NULL, 0, "Plan:", 3},
    {"plan", KEY_PLAN, NULL, 0, "Print which rank encodes which clip, dummies included", 3},
    {"ranks", KEY_RANKS, "N", 0, "Ranks of the plan (default: those of the launch)", 3},
    {"lengths", KEY_LENGTHS, "LIST", 0, "Plan for clips of these lengths: 900,400,700", 3},
    {0},
};

static size_t cap_inputs;

static void add_input(struct encode_options *opt, const char *input)
{
    char ***inputs = (char ***)(void *)&opt->inputs;
    s2s_grow(inputs, opt->n_inputs, &cap_inputs, sizeof **inputs);
    (*inputs)[opt->n_inputs++] = (char *)input;
}

static void check_options(struct encode_options *opt, struct argp_state *state)
{
    if (!!opt->encoder + !!opt->features + opt->plan != 1)
        argp_error(state, "one of --encoder, --features and --plan is needed");
    if (opt->projection && !opt->encoder)
        argp_error(state, "--projection needs --encoder");
    if (opt->device && !opt->encoder)
        argp_error(state, "--device needs --encoder");
    if (opt->lengths && (!opt->plan || opt->n_inputs))
        argp_error(state, "--lengths belongs to --plan and takes the place of IN");
    if (opt->ranks && !opt->plan)
        argp_error(state, "--ranks belongs to --plan; a run has the ranks of its launch");
    if (opt->lengths)
        return;
    if (opt->n_inputs == 0 && isatty(STDIN_FILENO))
        argp_error(state, "an input is missing (- is stdin)");
    if (opt->n_inputs == 0)
        add_input(opt, "-");
    if (opt->n_inputs > 1 && !opt->features)
        argp_error(state, "one input, not %zu", opt->n_inputs);
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    static const char *const dtypes[] = {"f32", "bf16", NULL};
    static const char *const features[] = {"mel", NULL};
    struct encode_options *opt = state->input;
    switch (key) {
    case KEY_ENCODER:
        opt->encoder = arg;
        return 0;
    case KEY_PROJECTION:
        opt->projection = arg;
        return 0;
    case KEY_DTYPE:
        opt->bf16 = s2s_arg_choice(state, "dtype", arg, dtypes) == 1;
        return 0;
    case KEY_BATCH_SECONDS:
        opt->batch_seconds = s2s_arg_f64(state, "batch-seconds", arg, 0.001, 1e9);
        return 0;
    case KEY_DEVICE:
        opt->device = s2s_device_names[s2s_arg_choice(state, "device", arg, s2s_device_names)];
        return 0;
    case KEY_FEATURES:
        s2s_arg_choice(state, "features", arg, features);
        opt->features = arg;
        return 0;
    case KEY_CONFIG:
        opt->config = arg;
        return 0;
    case KEY_PLAN:
        opt->plan = true;
        return 0;
    case KEY_RANKS:
        opt->ranks = (int)s2s_arg_i64(state, "ranks", arg, 1, 1000000);
        return 0;
    case KEY_LENGTHS:
        opt->lengths = arg;
        return 0;
    case ARGP_KEY_ARG:
        add_input(opt, arg);
        return 0;
    case ARGP_KEY_END:
        check_options(opt, state);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp argp = {
    option_table,
    parse,
    "--encoder DIR [IN]\n--features mel IN|F.wav...\n--plan --ranks N IN",
    "Clips of a pack or audio stream become embeddings, spread over the ranks of a launch. The "
    "output is the same bytes for any number of ranks and threads.\v"
    "Examples:\n"
    "  s2s-encode --encoder parakeet/ packs.s2s -o embeds.s2s\n"
    "  mpirun -n 4 s2s-encode --encoder parakeet/ packs.s2s -o embeds.s2s\n"
    "  s2s-encode --encoder parakeet/ --projection model/ packs.s2s -o embeds.s2s\n"
    "  s2s-encode --features mel hello.wav -o mel.s2s\n"
    "  s2s-encode --plan --ranks 2 --json --lengths 900,400,700,300,800\n"
    "\n"
    "Exit status: 0 done, 1 the input or the run is bad, 2 bad command line or an input that "
    "cannot be opened.\n"
    "See also: s2s-pack(1), s2s-cpshard(1), s2s-train(1)",
    NULL,
    NULL,
    NULL};

static int run_features(const struct encode_options *opt, struct s2s_error *err)
{
    static const struct s2s_args_rule rules[] = {{"config", S2S_ARGS_FILE}, {NULL, 0}};
    struct s2s_features_options options = {.config = opt->config,
                                           .inputs = opt->inputs,
                                           .n_inputs = opt->n_inputs,
                                           .out = opt->common.out,
                                           .jobs = opt->common.jobs};
    char **args = s2s_tool_args(rules, &options.n_args);
    options.args = args;
    int rc = s2s_features_run(&options, err);
    for (size_t i = 0; i < options.n_args; i++)
        free(args[i]);
    free(args);
    return rc;
}

static int run(const struct encode_options *opt, struct s2s_mesh *mesh, struct s2s_error *err)
{
    const bool first = s2s_mesh_rank(mesh) == 0;
    int rc = 0;
    if (first && !opt->plan && (!opt->common.out || !strcmp(opt->common.out, "-")))
        rc = s2s_tool_check_stdout(err);
    if (first && !opt->plan && rc == 0)
        rc = s2s_outfile_spares_each(opt->common.out, opt->inputs, opt->n_inputs, err);
    if ((rc = s2s_mesh_all_ok(mesh, rc, err)) < 0)
        return rc;
    if (opt->encoder)
        return encode_run(opt, mesh, err);
    /* one rank's work */
    if (first && opt->plan)
        rc = encode_plan(opt, opt->ranks ? opt->ranks : s2s_mesh_size(mesh), err);
    else if (first)
        rc = run_features(opt, err);
    return s2s_mesh_all_ok(mesh, rc, err);
}

int main(int argc, char **argv)
{
    struct encode_options opt = {.common = S2S_COMMON_DEFAULT};
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_mesh *mesh = NULL;
    s2s_tool_share_cores(argv);
    s2s_tool_begin("s2s-encode", argc, argv);
    s2s_tool_parse(&argp, argc, argv, &opt);
    int rc = s2s_mesh_open(&mesh, NULL, &err);
    if (rc == 0 && opt.batch_seconds == 0)
        opt.batch_seconds = fmax(ENCODE_BATCH_SECONDS,
                                 ENCODE_THREAD_SECONDS * opt.common.jobs * s2s_mesh_size(mesh));
    if (rc == 0)
        rc = run(&opt, mesh, &err);
    /* what all ranks know, one of them says, before any of them ends */
    if (rc < 0 && mesh && s2s_mesh_rank(mesh) != 0)
        rc = s2s_errc_exit_status(rc);
    int status = s2s_tool_end(rc, &err);
    s2s_mesh_close(mesh);
    free((void *)opt.inputs);
    return status;
}
