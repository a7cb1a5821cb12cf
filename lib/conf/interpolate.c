/*
 * Interpolation as OmegaConf does it: after all merges, lazily, with types kept. A string that is
 * being resolved is marked, so that a reference that comes back to it is a cycle.
 */
#include "lib/conf/conf_internal.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/error.h"
#include "lib/base/mem.h"

enum { FRESH, OPEN, DONE };
enum { MAX_ARGS = 8, MAX_NESTING = 100 };
/* what interpolation may add to a config: references to references double at each step */
enum { MAX_TEXT_BYTES = 8 << 20, MAX_VALUES = 50000 };

struct resolver {
    struct s2s_conf *root;
    enum s2s_conf_interpolation how;
    const char *const *env;
    struct s2s_conf_faults *faults;
    int nesting;
    size_t n_text_bytes; /* written so far */
    bool full;           /* a limit was met */
};

/* What an interpolation came to: NULL with `unknown`, or a node (of the tree or a fresh one). */
struct result {
    struct s2s_conf *node;
    bool unknown;
};

static const struct result UNKNOWN = {NULL, true};

static void resolve_tree(struct resolver *r, struct s2s_conf *node);
static struct result eval_inside(struct resolver *r, const struct s2s_conf *at, const char *text,
                                 size_t len);

__attribute__((format(printf, 4, 5))) static struct result fault(struct resolver *r,
                                                                 const struct s2s_conf *node,
                                                                 enum s2s_conf_fault_kind kind,
                                                                 const char *fmt, ...)
{
    struct s2s_conf_faults *f = r->faults;
    va_list ap;
    s2s_grow(&f->items, f->n, &f->cap, sizeof *f->items);
    struct s2s_conf_fault *item = &f->items[f->n++];
    item->kind = kind;
    item->node = node;
    va_start(ap, fmt);
    vsnprintf(item->text, sizeof item->text, fmt, ap);
    va_end(ap);
    return UNKNOWN;
}

static struct result too_much(struct resolver *r, const struct s2s_conf *at)
{
    if (r->full)
        return UNKNOWN; /* said once */
    r->full = true;
    return fault(r, at, S2S_CONF_FAULT_SIZE,
                 "interpolation makes more than %d values or %d MiB of text", MAX_VALUES,
                 MAX_TEXT_BYTES >> 20);
}

/* A scalar as it would stand in YAML; `literal`: text whatever it looks like. */
static struct result scalar(struct resolver *r, const struct s2s_conf *at, const char *text,
                            size_t len, bool literal)
{
    struct s2s_conf *node = NULL;
    if (len <= MAX_TEXT_BYTES - r->n_text_bytes)
        node = conf_node_new(r->root->arena, S2S_CONF_STRING, at->place);
    if (!node)
        return too_much(r, at);
    r->n_text_bytes += len;
    node->text = conf_strndup(r->root->arena, text, len);
    node->quoted = literal;
    if (!literal)
        conf_resolve_scalar(node);
    return (struct result){node, false};
}

/* The end of the interpolation that opens at text[0..1] = "${": behind its brace, or NULL. */
static const char *closing(const char *text, const char *end)
{
    int depth = 0;
    for (const char *s = text; s < end; s++) {
        if (*s == '\\' && s + 1 < end)
            s++;
        else if (*s == '$' && s + 1 < end && s[1] == '{')
            depth++;
        else if (*s == '}' && --depth == 0)
            return s + 1;
    }
    return NULL;
}

static bool is_unresolved(const struct s2s_conf *node)
{
    return node->kind == S2S_CONF_STRING &&
           (strstr(node->text, "${") != NULL || !strcmp(node->text, "???"));
}

/* Text with interpolations inside, as text; false if one of them is unknown. */
static bool expand(struct resolver *r, struct s2s_buf *out, const struct s2s_conf *at,
                   const char *text, const char *end)
{
    while (text < end) {
        if (text[0] == '\\' && text + 2 < end && text[1] == '$' && text[2] == '{') {
            s2s_buf_puts(out, "${");
            text += 3;
            continue;
        }
        if (text[0] != '$' || text + 1 >= end || text[1] != '{') {
            s2s_buf_putc(out, *text++);
            continue;
        }
        const char *stop = closing(text, end);
        if (!stop) {
            fault(r, at, S2S_CONF_FAULT_SYNTAX, "'${' without its '}'");
            return false;
        }
        struct result part = eval_inside(r, at, text + 2, (size_t)(stop - text) - 3);
        if (!part.node)
            return false;
        if (!part.node->text) {
            fault(r, at, S2S_CONF_FAULT_VALUE, "%s inside text",
                  s2s_conf_kind_name(part.node->kind));
            return false;
        }
        const char *value = part.node->kind == S2S_CONF_NULL ? "None" : part.node->text;
        if (out->len + strlen(value) > MAX_TEXT_BYTES - r->n_text_bytes) {
            too_much(r, at);
            return false;
        }
        s2s_buf_puts(out, value);
        text = stop;
    }
    return true;
}

/* ---- references ---- */

static struct result reference(struct resolver *r, const struct s2s_conf *at, const char *path)
{
    const struct s2s_conf *from = r->root;
    const char *rest = path;
    if (*rest == '.') {
        from = at->parent;
        for (rest++; *rest == '.'; rest++)
            from = from ? from->parent : NULL;
        if (!from)
            return fault(r, at, S2S_CONF_FAULT_MISSING, "'%.120s' leads out of the config", path);
    }
    struct s2s_conf *node = (struct s2s_conf *)from;
    size_t len = strlen(rest);
    /* step by step: what is passed on the way may be an interpolation itself */
    for (size_t begin = 0; begin < len && node;) {
        char step[256];
        size_t step_len = strcspn(rest + begin, ".[]");
        if (step_len >= sizeof step)
            return fault(r, at, S2S_CONF_FAULT_SYNTAX, "a key of more than 255 bytes");
        memcpy(step, rest + begin, step_len);
        step[step_len] = 0;
        begin += step_len;
        begin += rest[begin] == ']';
        begin += rest[begin] == '.' || rest[begin] == '[';
        if (!step_len && begin < len)
            continue;
        node = (struct s2s_conf *)s2s_conf_find(node, step);
        if (node && node->kind == S2S_CONF_STRING)
            resolve_tree(r, node);
        if (node && node->kind == S2S_CONF_STRING && is_unresolved(node)) {
            if (node->mark == OPEN)
                return fault(r, at, S2S_CONF_FAULT_CYCLE, "'%.120s' leads back to itself", path);
            return UNKNOWN;
        }
    }
    if (!node)
        return fault(r, at, S2S_CONF_FAULT_MISSING, "'%.120s' names nothing", path);
    if (node->kind == S2S_CONF_MAP || node->kind == S2S_CONF_LIST) {
        /* whatever is being resolved right now holds the string that led here */
        if (node->mark == OPEN)
            return fault(r, at, S2S_CONF_FAULT_CYCLE, "'%.120s' leads back to itself", path);
        resolve_tree(r, node);
    }
    return (struct result){node, false};
}

/* ---- resolvers ---- */

static struct result env_value(struct resolver *r, const struct s2s_conf *at, const char *name,
                               struct s2s_conf *other)
{
    const char *found = NULL;
    size_t len = strlen(name);
    for (const char *const *e = r->env; e && *e; e++)
        if (!strncmp(*e, name, len) && (*e)[len] == '=')
            found = *e + len + 1;
    if (found)
        return scalar(r, at, found, strlen(found), false);
    if (other)
        return (struct result){other, false};
    return fault(r, at, S2S_CONF_FAULT_ENV,
                 "the environment variable %.100s is not given and has no default", name);
}

static struct result combine(struct resolver *r, const struct s2s_conf *at, char op,
                             struct s2s_conf *const *args, int n_args)
{
    bool whole = op != '/';
    double total = op == '*' ? 1 : 0;
    char text[64];
    for (int i = 0; i < n_args; i++) {
        double x = 0;
        if (s2s_conf_as_f64(&x, args[i], NULL) < 0)
            return fault(r, at, S2S_CONF_FAULT_VALUE, "'%.60s' is no number to compute with",
                         args[i]->text ? args[i]->text : s2s_conf_kind_name(args[i]->kind));
        whole &= args[i]->kind == S2S_CONF_INT;
        if (i == 0)
            total = x;
        else
            total = op == '*'   ? total * x
                    : op == '+' ? total + x
                    : op == '/' ? (x != 0 ? total / x : 0)
                                : (total > x ? total : x);
        if (i && op == '/' && x == 0)
            return fault(r, at, S2S_CONF_FAULT_VALUE, "division by zero");
    }
    /* Python divides to a float; 4.0 is as good as 4 to everybody here */
    if (whole && total > -9e15 && total < 9e15)
        snprintf(text, sizeof text, "%.0f", total);
    else
        snprintf(text, sizeof text, strchr("/", op) || !whole ? "%.17g" : "%.0f", total);
    struct result out = scalar(r, at, text, strlen(text), false);
    if (out.node && !whole) {
        out.node->kind = S2S_CONF_FLOAT;
        out.node->as_float = total;
    }
    return out;
}

/* Arguments are separated by commas outside of nested interpolations and quotes. */
static int split(const char *text, const char *end, const char *begins[MAX_ARGS],
                 const char *ends[MAX_ARGS])
{
    int n = 0, depth = 0;
    char quote = 0;
    begins[0] = text;
    for (const char *s = text; s < end; s++) {
        if (quote)
            quote = *s == quote ? 0 : quote;
        else if (*s == '\'' || *s == '"')
            quote = *s;
        else if (strchr("{[(", *s) && *s)
            depth++;
        else if (strchr("}])", *s) && *s)
            depth--;
        else if (*s == ',' && depth == 0) {
            ends[n++] = s;
            if (n == MAX_ARGS)
                return -1;
            begins[n] = s + 1;
        }
    }
    ends[n] = end;
    return n + 1;
}

static struct result argument(struct resolver *r, const struct s2s_conf *at, const char *begin,
                              const char *end)
{
    while (begin < end && isspace((unsigned char)*begin))
        begin++;
    while (end > begin && isspace((unsigned char)end[-1]))
        end--;
    if (end - begin >= 2 && (*begin == '\'' || *begin == '"') && end[-1] == *begin)
        return scalar(r, at, begin + 1, (size_t)(end - begin) - 2, true);
    if (end - begin >= 3 && begin[0] == '$' && begin[1] == '{' && closing(begin, end) == end)
        return eval_inside(r, at, begin + 2, (size_t)(end - begin) - 3);
    struct s2s_buf text = S2S_BUF_INIT;
    struct result out = UNKNOWN;
    if (expand(r, &text, at, begin, end))
        out = scalar(r, at, text.data ? text.data : "", text.len, false);
    s2s_buf_release(&text);
    return out;
}

static bool is_any_of(const char *name, const char *const *names)
{
    for (; *names; names++)
        if (!strcmp(*names, name))
            return true;
    return false;
}

static struct result call(struct resolver *r, const struct s2s_conf *at, const char *name,
                          const char *args_begin, const char *args_end)
{
    static const char *const runtime[] = {
        "oc.select",      "oc.decode",      "oc.create", "oc.dict.keys",
        "oc.dict.values", "oc.deprecated",  "now",       "hydra",
        "eval",           "python_version", NULL};
    static const struct {
        const char *name;
        char op;
    } operations[] = {{"mul", '*'}, {"multiply", '*'}, {"add", '+'},
                      {"sum", '+'}, {"div", '/'},      {"max", 'm'}};
    const char *begins[MAX_ARGS], *ends[MAX_ARGS];
    struct s2s_conf *args[MAX_ARGS];
    if (is_any_of(name, runtime))
        return UNKNOWN;
    bool env = !strcmp(name, "oc.env") || !strcmp(name, "env");
    char op = 0;
    for (size_t i = 0; i < sizeof operations / sizeof *operations; i++)
        if (!strcmp(operations[i].name, name))
            op = operations[i].op;
    if (!env && !op)
        return fault(r, at, S2S_CONF_FAULT_RESOLVER, "'%.60s' is no resolver", name);
    int n = split(args_begin, args_end, begins, ends);
    if (n < 0)
        return fault(r, at, S2S_CONF_FAULT_SYNTAX, "too many arguments of '%.60s'", name);
    for (int i = 0; i < n; i++) {
        struct result arg = argument(r, at, begins[i], ends[i]);
        if (!arg.node)
            return arg;
        args[i] = arg.node;
    }
    if (env)
        return env_value(r, at, args[0]->text ? args[0]->text : "", n > 1 ? args[1] : NULL);
    return combine(r, at, op, args, n);
}

/* text is what stands between "${" and "}" */
static struct result eval_inside(struct resolver *r, const struct s2s_conf *at, const char *text,
                                 size_t len)
{
    const char *end = text + len;
    size_t name_len = 0;
    if (r->nesting >= MAX_NESTING)
        return fault(r, at, S2S_CONF_FAULT_SYNTAX, "interpolations nested more than %d deep",
                     MAX_NESTING);
    r->nesting++;
    while (name_len < len && (isalnum((unsigned char)text[name_len]) || text[name_len] == '_' ||
                              text[name_len] == '.'))
        name_len++;
    struct s2s_buf path = S2S_BUF_INIT;
    struct result out = UNKNOWN;
    if (r->how == S2S_CONF_ENVIRONMENT) {
        bool prefixed = len > 7 && !strncmp(text, "oc.env:", 7);
        const char *name = text + (prefixed ? 7 : 0),
                   *comma = memchr(name, ',', (size_t)(end - name));
        s2s_buf_add(&path, name, (size_t)((comma ? comma : end) - name));
        struct result other = comma ? argument(r, at, comma + 1, end) : (struct result){0};
        out = env_value(r, at, path.data ? path.data : "", other.node);
    } else if (name_len && name_len < len && text[name_len] == ':') {
        s2s_buf_add(&path, text, name_len);
        out = call(r, at, path.data, text + name_len + 1, end);
    } else if (expand(r, &path, at, text, end)) {
        /* blanks around a path mean nothing */
        while (path.len && isspace((unsigned char)path.data[path.len - 1]))
            path.data[--path.len] = 0;
        const char *start = path.data ? path.data : "";
        start += strspn(start, " \t");
        out = *start ? reference(r, at, start)
                     : fault(r, at, S2S_CONF_FAULT_SYNTAX, "an empty interpolation");
    }
    s2s_buf_release(&path);
    r->nesting--;
    return out;
}

/* ---- the tree ---- */

/* How deep a tree is below a node, itself included; stops counting past the limit. */
static int height(const struct s2s_conf *node, int limit)
{
    int most = 0;
    for (size_t i = 0; i < node->n_items && most < limit; i++) {
        int h = height(node->items[i], limit - 1);
        most = h > most ? h : most;
    }
    return most + 1;
}

/* Whether a copy of `value` in the place of node nests deeper than a file may. */
static bool nests_too_deep(const struct s2s_conf *node, const struct s2s_conf *value)
{
    int depth = 0;
    for (; node->parent; node = node->parent)
        depth++;
    return depth + height(value, CONF_MAX_DEPTH) > CONF_MAX_DEPTH;
}

/* node becomes what `value` is, in its own place; past a limit it stays unresolved */
static void become(struct resolver *r, struct s2s_conf *node, const struct s2s_conf *value)
{
    if (value->kind == S2S_CONF_MAP || value->kind == S2S_CONF_LIST) {
        struct s2s_conf *copy =
            r->full || nests_too_deep(node, value) ? NULL : conf_copy(node->arena, value);
        if (!copy) {
            too_much(r, node);
            return;
        }
        node->items = copy->items;
        node->n_items = copy->n_items;
        node->cap_items = copy->cap_items;
        node->index = copy->index;
        node->index_size = copy->index_size;
        for (size_t i = 0; i < node->n_items; i++)
            node->items[i]->parent = node;
        node->text = NULL;
    } else {
        /* the text is shared, but whoever copies or prints the tree has it again */
        size_t len = value->text ? strlen(value->text) : 0;
        if (len > MAX_TEXT_BYTES - r->n_text_bytes) {
            too_much(r, node);
            return;
        }
        r->n_text_bytes += len;
        node->text = value->text;
    }
    node->kind = value->kind;
    node->quoted = value->quoted;
    node->bare_float = value->bare_float;
    memcpy(&node->as_int, &value->as_int, sizeof node->as_int);
}

/* $VAR of Automodel, only where it is the whole string */
static bool bare_variable(const struct resolver *r, const char *text)
{
    return r->how == S2S_CONF_ENVIRONMENT && text[0] == '$' &&
           (isalpha((unsigned char)text[1]) || text[1] == '_') &&
           !text[1 + strspn(text + 1, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_"
                                      "0123456789")];
}

static void resolve_string(struct resolver *r, struct s2s_conf *node)
{
    const char *text = node->text, *end = text + strlen(text);
    struct result out = UNKNOWN;
    node->mark = OPEN;
    if (bare_variable(r, text)) {
        out = env_value(r, node, text + 1, NULL);
    } else if (text[0] == '$' && text[1] == '{' && closing(text, end) == end) {
        out = eval_inside(r, node, text + 2, (size_t)(end - text) - 3);
    } else {
        struct s2s_buf whole = S2S_BUF_INIT;
        if (expand(r, &whole, node, text, end))
            out = scalar(r, node, whole.data ? whole.data : "", whole.len, true);
        s2s_buf_release(&whole);
    }
    if (out.node)
        become(r, node, out.node);
    node->mark = DONE;
}

static void resolve_tree(struct resolver *r, struct s2s_conf *node)
{
    if (node->kind == S2S_CONF_STRING) {
        if (node->mark == FRESH && (strstr(node->text, "${") || bare_variable(r, node->text)))
            resolve_string(r, node);
        return;
    }
    if (node->mark == OPEN)
        return;
    node->mark = OPEN;
    for (size_t i = 0; i < node->n_items; i++)
        resolve_tree(r, node->items[i]);
    node->mark = DONE;
}

void s2s_conf_resolve(struct s2s_conf *root, enum s2s_conf_interpolation how,
                      const char *const *env, struct s2s_conf_faults *faults)
{
    struct resolver r = {.root = root, .how = how, .env = env, .faults = faults};
    struct conf_arena *arena = root->arena;
    size_t max_nodes = arena->max_nodes;
    if (arena->n_nodes + MAX_VALUES < max_nodes)
        arena->max_nodes = arena->n_nodes + MAX_VALUES;
    resolve_tree(&r, root);
    arena->max_nodes = max_nodes;
}
