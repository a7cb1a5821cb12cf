/*
 * Pickles, read as data. A small machine runs the opcodes and builds a tree of plain nodes; it
 * never calls, imports or constructs anything. What a pickle would call (REDUCE, NEWOBJ, BUILD)
 * becomes a record node that names it. Classes outside a short list are refused, or kept as opaque
 * records where a checkpoint's common state needs them; classes that only an attack needs are
 * always refused. Iterative, linear in the bytes, and bounded. Source: Lib/pickletools.py of
 * CPython (opcodes of protocols 0 to 5).
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
    CKPT_BIGINT, /* above 64 bits: text holds little-endian two's complement */
    CKPT_FLOAT,
    CKPT_STR,   /* UTF-8, may hold zero bytes */
    CKPT_BYTES, /* text: NULL where a large one was read from a file; n: 1 of a bytearray, else 0 */
    CKPT_LIST,
    CKPT_TUPLE,
    CKPT_SET,
    CKPT_DICT,      /* items: key, value, key, value, ... ; n is twice the pairs */
    CKPT_GLOBAL,    /* text: "module\nname", n: length of the module's name */
    CKPT_RECORD,    /* items: global, arguments, state or NULL, contents (list or dict) or NULL */
    CKPT_PERSID,    /* items: the id */
    CKPT_LONG,      /* a text too large to be kept: len says how long it is, n how many bytes it is
                     * in Latin-1 (UINT32_MAX: it cannot be) */
    CKPT_TAKEN,     /* in a list, in place of n values that a taker took: its i-th and following */
    CKPT_TENSOR,    /* a tensor, whose record was packed into text (view.h) */
    CKPT_FORGOTTEN, /* only while ckpt_pickle_parse_file runs */
};

/* A value. There are dozens for each tensor of a .metadata, hence 24 bytes and no more. Equal small
 * values may be one and the same node. */
struct ckpt_node {
    uint8_t kind; /* enum ckpt_kind */
    bool opaque; /* a global that is not in the short list, or a record of one. Of a text: it is not
                  * in the pickle's arena, and is not moved */
    bool shown : 1;   /* JSON is being made of it, or of its parts: a value may contain itself */
    bool is_kept : 1; /* it is in the pickle's `kept`, and is not moved */
    uint8_t mark;     /* free for who walks the tree; 0 at first */
    uint32_t n;       /* how many items; other meanings stand beside the kinds */
    union {
        uint32_t cap; /* room for so many items */
        uint32_t len; /* bytes of text */
    };
    uint32_t offset; /* byte of the pickle where the opcode is that made it, or an equal one */
    union {
        int64_t i; /* BOOL, INT */
        double f;
        const char *text; /* not zero-ended */
        struct ckpt_node **items;
    };
};

/* What becomes of classes that are not in the short list. */
enum ckpt_pickle_mode {
    CKPT_STRICT, /* they are refused: .metadata, items of .distcp files */
    CKPT_OPEN,   /* they become opaque nodes: common state, torch.save files */
    CKPT_CHECK,  /* the same, and no large text is kept: is the pickle harmless? */
};

struct ckpt_pickle {
    struct ckpt_node *root;
    size_t len;              /* bytes of the pickle, its STOP included */
    struct s2s_buf opaque;   /* the opaque classes that were met: "module.name, module.name" */
    struct s2s_blocks arena; /* nodes and texts */
    /* What is never moved: packed tensors, and the texts of the keys that they have in dicts.
     * Whoever wants these to outlive the pickle takes all of names (s2s_blocks_take). */
    struct s2s_blocks kept, names;
};

/*
 * Runs the pickle that starts at bytes (borrowed until release: strings point into it). What
 * follows its STOP is left alone (len says where it ended). FORMAT, TRUNCATED or UNSUPPORTED name
 * the opcode or class and the byte offset; so does a pickle that copies what it remembers until it
 * is far larger than its bytes. Nothing to release on failure.
 */
int ckpt_pickle_parse(struct ckpt_pickle *pickle, const void *bytes, size_t len,
                      enum ckpt_pickle_mode mode, struct s2s_error *err);
void ckpt_pickle_release(struct ckpt_pickle *pickle);

/* Is a pickle of len bytes, or a text in one, so long that it should be read from its file a part
 * at a time (ckpt_pickle_parse_file)? */
bool ckpt_pickle_is_large(size_t len);

/* Who takes values out of the tree while ckpt_pickle_parse_file builds it, so that they need not
 * all be in memory at once. Each function may be NULL. */
struct ckpt_pickle_taker {
    void *ctx;
    /* Is asked about each pair that goes into a dict, and each value (key NULL) that goes into a
     * list. 0: it stays there; 1: it was taken, and is not in the tree; 2: it was taken, and the
     * list says so by a CKPT_TAKEN, whose i counts all of these from 0. Below 0: a failure. */
    int (*item)(void *ctx, struct ckpt_node *key, struct ckpt_node *value, struct s2s_error *err);
    /* All is read once more from the start, and asked about once more: forget what was taken. */
    void (*again)(void *ctx);
    /* Is shown each storage that the pickle names, in the pickle's order. */
    void (*storage)(void *ctx, const struct ckpt_node *persid);
};
/*
 * The same for the pickle of at most len bytes at position pos of a file, with only a part of it in
 * memory at a time. taker may be NULL. Large byte objects are not read, because nobody wants them:
 * their node has a length only. (Protocol 2 spells bytes as a text that is encoded; these texts are
 * not read either.) Of large texts those are kept that fit into twelve megabytes together.
 *
 * A pickle refers to its values again by number. Which numbers it will want is found in a first run
 * over its opcodes, and values that nobody wants again are forgotten. One place is taken for not
 * wanting any: what follows the name "all_local_plans", where Megatron-Core repeats everything. A
 * value that is asked for there reads as CKPT_FORGOTTEN. If one of these is left in the tree at the
 * end, or the pickle could not be understood without it, then taker->again is called and all is
 * read a second time, with nothing forgotten.
 *
 * Without taker->item, plain tensors in dicts and lists become CKPT_TENSOR.
 */
int ckpt_pickle_parse_file(struct ckpt_pickle *pickle, int fd, int64_t pos, size_t len,
                           enum ckpt_pickle_mode mode, const struct ckpt_pickle_taker *taker,
                           struct s2s_error *err);

/* ---- looking at the tree; a node that is NULL, or of another kind, is never what is asked for
 * ---- */

/* Is it the global module.name, or a record of that class? */
bool ckpt_is(const struct ckpt_node *node, const char *module, const char *name);
/* The same of any name in that module. */
bool ckpt_is_of(const struct ckpt_node *node, const char *module);
/* The same of that name in any module. */
bool ckpt_is_named(const struct ckpt_node *node, const char *name);
/* The name of a global without its module, *len bytes: not zero-ended. */
static inline const char *ckpt_global_name(const struct ckpt_node *global, size_t *len)
{
    *len = global->len - global->n - 1;
    return global->text + global->n + 1;
}
/* Is it a string with this text? */
bool ckpt_str_is(const struct ckpt_node *node, const char *s);
/* The value that a dict, or the dict that is a record's state, has for a string key; NULL: none. Of
 * a dict with more than 256 keys only the first 256 are looked at. */
const struct ckpt_node *ckpt_get(const struct ckpt_node *node, const char *key);
/* Sets *value to the value of an int node; false for others. */
bool ckpt_get_int(const struct ckpt_node *node, int64_t *value);
/* Sets values [max] to the ints of a tuple or list, and returns how many they are; -1: they are
 * more than max, or not all ints. */
int ckpt_get_ints(const struct ckpt_node *node, int64_t *values, int max);

/* How much JSON may still be made of a tree, and what was left out of it. */
struct ckpt_json_left {
    size_t nodes, text_bytes;
    size_t n_bytes; /* how many byte strings there were, of which JSON shows the length only */
    bool cut;       /* a text was left out because text_bytes did not suffice */
};
/*
 * The tree as JSON: tuples and sets are arrays, a Namespace is an object, other records are objects
 * that name their class; bytes and globals are text. "..." stands for what is deeper than 1000,
 * more than *left allows, or within itself. A value that stands in several places is shown, and
 * counted, in each. Gives a reference.
 */
json_t *ckpt_node_json(const struct ckpt_node *node, struct ckpt_json_left *left);
/* What is enough for a pickle of so many bytes: every value of it twice (as a name and as what has
 * the name), some again. A value that takes many bytes of JSON counts as several. */
struct ckpt_json_left ckpt_json_limit(size_t pickle_len);

#endif
