/* Evaluation on ranks that have more packs than others: all of them run, and wait once a set. */
#include "tests/unit/mesh/launch.h"

#include "lib/conf/conf.h"
#include "lib/model/salm.h"
#include "lib/train/trainer.h"
#include "tests/unit/train/packs.h"

static const char encoder_config[] =
    "{\"model_type\": \"parakeet_encoder\", \"hidden_size\": 16, \"num_hidden_layers\": 1,"
    " \"num_attention_heads\": 2, \"intermediate_size\": 24, \"conv_kernel_size\": 3,"
    " \"subsampling_conv_channels\": 4, \"num_mel_bins\": 8, \"subsampling_factor\": 4}";
static const char llm_config[] =
    "{\"model_type\": \"qwen3\", \"vocab_size\": 37, \"hidden_size\": 24, \"head_dim\": 8,"
    " \"intermediate_size\": 40, \"num_hidden_layers\": 1, \"num_attention_heads\": 4,"
    " \"num_key_value_heads\": 2, \"initializer_range\": 0.3, \"tie_word_embeddings\": true}";

/* ---- a device that counts ---- */

static struct s2s_kernels counting;
static int64_t n_norms, n_waits;

static void rmsnorm(struct s2s_queue *queue, const struct s2s_k_rmsnorm *args)
{
    n_norms++;
    s2s_kernels_cpu.rmsnorm(queue, args);
}

static void copy_out(struct s2s_queue *queue, void *host, const void *src, size_t bytes)
{
    n_waits++;
    s2s_kernels_cpu.copy_out(queue, host, src, bytes);
}

static void sync_queue(struct s2s_queue *queue)
{
    n_waits++;
    s2s_kernels_cpu.sync(queue);
}

static struct s2s_conf *parse(const char *text)
{
    struct s2s_conf *conf = NULL;
    struct s2s_error err = S2S_ERROR_INIT;
    if (s2s_conf_parse(&conf, text, strlen(text), "config", S2S_CONF_JSON, &err) < 0) {
        fprintf(stderr, "%s\n", err.text);
        exit(1);
    }
    return conf;
}

static void open_bundle(struct s2s_bundle *bundle, struct s2s_conf *encoder, struct s2s_conf *llm)
{
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_salm_parts parts = {.encoder.conf = encoder, .llm.conf = llm};
    *bundle = (struct s2s_bundle){.composite = true};
    counting = s2s_kernels_cpu;
    counting.rmsnorm = rmsnorm;
    counting.copy_out = copy_out;
    counting.sync = sync_queue;
    expect(s2s_device_new(&bundle->device, &counting, &err) == 0, "device");
    expect(s2s_salm_open(&bundle->model, bundle->device, NULL, &parts, &err) == 0, err.text);
    static const struct s2s_stages_spec one = S2S_STAGES_SPEC_INIT;
    expect(s2s_stages_init(&bundle->stages, bundle->model, &one, 1, 0, &err) == 0, err.text);
    expect(s2s_params_finish(bundle->model->params, &err) == 0, err.text);
    s2s_params_init(bundle->model->params, 5);
}

/* ---- the ranks ---- */

static struct s2s_grid *grid_of(struct s2s_mesh *mesh, const char *name, int tp, int dp)
{
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_grid_spec spec = S2S_GRID_SPEC_INIT;
    struct s2s_grid *grid = NULL;
    spec.name = name;
    spec.size[S2S_AXIS_TP] = tp;
    spec.size[S2S_AXIS_DP] = dp;
    expect(s2s_mesh_add_grid(&grid, mesh, &spec, &err) == 0, "grid");
    return grid;
}

/* Norms that were computed are as many as on every other rank. */
static struct s2s_eval_result evaluate(struct s2s_bundle *bundle, struct s2s_mesh *mesh,
                                       struct s2s_grid *grid, const char *path, bool shuffle)
{
    struct s2s_eval_options options = {.shuffle_audio = shuffle, .max_tokens = shuffle ? 12 : 0};
    struct s2s_eval_result result;
    struct s2s_error err = S2S_ERROR_INIT;
    n_norms = n_waits = 0;
    int rc = s2s_evaluate(&result, bundle, grid, path, NULL, &options, &err);
    expect(rc == 0, err.text);
    expect(n_waits == 1, "one wait a set");
    int64_t least = -n_norms, most = n_norms;
    s2s_comm_all_reduce(s2s_mesh_world(mesh), &least, 1, S2S_I64, S2S_GROUP_MAX);
    s2s_comm_all_reduce(s2s_mesh_world(mesh), &most, 1, S2S_I64, S2S_GROUP_MAX);
    expect(least == -most && most > 0, "every rank runs the same forward passes");
    return result;
}

/* Peers along tp evaluate the same packs, of which each counts once. */
static void sets(struct s2s_mesh *mesh, struct s2s_bundle *bundle, const char *path)
{
    struct s2s_grid *both = grid_of(mesh, "dp", 1, 2), *peers = grid_of(mesh, "tp", 2, 1);
    for (int shuffle = 0; shuffle < 2; shuffle++) {
        struct s2s_eval_result a = evaluate(bundle, mesh, both, path, shuffle),
                               b = evaluate(bundle, mesh, peers, path, shuffle);
        expect(a.n_utterances == 6 && a.n_labels == 9, "counts");
        expect(b.n_utterances == 6 && b.n_labels == 9, "counts of peers");
        expect(a.n_right == b.n_right, "hits");
        const double apart = a.loss_sum - b.loss_sum;
        expect(a.loss_sum > 1 && apart < 1e-4 && apart > -1e-4, "loss");
    }
}

/* A label out of range is found before any rank runs. */
static void bad_label(struct s2s_mesh *mesh, struct s2s_bundle *bundle, const char *path)
{
    struct s2s_grid *grid = grid_of(mesh, "dp", 1, 2);
    const struct s2s_eval_options options = {.shuffle_audio = false};
    struct s2s_eval_result result;
    struct s2s_error err = S2S_ERROR_INIT;
    n_norms = 0;
    int rc = s2s_evaluate(&result, bundle, grid, path, NULL, &options, &err);
    expect(n_norms == 0, "nobody runs");
    expect((rc < 0) == (s2s_mesh_rank(mesh) == 1), "the one that has it fails");
    rc = s2s_mesh_all_ok(mesh, rc, &err);
    expect(rc == S2S_E_RANGE && strstr(err.text, "[rank 1]: ") && strstr(err.text, "record 1: ") &&
               strstr(err.text, "input_ids[0] = 37"),
           err.text);
}

static int child(const char *what)
{
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_mesh *mesh = NULL;
    struct s2s_bundle bundle;
    struct s2s_conf *encoder = parse(encoder_config), *llm = parse(llm_config);
    if (s2s_mesh_open(&mesh, &(struct s2s_mesh_options){.timeout_s = 20}, &err) < 0) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    open_bundle(&bundle, encoder, llm);
    if (strncmp(what, "bad ", 4) == 0)
        bad_label(mesh, &bundle, what + 4);
    else
        sets(mesh, &bundle, what);
    s2s_bundle_free(&bundle);
    s2s_conf_free(encoder);
    s2s_conf_free(llm);
    s2s_mesh_close(mesh);
    return bad;
}

/* ---- the tests ---- */

static char folder[] = "/tmp/s2s-evaluate-XXXXXX";

static void launch_on(const char *mode, const char *name, int32_t salt)
{
    char *path = s2s_xasprintf("%s/%s", folder, name), *what = s2s_xasprintf("%s%s", mode, path);
    write_stream(path, salt, 3);
    launch_well(2, what);
    unlink(path);
    free(path);
    free(what);
}

static void all_ranks_run_the_same_passes_and_wait_once_a_set(void **state)
{
    launch_on("", "good.s2s", 0);
}

static void a_bad_pack_is_found_before_any_rank_runs(void **state)
{
    launch_on("bad ", "bad.s2s", 36);
}

static int make_folder(void **state)
{
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    return rmdir(folder);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_ranks_run_the_same_passes_and_wait_once_a_set),
        cmocka_unit_test(a_bad_pack_is_found_before_any_rank_runs),
    };
    if (argc == 3 && strcmp(argv[1], "--child") == 0)
        return child(argv[2]);
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
