/* Every point of the curves that Megatron's and NeMo's own classes gave. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include <jansson.h>

#include "lib/base/base.h"
#include "lib/optim/schedule.h"

static json_t *curves(void)
{
    json_t *all = json_load_file("tests/oracle/models/lr_schedules/curves.json", 0, NULL);
    assert_non_null(all);
    return all;
}

static double number(const json_t *object, const char *key)
{
    return json_number_value(json_object_get(object, key));
}

static int index_of(const char *const *names, const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    for (int i = 0; text && names[i]; i++)
        if (strcasecmp(names[i], text) == 0)
            return i;
    if (text && strcmp(text, "inverse-square-root") == 0)
        return S2S_SCHEDULE_INVERSE_SQRT;
    return 0;
}

static void near(double got, double want, const json_t *curve, double count)
{
    if (fabs(got - want) > 1e-12 * fabs(want) + 1e-18)
        fail_msg("%s at %.15g: %.17g, expected %.17g",
                 json_string_value(json_object_get(curve, "name")), count, got, want);
}

static void megatron_curves(void **state)
{
    (void)state;
    json_t *all = curves(), *curve, *point;
    size_t i, k, n = 0;
    json_array_foreach(json_object_get(all, "megatron"), i, curve)
    {
        struct s2s_schedule s = {
            .kind = (enum s2s_schedule_kind)index_of(s2s_schedule_names, curve, "lr_decay_style"),
            .max_lr = number(curve, "max_lr"),
            .min_lr = number(curve, "min_lr"),
            .init_lr = number(curve, "init_lr"),
            .warmup = number(curve, "lr_warmup_steps"),
            .decay = number(curve, "lr_decay_steps"),
            .wsd = number(curve, "wsd_decay_steps"),
            .wsd_style = (enum s2s_wsd_style)index_of(s2s_wsd_names, curve, "lr_wsd_decay_style"),
            .start_wd = number(curve, "start_wd"),
            .end_wd = number(curve, "end_wd"),
            .wd_steps = number(curve, "wd_incr_steps"),
            .wd_style = (enum s2s_wd_style)index_of(s2s_wd_names, curve, "wd_incr_style"),
        };
        struct s2s_schedule group = s;
        const json_t *other = json_object_get(curve, "group1");
        if (other) {
            group.max_lr = number(other, "max_lr");
            group.min_lr = number(other, "min_lr");
        }
        assert_int_equal(s2s_schedule_check(&s, NULL), 0);
        json_array_foreach(json_object_get(curve, "points"), k, point)
        {
            double c = json_number_value(json_array_get(point, 0));
            near(s2s_schedule_lr(&s, c), json_number_value(json_array_get(point, 1)), curve, c);
            near(s2s_schedule_wd(&s, c), json_number_value(json_array_get(point, 2)), curve, c);
            near(s2s_schedule_lr(&group, c), json_number_value(json_array_get(point, 3)), curve, c);
            n++;
        }
    }
    assert_int_equal(n, 12 * 200);
    json_decref(all);
}

static void nemo_curves(void **state)
{
    (void)state;
    json_t *all = curves(), *curve, *point;
    size_t i, k, n = 0;
    json_array_foreach(json_object_get(all, "nemo"), i, curve)
    {
        const json_t *args = json_object_get(curve, "args");
        const char *name = json_string_value(json_object_get(curve, "scheduler"));
        struct s2s_schedule s = {
            .kind = strcmp(name, "CosineAnnealing") == 0 ? S2S_SCHEDULE_NEMO_COSINE
                    : strcmp(name, "InverseSquareRootAnnealing") == 0
                        ? S2S_SCHEDULE_NEMO_INVERSE_SQRT
                        : S2S_SCHEDULE_NEMO_HOLD_SQRT,
            .max_lr = number(curve, "lr"),
            .min_lr = number(args, "min_lr"),
            .decay = number(args, "max_steps"),
            .warmup = number(args, "warmup_steps"),
            .hold = number(args, "hold_steps") + number(args, "constant_steps"),
        };
        if (json_object_get(args, "warmup_ratio"))
            s.warmup = floor(number(args, "warmup_ratio") * s.decay);
        json_array_foreach(json_object_get(curve, "points"), k, point)
        {
            double t = json_number_value(json_array_get(point, 0));
            near(s2s_schedule_lr(&s, t), json_number_value(json_array_get(point, 1)), curve, t);
            n++;
        }
    }
    assert_int_equal(n, 7 * 200);
    json_decref(all);
}

static void what_does_not_fit_is_refused(void **state)
{
    (void)state;
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_schedule s = {.kind = S2S_SCHEDULE_COSINE, .max_lr = 1, .warmup = 10, .decay = 10};
    assert_int_equal(s2s_schedule_check(&s, &err), S2S_E_RANGE);
    s.decay = 11;
    assert_int_equal(s2s_schedule_check(&s, &err), 0);
    s.min_lr = 2;
    assert_int_equal(s2s_schedule_check(&s, &err), S2S_E_RANGE);
    s = (struct s2s_schedule){.kind = S2S_SCHEDULE_WSD, .max_lr = 1, .decay = 10, .wsd = 11};
    assert_int_equal(s2s_schedule_check(&s, &err), S2S_E_RANGE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(megatron_curves),
        cmocka_unit_test(nemo_curves),
        cmocka_unit_test(what_does_not_fit_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
