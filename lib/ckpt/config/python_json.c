/*
 * JSON as Python writes it: Infinity, -Infinity and NaN are not JSON, but Nemotron-H's config.json
 * has "time_step_limit": [0.0, Infinity]. In the tree such a word becomes a string that starts with
 * a control character, which no string of a configuration does.
 */
#include "lib/base/base.h"
#include "lib/ckpt/ckpt.h"

static const char *const words[] = {"-Infinity", "Infinity", "NaN"};
static const char mark[] = "\"\\u001A"; /* as jansson writes it */

/* Length of such a word at this place; 0: none. */
static size_t word_at(const char *at, size_t left)
{
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        const size_t len = strlen(words[i]);
        if (left >= len && memcmp(at, words[i], len) == 0)
            return len;
    }
    return 0;
}

/* Index after the string that starts at `at`. */
static size_t string_end(const char *text, size_t len, size_t at)
{
    for (at++; at < len && text[at] != '"'; at++)
        at += text[at] == '\\';
    return at < len ? at + 1 : len;
}

json_t *s2s_ckpt_parse_config(const char *text, size_t len, size_t flags, json_error_t *at)
{
    struct s2s_buf plain = S2S_BUF_INIT;
    size_t done = 0;
    flags |= JSON_ALLOW_NUL; /* valid in a string; no file name is taken from here */
    for (size_t i = 0, word; i < len; i += word ? word : 1) {
        if (text[i] == '"') {
            word = string_end(text, len, i) - i;
            continue;
        }
        word = word_at(text + i, len - i);
        if (!word)
            continue;
        s2s_buf_add(&plain, text + done, i - done);
        s2s_buf_puts(&plain, mark);
        s2s_buf_add(&plain, text + i, word);
        s2s_buf_puts(&plain, "\"");
        done = i + word;
    }
    if (done)
        s2s_buf_add(&plain, text + done, len - done);
    json_t *root = done ? json_loadb(plain.data, plain.len, flags, at)
                        : json_loadb(len ? text : "", len, flags, at);
    s2s_buf_release(&plain);
    return root;
}

/* 15 digits, so that 0.1 does not become 0.10000000000000001; 17 if a number needs them. */
static char *dump(const json_t *root)
{
    char *text = json_dumps(root, JSON_ENCODE_ANY | JSON_INDENT(2) | JSON_REAL_PRECISION(15));
    json_t *again = text ? json_loads(text, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL) : NULL;
    if (!json_equal(again, root)) {
        free(text);
        text = json_dumps(root, JSON_ENCODE_ANY | JSON_INDENT(2) | JSON_REAL_PRECISION(17));
    }
    json_decref(again);
    return text;
}

char *s2s_ckpt_config_text(const json_t *root)
{
    char *text = root ? dump(root) : NULL;
    char *to = text;
    if (!text || !strstr(text, mark))
        return text;
    for (const char *from = text; *from;) {
        const size_t word = strncmp(from, mark, sizeof mark - 1) == 0
                                ? word_at(from + sizeof mark - 1, strlen(from + sizeof mark - 1))
                                : 0;
        if (word && from[sizeof mark - 1 + word] == '"') {
            memmove(to, from + sizeof mark - 1, word);
            to += word;
            from += sizeof mark - 1 + word + 1;
        } else {
            *to++ = *from++;
        }
    }
    *to = 0;
    return text;
}
