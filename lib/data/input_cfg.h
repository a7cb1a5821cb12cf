/* How an item of input_cfg becomes a part of a blend. Inside lib/data. */
#ifndef S2S_DATA_INPUT_CFG_H
#define S2S_DATA_INPUT_CFG_H

#include "lib/conf/conf.h"
#include "lib/data/blend.h"

/* What flows down to the items of a group. */
struct data_attributes {
    struct s2s_source_options source; /* text_field, lang_field, shuffle, seed, .. */
    bool force_finite, force_one_kind;
    size_t max_open; /* streams; 0: all */
    json_t *tags;    /* those of the groups above, which win over an item's; owned, may be NULL */
};

struct data_blend_reader {
    const struct s2s_blend_options *opt;
    double *temperatures; /* [n_temperatures]; one: of all levels */
    size_t n_temperatures;
    size_t depth, deepest; /* levels of lists */
    struct s2s_error *err;
};

/* A node, and what must be the same for all items of a level. */
struct data_blend_item {
    struct s2s_blend_node *node;
    bool is_tarred;
};

/* shard_seed, or a field's seed: a number, or a word that stands for the seed of the run. *has says
 * whether there is one; may be NULL. */
int data_blend_seed(uint64_t *seed, bool *has, const struct s2s_conf *conf, const char *key,
                    const struct data_blend_reader *r);
/* Ends a list of items: what is not finite repeats them, and a list of one item is that item. */
void data_blend_end_list(struct s2s_blend_node **node, const struct data_attributes *a);
/* Opens the files of an item that is no group. UNSUPPORTED: nobody reads its type. */
int data_blend_read_files(struct data_blend_item *item, const struct s2s_conf *conf,
                          const char *type, const struct data_attributes *a,
                          const struct data_blend_reader *r);

#endif
