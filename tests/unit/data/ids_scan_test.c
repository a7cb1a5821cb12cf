/* lib/data/ids_scan: plain lines are what the parser of JSON makes of them, others are left to it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka wants the four above first */
#include <cmocka.h>
#include <string.h>

#include "lib/base/base.h"
#include "lib/data/ids_scan.h"

static bool scan(struct s2s_ids_row *row, const char *text)
{
    const struct s2s_line line = {.text = text, .len = strlen(text), .number = 7};
    return data_scan_ids(row, &line);
}

static void a_plain_line_is_read(void **state)
{
    struct s2s_ids_row row;
    assert_true(scan(&row, " {\"id\" : \"a b\", \"input_ids\":[0, 2147483647 ,12],\t"
                           "\"loss_mask\":[0,1,1],\"text\":\"\"} \r"));
    assert_string_equal(row.id, "a b");
    assert_string_equal(row.text, "");
    assert_int_equal(row.n_ids, 3);
    assert_int_equal(row.ids[1], INT32_MAX);
    assert_int_equal(row.loss_mask[0], 0);
    assert_int_equal(row.loss_mask[2], 1);
    s2s_ids_row_release(&row);
    assert_true(scan(&row, "{\"input_ids\":[5]}"));
    assert_string_equal(row.id, "7");
    assert_null(row.loss_mask);
    s2s_ids_row_release(&row);
    assert_true(scan(&row, "{\"input_ids\":[ ]}"));
    assert_int_equal(row.n_ids, 0);
    s2s_ids_row_release(&row);
}

static void any_other_line_is_left(void **state)
{
    static const char *const others[] = {
        "",
        "{}",
        "{\"input_ids\":[1,2]",
        "{\"input_ids\":[1,2]}}",
        "{\"input_ids\":[1,2],}",
        "{\"input_ids\":[1,,2]}",
        "{\"input_ids\":[1,2,]}",
        "{\"input_ids\":[01]}",
        "{\"input_ids\":[-1]}",
        "{\"input_ids\":[1.0]}",
        "{\"input_ids\":[1e3]}",
        "{\"input_ids\":[2147483648]}",
        "{\"input_ids\":[99999999999999999999999]}",
        "{\"input_ids\":[1],\"input_ids\":[2]}",
        "{\"input_ids\":[1],\"loss_mask\":[2]}",
        "{\"input_ids\":[1],\"loss_mask\":[1,1]}",
        "{\"input_ids\":[1],\"loss_mask\":[1],\"loss_mask\":[1]}",
        "{\"input_ids\":[1],\"id\":\"a\",\"id\":\"b\"}",
        "{\"input_ids\":[1],\"id\":\"\\u0041\"}",
        "{\"input_ids\":[1],\"id\":\"\xc3\xa9\"}",
        "{\"input_ids\":[1],\"id\":3}",
        "{\"input_ids\":[1],\"id\":\"a",
        "{\"input_ids\":[1],\"labels\":[1]}",
        "{\"input_ids\":[1],\"audio\":[]}",
        "{\"input_ids\"",
        "[1]",
    };
    struct s2s_ids_row row;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (scan(&row, others[i]))
            fail_msg("taken as plain: %s", others[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_plain_line_is_read),
        cmocka_unit_test(any_other_line_is_left),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
