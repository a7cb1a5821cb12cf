/* Opens a tokenizer's file, and reads what stands in the files beside it: roles, chat template. */
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jansson.h>

#include "lib/io/there.h"
#include "lib/text/text_internal.h"

static int read_file(struct s2s_buf *out, const char *path, struct s2s_error *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return s2s_error_errno(err, S2S_E_OPEN, "%s", path);
    struct stat st;
    if (fstat(fd, &st) == 0 && st.st_size > 0)
        s2s_buf_reserve(out, (size_t)st.st_size);
    int rc = s2s_buf_read(out, fd, SIZE_MAX, err);
    if (rc < 0)
        s2s_error_add(err, rc, "%s", path);
    close(fd);
    return rc;
}

/* "bos_token": "<s>", or {"content": "<s>", ..}, or null. */
static void set_role(struct s2s_tokenizer *tok, const json_t *config, const char *key, int32_t *id)
{
    json_t *value = json_object_get(config, key);
    if (json_is_object(value))
        value = json_object_get(value, "content");
    if (json_is_string(value))
        json_object_set(tok->names, key, value);
    if (!id)
        return;
    if (json_is_null(value))
        *id = -1;
    if (!json_is_string(value))
        return;
    *id = s2s_tokenizer_id(tok, json_string_value(value));
    if (*id < 0)
        s2s_warn("text", "tokenizer_config.json: %s: %s is no token", key,
                 json_string_value(value));
}

/* "chat_template": text, or [{"name": "default", "template": text}, ..] */
static void set_chat_template(struct s2s_tokenizer *tok, const json_t *value)
{
    json_t *item;
    size_t i;
    json_array_foreach(value, i, item)
    {
        const char *name = json_string_value(json_object_get(item, "name"));
        if (name && !strcmp(name, "default"))
            value = json_object_get(item, "template");
    }
    if (json_is_string(value))
        tok->chat_template = s2s_xstrdup(json_string_value(value));
}

static void set_roles(struct s2s_tokenizer *tok, const json_t *config)
{
    static const char *const others[] = {"unk_token", "sep_token", "cls_token", "mask_token"};
    set_role(tok, config, "bos_token", &tok->bos);
    set_role(tok, config, "eos_token", &tok->eos);
    set_role(tok, config, "pad_token", &tok->pad);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        set_role(tok, config, others[i], NULL);
    set_chat_template(tok, json_object_get(config, "chat_template"));
}

/* Reads a file of the tokenizer's folder, where it is; 1 when it is there. */
static int read_beside(struct s2s_buf *text, const char *path, const char *name,
                       struct s2s_error *err)
{
    const char *slash = strrchr(path, '/');
    char *beside = s2s_xasprintf("%.*s%s", slash ? (int)(slash - path + 1) : 0, path, name);
    int rc = s2s_is_there(AT_FDCWD, beside) ? read_file(text, beside, err) : 1;
    free(beside);
    return rc < 0 ? rc : rc == 0;
}

/* What stands in the files beside tokenizer.json: roles, chat template. */
static int read_config(struct s2s_tokenizer *tok, const char *path, struct s2s_error *err)
{
    struct s2s_buf text = S2S_BUF_INIT;
    json_error_t at;
    int rc = read_beside(&text, path, "tokenizer_config.json", err);
    if (rc > 0) {
        json_t *config =
            json_loadb(text.data ? text.data : "", text.len, JSON_REJECT_DUPLICATES, &at);
        if (config)
            set_roles(tok, config);
        else
            rc = s2s_error_set(err, S2S_E_FORMAT, "%.*stokenizer_config.json:%d: %s",
                               strrchr(path, '/') ? (int)(strrchr(path, '/') - path + 1) : 0, path,
                               at.line, at.text);
        json_decref(config);
    }
    s2s_buf_clear(&text);
    if (rc >= 0)
        rc = read_beside(&text, path, "chat_template.jinja", err);
    if (rc > 0) {
        free(tok->chat_template);
        tok->chat_template = s2s_xstrdup(text.data ? text.data : "");
    }
    s2s_buf_release(&text);
    return rc < 0 ? rc : 0;
}

static int open_file(struct s2s_tokenizer **out, const char *path, struct s2s_error *err)
{
    struct s2s_buf json = S2S_BUF_INIT;
    struct s2s_tokenizer *tok = NULL;
    int rc = read_file(&json, path, err);
    if (rc == 0) {
        rc = s2s_tokenizer_parse(&tok, json.data ? json.data : "", json.len, err);
        if (rc < 0)
            s2s_error_add(err, rc, "%s", path);
    }
    s2s_buf_release(&json);
    if (rc == 0)
        rc = read_config(tok, path, err);
    if (rc < 0) {
        s2s_tokenizer_free(tok);
        return rc;
    }
    *out = tok;
    return 0;
}

int s2s_tokenizer_open(struct s2s_tokenizer **out, const char *path, struct s2s_error *err)
{
    struct stat st;
    if (stat(path, &st) < 0 || !S_ISDIR(st.st_mode))
        return open_file(out, path, err);
    char *inside = s2s_xasprintf("%s/tokenizer.json", path);
    if (!s2s_is_there(AT_FDCWD, inside)) {
        char *model = s2s_xasprintf("%s/tokenizer.model", path);
        if (s2s_is_there(AT_FDCWD, model)) {
            char *swap = inside;
            inside = model;
            model = swap;
        }
        free(model);
    }
    int rc = open_file(out, inside, err);
    free(inside);
    return rc;
}
