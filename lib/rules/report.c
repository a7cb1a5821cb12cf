/* Shows findings with the lines that they are about, and memory as a table. */
#include "lib/rules/rules_internal.h"

#include <math.h>
#include <string.h>

#include "lib/base/utf8.h"

static const char *paint(bool color, enum s2s_severity severity)
{
    static const char *const codes[] = {"\033[1;36m", "\033[1;35m", "\033[1;31m"};
    return color ? codes[severity] : "";
}

enum { MOST_SHOWN = 160, BEFORE_CARET = 120 };

/* A part of a line for a terminal: what would steer it, or is no UTF-8, becomes '?'. Or, for the
 * line below, blanks of the same width; tabs keep theirs. */
static void add_shown(struct s2s_buf *buf, const char *s, const char *end, bool blank)
{
    while (s < end) {
        int len = s2s_utf8_len(s, end), n_columns = len ? s2s_utf8_columns(s, len) : 1;
        bool control = len == 0 || (unsigned char)*s < 0x20 || *s == 0x7f ||
                       (len == 2 && *s == '\xc2' && (unsigned char)s[1] < 0xa0);
        if (*s == '\t')
            s2s_buf_putc(buf, '\t');
        else if (blank)
            s2s_buf_printf(buf, "%*s", n_columns, "");
        else if (control)
            s2s_buf_putc(buf, '?');
        else
            s2s_buf_add(buf, s, (size_t)len);
        s += len ? len : 1;
    }
}

/* Moves over n characters, as places count them. */
static const char *skip_characters(const char *s, const char *end, int n)
{
    for (; s < end && n > 0; n--)
        do
            s++;
        while (s < end && ((unsigned char)*s & 0xc0) == 0x80);
    return s;
}

/* The line that a finding points at, and a caret under the place; of a long line the part around
 * it. */
static void add_excerpt(struct s2s_buf *buf, const struct s2s_conf_place *place, bool color)
{
    size_t len = 0;
    const char *line = s2s_conf_line(place, &len);
    if (!line || len == 0)
        return;
    const char *end = line + len;
    bool cut = place->column > MOST_SHOWN;
    const char *first = skip_characters(line, end, cut ? place->column - 1 - BEFORE_CARET : 0);
    const char *last = skip_characters(first, end, MOST_SHOWN);
    const char *at = skip_characters(line, end, place->column - 1);
    s2s_buf_printf(buf, "%5d | %s", place->line, cut ? "..." : "");
    add_shown(buf, first, last, false);
    s2s_buf_printf(buf, "%s\n      | %s", last < end ? "..." : "", cut ? "   " : "");
    add_shown(buf, first, at, true);
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

static void add_gib(struct s2s_buf *buf, double bytes)
{
    if (isnan(bytes))
        s2s_buf_printf(buf, " %11s", "?");
    else
        s2s_buf_printf(buf, " %11.2f", bytes / (1 << 30));
}

void s2s_report_memory(struct s2s_buf *buf, const struct s2s_report *report)
{
    const struct s2s_memory *m = &report->memory;
    if (!m->n_stages || isnan(m->parameters)) {
        s2s_buf_printf(buf, "%s: what a rank needs is not known%s%s\n", report->path,
                       report->no_plan ? ": " : "",
                       report->no_plan ? report->no_plan
                       : m->n_stages   ? ": sizes of the model are missing"
                                       : "");
        return;
    }
    s2s_buf_printf(buf,
                   "%s: %.4g billion parameters%s; GiB a rank%s\n   stage  parameters     "
                   "weights   gradients   optimizer activations %11s       total\n",
                   report->path, m->parameters / 1e9,
                   m->no_vocabulary ? " without those of the vocabulary" : "",
                   m->planned ? "" : ", at least", m->planned ? "scratch" : "logits");
    for (size_t i = 0; i < m->n_stages; i++) {
        const struct s2s_memory_stage *s = &m->stages[i];
        const double bytes[] = {s->weights,     s->gradients, s->optimizer,
                                s->activations, s->logits,    s2s_memory_total(s)};
        s2s_buf_printf(buf, "%8s %11.0f", s->name, s->parameters);
        for (size_t k = 0; k < sizeof bytes / sizeof *bytes; k++)
            add_gib(buf, bytes[k]);
        s2s_buf_putc(buf, '\n');
    }
}
