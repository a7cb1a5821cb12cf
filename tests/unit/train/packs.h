/* Streams of small packs for tests of what reads them. */
#ifndef TRAIN_PACKS_H
#define TRAIN_PACKS_H

#include <jansson.h>

#include "lib/base/base.h"
#include "lib/stream/stream.h"

enum { SLOTS = 8, SAMPLES = 2400, CLIPS = 2 };

/* Two utterances of a clip each. Record i begins with id `salt` + i. */
static inline void write_record(struct s2s_stream_writer *out, int32_t salt, int i)
{
    static int16_t pcm[SAMPLES];
    int32_t ids[SLOTS] = {salt + i, 9, 9, 5, salt + i, 9, 9, 6};
    int32_t labels[SLOTS] = {-100, -100, 5, -100, -100, -100, 6, i};
    int32_t positions[SLOTS] = {0, 1, 2, 3, 0, 1, 2, 3}, lens[] = {4, 4}, cu[] = {0, 4, 8},
            most = 4, slots[] = {1, 5}, frames[] = {2, 2};
    int64_t n_tokens = SLOTS, two = 2, bounds[] = {0, SAMPLES / 2 + i, SAMPLES};
    for (int k = 0; k < SAMPLES; k++)
        pcm[k] = (int16_t)(salt + i + 37 * k);
    char text[64];
    snprintf(text, sizeof text, "[\"a%d\",\"b%d\"]", i, i);
    struct s2s_st_meta meta[] = {{"ids", text}, {"qkv_format", "thd"}};
    struct s2s_st_tensor tensors[] = {
        {"input_ids", S2S_I32, 1, {SLOTS}, ids, sizeof ids},
        {"labels", S2S_I32, 1, {SLOTS}, labels, sizeof labels},
        {"position_ids", S2S_I32, 1, {SLOTS}, positions, sizeof positions},
        {"seq_lens", S2S_I32, 1, {2}, lens, sizeof lens},
        {"seq_lens_padded", S2S_I32, 1, {2}, lens, sizeof lens},
        {"cu_seqlens", S2S_I32, 1, {3}, cu, sizeof cu},
        {"max_seqlen", S2S_I32, 0, {0}, &most, sizeof most},
        {"num_tokens", S2S_I64, 0, {0}, &n_tokens, sizeof n_tokens},
        {"num_examples", S2S_I64, 0, {0}, &two, sizeof two},
        {"audio_slot", S2S_I32, 1, {CLIPS}, slots, sizeof slots},
        {"audio_frames", S2S_I32, 1, {CLIPS}, frames, sizeof frames},
        {"audio_pcm", S2S_I16, 1, {SAMPLES}, pcm, sizeof pcm},
        {"audio_cu_samples", S2S_I64, 1, {CLIPS + 1}, bounds, sizeof bounds},
    };
    struct s2s_error err = S2S_ERROR_INIT;
    if (s2s_stream_write(out, tensors, sizeof tensors / sizeof *tensors, meta, 2, &err) < 0)
        fail_msg("%s", err.text);
}

static inline void write_stream(const char *path, int32_t salt, int n)
{
    json_t *header = json_pack("{s:s, s:s, s:s, s:{s:i}}", "kind", "pack", "layout", "salm",
                               "audio", "pcm", "config", "sampling_rate", 16000);
    struct s2s_stream_writer *out = NULL;
    struct s2s_error err = S2S_ERROR_INIT;
    if (s2s_stream_create(&out, path, header, NULL, NULL, 0, NULL, &err) < 0)
        fail_msg("%s", err.text);
    for (int i = 0; i < n; i++)
        write_record(out, salt, i);
    if (s2s_stream_commit(out, NULL, NULL, 0, &err) < 0)
        fail_msg("%s", err.text);
    json_decref(header);
}

#endif
