/*
 * Blends: sources of which a generator draws the next sample, nested, with weights, repeated or
 * not, in the order of Lhotse's multiplexers.
 */
#ifndef S2S_DATA_BLEND_H
#define S2S_DATA_BLEND_H

#include "lib/data/source.h"

/* A part of a blend. */
struct s2s_blend_node {
    enum { S2S_BLEND_LEAF, S2S_BLEND_MUX, S2S_BLEND_OPEN_MUX } kind;
    bool repeat;             /* for ever, each time in the order of the next epoch */
    struct s2s_source *leaf; /* owned */
    uint32_t leaf_idx;       /* set by s2s_source_open_blend */
    /* Of a mux: what it draws of [n_items], owned; not NULL */
    struct s2s_blend_node **items;
    double *weights; /* [n_items], not below 0; NULL: equal */
    size_t n_items, cap_items;
    uint64_t seed;
    size_t max_open; /* OPEN_MUX: so many are open, drawn with replacement; it has no end */
};

/* Gives: s2s_blend_node_free, which takes NULL and frees what is below it. */
struct s2s_blend_node *s2s_blend_leaf(struct s2s_source *leaf);
struct s2s_blend_node *s2s_blend_mux(uint64_t seed);
/* Takes item. weight counts if all items of the mux were given one; a negative one is none. */
void s2s_blend_add(struct s2s_blend_node *mux, struct s2s_blend_node *item, double weight);
/* Replaces a mux of one item by the item. */
void s2s_blend_unwrap(struct s2s_blend_node **mux);
void s2s_blend_node_free(struct s2s_blend_node *node);

/* Does the node end by itself? */
bool s2s_blend_is_finite(const struct s2s_blend_node *node);

/*
 * A source that walks the tree. Takes root. n_samples: a walk ends there; 0: where root does. text
 * [len] is the config, whose digest comes before those of the leaves' files; NULL: none.
 *
 * Source: LazyIteratorMultiplexer, LazyInfiniteApproximateMultiplexer and LazyRepeater of Lhotse:
 * a mux draws from those of its items that are not at their end, a draw that finds an end gives no
 * sample; an OPEN_MUX draws a new item for a place where one has ended.
 */
struct s2s_source *s2s_source_open_blend(struct s2s_blend_node *root, int64_t n_samples,
                                         const char *text, size_t len);

struct s2s_blend_options {
    struct s2s_source_options source; /* the defaults of the top level; tags are not used */
    int64_t n_samples;                /* 0: all, once; else so many, of sources that repeat */
    bool run_pipes;                   /* commands of the file are run */
};

/*
 * Reads `input_cfg` of NeMo: a YAML file with a list of items, or a map with such a list under
 * input_cfg and perhaps attributes beside it. Errors name file, line and key: FORMAT, RANGE,
 * UNSUPPORTED (a type that is not read here), ARG (an endless blend without n_samples).
 */
int s2s_source_open_input_cfg(struct s2s_source **source, const char *path,
                              const struct s2s_blend_options *opt, struct s2s_error *err);

#endif
