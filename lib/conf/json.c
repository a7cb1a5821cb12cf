/*
 * JSON (RFC 8259) with the place of every value, which no JSON library hands out. Escapes with
 * surrogate pairs become UTF-8; anything that is not UTF-8, a lone surrogate and U+0000 are
 * refused.
 */
#include "lib/conf/conf_internal.h"

#include <stdlib.h>
#include <string.h>

#include "lib/base/error.h"
#include "lib/base/mem.h"
#include "lib/base/num.h"
#include "lib/base/utf8.h"

struct reader {
    const char *at, *end, *line_start;
    int line;
    struct conf_arena *arena;
    const struct s2s_conf_source *source;
    struct s2s_buf text; /* the string being read */
    int depth;
};

static int column_of(const struct reader *r, const char *at)
{
    int column = 1;
    for (const char *p = r->line_start; p < at; p++)
        column += ((unsigned char)*p & 0xc0) != 0x80;
    return column;
}

static struct s2s_conf_place here(const struct reader *r)
{
    return (struct s2s_conf_place){r->source, r->line, column_of(r, r->at)};
}

#define FAIL(r, err, ...) \
    conf_error_at(err, S2S_E_FORMAT, (r)->source, (r)->line, column_of(r, (r)->at), __VA_ARGS__)

static void skip_space(struct reader *r)
{
    for (; r->at < r->end && strchr(" \t\r\n", *r->at) && *r->at; r->at++)
        if (*r->at == '\n') {
            r->line++;
            r->line_start = r->at + 1;
        }
}

static int expected(const struct reader *r, const char *what, struct s2s_error *err)
{
    if (r->at >= r->end)
        return FAIL(r, err, "expected %s, found the end of the file", what);
    unsigned char c = (unsigned char)*r->at;
    if (c < 0x20 || c >= 0x7f)
        return FAIL(r, err, "expected %s, found the byte 0x%02x", what, c);
    return FAIL(r, err, "expected %s, found '%c'", what, c);
}

static int hex4(const struct reader *r, uint32_t *out)
{
    return r->end - r->at < 4 ? -1 : s2s_parse_hex(out, r->at, 4);
}

/* behind "\u" */
static int read_unicode(struct reader *r, struct s2s_error *err)
{
    uint32_t code = 0, low = 0;
    if (hex4(r, &code) < 0)
        return FAIL(r, err, "expected four hex digits behind \\u");
    r->at += 4;
    if (code == 0)
        return FAIL(r, err, "a string holds the character U+0000");
    if (code >= 0xdc00 && code < 0xe000)
        return FAIL(r, err, "\\u%04x is half of a surrogate pair", code);
    if (code >= 0xd800 && code < 0xdc00) {
        if (r->end - r->at < 6 || r->at[0] != '\\' || r->at[1] != 'u')
            return FAIL(r, err, "\\u%04x is half of a surrogate pair", code);
        r->at += 2;
        if (hex4(r, &low) < 0 || low < 0xdc00 || low >= 0xe000)
            return FAIL(r, err, "\\u%04x is half of a surrogate pair", code);
        r->at += 4;
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    }
    char bytes[4];
    s2s_buf_add(&r->text, bytes, s2s_utf8_put(bytes, code));
    return 0;
}

static int read_escape(struct reader *r, struct s2s_error *err)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    const char *found = r->at < r->end && *r->at ? strchr(from, *r->at) : NULL;
    if (found) {
        s2s_buf_putc(&r->text, to[found - from]);
        r->at++;
        return 0;
    }
    if (r->at < r->end && *r->at == 'u') {
        r->at++;
        return read_unicode(r, err);
    }
    return expected(r, "an escape (one of \" \\ / b f n r t u)", err);
}

/* at the opening quote; the text is left in r->text */
static int read_string(struct reader *r, struct s2s_error *err)
{
    s2s_buf_clear(&r->text);
    s2s_buf_reserve(&r->text, 1);
    r->text.data[0] = 0;
    r->at++;
    while (r->at < r->end && *r->at != '"') {
        const char *run = r->at;
        while (r->at < r->end && *r->at >= 0x20 && *r->at != '"' && *r->at != '\\')
            r->at++;
        s2s_buf_add(&r->text, run, (size_t)(r->at - run));
        if (r->at >= r->end || *r->at == '"')
            break;
        if (*r->at == '\\') {
            r->at++;
            int rc = read_escape(r, err);
            if (rc < 0)
                return rc;
            continue;
        }
        int len = s2s_utf8_len(r->at, r->end);
        if ((unsigned char)*r->at < 0x20 || len == 0)
            return expected(r, "text in UTF-8", err);
        s2s_buf_add(&r->text, r->at, (size_t)len);
        r->at += len;
    }
    if (r->at >= r->end)
        return expected(r, "a closing quote", err);
    r->at++;
    return 0;
}

static bool digits(struct reader *r)
{
    const char *start = r->at;
    while (r->at < r->end && *r->at >= '0' && *r->at <= '9')
        r->at++;
    return r->at > start;
}

static int read_number(struct reader *r, struct s2s_conf *node, struct s2s_error *err)
{
    const char *start = r->at;
    bool whole = true;
    r->at += *r->at == '-';
    const char *first = r->at;
    if (!digits(r))
        return expected(r, "a digit", err);
    if (*first == '0' && r->at - first > 1) {
        r->at = first;
        return FAIL(r, err, "a number with a leading zero");
    }
    if (r->at < r->end && *r->at == '.') {
        whole = false;
        r->at++;
        if (!digits(r))
            return expected(r, "a digit", err);
    }
    if (r->at < r->end && (*r->at == 'e' || *r->at == 'E')) {
        whole = false;
        r->at++;
        r->at += r->at < r->end && (*r->at == '-' || *r->at == '+');
        if (!digits(r))
            return expected(r, "a digit", err);
    }
    node->text = conf_strndup(r->arena, start, (size_t)(r->at - start));
    if (whole) {
        conf_resolve_scalar(node); /* decimal: an INT, or a FLOAT beyond 64 bits */
    } else {
        node->kind = S2S_CONF_FLOAT;
        node->as_float = strtod(node->text, NULL);
    }
    return 0;
}

static int read_word(struct reader *r, struct s2s_conf *node, struct s2s_error *err)
{
    /* NaN and Infinity are Python's additions; config files of models have them */
    static const char *const words[] = {"true",     "false",     "null", "NaN",
                                        "Infinity", "-Infinity", NULL};
    static const char *const yaml[] = {"true", "false", "null", ".nan", ".inf", "-.inf"};
    for (int i = 0; words[i]; i++) {
        size_t len = strlen(words[i]);
        if ((size_t)(r->end - r->at) < len || memcmp(r->at, words[i], len))
            continue;
        node->text = yaml[i];
        conf_resolve_scalar(node);
        node->text = conf_strndup(r->arena, words[i], len);
        r->at += len;
        return 0;
    }
    return expected(r, "a value", err);
}

static int read_value(struct reader *r, struct s2s_conf **out, struct s2s_error *err);

static int read_key(struct reader *r, struct s2s_conf *key, struct s2s_error *err)
{
    if (r->at >= r->end || *r->at != '"')
        return expected(r, "a key in quotes", err);
    key->place = here(r);
    int rc = read_string(r, err);
    if (rc < 0)
        return rc;
    key->key = conf_strndup(r->arena, r->text.data, r->text.len);
    skip_space(r);
    if (r->at >= r->end || *r->at != ':')
        return expected(r, "':'", err);
    r->at++;
    skip_space(r);
    return 0;
}

static int read_entry(struct reader *r, struct s2s_conf *map, struct s2s_error *err)
{
    struct s2s_conf key = {0}, *item = NULL;
    int rc = read_key(r, &key, err);
    if (rc < 0 || (rc = read_value(r, &item, err)) < 0)
        return rc;
    item->key = key.key;
    item->key_line = key.place.line;
    item->key_column = key.place.column;
    const struct s2s_conf *before = conf_map_find(map, item->key);
    if (before)
        conf_duplicate_note(
            r->arena, item->key,
            (struct s2s_conf_place){r->source, before->key_line, before->key_column},
            (struct s2s_conf_place){r->source, item->key_line, item->key_column});
    conf_map_put(map, item);
    return 0;
}

/* at the opening bracket of a map or a list */
static int read_items(struct reader *r, struct s2s_conf *node, struct s2s_error *err)
{
    bool map = *r->at == '{';
    char close = map ? '}' : ']';
    node->kind = map ? S2S_CONF_MAP : S2S_CONF_LIST;
    if (++r->depth > CONF_MAX_DEPTH)
        return FAIL(r, err, "nested more than %d deep", CONF_MAX_DEPTH);
    r->at++;
    skip_space(r);
    bool first = true;
    while (r->at >= r->end || *r->at != close) {
        if (!first) {
            if (r->at >= r->end || *r->at != ',')
                return expected(r, map ? "',' or '}'" : "',' or ']'", err);
            r->at++;
            skip_space(r);
        }
        struct s2s_conf *item = NULL;
        int rc = map ? read_entry(r, node, err) : read_value(r, &item, err);
        if (rc < 0)
            return rc;
        if (item)
            conf_list_append(node, item);
        skip_space(r);
        first = false;
    }
    r->at++;
    r->depth--;
    return 0;
}

static int read_value(struct reader *r, struct s2s_conf **out, struct s2s_error *err)
{
    struct s2s_conf *node = conf_node_new(r->arena, S2S_CONF_STRING, here(r));
    if (!node)
        return FAIL(r, err, "more than %zu values", r->arena->max_nodes);
    *out = node;
    if (r->at >= r->end)
        return expected(r, "a value", err);
    if (*r->at == '{' || *r->at == '[')
        return read_items(r, node, err);
    if (*r->at == '"') {
        int rc = read_string(r, err);
        if (rc < 0)
            return rc;
        node->text = conf_strndup(r->arena, r->text.data, r->text.len);
        node->quoted = true;
        return 0;
    }
    if ((*r->at >= '0' && *r->at <= '9') ||
        (*r->at == '-' && r->end - r->at > 1 && r->at[1] != 'I'))
        return read_number(r, node, err);
    return read_word(r, node, err);
}

int conf_parse_json(struct s2s_conf **out, struct conf_arena *arena,
                    const struct s2s_conf_source *source, struct s2s_error *err)
{
    struct reader r = {.at = source->text,
                       .end = source->text + source->len_bytes,
                       .line_start = source->text,
                       .line = 1,
                       .arena = arena,
                       .source = source,
                       .text = S2S_BUF_INIT};
    struct s2s_conf *node = NULL;
    if (source->len_bytes >= 3 && !memcmp(r.at, "\xef\xbb\xbf", 3))
        r.line_start = r.at += 3;
    skip_space(&r);
    int rc = read_value(&r, &node, err);
    if (rc >= 0) {
        skip_space(&r);
        rc = r.at < r.end ? expected(&r, "the end of the file", err) : 0;
    }
    s2s_buf_release(&r.text);
    *out = rc < 0 ? NULL : node;
    return rc;
}
