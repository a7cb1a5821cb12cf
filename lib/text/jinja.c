/* Runs a chat template: values are those of JSON, an undefined one is NULL. */
#include "lib/text/jinja.h"

#include <math.h>
#include <time.h>

#include "lib/text/jinja_values.h"

enum { MAX_STEPS = 20000000, MAX_DEPTH = 400, MAX_TEXT = 64 << 20 };

static json_t *evaluate(struct jinja_run *run, const struct jinja_node *node);

void text_jinja_fail(struct jinja_run *run, int code, const char *fmt, ...)
{
    char text[800];
    va_list args;
    if (run->failed)
        return;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    s2s_error_set(run->err, code, "line %d: %s", run->line, text);
    run->failed = true;
}

/* ---- names ---- */

static json_t *look_up(struct jinja_run *run, const char *name)
{
    for (size_t i = run->n_scopes; i-- > 0;) {
        json_t *value = json_object_get(run->scopes[i], name);
        if (value)
            return value == run->undefined ? NULL : json_incref(value);
    }
    return NULL;
}

static void push_scope(struct jinja_run *run)
{
    s2s_grow(&run->scopes, run->n_scopes, &run->scopes_cap, sizeof *run->scopes);
    run->scopes[run->n_scopes++] = json_object();
}

static void pop_scope(struct jinja_run *run)
{
    json_decref(run->scopes[--run->n_scopes]);
}

static void set_name(struct jinja_run *run, const char *name, json_t *value)
{
    json_object_set_nocheck(run->scopes[run->n_scopes - 1], name, value ? value : run->undefined);
}

/* ---- expressions ---- */

static void run_body(struct jinja_run *run, const struct jinja_node *body);

/* Runs a body into a text of its own. */
static json_t *captured(struct jinja_run *run, const struct jinja_node *body)
{
    struct s2s_buf *outer = run->out, own = S2S_BUF_INIT;
    struct text_spans *learned = run->learned;
    run->out = &own;
    run->learned = NULL; /* places in this text mean nothing outside */
    run_body(run, body);
    run->out = outer;
    run->learned = learned;
    json_t *text = json_stringn_nocheck(own.data ? own.data : "", own.len);
    s2s_buf_release(&own);
    return text;
}

static json_t *call_macro(struct jinja_run *run, const struct jinja_node *macro,
                          const struct jinja_node *arguments)
{
    const struct jinja_node *argument = arguments;
    json_t *values = json_object();
    for (const struct jinja_node *p = macro->a; p && !run->failed; p = p->next) {
        const struct jinja_node *given = NULL;
        if (argument && !argument->name2) {
            given = argument;
            argument = argument->next;
        }
        for (const struct jinja_node *a = arguments; a && !given; a = a->next)
            if (a->name2 && !strcmp(a->name2, p->name))
                given = a;
        json_t *value = given ? evaluate(run, given) : p->b ? evaluate(run, p->b) : NULL;
        json_object_set_nocheck(values, p->name, value ? value : run->undefined);
        json_decref(value);
    }
    s2s_grow(&run->scopes, run->n_scopes, &run->scopes_cap, sizeof *run->scopes);
    run->scopes[run->n_scopes++] = values;
    json_t *text = captured(run, macro->b);
    pop_scope(run);
    return text;
}

/* Values of arguments: those without names in turn, then the named ones as an object. */
static void evaluate_arguments(struct jinja_run *run, struct jinja_arguments *arguments,
                               const struct jinja_node *first)
{
    *arguments = (struct jinja_arguments){.named = json_object()};
    for (const struct jinja_node *node = first; node && !run->failed; node = node->next) {
        json_t *value = evaluate(run, node);
        if (node->name2) {
            json_object_set_nocheck(arguments->named, node->name2, value ? value : run->undefined);
            json_decref(value);
        } else if (arguments->n < JINJA_MAX_ARGUMENTS) {
            arguments->list[arguments->n++] = value;
        } else {
            json_decref(value);
            text_jinja_fail(run, S2S_E_UNSUPPORTED, "more than %d arguments", JINJA_MAX_ARGUMENTS);
        }
    }
}

static void release_arguments(struct jinja_arguments *arguments)
{
    for (size_t i = 0; i < arguments->n; i++)
        json_decref(arguments->list[i]);
    json_decref(arguments->named);
}

static json_t *range_of(struct jinja_run *run, const struct jinja_arguments *arguments)
{
    json_int_t begin = 0, end = 0, step = 1;
    if (arguments->n == 1) {
        end = json_integer_value(arguments->list[0]);
    } else if (arguments->n > 1) {
        begin = json_integer_value(arguments->list[0]);
        end = json_integer_value(arguments->list[1]);
    }
    if (arguments->n > 2)
        step = json_integer_value(arguments->list[2]);
    json_t *list = json_array();
    if (step == 0 || (end - begin) / step > 1000000) {
        text_jinja_fail(run, S2S_E_FORMAT, "a range that is too long");
        return list;
    }
    for (json_int_t i = begin; step > 0 ? i < end : i > end; i += step)
        json_array_append_new(list, json_integer(i));
    return list;
}

static json_t *now(struct jinja_run *run, const struct jinja_arguments *arguments)
{
    const char *format = arguments->n ? json_string_value(arguments->list[0]) : NULL;
    char text[200] = "";
    time_t seconds = time(NULL);
    struct tm local;
    if (!format || !localtime_r(&seconds, &local))
        text_jinja_fail(run, S2S_E_FORMAT, "strftime_now without a format");
    else if (strftime(text, sizeof text, format, &local) == 0)
        text[0] = 0;
    return json_string_nocheck(text);
}

static json_t *call_function(struct jinja_run *run, const char *name,
                             const struct jinja_arguments *arguments)
{
    if (!strcmp(name, "raise_exception")) {
        const char *text = arguments->n ? json_string_value(arguments->list[0]) : NULL;
        text_jinja_fail(run, S2S_E_FORMAT, "%s", text ? text : "the template raises an exception");
        return NULL;
    }
    if (!strcmp(name, "namespace") || !strcmp(name, "dict")) {
        json_t *object = json_object();
        if (arguments->n && json_is_object(arguments->list[0]))
            json_object_update(object, arguments->list[0]);
        json_object_update(object, arguments->named);
        return object;
    }
    if (!strcmp(name, "range"))
        return range_of(run, arguments);
    if (!strcmp(name, "strftime_now"))
        return now(run, arguments);
    text_jinja_fail(run, S2S_E_UNSUPPORTED, "the function %s is not supported", name);
    return NULL;
}

static json_t *call(struct jinja_run *run, const struct jinja_node *node)
{
    const struct jinja_node *callee = node->a;
    struct jinja_arguments arguments;
    json_t *result = NULL;
    if (callee->kind == JINJA_NAME)
        for (size_t i = run->n_macros; i-- > 0;)
            if (!strcmp(run->macros[i]->name, callee->name))
                return call_macro(run, run->macros[i], node->b);
    evaluate_arguments(run, &arguments, node->b);
    if (run->failed) {
        release_arguments(&arguments);
        return NULL;
    }
    if (callee->kind == JINJA_NAME) {
        result = call_function(run, callee->name, &arguments);
    } else if (callee->kind == JINJA_MEMBER) {
        json_t *of = evaluate(run, callee->a);
        run->line = node->line;
        if (!run->failed)
            result = text_jinja_method(run, of, callee->name, &arguments);
        json_decref(of);
    } else {
        text_jinja_fail(run, S2S_E_UNSUPPORTED, "a call of what has no name");
    }
    release_arguments(&arguments);
    return result;
}

static json_t *with_arguments(struct jinja_run *run, const struct jinja_node *node)
{
    struct jinja_arguments arguments;
    json_t *of = evaluate(run, node->a), *result = NULL;
    evaluate_arguments(run, &arguments, node->b);
    run->line = node->line;
    if (!run->failed)
        result = node->kind == JINJA_FILTER ? text_jinja_filter(run, of, node->name, &arguments)
                                            : text_jinja_test(run, of, node->name, &arguments);
    release_arguments(&arguments);
    json_decref(of);
    return result;
}

static json_t *member(struct jinja_run *run, const struct jinja_node *node)
{
    json_t *of = evaluate(run, node->a), *result = NULL;
    if (!of && !run->failed) {
        run->line = node->line;
        text_jinja_fail(run, S2S_E_FORMAT, "a member of what is undefined: .%s", node->name);
    }
    if (json_is_object(of))
        result = json_object_get(of, node->name);
    result = result == run->undefined ? NULL : json_incref(result);
    json_decref(of);
    return result;
}

static json_t *item(struct jinja_run *run, const struct jinja_node *node)
{
    json_t *of = evaluate(run, node->a), *key = evaluate(run, node->b), *result = NULL;
    run->line = node->line;
    if (!of)
        text_jinja_fail(run, S2S_E_FORMAT, "an item of what is undefined");
    else if (!run->failed)
        result = text_jinja_item(run, of, key);
    json_decref(of);
    json_decref(key);
    return result;
}

static json_t *slice(struct jinja_run *run, const struct jinja_node *node)
{
    json_t *of = evaluate(run, node->a), *result = NULL;
    json_t *bounds[3] = {node->b ? evaluate(run, node->b) : NULL,
                         node->c ? evaluate(run, node->c) : NULL,
                         node->d ? evaluate(run, node->d) : NULL};
    run->line = node->line;
    if (!run->failed)
        result = text_jinja_slice(run, of, bounds);
    for (int i = 0; i < 3; i++)
        json_decref(bounds[i]);
    json_decref(of);
    return result;
}

static json_t *binary(struct jinja_run *run, const struct jinja_node *node)
{
    json_t *left = evaluate(run, node->a), *right = evaluate(run, node->b), *result = NULL;
    run->line = node->line;
    if (!run->failed)
        result = text_jinja_binary(run, node->name, left, right);
    json_decref(left);
    json_decref(right);
    return result;
}

/* `and` and `or` give one of their sides. */
static json_t *either(struct jinja_run *run, const struct jinja_node *node)
{
    json_t *left = evaluate(run, node->a);
    if (run->failed || text_jinja_truth(left) == (node->kind == JINJA_OR))
        return left;
    json_decref(left);
    return evaluate(run, node->b);
}

static json_t *list_of(struct jinja_run *run, const struct jinja_node *node)
{
    json_t *list = json_array();
    for (const struct jinja_node *part = node->a; part && !run->failed; part = part->next) {
        json_t *value = evaluate(run, part);
        json_array_append(list, value ? value : run->undefined);
        json_decref(value);
    }
    return list;
}

static json_t *dict_of(struct jinja_run *run, const struct jinja_node *node)
{
    json_t *dict = json_object();
    for (const struct jinja_node *pair = node->a; pair && !run->failed; pair = pair->next) {
        json_t *key = evaluate(run, pair->a), *value = evaluate(run, pair->b);
        if (json_is_string(key))
            json_object_set_nocheck(dict, json_string_value(key), value ? value : run->undefined);
        else
            text_jinja_fail(run, S2S_E_UNSUPPORTED, "a key that is no text");
        json_decref(key);
        json_decref(value);
    }
    return dict;
}

static json_t *evaluate_kind(struct jinja_run *run, const struct jinja_node *node)
{
    json_t *value, *result;
    switch (node->kind) {
    case JINJA_VALUE:
        return json_incref(node->value);
    case JINJA_NAME:
        return look_up(run, node->name);
    case JINJA_MEMBER:
        return member(run, node);
    case JINJA_ITEM:
        return item(run, node);
    case JINJA_SLICE:
        return slice(run, node);
    case JINJA_CALL:
        return call(run, node);
    case JINJA_FILTER:
    case JINJA_TEST:
        return with_arguments(run, node);
    case JINJA_NOT:
        value = evaluate(run, node->a);
        result = json_boolean(!text_jinja_truth(value));
        json_decref(value);
        return result;
    case JINJA_MINUS:
        value = evaluate(run, node->a);
        result = json_is_integer(value) ? json_integer(-json_integer_value(value))
                                        : json_real(-json_number_value(value));
        json_decref(value);
        return result;
    case JINJA_AND:
    case JINJA_OR:
        return either(run, node);
    case JINJA_BINARY:
        return binary(run, node);
    case JINJA_CHOICE:
        value = evaluate(run, node->b);
        result = text_jinja_truth(value) ? evaluate(run, node->a)
                 : node->c               ? evaluate(run, node->c)
                                         : NULL;
        json_decref(value);
        return result;
    case JINJA_LIST:
        return list_of(run, node);
    case JINJA_DICT:
        return dict_of(run, node);
    default:
        S2S_BUG("a statement among expressions");
    }
}

static json_t *evaluate(struct jinja_run *run, const struct jinja_node *node)
{
    if (run->failed)
        return NULL;
    if (++run->n_steps > MAX_STEPS || run->depth > MAX_DEPTH) {
        text_jinja_fail(run, S2S_E_FORMAT, "the template takes too long, or nests too deep");
        return NULL;
    }
    run->depth++;
    json_t *value = evaluate_kind(run, node);
    run->depth--;
    return value;
}

/* ---- statements ---- */

static json_t *loop_of(size_t i, size_t n, json_t *list)
{
    json_t *loop = json_object();
    json_object_set_new(loop, "index", json_integer((json_int_t)i + 1));
    json_object_set_new(loop, "index0", json_integer((json_int_t)i));
    json_object_set_new(loop, "revindex", json_integer((json_int_t)(n - i)));
    json_object_set_new(loop, "revindex0", json_integer((json_int_t)(n - i) - 1));
    json_object_set_new(loop, "first", json_boolean(i == 0));
    json_object_set_new(loop, "last", json_boolean(i + 1 == n));
    json_object_set_new(loop, "length", json_integer((json_int_t)n));
    if (i > 0)
        json_object_set(loop, "previtem", json_array_get(list, i - 1));
    if (i + 1 < n)
        json_object_set(loop, "nextitem", json_array_get(list, i + 1));
    return loop;
}

static void set_loop_names(struct jinja_run *run, const struct jinja_node *node, json_t *value)
{
    if (!node->name2) {
        set_name(run, node->name, value);
        return;
    }
    set_name(run, node->name, json_array_get(value, 0));
    set_name(run, node->name2, json_array_get(value, 1));
}

/* The items that the loop's condition lets through. */
static json_t *chosen(struct jinja_run *run, const struct jinja_node *node, json_t *list)
{
    json_t *out, *value;
    size_t i;
    if (!node->d)
        return json_incref(list);
    out = json_array();
    json_array_foreach(list, i, value)
    {
        push_scope(run);
        set_loop_names(run, node, value);
        json_t *truth = evaluate(run, node->d);
        if (text_jinja_truth(truth))
            json_array_append(out, value);
        json_decref(truth);
        pop_scope(run);
    }
    return out;
}

static void run_for(struct jinja_run *run, const struct jinja_node *node)
{
    json_t *of = evaluate(run, node->a);
    json_t *all = run->failed ? json_array() : text_jinja_iterable(run, of);
    json_t *list = chosen(run, node, all);
    const size_t n = json_array_size(list);
    for (size_t i = 0; i < n && !run->failed; i++) {
        push_scope(run);
        json_t *loop = loop_of(i, n, list);
        set_name(run, "loop", loop);
        set_loop_names(run, node, json_array_get(list, i));
        json_decref(loop);
        run_body(run, node->b);
        pop_scope(run);
        const enum jinja_kind leave = run->leave;
        run->leave = JINJA_TEXT;
        if (leave == JINJA_BREAK)
            break;
    }
    if (n == 0)
        run_body(run, node->c);
    json_decref(list);
    json_decref(all);
    json_decref(of);
}

static void run_set(struct jinja_run *run, const struct jinja_node *node)
{
    json_t *value;
    if (node->b) {
        value = evaluate(run, node->b);
    } else {
        push_scope(run);
        value = captured(run, node->c);
        pop_scope(run);
    }
    if (run->failed) {
        json_decref(value);
        return;
    }
    if (node->a->kind == JINJA_NAME) {
        set_name(run, node->a->name, value);
    } else {
        json_t *of = evaluate(run, node->a->a);
        if (json_is_object(of) && of != value)
            json_object_set_nocheck(of, node->a->name, value ? value : run->undefined);
        else
            text_jinja_fail(run, S2S_E_FORMAT, "a member of what is no namespace: .%s",
                            node->a->name);
        json_decref(of);
    }
    json_decref(value);
}

static void run_generation(struct jinja_run *run, const struct jinja_node *node)
{
    size_t begin = run->out->len;
    push_scope(run);
    run_body(run, node->b);
    pop_scope(run);
    if (run->learned && run->out->len > begin)
        text_spans_add(run->learned, begin, run->out->len);
}

static void run_if(struct jinja_run *run, const struct jinja_node *node)
{
    json_t *value = evaluate(run, node->a);
    const bool truth = text_jinja_truth(value);
    json_decref(value);
    if (run->failed)
        return;
    if (truth)
        run_body(run, node->b);
    else if (node->c && node->c->kind == JINJA_IF && !node->c->next)
        run_if(run, node->c);
    else
        run_body(run, node->c);
}

static void run_statement(struct jinja_run *run, const struct jinja_node *node)
{
    json_t *value;
    run->line = node->line;
    switch (node->kind) {
    case JINJA_OUTPUT:
        value = evaluate(run, node->a);
        text_jinja_add_text(run, run->out, value);
        json_decref(value);
        return;
    case JINJA_IF:
        run_if(run, node);
        return;
    case JINJA_FOR:
        run_for(run, node);
        return;
    case JINJA_SET:
        run_set(run, node);
        return;
    case JINJA_MACRO:
        s2s_grow(&run->macros, run->n_macros, &run->macros_cap, sizeof *run->macros);
        run->macros[run->n_macros++] = node;
        return;
    case JINJA_GENERATION:
        run_generation(run, node);
        return;
    case JINJA_BREAK:
    case JINJA_CONTINUE:
        run->leave = node->kind;
        return;
    default: /* text between the tags */
        s2s_buf_add(run->out, json_string_value(node->value), json_string_length(node->value));
        return;
    }
}

static void run_body(struct jinja_run *run, const struct jinja_node *body)
{
    if (++run->depth > MAX_DEPTH || ++run->n_steps > MAX_STEPS || run->out->len > MAX_TEXT)
        text_jinja_fail(run, S2S_E_FORMAT, "the template takes too long, or nests too deep");
    for (; body && !run->failed && run->leave == JINJA_TEXT; body = body->next)
        run_statement(run, body);
    run->depth--;
}

int text_jinja_render(const struct text_jinja *jinja, struct s2s_buf *out,
                      struct text_spans *learned, json_t *variables, struct s2s_error *err)
{
    struct s2s_error own = S2S_ERROR_INIT;
    struct jinja_run run = {.out = out, .learned = learned, .err = &own, .leave = JINJA_TEXT};
    run.undefined = json_object(); /* one that no other is */
    s2s_grow(&run.scopes, 0, &run.scopes_cap, sizeof *run.scopes);
    run.scopes[run.n_scopes++] = json_incref(variables);
    push_scope(&run);
    run_body(&run, jinja->body);
    while (run.n_scopes > 0)
        pop_scope(&run);
    free(run.scopes);
    free(run.macros);
    json_decref(run.undefined);
    return run.failed ? s2s_error_set(err, own.code, "%s", own.text) : 0;
}
