/* Characters of UTF-8: every two-byte and many longer beginnings against the definition. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "lib/base/utf8.h"

/* as the definition (RFC 3629, section 3) encodes a code point */
static int encode(char *out, uint32_t code)
{
    if (code < 0x80) {
        out[0] = (char)code;
        return 1;
    }
    int len = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    static const int leads[] = {0, 0, 0xc0, 0xe0, 0xf0};
    for (int i = len - 1; i > 0; i--, code >>= 6)
        out[i] = (char)(0x80 | (code & 0x3f));
    out[0] = (char)(leads[len] | (int)code);
    return len;
}

static void every_code_point_has_its_length(void **state)
{
    char bytes[4];
    for (uint32_t code = 0; code < 0x110000; code++) {
        int len = encode(bytes, code);
        bool surrogate = code >= 0xd800 && code < 0xe000;
        assert_int_equal(s2s_utf8_len(bytes, bytes + len), surrogate ? 0 : len);
        for (int cut = 1; cut < len; cut++)
            assert_int_equal(s2s_utf8_len(bytes, bytes + cut), 0);
    }
}

static void what_is_no_character_has_none(void **state)
{
    static const char *const bad[] = {"\x80",
                                      "\xbf",
                                      "\xc0\x80",
                                      "\xc1\xbf",
                                      "\xe0\x9f\xbf",
                                      "\xf0\x8f\xbf\xbf",
                                      "\xf4\x90\x80\x80",
                                      "\xf5\x80\x80\x80",
                                      "\xff",
                                      "\xc3(",
                                      "\xe2\x82("};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(s2s_utf8_len(bad[i], bad[i] + strlen(bad[i])), 0);
}

static void what_is_shown_is_one_line_of_harmless_text(void **state)
{
    static const struct {
        const char *text, *shown;
    } cases[] = {
        {"plain \xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80 \\n",
         "plain \xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80 \\n"},
        {"a\nb\rc\td", "a\\nb\\rc\\td"},
        {"\x1b[2J\x7f\x01", "\\x1b[2J\\x7f\\x01"},
        {"\xc2\x9b"
         "31m",
         "\\xc2\\x9b31m"},
        {"\xe2\x80\xae\xe2\x80\xa8\xe2\x81\xa9", "\\xe2\\x80\\xae\\xe2\\x80\\xa8\\xe2\\x81\\xa9"},
        {"\x9b\xff\xc3", "\\x9b\\xff\\xc3"}};
    char out[100];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        s2s_utf8_show_text(out, sizeof out, cases[i].text);
        assert_string_equal(out, cases[i].shown);
        /* as it is already: layers may quote what others have shown */
        char again[100];
        s2s_utf8_show_text(again, sizeof again, out);
        assert_string_equal(again, out);
    }
    for (size_t cap = 1; cap <= 8; cap++) {
        s2s_utf8_show_text(out, cap, "\xe2\x82\xac\x1b");
        assert_string_equal(out, cap < 4 ? "" : cap < 8 ? "\xe2\x82\xac" : "\xe2\x82\xac\\x1b");
    }
}

/* no control character of any kind comes out, whatever two bytes go in */
static void nothing_shown_is_a_control(void **state)
{
    for (int a = 1; a < 256; a++)
        for (int b = 1; b < 256; b++) {
            char in[] = {(char)a, (char)b, 0}, out[40];
            s2s_utf8_show_text(out, sizeof out, in);
            for (const char *at = out, *end = out + strlen(out); at < end;) {
                int len = s2s_utf8_len(at, end);
                assert_true(len > 0);
                assert_true((unsigned char)*at >= 0x20 && *at != 0x7f);
                assert_false((unsigned char)*at == 0xc2 && (unsigned char)at[1] < 0xa0);
                at += len;
            }
        }
}

static void columns_of_a_terminal(void **state)
{
    static const struct {
        const char *text;
        int columns;
    } cases[] = {{"a", 1},  {"é", 1}, {"\xcc\x81", 0}, {"音", 2},
                 {"한", 2}, {"ｶ", 1}, {"Ａ", 2},       {"🎧", 2}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(s2s_utf8_columns(cases[i].text, (int)strlen(cases[i].text)),
                         cases[i].columns);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_code_point_has_its_length),
        cmocka_unit_test(what_is_no_character_has_none),
        cmocka_unit_test(what_is_shown_is_one_line_of_harmless_text),
        cmocka_unit_test(nothing_shown_is_a_control),
        cmocka_unit_test(columns_of_a_terminal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
