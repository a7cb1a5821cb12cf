/* Draws from sources. */
#include "lib/data/blend.h"

#include <stdlib.h>

#include "lib/base/base.h"
#include "lib/base/pyrandom.h"
#include "lib/io/digest.h"

/* ---- the tree ---- */

struct s2s_blend_node *s2s_blend_leaf(struct s2s_source *leaf)
{
    struct s2s_blend_node *node = s2s_xcalloc(1, sizeof *node);
    node->kind = S2S_BLEND_LEAF;
    node->leaf = leaf;
    return node;
}

struct s2s_blend_node *s2s_blend_mux(uint64_t seed)
{
    struct s2s_blend_node *node = s2s_xcalloc(1, sizeof *node);
    node->kind = S2S_BLEND_MUX;
    node->seed = seed;
    return node;
}

void s2s_blend_add(struct s2s_blend_node *mux, struct s2s_blend_node *item, double weight)
{
    size_t cap_weights = mux->cap_items;
    s2s_grow(&mux->items, mux->n_items, &mux->cap_items, sizeof *mux->items);
    s2s_grow(&mux->weights, mux->n_items, &cap_weights, sizeof *mux->weights);
    mux->weights[mux->n_items] = weight < 0 ? 1 : weight;
    mux->items[mux->n_items++] = item;
}

void s2s_blend_unwrap(struct s2s_blend_node **mux)
{
    struct s2s_blend_node *item = (*mux)->items[0];
    (*mux)->n_items = 0;
    s2s_blend_node_free(*mux);
    *mux = item;
}

void s2s_blend_node_free(struct s2s_blend_node *node)
{
    if (!node)
        return;
    for (size_t i = 0; i < node->n_items; i++)
        s2s_blend_node_free(node->items[i]);
    s2s_source_close(node->leaf);
    free(node->items);
    free(node->weights);
    free(node);
}

bool s2s_blend_is_finite(const struct s2s_blend_node *node)
{
    bool finite = !node->repeat && node->kind != S2S_BLEND_OPEN_MUX;
    for (size_t i = 0; i < node->n_items; i++)
        finite = finite && s2s_blend_is_finite(node->items[i]);
    return finite;
}

/* ---- a walk over a node, begun when its first sample is asked for ---- */

struct stream {
    const struct s2s_blend_node *node;
    bool begun, gave;
    struct s2s_walk *walk; /* of a leaf */
    struct s2s_pyrandom random;
    struct stream *items; /* [n] of a mux: all of its items, or its open places */
    double *weights;      /* [n]; of an item at its end it is not used */
    bool *ended;          /* [n] */
    size_t n;
};

static void stream_release(struct stream *s)
{
    if (s->walk)
        s->node->leaf->kind->end(s->walk);
    for (size_t i = 0; i < s->n; i++)
        stream_release(&s->items[i]);
    free(s->items);
    free(s->weights);
    free(s->ended);
    *s = (struct stream){.node = s->node};
}

static size_t draw_item(struct stream *s)
{
    return s2s_pyrandom_choice(&s->random, s->node->weights, s->node->n_items);
}

static void open_place(struct stream *s, size_t place)
{
    const size_t item = draw_item(s);
    s->items[place] = (struct stream){.node = s->node->items[item]};
    s->weights[place] = s->node->weights[item];
}

static void begin_mux(struct stream *s)
{
    const struct s2s_blend_node *node = s->node;
    const bool is_open = node->kind == S2S_BLEND_OPEN_MUX;
    s->n = is_open && node->max_open < node->n_items ? node->max_open : node->n_items;
    s->items = s2s_xcalloc(s->n, sizeof *s->items);
    s->weights = s2s_xcalloc(s->n, sizeof *s->weights);
    s->ended = s2s_xcalloc(s->n, sizeof *s->ended);
    s2s_pyrandom_seed(&s->random, node->seed);
    for (size_t i = 0; i < s->n; i++) {
        if (is_open) {
            open_place(s, i);
        } else {
            s->items[i] = (struct stream){.node = node->items[i]};
            s->weights[i] = node->weights[i];
        }
    }
}

static int stream_next(struct stream *s, struct s2s_place *place, struct s2s_error *err);

/* One of those that are not at their end; false: all are. */
static bool draw_live(struct stream *s, size_t *item)
{
    size_t n = 0;
    double *weights = s2s_xmalloc((s->n + 1) * sizeof *weights);
    size_t *live = s2s_xmalloc((s->n + 1) * sizeof *live);
    for (size_t i = 0; i < s->n; i++)
        if (!s->ended[i]) {
            weights[n] = s->weights[i];
            live[n++] = i;
        }
    if (n > 0)
        *item = live[s2s_pyrandom_choice(&s->random, weights, n)];
    free(weights);
    free(live);
    return n > 0;
}

static int mux_next(struct stream *s, struct s2s_place *place, struct s2s_error *err)
{
    size_t item;
    while (draw_live(s, &item)) {
        int rc = stream_next(&s->items[item], place, err);
        if (rc != 0)
            return rc;
        s->ended[item] = true;
        stream_release(&s->items[item]);
    }
    return 0;
}

static int open_mux_next(struct stream *s, struct s2s_place *place, struct s2s_error *err)
{
    const size_t at = s2s_pyrandom_choice(&s->random, s->weights, s->n);
    int rc = stream_next(&s->items[at], place, err);
    if (rc != 0)
        return rc;
    stream_release(&s->items[at]);
    open_place(s, at);
    return stream_next(&s->items[at], place, err);
}

/* To the node's own end, whether it is repeated or not. */
static int next_once(struct stream *s, struct s2s_place *place, struct s2s_error *err)
{
    const struct s2s_blend_node *node = s->node;
    int rc;
    if (!s->begun && node->kind == S2S_BLEND_LEAF)
        s->walk = node->leaf->kind->begin(node->leaf);
    else if (!s->begun)
        begin_mux(s);
    s->begun = true;
    switch (node->kind) {
    case S2S_BLEND_LEAF:
        rc = node->leaf->kind->next(s->walk, place, err);
        place->leaf = node->leaf_idx;
        return rc;
    case S2S_BLEND_MUX:
        return mux_next(s, place, err);
    case S2S_BLEND_OPEN_MUX:
        return open_mux_next(s, place, err);
    }
    S2S_BUG("kind %d of a blend", (int)node->kind);
}

static int stream_next(struct stream *s, struct s2s_place *place, struct s2s_error *err)
{
    for (;;) {
        int rc = next_once(s, place, err);
        s->gave |= rc > 0;
        /* what has no sample at all is not asked for ever */
        if (rc != 0 || !s->node->repeat || !s->gave)
            return rc;
        stream_release(s);
    }
}

/* ---- the source ---- */

struct blend {
    struct s2s_source base;
    struct s2s_blend_node *root;
    struct s2s_source **leaves; /* [n_leaves], lent by the tree */
    size_t n_leaves, cap_leaves;
    int64_t n_samples;
    char digest[33]; /* of the config; empty: none */
};

struct blend_walk {
    struct s2s_walk base;
    struct stream root;
    int64_t n_given;
};

static struct s2s_walk *begin(struct s2s_source *base)
{
    struct blend_walk *w = s2s_xcalloc(1, sizeof *w);
    w->base.source = base;
    w->root.node = ((struct blend *)base)->root;
    return &w->base;
}

static int next(struct s2s_walk *base, struct s2s_place *place, struct s2s_error *err)
{
    struct blend_walk *w = (struct blend_walk *)base;
    struct blend *blend = (struct blend *)base->source;
    if (blend->n_samples > 0 && w->n_given == blend->n_samples)
        return 0;
    int rc = stream_next(&w->root, place, err);
    w->n_given += rc > 0;
    blend->base.n_marked = 0;
    for (size_t i = 0; rc == 0 && i < blend->n_leaves; i++)
        blend->base.n_marked += blend->leaves[i]->n_marked;
    return rc;
}

static void end(struct s2s_walk *base)
{
    stream_release(&((struct blend_walk *)base)->root);
    free(base);
}

static int load(const struct s2s_source *base, struct s2s_sample *sample,
                const struct s2s_place *place, struct s2s_error *err)
{
    const struct s2s_source *leaf = ((const struct blend *)base)->leaves[place->leaf];
    return leaf->kind->load(leaf, sample, place, err);
}

static char *where(const struct s2s_source *base, const struct s2s_place *place)
{
    const struct s2s_source *leaf = ((const struct blend *)base)->leaves[place->leaf];
    return leaf->kind->where(leaf, place);
}

static bool digest(const struct s2s_source *base, size_t k, char hex[33])
{
    const struct blend *blend = (const struct blend *)base;
    if (blend->digest[0] && k-- == 0) {
        memcpy(hex, blend->digest, sizeof blend->digest);
        return true;
    }
    for (size_t i = 0; i < blend->n_leaves; i++) {
        size_t n = 0;
        if (s2s_source_digest(blend->leaves[i], k, hex))
            return true;
        while (s2s_source_digest(blend->leaves[i], n, hex))
            n++;
        k -= n;
    }
    return false;
}

static void close_blend(struct s2s_source *base)
{
    struct blend *blend = (struct blend *)base;
    s2s_blend_node_free(blend->root);
    free(blend->leaves);
    free(blend);
}

static const struct s2s_source_kind kind_of_blends = {begin, next,   end,        load,
                                                      where, digest, close_blend};

static void number_leaves(struct blend *blend, struct s2s_blend_node *node)
{
    if (node->kind == S2S_BLEND_LEAF) {
        s2s_grow(&blend->leaves, blend->n_leaves, &blend->cap_leaves, sizeof *blend->leaves);
        node->leaf_idx = (uint32_t)blend->n_leaves;
        blend->leaves[blend->n_leaves++] = node->leaf;
    }
    for (size_t i = 0; i < node->n_items; i++)
        number_leaves(blend, node->items[i]);
}

struct s2s_source *s2s_source_open_blend(struct s2s_blend_node *root, int64_t n_samples,
                                         const char *text, size_t len)
{
    struct blend *blend = s2s_xcalloc(1, sizeof *blend);
    blend->base.kind = &kind_of_blends;
    blend->root = root;
    blend->n_samples = n_samples;
    number_leaves(blend, root);
    if (text)
        s2s_xxh3_128_hex(blend->digest, text, len);
    return &blend->base;
}
