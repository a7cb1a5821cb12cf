/* Makes and releases samples. */
#include "lib/data/sample.h"

#include <stdlib.h>
#include <string.h>

#include "lib/base/base.h"
#include "lib/data/cut.h"
#include "lib/data/members.h"

void s2s_sound_release(struct s2s_sound *sound)
{
    free(sound->source);
    free(sound->path);
    free(sound->bytes);
    s2s_cut_free(sound->cut);
    *sound = (struct s2s_sound)S2S_SOUND_INIT;
}

static void release_turn(struct s2s_sample_turn *turn)
{
    free(turn->role);
    free(turn->text);
    s2s_sound_release(&turn->sound);
}

void s2s_sample_release(struct s2s_sample *sample)
{
    for (size_t i = 0; i < sample->n_turns; i++)
        release_turn(&sample->turns[i]);
    free(sample->turns);
    free(sample->id);
    free(sample->text);
    free(sample->lang);
    free(sample->speaker);
    json_decref(sample->custom);
    for (size_t i = 0; i < sample->n_said; i++) {
        free(sample->said[i].speaker);
        free(sample->said[i].text);
    }
    free(sample->said);
    s2s_ids_row_release(&sample->ids);
    *sample = (struct s2s_sample)S2S_SAMPLE_INIT;
}

struct s2s_sample_turn *s2s_sample_add(struct s2s_sample *sample, const char *role, char *text)
{
    if (sample->n_turns == sample->cap_turns) { /* most samples have two */
        sample->cap_turns = sample->cap_turns ? 2 * sample->cap_turns : 2;
        sample->turns = s2s_xrealloc(sample->turns, sample->cap_turns, sizeof *sample->turns);
    }
    struct s2s_sample_turn *turn = &sample->turns[sample->n_turns++];
    *turn = (struct s2s_sample_turn){s2s_xstrdup(role), text, S2S_SOUND_INIT};
    return turn;
}

void s2s_sample_answer(struct s2s_sample *sample)
{
    if (sample->text)
        s2s_sample_add(sample, "assistant", s2s_xstrdup(sample->text));
}

struct s2s_sound *s2s_sample_sound(const struct s2s_sample *sample, size_t k)
{
    for (size_t i = 0; i < sample->n_turns; i++)
        if (!sample->turns[i].text && k-- == 0)
            return &sample->turns[i].sound;
    return NULL;
}

static void prepend(struct s2s_sample *sample, const char *role, const char *text)
{
    s2s_sample_add(sample, role, s2s_xstrdup(text));
    const struct s2s_sample_turn last = sample->turns[sample->n_turns - 1];
    memmove(sample->turns + 1, sample->turns, (sample->n_turns - 1) * sizeof last);
    sample->turns[0] = last;
}

void s2s_sample_prompt(struct s2s_sample *sample, const json_t *tags)
{
    const char *system = json_string_value(json_object_get(tags, "system_prompt"));
    const char *context = json_string_value(json_object_get(tags, "context"));
    const struct s2s_sample_turn *first = sample->turns;
    if (context && sample->n_turns > 0 && !first->text && !strcmp(first->role, "user"))
        prepend(sample, "user", context);
    if (system && (sample->n_turns == 0 || strcmp(sample->turns[0].role, "system") != 0))
        prepend(sample, "system", system);
}

void s2s_sample_tag(struct s2s_sample *sample, const json_t *tags, bool is_conversation)
{
    if (tags && json_object_size(tags) > 0) {
        sample->custom = sample->custom ? sample->custom : json_object();
        json_object_update(sample->custom, (json_t *)tags);
    }
    s2s_sample_prompt(sample, is_conversation ? tags : sample->custom);
}

int s2s_sound_read(const struct s2s_sound *sound, void **bytes, size_t *len_bytes,
                   struct s2s_error *err)
{
    if (sound->tar)
        return s2s_members_read(sound->tar, sound->at, sound->source, bytes, len_bytes, err);
    *len_bytes = sound->len_bytes;
    *bytes = s2s_xmalloc(sound->len_bytes + 1);
    memcpy(*bytes, sound->bytes, sound->len_bytes);
    return 0;
}
