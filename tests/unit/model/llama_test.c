/* Decoders: recomputation, freezing, caches and initial values leave the numbers what they are. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "lib/base/error.h"
#include "lib/base/mem.h"
#include "lib/model/generate.h"

static const char config_text[] =
    "{\"model_type\": \"qwen3\", \"vocab_size\": 37, \"hidden_size\": 24, \"head_dim\": 8,"
    " \"intermediate_size\": 40, \"num_hidden_layers\": 2, \"num_attention_heads\": 4,"
    " \"num_key_value_heads\": 2, \"initializer_range\": 0.3, \"tie_word_embeddings\": true}";

static struct s2s_device *device;
static char config_path[] = "/tmp/llama_test.XXXXXX.json";

/* two utterances of 5 and 4 slots, the last slot of the second one padding */
static const int32_t ids[] = {3, 7, 30, 2, 9, 11, 4, 36, 0};
static const int32_t labels[] = {7, 30, -100, 9, -100, 4, 36, -100, -100};
static const int32_t positions[] = {0, 1, 2, 3, 4, 0, 1, 2, 3};
static const int32_t cu[] = {0, 5, 9}, lens[] = {5, 3};
static const struct s2s_batch batch = {.n_tokens = 9,
                                       .n_seqs = 2,
                                       .input_ids = ids,
                                       .labels = labels,
                                       .position_ids = positions,
                                       .cu_seqlens = cu,
                                       .seq_lens = lens,
                                       .max_seqlen = 5};

static struct s2s_model *open_model(const char *freeze)
{
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_model *model;
    struct s2s_model_options options = {.config = config_path, .prefix = "llm."};
    if (s2s_model_open(&model, device, NULL, NULL, &options, &err) < 0)
        fail_msg("%s", err.text);
    if (freeze)
        s2s_params_freeze(model->params, freeze);
    assert_int_equal(s2s_params_finish(model->params, NULL), 0);
    s2s_params_init(model->params, 5);
    return model;
}

/* One forward and backward; gives the loss. */
static double run(struct s2s_model *model, struct s2s_tape *tape, bool recompute)
{
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_forward fwd = {.seed = 0.2, .recompute = recompute};
    s2s_tape_reset(tape);
    s2s_params_zero_grads(model->params);
    if (s2s_model_check(model, &batch, &err) < 0)
        fail_msg("%s", err.text);
    s2s_model_forward(model, tape, &batch, &fwd);
    s2s_tape_backward(tape);
    return s2s_tensor_scalar(fwd.loss);
}

static float *copy_grads(const struct s2s_model *model, const char *prefix, size_t *n)
{
    float *all = NULL;
    *n = 0;
    for (size_t i = 0; i < model->params->n; i++) {
        const struct s2s_param *p = model->params->list[i];
        if (strncmp(p->name, prefix, strlen(prefix)) != 0)
            continue;
        all = s2s_xrealloc(all, *n + (size_t)p->numel, sizeof *all);
        s2s_param_get_grad(p, all + *n);
        *n += (size_t)p->numel;
    }
    return all;
}

static void recomputed_layers_give_the_same_bytes(void **state)
{
    struct s2s_model *model = open_model(NULL);
    struct s2s_tape *tape = s2s_tape_new(device, true);
    size_t n;
    double loss = run(model, tape, false);
    float *plain = copy_grads(model, "", &n);
    assert_true(run(model, tape, true) == loss);
    float *again = copy_grads(model, "", &n);
    assert_memory_equal(plain, again, n * sizeof *plain);
    free(plain);
    free(again);
    s2s_tape_free(tape);
    s2s_model_free(model);
}

static void threads_do_not_change_a_byte(void **state)
{
    struct s2s_model *model = open_model(NULL);
    struct s2s_tape *tape = s2s_tape_new(device, true);
    size_t n;
    device->queue.lanes = 1;
    double loss = run(model, tape, false);
    float *one = copy_grads(model, "", &n);
    device->queue.lanes = 4;
    assert_true(run(model, tape, false) == loss);
    float *four = copy_grads(model, "", &n);
    assert_memory_equal(one, four, n * sizeof *one);
    free(one);
    free(four);
    s2s_tape_free(tape);
    s2s_model_free(model);
}

static size_t count_nodes(const struct s2s_tape *tape)
{
    size_t n = 0;
    for (const struct s2s_node *node = tape->first; node; node = node->next)
        n++;
    return n;
}

static void a_frozen_part_records_nothing_before_what_is_trained(void **state)
{
    static const struct {
        const char *frozen;
        bool records; /* something trained is left */
    } cases[] = {{"llm.model.embed_tokens", true}, {"llm.model.layers", true}, {"llm.", false}};
    struct s2s_tape *tape = s2s_tape_new(device, true);
    struct s2s_model *model = open_model(NULL);
    double loss = run(model, tape, false);
    size_t nodes = count_nodes(tape);
    s2s_model_free(model);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        model = open_model(cases[i].frozen);
        for (int recompute = 0; recompute < 2; recompute++) {
            assert_true(run(model, tape, recompute) == loss);
            size_t n = count_nodes(tape);
            if (i == 0)
                assert_true(n == (recompute ? 4 : nodes - 1)); /* no look-up of ids */
            else
                assert_true(cases[i].records == (n > 0));
        }
        s2s_model_free(model);
    }
    s2s_tape_free(tape);
}

static void generation_with_a_cache_agrees_with_whole_passes(void **state)
{
    enum { PROMPT = 5, NEW = 6 };
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_model *model = open_model(NULL);
    int32_t bounds[2] = {0, PROMPT}, seq[PROMPT + NEW], places[PROMPT + NEW];
    struct s2s_generated out;
    struct s2s_batch prompt = {.n_tokens = PROMPT,
                               .n_seqs = 1,
                               .input_ids = ids,
                               .position_ids = positions,
                               .cu_seqlens = bounds,
                               .max_seqlen = PROMPT};
    struct s2s_generate_options options = {.max_new_tokens = NEW};
    assert_int_equal(s2s_generate(&out, model, &prompt, &options, &err), 0);
    assert_int_equal(out.n, NEW);
    struct s2s_tape *tape = s2s_tape_new(device, false);
    float logits[37];
    memcpy(seq, ids, sizeof(int32_t) * PROMPT);
    for (int i = 0; i < PROMPT + NEW; i++)
        places[i] = i;
    for (int i = 0; i < NEW; i++) {
        struct s2s_forward fwd = {.want_last = true};
        int best = 0;
        bounds[1] = PROMPT + i;
        prompt.n_tokens = prompt.max_seqlen = PROMPT + i;
        prompt.input_ids = seq;
        prompt.position_ids = places;
        s2s_tape_reset(tape);
        s2s_model_forward(model, tape, &prompt, &fwd);
        s2s_tensor_read(fwd.logits, logits);
        for (int j = 1; j < 37; j++)
            best = logits[j] > logits[best] ? j : best;
        assert_int_equal(out.ids[i], best);
        seq[PROMPT + i] = best;
    }
    /* a stop token ends it and is not given */
    s2s_generated_release(&out, 1);
    bounds[1] = PROMPT;
    prompt.n_tokens = prompt.max_seqlen = PROMPT;
    options.stop_ids = &seq[PROMPT + 2];
    options.n_stop_ids = 1;
    assert_int_equal(s2s_generate(&out, model, &prompt, &options, &err), 0);
    assert_true(out.n <= 2);
    s2s_generated_release(&out, 1);
    s2s_tape_free(tape);
    s2s_model_free(model);
}

static void *no_memory(struct s2s_queue *queue, size_t bytes)
{
    return NULL;
}

static void a_sequence_that_no_machine_has_room_for_is_an_error_not_an_abort(void **state)
{
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_model *model = open_model(NULL);
    struct s2s_decode *decode;
    const struct s2s_kernels *kernels = device->kernels;
    struct s2s_kernels poor = *kernels;
    poor.alloc = no_memory;
    device->kernels = &poor;
    const int rc = s2s_decode_new(&decode, model, 2, 100, &err);
    device->kernels = kernels;
    assert_int_equal(rc, S2S_E_NOMEM);
    assert_non_null(strstr(err.text, "llm.model.layers.0"));
    assert_null(decode);
    s2s_model_free(model);
}

static void the_first_bad_operation_is_named(void **state)
{
    struct s2s_model *model = open_model(NULL);
    struct s2s_tape *tape = s2s_tape_new(device, true);
    struct s2s_nonfinite where;
    run(model, tape, false);
    assert_false(s2s_tape_find_nonfinite(tape, &where));
    assert_null(s2s_params_find_nonfinite(model->params, true));
    struct s2s_param *gate =
        s2s_params_find(model->params, "llm.model.layers.1.mlp.gate_proj.weight");
    float *values = s2s_xcalloc((size_t)gate->numel, sizeof *values);
    values[3] = NAN;
    s2s_param_set(gate, values, S2S_F32);
    run(model, tape, false);
    assert_true(s2s_tape_find_nonfinite(tape, &where));
    assert_string_equal(where.layer, "llm.model.layers.1.mlp");
    assert_string_equal(where.op, "linear");
    assert_int_equal(where.count, 9);
    assert_non_null(s2s_params_find_nonfinite(model->params, true));
    assert_ptr_equal(s2s_params_find_nonfinite(model->params, false), gate);
    free(values);
    s2s_tape_free(tape);
    s2s_model_free(model);
}

static void bad_batches_are_refused_before_anything_runs(void **state)
{
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_model *model = open_model(NULL);
    int32_t bad_ids[9], bad_cu[] = {0, 6, 8};
    struct s2s_batch b = batch;
    memcpy(bad_ids, ids, sizeof bad_ids);
    bad_ids[4] = 37;
    b.input_ids = bad_ids;
    assert_int_equal(s2s_model_check(model, &b, &err), S2S_E_RANGE);
    assert_non_null(strstr(err.text, "input_ids[4] = 37"));
    b = batch;
    b.cu_seqlens = bad_cu;
    assert_int_equal(s2s_model_check(model, &b, &err), S2S_E_SHAPE);
    b = batch;
    b.max_seqlen = 6;
    assert_int_equal(s2s_model_check(model, &b, &err), S2S_E_RANGE);
    const int32_t slot[] = {0, 2}, rows[] = {3, 1};
    int32_t slots[4];
    b = batch;
    s2s_media_slots(slots, slot, rows, 2);
    b.n_media = 1;
    b.media[0] = (struct s2s_media){.n = 2, .rows = rows, .slot_of_row = slots};
    assert_int_equal(s2s_model_check(model, &b, &err), S2S_E_RANGE);
    assert_non_null(strstr(err.text, "row 0 of clip 1 goes to slot 2, which is taken"));
    b = batch;
    b.position_ids = NULL;
    assert_int_equal(s2s_model_check(model, &b, &err), S2S_E_ARG);
    assert_int_equal(s2s_model_check(model, &batch, &err), 0);
    s2s_model_free(model);
}

static int set_up(void **state)
{
    struct s2s_error err = S2S_ERROR_INIT;
    int fd = mkstemps(config_path, 5);
    if (fd < 0 || write(fd, config_text, strlen(config_text)) < 0)
        return -1;
    close(fd);
    return s2s_device_open(&device, "cpu", &err);
}

static int tear_down(void **state)
{
    unlink(config_path);
    s2s_device_close(device);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recomputed_layers_give_the_same_bytes),
        cmocka_unit_test(threads_do_not_change_a_byte),
        cmocka_unit_test(a_frozen_part_records_nothing_before_what_is_trained),
        cmocka_unit_test(generation_with_a_cache_agrees_with_whole_passes),
        cmocka_unit_test(a_sequence_that_no_machine_has_room_for_is_an_error_not_an_abort),
        cmocka_unit_test(the_first_bad_operation_is_named),
        cmocka_unit_test(bad_batches_are_refused_before_anything_runs),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
