/* Sounds, texts and ids of s2s-train generate, and the batches made of them. */
#include "tools/train/generate_inputs.h"

#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "lib/audio/audio.h"
#include "lib/base/base.h"
#include "lib/data/lines.h"
#include "lib/train/feed_internal.h"

/* ---- the list ---- */

static struct generate_input *append(struct generate_inputs *inputs)
{
    s2s_grow(&inputs->list, inputs->n, &inputs->cap, sizeof *inputs->list);
    inputs->list[inputs->n] = (struct generate_input){.audio = NULL};
    return &inputs->list[inputs->n++];
}

void generate_add(struct generate_inputs *inputs, const char *audio, const char *prompt)
{
    struct generate_input *input = append(inputs);
    input->audio = audio ? s2s_xstrdup(audio) : NULL;
    input->prompt = prompt ? s2s_xstrdup(prompt) : NULL;
    inputs->want_text = true;
}

static int take_ids(struct generate_input *input, const json_t *list, struct s2s_error *err)
{
    input->n_ids = json_array_size(list);
    input->ids = s2s_xcalloc(input->n_ids + 1, sizeof *input->ids);
    for (size_t i = 0; i < input->n_ids; i++) {
        const json_int_t id = json_integer_value(json_array_get(list, i));
        if (!json_is_integer(json_array_get(list, i)) || id < 0 || id > INT32_MAX)
            return s2s_error_set(err, S2S_E_FORMAT, "input_ids[%zu] is not an id", i);
        input->ids[i] = (int32_t)id;
    }
    return input->n_ids ? 0 : s2s_error_set(err, S2S_E_FORMAT, "input_ids is empty");
}

static int take_line(struct generate_inputs *inputs, const struct s2s_line *line,
                     struct s2s_error *err)
{
    json_error_t why;
    json_t *row = json_loadb(line->text, line->len, JSON_REJECT_DUPLICATES, &why);
    if (!row)
        return s2s_error_set(err, S2S_E_FORMAT, "%s", why.text);
    const json_t *audio = json_object_get(row, "audio"), *prompt = json_object_get(row, "prompt");
    const json_t *ids = json_object_get(row, "input_ids");
    int rc = 0;
    audio = audio ? audio : json_object_get(row, "audio_filepath");
    if (json_is_array(ids))
        rc = take_ids(append(inputs), ids, err);
    else if (json_is_string(audio) || json_is_string(prompt))
        generate_add(inputs, json_string_value(audio), json_string_value(prompt));
    else
        rc = s2s_error_set(err, S2S_E_FORMAT,
                           "expected an object with audio, prompt or both, or with input_ids");
    json_decref(row);
    return rc;
}

int generate_read_list(struct generate_inputs *inputs, const char *path, struct s2s_error *err)
{
    struct s2s_lines lines = S2S_LINES_INIT;
    struct s2s_line line = {.text = NULL};
    int rc = s2s_lines_open(&lines, path, err);
    if (rc < 0)
        return rc;
    while (rc == 0 && s2s_lines_next(&lines, &line))
        if ((rc = take_line(inputs, &line, err)) < 0)
            s2s_error_add(err, rc, "%s:%lld", path, (long long)line.number);
    s2s_lines_close(&lines);
    return rc;
}

void generate_inputs_release(struct generate_inputs *inputs)
{
    for (size_t i = 0; i < inputs->n; i++) {
        free(inputs->list[i].audio);
        free(inputs->list[i].prompt);
        free(inputs->list[i].ids);
    }
    free(inputs->list);
}

/* ---- a batch ---- */

/* What one input is made of: its tokens, of which one may be the place of its sound. */
struct part {
    struct s2s_rendered rendered;
    const int32_t *ids;
    int64_t n_ids, n_mel;
    float *mel;
};

static int hear(struct part *part, const char *path, const struct generate_reader *r,
                struct s2s_pack_reader *pack, struct s2s_error *err)
{
    struct s2s_audio audio = S2S_AUDIO_INIT;
    struct s2s_audio_options opt = S2S_AUDIO_OPTIONS_DEFAULT;
    const int64_t n_mels = r->model->n_mels;
    opt.rate_hz = s2s_mel_config(pack->mel)->rate_hz;
    int rc = s2s_audio_decode_file(&audio, path, &opt, err);
    if (rc == 0) {
        part->n_mel = s2s_mel_frames(pack->mel, audio.n_samples);
        part->mel = s2s_xcalloc((size_t)(part->n_mel * n_mels) + 1, sizeof *part->mel);
        s2s_mel_compute(pack->mel, pack->work, part->mel, audio.data, audio.n_samples);
        if (s2s_model_frames(r->model, part->n_mel) < 1)
            rc = s2s_error_set(err, S2S_E_RANGE, "%s: too short for a single frame", path);
    }
    s2s_audio_release(&audio);
    return rc;
}

static int render(struct part *part, const struct generate_input *input,
                  const struct generate_reader *r, struct s2s_error *err)
{
    int rc;
    if (input->audio) {
        rc = s2s_prompt_render_asr(r->format, &part->rendered, NULL, input->prompt, NULL, err);
    } else {
        struct s2s_part text = {input->prompt, strlen(input->prompt)};
        struct s2s_turn turn = {.role = "user", .parts = &text, .n_parts = 1};
        rc = s2s_prompt_render(r->format, &part->rendered, &turn, 1, true, err);
    }
    part->ids = part->rendered.ids.data;
    part->n_ids = (int64_t)part->rendered.ids.len;
    return rc;
}

static int read_parts(struct part *parts, const struct generate_input *inputs, int64_t n,
                      const struct generate_reader *r, struct s2s_error *err)
{
    struct s2s_pack_reader pack;
    bool is_open = false;
    int rc = 0;
    for (int64_t i = 0; rc == 0 && i < n; i++) {
        if (inputs[i].ids) {
            parts[i].ids = inputs[i].ids;
            parts[i].n_ids = (int64_t)inputs[i].n_ids;
            continue;
        }
        if (inputs[i].audio && r->model->n_mels == 0)
            rc = s2s_error_set(err, S2S_E_UNSUPPORTED, "the model takes no sound");
        else if (inputs[i].audio && !is_open)
            is_open = (rc = train_reader_open(&pack, r->features, (int)r->model->n_mels, err)) == 0;
        if (rc == 0 && inputs[i].audio)
            rc = hear(&parts[i], inputs[i].audio, r, &pack, err);
        if (rc == 0)
            rc = render(&parts[i], &inputs[i], r, err);
    }
    if (is_open)
        train_reader_close(&pack);
    return rc;
}

/* A clip's one placeholder becomes as many slots as it has frames. */
static void lay_part(struct generate_batch *b, const struct part *part, int64_t s,
                     const struct s2s_model *model)
{
    struct s2s_media *media = &b->batch.media[0];
    int64_t at = b->cu[s], rows = 0;
    for (int64_t k = 0; k < media->n; k++)
        rows += b->rows[k];
    for (int64_t i = 0; i < part->n_ids; i++) {
        if (!part->mel || i != part->rendered.audio_pos[0]) {
            b->ids[at++] = part->ids[i];
            continue;
        }
        const int32_t n = (int32_t)s2s_model_frames(model, part->n_mel), first = (int32_t)at;
        s2s_media_slots(b->slots + rows, &first, &n, 1);
        memcpy(b->mel + b->cu_mel[media->n] * model->n_mels, part->mel,
               (size_t)(part->n_mel * model->n_mels) * sizeof *b->mel);
        b->rows[media->n] = n;
        b->cu_mel[media->n + 1] = b->cu_mel[media->n] + part->n_mel;
        media->n++;
        at += n;
    }
    for (int64_t i = b->cu[s]; i < at; i++)
        b->positions[i] = (int32_t)(i - b->cu[s]);
    b->batch.max_seqlen = at - b->cu[s] > b->batch.max_seqlen ? at - b->cu[s] : b->batch.max_seqlen;
    b->cu[s + 1] = (int32_t)at;
}

static void lay_out(struct generate_batch *b, const struct part *parts, int64_t n,
                    const struct s2s_model *model)
{
    int64_t n_slots = 0, n_frames = 0, n_mel = 0;
    for (int64_t i = 0; i < n; i++) {
        const int64_t frames = parts[i].mel ? s2s_model_frames(model, parts[i].n_mel) : 0;
        n_slots += parts[i].n_ids + frames;
        n_frames += frames;
        n_mel += parts[i].n_mel;
    }
    b->ids = s2s_xcalloc((size_t)n_slots + 1, sizeof *b->ids);
    b->positions = s2s_xcalloc((size_t)n_slots + 1, sizeof *b->positions);
    b->cu = s2s_xcalloc((size_t)n + 1, sizeof *b->cu);
    b->slots = s2s_xcalloc((size_t)n_frames + 1, sizeof *b->slots);
    b->rows = s2s_xcalloc((size_t)n, sizeof *b->rows);
    b->cu_mel = s2s_xcalloc((size_t)n + 1, sizeof *b->cu_mel);
    b->mel = s2s_xcalloc((size_t)(n_mel * model->n_mels) + 1, sizeof *b->mel);
    for (int64_t i = 0; i < n; i++)
        lay_part(b, &parts[i], i, model);
    const int64_t n_clips = b->batch.media[0].n, max_seqlen = b->batch.max_seqlen;
    b->batch = (struct s2s_batch){.n_tokens = b->cu[n],
                                  .n_seqs = n,
                                  .input_ids = b->ids,
                                  .position_ids = b->positions,
                                  .cu_seqlens = b->cu,
                                  .max_seqlen = max_seqlen,
                                  .n_media = n_clips > 0};
    if (n_clips > 0)
        b->batch.media[0] = (struct s2s_media){.kind = S2S_MEDIA_AUDIO,
                                               .n = n_clips,
                                               .rows = b->rows,
                                               .slot_of_row = b->slots,
                                               .data = b->mel,
                                               .cu = b->cu_mel,
                                               .width = model->n_mels};
}

int generate_batch_make(struct generate_batch *b, const struct generate_input *inputs, int64_t n,
                        const struct generate_reader *reader, struct s2s_error *err)
{
    struct part *parts = s2s_xcalloc((size_t)n, sizeof *parts);
    *b = (struct generate_batch){.ids = NULL};
    for (int64_t i = 0; i < n; i++)
        parts[i].rendered = (struct s2s_rendered)S2S_RENDERED_INIT;
    int rc = read_parts(parts, inputs, n, reader, err);
    if (rc == 0)
        lay_out(b, parts, n, reader->model);
    for (int64_t i = 0; i < n; i++) {
        s2s_rendered_release(&parts[i].rendered);
        free(parts[i].mel);
    }
    free(parts);
    return rc;
}

void generate_batch_release(struct generate_batch *b)
{
    free(b->ids);
    free(b->positions);
    free(b->cu);
    free(b->slots);
    free(b->rows);
    free(b->mel);
    free(b->cu_mel);
}
