/*
 * Name maps between Megatron and Hugging Face. A map is a readable table (map_tables.c,
 * map_composites.c, or a user's file), one rule per line:
 *
 *     MEGATRON-NAME   HUGGING-FACE-NAME   TRANSFORM [SHAPE] [transposed]
 *                                                   [?|?tied|?conv_bias|?projection|?WORD] [?+NAME]
 *
 * In a name {N} is a layer number, {E} an expert number, {a,b} a list of alternatives, and {*} at
 * the end any rest that no earlier rule has taken. Transforms, in terms of rows:
 *
 *   - copy: the same tensor (lists on both sides correspond item by item)
 *   - vocab: the same, but rows past the vocabulary are padding
 *   - qkv: rows by group (its q heads, k, v) <-> three tensors q, k, v
 *   - heads: rows by head (q, k, v) <-> one tensor of all q, all k, all v
 *   - split: equal row ranges <-> that many tensors
 *   - concat: several tensors <-> one, their rows concatenated
 *   - mamba: rows by tensor-parallel rank (z, x, B, C, dt, or x, B, C) <-> all ranks' rows of each
 *     of these. Refused towards Megatron unless another rule takes the tensor
 *   - experts: entry E of axis 0 <-> one tensor per expert (with a list: also split)
 *   - again: a second vocab, if no other rule has made that Hugging Face name: for models that
 *     store a matrix which is tied in Megatron. Nothing towards Megatron
 *
 * transposed (with copy and experts): the last two axes of the source are exchanged first.
 *
 * A Megatron tensor may lack ".{N}" and have all layers on a leading axis instead.
 *
 * Tensors are required unless marked: "?" is optional, "?tied" optional unless arguments or
 * configuration say that the embeddings are untied, "?conv_bias" and "?projection" optional if the
 * configuration says that there is none; "?qkv_bias", "?bias" (of attention's output), "?mlp_bias",
 * "?mixer_bias", "?qk_norm", "?shared_gate" and "?shared" (experts) optional unless these say that
 * there is one. If one layer of a section has an optional tensor, all must; rules of a section with
 * the same "?+NAME" are all present or all absent. Of several rules of a layer with one Hugging
 * Face name, the first is written towards Megatron; of several with one Megatron name, one must be
 * present.
 *
 * SHAPE is that of the Hugging Face tensor, and is checked before anything is written: [H,q], with
 * | between those of a list's items. A capital letter is the same number in the whole model (each
 * "part" counts as one), a small letter in a layer; an axis may also be a number, * for any, or a
 * sum (i+c+n). e is also the layer's number of experts, H the hidden_size of the configuration.
 *
 * Other lines ("#" starts a comment):
 *
 *   - family NAME: starts a map
 *   - detect [part] NAME.. [!NAME..]: names that a source of this family has and (with !) does not
 *     have; part: the family is only considered by "part" lines
 *   - model_type NAME..: the family's model types in config.json. They decide between families with
 *     the same names in their detect lines; without a config.json it is the first of these none of
 *     whose !NAMEs the source has
 *   - include FAMILY M-PREFIX H-PREFIX: adds the rules of a family (a file may include built-in
 *     ones) under these prefixes; =FAMILY has its Hugging Face names on both sides
 *   - part FAMILY|FAMILY.. M-PREFIX H-PREFIX [?]: includes the first of these families that the
 *     source has (?: or none)
 *   - section NAME: the rules up to the next section apply to layers that have this tensor; rules
 *     without {N} apply if layer 0 has it
 *   - trains: the left names are those of a program that trains Hugging Face's models, not
 *     Megatron's
 *   - numbered M-PREFIX: the stack of layers with this prefix never lies on a leading axis
 *   - drop NAME: a known name without counterpart; drop_hf NAME: the same of a Hugging Face name
 *   - rename NAME NAME: source names that match the first are read as the second; of several such
 *     lines the first match counts. {1} and {2} stand for what "where" has found
 *   - where NAME..: the following "rename" lines apply only to a source that has all of these
 *     names. {1} and {2} match any word between dots, the same in all lines; if a source has such
 *     names with several words, nothing is renamed
 */
#ifndef CKPT_MAP_H
#define CKPT_MAP_H

#include "lib/ckpt/plan.h"

/* How Megatron's side stores a stack of layers: on a leading axis of one tensor, or numbered in
 * names. AUTO: on an axis if all layers of the stack are alike, as its GPTModel does. */
enum ckpt_layers { CKPT_LAYERS_AUTO, CKPT_LAYERS_STACKED, CKPT_LAYERS_NUMBERED };

/* What to map, and how; all pointers are borrowed. */
struct ckpt_map_request {
    struct s2s_ckpt *ckpt;
    const char *name;        /* a family, a model_type or a file; NULL: detected from names */
    const json_t *config;    /* the user's config.json, which takes precedence; or NULL */
    const json_t *beside;    /* the config.json that came with the checkpoint; or NULL */
    bool is_part;            /* ckpt_map_check_hf: config is that of one part of beside, and name
                              * its model_type; the part may have any prefix */
    bool is_exact;           /* names are those of Hugging Face files: no wrappers to remove */
    bool keep_vocab_padding; /* to Hugging Face: keep rows past the vocabulary */
    int64_t vocab_multiple;  /* to Megatron: rows are zero-padded to a multiple; 0: not padded */
    enum ckpt_layers layers; /* to Megatron */
};

/* Whether embedding and output layer are tied, and whether config.json must change to say so. */
enum ckpt_tie {
    CKPT_TIE_AS_SAID, /* config.json is right */
    CKPT_TIED,        /* it says untied; there is one matrix, and the arguments agree */
    CKPT_UNTIED,      /* it says tied; two matrices are written, or one twice ("again") */
};

struct ckpt_map_names {
    const char **of; /* lent by the source */
    size_t n, cap;
};

/* Outcome of a mapping, also if names are kept. Initialise to zero. */
struct ckpt_map_result {
    char family[64];                              /* the name map used; "": names are kept */
    enum ckpt_tie tie;                            /* what config.json has to say about tying */
    struct ckpt_map_names unused, unused_objects; /* weights and objects without a target */
    struct ckpt_map_names dropped;                /* weights of "drop" lines */
    size_t n_state;                               /* number of other tensors left out: */
    /* those whose names satisfy this; NULL: none */
    bool (*is_left)(const char *name);
    int64_t rows_cut; /* padding rows removed from each embedding matrix */
};
/* Appends a name (kept, not copied). */
void ckpt_map_add_name(struct ckpt_map_names *names, const char *name);
void ckpt_map_free_result(struct ckpt_map_result *result);
/* Is this a name that maps ignore: optimizer or other state, or a module's extra state? */
bool ckpt_map_is_state(const char *name);

/* A tensor's name as rules spell it: without the "module." of wrappers and the prefixes of state
 * dicts ("model.", Lightning's "state_dict.", a heterogeneous model's "mimo."), and with experts as
 * in torch_dist (a live model has their number after "local_experts." or "weight"). Gives: free. */
char *ckpt_map_plain_name(const char *name);
/* A name without the components that wrappers add: torch.compile, FSDP, activation checkpointing,
 * and the "module." of DDP and DeepSpeed. "module." is removed everywhere, or only at the start,
 * since further inside it may be one of the model's own modules. Gives: free. */
char *ckpt_map_unwrapped(const char *name, bool everywhere);
/* The first weight with a name that only Megatron uses, lent until close; NULL: none. */
const char *ckpt_map_megatron_name(const struct s2s_ckpt *ckpt);
/* Do the names belong to a built-in family, so that they can be mapped to Hugging Face's? */
bool ckpt_map_wanted(const struct s2s_ckpt *ckpt);
/* The same, and are they Megatron's (see "trains" above)? */
bool ckpt_map_is_megatron(const struct s2s_ckpt *ckpt);
/* Is it a tensor of a LoRA adapter, or a weight wrapped by one? */
bool ckpt_map_is_adapted(const char *name);
/* Is it a quantised weight, or a quantisation scale? */
bool ckpt_map_is_quantised(const char *name);
/* UNSUPPORTED: the checkpoint has adapters or quantised weights, for which renaming is not enough;
 * or, for a built-in map (ours), an encoder of a kind that transformers lacks. */
int ckpt_map_refuse(const struct s2s_ckpt *ckpt, bool ours, struct s2s_error *err);
/* Fills plan (not sealed) with Hugging Face's tensors. NOTFOUND: no family fits, a number is
 * unknown, or required tensors are missing (all are listed). SHAPE, FORMAT, UNSUPPORTED. */
int ckpt_map_to_hf(struct s2s_ckpt_plan *plan, const struct ckpt_map_request *request,
                   struct ckpt_map_result *result, struct s2s_error *err);
/* The other direction: Megatron's tensors. request->name must not be NULL. */
int ckpt_map_to_megatron(struct s2s_ckpt_plan *plan, const struct ckpt_map_request *request,
                         struct ckpt_map_result *result, struct s2s_error *err);
/* Does a built-in family have this model_type of config.json? */
bool ckpt_map_knows_type(const char *type);
/* Checks a source with Hugging Face's names against the family request->name, without planning
 * anything. NOTFOUND, SHAPE: required tensors are missing, or shapes do not fit; all are listed.
 * UNSUPPORTED: the family cannot be checked. */
int ckpt_map_check_hf(const struct ckpt_map_request *request, struct s2s_error *err);

/* An output matrix that differs from the embedding to which the configuration ties it: a trained
 * head that transformers keeps, and that only the configuration denies. Names are the source's. */
struct ckpt_own_head {
    const char *name, *words; /* NULL: there is none */
};
/* Finds that of a source with Hugging Face's names (request as for ckpt_map_check_hf). It reads the
 * two tensors, up to the first difference. A source that no family fits has none. Fails as reading
 * does. */
int ckpt_map_own_head(const struct ckpt_map_request *request, struct ckpt_own_head *head,
                      struct s2s_error *err);

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

/* When a rule's tensor may be absent: the "?" words of the table (see above). */
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
    CKPT_ABSENT_UNLESS_SHARED,
};

/* A rule of a map: how a tensor of one side becomes one of the other. */
struct ckpt_rule {
    char *megatron, *hf; /* patterns with {N}, {E} and at most one list */
    enum ckpt_transform transform;
    enum ckpt_absence absence;
    bool transposed; /* the last two axes of the source are exchanged */
    char *company;   /* NAME of "?+NAME": all such rules or none; or NULL */
    char *same;      /* the Megatron name in the table: rules that share it make the same tensor */
    char *shape;     /* of the Hugging Face tensor, "[H,q]"; NULL: none given */
    int scope;       /* capital letters of shapes are shared by rules of one scope */
    int section;     /* index in sections: the layers that it applies to; -1: the whole model */
    int group;       /* index in stacks: its stack of layers; -1: none */
    int line;        /* in the user's file, for messages; 0: of an included family */
};

/* A stack: layers that are numbered together, such as a decoder's. */
struct ckpt_stack {
    char *prefix;  /* the Megatron pattern up to "{N}" */
    bool numbered; /* a "numbered" line names it */
};

/* Limit on rules, sections or stacks of a map, as some loops are quadratic. */
enum { CKPT_MAP_MAX_RULES = 1 << 14 };

/* A line "rename NAME AS"; or, if `as` is NULL, a name of the "where" line before such lines. */
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

extern const char ckpt_map_tables[];       /* models that are not composites */
extern const char *const ckpt_map_texts[]; /* texts of all built-in families; ends with NULL */

/* For "part" lines: is the source, under these prefixes, a model of this family (of the text, or
 * built-in)? */
typedef bool ckpt_map_choose(void *ctx, const char *text, const char *family, const char *m_prefix,
                             const char *h_prefix);

/* Reads the rules of a family from a text; `file` is its name for messages (both NULL: built-in; a
 * text may include built-in families, too). "=NAME": with Hugging Face names on both sides. A
 * "part" line selects the first family for which choose returns true (choose NULL: the first).
 * Gives: ckpt_map_release, only after success. NOTFOUND, FORMAT (file:line). */
int ckpt_map_parse(struct ckpt_map *map, const char *text, const char *file, const char *family,
                   ckpt_map_choose *choose, void *ctx, struct s2s_error *err);
void ckpt_map_release(struct ckpt_map *map);
/* The head of a family. */
struct ckpt_map_family {
    char name[64];
    char detect[512], model_types[256]; /* words of the line, each followed by a space; or "" */
    bool trains, renames;               /* has it such lines? */
};
/* Sets *family to the next family of a text; false: there are no more. *at is initially 0. */
bool ckpt_map_next_family(const char *text, size_t *at, struct ckpt_map_family *family);

/* What a pattern's holes match in a name. */
struct ckpt_match {
    int64_t layer, expert; /* for {N} and {E}; -1: no such hole, or `stacked` */
    int item;              /* index of the list's item; -1: no list */
    bool stacked;          /* the name lacks ".{N}": layers are on axis 0 */
    const char *rest;      /* what {*} matches, in the name; or NULL */
};
/* Does the name match the pattern? If so, *match says how. */
bool ckpt_map_match(const char *pattern, const char *name, struct ckpt_match *match);
/* The pattern with its holes filled. Gives: free. */
char *ckpt_map_fill(const char *pattern, const struct ckpt_match *match);
/* The words that {1} and {2} stand for; "": unknown yet. */
struct ckpt_words {
    char of[2][128];
};
/* The pattern with known words filled in. Gives: free. */
char *ckpt_map_put_words(const char *pattern, const struct ckpt_words *words);
/* The first {1} or {2} of a pattern; NULL: none. */
const char *ckpt_map_word_hole(const char *pattern);
/* Number of items in the pattern's list, at most CKPT_MAP_MAX_ITEMS; 0: no list. */
enum { CKPT_MAP_MAX_ITEMS = 16 };
int ckpt_map_items(const char *pattern);
/* Number of names it stands for in a layer: its items, or 1. */
int ckpt_map_names(const char *pattern);
/* Does it end with {*}? */
bool ckpt_map_is_open(const char *pattern);

/* ---- syntax of the words of a map ---- */

/* A name: braces are paired and not nested, no hole is empty, and there is at most one list, of at
 * most CKPT_MAP_MAX_ITEMS different items. No "?", which is a word of its own. */
bool ckpt_map_is_pattern(const char *word);
/* A prefix of included names: a name without a list, as the included ones may have one. */
bool ckpt_map_is_prefix(const char *word);
/* A shape, "[H,q]" or "[q,H|k,H|k,H]": for each axis a letter, a number, * or a sum of these. */
bool ckpt_map_is_shape(const char *word);
/* Are there as many shapes as items, or one for all? */
bool ckpt_map_shape_fits(const struct ckpt_rule *rule);
/* Do both sides have the lists that the transform needs? */
bool ckpt_map_lists_fit(const struct ckpt_rule *rule);
/* "{N}" or "{E}" if only one side has it, so that several tensors would become one; else NULL.
 * (With EXPERTS, Megatron's side may lack {E}: experts are on an axis.) */
const char *ckpt_map_lost_number(const struct ckpt_rule *rule);

/* ---- layers of a stack: on a leading axis, or numbered in names (layers.c) ---- */

/*
 * Names the layers in a plan of whole tensors (not sealed) as Megatron-Core's models ask for them.
 * A transformer block whose layers are alike saves "decoder.layers.mlp.linear_fc2.weight"
 * [n_layers, ..]; one whose layers differ, and every Mamba, hybrid or multi-token-prediction stack,
 * saves "decoder.layers.7.mlp.linear_fc2.weight" [..].
 *
 *   AUTO      numbered blocks go on an axis where Megatron-Core would do so: all layers alike, and
 *             the saved arguments speak of no layers that differ
 *   STACKED   every numbered block goes on an axis; SHAPE names what is not alike
 *   NUMBERED  every block that lies on an axis gets numbers
 *
 * Optimizer state follows its weights; UNSUPPORTED where Megatron-Core flattened it. Byte objects
 * of plan->source get their names, too: call this once. *n_changed is how many stacks changed.
 */
int s2s_ckpt_plan_layers(struct s2s_ckpt_plan *plan, enum ckpt_layers how, size_t *n_changed,
                         struct s2s_error *err);

/*
 * The content metadata that belongs to layers named so, out of a common state (NULL: there is
 * none): Megatron-LM hands it to the model, which then asks for numbers though its layers are alike
 * (non_homogeneous_layers). NULL: what is there may stay. Gives a reference.
 */
json_t *s2s_ckpt_layers_metadata(const json_t *common, enum ckpt_layers how);

/* ---- parts of a model (select.c) ---- */

/* Is this part of a model ("vision_model") the language model? The saved arguments describe that
 * one. */
bool ckpt_part_has_words(const char *part);
/* For a checkpoint that is one part of a model: the part's section of the model's config.json, with
 * tie_word_embeddings set if the whole model ties and the part has no output matrix. Gives a
 * reference; NULL: there is none. */
json_t *ckpt_part_config(const struct s2s_ckpt *ckpt, const json_t *config);

#endif
