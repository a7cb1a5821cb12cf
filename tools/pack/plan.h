/* The plan: every sample's length, then which samples share a pack, without decoding anything. */
#ifndef TOOLS_PACK_PLAN_H
#define TOOLS_PACK_PLAN_H

#include <pthread.h>

#include "tools/pack/row.h"
#include "tools/pack/seam.h"

/* A sample that is left out, and why. */
struct pack_bad {
    char *id;   /* NULL: not known */
    char *text; /* "file:line: reason" */
    int code;   /* of its error */
};

/* How many there are of something that is no fault, and where the first ones are. */
enum { PACK_N_NAMED = 10 };
struct pack_few {
    int64_t n;
    char *names[PACK_N_NAMED];
};

struct pack_plan {
    struct pack_item *items; /* samples in input order */
    size_t n_items, cap_items;
    uint32_t *members;                      /* indices of items, pack after pack */
    size_t *begin;                          /* [n_packs + 1] */
    size_t n_packs, cap_members, cap_begin; /* capacities: with --packs */
    int64_t n_bound;      /* packs that no way of packing falls below; 0 with --batch-size */
    int64_t capacity;     /* of a pack, 0 with --batch-size */
    int64_t bin_multiple; /* lengths are rounded up to it to choose packs */
    struct pack_bad *bad;
    size_t n_bad, cap_bad;
    struct pack_bad *unlabelled; /* truncated so that nothing is left to predict; they are packed */
    size_t n_unlabelled, cap_unlabelled;
    int64_t n_read, n_marked; /* samples; those marked _skipme */
    int64_t n_filtered[N_PACK_FILTERED];
    int64_t n_truncated, n_too_long;
    struct s2s_duplex_counts turns;
    struct pack_seam seam;           /* after the packs, with --packs */
    struct pack_few shorter, longer; /* files, than the manifest says */
    struct pack_few silent; /* clips that are kept without a sound in them; after packing */
    bool exact16;           /* of all samples in packs */
};

/* from: where the packs before these end, with --packs. */
int pack_plan_make(struct pack_plan *plan, const struct pack_loader *loader,
                   const struct pack_options *opt, const struct pack_seam *from,
                   struct s2s_error *err);
void pack_plan_release(struct pack_plan *plan);

/* Counts a place, and notes where the first ones are. */
void pack_few_add(struct pack_few *few, const struct s2s_source *source,
                  const struct s2s_place *place);

/* Notes a bad sample (--bad skip); err is its reason. */
void pack_plan_bad(struct pack_plan *plan, const char *id, const struct s2s_error *err);

#endif
