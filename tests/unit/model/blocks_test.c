/* A model is a list of blocks: any part of it runs alone, and all of it runs for every batch. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "lib/base/base.h"
#include "lib/conf/conf.h"
#include "lib/model/salm.h"

static const char encoder_config[] =
    "{\"model_type\": \"parakeet_encoder\", \"hidden_size\": 16, \"num_hidden_layers\": 2,"
    " \"num_attention_heads\": 2, \"intermediate_size\": 24, \"conv_kernel_size\": 3,"
    " \"subsampling_conv_channels\": 4, \"num_mel_bins\": 8, \"subsampling_factor\": 4}";
static const char llm_config[] =
    "{\"model_type\": \"qwen3\", \"vocab_size\": 37, \"hidden_size\": 24, \"head_dim\": 8,"
    " \"intermediate_size\": 40, \"num_hidden_layers\": 2, \"num_attention_heads\": 4,"
    " \"num_key_value_heads\": 2, \"initializer_range\": 0.3, \"tie_word_embeddings\": true}";

enum { T = 9, WIDTH = 24, MELS = 8, MEL_FRAMES = 11, CLIP_SLOTS = 3 };

static struct s2s_device *device;
static struct s2s_conf *encoder_conf, *llm_conf;

static const int32_t ids[T] = {3, 7, 30, 2, 9, 11, 4, 36, 0};
static const int32_t labels[T] = {7, 30, -100, 9, -100, 4, 36, -100, -100};
static const int32_t positions[T] = {0, 1, 2, 3, 4, 0, 1, 2, 3};
static const int32_t bounds[] = {0, 5, 9}, lens[] = {5, 3};
static const int32_t clip_rows[] = {CLIP_SLOTS}, slot_of_row[CLIP_SLOTS] = {1, 2, 3};
static const int64_t cu_mel[] = {0, MEL_FRAMES};
static float mel[MEL_FRAMES * MELS];

static struct s2s_batch text(void)
{
    return (struct s2s_batch){.n_tokens = T,
                              .n_seqs = 2,
                              .input_ids = ids,
                              .labels = labels,
                              .position_ids = positions,
                              .cu_seqlens = bounds,
                              .seq_lens = lens,
                              .max_seqlen = 5};
}

static struct s2s_batch speech(void)
{
    struct s2s_batch b = text();
    b.n_media = 1;
    b.media[0] = (struct s2s_media){.n = 1,
                                    .rows = clip_rows,
                                    .slot_of_row = slot_of_row,
                                    .data = mel,
                                    .cu = cu_mel,
                                    .width = MELS};
    return b;
}

static struct s2s_model *finish(struct s2s_model *model, const char *freeze)
{
    struct s2s_error err = S2S_ERROR_INIT;
    if (freeze)
        s2s_params_freeze(model->params, freeze);
    if (s2s_params_finish(model->params, &err) < 0)
        fail_msg("%s", err.text);
    s2s_params_init(model->params, 5);
    return model;
}

static struct s2s_model *open_salm(const char *freeze, bool batch_norm_batch)
{
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_salm_parts parts = {
        .encoder.conf = encoder_conf, .llm.conf = llm_conf, .batch_norm_batch = batch_norm_batch};
    struct s2s_model *model;
    if (s2s_salm_open(&model, device, NULL, &parts, &err) < 0)
        fail_msg("%s", err.text);
    return finish(model, freeze);
}

static void run_forward(const struct s2s_model *model, struct s2s_tape *tape,
                        const struct s2s_batch *batch, struct s2s_forward *fwd)
{
    struct s2s_error err = S2S_ERROR_INIT;
    if (s2s_model_check(model, batch, &err) < 0)
        fail_msg("%s", err.text);
    s2s_tape_reset(tape);
    s2s_params_zero_grads(model->params);
    s2s_model_forward(model, tape, batch, fwd);
}

/* Gradients of the parameters whose names begin so, one after the other. */
static float *copy_grads(const struct s2s_model *model, const char *prefix, size_t *n)
{
    float *all = NULL;
    *n = 0;
    for (size_t i = 0; i < model->params->n; i++) {
        const struct s2s_param *p = model->params->list[i];
        if (!p->trained || strncmp(p->name, prefix, strlen(prefix)) != 0)
            continue;
        all = s2s_xrealloc(all, *n + (size_t)p->numel, sizeof *all);
        s2s_param_get_grad(p, all + *n);
        *n += (size_t)p->numel;
    }
    return all;
}

/* ---- parts of the list ---- */

static void every_parameter_belongs_to_one_block(void **state)
{
    struct s2s_model *model = open_salm(NULL, false);
    int *owners = s2s_xcalloc(model->params->n, sizeof *owners);
    for (int i = 0; i < model->n_blocks; i++)
        for (size_t p = model->blocks[i].param_begin; p < model->blocks[i].param_end; p++)
            owners[p]++;
    for (size_t p = 0; p < model->params->n; p++)
        assert_int_equal(owners[p], 1);
    assert_string_equal(model->blocks[1].layer, "encoder.layers.0");
    assert_string_equal(model->blocks[model->n_media_blocks - 1].layer, "proj");
    assert_string_equal(model->blocks[model->n_media_blocks].layer, "llm.model.embed_tokens");
    free(owners);
    s2s_model_free(model);
}

static void layers_say_how_their_weights_are_cut(void **state)
{
    static const struct {
        const char *name;
        int64_t rows, cols; /* of one rank of two */
    } want[] = {{"llm.model.embed_tokens.weight", 19, 24},
                {"llm.model.layers.1.self_attn.q_proj.weight", 16, 24},
                {"llm.model.layers.1.self_attn.k_proj.weight", 8, 24},
                {"llm.model.layers.1.self_attn.o_proj.weight", 24, 16},
                {"llm.model.layers.1.self_attn.q_norm.weight", 8, 0},
                {"llm.model.layers.1.mlp.up_proj.weight", 20, 24},
                {"llm.model.layers.1.mlp.down_proj.weight", 24, 20},
                {"encoder.subsampling.linear.weight", 16, 8},
                {"encoder.layers.0.feed_forward1.linear1.bias", 12, 0},
                {"encoder.layers.0.feed_forward1.linear2.bias", 16, 0},
                {"encoder.layers.0.self_attn.bias_u", 1, 8},
                {"encoder.layers.0.conv.pointwise_conv1.weight", 16, 16},
                {"encoder.layers.0.conv.norm.running_var", 8, 0},
                {"encoder.layers.0.conv.pointwise_conv2.weight", 16, 8}};
    struct s2s_error err = S2S_ERROR_INIT;
    const struct s2s_group tp = {.axis = "tp", .size = 2, .rank = 1};
    const struct s2s_par par = {.tp = &tp};
    struct s2s_salm_parts parts = {.encoder.conf = encoder_conf, .llm.conf = llm_conf};
    struct s2s_model *model;
    assert_int_equal(s2s_salm_open(&model, device, &par, &parts, &err), 0);
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        const struct s2s_param *p = s2s_params_find(model->params, want[i].name);
        assert_non_null(p);
        assert_int_equal(p->local[0], want[i].rows);
        assert_int_equal(p->local[1], want[i].cols);
    }
    /* the values and their gates are cut each by itself */
    const struct s2s_param *gated =
        s2s_params_find(model->params, "encoder.layers.0.conv.pointwise_conv1.bias");
    assert_int_equal(gated->n_parts, 2);
    assert_int_equal(gated->parts[0], 16);
    s2s_model_free(model);
}

/* The value of a tensor as a leaf of another tape. */
static struct s2s_tensor *carry(struct s2s_tape *to, const struct s2s_tensor *tensor)
{
    float *host = s2s_xcalloc((size_t)s2s_tensor_numel(tensor) + 1, sizeof *host);
    s2s_tensor_read(tensor, host);
    struct s2s_tensor *leaf = s2s_tape_upload(to, S2S_F32, tensor->n_dims, tensor->shape, host);
    free(host);
    s2s_tape_want_grad(leaf);
    return leaf;
}

/* Blocks [0, k) on one tape and the others on another one. Gives the loss. */
static double run_cut(const struct s2s_model *model, int k, struct s2s_tape *const tapes[2],
                      const struct s2s_batch *batch, bool recompute)
{
    struct s2s_forward fwd[2] = {{.seed = 0.2, .recompute = recompute},
                                 {.seed = 0.2, .recompute = recompute}};
    struct s2s_tensor *between[S2S_BLOCK_TENSORS], *last[S2S_BLOCK_TENSORS];
    for (int i = 0; i < 2; i++)
        s2s_tape_reset(tapes[i]);
    s2s_params_zero_grads(model->params);
    s2s_model_run(s2s_model_prepare(model, tapes[0], batch, &fwd[0]), 0, k, NULL, between);
    struct s2s_tensor *leaf = carry(tapes[1], between[0]);
    s2s_model_run(s2s_model_prepare(model, tapes[1], batch, &fwd[1]), k, model->n_blocks, &leaf,
                  last);
    assert_ptr_equal(last[0], fwd[1].output);
    assert_null(fwd[0].loss);
    double loss = s2s_tensor_scalar(fwd[1].loss);
    s2s_tape_backward(tapes[1]);
    s2s_tape_seed_grad(tapes[0], between[0], s2s_tape_take_grad(tapes[1], leaf));
    s2s_tape_backward(tapes[0]);
    return loss;
}

static void two_parts_on_two_tapes_give_the_bits_of_the_whole(void **state)
{
    struct s2s_model *model = open_salm(NULL, false);
    struct s2s_tape *tapes[2] = {s2s_tape_new(device, true), s2s_tape_new(device, true)};
    const struct s2s_batch batch = speech();
    struct s2s_forward fwd = {.seed = 0.2};
    size_t n;
    run_forward(model, tapes[0], &batch, &fwd);
    const double loss = s2s_tensor_scalar(fwd.loss);
    s2s_tape_backward(tapes[0]);
    float *whole = copy_grads(model, "", &n);
    for (int k = 1; k < model->n_blocks; k++)
        for (int recompute = 0; recompute < 2; recompute++) {
            assert_true(run_cut(model, k, tapes, &batch, recompute) == loss);
            float *cut = copy_grads(model, "", &n);
            assert_memory_equal(whole, cut, n * sizeof *whole);
            free(cut);
        }
    free(whole);
    s2s_tape_free(tapes[0]);
    s2s_tape_free(tapes[1]);
    s2s_model_free(model);
}

/* ---- every batch runs everything ---- */

enum { MAX_NODES = 1024 };

static struct {
    void (*backward)(struct s2s_tape *, struct s2s_node *);
    const struct s2s_node *node;
} nodes[MAX_NODES];
static int n_nodes, n_run;
static char run_names[MAX_NODES][64];

static void noted_backward(struct s2s_tape *tape, struct s2s_node *node)
{
    snprintf(run_names[n_run++], sizeof run_names[0], "%.40s %.20s", node->layer, node->op);
    for (int i = 0; i < n_nodes; i++)
        if (nodes[i].node == node)
            nodes[i].backward(tape, node);
}

/* Names of the operations that run in the backward of a batch, in their order; gives: free. */
static char *backward_of(struct s2s_model *model, const struct s2s_batch *batch, bool recompute)
{
    struct s2s_tape *tape = s2s_tape_new(device, true);
    struct s2s_forward fwd = {.seed = 0.2, .recompute = recompute};
    struct s2s_buf names = S2S_BUF_INIT;
    run_forward(model, tape, batch, &fwd);
    n_nodes = n_run = 0;
    for (struct s2s_node *node = tape->first; node; node = node->next) {
        assert_true(n_nodes < MAX_NODES);
        nodes[n_nodes].node = node;
        nodes[n_nodes++].backward = node->backward;
        node->backward = noted_backward;
    }
    s2s_tape_backward(tape);
    for (int i = 0; i < n_run; i++)
        s2s_buf_printf(&names, "%s\n", run_names[i]);
    s2s_tape_free(tape);
    return names.data;
}

static void a_batch_without_clips_runs_the_same_operations_in_its_backward(void **state)
{
    const struct s2s_batch with = speech(), without = text();
    for (int i = 0; i < 4; i++) {
        struct s2s_model *model = open_salm(NULL, i & 1);
        char *names[] = {backward_of(model, &with, i & 2), backward_of(model, &without, i & 2)};
        assert_non_null(strstr(names[0], "encoder.layers.1"));
        assert_string_equal(names[0], names[1]);
        free(names[0]);
        free(names[1]);
        s2s_model_free(model);
    }
}

static void a_batch_without_clips_has_the_bits_of_the_llm_alone(void **state)
{
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_model_options options = {.conf = llm_conf, .prefix = "llm."};
    struct s2s_model *alone, *model = open_salm(NULL, true);
    struct s2s_tape *tape = s2s_tape_new(device, true);
    const struct s2s_batch batch = text();
    struct s2s_forward fwd = {.seed = 0.2};
    size_t n, m;
    assert_int_equal(s2s_model_open(&alone, device, NULL, NULL, &options, &err), 0);
    finish(alone, NULL);
    run_forward(alone, tape, &batch, &fwd);
    const double loss = s2s_tensor_scalar(fwd.loss);
    s2s_tape_backward(tape);
    float *want = copy_grads(alone, "llm.", &n);
    struct s2s_param *mean =
        s2s_params_find(model->params, "encoder.layers.0.conv.norm.running_mean");
    float before[16], after[16];
    s2s_param_get(mean, before);
    fwd = (struct s2s_forward){.seed = 0.2};
    run_forward(model, tape, &batch, &fwd);
    assert_true(s2s_tensor_scalar(fwd.loss) == loss);
    s2s_tape_backward(tape);
    float *have = copy_grads(model, "llm.", &m);
    assert_int_equal(n, m);
    assert_memory_equal(want, have, n * sizeof *want);
    free(have);
    /* what saw nothing learns nothing: zeros, not even negative ones */
    have = copy_grads(model, "encoder.", &n);
    want = s2s_xrealloc(want, n, sizeof *want);
    memset(want, 0, n * sizeof *want);
    assert_memory_equal(want, have, n * sizeof *want);
    s2s_param_get(mean, after);
    assert_memory_equal(before, after, sizeof before);
    free(want);
    free(have);
    s2s_tape_free(tape);
    s2s_model_free(model);
    s2s_model_free(alone);
}

static void a_batch_of_nothing_runs(void **state)
{
    struct s2s_model *model = open_salm(NULL, false);
    const int32_t none[1] = {0};
    const struct s2s_batch batch = {
        .input_ids = none, .labels = none, .position_ids = none, .cu_seqlens = none};
    for (int recording = 0; recording < 2; recording++) {
        struct s2s_tape *tape = s2s_tape_new(device, recording);
        struct s2s_forward fwd = {.seed = 0.2, .want_hits = true};
        run_forward(model, tape, &batch, &fwd);
        assert_true(s2s_tensor_scalar(fwd.loss) == 0);
        assert_true(s2s_tensor_scalar(fwd.hits) == 0);
        if (recording)
            s2s_tape_backward(tape);
        s2s_tape_free(tape);
    }
    s2s_model_free(model);
}

/* ---- who watches ---- */

static struct {
    struct s2s_model *model;
    float *then; /* gradients of a block's parameters when the backward had left it */
    int entered, left, back_in, back_out;
} seen;

static void watch_enter(void *ctx, int block)
{
    assert_int_equal(block, seen.entered++);
}

static void watch_leave(void *ctx, int block)
{
    assert_int_equal(block, seen.left++);
    assert_int_equal(seen.left, seen.entered);
}

static void watch_back_in(void *ctx, int block)
{
    assert_int_equal(block, seen.model->n_blocks - 1 - seen.back_in++);
}

static void watch_back_out(void *ctx, int block)
{
    const struct s2s_block *b = &seen.model->blocks[block];
    assert_int_equal(block, seen.model->n_blocks - 1 - seen.back_out++);
    assert_int_equal(seen.back_in, seen.back_out);
    for (size_t i = b->param_begin; i < b->param_end; i++) {
        const struct s2s_param *p = seen.model->params->list[i];
        if (p->trained)
            s2s_param_get_grad(p, seen.then + p->offset);
    }
}

/* Forward and backward come to every block, whatever the batch holds and whatever is frozen, and no
 * gradient changes once the backward has left the first block that uses its parameter. */
static void a_watch_sees_every_block_and_complete_gradients(void **state)
{
    static const struct s2s_block_watch watch = {NULL, watch_enter, watch_leave, watch_back_in,
                                                 watch_back_out};
    static const char *const frozen[] = {NULL, "encoder.", "llm."};
    const struct s2s_batch batches[] = {speech(), text()};
    for (int i = 0; i < 12; i++) {
        struct s2s_model *model = open_salm(frozen[i % 3], false);
        struct s2s_tape *tape = s2s_tape_new(device, true);
        struct s2s_forward fwd = {.seed = 0.2, .recompute = i / 3 % 2};
        const size_t bytes = (size_t)model->params->n_trained * sizeof(float);
        memset(&seen, 0, sizeof seen);
        seen.model = model;
        seen.then = s2s_xcalloc(1, bytes);
        model->watch = &watch;
        run_forward(model, tape, &batches[i / 6], &fwd);
        s2s_tape_backward(tape);
        assert_int_equal(seen.left, model->n_blocks);
        assert_int_equal(seen.back_out, model->n_blocks);
        assert_memory_equal(seen.then, model->params->grads, bytes);
        free(seen.then);
        s2s_tape_free(tape);
        s2s_model_free(model);
    }
}

/* ---- rows and their slots ---- */

/* The loss with embeddings [3, WIDTH] of the LLM's width in these slots. */
static double loss_of_rows(const struct s2s_model *model, struct s2s_tape *tape, const float *rows,
                           int32_t n, const int32_t *slots)
{
    struct s2s_batch batch = text();
    batch.n_media = 1;
    batch.media[0] = (struct s2s_media){
        .n = 1, .rows = &n, .slot_of_row = slots, .data = rows, .width = WIDTH, .projected = true};
    struct s2s_forward fwd = {.seed = 0.2};
    run_forward(model, tape, &batch, &fwd);
    return s2s_tensor_scalar(fwd.loss);
}

static void each_row_of_a_clip_has_a_slot_of_its_own(void **state)
{
    struct s2s_model *model = open_salm(NULL, false);
    struct s2s_tape *tape = s2s_tape_new(device, false);
    const int32_t apart[] = {6, 1, 3}, swapped[] = {1, 6, 3}, fewer[] = {6, -1, 3}, two[] = {6, 3};
    float rows[3 * WIDTH], turned[3 * WIDTH], without[2 * WIDTH];
    for (int i = 0; i < 3 * WIDTH; i++)
        rows[i] = turned[i] = (float)(i * 31 % 17) / 8 - 1;
    memcpy(turned, rows + WIDTH, WIDTH * sizeof *rows);
    memcpy(turned + WIDTH, rows, WIDTH * sizeof *rows);
    memcpy(without, rows, WIDTH * sizeof *rows);
    memcpy(without + WIDTH, rows + 2 * WIDTH, WIDTH * sizeof *rows);
    const double loss = loss_of_rows(model, tape, rows, 3, apart);
    assert_true(loss_of_rows(model, tape, turned, 3, swapped) == loss);
    assert_true(loss_of_rows(model, tape, rows, 3, swapped) != loss);
    /* another rank's row is left out */
    assert_true(loss_of_rows(model, tape, rows, 3, fewer) ==
                loss_of_rows(model, tape, without, 2, two));
    s2s_tape_free(tape);
    s2s_model_free(model);
}

/* ---- the run ---- */

static int set_up(void **state)
{
    struct s2s_error err = S2S_ERROR_INIT;
    for (int i = 0; i < MEL_FRAMES * MELS; i++)
        mel[i] = (float)(i * 37 % 19) / 9 - 1;
    if (s2s_conf_parse(&encoder_conf, encoder_config, strlen(encoder_config), "encoder",
                       S2S_CONF_JSON, &err) < 0 ||
        s2s_conf_parse(&llm_conf, llm_config, strlen(llm_config), "llm", S2S_CONF_JSON, &err) < 0)
        return -1;
    return s2s_device_open(&device, "cpu", &err);
}

static int tear_down(void **state)
{
    s2s_conf_free(encoder_conf);
    s2s_conf_free(llm_conf);
    s2s_device_close(device);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_parameter_belongs_to_one_block),
        cmocka_unit_test(layers_say_how_their_weights_are_cut),
        cmocka_unit_test(two_parts_on_two_tapes_give_the_bits_of_the_whole),
        cmocka_unit_test(a_batch_without_clips_runs_the_same_operations_in_its_backward),
        cmocka_unit_test(a_batch_without_clips_has_the_bits_of_the_llm_alone),
        cmocka_unit_test(a_batch_of_nothing_runs),
        cmocka_unit_test(a_watch_sees_every_block_and_complete_gradients),
        cmocka_unit_test(each_row_of_a_clip_has_a_slot_of_its_own),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
