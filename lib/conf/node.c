/* Nodes of a tree: allocation, lookup, copies. */
#include "lib/conf/conf_internal.h"

#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "lib/base/error.h"
#include "lib/base/mem.h"

/* maps with more entries than this are found by hash */
enum { INDEX_FROM = 16 };

struct conf_arena *conf_arena_new(size_t max_nodes)
{
    struct conf_arena *arena = s2s_xcalloc(1, sizeof *arena);
    arena->max_nodes = max_nodes;
    return arena;
}

static void source_release(struct s2s_conf_source *source)
{
    if (--source->n_users > 0)
        return;
    free(source->name);
    free(source->text);
    free(source);
}

void conf_arena_free(struct conf_arena *arena)
{
    if (!arena)
        return;
    s2s_blocks_release(&arena->blocks);
    for (size_t i = 0; i < arena->n_sources; i++)
        source_release(arena->sources[i]);
    free(arena->sources);
    free(arena->duplicates);
    free(arena);
}

void conf_duplicate_note(struct conf_arena *arena, const char *key, struct s2s_conf_place first,
                         struct s2s_conf_place second)
{
    s2s_grow(&arena->duplicates, arena->n_duplicates, &arena->cap_duplicates,
             sizeof *arena->duplicates);
    arena->duplicates[arena->n_duplicates++] = (struct s2s_conf_duplicate){key, first, second};
}

void conf_duplicates_copy(struct conf_arena *to, const struct conf_arena *from)
{
    for (size_t i = 0; to != from && i < from->n_duplicates; i++) {
        const struct s2s_conf_duplicate *d = &from->duplicates[i];
        conf_source_share(to, d->first.source);
        conf_source_share(to, d->second.source);
        conf_duplicate_note(to, conf_strndup(to, d->key, strlen(d->key)), d->first, d->second);
    }
}

void *conf_alloc(struct conf_arena *arena, size_t len_bytes)
{
    return s2s_blocks_alloc(&arena->blocks, len_bytes);
}

char *conf_strndup(struct conf_arena *arena, const char *text, size_t len)
{
    return s2s_blocks_text(&arena->blocks, text, len);
}

struct s2s_conf_source *conf_source_new(struct conf_arena *arena, enum s2s_conf_origin origin,
                                        const char *name, char *text, size_t len_bytes)
{
    struct s2s_conf_source *source = s2s_xcalloc(1, sizeof *source);
    source->origin = origin;
    source->name = s2s_xstrdup(name);
    source->text = text;
    source->len_bytes = len_bytes;
    conf_source_share(arena, source);
    return source;
}

void conf_source_share(struct conf_arena *arena, const struct s2s_conf_source *source)
{
    /* the last one is nearly always it */
    for (size_t i = arena->n_sources; i-- > 0;)
        if (arena->sources[i] == source)
            return;
    s2s_grow(&arena->sources, arena->n_sources, &arena->cap_sources, sizeof *arena->sources);
    struct s2s_conf_source *kept = (struct s2s_conf_source *)source;
    kept->n_users++;
    arena->sources[arena->n_sources++] = kept;
}

struct s2s_conf *conf_node_new(struct conf_arena *arena, enum s2s_conf_kind kind,
                               struct s2s_conf_place place)
{
    if (arena->n_nodes >= arena->max_nodes)
        return NULL;
    arena->n_nodes++;
    struct s2s_conf *node = conf_alloc(arena, sizeof *node);
    node->kind = kind;
    node->place = place;
    node->arena = arena;
    return node;
}

void conf_list_append(struct s2s_conf *list, struct s2s_conf *item)
{
    if (list->n_items == list->cap_items) {
        size_t cap = list->cap_items ? 2 * list->cap_items : 4;
        struct s2s_conf **items = conf_alloc(list->arena, cap * sizeof *items);
        if (list->n_items)
            memcpy(items, list->items, list->n_items * sizeof *items);
        list->items = items;
        list->cap_items = cap;
    }
    list->items[list->n_items++] = item;
    item->parent = list;
}

static size_t slot_of(const struct s2s_conf *map, const char *key)
{
    size_t mask = map->index_size - 1, slot = XXH3_64bits(key, strlen(key)) & mask;
    while (map->index[slot] && strcmp(map->items[map->index[slot] - 1]->key, key))
        slot = (slot + 1) & mask;
    return slot;
}

static void index_all(struct s2s_conf *map)
{
    size_t size = 64;
    while (size < 4 * map->n_items)
        size *= 2;
    map->index = conf_alloc(map->arena, size * sizeof *map->index);
    map->index_size = size;
    for (size_t i = 0; i < map->n_items; i++)
        map->index[slot_of(map, map->items[i]->key)] = (uint32_t)i + 1;
}

static size_t position_of(const struct s2s_conf *map, const char *key)
{
    if (map->index) {
        uint32_t found = map->index[slot_of(map, key)];
        return found ? found - 1 : map->n_items;
    }
    size_t i = 0;
    while (i < map->n_items && strcmp(map->items[i]->key, key))
        i++;
    return i;
}

struct s2s_conf *conf_map_find(const struct s2s_conf *map, const char *key)
{
    if (!map || map->kind != S2S_CONF_MAP)
        return NULL;
    size_t i = position_of(map, key);
    return i < map->n_items ? map->items[i] : NULL;
}

void conf_map_put(struct s2s_conf *map, struct s2s_conf *item)
{
    size_t i = position_of(map, item->key);
    if (i < map->n_items) {
        map->items[i] = item;
        item->parent = map;
        return;
    }
    conf_list_append(map, item);
    if (map->n_items <= INDEX_FROM)
        return;
    if (!map->index || 2 * map->n_items > map->index_size)
        index_all(map);
    else
        map->index[slot_of(map, item->key)] = (uint32_t)map->n_items;
}

struct s2s_conf *conf_copy(struct conf_arena *arena, const struct s2s_conf *node)
{
    struct s2s_conf *copy = conf_node_new(arena, node->kind, node->place);
    if (!copy)
        return NULL;
    if (node->place.source)
        conf_source_share(arena, node->place.source);
    bool elsewhere = arena != node->arena;
    copy->quoted = node->quoted;
    copy->bare_float = node->bare_float;
    copy->key_line = node->key_line;
    copy->key_column = node->key_column;
    copy->key =
        node->key && elsewhere ? conf_strndup(arena, node->key, strlen(node->key)) : node->key;
    copy->tag =
        node->tag && elsewhere ? conf_strndup(arena, node->tag, strlen(node->tag)) : node->tag;
    copy->text =
        node->text && elsewhere ? conf_strndup(arena, node->text, strlen(node->text)) : node->text;
    memcpy(&copy->as_int, &node->as_int, sizeof copy->as_int);
    for (size_t i = 0; i < node->n_items; i++) {
        struct s2s_conf *item = conf_copy(arena, node->items[i]);
        if (!item)
            return NULL;
        if (node->kind == S2S_CONF_MAP)
            conf_map_put(copy, item);
        else
            conf_list_append(copy, item);
    }
    return copy;
}

struct s2s_conf *s2s_conf_copy(const struct s2s_conf *conf)
{
    struct conf_arena *arena = conf_arena_new(conf->arena->max_nodes);
    struct s2s_conf *copy = conf_copy(arena, conf);
    if (!copy)
        S2S_BUG("a config of more values than its limit");
    copy->key = NULL;
    conf_duplicates_copy(arena, conf->arena);
    return copy;
}

void s2s_conf_free(struct s2s_conf *root)
{
    if (root)
        conf_arena_free(root->arena);
}

const struct s2s_conf_duplicate *s2s_conf_duplicates(const struct s2s_conf *root, size_t *n)
{
    *n = root->arena->n_duplicates;
    return root->arena->duplicates;
}

int s2s_conf_check_duplicates(const struct s2s_conf *root, struct s2s_error *err)
{
    const struct s2s_conf_duplicate *d = root->arena->duplicates;
    if (!root->arena->n_duplicates)
        return 0;
    struct s2s_buf place = S2S_BUF_INIT;
    s2s_conf_add_place(&place, &d->second);
    s2s_error_set(err, S2S_E_FORMAT, "%s: '%s' stands here again, after line %d", place.data,
                  d->key, d->first.line);
    s2s_buf_release(&place);
    return s2s_error_hint(err, S2S_E_FORMAT, "remove one of them");
}

const struct s2s_conf *s2s_conf_key(const struct s2s_conf *conf, const char *key)
{
    return conf_map_find(conf, key);
}

static const struct s2s_conf *list_item(const struct s2s_conf *list, const char *digits, size_t len)
{
    size_t idx = 0;
    for (size_t i = 0; i < len; i++) {
        if (digits[i] < '0' || digits[i] > '9' || idx >= list->n_items)
            return NULL;
        idx = idx * 10 + (size_t)(digits[i] - '0');
    }
    return len && idx < list->n_items ? list->items[idx] : NULL;
}

const struct s2s_conf *s2s_conf_find(const struct s2s_conf *conf, const char *path)
{
    while (conf && *path) {
        size_t len = strcspn(path, ".[]");
        char key[256];
        if (len >= sizeof key)
            return NULL;
        memcpy(key, path, len);
        key[len] = 0;
        if (conf->kind == S2S_CONF_MAP)
            conf = conf_map_find(conf, key);
        else
            conf = conf->kind == S2S_CONF_LIST ? list_item(conf, key, len) : NULL;
        path += len;
        path += *path == ']';
        path += *path == '.' || *path == '[';
    }
    return conf;
}

bool s2s_conf_is_unset(const struct s2s_conf *conf, const char *path)
{
    const struct s2s_conf *node = s2s_conf_find(conf, path);
    return !node || node->kind == S2S_CONF_NULL;
}

void s2s_conf_add_path(struct s2s_buf *buf, const struct s2s_conf *node)
{
    const struct s2s_conf *parent = node->parent;
    if (!parent)
        return;
    s2s_conf_add_path(buf, parent);
    if (parent->kind == S2S_CONF_MAP) {
        s2s_buf_printf(buf, "%s%s", parent->parent ? "." : "", node->key);
        return;
    }
    size_t idx = 0;
    while (idx < parent->n_items && parent->items[idx] != node)
        idx++;
    s2s_buf_printf(buf, "[%zu]", idx);
}
