/* A chat template, then (behind a NUL byte) the text of a question: rendered for a small tokenizer.
 */
#include <stdint.h>
#include <string.h>

#include <jansson.h>

#include "lib/base/base.h"
#include "lib/text/chat.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char TOKENIZER[] =
    "{\"model\": {\"type\": \"BPE\", \"byte_fallback\": true, \"unk_token\": \"a\", \"vocab\": "
    "{\"a\": 0, \"b\": 1, "
    "\"ab\": 2}, \"merges\": [\"a b\"]}, \"normalizer\": {\"type\": \"NFKC\"}}";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct text_jinja *jinja = NULL;
    struct s2s_tokenizer *tok = NULL;
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_rendered out = S2S_RENDERED_INIT;
    const uint8_t *nul = size ? memchr(data, 0, size) : NULL;
    size_t len = nul ? (size_t)(nul - data) : size;
    s2s_log_set_verbosity(-1);
    if (text_jinja_parse(&jinja, (const char *)data, len, &err) < 0) {
        if (!*err.text)
            S2S_BUG("an error without a text");
        return 0;
    }
    if (s2s_tokenizer_parse(&tok, TOKENIZER, strlen(TOKENIZER), &err) < 0)
        S2S_BUG("%s", err.text);
    json_t *text = nul ? json_stringn((const char *)nul + 1, size - len - 1) : NULL;
    json_t *messages =
        json_pack("[{s:s, s:o}, {s:s, s:s}]", "role", "user", "content",
                  text ? text : json_string("is it?"), "role", "assistant", "content", " it is\n");
    int rc = text_chat_render(jinja, tok, &out, messages, size % 2, &err);
    if (rc < 0 && !*err.text)
        S2S_BUG("an error without a text");
    for (size_t i = 0; rc == 0 && i < out.ids.len; i++)
        if (out.loss_mask[i] > 1)
            S2S_BUG("a mask of %d", out.loss_mask[i]);
    json_decref(messages);
    s2s_rendered_release(&out);
    s2s_tokenizer_free(tok);
    text_jinja_free(jinja);
    return 0;
}
