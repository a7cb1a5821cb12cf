/* Reads a config from text or a file, as JSON or YAML. */
#include "lib/conf/conf_internal.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/error.h"
#include "lib/base/mem.h"

enum { MAX_YAML_BYTES = 8 << 20, MAX_JSON_BYTES = 64 << 20 };
enum { MAX_YAML_NODES = 200000, MAX_JSON_NODES = 2000000 };

static bool names_json(const char *name)
{
    size_t len = strlen(name);
    return len > 5 && !strcmp(name + len - 5, ".json");
}

static int parse_taken(struct s2s_conf **out, char *text, size_t len_bytes, const char *name,
                       bool json, struct s2s_error *err)
{
    struct conf_arena *arena = conf_arena_new(json ? MAX_JSON_NODES : MAX_YAML_NODES);
    const struct s2s_conf_source *source =
        conf_source_new(arena, S2S_CONF_FROM_FILE, name, text, len_bytes);
    int rc =
        json ? conf_parse_json(out, arena, source, err) : conf_parse_yaml(out, arena, source, err);
    if (rc >= 0 && (!*out || (!json && (*out)->kind == S2S_CONF_NULL)))
        *out = conf_node_new(arena, S2S_CONF_MAP, (struct s2s_conf_place){source, 1, 1});
    if (rc < 0)
        conf_arena_free(arena);
    return rc;
}

int s2s_conf_parse(struct s2s_conf **out, const char *text, size_t len_bytes, const char *name,
                   enum s2s_conf_format format, struct s2s_error *err)
{
    bool json = format == S2S_CONF_JSON || (format == S2S_CONF_AUTO && names_json(name));
    *out = NULL;
    if (len_bytes > (size_t)(json ? MAX_JSON_BYTES : MAX_YAML_BYTES))
        return s2s_error_set(err, S2S_E_FORMAT, "%s: a config of more than %d MiB", name,
                             (json ? MAX_JSON_BYTES : MAX_YAML_BYTES) >> 20);
    char *copy = s2s_xmalloc(len_bytes + 1);
    if (len_bytes)
        memcpy(copy, text, len_bytes);
    copy[len_bytes] = 0;
    return parse_taken(out, copy, len_bytes, name, json, err);
}

int s2s_conf_read(struct s2s_conf **out, const char *path, enum s2s_conf_format format,
                  struct s2s_error *err)
{
    bool json = format == S2S_CONF_JSON || (format == S2S_CONF_AUTO && names_json(path));
    bool standard = !strcmp(path, "-");
    struct stat st;
    struct s2s_buf text = S2S_BUF_INIT;
    *out = NULL;
    int fd = standard ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return s2s_error_errno(err, S2S_E_OPEN, "%s: cannot open", path);
    int rc = 0;
    if (fstat(fd, &st) == 0 && S_ISDIR(st.st_mode))
        rc = s2s_error_set(err, S2S_E_OPEN, "a folder, expected a file");
    else
        rc = s2s_buf_read(&text, fd, json ? MAX_JSON_BYTES : MAX_YAML_BYTES, err);
    if (!standard)
        close(fd);
    if (rc == 0)
        return parse_taken(out, text.data, text.len, standard ? "stdin" : path, json, err);
    s2s_buf_release(&text);
    return s2s_error_add(err, rc, "%s", path);
}

struct s2s_conf *s2s_conf_new(enum s2s_conf_origin origin, const char *name)
{
    struct conf_arena *arena = conf_arena_new(MAX_YAML_NODES);
    const struct s2s_conf_source *source = conf_source_new(arena, origin, name, NULL, 0);
    return conf_node_new(arena, S2S_CONF_MAP, (struct s2s_conf_place){source, 0, 0});
}

struct s2s_conf *s2s_conf_new_text(enum s2s_conf_origin origin, const char *name, const char *text,
                                   size_t len_bytes)
{
    struct conf_arena *arena = conf_arena_new(MAX_YAML_NODES);
    char *copy = s2s_xmalloc(len_bytes + 1); /* strndup would stop at a NUL */
    memcpy(copy, text, len_bytes);
    copy[len_bytes] = 0;
    const struct s2s_conf_source *source = conf_source_new(arena, origin, name, copy, len_bytes);
    return conf_node_new(arena, S2S_CONF_MAP, (struct s2s_conf_place){source, 1, 1});
}
