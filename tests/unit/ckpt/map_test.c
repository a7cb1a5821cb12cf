/* Name maps: the built-in tables, and patterns. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "lib/base/base.h"
#include "lib/ckpt/map/map_internal.h"

static void every_family_of_the_tables_is_read(void **state)
{
    struct ckpt_map_family family;
    size_t n = 0;
    for (int i = 0; ckpt_map_texts[i]; i++)
        for (size_t at = 0; ckpt_map_next_family(ckpt_map_texts[i], &at, &family); n++) {
            struct ckpt_map map;
            struct s2s_error err = S2S_ERROR_INIT;
            if (ckpt_map_parse(&map, NULL, NULL, family.name, NULL, NULL, &err) < 0)
                fail_msg("%s: %s", family.name, err.text);
            assert_true(map.n_rules + map.n_spellings > 0);
            ckpt_map_release(&map);
        }
    assert_true(n >= 25);
}

/* every rule knows its own name again, with the holes as they were filled: the tables can be used
 * in both directions */
static void check_rule(const struct ckpt_rule *rule)
{
    const char *sides[2] = {rule->megatron, rule->hf};
    for (int side = 0; side < 2; side++) {
        int items = ckpt_map_items(sides[side]);
        for (int item = 0; *sides[side] && (item == 0 || item < items); item++) {
            struct ckpt_match match = {.layer = 12, .expert = 345, .item = item, .rest = "x.y"},
                              got;
            char *name = ckpt_map_fill(sides[side], &match);
            assert_true(ckpt_map_match(sides[side], name, &got));
            assert_int_equal(got.layer, strstr(sides[side], "{N}") ? 12 : -1);
            assert_int_equal(got.expert, strstr(sides[side], "{E}") ? 345 : -1);
            assert_int_equal(got.item, items ? item : -1);
            assert_int_equal(got.rest != NULL, ckpt_map_is_open(sides[side]));
            if (got.rest)
                assert_string_equal(got.rest, "x.y");
            free(name);
        }
    }
}

/* every rule knows its own name again, with the holes as they were filled: the tables can be used
 * in both directions */
static void every_rule_matches_what_it_fills(void **state)
{
    struct ckpt_map_family family;
    for (int k = 0; ckpt_map_texts[k]; k++)
        for (size_t at = 0; ckpt_map_next_family(ckpt_map_texts[k], &at, &family);) {
            struct ckpt_map map;
            struct s2s_error err = S2S_ERROR_INIT;
            assert_int_equal(ckpt_map_parse(&map, NULL, NULL, family.name, NULL, NULL, &err), 0);
            for (size_t i = 0; i < map.n_rules; i++)
                check_rule(&map.rules[i]);
            ckpt_map_release(&map);
        }
}

/* the rules that match a name, of all and of those that are tried, one behind the other */
static void check_tries(const struct ckpt_map *map, bool hf, const char *name)
{
    struct ckpt_map_index index;
    struct ckpt_match match;
    struct s2s_buf all = S2S_BUF_INIT, tried = S2S_BUF_INIT;
    ckpt_map_index_begin(&index, map, hf);
    for (size_t i = 0; i < map->n_rules; i++)
        if (ckpt_map_match(hf ? map->rules[i].hf : map->rules[i].megatron, name, &match))
            s2s_buf_printf(&all, "%zu ", i);
    struct ckpt_map_tries tries = ckpt_map_tries(&index, name);
    for (size_t i; ckpt_map_next_try(&tries, &i);)
        if (ckpt_map_match(hf ? map->rules[i].hf : map->rules[i].megatron, name, &match))
            s2s_buf_printf(&tried, "%zu ", i);
    s2s_buf_putc(&all, 0);
    s2s_buf_putc(&tried, 0);
    assert_string_equal(tried.data, all.data);
    s2s_buf_release(&all);
    s2s_buf_release(&tried);
    ckpt_map_index_end(&index);
}

static void a_name_is_tried_with_every_rule_that_takes_it(void **state)
{
    const char *const texts[] = {
        "family a\nlayers.{N} layers.{N} copy\nx.{N}.{a,b.c}.w x.{N}.{a,b.c}.w copy\n"
        "x.{N}.c.{E} x.{N}.c.{E} copy\nw w copy\nx.1.{*} x.1.{*} copy\n"
        "y.{N}.{a,b}.e.w y.{N}.{a,b}.e.w copy\ny.{N}.{a,b}{E} y.{N}.{a,b}{E} copy\n",
        ckpt_map_tables, ckpt_map_texts[0]};
    const struct ckpt_match holes[] = {{.layer = 12, .expert = 345, .rest = "y.b.c.w"},
                                       {.layer = -1, .expert = 1, .stacked = true, .rest = "w"}};
    struct ckpt_map_family family;
    for (size_t k = 0; k < sizeof texts / sizeof *texts; k++)
        for (size_t at = 0; ckpt_map_next_family(texts[k], &at, &family);) {
            struct ckpt_map map;
            struct s2s_error err = S2S_ERROR_INIT;
            assert_int_equal(ckpt_map_parse(&map, texts[k], "", family.name, NULL, NULL, &err), 0);
            for (size_t i = 0; i < 4 * map.n_rules; i++) {
                const char *pattern = i % 2 ? map.rules[i / 4].hf : map.rules[i / 4].megatron;
                struct ckpt_match match = holes[i / 2 % 2];
                for (; match.item < ckpt_map_names(pattern); match.item++) {
                    char *name = ckpt_map_fill(pattern, &match);
                    check_tries(&map, i % 2, name);
                    free(name);
                }
            }
            ckpt_map_release(&map);
        }
}

/* A tensor that marks a section is made by a rule of that section: else layers that have it would
 * be known from one side only, and in the other direction nothing of them be missed. */
static void every_section_is_marked_by_a_rule_of_its_own(void **state)
{
    struct ckpt_map_family family;
    char part[66];
    for (int k = 0; ckpt_map_texts[k]; k++)
        for (size_t at = 0; ckpt_map_next_family(ckpt_map_texts[k], &at, &family);)
            for (int mirror = 0; mirror < 2; mirror++) {
                struct ckpt_map map;
                struct s2s_error err = S2S_ERROR_INIT;
                snprintf(part, sizeof part, "%s%s", mirror ? "=" : "", family.name);
                assert_int_equal(ckpt_map_parse(&map, NULL, NULL, part, NULL, NULL, &err), 0);
                for (int i = 0; i < (int)map.n_sections; i++) {
                    struct ckpt_match first = {.layer = 3, .expert = 0, .item = 0}, match;
                    char *name = ckpt_map_fill(map.sections[i], &first);
                    bool found = false;
                    for (size_t r = 0; r < map.n_rules; r++)
                        found |= map.rules[r].section == i &&
                                 ckpt_map_match(map.rules[r].megatron, name, &match);
                    if (!found)
                        fail_msg("%s: section %s", part, map.sections[i]);
                    free(name);
                }
                ckpt_map_release(&map);
            }
}

/* singleton_local_shards stores gate and up apart: each rule that cuts them has a rule beside it
 * that finds them cut, and no section is marked by the tensor that is cut */
static void gate_and_up_may_lie_apart(void **state)
{
    struct ckpt_map_family family;
    size_t n_cut = 0;
    for (size_t at = 0; ckpt_map_next_family(ckpt_map_tables, &at, &family);) {
        struct ckpt_map map;
        struct s2s_error err = S2S_ERROR_INIT;
        assert_int_equal(
            ckpt_map_parse(&map, ckpt_map_tables, "map", family.name, NULL, NULL, &err), 0);
        for (size_t i = 0; i < map.n_rules; i++) {
            const struct ckpt_rule *rule = &map.rules[i];
            if (!strstr(rule->hf, "{gate,up}") || ckpt_map_items(rule->megatron) ||
                rule->transposed)
                continue; /* the same on both sides, or of a program that does not cut them */
            const bool bias = strstr(rule->megatron, "linear_fc1.bias") != NULL;
            bool apart = false;
            for (size_t k = 0; k < map.n_rules; k++)
                apart |= strcmp(map.rules[k].hf, rule->hf) == 0 &&
                         strstr(map.rules[k].megatron,
                                bias ? "linear_fc1.bias_{w,v}" : "linear_fc1.weight_{w,v}");
            if (!apart || strcmp(map.sections[rule->section], rule->megatron) == 0)
                fail_msg("%s: %s", family.name, rule->megatron);
            n_cut++;
        }
        ckpt_map_release(&map);
    }
    assert_true(n_cut >= 4);
}

/* families that want the same names are told apart by a configuration's model_type */
static void a_model_type_tells_families_apart(void **state)
{
    struct s2s_buf all =
        S2S_BUF_INIT; /* lines of a model_type and the names that its family wants */
    size_t n = 0;
    for (int k = 0; ckpt_map_texts[k]; k++) {
        struct ckpt_map_family family;
        for (size_t at = 0; ckpt_map_next_family(ckpt_map_texts[k], &at, &family);) {
            /* what is only a part is told by where its layers lie (ckpt_map_find_part) */
            if (strncmp(family.detect, "part ", 5) == 0)
                continue;
            for (char *type = family.model_types; *type; type = strchr(type, ' ') + 1, n++) {
                struct s2s_buf one = S2S_BUF_INIT;
                s2s_buf_printf(&one, "\n%.*s", (int)strcspn(type, " "), type);
                for (char *word = family.detect; *word; word = strchr(word, ' ') + 1)
                    if (*word != '!')
                        s2s_buf_printf(&one, " %.*s", (int)strcspn(word, " "), word);
                s2s_buf_printf(&one, "\n");
                if (all.len && strstr(all.data, one.data))
                    fail_msg("%s:%s", family.name, one.data);
                s2s_buf_printf(&all, "%s", one.data);
                s2s_buf_release(&one);
            }
        }
    }
    assert_true(n >= 12);
    s2s_buf_release(&all);
}

static void a_missing_layer_number_means_a_layer_axis(void **state)
{
    struct ckpt_match match;
    const char *pattern = "decoder.layers.{N}.mlp.linear_fc1.weight_{w,v}";
    assert_true(ckpt_map_match(pattern, "decoder.layers.mlp.linear_fc1.weight_v", &match));
    assert_true(match.stacked);
    assert_int_equal(match.item, 1);
    assert_true(ckpt_map_match(pattern, "decoder.layers.07.mlp.linear_fc1.weight_w", &match));
    assert_int_equal(match.layer, 7);
    assert_false(ckpt_map_match(pattern, "decoder.layers.x.mlp.linear_fc1.weight_w", &match));
    assert_false(ckpt_map_match(pattern, "decoder.layers.1.mlp.linear_fc1.weight_u", &match));
    assert_false(ckpt_map_match(pattern, "decoder.layers.1.mlp.linear_fc1.weight_w2", &match));
}

#define NAME_OF_64 "abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyzabcdefghijkl"
#define NAME_OF_256 NAME_OF_64 NAME_OF_64 NAME_OF_64 NAME_OF_64

static void bad_tables_name_the_line(void **state)
{
    static const char *const bad[][2] = {
        {"family a\nx y nonsense\n", "map:2"},
        {"family a\nx\n", "map:2"},
        {"family a\nx.{N y copy\n", "bad pattern"},
        {"family a\nx.{} y copy\n", "bad pattern"},
        {"family a\nx.{Q} y copy\n", "bad pattern"},
        {"family a\ninclude b x.{ y\nfamily b\nz z copy\n", "bad prefix"},
        {"family a\ninclude b x.{p,q} y\nfamily b\nz z copy\n", "bad prefix"},
        {"family a\nx.{a,b} y copy\n", "do not fit"},
        {"family a\nx {q,k}_proj qkv\n", "do not fit"},
        {"family a\ninclude b \"\" \"\"\n", "no family b"},
        {"family a\ninclude a \"\" \"\"\n", "deep"},
        {"family b\n", "no family a"},
        {"family a\nx.{*}.y z.{*} copy\n", "bad pattern"},
        {"family a\nx.{*} z copy\n", "do not fit"},
        {"family a\nx.{*} z.{*} vocab\n", "do not fit"},
        {"family a\npart b x. y. !\n", "expected"},
        {"family a\ninclude llama x.{*} y.\n", "bad prefix"},
        {"family a\nx y nonsense\n", "\"nonsense\" is no transform (copy, "},
        {"family a\nx y copy [H\n", "map:2: \"[H\" is neither a shape"},
        {"family a\nx y copy [H] ? z\n", "map:2: \"z\" is neither a shape"},
        {"family a\nx y copy ?perhaps\n", "\"?perhaps\" is no mark of absence (?, ?tied, "},
        {"family a\nx y copy ? ?tied\n", "map:2: \"?tied\" is a second mark of absence"},
        {"family a\nx y copy\npart llama|lama x. y. ?\n", "map:3: no family lama"},
        {"family a\ndetect\nx y copy\n", "map:2: expected detect NAME.."},
        {"family a\nx? y copy\n", "? is a word of its own"},
        {"family a\nx y.{q,k,q} split\n", "bad pattern"},
        {"family a\ndrop\n", "expected drop MEGATRON-NAME"},
        {"family a\nrename x\n", "map:2: expected rename NAME NAME"},
        {"family a\nwhere\n", "map:2: expected where NAME.."},
        {"family a\nrename x.{*} y\n", "map:2: x.{*} and y do not have the same {}"},
        {"family a\nrename x.{a,b} y.{a,b,c}\n", "do not have the same {}"},
        {"family a\nrename x.{N} y.{E}\n", "do not have the same {}"},
        {"family a\nrename x.{1} y.{\n", "bad pattern \"y.{\""},
        {"family a\nwhere x.{1}.{3}\n", "bad pattern \"x.{1}.{3}\""},
        {"family a\ninclude llama\n", "expected include FAMILY M-PREFIX H-PREFIX"},
        {"family a\nx.{N} y copy\n", "map:2: {N} is in x.{N} and not in y"},
        {"family a\nx y.{E} copy\n", "map:2: {E} is in y.{E} and not in x"},
        {"family a\nx y copy\n\nx z copy\n", "map:4: x has a rule already, in line 2"},
        {"family a\ndrop x\nx z copy\n", "map:3: x has a rule already, in line 2"},
        {"family a\nsection x\nx y copy\nsection z\nz z copy\nsection x\nx y copy\n",
         "map:7: x has a rule already, in line 3"},
        {"family a\nx.*.w y.*.w copy ?\n", "map:2: bad pattern \"x.*.w\": "},
        {"family a\nx y.*.w copy\n", "a layer's number is {N}, not *"},
        {"family a\ndrop x.*\n", "a layer's number is {N}, not *"},
        {"# mine\nx y copy\nfamily a\n", "map:2: \"x\" before the first line family NAME"},
        {"family a\ninclude b \"\" \"\"\nfamily b\nx y\n", "map:4: expected MEGATRON-NAME"},
        {"family a\ndetect 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n", "map:2: more than 16 words"},
        {"family a\ndetect " NAME_OF_256 NAME_OF_256 "\nx y copy\n", "map:2: detect: names of"},
        {"family a\nmodel_type " NAME_OF_256 "\nx y copy\n", "map:2: model_type: names of"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct ckpt_map map;
        struct s2s_error err = S2S_ERROR_INIT;
        assert_true(ckpt_map_parse(&map, bad[i][0], "map", "a", NULL, NULL, &err) < 0);
        if (!strstr(err.text, bad[i][1]))
            fail_msg("expected \"%s\" in: %s", bad[i][1], err.text);
    }
}

/* a family that is included again and again, with and without Hugging Face's names on both sides */
static void a_map_has_an_end(void **state)
{
    for (int mirror = 0; mirror < 2; mirror++) {
        struct s2s_buf text = S2S_BUF_INIT;
        struct s2s_error err = S2S_ERROR_INIT;
        struct ckpt_map map;
        s2s_buf_puts(&text, "family a\n");
        for (int i = 0; i < 200; i++)
            s2s_buf_printf(&text, "include %sb m%d. h%d.\n", mirror ? "=" : "", i, i);
        s2s_buf_puts(&text, "family b\n");
        for (int i = 0; i < 100; i++)
            s2s_buf_printf(&text, "x%d y%d copy\n", i, i);
        s2s_buf_putc(&text, 0);
        assert_true(ckpt_map_parse(&map, text.data, "map", "a", NULL, NULL, &err) < 0);
        assert_non_null(strstr(err.text, "more than 16384 rules"));
        free(text.data);
    }
}

static bool none_is_there(void *ctx, const char *text, const char *family, const char *m_prefix,
                          const char *h_prefix)
{
    (void)text, (void)family, (void)m_prefix, (void)h_prefix;
    ++*(int *)ctx;
    return false;
}

/* each is looked for among all names of the source */
static void a_part_has_few_choices(void **state)
{
    struct s2s_buf text = S2S_BUF_INIT;
    struct s2s_error err = S2S_ERROR_INIT;
    struct ckpt_map map;
    int n = 0;
    s2s_buf_puts(&text, "family a\npart b");
    for (int i = 0; i < 5000; i++)
        s2s_buf_puts(&text, "|b");
    s2s_buf_puts(&text, " m. h. ?\nfamily b\nx y copy\n");
    s2s_buf_putc(&text, 0);
    assert_true(ckpt_map_parse(&map, text.data, "map", "a", none_is_there, &n, &err) < 0);
    assert_non_null(strstr(err.text, "map:2: parts of more than 1024 families"));
    assert_int_equal(n, 1024);
    free(text.data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_family_of_the_tables_is_read),
        cmocka_unit_test(every_rule_matches_what_it_fills),
        cmocka_unit_test(a_name_is_tried_with_every_rule_that_takes_it),
        cmocka_unit_test(every_section_is_marked_by_a_rule_of_its_own),
        cmocka_unit_test(gate_and_up_may_lie_apart),
        cmocka_unit_test(a_model_type_tells_families_apart),
        cmocka_unit_test(a_missing_layer_number_means_a_layer_axis),
        cmocka_unit_test(bad_tables_name_the_line),
        cmocka_unit_test(a_map_has_an_end),
        cmocka_unit_test(a_part_has_few_choices),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
