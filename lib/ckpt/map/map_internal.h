/* What both directions of a name map share. */
#ifndef CKPT_MAP_INTERNAL_H
#define CKPT_MAP_INTERNAL_H

#include "lib/ckpt/map/map.h"

/* a tensor under the name that the rules know: without "module." wherever a wrapper put it */
struct ckpt_map_source {
    const char *name; /* of most, the end of the tensor's own: there may be a hundred thousand */
    const struct s2s_ckpt_tensor *tensor;
    uint16_t rule; /* 1 + the index of the first that takes the name; 0: none does */
    bool used;
};

/* ---- sources and their names (map_names.c) ---- */

/* All weights of the checkpoint, sorted. Gives: ckpt_map_free_list. *n_state: how many other
 * tensors there are (an optimizer's). */
size_t ckpt_map_list(struct ckpt_map_source **sources, const struct s2s_ckpt *ckpt,
                     size_t *n_state);
void ckpt_map_free_list(struct ckpt_map_source *sources, size_t n);
/* Gives the sources the names that the lines "where" and "rename" of a family say (map_spell.c), of
 * the user's text or (NULL) of a built-in one. */
void ckpt_map_respell(struct ckpt_map_source *sources, size_t n, const char *text,
                      const char *family);
/* Takes name. */
void ckpt_map_set_name(struct ckpt_map_source *source, char *name);
/* Gives its name, to be changed and set: it has none in between. */
char *ckpt_map_take_name(struct ckpt_map_source *source);
/* By name, as ckpt_map_find wants them. */
void ckpt_map_sort(struct ckpt_map_source *sources, size_t n);

/* ---- which rules may take a name (map_index.c) ---- */

/* The last two words of a rule's names, each as a hash; 0: any. */
struct ckpt_map_key {
    uint32_t hash;
    uint16_t rule;
};

struct ckpt_map_index {
    struct ckpt_map_key *keys; /* sorted */
    size_t n, cap;
};

struct ckpt_map_tries {
    const struct ckpt_map_index *index;
    uint32_t hash;
    size_t at[2]; /* the next key of any name, and of this */
};

/* Of Hugging Face's side of the rules, or of Megatron's. */
void ckpt_map_index_begin(struct ckpt_map_index *index, const struct ckpt_map *map, bool hf);
void ckpt_map_index_end(struct ckpt_map_index *index);
struct ckpt_map_tries ckpt_map_tries(const struct ckpt_map_index *index, const char *name);
/* The next rule, in their order, whose pattern may match the name. */
bool ckpt_map_next_try(struct ckpt_map_tries *tries, size_t *rule);

/* a name that is wanted and absent; of: the source's name that would make it, where they differ */
struct ckpt_map_missed {
    char *name, *of;
};

struct ckpt_map_engine {
    const struct ckpt_map_request *request;
    struct s2s_ckpt_plan *plan;
    struct ckpt_map map;
    struct ckpt_map_index index;     /* of the rules' source side */
    struct ckpt_map_source *sources; /* sorted by name */
    size_t n_sources;
    const struct ckpt_map_source *copy; /* NULL, or the one that is not found (map_absence.c) */
    bool to_megatron;
    char *prefix;             /* of a part of a model; NULL: this is all of it */
    bool as_saved;            /* the sources have the names that save_pretrained gives */
    const json_t *args;       /* of the common state; NULL */
    const json_t *config;     /* of the model, or of the one part of it that this is; NULL */
    json_t *own_config;       /* the language model's configuration of the common state; NULL */
    const json_t *any_config; /* the first of the two that there is */
    int64_t *n_layers;        /* by stack: the highest layer + 1 */
    /* by section, then layer: 1 the layer has it, -1 it has not, 0 not looked up */
    signed char *in_section;
    int64_t max_layers;
    int64_t mtp_layers; /* layers a depth of multi-token prediction (map_mtp.c); 0: none */
    bool hybrid_mtp;    /* the tables number them in a row */
    bool guessed; /* a number that nothing says was taken from elsewhere, and that was warned of */
    /* by rule: 1 its tensor must be there, -1 it need not, 0 not looked up */
    signed char *needed;
    bool *own; /* by rule: its name in the source belongs to no other section */
    struct ckpt_map_missed *missed;
    size_t n_missed, cap_missed;
    int64_t n_missed_more; /* not in the list */
    int64_t rows_cut;      /* past the vocabulary */
    struct s2s_error *err;
};

/* Of what does not fit into an error that lists what is wrong. */
static inline enum s2s_log_level ckpt_map_list_level(const struct ckpt_map_engine *e)
{
    return e->request->only_warns ? S2S_LOG_WARN : S2S_LOG_ERROR;
}

/* Lists the sources and reads the map. NOTFOUND, FORMAT, UNSUPPORTED (ckpt_map_refuse).
 * ckpt_map_end also after failure. */
int ckpt_map_begin(struct ckpt_map_engine *e, struct s2s_ckpt_plan *plan,
                   const struct ckpt_map_request *request, bool to_megatron,
                   struct ckpt_map_result *result, struct s2s_error *err);
/* Notes the sources that were not used and releases everything. */
void ckpt_map_end(struct ckpt_map_engine *e, struct ckpt_map_result *result);

/* The source's tensor, as the rule wants it. */
const struct s2s_ckpt_tensor *ckpt_map_tensor(const struct ckpt_map_engine *e,
                                              const struct ckpt_rule *rule,
                                              const struct ckpt_map_source *source);
/* Two sources that go into one target, rows behind each other: SHAPE where anything but the number
 * of rows differs. */
int ckpt_map_check_alike(const struct ckpt_map_engine *e, const struct s2s_ckpt_tensor *a,
                         const struct s2s_ckpt_tensor *b, int rows_axis);
/* The side of a rule that the source has. */
const char *ckpt_map_source_side(const struct ckpt_map_engine *e, const struct ckpt_rule *rule);
/* Finds the rule of each source. To Megatron n_layers is known then. */
void ckpt_map_match_sources(struct ckpt_map_engine *e);
/* The rule that takes the source's name at a layer: of those that stand for it the first whose
 * section the layer has, or the first; NULL: none takes it. After ckpt_map_sections_begin. */
const struct ckpt_rule *ckpt_map_rule_at(const struct ckpt_map_engine *e,
                                         const struct ckpt_map_source *source, int64_t layer);
/* By name, or NULL. */
struct ckpt_map_source *ckpt_map_find(const struct ckpt_map_engine *e, const char *name);
/* By a pattern whose holes are filled. */
struct ckpt_map_source *ckpt_map_find_at(const struct ckpt_map_engine *e, const char *pattern,
                                         const struct ckpt_match *at);
/* From the config, else from the arguments that the checkpoint saved; 0: unknown. */
int64_t ckpt_map_number(const struct ckpt_map_engine *e, const char *config_key,
                        const char *args_key);
/* Is this stack of layers (a Megatron prefix) a tower beside a language model, or does it predict
 * further tokens? What configurations say of layers does not hold there. */
bool ckpt_map_is_tower(const struct ckpt_map_engine *e, const char *stack);
/* Heads of a vision tower whose q, k and v together are that tensor of so many rows. NOTFOUND. */
int ckpt_map_vision_heads(struct ckpt_map_engine *e, const struct s2s_ckpt_tensor *t, int64_t rows,
                          int64_t *heads);

/* Where the part that request->name calls by its model_type lies (map_parts.c): as a map's text
 * with its one family "part". Gives: free, and e->prefix. UNSUPPORTED: nowhere, or nobody knows
 * where. */
int ckpt_map_find_part(struct ckpt_map_engine *e, char **text, struct s2s_error *err);

/* Goes through the rows of a Mamba mixer's fused tensor (map_mamba.c) section by section, in the
 * order that Hugging Face has them. SHAPE, NOTFOUND. */
typedef void ckpt_map_rows(void *ctx, int64_t begin, int64_t n_rows);
int ckpt_map_mamba(struct ckpt_map_engine *e, const struct ckpt_map_source *source, int64_t rows,
                   ckpt_map_rows *add, void *ctx);

/* ---- layers that predict further tokens (map_mtp.c) ---- */

/* Gives the sources the numbers that the tables have. */
void ckpt_map_mtp_begin(struct ckpt_map_engine *e);
/* A Megatron name of the tables as Megatron has it. Takes name, gives it or another: free. */
char *ckpt_map_mtp_name(const struct ckpt_map_engine *e, char *name);
/* What a depth lacks of its own. After ckpt_map_sections_begin. */
void ckpt_map_miss_mtp(struct ckpt_map_engine *e);

/* ---- what may be absent (map_absence.c) ---- */

/* Do the arguments, or else the configuration, say that words and outputs have one matrix? */
bool ckpt_map_says_tied(const struct ckpt_map_engine *e);
/* Does the configuration alone say so, the arguments not? */
bool ckpt_map_config_ties(const struct ckpt_map_engine *e);
/* Is there one that denies what the arguments say, or leaves it to its class? */
bool ckpt_map_config_unties(const struct ckpt_map_engine *e);
/* To Megatron: an output matrix that the configuration calls the words', and that is their copy bit
 * for bit, counts as absent: published models have it stored twice. Reading may fail. */
int ckpt_map_leave_out_copy(struct ckpt_map_engine *e);
/* May the rule's tensor be absent, by its word (map.h) and what arguments and configuration say? */
bool ckpt_map_is_optional(const struct ckpt_map_engine *e, const struct ckpt_rule *rule);

/* ---- what is missing (map_missed.c) ---- */

/* After n_layers is known. A layer has a section when the source has any of the section's names
 * that no other section has: what it then lacks is missing, the tensor that marks it included. */
void ckpt_map_sections_begin(struct ckpt_map_engine *e);
/* Must the rule's tensor be there? Also what may be absent must, where another layer has it, or
 * what goes along with it. After ckpt_map_sections_begin. */
bool ckpt_map_is_needed(const struct ckpt_map_engine *e, size_t i_rule);
/* Does the source have, at that layer, what another rule makes the same tensor of? */
bool ckpt_map_has_same(const struct ckpt_map_engine *e, size_t i_rule, int64_t layer);
/* Has it, at that layer, this item of a pattern, by a number or on an axis? */
bool ckpt_map_has_item(const struct ckpt_map_engine *e, const char *pattern, int64_t layer,
                       int item);
bool ckpt_map_in_section(const struct ckpt_map_engine *e, int section, int64_t layer);

void ckpt_map_miss(struct ckpt_map_engine *e, const char *name, const char *of);
/* Those of the pattern's names at a layer that the source lacks, of an expert or (0) of none. */
void ckpt_map_miss_names(struct ckpt_map_engine *e, const char *pattern, int64_t layer,
                         int64_t expert);
/* Two numbers of each rule at each layer (-1: of no layer), 0 to begin with. */
struct ckpt_map_counts {
    const struct ckpt_map_engine *e;
    int64_t (**of)[2]; /* by rule, then by layer + 1; NULL: none was asked for */
};
void ckpt_map_counts_begin(struct ckpt_map_counts *counts, const struct ckpt_map_engine *e);
/* NULL: there is no such layer. */
int64_t *ckpt_map_count(struct ckpt_map_counts *counts, size_t rule, int64_t layer);
void ckpt_map_counts_end(struct ckpt_map_counts *counts);
void ckpt_map_miss_experts(struct ckpt_map_engine *e);
void ckpt_map_miss_layers(struct ckpt_map_engine *e);
/* SHAPE: more layers than the configuration or the arguments say. */
int ckpt_map_check_layers(struct ckpt_map_engine *e);
/* NOTFOUND with the whole list, if there is one. */
int ckpt_map_missed(struct ckpt_map_engine *e);
void ckpt_map_missed_release(struct ckpt_map_engine *e);

/* ---- do the shapes fit each other? (map_shapes.c) ---- */

/* A tensor under its Hugging Face name: of the source, or of the plan. Borrows. */
struct ckpt_map_shaped {
    const char *name;
    enum s2s_dtype dtype;
    int n_dims;
    const int64_t *shape;
};
struct ckpt_map_shaped ckpt_map_shaped(const struct ckpt_map_engine *e, size_t i);
size_t ckpt_map_n_shaped(const struct ckpt_map_engine *e);
/* Of the tensors for which a rule says a shape. SHAPE lists what does not fit, NOTFOUND the experts
 * that a router wants and that are not there. */
int ckpt_map_check_shapes(struct ckpt_map_engine *e);

/* SHAPE: transformers' class of the configuration's model_type has not one of these tensors, or has
 * others always. */
int ckpt_map_check_kind(struct ckpt_map_engine *e);
/* SHAPE: --map names a family of other model_types. */
int ckpt_map_check_family(const struct ckpt_map_engine *e, const char *family,
                          struct s2s_error *err);

#endif
