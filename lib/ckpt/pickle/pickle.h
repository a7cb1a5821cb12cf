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
    CKPT_LONG,      /* a text that is not kept: len says how long; n: its bytes as Latin-1, or
                     * UINT32_MAX */
    CKPT_TAKEN,     /* in place of n values of a list that a taker has: from its i-th on */
    CKPT_TENSOR,    /* text: what view.c says of a tensor, in place of its record */
    CKPT_FORGOTTEN, /* only while ckpt_pickle_parse_file runs */
};

/* There are dozens of them for each tensor of a .metadata: 24 bytes. Those of equal small values
 * may be one node. */
struct ckpt_node {
    uint8_t kind; /* enum ckpt_kind */
    bool opaque;  /* of a global outside the list, and of a record of such a one; of a text: it is
                   * somebody else's, who keeps it */
    bool shown;   /* while JSON is made of it, or of parts of it: a value may hold itself */
    uint8_t mark; /* 0; for who walks the tree */
    uint32_t n;
    union {
        uint32_t cap; /* of items */
        uint32_t len; /* of text */
    };
    uint32_t offset; /* of the opcode that made it, or the first like it */
    union {
        int64_t i; /* BOOL, INT */
        double f;
        const char *text; /* not zero-ended */
        struct ckpt_node **items;
    };
};

enum ckpt_pickle_mode {
    CKPT_STRICT, /* unknown classes are refused: .metadata, items */
    CKPT_OPEN,   /* unknown classes become opaque nodes: common state, torch.save files */
    CKPT_CHECK,  /* the same, for who asks only whether it is harmless: no large text is kept */
};

struct ckpt_pickle {
    struct ckpt_node *root;
    size_t len;              /* bytes of the pickle, its STOP included */
    struct s2s_buf opaque;   /* names of the opaque classes met, "module.name", commas between */
    struct s2s_blocks arena; /* nodes and texts */
    /* What never moves: packed tensors, and their keys in dicts, which are `opaque`. Who wants
     * these keys for longer takes names away. */
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
/* Says which classes of the file `name` are kept as names. */
void ckpt_pickle_warn_opaque(const struct ckpt_pickle *pickle, const char *name);

/* Whether a pickle, or a text in it, is so long that it is read from its file a part at a time. */
bool ckpt_pickle_is_large(size_t len);

/*
 * The same for the pickle at pos of a file, of at most len bytes, of which only a part is in memory
 * at a time. Nobody reads large byte objects, so they are not read here either: neither those that
 * are spelled as such nor those of protocol 2, which are texts that are encoded. Of large texts the
 * first twelve megabytes are kept.
 *
 * Of many like things each is taken when it was read, where there is a taker (or NULL) with an
 * item: the memory is that of what is left. item is asked about each pair that goes into a dict and
 * each value (key NULL) that goes into a list: 1 when it took it, 0 to leave it there; 2 when it
 * took it and the list is to say so, as CKPT_TAKEN, where i counts these from 0. What else still
 * holds a taken value may read it as CKPT_FORGOTTEN behind the name "all_local_plans"
 * (Megatron-Core repeats all there); where such a one is left in the tree, or stood in the way,
 * `again` is called and all is read again, nothing forgotten.
 *
 * Without an item plain tensors in dicts and lists become CKPT_TENSOR. storage (or NULL) is shown
 * each storage that the pickle names, in its order.
 */
struct ckpt_pickle_taker {
    void *ctx;
    int (*item)(void *ctx, struct ckpt_node *key, struct ckpt_node *value, struct s2s_error *err);
    void (*again)(void *ctx);
    void (*storage)(void *ctx, const struct ckpt_node *persid);
};
int ckpt_pickle_parse_file(struct ckpt_pickle *pickle, int fd, int64_t pos, size_t len,
                           enum ckpt_pickle_mode mode, const struct ckpt_pickle_taker *taker,
                           struct s2s_error *err);

/* True for a global, or a record of one, with this module and name. */
bool ckpt_is(const struct ckpt_node *node, const char *module, const char *name);
/* Of that module, whatever the name. */
bool ckpt_is_of(const struct ckpt_node *node, const char *module);
/* The same whatever the module. */
bool ckpt_is_named(const struct ckpt_node *node, const char *name);
/* The name of a global, without its module; not zero-ended. */
static inline const char *ckpt_global_name(const struct ckpt_node *global, size_t *len)
{
    *len = global->len - global->n - 1;
    return global->text + global->n + 1;
}
bool ckpt_str_is(const struct ckpt_node *node, const char *s);
/* Value of a string key: of a dict, or of a record's state when that is a dict. NULL when absent.
 */
const struct ckpt_node *ckpt_get(const struct ckpt_node *node, const char *key);
/* An int node's value; false for others. */
bool ckpt_get_int(const struct ckpt_node *node, int64_t *value);
/* A tuple or list of n <= max ints; -1 otherwise. */
int ckpt_get_ints(const struct ckpt_node *node, int64_t *values, int max);

/*
 * The tree as JSON: tuples and sets as arrays, a Namespace or record with a dict as object, bytes
 * and classes as text. Tensors, and what is too deep (1000), more than *left allows or in itself,
 * as text. Values that several places share are shown, and counted, in each. Gives a reference.
 */
struct ckpt_json_left {
    size_t nodes, text_bytes;
    size_t n_bytes; /* of how many byte strings only the length was shown */
    bool cut;       /* a text was not shown */
};
json_t *ckpt_node_json(const struct ckpt_node *node, struct ckpt_json_left *left);
/* What a tree of so many bytes of pickle may come to: every value of it twice (a name and what it
 * is called), some of them again. What JSON has more bytes for counts as several. */
struct ckpt_json_left ckpt_json_limit(size_t pickle_len);

#endif
