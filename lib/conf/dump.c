/* Writes a tree as YAML or JSON. */
#include "lib/conf/conf_internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"

static void add_json_string(struct s2s_buf *buf, const char *text)
{
    s2s_buf_putc(buf, '"');
    for (const unsigned char *s = (const unsigned char *)text; *s; s++) {
        if (*s == '"' || *s == '\\')
            s2s_buf_printf(buf, "\\%c", *s);
        else if (*s == '\n')
            s2s_buf_puts(buf, "\\n");
        else if (*s == '\t')
            s2s_buf_puts(buf, "\\t");
        else if (*s < 0x20 || *s == 0x7f)
            s2s_buf_printf(buf, "\\u%04x", *s);
        else
            s2s_buf_putc(buf, (char)*s);
    }
    s2s_buf_putc(buf, '"');
}

/* The shortest of %.15g, %.16g, %.17g that reads back; with a '.' or an exponent. */
static void add_float(struct s2s_buf *buf, double value)
{
    char text[40];
    if (!isfinite(value)) {
        s2s_buf_puts(buf, isnan(value) ? ".nan" : value < 0 ? "-.inf" : ".inf");
        return;
    }
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value)
            break;
    }
    const char *e = strchr(text, 'e');
    size_t mantissa = e ? (size_t)(e - text) : strlen(text);
    s2s_buf_add(buf, text, mantissa);
    if (!memchr(text, '.', mantissa)) /* 1e-05 would be a string for PyYAML */
        s2s_buf_puts(buf, ".0");
    s2s_buf_puts(buf, e ? e : "");
}

/* Plain only where nothing in the text can be taken for YAML: the rest goes into double quotes,
 * whose escapes are those of JSON. */
static bool can_be_plain(const char *text)
{
    if (!*text || strchr("-?:,[]{}#&*!|>'\"%@` \t", *text) || !conf_plain_is_string(text))
        return false;
    size_t len = strlen(text);
    for (const unsigned char *s = (const unsigned char *)text; *s; s++)
        if (*s < 0x20 || *s >= 0x7f || strchr(",[]{}", (char)*s) ||
            (*s == ':' && (s[1] == ' ' || !s[1])) || (*s == '#' && s[-1] == ' '))
            return false;
    return text[len - 1] != ' ';
}

static void add_yaml_string(struct s2s_buf *buf, const char *text)
{
    if (can_be_plain(text))
        s2s_buf_puts(buf, text);
    else
        add_json_string(buf, text);
}

static void add_scalar(struct s2s_buf *buf, const struct s2s_conf *node)
{
    switch (node->kind) {
    case S2S_CONF_NULL:
        s2s_buf_puts(buf, "null");
        break;
    case S2S_CONF_BOOL:
        s2s_buf_puts(buf, node->as_bool ? "true" : "false");
        break;
    case S2S_CONF_INT:
        s2s_buf_printf(buf, "%lld", (long long)node->as_int);
        break;
    case S2S_CONF_FLOAT:
        add_float(buf, node->as_float);
        break;
    default:
        add_yaml_string(buf, node->text);
    }
}

static void add_origin(struct s2s_buf *buf, const struct s2s_conf *node, bool places)
{
    if (places && node->place.source) {
        s2s_buf_puts(buf, "  # ");
        s2s_conf_add_place(buf, &node->place);
    }
    s2s_buf_putc(buf, '\n');
}

static void add_block(struct s2s_buf *buf, const struct s2s_conf *node, int indent, bool places);

static bool is_block(const struct s2s_conf *node)
{
    return node->n_items > 0;
}

/* A list of scalars fits one line. */
static bool is_flow(const struct s2s_conf *node)
{
    if (node->kind != S2S_CONF_LIST || node->n_items > 16)
        return false;
    for (size_t i = 0; i < node->n_items; i++)
        if (!node->items[i]->text)
            return false;
    return true;
}

static void add_value(struct s2s_buf *buf, const struct s2s_conf *node, int indent, bool places)
{
    if (is_flow(node)) {
        s2s_buf_puts(buf, " [");
        for (size_t i = 0; i < node->n_items; i++) {
            s2s_buf_puts(buf, i ? ", " : "");
            add_scalar(buf, node->items[i]);
        }
        s2s_buf_putc(buf, ']');
        add_origin(buf, node, places);
    } else if (is_block(node)) {
        s2s_buf_putc(buf, '\n');
        add_block(buf, node, indent, places);
    } else {
        s2s_buf_putc(buf, ' ');
        if (node->kind == S2S_CONF_MAP)
            s2s_buf_puts(buf, "{}");
        else
            add_scalar(buf, node);
        add_origin(buf, node, places);
    }
}

static void add_block(struct s2s_buf *buf, const struct s2s_conf *node, int indent, bool places)
{
    for (size_t i = 0; i < node->n_items; i++) {
        const struct s2s_conf *item = node->items[i];
        s2s_buf_printf(buf, "%*s", 2 * indent, "");
        if (node->kind == S2S_CONF_MAP) {
            add_yaml_string(buf, item->key);
            s2s_buf_putc(buf, ':');
        } else {
            s2s_buf_putc(buf, '-');
        }
        add_value(buf, item, indent + 1, places);
    }
}

void s2s_conf_dump(struct s2s_buf *buf, const struct s2s_conf *conf, bool places)
{
    if (is_block(conf) && !is_flow(conf)) {
        add_block(buf, conf, 0, places);
        return;
    }
    struct s2s_buf line = S2S_BUF_INIT;
    add_value(&line, conf, 0, places);
    s2s_buf_puts(buf, line.data + 1); /* without the blank that stands behind a key */
    s2s_buf_release(&line);
}

void s2s_conf_dump_json(struct s2s_buf *buf, const struct s2s_conf *conf)
{
    bool map = conf->kind == S2S_CONF_MAP;
    if (map || conf->kind == S2S_CONF_LIST) {
        s2s_buf_putc(buf, map ? '{' : '[');
        for (size_t i = 0; i < conf->n_items; i++) {
            s2s_buf_puts(buf, i ? ", " : "");
            if (map) {
                add_json_string(buf, conf->items[i]->key);
                s2s_buf_puts(buf, ": ");
            }
            s2s_conf_dump_json(buf, conf->items[i]);
        }
        s2s_buf_putc(buf, map ? '}' : ']');
        return;
    }
    struct s2s_buf text = S2S_BUF_INIT;
    if (conf->kind == S2S_CONF_STRING) {
        add_json_string(buf, conf->text);
    } else if (conf->kind == S2S_CONF_FLOAT && !isfinite(conf->as_float)) {
        add_float(&text, conf->as_float);
        add_json_string(buf, text.data);
    } else {
        add_scalar(buf, conf);
    }
    s2s_buf_release(&text);
}
