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

/* Nodes of values that come again and again and are never changed, so that one node serves for all:
 * numbers from PICKLE_FIRST_INT on, short texts (the last one for each hash), None, False and True,
 * the empty tuple. NULL: not met yet. */
struct pickle_known {
    struct ckpt_node *ints[PICKLE_INTS], *texts[PICKLE_TEXTS];
    struct ckpt_node *none, *truth[2], *empty, *forgotten;
};

/* Which entries of the memo are fetched later on. In a large pickle that is one in ten; the others
 * need not be kept. */
struct pickle_wanted {
    bool all;       /* it is not known which: keep all */
    uint64_t *bits; /* [n_words], a bit for each index */
    uint32_t *rank; /* [n_words]: how many bits are set in the words before */
    size_t n_words;
};

/* A function (getattr, or_) that a pickle may call in one way, at once, and not hand on. */
struct pickle_function {
    struct ckpt_node *node; /* its global; NULL: not met yet */
    size_t n_pushed;        /* how often that was pushed and not called; must be 0 in the end */
};

struct pickle_machine {
    const unsigned char *bytes;
    size_t len, at, op_at; /* bytes of the pickle; the next one; where the opcode began that runs */
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
    /* For ckpt_pickle_parse_file: bytes up to `filled` were read from the file, those before
     * `given_back` are no longer in memory, so texts are copied. */
    bool windowed;                         /* false: all bytes are in memory, and stay there */
    const struct ckpt_pickle_taker *taker; /* NULL: nothing is taken */
    bool packs;                            /* plain tensors become CKPT_TENSOR */
    int fd, io_rc;
    int64_t pos;
    size_t filled, given_back;
    size_t texts_bytes;  /* bytes of large texts that were kept */
    size_t collect_at;   /* collect when nodes and texts take more bytes than this */
    size_t n_packed;     /* tensors packed since the last collection */
    int64_t n_taken;     /* values that CKPT_TAKEN nodes stand for */
    size_t n_forgotten;  /* how often a value was fetched that had been forgotten */
    bool left_forgotten; /* one of these is in the tree at the end */
};

/* What a pickle may do with a global: by the list of classes. */
enum pickle_verdict ckpt_judge_global(const struct ckpt_node *node);

/* Memory that lives as long as the pickle, 8-aligned, zeroed. */
void *ckpt_pickle_alloc(struct ckpt_pickle *out, size_t len);

/* Set an error that names the opcode that runs and its place, and return its code: the given one,
 * TRUNCATED (or what reading the file failed with), FORMAT. */
int ckpt_pickle_refuse(struct pickle_machine *m, int code, const char *what);
int ckpt_pickle_truncated(struct pickle_machine *m);
int ckpt_pickle_underflow(struct pickle_machine *m);

struct ckpt_node *ckpt_pickle_new_node(struct pickle_machine *m, enum ckpt_kind kind);
/* The node *known; if that is NULL, it is made first, with this kind and value. */
struct ckpt_node *ckpt_pickle_known(struct pickle_machine *m, struct ckpt_node **known,
                                    enum ckpt_kind kind, int64_t value);
/* A new node with these items [n], which are copied. */
struct ckpt_node *ckpt_pickle_node_of(struct pickle_machine *m, enum ckpt_kind kind,
                                      struct ckpt_node **items, size_t n);
/* UNSUPPORTED for what only an attack does: names the global and its byte. */
int ckpt_pickle_hostile(struct pickle_machine *m, const struct ckpt_node *global);
void ckpt_pickle_add_item(struct pickle_machine *m, struct ckpt_node *node, struct ckpt_node *item);

int ckpt_pickle_push(struct pickle_machine *m, struct ckpt_node *node);
/* Takes the top value off the stack, or only looks at it. NULL: there is none above the last mark.
 */
struct ckpt_node *ckpt_pickle_pop(struct pickle_machine *m);
struct ckpt_node *ckpt_pickle_top(struct pickle_machine *m);

/* The next n bytes of the pickle, and goes on behind them; NULL: there are fewer. */
const unsigned char *ckpt_pickle_take(struct pickle_machine *m, size_t n);
/* n bytes as a little-endian number. */
uint64_t ckpt_pickle_le(const unsigned char *p, int n);
/* The text up to the end of the line, and goes on behind that. Lent until more is read. */
int ckpt_pickle_take_line(struct pickle_machine *m, const char **line, size_t *len);
/* Reads from the file until the bytes before `end`, or all, are in memory. IO, TRUNCATED. */
int ckpt_pickle_fill(struct pickle_machine *m, size_t end);
/* Skips a large text of the file, and pushes a node for it: with the text, or its length only. */
int ckpt_pickle_push_long(struct pickle_machine *m, enum ckpt_kind kind, size_t len);
/* Back to the first byte, with no memory of any. */
void ckpt_pickle_rewind(struct pickle_machine *m);
/* Sets m->wanted by going through the opcodes without running them, then rewinds. Gives: free
 * m->wanted.bits and .rank. IO. */
int ckpt_pickle_find_wanted(struct pickle_machine *m);
/* Is the entry of this index wanted? *place: how many wanted ones are before it. */
bool ckpt_pickle_is_wanted(const struct pickle_wanted *wanted, uint64_t index, size_t *place);
/* Moves everything that is still in use into new memory and frees the old. Returns whether a
 * CKPT_FORGOTTEN is in use. */
bool ckpt_pickle_collect(struct pickle_machine *m);

/* Takes a little-endian number of n_bytes bytes and calls op with it. */
int ckpt_pickle_sized(struct pickle_machine *m, int n_bytes,
                      int (*op)(struct pickle_machine *, uint64_t));

/* Runs an opcode that pushes a number, a string or another plain value; UNSUPPORTED for any other.
 */
int ckpt_pickle_run_value(struct pickle_machine *m, unsigned char op);

/* Is this the function that makes bytes of a text (protocol 2 has no other way)? */
bool ckpt_pickle_encodes(const struct ckpt_node *global);

/* GLOBAL, STACK_GLOBAL, REDUCE and NEWOBJ (with keywords: NEWOBJ_EX), BUILD */
int ckpt_pickle_global(struct pickle_machine *m);
int ckpt_pickle_stack_global(struct pickle_machine *m);
int ckpt_pickle_reduce(struct pickle_machine *m, bool keywords);
int ckpt_pickle_build(struct pickle_machine *m);

#endif
