/* Interpolations of strangers: each line is a value of a small tree, at one depth or another. The
 * first byte chooses whose rules count. */
#include <stdint.h>
#include <stdlib.h>

#include "lib/base/error.h"
#include "lib/base/mem.h"
#include "lib/conf/conf.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* the next line as a JSON string, of any bytes */
static void add_line(struct s2s_buf *json, const uint8_t **at, const uint8_t *end)
{
    s2s_buf_putc(json, '"');
    for (; *at < end && **at != '\n'; ++*at) {
        if (**at < 0x20 || **at > 0x7e || **at == '"' || **at == '\\')
            s2s_buf_printf(json, "\\u%04x", **at ? **at : 1);
        else
            s2s_buf_putc(json, (char)**at);
    }
    *at += *at < end;
    s2s_buf_putc(json, '"');
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const parts[] = {"{\"a\": ",          ", \"b\": {\"c\": ",
                                        ", \"d\": {\"e\": ", "}}, \"l\": [",
                                        ", {\"x\": ",        "}, 3], \"n\": 4, \"f\": "};
    static const char *const env[] = {"HOME=/root", "N=8", NULL};
    static const enum s2s_conf_interpolation kinds[] = {S2S_CONF_OMEGACONF, S2S_CONF_ENVIRONMENT};
    const uint8_t *at = data + (size > 0), *end = data + size;
    struct s2s_conf *conf = NULL;
    struct s2s_conf_faults faults = {0};
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_buf json = S2S_BUF_INIT;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        s2s_buf_puts(&json, parts[i]);
        add_line(&json, &at, end);
    }
    s2s_buf_puts(&json, "}");
    if (s2s_conf_parse(&conf, json.data, json.len, "fuzz", S2S_CONF_JSON, &err) < 0)
        S2S_BUG("%s in %s", err.text, json.data);
    s2s_conf_resolve(conf, kinds[size ? data[0] & 1 : 0], env, &faults);
    free(faults.items);
    s2s_buf_clear(&json);
    s2s_conf_dump(&json, conf, true);
    s2s_buf_release(&json);
    s2s_conf_free(conf);
    return 0;
}
