/* Which files were found whole, what is in them, and their digests: by device, inode, size and
 * times, so that a file that changes is another one. */
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>

#include <jansson.h>

#include "lib/audio/audio.h"
#include "lib/audio/audio_internal.h"

struct s2s_audio_known {
    pthread_mutex_t lock;
    json_t *idx; /* key -> index in facts */
    struct audio_facts *facts;
    size_t n, cap;
};

struct s2s_audio_known *s2s_audio_known_new(void)
{
    struct s2s_audio_known *known = s2s_xcalloc(1, sizeof *known);
    pthread_mutex_init(&known->lock, NULL);
    known->idx = json_object();
    return known;
}

void s2s_audio_known_free(struct s2s_audio_known *known)
{
    if (!known)
        return;
    pthread_mutex_destroy(&known->lock);
    json_decref(known->idx);
    free(known->facts);
    free(known);
}

/* What is read at once costs more to remember than to find again. */
static bool is_worth_it(const struct s2s_audio_known *known, const struct stat *st)
{
    enum { WORTH_BYTES = 1 << 20 };
    return known && st->st_size >= WORTH_BYTES;
}

enum { KEY_BYTES = 160 };

static void make_key(char key[KEY_BYTES], const struct stat *st)
{
    snprintf(key, KEY_BYTES, "%jx %jx %jx %jx.%lx %jx.%lx", (uintmax_t)st->st_dev,
             (uintmax_t)st->st_ino, (uintmax_t)st->st_size, (uintmax_t)st->st_mtim.tv_sec,
             (unsigned long)st->st_mtim.tv_nsec, (uintmax_t)st->st_ctim.tv_sec,
             (unsigned long)st->st_ctim.tv_nsec);
}

void audio_known_find(struct audio_facts *facts, struct s2s_audio_known *known,
                      const struct stat *st)
{
    char key[KEY_BYTES];
    *facts = (struct audio_facts){.is_checked = false};
    if (!is_worth_it(known, st))
        return;
    make_key(key, st);
    pthread_mutex_lock(&known->lock);
    const json_t *at = json_object_get(known->idx, key);
    if (at)
        *facts = known->facts[json_integer_value(at)];
    pthread_mutex_unlock(&known->lock);
}

void audio_known_add(struct s2s_audio_known *known, const struct stat *st,
                     const struct audio_facts *facts)
{
    char key[KEY_BYTES];
    if (!is_worth_it(known, st))
        return;
    make_key(key, st);
    pthread_mutex_lock(&known->lock);
    const json_t *at = json_object_get(known->idx, key);
    size_t i = at ? (size_t)json_integer_value(at) : known->n;
    if (!at) {
        s2s_grow(&known->facts, known->n, &known->cap, sizeof *known->facts);
        json_object_set_new(known->idx, key, json_integer((json_int_t)known->n++));
        known->facts[i] = *facts;
    } else if (facts->xxh3[0]) { /* who only measured a file does not know its digest */
        known->facts[i] = *facts;
    }
    pthread_mutex_unlock(&known->lock);
}
