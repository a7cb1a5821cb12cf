/* Which files the frozen parameters of a run of adapters are in. */
#include "lib/train/base.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "lib/base/affix.h"
#include "lib/base/error.h"
#include "lib/base/mem.h"
#include "lib/io/digest.h"
#include "lib/train/recipe.h"

static int add_file(json_t *files, const char *name, const char *path, struct s2s_error *err)
{
    char hex[33];
    int rc = s2s_digest_file(hex, path, err);
    if (rc == 0)
        json_object_set_new(files, name, json_string(hex));
    return rc;
}

static int is_visible(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

/* Configs and weights of a folder, and of the folders in it, which parts of a composite are. */
static int add_folder(json_t *files, const char *dir, const char *prefix, struct s2s_error *err)
{
    struct dirent **entries;
    struct stat st;
    const int n = scandir(dir, &entries, is_visible, alphasort);
    int rc = n < 0 ? s2s_error_errno(err, S2S_E_OPEN, "%s", dir) : 0;
    for (int i = 0; i < n; i++) {
        char *path = s2s_xasprintf("%s/%s", dir, entries[i]->d_name);
        char *name = s2s_xasprintf("%s%s", prefix, entries[i]->d_name);
        char *inner = s2s_xasprintf("%s/", name);
        const bool wanted =
            s2s_ends_with(name, ".safetensors") || s2s_has_tail(name, '/', "config.json");
        if (rc == 0 && !*prefix && stat(path, &st) == 0 && S_ISDIR(st.st_mode))
            rc = add_folder(files, path, inner, err);
        else if (rc == 0 && wanted)
            rc = add_file(files, name, path, err);
        free(inner);
        free(name);
        free(path);
        free(entries[i]);
    }
    if (n >= 0)
        free(entries);
    return rc;
}

static int add_part(json_t *base, const char *path, struct s2s_error *err)
{
    struct stat st;
    json_t *files = json_object();
    const char *slash = path ? strrchr(path, '/') : NULL;
    int rc = 0;
    if (path && stat(path, &st) == 0 && S_ISDIR(st.st_mode))
        rc = add_folder(files, path, "", err);
    else if (path)
        rc = add_file(files, slash ? slash + 1 : path, path, err);
    if (path)
        json_array_append_new(base, json_pack("{s:s, s:O}", "path", path, "files", files));
    json_decref(files);
    return rc;
}

int s2s_base_describe(json_t **base, const struct s2s_recipe *r, struct s2s_error *err)
{
    const char *const parts[] = {r->model_path, r->encoder.path, r->projection.path, r->llm.path};
    int rc = 0;
    *base = json_array();
    for (size_t i = 0; rc == 0 && i < sizeof parts / sizeof *parts; i++)
        rc = add_part(*base, parts[i], err);
    if (rc < 0) {
        json_decref(*base);
        *base = NULL;
    }
    return rc;
}

static int differs(const json_t *part, const char *name, struct s2s_error *err)
{
    int rc = s2s_error_set(err, S2S_E_RULE,
                           "%s/%s is not the file that the adapters of the checkpoint were trained "
                           "over",
                           json_string_value(json_object_get(part, "path")), name);
    return s2s_error_hint(err, rc, "give the model that the run began with, or another run=DIR");
}

int s2s_base_check(const json_t *stored, const json_t *now, struct s2s_error *err)
{
    size_t i;
    json_t *part;
    if (!stored)
        return 0;
    if (json_array_size(stored) != json_array_size(now))
        return s2s_error_set(err, S2S_E_RULE,
                             "the checkpoint was trained over %zu folders of weights, the recipe "
                             "names %zu",
                             json_array_size(stored), json_array_size(now));
    json_array_foreach(now, i, part)
    {
        const json_t *had = json_object_get(json_array_get(stored, i), "files");
        json_t *files = json_object_get(part, "files"), *hex;
        const char *name;
        json_object_foreach(files, name, hex)
        {
            if (!json_equal(hex, json_object_get(had, name)))
                return differs(part, name, err);
        }
        json_object_foreach((json_t *)had, name, hex)
        {
            if (!json_object_get(files, name))
                return differs(part, name, err);
        }
    }
    return 0;
}
