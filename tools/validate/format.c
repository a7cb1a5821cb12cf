/* Findings as JSON, SARIF, GitHub annotations and JUnit. */
#include "tools/validate/check.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include <xxhash.h>

#include "lib/base/mem.h"
#include "lib/base/utf8.h"

/* A character of a path or of a script, which may hold any bytes: what is no UTF-8 becomes U+FFFD,
 * so that every format stays readable. Moves *at behind it. */
static void add_character(struct s2s_buf *buf, const char **at)
{
    size_t rest = strnlen(*at, 4);
    int len = s2s_utf8_len(*at, *at + rest);
    if (len)
        s2s_buf_add(buf, *at, (size_t)len);
    else
        s2s_buf_puts(buf, "\xef\xbf\xbd");
    *at += len ? len : 1;
}

void check_add_json(struct s2s_buf *buf, const char *text)
{
    s2s_buf_putc(buf, '"');
    while (*text) {
        unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\')
            s2s_buf_printf(buf, "\\%c", c);
        else if (c < 0x20 || c == 0x7f)
            s2s_buf_printf(buf, "\\u%04x", c);
        else {
            add_character(buf, &text);
            continue;
        }
        text++;
    }
    s2s_buf_putc(buf, '"');
}

static void add_field(struct s2s_buf *buf, const char *name, const char *text)
{
    s2s_buf_printf(buf, ", \"%s\": ", name);
    check_add_json(buf, text);
}

/* The file a finding is in: a parent or a --set is another source than the file itself. */
static const char *path_of(const struct check_file *file, const struct s2s_finding *f)
{
    const struct s2s_conf_source *source = f->place.source;
    return source && source->origin == S2S_CONF_FROM_FILE ? source->name : file->path;
}

static bool in_file(const struct s2s_finding *f)
{
    return f->place.source && f->place.source->origin == S2S_CONF_FROM_FILE && f->place.line > 0;
}

/* ---- JSON ---- */

static void json_finding(struct s2s_buf *buf, const struct check_file *file,
                         const struct s2s_finding *f)
{
    bool here = in_file(f);
    s2s_buf_puts(buf, "{\"rule\": ");
    check_add_json(buf, f->rule->id);
    add_field(buf, "severity", s2s_severity_name(f->severity));
    s2s_buf_printf(buf, ", \"line\": %d, \"column\": %d", here ? f->place.line : 1,
                   here ? f->place.column : 1);
    add_field(buf, "key", f->key);
    add_field(buf, "message", f->message);
    add_field(buf, "fix", f->fix);
    bool is_stdin = !strcmp(file->path, "-") && !strcmp(path_of(file, f), "stdin");
    if (strcmp(path_of(file, f), file->path) != 0 && !is_stdin)
        add_field(buf, "file", path_of(file, f));
    s2s_buf_putc(buf, '}');
}

static void json_bytes(struct s2s_buf *buf, const char *name, double bytes)
{
    if (isnan(bytes))
        s2s_buf_printf(buf, ", \"%s\": null", name);
    else
        s2s_buf_printf(buf, ", \"%s\": %.0f", name, bytes);
}

/* bytes of a rank of each stage */
static void json_memory(struct s2s_buf *buf, const struct s2s_memory *m)
{
    s2s_buf_puts(buf, ", \"memory\": [");
    for (size_t i = 0; i < m->n_stages; i++) {
        const struct s2s_memory_stage *s = &m->stages[i];
        s2s_buf_printf(buf, "%s{\"stage\": \"%s\"", i ? ", " : "", s->name);
        json_bytes(buf, "parameters", s->parameters);
        json_bytes(buf, "weights", s->weights);
        json_bytes(buf, "gradients", s->gradients);
        json_bytes(buf, "optimizer", s->optimizer);
        json_bytes(buf, "activations", s->activations);
        json_bytes(buf, m->planned ? "scratch" : "logits", s->logits);
        json_bytes(buf, "total", s2s_memory_total(s));
        s2s_buf_putc(buf, '}');
    }
    s2s_buf_putc(buf, ']');
    json_bytes(buf, "parameters", m->n_stages ? m->parameters : NAN);
}

static void json_file(struct s2s_buf *buf, const struct check_file *file, bool memory)
{
    const struct s2s_report *r = &file->report;
    const char *dialect = s2s_dialect_name(r->dialect);
    s2s_buf_puts(buf, "{\"path\": ");
    check_add_json(buf, file->path);
    s2s_buf_puts(buf, ", \"dialect\": ");
    if (dialect)
        check_add_json(buf, dialect);
    else
        s2s_buf_puts(buf, "null");
    if (r->world_size)
        s2s_buf_printf(buf, ", \"world_size\": %lld", (long long)r->world_size);
    else
        s2s_buf_puts(buf, ", \"world_size\": null");
    s2s_buf_puts(buf, ", \"findings\": [");
    if (file->failure) {
        bool placed = file->failed_at.line > 0;
        s2s_buf_printf(buf,
                       "{\"rule\": \"S2S-CFG-001\", \"severity\": \"error\", \"line\": %d, "
                       "\"column\": %d, \"key\": \"\"",
                       placed ? file->failed_at.line : 1, placed ? file->failed_at.column : 1);
        add_field(buf, "message", file->failure);
        add_field(buf, "fix", "");
        s2s_buf_putc(buf, '}');
    }
    for (size_t i = 0; i < r->n_findings; i++) {
        s2s_buf_puts(buf, i || file->failure ? ", " : "");
        json_finding(buf, file, &r->findings[i]);
    }
    s2s_buf_printf(buf, "], \"skipped\": %zu", r->n_skipped);
    if (memory)
        json_memory(buf, &r->memory);
    if (r->resolved) {
        s2s_buf_puts(buf, ", \"resolved\": ");
        s2s_conf_dump_json(buf, r->resolved);
    }
    s2s_buf_putc(buf, '}');
}

void check_format_json(struct s2s_buf *buf, const struct check_file *files, size_t n, bool memory)
{
    size_t n_errors = 0, n_warnings = 0;
    s2s_buf_puts(buf, "{\"files\": [");
    for (size_t i = 0; i < n; i++) {
        s2s_buf_puts(buf, i ? ",\n  " : "\n  ");
        json_file(buf, &files[i], memory);
        n_errors += files[i].report.n_errors + (files[i].failure != NULL);
        n_warnings += files[i].report.n_warnings;
    }
    s2s_buf_printf(buf, "\n], \"errors\": %zu, \"warnings\": %zu}\n", n_errors, n_warnings);
}

/* ---- SARIF 2.1.0 ---- */

static const char *sarif_level(enum s2s_severity severity)
{
    return severity == S2S_SEVERITY_INFO ? "note" : s2s_severity_name(severity);
}

static void sarif_rules(struct s2s_buf *buf)
{
    size_t n = 0, shown = 0;
    const struct s2s_rule *const *rules = s2s_rules(&n);
    for (size_t i = 0; i < n; i++) {
        if (s2s_rule_by_id(rules[i]->id) != rules[i])
            continue; /* a second entry of the same id */
        s2s_buf_puts(buf, shown++ ? ",\n      " : "\n      ");
        s2s_buf_puts(buf, "{\"id\": ");
        check_add_json(buf, rules[i]->id);
        s2s_buf_puts(buf, ", \"shortDescription\": {\"text\": ");
        check_add_json(buf, rules[i]->message);
        s2s_buf_puts(buf, "}, \"fullDescription\": {\"text\": ");
        check_add_json(buf, rules[i]->why);
        s2s_buf_puts(buf, "}, \"help\": {\"text\": ");
        check_add_json(buf, rules[i]->fix[0] ? rules[i]->fix : rules[i]->why);
        s2s_buf_printf(buf, "}, \"defaultConfiguration\": {\"level\": \"%s\"}}",
                       sarif_level(rules[i]->severity));
    }
}

static size_t sarif_rule_index(const char *id)
{
    size_t n = 0, index = 0;
    const struct s2s_rule *const *rules = s2s_rules(&n);
    for (size_t i = 0; i < n && strcmp(rules[i]->id, id); i++)
        index += s2s_rule_by_id(rules[i]->id) == rules[i];
    return index;
}

/* A path is a URI reference: what URIs give a meaning to, is escaped. */
static void sarif_uri(struct s2s_buf *buf, const char *path)
{
    s2s_buf_putc(buf, '"');
    for (const unsigned char *s = (const unsigned char *)path; *s; s++)
        if (*s <= 0x20 || *s >= 0x7f || strchr("%\"<>\\^`{|}#?[]:", (char)*s))
            s2s_buf_printf(buf, "%%%02X", *s);
        else
            s2s_buf_putc(buf, (char)*s);
    s2s_buf_putc(buf, '"');
}

/* What a result says, whether it is a finding or a file that could not be read. */
struct sarif_result {
    const char *id, *level, *message, *fix, *path;
    int line, column;
    int n_before; /* results of the same rule, file and message before this one */
};

static void sarif_result(struct s2s_buf *buf, const struct sarif_result *r)
{
    struct s2s_buf text = S2S_BUF_INIT;
    s2s_buf_printf(buf, "{\"ruleId\": \"%s\", \"ruleIndex\": %zu, \"level\": \"%s\", \"message\": ",
                   r->id, sarif_rule_index(r->id), r->level);
    s2s_buf_printf(&text, "%s%s%s", r->message, r->fix[0] ? "; fix: " : "", r->fix);
    s2s_buf_puts(buf, "{\"text\": ");
    check_add_json(buf, text.data);
    s2s_buf_puts(buf,
                 "}, \"locations\": [{\"physicalLocation\": {\"artifactLocation\": {\"uri\": ");
    sarif_uri(buf, r->path);
    s2s_buf_printf(buf, "}, \"region\": {\"startLine\": %d, \"startColumn\": %d}}}]", r->line,
                   r->column);
    /* the same finding on another line is the same finding */
    s2s_buf_clear(&text);
    s2s_buf_printf(&text, "%s|%s|%s", r->id, r->path, r->message);
    if (r->n_before)
        s2s_buf_printf(&text, "|%d", r->n_before);
    s2s_buf_printf(buf, ", \"partialFingerprints\": {\"s2sCheck/v1\": \"%016llx\"}}",
                   (unsigned long long)XXH3_64bits(text.data, text.len));
    s2s_buf_release(&text);
}

static void sarif_failure(struct s2s_buf *buf, const struct check_file *file)
{
    bool placed = file->failed_at.line > 0;
    sarif_result(buf, &(struct sarif_result){"S2S-CFG-001", "error", file->failure, "", file->path,
                                             placed ? file->failed_at.line : 1,
                                             placed ? file->failed_at.column : 1, 0});
}

static void sarif_finding(struct s2s_buf *buf, const struct check_file *file, size_t k)
{
    const struct s2s_finding *f = &file->report.findings[k];
    bool here = in_file(f);
    struct sarif_result r = {.id = f->rule->id,
                             .level = sarif_level(f->severity),
                             .message = f->message,
                             .fix = f->fix,
                             .path = path_of(file, f),
                             .line = here ? f->place.line : 1,
                             .column = here ? f->place.column : 1};
    for (size_t i = 0; i < k; i++) {
        const struct s2s_finding *other = &file->report.findings[i];
        r.n_before += other->rule == f->rule && !strcmp(other->message, f->message) &&
                      !strcmp(path_of(file, other), r.path);
    }
    sarif_result(buf, &r);
}

void check_format_sarif(struct s2s_buf *buf, const struct check_file *files, size_t n)
{
    size_t shown = 0, n_failures = 0;
    s2s_buf_puts(buf, "{\"$schema\": \"https://json.schemastore.org/sarif-2.1.0.json\", "
                      "\"version\": \"2.1.0\", \"runs\": [{\n  \"tool\": {\"driver\": {\"name\": "
                      "\"s2s-check\", \"version\": \"" S2S_VERSION "\", \"rules\": [");
    sarif_rules(buf);
    s2s_buf_puts(buf, "\n  ]}},\n  \"columnKind\": \"unicodeCodePoints\",\n  \"results\": [");
    for (size_t i = 0; i < n; i++) {
        if (files[i].failure) {
            n_failures++;
            s2s_buf_puts(buf, shown++ ? ",\n    " : "\n    ");
            sarif_failure(buf, &files[i]);
        }
        for (size_t k = 0; k < files[i].report.n_findings; k++) {
            s2s_buf_puts(buf, shown++ ? ",\n    " : "\n    ");
            sarif_finding(buf, &files[i], k);
        }
    }
    s2s_buf_printf(buf, "\n  ],\n  \"invocations\": [{\"executionSuccessful\": %s}]}]}\n",
                   n_failures ? "false" : "true");
}

/* ---- GitHub workflow commands ---- */

static void github_escaped(struct s2s_buf *buf, const char *text, bool property)
{
    while (*text)
        if (*text == '%' || *text == '\r' || *text == '\n' ||
            (property && (*text == ':' || *text == ',')))
            s2s_buf_printf(buf, "%%%02X", (unsigned char)*text++);
        else
            add_character(buf, &text);
}

static void github_line(struct s2s_buf *buf, const char *level, const char *path, int line,
                        int column, const char *id, const char *message, const char *fix)
{
    s2s_buf_printf(buf, "::%s file=", level);
    github_escaped(buf, path, true);
    s2s_buf_printf(buf, ",line=%d,col=%d,title=%s::", line, column, id);
    github_escaped(buf, message, false);
    if (fix[0]) {
        s2s_buf_puts(buf, "; fix: ");
        github_escaped(buf, fix, false);
    }
    s2s_buf_putc(buf, '\n');
}

void check_format_github(struct s2s_buf *buf, const struct check_file *files, size_t n)
{
    static const char *const levels[] = {"notice", "warning", "error"};
    for (size_t i = 0; i < n; i++) {
        const struct check_file *file = &files[i];
        if (file->failure)
            github_line(buf, "error", file->path, file->failed_at.line ? file->failed_at.line : 1,
                        file->failed_at.line ? file->failed_at.column : 1, "S2S-CFG-001",
                        file->failure, "");
        for (size_t k = 0; k < file->report.n_findings; k++) {
            const struct s2s_finding *f = &file->report.findings[k];
            bool here = in_file(f);
            github_line(buf, levels[f->severity], path_of(file, f), here ? f->place.line : 1,
                        here ? f->place.column : 1, f->rule->id, f->message, f->fix);
        }
    }
}

/* ---- JUnit ---- */

/* XML has no way to write most control characters nor U+FFFE and U+FFFF */
static bool is_no_xml(const char *s)
{
    return ((unsigned char)*s < 0x20 && *s != '\n' && *s != '\t') ||
           !strncmp(s, "\xef\xbf\xbe", 3) || !strncmp(s, "\xef\xbf\xbf", 3);
}

static void add_xml(struct s2s_buf *buf, const char *text)
{
    static const char special[] = "&<>\"\n\t";
    static const char *const names[] = {"&amp;", "&lt;", "&gt;", "&quot;", "&#10;", "&#9;"};
    while (*text) {
        const char *found = strchr(special, *text);
        if (found)
            s2s_buf_puts(buf, names[found - special]);
        else if (is_no_xml(text))
            s2s_buf_puts(buf, "\xef\xbf\xbd");
        else {
            add_character(buf, &text);
            continue;
        }
        text += (unsigned char)*text == 0xef ? 3 : 1;
    }
}

/* A file is a test case; it fails with its errors, warnings go to its output. */
static void junit_case(struct s2s_buf *buf, const struct check_file *file)
{
    const struct s2s_report *r = &file->report;
    s2s_buf_puts(buf, "  <testcase classname=\"s2s-check\" name=\"");
    add_xml(buf, file->path);
    s2s_buf_puts(buf, "\">\n");
    if (file->failure) {
        s2s_buf_puts(buf, "    <error type=\"S2S-CFG-001\" message=\"");
        add_xml(buf, file->failure);
        s2s_buf_puts(buf, "\"/>\n");
    }
    for (size_t i = 0; i < r->n_findings; i++) {
        const struct s2s_finding *f = &r->findings[i];
        if (f->severity != S2S_SEVERITY_ERROR)
            continue;
        s2s_buf_printf(buf, "    <failure type=\"%s\" message=\"", f->rule->id);
        add_xml(buf, f->message);
        s2s_buf_puts(buf, "\">");
        add_xml(buf, path_of(file, f));
        if (in_file(f))
            s2s_buf_printf(buf, ":%d:%d", f->place.line, f->place.column);
        s2s_buf_puts(buf, f->fix[0] ? ": fix: " : "");
        add_xml(buf, f->fix);
        s2s_buf_puts(buf, "</failure>\n");
    }
    if (r->n_findings > r->n_errors) {
        s2s_buf_puts(buf, "    <system-out>");
        for (size_t i = 0; i < r->n_findings; i++) {
            const struct s2s_finding *f = &r->findings[i];
            if (f->severity == S2S_SEVERITY_ERROR)
                continue;
            if (in_file(f))
                s2s_buf_printf(buf, "%d:%d: ", f->place.line, f->place.column);
            s2s_buf_printf(buf, "%s: ", s2s_severity_name(f->severity));
            add_xml(buf, f->message);
            s2s_buf_printf(buf, " [%s]\n", f->rule->id);
        }
        s2s_buf_puts(buf, "</system-out>\n");
    }
    s2s_buf_puts(buf, "  </testcase>\n");
}

void check_format_junit(struct s2s_buf *buf, const struct check_file *files, size_t n)
{
    size_t n_failures = 0, n_errors = 0;
    for (size_t i = 0; i < n; i++) {
        n_errors += files[i].failure != NULL;
        n_failures += files[i].report.n_errors > 0;
    }
    s2s_buf_printf(buf,
                   "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite name=\"s2s-check\" "
                   "tests=\"%zu\" failures=\"%zu\" errors=\"%zu\">\n",
                   n, n_failures, n_errors);
    for (size_t i = 0; i < n; i++)
        junit_case(buf, &files[i]);
    s2s_buf_puts(buf, "</testsuite>\n");
}
