/* `s2s-check --explain` and `--list`: the pages of rules. */
#include "tools/validate/check.h"

#include <string.h>

#include "lib/base/mem.h"

static void add_dialects(struct s2s_buf *buf, unsigned dialects, const char *between)
{
    bool first = true;
    for (unsigned bit = 1; bit < S2S_DIALECT_ALL; bit <<= 1) {
        if (!(dialects & bit))
            continue;
        s2s_buf_printf(buf, "%s%s", first ? "" : between, s2s_dialect_name((enum s2s_dialect)bit));
        first = false;
    }
}

void check_explain(struct s2s_buf *buf, const struct s2s_rule *rule)
{
    size_t n = 0;
    const struct s2s_rule *const *rules = s2s_rules(&n);
    s2s_buf_printf(buf, "%s (%s)\n", rule->id, s2s_severity_name(rule->severity));
    for (size_t i = 0; i < n; i++) {
        const struct s2s_rule *r = rules[i];
        if (strcmp(r->id, rule->id) != 0)
            continue;
        s2s_buf_printf(buf, "\n  %s\n\n", r->message);
        s2s_buf_printf(buf, "  when      %s\n", r->when ? r->when : "found while reading");
        if (r->error_when)
            s2s_buf_printf(buf, "  error if  %s\n", r->error_when);
        s2s_buf_puts(buf, "  configs   ");
        add_dialects(buf, r->dialects, ", ");
        s2s_buf_printf(buf, "\n  why       %s\n", r->why);
        if (r->fix[0])
            s2s_buf_printf(buf, "  fix       %s\n", r->fix);
        if (r->after)
            s2s_buf_printf(buf, "  unless    one of these fired: %s\n", r->after);
        s2s_buf_printf(buf, "  source    %s\n", r->source);
    }
}

void check_list(struct s2s_buf *buf, bool json, const char *id)
{
    size_t n = 0, shown = 0;
    const struct s2s_rule *const *rules = s2s_rules(&n);
    if (json)
        s2s_buf_putc(buf, '[');
    for (size_t i = 0; i < n; i++) {
        const struct s2s_rule *r = rules[i];
        if (id && strcmp(r->id, id) != 0)
            continue;
        if (!json) {
            s2s_buf_printf(buf, "%-12s %-8s ", r->id, s2s_severity_name(r->severity));
            add_dialects(buf, r->dialects, ",");
            s2s_buf_printf(buf, "\t%s\n", r->message);
            continue;
        }
        s2s_buf_puts(buf, shown++ ? ",\n {\"rule\": " : "\n {\"rule\": ");
        check_add_json(buf, r->id);
        s2s_buf_printf(buf, ", \"severity\": \"%s\", \"dialects\": \"",
                       s2s_severity_name(r->severity));
        add_dialects(buf, r->dialects, " ");
        s2s_buf_puts(buf, "\", \"when\": ");
        check_add_json(buf, r->when ? r->when : "");
        s2s_buf_puts(buf, ", \"message\": ");
        check_add_json(buf, r->message);
        s2s_buf_puts(buf, ", \"fix\": ");
        check_add_json(buf, r->fix);
        s2s_buf_puts(buf, ", \"why\": ");
        check_add_json(buf, r->why);
        s2s_buf_puts(buf, ", \"source\": ");
        check_add_json(buf, r->source);
        s2s_buf_putc(buf, '}');
    }
    if (json)
        s2s_buf_puts(buf, "\n]\n");
}

/* one line of a Markdown table: no bar may stand in it */
static void add_cell(struct s2s_buf *buf, const char *text)
{
    for (; *text; text++)
        s2s_buf_printf(buf, *text == '|' ? "\\%c" : "%c", *text);
}

static void add_index(struct s2s_buf *buf, const struct s2s_rule *const *rules, size_t n)
{
    s2s_buf_puts(buf, "# Rules of s2s-check\n\n| rule | severity | configs | finding |\n"
                      "|---|---|---|---|\n");
    for (size_t i = 0; i < n; i++) {
        const struct s2s_rule *r = rules[i];
        s2s_buf_printf(buf, "| [%s](%s.md) | %s | ", r->id, r->id, s2s_severity_name(r->severity));
        add_dialects(buf, r->dialects, " ");
        s2s_buf_puts(buf, " | ");
        add_cell(buf, r->message);
        s2s_buf_puts(buf, " |\n");
    }
}

void check_page(struct s2s_buf *buf, const struct s2s_rule *rule)
{
    size_t n = 0;
    const struct s2s_rule *const *rules = s2s_rules(&n);
    if (!rule) {
        add_index(buf, rules, n);
        return;
    }
    s2s_buf_printf(buf, "# %s\n", rule->id);
    for (size_t i = 0; i < n; i++) {
        const struct s2s_rule *r = rules[i];
        if (strcmp(r->id, rule->id) != 0)
            continue;
        s2s_buf_printf(buf, "\n**%s**, in ", s2s_severity_name(r->severity));
        add_dialects(buf, r->dialects, ", ");
        s2s_buf_printf(buf, ": %s\n\n", r->message);
        if (r->when)
            s2s_buf_printf(buf, "    %s\n\n", r->when);
        if (r->error_when)
            s2s_buf_printf(buf, "An error if\n\n    %s\n\n", r->error_when);
        s2s_buf_printf(buf, "%s\n", r->why);
        if (r->fix[0])
            s2s_buf_printf(buf, "\nFix: %s\n", r->fix);
        if (r->after)
            s2s_buf_printf(buf, "\nNot reported if one of these fired: %s\n", r->after);
        s2s_buf_printf(buf, "\nSource: `%s`\n", r->source);
    }
}
