#include "lib/rules/rules_internal.h"

#include <string.h>

static const char *paint(bool color, enum s2s_severity severity)
{
    static const char *const codes[] = {"\033[1;36m", "\033[1;35m", "\033[1;31m"};
    return color ? codes[severity] : "";
}

/* The line that a finding points at, and a caret under the place. Tabs keep their width. */
static void add_excerpt(struct s2s_buf *buf, const struct s2s_conf_place *place, bool color)
{
    size_t len = 0;
    const char *line = s2s_conf_line(place, &len);
    if (!line || len == 0)
        return;
    size_t shown = len > 200 ? 200 : len;
    s2s_buf_printf(buf, "%5d | %.*s%s\n      | ", place->line, (int)shown, line,
                   shown < len ? "..." : "");
    int column = 1;
    for (size_t i = 0; i < shown && column < place->column; i++) {
        if (((unsigned char)line[i] & 0xc0) == 0x80)
            continue;
        s2s_buf_putc(buf, line[i] == '\t' ? '\t' : ' ');
        column++;
    }
    s2s_buf_printf(buf, "%s^%s\n", paint(color, S2S_SEVERITY_ERROR), color ? "\033[0m" : "");
}

static void add_finding(struct s2s_buf *buf, const struct s2s_report *report,
                        const struct s2s_finding *f, bool color)
{
    const char *reset = color ? "\033[0m" : "";
    if (f->place.source)
        s2s_conf_add_place(buf, &f->place);
    else
        s2s_buf_puts(buf, report->path);
    s2s_buf_printf(buf, ": %s%s:%s %s [%s]\n", paint(color, f->severity),
                   s2s_severity_name(f->severity), reset, f->message, f->rule->id);
    add_excerpt(buf, &f->place, color);
    if (f->fix[0])
        s2s_buf_printf(buf, "      = fix: %s\n", f->fix);
}

void s2s_report_text(struct s2s_buf *buf, const struct s2s_report *report, bool color,
                     bool show_skipped)
{
    for (size_t i = 0; i < report->n_findings; i++)
        add_finding(buf, report, &report->findings[i], color);
    for (size_t i = 0; show_skipped && i < report->n_skipped; i++)
        s2s_buf_printf(buf, "%s: not evaluated: %s (%s is not known)\n", report->path,
                       report->skipped[i].rule->id, report->skipped[i].unknown);
}
