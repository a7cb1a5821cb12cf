/* lib/text/metrics against a plain Levenshtein in Python (tests/oracle/metrics/make_pairs.py). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>

#include "lib/base/base.h"
#include "lib/text/metrics.h"

static int64_t number(const json_t *object, const char *key)
{
    return json_integer_value(json_object_get(object, key));
}

static void check_counts(const json_t *want, const struct s2s_edits *got)
{
    assert_int_equal(got->n_ref, number(want, "n_ref"));
    assert_int_equal(got->hits, number(want, "hits"));
    assert_int_equal(got->substitutions, number(want, "substitutions"));
    assert_int_equal(got->deletions, number(want, "deletions"));
    assert_int_equal(got->insertions, number(want, "insertions"));
}

static void counts_are_those_of_the_plain_algorithm(void **state)
{
    json_t *pairs = json_load_file("tests/oracle/metrics/pairs.json", JSON_ALLOW_NUL, NULL), *pair;
    size_t i;
    struct s2s_edits sum = {0};
    int64_t n_ref = 0;
    assert_true(json_array_size(pairs) >= 100);
    json_array_foreach(pairs, i, pair)
    {
        const json_t *ref = json_object_get(pair, "ref"), *hyp = json_object_get(pair, "hyp");
        for (int unit = 0; unit < 2; unit++) {
            struct s2s_edits one = {0};
            assert_int_equal(s2s_edits_add(&one, unit ? S2S_CHARACTERS : S2S_WORDS,
                                           json_string_value(ref), json_string_length(ref),
                                           json_string_value(hyp), json_string_length(hyp), NULL,
                                           NULL),
                             0);
            check_counts(json_object_get(pair, unit ? "characters" : "words"), &one);
            assert_int_equal(one.n_hyp, one.hits + one.substitutions + one.insertions);
        }
        s2s_edits_add(&sum, S2S_WORDS, json_string_value(ref), json_string_length(ref),
                      json_string_value(hyp), json_string_length(hyp), NULL, NULL);
        n_ref += number(json_object_get(pair, "words"), "n_ref");
    }
    assert_int_equal(sum.n_ref, n_ref);
    assert_int_equal(sum.n_utterances, json_array_size(pairs));
    json_decref(pairs);
}

static void texts_are_normalised_as_asked(void **state)
{
    static const struct {
        struct s2s_text_norm norm;
        const char *text, *want;
    } cases[] = {
        {{false, false, false}, "  a \t b\n", "a b"},
        {{true, true, false}, "Hello, WORLD!  It\xe2\x80\x99s 3-fold.", "hello world it's 3 fold"},
        {{true, true, false}, "'quoted' dogs' don't", "quoted dogs don't"},
        {{true, false, false}, "\xc3\x84RGER", "\xc3\xa4rger"},
        {{false, false, true}, "\xef\xac\x81 \xe2\x85\xa7", "fi VIII"},
        {{false, true, false}, "...", ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct s2s_buf out = S2S_BUF_INIT;
        assert_int_equal(
            s2s_text_normalize(&out, cases[i].text, strlen(cases[i].text), &cases[i].norm, NULL),
            0);
        assert_string_equal(out.data ? out.data : "", cases[i].want);
        s2s_buf_release(&out);
    }
    struct s2s_buf out = S2S_BUF_INIT;
    assert_int_equal(s2s_text_normalize(&out, "a\xff", 2, NULL, NULL), S2S_E_FORMAT);
    s2s_buf_release(&out);
}

static void rates_of_empty_references_are_defined(void **state)
{
    struct s2s_edits sum = {0};
    assert_true(s2s_edits_rate(&sum) == 0);
    s2s_edits_add(&sum, S2S_WORDS, "", 0, "x", 1, NULL, NULL);
    assert_true(s2s_edits_rate(&sum) == 1);
    sum = (struct s2s_edits){0};
    s2s_edits_add(&sum, S2S_WORDS, "a b c d", 7, "a x c", 5, NULL, NULL);
    assert_true(s2s_edits_rate(&sum) == 0.5);
    assert_int_equal(sum.n_wrong, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counts_are_those_of_the_plain_algorithm),
        cmocka_unit_test(texts_are_normalised_as_asked),
        cmocka_unit_test(rates_of_empty_references_are_defined),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
