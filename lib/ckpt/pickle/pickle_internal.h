/* Shared by the files of the pickle machine: opcodes, values, objects, list of classes, memory. */
#ifndef CKPT_PICKLE_INTERNAL_H
#define CKPT_PICKLE_INTERNAL_H

#include "lib/ckpt/pickle/pickle.h"

/* The opcodes that are read, of pickle protocols 0 to 5, with the names of Lib/pickle.py. */
enum {
    OP_MARK = '(',
    OP_STOP = '.',
    OP_POP = '0',
    OP_POP_MARK = '1',
    OP_DUP = '2',
    OP_FLOAT = 'F',
    OP_INT = 'I',
    OP_BININT = 'J',
    OP_BININT1 = 'K',
    OP_BININT2 = 'M',
    OP_LONG = 'L',
    OP_NONE = 'N',
    OP_BINPERSID = 'Q',
    OP_REDUCE = 'R',
    OP_STRING = 'S',
    OP_BINSTRING = 'T',
    OP_SHORT_BINSTRING = 'U',
    OP_UNICODE = 'V',
    OP_BINUNICODE = 'X',
    OP_BINBYTES = 'B',
    OP_SHORT_BINBYTES = 'C',
    OP_BINFLOAT = 'G',
    OP_APPEND = 'a',
    OP_APPENDS = 'e',
    OP_BUILD = 'b',
    OP_GLOBAL = 'c',
    OP_DICT = 'd',
    OP_EMPTY_DICT = '}',
    OP_LIST = 'l',
    OP_EMPTY_LIST = ']',
    OP_GET = 'g',
    OP_BINGET = 'h',
    OP_LONG_BINGET = 'j',
    OP_PUT = 'p',
    OP_BINPUT = 'q',
    OP_LONG_BINPUT = 'r',
    OP_SETITEM = 's',
    OP_SETITEMS = 'u',
    OP_TUPLE = 't',
    OP_EMPTY_TUPLE = ')',
    OP_PROTO = 0x80,
    OP_NEWOBJ = 0x81,
    OP_TUPLE1 = 0x85,
    OP_TUPLE2 = 0x86,
    OP_TUPLE3 = 0x87,
    OP_NEWTRUE = 0x88,
    OP_NEWFALSE = 0x89,
    OP_LONG1 = 0x8a,
    OP_LONG4 = 0x8b,
    OP_SHORT_BINUNICODE = 0x8c,
    OP_BINUNICODE8 = 0x8d,
    OP_BINBYTES8 = 0x8e,
    OP_EMPTY_SET = 0x8f,
    OP_ADDITEMS = 0x90,
    OP_FROZENSET = 0x91,
    OP_NEWOBJ_EX = 0x92,
    OP_STACK_GLOBAL = 0x93,
    OP_MEMOIZE = 0x94,
    OP_FRAME = 0x95,
    OP_BYTEARRAY8 = 0x96
};

enum pickle_verdict {
    PICKLE_ALLOWED,
    PICKLE_UNKNOWN,
    PICKLE_HOSTILE,
    /* hostile except for one use: see pickle_make.c */
    PICKLE_GETATTR, /* getattr(class, "name") */
    PICKLE_OR,      /* or_(class.name, class.other) */
};

enum { PICKLE_FIRST_INT = -1, PICKLE_INTS = 1026, PICKLE_TEXTS = 64 };

/* Cached nodes of frequent values, which are never changed, so that one node serves all uses: ints
 * from PICKLE_FIRST_INT on, short strings (the last one of each hash), None, False and True, the
 * empty tuple. NULL: not created yet. */
struct pickle_known {
    struct ckpt_node *ints[PICKLE_INTS], *texts[PICKLE_TEXTS];
    struct ckpt_node *none, *truth[2], *empty;
};

/* A MARK on the stack, and what undoes all that was made since. */
struct pickle_mark {
    size_t pos;                  /* of the stack */
    size_t op_at;                /* of the opcode */
    size_t n_passing;            /* entries of the memo that do not last */
    uint32_t oldest;             /* of the machine, at that time */
    struct s2s_blocks_mark rest; /* of the pickle */
};

/* A function (getattr, or_) that a pickle may only call, at once, and only in one way. */
struct pickle_function {
    struct ckpt_node *node; /* its global; NULL: not seen yet */
    size_t n_pushed;        /* times pushed but not called; must be 0 in the end */
};

struct pickle_machine {
    const unsigned char *bytes;
    size_t len, at, op_at; /* length of the pickle; next byte; start of the current opcode */
    enum ckpt_pickle_mode mode;
    struct ckpt_node **stack;
    size_t n_stack, cap_stack;
    struct pickle_mark *marks;
    size_t n_marks, cap_marks;
    struct ckpt_node **memo;
    size_t cap_memo, n_memoized, n_ops;
    struct pickle_known known;
    struct pickle_function getattr, or ;
    struct ckpt_pickle *out;
    struct s2s_error *err;
    /* For ckpt_pickle_parse_file: bytes up to `filled` were read from the file, and those before
     * `given_back` were dropped again, so strings are copied. */
    bool windowed;                         /* false: all bytes are, and stay, in memory */
    const struct ckpt_pickle_taker *taker; /* NULL: nothing is taken */
    int fd, io_rc;
    int64_t pos;
    size_t filled, given_back;
    size_t texts_bytes; /* bytes of large strings kept */
    /* What was made since a mark is dropped, unless it is still in use: values older than the mark
     * were changed (`oldest`: the lowest offset of those that were since the last mark), or it was
     * made before the opcode at `needed`. */
    uint32_t oldest;
    size_t needed;
    size_t *passing; /* memo indices of values that do not last */
    size_t n_passing, cap_passing;
    size_t missed; /* dropped values were fetched, the last of which was dropped here; 0: none */
    bool left_forgotten; /* one is in the final tree */
};

/* What the lists of classes say of a global. */
enum pickle_verdict ckpt_judge_global(const struct ckpt_node *node);

/* Zeroed memory, 8-byte aligned, that lives as long as the pickle. */
void *ckpt_pickle_alloc(struct ckpt_pickle *out, size_t len);
/* To be called when a part is given to a container or record, which may be older than it. */
void ckpt_pickle_change(struct pickle_machine *m, const struct ckpt_node *node);

/* Set an error that names the current opcode and its offset, and return its code: the given one;
 * TRUNCATED (or why reading the file failed); FORMAT. */
int ckpt_pickle_refuse(struct pickle_machine *m, int code, const char *what);
int ckpt_pickle_truncated(struct pickle_machine *m);
int ckpt_pickle_underflow(struct pickle_machine *m);

struct ckpt_node *ckpt_pickle_new_node(struct pickle_machine *m, enum ckpt_kind kind);
/* The cached node *known; created with this kind and value if NULL. */
struct ckpt_node *ckpt_pickle_known(struct pickle_machine *m, struct ckpt_node **known,
                                    enum ckpt_kind kind, int64_t value);
/* A new node with a copy of items [n]. */
struct ckpt_node *ckpt_pickle_node_of(struct pickle_machine *m, enum ckpt_kind kind,
                                      struct ckpt_node **items, size_t n);
/* UNSUPPORTED, with the global's name and offset, for what only an attack does. */
int ckpt_pickle_hostile(struct pickle_machine *m, const struct ckpt_node *global);
void ckpt_pickle_add_item(struct pickle_machine *m, struct ckpt_node *node, struct ckpt_node *item);

int ckpt_pickle_push(struct pickle_machine *m, struct ckpt_node *node);
/* Pops the top value, or returns it without popping. NULL: there is none above the last mark. */
struct ckpt_node *ckpt_pickle_pop(struct pickle_machine *m);
struct ckpt_node *ckpt_pickle_top(struct pickle_machine *m);

/* Consumes the next n bytes of the pickle; NULL: there are fewer. */
const unsigned char *ckpt_pickle_take(struct pickle_machine *m, size_t n);
/* Decodes n bytes as a little-endian number. */
uint64_t ckpt_pickle_le(const unsigned char *p, int n);
/* Consumes the text up to and including the newline. Lent until more is read. */
int ckpt_pickle_take_line(struct pickle_machine *m, const char **line, size_t *len);
/* Reads from the file until all bytes before `end` (or the pickle's) are in memory. IO, TRUNCATED.
 */
int ckpt_pickle_fill(struct pickle_machine *m, size_t end);
/* Skips a large string or byte string in the file, and pushes a node for it: with the text, or only
 * its length. */
int ckpt_pickle_push_long(struct pickle_machine *m, enum ckpt_kind kind, size_t len);
/* Consumes a little-endian number of n_bytes bytes and calls op with it. */
int ckpt_pickle_sized(struct pickle_machine *m, int n_bytes,
                      int (*op)(struct pickle_machine *, uint64_t));

/* Runs an opcode that pushes a number, string or other plain value; UNSUPPORTED for any other. */
int ckpt_pickle_run_value(struct pickle_machine *m, unsigned char op);

/* Is this the function that encodes a string to bytes (protocol 2 has no bytes opcode)? */
bool ckpt_pickle_encodes(const struct ckpt_node *global);

/* GLOBAL, STACK_GLOBAL, REDUCE and NEWOBJ (with keywords: NEWOBJ_EX), BUILD */
int ckpt_pickle_global(struct pickle_machine *m);
int ckpt_pickle_stack_global(struct pickle_machine *m);
int ckpt_pickle_reduce(struct pickle_machine *m, bool keywords);
int ckpt_pickle_build(struct pickle_machine *m);

#endif
