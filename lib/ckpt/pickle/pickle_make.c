/* Globals and calls: the nodes that represent what a pickle would construct. */
#include "lib/ckpt/pickle/pickle_internal.h"

#include "lib/base/base.h"
#include "lib/ckpt/box.h"
#include "lib/ckpt/names.h"
#include "lib/ckpt/pickle/dtensor.h"

enum { MAX_CLASS = 4096 }; /* limit for the name of a module, and of a class */

int ckpt_pickle_hostile(struct pickle_machine *m, const struct ckpt_node *global)
{
    size_t len;
    const char *name = ckpt_global_name(global, &len);
    return s2s_error_set(m->err, S2S_E_UNSUPPORTED,
                         "pickle: hostile: it wants to call %.*s.%.*s (byte %u); nothing was run",
                         ckpt_shown_len(global->n, 200), global->text, ckpt_shown_len(len, 200),
                         name, global->offset);
}

/* Adds a class to the list, once; a long list is cut off. */
static void note_opaque(struct s2s_buf *names, const struct ckpt_node *class)
{
    enum { MOST = 1000 };
    char *name = s2s_xasprintf("%.*s.%.200s", ckpt_shown_len(class->n, 200), class->text,
                               class->text + class->n + 1);
    const size_t len = strlen(name);
    const char *at = names->data;
    while (at && (at = strstr(at, name)) &&
           !((at == names->data || at[-1] == ' ') && (at[len] == 0 || at[len] == ',')))
        at += len;
    if (!at && names->len < MOST)
        s2s_buf_printf(names, "%s%s", names->len ? ", " : "", name);
    else if (!at && names->data[names->len - 1] != '.')
        s2s_buf_puts(names, ", ..");
    free(name);
}

/* An unknown class becomes opaque, if the mode allows. */
static int keep_opaque(struct pickle_machine *m, struct ckpt_node *node)
{
    size_t len;
    const char *name = ckpt_global_name(node, &len);
    if (m->mode == CKPT_STRICT)
        return s2s_error_set(
            m->err, S2S_E_UNSUPPORTED, "pickle: class %.*s.%.*s is not known here (byte %zu)",
            ckpt_shown_len(node->n, 200), node->text, ckpt_shown_len(len, 200), name, m->op_at);
    node->opaque = true;
    note_opaque(&m->out->opaque, node);
    return 0;
}

static struct ckpt_node *the_function(struct pickle_function *function, struct ckpt_node *node)
{
    if (!function->node)
        function->node = node;
    return function->node;
}

/* Each part of a name is looked up among the hostile ones. */
static bool is_absurd(size_t module_len, const char *name, size_t name_len)
{
    enum { MAX_PARTS = 16 };
    size_t n_parts = 1;
    for (size_t i = 0; i < name_len && name_len <= MAX_CLASS; i++)
        n_parts += name[i] == '.';
    return module_len > MAX_CLASS || name_len > MAX_CLASS || n_parts > MAX_PARTS;
}

static int make_global(struct pickle_machine *m, const char *module, size_t module_len,
                       const char *name, size_t name_len, struct ckpt_node **out)
{
    if (is_absurd(module_len, name, name_len))
        return s2s_error_set(
            m->err, S2S_E_FORMAT, "pickle: no class is called %.*s.%.*s.. (byte %zu)",
            ckpt_shown_len(module_len, 60), module, ckpt_shown_len(name_len, 60), name, m->op_at);
    char *text = ckpt_pickle_alloc(m->out, module_len + name_len + 2);
    memcpy(text, module, module_len);
    text[module_len] = '\n';
    memcpy(text + module_len + 1, name, name_len);
    text[module_len + 1 + name_len] = 0;
    struct ckpt_node *node = *out = ckpt_pickle_new_node(m, CKPT_GLOBAL);
    node->text = text;
    node->len = module_len + 1 + name_len;
    node->n = (uint32_t)module_len;
    switch (ckpt_judge_global(node)) {
    case PICKLE_HOSTILE:
        return ckpt_pickle_hostile(m, node);
    case PICKLE_UNKNOWN:
        return keep_opaque(m, node);
    case PICKLE_GETATTR:
        *out = the_function(&m->getattr, node);
        return 0;
    case PICKLE_OR:
        if (m->mode == CKPT_STRICT)
            return ckpt_pickle_hostile(m, node);
        *out = the_function(&m->or, node);
        return 0;
    case PICKLE_ALLOWED:
        return 0;
    }
    return 0;
}

static int push_global(struct pickle_machine *m, const char *module, size_t module_len,
                       const char *name, size_t name_len)
{
    struct ckpt_node *node = NULL;
    int rc = make_global(m, module, module_len, name, name_len, &node);
    return rc < 0 ? rc : ckpt_pickle_push(m, node);
}

/*
 * getattr(class, "name") is how Python 3.11.0 to 3.11.4 pickle a member of an enum, and protocol 2
 * a nested class. It becomes the global class.name, as in later protocols. Any other use of getattr
 * is how an attack reaches what it may not name.
 */
static int attribute(struct pickle_machine *m, const struct ckpt_node *args, struct ckpt_node **out)
{
    m->getattr.n_pushed--;
    if (args->n != 2 || args->items[0]->kind != CKPT_GLOBAL || args->items[1]->kind != CKPT_STR ||
        args->items[1]->len > MAX_CLASS)
        return ckpt_pickle_hostile(m, m->getattr.node);
    const struct ckpt_node *class = args->items[0], *member = args->items[1];
    size_t len;
    const char *name = ckpt_global_name(class, &len);
    char *dotted = ckpt_pickle_alloc(m->out, len + member->len + 1);
    memcpy(dotted, name, len);
    dotted[len] = '.';
    memcpy(dotted + len + 1, member->text, member->len);
    return make_global(m, class->text, class->n, dotted, len + 1 + member->len, out);
}

/* Length of "Class." in a name "Class.member"; 0: not a member. */
static size_t class_of(const struct ckpt_node *global)
{
    size_t len = global->kind == CKPT_GLOBAL ? global->len - global->n - 1 : 0;
    while (len && global->text[global->n + len] != '.')
        len--;
    return len;
}

/*
 * or_(class.rest, class.lowest) or or_(class.name, bits without a name) is how Python 3.11.0 to
 * 3.11.4 pickle an enum.Flag of several members. It becomes the name that Python prints,
 * class.lowest|rest. Any other use is refused.
 */
static int combination(struct pickle_machine *m, const struct ckpt_node *args,
                       struct ckpt_node **out)
{
    m->or.n_pushed--;
    const struct ckpt_node *rest = args->n == 2 ? args->items[0] : NULL;
    const struct ckpt_node *lowest = rest ? args->items[1] : NULL;
    const size_t class_len = rest ? class_of(rest) : 0;
    const bool bits = class_len && lowest->kind == CKPT_INT && lowest->i > 0;
    if (!class_len || !(bits || (class_of(lowest) == class_len && rest->n == lowest->n &&
                                 memcmp(rest->text, lowest->text, rest->n + 1 + class_len) == 0)))
        return ckpt_pickle_hostile(m, m->or.node);
    size_t len, lowest_len;
    const char *name = ckpt_global_name(rest, &len);
    struct s2s_buf joined = S2S_BUF_INIT;
    if (bits) {
        s2s_buf_add(&joined, name, len);
        s2s_buf_printf(&joined, "|%lld", (long long)lowest->i);
    } else {
        const char *member = ckpt_global_name(lowest, &lowest_len);
        s2s_buf_add(&joined, member, lowest_len);
        s2s_buf_putc(&joined, '|');
        s2s_buf_add(&joined, name + class_len, len - class_len);
    }
    int rc = make_global(m, rest->text, rest->n, joined.data, joined.len, out);
    s2s_buf_release(&joined);
    return rc;
}

int ckpt_pickle_global(struct pickle_machine *m)
{
    const char *module = NULL, *name = NULL;
    size_t module_len = 0, name_len = 0;
    int rc = ckpt_pickle_take_line(m, &module, &module_len);
    if (rc == 0)
        rc = ckpt_pickle_take_line(m, &name, &name_len);
    return rc < 0 ? rc : push_global(m, module, module_len, name, name_len);
}

int ckpt_pickle_stack_global(struct pickle_machine *m)
{
    struct ckpt_node *name = ckpt_pickle_pop(m), *module = ckpt_pickle_pop(m);
    if (!name || !module)
        return ckpt_pickle_underflow(m);
    if (name->kind != CKPT_STR || module->kind != CKPT_STR)
        return ckpt_pickle_refuse(m, S2S_E_FORMAT, "class whose name is not a string");
    return push_global(m, module->text, module->len, name->text, name->len);
}

/* _codecs.encode(text, "latin1"), the form of bytes in protocol 2. */
static int latin1(struct pickle_machine *m, const struct ckpt_node *args, struct ckpt_node **out)
{
    const struct ckpt_node *text = args->n ? args->items[0] : NULL;
    if (text && text->kind == CKPT_LONG && text->n <= text->len) {
        *out = ckpt_pickle_new_node(m, CKPT_BYTES);
        (*out)->len = text->n;
        return 0;
    }
    if (text && text->kind == CKPT_LONG)
        return ckpt_pickle_refuse(m, S2S_E_FORMAT, "bytes above 255");
    if (!text || text->kind != CKPT_STR)
        return ckpt_pickle_refuse(m, S2S_E_FORMAT, "encode of something that is not a string");
    char *bytes = ckpt_pickle_alloc(m->out, text->len + 1);
    size_t n = 0;
    for (size_t i = 0; i < text->len; i++) {
        unsigned char c = (unsigned char)text->text[i];
        if (c < 0x80) {
            bytes[n++] = (char)c;
        } else if ((c == 0xC2 || c == 0xC3) && i + 1 < text->len) {
            bytes[n++] = (char)((c & 3) << 6 | (text->text[i + 1] & 0x3F));
            i++;
        } else {
            return ckpt_pickle_refuse(m, S2S_E_FORMAT, "bytes above 255");
        }
    }
    *out = ckpt_pickle_new_node(m, CKPT_BYTES);
    (*out)->text = bytes;
    (*out)->len = n;
    return 0;
}

/* A new container for set([..]), OrderedDict([[k, v], ..]) and the like. */
static int container(struct pickle_machine *m, enum ckpt_kind kind, const struct ckpt_node *from,
                     struct ckpt_node **out)
{
    *out = ckpt_pickle_new_node(m, kind);
    if (!from)
        return 0;
    if (from->kind != CKPT_LIST && from->kind != CKPT_TUPLE && from->kind != CKPT_SET &&
        !(kind == CKPT_DICT && from->kind == CKPT_DICT))
        return ckpt_pickle_refuse(m, S2S_E_FORMAT, "container made of something else");
    if (kind != CKPT_DICT || from->kind == CKPT_DICT) {
        for (uint32_t i = 0; i < from->n; i++)
            ckpt_pickle_add_item(m, *out, from->items[i]);
        return 0;
    }
    for (uint32_t i = 0; i < from->n; i++) {
        const struct ckpt_node *pair = from->items[i];
        if ((pair->kind != CKPT_LIST && pair->kind != CKPT_TUPLE) || pair->n != 2)
            return ckpt_pickle_refuse(m, S2S_E_FORMAT, "dict made of items that are not pairs");
        ckpt_pickle_add_item(m, *out, pair->items[0]);
        ckpt_pickle_add_item(m, *out, pair->items[1]);
    }
    return 0;
}

static struct ckpt_node *record(struct pickle_machine *m, struct ckpt_node *global,
                                struct ckpt_node *args)
{
    struct ckpt_node *parts[4] = {global, args, NULL, NULL};
    struct ckpt_node *node = ckpt_pickle_node_of(m, CKPT_RECORD, parts, 4);
    node->opaque = global->opaque;
    return node;
}

static bool is_builtin(const struct ckpt_node *global, const char *name)
{
    return ckpt_is(global, "builtins", name) || ckpt_is(global, "__builtin__", name);
}

bool ckpt_pickle_encodes(const struct ckpt_node *global)
{
    return global && global->kind == CKPT_GLOBAL &&
           (ckpt_is(global, "_codecs", "encode") || is_builtin(global, "bytes") ||
            is_builtin(global, "bytearray"));
}

/* Plain Python types that are pickled as calls. */
static int make_builtin(struct pickle_machine *m, struct ckpt_node *global, struct ckpt_node *args,
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
        *out = ckpt_pickle_new_node(m, CKPT_BYTES);
        int rc = 0;
        if (first && (first->kind == CKPT_STR || first->kind == CKPT_LONG))
            rc = latin1(m, args, out);
        else if (first && first->kind == CKPT_BYTES)
            **out = *first;
        else if (first)
            *out = record(m, global, args);
        if ((*out)->kind == CKPT_BYTES)
            (*out)->n = is_builtin(global, "bytearray");
        return rc;
    }
    *out = record(m, global, args);
    return 0;
}

/* The kind of number in a numpy dtype, 'i' of "i8", whose elements have n bytes, little-endian; 0:
 * another dtype. Its record has the code as first argument, and the byte order second in its state.
 */
static char numpy_kind(const struct ckpt_node *dtype, uint32_t n)
{
    if (dtype->kind != CKPT_RECORD || !ckpt_is(dtype->items[0], "numpy", "dtype") ||
        dtype->items[1]->n == 0)
        return 0;
    const struct ckpt_node *code = dtype->items[1]->items[0], *state = dtype->items[2];
    const struct ckpt_node *order =
        state && state->kind == CKPT_TUPLE && state->n > 1 ? state->items[1] : NULL;
    const bool is_big = order && order->kind == CKPT_STR && order->len && order->text[0] == '>';
    const bool fits = code->kind == CKPT_STR && code->len == 2 && code->text[1] == '0' + (int)n;
    return fits && !is_big ? code->text[0] : 0;
}

/*
 * Converts numpy.core.multiarray.scalar(dtype, bytes) to a number: Megatron-Core 0.14 and 0.15
 * leave numpy.int64 in the offsets of flattened chunks. NULL: not an integer, bool or float32
 * or 64.
 */
static struct ckpt_node *numpy_scalar(struct pickle_machine *m, const struct ckpt_node *args)
{
    const struct ckpt_node *bytes = args->n == 2 ? args->items[1] : NULL;
    if (!bytes || bytes->kind != CKPT_BYTES || bytes->len > 8)
        return NULL;
    const int n = (int)bytes->len;
    const char kind = numpy_kind(args->items[0], bytes->len);
    if (!kind)
        return NULL;
    const uint64_t value = ckpt_pickle_le((const unsigned char *)bytes->text, n);
    const bool top_bit = n && value >> (8 * n - 1) & 1;
    struct ckpt_node *node = ckpt_pickle_new_node(m, CKPT_INT);
    if (kind == 'i') {
        node->i = (int64_t)(top_bit && n < 8 ? value | ~(uint64_t)0 << 8 * n : value);
        return node;
    }
    if (kind == 'u' && !(n == 8 && top_bit)) {
        node->i = (int64_t)value;
        return node;
    }
    if (kind == 'b' && n == 1) {
        node->kind = CKPT_BOOL;
        node->i = value != 0;
        return node;
    }
    node->kind = CKPT_FLOAT;
    if (kind == 'f' && n == 8) {
        memcpy(&node->f, bytes->text, sizeof node->f);
        return node;
    }
    if (kind == 'f' && n == 4) {
        float single;
        memcpy(&single, bytes->text, sizeof single);
        node->f = single;
        return node;
    }
    return NULL;
}

/* Turns the record of a plain tensor, or of a DTensor that is wanted, into a node that lasts. What
 * cannot be read stays as it is: that is reported when the tensor is added, with its name. */
static struct ckpt_node *pack(struct pickle_machine *m, struct ckpt_node *node)
{
    struct ckpt_view view;
    struct ckpt_dtensor dtensor;
    struct s2s_error later = S2S_ERROR_INIT;
    struct ckpt_node *packed = node;
    if (ckpt_view_is_plain(node) && ckpt_view_of(node, &view, &later) > 0 &&
        ckpt_box_numel(view.size, view.n_dims) > 0) {
        packed = ckpt_pickle_new_node(m, CKPT_TENSOR);
        packed->view = memcpy(ckpt_pickle_alloc(m->out, sizeof view), &view, sizeof view);
    } else if (m->taker && m->taker->dtensors && ckpt_is_wrapped(node) &&
               ckpt_dtensor_of(&dtensor, node, &later) == 0) {
        packed = ckpt_pickle_new_node(m, CKPT_DTENSOR);
        packed->dtensor =
            memcpy(ckpt_pickle_alloc(m->out, sizeof dtensor), &dtensor, sizeof dtensor);
        if (dtensor.mesh->offset > m->needed) /* it has not been needed before */
            m->needed = m->op_at;
    }
    return packed;
}

/* The node for `global(*args)`. */
static int make(struct pickle_machine *m, struct ckpt_node *global, struct ckpt_node *args,
                struct ckpt_node **out)
{
    struct ckpt_node *first = args->n ? args->items[0] : NULL;
    if (ckpt_is(global, "torch", "Size")) {
        *out = first && first->kind == CKPT_TUPLE ? first : NULL; /* tuples are immutable */
        return *out ? 0 : container(m, CKPT_TUPLE, first, out);
    }
    if (ckpt_is(global, "collections", "OrderedDict"))
        return container(m, CKPT_DICT, first, out);
    if (ckpt_is(global, "collections", "defaultdict"))
        return container(m, CKPT_DICT, args->n > 1 ? args->items[1] : NULL, out);
    if (ckpt_is(global, "_codecs", "encode"))
        return latin1(m, args, out);
    if (is_builtin(global, global->text + global->n + 1))
        return make_builtin(m, global, args, out);
    if (ckpt_is(global, "numpy._core.multiarray", "scalar") ||
        ckpt_is(global, "numpy.core.multiarray", "scalar"))
        *out = numpy_scalar(m, args);
    if (*out)
        return 0;
    if (first && (ckpt_is(global, "torch._utils", "_rebuild_parameter") ||
                  ckpt_is(global, "torch._utils", "_rebuild_parameter_with_state"))) {
        *out = first;
        return 0;
    }
    /* a tensor subclass, or one with attributes: (function, type, arguments, state) */
    if (ckpt_is(global, "torch._tensor", "_rebuild_from_type_v2") && args->n == 4 &&
        first->kind == CKPT_GLOBAL && !ckpt_is(first, "torch._tensor", "_rebuild_from_type_v2") &&
        args->items[2]->kind == CKPT_TUPLE) {
        int rc = make(m, first, args->items[2], out);
        /* what it wraps is in its state */
        if (rc == 0 && (*out)->kind == CKPT_RECORD &&
            ckpt_is(first, "torch._utils", "_rebuild_wrapper_subclass"))
            (*out)->items[2] = args->items[3];
        if (rc == 0)
            *out = pack(m, *out);
        return rc;
    }
    *out = pack(m, record(m, global, args));
    return 0;
}

/* REDUCE, NEWOBJ, and NEWOBJ_EX (keywords: their dict is on top). */
int ckpt_pickle_reduce(struct pickle_machine *m, bool keywords)
{
    struct ckpt_node *names = keywords ? ckpt_pickle_pop(m) : NULL;
    struct ckpt_node *args = ckpt_pickle_pop(m), *global = ckpt_pickle_pop(m), *made = NULL;
    if (!args || !global || (keywords && !names))
        return ckpt_pickle_underflow(m);
    if (global->kind != CKPT_GLOBAL)
        return ckpt_pickle_refuse(m, S2S_E_FORMAT, "call of something that is not a class");
    if (args->kind != CKPT_TUPLE)
        return ckpt_pickle_refuse(m, S2S_E_FORMAT, "call whose arguments are not a tuple");
    int rc = global == m->getattr.node ? attribute(m, args, &made)
             : global == m->or.node    ? combination(m, args, &made)
                                       : make(m, global, args, &made);
    if (rc == 0 && names && made->kind == CKPT_RECORD) {
        ckpt_pickle_change(m, made);
        made->items[2] = names;
    }
    return rc < 0 ? rc : ckpt_pickle_push(m, made);
}

/* Is a field set twice? Objects of .metadata have up to ten fields. */
static bool has_key_twice(const struct ckpt_node *state)
{
    enum {
        MAX = 64,
        MAX_FIELD = 64
    }; /* bounds the time: a hundred thousand objects may share one
        * state */
    const uint32_t n = state->kind != CKPT_DICT ? 0 : state->n < MAX ? state->n : MAX;
    for (uint32_t i = 0; i < n; i += 2)
        for (uint32_t k = 0; k < i; k += 2)
            if (state->items[i]->kind == CKPT_STR && state->items[k]->kind == CKPT_STR &&
                state->items[i]->len == state->items[k]->len && state->items[i]->len <= MAX_FIELD &&
                memcmp(state->items[i]->text, state->items[k]->text, state->items[i]->len) == 0)
                return true;
    return false;
}

int ckpt_pickle_build(struct pickle_machine *m)
{
    struct ckpt_node *state = ckpt_pickle_pop(m), *node = ckpt_pickle_top(m);
    if (!state || !node)
        return ckpt_pickle_underflow(m);
    if (node->kind == CKPT_DICT || node->kind == CKPT_LIST || node->kind == CKPT_SET)
        return 0; /* attributes of an OrderedDict (its _metadata) are not needed */
    const bool is_tensor = node->kind == CKPT_TENSOR || node->kind == CKPT_DTENSOR;
    if (node->kind != CKPT_RECORD && !is_tensor)
        return ckpt_pickle_refuse(m, S2S_E_FORMAT, "state for something that is not an object");
    if (is_tensor || (ckpt_is_of(node, "torch._utils") && !node->opaque))
        return ckpt_pickle_refuse(m, S2S_E_FORMAT, "state that would replace a tensor's");
    if (node->items[2])
        return ckpt_pickle_refuse(m, S2S_E_FORMAT, "state of an object set twice");
    if (m->mode == CKPT_STRICT && has_key_twice(state))
        return ckpt_pickle_refuse(m, S2S_E_FORMAT, "field of an object set twice");
    ckpt_pickle_change(m, node);
    node->items[2] = state;
    return 0;
}
