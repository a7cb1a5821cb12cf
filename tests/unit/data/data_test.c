/* lib/data: lines, NeMo manifests, cuts, tokenized rows, the shuffle buffer. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka wants the four above first */
#include <cmocka.h>

#include <unistd.h>

#include "lib/base/base.h"
#include "lib/data/data.h"

static struct s2s_line line_of(const char *text)
{
    return (struct s2s_line){.text = text, .len = strlen(text), .number = 7};
}

static int nemo(struct s2s_sample *sample, const char *text, int variant, struct s2s_error *err)
{
    const struct s2s_manifest_options opt = {.path = "set/manifest.jsonl"};
    const struct s2s_line line = line_of(text);
    return s2s_data_parse_nemo(sample, &line, variant, &opt, err);
}

static void lines_know_their_numbers(void **state)
{
    char name[] = "/tmp/s2s-lines-test-XXXXXX";
    static const char text[] = "one\r\n\n  \t\ntwo\nthree";
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_lines lines;
    struct s2s_line line = {.number = 0};
    int fd = mkstemp(name);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, sizeof text - 1), sizeof text - 1);
    close(fd);
    assert_int_equal(s2s_lines_open(&lines, name, &err), 0);
    unlink(name);
    static const struct {
        const char *text;
        int64_t number;
    } want[] = {{"one", 1}, {"two", 4}, {"three", 5}};
    for (size_t i = 0; i < 3; i++) {
        assert_true(s2s_lines_next(&lines, &line));
        assert_int_equal(line.number, want[i].number);
        assert_int_equal(line.len, strlen(want[i].text));
        assert_memory_equal(line.text, want[i].text, line.len);
        struct s2s_line again = s2s_lines_at(&lines, line.begin, line.number);
        assert_ptr_equal(again.text, line.text);
        assert_int_equal(again.len, line.len);
    }
    assert_false(s2s_lines_next(&lines, &line));
    s2s_lines_close(&lines);
    assert_int_equal(s2s_lines_open(&lines, "/nonexistent/x", &err), S2S_E_OPEN);
}

static void a_nemo_line(void **state)
{
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_sample s;
    assert_int_equal(nemo(&s,
                          "{\"audio_filepath\": \"x/a.b.wav\", \"duration\": 2, \"text\": \"hi\", "
                          "\"lang\": \"en\", \"sampling_rate\": 8000, \"pnc\": \"yes\"}",
                          0, &err),
                     1);
    assert_string_equal(s.id, "a.b");
    assert_string_equal(s.turns[0].sound.source, "x/a.b.wav");
    assert_string_equal(s.turns[0].sound.path, "x/a.b.wav");
    assert_string_equal(s.text, "hi");
    assert_string_equal(s.lang, "en");
    assert_int_equal(s.turns[0].sound.rate_hz, 8000);
    assert_false(s.turns[0].sound.has_range);
    assert_int_equal(s.turns[0].sound.channel, -1);
    assert_int_equal(json_object_size(s.custom), 1);
    assert_string_equal(json_string_value(json_object_get(s.custom, "pnc")), "yes");
    s2s_sample_release(&s);
}

/* Its strings lie in one block: some of them twice, and none is freed alone. */
static void a_nemo_sample_can_be_changed_as_any_other(void **state)
{
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_sample s;
    json_t *tags = json_pack("{s:s, s:s}", "system_prompt", "be brief", "context", "say");
    assert_int_equal(
        nemo(&s, "{\"audio_filepath\": \"/x/a.wav\", \"duration\": 2, \"text\": \"hi\"}", 0, &err),
        1);
    s2s_sample_tag(&s, tags, false);
    assert_int_equal(s.n_turns, 4);
    assert_string_equal(s.turns[0].text, "be brief");
    assert_string_equal(s.turns[1].text, "say");
    assert_string_equal(s.turns[2].sound.path, "/x/a.wav");
    assert_string_equal(s.turns[3].role, "assistant");
    assert_string_equal(s.turns[3].text, "hi");
    s2s_sample_free(&s, s.turns[2].sound.path);
    s.turns[2].sound.path = s2s_xstrdup("/y.tar");
    assert_string_equal(s.turns[2].sound.source, "/x/a.wav");
    s2s_sample_add(&s, "Someone", s2s_xstrdup("else"));
    assert_string_equal(s.turns[4].role, "Someone");
    s2s_sample_release(&s);
    json_decref(tags);
}

static void an_offset_goes_into_the_id(void **state)
{
    static const struct {
        const char *line, *id;
    } cases[] = {
        {"{\"audio_filepath\": \"a.wav\", \"duration\": 1.5, \"offset\": 0}", "a-000000-000150"},
        {"{\"audio_filepath\": \"a.wav\", \"duration\": 12345.67, \"offset\": 0.125}",
         "a-000012-1234567"}, /* halves go to the even one */
        {"{\"audio_filepath\": \"a.wav\", \"duration\": 1.5, \"offset\": null}", "a"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct s2s_error err = S2S_ERROR_INIT;
        struct s2s_sample s;
        assert_int_equal(nemo(&s, cases[i].line, 0, &err), 1);
        assert_string_equal(s.id, cases[i].id);
        assert_null(s.text);
        assert_null(s.custom);
        s2s_sample_release(&s);
    }
}

static void alt_text_gives_more_samples(void **state)
{
    static const char text[] =
        "{\"audio_filepath\": \"a.wav\", \"duration\": 1, \"text\": \"one\", "
        "\"alt_text\": {\"z\": {\"text\": \"eins\", \"lang\": \"de\"}, "
        "\"b\": {\"text\": \"un\", \"lang\": \"fr\"}}}";
    static const char *const want[] = {"one", "eins", "un"};
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_sample s;
    for (int variant = 0; variant < 3; variant++) {
        assert_int_equal(nemo(&s, text, variant, &err), 3);
        assert_string_equal(s.text, want[variant]);
        s2s_sample_release(&s);
    }
    assert_int_equal(nemo(&s, text, 3, &err), S2S_E_RANGE);
}

static void marked_lines_are_skipped_as_python_sees_truth(void **state)
{
    static const struct {
        const char *value;
        int n;
    } cases[] = {{"true", 0}, {"1", 0},    {"\"no\"", 0}, {"[0]", 0},  {"0.5", 0}, {"false", 1},
                 {"0", 1},    {"\"\"", 1}, {"[]", 1},     {"null", 1}, {"{}", 1},  {"0.0", 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct s2s_error err = S2S_ERROR_INIT;
        struct s2s_sample s;
        char *text = s2s_xasprintf(
            "{\"audio_filepath\": \"a.wav\", \"duration\": 1, \"_skipme\": %s}", cases[i].value);
        assert_int_equal(nemo(&s, text, 0, &err), cases[i].n);
        if (cases[i].n)
            s2s_sample_release(&s);
        free(text);
    }
}

static void bad_nemo_lines_name_the_key(void **state)
{
    static const struct {
        const char *line, *key;
    } cases[] = {
        {"{\"duration\": 1}", "audio_filepath"},
        {"{\"audio_filepath\": 3, \"duration\": 1}", "audio_filepath"},
        {"{\"audio_filepath\": \"a.wav\"}", "duration"},
        {"{\"audio_filepath\": \"a.wav\", \"duration\": \"1\"}", "duration"},
        {"{\"audio_filepath\": \"a.wav\", \"duration\": -1}", "duration"},
        {"{\"audio_filepath\": \"a.wav\", \"duration\": 1, \"offset\": -0.5}", "offset"},
        {"{\"audio_filepath\": \"a.wav\", \"duration\": 1, \"text\": 5}", "text"},
        {"{\"audio_filepath\": \"a.wav\", \"duration\": 1, \"alt_text\": [1]}", "alt_text"},
        {"[1]", "object"},
        {"{", "column"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct s2s_error err = S2S_ERROR_INIT;
        struct s2s_sample s;
        assert_true(nemo(&s, cases[i].line, 0, &err) < 0);
        if (!strstr(err.text, cases[i].key))
            fail_msg("'%s' does not name %s", err.text, cases[i].key);
    }
}

static void a_cut(void **state)
{
    static const char text[] =
        "{\"id\": \"c-1\", \"start\": 1.25, \"duration\": 2.5, \"channel\": 1, \"type\": "
        "\"MonoCut\","
        "\"supervisions\": [{\"id\": \"s\", \"text\": \"hi\", \"language\": \"en\", \"speaker\": "
        "\"p\"}],"
        "\"recording\": {\"id\": \"r\", \"sources\": [{\"type\": \"file\", \"channels\": [0, 1],"
        "\"source\": \"/x/r.wav\"}], \"sampling_rate\": 16000}, \"custom\": {\"k\": 1}}";
    const struct s2s_manifest_options opt = {.path = "cuts.jsonl"};
    const struct s2s_line line = line_of(text);
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_sample s;
    assert_int_equal(s2s_data_parse_cut(&s, &line, 0, &opt, &err), 1);
    assert_string_equal(s.id, "c-1");
    assert_string_equal(s.turns[0].sound.path, "/x/r.wav");
    assert_string_equal(s.speaker, "p");
    assert_true(s.turns[0].sound.has_range);
    assert_true(s.turns[0].sound.offset_s == 1.25 && s.turns[0].sound.duration_s == 2.5);
    assert_int_equal(s.turns[0].sound.channel, 1);
    assert_int_equal(s.turns[0].sound.rate_hz, 16000);
    assert_int_equal(json_object_size(s.custom), 1);
    s2s_sample_release(&s);
}

#define CUT(rest) \
    "{\"id\": \"a\", \"duration\": 1, \"recording\": {\"sampling_rate\": 16000, \"sources\": " \
    "[{\"type\": \"file\", \"source\": \"x\"}]" rest "}"
#define CHANGED(rest) CUT(", \"transforms\": [{\"name\": " rest "}]}")

/* Another rate is what sound gets when it is packed; below that of speech, the change is made. */
static void a_cut_that_is_part_of_a_file_is_that(void **state)
{
    static const struct {
        const char *line;
        bool is_plain;
    } cases[] = {
        {CUT("}"), true},
        {CHANGED("\"Resample\", \"kwargs\": {\"source_sampling_rate\": 44100, "
                 "\"target_sampling_rate\": 16000}"),
         true},
        {CHANGED("\"Resample\", \"kwargs\": {\"source_sampling_rate\": 16000, "
                 "\"target_sampling_rate\": 8000}"),
         false},
        {CHANGED("\"Speed\", \"kwargs\": {\"factor\": 1.1}"), false},
        {"{\"id\": \"a\", \"type\": \"MixedCut\", \"tracks\": [{\"type\": \"MonoCut\", "
         "\"cut\": " CUT("}") "}]}",
         false},
    };
    const struct s2s_manifest_options opt = {.path = "cuts.jsonl"};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct s2s_line line = line_of(cases[i].line);
        struct s2s_error err = S2S_ERROR_INIT;
        struct s2s_sample s;
        if (s2s_data_parse_cut(&s, &line, 0, &opt, &err) != 1)
            fail_msg("%s: %s", cases[i].line, err.text);
        const struct s2s_sound *sound = s2s_sample_sound(&s, 0);
        assert_int_equal(sound->cut == NULL, cases[i].is_plain);
        assert_int_equal(sound->fits, cases[i].is_plain);
        assert_true(sound->duration_s == 1);
        s2s_sample_release(&s);
    }
}

static void cuts_of_other_kinds_are_refused(void **state)
{
    static const struct {
        const char *line, *why;
    } cases[] = {
        {"{\"id\": \"a\", \"duration\": 1, \"type\": \"MixedCut\"}", "'tracks'"},
        {"{\"id\": \"a\", \"duration\": 1, \"type\": \"VideoCut\"}", "'VideoCut'"},
        {"{\"id\": \"a\", \"duration\": 1}", "'recording'"},
        {"{\"duration\": 1}", "'id'"},
        {"{\"id\": \"a\", \"duration\": 1, \"recording\": {\"sources\": []}}", "sources"},
        {"{\"id\": \"a\", \"duration\": 1, \"recording\": {\"sources\": [{\"type\": \"url\", "
         "\"source\": \"http://x\"}]}}",
         "'url'"},
        {CUT("}, \"supervisions\": [{\"start\": 0, \"duration\": 1}, {\"start\": 0.5, "
             "\"duration\": 1}]"),
         "overlap"},
        {CUT("}, \"supervisions\": 3"), "'supervisions'"},
        {CUT("}, \"channel\": \"x\""), "'channel'"},
        {CHANGED("\"DereverbWPE\", \"kwargs\": {}"), "'DereverbWPE'"},
        {CHANGED("\"Speed\", \"kwargs\": {}"), "factor"},
        {CHANGED("\"Speed\", \"kwargs\": {\"factor\": 0}"), "factor"},
        {CHANGED("\"Resample\", \"kwargs\": {}"), "sampling rate"},
        {"{\"id\": \"a\", \"type\": \"MixedCut\", \"tracks\": [{\"type\": \"PaddingCut\", "
         "\"cut\": {\"id\": \"p\", \"duration\": 1, \"sampling_rate\": 16000}}]}",
         "padding alone"},
        {"{\"id\": \"a\", \"type\": \"MixedCut\", \"tracks\": [{\"type\": \"MonoCut\", "
         "\"cut\": " CUT(
             "}") "}, {\"type\": \"PaddingCut\", \"cut\": {\"id\": \"p\", \"duration\": 1, "
                  "\"sampling_rate\": 8000}}]}",
         "8000 Hz"},
    };
    const struct s2s_manifest_options opt = {.path = "cuts.jsonl"};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct s2s_line line = line_of(cases[i].line);
        struct s2s_error err = S2S_ERROR_INIT;
        struct s2s_sample s;
        assert_true(s2s_data_parse_cut(&s, &line, 0, &opt, &err) < 0);
        if (!strstr(err.text, cases[i].why))
            fail_msg("'%s' does not say %s", err.text, cases[i].why);
    }
}

static void texts_of_supervisions_are_joined_in_order_of_time(void **state)
{
    const struct s2s_manifest_options opt = {.path = "cuts.jsonl"};
    const struct s2s_line line =
        line_of(CUT("}, \"supervisions\": [{\"start\": 0.5, \"duration\": 0.5, \"text\": \"b\", "
                    "\"language\": \"de\"}, {\"start\": 0, \"duration\": 0.55, \"text\": \"a\", "
                    "\"language\": \"en\"}, {\"start\": 0.2, \"duration\": 0}]"));
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_sample s;
    if (s2s_data_parse_cut(&s, &line, 0, &opt, &err) == 1)
        fail_msg("supervisions overlap");
    const struct s2s_line apart =
        line_of(CUT("}, \"supervisions\": [{\"start\": 0.5, \"duration\": 0.5, \"text\": \"b\", "
                    "\"language\": \"de\"}, {\"start\": 0, \"duration\": 0.55, \"text\": \"a\", "
                    "\"language\": \"en\"}, {\"start\": 1, \"duration\": 0}]"));
    assert_int_equal(s2s_data_parse_cut(&s, &apart, 0, &opt, &err), 1);
    assert_string_equal(s.text, "a b");
    assert_string_equal(s.lang, "en");
    s2s_sample_release(&s);
}

static void a_tokenized_row(void **state)
{
    const struct s2s_line line =
        line_of("{\"id\": \"a\", \"input_ids\": [5, 100, 6], \"loss_mask\": [0, false, true], "
                "\"audio\": [{\"pos\": 2, \"frames\": 0}, {\"pos\": 1, \"frames\": 17}]}");
    const struct s2s_line bare = line_of("{\"input_ids\": [1]}");
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_ids_row row;
    assert_int_equal(s2s_data_parse_ids(&row, &line, 0, &err), 0);
    assert_int_equal(row.n_ids, 3);
    assert_int_equal(row.loss_mask[2], 1);
    assert_int_equal(row.n_clips, 2);
    assert_int_equal(row.clips[0].pos, 1);
    assert_int_equal(row.clips[0].frames, 17);
    s2s_ids_row_release(&row);
    assert_int_equal(s2s_data_parse_ids(&row, &bare, 0, &err), 0);
    assert_string_equal(row.id, "7");
    assert_null(row.loss_mask);
    s2s_ids_row_release(&row);
}

static void a_shuffle_buffer_gives_lhotses_order(void **state)
{
    /* list(streaming_shuffle(iter(range(12)), bufsize=4, rng=random.Random(42))) */
    static const uint32_t want[] = {3, 1, 5, 6, 2, 8, 0, 9, 11, 7, 4, 10};
    uint32_t items[12];
    for (uint32_t i = 0; i < 12; i++)
        items[i] = i;
    s2s_data_shuffle(items, 12, 4, 42);
    assert_memory_equal(items, want, sizeof want);
    /* the same with bufsize=1 */
    static const uint32_t one[] = {1, 0, 2, 3};
    for (uint32_t i = 0; i < 4; i++)
        items[i] = i;
    s2s_data_shuffle(items, 4, 1, 42);
    assert_memory_equal(items, one, sizeof one);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_know_their_numbers),
        cmocka_unit_test(a_nemo_line),
        cmocka_unit_test(a_nemo_sample_can_be_changed_as_any_other),
        cmocka_unit_test(an_offset_goes_into_the_id),
        cmocka_unit_test(alt_text_gives_more_samples),
        cmocka_unit_test(marked_lines_are_skipped_as_python_sees_truth),
        cmocka_unit_test(bad_nemo_lines_name_the_key),
        cmocka_unit_test(a_cut),
        cmocka_unit_test(a_cut_that_is_part_of_a_file_is_that),
        cmocka_unit_test(texts_of_supervisions_are_joined_in_order_of_time),
        cmocka_unit_test(cuts_of_other_kinds_are_refused),
        cmocka_unit_test(a_tokenized_row),
        cmocka_unit_test(a_shuffle_buffer_gives_lhotses_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
