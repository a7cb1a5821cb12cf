/* lib/stream: the table of tensors is what doc/FORMAT.md says, and headers are held against it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "lib/base/base.h"
#include "lib/stream/schema.h"

/* The test runs in the project's folder or in its build's. */
static char *format_document(void)
{
    static const char *const places[] = {"doc/FORMAT.md", "../doc/FORMAT.md",
                                         "../../doc/FORMAT.md"};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        FILE *file = fopen(places[i], "rb");
        if (!file)
            continue;
        char *text = s2s_xcalloc(1, 100000);
        size_t len = fread(text, 1, 99999, file);
        fclose(file);
        assert_true(len > 1000);
        return text;
    }
    return NULL;
}

static void the_document_has_every_field_with_dtype_and_shape(void **state)
{
    char *text = format_document();
    size_t n;
    assert_non_null(text);
    const struct s2s_schema_field *fields = s2s_schema_fields(&n);
    for (size_t i = 0; i < n; i++) {
        const char *bar = strchr(fields[i].dtypes, '|');
        char *line = bar ? s2s_xasprintf("| `%s` | %.*s or %s | `[%s]` |", fields[i].name,
                                         (int)(bar - fields[i].dtypes), fields[i].dtypes, bar + 1,
                                         fields[i].shape)
                         : s2s_xasprintf("| `%s` | %s | `[%s]` |", fields[i].name, fields[i].dtypes,
                                         fields[i].shape);
        if (!strstr(text, line))
            fail_msg("doc/FORMAT.md has no line: %s", line);
        free(line);
    }
    free(text);
}

static json_t *header_of(const char *text)
{
    json_t *header = json_loads(text, 0, NULL);
    assert_non_null(header);
    json_t *schema = s2s_schema_default(header, NULL);
    assert_non_null(schema);
    json_object_set_new(header, "schema", schema);
    json_object_set_new(header, "format", json_string("s2s"));
    json_object_set_new(header, "version", json_integer(1));
    json_object_set_new(header, "config", json_object());
    json_object_set_new(header, "provenance",
                        json_pack("[{s:s, s:s, s:[]}]", "program", "p", "version", "1", "args"));
    return header;
}

static void every_kind_has_a_default_schema_that_is_taken(void **state)
{
    static const char *const headers[] = {
        "{\"kind\":\"audio\",\"audio\":\"pcm\"}",
        "{\"kind\":\"audio\",\"audio\":\"mel\"}",
        "{\"kind\":\"duplex\"}",
        "{\"kind\":\"pack\",\"layout\":\"salm\",\"audio\":\"flac\"}",
        "{\"kind\":\"pack\",\"layout\":\"mcore\",\"audio\":\"none\"}",
        "{\"kind\":\"embed\",\"layout\":\"salm\",\"audio\":\"pcm\","
        "\"embed\":{\"hidden\":8,\"dtype\":\"BF16\"}}",
        "{\"kind\":\"cpshard\",\"layout\":\"salm\",\"audio\":\"pcm\",\"cp\":{\"size\":2,\"rank\":1}"
        ","
        "\"parent\":\"0123456789abcdef0123456789abcdef\"}"};
    for (size_t i = 0; i < sizeof headers / sizeof *headers; i++) {
        struct s2s_schema schema;
        struct s2s_error err = S2S_ERROR_INIT;
        json_t *header = header_of(headers[i]);
        if (s2s_schema_compile(&schema, header, &err) < 0)
            fail_msg("%s: %s", headers[i], err.text);
        assert_true(schema.n_tensors > 0);
        s2s_schema_release(&schema);
        json_decref(header);
    }
}

static void the_default_knows_what_the_header_knows(void **state)
{
    json_t *header = header_of("{\"kind\":\"embed\",\"layout\":\"salm\",\"audio\":\"none\","
                               "\"embed\":{\"hidden\":8,\"dtype\":\"BF16\"},"
                               "\"schema\":{\"mine\":{\"dtype\":\"U8\",\"shape\":[3]}}}");
    const json_t *schema = json_object_get(header, "schema");
    const json_t *embeds = json_object_get(schema, "audio_embeds");
    assert_string_equal(json_string_value(json_object_get(embeds, "dtype")), "BF16");
    assert_int_equal(json_integer_value(json_array_get(json_object_get(embeds, "shape"), 1)), 8);
    assert_non_null(json_object_get(schema, "mine"));
    assert_null(json_object_get(schema, "audio_pcm"));
    json_decref(header);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_document_has_every_field_with_dtype_and_shape),
        cmocka_unit_test(every_kind_has_a_default_schema_that_is_taken),
        cmocka_unit_test(the_default_knows_what_the_header_knows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
