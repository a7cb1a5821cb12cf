/* What the commands of s2s-ckpt print, as text and as JSON. */
#include "tools/ckpt/ckpt_tool.h"

#include <string.h>
#include <unistd.h>

#include "lib/base/utf8.h"

int ckpt_check_out(const char *out, const struct s2s_ckpt *ckpt, struct s2s_error *err)
{
    return out && s2s_ckpt_reads(ckpt, out)
               ? s2s_error_set(err, S2S_E_ARG, "%s: is part of the input: choose another OUT", out)
               : 0;
}

int ckpt_report_begin(struct s2s_printout *to, const struct s2s_common *common,
                      const struct s2s_ckpt *ckpt, struct s2s_error *err)
{
    int rc = ckpt_check_out(common->out, ckpt, err);
    return rc < 0 ? rc : s2s_printout_begin(to, common->out, err);
}

int64_t ckpt_tensor_bytes(const struct s2s_ckpt *ckpt)
{
    size_t n;
    int64_t bytes = 0;
    const struct s2s_ckpt_tensor *tensors = s2s_ckpt_tensors(ckpt, &n);
    for (size_t i = 0; i < n; i++)
        bytes += s2s_ckpt_bytes(&tensors[i]);
    return bytes;
}

void ckpt_make_way(struct s2s_progress *progress)
{
    if (progress->drawn && isatty(fileno(stdout)))
        s2s_progress_end(progress);
}

const char *ckpt_bytes_text(char text[32], int64_t bytes)
{
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB", "PB"};
    double value = (double)bytes;
    int unit = 0;
    for (; value >= 1000 && unit < 5; unit++)
        value /= 1000;
    snprintf(text, 32, unit ? "%.3g %s" : "%.0f %s", value, units[unit]);
    return text;
}

void ckpt_print_shape(const int64_t *shape, int n_dims)
{
    putchar('[');
    for (int d = 0; d < n_dims; d++)
        printf("%s%lld", d ? ", " : "", (long long)shape[d]);
    putchar(']');
}

void ckpt_print_name(const char *name)
{
    char shown[S2S_UTF8_SHOWN];
    for (const char *at = name, *end = name + strlen(name); at < end;) {
        if (*at == '\\')
            putchar('\\');
        at += s2s_utf8_show(shown, at, end);
        fputs(shown, stdout);
    }
}

char *ckpt_json_text(const char *text)
{
    char *mended = s2s_utf8_mend(text);
    json_t *string = json_string(mended);
    char *dumped = json_dumps(string, JSON_ENCODE_ANY | JSON_COMPACT);
    json_decref(string);
    free(mended);
    return dumped ? dumped : s2s_xstrdup("\"\"");
}

void ckpt_print_json_text(const char *text)
{
    char *dumped = ckpt_json_text(text);
    fputs(dumped, stdout);
    free(dumped);
}

void ckpt_print_tensor(const struct s2s_ckpt_tensor *t, const char *folder, bool json)
{
    if (json) {
        printf("{\"name\": ");
        ckpt_print_json_text(t->name);
        if (*folder) {
            printf(", \"folder\": ");
            ckpt_print_json_text(folder);
        }
    } else {
        printf("%s%s", folder, *folder ? "/" : "");
        ckpt_print_name(t->name);
    }
    printf(json ? ", \"dtype\": \"%s\", \"shape\": " : "\t%s\t", s2s_dtype_name(t->dtype));
    ckpt_print_shape(t->shape, t->n_dims);
    printf(json ? ", \"bytes\": %lld" : "\t%lld", (long long)s2s_ckpt_bytes(t));
}
