/* AdamW with clipping against torch, groups and parts of it, and what the options refuse. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include <jansson.h>

#include "lib/base/base.h"
#include "lib/conf/conf.h"
#include "lib/io/safetensors.h"
#include "lib/optim/optim.h"

#define DIR "tests/oracle/models/adamw/"

static const struct s2s_st_tensor *must_find(const struct s2s_safetensors *st, const char *fmt, ...)
{
    char name[200];
    va_list args;
    va_start(args, fmt);
    vsnprintf(name, sizeof name, fmt, args);
    va_end(args);
    const struct s2s_st_tensor *t = s2s_safetensors_find(st, name);
    if (!t)
        fail_msg("no tensor %s", name);
    return t;
}

static double tolerance(const json_t *expected, const char *name)
{
    const json_t *entry = json_object_get(json_object_get(expected, "tolerance"), name);
    assert_non_null(entry);
    return json_number_value(json_object_get(entry, "atol"));
}

static void compare(const float *got, const struct s2s_st_tensor *want, const json_t *expected)
{
    const double atol = tolerance(expected, want->name);
    for (int64_t i = 0; i < s2s_st_numel(want); i++) {
        float x;
        memcpy(&x, (const char *)want->data + i * 4, 4);
        if (fabs((double)got[i] - (double)x) > atol)
            fail_msg("%s[%lld]: %.9g, expected %.9g +- %g", want->name, (long long)i,
                     (double)got[i], (double)x, atol);
    }
}

static struct s2s_params *load_params(struct s2s_device *device, const struct s2s_safetensors *in)
{
    struct s2s_params *params = s2s_params_new(device);
    for (size_t i = 0; i < in->n_tensors; i++) {
        const struct s2s_st_tensor *t = in->tensors + i;
        if (strncmp(t->name, "param/", 6) != 0)
            continue;
        struct s2s_param_spec spec = {.name = t->name + 6, .n_dims = t->n_dims};
        memcpy(spec.shape, t->shape, (size_t)t->n_dims * sizeof *t->shape);
        s2s_params_add(params, &spec);
    }
    assert_int_equal(s2s_params_finish(params, NULL), 0);
    for (size_t i = 0; i < params->n; i++)
        s2s_param_set(params->list[i], must_find(in, "param/%s", params->list[i]->name)->data,
                      S2S_F32);
    return params;
}

static void run_config(int k, const struct s2s_adamw_options *options,
                       const struct s2s_safetensors *in, const struct s2s_safetensors *out,
                       const json_t *expected)
{
    struct s2s_device *device;
    assert_int_equal(s2s_device_open(&device, "cpu", NULL), 0);
    struct s2s_params *params = load_params(device, in);
    struct s2s_optim *optim;
    assert_int_equal(s2s_optim_new(&optim, params, options, 0, params->n_trained, NULL), 0);
    const json_t *norms =
        json_array_get(json_object_get(expected, "total_norms_before_clip_f64"), (size_t)k);
    float host[64];
    for (int step = 0; step < 10; step++) {
        for (size_t i = 0; i < params->n; i++)
            s2s_tensor_write(params->list[i]->tensor->grad,
                             must_find(in, "grad/%d/%s", step, params->list[i]->name)->data);
        double norm = s2s_optim_grad_norm(optim);
        double want = json_number_value(json_array_get(norms, (size_t)step));
        assert_true(fabs(norm - want) < 1e-6 * want);
        s2s_optim_step(optim, options->lr, options->weight_decay,
                       s2s_optim_clip_factor(optim, norm));
        for (size_t i = 0; i < params->n; i++) {
            s2s_param_get(params->list[i], host);
            compare(host, must_find(out, "config%d/step%d/%s", k, step + 1, params->list[i]->name),
                    expected);
        }
    }
    for (size_t i = 0; i < params->n; i++)
        for (int which = 0; which < 2; which++) {
            s2s_optim_get(optim, params->list[i], which, host);
            compare(host,
                    must_find(out, "config%d/%s/%s", k, which ? "exp_avg_sq" : "exp_avg",
                              params->list[i]->name),
                    expected);
        }
    s2s_optim_free(optim);
    s2s_params_free(params);
    s2s_device_close(device);
}

static void ten_steps_equal_torch(void **state)
{
    (void)state;
    struct s2s_safetensors in, out;
    assert_int_equal(s2s_safetensors_open(&in, DIR "inputs.safetensors", NULL), 0);
    assert_int_equal(s2s_safetensors_open(&out, DIR "expected.safetensors", NULL), 0);
    json_t *expected = json_load_file(DIR "expected.json", 0, NULL);
    assert_non_null(expected);
    const json_t *configs = json_object_get(expected, "configs");
    assert_int_equal(json_array_size(configs), 3);
    for (size_t k = 0; k < json_array_size(configs); k++) {
        const json_t *c = json_array_get(configs, k), *betas = json_object_get(c, "betas");
        struct s2s_adamw_options options = {
            .lr = json_number_value(json_object_get(c, "lr")),
            .beta1 = json_number_value(json_array_get(betas, 0)),
            .beta2 = json_number_value(json_array_get(betas, 1)),
            .eps = json_number_value(json_object_get(c, "eps")),
            .weight_decay = json_number_value(json_object_get(c, "weight_decay")),
            .clip_norm = json_number_value(json_object_get(c, "max_norm")),
        };
        run_config((int)k, &options, &in, &out, expected);
    }
    json_decref(expected);
    s2s_safetensors_release(&in);
    s2s_safetensors_release(&out);
}

static void options_are_checked(void **state)
{
    (void)state;
    static const char *const wrong[] = {"betas: [0.9, 1.0]", "betas: [0.9]", "lr: -1",
                                        "lr: abc",           "lrr: 1",       "name: sgd"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct s2s_conf *conf;
        struct s2s_adamw_options options;
        struct s2s_error err = S2S_ERROR_INIT;
        assert_int_equal(
            s2s_conf_parse(&conf, wrong[i], strlen(wrong[i]), "r.yaml", S2S_CONF_YAML, &err), 0);
        assert_true(s2s_adamw_read(&options, conf, &err) < 0);
        assert_non_null(strstr(err.text, "r.yaml:1:"));
        s2s_conf_free(conf);
    }
}

/* ---- parts of the buffers ---- */

/* Four parameters, one of each kind, with gradients; the last one is decayed. */
static struct s2s_params *four_params(struct s2s_device *device)
{
    static const struct s2s_group two = {.axis = "tp", .size = 2};
    struct s2s_params *params = s2s_params_new(device);
    struct s2s_param_spec spec[] = {
        {.name = "a.bias", .n_dims = 1, .shape = {21}, .lr_mult = 0.5},
        {.name = "b.bias", .n_dims = 1, .shape = {40}, .cuts = {{S2S_AXIS_TP, 0, &two}}},
        {.name = "c.bias", .n_dims = 1, .shape = {33}, .flags = S2S_PARAM_EXPERT},
        {.name = "d.weight", .n_dims = 2, .shape = {5, 7}, .decay_mult = 0.25}};
    for (int i = 0; i < 4; i++) {
        spec[i].init = (struct s2s_init){S2S_INIT_UNIFORM, 1};
        s2s_params_add(params, &spec[i]);
    }
    assert_int_equal(s2s_params_finish(params, NULL), 0);
    s2s_params_init(params, 1);
    s2s_params_zero_grads(params);
    for (size_t i = 0; i < params->n; i++) {
        float grad[40];
        for (int64_t k = 0; k < params->list[i]->numel; k++)
            grad[k] = (float)(i + 1) * 0.01F * (float)(k % 5 - 2);
        s2s_tensor_write(params->list[i]->tensor->grad, grad);
    }
    return params;
}

/* Five steps on the elements of n slices. */
static struct s2s_optim *step_part(struct s2s_params *params, const struct s2s_optim_slice *slices,
                                   size_t n)
{
    static const struct s2s_adamw_options options = S2S_ADAMW_OPTIONS_DEFAULT;
    struct s2s_optim *optim;
    assert_int_equal(s2s_optim_new_slices(&optim, params, &options, slices, n, NULL), 0);
    for (int i = 0; i < 5; i++)
        s2s_optim_step(optim, 0.1, 0.3, 1);
    return optim;
}

static void a_border_may_go_through_a_parameter(void **state)
{
    (void)state;
    struct s2s_device *device;
    assert_int_equal(s2s_device_open(&device, "cpu", NULL), 0);
    struct s2s_params *whole = four_params(device), *parts = four_params(device);
    /* in the middle of d.weight; the first has two slices of it */
    const int64_t n = whole->n_trained, border = 37, again = 48;
    const struct s2s_optim_slice all = {.end = n}, second = {.begin = border, .end = again},
                                 first[] = {{.end = border}, {.begin = again, .end = n}};
    struct s2s_optim *one = step_part(whole, &all, 1);
    struct s2s_optim *two[] = {step_part(parts, first, 2), step_part(parts, &second, 1)};
    for (size_t i = 0; i < whole->n; i++) {
        const struct s2s_param *p = parts->list[i];
        float want[40], got[40];
        int64_t begin, end, n_here = 0;
        s2s_param_get(whole->list[i], want);
        s2s_param_get(p, got);
        assert_memory_equal(got, want, (size_t)p->numel * sizeof *got);
        for (int which = 0; which < 2; which++) {
            s2s_optim_get(one, whole->list[i], which, want);
            memset(got, 0, sizeof got);
            for (int k = 0; k < 2; k++) {
                s2s_optim_get(two[k], p, which, got); /* each its part */
                for (begin = end = 0; s2s_optim_next(two[k], p, &begin, &end);)
                    n_here += end - begin;
            }
            assert_memory_equal(got, want, (size_t)p->numel * sizeof *got);
        }
        assert_int_equal(n_here, 2 * p->numel);
    }
    /* and back: only what is here is taken */
    const struct s2s_param *d = s2s_params_find(parts, "d.weight");
    float given[40], got[40] = {0};
    for (int i = 0; i < 40; i++)
        given[i] = (float)i + 1;
    s2s_optim_set(two[1], d, 1, given);
    s2s_optim_get(two[1], d, 1, got);
    for (int64_t i = 0; i < d->numel; i++)
        assert_true(got[i] == (d->offset + i < border || d->offset + i >= again ? 0 : given[i]));
    s2s_optim_free(one);
    s2s_optim_free(two[0]);
    s2s_optim_free(two[1]);
    s2s_params_free(whole);
    s2s_params_free(parts);
    s2s_device_close(device);
}

static void a_schedule_of_its_own_ends_where_its_group_says(void **state)
{
    (void)state;
    static const struct s2s_adamw_options options = {.lr = 1, .eps = 1e-8};
    static const struct s2s_schedule schedule = {
        .kind = S2S_SCHEDULE_LINEAR, .max_lr = 0.4, .min_lr = 0.01, .warmup = 2, .decay = 10};
    struct s2s_device *device;
    assert_int_equal(s2s_device_open(&device, "cpu", NULL), 0);
    struct s2s_params *params = four_params(device);
    /* a.weight, scaled to a half before, ends at 0.1 */
    assert_int_equal(s2s_params_scale_match(params, "a.*", 1, 1, 0.1), 1);
    struct s2s_optim *optim;
    assert_int_equal(s2s_optim_new(&optim, params, &options, 0, params->n_trained, NULL), 0);
    float before[40], after[40];
    for (int count = 0; count < 13; count++)
        for (size_t i = 0; i < params->n; i++) {
            const double max = i == 0 ? 0.2 : 0.4, min = i == 0 ? 0.1 : 0.01;
            const double lr = count <= 2    ? max * count / 2
                              : count <= 10 ? min + (max - min) * (10 - count) / 8
                                            : min;
            s2s_param_get(params->list[i], before);
            s2s_optim_follow(optim, &schedule, count);
            s2s_optim_step(optim, s2s_schedule_lr(&schedule, count), 0, 1);
            s2s_param_get(params->list[i], after);
            for (int64_t k = 0; k < params->list[i]->numel; k++) {
                const double sign = k % 5 > 2 ? 1 : k % 5 < 2 ? -1 : 0;
                assert_true(fabs((double)after[k] - ((double)before[k] - lr * sign)) < 1e-5);
            }
        }
    s2s_optim_free(optim);
    s2s_params_free(params);
    s2s_device_close(device);
}

static void the_average_of_values_follows_them(void **state)
{
    (void)state;
    static const struct s2s_adamw_options options = {.lr = 1, .eps = 1e-8, .ema_decay = 0.75};
    struct s2s_device *device;
    assert_int_equal(s2s_device_open(&device, "cpu", NULL), 0);
    struct s2s_params *params = four_params(device);
    const struct s2s_optim_slice slices[] = {{.end = 37}, {.begin = 37, .end = params->n_trained}};
    struct s2s_optim *optim;
    assert_int_equal(s2s_optim_new_slices(&optim, params, &options, slices, 2, NULL), 0);
    double want[4][40];
    float host[40];
    assert_int_equal(s2s_optim_n_moments(optim), 3);
    s2s_optim_begin_ema(optim);
    for (int step = 0; step < 6; step++) {
        for (size_t i = 0; i < params->n; i++) {
            s2s_param_get(params->list[i], host);
            for (int64_t k = 0; k < params->list[i]->numel; k++)
                want[i][k] = step ? 0.75 * want[i][k] + 0.25 * (double)host[k] : (double)host[k];
            s2s_optim_get(optim, params->list[i], 2, host);
            for (int64_t k = 0; k < params->list[i]->numel; k++)
                assert_true(fabs((double)host[k] - want[i][k]) < 1e-6);
        }
        s2s_optim_step(optim, 0.1, 0.3, 1);
    }
    s2s_optim_free(optim);
    s2s_params_free(params);
    s2s_device_close(device);
}

static void multipliers_scale_rate_and_decay(void **state)
{
    (void)state;
    static const struct s2s_adamw_options options = {.lr = 1, .eps = 1e-8};
    struct s2s_device *device;
    assert_int_equal(s2s_device_open(&device, "cpu", NULL), 0);
    struct s2s_params *params = four_params(device);
    struct s2s_optim *optim;
    assert_int_equal(s2s_optim_new(&optim, params, &options, 0, params->n_trained, NULL), 0);
    float before[4][40], after[40];
    for (size_t i = 0; i < params->n; i++)
        s2s_param_get(params->list[i], before[i]);
    s2s_optim_step(optim, 0.1, 0.3, 1);
    for (size_t i = 0; i < params->n; i++) {
        s2s_param_get(params->list[i], after);
        for (int64_t k = 0; k < params->list[i]->numel; k++) {
            /* without memory (betas 0) a step is the sign of the gradient */
            const double sign = k % 5 > 2 ? 1 : k % 5 < 2 ? -1 : 0, lr = i == 0 ? 0.05 : 0.1;
            const double keep = i == 3 ? 1 - 0.1 * 0.3 * 0.25 : 1;
            assert_true(fabs((double)after[k] - ((double)before[i][k] * keep - lr * sign)) < 1e-5);
        }
    }
    s2s_optim_free(optim);
    s2s_params_free(params);
    s2s_device_close(device);
}

static void the_norm_comes_in_classes(void **state)
{
    (void)state;
    static const struct s2s_adamw_options options = S2S_ADAMW_OPTIONS_DEFAULT;
    struct s2s_device *device;
    assert_int_equal(s2s_device_open(&device, "cpu", NULL), 0);
    struct s2s_params *params = four_params(device);
    double want[S2S_CLASSES] = {0}, got[S2S_CLASSES], sum = 0;
    for (size_t i = 0; i < params->n; i++) {
        float grad[40];
        s2s_param_get_grad(params->list[i], grad);
        for (int64_t k = 0; k < params->list[i]->numel; k++)
            want[params->list[i]->class] += (double)grad[k] * (double)grad[k];
    }
    /* on one rank, and summed over two that divide the buffers */
    for (int64_t border = 0; border < params->n_trained; border += 37) {
        double both[S2S_CLASSES] = {0};
        for (int k = 0; k < 2; k++) {
            struct s2s_optim *optim;
            assert_int_equal(s2s_optim_new(&optim, params, &options, k ? border : 0,
                                           k ? params->n_trained : border, NULL),
                             0);
            s2s_optim_sumsq(optim, optim->sums);
            device->kernels->copy_out(&device->queue, got, optim->sums, sizeof got);
            for (int c = 0; c < S2S_CLASSES; c++)
                both[c] += got[c];
            if (k && border == 0) {
                for (int c = 0; c < S2S_CLASSES; c++)
                    sum += want[c];
                assert_true(fabs(s2s_optim_grad_norm(optim) - sqrt(sum)) < 1e-12);
            }
            s2s_optim_free(optim);
        }
        for (int c = 0; c < S2S_CLASSES; c++)
            assert_true(fabs(both[c] - want[c]) < 1e-12 &&
                        (want[c] > 0) == (c != S2S_CLASS_SP_SUM && c != S2S_CLASS_COPY));
    }
    s2s_params_free(params);
    s2s_device_close(device);
}

static void *no_memory(struct s2s_queue *queue, size_t bytes)
{
    (void)queue;
    (void)bytes;
    return NULL;
}

static void no_room_for_the_moments_is_an_error(void **state)
{
    (void)state;
    static const struct s2s_adamw_options options = S2S_ADAMW_OPTIONS_DEFAULT;
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_device *device;
    struct s2s_optim *optim;
    assert_int_equal(s2s_device_open(&device, "cpu", NULL), 0);
    struct s2s_params *params = four_params(device);
    struct s2s_kernels poor = *device->kernels;
    const struct s2s_kernels *rich = device->kernels;
    poor.alloc = no_memory;
    device->kernels = &poor;
    assert_int_equal(s2s_optim_new(&optim, params, &options, 0, params->n_trained, &err),
                     S2S_E_NOMEM);
    assert_null(optim);
    assert_non_null(strstr(err.text, "moments"));
    device->kernels = rich;
    s2s_params_free(params);
    s2s_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ten_steps_equal_torch),
        cmocka_unit_test(a_border_may_go_through_a_parameter),
        cmocka_unit_test(multipliers_scale_rate_and_decay),
        cmocka_unit_test(the_average_of_values_follows_them),
        cmocka_unit_test(a_schedule_of_its_own_ends_where_its_group_says),
        cmocka_unit_test(the_norm_comes_in_classes),
        cmocka_unit_test(no_room_for_the_moments_is_an_error),
        cmocka_unit_test(options_are_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
