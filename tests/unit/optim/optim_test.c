/* AdamW with clipping against torch, and what the options refuse. */
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
    struct s2s_optim *optim = s2s_optim_new(params, options);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ten_steps_equal_torch),
        cmocka_unit_test(options_are_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
