/* The stack machine that turns the opcodes of a pickle into nodes. */
#include "lib/ckpt/pickle/pickle_internal.h"

#include <sys/mman.h>

#include "lib/base/base.h"
#include "lib/ckpt/names.h"

enum { MAX_STACK = 1 << 26, MAX_MARKS = 1 << 22, AHEAD = 64 };

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
    s2s_blocks_release(&pickle->rest);
    s2s_buf_release(&pickle->opaque);
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

static struct ckpt_node *new_node(struct pickle_machine *m, enum ckpt_kind kind, bool lasts)
{
    struct ckpt_node *node = s2s_blocks_alloc(lasts ? &m->out->arena : &m->out->rest, sizeof *node);
    node->kind = (uint8_t)kind;
    node->lasts = lasts;
    node->offset = (uint32_t)m->op_at;
    return node;
}

struct ckpt_node *ckpt_pickle_new_node(struct pickle_machine *m, enum ckpt_kind kind)
{
    return new_node(m, kind,
                    kind != CKPT_LIST && kind != CKPT_TUPLE && kind != CKPT_SET &&
                        kind != CKPT_DICT && kind != CKPT_RECORD && kind != CKPT_PERSID);
}

struct ckpt_node *ckpt_pickle_known(struct pickle_machine *m, struct ckpt_node **known,
                                    enum ckpt_kind kind, int64_t value)
{
    if (!*known) {
        *known = new_node(m, kind, true);
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
        struct ckpt_node **items = s2s_blocks_alloc(&m->out->rest, cap * sizeof *items);
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

/* the lowest stack position that opcodes may pop */
static size_t floor_pos(struct pickle_machine *m)
{
    return m->n_marks ? m->marks[m->n_marks - 1].pos : 0;
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
    /* the offset of a chunk, a tuple of numbers, is fetched again for its place */
    bool lasts = kind == CKPT_TUPLE && m->taker && m->taker->item;
    for (size_t i = 0; i < n && lasts; i++)
        lasts = items[i]->lasts && items[i]->kind != CKPT_TUPLE;
    struct ckpt_node *node = new_node(m, kind, lasts);
    if (n) {
        node->items = s2s_blocks_alloc(lasts ? &m->out->arena : &m->out->rest, n * sizeof *items);
        memcpy(node->items, items, n * sizeof *items);
    }
    node->n = node->cap = (uint32_t)n;
    return node;
}

/* ---- marks ---- */

void ckpt_pickle_change(struct pickle_machine *m, const struct ckpt_node *node)
{
    m->oldest = node->offset < m->oldest ? node->offset : m->oldest;
}

static int op_mark(struct pickle_machine *m)
{
    if (m->n_marks >= MAX_MARKS)
        return ckpt_pickle_refuse(m, S2S_E_FORMAT, "more than 2^22 marks");
    s2s_grow(&m->marks, m->n_marks, &m->cap_marks, sizeof *m->marks);
    m->marks[m->n_marks++] = (struct pickle_mark){.pos = m->n_stack,
                                                  .op_at = m->op_at,
                                                  .n_passing = m->n_passing,
                                                  .oldest = m->oldest,
                                                  .rest = s2s_blocks_mark(&m->out->rest)};
    m->oldest = UINT32_MAX;
    return 0;
}

/* Pops the last mark; NULL: there is none. It is lent until the next is pushed, and its `oldest` is
 * that of what was changed since. */
static struct pickle_mark *take_mark(struct pickle_machine *m)
{
    if (m->n_marks == 0)
        return NULL;
    struct pickle_mark *mark = &m->marks[--m->n_marks];
    const uint32_t before = mark->oldest;
    mark->oldest = m->oldest;
    m->oldest = before < m->oldest ? before : m->oldest;
    return mark;
}

/* Drops what was made since the mark and does not last: nothing older refers to it but the memo. */
static void drop_since(struct pickle_machine *m, const struct pickle_mark *mark)
{
    struct ckpt_node *none = NULL;
    if (mark->oldest < mark->op_at || m->needed > mark->op_at)
        return;
    while (m->n_passing > mark->n_passing) {
        struct ckpt_node **entry = &m->memo[m->passing[--m->n_passing]];
        if ((*entry)->lasts)
            continue;
        none = none ? none : new_node(m, CKPT_FORGOTTEN, true);
        *entry = none;
    }
    s2s_blocks_rewind(&m->out->rest, &mark->rest);
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
    const struct pickle_mark *mark = take_mark(m);
    if (!mark)
        return ckpt_pickle_refuse(m, S2S_E_FORMAT, "no mark");
    size_t n = m->n_stack - mark->pos;
    if (kind == CKPT_DICT && n % 2)
        return ckpt_pickle_refuse(m, S2S_E_FORMAT, "dict of an odd number of values");
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
    while (index >= m->cap_memo) {
        size_t cap = m->cap_memo ? m->cap_memo * 2 : 256;
        m->memo = s2s_xrealloc(m->memo, cap, sizeof *m->memo);
        memset(m->memo + m->cap_memo, 0, (cap - m->cap_memo) * sizeof *m->memo);
        m->cap_memo = cap;
    }
    m->memo[index] = node;
    if (m->needed < SIZE_MAX && !node->lasts) {
        s2s_grow(&m->passing, m->n_passing, &m->cap_passing, sizeof *m->passing);
        m->passing[m->n_passing++] = (size_t)index;
    }
    return 0;
}

static int memo_get(struct pickle_machine *m, uint64_t index)
{
    if (index >= m->cap_memo || !m->memo[index])
        return ckpt_pickle_refuse(m, S2S_E_FORMAT, "memo entry that was never set");
    if (m->memo[index]->kind == CKPT_FORGOTTEN && m->memo[index]->offset > m->missed)
        m->missed = m->memo[index]->offset;
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
        if (!node->items[3]) {
            ckpt_pickle_change(m, node);
            node->items[3] = ckpt_pickle_new_node(m, kind);
        }
        node = node->items[3];
    }
    return node && node->kind == kind ? node : NULL;
}

/* Offers the values on the stack from `begin` on, of which `width` belong together, to the taker,
 * and leaves those there that it does not take. *last: do all that are left? */
static int offer(struct pickle_machine *m, size_t begin, size_t width, bool *last)
{
    const struct ckpt_pickle_taker *taker = m->taker && m->taker->item ? m->taker : NULL;
    size_t kept = begin;
    int rc = 0;
    for (size_t i = begin; i < m->n_stack && rc >= 0; i += width) {
        struct ckpt_node **item = &m->stack[i];
        rc = taker ? taker->item(taker->ctx, width == 2 ? item[0] : NULL, item[width - 1], m->err)
                   : 0;
        for (size_t k = 0; k < width && rc == 0; k++) {
            *last &= item[k]->lasts;
            m->stack[kept++] = item[k];
        }
    }
    m->n_stack = kept;
    return rc < 0 ? rc : 0;
}

/* APPEND and SETITEM add one value or pair; APPENDS, SETITEMS and ADDITEMS (marked) all above the
 * mark. */
static int op_fill(struct pickle_machine *m, enum ckpt_kind kind, bool marked)
{
    const size_t width = kind == CKPT_DICT ? 2 : 1;
    const struct pickle_mark *mark = marked ? take_mark(m) : NULL;
    if (marked && !mark)
        return ckpt_pickle_refuse(m, S2S_E_FORMAT, "no mark");
    if (!marked && m->n_stack - floor_pos(m) < width)
        return ckpt_pickle_underflow(m);
    const size_t begin = marked ? mark->pos : m->n_stack - width;
    bool last = marked;
    if ((m->n_stack - begin) % width)
        return ckpt_pickle_refuse(m, S2S_E_FORMAT, "dict of an odd number of values");
    int rc = kind == CKPT_SET ? 0 : offer(m, begin, width, &last);
    if (rc < 0)
        return rc;
    if (last && kind != CKPT_SET)
        drop_since(m, mark);
    struct ckpt_node *node = begin ? target(m, begin - 1, kind) : NULL;
    if (!node)
        return ckpt_pickle_refuse(m, S2S_E_FORMAT,
                                  kind == CKPT_DICT   ? "items for something that is not a dict"
                                  : kind == CKPT_LIST ? "items for something that is not a list"
                                                      : "items for something that is not a set");
    ckpt_pickle_change(m, node);
    reserve(m, node, m->n_stack - begin);
    for (size_t i = begin; i < m->n_stack; i++)
        node->items[node->n++] = m->stack[i];
    m->n_stack = begin;
    return 0;
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
    else if (!take_mark(m))
        return ckpt_pickle_underflow(m);
    return 0;
}

static int op_pop_mark(struct pickle_machine *m)
{
    const struct pickle_mark *mark = take_mark(m);
    if (!mark)
        return ckpt_pickle_refuse(m, S2S_E_FORMAT, "no mark");
    m->n_stack = mark->pos;
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

/* Do nodes take far more memory than the pickle so far could need? Then it copies copies. */
static bool is_bomb(const struct pickle_machine *m)
{
    const struct ckpt_pickle *out = m->out;
    const size_t used = out->arena.used_bytes + out->rest.used_bytes;
    return used / BYTES_PER_BYTE > m->at + SPARE_BYTES / BYTES_PER_BYTE;
}

static bool has_items(const struct ckpt_node *node)
{
    return node->kind == CKPT_LIST || node->kind == CKPT_TUPLE || node->kind == CKPT_SET ||
           node->kind == CKPT_DICT || node->kind == CKPT_RECORD || node->kind == CKPT_PERSID;
}

/* Is a value that was dropped part of the only one on the stack? */
static bool holds_forgotten(struct pickle_machine *m)
{
    while (m->n_stack) {
        struct ckpt_node *node = m->stack[--m->n_stack];
        if (!node || node->is_seen)
            continue;
        if (node->kind == CKPT_FORGOTTEN)
            return true;
        node->is_seen = true;
        for (uint32_t i = 0; has_items(node) && i < node->n; i++) {
            s2s_grow(&m->stack, m->n_stack, &m->cap_stack, sizeof *m->stack);
            m->stack[m->n_stack++] = node->items[i];
        }
    }
    return false;
}

static int op_stop(struct pickle_machine *m)
{
    if (m->n_stack != 1 || m->n_marks)
        return ckpt_pickle_refuse(m, S2S_E_FORMAT, "end with more or less than one value");
    /* passed to something that may call it */
    if (m->getattr.n_pushed || m->or.n_pushed)
        return ckpt_pickle_hostile(m, m->getattr.n_pushed ? m->getattr.node : m->or.node);
    m->out->root = m->stack[0];
    m->out->len = m->at;
    m->left_forgotten = m->missed && holds_forgotten(m);
    return 0;
}

static int run_all(struct pickle_machine *m)
{
    while (m->at < m->len) {
        if (m->at > UINT32_MAX)
            return s2s_error_set(m->err, S2S_E_UNSUPPORTED, "pickle: more than 4 GiB");
        if (m->filled - m->at < AHEAD && ckpt_pickle_fill(m, m->at + AHEAD) < 0)
            return m->io_rc;
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
    free(m->passing);
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
                               .needed = SIZE_MAX};
    return run_machine(&m);
}

int ckpt_pickle_parse_file(struct ckpt_pickle *pickle, int fd, int64_t pos, size_t len,
                           enum ckpt_pickle_mode mode, const struct ckpt_pickle_taker *taker,
                           struct s2s_error *err)
{
    enum { MAX_TRIES = 4 };
    size_t needed = 0;
    bool again = false;
    int rc, n_tries = 0;
    *pickle = (struct ckpt_pickle){.root = NULL};
    void *bytes = mmap(NULL, len + 1, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (bytes == MAP_FAILED)
        return s2s_error_errno(err, S2S_E_NOMEM, "%zu bytes", len);
    do {
        struct pickle_machine m = {.bytes = bytes,
                                   .len = len,
                                   .mode = mode,
                                   .out = pickle,
                                   .err = err,
                                   .windowed = true,
                                   .taker = taker,
                                   .needed = n_tries++ < MAX_TRIES ? needed : SIZE_MAX,
                                   .fd = fd,
                                   .pos = pos};
        s2s_error_clear(err);
        if (again && taker && taker->again)
            taker->again(taker->ctx);
        rc = run_machine(&m);
        again = m.missed > 0 && (rc < 0 || m.left_forgotten);
        needed = m.missed > needed ? m.missed : needed;
        if (again && rc == 0)
            ckpt_pickle_release(pickle);
        (void)madvise(bytes, m.filled, MADV_DONTNEED);
    } while (again);
    munmap(bytes, len + 1);
    return rc;
}
