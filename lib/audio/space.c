/* Memory that decoding uses again and again: new pages cost more than many a decoder. */
#include <stdlib.h>

#include "lib/audio/audio_internal.h"

void *audio_room_reserve(struct audio_room *room, size_t len_bytes)
{
    if (len_bytes > room->cap_bytes || !room->data) {
        const size_t more = room->cap_bytes + room->cap_bytes / 4;
        room->cap_bytes = len_bytes > more ? len_bytes : more;
        room->data = s2s_xrealloc(room->data, room->cap_bytes, 1);
    }
    return room->data;
}

struct s2s_audio_space *s2s_audio_space_new(void)
{
    return s2s_xcalloc(1, sizeof(struct s2s_audio_space));
}

void audio_space_release(struct s2s_audio_space *space)
{
    free(space->file.data);
    free(space->chunk.data);
    free(space->decoded.data);
    free(space->changed.data);
}

void s2s_audio_space_free(struct s2s_audio_space *space)
{
    if (space)
        audio_space_release(space);
    free(space);
}
