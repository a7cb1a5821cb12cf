/* Operators, filters, tests and methods of chat templates, as Python and jinja2 have them. */
#include "lib/text/jinja_values.h"

#include <ctype.h>
#include <math.h>

bool text_jinja_truth(const json_t *value)
{
    switch (value ? json_typeof(value) : JSON_NULL) {
    case JSON_NULL:
    case JSON_FALSE:
        return false;
    case JSON_STRING:
        return json_string_length(value) > 0;
    case JSON_ARRAY:
        return json_array_size(value) > 0;
    case JSON_OBJECT:
        return json_object_size(value) > 0;
    case JSON_INTEGER:
        return json_integer_value(value) != 0;
    case JSON_REAL:
        return json_real_value(value) != 0;
    default:
        return true;
    }
}

static json_t *text_of(const struct s2s_buf *buf)
{
    return json_stringn_nocheck(buf->data ? buf->data : "", buf->len);
}

/* As json.dumps has it, every character itself. */
static void add_json(struct s2s_buf *out, const json_t *value, size_t indent)
{
    char *dump = json_dumps(value, JSON_ENCODE_ANY | JSON_INDENT(indent < 31 ? indent : 31));
    s2s_buf_puts(out, dump ? dump : "null");
    free(dump);
}

void text_jinja_add_text(struct jinja_run *run, struct s2s_buf *out, const json_t *value)
{
    if (!value || value == run->undefined)
        return;
    switch (json_typeof(value)) {
    case JSON_STRING:
        s2s_buf_add(out, json_string_value(value), json_string_length(value));
        return;
    case JSON_TRUE:
        s2s_buf_puts(out, "True");
        return;
    case JSON_FALSE:
        s2s_buf_puts(out, "False");
        return;
    case JSON_NULL:
        s2s_buf_puts(out, "None");
        return;
    case JSON_INTEGER:
        s2s_buf_printf(out, "%lld", (long long)json_integer_value(value));
        return;
    case JSON_REAL:
        add_json(out, value, 0);
        return;
    default:
        text_jinja_fail(run, S2S_E_UNSUPPORTED, "a list or a dict as text (not through tojson)");
    }
}

/* ---- text by characters ---- */

static size_t n_characters(const json_t *text)
{
    const char *s = json_string_value(text);
    size_t n = 0;
    for (size_t i = 0; i < json_string_length(text); i++)
        n += (s[i] & 0xc0) != 0x80;
    return n;
}

/* Offset of the k-th character. */
static size_t offset_of(const json_t *text, size_t k)
{
    const char *s = json_string_value(text);
    size_t i = 0, n;
    for (; k > 0 && i < json_string_length(text); k--, i += n)
        text_utf8_get(s + i, &n);
    return i;
}

static size_t length_of(const json_t *of)
{
    return json_is_string(of)   ? n_characters(of)
           : json_is_array(of)  ? json_array_size(of)
           : json_is_object(of) ? json_object_size(of)
                                : 0;
}

static json_t *character(const json_t *text, size_t k)
{
    size_t begin = offset_of(text, k), n;
    text_utf8_get(json_string_value(text) + begin, &n);
    return json_stringn_nocheck(json_string_value(text) + begin, n);
}

json_t *text_jinja_iterable(struct jinja_run *run, json_t *of)
{
    if (json_is_array(of))
        return json_incref(of);
    json_t *list = json_array();
    if (json_is_object(of)) {
        const char *key;
        json_t *value;
        json_object_foreach(of, key, value) json_array_append_new(list, json_string_nocheck(key));
    } else if (json_is_string(of)) {
        const size_t n = n_characters(of);
        for (size_t i = 0; i < n; i++)
            json_array_append_new(list, character(of, i));
    } else if (of) {
        text_jinja_fail(run, S2S_E_FORMAT, "a loop over what is no list");
    }
    return list;
}

json_t *text_jinja_item(struct jinja_run *run, json_t *of, const json_t *key)
{
    json_t *value = NULL;
    if (json_is_object(of) && json_is_string(key))
        value = json_object_get(of, json_string_value(key));
    if (json_is_integer(key) && (json_is_array(of) || json_is_string(of))) {
        json_int_t i = json_integer_value(key), n = (json_int_t)length_of(of);
        i = i < 0 ? i + n : i;
        if (i < 0 || i >= n)
            return NULL;
        if (json_is_string(of))
            return character(of, (size_t)i);
        value = json_array_get(of, (size_t)i);
    }
    return value == run->undefined ? NULL : json_incref(value);
}

json_t *text_jinja_slice(struct jinja_run *run, json_t *of, json_t *const bounds[3])
{
    json_int_t n = (json_int_t)length_of(of);
    json_int_t step = json_is_integer(bounds[2]) ? json_integer_value(bounds[2]) : 1;
    json_int_t bound[2] = {step > 0 ? 0 : n - 1, step > 0 ? n : -1};
    if (!json_is_array(of) && !json_is_string(of)) {
        text_jinja_fail(run, S2S_E_FORMAT, "a slice of what is no list and no text");
        return NULL;
    }
    if (step == 0) {
        text_jinja_fail(run, S2S_E_FORMAT, "a slice of step 0");
        return NULL;
    }
    for (int k = 0; k < 2; k++) {
        if (!json_is_integer(bounds[k]))
            continue;
        json_int_t i = json_integer_value(bounds[k]), low = step > 0 ? 0 : -1;
        i = i < 0 ? i + n : i;
        bound[k] = i < low ? low : i > n + low ? n + low : i;
    }
    json_t *list = json_array();
    struct s2s_buf text = S2S_BUF_INIT;
    for (json_int_t i = bound[0]; step > 0 ? i < bound[1] : i > bound[1]; i += step) {
        if (json_is_array(of)) {
            json_array_append(list, json_array_get(of, (size_t)i));
            continue;
        }
        size_t begin = offset_of(of, (size_t)i), size;
        text_utf8_get(json_string_value(of) + begin, &size);
        s2s_buf_add(&text, json_string_value(of) + begin, size);
    }
    json_t *result = json_is_array(of) ? json_incref(list) : text_of(&text);
    json_decref(list);
    s2s_buf_release(&text);
    return result;
}

/* ---- operators ---- */

static bool is_equal(const json_t *left, const json_t *right)
{
    if (json_is_number(left) && json_is_number(right))
        return json_number_value(left) == json_number_value(right);
    return left && right ? json_equal(left, right) : left == right;
}

static bool holds(const json_t *list, const json_t *what)
{
    if (json_is_string(list) && json_is_string(what))
        return json_string_length(what) == 0 ||
               memmem(json_string_value(list), json_string_length(list), json_string_value(what),
                      json_string_length(what));
    if (json_is_object(list) && json_is_string(what))
        return json_object_get(list, json_string_value(what)) != NULL;
    for (size_t i = 0; i < json_array_size(list); i++)
        if (is_equal(json_array_get(list, i), what))
            return true;
    return false;
}

static int order_of(struct jinja_run *run, const json_t *left, const json_t *right)
{
    if (json_is_string(left) && json_is_string(right))
        return strcmp(json_string_value(left), json_string_value(right));
    if (!json_is_number(left) || !json_is_number(right))
        text_jinja_fail(run, S2S_E_FORMAT, "values of different kinds have no order");
    double a = json_number_value(left), b = json_number_value(right);
    return (a > b) - (a < b);
}

static json_t *add(struct jinja_run *run, json_t *left, json_t *right)
{
    if (json_is_string(left) && json_is_string(right)) {
        struct s2s_buf text = S2S_BUF_INIT;
        text_jinja_add_text(run, &text, left);
        text_jinja_add_text(run, &text, right);
        json_t *sum = text_of(&text);
        s2s_buf_release(&text);
        return sum;
    }
    if (json_is_array(left) && json_is_array(right)) {
        json_t *sum = json_array();
        json_array_extend(sum, left);
        json_array_extend(sum, right);
        return sum;
    }
    text_jinja_fail(run, S2S_E_FORMAT, "+ of values that do not add");
    return NULL;
}

static json_t *arithmetic(struct jinja_run *run, char sign, json_t *left, json_t *right)
{
    if (!json_is_number(left) || !json_is_number(right)) {
        if (sign == '+')
            return add(run, left, right);
        text_jinja_fail(run, S2S_E_FORMAT, "%c of what is no number", sign);
        return NULL;
    }
    const bool whole = json_is_integer(left) && json_is_integer(right);
    double a = json_number_value(left), b = json_number_value(right), r = 0;
    if ((sign == '/' || sign == 'd' || sign == '%') && b == 0) {
        text_jinja_fail(run, S2S_E_FORMAT, "division by zero");
        return NULL;
    }
    r = sign == '+'   ? a + b
        : sign == '-' ? a - b
        : sign == '*' ? a * b
        : sign == '/' ? a / b
        : sign == 'd' ? floor(a / b)
                      : a - floor(a / b) * b;
    return whole && sign != '/' && fabs(r) < 9e15 ? json_integer((json_int_t)r) : json_real(r);
}

json_t *text_jinja_binary(struct jinja_run *run, const char *sign, json_t *left, json_t *right)
{
    if (!strcmp(sign, "=="))
        return json_boolean(is_equal(left, right));
    if (!strcmp(sign, "!="))
        return json_boolean(!is_equal(left, right));
    if (!strcmp(sign, "in"))
        return json_boolean(holds(right, left));
    if (!strcmp(sign, "//"))
        return arithmetic(run, 'd', left, right);
    if (*sign == '<' || *sign == '>') {
        int order = *sign == '<' ? order_of(run, left, right) : -order_of(run, left, right);
        return json_boolean(sign[1] ? order <= 0 : order < 0);
    }
    if (*sign == '~') {
        struct s2s_buf text = S2S_BUF_INIT;
        text_jinja_add_text(run, &text, left);
        text_jinja_add_text(run, &text, right);
        json_t *joined = text_of(&text);
        s2s_buf_release(&text);
        return joined;
    }
    return arithmetic(run, *sign, left, right);
}

/* ---- text: methods and filters ---- */

enum sides { LEFT = 1, RIGHT = 2 };

static bool is_among(uint32_t cp, const json_t *characters)
{
    if (!json_is_string(characters))
        return text_is_space(cp) || (cp >= 0x1c && cp <= 0x1f); /* as Python strips */
    const char *s = json_string_value(characters);
    for (size_t i = 0, n; i < json_string_length(characters); i += n)
        if (text_utf8_get(s + i, &n) == cp)
            return true;
    return false;
}

static json_t *strip(const json_t *text, const json_t *characters, int sides)
{
    const char *s = json_string_value(text);
    size_t begin = 0, end = json_string_length(text), n;
    while ((sides & LEFT) && begin < end && is_among(text_utf8_get(s + begin, &n), characters))
        begin += n;
    while ((sides & RIGHT) && end > begin) {
        size_t at = end - 1;
        while ((s[at] & 0xc0) == 0x80)
            at--;
        if (!is_among(text_utf8_get(s + at, &n), characters))
            break;
        end = at;
    }
    return json_stringn_nocheck(s + begin, end - begin);
}

static json_t *replaced(const json_t *text, const json_t *what, const json_t *by)
{
    const char *s = json_string_value(text), *end = s + json_string_length(text), *at;
    const size_t len = json_string_length(what);
    struct s2s_buf out = S2S_BUF_INIT;
    if (len > 0)
        while ((at = memmem(s, (size_t)(end - s), json_string_value(what), len))) {
            s2s_buf_add(&out, s, (size_t)(at - s));
            s2s_buf_add(&out, json_string_value(by), json_string_length(by));
            s = at + len;
        }
    s2s_buf_add(&out, s, (size_t)(end - s));
    json_t *result = text_of(&out);
    s2s_buf_release(&out);
    return result;
}

static json_t *split(struct jinja_run *run, const json_t *text, const json_t *by, json_int_t most)
{
    const char *s = json_string_value(text), *end = s + json_string_length(text), *at;
    json_t *list = json_array();
    if (json_is_string(by) && json_string_length(by) > 0) {
        const size_t len = json_string_length(by);
        while ((most < 0 || most-- > 0) &&
               (at = memmem(s, (size_t)(end - s), json_string_value(by), len))) {
            json_array_append_new(list, json_stringn_nocheck(s, (size_t)(at - s)));
            s = at + len;
        }
        json_array_append_new(list, json_stringn_nocheck(s, (size_t)(end - s)));
        return list;
    }
    if (most >= 0 || by)
        text_jinja_fail(run, S2S_E_UNSUPPORTED, "split by white space, with a limit");
    for (size_t n; s < end;) {
        while (s < end && text_is_space(text_utf8_get(s, &n)))
            s += n;
        for (at = s; at < end && !text_is_space(text_utf8_get(at, &n)); at += n)
            ;
        if (at > s)
            json_array_append_new(list, json_stringn_nocheck(s, (size_t)(at - s)));
        s = at;
    }
    return list;
}

enum letters { LOWER, UPPER, CAPITALIZE, TITLE };

/* Letters beyond ASCII keep their case where it is not lowered. */
static json_t *in_case(const json_t *text, enum letters how)
{
    const char *s = json_string_value(text);
    struct s2s_buf out = S2S_BUF_INIT;
    bool begins = true;
    for (size_t i = 0, n; i < json_string_length(text); i += n) {
        uint32_t cp = text_utf8_get(s + i, &n);
        bool up = how == UPPER || (how != LOWER && begins);
        if (up && cp < 0x80)
            s2s_buf_putc(&out, (char)toupper((int)cp));
        else if (up)
            s2s_buf_add(&out, s + i, n);
        else
            text_add_lower(&out, cp);
        begins = how == TITLE && !text_is_word(cp);
    }
    json_t *result = text_of(&out);
    s2s_buf_release(&out);
    return result;
}

static bool has_affix(const json_t *text, const json_t *affix, bool at_end)
{
    if (json_is_array(affix)) {
        for (size_t i = 0; i < json_array_size(affix); i++)
            if (has_affix(text, json_array_get(affix, i), at_end))
                return true;
        return false;
    }
    size_t len = json_string_length(text), n = json_string_length(affix);
    return json_is_string(affix) && n <= len &&
           !memcmp(json_string_value(text) + (at_end ? len - n : 0), json_string_value(affix), n);
}

static json_t *joined(struct jinja_run *run, const json_t *list, const json_t *between)
{
    struct s2s_buf out = S2S_BUF_INIT;
    for (size_t i = 0; i < json_array_size(list); i++) {
        if (i > 0 && json_is_string(between))
            text_jinja_add_text(run, &out, between);
        text_jinja_add_text(run, &out, json_array_get(list, i));
    }
    json_t *result = text_of(&out);
    s2s_buf_release(&out);
    return result;
}

static json_t *items_of(json_t *of)
{
    json_t *list = json_array(), *value;
    const char *key;
    json_object_foreach(of, key, value)
    {
        json_t *pair = json_array();
        json_array_append_new(pair, json_string_nocheck(key));
        json_array_append(pair, value);
        json_array_append_new(list, pair);
    }
    return list;
}

static const json_t *argument(const struct jinja_arguments *arguments, size_t i, const char *name)
{
    return i < arguments->n ? arguments->list[i] : json_object_get(arguments->named, name);
}

static json_t *text_method(struct jinja_run *run, const json_t *of, const char *name,
                           const struct jinja_arguments *arguments)
{
    static const struct {
        const char *name;
        int sides;
    } strips[] = {{"strip", LEFT | RIGHT}, {"lstrip", LEFT}, {"rstrip", RIGHT}};
    static const char *const cases[] = {"lower", "upper", "capitalize", "title"};
    const json_t *first = argument(arguments, 0, "sep"),
                 *second = argument(arguments, 1, "maxsplit");
    for (size_t i = 0; i < 3; i++)
        if (!strcmp(name, strips[i].name))
            return strip(of, first, strips[i].sides);
    for (size_t i = 0; i < 4; i++)
        if (!strcmp(name, cases[i]))
            return in_case(of, (enum letters)i);
    if (!strcmp(name, "startswith") || !strcmp(name, "endswith"))
        return json_boolean(has_affix(of, first, *name == 'e'));
    if (!strcmp(name, "replace") && json_is_string(first) && json_is_string(second))
        return replaced(of, first, second);
    if (!strcmp(name, "split"))
        return split(run, of, first, json_is_integer(second) ? json_integer_value(second) : -1);
    if (!strcmp(name, "join") && json_is_array(first))
        return joined(run, first, of);
    text_jinja_fail(run, S2S_E_UNSUPPORTED, "the method %s of a text is not supported", name);
    return NULL;
}

json_t *text_jinja_method(struct jinja_run *run, json_t *of, const char *name,
                          const struct jinja_arguments *arguments)
{
    if (json_is_string(of))
        return text_method(run, of, name, arguments);
    if (json_is_object(of)) {
        if (!strcmp(name, "items"))
            return items_of(of);
        if (!strcmp(name, "keys"))
            return text_jinja_iterable(run, of);
        if (!strcmp(name, "values")) {
            json_t *list = json_array(), *value;
            const char *key;
            json_object_foreach(of, key, value) json_array_append(list, value);
            return list;
        }
        if (!strcmp(name, "get") && arguments->n > 0) {
            json_t *value = text_jinja_item(run, of, arguments->list[0]);
            if (value || arguments->n < 2)
                return value ? value : json_null();
            return json_incref(arguments->list[1]);
        }
    }
    if (json_is_array(of) && !strcmp(name, "append") && arguments->n == 1) {
        json_array_append(of, arguments->list[0] ? arguments->list[0] : run->undefined);
        return json_null();
    }
    text_jinja_fail(run, S2S_E_UNSUPPORTED, "the method %s of %s is not supported", name,
                    !of                  ? "what is undefined"
                    : json_is_array(of)  ? "a list"
                    : json_is_object(of) ? "a dict"
                                         : "a number");
    return NULL;
}

/* selectattr, rejectattr: items whose member passes a test, or is true */
static json_t *selected(struct jinja_run *run, json_t *of, bool keep,
                        const struct jinja_arguments *arguments)
{
    json_t *list = json_array();
    const char *member = arguments->n ? json_string_value(arguments->list[0]) : NULL;
    const char *test = arguments->n > 1 ? json_string_value(arguments->list[1]) : NULL;
    struct jinja_arguments rest = {.n = arguments->n > 2 ? 1 : 0,
                                   .list = {arguments->n > 2 ? arguments->list[2] : NULL}};
    for (size_t i = 0; i < json_array_size(of) && member; i++) {
        json_t *value = json_object_get(json_array_get(of, i), member);
        json_t *passes =
            test ? text_jinja_test(run, value, test, &rest) : json_boolean(text_jinja_truth(value));
        if (text_jinja_truth(passes) == keep)
            json_array_append(list, json_array_get(of, i));
        json_decref(passes);
    }
    return list;
}

static json_t *mapped(struct jinja_run *run, json_t *of, const struct jinja_arguments *arguments)
{
    json_t *list = json_array();
    const char *member = json_string_value(json_object_get(arguments->named, "attribute"));
    const char *filter = arguments->n ? json_string_value(arguments->list[0]) : NULL;
    static const struct jinja_arguments none = {.n = 0};
    for (size_t i = 0; i < json_array_size(of) && !run->failed; i++) {
        json_t *item = json_array_get(of, i);
        json_t *value = member   ? json_incref(json_object_get(item, member))
                        : filter ? text_jinja_filter(run, item, filter, &none)
                                 : NULL;
        json_array_append(list, value ? value : run->undefined);
        json_decref(value);
    }
    return list;
}

static json_t *number_of(json_t *of)
{
    if (json_is_string(of))
        return json_integer((json_int_t)strtoll(json_string_value(of), NULL, 10));
    return json_integer((json_int_t)json_number_value(of));
}

static json_t *list_filter(struct jinja_run *run, json_t *of, const char *name,
                           const struct jinja_arguments *arguments)
{
    json_t *list = text_jinja_iterable(run, of), *result = NULL;
    const size_t n = json_array_size(list);
    if (!strcmp(name, "first") || !strcmp(name, "last")) {
        result = json_incref(n ? json_array_get(list, *name == 'f' ? 0 : n - 1) : NULL);
    } else if (!strcmp(name, "list")) {
        result = json_copy(list);
    } else if (!strcmp(name, "join")) {
        result = joined(run, list, argument(arguments, 0, "d"));
    } else if (!strcmp(name, "reverse")) {
        result = json_array();
        for (size_t i = n; i-- > 0;)
            json_array_append(result, json_array_get(list, i));
    } else if (!strcmp(name, "selectattr") || !strcmp(name, "rejectattr")) {
        result = selected(run, list, *name == 's', arguments);
    } else if (!strcmp(name, "map")) {
        result = mapped(run, list, arguments);
    } else {
        text_jinja_fail(run, S2S_E_UNSUPPORTED, "the filter %s is not supported", name);
    }
    json_decref(list);
    return result;
}

json_t *text_jinja_filter(struct jinja_run *run, json_t *of, const char *name,
                          const struct jinja_arguments *arguments)
{
    const json_t *first = argument(arguments, 0, "default_value");
    struct s2s_buf text = S2S_BUF_INIT;
    json_t *result = NULL, *as_text;
    if (!strcmp(name, "default") || !strcmp(name, "d")) {
        bool also_false = text_jinja_truth(argument(arguments, 1, "boolean"));
        if (also_false ? text_jinja_truth(of) : of != NULL)
            return json_incref(of);
        return first ? json_incref((json_t *)(uintptr_t)first) : json_string_nocheck("");
    }
    if (!strcmp(name, "tojson")) {
        const json_t *indent = argument(arguments, 1, "indent");
        add_json(&text, of, json_is_integer(indent) ? (size_t)json_integer_value(indent) : 0);
        result = text_of(&text);
        s2s_buf_release(&text);
        return result;
    }
    if (!strcmp(name, "length") || !strcmp(name, "count"))
        return json_integer((json_int_t)length_of(of));
    if (!strcmp(name, "int"))
        return number_of(of);
    if (!strcmp(name, "items"))
        return items_of(of);
    if (!strcmp(name, "safe"))
        return json_incref(of);
    static const char *const of_text[] = {"trim",       "string", "lower",  "upper",
                                          "capitalize", "title",  "replace"};
    bool is_text = false;
    for (size_t i = 0; i < sizeof of_text / sizeof *of_text; i++)
        is_text |= !strcmp(name, of_text[i]);
    if (!is_text)
        return list_filter(run, of, name, arguments);
    text_jinja_add_text(run, &text, of);
    as_text = text_of(&text);
    s2s_buf_release(&text);
    if (!strcmp(name, "string"))
        return as_text;
    if (!strcmp(name, "trim"))
        result = strip(as_text, argument(arguments, 0, "chars"), LEFT | RIGHT);
    else
        result = text_method(run, as_text, name, arguments);
    json_decref(as_text);
    return result;
}

json_t *text_jinja_test(struct jinja_run *run, json_t *of, const char *name,
                        const struct jinja_arguments *arguments)
{
    const json_t *first = arguments->n ? arguments->list[0] : NULL;
    const struct {
        const char *name;
        bool truth;
    } tests[] = {
        {"defined", of != NULL && of != run->undefined},
        {"undefined", of == NULL || of == run->undefined},
        {"none", json_is_null(of)},
        {"string", json_is_string(of)},
        {"mapping", json_is_object(of) && of != run->undefined},
        {"sequence", json_is_string(of) || json_is_array(of) || json_is_object(of)},
        {"iterable", json_is_string(of) || json_is_array(of) || json_is_object(of)},
        {"number", json_is_number(of) || json_is_boolean(of)},
        {"integer", json_is_integer(of)},
        {"float", json_is_real(of)},
        {"boolean", json_is_boolean(of)},
        {"true", json_is_true(of)},
        {"false", json_is_false(of)},
        {"callable", false},
        {"equalto", is_equal(of, first)},
        {"eq", is_equal(of, first)},
        {"==", is_equal(of, first)},
        {"ne", !is_equal(of, first)},
        {"in", holds(first, of)},
        {"even", json_is_integer(of) && json_integer_value(of) % 2 == 0},
        {"odd", json_is_integer(of) && json_integer_value(of) % 2 != 0},
        {"divisibleby", json_is_integer(of) && json_integer_value(first) != 0 &&
                            json_integer_value(of) % json_integer_value(first) == 0},
    };
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
        if (!strcmp(name, tests[i].name))
            return json_boolean(tests[i].truth);
    text_jinja_fail(run, S2S_E_UNSUPPORTED, "the test %s is not supported", name);
    return NULL;
}
