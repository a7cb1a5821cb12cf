/* Between the machine, the values and objects that its opcodes give, and the list of classes. */
#ifndef CKPT_PICKLE_INTERNAL_H
#define CKPT_PICKLE_INTERNAL_H

#include "lib/ckpt/pickle/pickle.h"

enum pickle_verdict {
    PICKLE_ALLOWED,
    PICKLE_UNKNOWN,
    PICKLE_HOSTILE,
    /* as good as hostile but for one use: see pickle_make.c */
    PICKLE_GETATTR, /* getattr(class, "name") */
    PICKLE_OR,      /* or_(class.name, class.other) */
};

enum { PICKLE_FIRST_INT = -1, PICKLE_INTS = 1026, PICKLE_TEXTS = 64 };

/* Values that come again and again, and are never changed: small numbers, short texts (by a hash of
 * theirs), None, the truths and the empty tuple. */
struct pickle_known {
    struct ckpt_node *ints[PICKLE_INTS], *texts[PICKLE_TEXTS];
    struct ckpt_node *none, *truth[2], *empty, *forgotten;
};

/* Which entries of the memo are fetched again: one in ten of a large pickle's. The others are not
 * kept. */
struct pickle_wanted {
    bool all;       /* not known */
    uint64_t *bits; /* [n_words] by index */
    uint32_t *rank; /* [n_words]: how many before */
    size_t n_words;
};

/* A function that a pickle may only call, at once and in one way. */
struct pickle_function {
    struct ckpt_node *node; /* NULL: not met */
    size_t n_pushed;        /* how often it was pushed and not called */
};

struct pickle_machine {
    const unsigned char *bytes;
    size_t len, at, op_at; /* op_at: the opcode that runs */
    enum ckpt_pickle_mode mode;
    struct ckpt_node **stack;
    size_t n_stack, cap_stack;
    size_t *marks;
    size_t n_marks, cap_marks;
    struct ckpt_node **memo;
    size_t cap_memo, n_memoized, n_ops;
    struct ckpt_node *nodes; /* of which n_nodes are not used yet */
    size_t n_nodes;
    struct pickle_known known;
    struct pickle_function getattr, or ;
    struct pickle_wanted wanted;
    struct ckpt_pickle *out;
    struct s2s_error *err;
    /* of ckpt_pickle_parse_file: bytes before `filled` were read, texts are copied, and the memory
     * of those before op_at is given back */
    bool windowed;                         /* false: all bytes are there, and stay */
    const struct ckpt_pickle_taker *taker; /* NULL: nothing is taken */
    bool packs;                            /* plain tensors */
    int fd, io_rc;
    int64_t pos;
    size_t filled, given_back;
    size_t texts_bytes;  /* of the large ones that are kept */
    size_t collect_at;   /* bytes of nodes at which to collect */
    size_t n_packed;     /* tensors since it was done */
    int64_t n_taken;     /* values for which there are CKPT_TAKEN */
    size_t n_forgotten;  /* entries of the memo that were fetched and are gone */
    bool left_forgotten; /* such a one is in the tree */
};

enum pickle_verdict ckpt_judge_global(const struct ckpt_node *node);

/* Memory that lives as long as the pickle, 8-aligned, zeroed. */
void *ckpt_pickle_alloc(struct ckpt_pickle *out, size_t len);

/* Errors that name the opcode and its place; they give the code. */
int ckpt_pickle_refuse(struct pickle_machine *m, int code, const char *what);
int ckpt_pickle_truncated(struct pickle_machine *m);
int ckpt_pickle_underflow(struct pickle_machine *m);

struct ckpt_node *ckpt_pickle_new_node(struct pickle_machine *m, enum ckpt_kind kind);
/* The node at *known, made when there is none yet. */
struct ckpt_node *ckpt_pickle_known(struct pickle_machine *m, struct ckpt_node **known,
                                    enum ckpt_kind kind, int64_t value);
/* A node of these n items, which are copied. */
struct ckpt_node *ckpt_pickle_node_of(struct pickle_machine *m, enum ckpt_kind kind,
                                      struct ckpt_node **items, size_t n);
/* The error of what only an attack has: it names module.name and the byte. */
int ckpt_pickle_hostile(struct pickle_machine *m, const struct ckpt_node *global);
void ckpt_pickle_add_item(struct pickle_machine *m, struct ckpt_node *node, struct ckpt_node *item);

int ckpt_pickle_push(struct pickle_machine *m, struct ckpt_node *node);
/* NULL at the last mark and on an empty stack. */
struct ckpt_node *ckpt_pickle_pop(struct pickle_machine *m);
struct ckpt_node *ckpt_pickle_top(struct pickle_machine *m);

/* The next n bytes of the pickle, which are passed; NULL when there are fewer. */
const unsigned char *ckpt_pickle_take(struct pickle_machine *m, size_t n);
uint64_t ckpt_pickle_le(const unsigned char *p, int n);
/* Up to the line's end, which is passed too; borrowed. */
int ckpt_pickle_take_line(struct pickle_machine *m, const char **line, size_t *len);
/* Reads on, so that at least the bytes before `end` are there, or all. */
int ckpt_pickle_fill(struct pickle_machine *m, size_t end);
/* Passes a large text and pushes what is kept of it. */
int ckpt_pickle_push_long(struct pickle_machine *m, enum ckpt_kind kind, size_t len);
void ckpt_pickle_rewind(struct pickle_machine *m);
/* Goes through the opcodes alone. Gives: free bits and rank. */
int ckpt_pickle_find_wanted(struct pickle_machine *m);
/* Of an index that is wanted: its place among those. */
bool ckpt_pickle_is_wanted(const struct pickle_wanted *wanted, uint64_t index, size_t *place);
/* Moves what is still in use into new memory. True: a forgotten value is. */
bool ckpt_pickle_collect(struct pickle_machine *m);

/* Runs op with the little-endian number of n_bytes that stands next. */
int ckpt_pickle_sized(struct pickle_machine *m, int n_bytes,
                      int (*op)(struct pickle_machine *, uint64_t));

/* The opcodes of numbers and strings; UNSUPPORTED for what is no opcode at all. */
int ckpt_pickle_run_value(struct pickle_machine *m, unsigned char op);

/* Does this class make bytes of a text? */
bool ckpt_pickle_encodes(const struct ckpt_node *global);

/* GLOBAL, STACK_GLOBAL, REDUCE and NEWOBJ (with keywords: NEWOBJ_EX), BUILD */
int ckpt_pickle_global(struct pickle_machine *m);
int ckpt_pickle_stack_global(struct pickle_machine *m);
int ckpt_pickle_reduce(struct pickle_machine *m, bool keywords);
int ckpt_pickle_build(struct pickle_machine *m);

#endif
