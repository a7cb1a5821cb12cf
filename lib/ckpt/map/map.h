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
 *     of these. Refused towards Megatron where no other rule takes the tensor
 *   - experts: entry E of axis 0 <-> one tensor an expert (with a list: split as well)
 *   - again: vocab once more, where no other rule has made that Hugging Face name: of a model that
 *     stores what Megatron ties. Nothing towards Megatron
 *
 * transposed (of copy and experts): with the last two axes of the source exchanged before.
 *
 * A Megatron tensor may lack ".{N}" and have all layers on a leading axis instead. "?" marks what
 * may be absent, "?tied" what may be unless the arguments or the configuration say that words are
 * not tied, "?conv_bias" and "?projection" what may be when the configuration says that there is
 * none; "?qkv_bias", "?bias" (of attention's output), "?mlp_bias", "?mixer_bias", "?qk_norm" and
 * "?shared_gate" what may be unless these say that there is one. What one layer has that may be
 * absent, all layers of its section have; rules of a section with the same "?+NAME" are all there
 * or all absent. Of several rules of a layer with one Hugging Face name the first is what is
 * written towards Megatron; of several with one Megatron name one must be there.
 *
 * A shape is that of the Hugging Face tensor, and checked before anything is written: [H,q], with |
 * between those of a list's items. A capital letter is one number in the whole model (each "part"
 * is one of its own), a small letter in the layer; else a number, * for any, or a sum (i+c+n). e is
 * also how many experts the layer has, H also the hidden_size of the configuration.
 *
 * Other lines ("#" begins a comment):
 *
 *   - family NAME: begins a map
 *   - detect [part] NAME.. [!NAME..]: names that a source of this family has, and (with !) names
 *     that it does not have; part: the family is only tried where a "part" line asks for it
 *   - model_type NAME..: what config.json calls models of this family. That decides between
 *     families whose detect lines want the same names; without a config.json it is the first of
 *     them of whose !NAMEs the source has none
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

/* How Megatron's side has a stack of layers: on a leading axis of one tensor, or numbered in names.
 * AUTO: on an axis if all layers of the stack are alike, as its GPTModel writes them. */
enum ckpt_layers { CKPT_LAYERS_AUTO, CKPT_LAYERS_STACKED, CKPT_LAYERS_NUMBERED };

/* What is to be mapped, and how; all borrowed. */
struct ckpt_map_request {
    struct s2s_ckpt *ckpt;
    const char *name;        /* a family, a model_type or a file; NULL: found from the names */
    const json_t *config;    /* the user's configuration, which comes before all others; or NULL */
    const json_t *beside;    /* the configuration that came with the checkpoint; or NULL */
    bool is_part;            /* ckpt_map_check_hf: config is of one part of beside, and name its
                                model_type; it may lie behind any prefix */
    bool is_exact;           /* names stand in files of Hugging Face: nothing is around them */
    bool keep_vocab_padding; /* to Hugging Face: also the rows past the vocabulary */
    int64_t vocab_multiple; /* to Megatron: rows are filled up with zeros to a multiple; 0: as is */
    enum ckpt_layers layers; /* to Megatron */
    bool only_warns;         /* what is not as wanted is told of and no failure */
};

/* Whether words and outputs share one matrix, where config.json has to be changed to say so. */
enum ckpt_tie {
    CKPT_TIE_AS_SAID, /* config.json is right */
    CKPT_TIED,        /* it speaks of two matrices; there is one, and the arguments say so, too */
    CKPT_UNTIED,      /* it speaks of one; two are written, or the one twice ("again") */
};

struct ckpt_map_names {
    const char **of; /* lent by the source */
    size_t n, cap;
};

/* What became of the names of a source, also where none was mapped. All zero to begin with;
 * ckpt_map_free_result in the end. */
struct ckpt_map_result {
    char family[64];   /* of the name map that was used; "": names are kept */
    enum ckpt_tie tie; /* what config.json has to say of the output matrix */
    struct ckpt_map_names unused, unused_objects; /* weights and objects that go nowhere */
    struct ckpt_map_names dropped;                /* weights that the map knows and does not want */
    size_t n_state;                               /* how many other tensors are left out: */
    /* those for whose names this is true; NULL: none */
    bool (*is_left)(const char *name);
    int64_t rows_cut; /* rows past the vocabulary that are left out, of each matrix of words */
};
/* Keeps the pointer. */
void ckpt_map_add_name(struct ckpt_map_names *names, const char *name);
void ckpt_map_free_result(struct ckpt_map_result *result);
/* Is this the name of something that maps do not take: an optimizer's or other state, or a module's
 * extra state? */
bool ckpt_map_is_state(const char *name);

/* The name that a rule would know a tensor by: without the "module." of wrappers and what state
 * dicts put in front ("model.", Lightning's "state_dict.", a heterogeneous model's "mimo."), and
 * with experts spelled as in torch_dist (a live model has their number behind "local_experts." or
 * "weight"). Gives: free. */
char *ckpt_map_plain_name(const char *name);
/* A name without the components that wrappers add: torch.compile, FSDP, checkpointing of
 * activations, and the "module." of DDP and DeepSpeed. That one is taken off everywhere, or only in
 * front: further inside it may be the name of one of the model's own modules. Gives: free. */
char *ckpt_map_unwrapped(const char *name, bool everywhere);
/* The name of a weight that only Megatron calls so, lent until close; NULL: there is none. */
const char *ckpt_map_megatron_name(const struct s2s_ckpt *ckpt);
/* Do the names belong to a built-in family, so that they can become Hugging Face's? */
bool ckpt_map_wanted(const struct s2s_ckpt *ckpt);
/* The same, and are they Megatron's own (see "trains" above)? */
bool ckpt_map_is_megatron(const struct s2s_ckpt *ckpt);
/* Does the name belong to a LoRA adapter, or to a weight below one? */
bool ckpt_map_is_adapted(const char *name);
/* Does the name belong to packed numbers, or to the scales that they are multiplied by? */
bool ckpt_map_is_quantised(const char *name);
/* UNSUPPORTED: the checkpoint has adapters or quantised weights, for which other names are not
 * enough; ours (a built-in map): or an encoder whose kind transformers does not have. */
int ckpt_map_refuse(const struct s2s_ckpt *ckpt, bool ours, struct s2s_error *err);
/* Fills plan, which is not sealed, with Hugging Face's tensors. NOTFOUND: no family fits, a number
 * is not said anywhere, or the list of what the model needs and the source lacks. SHAPE, FORMAT,
 * UNSUPPORTED. */
int ckpt_map_to_hf(struct s2s_ckpt_plan *plan, const struct ckpt_map_request *request,
                   struct ckpt_map_result *result, struct s2s_error *err);
/* The other direction: Megatron's tensors. request->name must not be NULL. */
int ckpt_map_to_megatron(struct s2s_ckpt_plan *plan, const struct ckpt_map_request *request,
                         struct ckpt_map_result *result, struct s2s_error *err);
/* Does a built-in family have this model_type of config.json? */
bool ckpt_map_knows_type(const char *type);
/* Does a source that has Hugging Face's names have everything that the family request->name needs,
 * in shapes that fit? Nothing is planned. NOTFOUND, SHAPE: no; they list what. UNSUPPORTED: nobody
 * knows. */
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

/* When may a rule's tensor be absent? The words of the table stand for these (see above). */
enum ckpt_absence {
    CKPT_NEVER_ABSENT,
    CKPT_MAY_BE_ABSENT,
    CKPT_ABSENT_IF_TIED,
    CKPT_ABSENT_IF_NO_CONV_BIAS,
    CKPT_ABSENT_IF_NO_PROJECTION,
    CKPT_ABSENT_UNLESS_QKV_BIAS, /* unless arguments or configuration say that the model has it */
    CKPT_ABSENT_UNLESS_BIAS,
    CKPT_ABSENT_UNLESS_MLP_BIAS,
    CKPT_ABSENT_UNLESS_MIXER_BIAS,
    CKPT_ABSENT_UNLESS_QK_NORM,
    CKPT_ABSENT_UNLESS_SHARED_GATE,
};

/* One line of a map: how a tensor of one side becomes one of the other. */
struct ckpt_rule {
    char *megatron, *hf; /* patterns with {N}, {E} and at most one list */
    enum ckpt_transform transform;
    enum ckpt_absence absence;
    bool transposed; /* the last two axes of the source are exchanged */
    char *company;   /* NAME of "?+NAME": such rules are all there or all absent; or NULL */
    char *same;      /* the Megatron name in the table: rules that share it make the same tensor */
    char *shape;     /* of the Hugging Face tensor, "[H,q]"; NULL: not said */
    int scope;       /* capital letters of a shape mean the same in rules of one scope */
    int section;     /* index in sections: for which layers it holds; -1: for the whole model */
    int group;       /* index in stacks: which stack of layers it is about; -1: none */
    int line;        /* of the user's file, for messages; 0: of an included family */
};

/* Layers that are numbered together, such as a decoder's. */
struct ckpt_stack {
    char *prefix;  /* the Megatron pattern up to "{N}" */
    bool numbered; /* a line "numbered" is about it */
};

/* The most rules, sections or stacks of a map: some loops go through all of them for each. */
enum { CKPT_MAP_MAX_RULES = 1 << 14 };

/* A line "rename NAME AS". Or a name of the line "where" in front of such lines: `as` is NULL. */
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

/* Is the source a model of this family (of the text, or of the built-in ones), as a line "part"
 * asks, under these prefixes? */
typedef bool ckpt_map_choose(void *ctx, const char *text, const char *family, const char *m_prefix,
                             const char *h_prefix);

/* Reads the rules of a family from a text, which messages call file (both NULL: from the built-in
 * ones, which a text may include, too). "=NAME": with its Hugging Face names on both sides. Of a
 * line "part" the first family is taken for which choose says yes (choose NULL: the first). Gives:
 * ckpt_map_release, only after success. NOTFOUND, FORMAT (file:line). */
int ckpt_map_parse(struct ckpt_map *map, const char *text, const char *file, const char *family,
                   ckpt_map_choose *choose, void *ctx, struct s2s_error *err);
void ckpt_map_release(struct ckpt_map *map);
/* What stands at the head of a family. */
struct ckpt_map_family {
    char name[64];
    char detect[512], model_types[256]; /* words of the line, each with a space behind it; or "" */
    bool trains, renames;               /* does it have such lines? */
};
/* Sets *family to the next family of a text; false: there are no more. *at is 0 at first. */
bool ckpt_map_next_family(const char *text, size_t *at, struct ckpt_map_family *family);

/* What stands in a name in place of a pattern's holes. */
struct ckpt_match {
    int64_t layer, expert; /* of {N} and {E}; -1: there is no such hole, or `stacked` */
    int item;              /* which of the list's items; -1: there is no list */
    bool stacked;          /* the name lacks ".{N}": layers lie on axis 0 of the tensor */
    const char *rest;      /* what {*} stands for, a pointer into the name; or NULL */
};
/* Does the name fit the pattern? Then *match says how. */
bool ckpt_map_match(const char *pattern, const char *name, struct ckpt_match *match);
/* The pattern with its holes filled. Gives: free. */
char *ckpt_map_fill(const char *pattern, const struct ckpt_match *match);
/* The words that {1} and {2} stand for; "": not known yet. */
struct ckpt_words {
    char of[2][128];
};
/* The pattern with the words that are known put into its holes. Gives: free. */
char *ckpt_map_put_words(const char *pattern, const struct ckpt_words *words);
/* Points to the first {1} or {2} of a pattern; NULL: it has none. */
const char *ckpt_map_word_hole(const char *pattern);
/* How many items the pattern's list has, at most CKPT_MAP_MAX_ITEMS; 0: it has no list. */
enum { CKPT_MAP_MAX_ITEMS = 16 };
int ckpt_map_items(const char *pattern);
/* How many names it stands for in a layer: as many as items, or 1. */
int ckpt_map_names(const char *pattern);
/* Does it end with {*}? */
bool ckpt_map_is_open(const char *pattern);

/* ---- is a word of a map what it should be? ---- */

/* A name: braces come in pairs and are not nested, no hole is empty, there is at most one list and
 * its items (at most CKPT_MAP_MAX_ITEMS) are different. No "?": that is a word of its own. */
bool ckpt_map_is_pattern(const char *word);
/* What included names begin with: a name without a list, since the included ones may have one. */
bool ckpt_map_is_prefix(const char *word);
/* "[H,q]", "[q,H|k,H|k,H]": for each axis a letter, a number, * or a sum of these. */
bool ckpt_map_is_shape(const char *word);
/* Are there as many shapes as items, or one for all? */
bool ckpt_map_shape_fits(const struct ckpt_rule *rule);
/* Do both sides have the lists that the transform needs? */
bool ckpt_map_lists_fit(const struct ckpt_rule *rule);
/* "{N}" or "{E}", if only one side has it and all its tensors would become one; else NULL. (Of
 * EXPERTS, Megatron's side may lack {E}: they lie on an axis.) */
const char *ckpt_map_lost_number(const struct ckpt_rule *rule);

/* ---- parts of a model (select.c) ---- */

/* Is the part of a model that has this name ("vision_model") the language model? The saved
 * arguments are about that one. */
bool ckpt_part_has_words(const char *part);
/* Of a checkpoint that is one part of a model: the section of the model's config.json that is about
 * this part alone, and ties its words where the whole does and they have no output matrix. Gives a
 * reference; NULL: there is none. */
json_t *ckpt_part_config(const struct s2s_ckpt *ckpt, const json_t *config);

#endif
