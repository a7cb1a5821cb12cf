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
        cmocka_unit_test(columns_of_a_terminal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
