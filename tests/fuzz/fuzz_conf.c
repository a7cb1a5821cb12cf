/* YAML and JSON of strangers: first byte J is JSON, O is an override on a small tree, anything else
 * starts a YAML file. What can be read must survive its own dump. */
#include <stdint.h>
#include <stdlib.h>

#include "lib/base/error.h"
#include "lib/base/mem.h"
#include "lib/conf/conf.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_dump(const struct s2s_conf *conf)
{
    struct s2s_buf text = S2S_BUF_INIT;
    struct s2s_conf *again = NULL;
    struct s2s_error err = S2S_ERROR_INIT;
    s2s_conf_dump(&text, conf, true);
    /* nesting may be deeper than a file may nest, through aliases */
    if (s2s_conf_parse(&again, text.data, text.len, "dump", S2S_CONF_YAML, &err) == 0) {
        if (again->n_items != conf->n_items)
            S2S_BUG("a dump lost items: %s", text.data);
    }
    s2s_conf_free(again);
    s2s_buf_clear(&text);
    s2s_conf_dump_json(&text, conf);
    s2s_buf_release(&text);
}

static void try_override(const char *text)
{
    static const char base[] = "a: {b: [1, {c: 2}], d: x}\ne:\n";
    struct s2s_conf *conf = NULL;
    struct s2s_error err = S2S_ERROR_INIT;
    if (s2s_conf_parse(&conf, base, sizeof base - 1, "base", S2S_CONF_YAML, &err) < 0)
        S2S_BUG("%s", err.text);
    if (s2s_conf_override(conf, text, &err) == 0)
        check_dump(conf);
    s2s_conf_free(conf);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct s2s_conf *conf = NULL;
    struct s2s_error err = S2S_ERROR_INIT;
    if (size && data[0] == 'O') {
        char *text = s2s_xstrndup((const char *)data + 1, size - 1);
        try_override(text);
        free(text);
        return 0;
    }
    bool json = size && data[0] == 'J';
    if (s2s_conf_parse(&conf, (const char *)data + json, size - json, "fuzz",
                       json ? S2S_CONF_JSON : S2S_CONF_YAML, &err) == 0)
        check_dump(conf);
    s2s_conf_free(conf);
    return 0;
}
