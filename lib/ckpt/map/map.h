/*
 * Name maps between Megatron and Hugging Face. A map is a readable table (map_tables.c,
 * map_composites.c, or a file of the user's), one line a rule:
 *
 *     MEGATRON-NAME   HUGGING-FACE-NAME   TRANSFORM [SHAPE] [transposed]
 *                                                   [?|?tied|?conv_bias|?projection|?WORD] [?+NAME]
 *
 * {N} is the layer's number, {E} the expert's, {a,b} a list, {*} at the end whatever follows (that
 * no rule before has taken). Transforms, all in terms of rows:
 *
 *   - copy: the same tensor (lists on both sides pair up)
 *   - vocab: the same, but rows past the vocabulary are padding
 *   - qkv: rows by group (its q heads, k, v) <-> three tensors q, k, v
 *   - heads: rows by head (q, k, v) <-> one tensor of all q, all k, all v
 *   - split: equal row ranges <-> that many tensors
 *   - concat: several tensors <-> one, rows behind each other
 *   - mamba: rows by tensor-parallel rank (z, x, B, C, dt, or x, B, C) <-> all ranks' rows of each
 *     of these. Nothing towards Megatron
 *   - experts: entry E of axis 0 <-> one tensor an expert (with a list: split as well)
 *   - again: vocab once more, where no other rule has made that Hugging Face name: of a model that
 *     stores what Megatron ties. Nothing towards Megatron
 *
 * transposed (of copy and experts): with the last two axes of the source exchanged before.
 *
 * A Megatron tensor may lack ".{N}" and have all layers on a leading axis instead. "?" marks what
 * may be absent, "?tied" what may be unless the arguments or the configuration say that words are
 * not tied, "?conv_bias" and "?projection" what may be when the configuration says that there is
 * none; "?qkv_bias", "?bias" (of attention's output), "?mlp_bias", "?qk_norm" and "?shared_gate"
 * what may be unless these say that there is one. What one layer has that may be absent, all layers
 * of its section have; rules of a section with the same "?+NAME" are all there or all absent. Of
 * several rules of a layer with one Hugging Face name the first is what is written towards
 * Megatron; of several with one Megatron name one must be there.
 *
 * A shape is that of the Hugging Face tensor, and checked before anything is written: [H,q], with |
 * between those of a list's items. A capital letter is one number in the whole model (each "part"
 * is one of its own), a small letter in the layer; else a number, * for any, or a sum (i+c+n). e is
 * also how many experts the layer has, H also the hidden_size of the configuration.
 *
 * Other lines ("#" begins a comment):
 *
 *   - family NAME: begins a map
 *   - detect [part] NAME.. [!NAME..]: names that a source of this family has, or has not; part: it
 *     is found only where a "part" line asks for it
 *   - model_type NAME..: what its config.json says it is. It tells families apart whose detect
 * lines want the same names; without a config.json the first is taken that has none of its !NAMEs
 *   - include FAMILY M-PREFIX H-PREFIX: also a built-in one, from a file; =FAMILY has its Hugging
 *     Face names on both sides
 *   - part FAMILY|FAMILY.. M-PREFIX H-PREFIX [?]: includes the first of these that is in the source
 *     (?: or none)
 *   - section NAME: rules up to the next section hold for layers that have this tensor; those
 *     without {N} hold when layer 0 has it
 *   - trains: the names on the left are those of a program that trains Hugging Face's models, not
 *     Megatron's
 *   - numbered M-PREFIX: the stack of layers with this prefix never lies on a leading axis
 *   - drop NAME: known, and not wanted on the other side; drop_hf NAME: a Hugging Face name
 *   - rename NAME NAME: a source's name that is as the first is read as if it were the second; of
 *     several such lines the first that fits. {1} and {2} are what "where" says
 *   - where NAME..: the lines "rename" that follow hold only of a source that has all of these. {1}
 *     and {2} are any word between dots there, the same in all lines; of a source that has names
 *     with other words nothing is renamed
 */
#ifndef CKPT_MAP_H
#define CKPT_MAP_H

#include "lib/ckpt/plan.h"

/* Whether Megatron's layers lie on a leading axis or are numbered in names. AUTO: on an axis where
 * all layers of a stack are alike, as GPTModel writes them. */
enum ckpt_layers { CKPT_LAYERS_AUTO, CKPT_LAYERS_STACKED, CKPT_LAYERS_NUMBERED };

struct ckpt_map_request {
    struct s2s_ckpt *ckpt;
    const char *name; /* a family, a file, or NULL: found from the names */
    const json_t *config;
    const json_t *beside;    /* the configuration that came with the checkpoint; NULL */
    bool keep_vocab_padding; /* to Hugging Face */
    int64_t vocab_multiple;  /* to Megatron: rows become a multiple of it, with zeros; 0: as is */
    enum ckpt_layers layers; /* to Megatron */
};

/* UNTIED: what the configuration calls tied is written apart, or twice ("again"). TIED: what it
 * calls a matrix of its own is not there, and the arguments say that it is the words'. */
enum ckpt_tie { CKPT_TIE_AS_SAID, CKPT_TIED, CKPT_UNTIED };

/* What became of the names of a source, also where none was mapped. All zero to begin with. */
struct ckpt_map_result {
    char family[64];     /* of the name map; "": names are kept */
    enum ckpt_tie tie;   /* what config.json has to say of the output matrix */
    const char **unused; /* weights that go nowhere; lent by the source. Gives: free */
    size_t n_unused, cap_unused;
    size_t n_state; /* other tensors, which are left out: */
    /* those of which this is true; NULL: none */
    bool (*is_left)(const char *name);
    int64_t rows_cut; /* past the vocabulary, of each of its matrices */
};
/* One more that goes nowhere. */
void ckpt_map_add_unused(struct ckpt_map_result *result, const char *name);
/* Is it none of the weights that a map takes: the optimizer's, other state, an extra state? */
bool ckpt_map_is_state(const char *name);

/* A name without the "module." of wrappers and what state dicts have in front of it ("model.",
 * Lightning's "state_dict.", a heterogeneous model's "mimo."); experts as torch_dist has them,
 * whose number stands behind a live model's local_experts or weight. Gives: free. */
char *ckpt_map_plain_name(const char *name);
/* A name without what PyTorch (compile, FSDP, checkpointing of activations) wraps modules into;
 * "module." of DDP and DeepSpeed everywhere, or in front only: a module of the model's own may have
 * that name. Gives: free. */
char *ckpt_map_unwrapped(const char *name, bool everywhere);
/* A weight whose name only Megatron gives, or NULL. Lends until the checkpoint is closed. */
const char *ckpt_map_megatron_name(const struct s2s_ckpt *ckpt);
/* Are these the names of a family, which Hugging Face's names are to be made of? */
bool ckpt_map_wanted(const struct s2s_ckpt *ckpt);
/* And Megatron's? */
bool ckpt_map_is_megatron(const struct s2s_ckpt *ckpt);
/* Is a tensor of this name a LoRA adapter's, or does it lie under one? */
bool ckpt_map_is_adapted(const char *name);
/* Does a tensor of this name hold packed numbers, or what they are to be multiplied by? */
bool ckpt_map_is_quantised(const char *name);
/* UNSUPPORTED: adapters, or quantised weights, which are no weights that a map could rename; for
 * our own maps (ours) also an encoder that is none of transformers'. */
int ckpt_map_refuse(const struct s2s_ckpt *ckpt, bool ours, struct s2s_error *err);
/* Fills plan with Hugging Face targets. NOTFOUND lists what a layer needs and the source lacks. */
int ckpt_map_to_hf(struct s2s_ckpt_plan *plan, const struct ckpt_map_request *request,
                   struct ckpt_map_result *result, struct s2s_error *err);
/* The other direction. request->name is needed. */
int ckpt_map_to_megatron(struct s2s_ckpt_plan *plan, const struct ckpt_map_request *request,
                         struct ckpt_map_result *result, struct s2s_error *err);
/* Is there a family of models of one part that config.json calls so? */
bool ckpt_map_knows_type(const char *type);
/* Has a source under Hugging Face's names all that the family named wants, in shapes that fit?
 * NOTFOUND, SHAPE: no, and what. */
int ckpt_map_check_hf(const struct ckpt_map_request *request, struct s2s_error *err);

/* ---- the table ---- */

enum ckpt_transform {
    CKPT_MAP_COPY,
    CKPT_MAP_VOCAB,
    CKPT_MAP_QKV,
    CKPT_MAP_HEADS,
    CKPT_MAP_SPLIT,
    CKPT_MAP_CONCAT,
    CKPT_MAP_MAMBA,
    CKPT_MAP_EXPERTS,
    CKPT_MAP_AGAIN,
    CKPT_MAP_DROP,
};

/* When may a rule's tensor be absent? */
enum ckpt_absence {
    CKPT_NEVER_ABSENT,
    CKPT_MAY_BE_ABSENT,
    CKPT_ABSENT_IF_TIED,
    CKPT_ABSENT_IF_NO_CONV_BIAS,
    CKPT_ABSENT_IF_NO_PROJECTION,
    CKPT_ABSENT_UNLESS_QKV_BIAS, /* unless something says that the model has it (map_absence.c) */
    CKPT_ABSENT_UNLESS_BIAS,
    CKPT_ABSENT_UNLESS_MLP_BIAS,
    CKPT_ABSENT_UNLESS_QK_NORM,
    CKPT_ABSENT_UNLESS_SHARED_GATE,
};

struct ckpt_rule {
    char *megatron, *hf; /* with {N}, {E} and at most one list */
    enum ckpt_transform transform;
    enum ckpt_absence absence;
    bool transposed; /* the last two axes of the source are exchanged */
    char *company;   /* with which other rules it is there or absent; NULL: with none */
    char *same;      /* the Megatron name in the table: rules that share it make the same tensor */
    char *shape;     /* of the Hugging Face tensor, "[H,q]"; NULL: not said */
    int scope;       /* capital letters of a shape mean the same in rules of one scope */
    int section;     /* index in sections; -1: holds for the whole model */
    int group;       /* index in stacks: which stack of layers; -1: none */
    int line;        /* of the user's file; 0: of an included family */
};

/* Layers are numbered within a stack. */
struct ckpt_stack {
    char *prefix; /* a Megatron pattern up to "{N}" */
    bool numbered;
};

/* rules, sections and stacks of a map, which are gone through for each other */
enum { CKPT_MAP_MAX_RULES = 1 << 14 };

/* A line "rename", or (as NULL) a name of a line "where", which stands before. */
struct ckpt_spelling {
    char *name, *as;
};

struct ckpt_map {
    struct ckpt_rule *rules;
    size_t n_rules, cap_rules;
    char **sections;
    size_t n_sections, cap_sections;
    struct ckpt_stack *stacks;
    size_t n_stacks, cap_stacks;
    struct ckpt_spelling *spellings;
    size_t n_spellings, cap_spellings;
};

extern const char ckpt_map_tables[];       /* models of one part */
extern const char *const ckpt_map_texts[]; /* all families that are built in; NULL ends them */

/* Is this family of a "part" line in the source? */
typedef bool ckpt_map_choose(void *ctx, const char *text, const char *family, const char *m_prefix,
                             const char *h_prefix);

/* Reads one family ("=": its Hugging Face names on both sides) of a text that messages call file
 * (NULL: of the built-in ones), in which includes of built-in families work too. Of a "part" the
 * first family is taken for which choose says yes (NULL: always). NOTFOUND, FORMAT (file:line). */
int ckpt_map_parse(struct ckpt_map *map, const char *text, const char *file, const char *family,
                   ckpt_map_choose *choose, void *ctx, struct s2s_error *err);
void ckpt_map_release(struct ckpt_map *map);
struct ckpt_map_family {
    char name[64];
    char detect[512], model_types[256]; /* words of the line, each with a space behind it; or "" */
    bool trains, renames;               /* it has such lines */
};
/* The families of a text, one after the other: false at the end. *at starts at 0. */
bool ckpt_map_next_family(const char *text, size_t *at, struct ckpt_map_family *family);

/* What a pattern's holes are in a name. */
struct ckpt_match {
    int64_t layer, expert; /* -1: no such hole, or (layer) on axis 0 */
    int item;              /* of the list; -1: none */
    bool stacked;          /* ".{N}" is missing: layers are axis 0 */
    const char *rest;      /* what {*} took, inside the name; NULL */
};
bool ckpt_map_match(const char *pattern, const char *name, struct ckpt_match *match);
/* The pattern with its holes filled. Gives: free. */
char *ckpt_map_fill(const char *pattern, const struct ckpt_match *match);
/* What {1} and {2} of a pattern are; "": not known. */
struct ckpt_words {
    char of[2][128];
};
/* The pattern with the words that are known in their places. Gives: free. */
char *ckpt_map_put_words(const char *pattern, const struct ckpt_words *words);
/* The first {1} or {2} of a pattern, or NULL. */
const char *ckpt_map_word_hole(const char *pattern);
/* Items of the pattern's list, of which there are at most so many; 0: it has none. */
enum { CKPT_MAP_MAX_ITEMS = 16 };
int ckpt_map_items(const char *pattern);
/* The same, where what has no list is one name. */
int ckpt_map_names(const char *pattern);
/* Does it end with {*}? */
bool ckpt_map_is_open(const char *pattern);
/* Braces in pairs, not nested, no empty hole, at most one list of at most CKPT_MAP_MAX_ITEMS
 * different items; "?" stands at the end of a line, not of a name. */
bool ckpt_map_is_pattern(const char *word);
/* What included names begin with: no list, so that one of the name stays the only one. */
bool ckpt_map_is_prefix(const char *word);
/* "[H,q]", "[q,H|k,H|k,H]": a letter, a number or * an axis, or a sum of them. */
bool ckpt_map_is_shape(const char *word);
/* As many shapes as items, or one for all. */
bool ckpt_map_shape_fits(const struct ckpt_rule *rule);
/* Do the lists of both sides fit the transform? */
bool ckpt_map_lists_fit(const struct ckpt_rule *rule);
/* The number that one side has and the other lacks, or NULL: all its tensors would be one. */
const char *ckpt_map_lost_number(const struct ckpt_rule *rule);

#endif
