/* Keys of Python dicts, as components of names; and which of them are there twice. */
#include "lib/ckpt/read/torch_walk.h"

#include <math.h>

#include "lib/ckpt/pickle/pairs.h"

/* As Python's repr: the fewest digits that identify the number, with an exponent below 1e-4 and
 * from 1e16 on. */
static void put_float(struct s2s_buf *name, double value)
{
    char text[40];
    /* Normal numbers that 15 digits identify: start there, and strip trailing zeros below. */
    int n_digits = isnormal(value) ? 14 : 0, exponent = 0;
    do
        snprintf(text, sizeof text, "%.*e", n_digits++, value);
    while (n_digits < 17 && strtod(text, NULL) != value);
    const char *e = strchr(text, 'e');
    for (const char *at = e; at && n_digits > 1 && at[-1] == '0'; at--)
        n_digits--;
    if (e)
        exponent = (int)strtol(e + 1, NULL, 10);
    if (!e || exponent < -4 || exponent >= 16)
        s2s_buf_printf(name, "%.*e", n_digits - 1, value);
    else
        s2s_buf_printf(name, "%.*f", n_digits - 1 > exponent + 1 ? n_digits - 1 - exponent : 1,
                       value);
}

static bool put_key(struct s2s_buf *name, const struct ckpt_node *key, int depth, bool objects);

/* Stops once the name is too long: a tuple may refer to one long string a million times. */
static bool put_keys(struct s2s_buf *name, const struct ckpt_node *keys, int depth, bool objects)
{
    s2s_buf_putc(name, '(');
    for (uint32_t i = 0; i < keys->n && name->len <= CKPT_MAX_NAME; i++) {
        s2s_buf_puts(name, i ? ", " : "");
        if (depth > 3 || !put_key(name, keys->items[i], depth + 1, objects))
            return false;
    }
    return true;
}

static void put_bytes(struct s2s_buf *name, const struct ckpt_node *key)
{
    static const char hex[] = "0123456789abcdef";
    s2s_buf_puts(name, "b'");
    for (uint32_t i = 0; i < key->len && name->len <= CKPT_MAX_NAME; i++) {
        const unsigned char c = (unsigned char)key->text[i];
        if (c < ' ' || c > '~' || c == '\'' || c == '\\')
            s2s_buf_add(name, (char[]){'\\', 'x', hex[c >> 4], hex[c & 15]}, 4);
        else
            s2s_buf_putc(name, (char)c);
    }
    s2s_buf_putc(name, '\'');
}

static bool put_key(struct s2s_buf *name, const struct ckpt_node *key, int depth, bool objects)
{
    switch (key->kind) {
    case CKPT_STR:
        if (depth)
            s2s_buf_putc(name, '\'');
        s2s_buf_add(name, key->text, key->len);
        if (depth)
            s2s_buf_putc(name, '\'');
        return true;
    case CKPT_INT:
        s2s_buf_printf(name, "%lld", (long long)key->i);
        return true;
    case CKPT_BOOL:
        s2s_buf_puts(name, key->i ? "True" : "False");
        return true;
    case CKPT_NONE:
        s2s_buf_puts(name, "None");
        return true;
    case CKPT_FLOAT:
        put_float(name, key->f);
        return true;
    case CKPT_GLOBAL: /* a dtype */
        s2s_buf_printf(name, "%.*s.%.*s", (int)key->n, key->text, (int)(key->len - key->n - 1),
                       key->text + key->n + 1);
        return true;
    case CKPT_TUPLE:
        if (!put_keys(name, key, depth, objects))
            return false;
        s2s_buf_puts(name, key->n == 1 ? ",)" : ")");
        return true;
    case CKPT_BYTES:
        if (!objects || !key->text)
            return false;
        put_bytes(name, key);
        return true;
    case CKPT_RECORD:
        if (!objects || key->items[2] || key->items[3] ||
            !put_key(name, key->items[0], depth, objects) ||
            !put_keys(name, key->items[1], depth, objects))
            return false;
        s2s_buf_putc(name, ')');
        return true;
    default:
        return false;
    }
}

bool ckpt_torch_put_key(struct s2s_buf *name, const struct ckpt_node *key, bool objects)
{
    return put_key(name, key, 0, objects);
}

/* ---- keys that are there twice ---- */

bool ckpt_torch_has_parts(const struct ckpt_node *node)
{
    return node->kind == CKPT_RECORD || node->kind == CKPT_DICT || node->kind == CKPT_LIST ||
           node->kind == CKPT_TUPLE || node->kind == CKPT_SET;
}

static int compare_keys(const char *a, size_t a_len, const char *b, size_t b_len)
{
    int order = memcmp(a, b, a_len < b_len ? a_len : b_len);
    return order ? order : (a_len > b_len) - (a_len < b_len);
}

static int by_key(const void *a, const void *b)
{
    const struct ckpt_node *x = *(struct ckpt_node *const *)a, *y = *(struct ckpt_node *const *)b;
    if (x->kind != y->kind)
        return x->kind - y->kind;
    if (x->kind == CKPT_STR)
        return compare_keys(x->text, x->len, y->text, y->len);
    if (x->kind == CKPT_INT)
        return (x->i > y->i) - (x->i < y->i);
    return (x > y) - (x < y);
}

static int there_twice(const struct ckpt_node *key, struct s2s_error *err)
{
    return s2s_error_set(err, S2S_E_FORMAT,
                         "dict key at byte %u of the pickle is there twice: %.*s", key->offset,
                         key->kind != CKPT_STR ? 0 : ckpt_shown_len(key->len, 200), key->text);
}

int ckpt_torch_check_keys(const struct ckpt_node *dict, struct s2s_error *err)
{
    size_t n = 0;
    int rc = 0;
    for (uint32_t i = 0; i < dict->n; i += 2)
        n += ckpt_torch_has_parts(dict->items[i + 1]);
    if (n == 0 || dict->n < 4)
        return 0;
    const struct ckpt_node **keys = s2s_xmalloc(n * sizeof *keys);
    n = 0;
    for (uint32_t i = 0; i < dict->n; i += 2)
        if (ckpt_torch_has_parts(dict->items[i + 1]))
            keys[n++] = dict->items[i];
    qsort(keys, n, sizeof *keys, by_key);
    for (size_t i = 1; i < n && rc == 0; i++)
        if (by_key(&keys[i - 1], &keys[i]) == 0)
            rc = there_twice(keys[i], err);
    struct ckpt_pairs pairs = {.dict = dict};
    while (rc == 0 && ckpt_pairs_next(&pairs))
        if (!ckpt_torch_has_parts(pairs.value) &&
            bsearch(&pairs.key, keys, n, sizeof *keys, by_key))
            rc = there_twice(pairs.key, err);
    free(keys);
    return rc;
}
