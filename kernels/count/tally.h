/* Sums by operation and layer of what was issued to a queue: what it cost, how long it took. */
#ifndef S2S_COUNT_TALLY_H
#define S2S_COUNT_TALLY_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/count/cost.h"

struct s2s_tally_row {
    const char *layer; /* the tally's; "" where none was said */
    enum s2s_entry entry;
    int64_t calls;
    struct s2s_cost cost;
    double seconds; /* 0 where no clock ran */
};

struct s2s_tally {
    struct s2s_tally_row *rows; /* [n], in the order of their first call */
    size_t n, cap;
    uint32_t *slots; /* rows by entry and layer: number + 1, 0 is free; open addressing */
    size_t n_slots;
};

/* The row of an entry and a layer (NULL: ""). Lent until the next call. */
struct s2s_tally_row *s2s_tally_row(struct s2s_tally *tally, enum s2s_entry entry,
                                    const char *layer);
/* Over the rows of one entry, or of all (S2S_ENTRIES); layer "". */
struct s2s_tally_row s2s_tally_sum(const struct s2s_tally *tally, enum s2s_entry entry);
/* All sums are 0 again. */
void s2s_tally_reset(struct s2s_tally *tally);
void s2s_tally_release(struct s2s_tally *tally);

#endif
