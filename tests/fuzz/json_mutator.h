/*
 * Mutations of inputs that are JSON: as trees, so that what comes out is JSON still and its names
 * and numbers stay near those that mean something. Others are mutated as bytes.
 */
#ifndef TESTS_FUZZ_JSON_MUTATOR_H
#define TESTS_FUZZ_JSON_MUTATOR_H

#include <ctype.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <jansson.h>

#include "lib/base/base.h"

/* libFuzzer's; a program that only replays has none */
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size) __attribute__((weak));
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned int seed);

static uint64_t mutator_state;

static size_t mutator_random(size_t n)
{
    mutator_state = mutator_state * 6364136223846793005u + 1442695040888963407u;
    return n ? (size_t)(mutator_state >> 33) % n : 0;
}

/* A value and where it stands. */
struct mutator_at {
    json_t *parent, *value;
    const char *key;
    size_t idx;
};

static size_t mutator_size(const json_t *value)
{
    return json_is_object(value) ? json_object_size(value) : json_array_size(value);
}

static void mutator_child(struct mutator_at *at, json_t *parent)
{
    const size_t idx = mutator_random(mutator_size(parent));
    *at = (struct mutator_at){.parent = parent, .value = json_array_get(parent, idx), .idx = idx};
    if (json_is_object(parent)) {
        void *iter = json_object_iter(parent);
        for (size_t i = 0; i < idx; i++)
            iter = json_object_iter_next(parent, iter);
        at->key = json_object_iter_key(iter);
        at->value = json_object_iter_value(iter);
    }
}

/* What lies deep is found as often as what is in a long list. */
static bool mutator_pick(struct mutator_at *at, json_t *root)
{
    json_t *parent = root;
    if (mutator_size(root) == 0)
        return false;
    do {
        mutator_child(at, parent);
        parent = at->value;
    } while (mutator_size(parent) && mutator_random(6));
    return true;
}

/* Takes value. */
static void mutator_set(const struct mutator_at *at, json_t *value)
{
    if (at->key)
        json_object_set_new(at->parent, at->key, value);
    else
        json_array_set_new(at->parent, at->idx, value);
}

static json_t *mutator_number(json_int_t number)
{
    const uint64_t old = (uint64_t)number;
    const uint64_t values[] = {0,
                               1,
                               2,
                               3,
                               4,
                               8,
                               UINT64_MAX,
                               100000,
                               1 << 20,
                               INT32_MAX,
                               INT64_MAX,
                               old + 1,
                               old - 1,
                               -old,
                               2 * old,
                               3 * old,
                               (uint64_t)(number / 2)};
    return json_integer((json_int_t)values[mutator_random(sizeof values / sizeof *values)]);
}

static json_t *mutator_other_kind(void)
{
    static const char *const texts[] = {"null", "true", "false", "\"\"", "[]",
                                        "{}",   "0.5",  "1e300", "[1,2]"};
    return json_loads(texts[mutator_random(sizeof texts / sizeof *texts)], JSON_DECODE_ANY, NULL);
}

/* Bytes that are UTF-8 still, or none. Gives: free. */
static char *mutator_text(const char *old)
{
    uint8_t bytes[512];
    size_t len = strlen(old);
    if (len + 16 > sizeof bytes || !LLVMFuzzerMutate)
        return NULL;
    memcpy(bytes, old, len);
    for (size_t i = 0; i < len && mutator_random(2); i++) /* another number in a name */
        if (isdigit(bytes[i]) && mutator_random(3) == 0) {
            bytes[i] = (uint8_t)('0' + mutator_random(4));
            return s2s_xstrndup((char *)bytes, len);
        }
    len = LLVMFuzzerMutate(bytes, len, len + 8);
    return s2s_xstrndup((char *)bytes, len);
}

static void mutator_rename(const struct mutator_at *at, const char *name, bool keep)
{
    if (!at->key || !name)
        return;
    char *old = s2s_xstrdup(at->key);
    json_t *value = keep ? json_deep_copy(at->value) : json_incref(at->value);
    if (json_object_set_new(at->parent, name, value) == 0 && !keep && strcmp(name, old) != 0)
        json_object_del(at->parent, old);
    free(old);
}

static void mutator_once(json_t *root)
{
    struct mutator_at at, other;
    char *text;
    if (!mutator_pick(&at, root) || !mutator_pick(&other, root))
        return;
    switch (mutator_random(9)) {
    case 0:
    case 1:
        if (json_is_integer(at.value))
            mutator_set(&at, mutator_number(json_integer_value(at.value)));
        else if (json_is_boolean(at.value))
            mutator_set(&at, json_boolean(json_is_false(at.value)));
        return;
    case 2:
        if (at.key)
            json_object_del(at.parent, at.key);
        else
            json_array_remove(at.parent, at.idx);
        return;
    case 3:
        mutator_set(&at, json_deep_copy(other.value));
        return;
    case 4:
    case 5:
        text = at.key ? mutator_text(at.key) : NULL;
        mutator_rename(&at, text, mutator_random(2));
        free(text);
        return;
    case 6:
        if (!at.key)
            json_array_insert_new(at.parent, at.idx, json_deep_copy(at.value));
        else if (other.key && other.parent != at.parent)
            json_object_set_new(at.parent, other.key, json_deep_copy(other.value));
        return;
    case 7:
        text = json_is_string(at.value) ? mutator_text(json_string_value(at.value)) : NULL;
        if (text && json_string_set(at.value, text) < 0)
            json_string_set(at.value, "");
        free(text);
        return;
    default:
        mutator_set(&at, mutator_other_kind());
    }
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned int seed)
{
    json_t *root = json_loadb((const char *)data, size, 0, NULL);
    mutator_state = seed;
    if (!root || mutator_random(64) == 0) {
        json_decref(root);
        return LLVMFuzzerMutate(data, size, max_size);
    }
    for (size_t n = 1 + mutator_random(4); n; n--)
        mutator_once(root);
    char *text = json_dumps(root, JSON_COMPACT);
    json_decref(root);
    size_t len = text ? strlen(text) : 0;
    if (len && len <= max_size)
        memcpy(data, text, size = len);
    free(text);
    return size;
}

#endif
