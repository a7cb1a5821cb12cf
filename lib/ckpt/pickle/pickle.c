/* The stack machine that turns the opcodes of a pickle into nodes. */
#include "lib/ckpt/pickle/pickle_internal.h"

#include <sys/mman.h>

#include "lib/base/base.h"
#include "lib/ckpt/names.h"
#include "lib/ckpt/pickle/opcodes.h"
#include "lib/ckpt/pickle/pairs.h"

enum { MAX_STACK = 1 << 26, AHEAD = 64 };

/* Nodes take up to some 60 bytes per byte of pickle read; only copies of copies take more. */
enum { SPARE_BYTES = 16 << 20, BYTES_PER_BYTE = 128 };

/* ---- memory ---- */

void *ckpt_pickle_alloc(struct ckpt_pickle *out, size_t len)
{
    return s2s_blocks_alloc(&out->arena, len);
}

void ckpt_pickle_release(struct ckpt_pickle *pickle)
{
    if (!pickle)
        return;
    s2s_blocks_release(&pickle->arena);
    s2s_blocks_release(&pickle->kept);
    s2s_blocks_release(&pickle->names);
    s2s_buf_release(&pickle->opaque);
    free(pickle->meshes);
    *pickle = (struct ckpt_pickle){.root = NULL};
}

/* ---- failures ---- */

int ckpt_pickle_refuse(struct pickle_machine *m, int code, const char *what)
{
    return s2s_error_set(m->err, code, "pickle: %s (opcode 0x%02x at byte %zu)", what,
                         m->bytes[m->op_at], m->op_at);
}

int ckpt_pickle_truncated(struct pickle_machine *m)
{
    if (m->io_rc < 0)
        return m->io_rc;
    return s2s_error_set(m->err, S2S_E_TRUNCATED,
                         "pickle: ends inside opcode 0x%02x at byte %zu of %zu", m->bytes[m->op_at],
                         m->op_at, m->len);
}

/* ---- nodes ---- */

struct ckpt_node *ckpt_pickle_new_node(struct pickle_machine *m, enum ckpt_kind kind)
{
    enum { AT_ONCE = 64 };
    if (m->n_nodes == 0) {
        m->nodes = ckpt_pickle_alloc(m->out, AT_ONCE * sizeof *m->nodes);
        m->n_nodes = AT_ONCE;
    }
    struct ckpt_node *node = &m->nodes[--m->n_nodes];
    *node = (struct ckpt_node){.kind = (uint8_t)kind, .offset = (uint32_t)m->op_at};
    return node;
}

struct ckpt_node *ckpt_pickle_known(struct pickle_machine *m, struct ckpt_node **known,
                                    enum ckpt_kind kind, int64_t value)
{
    if (!*known) {
        *known = ckpt_pickle_new_node(m, kind);
        (*known)->i = value;
    }
    return *known;
}

int ckpt_pickle_push(struct pickle_machine *m, struct ckpt_node *node)
{
    if (m->n_stack >= MAX_STACK)
        return ckpt_pickle_refuse(m, S2S_E_FORMAT, "stack of more than 2^26 values");
    s2s_grow(&m->stack, m->n_stack, &m->cap_stack, sizeof *m->stack);
    m->getattr.n_pushed += node == m->getattr.node;
    m->or.n_pushed += node == m->or.node;
    m->stack[m->n_stack++] = node;
    return 0;
}

/* Makes room for more items; exactly that many at first, as most containers are filled at once. */
static void reserve(struct pickle_machine *m, struct ckpt_node *node, size_t more)
{
    if (node->cap - node->n < more) {
        size_t twice = (size_t)node->cap * 2, cap = node->n + more;
        cap = cap < twice ? twice : cap;
        struct ckpt_node **items = ckpt_pickle_alloc(m->out, cap * sizeof *items);
        if (node->n)
            memcpy(items, node->items, node->n * sizeof *items);
        node->items = items;
        node->cap = (uint32_t)cap;
    }
}

void ckpt_pickle_add_item(struct pickle_machine *m, struct ckpt_node *node, struct ckpt_node *item)
{
    reserve(m, node, node->n == node->cap && !node->cap ? 4 : 1);
    node->items[node->n++] = item;
}

/* stack position of the last mark, or -1 */
static int64_t mark_pos(struct pickle_machine *m)
{
    return m->n_marks ? (int64_t)m->marks[m->n_marks - 1] : -1;
}

/* the lowest stack position that opcodes may pop */
static size_t floor_pos(struct pickle_machine *m)
{
    return m->n_marks ? m->marks[m->n_marks - 1] : 0;
}

struct ckpt_node *ckpt_pickle_pop(struct pickle_machine *m)
{
    return m->n_stack > floor_pos(m) ? m->stack[--m->n_stack] : NULL;
}

struct ckpt_node *ckpt_pickle_top(struct pickle_machine *m)
{
    return m->n_stack > floor_pos(m) ? m->stack[m->n_stack - 1] : NULL;
}

int ckpt_pickle_underflow(struct pickle_machine *m)
{
    return ckpt_pickle_refuse(m, S2S_E_FORMAT, "too few values on the stack");
}

struct ckpt_node *ckpt_pickle_node_of(struct pickle_machine *m, enum ckpt_kind kind,
                                      struct ckpt_node **items, size_t n)
{
    struct ckpt_node *node = ckpt_pickle_new_node(m, kind);
    if (n) {
        node->items = ckpt_pickle_alloc(m->out, n * sizeof *items);
        memcpy(node->items, items, n * sizeof *items);
    }
    node->n = node->cap = (uint32_t)n;
    return node;
}

/* Pops n values into a new container. */
static int push_popped(struct pickle_machine *m, enum ckpt_kind kind, size_t n)
{
    if (m->n_stack - floor_pos(m) < n)
        return ckpt_pickle_underflow(m);
    m->n_stack -= n;
    return ckpt_pickle_push(m, ckpt_pickle_node_of(m, kind, m->stack + m->n_stack, n));
}

/* Pops the values above the last mark, and the mark, into a new container. */
static int push_marked(struct pickle_machine *m, enum ckpt_kind kind)
{
    int64_t mark = mark_pos(m);
    if (mark < 0)
        return ckpt_pickle_refuse(m, S2S_E_FORMAT, "no mark");
    size_t n = m->n_stack - (size_t)mark;
    if (kind == CKPT_DICT && n % 2)
        return ckpt_pickle_refuse(m, S2S_E_FORMAT, "dict of an odd number of values");
    m->n_marks--;
    m->n_stack -= n;
    return ckpt_pickle_push(m, ckpt_pickle_node_of(m, kind, m->stack + m->n_stack, n));
}

/* ---- memo ---- */

static int memo_put(struct pickle_machine *m, uint64_t index)
{
    struct ckpt_node *node = ckpt_pickle_top(m);
    if (!node)
        return ckpt_pickle_underflow(m);
    /* picklers number objects consecutively, so no index exceeds the number of opcodes */
    if (index > m->n_ops)
        return ckpt_pickle_refuse(m, S2S_E_FORMAT, "memo index past the number of opcodes");
    m->n_memoized++;
    if (!m->wanted.all) {
        size_t place;
        if (!ckpt_pickle_is_wanted(&m->wanted, index, &place))
            return 0;
        index = place;
    }
    node->in_memo = true;
    while (index >= m->cap_memo) {
        size_t cap = m->cap_memo ? m->cap_memo * 2 : 256;
        m->memo = s2s_xrealloc(m->memo, cap, sizeof *m->memo);
        memset(m->memo + m->cap_memo, 0, (cap - m->cap_memo) * sizeof *m->memo);
        m->cap_memo = cap;
    }
    m->memo[index] = node;
    return 0;
}

static int memo_get(struct pickle_machine *m, uint64_t index)
{
    if (!m->wanted.all) {
        size_t place;
        if (index < m->n_memoized && !ckpt_pickle_is_wanted(&m->wanted, index, &place)) {
            m->n_forgotten++;
            return ckpt_pickle_push(m,
                                    ckpt_pickle_known(m, &m->known.forgotten, CKPT_FORGOTTEN, 0));
        }
        index = index < m->n_memoized ? place : UINT64_MAX;
    }
    if (index >= m->cap_memo || !m->memo[index])
        return ckpt_pickle_refuse(m, S2S_E_FORMAT, "memo entry that was never set");
    return ckpt_pickle_push(m, m->memo[index]);
}

static int op_memo_line(struct pickle_machine *m, char op)
{
    const char *line = NULL;
    size_t len = 0;
    char text[32];
    int64_t index;
    int rc = ckpt_pickle_take_line(m, &line, &len);
    if (rc < 0)
        return rc;
    snprintf(text, sizeof text, "%.*s", ckpt_shown_len(len, 30), line);
    if (s2s_parse_i64(&index, text, 0, INT64_MAX, NULL) < 0)
        return ckpt_pickle_refuse(m, S2S_E_FORMAT, "bad memo index");
    return op == OP_PUT ? memo_put(m, (uint64_t)index) : memo_get(m, (uint64_t)index);
}

/* ---- filling containers ---- */

/* May a record have contents? Not one of a known class that is no container: items set on a tensor
 * would replace the numbers of its storage. */
static bool may_hold(const struct ckpt_node *record)
{
    return record->opaque || ckpt_is_of(record, "collections") || ckpt_is_of(record, "builtins") ||
           ckpt_is_of(record, "__builtin__") || ckpt_is_of(record, "copyreg") ||
           ckpt_is_of(record, "copy_reg");
}

/* The container that APPEND(S), ADDITEMS or SETITEM(S) fill, which may be a record's contents. */
static struct ckpt_node *target(struct pickle_machine *m, size_t pos, enum ckpt_kind kind)
{
    struct ckpt_node *node = pos >= floor_pos(m) && pos < m->n_stack ? m->stack[pos] : NULL;
    if (node && node->kind == CKPT_RECORD && may_hold(node)) {
        if (!node->items[3])
            node->items[3] = ckpt_pickle_new_node(m, kind);
        node = node->items[3];
    }
    return node && node->kind == kind ? node : NULL;
}

/* Offers a value (width 1) or a key and value to the taker; 0: it is to be added here. */
static int take(struct pickle_machine *m, struct ckpt_node **item, size_t width)
{
    if (m->packs)
        ckpt_pickle_pack_item(m, width == 2 ? &item[0] : NULL, &item[width - 1]);
    if (m->packs || !m->taker)
        return 0;
    return m->taker->item(m->taker->ctx, width == 2 ? item[0] : NULL, item[width - 1], m->err);
}

/* Counts a value that was taken from the list; consecutive ones share a node. */
static void add_taken(struct pickle_machine *m, struct ckpt_node *list)
{
    struct ckpt_node *last = list->n ? list->items[list->n - 1] : NULL;
    /* one with a cap is in use by its taker */
    if (!last || last->kind != CKPT_TAKEN || last->cap || last->i + last->n != m->n_taken) {
        last = ckpt_pickle_new_node(m, CKPT_TAKEN);
        last->i = m->n_taken;
        ckpt_pickle_add_item(m, list, last);
    }
    last->n++;
    m->n_taken++;
}

/* APPEND and SETITEM add one value or pair; APPENDS, SETITEMS and ADDITEMS (marked) all above the
 * mark. */
static int op_fill(struct pickle_machine *m, enum ckpt_kind kind, bool marked)
{
    size_t width = kind == CKPT_DICT ? 2 : 1, begin;
    if (marked) {
        int64_t mark = mark_pos(m);
        if (mark < 0)
            return ckpt_pickle_refuse(m, S2S_E_FORMAT, "no mark");
        begin = (size_t)mark;
        m->n_marks--;
    } else {
        if (m->n_stack - floor_pos(m) < width)
            return ckpt_pickle_underflow(m);
        begin = m->n_stack - width;
    }
    if ((m->n_stack - begin) % width)
        return ckpt_pickle_refuse(m, S2S_E_FORMAT, "dict of an odd number of values");
    struct ckpt_node *node = begin ? target(m, begin - 1, kind) : NULL;
    if (!node)
        return ckpt_pickle_refuse(m, S2S_E_FORMAT,
                                  kind == CKPT_DICT   ? "items for something that is not a dict"
                                  : kind == CKPT_LIST ? "items for something that is not a list"
                                                      : "items for something that is not a set");
    int rc = 0;
    if (!m->windowed)
        reserve(m, node, m->n_stack - begin);
    const bool in_dict = kind == CKPT_DICT && marked && m->packs;
    for (size_t i = begin; i < m->n_stack && rc >= 0; i += width) {
        const size_t n_pairs = in_dict ? ckpt_pickle_add_pairs(m, node, begin - 1, i) : 0;
        i += n_pairs * width;
        if (i >= m->n_stack)
            break;
        rc = kind == CKPT_SET ? 0 : take(m, &m->stack[i], width);
        for (size_t k = 0; k < width && rc == 0; k++)
            ckpt_pickle_add_item(m, node, m->stack[i + k]);
        if (rc == 2)
            add_taken(m, node);
    }
    m->n_stack = begin;
    return rc < 0 ? rc : 0;
}

static int op_persid(struct pickle_machine *m)
{
    struct ckpt_node *id = ckpt_pickle_pop(m);
    if (!id)
        return ckpt_pickle_underflow(m);
    /* in the format before torch 1.6, ('module', class, file, source) stands for a class */
    if (id->kind == CKPT_TUPLE && id->n > 1 && ckpt_str_is(id->items[0], "module") &&
        id->items[1]->kind == CKPT_GLOBAL)
        return ckpt_pickle_push(m, id->items[1]);
    struct ckpt_node *node = ckpt_pickle_node_of(m, CKPT_PERSID, &id, 1);
    if (m->taker && m->taker->storage)
        m->taker->storage(m->taker->ctx, node);
    return ckpt_pickle_push(m, node);
}

static int op_pop(struct pickle_machine *m)
{
    if (m->n_stack > floor_pos(m))
        m->n_stack--;
    else if (m->n_marks)
        m->n_marks--;
    else
        return ckpt_pickle_underflow(m);
    return 0;
}

static int op_mark(struct pickle_machine *m)
{
    if (m->n_marks >= MAX_STACK)
        return ckpt_pickle_refuse(m, S2S_E_FORMAT, "more than 2^26 marks");
    s2s_grow(&m->marks, m->n_marks, &m->cap_marks, sizeof *m->marks);
    m->marks[m->n_marks++] = m->n_stack;
    return 0;
}

static int op_pop_mark(struct pickle_machine *m)
{
    int64_t mark = mark_pos(m);
    if (mark < 0)
        return ckpt_pickle_refuse(m, S2S_E_FORMAT, "no mark");
    m->n_marks--;
    m->n_stack = (size_t)mark;
    return 0;
}

int ckpt_pickle_sized(struct pickle_machine *m, int n_bytes,
                      int (*op)(struct pickle_machine *, uint64_t))
{
    const unsigned char *p = ckpt_pickle_take(m, (size_t)n_bytes);
    return p ? op(m, ckpt_pickle_le(p, n_bytes)) : ckpt_pickle_truncated(m);
}

static int op_frame(struct pickle_machine *m, uint64_t len)
{
    return len <= m->len - m->at
               ? 0
               : ckpt_pickle_refuse(m, S2S_E_TRUNCATED, "frame longer than the pickle");
}

static int op_proto(struct pickle_machine *m, uint64_t version)
{
    return version <= 5 ? 0 : ckpt_pickle_refuse(m, S2S_E_UNSUPPORTED, "protocol above 5");
}

static int op_dup(struct pickle_machine *m)
{
    struct ckpt_node *node = ckpt_pickle_top(m);
    return node ? ckpt_pickle_push(m, node) : ckpt_pickle_underflow(m);
}

/* Opcodes of containers, objects and the memo; the others are in ckpt_pickle_run_value. */
static int run(struct pickle_machine *m, unsigned char op)
{
    switch (op) {
    case OP_PROTO:
        return ckpt_pickle_sized(m, 1, op_proto);
    case OP_FRAME:
        return ckpt_pickle_sized(m, 8, op_frame);
    case OP_MARK:
        return op_mark(m);
    case OP_POP:
        return op_pop(m);
    case OP_POP_MARK:
        return op_pop_mark(m);
    case OP_DUP:
        return op_dup(m);
    case OP_EMPTY_LIST:
        return ckpt_pickle_push(m, ckpt_pickle_new_node(m, CKPT_LIST));
    case OP_EMPTY_DICT:
        return ckpt_pickle_push(m, ckpt_pickle_new_node(m, CKPT_DICT));
    case OP_EMPTY_TUPLE:
        return ckpt_pickle_push(m, ckpt_pickle_known(m, &m->known.empty, CKPT_TUPLE, 0));
    case OP_EMPTY_SET:
        return ckpt_pickle_push(m, ckpt_pickle_new_node(m, CKPT_SET));
    case OP_LIST:
        return push_marked(m, CKPT_LIST);
    case OP_DICT:
        return push_marked(m, CKPT_DICT);
    case OP_TUPLE:
        return push_marked(m, CKPT_TUPLE);
    case OP_FROZENSET:
        return push_marked(m, CKPT_SET);
    case OP_TUPLE1:
    case OP_TUPLE2:
    case OP_TUPLE3:
        return push_popped(m, CKPT_TUPLE, (size_t)op - OP_TUPLE1 + 1);
    case OP_APPEND:
    case OP_APPENDS:
        return op_fill(m, CKPT_LIST, op == OP_APPENDS);
    case OP_SETITEM:
    case OP_SETITEMS:
        return op_fill(m, CKPT_DICT, op == OP_SETITEMS);
    case OP_ADDITEMS:
        return op_fill(m, CKPT_SET, true);
    case OP_GET:
    case OP_PUT:
        return op_memo_line(m, (char)op);
    case OP_BINGET:
        return ckpt_pickle_sized(m, 1, memo_get);
    case OP_LONG_BINGET:
        return ckpt_pickle_sized(m, 4, memo_get);
    case OP_BINPUT:
        return ckpt_pickle_sized(m, 1, memo_put);
    case OP_LONG_BINPUT:
        return ckpt_pickle_sized(m, 4, memo_put);
    case OP_MEMOIZE:
        return memo_put(m, m->n_memoized);
    case OP_GLOBAL:
        return ckpt_pickle_global(m);
    case OP_STACK_GLOBAL:
        return ckpt_pickle_stack_global(m);
    case OP_REDUCE:
    case OP_NEWOBJ:
        return ckpt_pickle_reduce(m, false);
    case OP_NEWOBJ_EX:
        return ckpt_pickle_reduce(m, true);
    case OP_BUILD:
        return ckpt_pickle_build(m);
    case OP_BINPERSID:
        return op_persid(m);
    default:
        return ckpt_pickle_run_value(m, op);
    }
}

/* Would a collection free much? */
static bool worth_collecting(const struct pickle_machine *m)
{
    enum { BYTES_OF_A_TENSOR = 256 };
    return !m->packs || m->n_packed * BYTES_OF_A_TENSOR > m->out->arena.used_bytes / 16;
}

/* Do nodes take far more memory than the pickle so far could need? Then it copies copies. */
static bool is_bomb(const struct pickle_machine *m)
{
    const struct ckpt_pickle *out = m->out;
    const size_t used = out->arena.used_bytes + out->kept.used_bytes + out->names.used_bytes;
    return used / BYTES_PER_BYTE > m->at + SPARE_BYTES / BYTES_PER_BYTE;
}

static int op_stop(struct pickle_machine *m)
{
    if (m->n_stack != 1 || m->n_marks)
        return ckpt_pickle_refuse(m, S2S_E_FORMAT, "end with more or less than one value");
    /* passed to something that may call it */
    if (m->getattr.n_pushed || m->or.n_pushed)
        return ckpt_pickle_hostile(m, m->getattr.n_pushed ? m->getattr.node : m->or.node);
    if (m->windowed && worth_collecting(m)) { /* collect all but the tree */
        m->cap_memo = 0;
        m->known = (struct pickle_known){.none = NULL};
        m->left_forgotten = ckpt_pickle_collect(m);
    }
    m->out->root = m->stack[0];
    m->out->len = m->at;
    return 0;
}

static int run_all(struct pickle_machine *m)
{
    while (m->at < m->len) {
        if (m->at > UINT32_MAX)
            return s2s_error_set(m->err, S2S_E_UNSUPPORTED, "pickle: more than 4 GiB");
        if (m->filled - m->at < AHEAD && ckpt_pickle_fill(m, m->at + AHEAD) < 0)
            return m->io_rc;
        if (m->windowed && m->out->arena.used_bytes > m->collect_at && worth_collecting(m))
            (void)ckpt_pickle_collect(m);
        unsigned char op = m->bytes[m->at];
        m->op_at = m->at++;
        m->n_ops++;
        if (op == OP_STOP)
            return op_stop(m);
        int rc = run(m, op);
        if (rc == 0 && is_bomb(m))
            rc = ckpt_pickle_refuse(m, S2S_E_FORMAT,
                                    "a bomb: values far larger than the pickle itself");
        if (rc < 0)
            return rc;
    }
    return s2s_error_set(m->err, S2S_E_TRUNCATED, "pickle: no STOP within %zu bytes", m->len);
}

static int run_machine(struct pickle_machine *m)
{
    m->stack = s2s_xmalloc(64 * sizeof *m->stack);
    m->cap_stack = 64;
    int rc = run_all(m);
    free(m->stack);
    free(m->marks);
    free(m->memo);
    s2s_buf_release(&m->run);
    s2s_buf_release(&m->name);
    s2s_buf_release(&m->packed[0]);
    s2s_buf_release(&m->packed[1]);
    s2s_buf_release(&m->alone);
    if (rc < 0)
        ckpt_pickle_release(m->out);
    return rc;
}

int ckpt_pickle_parse(struct ckpt_pickle *pickle, const void *bytes, size_t len,
                      enum ckpt_pickle_mode mode, struct s2s_error *err)
{
    *pickle = (struct ckpt_pickle){.root = NULL};
    struct pickle_machine m = {.bytes = bytes,
                               .len = len,
                               .filled = len,
                               .mode = mode,
                               .out = pickle,
                               .err = err,
                               .wanted = {.all = true}};
    return run_machine(&m);
}

/* Parses once; all: without dropping values. *again: it failed, or may be wrong, because values
 * were dropped. */
static int parse_mapped(struct pickle_machine *m, bool all, bool *again)
{
    struct ckpt_pickle *pickle = m->out;
    m->wanted.all = all;
    int rc = all ? 0 : ckpt_pickle_find_wanted(m);
    if (rc == 0)
        rc = run_machine(m);
    *again = m->n_forgotten > 0 && (rc < 0 || m->left_forgotten);
    if (*again && rc == 0)
        ckpt_pickle_release(pickle);
    free(m->wanted.bits);
    free(m->wanted.rank);
    return rc;
}

int ckpt_pickle_parse_file(struct ckpt_pickle *pickle, int fd, int64_t pos, size_t len,
                           enum ckpt_pickle_mode mode, const struct ckpt_pickle_taker *taker,
                           struct s2s_error *err)
{
    bool again = false;
    *pickle = (struct ckpt_pickle){.root = NULL};
    void *bytes = mmap(NULL, len + 1, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (bytes == MAP_FAILED)
        return s2s_error_errno(err, S2S_E_NOMEM, "%zu bytes", len);
    const struct pickle_machine fresh = {.bytes = bytes,
                                         .len = len,
                                         .mode = mode,
                                         .out = pickle,
                                         .err = err,
                                         .windowed = true,
                                         .taker = taker,
                                         .packs = !taker || !taker->item,
                                         .fd = fd,
                                         .pos = pos};
    struct pickle_machine m = fresh;
    int rc = parse_mapped(&m, false, &again);
    if (again) {
        if (taker && taker->again)
            taker->again(taker->ctx);
        ckpt_pickle_rewind(&m);
        m = fresh;
        rc = parse_mapped(&m, true, &again);
    }
    munmap(bytes, len + 1);
    return rc;
}
