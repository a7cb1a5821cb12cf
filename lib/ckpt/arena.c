/* Memory that lives as long as the checkpoint, and a cache of vectors in it, so that equal ones are
 * shared. */
#include "lib/ckpt/model.h"

#include "lib/io/digest.h"

/* An entry of a set-associative cache of WAYS entries per set; the oldest is replaced. */
struct ckpt_vector {
    const int64_t *v; /* NULL: none yet */
    size_t n;
};
enum { SETS = 4096, WAYS = 4 };

void *ckpt_arena(struct s2s_ckpt *ckpt, size_t len)
{
    return s2s_blocks_alloc(&ckpt->arena, len);
}

char *ckpt_arena_text(struct s2s_ckpt *ckpt, const char *s, size_t len)
{
    return s2s_blocks_text(&ckpt->arena, s, len);
}

const int64_t *ckpt_arena_ints(struct s2s_ckpt *ckpt, const int64_t *v, size_t n)
{
    const size_t len = n * sizeof *v;
    if (!ckpt->vectors)
        ckpt->vectors = s2s_xcalloc((size_t)SETS * WAYS, sizeof *ckpt->vectors);
    struct ckpt_vector *set = &ckpt->vectors[s2s_xxh3_64(v, len) % SETS * WAYS];
    for (int i = 0; i < WAYS && set[i].v; i++)
        if (set[i].n == n && memcmp(set[i].v, v, len) == 0)
            return set[i].v;
    memmove(set + 1, set, (WAYS - 1) * sizeof *set);
    *set = (struct ckpt_vector){memcpy(ckpt_arena(ckpt, len), v, len), n};
    return set->v;
}

void ckpt_arena_release(struct s2s_ckpt *ckpt)
{
    s2s_blocks_release(&ckpt->arena);
    free(ckpt->vectors);
    ckpt->vectors = NULL;
    ckpt->last_store = NULL;
}
