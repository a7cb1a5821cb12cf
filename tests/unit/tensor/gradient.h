/*
 * Operations of the tape against finite differences: loss = 0.5 |f(x, ...) - target|^2 (or the
 * operation's own loss) along a random direction of all inputs. Central differences with a step of
 * 2e-3 on fp32 values: truncation and rounding together stay below a few 1e-3 of the derivative; a
 * wrong formula is off by its whole size. Included by the tests of operations.
 */
#ifndef TESTS_GRADIENT_H
#define TESTS_GRADIENT_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "lib/base/error.h"
#include "lib/base/rng.h"
#include "lib/tensor/ops.h"
#include "lib/tensor/param.h"

enum { MAX_INPUTS = 6, MAX_NUMEL = 4096 };

struct input {
    int n_dims;
    int64_t shape[4];
};

/* One case: builds its loss from the inputs; target matrices come from fill(). */
struct check {
    const char *name;
    int n_inputs;
    struct input inputs[MAX_INPUTS];
    struct s2s_tensor *(*loss)(struct s2s_tape *tape, struct s2s_tensor **in);
};

static struct s2s_device *device;

static int64_t numel(const struct input *in)
{
    int64_t n = 1;
    for (int i = 0; i < in->n_dims; i++)
        n *= in->shape[i];
    return n;
}

static void fill(float *x, int64_t n, uint64_t key)
{
    s2s_rng_fill_normal(x, (size_t)n, key, 0, 0, 1);
}

static struct s2s_tensor *to_target(struct s2s_tape *tape, struct s2s_tensor *y)
{
    float *target = malloc((size_t)s2s_tensor_numel(y) * sizeof *target);
    fill(target, s2s_tensor_numel(y), 77);
    struct s2s_tensor *t = s2s_tape_upload(tape, S2S_F32, y->n_dims, y->shape, target);
    free(target);
    return s2s_op_sqdist(tape, y, t, 0.5);
}

/* loss at inputs + step * direction; with grads also sum(grad * direction) */
static double run(const struct check *c, double step, double *derivative)
{
    struct s2s_tape *tape = s2s_tape_new(device, derivative != NULL);
    struct s2s_tensor *in[MAX_INPUTS];
    float x[MAX_NUMEL], dir[MAX_NUMEL];
    for (int i = 0; i < c->n_inputs; i++) {
        int64_t n = numel(&c->inputs[i]);
        fill(x, n, (uint64_t)i + 1);
        fill(dir, n, (uint64_t)i + 101);
        for (int64_t j = 0; j < n; j++)
            x[j] += (float)step * dir[j];
        in[i] = s2s_tape_upload(tape, S2S_F32, c->inputs[i].n_dims, c->inputs[i].shape, x);
        s2s_tape_want_grad(in[i]);
    }
    struct s2s_tensor *originals[MAX_INPUTS];
    memcpy(originals, in, sizeof originals);
    double loss = s2s_tensor_scalar(c->loss(tape, in));
    if (derivative) {
        s2s_tape_backward(tape);
        *derivative = 0;
        for (int i = 0; i < c->n_inputs; i++) {
            int64_t n = numel(&c->inputs[i]);
            fill(dir, n, (uint64_t)i + 101);
            assert_non_null(originals[i]->grad);
            s2s_tensor_read(originals[i]->grad, x);
            for (int64_t j = 0; j < n; j++)
                *derivative += (double)x[j] * dir[j];
        }
    }
    s2s_tape_free(tape);
    return loss;
}

static void check_gradient(void **state)
{
    const struct check *c = *state;
    const double h = 2e-3;
    double derivative;
    run(c, 0, &derivative);
    /* the losses below are recorded with a seed of one half */
    double expected = 0.5 * (run(c, h, NULL) - run(c, -h, NULL)) / (2 * h);
    double scale = fabs(expected) + fabs(derivative) + 1e-2;
    if (!(fabs(derivative - expected) < 5e-3 * scale))
        fail_msg("%s: backward %g, differences %g", c->name, derivative, expected);
}

static int open_device(void **state)
{
    struct s2s_error err = S2S_ERROR_INIT;
    return s2s_device_open(&device, "cpu", &err);
}

static int close_device(void **state)
{
    s2s_device_close(device);
    return 0;
}

/* Runs every check as a test of its name. */
static int run_checks(struct check *checks, size_t n)
{
    enum { MAX_CHECKS = 64 };
    struct CMUnitTest tests[MAX_CHECKS];
    if (n > MAX_CHECKS)
        return 1;
    for (size_t i = 0; i < n; i++)
        tests[i] = (struct CMUnitTest){checks[i].name, check_gradient, NULL, NULL, &checks[i]};
    return _cmocka_run_group_tests("gradients", tests, n, open_device, close_device);
}

#endif
