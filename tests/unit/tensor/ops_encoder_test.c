/* Every operation of speech encoders against finite differences; see gradient.h. */
#include "tests/unit/tensor/gradient.h"

/* clips of 5, 0, 1 and 4 rows; after a stride of two 3, 0, 1 and 2 */
static const int32_t cu[] = {0, 5, 5, 6, 10}, half[] = {0, 3, 3, 4, 6},
                     causal_half[] = {0, 3, 3, 4, 7};

static struct s2s_tensor *conv(struct s2s_tape *tape, struct s2s_tensor **in, bool relu,
                               bool causal)
{
    struct s2s_seqs from = s2s_op_seqs(tape, cu, 4),
                    to = s2s_op_seqs(tape, causal ? causal_half : half, 4);
    return to_target(tape, s2s_op_conv2d(tape, in[0], in[1], in[2], &from, &to, relu, causal));
}

static struct s2s_tensor *loss_conv2d(struct s2s_tape *tape, struct s2s_tensor **in)
{
    return conv(tape, in, false, false);
}

static struct s2s_tensor *loss_conv2d_relu(struct s2s_tape *tape, struct s2s_tensor **in)
{
    return conv(tape, in, true, false);
}

static struct s2s_tensor *loss_conv2d_causal(struct s2s_tape *tape, struct s2s_tensor **in)
{
    return conv(tape, in, false, true);
}

static struct s2s_tensor *conv_all(struct s2s_tape *tape, struct s2s_tensor **in,
                                   const struct s2s_conv_shape *shape, const int32_t *to)
{
    struct s2s_tensor *y = s2s_op_conv(tape, in[0], in[1], in[2], shape, cu, to, 4);
    return to_target(tape, y);
}

static struct s2s_tensor *loss_conv(struct s2s_tape *tape, struct s2s_tensor **in)
{
    return conv_all(tape, in, &(struct s2s_conv_shape){2, {3, 3}, {1, 1}, {1, 1}}, half);
}

static struct s2s_tensor *loss_conv_causal(struct s2s_tape *tape, struct s2s_tensor **in)
{
    return conv_all(tape, in, &(struct s2s_conv_shape){2, {3, 3}, {2, 2}, {1, 1}}, causal_half);
}

static struct s2s_tensor *loss_conv_dense(struct s2s_tape *tape, struct s2s_tensor **in)
{
    return conv_all(tape, in, &(struct s2s_conv_shape){1, {3, 3}, {1, 1}, {1, 1}}, cu);
}

static struct s2s_tensor *loss_conv_rows(struct s2s_tape *tape, struct s2s_tensor **in)
{
    return conv_all(tape, in, &(struct s2s_conv_shape){2, {5, 1}, {2, 0}, {2, 0}}, half);
}

/* On a device that takes seven windows at a time (it stays so: the last check): pixels stand in
 * windows of several pieces. */
static struct s2s_tensor *loss_conv_pieces(struct s2s_tape *tape, struct s2s_tensor **in)
{
    static struct s2s_kernels few;
    few = *tape->device->kernels;
    few.logits_bytes = 7 * 18 * sizeof(float);
    tape->device->kernels = &few;
    return conv_all(tape, in, &(struct s2s_conv_shape){1, {3, 3}, {1, 1}, {1, 1}}, cu);
}

static struct s2s_tensor *loss_max_pool(struct s2s_tape *tape, struct s2s_tensor **in)
{
    return to_target(tape, s2s_op_max_pool(tape, in[0], cu, half, 4));
}

static struct s2s_tensor *loss_dwconv(struct s2s_tape *tape, struct s2s_tensor **in)
{
    struct s2s_seqs seqs = s2s_op_seqs(tape, cu, 4);
    struct s2s_tensor *y = s2s_op_dwconv(tape, in[0], in[1], in[2], &seqs, 0);
    return to_target(tape, s2s_op_dwconv(tape, y, in[1], NULL, &seqs, 1));
}

static struct s2s_tensor *loss_layernorm(struct s2s_tape *tape, struct s2s_tensor **in)
{
    return to_target(tape, s2s_op_layernorm(tape, in[0], in[1], in[2], 1e-5f));
}

static struct s2s_tensor *loss_add_layernorm(struct s2s_tape *tape, struct s2s_tensor **in)
{
    struct s2s_tensor *sum, *again, *y;
    y = s2s_op_add_layernorm(tape, &sum, in[0], 0.5f, in[1], in[2], in[3], 1e-5f);
    y = s2s_op_add_layernorm(tape, &again, y, 1, sum, in[2], in[3], 1e-5f);
    return to_target(tape, s2s_op_add(tape, y, again));
}

/* the sum itself is not used */
static struct s2s_tensor *loss_last_layernorm(struct s2s_tape *tape, struct s2s_tensor **in)
{
    struct s2s_tensor *sum;
    return to_target(tape,
                     s2s_op_add_layernorm(tape, &sum, in[0], 0.5f, in[1], in[2], in[3], 1e-5f));
}

static struct s2s_tensor *norm(struct s2s_tape *tape, struct s2s_tensor **in, bool batch)
{
    static const float mean[] = {0.1f, -0.3f, 0.2f}, var[] = {1.5f, 0.5f, 1.0f};
    const int64_t cols = 3;
    struct s2s_batchnorm norm = {.gain = in[1],
                                 .bias = in[2],
                                 .running_mean = s2s_tape_upload(tape, S2S_F32, 1, &cols, mean),
                                 .running_var = s2s_tape_upload(tape, S2S_F32, 1, &cols, var),
                                 .eps = 1e-5f,
                                 .momentum = 0.1f,
                                 .batch = batch};
    return to_target(tape, s2s_op_batchnorm_silu(tape, in[0], &norm));
}

static struct s2s_tensor *loss_batchnorm(struct s2s_tape *tape, struct s2s_tensor **in)
{
    return norm(tape, in, false);
}

static struct s2s_tensor *loss_batchnorm_batch(struct s2s_tape *tape, struct s2s_tensor **in)
{
    return norm(tape, in, true);
}

static struct s2s_tensor *loss_glu(struct s2s_tape *tape, struct s2s_tensor **in)
{
    return to_target(tape, s2s_op_glu_halves(tape, in[0]));
}

static struct s2s_tensor *loss_transpose(struct s2s_tape *tape, struct s2s_tensor **in)
{
    struct s2s_tensor *y = s2s_op_transpose(tape, s2s_op_scale(tape, 0.5f, in[0]));
    return to_target(tape, y);
}

static struct s2s_tensor *attend(struct s2s_tape *tape, struct s2s_tensor **in,
                                 const int32_t *bounds, int64_t n, bool drops,
                                 struct s2s_reach reach)
{
    struct s2s_seqs seqs = s2s_op_seqs(tape, bounds, n);
    const int64_t rows = s2s_tensor_rows(in[0]);
    struct s2s_relattention_inputs args = {
        .q = in[0], .k = in[1], .value = in[2], .p = in[3], .u = in[4], .v = in[5], .reach = reach};
    int32_t names[200] = {0};
    for (int i = 0; i < 200; i++)
        names[i] = i;
    if (drops)
        args.dropout = (struct s2s_dropout){
            .rate = 0.4f,
            .site = 3,
            .rows = s2s_tape_upload(tape, S2S_I32, 2, (int64_t[]){rows, 2}, names)};
    return to_target(tape, s2s_op_relattention(tape, &args, &seqs));
}

static const struct s2s_reach everything = {0};

static struct s2s_tensor *loss_relattention(struct s2s_tape *tape, struct s2s_tensor **in)
{
    return attend(tape, in, cu, 4, false, everything);
}

/* more than one block of queries, more clips than groups of the backward */
static struct s2s_tensor *loss_relattention_long(struct s2s_tape *tape, struct s2s_tensor **in)
{
    static const int32_t bounds[] = {0, 70, 72, 73, 80, 91, 100};
    return attend(tape, in, bounds, 6, false, everything);
}

static struct s2s_tensor *loss_relattention_dropout(struct s2s_tape *tape, struct s2s_tensor **in)
{
    static const int32_t bounds[] = {0, 70, 72, 73, 80, 91, 100};
    return attend(tape, in, bounds, 6, true, everything);
}

static struct s2s_tensor *loss_relattention_reach(struct s2s_tape *tape, struct s2s_tensor **in)
{
    static const int32_t bounds[] = {0, 70, 72, 73, 80, 91, 100};
    return attend(tape, in, bounds, 6, true, (struct s2s_reach){4, 8, 0});
}

static struct check checks[] = {
    {"conv2d one input", 3, {{3, {10, 7, 1}}, {4, {5, 1, 3, 3}}, {1, {5}}}, loss_conv2d},
    {"conv2d depthwise", 3, {{3, {10, 7, 5}}, {4, {5, 1, 3, 3}}, {1, {5}}}, loss_conv2d},
    {"conv2d relu", 3, {{3, {10, 6, 5}}, {4, {5, 1, 3, 3}}, {1, {5}}}, loss_conv2d_relu},
    {"conv2d one input relu", 3, {{3, {10, 6, 1}}, {4, {5, 1, 3, 3}}, {1, {5}}}, loss_conv2d_relu},
    {"conv2d causal", 3, {{3, {10, 6, 1}}, {4, {5, 1, 3, 3}}, {1, {5}}}, loss_conv2d_causal},
    {"conv2d causal depthwise",
     3,
     {{3, {10, 7, 5}}, {4, {5, 1, 3, 3}}, {1, {5}}},
     loss_conv2d_causal},
    {"conv", 3, {{3, {10, 7, 2}}, {4, {3, 2, 3, 3}}, {1, {3}}}, loss_conv},
    {"conv causal", 3, {{3, {10, 6, 2}}, {4, {3, 2, 3, 3}}, {1, {3}}}, loss_conv_causal},
    {"conv at every place", 3, {{3, {10, 4, 2}}, {4, {3, 2, 3, 3}}, {1, {3}}}, loss_conv_dense},
    {"conv over rows", 3, {{3, {10, 1, 4}}, {3, {3, 4, 5}}, {1, {3}}}, loss_conv_rows},
    {"max_pool", 1, {{3, {10, 5, 3}}}, loss_max_pool},
    {"dwconv", 3, {{2, {10, 6}}, {3, {6, 1, 5}}, {1, {6}}}, loss_dwconv},
    {"layernorm", 3, {{2, {70, 9}}, {1, {9}}, {1, {9}}}, loss_layernorm},
    {"add_layernorm", 4, {{2, {5, 9}}, {2, {5, 9}}, {1, {9}}, {1, {9}}}, loss_add_layernorm},
    {"last layernorm", 4, {{2, {5, 9}}, {2, {5, 9}}, {1, {9}}, {1, {9}}}, loss_last_layernorm},
    {"batchnorm frozen", 3, {{2, {70, 3}}, {1, {3}}, {1, {3}}}, loss_batchnorm},
    {"batchnorm batch", 3, {{2, {70, 3}}, {1, {3}}, {1, {3}}}, loss_batchnorm_batch},
    {"glu halves", 1, {{2, {5, 12}}}, loss_glu},
    {"transpose", 1, {{3, {3, 4, 5}}}, loss_transpose},
    {"relattention",
     6,
     {{2, {10, 6}}, {2, {10, 6}}, {2, {10, 6}}, {2, {9, 6}}, {2, {2, 3}}, {2, {2, 3}}},
     loss_relattention},
    {"relattention long",
     6,
     {{2, {100, 6}}, {2, {100, 6}}, {2, {100, 6}}, {2, {139, 6}}, {2, {2, 3}}, {2, {2, 3}}},
     loss_relattention_long},
    {"relattention dropout",
     6,
     {{2, {100, 6}}, {2, {100, 6}}, {2, {100, 6}}, {2, {139, 6}}, {2, {2, 3}}, {2, {2, 3}}},
     loss_relattention_dropout},
    {"relattention of some keys",
     6,
     {{2, {100, 6}}, {2, {100, 6}}, {2, {100, 6}}, {2, {139, 6}}, {2, {2, 3}}, {2, {2, 3}}},
     loss_relattention_reach},
    {"conv in pieces", 3, {{3, {10, 4, 2}}, {4, {3, 2, 3, 3}}, {1, {3}}}, loss_conv_pieces},
};

int main(void)
{
    return run_checks(checks, sizeof checks / sizeof *checks);
}
