/*
 * Mixtures of experts: Megatron's router and transformers' NemotronH layer (numbers of both are in
 * tests/oracle/models), and a layer whose experts are on ranks that are threads.
 */
#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "lib/base/error.h"
#include "lib/base/mem.h"
#include "lib/base/rng.h"
#include "lib/io/safetensors.h"
#include "lib/nn/moe.h"
#include "lib/tensor/loads.h"
#include "tests/unit/tensor/team.h"

#define MODELS "tests/oracle/models/"

static struct s2s_safetensors open_file(const char *path)
{
    struct s2s_safetensors st;
    struct s2s_error err = S2S_ERROR_INIT;
    if (s2s_safetensors_open(&st, path, &err) < 0)
        fail_msg("%s", err.text);
    return st;
}

/* NULL: it is not there */
static const struct s2s_st_tensor *look(const struct s2s_safetensors *st, const char *prefix,
                                        const char *name)
{
    char full[300];
    snprintf(full, sizeof full, "%s%s", prefix, name);
    return s2s_safetensors_find(st, full);
}

static void close_to(const char *what, const float *got, const void *want, int64_t n, double atol)
{
    for (int64_t i = 0; i < n; i++) {
        float y;
        memcpy(&y, (const char *)want + (size_t)i * sizeof y, sizeof y);
        if (!(fabs((double)got[i] - y) <= atol))
            fail_msg("%s[%lld] is %.9g, not %.9g", what, (long long)i, (double)got[i], (double)y);
    }
}

static void grad_close_to(const char *what, const struct s2s_tensor *t,
                          const struct s2s_st_tensor *want, double atol)
{
    const int64_t n = s2s_tensor_numel(t);
    float *got = s2s_xcalloc((size_t)n, sizeof *got);
    assert_non_null(want);
    assert_int_equal(s2s_st_numel(want), n);
    if (t->grad)
        s2s_tensor_read(t->grad, got);
    close_to(what, got, want->data, n, atol);
    free(got);
}

static struct s2s_tensor *leaf(struct s2s_tape *tape, int64_t rows, int64_t cols, const void *x)
{
    struct s2s_tensor *t = s2s_tape_upload(tape, S2S_F32, 2, (int64_t[]){rows, cols}, x);
    s2s_tape_want_grad(t);
    return t;
}

/* ---- Megatron's router ---- */

struct megatron {
    const json_t *c;
    char name[20];
    int64_t e, k, seq_len, n_seqs, width, n;
    struct s2s_router router;
    struct s2s_safetensors *inputs, *expected;
    struct s2s_tape *tape;
    struct s2s_tensor *input, *weight;
    double losses[2][3]; /* of the first and the second kind that a case asks for */
    double *device_losses;
    struct s2s_load load; /* of a step of one microbatch */
};

static int64_t integer(const json_t *c, const char *key)
{
    return json_integer_value(json_object_get(c, key));
}

static double atol_of(const struct megatron *m, const json_t *table, const char *what)
{
    char name[60];
    snprintf(name, sizeof name, "%s/%s", m->name, what);
    return json_real_value(json_object_get(json_object_get(table, name), "atol"));
}

static void read_case(struct megatron *m)
{
    const json_t *scale = json_object_get(m->c, "scale"), *groups = json_object_get(m->c, "groups");
    m->e = integer(m->c, "E");
    m->k = integer(m->c, "K");
    m->seq_len = integer(m->c, "S");
    m->n_seqs = integer(m->c, "B");
    m->width = integer(m->c, "H");
    m->n = m->seq_len * m->n_seqs;
    snprintf(m->name, sizeof m->name, "%s/", json_string_value(json_object_get(m->c, "name")));
    m->router = (struct s2s_router){
        .n_experts = m->e,
        .n_chosen = m->k,
        .score = strcmp(json_string_value(json_object_get(m->c, "score")), "sigmoid") == 0
                     ? S2S_SCORE_SIGMOID
                     : S2S_SCORE_SOFTMAX,
        .normalise = m->k > 1,
        .scale = json_is_number(scale) ? (float)json_number_value(scale) : 1};
    if (json_is_integer(groups)) {
        m->router.n_groups = json_integer_value(groups);
        m->router.n_chosen_groups = integer(m->c, "gtopk");
        m->router.n_group_best = m->k / m->router.n_chosen_groups;
    }
    m->name[strlen(m->name) - 1] = 0;
}

static struct s2s_tensor *upload(const struct megatron *m, const char *what, int64_t rows,
                                 int64_t cols)
{
    char name[60];
    snprintf(name, sizeof name, "%s/", m->name);
    const struct s2s_st_tensor *t = look(m->inputs, name, what);
    return t ? leaf(m->tape, rows, cols, t->data) : NULL;
}

/* Tokens of the sequences alternate. */
static struct s2s_tensor *sequences(const struct megatron *m)
{
    int32_t *host = s2s_xcalloc((size_t)m->n, sizeof *host);
    for (int64_t i = 0; i < m->n; i++)
        host[i] = (int32_t)(i % m->n_seqs);
    struct s2s_tensor *t = s2s_tape_upload_i32(m->tape, host, m->n);
    free(host);
    return t;
}

/* The losses that a case asks for, one after the other: a loss over the microbatch is one over a
 * single segment, and that over the global batch the same where there is one microbatch. */
static struct s2s_tensor *balance_case(struct megatron *m, struct s2s_tensor *logits)
{
    const json_t *lb = json_object_get(m->c, "lb"), *coeff = json_object_get(m->c, "coeff"),
                 *z = json_object_get(m->c, "z");
    const double per = json_is_true(json_object_get(m->c, "per_token")) ? 1 : 1.0 / (double)m->n;
    m->device_losses = s2s_tape_tensor(m->tape, S2S_F64, 1, (int64_t[]){6})->data;
    m->tape->device->kernels->zero(&m->tape->device->queue, m->device_losses, sizeof m->losses);
    for (size_t i = 0; i < (json_is_array(lb) ? json_array_size(lb) : 1); i++) {
        const json_t *kind = json_is_array(lb) ? json_array_get(lb, i) : lb;
        const bool seq = strcmp(json_string_value(kind), "seq_aux_loss") == 0;
        const json_t *factor = json_is_array(coeff) ? json_array_get(coeff, i) : coeff;
        const struct s2s_balance balance = {
            .segments = seq ? sequences(m) : NULL,
            .n_segments = seq ? m->n_seqs : 1,
            .balance = (float)(json_number_value(factor) * per),
            .square = i == 0 && json_is_number(z) ? (float)(json_number_value(z) * per) : 0,
            .losses = m->device_losses + 3 * i,
            .over_step = strcmp(json_string_value(kind), "global_aux_loss") == 0};
        logits = s2s_op_balance(m->tape, logits, &m->router, &balance, &m->load);
    }
    return logits;
}

/* cotangent [n, E] of the chosen ones [n, K] */
static struct s2s_tensor *chosen(const struct megatron *m, const struct s2s_tensor *all,
                                 const int32_t *experts)
{
    float *x = s2s_xcalloc((size_t)(m->n * m->e), sizeof *x);
    float *y = s2s_xcalloc((size_t)(m->n * m->k), sizeof *y);
    s2s_tensor_read(all, x);
    for (int64_t i = 0; i < m->n * m->k; i++)
        y[i] = x[i / m->k * m->e + experts[i]];
    struct s2s_tensor *t = leaf(m->tape, m->n, m->k, y);
    free(x);
    free(y);
    return t;
}

static void check_probs(const struct megatron *m, const struct s2s_routes *routes,
                        const int32_t *experts, double atol)
{
    char prefix[60];
    float *w = s2s_xcalloc((size_t)(m->n * m->k), sizeof *w);
    float *probs = s2s_xcalloc((size_t)(m->n * m->e), sizeof *probs);
    snprintf(prefix, sizeof prefix, "%s/", m->name);
    s2s_tensor_read(routes->weights, w);
    for (int64_t i = 0; i < m->n * m->k; i++)
        probs[i / m->k * m->e + experts[i]] = w[i];
    close_to("probs", probs, look(m->expected, prefix, "probs")->data, m->n * m->e, atol);
    free(w);
    free(probs);
}

static void check_logged(const struct megatron *m, double losses[6])
{
    const json_t *lb = json_object_get(m->c, "lb"), *logged = json_object_get(m->c, "logged_f64");
    for (size_t i = 0; i < (json_is_array(lb) ? json_array_size(lb) : 1); i++) {
        const char *kind = json_string_value(json_is_array(lb) ? json_array_get(lb, i) : lb);
        const char *key = strcmp(kind, "seq_aux_loss") == 0      ? "seq_load_balancing_loss"
                          : strcmp(kind, "global_aux_loss") == 0 ? "global_load_balancing_loss"
                                                                 : "load_balancing_loss";
        assert_true(losses[3 * i + 2] == (double)m->n);
        const double want = json_number_value(json_object_get(logged, key));
        assert_true(want > 0 && fabs(losses[3 * i] / (double)m->n - want) < 1e-6);
    }
    const json_t *z = json_object_get(logged, "z_loss");
    if (z)
        assert_true(fabs(losses[1] / (double)m->n - json_number_value(z)) < 1e-5);
}

static float *zeros(struct s2s_tape *tape, int64_t n)
{
    float *x = s2s_tape_tensor(tape, S2S_F32, 1, &n)->data;
    tape->device->kernels->zero(&tape->device->queue, x, (size_t)n * sizeof *x);
    return x;
}

/* What the tokens chose, and the bias after a step of Megatron's default rate. */
static void check_bias(struct megatron *m, const struct s2s_routes *routes, struct s2s_tensor *bias)
{
    char prefix[60];
    float counts[S2S_MAX_EXPERTS], moved[S2S_MAX_EXPERTS];
    struct s2s_device *device = m->tape->device;
    struct s2s_param param = {.tensor = bias};
    struct s2s_loads loads = {.device = device, .list = &m->load, .n = 1, .n_counts = m->e};
    snprintf(prefix, sizeof prefix, "%s/", m->name);
    m->load.bias = &param;
    s2s_op_count_routes(m->tape, routes, NULL, &m->load);
    device->kernels->copy_out(&device->queue, counts, m->load.routed,
                              (size_t)m->e * sizeof *counts);
    const int64_t *want = look(m->expected, prefix, "tokens_per_expert")->data;
    for (int64_t e = 0; e < m->e; e++) {
        int64_t n;
        memcpy(&n, want + e, sizeof n);
        assert_int_equal((int64_t)counts[e], n);
    }
    s2s_loads_end(&loads, NULL, 0, 1e-3f);
    s2s_tensor_read(bias, moved);
    close_to("bias", moved, look(m->expected, prefix, "updated_expert_bias")->data, m->e, 0);
}

static void megatron_case(const json_t *all, const json_t *c, struct s2s_safetensors *inputs,
                          struct s2s_safetensors *expected)
{
    struct s2s_device *device;
    struct megatron m = {
        .c = c, .inputs = inputs, .expected = expected, .tape = open_tape(&device, true)};
    const json_t *table = json_object_get(all, "tolerance");
    char prefix[60];
    read_case(&m);
    snprintf(prefix, sizeof prefix, "%s/", m.name);
    /* padding is masked by Megatron with lengths of the mean: packs have none, so only the rest */
    const bool pad = json_is_true(json_object_get(c, "pad"));
    m.input = upload(&m, "input", m.n, m.width);
    m.weight = upload(&m, "weight", m.e, m.width);
    struct s2s_tensor *bias = upload(&m, "expert_bias", 1, m.e);
    struct s2s_tensor *cotangent = upload(&m, "cotangent_probs", m.n, m.e);
    struct s2s_tensor *logits = s2s_op_linear(m.tape, m.input, m.weight, NULL);
    m.load = (struct s2s_load){
        .n_experts = m.e, .routed = zeros(m.tape, m.e), .wanted = zeros(m.tape, m.e)};
    if (!pad)
        logits = balance_case(&m, logits);
    const struct s2s_routes routes = s2s_op_route(m.tape, logits, bias, &m.router);
    int32_t *experts = s2s_xcalloc((size_t)(m.n * m.k), sizeof *experts);
    s2s_tensor_read(routes.experts, experts);
    check_probs(&m, &routes, experts, atol_of(&m, table, "probs"));
    if (bias)
        check_bias(&m, &routes, bias);
    s2s_tape_seed_grad(m.tape, routes.weights, chosen(&m, cotangent, experts));
    s2s_tape_backward(m.tape);
    const char *input = pad ? "grad_input_main_only" : "grad_input";
    const char *weight = pad ? "grad_weight_main_only" : "grad_weight";
    grad_close_to(input, m.input, look(expected, prefix, input), atol_of(&m, table, input));
    grad_close_to(weight, m.weight, look(expected, prefix, weight), atol_of(&m, table, weight));
    if (!pad) {
        double losses[6];
        device->kernels->copy_out(&device->queue, losses, m.device_losses, sizeof losses);
        check_logged(&m, losses);
    }
    free(experts);
    close_tape(m.tape, device);
}

/* Of two microbatches of three tokens, one expert each: those of the first, then the mean. */
static void a_loss_over_the_step_goes_by_the_mean_of_its_microbatches(void **state)
{
    static const float x[2][6] = {{3, 0, 3, 0, 3, 0}, {0, 3, 3, 0, 0, 3}};
    const struct s2s_router router = {.n_experts = 2, .n_chosen = 1, .score = S2S_SCORE_SOFTMAX};
    const double high = 1 / (1 + exp(-3)), low = 1 - high;
    /* E / (K n) times the sum of counts and sums of probabilities */
    const double want[2] = {2.0 / 3 * (3 * 3 * high),
                            2.0 / 3 * (2 * (high + 2 * low) + 1 * (low + 2 * high))};
    struct s2s_device *device;
    struct s2s_tape *tape = open_tape(&device, true);
    double *losses = s2s_tape_tensor(tape, S2S_F64, 1, (int64_t[]){3})->data, got[3];
    struct s2s_load load = {.n_experts = 2, .wanted = zeros(tape, 2)};
    double sum = 0;
    device->kernels->zero(&device->queue, losses, sizeof got);
    for (int i = 0; i < 2; i++) {
        const struct s2s_balance balance = {
            .n_segments = 1, .balance = 1, .losses = losses, .over_step = true};
        s2s_op_balance(tape, leaf(tape, 3, 2, x[i]), &router, &balance, &load);
    }
    s2s_tape_backward(tape);
    device->kernels->copy_out(&device->queue, got, losses, sizeof got);
    sum = want[0] + want[1];
    assert_true(fabs(got[0] - sum) < 1e-5 * sum && got[2] == 6);
    close_tape(tape, device);
}

static void routers_choose_weigh_and_balance_as_megatron_does(void **state)
{
    struct s2s_safetensors inputs = open_file(MODELS "moe_router_megatron/inputs.safetensors"),
                           expected = open_file(MODELS "moe_router_megatron/expected.safetensors");
    json_t *all = json_load_file(MODELS "moe_router_megatron/expected.json", 0, NULL);
    const json_t *cases = json_object_get(all, "cases");
    assert_int_equal(json_array_size(cases), 9);
    for (size_t i = 0; i < 9; i++)
        megatron_case(all, json_array_get(cases, i), &inputs, &expected);
    json_decref(all);
    s2s_safetensors_release(&inputs);
    s2s_safetensors_release(&expected);
}

static void a_loss_of_balance_flows_where_nothing_else_does(void **state)
{
    static const float x[] = {1, 0, 0, 2, 0, 1};
    const struct s2s_router router = {.n_experts = 3, .n_chosen = 1, .score = S2S_SCORE_SIGMOID};
    struct s2s_device *device;
    struct s2s_tape *tape = open_tape(&device, true);
    struct s2s_tensor *logits = leaf(tape, 2, 3, x);
    float got[6];
    s2s_op_balance(tape, logits, &router, &(struct s2s_balance){.n_segments = 1, .balance = 1},
                   NULL);
    s2s_tape_backward(tape);
    s2s_tensor_read(s2s_tape_take_grad(tape, logits), got);
    assert_true(got[0] > 0 && got[1] < 0);
    close_tape(tape, device);
}

/* ---- a layer, on one process and on ranks ---- */

static const struct s2s_nn_moe_names nemotron_names = {.gate = "gate",
                                                       .bias = "e_score_correction_bias",
                                                       .experts = "experts",
                                                       .expert_up = "up_proj",
                                                       .expert_down = "down_proj"};
static const struct s2s_nn_moe_names gated_names = {.gate = "gate",
                                                    .experts = "experts",
                                                    .expert_gate = "gate_proj",
                                                    .expert_up = "up_proj",
                                                    .expert_down = "down_proj"};

struct layer_run {
    struct s2s_device *device;
    struct s2s_tape *tape;
    struct s2s_params *params;
    struct s2s_par par;
    struct s2s_nn_tp tp;
    struct s2s_nn_moe layer;
};

static struct layer_run *open_layer(const struct s2s_nn_moe_options *options,
                                    const struct s2s_group *ep)
{
    struct layer_run *run = s2s_xcalloc(1, sizeof *run);
    struct s2s_error err = S2S_ERROR_INIT;
    run->tape = open_tape(&run->device, true);
    run->params = s2s_params_new(run->device);
    run->par.ep = ep;
    const struct s2s_nn_ctx ctx = {
        .params = run->params, .par = &run->par, .place = "", .init_std = 0.5};
    if (s2s_nn_moe_check(options, &run->par, &err) < 0)
        S2S_BUG("%s", err.text);
    s2s_nn_moe_init(&run->layer, &ctx, options);
    if (s2s_params_finish(run->params, &err) < 0)
        S2S_BUG("%s", err.text);
    s2s_params_init(run->params, 3);
    return run;
}

static void close_layer(struct layer_run *run)
{
    s2s_params_free(run->params);
    close_tape(run->tape, run->device);
    free(run);
}

static void a_layer_with_groups_and_a_bias_is_transformers_nemotron_h(void **state)
{
    const struct s2s_nn_moe_options options = {
        .router = {8, 3, 4, 2, 2, S2S_SCORE_SIGMOID, true, 2.5f},
        .width = 12,
        .inner = 10,
        .act = S2S_ACT_RELU2,
        .names = &nemotron_names};
    struct s2s_safetensors file = open_file(MODELS "nemotron_moe/block.safetensors");
    struct layer_run *run = open_layer(&options, NULL);
    float y[17 * 12];
    for (size_t i = 0; i < run->params->n; i++) {
        struct s2s_param *p = run->params->list[i];
        const struct s2s_st_tensor *t = s2s_safetensors_find(&file, p->name);
        assert_non_null(t);
        s2s_param_set(p, t->data, t->dtype);
    }
    s2s_params_zero_grads(run->params);
    struct s2s_tensor *x = leaf(run->tape, 17, 12, s2s_safetensors_find(&file, "x")->data);
    struct s2s_tensor *out = s2s_nn_moe(run->tape, &run->layer, &run->tp, x, NULL);
    s2s_tensor_read(out, y);
    close_to("y", y, s2s_safetensors_find(&file, "y")->data, 17 * 12, 2e-5);
    s2s_tape_seed_grad(run->tape, out,
                       leaf(run->tape, 17, 12, s2s_safetensors_find(&file, "cotangent")->data));
    s2s_tape_backward(run->tape);
    grad_close_to("x", x, s2s_safetensors_find(&file, "grad/x"), 5e-5);
    for (size_t i = 0; i < run->params->n; i++) {
        const struct s2s_param *p = run->params->list[i];
        if (p->trained)
            grad_close_to(p->name, p->tensor, look(&file, "grad/", p->name), 1e-4);
    }
    close_layer(run);
    s2s_safetensors_release(&file);
}

/* Rows of each of four ranks; rank 1 has none, and nothing goes to the last experts. */
enum { ROWS = 13, WIDTH = 6, INNER = 5, EXPERTS = 8, CHOSEN = 3, RANKS = 4 };
static const int row_begin[RANKS + 1] = {0, 5, 5, 12, 13};
static float x0[ROWS * WIDTH], dy0[ROWS * WIDTH];

struct outcome {
    float y[ROWS * WIDTH], dx[ROWS * WIDTH], dgate[EXPERTS * WIDTH];
    float dw[3][EXPERTS][INNER * WIDTH]; /* of the experts that are here */
};
static struct outcome whole, parts[RANKS];

static void run_rows(struct outcome *o, const struct s2s_group *ep, int begin, int end)
{
    const struct s2s_nn_moe_options options = {.router = {.n_experts = EXPERTS,
                                                          .n_chosen = CHOSEN,
                                                          .score = S2S_SCORE_SOFTMAX,
                                                          .normalise = true,
                                                          .scale = 1},
                                               .width = WIDTH,
                                               .inner = INNER,
                                               .act = S2S_ACT_SILU,
                                               .names = &gated_names};
    static const char *const kinds[] = {"gate_proj", "up_proj", "down_proj"};
    struct layer_run *run = open_layer(&options, ep);
    const int64_t n = end - begin;
    float gate[EXPERTS * WIDTH];
    s2s_param_get(run->layer.gate, gate);
    for (int e = EXPERTS - 2; e < EXPERTS; e++) { /* x0 has 1 in its first column */
        memset(gate + e * WIDTH, 0, WIDTH * sizeof *gate);
        gate[e * WIDTH] = -30;
    }
    s2s_param_set(run->layer.gate, gate, S2S_F32);
    s2s_params_zero_grads(run->params);
    struct s2s_tensor *x = leaf(run->tape, n, WIDTH, x0 + begin * WIDTH);
    struct s2s_tensor *y = s2s_nn_moe(run->tape, &run->layer, &run->tp, x, NULL);
    s2s_tensor_read(y, o->y);
    s2s_tape_seed_grad(run->tape, y, leaf(run->tape, n, WIDTH, dy0 + begin * WIDTH));
    s2s_tape_backward(run->tape);
    s2s_tensor_read(s2s_tape_take_grad(run->tape, x), o->dx);
    s2s_param_get_grad(run->layer.gate, o->dgate);
    for (int k = 0; k < 3; k++)
        for (int e = 0; e < EXPERTS; e++) {
            char name[60];
            snprintf(name, sizeof name, "experts.%d.%s.weight", e, kinds[k]);
            const struct s2s_param *p = s2s_params_find(run->params, name);
            if (s2s_param_is_here(p))
                s2s_param_get_grad(p, o->dw[k][e]);
        }
    close_layer(run);
}

static void run_rank(const struct s2s_group *g, void *ctx)
{
    const int *bounds = ctx;
    run_rows(&parts[g->rank], g, bounds[g->rank], bounds[g->rank + 1]);
}

static void on_ranks(int size, const int *bounds)
{
    struct team team;
    double dgate[EXPERTS * WIDTH] = {0};
    team_run(&team, size, run_rank, (void *)bounds);
    for (int r = 0; r < size; r++) {
        const int begin = bounds[r] * WIDTH, n = bounds[r + 1] * WIDTH - begin;
        close_to("y", parts[r].y, whole.y + begin, n, 1e-6);
        close_to("dx", parts[r].dx, whole.dx + begin, n, 1e-5);
        for (int i = 0; i < EXPERTS * WIDTH; i++)
            dgate[i] += parts[r].dgate[i];
        for (int k = 0; k < 3; k++)
            for (int e = r * EXPERTS / size; e < (r + 1) * EXPERTS / size; e++)
                close_to("dw", parts[r].dw[k][e], whole.dw[k][e], INNER * WIDTH, 1e-5);
    }
    for (int i = 0; i < EXPERTS * WIDTH; i++)
        assert_true(fabs(dgate[i] - whole.dgate[i]) < 1e-5);
}

static void experts_on_ranks_equal_one_process(void **state)
{
    static const int two[] = {0, 9, 13}, all_on_one[] = {0, 0, 13}, nobody[] = {0, 0, 0};
    static const float zeros[INNER * WIDTH];
    s2s_rng_fill_normal(x0, ROWS * WIDTH, 1, 0, 0, 1);
    s2s_rng_fill_normal(dy0, ROWS * WIDTH, 2, 0, 0, 1);
    for (int r = 0; r < ROWS; r++)
        x0[r * WIDTH] = 1;
    run_rows(&whole, NULL, 0, ROWS);
    for (int k = 0; k < 3; k++) { /* experts without a row */
        assert_memory_equal(whole.dw[k][EXPERTS - 1], zeros, sizeof zeros);
        assert_memory_equal(whole.dw[k][EXPERTS - 2], zeros, sizeof zeros);
    }
    assert_memory_not_equal(whole.dw[0][0], zeros, sizeof zeros);
    on_ranks(2, two);
    on_ranks(2, all_on_one);
    on_ranks(4, row_begin);
    run_rows(&whole, NULL, 0, 0);
    on_ranks(2, nobody);
}

/* ---- what is refused ---- */

static void meshes_that_do_not_fit_are_refused_before_anything_is_built(void **state)
{
    const struct s2s_group two = {.size = 2}, three = {.size = 3}, four = {.size = 4};
    const struct s2s_nn_moe_options options = {
        .router = {.n_experts = 8, .n_chosen = 2}, .width = 4, .inner = 6};
    struct s2s_error err = S2S_ERROR_INIT;
    assert_int_equal(s2s_nn_moe_check(&options, &(struct s2s_par){.ep = &three}, &err),
                     S2S_E_RANGE);
    assert_non_null(strstr(err.text, "8 experts cannot be shared by 3 ranks"));
    assert_int_equal(s2s_nn_moe_check(&options, &(struct s2s_par){.tp = &four, .etp = &four}, &err),
                     S2S_E_RANGE);
    assert_int_equal(s2s_nn_moe_check(&options, &(struct s2s_par){.tp = &two}, &err), S2S_E_RULE);
    assert_non_null(strstr(err.hint, "mesh.sequence_parallel=true"));
    assert_int_equal(
        s2s_nn_moe_check(&options, &(struct s2s_par){.tp = &four, .etp = &two, .sp = true}, &err),
        S2S_E_RANGE);
    assert_int_equal(s2s_nn_moe_check(&options, &(struct s2s_par){.tp = &two, .sp = true}, &err),
                     0);
    assert_int_equal(s2s_nn_moe_check(&options, &(struct s2s_par){.tp = &two, .etp = &two}, &err),
                     0);
}

static void a_stack_is_frozen_as_a_whole_or_not_at_all(void **state)
{
    const struct s2s_nn_moe_options options = {
        .router = {.n_experts = 4, .n_chosen = 1}, .width = 3, .inner = 5, .names = &gated_names};
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_device *device;
    assert_int_equal(s2s_device_open(&device, "cpu", &err), 0);
    for (int whole_stack = 0; whole_stack < 2; whole_stack++) {
        struct s2s_params *params = s2s_params_new(device);
        const struct s2s_par par = {.sp = false};
        const struct s2s_nn_ctx ctx = {.params = params, .par = &par, .place = "mlp"};
        struct s2s_nn_moe layer;
        s2s_nn_moe_init(&layer, &ctx, &options);
        s2s_params_freeze(params, whole_stack ? "mlp.experts" : "mlp.experts.1");
        assert_int_equal(s2s_params_finish(params, &err), whole_stack ? 0 : S2S_E_RULE);
        if (whole_stack)
            assert_int_equal(s2s_param_stack(layer.w_up).n, 4);
        else
            assert_non_null(strstr(err.text, "mlp.experts.1.gate_proj.weight is frozen, but "
                                             "mlp.experts.0.gate_proj.weight is not"));
        s2s_params_free(params);
    }
    s2s_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(routers_choose_weigh_and_balance_as_megatron_does),
        cmocka_unit_test(a_loss_over_the_step_goes_by_the_mean_of_its_microbatches),
        cmocka_unit_test(a_loss_of_balance_flows_where_nothing_else_does),
        cmocka_unit_test(a_layer_with_groups_and_a_bias_is_transformers_nemotron_h),
        cmocka_unit_test(experts_on_ranks_equal_one_process),
        cmocka_unit_test(meshes_that_do_not_fit_are_refused_before_anything_is_built),
        cmocka_unit_test(a_stack_is_frozen_as_a_whole_or_not_at_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
