/* Writes JSON as YAML, in the form that OmegaConf gives to a model_config.yaml. */
#include <ctype.h>

#include "lib/base/base.h"
#include "lib/ckpt/nemo/to_nemo.h"

static bool is_plain(const char *s)
{
    static const char *const words[] = {"true", "false", "null", "yes", "no",
                                        "on",   "off",   "y",    "n",   "~"};
    if (!isalpha((unsigned char)*s) && *s != '_')
        return false;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strcasecmp(s, words[i]) == 0)
            return false;
    return s[strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./-")] == 0;
}

/* YAML 1.1 requires a point in a float; JSON's quoted strings are also YAML. */
static void add_scalar(struct s2s_buf *out, const json_t *value)
{
    char number[40];
    if (json_is_real(value)) {
        snprintf(number, sizeof number, "%.15g", json_real_value(value));
        size_t head = strcspn(number, "e");
        bool point = memchr(number, '.', head) != NULL;
        s2s_buf_printf(out, "%.*s%s%s", (int)head, number, point ? "" : ".0", number + head);
        return;
    }
    if (json_is_string(value) && is_plain(json_string_value(value))) {
        s2s_buf_puts(out, json_string_value(value));
        return;
    }
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
    s2s_buf_puts(out, text ? text : "null");
    free(text);
}

static void add_value(struct s2s_buf *out, const json_t *value, int indent);

static void add_list(struct s2s_buf *out, const json_t *list, int indent)
{
    const bool texts = json_is_string(json_array_get(list, 0));
    const json_t *item;
    size_t i;
    s2s_buf_puts(out, texts ? "" : " [");
    json_array_foreach(list, i, item)
    {
        if (texts)
            s2s_buf_printf(out, "\n%*s- ", indent, "");
        else if (i)
            s2s_buf_puts(out, ", ");
        if (texts) { /* always quoted: labels may contain anything */
            char *text = json_dumps(item, JSON_ENCODE_ANY | JSON_COMPACT);
            s2s_buf_puts(out, text ? text : "\"\"");
            free(text);
        } else {
            add_scalar(out, item);
        }
    }
    s2s_buf_puts(out, texts ? "\n" : "]\n");
}

void ckpt_yaml_object(struct s2s_buf *out, const json_t *object, int indent)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)object, key, value)
    {
        s2s_buf_printf(out, "%*s%s:", indent, "", key);
        add_value(out, value, indent + 2);
    }
}

static void add_value(struct s2s_buf *out, const json_t *value, int indent)
{
    if (json_is_object(value)) {
        s2s_buf_putc(out, '\n');
        ckpt_yaml_object(out, value, indent);
    } else if (json_is_array(value)) {
        add_list(out, value, indent - 2);
    } else {
        s2s_buf_putc(out, ' ');
        add_scalar(out, value);
        s2s_buf_putc(out, '\n');
    }
}
