#include "lib/ckpt/pickle_internal.h"

#include <errno.h>
#include <math.h>

#include "lib/base/base.h"
#include "lib/ckpt/ckpt_internal.h"
#include "lib/io/utf8.h"

enum { MAX_STACK = 1 << 26, BLOCK = 64 << 10 };

/* ---- memory: blocks that are freed together ---- */

struct block {
    struct block *next;
    size_t used, cap;
    _Alignas(16) char data[];
};

struct machine {
    const unsigned char *bytes;
    size_t len, at, op_at; /* op_at: the opcode that runs */
    enum ckpt_pickle_mode mode;
    struct ckpt_node **stack;
    size_t n_stack, cap_stack;
    size_t *marks;
    size_t n_marks, cap_marks;
    struct ckpt_node **memo;
    size_t cap_memo, n_memoized, n_ops, cap_persids;
    struct ckpt_pickle *out;
    struct s2s_error *err;
};

static void *arena_alloc(struct ckpt_pickle *out, size_t len)
{
    struct block *block = out->arena;
    len = (len + 15) / 16 * 16;
    if (!block || block->cap - block->used < len) {
        size_t cap = len > BLOCK / 4 ? len : BLOCK;
        block = s2s_xmalloc(sizeof *block + cap);
        block->next = out->arena;
        block->used = 0;
        block->cap = cap;
        out->arena = block;
    }
    void *ptr = block->data + block->used;
    block->used += len;
    return ptr;
}

void ckpt_pickle_release(struct ckpt_pickle *pickle)
{
    if (!pickle)
        return;
    for (struct block *block = pickle->arena, *next; block; block = next) {
        next = block->next;
        free(block);
    }
    free(pickle->persids);
    *pickle = (struct ckpt_pickle){.root = NULL};
}

/* ---- failures ---- */

static int refuse(struct machine *m, int code, const char *what)
{
    return s2s_error_set(m->err, code, "pickle: %s (opcode 0x%02x at byte %zu)", what,
                         m->bytes[m->op_at], m->op_at);
}

static int truncated(struct machine *m)
{
    return s2s_error_set(m->err, S2S_E_TRUNCATED,
                         "pickle: ends inside opcode 0x%02x at byte %zu of %zu", m->bytes[m->op_at],
                         m->op_at, m->len);
}

/* ---- nodes ---- */

static struct ckpt_node *new_node(struct machine *m, enum ckpt_kind kind)
{
    struct ckpt_node *node = arena_alloc(m->out, sizeof *node);
    *node = (struct ckpt_node){.kind = (uint8_t)kind, .offset = m->op_at};
    return node;
}

static int push(struct machine *m, struct ckpt_node *node)
{
    if (m->n_stack >= MAX_STACK)
        return refuse(m, S2S_E_FORMAT, "stack of more than 2^26 values");
    s2s_grow(&m->stack, m->n_stack, &m->cap_stack, sizeof *m->stack);
    m->stack[m->n_stack++] = node;
    return 0;
}

static int push_int(struct machine *m, int64_t value)
{
    struct ckpt_node *node = new_node(m, CKPT_INT);
    node->i = value;
    return push(m, node);
}

static int push_text(struct machine *m, enum ckpt_kind kind, const char *text, size_t len)
{
    struct ckpt_node *node = new_node(m, kind);
    node->text = text;
    node->len = len;
    return push(m, node);
}

static void add_item(struct machine *m, struct ckpt_node *node, struct ckpt_node *item)
{
    if (node->n == node->cap) {
        uint32_t cap = node->cap ? node->cap * 2 : 4;
        struct ckpt_node **items = arena_alloc(m->out, cap * sizeof *items);
        if (node->n)
            memcpy(items, node->items, node->n * sizeof *items);
        node->items = items;
        node->cap = cap;
    }
    node->items[node->n++] = item;
}

/* values above the last mark, or -1 */
static int64_t mark_pos(struct machine *m)
{
    return m->n_marks ? (int64_t)m->marks[m->n_marks - 1] : -1;
}

/* the lowest stack position that opcodes may pop */
static size_t floor_pos(struct machine *m)
{
    return m->n_marks ? m->marks[m->n_marks - 1] : 0;
}

static struct ckpt_node *pop(struct machine *m)
{
    return m->n_stack > floor_pos(m) ? m->stack[--m->n_stack] : NULL;
}

static struct ckpt_node *top(struct machine *m)
{
    return m->n_stack > floor_pos(m) ? m->stack[m->n_stack - 1] : NULL;
}

static int underflow(struct machine *m)
{
    return refuse(m, S2S_E_FORMAT, "too few values on the stack");
}

static struct ckpt_node *node_of(struct machine *m, enum ckpt_kind kind, struct ckpt_node **items,
                                 size_t n)
{
    struct ckpt_node *node = new_node(m, kind);
    if (n) {
        node->items = arena_alloc(m->out, n * sizeof *items);
        memcpy(node->items, items, n * sizeof *items);
    }
    node->n = node->cap = (uint32_t)n;
    return node;
}

/* pops n values into a container */
static int push_popped(struct machine *m, enum ckpt_kind kind, size_t n)
{
    if (m->n_stack - floor_pos(m) < n)
        return underflow(m);
    m->n_stack -= n;
    return push(m, node_of(m, kind, m->stack + m->n_stack, n));
}

/* pops the values above the mark, and the mark, into a container */
static int push_marked(struct machine *m, enum ckpt_kind kind)
{
    int64_t mark = mark_pos(m);
    if (mark < 0)
        return refuse(m, S2S_E_FORMAT, "no mark");
    size_t n = m->n_stack - (size_t)mark;
    if (kind == CKPT_DICT && n % 2)
        return refuse(m, S2S_E_FORMAT, "dict of an odd number of values");
    m->n_marks--;
    m->n_stack -= n;
    return push(m, node_of(m, kind, m->stack + m->n_stack, n));
}

/* ---- reading arguments ---- */

static const unsigned char *take(struct machine *m, size_t n)
{
    if (n > m->len - m->at)
        return NULL;
    m->at += n;
    return m->bytes + m->at - n;
}

static uint64_t le(const unsigned char *p, int n)
{
    uint64_t value = 0;
    for (int i = 0; i < n; i++)
        value |= (uint64_t)p[i] << 8 * i;
    return value;
}

/* a string whose length stands before it in size_bytes bytes */
static int op_counted(struct machine *m, enum ckpt_kind kind, int size_bytes)
{
    const unsigned char *p = take(m, (size_t)size_bytes);
    if (!p)
        return truncated(m);
    uint64_t len = le(p, size_bytes);
    if (len > m->len - m->at)
        return s2s_error_set(m->err, S2S_E_TRUNCATED,
                             "pickle: string of %llu bytes at byte %zu, %zu are left",
                             (unsigned long long)len, m->op_at, m->len - m->at);
    return push_text(m, kind, (const char *)take(m, len), len);
}

/* up to the line's end, which is taken too */
static int take_line(struct machine *m, const char **line, size_t *len)
{
    const unsigned char *p = m->bytes + m->at;
    const unsigned char *end = memchr(p, '\n', m->len - m->at);
    if (!end)
        return truncated(m);
    *line = (const char *)p;
    *len = (size_t)(end - p);
    m->at += *len + 1;
    return 0;
}

static int op_long(struct machine *m, uint64_t len)
{
    const unsigned char *p = len <= m->len - m->at ? take(m, len) : NULL;
    if (!p)
        return truncated(m);
    if (len > 8)
        return push_text(m, CKPT_BIGINT, (const char *)p, len);
    uint64_t value = le(p, (int)len);
    if (len && len < 8 && p[len - 1] & 0x80)
        value |= ~(uint64_t)0 << 8 * len;
    return push_int(m, (int64_t)value);
}

/* INT, LONG, FLOAT: decimal text */
static int op_number_line(struct machine *m, char op)
{
    const char *line = NULL;
    size_t len = 0;
    char text[64];
    int rc = take_line(m, &line, &len);
    if (rc < 0)
        return rc;
    if (op == 'L' && len && line[len - 1] == 'L')
        len--;
    if (len >= sizeof text)
        return refuse(m, S2S_E_UNSUPPORTED, "number of more than 63 digits");
    memcpy(text, line, len);
    text[len] = 0;
    if (op == 'I' && (strcmp(text, "00") == 0 || strcmp(text, "01") == 0)) {
        struct ckpt_node *node = new_node(m, CKPT_BOOL);
        node->i = text[1] == '1';
        return push(m, node);
    }
    if (op == 'F') {
        char *end;
        struct ckpt_node *node = new_node(m, CKPT_FLOAT);
        node->f = strtod(text, &end);
        return *text && !*end ? push(m, node) : refuse(m, S2S_E_FORMAT, "not a number");
    }
    int64_t value;
    if (s2s_parse_i64(&value, text, INT64_MIN, INT64_MAX, NULL) < 0)
        return refuse(m, S2S_E_FORMAT, "not an integer of 64 bits");
    return push_int(m, value);
}

static int hex_digits(const char *s, size_t left, int n, uint32_t *value)
{
    *value = 0;
    if (left < (size_t)n)
        return -1;
    for (int i = 0; i < n; i++) {
        char c = s[i];
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
        if (digit < 0)
            return -1;
        *value = *value << 4 | (uint32_t)digit;
    }
    return 0;
}

/* UNICODE: raw-unicode-escape, so only \u and \U mean something; bytes are Latin-1 */
static int op_unicode_line(struct machine *m)
{
    const char *line = NULL;
    size_t len = 0, n = 0;
    int rc = take_line(m, &line, &len);
    if (rc < 0)
        return rc;
    char *text = arena_alloc(m->out, 2 * len + 4);
    for (size_t i = 0; i < len;) {
        uint32_t c = (unsigned char)line[i];
        size_t used = 1;
        if (c == '\\' && i + 1 < len && (line[i + 1] == 'u' || line[i + 1] == 'U')) {
            int digits = line[i + 1] == 'u' ? 4 : 8;
            if (hex_digits(line + i + 2, len - i - 2, digits, &c) < 0 || c > 0x10FFFF ||
                (c >= 0xD800 && c < 0xE000))
                return refuse(m, S2S_E_FORMAT, "bad \\u escape");
            used = 2 + (size_t)digits;
        }
        n += s2s_utf8_put(text + n, c);
        i += used;
    }
    return push_text(m, CKPT_STR, text, n);
}

/* STRING: a quoted Python literal */
static int op_string_line(struct machine *m)
{
    const char *line = NULL;
    size_t len = 0, n = 0;
    int rc = take_line(m, &line, &len);
    if (rc < 0)
        return rc;
    if (len < 2 || (line[0] != '\'' && line[0] != '"') || line[len - 1] != line[0])
        return refuse(m, S2S_E_FORMAT, "string without quotes");
    char *text = arena_alloc(m->out, len);
    for (size_t i = 1; i < len - 1;) {
        uint32_t c;
        if (line[i] != '\\') {
            text[n++] = line[i++];
            continue;
        }
        if (i + 2 >= len)
            return refuse(m, S2S_E_FORMAT, "bad escape in a string");
        static const char plain[] = "\\\\''\"\"n\nt\tr\r";
        const char *found = NULL;
        for (const char *p = plain; *p && !found; p += 2)
            found = *p == line[i + 1] ? p : NULL;
        if (found) {
            text[n++] = found[1];
            i += 2;
        } else if (line[i + 1] == 'x' && hex_digits(line + i + 2, len - 3 - i, 2, &c) == 0) {
            text[n++] = (char)c;
            i += 4;
        } else {
            return refuse(m, S2S_E_FORMAT, "bad escape in a string");
        }
    }
    return push_text(m, CKPT_STR, text, n);
}

/* ---- memo ---- */

static int memo_put(struct machine *m, uint64_t index)
{
    struct ckpt_node *node = top(m);
    if (!node)
        return underflow(m);
    /* a pickler numbers its objects, so no index can pass the count of opcodes */
    if (index > m->n_ops)
        return refuse(m, S2S_E_FORMAT, "memo index past the number of opcodes");
    while (index >= m->cap_memo) {
        size_t cap = m->cap_memo ? m->cap_memo * 2 : 256;
        m->memo = s2s_xrealloc(m->memo, cap, sizeof *m->memo);
        memset(m->memo + m->cap_memo, 0, (cap - m->cap_memo) * sizeof *m->memo);
        m->cap_memo = cap;
    }
    m->memo[index] = node;
    m->n_memoized++;
    return 0;
}

static int memo_get(struct machine *m, uint64_t index)
{
    if (index >= m->cap_memo || !m->memo[index])
        return refuse(m, S2S_E_FORMAT, "memo entry that was never set");
    return push(m, m->memo[index]);
}

static int op_memo_line(struct machine *m, char op)
{
    const char *line = NULL;
    size_t len = 0;
    char text[32];
    int64_t index;
    int rc = take_line(m, &line, &len);
    if (rc < 0)
        return rc;
    snprintf(text, sizeof text, "%.*s", (int)(len < 30 ? len : 30), line);
    if (s2s_parse_i64(&index, text, 0, INT64_MAX, NULL) < 0)
        return refuse(m, S2S_E_FORMAT, "bad memo index");
    return op == 'p' ? memo_put(m, (uint64_t)index) : memo_get(m, (uint64_t)index);
}

/* ---- classes and what is made of them ---- */

static int push_global(struct machine *m, const char *module, size_t module_len, const char *name,
                       size_t name_len)
{
    char *text = arena_alloc(m->out, module_len + name_len + 2);
    memcpy(text, module, module_len);
    text[module_len] = '\n';
    memcpy(text + module_len + 1, name, name_len);
    text[module_len + 1 + name_len] = 0;
    struct ckpt_node *node = new_node(m, CKPT_GLOBAL);
    node->text = text;
    node->len = module_len + 1 + name_len;
    node->n = (uint32_t)module_len;
    enum pickle_verdict verdict = ckpt_judge_global(node);
    if (verdict == PICKLE_HOSTILE)
        return s2s_error_set(m->err, S2S_E_UNSUPPORTED,
                             "pickle: hostile: it wants to call %.*s.%.*s (byte %zu); nothing was "
                             "run",
                             (int)(module_len < 200 ? module_len : 200), module,
                             (int)(name_len < 200 ? name_len : 200), name, m->op_at);
    if (verdict == PICKLE_UNKNOWN && m->mode == CKPT_STRICT)
        return s2s_error_set(m->err, S2S_E_UNSUPPORTED,
                             "pickle: class %.*s.%.*s is not known here (byte %zu)",
                             (int)(module_len < 200 ? module_len : 200), module,
                             (int)(name_len < 200 ? name_len : 200), name, m->op_at);
    if (verdict == PICKLE_UNKNOWN) {
        node->opaque = true;
        m->out->n_opaque++;
        if (!m->out->opaque_name) {
            char *shown = arena_alloc(m->out, module_len + name_len + 2);
            memcpy(shown, text, module_len + name_len + 2);
            shown[module_len] = '.';
            m->out->opaque_name = shown;
        }
    }
    return push(m, node);
}

static int op_global(struct machine *m)
{
    const char *module = NULL, *name = NULL;
    size_t module_len = 0, name_len = 0;
    int rc = take_line(m, &module, &module_len);
    if (rc == 0)
        rc = take_line(m, &name, &name_len);
    return rc < 0 ? rc : push_global(m, module, module_len, name, name_len);
}

static int op_stack_global(struct machine *m)
{
    struct ckpt_node *name = pop(m), *module = pop(m);
    if (!name || !module)
        return underflow(m);
    if (name->kind != CKPT_STR || module->kind != CKPT_STR || name->len > 65535 ||
        module->len > 65535)
        return refuse(m, S2S_E_FORMAT, "class whose name is no text");
    return push_global(m, module->text, module->len, name->text, name->len);
}

/* _codecs.encode(text, "latin1"): how protocol 2 spells bytes */
static int latin1(struct machine *m, const struct ckpt_node *args, struct ckpt_node **out)
{
    const struct ckpt_node *text = args->n ? args->items[0] : NULL;
    if (!text || text->kind != CKPT_STR)
        return refuse(m, S2S_E_FORMAT, "encode of what is no text");
    char *bytes = arena_alloc(m->out, text->len + 1);
    size_t n = 0;
    for (size_t i = 0; i < text->len; i++) {
        unsigned char c = (unsigned char)text->text[i];
        if (c < 0x80) {
            bytes[n++] = (char)c;
        } else if ((c == 0xC2 || c == 0xC3) && i + 1 < text->len) {
            bytes[n++] = (char)((c & 3) << 6 | (text->text[i + 1] & 0x3F));
            i++;
        } else {
            return refuse(m, S2S_E_FORMAT, "bytes above 255");
        }
    }
    *out = new_node(m, CKPT_BYTES);
    (*out)->text = bytes;
    (*out)->len = n;
    return 0;
}

/* an empty or copied container for set([..]), OrderedDict([[k, v], ..]) and their like */
static int container(struct machine *m, enum ckpt_kind kind, const struct ckpt_node *from,
                     struct ckpt_node **out)
{
    *out = new_node(m, kind);
    if (!from)
        return 0;
    if (from->kind != CKPT_LIST && from->kind != CKPT_TUPLE && from->kind != CKPT_SET &&
        !(kind == CKPT_DICT && from->kind == CKPT_DICT))
        return refuse(m, S2S_E_FORMAT, "container made of something else");
    if (kind != CKPT_DICT || from->kind == CKPT_DICT) {
        for (uint32_t i = 0; i < from->n; i++)
            add_item(m, *out, from->items[i]);
        return 0;
    }
    for (uint32_t i = 0; i < from->n; i++) {
        const struct ckpt_node *pair = from->items[i];
        if ((pair->kind != CKPT_LIST && pair->kind != CKPT_TUPLE) || pair->n != 2)
            return refuse(m, S2S_E_FORMAT, "dict made of what are no pairs");
        add_item(m, *out, pair->items[0]);
        add_item(m, *out, pair->items[1]);
    }
    return 0;
}

static struct ckpt_node *record(struct machine *m, struct ckpt_node *global, struct ckpt_node *args)
{
    struct ckpt_node *parts[4] = {global, args, NULL, NULL};
    struct ckpt_node *node = node_of(m, CKPT_RECORD, parts, 4);
    node->opaque = global->opaque;
    return node;
}

static bool is_builtin(const struct ckpt_node *global, const char *name)
{
    return ckpt_is(global, "builtins", name) || ckpt_is(global, "__builtin__", name);
}

/* plain Python types spelled as calls */
static int make_builtin(struct machine *m, struct ckpt_node *global, struct ckpt_node *args,
                        struct ckpt_node **out)
{
    struct ckpt_node *first = args->n ? args->items[0] : NULL;
    static const struct {
        const char *name;
        enum ckpt_kind kind;
    } containers[] = {{"set", CKPT_SET},
                      {"frozenset", CKPT_SET},
                      {"list", CKPT_LIST},
                      {"tuple", CKPT_TUPLE},
                      {"dict", CKPT_DICT}};
    for (size_t i = 0; i < sizeof containers / sizeof *containers; i++)
        if (is_builtin(global, containers[i].name))
            return container(m, containers[i].kind, first, out);
    if (is_builtin(global, "bytes") || is_builtin(global, "bytearray")) {
        *out = new_node(m, CKPT_BYTES);
        if (first && first->kind == CKPT_STR)
            return latin1(m, args, out);
        if (first && first->kind == CKPT_BYTES)
            **out = *first;
        else if (first)
            *out = record(m, global, args);
        return 0;
    }
    *out = record(m, global, args);
    return 0;
}

/* what `global(*args)` would give */
static int make(struct machine *m, struct ckpt_node *global, struct ckpt_node *args,
                struct ckpt_node **out)
{
    struct ckpt_node *first = args->n ? args->items[0] : NULL;
    if (ckpt_is(global, "torch", "Size"))
        return container(m, CKPT_TUPLE, first, out);
    if (ckpt_is(global, "collections", "OrderedDict"))
        return container(m, CKPT_DICT, first, out);
    if (ckpt_is(global, "collections", "defaultdict"))
        return container(m, CKPT_DICT, args->n > 1 ? args->items[1] : NULL, out);
    if (ckpt_is(global, "_codecs", "encode"))
        return latin1(m, args, out);
    if (is_builtin(global, global->text + global->n + 1))
        return make_builtin(m, global, args, out);
    if (first && (ckpt_is(global, "torch._utils", "_rebuild_parameter") ||
                  ckpt_is(global, "torch._utils", "_rebuild_parameter_with_state"))) {
        *out = first;
        return 0;
    }
    /* a tensor with attributes or a class of its own: (function, type, arguments, state) */
    if (ckpt_is(global, "torch._tensor", "_rebuild_from_type_v2") && args->n == 4 &&
        first->kind == CKPT_GLOBAL && !ckpt_is(first, "torch._tensor", "_rebuild_from_type_v2") &&
        args->items[2]->kind == CKPT_TUPLE)
        return make(m, first, args->items[2], out);
    *out = record(m, global, args);
    return 0;
}

/* REDUCE (0 extra), NEWOBJ, NEWOBJ_EX (keyword arguments on top) */
static int op_reduce(struct machine *m, bool keywords)
{
    struct ckpt_node *names = keywords ? pop(m) : NULL;
    struct ckpt_node *args = pop(m), *global = pop(m), *made = NULL;
    if (!args || !global || (keywords && !names))
        return underflow(m);
    if (global->kind != CKPT_GLOBAL)
        return refuse(m, S2S_E_FORMAT, "call of something that is no class");
    if (args->kind != CKPT_TUPLE)
        return refuse(m, S2S_E_FORMAT, "call whose arguments are no tuple");
    int rc = make(m, global, args, &made);
    if (rc == 0 && names && made->kind == CKPT_RECORD)
        made->items[2] = names;
    return rc < 0 ? rc : push(m, made);
}

static int op_build(struct machine *m)
{
    struct ckpt_node *state = pop(m), *node = top(m);
    if (!state || !node)
        return underflow(m);
    if (node->kind == CKPT_DICT || node->kind == CKPT_LIST || node->kind == CKPT_SET)
        return 0; /* attributes of an OrderedDict (its _metadata): no data of ours */
    if (node->kind != CKPT_RECORD)
        return refuse(m, S2S_E_FORMAT, "state for something that is no object");
    if (node->items[2])
        return refuse(m, S2S_E_FORMAT, "state of an object set twice");
    node->items[2] = state;
    return 0;
}

/* ---- filling containers ---- */

/* the list or dict that APPEND(S), ADDITEMS or SETITEM(S) fill; a record's contents count */
static struct ckpt_node *target(struct machine *m, size_t pos, enum ckpt_kind kind)
{
    struct ckpt_node *node = pos >= floor_pos(m) && pos < m->n_stack ? m->stack[pos] : NULL;
    if (node && node->kind == CKPT_RECORD) {
        if (!node->items[3])
            node->items[3] = new_node(m, kind);
        node = node->items[3];
    }
    return node && node->kind == kind ? node : NULL;
}

/* one (APPEND, SETITEM) or all above the mark */
static int op_fill(struct machine *m, enum ckpt_kind kind, bool marked)
{
    size_t width = kind == CKPT_DICT ? 2 : 1, begin;
    if (marked) {
        int64_t mark = mark_pos(m);
        if (mark < 0)
            return refuse(m, S2S_E_FORMAT, "no mark");
        begin = (size_t)mark;
        m->n_marks--;
    } else {
        if (m->n_stack - floor_pos(m) < width)
            return underflow(m);
        begin = m->n_stack - width;
    }
    if ((m->n_stack - begin) % width)
        return refuse(m, S2S_E_FORMAT, "dict of an odd number of values");
    struct ckpt_node *node = begin ? target(m, begin - 1, kind) : NULL;
    if (!node)
        return refuse(m, S2S_E_FORMAT,
                      kind == CKPT_DICT   ? "items for what is no dict"
                      : kind == CKPT_LIST ? "items for what is no list"
                                          : "items for what is no set");
    for (size_t i = begin; i < m->n_stack; i++)
        add_item(m, node, m->stack[i]);
    m->n_stack = begin;
    return 0;
}

static int op_persid(struct machine *m)
{
    struct ckpt_node *id = pop(m);
    if (!id)
        return underflow(m);
    struct ckpt_node *node = node_of(m, CKPT_PERSID, &id, 1);
    s2s_grow(&m->out->persids, m->out->n_persids, &m->cap_persids, sizeof node);
    m->out->persids[m->out->n_persids++] = node;
    return push(m, node);
}

static int op_pop(struct machine *m)
{
    if (m->n_stack > floor_pos(m))
        m->n_stack--;
    else if (m->n_marks)
        m->n_marks--;
    else
        return underflow(m);
    return 0;
}

static int op_mark(struct machine *m)
{
    if (m->n_marks >= MAX_STACK)
        return refuse(m, S2S_E_FORMAT, "more than 2^26 marks");
    s2s_grow(&m->marks, m->n_marks, &m->cap_marks, sizeof *m->marks);
    m->marks[m->n_marks++] = m->n_stack;
    return 0;
}

static int op_pop_mark(struct machine *m)
{
    int64_t mark = mark_pos(m);
    if (mark < 0)
        return refuse(m, S2S_E_FORMAT, "no mark");
    m->n_marks--;
    m->n_stack = (size_t)mark;
    return 0;
}

static int op_bool(struct machine *m, int value)
{
    struct ckpt_node *node = new_node(m, CKPT_BOOL);
    node->i = value;
    return push(m, node);
}

static int op_binfloat(struct machine *m)
{
    const unsigned char *p = take(m, 8);
    if (!p)
        return truncated(m);
    uint64_t bits = __builtin_bswap64(le(p, 8));
    struct ckpt_node *node = new_node(m, CKPT_FLOAT);
    memcpy(&node->f, &bits, 8);
    return push(m, node);
}

/* an unsigned or (4 bytes) signed little-endian number */
static int op_binint(struct machine *m, int n_bytes)
{
    const unsigned char *p = take(m, (size_t)n_bytes);
    if (!p)
        return truncated(m);
    return push_int(m, n_bytes == 4 ? (int32_t)le(p, 4) : (int64_t)le(p, n_bytes));
}

static int op_sized(struct machine *m, int n_bytes, int (*op)(struct machine *, uint64_t))
{
    const unsigned char *p = take(m, (size_t)n_bytes);
    return p ? op(m, le(p, n_bytes)) : truncated(m);
}

static int op_frame(struct machine *m, uint64_t len)
{
    return len <= m->len - m->at ? 0 : refuse(m, S2S_E_TRUNCATED, "frame longer than the pickle");
}

static int op_proto(struct machine *m, uint64_t version)
{
    return version <= 5 ? 0 : refuse(m, S2S_E_UNSUPPORTED, "protocol above 5");
}

static int op_dup(struct machine *m)
{
    struct ckpt_node *node = top(m);
    return node ? push(m, node) : underflow(m);
}

/* strings and numbers */
static int run_value(struct machine *m, unsigned char op)
{
    switch (op) {
    case 'N':
        return push(m, new_node(m, CKPT_NONE));
    case 0x88:
        return op_bool(m, 1);
    case 0x89:
        return op_bool(m, 0);
    case 'I':
    case 'L':
    case 'F':
        return op_number_line(m, (char)op);
    case 'J':
        return op_binint(m, 4);
    case 'K':
        return op_binint(m, 1);
    case 'M':
        return op_binint(m, 2);
    case 0x8a:
        return op_sized(m, 1, op_long);
    case 0x8b:
        return op_sized(m, 4, op_long);
    case 'G':
        return op_binfloat(m);
    case 'S':
        return op_string_line(m);
    case 'V':
        return op_unicode_line(m);
    case 'T':
    case 'X':
        return op_counted(m, CKPT_STR, 4);
    case 'U':
    case 0x8c:
        return op_counted(m, CKPT_STR, 1);
    case 0x8d:
        return op_counted(m, CKPT_STR, 8);
    case 'B':
        return op_counted(m, CKPT_BYTES, 4);
    case 'C':
        return op_counted(m, CKPT_BYTES, 1);
    case 0x8e:
    case 0x96:
        return op_counted(m, CKPT_BYTES, 8);
    default:
        return refuse(m, S2S_E_UNSUPPORTED, "opcode that no checkpoint needs");
    }
}

/* containers, objects, memo; the rest is run_value's */
static int run(struct machine *m, unsigned char op)
{
    switch (op) {
    case 0x80:
        return op_sized(m, 1, op_proto);
    case 0x95:
        return op_sized(m, 8, op_frame);
    case '(':
        return op_mark(m);
    case '0':
        return op_pop(m);
    case '1':
        return op_pop_mark(m);
    case '2':
        return op_dup(m);
    case ']':
        return push(m, new_node(m, CKPT_LIST));
    case '}':
        return push(m, new_node(m, CKPT_DICT));
    case ')':
        return push(m, new_node(m, CKPT_TUPLE));
    case 0x8f:
        return push(m, new_node(m, CKPT_SET));
    case 'l':
        return push_marked(m, CKPT_LIST);
    case 'd':
        return push_marked(m, CKPT_DICT);
    case 't':
        return push_marked(m, CKPT_TUPLE);
    case 0x91:
        return push_marked(m, CKPT_SET);
    case 0x85:
    case 0x86:
    case 0x87:
        return push_popped(m, CKPT_TUPLE, op - 0x84u);
    case 'a':
    case 'e':
        return op_fill(m, CKPT_LIST, op == 'e');
    case 's':
    case 'u':
        return op_fill(m, CKPT_DICT, op == 'u');
    case 0x90:
        return op_fill(m, CKPT_SET, true);
    case 'g':
    case 'p':
        return op_memo_line(m, (char)op);
    case 'h':
        return op_sized(m, 1, memo_get);
    case 'j':
        return op_sized(m, 4, memo_get);
    case 'q':
        return op_sized(m, 1, memo_put);
    case 'r':
        return op_sized(m, 4, memo_put);
    case 0x94:
        return memo_put(m, m->n_memoized);
    case 'c':
        return op_global(m);
    case 0x93:
        return op_stack_global(m);
    case 'R':
    case 0x81:
        return op_reduce(m, false);
    case 0x92:
        return op_reduce(m, true);
    case 'b':
        return op_build(m);
    case 'Q':
        return op_persid(m);
    default:
        return run_value(m, op);
    }
}

static int run_all(struct machine *m)
{
    while (m->at < m->len) {
        unsigned char op = m->bytes[m->at];
        m->op_at = m->at++;
        m->n_ops++;
        if (op == '.') {
            if (m->n_stack != 1 || m->n_marks)
                return refuse(m, S2S_E_FORMAT, "end with more or less than one value");
            m->out->root = m->stack[0];
            m->out->len = m->at;
            return 0;
        }
        int rc = run(m, op);
        if (rc < 0)
            return rc;
    }
    return s2s_error_set(m->err, S2S_E_TRUNCATED, "pickle: no STOP within %zu bytes", m->len);
}

int ckpt_pickle_parse(struct ckpt_pickle *pickle, const void *bytes, size_t len,
                      enum ckpt_pickle_mode mode, struct s2s_error *err)
{
    *pickle = (struct ckpt_pickle){.root = NULL};
    struct machine m = {.bytes = bytes,
                        .len = len,
                        .mode = mode,
                        .out = pickle,
                        .err = err,
                        .stack = s2s_xmalloc(64 * sizeof *m.stack),
                        .cap_stack = 64};
    int rc = run_all(&m);
    free(m.stack);
    free(m.marks);
    free(m.memo);
    if (rc < 0)
        ckpt_pickle_release(pickle);
    return rc;
}
