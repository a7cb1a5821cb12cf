/* tokenizer.json, then (behind a NUL byte) a text that is encoded and decoded. */
#include <stdint.h>
#include <string.h>

#include "lib/base/base.h"
#include "lib/text/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct s2s_tokenizer *tok = NULL;
    struct s2s_error err = S2S_ERROR_INIT;
    const uint8_t *nul = size ? memchr(data, 0, size) : NULL;
    size_t json_len = nul ? (size_t)(nul - data) : size;
    const char *text = nul ? (const char *)nul + 1 : "It's 12 <a> \xc3\xa9 e\xcc\x81";
    size_t len = nul ? size - json_len - 1 : strlen(text);
    s2s_log_set_verbosity(-1);
    if (s2s_tokenizer_parse(&tok, (const char *)data, json_len, &err) < 0)
        return 0;
    struct s2s_ids ids = S2S_IDS_INIT;
    struct s2s_buf out = S2S_BUF_INIT;
    if (s2s_tokenizer_encode(tok, &ids, text, len, true, &err) == 0 &&
        s2s_tokenizer_decode(tok, &out, ids.data, ids.len, false, &err) < 0)
        S2S_BUG("ids that came from the tokenizer do not decode: %s", err.text);
    s2s_ids_release(&ids);
    s2s_buf_release(&out);
    s2s_tokenizer_free(tok);
    return 0;
}
