/* NemotronH: generation over what its layers keep, recomputation and threads, initial values. That
 * it computes what transformers does is held by s2s-train probe. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "lib/base/error.h"
#include "lib/base/mem.h"
#include "lib/model/generate.h"
#include "lib/tensor/device.h"

static const char *const dirs[] = {"tests/oracle/models/nemotron_h",
                                   "tests/oracle/models/nemotron_h_latent"};
enum { VOCAB = 120 };

static struct s2s_device *device;

static struct s2s_model *open_model(const char *dir)
{
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_model *model;
    if (s2s_model_open(&model, device, NULL, dir, NULL, &err) < 0 ||
        s2s_params_finish(model->params, &err) < 0 || s2s_model_load(model, &err) < 0)
        fail_msg("%s", err.text);
    return model;
}

/* ---- generation ---- */

/* The likeliest token after seq [n], in one pass over all of it. */
static int32_t next_token(struct s2s_model *model, struct s2s_tape *tape, const int32_t *seq, int n)
{
    int32_t positions[64], bounds[] = {0, n};
    float logits[VOCAB];
    int32_t best = 0;
    for (int i = 0; i < n; i++)
        positions[i] = i;
    const struct s2s_batch batch = {.n_tokens = n,
                                    .n_seqs = 1,
                                    .input_ids = seq,
                                    .position_ids = positions,
                                    .cu_seqlens = bounds,
                                    .max_seqlen = n};
    struct s2s_forward fwd = {.want_last = true};
    s2s_tape_reset(tape);
    s2s_model_forward(model, tape, &batch, &fwd);
    s2s_tensor_read(fwd.logits, logits);
    for (int32_t i = 1; i < VOCAB; i++)
        best = logits[i] > logits[best] ? i : best;
    return best;
}

static void generation_over_states_agrees_with_whole_passes(void **state)
{
    enum { NEW = 9, N = 3 };
    static const int32_t ids[] = {5, 17, 99, 3, 41, 8, 8, 60, 23, 77, 12, 54},
                         bounds[] = {0, 7, 8, 12};
    static const int32_t positions[] = {0, 1, 2, 3, 4, 5, 6, 0, 0, 1, 2, 3};
    const struct s2s_batch prompts = {.n_tokens = 12,
                                      .n_seqs = N,
                                      .input_ids = ids,
                                      .position_ids = positions,
                                      .cu_seqlens = bounds,
                                      .max_seqlen = 7};
    const struct s2s_generate_options options = {.max_new_tokens = NEW};
    for (int m = 0; m < 2; m++) {
        struct s2s_error err = S2S_ERROR_INIT;
        struct s2s_model *model = open_model(dirs[m]);
        struct s2s_tape *tape = s2s_tape_new(device, false);
        struct s2s_generated out[N];
        assert_int_equal(s2s_generate(out, model, &prompts, &options, &err), 0);
        for (int s = 0; s < N; s++) {
            int32_t seq[64];
            int n = bounds[s + 1] - bounds[s];
            memcpy(seq, ids + bounds[s], (size_t)n * sizeof *seq);
            assert_int_equal(out[s].n, NEW);
            for (int i = 0; i < NEW; i++, n++) {
                seq[n] = next_token(model, tape, seq, n);
                assert_int_equal(out[s].ids[i], seq[n]);
            }
        }
        s2s_generated_release(out, N);
        s2s_tape_free(tape);
        s2s_model_free(model);
    }
}

/* ---- recomputation and threads ---- */

static float *gradients(struct s2s_model *model, struct s2s_tape *tape, bool recompute)
{
    static const int32_t ids[] = {5, 17, 99, 3, 41, 8, 8, 60}, labels[] = {1, -1, 3, 4, 5, 6, 7, 8};
    static const int32_t positions[] = {0, 1, 2, 3, 4, 0, 1, 2}, bounds[] = {0, 5, 8};
    const struct s2s_batch batch = {.n_tokens = 8,
                                    .n_seqs = 2,
                                    .input_ids = ids,
                                    .labels = labels,
                                    .position_ids = positions,
                                    .cu_seqlens = bounds,
                                    .max_seqlen = 5};
    struct s2s_forward fwd = {.seed = 1.0 / 7, .recompute = recompute};
    s2s_tape_reset(tape);
    s2s_params_zero_grads(model->params);
    s2s_model_forward(model, tape, &batch, &fwd);
    s2s_tape_backward(tape);
    float *copy = s2s_xmalloc((size_t)model->params->n_trained * sizeof *copy);
    device->kernels->copy_out(&device->queue, copy, model->params->grads,
                              (size_t)model->params->n_trained * sizeof *copy);
    return copy;
}

static void recomputation_and_threads_change_no_bit(void **state)
{
    for (int m = 0; m < 2; m++) {
        struct s2s_model *model = open_model(dirs[m]);
        struct s2s_tape *tape = s2s_tape_new(device, true);
        const size_t bytes = (size_t)model->params->n_trained * sizeof(float);
        device->queue.lanes = 1;
        float *one = gradients(model, tape, false), *again = gradients(model, tape, true);
        device->queue.lanes = 4;
        float *four = gradients(model, tape, false);
        assert_memory_equal(one, again, bytes);
        assert_memory_equal(one, four, bytes);
        free(one);
        free(again);
        free(four);
        s2s_tape_free(tape);
        s2s_model_free(model);
    }
}

/* ---- initial values ---- */

static void vectors_begin_as_mamba_has_them(void **state)
{
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_model *model;
    float a_log[6], skip[6], bias[6];
    if (s2s_model_open(&model, device, NULL, dirs[0], NULL, &err) < 0 ||
        s2s_params_finish(model->params, &err) < 0)
        fail_msg("%s", err.text);
    s2s_params_init(model->params, 3);
    s2s_param_get(s2s_params_find(model->params, "backbone.layers.4.mixer.A_log"), a_log);
    s2s_param_get(s2s_params_find(model->params, "backbone.layers.4.mixer.D"), skip);
    s2s_param_get(s2s_params_find(model->params, "backbone.layers.4.mixer.dt_bias"), bias);
    for (int i = 0; i < 6; i++) {
        const double step = log1p(exp((double)bias[i]));
        assert_true(fabs((double)a_log[i] - log(i + 1)) < 1e-6);
        assert_true(skip[i] == 1);
        assert_true(step > 0.00099 && step < 0.101);
        assert_true(i == 0 || bias[i] != bias[i - 1]);
    }
    s2s_model_free(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(generation_over_states_agrees_with_whole_passes),
        cmocka_unit_test(recomputation_and_threads_change_no_bit),
        cmocka_unit_test(vectors_begin_as_mamba_has_them),
    };
    if (s2s_device_open(&device, "cpu", NULL) < 0)
        return 1;
    const int rc = cmocka_run_group_tests(tests, NULL, NULL);
    s2s_device_close(device);
    return rc;
}
