/*
 * Pairs of a text and a plain tensor in dicts, of which large torch.save files consist. Those that
 * follow each other become one CKPT_PAIRS, in which each takes some five bytes beside its text.
 */
#ifndef CKPT_PICKLE_PAIRS_H
#define CKPT_PICKLE_PAIRS_H

#include "lib/ckpt/pickle/pickle.h"
#include "lib/ckpt/pickle/view.h"

struct pickle_machine;

/* A place in a dict; initially {.dict = dict}. */
struct ckpt_pairs {
    const struct ckpt_node *dict;
    /* The current pair. Nodes of a CKPT_PAIRS are made anew for each, and lent until the next. */
    const struct ckpt_node *key, *value;
    /* NULL, or a zero-terminated text that ends in the key: what ckpt_pickle_taker.prefix said,
     * prefix_len bytes, is before it. As long-lived as the pickle's names, or as what
     * ckpt_pickle_taker.known returned. */
    const char *name;
    size_t prefix_len;
    /* the rest is private */
    uint32_t i, left; /* the next item; pairs left of the CKPT_PAIRS before it */
    const char *at;   /* where these are */
    struct ckpt_node text, tensor;
    char packed[CKPT_MAX_PACKED];
};

/* Goes on to the next pair, at first to the first. false: there is none. */
bool ckpt_pairs_next(struct ckpt_pairs *pairs);

/* Adds pairs that are on the stack from place `at` on to a dict that is filled from there, as a
 * CKPT_PAIRS, and returns their number. 0: those there are no such pairs, or only a few. `dict_at`:
 * the dict's place on the stack. */
size_t ckpt_pickle_add_pairs(struct pickle_machine *m, struct ckpt_node *dict, size_t dict_at,
                             size_t at);

#endif
