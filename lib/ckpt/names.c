/* Compares, checks and takes apart names of files and tensors. */
#include "lib/ckpt/names.h"

#include "lib/base/base.h"

int ckpt_by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

void ckpt_free_list(char **names, size_t n)
{
    for (size_t i = 0; i < n; i++)
        free(names[i]);
    free(names);
}

bool ckpt_has_word(const char *words, const char *word)
{
    size_t len;
    for (const char *at = words; *at; at += len + (at[len] == ' ')) {
        len = strcspn(at, " ");
        if (len == strlen(word) && memcmp(at, word, len) == 0)
            return true;
    }
    return false;
}

bool ckpt_name_is_plain(const char *name, size_t len)
{
    if (len == 0 || len > 255 || (len == 1 && name[0] == '.') ||
        (len == 2 && name[0] == '.' && name[1] == '.'))
        return false;
    for (size_t i = 0; i < len; i++)
        if (name[i] == '/' || name[i] == '\\' || (unsigned char)name[i] < 0x20 || name[i] == 0x7F)
            return false;
    return true;
}

bool ckpt_name_layer(const char *name, size_t *prefix_len, int64_t *layer, const char **rest)
{
    const char *at = strstr(name, "layers.");
    while (at && at > name && at[-1] != '.')
        at = strstr(at + 1, "layers.");
    if (!at)
        return false;
    at += strlen("layers.");
    const size_t digits = strspn(at, "0123456789");
    const bool number = digits && at[digits] == '.';
    *prefix_len = (size_t)(at - name);
    *layer = number ? strtol(at, NULL, 10) : -1;
    *rest = number ? at + digits + 1 : at;
    return *layer < CKPT_MAX_LAYERS;
}
