/* Operations of mixtures of experts against finite differences. */
#include "tests/unit/tensor/gradient.h"

/* Weights alone; the inputs are far enough from another choice. */
static struct s2s_tensor *route(struct s2s_tape *tape, struct s2s_tensor *logits,
                                const struct s2s_router *router)
{
    return to_target(tape, s2s_op_route(tape, logits, NULL, router).weights);
}

static struct s2s_tensor *loss_softmax(struct s2s_tape *tape, struct s2s_tensor **in)
{
    return route(tape, in[0], &(struct s2s_router){5, 2, 0, 0, 0, S2S_SCORE_SOFTMAX, true, 1});
}

static struct s2s_tensor *loss_sigmoid(struct s2s_tape *tape, struct s2s_tensor **in)
{
    return route(tape, in[0], &(struct s2s_router){6, 2, 3, 2, 1, S2S_SCORE_SIGMOID, true, 2.5f});
}

static const struct s2s_router router = {4, 2, 0, 0, 0, S2S_SCORE_SOFTMAX, false, 1};

static struct s2s_tensor *grouped(struct s2s_tape *tape, struct s2s_tensor *x, struct s2s_tensor *w,
                                  struct s2s_tensor *offsets)
{
    const struct s2s_stack stack = {w, w->shape[0], w->shape[1] * w->shape[2]};
    return s2s_op_grouped_linear(tape, x, &stack, offsets);
}

static struct s2s_tensor *loss_grouped(struct s2s_tape *tape, struct s2s_tensor **in)
{
    static const int32_t bounds[] = {0, 3, 3, 7}; /* one without rows */
    return to_target(tape, grouped(tape, in[0], in[1], s2s_tape_upload_i32(tape, bounds, 4)));
}

/* x [7, 5], logits [7, 4], w [4, 5, 5], which the segment reads */
static void layer(struct s2s_tape *tape, void *ctx, struct s2s_tensor *const *in,
                  struct s2s_tensor **out)
{
    const struct s2s_routes routes = s2s_op_route(tape, in[1], NULL, &router);
    struct s2s_tensor *y = s2s_op_dispatch(tape, in[0], &routes);
    y = grouped(tape, y, in[2], routes.offsets);
    *out = s2s_op_combine(tape, y, &routes);
}

static struct s2s_tensor *loss_layer(struct s2s_tape *tape, struct s2s_tensor **in)
{
    struct s2s_tensor *y;
    layer(tape, NULL, in, &y);
    return to_target(tape, s2s_op_add(tape, y, in[0]));
}

static struct s2s_tensor *loss_layer_again(struct s2s_tape *tape, struct s2s_tensor **in)
{
    struct s2s_tensor *y = s2s_op_scale(tape, 0.5f, in[0]);
    s2s_tape_segment(tape, layer, NULL, 3, (struct s2s_tensor *[]){y, in[1], in[2]}, 1, &y, false);
    return to_target(tape, y);
}

static struct check checks[] = {
    {"weights of a softmax", 1, {{2, {7, 5}}}, loss_softmax},
    {"weights of sigmoids in groups", 1, {{2, {7, 6}}}, loss_sigmoid},
    {"products of each expert", 2, {{2, {7, 5}}, {3, {3, 4, 5}}}, loss_grouped},
    {"dispatch and combine", 3, {{2, {7, 5}}, {2, {7, 4}}, {3, {4, 5, 5}}}, loss_layer},
    {"a layer that runs again", 3, {{2, {7, 5}}, {2, {7, 4}}, {3, {4, 5, 5}}}, loss_layer_again},
};

int main(void)
{
    return run_checks(checks, sizeof checks / sizeof *checks);
}
