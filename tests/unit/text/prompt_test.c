/* lib/text/prompt: texts, masks and placeholders of the built-in formats and of files. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

#include <cmocka.h>

#include "lib/base/base.h"
#include "lib/text/prompt.h"

static struct s2s_tokenizer *tok;

static int open_tokenizer(void **state)
{
    return s2s_tokenizer_open(&tok, "tests/oracle/tokenizer_bytelevel_llama3/tokenizer.json", NULL);
}

static int free_tokenizer(void **state)
{
    s2s_tokenizer_free(tok);
    return 0;
}

/* What a format makes of system, user (context and a clip), assistant; the trained part in <<>>. */
static char *render(const struct s2s_prompt *prompt, const char *system, const char *answer)
{
    struct s2s_rendered row = S2S_RENDERED_INIT;
    struct s2s_error err = S2S_ERROR_INIT;
    if (s2s_prompt_render_asr(prompt, &row, system, "Transcribe:", answer, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(row.n_audio, 1);
    assert_int_equal(row.ids.data[row.audio_pos[0]], s2s_prompt_audio_id(prompt));
    struct s2s_buf out = S2S_BUF_INIT;
    for (size_t i = 0; i < row.ids.len; i++) {
        int begins = row.loss_mask[i] && (i == 0 || !row.loss_mask[i - 1]);
        if (begins)
            s2s_buf_puts(&out, "<<");
        s2s_tokenizer_decode(tok, &out, &row.ids.data[i], 1, false, NULL);
        if (row.loss_mask[i] && (i + 1 == row.ids.len || !row.loss_mask[i + 1]))
            s2s_buf_puts(&out, ">>");
    }
    s2s_rendered_release(&row);
    return out.data;
}

static void formats_read_as_the_models_expect(void **state)
{
    /* the tokenizer's bos is <|begin_of_text|>, its eos <|end_of_text|>, its tag <|audio|> */
    static const struct {
        const char *name, *system, *want;
    } cases[] = {
        {"plain", NULL, "Transcribe: <|audio|><<hi there<|end_of_text|>>>"},
        {"llama2", NULL,
         "<|begin_of_text|>[INST] Transcribe: <|audio|> [/INST]<<hi there <|end_of_text|>>>"},
        {"llama2", "Be brief.",
         "<|begin_of_text|>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nTranscribe: <|audio|> [/INST]"
         "<<hi there <|end_of_text|>>>"},
        {"llama3", "Be brief.",
         "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
         "<|start_header_id|>user<|end_header_id|>\n\nTranscribe: <|audio|><|eot_id|>"
         "<<<|start_header_id|>assistant<|end_header_id|>\n\nhi there<|eot_id|>>>"},
        {"chatml", NULL,
         "<|im_start|>user\nTranscribe: <|audio|><|im_end|>\n"
         "<<<|im_start|>assistant\nhi there<|im_end|>\n>>"},
        {"gemma", NULL,
         "<|begin_of_text|><start_of_turn>user\nTranscribe: <|audio|><end_of_turn>\n"
         "<start_of_turn>model\n<<hi there<end_of_turn>\n<|end_of_text|>>>"},
        {"mistral", NULL, "<s>[INST] Transcribe: <|audio|> [/INST] <<hi there</s>>>"},
        {"nemotron_h", "Be brief.",
         "<SPECIAL_10>System\nBe brief.\n<SPECIAL_11>User\nTranscribe: <|audio|>"
         "<<\n<SPECIAL_11>Assistant\nhi there>>"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct s2s_prompt *prompt = NULL;
        assert_int_equal(s2s_prompt_open(&prompt, cases[i].name, tok, NULL, NULL), 0);
        char *text = render(prompt, cases[i].system, "hi there");
        assert_string_equal(text, cases[i].want);
        free(text);
        s2s_prompt_free(prompt);
    }
}

static void generation_stops_where_the_model_speaks(void **state)
{
    struct s2s_prompt *prompt = NULL;
    assert_int_equal(s2s_prompt_open(&prompt, "llama3", tok, NULL, NULL), 0);
    char *text = render(prompt, NULL, NULL);
    assert_string_equal(text, "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\n"
                              "Transcribe: <|audio|><|eot_id|>"
                              "<|start_header_id|>assistant<|end_header_id|>\n\n");
    free(text);
    s2s_prompt_free(prompt);
}

static void each_clip_has_one_placeholder_and_text_may_not_hold_the_tag(void **state)
{
    struct s2s_prompt *prompt = NULL;
    struct s2s_rendered row = S2S_RENDERED_INIT;
    struct s2s_error err = S2S_ERROR_INIT;
    assert_int_equal(s2s_prompt_open(&prompt, "plain", tok, NULL, NULL), 0);
    struct s2s_part first[] = {{NULL, 0}, {"and", 3}, {NULL, 0}},
                    answer[] = {{"a|message|\0b", 12}};
    struct s2s_turn turns[] = {{.role = "user", .parts = first, .n_parts = 3},
                               {.role = "assistant", .parts = answer, .n_parts = 1},
                               {.role = "user", .parts = first, .n_parts = 1}};
    assert_int_equal(s2s_prompt_render(prompt, &row, turns, 3, false, NULL), 0);
    assert_int_equal(row.n_audio, 3);
    assert_int_equal(row.audio_pos[0], 0);
    assert_int_equal(row.audio_pos[2], row.ids.len - 1);
    answer[0] = (struct s2s_part){"a <|audio|> b", 13};
    assert_int_equal(s2s_prompt_render(prompt, &row, turns, 3, false, &err), S2S_E_FORMAT);
    assert_non_null(strstr(err.text, "<|audio|>"));
    turns[0].role = "tool";
    assert_int_equal(s2s_prompt_render(prompt, &row, turns, 3, false, &err), S2S_E_UNSUPPORTED);
    assert_non_null(strstr(err.text, "no tool turn"));
    s2s_rendered_release(&row);
    s2s_prompt_free(prompt);
}

static int open_text(struct s2s_prompt **prompt, const char *json, struct s2s_error *err)
{
    char path[] = "/tmp/prompt_test.XXXXXX";
    int fd = mkstemp(path);
    assert_int_equal(write(fd, json, strlen(json)), (ssize_t)strlen(json));
    close(fd);
    int rc = s2s_prompt_open(prompt, path, tok, NULL, err);
    unlink(path);
    return rc;
}

static void a_file_is_a_format_and_its_faults_are_named(void **state)
{
    struct s2s_prompt *prompt = NULL, *other = NULL;
    struct s2s_error err = S2S_ERROR_INIT;
    assert_int_equal(
        open_text(&prompt,
                  "{\"name\":\"mine\",\"preamble\":\"<|begin_of_text|>\",\"roles\":"
                  "{\"user\":\"Q: |message|\\n\",\"assistant\":\"A: |message||eos|\"}}",
                  NULL),
        0);
    char *text = render(prompt, NULL, "yes");
    assert_string_equal(text,
                        "<|begin_of_text|>Q: Transcribe: <|audio|>\n<<A: yes<|end_of_text|>>>");
    free(text);
    assert_int_equal(s2s_prompt_open(&other, "plain", tok, NULL, NULL), 0);
    assert_string_not_equal(s2s_prompt_digest(prompt), s2s_prompt_digest(other));
    s2s_prompt_free(other);
    s2s_prompt_free(prompt);
    static const char *const bad[][2] = {
        {"{}", "roles"},
        {"{\"roles\":{\"user\":\"x\",\"assistant\":\"|message|\"}}",
         "user must hold |message| once"},
        {"{\"roles\":{\"user\":\"|message|\"}}", "needs user and assistant"},
        {"{\"roles\":{\"user\":\"|message|\",\"asistant\":\"|message|\"}}", "'asistant'"},
        {"{\"roles\":{\"user\":\"|message|\",\"assistant\":\"|eos||message|\"}}", "|eos| only"},
        {"{\"roles\":{\"user\":1}}", "not a string"},
        {"{", ":1:"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(open_text(&prompt, bad[i][0], &err), S2S_E_FORMAT);
        if (!strstr(err.text, bad[i][1]))
            fail_msg("'%s' does not say '%s'", err.text, bad[i][1]);
    }
    assert_int_equal(s2s_prompt_open(&prompt, "lama3", tok, NULL, &err), S2S_E_ARG);
    assert_non_null(strstr(err.hint, "llama3"));
    assert_int_equal(s2s_prompt_open(&prompt, "/nowhere/x.json", tok, NULL, &err), S2S_E_OPEN);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(formats_read_as_the_models_expect),
        cmocka_unit_test(generation_stops_where_the_model_speaks),
        cmocka_unit_test(each_clip_has_one_placeholder_and_text_may_not_hold_the_tag),
        cmocka_unit_test(a_file_is_a_format_and_its_faults_are_named),
    };
    return cmocka_run_group_tests(tests, open_tokenizer, free_tokenizer);
}
