/* The step over a tiny decoder: what it refuses, what it hands to other ranks, what it changes. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <unistd.h>

#include <cmocka.h>

#include "lib/base/base.h"
#include "lib/conf/conf.h"
#include "lib/train/step.h"
#include "tests/unit/tensor/team.h"

enum { TOKENS = 8, VOCAB = 16, PACKS = 3 };

static const char config[] =
    "{\"model_type\": \"llama\", \"vocab_size\": 16, \"hidden_size\": 8, \"num_hidden_layers\": 1,"
    " \"num_attention_heads\": 2, \"intermediate_size\": 16, \"tie_word_embeddings\": true}";

static struct s2s_mesh *mesh;
static struct s2s_layout layout; /* of one process */

struct bench {
    struct s2s_device *device;
    struct s2s_model *model;
    struct s2s_optim *optim;
    struct s2s_side side;
    struct s2s_pack packs[PACKS];
    struct s2s_pack *list[PACKS];
    int32_t ids[PACKS][TOKENS], labels[PACKS][TOKENS], positions[TOKENS], cu[2];
};

static void make_packs(struct bench *b)
{
    static char *const places[PACKS] = {"t.s2s: record 0", "t.s2s: record 1", "t.s2s: record 2"};
    b->cu[1] = TOKENS;
    for (int p = 0; p < PACKS; p++) {
        for (int i = 0; i < TOKENS; i++) {
            b->positions[i] = i;
            b->ids[p][i] = (p + 3 * i) % VOCAB;
            b->labels[p][i] = (p + 3 * i + 3) % VOCAB;
        }
        b->packs[p] = (struct s2s_pack){.batch = {.n_tokens = TOKENS,
                                                  .n_seqs = 1,
                                                  .input_ids = b->ids[p],
                                                  .labels = b->labels[p],
                                                  .position_ids = b->positions,
                                                  .cu_seqlens = b->cu,
                                                  .max_seqlen = TOKENS},
                                        .n_labels = TOKENS,
                                        .n_real = TOKENS,
                                        .place = places[p]};
        b->list[p] = &b->packs[p];
    }
}

static void open_bench(struct bench *b)
{
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_conf *conf;
    struct s2s_adamw_options adamw = S2S_ADAMW_OPTIONS_DEFAULT;
    *b = (struct bench){.device = NULL};
    assert_int_equal(s2s_conf_parse(&conf, config, strlen(config), "c", S2S_CONF_JSON, &err), 0);
    assert_int_equal(s2s_device_open(&b->device, "cpu", &err), 0);
    struct s2s_model_options options = {.conf = conf};
    assert_int_equal(s2s_model_open(&b->model, b->device, NULL, NULL, &options, &err), 0);
    s2s_conf_free(conf);
    struct s2s_params *params = b->model->params;
    assert_int_equal(s2s_params_finish(params, &err), 0);
    s2s_params_init(params, 1);
    assert_int_equal(s2s_optim_new(&b->optim, params, &adamw, 0, params->n_trained, &err), 0);
    s2s_side_init(&b->side, mesh, b->model, b->optim,
                  &(struct s2s_side_options){.layout = &layout});
    make_packs(b);
}

static void close_bench(struct bench *b)
{
    s2s_side_release(&b->side);
    s2s_optim_free(b->optim);
    s2s_model_free(b->model);
    s2s_device_close(b->device);
}

static int step(struct bench *b, int64_t first, int64_t n, struct s2s_step_result *result,
                struct s2s_error *err)
{
    const struct s2s_feed_step data = {b->list + first, n, n};
    const struct s2s_step_options options = {.number = 1, .lr = 1e-2};
    return s2s_train_step(&b->side, &data, &options, result, err);
}

static float *copy_values(const struct bench *b)
{
    const size_t bytes = (size_t)b->model->params->n_trained * sizeof(float);
    float *copy = malloc(bytes);
    memcpy(copy, b->model->params->master, bytes);
    return copy;
}

/* T2. What one batch cannot be is known before any of the step is computed. */
static void t2_a_bad_batch_is_refused_before_anything_is_computed(void **state)
{
    struct bench b;
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_step_result result;
    open_bench(&b);
    float *before = copy_values(&b);
    b.labels[2][5] = VOCAB; /* of the last microbatch */
    assert_int_equal(step(&b, 0, PACKS, &result, &err), S2S_E_RANGE);
    assert_non_null(strstr(err.text, "t.s2s: record 2"));
    assert_int_equal(b.side.flow.n_lanes, 0); /* nothing was recorded, not of the good ones */
    assert_memory_equal(before, b.model->params->master,
                        (size_t)b.model->params->n_trained * sizeof(float));
    free(before);
    close_bench(&b);
}

/* T3. The loss of the step is the mean over all microbatches, read back once at its end. */
static void t3_losses_are_summed_over_microbatches_and_read_once(void **state)
{
    struct bench b;
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_step_result one, all;
    double sum = 0;
    for (int p = 0; p < PACKS; p++) {
        open_bench(&b);
        assert_int_equal(step(&b, p, 1, &one, &err), 0);
        sum += one.loss;
        close_bench(&b);
    }
    open_bench(&b);
    assert_int_equal(step(&b, 0, PACKS, &all, &err), 0);
    assert_int_equal(all.labels, PACKS * TOKENS);
    assert_int_equal(all.samples, PACKS);
    assert_true(fabs(all.loss - sum / PACKS) < 1e-6);
    close_bench(&b);
}

/* T3, T4. What is not finite is found by its layer, and nothing was changed. */
static void t4_a_step_that_is_not_finite_changes_nothing_and_names_the_layer(void **state)
{
    struct bench b;
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_step_result result;
    open_bench(&b);
    struct s2s_param *p = s2s_params_find(b.model->params, "model.layers.0.mlp.up_proj.weight");
    ((float *)p->tensor->data)[3] = NAN;
    float *before = copy_values(&b);
    assert_int_equal(step(&b, 0, PACKS, &result, &err), S2S_E_RANGE);
    assert_non_null(strstr(err.text, "model.layers.0.mlp"));
    assert_non_null(strstr(err.text, "t.s2s: record 0"));
    assert_memory_equal(before, b.model->params->master,
                        (size_t)b.model->params->n_trained * sizeof(float));
    assert_int_equal(b.optim->t, 0);
    free(before);
    close_bench(&b);
}

/* ---- what goes to other ranks ---- */

static struct {
    const struct s2s_queue *queue;
    const float *begin;
    int64_t n;
    int calls, waits;
} reduced;

static int64_t note_reduction(const struct s2s_group *g, struct s2s_queue *queue, void *buf,
                              int64_t n, enum s2s_dtype dtype, enum s2s_group_op op)
{
    reduced.queue = queue;
    reduced.begin = buf;
    reduced.n += n;
    return ++reduced.calls;
}

static void note_wait(const struct s2s_group *g, struct s2s_queue *queue, int64_t ticket)
{
    reduced.waits++;
}

/* T7. Tensors go through the group that knows the device's queue, control data through another. All
 * gradients go, the first ones last, whether or not the backward starts them. */
static void t7_gradients_are_reduced_in_the_queue_of_the_device(void **state)
{
    static const struct s2s_group_ops ops = {
        .memory = "cpu", .start_all_reduce = note_reduction, .wait = note_wait};
    const struct s2s_group pair = {"dp", 2, 0, &ops, NULL};
    struct s2s_layout wide = layout;
    wide.gradients = wide.expert_gradients = &pair;
    for (int overlap = 0; overlap < 2; overlap++) {
        struct bench b;
        struct s2s_error err = S2S_ERROR_INIT;
        struct s2s_step_result result;
        const struct s2s_buckets_options options = {
            .layout = &wide, .bucket_bytes = 256, .overlap = overlap == 1};
        open_bench(&b);
        s2s_buckets_free(b.side.buckets);
        b.side.buckets = s2s_buckets_new(b.model, &options);
        memset(&reduced, 0, sizeof reduced);
        assert_int_equal(step(&b, 0, 1, &result, &err), 0);
        assert_int_equal(reduced.calls, b.side.buckets->n);
        assert_int_equal(reduced.waits, reduced.calls);
        assert_true(reduced.calls > 4);
        assert_ptr_equal(reduced.queue, &b.device->queue);
        assert_ptr_equal(reduced.begin, b.model->params->grads);
        assert_int_equal(reduced.n, b.model->params->n_trained);
        close_bench(&b);
    }
}

static struct {
    const struct s2s_params *params;
    float *then; /* the gradients as they were when their sum was started */
    const char *layer;
    int calls;
} started;

static int64_t keep_gradients(const struct s2s_group *g, struct s2s_queue *queue, void *buf,
                              int64_t n, enum s2s_dtype dtype, enum s2s_group_op op)
{
    if (started.calls == 0)
        started.layer = queue->layer;
    memcpy(started.then + ((float *)buf - started.params->grads), buf, (size_t)n * sizeof(float));
    return ++started.calls;
}

static void wait_for_nothing(const struct s2s_group *g, struct s2s_queue *queue, int64_t ticket)
{
}

/* A bucket is started in the last backward, and nobody adds to it any more; also where the head is
 * the embedding, and where layers run again. */
static void a_sum_is_started_when_its_gradients_are_complete(void **state)
{
    static const struct s2s_group_ops ops = {
        .memory = "cpu", .start_all_reduce = keep_gradients, .wait = wait_for_nothing};
    const struct s2s_group pair = {"dp", 2, 0, &ops, NULL};
    struct s2s_layout wide = layout;
    wide.gradients = wide.expert_gradients = &pair;
    for (int how = 0; how < 4; how++) {
        struct bench b;
        struct s2s_error err = S2S_ERROR_INIT;
        struct s2s_step_result result;
        const struct s2s_buckets_options options = {
            .layout = &wide, .bucket_bytes = 128, .overlap = how < 2};
        open_bench(&b);
        b.side.recompute = how & 1;
        s2s_buckets_free(b.side.buckets);
        b.side.buckets = s2s_buckets_new(b.model, &options);
        const size_t bytes = (size_t)b.model->params->n_trained * sizeof(float);
        started.params = b.model->params;
        started.then = calloc(1, bytes);
        started.calls = 0;
        assert_int_equal(step(&b, 0, PACKS, &result, &err), 0);
        assert_memory_equal(started.then, b.model->params->grads, bytes);
        if (options.overlap)
            assert_string_not_equal(started.layer, "model.embed_tokens");
        else
            assert_string_equal(started.layer, "model.embed_tokens");
        free(started.then);
        close_bench(&b);
    }
}

/* ---- what ranks divide ---- */

enum { TEAM = 2, ALL_VALUES = 4096 };

/* Values and moments after three steps, each put here by who has it. */
struct divided {
    enum s2s_sharding sharding;
    int64_t microbatches;
    bool recompute;
    float values[3][ALL_VALUES];
    int64_t n;      /* of each */
    int64_t stored; /* values that rank 0 has */
};

static void collect_divided(const struct bench *b, int rank, struct divided *d)
{
    const struct s2s_params *params = b->model->params;
    int64_t at = 0;
    for (size_t i = 0; i < params->n; i++) {
        const struct s2s_param *p = params->list[i];
        if (at + p->numel > ALL_VALUES)
            S2S_BUG("a model of more values than the test has room for");
        if (rank == 0)
            d->stored += p->stored_end - p->stored_begin;
        if (rank == 0 || d->sharding == S2S_SHARD_ALL)
            s2s_param_get(p, d->values[0] + at);
        if (rank == 0 || d->sharding != S2S_NO_SHARD)
            for (int which = 0; which < 2; which++)
                s2s_optim_get(b->optim, p, which, d->values[1 + which] + at);
        at += p->numel;
    }
    if (rank == 0)
        d->n = at;
}

/* As a rank: packs number rank, rank + TEAM, .. of its own, tokens of all. */
static void run_divided(const struct s2s_group *g, void *ctx)
{
    static const struct s2s_layout_spec one = S2S_LAYOUT_SPEC_INIT;
    struct divided *d = ctx;
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_adamw_options adamw = S2S_ADAMW_OPTIONS_DEFAULT;
    struct s2s_conf *conf;
    struct s2s_mesh *alone;
    struct s2s_layout wide;
    struct bench b = {.device = NULL};
    struct s2s_model_options options = {.conf = NULL};
    int rc = s2s_mesh_open(&alone, NULL, &err);
    if (rc < 0 || s2s_conf_parse(&conf, config, strlen(config), "c", S2S_CONF_JSON, &err) < 0 ||
        s2s_device_open(&b.device, "cpu", &err) < 0 ||
        s2s_layout_init(&wide, alone, &one, b.device, &err) < 0)
        S2S_BUG("%s", err.text);
    b.device->queue.lanes = 1;
    wide.gradients = wide.expert_gradients = g;
    options.conf = conf;
    const struct s2s_buckets_options gradients = {
        .layout = &wide, .bucket_bytes = 512, .overlap = true, .sharding = d->sharding};
    if (s2s_model_open(&b.model, b.device, NULL, NULL, &options, &err) < 0)
        S2S_BUG("%s", err.text);
    s2s_buckets_lay_out(b.model, &wide, d->sharding);
    if (s2s_params_finish(b.model->params, &err) < 0)
        S2S_BUG("%s", err.text);
    s2s_params_init(b.model->params, 1);
    struct s2s_buckets *buckets = s2s_buckets_new(b.model, &gradients);
    if (s2s_buckets_optim(&b.optim, buckets, &adamw, &err) < 0)
        S2S_BUG("%s", err.text);
    s2s_side_init(
        &b.side, alone, b.model, b.optim,
        &(struct s2s_side_options){.layout = &wide, .buckets = buckets, .recompute = d->recompute});
    make_packs(&b);
    for (int i = 0; i < 3; i++) {
        struct s2s_step_result result;
        if (step(&b, g->rank, d->microbatches, &result, &err) < 0)
            S2S_BUG("%s", err.text);
    }
    if (g->rank == 0)
        collect_divided(&b, 0, d);
    g->ops->all_reduce(g, NULL, (float[1]){0}, 1, S2S_F32, S2S_GROUP_SUM); /* one after the other */
    if (g->rank == 1)
        collect_divided(&b, 1, d);
    close_bench(&b);
    s2s_conf_free(conf);
    s2s_mesh_close(alone);
}

/* Ranks that divide the optimizer, or all of it, have the bits of ranks that divide nothing; where
 * sums over microbatches and ranks come in another order they agree to round-off. */
static void ranks_that_divide_their_state_learn_the_same(void **state)
{
    static struct divided plain, divided;
    struct team team;
    for (int how = 0; how < 8; how++) {
        plain = (struct divided){.microbatches = 1 + (how & 1), .recompute = how & 2};
        divided = plain;
        divided.sharding = how & 4 ? S2S_SHARD_ALL : S2S_SHARD_OPTIM;
        team_run(&team, TEAM, run_divided, &plain);
        team_run(&team, TEAM, run_divided, &divided);
        assert_int_equal(plain.n, divided.n);
        assert_true(plain.n > 500 && plain.stored == plain.n);
        assert_true(how & 4 ? divided.stored < plain.n * 6 / 10 : divided.stored == plain.n);
        for (int what = 0; what < 3; what++) {
            double far = 0;
            for (int64_t i = 0; i < plain.n; i++)
                far = fmax(far,
                           fabs((double)plain.values[what][i] - (double)divided.values[what][i]));
            if (how & 1 && how & 4)
                assert_true(far < 1e-5);
            else
                assert_true(far == 0);
        }
    }
}

/* ---- running statistics ---- */

enum { RANKS = 2, EACH = 2, CHANNELS = 5 };

static float moved[RANKS][CHANNELS];

static void seen_of(float *seen, int microbatch)
{
    for (int c = 0; c < CHANNELS; c++)
        seen[c] = (float)(1 + microbatch) * 0.37f + 0.011f * (float)c;
}

static struct s2s_params *open_buffer(struct s2s_device **device, struct s2s_param **buffer)
{
    if (s2s_device_open(device, "cpu", NULL) < 0)
        S2S_BUG("no device");
    (*device)->queue.lanes = 1;
    struct s2s_params *params = s2s_params_new(*device);
    *buffer = s2s_params_add(params, &(struct s2s_param_spec){.name = "running_mean",
                                                              .n_dims = 1,
                                                              .shape = {CHANNELS},
                                                              .flags = S2S_PARAM_BUFFER});
    if (s2s_params_finish(params, NULL) < 0)
        S2S_BUG("no room");
    s2s_params_init(params, 1);
    return params;
}

/* Microbatches rank, rank + size, ..; the last one of all saw nothing. */
static void run_statistics(const struct s2s_group *g, void *ctx)
{
    const int size = s2s_group_size(g), rank = s2s_group_rank(g), n = RANKS * EACH / size;
    const struct s2s_running_factor factor = {0.1f, 0.9f};
    struct s2s_device *device;
    struct s2s_param *buffer;
    struct s2s_params *params = open_buffer(&device, &buffer);
    struct s2s_running *running = s2s_running_new(params);
    struct s2s_running_factor all[RANKS * EACH] = {{0, 0}};
    float seen[CHANNELS];
    s2s_running_begin(running, n);
    for (int i = 0; i < n; i++) {
        seen_of(seen, rank + i * size);
        s2s_running_at(running, i);
        if (rank + i * size < RANKS * EACH - 1)
            s2s_running_see(running, buffer, seen, factor);
    }
    for (int r = 0; r < size; r++)
        for (int i = 0; i < n; i++)
            if (r + i * size < RANKS * EACH - 1)
                all[r * n + i] = factor;
    s2s_running_end(running, g, all);
    s2s_param_get(buffer, moved[rank]);
    s2s_running_free(running);
    s2s_params_free(params);
    s2s_device_close(device);
}

/* T5. They move at the end of the step, in the order of the microbatches: to the same bits on any
 * number of ranks, without a look at host memory. */
static void t5_running_statistics_are_those_of_one_process(void **state)
{
    float one[CHANNELS];
    struct team team;
    run_statistics(NULL, NULL);
    memcpy(one, moved[0], sizeof one);
    assert_true(one[0] > 0.1f);
    team_run(&team, RANKS, run_statistics, NULL);
    for (int r = 0; r < RANKS; r++)
        assert_memory_equal(moved[r], one, sizeof one);
}

static int set_up(void **state)
{
    const struct s2s_layout_spec one = S2S_LAYOUT_SPEC_INIT;
    struct s2s_device *device;
    int rc = s2s_device_open(&device, "cpu", NULL);
    if (rc == 0)
        rc = s2s_mesh_open(&mesh, NULL, NULL);
    if (rc == 0)
        rc = s2s_layout_init(&layout, mesh, &one, device, NULL);
    s2s_device_close(device);
    return rc;
}

static int tear_down(void **state)
{
    s2s_mesh_close(mesh);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(t2_a_bad_batch_is_refused_before_anything_is_computed),
        cmocka_unit_test(t3_losses_are_summed_over_microbatches_and_read_once),
        cmocka_unit_test(t4_a_step_that_is_not_finite_changes_nothing_and_names_the_layer),
        cmocka_unit_test(t7_gradients_are_reduced_in_the_queue_of_the_device),
        cmocka_unit_test(a_sum_is_started_when_its_gradients_are_complete),
        cmocka_unit_test(ranks_that_divide_their_state_learn_the_same),
        cmocka_unit_test(t5_running_statistics_are_those_of_one_process),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
