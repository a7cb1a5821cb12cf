/* Which files were found whole, what is in them, and their digests: by device, inode, size and
 * times, so that a file that changes is another one. */
#include <pthread.h>
#include <stdlib.h>

#include "lib/audio/audio.h"
#include "lib/audio/audio_internal.h"
#include "lib/io/digest.h"

/* So many at most, of which the newer takes the place of an older one: what is forgotten is found
 * again. */
enum { N_SLOTS = 1 << 15 };

struct key {
    uint64_t device, inode, size;
    int64_t changed[4];
};

struct slot {
    struct key key; /* size 0: empty */
    struct audio_facts facts;
};

struct s2s_audio_known {
    pthread_mutex_t lock;
    struct slot *slots; /* memory is taken as they are filled */
};

struct s2s_audio_known *s2s_audio_known_new(void)
{
    struct s2s_audio_known *known = s2s_xcalloc(1, sizeof *known);
    pthread_mutex_init(&known->lock, NULL);
    known->slots = s2s_xcalloc(N_SLOTS, sizeof *known->slots);
    return known;
}

void s2s_audio_known_free(struct s2s_audio_known *known)
{
    if (!known)
        return;
    pthread_mutex_destroy(&known->lock);
    free(known->slots);
    free(known);
}

/* What is read at once costs more to remember than to find again. */
static bool is_worth_it(const struct s2s_audio_known *known, const struct stat *st)
{
    enum { WORTH_BYTES = 1 << 20 };
    return known && st->st_size >= WORTH_BYTES;
}

static struct slot *slot_of(const struct s2s_audio_known *known, struct key *key,
                            const struct stat *st)
{
    *key = (struct key){
        st->st_dev,
        st->st_ino,
        (uint64_t)st->st_size,
        {st->st_mtim.tv_sec, st->st_mtim.tv_nsec, st->st_ctim.tv_sec, st->st_ctim.tv_nsec}};
    return &known->slots[s2s_xxh3_64(key, sizeof *key) % N_SLOTS];
}

void audio_known_find(struct audio_facts *facts, struct s2s_audio_known *known,
                      const struct stat *st)
{
    struct key key;
    *facts = (struct audio_facts){.is_checked = false};
    if (!is_worth_it(known, st))
        return;
    const struct slot *slot = slot_of(known, &key, st);
    pthread_mutex_lock(&known->lock);
    if (!memcmp(&slot->key, &key, sizeof key))
        *facts = slot->facts;
    pthread_mutex_unlock(&known->lock);
}

void audio_known_add(struct s2s_audio_known *known, const struct stat *st,
                     const struct audio_facts *facts)
{
    struct key key;
    if (!is_worth_it(known, st))
        return;
    struct slot *slot = slot_of(known, &key, st);
    pthread_mutex_lock(&known->lock);
    /* who only measured a file does not know its digest */
    if (facts->xxh3[0] || memcmp(&slot->key, &key, sizeof key))
        *slot = (struct slot){key, *facts};
    pthread_mutex_unlock(&known->lock);
}
