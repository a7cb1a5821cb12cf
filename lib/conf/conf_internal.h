/* Shared by the files of lib/conf. */
#ifndef S2S_CONF_INTERNAL_H
#define S2S_CONF_INTERNAL_H

#include "lib/base/blocks.h"
#include "lib/conf/conf.h"

enum { CONF_MAX_DEPTH = 100 };

/* Memory of one tree: blocks that are freed together, the sources that its places refer to, and
 * duplicate keys. */
struct conf_arena {
    struct s2s_blocks blocks;
    struct s2s_conf_source **sources;
    size_t n_sources, cap_sources;
    struct s2s_conf_duplicate *duplicates;
    size_t n_duplicates, cap_duplicates;
    size_t n_nodes, max_nodes;
};

struct conf_arena *conf_arena_new(size_t max_nodes);
void conf_arena_free(struct conf_arena *arena);
void *conf_alloc(struct conf_arena *arena, size_t len_bytes); /* zeroed */
char *conf_strndup(struct conf_arena *arena, const char *text, size_t len);

/* Records a duplicate key (borrowed by the arena). */
void conf_duplicate_note(struct conf_arena *arena, const char *key, struct s2s_conf_place first,
                         struct s2s_conf_place second);
/* Copies the records of another tree. */
void conf_duplicates_copy(struct conf_arena *to, const struct conf_arena *from);

/* Takes text (may be NULL); the source lives as long as an arena that knows it. */
struct s2s_conf_source *conf_source_new(struct conf_arena *arena, enum s2s_conf_origin origin,
                                        const char *name, char *text, size_t len_bytes);
/* Makes the arena share a source of another one. */
void conf_source_share(struct conf_arena *arena, const struct s2s_conf_source *source);

/* NULL: the tree is at its limit of values. */
struct s2s_conf *conf_node_new(struct conf_arena *arena, enum s2s_conf_kind kind,
                               struct s2s_conf_place place);
void conf_list_append(struct s2s_conf *list, struct s2s_conf *item);
/* The entry of a map (as s2s_conf_key), and putting one in: an entry of the same key is replaced
 * in its place. The item's key is set by the caller. */
struct s2s_conf *conf_map_find(const struct s2s_conf *map, const char *key);
void conf_map_put(struct s2s_conf *map, struct s2s_conf *item);
/* A deep copy in another arena (or the same); NULL at the limit of values. */
struct s2s_conf *conf_copy(struct conf_arena *arena, const struct s2s_conf *node);

/* Types a plain scalar by its text (node->text): sets kind, value, bare_float. */
void conf_resolve_scalar(struct s2s_conf *node);
/* Would a plain scalar of this text be a string? */
bool conf_plain_is_string(const char *text);

/* Both parse source->text to a tree in arena (*out NULL: an empty document). */
int conf_parse_yaml(struct s2s_conf **out, struct conf_arena *arena,
                    const struct s2s_conf_source *source, struct s2s_error *err);
int conf_parse_json(struct s2s_conf **out, struct conf_arena *arena,
                    const struct s2s_conf_source *source, struct s2s_error *err);
/* "name:line:column: " and the message. */
int conf_error_at(struct s2s_error *err, int code, const struct s2s_conf_source *source, int line,
                  int column, const char *fmt, ...) __attribute__((format(printf, 6, 7)));

#endif
