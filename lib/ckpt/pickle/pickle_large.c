/*
 * Keeps memory small for large pickles (ckpt_pickle_parse_file): bytes are read in windows, the
 * memo stores only entries that are fetched again, and unused nodes are dropped by copying the
 * others.
 */
#include <sys/mman.h>

#include "lib/base/base.h"
#include "lib/ckpt/file.h"
#include "lib/ckpt/pickle/opcodes.h"
#include "lib/ckpt/pickle/pickle_internal.h"

/* Sanitizer builds make both small, so that small pickles exercise this. */
#ifndef PICKLE_WINDOW
#define PICKLE_WINDOW (1 << 20)
#define PICKLE_COLLECT (1 << 20)
#endif

/* A tokenizer is a string of some ten megabytes, of which three copies are made later. */
enum { WINDOW = PICKLE_WINDOW, COLLECT_BYTES = PICKLE_COLLECT, MAX_TEXTS = 12 << 20 };

/* ---- bytes ---- */

/* Drops windows before the current opcode from memory. */
static void give_back(struct pickle_machine *m)
{
    const size_t end = m->op_at / WINDOW * WINDOW;
    if (end > m->given_back)
        (void)madvise((char *)m->bytes + m->given_back, end - m->given_back, MADV_DONTNEED);
    m->given_back = end;
}

int ckpt_pickle_fill(struct pickle_machine *m, size_t end)
{
    while (m->filled < end && m->filled < m->len) {
        size_t n = m->len - m->filled < WINDOW ? m->len - m->filled : WINDOW;
        m->io_rc = ckpt_pread(m->fd, (char *)m->bytes + m->filled, n, m->pos + (int64_t)m->filled,
                              "pickle", m->err);
        if (m->io_rc < 0)
            return m->io_rc;
        m->filled += n;
        give_back(m);
    }
    return 0;
}

/* Skips n bytes without reading them. */
static void skip(struct pickle_machine *m, size_t n)
{
    m->at += n;
    if (m->filled < m->at)
        m->filled = m->at;
}

void ckpt_pickle_rewind(struct pickle_machine *m)
{
    (void)madvise((char *)m->bytes, m->filled, MADV_DONTNEED);
    m->filled = m->given_back = m->op_at = m->at = 0;
}

/* ---- large strings ---- */

bool ckpt_pickle_is_large(size_t len)
{
    return len > WINDOW / 16;
}

/* Sets *n to the length that the next len bytes, UTF-8, have in Latin-1; UINT32_MAX: not Latin-1.
 */
static int count_latin1(struct pickle_machine *m, size_t len, uint32_t *n)
{
    unsigned char piece[16 << 10];
    bool half = false, odd = false;
    *n = 0;
    for (size_t done = 0; done < len && !odd;) {
        const size_t now = len - done < sizeof piece ? len - done : sizeof piece;
        m->io_rc =
            ckpt_pread(m->fd, piece, now, m->pos + (int64_t)(m->at + done), "pickle", m->err);
        if (m->io_rc < 0)
            return m->io_rc;
        for (size_t i = 0; i < now; i++) {
            *n += !half;
            odd |= !half && piece[i] >= 0x80 && piece[i] != 0xC2 && piece[i] != 0xC3;
            half = !half && piece[i] >= 0x80;
        }
        done += now;
    }
    *n = odd || half ? UINT32_MAX : *n;
    return 0;
}

int ckpt_pickle_push_long(struct pickle_machine *m, enum ckpt_kind kind, size_t len)
{
    if (len > UINT32_MAX)
        return ckpt_pickle_refuse(m, S2S_E_UNSUPPORTED, "text of more than 4 GiB");
    const bool is_text = kind == CKPT_STR;
    const bool kept = is_text && m->mode != CKPT_CHECK && len <= MAX_TEXTS - m->texts_bytes &&
                      !ckpt_pickle_encodes(ckpt_pickle_top(m));
    struct ckpt_node *node = ckpt_pickle_new_node(m, is_text && !kept ? CKPT_LONG : kind);
    node->len = (uint32_t)len;
    if (kept) {
        char *text = ckpt_pickle_alloc(m->out, len + 1);
        m->io_rc = ckpt_pread(m->fd, text, len, m->pos + (int64_t)m->at, "pickle", m->err);
        node->text = text;
        m->texts_bytes += len;
    } else if (is_text) {
        m->io_rc = count_latin1(m, len, &node->n);
    }
    if (m->io_rc < 0)
        return m->io_rc;
    skip(m, len);
    return ckpt_pickle_push(m, node);
}

/* ---- the memo ---- */

/* State of the scan. bits: entries that are fetched later; small: entries that are strings or
 * classes. */
struct scan {
    struct pickle_machine *m;
    uint64_t *bits, *small;
    size_t cap_words, n;
    size_t n_before; /* entries before "all_local_plans"; SIZE_MAX: not seen yet */
    bool last_small;
};

enum { LINE = 100 };

/* The size of an opcode's argument: in bytes; negative: of the length field in front of it (-1 to
 * -8); LINE for each line of text. */
static int argument_of(unsigned char op)
{
    switch (op) {
    case OP_PROTO:
    case OP_BININT1:
    case OP_BINGET:
    case OP_BINPUT:
        return 1;
    case OP_BININT2:
        return 2;
    case OP_BININT:
    case OP_LONG_BINGET:
    case OP_LONG_BINPUT:
        return 4;
    case OP_FRAME:
    case OP_BINFLOAT:
        return 8;
    case OP_SHORT_BINSTRING:
    case OP_SHORT_BINBYTES:
    case OP_LONG1:
    case OP_SHORT_BINUNICODE:
        return -1;
    case OP_BINSTRING:
    case OP_BINUNICODE:
    case OP_BINBYTES:
    case OP_LONG4:
        return -4;
    case OP_BINUNICODE8:
    case OP_BINBYTES8:
    case OP_BYTEARRAY8:
        return -8;
    case OP_INT:
    case OP_LONG:
    case OP_FLOAT:
    case OP_STRING:
    case OP_UNICODE:
    case OP_GET:
    case OP_PUT:
        return LINE;
    case OP_GLOBAL:
        return 2 * LINE;
    default:
        return 0;
    }
}

static bool is_small(unsigned char op)
{
    return op == OP_BINUNICODE || op == OP_BINSTRING || op == OP_SHORT_BINSTRING ||
           op == OP_SHORT_BINUNICODE || op == OP_BINUNICODE8 || op == OP_UNICODE ||
           op == OP_STRING || op == OP_GLOBAL || op == OP_STACK_GLOBAL;
}

static void scan_put(struct scan *s)
{
    if (s->n / 64 >= s->cap_words) {
        size_t cap = s->cap_words ? s->cap_words * 2 : 64;
        s->bits = s2s_xrealloc(s->bits, cap, sizeof *s->bits);
        s->small = s2s_xrealloc(s->small, cap, sizeof *s->small);
        memset(s->bits + s->cap_words, 0, (cap - s->cap_words) * sizeof *s->bits);
        memset(s->small + s->cap_words, 0, (cap - s->cap_words) * sizeof *s->small);
        s->cap_words = cap;
    }
    if (s->last_small)
        s->small[s->n / 64] |= (uint64_t)1 << s->n % 64;
    s->n++;
}

static void scan_get(struct scan *s, uint64_t index)
{
    if (index < s->n &&
        (s->n_before == SIZE_MAX || index >= s->n_before || s->small[index / 64] >> index % 64 & 1))
        s->bits[index / 64] |= (uint64_t)1 << index % 64;
}

/* Consumes the argument of an opcode. *value: a number, or the length of what follows, which is
 * *text, or NULL if large. false: the pickle ends in it. */
static bool scan_argument(struct pickle_machine *m, unsigned char op, uint64_t *value,
                          const unsigned char **text)
{
    const int argument = argument_of(op);
    const size_t n = (size_t)abs(argument);
    const char *line;
    size_t len;
    *value = 0;
    *text = NULL;
    if (argument >= LINE) {
        int rc = 0;
        for (int lines = argument / LINE; lines > 0 && rc == 0; lines--)
            rc = ckpt_pickle_take_line(m, &line, &len);
        return rc == 0;
    }
    const unsigned char *p = n ? ckpt_pickle_take(m, n) : NULL;
    if (n && !p)
        return false;
    *value = n ? ckpt_pickle_le(p, (int)n) : 0;
    if (argument >= 0)
        return true;
    if (*value > m->len - m->at)
        return false;
    if (!ckpt_pickle_is_large((size_t)*value))
        return (*text = ckpt_pickle_take(m, (size_t)*value)) != NULL;
    skip(m, (size_t)*value);
    return true;
}

/* Scans the opcode at m->op_at. false: stop, because it is for the machine to judge, or because
 * memo indices are not consecutive. */
static bool scan_op(struct scan *s, unsigned char op)
{
    static const char plans[] = "all_local_plans";
    const unsigned char *text;
    uint64_t value;
    if (!scan_argument(s->m, op, &value, &text))
        return false;
    if (op == OP_BINPUT || op == OP_LONG_BINPUT || op == OP_MEMOIZE) {
        if (op != OP_MEMOIZE && value != s->n)
            return false;
        scan_put(s);
    } else if (op == OP_BINGET || op == OP_LONG_BINGET) {
        scan_get(s, value);
    }
    const bool is_plans = text && (op == OP_BINUNICODE || op == OP_SHORT_BINUNICODE) &&
                          value == strlen(plans) && memcmp(text, plans, strlen(plans)) == 0;
    if (is_plans && !s->m->packs && s->n_before == SIZE_MAX)
        s->n_before = s->n;
    s->last_small = is_small(op);
    return op != OP_GET && op != OP_PUT && op != OP_STOP;
}

int ckpt_pickle_find_wanted(struct pickle_machine *m)
{
    struct scan s = {.m = m, .n_before = SIZE_MAX};
    struct pickle_wanted *wanted = &m->wanted;
    unsigned char op = 0;
    bool more = true;
    while (more && m->at < m->len && ckpt_pickle_fill(m, m->at + 1) == 0) {
        m->op_at = m->at;
        op = m->bytes[m->at++];
        more = scan_op(&s, op);
    }
    free(s.small);
    wanted->bits = s.bits;
    wanted->n_words = (s.n + 63) / 64;
    wanted->rank = s2s_xcalloc(wanted->n_words + 1, sizeof *wanted->rank);
    for (size_t i = 0; i < wanted->n_words; i++)
        wanted->rank[i + 1] = wanted->rank[i] + (uint32_t)__builtin_popcountll(wanted->bits[i]);
    wanted->all = op != OP_STOP;
    const int rc = m->io_rc;
    if (rc == 0)
        s2s_error_clear(m->err); /* the machine reports it */
    ckpt_pickle_rewind(m);
    return rc;
}

bool ckpt_pickle_is_wanted(const struct pickle_wanted *wanted, uint64_t index, size_t *place)
{
    *place = 0;
    if (index / 64 >= wanted->n_words || !(wanted->bits[index / 64] >> index % 64 & 1))
        return false;
    const uint64_t before = wanted->bits[index / 64] & (((uint64_t)1 << index % 64) - 1);
    *place = wanted->rank[index / 64] + (size_t)__builtin_popcountll(before);
    return true;
}

/* ---- nodes ---- */

struct collection {
    struct s2s_blocks arena;    /* the new arena */
    struct ckpt_node **pending; /* copied nodes whose items are not copied yet */
    size_t n_pending, cap_pending;
    struct ckpt_node *nodes;
    size_t n_nodes;
    bool forgotten;
};

enum { MOVED = 255 };

static bool has_items(const struct ckpt_node *node)
{
    return node->kind == CKPT_LIST || node->kind == CKPT_TUPLE || node->kind == CKPT_SET ||
           node->kind == CKPT_DICT || node->kind == CKPT_RECORD || node->kind == CKPT_PERSID;
}

static struct ckpt_node *new_node(struct collection *c)
{
    enum { AT_ONCE = 64 };
    if (c->n_nodes == 0) {
        c->nodes = s2s_blocks_alloc(&c->arena, AT_ONCE * sizeof *c->nodes);
        c->n_nodes = AT_ONCE;
    }
    return &c->nodes[--c->n_nodes];
}

static struct ckpt_node *move_node(struct collection *c, struct ckpt_node *node)
{
    if (!node || node->is_kept)
        return node;
    if (node->kind == MOVED)
        return (struct ckpt_node *)node->items;
    struct ckpt_node *moved = new_node(c);
    *moved = *node;
    c->forgotten |= node->kind == CKPT_FORGOTTEN;
    if (has_items(node)) {
        s2s_grow(&c->pending, c->n_pending, &c->cap_pending, sizeof *c->pending);
        c->pending[c->n_pending++] = moved;
    } else if (node->kind == CKPT_GLOBAL ||
               ((node->kind == CKPT_BYTES || node->kind == CKPT_BIGINT || node->kind == CKPT_STR) &&
                node->text && !node->opaque)) {
        moved->text = s2s_blocks_text(&c->arena, node->text, node->len);
    }
    node->kind = MOVED;
    node->items = (struct ckpt_node **)moved;
    return moved;
}

static void move_items(struct collection *c, struct ckpt_node *node, uint32_t cap)
{
    struct ckpt_node **items = cap ? s2s_blocks_alloc(&c->arena, cap * sizeof *items) : NULL;
    for (uint32_t i = 0; i < node->n; i++)
        items[i] = move_node(c, node->items[i]);
    node->items = items;
    node->cap = cap;
}

static void move_pending(struct collection *c)
{
    while (c->n_pending) {
        struct ckpt_node *node = c->pending[--c->n_pending];
        move_items(c, node, node->n);
    }
}

static void move_all(struct collection *c, struct ckpt_node **nodes, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        nodes[i] = move_node(c, nodes[i]);
        move_pending(c);
    }
}

/* Containers on the stack may still grow, so they keep their spare room: a long list without it
 * would be reallocated at its next item, which would trigger the next collection, and so on. */
static void move_stack(struct collection *c, struct ckpt_node **stack, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        stack[i] = move_node(c, stack[i]);
        if (c->n_pending) {
            struct ckpt_node *node = c->pending[--c->n_pending];
            move_items(c, node, node->cap > node->n ? node->cap : node->n);
        }
        move_pending(c);
    }
}

bool ckpt_pickle_collect(struct pickle_machine *m)
{
    struct collection c = {.n_pending = 0};
    struct pickle_known *known = &m->known;
    move_stack(&c, m->stack, m->n_stack);
    move_all(&c, m->memo, m->cap_memo);
    move_all(&c, known->ints, PICKLE_INTS);
    move_all(&c, known->texts, PICKLE_TEXTS);
    move_all(&c, &known->none, 1);
    move_all(&c, known->truth, 2);
    move_all(&c, &known->empty, 1);
    move_all(&c, m->out->meshes, m->out->n_meshes);
    move_all(&c, &m->getattr.node, 1);
    move_all(&c, &m->or.node, 1);
    known->forgotten = NULL;
    free(c.pending);
    s2s_blocks_release(&m->out->arena);
    m->out->arena = c.arena;
    m->nodes = c.nodes;
    m->n_packed = 0;
    m->n_nodes = c.n_nodes;
    const size_t used = m->out->arena.used_bytes;
    m->collect_at = used + (used / 4 > COLLECT_BYTES ? used / 4 : COLLECT_BYTES);
    return c.forgotten;
}
