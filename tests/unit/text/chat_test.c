/* lib/text/chat and lib/text/jinja: conversations through chat templates, against transformers, and
 * what templates are refused for. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "lib/base/base.h"
#include "lib/text/prompt.h"

/* Ids and masks that transformers gave (check_chat.py --golden). */
static void check_sample(const json_t *tokens, const json_t *sample)
{
    struct s2s_tokenizer *tok = NULL;
    struct s2s_prompt *prompt = NULL;
    struct s2s_rendered out = S2S_RENDERED_INIT;
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_turn turns[16] = {{.n_parts = 0}};
    struct s2s_part parts[16];
    struct s2s_turn_field fields[16];
    size_t i, n = 0;
    json_t *item;
    char *path = s2s_xasprintf("tests/oracle/tokenizer_%s/tokenizer.json",
                               json_string_value(json_object_get(sample, "kind")));
    const json_t *ids = json_object_get(sample, "ids"), *mask = json_object_get(sample, "mask");
    assert_int_equal(s2s_tokenizer_open(&tok, path, NULL), 0);
    json_array_foreach(tokens, i, item)
        s2s_tokenizer_add_special(tok, json_string_value(item), NULL);
    if (s2s_prompt_open(&prompt, json_string_value(json_object_get(sample, "prompt")), tok, NULL,
                        &err) < 0)
        fail_msg("%s", err.text);
    json_array_foreach(json_object_get(sample, "messages"), i, item)
    {
        const json_t *content = json_object_get(item, "content");
        const json_t *lang = json_object_get(item, "source_lang");
        parts[n] = (struct s2s_part){json_string_value(content), json_string_length(content)};
        fields[n] = (struct s2s_turn_field){"source_lang", json_string_value(lang)};
        turns[n] = (struct s2s_turn){.role = json_string_value(json_object_get(item, "role")),
                                     .parts = &parts[n],
                                     .n_parts = 1,
                                     .fields = &fields[n],
                                     .n_fields = lang != NULL};
        n++;
    }
    if (s2s_prompt_render(prompt, &out, turns, n, false, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(out.ids.len, json_array_size(ids));
    for (i = 0; i < out.ids.len; i++) {
        assert_int_equal(out.ids.data[i], json_integer_value(json_array_get(ids, i)));
        assert_int_equal(out.loss_mask[i], json_integer_value(json_array_get(mask, i)));
    }
    s2s_rendered_release(&out);
    s2s_prompt_free(prompt);
    s2s_tokenizer_free(tok);
    free(path);
}

static void chat_templates_give_ids_and_masks_of_transformers(void **state)
{
    json_t *all = json_load_file("tests/oracle/text/chat.json", 0, NULL), *sample;
    size_t i;
    assert_true(json_array_size(json_object_get(all, "samples")) >= 20);
    json_array_foreach(json_object_get(all, "samples"), i, sample)
        check_sample(json_object_get(all, "tokens"), sample);
    json_decref(all);
}

static void write_file(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static void faults_of_a_chat_template_are_named_with_their_line(void **state)
{
    static const struct {
        const char *source, *says;
    } cases[] = {
        {"a\n{% if x %}", "line 2: the template ends before"},
        {"{{ 'a }}", "line 1: a string does not end"},
        {"\n\n{{ 1 + }}", "line 3: a value is missing"},
        {"{% include 'x' %}", "line 1: statement not supported: include"},
        {"{{ messages|shuffle }}", "line 1: the filter shuffle is not supported"},
        {"{{ 'a'.center(3) }}", "line 1: the method center of a text"},
        {"{{ 1 is prime }}", "line 1: the test prime is not supported"},
        {"{{ foo(1) }}", "line 1: the function foo is not supported"},
        {"\n{{ nothing.inside }}", "line 2: a member of what is undefined: .inside"},
        {"{{ raise_exception('no tools here') }}", "no tools here"},
        {"{{ messages }}", "line 1: a list or a dict as text"},
        {"{% for i in range(100000000) %}{% endfor %}", "a range that is too long"},
        {"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "nests too deep"},
        {"<|begin_of_text|><|begin_of_text|>", "two bos tokens (<|begin_of_text|>) in front"},
    };
    struct s2s_part part = {"hello", 5};
    struct s2s_turn turn = {.role = "user", .parts = &part, .n_parts = 1};
    char path[] = "/tmp/chat-XXXXXX.jinja";
    close(mkstemps(path, 6));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct s2s_tokenizer *tok = NULL;
        struct s2s_prompt *prompt = NULL;
        struct s2s_rendered out = S2S_RENDERED_INIT;
        struct s2s_error err = S2S_ERROR_INIT;
        write_file(path, cases[i].source);
        s2s_tokenizer_open(&tok, "tests/oracle/tokenizer_bytelevel_llama3/tokenizer.json", NULL);
        int rc = s2s_prompt_open(&prompt, path, tok, NULL, &err);
        if (rc == 0)
            rc = s2s_prompt_render(prompt, &out, &turn, 1, false, &err);
        assert_true(rc < 0);
        if (!strstr(err.text, cases[i].says))
            fail_msg("'%s' does not say '%s'", err.text, cases[i].says);
        s2s_rendered_release(&out);
        s2s_prompt_free(prompt);
        s2s_tokenizer_free(tok);
    }
    unlink(path);
}

/* The tokenizer's post-processor puts a bos in front of texts; of a conversation there is one. */
static void a_conversation_has_one_bos(void **state)
{
    static const char *const formats[] = {"llama3", "chat:llama3", "chat:gemma", "chat:mistral"};
    struct s2s_part part = {"hello", 5};
    struct s2s_turn turn = {.role = "user", .parts = &part, .n_parts = 1};
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        struct s2s_tokenizer *tok = NULL;
        struct s2s_prompt *prompt = NULL;
        struct s2s_rendered out = S2S_RENDERED_INIT;
        size_t n = 0;
        s2s_tokenizer_open(&tok, "tests/oracle/tokenizer_bytelevel_llama3/tokenizer.json", NULL);
        assert_int_equal(s2s_prompt_open(&prompt, formats[i], tok, NULL, NULL), 0);
        assert_int_equal(s2s_prompt_render(prompt, &out, &turn, 1, true, NULL), 0);
        for (size_t k = 0; k < out.ids.len; k++)
            n += out.ids.data[k] == s2s_tokenizer_bos(tok);
        assert_int_equal(n, 1);
        s2s_rendered_release(&out);
        s2s_prompt_free(prompt);
        s2s_tokenizer_free(tok);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chat_templates_give_ids_and_masks_of_transformers),
        cmocka_unit_test(faults_of_a_chat_template_are_named_with_their_line),
        cmocka_unit_test(a_conversation_has_one_bos),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
