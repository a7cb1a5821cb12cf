/*
 * Reads pickles as data. A small stack machine runs the opcodes and builds a tree of plain nodes;
 * it never calls, imports or constructs anything. What a pickle would call (REDUCE, NEWOBJ, BUILD)
 * becomes a record node that names it. Classes that are not in a short list are refused, or
 * represented as opaque records where a checkpoint's common state may have any; classes that only
 * an attack needs are always refused. Iterative, linear in the bytes, and bounded in memory.
 * Source: Lib/pickletools.py of CPython (opcodes of protocols 0 to 5).
 */
#ifndef CKPT_PICKLE_H
#define CKPT_PICKLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "lib/base/blocks.h"
#include "lib/base/mem.h"

struct s2s_error;

enum ckpt_kind {
    CKPT_NONE,
    CKPT_BOOL,
    CKPT_INT,
    CKPT_BIGINT, /* wider than 64 bits: text is little-endian two's complement */
    CKPT_FLOAT,
    CKPT_STR,   /* UTF-8, may contain zero bytes */
    CKPT_BYTES, /* text: NULL if it was large and read from a file; n: 1 for a bytearray, else 0 */
    CKPT_LIST,
    CKPT_TUPLE,
    CKPT_SET,
    CKPT_DICT,      /* items: key, value, key, value, .. */
    CKPT_GLOBAL,    /* text: "module\nname"; n: length of the module's name */
    CKPT_RECORD,    /* items: global, arguments, state or NULL, contents (list or dict) or NULL */
    CKPT_PERSID,    /* items: the id */
    CKPT_LONG,      /* a string too large to keep: len is its length, n its length in Latin-1
                     * (UINT32_MAX: not Latin-1) */
    CKPT_TENSOR,    /* a plain tensor: view */
    CKPT_DTENSOR,   /* a DTensor, if the taker asks for these: dtensor */
    CKPT_FORGOTTEN, /* only while ckpt_pickle_parse_file runs */
};

struct ckpt_view;
struct ckpt_dtensor;

/* A value. Equal small values may share a node. */
struct ckpt_node {
    uint8_t kind;     /* enum ckpt_kind */
    bool opaque;      /* a global that is not in the short list, or a record of one */
    bool shown : 1;   /* it, or a part of it, is being converted to JSON: a value may contain itself
                       */
    bool lasts : 1;   /* it is in the pickle's arena, and so is all that it consists of */
    bool is_seen : 1; /* while the pickle is parsed */
    uint8_t mark;     /* for the use of whoever walks the tree; initially 0 */
    uint32_t n;       /* number of items; other meanings: see the kinds */
    union {
        uint32_t cap; /* allocated items */
        uint32_t len; /* bytes of text */
    };
    uint32_t offset; /* of the opcode that made it, or an equal value, in the pickle */
    union {
        int64_t i; /* BOOL, INT */
        double f;
        const char *text; /* not zero-ended */
        struct ckpt_node **items;
        const struct ckpt_view *view;       /* lib/ckpt/pickle/view.h */
        const struct ckpt_dtensor *dtensor; /* lib/ckpt/pickle/dtensor.h */
    };
};

/* What happens to classes that are not in the short list. */
enum ckpt_pickle_mode {
    CKPT_STRICT, /* refused: .metadata, items of .distcp files */
    CKPT_OPEN,   /* opaque nodes: common state, torch.save files */
    CKPT_CHECK,  /* the same, without keeping large strings: to check that the pickle is harmless */
};

struct ckpt_pickle {
    struct ckpt_node *root;
    size_t len;              /* bytes of the pickle, including STOP */
    struct s2s_buf opaque;   /* opaque classes in it: "module.name, module.name" */
    struct s2s_blocks arena; /* texts, numbers, classes, tensors */
    struct s2s_blocks rest;  /* containers and records, and what lasts no longer than these */
};

/*
 * Parses the pickle that starts at bytes (borrowed until release: strings point into it). Bytes
 * after STOP are ignored (len says where it ended). FORMAT, TRUNCATED or UNSUPPORTED name the
 * opcode or class and the byte offset; FORMAT is also the result for a pickle that expands far
 * beyond its size by copying memo entries. Nothing to release on failure.
 */
int ckpt_pickle_parse(struct ckpt_pickle *pickle, const void *bytes, size_t len,
                      enum ckpt_pickle_mode mode, struct s2s_error *err);
void ckpt_pickle_release(struct ckpt_pickle *pickle);

/* Should a pickle of len bytes, or a string in one, be read from its file in parts
 * (ckpt_pickle_parse_file)? */
bool ckpt_pickle_is_large(size_t len);

/* Callbacks that take values out of the tree while ckpt_pickle_parse_file builds it, so that not
 * all need be in memory at once. Each may be NULL. */
struct ckpt_pickle_taker {
    void *ctx;
    /* Called for each pair added to a dict, and each value (key NULL) added to a list. 0: it is
     * added; 1: it was taken, and is left out. Negative: failure. */
    int (*item)(void *ctx, struct ckpt_node *key, struct ckpt_node *value, struct s2s_error *err);
    /* The pickle is parsed anew from the start: forget what was taken. */
    void (*again)(void *ctx);
    /* Called for each storage that the pickle refers to, in order. */
    void (*storage)(void *ctx, const struct ckpt_node *persid);
    bool dtensors; /* DTensors become CKPT_DTENSOR */
};
/*
 * The same for a pickle of at most len bytes at offset pos of a file, with only part of it in
 * memory at a time. taker may be NULL. Large byte strings are not read, as nothing needs them:
 * their node has only a length. (In protocol 2 bytes are encoded strings; these are not read
 * either.) Large strings are kept up to twelve megabytes in total.
 *
 * A dict or list is filled by some thousand values at a time. If each of these was taken, or lasts,
 * all else that was made on the way is dropped; Megatron-Core repeats all its metadata at the end.
 * Should an opcode fetch a dropped value from the memo, as few do, it reads as CKPT_FORGOTTEN. If
 * one of these remains in the tree, or parsing fails after one was fetched, then taker->again is
 * called and everything is parsed anew, without dropping what was made so early.
 */
int ckpt_pickle_parse_file(struct ckpt_pickle *pickle, int fd, int64_t pos, size_t len,
                           enum ckpt_pickle_mode mode, const struct ckpt_pickle_taker *taker,
                           struct s2s_error *err);

/* ---- queries of the tree: false, or none, for NULL and for nodes of another kind ---- */

/* Is it the global module.name, or a record of that class? */
bool ckpt_is(const struct ckpt_node *node, const char *module, const char *name);
/* Is it any global of that module, or a record of one? */
bool ckpt_is_of(const struct ckpt_node *node, const char *module);
/* Is it a global of that name in any module, or a record of one? */
bool ckpt_is_named(const struct ckpt_node *node, const char *name);
/* Is it an array of numpy's, of floating-point numbers and with an axis? */
bool ckpt_is_float_array(const struct ckpt_node *node);
/* The name of a global without its module: *len bytes, not zero-terminated. */
static inline const char *ckpt_global_name(const struct ckpt_node *global, size_t *len)
{
    *len = global->len - global->n - 1;
    return global->text + global->n + 1;
}
/* Is it a string with this text? */
bool ckpt_str_is(const struct ckpt_node *node, const char *s);
/* The value of a string key in a dict, or in the dict that is a record's state; NULL: none. Only
 * the first 256 items are searched. */
const struct ckpt_node *ckpt_get(const struct ckpt_node *node, const char *key);
/* Sets *value to that of an int node; false: another kind. */
bool ckpt_get_int(const struct ckpt_node *node, int64_t *value);
/* Sets values [max] to the ints of a tuple or list and returns their number; -1: more than max, or
 * not all are ints. */
int ckpt_get_ints(const struct ckpt_node *node, int64_t *values, int max);

/* Limits for converting a tree to JSON, and what was left out. */
struct ckpt_json_left {
    size_t nodes, text_bytes;
    size_t n_bytes; /* number of byte strings, of which JSON shows only the length */
    bool cut;       /* a string was left out because text_bytes did not suffice */
};
/*
 * The tree as JSON: tuples and sets are arrays, a Namespace is an object, other records are objects
 * that name their class; bytes and globals are strings. "..." stands for what is nested deeper than
 * 1000, exceeds *left, or contains itself. A value that is referred to several times is shown, and
 * counted, each time. Gives a reference.
 */
json_t *ckpt_node_json(const struct ckpt_node *node, struct ckpt_json_left *left);
/* Limits that suffice for any real pickle of this many bytes: each value twice (as a name and as
 * the value of that name), some more often. A value that takes many bytes of JSON counts as
 * several. */
struct ckpt_json_left ckpt_json_limit(size_t pickle_len);

#endif
