/* Configs: parsing, typed values, overrides and messages, beside PyYAML's results. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <math.h>
#include <stdlib.h>

#include <cmocka.h>

#include "lib/base/error.h"
#include "lib/base/mem.h"
#include "lib/conf/conf.h"

#define ORACLE "tests/oracle/conf/"

static struct s2s_error err;

static struct s2s_conf *yaml(const char *text)
{
    struct s2s_conf *conf = NULL;
    if (s2s_conf_parse(&conf, text, strlen(text), "t.yaml", S2S_CONF_YAML, &err) < 0)
        fail_msg("%s", err.text);
    return conf;
}

static void a_key_that_stands_twice_is_told_with_both_places(void **state)
{
    struct s2s_conf *once = yaml("a: {b: 1}\nc: {b: 2}\n");
    assert_int_equal(s2s_conf_check_duplicates(once, &err), 0);
    struct s2s_conf *twice = yaml("a: 1\nc:\n  b: 2\n  b: 3\n");
    assert_int_equal(s2s_conf_check_duplicates(twice, &err), S2S_E_FORMAT);
    assert_string_equal(err.text, "t.yaml:4:3: 'b' stands here again, after line 3");
    s2s_conf_free(once);
    s2s_conf_free(twice);
}

/* The message of a text that must be refused. */
static const char *refused(const char *text, enum s2s_conf_format format)
{
    struct s2s_conf *conf = NULL;
    const char *name = format == S2S_CONF_JSON ? "t.json" : "t.yaml";
    s2s_error_clear(&err);
    int rc = s2s_conf_parse(&conf, text, strlen(text), name, format, &err);
    assert_true(rc == S2S_E_FORMAT || rc == S2S_E_UNSUPPORTED);
    assert_null(conf);
    return err.text;
}

static bool same(const struct s2s_conf *a, const struct s2s_conf *b)
{
    if (a->kind != b->kind || a->n_items != b->n_items)
        return false;
    for (size_t i = 0; i < a->n_items; i++)
        if ((a->kind == S2S_CONF_MAP && strcmp(a->items[i]->key, b->items[i]->key) != 0) ||
            !same(a->items[i], b->items[i]))
            return false;
    switch (a->kind) {
    case S2S_CONF_BOOL:
        return a->as_bool == b->as_bool;
    case S2S_CONF_INT:
        return a->as_int == b->as_int;
    case S2S_CONF_FLOAT:
        return a->as_float == b->as_float || (isnan(a->as_float) && isnan(b->as_float));
    case S2S_CONF_STRING:
        return !strcmp(a->text, b->text);
    default:
        return true;
    }
}

static void check_scalar(const struct s2s_conf *row)
{
    static const char *const kinds[] = {"null", "bool", "int", "float", "string", NULL};
    const char *text = s2s_conf_key(row, "text")->text;
    const struct s2s_conf *value = s2s_conf_key(row, "value");
    int kind = 0, pyyaml = 0;
    s2s_conf_get_choice(&kind, row, "kind", kinds, &err);
    s2s_conf_get_choice(&pyyaml, row, "pyyaml", kinds, &err);
    struct s2s_buf line = S2S_BUF_INIT;
    s2s_buf_printf(&line, "k: %s", text);
    struct s2s_conf *conf = yaml(line.data);
    const struct s2s_conf *got = s2s_conf_key(conf, "k");
    double number = 0, wanted = 0;
    if (kind == S2S_CONF_INT && value->kind == S2S_CONF_FLOAT)
        kind = S2S_CONF_FLOAT; /* beyond 64 bits */
    if ((int)got->kind != kind)
        fail_msg("%s: kind %d, expected %d", text, got->kind, kind);
    if (got->bare_float != (kind == S2S_CONF_FLOAT && pyyaml == S2S_CONF_STRING))
        fail_msg("%s: bare_float is %d", text, got->bare_float);
    if (kind == S2S_CONF_INT || kind == S2S_CONF_FLOAT) {
        s2s_conf_as_f64(&number, got, &err);
        wanted = value->kind == S2S_CONF_STRING ? strtod(value->text, NULL)
                 : value->kind == S2S_CONF_INT  ? (double)value->as_int
                                                : value->as_float;
        if (number != wanted && !(isnan(number) && isnan(wanted)))
            fail_msg("%s: %g, expected %g", text, number, wanted);
    }
    if (kind == S2S_CONF_BOOL)
        assert_int_equal(got->as_bool, value->as_bool);
    s2s_conf_free(conf);
    s2s_buf_release(&line);
}

static void scalars_are_typed_as_omegaconf_and_pyyaml_do(void **state)
{
    struct s2s_conf *rows = NULL;
    if (s2s_conf_read(&rows, ORACLE "scalars.json", S2S_CONF_AUTO, &err) < 0)
        fail_msg("%s", err.text);
    assert_true(rows->n_items > 130);
    for (size_t i = 0; i < rows->n_items; i++)
        check_scalar(rows->items[i]);
    s2s_conf_free(rows);
}

static void trees_equal_pyyaml_and_survive_a_dump(void **state)
{
    static const char *const names[] = {"merge", "blocks", "recipe"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct s2s_conf *got = NULL, *wanted = NULL, *again = NULL;
        struct s2s_buf path = S2S_BUF_INIT, text = S2S_BUF_INIT;
        s2s_buf_printf(&path, ORACLE "%s.yaml", names[i]);
        if (s2s_conf_read(&got, path.data, S2S_CONF_AUTO, &err) < 0)
            fail_msg("%s", err.text);
        s2s_buf_clear(&path);
        s2s_buf_printf(&path, ORACLE "%s.json", names[i]);
        if (s2s_conf_read(&wanted, path.data, S2S_CONF_AUTO, &err) < 0)
            fail_msg("%s", err.text);
        if (!same(got, wanted)) {
            s2s_conf_dump_json(&text, got);
            fail_msg("%s differs: %s", names[i], text.data);
        }
        s2s_conf_dump(&text, got, false);
        again = yaml(text.data);
        if (!same(got, again))
            fail_msg("%s does not survive: %s", names[i], text.data);
        s2s_buf_clear(&text);
        s2s_conf_dump(&text, got, true);
        s2s_conf_free(again);
        again = yaml(text.data);
        assert_true(same(got, again));
        s2s_buf_clear(&text);
        s2s_conf_dump_json(&text, got);
        s2s_conf_free(again);
        assert_int_equal(s2s_conf_parse(&again, text.data, text.len, "d.json", S2S_CONF_AUTO, &err),
                         0);
        assert_true(same(got, again));
        s2s_conf_free(again);
        s2s_conf_free(got);
        s2s_conf_free(wanted);
        s2s_buf_release(&path);
        s2s_buf_release(&text);
    }
}

static void every_value_knows_its_place(void **state)
{
    struct s2s_conf *conf = yaml("a: 1\nb:\n  grüße: [x, 22]\n");
    const struct s2s_conf *node = s2s_conf_find(conf, "b.grüße[1]");
    size_t len = 0;
    assert_non_null(node);
    assert_int_equal(node->place.line, 3);
    assert_int_equal(node->place.column, 14);
    assert_int_equal(node->parent->key_column, 3);
    assert_memory_equal(s2s_conf_line(&node->place, &len), "  grüße: [x, 22]", 18);
    assert_ptr_equal(node, s2s_conf_find(conf, "b.grüße.1"));
    assert_null(s2s_conf_find(conf, "b.grüße[2]"));
    assert_null(s2s_conf_find(conf, "a.b"));
    struct s2s_buf path = S2S_BUF_INIT;
    s2s_conf_add_path(&path, node);
    assert_string_equal(path.data, "b.grüße[1]");
    s2s_buf_release(&path);
    s2s_conf_free(conf);
    static const char json[] = "{\"a\": 1,\n \"b\": {\"c\": [true, \"\\ud83d\\ude00\"]}}";
    assert_int_equal(s2s_conf_parse(&conf, json, strlen(json), "c.json", S2S_CONF_AUTO, &err), 0);
    node = s2s_conf_find(conf, "b.c[1]");
    assert_string_equal(node->text, "\xf0\x9f\x98\x80");
    assert_int_equal(node->place.line, 2);
    assert_int_equal(node->place.column, 20);
    s2s_conf_free(conf);
}

static void getters_name_place_path_and_what_was_found(void **state)
{
    struct s2s_conf *conf =
        yaml("optimizer: {lr: abc, n: 4.0, m: 4.5, on: yes, name: adamm, big: 1e30, nil: }\n");
    static const char *const names[] = {"adamw", "sgd", NULL};
    int64_t n = 0;
    double x = 0;
    bool b = false;
    const char *s = NULL;
    int choice = 0;
    assert_int_equal(s2s_conf_get_f64(&x, conf, "optimizer.lr", &err), S2S_E_FORMAT);
    assert_string_equal(err.text, "t.yaml:1:17: optimizer.lr: expected a number, found 'abc'");
    assert_int_equal(s2s_conf_get_i64(&n, conf, "optimizer.n", 0, 9, &err), 0);
    assert_int_equal(n, 4);
    assert_int_equal(s2s_conf_get_i64(&n, conf, "optimizer.n", 5, INT64_MAX, &err), S2S_E_RANGE);
    assert_string_equal(err.text, "t.yaml:1:25: optimizer.n: expected at least 5, found 4");
    assert_int_equal(s2s_conf_get_i64(&n, conf, "optimizer.m", 0, 9, &err), S2S_E_FORMAT);
    assert_string_equal(err.text, "t.yaml:1:33: optimizer.m: expected an integer, found 4.5");
    assert_int_equal(s2s_conf_get_i64(&n, conf, "optimizer.big", 0, 9, &err), S2S_E_RANGE);
    assert_int_equal(s2s_conf_get_bool(&b, conf, "optimizer.on", &err), 0);
    assert_true(b);
    assert_int_equal(s2s_conf_get_choice(&choice, conf, "optimizer.name", names, &err),
                     S2S_E_RANGE);
    assert_string_equal(err.hint, "did you mean 'adamw'?");
    assert_int_equal(s2s_conf_get_str(&s, conf, "optimizer.nil", &err), S2S_E_NOTFOUND);
    assert_int_equal(s2s_conf_get_str(&s, conf, "optimizer.gone", &err), S2S_E_NOTFOUND);
    assert_string_equal(err.text, "t.yaml:1:1: 'optimizer.gone' is missing");
    assert_int_equal(s2s_conf_get_f64_or(&x, conf, "optimizer.nil", 2.5, &err), 0);
    assert_true(x == 2.5);
    assert_int_equal(s2s_conf_get_str(&s, conf, "optimizer.n", &err), 0);
    assert_string_equal(s, "4.0");
    const struct s2s_conf *list = NULL;
    assert_int_equal(s2s_conf_get_list(&list, conf, "optimizer", &err), S2S_E_FORMAT);
    assert_string_equal(err.text, "t.yaml:1:12: optimizer: expected a list, found a map");
    static const char *const known[] = {"lr", "n", "m", "on", "names", "big", "nil", NULL};
    assert_int_equal(s2s_conf_check_keys(conf, "optimizer", known, &err), S2S_E_FORMAT);
    assert_string_equal(err.text, "t.yaml:1:47: optimizer.name: unknown key 'name'; did you mean "
                                  "'names'?");
    s2s_conf_free(conf);
}

static void overrides_are_yaml_and_make_their_way(void **state)
{
    struct s2s_conf *conf = yaml("a: {b: 1, l: [1, 2]}\ne:\n");
    double x = 0;
    assert_int_equal(s2s_conf_override(conf, "a.b=1e-4", &err), 0);
    assert_int_equal(s2s_conf_override(conf, "a.new.deep=[x, {y: 2}]", &err), 0);
    assert_int_equal(s2s_conf_override(conf, "a.l[1]=7", &err), 0);
    assert_int_equal(s2s_conf_override(conf, "e.f=", &err), 0);
    assert_int_equal(s2s_conf_get_f64(&x, conf, "a.b", &err), 0);
    assert_true(x == 1e-4);
    struct s2s_buf text = S2S_BUF_INIT;
    s2s_conf_dump_json(&text, conf);
    assert_string_equal(text.data, "{\"a\": {\"b\": 0.0001, \"l\": [1, 7], \"new\": {\"deep\": "
                                   "[\"x\", {\"y\": 2}]}}, \"e\": {\"f\": null}}");
    assert_int_equal(s2s_conf_override(conf, "a.b", &err), S2S_E_ARG);
    assert_int_equal(s2s_conf_override(conf, "a.b.c=1", &err), S2S_E_FORMAT);
    assert_string_equal(err.text, "command line: a.b: cannot set 'a.b.c' in here: expected a map, "
                                  "found a number");
    assert_int_equal(s2s_conf_override(conf, "a.l[2]=1", &err), S2S_E_FORMAT);
    assert_int_equal(s2s_conf_override(conf, "a.b=[1", &err), S2S_E_FORMAT);
    assert_int_equal(s2s_conf_override(conf, "=1", &err), S2S_E_ARG);
    assert_int_equal(s2s_conf_override(conf, ".=1", &err), S2S_E_ARG);
    int64_t n = 0;
    assert_int_equal(s2s_conf_override(conf, "a.b=abc", &err), 0);
    assert_int_equal(s2s_conf_get_i64(&n, conf, "a.b", 0, 1, &err), S2S_E_FORMAT);
    assert_string_equal(err.text, "command line: a.b: expected an integer, found 'abc'");
    size_t len = 0;
    const struct s2s_conf *node = s2s_conf_find(conf, "a.b");
    assert_int_equal(node->place.column, 5);
    assert_memory_equal(s2s_conf_line(&node->place, &len), "a.b=abc", 7);
    assert_true(s2s_conf_remove(conf, "a.new"));
    assert_false(s2s_conf_remove(conf, "a.new"));
    s2s_buf_release(&text);
    s2s_conf_free(conf);
}

static void merge_is_deep_for_maps_and_keeps_places(void **state)
{
    struct s2s_conf *conf = yaml("a: {x: 1, y: [1, 2]}\nb: 1\n");
    struct s2s_conf *over = NULL;
    static const char text[] = "b: {c: 2}\na: {y: [3], z: 4}\n";
    assert_int_equal(s2s_conf_parse(&over, text, strlen(text), "over.yaml", S2S_CONF_YAML, &err),
                     0);
    assert_int_equal(s2s_conf_merge(conf, over, &err), 0);
    s2s_conf_free(over);
    struct s2s_buf out = S2S_BUF_INIT;
    s2s_conf_dump(&out, conf, true);
    assert_string_equal(out.data, "a:\n"
                                  "  x: 1  # t.yaml:1:8\n"
                                  "  y: [3]  # over.yaml:2:8\n"
                                  "  z: 4  # over.yaml:2:16\n"
                                  "b:\n"
                                  "  c: 2  # over.yaml:1:8\n");
    s2s_buf_release(&out);
    s2s_conf_free(conf);
}

static void large_maps_are_found_by_hash_and_doubles_are_noted(void **state)
{
    struct s2s_buf text = S2S_BUF_INIT;
    for (int i = 0; i < 20000; i++)
        s2s_buf_printf(&text, "key%d: %d\n", i, i);
    s2s_buf_puts(&text, "key77: again\n");
    struct s2s_conf *conf = yaml(text.data);
    size_t n = 0;
    const struct s2s_conf_duplicate *doubles = s2s_conf_duplicates(conf, &n);
    assert_int_equal(conf->n_items, 20000);
    assert_string_equal(s2s_conf_key(conf, "key77")->text, "again");
    assert_int_equal(s2s_conf_key(conf, "key19999")->as_int, 19999);
    assert_null(s2s_conf_key(conf, "key20000"));
    assert_int_equal(n, 1);
    assert_int_equal(doubles[0].first.line, 78);
    assert_int_equal(doubles[0].second.line, 20001);
    assert_true(s2s_conf_remove(conf, "key5"));
    assert_null(s2s_conf_key(conf, "key5"));
    assert_non_null(s2s_conf_key(conf, "key6"));
    s2s_conf_free(conf);
    s2s_buf_release(&text);
}

static void faults_are_named_with_their_place(void **state)
{
    assert_string_equal(refused("a: 1\nb: [1, 2\nc: 3\n", S2S_CONF_YAML),
                        "t.yaml:3:2: did not find expected ',' or ']' while parsing a flow "
                        "sequence (line 2)");
    assert_non_null(strstr(refused("a: *x\n", S2S_CONF_YAML), "t.yaml:1:4: unknown anchor 'x'"));
    assert_non_null(strstr(refused("a: &x [*x]\n", S2S_CONF_YAML), "inside what it names"));
    assert_non_null(strstr(refused("a: 1\n---\nb: 1\n", S2S_CONF_YAML), "expected one document"));
    assert_non_null(strstr(refused("[a]: 1\n", S2S_CONF_YAML), "a key must be a scalar"));
    assert_non_null(strstr(refused("a: {<<: 3}\n", S2S_CONF_YAML), "maps to merge"));
    assert_non_null(strstr(refused("a: !!int x\n", S2S_CONF_YAML), "'x' is no !!int"));
    assert_non_null(strstr(refused("a: \x01\n", S2S_CONF_YAML), "t.yaml:1:4: not a text file"));
    assert_non_null(strstr(refused("a: \"\\0\"\n", S2S_CONF_YAML), "U+0000"));
    assert_string_equal(refused("{\"a\": 01}", S2S_CONF_JSON),
                        "t.json:1:7: a number with a leading zero");
    assert_string_equal(refused("{\"a\": 1,}", S2S_CONF_JSON),
                        "t.json:1:9: expected a key in quotes, found '}'");
    assert_string_equal(refused("[1\n 2]", S2S_CONF_JSON),
                        "t.json:2:2: expected ',' or ']', found '2'");
    assert_non_null(strstr(refused("[\"\\ud800\"]", S2S_CONF_JSON), "surrogate"));
    assert_non_null(strstr(refused("[\"\\ude00\"]", S2S_CONF_JSON), "surrogate"));
    assert_non_null(strstr(refused("[\"\xc3(\"]", S2S_CONF_JSON), "UTF-8"));
    assert_non_null(strstr(refused("[\"a", S2S_CONF_JSON), "closing quote"));
    assert_non_null(strstr(refused("", S2S_CONF_JSON), "end of the file"));
}

static void limits_hold(void **state)
{
    struct s2s_buf text = S2S_BUF_INIT;
    for (int i = 0; i < 101; i++)
        s2s_buf_putc(&text, '[');
    assert_non_null(strstr(refused(text.data, S2S_CONF_YAML), "nested more than 100 deep"));
    assert_non_null(strstr(refused(text.data, S2S_CONF_JSON), "nested more than 100 deep"));
    s2s_buf_clear(&text);
    s2s_buf_puts(&text, "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for (int i = 1; i < 9; i++) {
        s2s_buf_printf(&text, "a%d: &a%d [", i, i);
        for (int j = 0; j < 10; j++)
            s2s_buf_printf(&text, "*a%d, ", i - 1);
        s2s_buf_puts(&text, "]\n");
    }
    assert_non_null(strstr(refused(text.data, S2S_CONF_YAML), "aliases expand to more than"));
    s2s_buf_clear(&text);
    for (int i = 0; i < 210000; i++)
        s2s_buf_puts(&text, "- 1\n");
    assert_non_null(strstr(refused(text.data, S2S_CONF_YAML), "more than 200000 values"));
    s2s_buf_release(&text);
    struct s2s_conf *conf = NULL;
    assert_int_equal(s2s_conf_read(&conf, "/nonexistent.yaml", S2S_CONF_AUTO, &err), S2S_E_OPEN);
    assert_int_equal(s2s_conf_read(&conf, "/", S2S_CONF_AUTO, &err), S2S_E_OPEN);
    conf = yaml("# nothing\n");
    assert_int_equal(conf->kind, S2S_CONF_MAP);
    s2s_conf_free(conf);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_key_that_stands_twice_is_told_with_both_places),
        cmocka_unit_test(scalars_are_typed_as_omegaconf_and_pyyaml_do),
        cmocka_unit_test(trees_equal_pyyaml_and_survive_a_dump),
        cmocka_unit_test(every_value_knows_its_place),
        cmocka_unit_test(getters_name_place_path_and_what_was_found),
        cmocka_unit_test(overrides_are_yaml_and_make_their_way),
        cmocka_unit_test(merge_is_deep_for_maps_and_keeps_places),
        cmocka_unit_test(large_maps_are_found_by_hash_and_doubles_are_noted),
        cmocka_unit_test(faults_are_named_with_their_place),
        cmocka_unit_test(limits_hold),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
