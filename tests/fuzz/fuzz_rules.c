/* A config of a stranger through every rule: the first byte chooses dialect and options. */
#include <stdint.h>
#include <stdlib.h>

#include "lib/base/error.h"
#include "lib/base/mem.h"
#include "lib/rules/rules.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const enum s2s_dialect dialects[] = {S2S_DIALECT_NONE, S2S_DIALECT_S2S, S2S_DIALECT_SLM,
                                                S2S_DIALECT_RL,   S2S_DIALECT_AM,  S2S_DIALECT_MLM,
                                                S2S_DIALECT_HET};
    static const char *const env[] = {"N=8", "NVTE_FUSED_ATTN=1", NULL};
    struct s2s_conf *conf = NULL;
    struct s2s_report report = S2S_REPORT_INIT;
    struct s2s_error err = S2S_ERROR_INIT;
    unsigned choice = size ? data[0] : 0;
    if (s2s_conf_parse(&conf, (const char *)data + (size > 0), size - (size > 0), "fuzz",
                       S2S_CONF_YAML, &err) < 0)
        return 0;
    struct s2s_rules_options opt = {
        .dialect = dialects[choice % (sizeof dialects / sizeof *dialects)],
        .world_size = choice & 64 ? 16 : 0,
        .env = env,
        .launch = choice & 128,
        .resolve = choice & 32,
    };
    if (s2s_rules_check(&report, conf, "fuzz", &opt, &err) == 0) {
        struct s2s_buf text = S2S_BUF_INIT;
        s2s_report_text(&text, &report, true, true);
        s2s_buf_release(&text);
    }
    s2s_report_release(&report);
    return 0;
}
