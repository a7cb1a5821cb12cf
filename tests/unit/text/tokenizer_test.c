/* lib/text/tokenizer against what HF tokenizers gave (tests/oracle/tokenizer_*), and its refusals.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>

#include "lib/base/base.h"
#include "lib/text/tokenizer.h"

static struct s2s_tokenizer *open_fixture(const char *name)
{
    struct s2s_tokenizer *tok = NULL;
    struct s2s_error err = S2S_ERROR_INIT;
    char *path = s2s_xasprintf("tests/oracle/%s/tokenizer.json", name);
    if (s2s_tokenizer_open(&tok, path, &err) < 0)
        fail_msg("%s", err.text);
    free(path);
    return tok;
}

static void check_ids(const struct s2s_tokenizer *tok, const json_t *text, const json_t *want,
                      bool special)
{
    struct s2s_ids ids = S2S_IDS_INIT;
    assert_int_equal(s2s_tokenizer_encode(tok, &ids, json_string_value(text),
                                          json_string_length(text), special, NULL),
                     0);
    assert_int_equal(ids.len, json_array_size(want));
    for (size_t i = 0; i < ids.len; i++)
        assert_int_equal(ids.data[i], json_integer_value(json_array_get(want, i)));
    s2s_ids_release(&ids);
}

static void check_text(const struct s2s_tokenizer *tok, const json_t *ids, const json_t *want,
                       bool skip_special)
{
    struct s2s_ids list = S2S_IDS_INIT;
    struct s2s_buf out = S2S_BUF_INIT;
    size_t i;
    json_t *id;
    json_array_foreach(ids, i, id) s2s_ids_add(&list, (int32_t)json_integer_value(id));
    assert_int_equal(s2s_tokenizer_decode(tok, &out, list.data, list.len, skip_special, NULL), 0);
    assert_int_equal(out.len, json_string_length(want));
    if (out.len)
        assert_memory_equal(out.data, json_string_value(want), out.len);
    s2s_ids_release(&list);
    s2s_buf_release(&out);
}

/* Every text of tests/oracle/NAME/FILE: ids with and without special tokens, decoded both ways. */
static void check_strings(const char *name, const char *file)
{
    struct s2s_tokenizer *tok = open_fixture(name);
    char *path = s2s_xasprintf("tests/oracle/%s/%s", name, file);
    json_t *strings = json_load_file(path, JSON_ALLOW_NUL, NULL);
    assert_true(json_array_size(strings) >= 100);
    size_t i;
    json_t *item;
    json_array_foreach(strings, i, item)
    {
        const json_t *text = json_object_get(item, "text");
        const json_t *ids = json_object_get(item, "ids");
        const json_t *plain = json_object_get(item, "ids_no_special");
        check_ids(tok, text, ids, true);
        if (plain)
            check_ids(tok, text, plain, false);
        if (json_object_get(item, "decoded"))
            check_text(tok, plain, json_object_get(item, "decoded"), false);
        if (json_object_get(item, "decoded_skip_special"))
            check_text(tok, ids, json_object_get(item, "decoded_skip_special"), true);
    }
    json_decref(strings);
    free(path);
    s2s_tokenizer_free(tok);
}

static void llama3_ids_and_texts_are_those_of_hf(void **state)
{
    check_strings("tokenizer_bytelevel_llama3", "strings.json");
}

static void qwen_ids_and_texts_are_those_of_hf(void **state)
{
    check_strings("tokenizer_bytelevel_qwen", "strings.json");
}

static void byte_fallback_ids_and_texts_are_those_of_hf(void **state)
{
    check_strings("tokenizer_spbpe_llama2", "strings.json");
}

static void unigram_ids_and_texts_are_those_of_hf(void **state)
{
    check_strings("tokenizer_unigram", "strings.json");
}

static void wordpiece_ids_and_texts_are_those_of_hf(void **state)
{
    check_strings("tokenizer_wordpiece", "strings.json");
}

/* One of the tokenizers with some of its parts replaced, as parts.json has it. */
static struct s2s_tokenizer *with_parts(const json_t *item)
{
    char *path = s2s_xasprintf(
        "tests/oracle/tokenizer_%s%s/tokenizer.json",
        strchr("lq", *json_string_value(json_object_get(item, "of"))) ? "bytelevel_" : "",
        json_string_value(json_object_get(item, "of")));
    json_t *root = json_load_file(path, 0, NULL);
    assert_non_null(root);
    json_object_update(root, json_object_get(item, "parts"));
    json_object_update(json_object_get(root, "model"), json_object_get(item, "model"));
    char *text = json_dumps(root, 0);
    struct s2s_tokenizer *tok = NULL;
    struct s2s_error err = S2S_ERROR_INIT;
    if (s2s_tokenizer_parse(&tok, text, strlen(text), &err) < 0)
        fail_msg("%s: %s", json_string_value(json_object_get(item, "name")), err.text);
    free(text);
    free(path);
    json_decref(root);
    return tok;
}

/* Every part in turn, on lines of every block (check_tokenizers.py --golden). */
static void every_part_does_what_it_does_in_hf(void **state)
{
    json_t *list = json_load_file("tests/oracle/tokenizer/parts.json", JSON_ALLOW_NUL, NULL), *item,
           *line;
    size_t i, k;
    assert_true(json_array_size(list) > 100);
    json_array_foreach(list, i, item)
    {
        struct s2s_tokenizer *tok = with_parts(item);
        json_array_foreach(json_object_get(item, "lines"), k, line)
        {
            check_ids(tok, json_object_get(line, "text"), json_object_get(line, "ids"), true);
            check_text(tok, json_object_get(line, "ids"), json_object_get(line, "decoded"), true);
        }
        s2s_tokenizer_free(tok);
    }
    json_decref(list);
}

/* Added tokens with every flag among characters of every block (check_tokenizers.py --golden). */
static void flags_of_added_tokens_are_those_of_hf(void **state)
{
    check_strings("tokenizer", "strings.json");
}

static void roles_are_found_and_a_tag_gets_the_next_id(void **state)
{
    struct s2s_tokenizer *tok = open_fixture("tokenizer_bytelevel_llama3");
    assert_int_equal(s2s_tokenizer_bos(tok), 1500);
    assert_int_equal(s2s_tokenizer_eos(tok), 1501);
    assert_int_equal(s2s_tokenizer_size(tok), 1506);
    assert_int_equal(s2s_tokenizer_id(tok, "<|audio|>"), 1505);
    assert_int_equal(s2s_tokenizer_id(tok, "<|nothing|>"), -1);
    assert_true(s2s_tokenizer_is_special(tok, 1505));
    assert_int_equal(s2s_tokenizer_add_special(tok, "<|audio|>", NULL), 1505);
    assert_int_equal(s2s_tokenizer_add_special(tok, "<clip>", NULL), 1506);
    assert_int_equal(s2s_tokenizer_add_special(tok, "", NULL), S2S_E_ARG);
    struct s2s_ids ids = S2S_IDS_INIT;
    assert_int_equal(s2s_tokenizer_encode(tok, &ids, "<clip><clip>", 12, false, NULL), 0);
    assert_int_equal(ids.len, 2);
    assert_int_equal(ids.data[1], 1506);
    assert_string_equal(s2s_tokenizer_token(tok, 1506, NULL), "<clip>");
    s2s_ids_release(&ids);
    s2s_tokenizer_free(tok);
}

static void bytes_that_are_not_utf8_are_refused_with_their_place(void **state)
{
    struct s2s_tokenizer *tok = open_fixture("tokenizer_bytelevel_qwen");
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_ids ids = S2S_IDS_INIT;
    const char *bad[] = {"abc\xff",     "abc\xc0\x80", "abc\xed\xa0\x80", "abc\xf4\x90\x80\x80",
                         "abc\xe2\x82", "abc\x80"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(s2s_tokenizer_encode(tok, &ids, bad[i], strlen(bad[i]), true, &err),
                         S2S_E_FORMAT);
        assert_non_null(strstr(err.text, "byte 3"));
    }
    /* ids that are no UTF-8 together decode to U+FFFD, one for each maximal part */
    int32_t id = s2s_tokenizer_id(tok, "\xc3\xa2"); /* the alphabet's sign for byte 0xe2 */
    int32_t pair[] = {id, id};
    struct s2s_buf out = S2S_BUF_INIT;
    assert_int_equal(s2s_tokenizer_decode(tok, &out, pair, 2, false, NULL), 0);
    assert_string_equal(out.data, "\xef\xbf\xbd\xef\xbf\xbd");
    pair[1] = 99999;
    assert_int_equal(s2s_tokenizer_decode(tok, &out, pair, 2, false, &err), S2S_E_RANGE);
    assert_non_null(strstr(err.text, "99999"));
    s2s_buf_release(&out);
    s2s_ids_release(&ids);
    s2s_tokenizer_free(tok);
}

/* A small tokenizer around the given parts. */
static int parse_with(struct s2s_tokenizer **tok, const char *normalizer, const char *pre,
                      const char *model, const char *post, const char *decoder, const char *added,
                      struct s2s_error *err)
{
    char *json =
        s2s_xasprintf("{\"added_tokens\":[%s],\"normalizer\":%s,\"pre_tokenizer\":%s,\"model\":%s,"
                      "\"post_processor\":%s,\"decoder\":%s}",
                      added, normalizer, pre, model, post, decoder);
    int rc = s2s_tokenizer_parse(tok, json, strlen(json), err);
    free(json);
    return rc;
}

#define PRE "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true}"
#define MODEL \
    "{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"c\":2,\"ab\":3,\"abc\":4},\"merges\":[[\"a\"," \
    "\"b\"],\"ab c\"]}"
#define DECODER "{\"type\":\"ByteLevel\"}"
/* What matches is taken out. */
#define REMOVE(regex) \
    "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":" \
    "\"" regex "\"},\"behavior\":\"Removed\",\"invert\":false},{\"type\":\"ByteLevel\",\"add_" \
    "prefix_space\":false," \
    "\"use_regex\":false}]}"

/* A model of one token with options in front of its vocabulary. */
#define BPE(options) "{\"type\":\"BPE\"," options "\"vocab\":{\"a\":0},\"merges\":[]}"

static void what_is_not_read_is_named_with_its_place(void **state)
{
    static const struct {
        const char *normalizer, *pre, *model, *post, *decoder, *added, *says;
    } cases[] = {
        {"null", PRE, "{\"type\":\"Unigram\",\"vocab\":[]}", "null", DECODER, "",
         "model.vocab: not an array"},
        {"null", PRE, "{\"type\":\"Unigram\",\"vocab\":[[\"a\",0],[\"b\"]]}", "null", DECODER, "",
         "model.vocab[1] is not"},
        {"null", PRE, "{\"type\":\"Unigram\",\"unk_id\":1,\"vocab\":[[\"a\",0]]}", "null", DECODER,
         "", "model.unk_id"},
        {"null", PRE, "{\"type\":\"WordPiece\",\"vocab\":{}}", "null", DECODER, "",
         "model.vocab: not an object"},
        {"null", PRE, "{\"type\":\"Other\"}", "null", DECODER, "",
         "model.type: Other is not supported"},
        {"null", PRE, BPE("\"dropout\":0.1,"), "null", DECODER, "", "model.dropout"},
        {"{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},{\"type\":\"NFX\"}]}", PRE,
         MODEL, "null", DECODER, "", "normalizer.normalizers[1].type: NFX is not supported"},
        {"{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"A*\"}", PRE, MODEL, "null", DECODER,
         "", "normalizer.precompiled_charsmap: character 1 is not base64"},
        {"{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"////fwAA\"}", PRE, MODEL, "null",
         DECODER, "", "normalizer.precompiled_charsmap: a charsmap of 6 bytes"},
        {"{\"type\":\"Replace\",\"pattern\":{},\"content\":\"\"}", PRE, MODEL, "null", DECODER, "",
         "normalizer.pattern: not a Regex or a String"},
        {"null", "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"UnicodeScripts\"}]}", MODEL,
         "null", DECODER, "", "pre_tokenizer.pretokenizers[0].type: UnicodeScripts"},
        {"null", "{\"type\":\"Metaspace\",\"prepend_scheme\":\"last\"}", MODEL, "null", DECODER, "",
         "pre_tokenizer.prepend_scheme"},
        {"null", "{\"type\":\"Metaspace\",\"replacement\":\"ab\"}", MODEL, "null", DECODER, "",
         "pre_tokenizer.replacement: not one character"},
        {"null", PRE, MODEL, "{\"type\":\"BertProcessing\"}", DECODER, "", "post_processor.cls"},
        {"null", PRE, MODEL, "{\"type\":\"Sequence\",\"processors\":[{\"type\":\"X\"}]}", DECODER,
         "", "post_processor.processors[0].type: X is not supported"},
        {"null", PRE, MODEL, "null", "{\"type\":\"X\"}", "", "decoder.type: X is not supported"},
        {"null", PRE, MODEL, "null", DECODER, "{\"id\":99999999,\"content\":\"x\"}",
         "added_tokens[0].id: 99999999"},
        {"null", PRE, MODEL, "null", DECODER, "{\"id\":3,\"content\":\"x\"}",
         "added_tokens[0].id: 3 belongs"},
        {"null", PRE, "{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"a b\"]}", "null",
         DECODER, "", "model.merges[0]: b is not in"},
        {"null", PRE, "{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":0},\"merges\":[]}", "null",
         DECODER, "", "model.vocab: two tokens"},
        {"null", PRE, "{\"type\":\"BPE\",\"vocab\":{\"a\":-1},\"merges\":[]}", "null", DECODER, "",
         "model.vocab: id -1"},
        {"null", "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(\"},\"behavior\":\"Isolated\"}",
         MODEL, "null", DECODER, "", "pre_tokenizer.pattern.Regex: pattern ("},
        {"null", "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"\\\\b\"},\"behavior\":\"Isolated\"}",
         MODEL, "null", DECODER, "", "not supported"},
        {"null", REMOVE("a(?i)b|c"), MODEL, "null", DECODER, "", "group"},
        {"null", REMOVE("a{2}?b"), MODEL, "null", DECODER, "", "exact repeat"},
        {"null", REMOVE("[\\\\D]"), MODEL, "null", DECODER, "", "escape"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct s2s_tokenizer *tok = NULL;
        struct s2s_error err = S2S_ERROR_INIT;
        int rc = parse_with(&tok, cases[i].normalizer, cases[i].pre, cases[i].model, cases[i].post,
                            cases[i].decoder, cases[i].added, &err);
        assert_true(rc < 0);
        if (!strstr(err.text, cases[i].says))
            fail_msg("case %zu: '%s' does not say '%s'", i, err.text, cases[i].says);
    }
}

static size_t count_ids(const struct s2s_tokenizer *tok, const char *text, int32_t want_first)
{
    struct s2s_ids ids = S2S_IDS_INIT;
    assert_int_equal(s2s_tokenizer_encode(tok, &ids, text, strlen(text), false, NULL), 0);
    size_t n = ids.len;
    if (n)
        assert_int_equal(ids.data[0], want_first);
    s2s_ids_release(&ids);
    return n;
}

static void merges_go_by_rank_and_long_words_end(void **state)
{
    struct s2s_tokenizer *tok = NULL;
    assert_int_equal(parse_with(&tok, "null", PRE, MODEL, "null", DECODER, "", NULL), 0);
    assert_int_equal(count_ids(tok, "abcabcab", 4), 3);
    assert_int_equal(count_ids(tok, "bca", 1), 3);
    assert_int_equal(count_ids(tok, "", 0), 0);
    assert_int_equal(count_ids(tok, "xyz", 0), 0); /* bytes without a token vanish, as upstream */
    size_t n = 300000;
    char *text = s2s_xmalloc(n + 1);
    for (size_t i = 0; i < n; i++)
        text[i] = "abc"[i % 3];
    text[n] = 0;
    assert_int_equal(count_ids(tok, text, 4), n / 3); /* one word: must not take n * n */
    free(text);
    s2s_tokenizer_free(tok);
}

/* What HF tokenizers (Oniguruma) leave of the texts. */
static void patterns_match_what_they_match_in_oniguruma(void **state)
{
    static const struct {
        const char *pre, *text;
        size_t n;
        int32_t first;
    } cases[] = {
        {REMOVE("a\\\\p{Han}"), "a\u4e2d\u3002b", 1, 1}, /* a Chinese character */
        {REMOVE("a\\\\p{Han}"), "a\u3002b", 1, 3},       /* its full stop is Common */
        {REMOVE("a[\\\\p{han}]"), "a\U00031350b", 1, 1}, /* as new as Unicode 15 */
        {REMOVE("b\\\\w"), "b\u00bdc", 1, 2},            /* a half is of a word .. */
        {REMOVE("b[\\\\w]"), "b\u00bdc", 2, 1},          /* .. but not in a class */
        {REMOVE("b\\\\W"), "b\u00bdc", 2, 1},
        {REMOVE("b\\\\w"), "b\U00010d6dc", 1, 2}, /* a mark of Unicode 16 */
        {REMOVE("b\\\\d"), "b\U00010d40c", 1, 2}, /* a digit of Unicode 16 */
        {REMOVE("b[^\\\\d]"), "b\U00010d40c", 2, 1},
        {REMOVE("a{,2}b"), "aabc", 1, 2}, /* up to two */
        {REMOVE("(?i)A|B"), "abc", 1, 2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct s2s_tokenizer *tok = NULL;
        assert_int_equal(parse_with(&tok, "null", cases[i].pre, MODEL, "null", DECODER, "", NULL),
                         0);
        if (count_ids(tok, cases[i].text, cases[i].first) != cases[i].n)
            fail_msg("%s of %s", cases[i].pre, cases[i].text);
        s2s_tokenizer_free(tok);
    }
}

/* White space that the token before it has taken makes no token of its own. */
static void an_added_token_of_nothing_is_none(void **state)
{
    static const char added[] = "{\"id\":5,\"content\":\"x\",\"rstrip\":true},"
                                "{\"id\":6,\"content\":\" \",\"lstrip\":true,\"rstrip\":true}";
    struct s2s_tokenizer *tok = NULL;
    assert_int_equal(parse_with(&tok, "null", PRE, MODEL, "null", DECODER, added, NULL), 0);
    assert_int_equal(count_ids(tok, "x  b", 5), 2);
    assert_int_equal(count_ids(tok, "a  b", 0), 3);
    s2s_tokenizer_free(tok);
}

struct job {
    const struct s2s_tokenizer *tok;
    const json_t *strings;
    int n_bad;
};

static void *encode_all(void *arg)
{
    struct job *job = arg;
    struct s2s_ids ids = S2S_IDS_INIT;
    for (size_t i = 0; i < json_array_size(job->strings); i++) {
        const json_t *item = json_array_get(job->strings, i);
        const json_t *text = json_object_get(item, "text"), *want = json_object_get(item, "ids");
        s2s_ids_clear(&ids);
        s2s_tokenizer_encode(job->tok, &ids, json_string_value(text), json_string_length(text),
                             true, NULL);
        job->n_bad += ids.len != json_array_size(want);
        for (size_t k = 0; k < ids.len; k++)
            job->n_bad += ids.data[k] != json_integer_value(json_array_get(want, k));
    }
    s2s_ids_release(&ids);
    return NULL;
}

static void threads_share_one_tokenizer(void **state)
{
    struct s2s_tokenizer *tok = open_fixture("tokenizer_bytelevel_qwen");
    json_t *strings =
        json_load_file("tests/oracle/tokenizer_bytelevel_qwen/strings.json", JSON_ALLOW_NUL, NULL);
    pthread_t threads[4];
    struct job jobs[4];
    for (int i = 0; i < 4; i++) {
        jobs[i] = (struct job){tok, strings, 0};
        assert_int_equal(pthread_create(&threads[i], NULL, encode_all, &jobs[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(jobs[i].n_bad, 0);
    }
    json_decref(strings);
    s2s_tokenizer_free(tok);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(llama3_ids_and_texts_are_those_of_hf),
        cmocka_unit_test(qwen_ids_and_texts_are_those_of_hf),
        cmocka_unit_test(byte_fallback_ids_and_texts_are_those_of_hf),
        cmocka_unit_test(unigram_ids_and_texts_are_those_of_hf),
        cmocka_unit_test(wordpiece_ids_and_texts_are_those_of_hf),
        cmocka_unit_test(every_part_does_what_it_does_in_hf),
        cmocka_unit_test(flags_of_added_tokens_are_those_of_hf),
        cmocka_unit_test(roles_are_found_and_a_tag_gets_the_next_id),
        cmocka_unit_test(bytes_that_are_not_utf8_are_refused_with_their_place),
        cmocka_unit_test(what_is_not_read_is_named_with_its_place),
        cmocka_unit_test(merges_go_by_rank_and_long_words_end),
        cmocka_unit_test(patterns_match_what_they_match_in_oniguruma),
        cmocka_unit_test(an_added_token_of_nothing_is_none),
        cmocka_unit_test(threads_share_one_tokenizer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
