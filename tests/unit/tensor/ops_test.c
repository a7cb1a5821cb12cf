/* Every operation of decoders against finite differences; see gradient.h. */
#include "tests/unit/tensor/gradient.h"

static const int32_t ids[] = {3, 0, 3, -1, 5, 2, 3};
static const int32_t cu[] = {0, 3, 3, 4, 11}; /* one empty sequence, one of length 1 */
static const int32_t positions[] = {0, 1, 2, 0, 0, 1, 2, 3, 4, 5, 6};
static const int32_t labels[] = {4, -100, 0, 12, -100, -100, 7, 3, 3, 1, -100};

static struct s2s_tensor *loss_linear(struct s2s_tape *tape, struct s2s_tensor **in)
{
    return to_target(tape, s2s_op_linear(tape, in[0], in[1], in[2]));
}

static struct s2s_tensor *loss_sum(struct s2s_tape *tape, struct s2s_tensor **in)
{
    struct s2s_tensor *y = s2s_op_axpby(tape, 0.5f, in[0], 2, in[1]);
    return to_target(tape, s2s_op_add(tape, s2s_op_scale(tape, 3, y), in[0]));
}

/* Used twice, once where others read it too: gradients add up. */
static struct s2s_tensor *loss_dropout(struct s2s_tape *tape, struct s2s_tensor **in)
{
    static const int32_t names[] = {1, 2, 3, 4, 5, 6, 7, 8};
    struct s2s_dropout drop = {.rate = 0.4f,
                               .site = 5,
                               .rows = s2s_tape_upload(tape, S2S_I32, 2, (int64_t[]){4, 2}, names)};
    struct s2s_tensor *x = s2s_op_scale(tape, 2, in[0]);
    drop.keeps = true;
    struct s2s_tensor *y = s2s_op_dropout(tape, x, &drop);
    drop.keeps = false;
    drop.first = 3;
    x = s2s_op_dropout(tape, s2s_op_add(tape, x, y), &drop);
    return to_target(tape, x);
}

static struct s2s_tensor *loss_embedding(struct s2s_tape *tape, struct s2s_tensor **in)
{
    return to_target(tape, s2s_op_embedding(tape, in[0], ids, 7, 1.5f, -1));
}

static struct s2s_tensor *loss_gather(struct s2s_tape *tape, struct s2s_tensor **in)
{
    static const int32_t idx[] = {4, -1, 0, 2};
    struct s2s_tensor *i = s2s_tape_upload_i32(tape, idx, 4);
    struct s2s_tensor *all = to_target(tape, in[0]);
    to_target(tape, s2s_op_gather_rows(tape, in[0], i));
    /* two losses of one tape add: hand back their sum by asking for the second one alone */
    double both[2] = {s2s_tensor_scalar(all), 0};
    struct s2s_tape *alone = s2s_tape_new(device, false);
    struct s2s_tensor *j = s2s_tape_upload_i32(alone, idx, 4);
    both[1] = s2s_tensor_scalar(to_target(alone, s2s_op_gather_rows(alone, in[0], j)));
    s2s_tape_free(alone);
    both[0] += both[1];
    s2s_tensor_write(all, both);
    return all;
}

static struct s2s_tensor *loss_splice(struct s2s_tape *tape, struct s2s_tensor **in)
{
    static const int32_t idx[] = {4, -1, 0};
    struct s2s_tensor *i = s2s_tape_upload_i32(tape, idx, 3);
    struct s2s_tensor *x = s2s_op_scale(tape, 2, in[0]);
    return to_target(tape, s2s_op_splice_rows(tape, x, in[1], i));
}

static struct s2s_tensor *loss_rmsnorm(struct s2s_tape *tape, struct s2s_tensor **in)
{
    return to_target(tape, s2s_op_rmsnorm(tape, in[0], in[1], 1e-5f, 1));
}

static struct s2s_tensor *loss_add_rmsnorm(struct s2s_tape *tape, struct s2s_tensor **in)
{
    struct s2s_tensor *sum, *again, *y;
    y = s2s_op_add_rmsnorm(tape, &sum, in[0], in[1], in[2], 1e-5f, 0);
    y = s2s_op_add_rmsnorm(tape, &again, y, sum, in[2], 1e-5f, 0);
    return to_target(tape, s2s_op_add(tape, y, again));
}

static struct s2s_tensor *loss_add_linear(struct s2s_tape *tape, struct s2s_tensor **in)
{
    /* each input is used elsewhere, too: gradients add up */
    struct s2s_tensor *y = s2s_op_scale(tape, 0.5f, in[0]);
    y = s2s_op_add_linear(tape, y, in[1], in[2], 0.7f);
    return to_target(tape, s2s_op_add_linear(tape, y, in[1], in[2], -0.2f));
}

static struct s2s_tensor *loss_rope(struct s2s_tape *tape, struct s2s_tensor **in)
{
    static const double freq[] = {1.0, 0.25};
    struct s2s_tensor *p = s2s_tape_upload_i32(tape, positions, 11);
    struct s2s_tensor *table = s2s_op_rope_table(tape, p, freq, 4, 1);
    return to_target(tape, s2s_op_rope(tape, s2s_op_scale(tape, 1, in[0]), table, 3));
}

static struct s2s_tensor *loss_rope_part(struct s2s_tape *tape, struct s2s_tensor **in)
{
    static const double freq[] = {1.0};
    struct s2s_tensor *p = s2s_tape_upload_i32(tape, positions, 11);
    struct s2s_tensor *table = s2s_op_rope_table(tape, p, freq, 2, 1.3);
    return to_target(tape, s2s_op_rope(tape, s2s_op_scale(tape, 1, in[0]), table, 3));
}

static struct s2s_tensor *attend(struct s2s_tape *tape, struct s2s_tensor **in, bool causal)
{
    struct s2s_spans spans = s2s_op_spans(tape, cu, cu, 4, causal);
    struct s2s_attention_shape shape = {.n_heads = 4, .n_kv_heads = 2, .dim = 3};
    return to_target(tape, s2s_op_attention(tape, in[0], in[1], in[2], &spans, &shape));
}

/* What is left out of what queries see is left out of the gradients, too. */
static struct s2s_tensor *loss_attention_dropout(struct s2s_tape *tape, struct s2s_tensor **in)
{
    int32_t names[2 * 11];
    struct s2s_spans spans = s2s_op_spans(tape, cu, cu, 4, true);
    const struct s2s_attention_shape shape = {
        .n_heads = 4, .n_kv_heads = 2, .dim = 3, .dropout = 0.4f, .site = 9};
    for (int i = 0; i < 2 * 11; i++)
        names[i] = i;
    spans.names = s2s_tape_upload(tape, S2S_I32, 2, (int64_t[]){11, 2}, names);
    spans.k_at = s2s_tape_upload_i32(tape, positions, 11);
    return to_target(tape, s2s_op_attention(tape, in[0], in[1], in[2], &spans, &shape));
}

static struct s2s_tensor *loss_attention(struct s2s_tape *tape, struct s2s_tensor **in)
{
    return attend(tape, in, true);
}

static struct s2s_tensor *loss_attention_full(struct s2s_tape *tape, struct s2s_tensor **in)
{
    return attend(tape, in, false);
}

#define GLU(name, act) \
    static struct s2s_tensor *loss_##name(struct s2s_tape *tape, struct s2s_tensor **in) \
    { \
        return to_target(tape, s2s_op_glu(tape, in[0], in[1], act)); \
    }
GLU(silu, S2S_ACT_SILU)
GLU(gelu_tanh, S2S_ACT_GELU_TANH)
GLU(gelu, S2S_ACT_GELU)
GLU(relu2, S2S_ACT_RELU2)

static struct s2s_tensor *loss_silu_alone(struct s2s_tape *tape, struct s2s_tensor **in)
{
    return to_target(tape, s2s_op_glu(tape, in[0], NULL, S2S_ACT_SILU));
}

static struct s2s_tensor *loss_xent(struct s2s_tape *tape, struct s2s_tensor **in)
{
    return s2s_op_linear_xent(tape, in[0], in[1], labels, 0.5, NULL);
}

static struct s2s_tensor *loss_logprob(struct s2s_tape *tape, struct s2s_tensor **in)
{
    /* used twice: the second gradient is added to the first */
    struct s2s_tensor *half = s2s_op_scale(tape, 0.5f, in[0]);
    struct s2s_tensor *a = s2s_op_linear_logprob(tape, in[0], in[1], labels);
    struct s2s_tensor *b = s2s_op_linear_logprob(tape, half, in[1], labels);
    return to_target(tape, s2s_op_add(tape, a, b));
}

static void two_layers(struct s2s_tape *tape, void *ctx, struct s2s_tensor *const *in,
                       struct s2s_tensor **out)
{
    struct s2s_tensor *y = s2s_op_linear(tape, in[0], in[1], NULL);
    y = s2s_op_glu(tape, y, NULL, S2S_ACT_SILU);
    *out = s2s_op_linear(tape, y, in[1], NULL);
}

static struct s2s_tensor *loss_segment(struct s2s_tape *tape, struct s2s_tensor **in)
{
    struct s2s_tensor *y = s2s_op_scale(tape, 0.3f, in[0]);
    s2s_tape_segment(tape, two_layers, NULL, 2, (struct s2s_tensor *[]){y, in[1]}, 1, &y, false);
    s2s_tape_segment(tape, two_layers, NULL, 2, (struct s2s_tensor *[]){y, in[1]}, 1, &y, false);
    return to_target(tape, y);
}

static struct s2s_tensor *loss_view(struct s2s_tape *tape, struct s2s_tensor **in)
{
    struct s2s_tensor *x = s2s_op_scale(tape, 0.3f, in[0]);
    struct s2s_tensor *flat = s2s_tape_view(tape, x, 2, (int64_t[]){6, 2});
    struct s2s_tensor *y = s2s_op_rmsnorm(tape, flat, in[1], 1e-5f, 0);
    return to_target(tape, s2s_op_add(tape, y, flat));
}

static struct check checks[] = {
    {"linear", 3, {{2, {7, 5}}, {2, {4, 5}}, {1, {4}}}, loss_linear},
    {"add_linear", 3, {{2, {7, 4}}, {2, {7, 3}}, {2, {4, 3}}}, loss_add_linear},
    {"sum", 2, {{2, {3, 5}}, {2, {3, 5}}}, loss_sum},
    {"dropout", 1, {{2, {4, 7}}}, loss_dropout},
    {"embedding", 1, {{2, {6, 5}}}, loss_embedding},
    {"gather", 1, {{2, {5, 3}}}, loss_gather},
    {"splice", 2, {{2, {5, 3}}, {2, {3, 3}}}, loss_splice},
    {"rmsnorm", 2, {{2, {70, 9}}, {1, {9}}}, loss_rmsnorm},
    {"add_rmsnorm", 3, {{2, {5, 9}}, {2, {5, 9}}, {1, {9}}}, loss_add_rmsnorm},
    {"rope", 1, {{2, {11, 12}}}, loss_rope},
    {"rope_part", 1, {{2, {11, 12}}}, loss_rope_part},
    {"attention", 3, {{2, {11, 12}}, {2, {11, 6}}, {2, {11, 6}}}, loss_attention},
    {"attention_dropout", 3, {{2, {11, 12}}, {2, {11, 6}}, {2, {11, 6}}}, loss_attention_dropout},
    {"attention_full", 3, {{2, {11, 12}}, {2, {11, 6}}, {2, {11, 6}}}, loss_attention_full},
    {"silu", 2, {{2, {5, 9}}, {2, {5, 9}}}, loss_silu},
    {"gelu_tanh", 2, {{2, {5, 9}}, {2, {5, 9}}}, loss_gelu_tanh},
    {"gelu", 2, {{2, {5, 9}}, {2, {5, 9}}}, loss_gelu},
    {"relu2", 2, {{2, {5, 9}}, {2, {5, 9}}}, loss_relu2},
    {"silu_alone", 1, {{2, {5, 9}}}, loss_silu_alone},
    {"linear_xent", 2, {{2, {11, 5}}, {2, {13, 5}}}, loss_xent},
    {"linear_logprob", 2, {{2, {11, 5}}, {2, {13, 5}}}, loss_logprob},
    {"segment", 2, {{2, {5, 4}}, {2, {4, 4}}}, loss_segment},
    {"view", 2, {{2, {3, 4}}, {1, {2}}}, loss_view},
};

int main(void)
{
    return run_checks(checks, sizeof checks / sizeof *checks);
}
