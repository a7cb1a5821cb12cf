/* lib/audio/features: streams and files to features, the same bytes on any number of threads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "lib/audio/audio.h"
#include "lib/audio/features.h"
#include "lib/audio/mel.h"
#include "lib/base/base.h"
#include "lib/stream/stream.h"

#define FOLDER "tests/oracle/parakeet_features"

static char folder[] = "/tmp/features_test.XXXXXX";

static int make_folder(void **state)
{
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    char *command = s2s_xasprintf("rm -rf '%s'", folder);
    int rc = system(command);
    free(command);
    return rc;
}

static char *in_folder(const char *name)
{
    return s2s_xasprintf("%s/%s", folder, name);
}

static struct s2s_buf read_all(const char *path)
{
    struct s2s_buf buf = S2S_BUF_INIT;
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    s2s_buf_reserve(&buf, 8 << 20);
    buf.len = fread(buf.data, 1, 8 << 20, file);
    fclose(file);
    return buf;
}

static int run(const char *const *inputs, size_t n_inputs, const char *out, int jobs,
               struct s2s_error *err)
{
    struct s2s_features_options opt = {
        .inputs = inputs, .n_inputs = n_inputs, .out = out, .jobs = jobs};
    return s2s_features_run(&opt, err);
}

static void same_bytes(const char *a, const char *b)
{
    struct s2s_buf x = read_all(a), y = read_all(b);
    assert_int_equal(x.len, y.len);
    assert_memory_equal(x.data, y.data, x.len);
    s2s_buf_release(&x);
    s2s_buf_release(&y);
}

static void same_as_direct(const struct s2s_st_tensor *tensor, const char *path, size_t begin)
{
    struct s2s_mel_config config = S2S_MEL_CONFIG_DEFAULT;
    struct s2s_mel *mel = NULL;
    struct s2s_audio audio;
    assert_int_equal(s2s_mel_new(&mel, &config, NULL), 0);
    assert_int_equal(s2s_audio_decode_file(&audio, path, NULL, NULL), 0);
    struct s2s_mel_work *work = s2s_mel_work_new(mel);
    size_t n = (size_t)s2s_mel_frames(mel, audio.n_samples) * 80;
    float *want = s2s_xcalloc(n, sizeof *want);
    s2s_mel_compute(mel, work, want, audio.data, audio.n_samples);
    assert_true(tensor->len_bytes >= (begin * 80 + n) * sizeof *want);
    assert_memory_equal((const char *)tensor->data + begin * 80 * sizeof *want, want,
                        n * sizeof *want);
    free(want);
    s2s_mel_work_free(work);
    s2s_mel_free(mel);
    s2s_audio_release(&audio);
}

static void sound_files_become_an_audio_stream(void **state)
{
    static const char *const files[] = {FOLDER "/activated.wav", FOLDER "/hello-world.wav",
                                        FOLDER "/please-try-again.wav"};
    char *one = in_folder("one.s2s"), *four = in_folder("four.s2s");
    struct s2s_error err = S2S_ERROR_INIT;
    if (run(files, 3, one, 1, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(run(files, 3, four, 4, NULL), 0);
    same_bytes(one, four);
    struct s2s_stream *in = NULL;
    struct s2s_record rec;
    assert_int_equal(s2s_stream_open(&in, one, NULL), 0);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(s2s_stream_next(in, &rec, NULL), 1);
        same_as_direct(s2s_safetensors_find(&rec.st, "mel"), files[i], 0);
    }
    assert_string_equal(s2s_safetensors_meta(&rec.st, "id"), "please-try-again");
    assert_int_equal(s2s_stream_next(in, &rec, NULL), 0);
    s2s_stream_close(in);
    free(one);
    free(four);
}

/* A pack of two clips, 16-bit, around which a tensor that nobody knows. */
static void write_pack(const char *path, const char *const *files, int rate_hz)
{
    static const int32_t ids[2] = {7, 7}, labels[2] = {-100, -100}, positions[2] = {0, 0},
                         ones[2] = {1, 1}, bounds[3] = {0, 1, 2}, most[1] = {1}, slots[2] = {0, 1};
    static const int64_t two[1] = {2};
    static const uint8_t strange[3] = {1, 2, 3};
    struct s2s_audio audio[2];
    int64_t cu[3] = {0};
    for (int k = 0; k < 2; k++) {
        assert_int_equal(s2s_audio_decode_file(&audio[k], files[k], NULL, NULL), 0);
        cu[k + 1] = cu[k] + (int64_t)audio[k].n_samples;
    }
    int16_t *pcm = s2s_xmalloc((size_t)cu[2] * sizeof *pcm);
    for (int k = 0; k < 2; k++) {
        s2s_audio_to_s16(pcm + cu[k], audio[k].data, audio[k].n_samples);
        s2s_audio_release(&audio[k]);
    }
    struct s2s_st_tensor tensors[] = {
        {"input_ids", S2S_I32, 1, {2}, ids, 8},
        {"labels", S2S_I32, 1, {2}, labels, 8},
        {"position_ids", S2S_I32, 1, {2}, positions, 8},
        {"seq_lens", S2S_I32, 1, {2}, ones, 8},
        {"seq_lens_padded", S2S_I32, 1, {2}, ones, 8},
        {"cu_seqlens", S2S_I32, 1, {3}, bounds, 12},
        {"max_seqlen", S2S_I32, 0, {0}, most, 4},
        {"num_tokens", S2S_I64, 0, {0}, two, 8},
        {"num_examples", S2S_I64, 0, {0}, two, 8},
        {"audio_slot", S2S_I32, 1, {2}, slots, 8},
        {"audio_frames", S2S_I32, 1, {2}, ones, 8},
        {"audio_pcm", S2S_I16, 1, {cu[2]}, pcm, (size_t)cu[2] * 2},
        {"audio_cu_samples", S2S_I64, 1, {3}, cu, 24},
        {"strange", S2S_U8, 1, {3}, strange, 3},
    };
    struct s2s_st_meta meta[] = {{"ids", "[\"a\",\"b\"]"}, {"qkv_format", "thd"}};
    json_t *header = json_pack("{s:s, s:s, s:s, s:{s:i}}", "kind", "pack", "layout", "salm",
                               "audio", "pcm", "config", "sampling_rate", rate_hz);
    struct s2s_stream_writer *out = NULL;
    struct s2s_error err = S2S_ERROR_INIT;
    if (s2s_stream_create(&out, path, header, NULL, NULL, 0, NULL, &err) < 0 ||
        s2s_stream_write(out, tensors, sizeof tensors / sizeof *tensors, meta, 2, &err) < 0 ||
        s2s_stream_commit(out, NULL, NULL, 0, &err) < 0)
        fail_msg("%s", err.text);
    json_decref(header);
    free(pcm);
}

static void a_pack_keeps_all_but_its_waveforms(void **state)
{
    static const char *const files[] = {FOLDER "/activated.wav", FOLDER "/hello-world.wav"};
    char *pack = in_folder("pack.s2s"), *out = in_folder("mel.s2s"), *again = in_folder("mel3.s2s");
    const char *const inputs[] = {pack};
    struct s2s_error err = S2S_ERROR_INIT;
    write_pack(pack, files, 16000);
    if (run(inputs, 1, out, 1, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(run(inputs, 1, again, 3, NULL), 0);
    same_bytes(out, again);
    struct s2s_stream *in = NULL;
    struct s2s_record rec;
    assert_int_equal(s2s_stream_open(&in, out, NULL), 0);
    const json_t *header = s2s_stream_header(in);
    assert_string_equal(json_string_value(json_object_get(header, "audio")), "mel");
    assert_int_equal(json_array_size(json_object_get(header, "provenance")), 2);
    assert_int_equal(s2s_stream_next(in, &rec, NULL), 1);
    assert_null(s2s_safetensors_find(&rec.st, "audio_pcm"));
    assert_null(s2s_safetensors_find(&rec.st, "audio_cu_samples"));
    assert_int_equal(s2s_safetensors_find(&rec.st, "strange")->len_bytes, 3);
    const struct s2s_st_tensor *cu = s2s_safetensors_find(&rec.st, "audio_cu_mel");
    const struct s2s_st_tensor *mel = s2s_safetensors_find(&rec.st, "audio_mel");
    int64_t bounds[3];
    memcpy(bounds, cu->data, sizeof bounds);
    assert_int_equal(bounds[1], 106);
    assert_int_equal(bounds[2], 106 + 140);
    same_as_direct(mel, files[0], 0);
    same_as_direct(mel, files[1], 106);
    assert_int_equal(s2s_stream_next(in, &rec, NULL), 0);
    s2s_stream_close(in);
    /* features of features, and of another rate */
    const char *const twice[] = {out};
    assert_int_equal(run(twice, 1, again, 1, &err), S2S_E_UNSUPPORTED);
    write_pack(pack, files, 8000);
    assert_int_equal(run(inputs, 1, again, 1, &err), S2S_E_UNSUPPORTED);
    assert_non_null(strstr(err.text, "8000 Hz"));
    free(pack);
    free(out);
    free(again);
}

static void a_bad_file_leaves_no_output(void **state)
{
    static const char *const files[] = {FOLDER "/activated.wav", "/nowhere/x.wav"};
    char *out = in_folder("bad.s2s");
    struct s2s_error err = S2S_ERROR_INIT;
    assert_int_equal(run(files, 2, out, 2, &err), S2S_E_OPEN);
    assert_non_null(strstr(err.text, "/nowhere/x.wav"));
    assert_int_not_equal(access(out, F_OK), 0);
    free(out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sound_files_become_an_audio_stream),
        cmocka_unit_test(a_pack_keeps_all_but_its_waveforms),
        cmocka_unit_test(a_bad_file_leaves_no_output),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
