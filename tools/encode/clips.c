/* The clips of a record: which there are, how long, and their features. */
#include <stdlib.h>
#include <string.h>

#include "lib/audio/audio.h"
#include "tools/encode/encode.h"

/* Where the clips of one form stand in a record. */
struct form {
    const char *values, *bounds; /* of a pack */
    const char *single;          /* of an audio record */
};

static const struct form forms[] = {
    [S2S_AUDIO_PCM] = {"audio_pcm", "audio_cu_samples", "pcm"},
    [S2S_AUDIO_FLAC] = {"audio_bytes", "audio_cu_bytes", "bytes"},
    [S2S_AUDIO_MEL] = {"audio_mel", "audio_cu_mel", "mel"},
};

bool encode_is_clip_tensor(const char *name)
{
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        if (forms[i].values && (!strcmp(name, forms[i].values) || !strcmp(name, forms[i].bounds) ||
                                !strcmp(name, forms[i].single)))
            return true;
    return false;
}

static bool is_audio(const struct encode_reader *reader)
{
    return reader->schema.kind == S2S_KIND_AUDIO;
}

static bool holds_sound(const struct s2s_schema *schema)
{
    return schema->audio == S2S_AUDIO_PCM || schema->audio == S2S_AUDIO_FLAC ||
           schema->audio == S2S_AUDIO_MEL;
}

static int no_sound(struct s2s_error *err)
{
    int rc = s2s_error_set(err, S2S_E_UNSUPPORTED, "the stream holds no sound");
    return s2s_error_hint(err, rc, "pack with --audio pcm, flac or mel");
}

int encode_check_stream(const struct encode_reader *reader, const json_t *header,
                        struct s2s_error *err)
{
    const struct s2s_schema *schema = &reader->schema;
    if (schema->kind != S2S_KIND_PACK && schema->kind != S2S_KIND_AUDIO)
        return s2s_error_hint(err,
                              s2s_error_set(err, S2S_E_UNSUPPORTED,
                                            "a stream of kind %s; expected pack or audio",
                                            s2s_kind_name(schema->kind)),
                              "encode before s2s-cpshard");
    /* packs of text alone pass; a clip is missed where it is wanted */
    if (schema->kind == S2S_KIND_AUDIO && !holds_sound(schema))
        return no_sound(err);
    return s2s_mel_config_fits(reader->mel, header, err);
}

int64_t encode_n_clips(const struct encode_reader *reader, const struct s2s_safetensors *st)
{
    if (is_audio(reader))
        return 1;
    return s2s_st_numel(s2s_safetensors_find(st, "audio_slot"));
}

/* The clip's values: first of its rows, and their number. The reader of the stream has held bounds
 * against values. */
static int find_clip(const struct s2s_st_tensor **values, int64_t span[2],
                     const struct encode_reader *reader, const struct s2s_safetensors *st,
                     int64_t k, struct s2s_error *err)
{
    *values = NULL;
    if (!holds_sound(&reader->schema))
        return no_sound(err);
    const struct form *form = &forms[reader->schema.audio];
    const char *name = is_audio(reader) ? form->single : form->values;
    *values = s2s_safetensors_find(st, name);
    if (!*values)
        return s2s_error_set(err, S2S_E_NOTFOUND, "no tensor %s", name);
    if (reader->schema.audio == S2S_AUDIO_MEL && reader->mel->n_mels > 0 &&
        (*values)->shape[1] != reader->mel->n_mels)
        return s2s_error_set(err, S2S_E_SHAPE, "%s has %lld mel bins; the encoder expects %d", name,
                             (long long)(*values)->shape[1], reader->mel->n_mels);
    span[0] = 0;
    span[1] = (*values)->shape[0];
    if (is_audio(reader)) {
        const char *rate = s2s_safetensors_meta(st, "sampling_rate");
        if (rate && reader->schema.audio != S2S_AUDIO_FLAC &&
            strtol(rate, NULL, 10) != reader->mel->rate_hz)
            return s2s_error_set(err, S2S_E_UNSUPPORTED,
                                 "the clip is at %s Hz, the features want %d Hz", rate,
                                 reader->mel->rate_hz);
        return 0;
    }
    const struct s2s_st_tensor *bounds = s2s_safetensors_find(st, form->bounds);
    memcpy(span, (const char *)bounds->data + (size_t)k * sizeof *span, 2 * sizeof *span);
    return 0;
}

int encode_clip_length(int64_t *length, const struct encode_reader *reader,
                       const struct s2s_safetensors *st, int64_t k, struct s2s_error *err)
{
    const struct s2s_st_tensor *values;
    struct s2s_audio_info info;
    int64_t span[2];
    int rc = find_clip(&values, span, reader, st, k, err);
    if (rc < 0)
        return rc;
    *length = span[1] - span[0];
    if (reader->schema.audio != S2S_AUDIO_FLAC)
        return 0;
    rc = s2s_audio_info_bytes(&info, (const char *)values->data + span[0], (size_t)*length, err);
    if (rc == 0)
        *length = s2s_audio_n_resampled(info.n_samples, info.rate_hz, reader->mel->rate_hz);
    return rc;
}

/* Samples of a clip of form pcm or flac. Gives: free. */
static int clip_pcm(float **pcm, size_t *n, const struct encode_reader *reader,
                    const struct s2s_st_tensor *values, const int64_t span[2],
                    struct s2s_error *err)
{
    const size_t size = s2s_dtype_size(values->dtype);
    const char *from = (const char *)values->data + (size_t)span[0] * size;
    *n = (size_t)(span[1] - span[0]);
    if (reader->schema.audio == S2S_AUDIO_FLAC) {
        struct s2s_audio_options options = S2S_AUDIO_OPTIONS_DEFAULT;
        struct s2s_audio audio = S2S_AUDIO_INIT;
        options.rate_hz = reader->mel->rate_hz;
        int rc = s2s_audio_decode_bytes(&audio, from, *n, &options, err);
        *pcm = audio.data;
        *n = audio.n_samples;
        return rc;
    }
    *pcm = s2s_xmalloc((*n + 1) * sizeof **pcm);
    if (values->dtype == S2S_F32) {
        memcpy(*pcm, from, *n * size);
        return 0;
    }
    int16_t *aligned = s2s_xmalloc((*n + 1) * sizeof *aligned);
    memcpy(aligned, from, *n * size);
    s2s_audio_from_s16(*pcm, aligned, *n);
    free(aligned);
    return 0;
}

int encode_clip_mel(float **features, int64_t *n_frames, const struct encode_reader *reader,
                    const struct s2s_mel *mel, struct s2s_mel_work *work,
                    const struct s2s_safetensors *st, int64_t k, struct s2s_error *err)
{
    const struct s2s_st_tensor *values;
    int64_t span[2];
    float *pcm = NULL;
    size_t n;
    *features = NULL;
    int rc = find_clip(&values, span, reader, st, k, err);
    if (rc < 0)
        return rc;
    const size_t width = (size_t)reader->mel->n_mels;
    if (reader->schema.audio == S2S_AUDIO_MEL) {
        *n_frames = span[1] - span[0];
        n = (size_t)*n_frames * width;
        *features = s2s_xmalloc((n + 1) * sizeof **features);
        memcpy(*features, (const char *)values->data + (size_t)span[0] * width * sizeof(float),
               n * sizeof(float));
        return 0;
    }
    if ((rc = clip_pcm(&pcm, &n, reader, values, span, err)) == 0) {
        *n_frames = s2s_mel_frames(mel, n);
        *features = s2s_xmalloc(((size_t)*n_frames * width + 1) * sizeof **features);
        s2s_mel_compute(mel, work, *features, pcm, n);
    }
    free(pcm);
    return rc;
}
