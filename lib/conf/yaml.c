/*
 * YAML: libyaml's events, composed into a tree. The composer is ours because the tree must know
 * places, because aliases must not be able to grow without limit, and because merge keys belong to
 * PyYAML's constructor, not to libyaml.
 */
#include "lib/conf/conf_internal.h"

#include <stdlib.h>
#include <string.h>

#include <yaml.h>

#include "lib/base/error.h"
#include "lib/base/mem.h"

/* Copies made for aliases and merge keys, in values, before a file counts as an alias bomb. */
enum { MAX_ALIASED = 50000, ALIASED_TEXT = 256 };

/* An open map or list. Own entries of a map wait beside those of its merge keys until it ends. */
struct level {
    struct s2s_conf *node;
    struct s2s_conf *key;           /* a key that waits for its value */
    bool key_is_merge;              /* it is << */
    const struct s2s_conf **merges; /* maps to be merged, later ones win */
    size_t n_merges, cap_merges;
};

struct composer {
    yaml_parser_t parser;
    struct conf_arena *arena;
    const struct s2s_conf_source *source;
    struct s2s_conf anchors; /* a map of lists of one node, which has a key of its own */
    struct level levels[CONF_MAX_DEPTH];
    size_t depth;
    size_t n_aliased;
    struct s2s_conf *root;
};

static struct s2s_conf_place place_of(const struct composer *c, const yaml_mark_t *mark)
{
    return (struct s2s_conf_place){c->source, (int)mark->line + 1, (int)mark->column + 1};
}

#define FAIL(c, mark, err, ...) \
    conf_error_at(err, S2S_E_FORMAT, (c)->source, (int)(mark)->line + 1, (int)(mark)->column + 1, \
                  __VA_ARGS__)

static int too_many(const struct composer *c, const yaml_mark_t *mark, struct s2s_error *err)
{
    return FAIL(c, mark, err, "more than %zu values", c->arena->max_nodes);
}

static void note_duplicate(struct composer *c, const struct s2s_conf *first,
                           const struct s2s_conf *second)
{
    conf_duplicate_note(
        c->arena, second->key,
        (struct s2s_conf_place){first->place.source, first->key_line, first->key_column},
        (struct s2s_conf_place){second->place.source, second->key_line, second->key_column});
}

/* Values under a node, itself included: the cost of copying it. Long text counts as several. Stops
 * counting past the limit. */
static size_t n_values(const struct s2s_conf *node)
{
    size_t n = 1 + (node->text ? strlen(node->text) / ALIASED_TEXT : 0);
    for (size_t i = 0; i < node->n_items && n <= MAX_ALIASED; i++)
        n += n_values(node->items[i]);
    return n;
}

static int copy_alias(struct s2s_conf **out, struct composer *c, const struct s2s_conf *node,
                      const yaml_mark_t *mark, struct s2s_error *err)
{
    c->n_aliased += n_values(node);
    if (c->n_aliased > MAX_ALIASED)
        return FAIL(c, mark, err, "aliases expand to more than %d values", MAX_ALIASED);
    *out = conf_copy(c->arena, node);
    return *out ? 0 : too_many(c, mark, err);
}

static int begin_level(struct composer *c, struct s2s_conf *node, const yaml_mark_t *mark,
                       struct s2s_error *err)
{
    if (c->depth == CONF_MAX_DEPTH)
        return FAIL(c, mark, err, "nested more than %d deep", CONF_MAX_DEPTH);
    struct level *level = &c->levels[c->depth++];
    free(level->merges);
    *level = (struct level){.node = node};
    return 0;
}

/* `<<: *a` or `<<: [*a, *b]`; the values are whole by now. */
static int note_merge(struct composer *c, struct level *level, const struct s2s_conf *value,
                      const yaml_mark_t *mark, struct s2s_error *err)
{
    const struct s2s_conf *const *maps = (const struct s2s_conf *const *)value->items;
    size_t n_maps = value->n_items;
    if (value->kind == S2S_CONF_MAP) {
        maps = &value;
        n_maps = 1;
    } else if (value->kind != S2S_CONF_LIST) {
        return FAIL(c, mark, err, "expected a map or a list of maps to merge, found %s",
                    s2s_conf_kind_name(value->kind));
    }
    for (size_t i = n_maps; i-- > 0;) {
        if (maps[i]->kind != S2S_CONF_MAP)
            return FAIL(c, mark, err, "expected a map to merge, found %s",
                        s2s_conf_kind_name(maps[i]->kind));
        s2s_grow(&level->merges, level->n_merges, &level->cap_merges, sizeof *level->merges);
        level->merges[level->n_merges++] = maps[i];
    }
    return 0;
}

/* A whole node goes where it belongs: root, list, or the value of the waiting key. */
static int place_node(struct composer *c, struct s2s_conf *node, const yaml_mark_t *mark,
                      struct s2s_error *err)
{
    if (c->depth == 0) {
        c->root = node;
        return 0;
    }
    struct level *level = &c->levels[c->depth - 1];
    if (level->node->kind == S2S_CONF_LIST) {
        conf_list_append(level->node, node);
        return 0;
    }
    if (!level->key) {
        if (!node->text)
            return FAIL(c, mark, err, "a key must be a scalar, found %s",
                        s2s_conf_kind_name(node->kind));
        level->key = node;
        level->key_is_merge = !node->quoted && !strcmp(node->text, "<<");
        return 0;
    }
    const struct s2s_conf *key = level->key;
    level->key = NULL;
    if (level->key_is_merge)
        return note_merge(c, level, node, mark, err);
    node->key = key->text;
    node->key_line = key->place.line;
    node->key_column = key->place.column;
    const struct s2s_conf *before = conf_map_find(level->node, node->key);
    if (before)
        note_duplicate(c, before, node);
    conf_map_put(level->node, node);
    return 0;
}

/*
 * PyYAML puts merged entries before the map's own. In a list of maps the earlier wins, of two merge
 * keys the later one. So: a new entry list, merged maps first (note_merge turned lists around), own
 * entries last, each overriding in place.
 */
static int apply_merges(struct composer *c, struct level *level, const yaml_mark_t *mark,
                        struct s2s_error *err)
{
    struct s2s_conf *map = level->node, **own = map->items;
    size_t n_own = map->n_items;
    map->items = NULL;
    map->n_items = map->cap_items = map->index_size = 0;
    map->index = NULL;
    for (size_t i = 0; i < level->n_merges; i++)
        for (size_t j = 0; j < level->merges[i]->n_items; j++) {
            struct s2s_conf *copy = NULL;
            int rc = copy_alias(&copy, c, level->merges[i]->items[j], mark, err);
            if (rc < 0)
                return rc;
            conf_map_put(map, copy);
        }
    for (size_t i = 0; i < n_own; i++)
        conf_map_put(map, own[i]);
    return 0;
}

static int end_level(struct composer *c, const yaml_mark_t *mark, struct s2s_error *err)
{
    struct level *level = &c->levels[c->depth - 1];
    struct s2s_conf *node = level->node;
    int rc = level->n_merges ? apply_merges(c, level, mark, err) : 0;
    if (rc < 0)
        return rc;
    c->depth--;
    return place_node(c, node, mark, err);
}

static void note_anchor(struct composer *c, const yaml_char_t *name, struct s2s_conf *node)
{
    if (!name)
        return;
    struct s2s_conf *entry = conf_alloc(c->arena, sizeof *entry);
    entry->key = conf_strndup(c->arena, (const char *)name, strlen((const char *)name));
    entry->items = conf_alloc(c->arena, sizeof *entry->items);
    entry->items[0] = node;
    conf_map_put(&c->anchors, entry);
}

static bool is_open(const struct composer *c, const struct s2s_conf *node)
{
    for (size_t i = 0; i < c->depth; i++)
        if (c->levels[i].node == node)
            return true;
    return false;
}

static int on_alias(struct composer *c, const yaml_event_t *event, struct s2s_error *err)
{
    const char *name = (const char *)event->data.alias.anchor;
    struct s2s_conf *copy = NULL;
    const struct s2s_conf *entry = conf_map_find(&c->anchors, name);
    if (!entry)
        return FAIL(c, &event->start_mark, err, "unknown anchor '%s'", name);
    if (is_open(c, entry->items[0]))
        return FAIL(c, &event->start_mark, err, "'*%s' stands inside what it names", name);
    int rc = copy_alias(&copy, c, entry->items[0], &event->start_mark, err);
    if (rc < 0)
        return rc;
    copy->key = NULL; /* the anchored value's key is not the alias's */
    return place_node(c, copy, &event->start_mark, err);
}

/* Explicit tags of YAML's own types; the tag stays in the node if it is another one. */
static int apply_tag(struct composer *c, struct s2s_conf *node, const yaml_event_t *event,
                     struct s2s_error *err)
{
    static const char core[] = "tag:yaml.org,2002:";
    const char *tag = (const char *)event->data.scalar.tag;
    if (strncmp(tag, core, sizeof core - 1)) {
        node->tag = conf_strndup(c->arena, tag, strlen(tag));
        return 0;
    }
    tag += sizeof core - 1;
    node->quoted = !strcmp(tag, "str");
    if (node->quoted)
        return 0;
    conf_resolve_scalar(node);
    bool fits = !strcmp(tag, "int")     ? node->kind == S2S_CONF_INT
                : !strcmp(tag, "float") ? node->kind == S2S_CONF_FLOAT || node->kind == S2S_CONF_INT
                : !strcmp(tag, "bool")  ? node->kind == S2S_CONF_BOOL
                : !strcmp(tag, "null")  ? node->kind == S2S_CONF_NULL
                                        : true;
    if (!fits)
        return FAIL(c, &event->start_mark, err, "'%s' is no !!%s", node->text, tag);
    if (!strcmp(tag, "float") && node->kind == S2S_CONF_INT) {
        double value = (double)node->as_int;
        node->kind = S2S_CONF_FLOAT;
        node->as_float = value;
    }
    return 0;
}

static int on_scalar(struct composer *c, const yaml_event_t *event, struct s2s_error *err)
{
    const char *text = (const char *)event->data.scalar.value;
    size_t len = event->data.scalar.length;
    struct s2s_conf *node =
        conf_node_new(c->arena, S2S_CONF_STRING, place_of(c, &event->start_mark));
    if (!node)
        return too_many(c, &event->start_mark, err);
    if (memchr(text, 0, len))
        return conf_error_at(err, S2S_E_UNSUPPORTED, c->source, (int)event->start_mark.line + 1,
                             (int)event->start_mark.column + 1,
                             "a string holds the character U+0000");
    node->text = conf_strndup(c->arena, text, len);
    node->quoted = event->data.scalar.style != YAML_PLAIN_SCALAR_STYLE;
    int rc = 0;
    if (event->data.scalar.tag && strcmp((const char *)event->data.scalar.tag, "!"))
        rc = apply_tag(c, node, event, err);
    else if (!node->quoted)
        conf_resolve_scalar(node);
    if (rc < 0)
        return rc;
    note_anchor(c, event->data.scalar.anchor, node);
    return place_node(c, node, &event->start_mark, err);
}

static int on_start(struct composer *c, const yaml_event_t *event, enum s2s_conf_kind kind,
                    const yaml_char_t *anchor, struct s2s_error *err)
{
    struct s2s_conf *node = conf_node_new(c->arena, kind, place_of(c, &event->start_mark));
    if (!node)
        return too_many(c, &event->start_mark, err);
    note_anchor(c, anchor, node);
    return begin_level(c, node, &event->start_mark, err);
}

static int on_event(struct composer *c, const yaml_event_t *event, struct s2s_error *err)
{
    switch (event->type) {
    case YAML_DOCUMENT_START_EVENT:
        if (c->root)
            return conf_error_at(err, S2S_E_UNSUPPORTED, c->source, (int)event->start_mark.line + 1,
                                 (int)event->start_mark.column + 1,
                                 "expected one document, found another");
        return 0;
    case YAML_ALIAS_EVENT:
        return on_alias(c, event, err);
    case YAML_SCALAR_EVENT:
        return on_scalar(c, event, err);
    case YAML_SEQUENCE_START_EVENT:
        return on_start(c, event, S2S_CONF_LIST, event->data.sequence_start.anchor, err);
    case YAML_MAPPING_START_EVENT:
        return on_start(c, event, S2S_CONF_MAP, event->data.mapping_start.anchor, err);
    case YAML_SEQUENCE_END_EVENT:
    case YAML_MAPPING_END_EVENT:
        return end_level(c, &event->start_mark, err);
    default:
        return 0;
    }
}

/* The place of a byte offset: libyaml's reader gives no line. */
static yaml_mark_t mark_of_offset(const struct s2s_conf_source *source, size_t offset)
{
    yaml_mark_t mark = {offset, 0, 0};
    for (size_t i = 0; i < offset && i < source->len_bytes; i++) {
        mark.column++;
        if (source->text[i] == '\n') {
            mark.line++;
            mark.column = 0;
        }
    }
    return mark;
}

static int syntax_error(struct composer *c, struct s2s_error *err)
{
    const yaml_parser_t *p = &c->parser;
    const char *problem = p->problem ? p->problem : "not YAML";
    if (p->error == YAML_MEMORY_ERROR)
        return s2s_error_set(err, S2S_E_NOMEM, "%s: out of memory", c->source->name);
    if (p->error == YAML_READER_ERROR) {
        yaml_mark_t mark = mark_of_offset(c->source, p->problem_offset);
        return FAIL(c, &mark, err, "not a text file: %s (byte %zu)", problem, p->problem_offset);
    }
    if (p->context)
        return FAIL(c, &p->problem_mark, err, "%s %s (line %zu)", problem, p->context,
                    p->context_mark.line + 1);
    return FAIL(c, &p->problem_mark, err, "%s", problem);
}

int conf_parse_yaml(struct s2s_conf **out, struct conf_arena *arena,
                    const struct s2s_conf_source *source, struct s2s_error *err)
{
    struct composer *c = s2s_xcalloc(1, sizeof *c);
    yaml_event_t event;
    bool done = false;
    int rc = 0;
    *out = NULL;
    c->arena = arena;
    c->source = source;
    c->anchors = (struct s2s_conf){.kind = S2S_CONF_MAP, .arena = arena};
    if (!yaml_parser_initialize(&c->parser)) {
        free(c);
        return s2s_error_set(err, S2S_E_NOMEM, "libyaml has no memory");
    }
    yaml_parser_set_input_string(&c->parser, (const yaml_char_t *)source->text, source->len_bytes);
    while (!done && rc >= 0) {
        if (!yaml_parser_parse(&c->parser, &event)) {
            rc = syntax_error(c, err);
            break;
        }
        rc = on_event(c, &event, err);
        done = event.type == YAML_STREAM_END_EVENT;
        yaml_event_delete(&event);
    }
    *out = rc < 0 ? NULL : c->root;
    yaml_parser_delete(&c->parser);
    for (size_t i = 0; i < CONF_MAX_DEPTH; i++)
        free(c->levels[i].merges);
    free(c);
    return rc;
}
