/* Memory of the threads that make records: what they work with, and what records lie in until they
 * are written. All of it is used again and again. */
#ifndef TOOLS_PACK_SPACE_H
#define TOOLS_PACK_SPACE_H

#include "lib/audio/audio.h"
#include "lib/audio/mel.h"
#include "lib/base/base.h"

/* What a thread works with. */
struct pack_worker {
    struct s2s_audio_space *space;
    struct s2s_mel_work *mel; /* NULL where no features are made */
};

struct pack_space;

/* For n_workers threads; mel as pack_worker has it. */
struct pack_space *pack_space_new(int n_workers, const struct s2s_mel *mel);
void pack_space_free(struct pack_space *space);
struct pack_worker *pack_space_worker(struct pack_space *space, int worker);
/* An empty buffer with room for len bytes, of any thread; and what a buffer held is not needed any
 * more. */
void pack_space_take(struct pack_space *space, struct s2s_buf *buf, size_t len);
void pack_space_give(struct pack_space *space, struct s2s_buf *buf);

#endif
