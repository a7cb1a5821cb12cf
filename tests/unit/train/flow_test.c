/* Stages of a model on ranks that are threads: losses and gradients are those of the whole model.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "lib/base/base.h"
#include "lib/conf/conf.h"
#include "lib/train/flow.h"
#include "tests/unit/tensor/team.h"

enum { PACKS = 6, TOKENS = 12, VOCAB = 16, LAYERS = 8, PARAMS = 128 };

static const char config[] =
    "{\"model_type\": \"llama\", \"vocab_size\": 16, \"hidden_size\": 8, \"num_hidden_layers\": 8,"
    " \"num_attention_heads\": 2, \"intermediate_size\": 16, \"initializer_range\": 0.3,"
    " \"tie_word_embeddings\": %s}";

/* One way to run it. */
struct how {
    int n_ranks, n_chunks;
    int64_t n_packs;
    bool tied, recompute, forward_only;
    const char *freeze;    /* a pattern, or NULL */
    const int64_t *layers; /* of each stage, or NULL */
};

/* What came of it, of all ranks together. */
struct outcome {
    double loss[PACKS];
    float *grads[PARAMS]; /* by number of the parameter; NULL: nobody has one */
    int64_t n[PARAMS];
};

struct job {
    const struct how *how;
    struct outcome out;
    pthread_mutex_t lock;
};

/* ---- packs, each of another length, the last one without a label ---- */

static struct s2s_pack packs[PACKS], *list[PACKS];
static int32_t ids[PACKS][TOKENS], labels[PACKS][TOKENS], positions[TOKENS], cu[PACKS][2];

static int make_packs(void **state)
{
    (void)state;
    for (int p = 0; p < PACKS; p++) {
        const int n = TOKENS - p;
        for (int i = 0; i < n; i++) {
            positions[i] = i;
            ids[p][i] = (5 * p + 3 * i) % VOCAB;
            labels[p][i] = p + 1 < PACKS ? (5 * p + 3 * i + 3) % VOCAB : -100;
        }
        cu[p][1] = n;
        packs[p] = (struct s2s_pack){.batch = {.n_tokens = n,
                                               .n_seqs = 1,
                                               .input_ids = ids[p],
                                               .labels = labels[p],
                                               .position_ids = positions,
                                               .cu_seqlens = cu[p],
                                               .max_seqlen = n}};
        list[p] = &packs[p];
    }
    return 0;
}

/* ---- a rank ---- */

static struct s2s_model *open_model(struct s2s_device *device, const struct how *how)
{
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_conf *conf;
    struct s2s_model *model;
    char *text = s2s_xasprintf(config, how->tied ? "true" : "false");
    if (s2s_conf_parse(&conf, text, strlen(text), "c", S2S_CONF_JSON, &err) < 0)
        S2S_BUG("%s", err.text);
    free(text);
    const struct s2s_model_options options = {.conf = conf};
    if (s2s_model_open(&model, device, NULL, NULL, &options, &err) < 0)
        S2S_BUG("%s", err.text);
    s2s_conf_free(conf);
    if (how->freeze && s2s_params_freeze_match(model->params, how->freeze) == 0)
        S2S_BUG("%s freezes nothing", how->freeze);
    return model;
}

static void keep_loss(void *ctx, const struct s2s_flow_seen *seen)
{
    struct job *job = ctx;
    if (seen->last && seen->microbatch < job->how->n_packs)
        job->out.loss[seen->microbatch] = s2s_tensor_scalar(seen->fwd->loss);
}

static void keep_gradients(struct job *job, const struct s2s_params *params)
{
    for (size_t i = 0; i < params->n; i++) {
        const struct s2s_param *p = params->list[i];
        if (!p->trained)
            continue;
        float *grad = s2s_xcalloc((size_t)p->numel, sizeof *grad);
        s2s_param_get_grad(p, grad);
        if (job->out.grads[i]) { /* both have the same */
            if (memcmp(job->out.grads[i], grad, (size_t)p->numel * sizeof *grad) != 0)
                S2S_BUG("%s: two stages have two gradients", p->name);
            free(grad);
            continue;
        }
        job->out.grads[i] = grad;
        job->out.n[i] = p->numel;
    }
}

static void run_rank(const struct s2s_group *pp, void *ctx)
{
    struct job *job = ctx;
    const struct how *how = job->how;
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_device *device;
    struct s2s_stages stages;
    struct s2s_flow flow;
    if (s2s_device_open(&device, "cpu", &err) < 0)
        S2S_BUG("%s", err.text);
    device->queue.lanes = 1;
    struct s2s_model *model = open_model(device, how);
    const struct s2s_stages_spec spec = {.n_chunks = how->n_chunks,
                                         .layers = (int64_t *)how->layers,
                                         .n_layers = (size_t)(how->n_ranks * how->n_chunks)};
    if (s2s_stages_init(&stages, model, &spec, how->n_ranks, pp->rank, &err) < 0 ||
        s2s_params_finish(model->params, &err) < 0)
        S2S_BUG("%s", err.text);
    s2s_params_init(model->params, 1);
    s2s_params_zero_grads(model->params);
    s2s_flow_init(&flow, model, &stages, pp);
    const struct s2s_flow_options options = {.packs = list,
                                             .n_packs = how->n_packs,
                                             .seed = 1.0 / 64,
                                             .recompute = how->recompute,
                                             .forward_only = how->forward_only,
                                             .seen = keep_loss,
                                             .ctx = job};
    s2s_flow_run(&flow, &options);
    s2s_flow_sum_shared(&flow);
    /* as many tapes as the schedule says, and no gradient that nobody gave back */
    struct s2s_pp_schedule schedule;
    struct s2s_pipeline pipeline = s2s_stages_pipeline(&stages, how->n_packs);
    pipeline.forward_only = how->forward_only;
    s2s_pp_schedule_init(&schedule, &pipeline, pp->rank);
    if ((int64_t)flow.n_lanes != schedule.in_flight || device->pool.used_bytes > 0)
        S2S_BUG("rank %d: %zu tapes for %lld in flight, %zu bytes of gradients", pp->rank,
                flow.n_lanes, (long long)schedule.in_flight, device->pool.used_bytes);
    s2s_pp_schedule_release(&schedule);
    pthread_mutex_lock(&job->lock);
    if (!how->forward_only)
        keep_gradients(job, model->params);
    pthread_mutex_unlock(&job->lock);
    s2s_flow_release(&flow);
    s2s_stages_release(&stages);
    s2s_model_free(model);
    s2s_device_close(device);
}

/* ---- all ranks ---- */

static void run(struct job *job, const struct how *how)
{
    static struct team team;
    *job = (struct job){.how = how, .lock = PTHREAD_MUTEX_INITIALIZER};
    team_run(&team, how->n_ranks, run_rank, job);
}

static void release(struct job *job)
{
    for (int i = 0; i < PARAMS; i++)
        free(job->out.grads[i]);
}

/* The same as on one rank: every bit, or within a bound of gradients that are around 1. */
static void expect_the_whole(struct how how, float bound)
{
    struct how alone = how;
    struct job want, have;
    alone.n_ranks = alone.n_chunks = 1;
    alone.layers = NULL;
    run(&want, &alone);
    run(&have, &how);
    int n = 0;
    for (int64_t p = 0; p < how.n_packs; p++)
        assert_true(have.out.loss[p] == want.out.loss[p] &&
                    (p + 1 == PACKS || have.out.loss[p] > 1));
    for (int i = 0; i < PARAMS; i++) {
        assert_int_equal(have.out.grads[i] == NULL, want.out.grads[i] == NULL);
        n += have.out.grads[i] != NULL;
        for (int64_t k = 0; k < want.out.n[i]; k++)
            assert_true(fabsf(have.out.grads[i][k] - want.out.grads[i][k]) <= bound);
    }
    assert_true(how.forward_only ? n == 0 : n > 0);
    release(&want);
    release(&have);
}

static void stages_compute_what_the_whole_computes(void **state)
{
    (void)state;
    for (int ranks = 2; ranks <= 4; ranks++)
        for (int64_t n = 1; n <= PACKS; n += 2)
            for (int again = 0; again < 2; again++)
                expect_the_whole((struct how){ranks, 1, n, false, again, false, NULL, NULL}, 0);
}

static void chunks_compute_what_the_whole_computes(void **state)
{
    (void)state;
    for (int64_t n = 1; n <= PACKS; n++) {
        expect_the_whole((struct how){2, 2, n, false, n % 2, false, NULL, NULL}, 0);
        expect_the_whole((struct how){4, 2, n, false, n % 2, false, NULL, NULL}, 0);
    }
    expect_the_whole((struct how){2, 4, PACKS, false, false, false, NULL, NULL}, 0);
}

static void uneven_stages_compute_what_the_whole_computes(void **state)
{
    (void)state;
    static const int64_t layers[] = {0, 5, 3, 0};
    expect_the_whole((struct how){4, 1, PACKS, false, false, false, NULL, layers}, 0);
    expect_the_whole((struct how){2, 2, PACKS, false, true, false, NULL, layers}, 0);
}

/* The order in which its two parts are added is another. */
static void the_gradient_of_a_tied_output_layer_is_the_sum_of_two_stages(void **state)
{
    (void)state;
    expect_the_whole((struct how){2, 1, PACKS, true, false, false, NULL, NULL}, 2e-7F);
    expect_the_whole((struct how){3, 2, PACKS, true, true, false, NULL, NULL}, 2e-7F);
}

static void no_gradient_goes_below_what_is_trained(void **state)
{
    (void)state;
    static const char *const frozen[] = {"*embed*", "*layers.[0-5].*", "model.*", "lm_head*"};
    for (size_t i = 0; i < sizeof frozen / sizeof *frozen; i++) {
        expect_the_whole((struct how){4, 1, PACKS, false, false, false, frozen[i], NULL}, 0);
        expect_the_whole((struct how){2, 2, PACKS, false, true, false, frozen[i], NULL}, 0);
    }
}

static void evaluation_only_goes_forward(void **state)
{
    (void)state;
    expect_the_whole((struct how){4, 1, PACKS, false, false, true, NULL, NULL}, 0);
    expect_the_whole((struct how){2, 2, PACKS, false, false, true, NULL, NULL}, 0);
    expect_the_whole((struct how){4, 2, 1, false, false, true, NULL, NULL}, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stages_compute_what_the_whole_computes),
        cmocka_unit_test(chunks_compute_what_the_whole_computes),
        cmocka_unit_test(uneven_stages_compute_what_the_whole_computes),
        cmocka_unit_test(the_gradient_of_a_tied_output_layer_is_the_sum_of_two_stages),
        cmocka_unit_test(no_gradient_goes_below_what_is_trained),
        cmocka_unit_test(evaluation_only_goes_forward),
    };
    return cmocka_run_group_tests(tests, make_packs, NULL);
}
