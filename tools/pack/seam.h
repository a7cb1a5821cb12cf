/*
 * Where a bounded run over endless sources ends and the next one begins: how far the walk was read,
 * and which samples before that place were held but are in no pack yet. All else follows from the
 * walk itself, which is the same each time. It stands in the header of the stream that was written,
 * so there is none without its packs.
 */
#ifndef TOOLS_PACK_SEAM_H
#define TOOLS_PACK_SEAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

struct s2s_error;

/* A sample of the walk: the number of its place, from 0, and which of the samples there. */
struct pack_spot {
    uint64_t number;
    int32_t variant;
};

struct pack_seam {
    struct pack_spot next;  /* the first sample that was not read */
    struct pack_spot *held; /* [n_held], ascending, before it */
    size_t n_held, cap_held;
};

void pack_seam_add(struct pack_seam *seam, struct pack_spot held);
void pack_seam_release(struct pack_seam *seam);
/* Is the sample, or any of a place, still to be packed? */
bool pack_seam_wants(const struct pack_seam *seam, struct pack_spot spot);
bool pack_seam_wants_any(const struct pack_seam *seam, uint64_t number);

/* {"next": [number, variant], "held": [[number, variant], ..]}; gives. */
json_t *pack_seam_json(const struct pack_seam *seam);
/*
 * Reads config.seam of a stream, which must be whole, and gives its whole config and the digests of
 * its inputs too. FORMAT: it has none; errors of reading.
 */
int pack_seam_read(struct pack_seam *seam, json_t **config, json_t **inputs, const char *path,
                   struct s2s_error *err);

#endif
