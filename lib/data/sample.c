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

/* ---- the block ---- */

static bool is_in_block(const struct s2s_sample *sample, const void *part)
{
    return sample->block && (uintptr_t)part - (uintptr_t)sample->block < sample->block_bytes;
}

void s2s_sample_free(const struct s2s_sample *sample, char *text)
{
    if (!is_in_block(sample, text))
        free(text);
}

/* ---- turns ---- */

/* What nearly all roles are is not copied. */
static const char *const roles[] = {"user", "assistant", "system"};

static const char *keep_role(const char *role)
{
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
        if (!strcmp(role, roles[i]))
            return roles[i];
    return s2s_xstrdup(role);
}

static void free_role(const char *role)
{
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
        if (role == roles[i])
            return;
    free((void *)(uintptr_t)role);
}

static void release_turn(const struct s2s_sample *sample, struct s2s_sample_turn *turn)
{
    struct s2s_sound *sound = &turn->sound;
    free_role(turn->role);
    s2s_sample_free(sample, turn->text);
    sound->source = is_in_block(sample, sound->source) ? NULL : sound->source;
    sound->path = is_in_block(sample, sound->path) ? NULL : sound->path;
    s2s_sound_release(sound);
}

void s2s_sample_release(struct s2s_sample *sample)
{
    for (size_t i = 0; i < sample->n_turns; i++)
        release_turn(sample, &sample->turns[i]);
    if (!is_in_block(sample, sample->turns))
        free(sample->turns);
    s2s_sample_free(sample, sample->id);
    s2s_sample_free(sample, sample->text);
    s2s_sample_free(sample, sample->lang);
    s2s_sample_free(sample, sample->speaker);
    json_decref(sample->custom);
    for (size_t i = 0; i < sample->n_said; i++) {
        free(sample->said[i].speaker);
        free(sample->said[i].text);
    }
    free(sample->said);
    s2s_ids_row_release(&sample->ids);
    free(sample->block);
    *sample = (struct s2s_sample)S2S_SAMPLE_INIT;
}

/* Most samples have two. */
static void grow_turns(struct s2s_sample *sample)
{
    struct s2s_sample_turn *before = sample->turns;
    const bool is_lent = is_in_block(sample, before);
    sample->cap_turns = sample->cap_turns ? 2 * sample->cap_turns : 2;
    sample->turns = s2s_xrealloc(is_lent ? NULL : before, sample->cap_turns, sizeof *before);
    if (is_lent)
        memcpy(sample->turns, before, sample->n_turns * sizeof *before);
}

struct s2s_sample_turn *s2s_sample_add(struct s2s_sample *sample, const char *role, char *text)
{
    if (sample->n_turns == sample->cap_turns)
        grow_turns(sample);
    struct s2s_sample_turn *turn = &sample->turns[sample->n_turns++];
    *turn = (struct s2s_sample_turn){keep_role(role), text, S2S_SOUND_INIT};
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
