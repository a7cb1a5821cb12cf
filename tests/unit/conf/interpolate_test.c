/* Interpolation in configs, beside OmegaConf's rules. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "lib/base/error.h"
#include "lib/base/mem.h"
#include "lib/conf/conf.h"

static const char *const env[] = {"N=8", "NAME=x y", NULL};

/* The JSON of a YAML text after resolution and the first fault's kind (-1: none); lent. */
static const char *resolved(const char *text, enum s2s_conf_interpolation how, int *fault)
{
    static struct s2s_buf out;
    struct s2s_conf *conf = NULL;
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_conf_faults faults = {0};
    if (s2s_conf_parse(&conf, text, strlen(text), "t", S2S_CONF_YAML, &err) < 0)
        fail_msg("%s", err.text);
    s2s_conf_resolve(conf, how, env, &faults);
    *fault = faults.n ? (int)faults.items[0].kind : -1;
    s2s_buf_clear(&out);
    s2s_conf_dump_json(&out, conf);
    s2s_conf_free(conf);
    free(faults.items);
    return out.data;
}

static void check(const char *text, const char *wanted, int wanted_fault)
{
    int fault = -1;
    assert_string_equal(resolved(text, S2S_CONF_OMEGACONF, &fault), wanted);
    assert_int_equal(fault, wanted_fault);
}

static void interpolation_is_that_of_omegaconf(void **state)
{
    check("{a: 3, b: '${a}', c: 'x${a}y', d: {e: '${a}', f: '${.e}', g: '${..b}'}}",
          "{\"a\": 3, \"b\": 3, \"c\": \"x3y\", \"d\": {\"e\": 3, \"f\": 3, \"g\": 3}}", -1);
    check(
        "{a: {b: [1, 2], k: b}, c: '${a.b}', d: '${a.b[1]}', e: '${a.${a.k}}', f: '${a.b.0}'}",
        "{\"a\": {\"b\": [1, 2], \"k\": \"b\"}, \"c\": [1, 2], \"d\": 2, \"e\": [1, 2], \"f\": 1}",
        -1);
    check("{n: 4, m: '${mul:${n},2}', p: '${mul:${m}, ${add:1,2}}', d: '${div:${p},8}', x: "
          "'${max:1,${n}}', t: '${sum:1,2,3}'}",
          "{\"n\": 4, \"m\": 8, \"p\": 24, \"d\": 3.0, \"x\": 4, \"t\": 6}", -1);
    check("{a: '${oc.env:N}', b: '${oc.env:GONE,7}', c: '${oc.env:GONE,\"q r\"}', d: "
          "'${oc.env:NAME}'}",
          "{\"a\": 8, \"b\": 7, \"c\": \"q r\", \"d\": \"x y\"}", -1);
    check("{a: '${b}', b: '${c}', c: yes}", "{\"a\": true, \"b\": true, \"c\": true}", -1);
    check("{a: {x: '${..b.y}'}, b: {y: 2}, c: '${a}'}",
          "{\"a\": {\"x\": 2}, \"b\": {\"y\": 2}, \"c\": {\"x\": 2}}", -1);
}

static void faults_are_told_apart_and_unknowns_are_none(void **state)
{
    check("{a: '${b.c}', b: {}}", "{\"a\": \"${b.c}\", \"b\": {}}", S2S_CONF_FAULT_MISSING);
    check("{a: '${...b}'}", "{\"a\": \"${...b}\"}", S2S_CONF_FAULT_MISSING);
    check("{a: '${b}', b: '${a}'}", "{\"a\": \"${b}\", \"b\": \"${a}\"}", S2S_CONF_FAULT_CYCLE);
    check("{a: '${a}'}", "{\"a\": \"${a}\"}", S2S_CONF_FAULT_CYCLE);
    check("{a: {b: '${a}'}}", "{\"a\": {\"b\": \"${a}\"}}", S2S_CONF_FAULT_CYCLE);
    check("{a: {x: '${b}'}, b: {y: '${a}'}}",
          "{\"a\": {\"x\": {\"y\": \"${a}\"}}, \"b\": {\"y\": "
          "\"${a}\"}}",
          S2S_CONF_FAULT_CYCLE);
    check("{a: '${mull:1,2}'}", "{\"a\": \"${mull:1,2}\"}", S2S_CONF_FAULT_RESOLVER);
    check("{a: '${mul:x,2}'}", "{\"a\": \"${mul:x,2}\"}", S2S_CONF_FAULT_VALUE);
    check("{a: '${b'}", "{\"a\": \"${b\"}", S2S_CONF_FAULT_SYNTAX);
    check("{a: '${oc.env:GONE}'}", "{\"a\": \"${oc.env:GONE}\"}", S2S_CONF_FAULT_ENV);
    check("{a: '${now:%Y}', b: '${a}', c: '\?\?\?', d: '${c}', e: 'x${d}'}",
          "{\"a\": \"${now:%Y}\", \"b\": \"${a}\", \"c\": \"\?\?\?\", \"d\": \"${c}\", \"e\": "
          "\"x${d}\"}",
          -1);
}

static void automodel_means_the_environment(void **state)
{
    int fault = -1;
    assert_string_equal(
        resolved("{a: '${N}', b: $N, c: '${GONE,3}', d: '${oc.env:N}', e: 'p/${N}'}",
                 S2S_CONF_ENVIRONMENT, &fault),
        "{\"a\": 8, \"b\": 8, \"c\": 3, \"d\": 8, \"e\": \"p/8\"}");
    assert_int_equal(fault, -1);
    assert_string_equal(resolved("{a: '${a.b}'}", S2S_CONF_ENVIRONMENT, &fault),
                        "{\"a\": \"${a.b}\"}");
    assert_int_equal(fault, S2S_CONF_FAULT_ENV);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(interpolation_is_that_of_omegaconf),
        cmocka_unit_test(faults_are_told_apart_and_unknowns_are_none),
        cmocka_unit_test(automodel_means_the_environment),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
