/* A hash table of named facts, each with the place that it came from. */
#include "lib/rules/rules_internal.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "lib/base/error.h"

void rules_facts_release(struct rules_facts *facts)
{
    for (size_t i = 0; i < facts->n_strings; i++)
        free(facts->strings[i]);
    free(facts->strings);
    free(facts->items);
    free(facts->index);
    *facts = (struct rules_facts){0};
}

static size_t slot_of(const struct rules_facts *facts, const char *name)
{
    size_t mask = facts->index_size - 1, slot = XXH3_64bits(name, strlen(name)) & mask;
    while (facts->index[slot] && strcmp(facts->items[facts->index[slot] - 1].name, name))
        slot = (slot + 1) & mask;
    return slot;
}

static void index_all(struct rules_facts *facts)
{
    facts->index_size = facts->index_size ? 2 * facts->index_size : 512;
    free(facts->index);
    facts->index = s2s_xcalloc(facts->index_size, sizeof *facts->index);
    for (size_t i = 0; i < facts->n; i++)
        facts->index[slot_of(facts, facts->items[i].name)] = (uint32_t)i + 1;
}

struct rules_fact *rules_fact_find(const struct rules_facts *facts, const char *name)
{
    uint32_t found = facts->index_size ? facts->index[slot_of(facts, name)] : 0;
    return found ? &facts->items[found - 1] : NULL;
}

struct rules_fact *rules_fact_make(struct rules_facts *facts, const char *name)
{
    struct rules_fact *fact = rules_fact_find(facts, name);
    if (fact)
        return fact;
    if (2 * facts->n >= facts->index_size)
        index_all(facts);
    s2s_grow(&facts->items, facts->n, &facts->cap, sizeof *facts->items);
    facts->items[facts->n] = (struct rules_fact){.name = name, .origin = S2S_CONF_FROM_DEFAULT};
    size_t slot = slot_of(facts, name);
    facts->index[slot] = (uint32_t)++facts->n;
    return &facts->items[facts->n - 1];
}

void rules_fact_set(struct rules_facts *facts, const char *name, struct rules_value value)
{
    struct rules_fact *fact = rules_fact_make(facts, name);
    fact->value = value;
    fact->origin = S2S_CONF_FROM_DERIVED;
}

char *rules_keep(struct rules_facts *facts, char *taken)
{
    s2s_grow(&facts->strings, facts->n_strings, &facts->cap_strings, sizeof *facts->strings);
    facts->strings[facts->n_strings++] = taken;
    return taken;
}

/* ${..} or $NAME, as a variable of the environment is written too, is in it */
static bool has_reference(const char *text)
{
    for (const char *s = text; (s = strchr(s, '$')) != NULL; s++)
        if (s[1] == '{' || s[1] == '_' || isalpha((unsigned char)s[1]))
            return true;
    return false;
}

struct rules_value rules_value_of(const struct s2s_conf *node)
{
    if (!node)
        return rules_null();
    switch (node->kind) {
    case S2S_CONF_NULL:
        return rules_null();
    case S2S_CONF_BOOL:
        return rules_bool(node->as_bool);
    case S2S_CONF_INT:
        return rules_int(node->as_int);
    case S2S_CONF_FLOAT:
        /* 4.0 is the integer 4 wherever a size is meant */
        if (node->as_float >= -9e15 && node->as_float <= 9e15 &&
            node->as_float == (double)(int64_t)node->as_float)
            return rules_int((int64_t)node->as_float);
        return (struct rules_value){RULES_FLOAT, {.f = node->as_float}};
    case S2S_CONF_STRING:
        if (!strcmp(node->text, "???") || has_reference(node->text))
            return rules_unknown();
        return rules_text(node->text);
    case S2S_CONF_LIST:
        return (struct rules_value){RULES_LIST, {.list = node}};
    default:
        return rules_unknown();
    }
}

void rules_value_add(struct s2s_buf *buf, struct rules_value value)
{
    switch (value.type) {
    case RULES_UNKNOWN:
        s2s_buf_puts(buf, "?");
        break;
    case RULES_NULL:
        s2s_buf_puts(buf, "unset");
        break;
    case RULES_BOOL:
        s2s_buf_puts(buf, value.b ? "true" : "false");
        break;
    case RULES_INT:
        s2s_buf_printf(buf, "%lld", (long long)value.i);
        break;
    case RULES_FLOAT:
        s2s_buf_printf(buf, "%g", value.f);
        break;
    case RULES_TEXT:
        s2s_buf_puts(buf, value.s);
        break;
    case RULES_LIST:
        s2s_conf_dump_json(buf, value.list);
        break;
    }
}
