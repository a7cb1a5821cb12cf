/* Launch scripts of strangers, read and judged. */
#include <stdint.h>

#include "lib/base/error.h"
#include "lib/rules/rules.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct s2s_report report = S2S_REPORT_INIT;
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_conf *conf = s2s_rules_read_shell((const char *)data, size, "fuzz");
    s2s_rules_check(&report, conf, "fuzz", NULL, &err);
    s2s_report_release(&report);
    return 0;
}
