/* Reads tars of WebDataset and Energon. */
#include "lib/data/webdataset.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/affix.h"
#include "lib/base/base.h"
#include "lib/base/pyrandom.h"
#include "lib/conf/conf.h"
#include "lib/data/line_json.h"
#include "lib/data/members.h"
#include "lib/data/order.h"

/* A sample's members: their places, and names behind its key (NULL: it has none). */
struct group {
    char *key;
    char *sound;
    int64_t sound_at, json_at, text_at; /* -1: none */
    bool has_two;                       /* sounds */
};

struct shard {
    char *path;
    struct s2s_members *tar;
    struct group *groups;
    size_t n_groups, cap_groups;
    bool is_walked;
};

struct webdataset {
    struct s2s_source base;
    struct shard *shards;
    size_t n_shards, cap_shards;
    char *text_field, *lang_field;
    /* Of Energon's field_map: the members that are sound and text; NULL: those of any kind of
     * sound, and .txt. text_in_json: there alone */
    char *sound_suffix, *text_suffix;
    bool text_in_json;
    bool shuffle;
    uint64_t seed, epoch;
    json_t *tags;
};

struct webdataset_walk {
    struct s2s_walk base;
    uint32_t *order;
    size_t idx, n_given;
    bool in_shard;
    struct s2s_error *fault;
};

/* ---- walking ---- */

/* The length of a member's key: its path up to the first dot of its name. */
static size_t key_len(const char *name)
{
    const char *slash = strrchr(name, '/');
    return (size_t)((slash ? slash + 1 : name) - name) + strcspn(slash ? slash + 1 : name, ".");
}

/* Members that say something beside sound and words: classes, numbers, indices. */
static bool is_aside(const char *suffix)
{
    static const char *const kinds[] = {".cls", ".idx", ".index", ".npy",
                                        ".npz", ".pth", ".pyd",   ".id"};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (!strcmp(suffix, kinds[i]))
            return true;
    return false;
}

static const char *text_suffix_of(const struct webdataset *s)
{
    return s->text_suffix ? s->text_suffix : ".txt";
}

static void add_member(struct shard *shard, const struct s2s_member *member,
                       const struct webdataset *s)
{
    const size_t len = key_len(member->name);
    const char *suffix = member->name + len;
    struct group *group = shard->n_groups ? &shard->groups[shard->n_groups - 1] : NULL;
    if (!*suffix)
        return;
    if (!group || strlen(group->key) != len || memcmp(group->key, member->name, len) != 0) {
        s2s_grow(&shard->groups, shard->n_groups, &shard->cap_groups, sizeof *shard->groups);
        group = &shard->groups[shard->n_groups++];
        *group = (struct group){
            .key = s2s_xstrndup(member->name, len), .sound_at = -1, .json_at = -1, .text_at = -1};
    }
    const bool is_sound = s->sound_suffix ? !strcmp(suffix, s->sound_suffix) : !is_aside(suffix);
    if (!strcmp(suffix, ".json")) {
        group->json_at = member->at;
    } else if (!strcmp(suffix, text_suffix_of(s))) {
        group->text_at = member->at;
    } else if (is_sound) {
        group->has_two |= group->sound != NULL;
        free(group->sound);
        group->sound = s2s_xstrdup(suffix);
        group->sound_at = member->at;
    }
}

static int read_members(struct shard *shard, const struct webdataset *s, struct s2s_error *err)
{
    struct s2s_members *tar;
    struct s2s_member member;
    int rc = shard->tar ? 0 : s2s_members_open(&shard->tar, shard->path, err);
    if (rc < 0)
        return rc == S2S_E_OPEN ? err->code = S2S_E_NOTFOUND : rc;
    rc = s2s_members_share(&tar, shard->tar, err);
    if (rc < 0)
        return rc;
    while ((rc = s2s_members_next(tar, &member, err)) > 0)
        add_member(shard, &member, s);
    s2s_members_close(tar);
    return rc;
}

static struct s2s_walk *begin(struct s2s_source *base)
{
    struct webdataset_walk *w = s2s_xcalloc(1, sizeof *w);
    w->base.source = base;
    return &w->base;
}

static int next(struct s2s_walk *base, struct s2s_place *place, struct s2s_error *err)
{
    struct webdataset_walk *w = (struct webdataset_walk *)base;
    struct webdataset *s = (struct webdataset *)base->source;
    struct s2s_pyrandom random;
    if (!w->order)
        w->order = data_shard_order(&random, s->n_shards, s->seed + s->epoch, s->shuffle);
    for (; w->idx < s->n_shards; w->idx++, w->n_given = 0, s->epoch += w->idx == s->n_shards) {
        struct shard *shard = &s->shards[w->order[w->idx]];
        struct s2s_error fault = S2S_ERROR_INIT;
        if (!shard->is_walked && read_members(shard, s, &fault) < 0) {
            w->fault = s2s_xmalloc(sizeof *w->fault);
            *w->fault = fault;
        }
        shard->is_walked = true;
        if (w->n_given < shard->n_groups) {
            *place = (struct s2s_place){
                .part = w->order[w->idx], .at = w->n_given, .line = (int64_t)w->n_given + 1};
            w->n_given++;
            return 1;
        }
        if (!w->fault)
            continue;
        *err = *w->fault;
        free(w->fault);
        w->fault = NULL;
        w->idx++;
        w->n_given = 0;
        return err->code;
    }
    return 0;
}

static void end(struct s2s_walk *base)
{
    struct webdataset_walk *w = (struct webdataset_walk *)base;
    free(w->order);
    free(w->fault);
    free(w);
}

/* ---- loading ---- */

static int read_member(char **text, size_t *len, const struct shard *shard,
                       const struct group *group, const char *suffix, int64_t at,
                       struct s2s_error *err)
{
    char *name = s2s_xasprintf("%s%s", group->key, suffix);
    void *bytes = NULL;
    int rc = s2s_members_read(shard->tar, at, name, &bytes, len, err);
    free(name);
    if (rc < 0)
        return rc;
    *text = s2s_xrealloc(bytes, *len + 1, 1);
    (*text)[*len] = 0;
    return 0;
}

static int take_json(struct s2s_sample *sample, const struct webdataset *s,
                     const struct shard *shard, const struct group *group, struct s2s_error *err)
{
    char *text = NULL;
    size_t len = 0;
    json_error_t at;
    int rc = read_member(&text, &len, shard, group, ".json", group->json_at, err);
    if (rc < 0)
        return rc;
    json_t *object = json_loadb(text, len, JSON_REJECT_DUPLICATES, &at);
    free(text);
    if (!json_is_object(object)) {
        json_decref(object);
        return s2s_error_set(err, S2S_E_FORMAT, "%s.json is no JSON object", group->key);
    }
    const char *text_key = s->text_field ? s->text_field : "text";
    const char *lang_key = s->lang_field ? s->lang_field : "lang";
    rc = data_get_string(&sample->text, object, text_key, err);
    if (rc >= 0)
        rc = data_get_string(&sample->lang, object, lang_key, err);
    if (rc >= 0)
        rc = data_get_string(&sample->speaker, object, "speaker", err);
    json_object_del(object, text_key);
    json_object_del(object, lang_key);
    json_object_del(object, "speaker");
    sample->custom = json_incref(object);
    json_decref(object);
    return rc < 0 ? s2s_error_add(err, rc, "%s.json", group->key) : 0;
}

static int take_text(struct s2s_sample *sample, const struct webdataset *s,
                     const struct shard *shard, const struct group *group, struct s2s_error *err)
{
    size_t len = 0;
    char *text = NULL;
    int rc = read_member(&text, &len, shard, group, text_suffix_of(s), group->text_at, err);
    if (rc < 0)
        return rc;
    while (len > 0 && strchr("\r\n", text[len - 1]))
        text[--len] = 0;
    if (memchr(text, 0, len)) {
        free(text);
        return s2s_error_set(err, S2S_E_FORMAT, "%s%s has a byte 0", group->key, text_suffix_of(s));
    }
    free(sample->text);
    sample->text = text;
    return 0;
}

static int fill(struct s2s_sample *sample, const struct webdataset *s, const struct shard *shard,
                const struct group *group, struct s2s_error *err)
{
    int rc = 0;
    if (!group->sound || group->has_two)
        return s2s_error_set(err, S2S_E_FORMAT, "sample '%s' has %s", group->key,
                             group->sound ? "several members that may be its sound" : "no sound");
    sample->id = s2s_xstrdup(group->key);
    if (group->json_at >= 0)
        rc = take_json(sample, s, shard, group, err);
    if (rc == 0 && group->text_at >= 0 && !s->text_in_json)
        rc = take_text(sample, s, shard, group, err);
    if (rc == 0 && !sample->text)
        rc = s2s_error_set(err, S2S_E_FORMAT, "sample '%s' has no text (%s, or '%s' of json)",
                           group->key, text_suffix_of(s) + 1,
                           s->text_field ? s->text_field : "text");
    if (rc < 0)
        return rc;
    struct s2s_sound *sound = &s2s_sample_add(sample, "user", NULL)->sound;
    sound->source = s2s_xasprintf("%s%s", group->key, group->sound);
    sound->path = s2s_xstrdup(shard->path);
    sound->tar = shard->tar;
    sound->at = group->sound_at;
    s2s_sample_answer(sample);
    s2s_sample_tag(sample, s->tags, false);
    return 1;
}

static int load(const struct s2s_source *base, struct s2s_sample *sample,
                const struct s2s_place *place, struct s2s_error *err)
{
    const struct webdataset *s = (const struct webdataset *)base;
    const struct shard *shard = &s->shards[place->part];
    *sample = (struct s2s_sample)S2S_SAMPLE_INIT;
    int rc = fill(sample, s, shard, &shard->groups[place->at], err);
    if (rc < 0)
        s2s_sample_release(sample);
    return rc;
}

static char *where(const struct s2s_source *base, const struct s2s_place *place)
{
    const struct webdataset *s = (const struct webdataset *)base;
    const struct shard *shard = &s->shards[place->part];
    return s2s_xasprintf("%s:%s", shard->path, shard->groups[place->at].key);
}

/* Words and sound are in one file, which is not read twice for a digest. */
static bool digest(const struct s2s_source *base, size_t k, char hex[33])
{
    return false;
}

/* ---- opening ---- */

static void close_all(struct s2s_source *base)
{
    struct webdataset *s = (struct webdataset *)base;
    for (size_t i = 0; i < s->n_shards; i++) {
        struct shard *shard = &s->shards[i];
        for (size_t k = 0; k < shard->n_groups; k++) {
            free(shard->groups[k].key);
            free(shard->groups[k].sound);
        }
        s2s_members_close(shard->tar);
        free(shard->groups);
        free(shard->path);
    }
    free(s->shards);
    free(s->text_field);
    free(s->lang_field);
    free(s->sound_suffix);
    free(s->text_suffix);
    json_decref(s->tags);
    free(s);
}

static const struct s2s_source_kind kind_of_webdataset = {begin, next,   end,      load,
                                                          where, digest, close_all};

static void add_shard(struct webdataset *s, char *path)
{
    s2s_grow(&s->shards, s->n_shards, &s->cap_shards, sizeof *s->shards);
    s->shards[s->n_shards++] = (struct shard){.path = path};
}

static int by_path(const void *a, const void *b)
{
    return strcmp(((const struct shard *)a)->path, ((const struct shard *)b)->path);
}

static int add_tars_of(struct webdataset *s, const char *folder, struct s2s_error *err)
{
    const size_t before = s->n_shards;
    const struct dirent *entry;
    DIR *dir = opendir(folder);
    if (!dir)
        return s2s_error_errno(err, S2S_E_OPEN, "%s: cannot open", folder);
    while ((entry = readdir(dir)))
        if (s2s_ends_with(entry->d_name, ".tar"))
            add_shard(s, s2s_xasprintf("%s/%s", folder, entry->d_name));
    closedir(dir);
    if (s->n_shards == before)
        return s2s_error_set(err, S2S_E_NOTFOUND, "%s: has no tar", folder);
    qsort(s->shards + before, s->n_shards - before, sizeof *s->shards, by_path);
    return 0;
}

/* A file of .nv-meta; *conf is NULL where it is not there. */
static int read_meta(struct s2s_conf **conf, const char *folder, const char *name,
                     enum s2s_conf_format format, struct s2s_error *err)
{
    char *path = s2s_xasprintf("%s/.nv-meta/%s", folder, name);
    *conf = NULL;
    int rc = access(path, R_OK) == 0 ? s2s_conf_read(conf, path, format, err) : 0;
    free(path);
    return rc;
}

/* The shards of Energon's split: a list of names, relative to the folder. */
static int add_split(struct webdataset *s, const char *folder, const struct s2s_conf *list,
                     struct s2s_error *err)
{
    for (size_t i = 0; i < list->n_items; i++) {
        const char *name;
        int rc = s2s_conf_as_str(&name, list->items[i], err);
        if (rc < 0)
            return rc;
        add_shard(s, s2s_xasprintf("%s/%s", folder, name));
    }
    return 0;
}

static int add_counted(struct webdataset *s, const char *folder, const struct s2s_conf *info,
                       struct s2s_error *err)
{
    const struct s2s_conf *counts = s2s_conf_key(info, "shard_counts");
    if (!counts || counts->kind != S2S_CONF_MAP)
        return s2s_conf_error(err, S2S_E_FORMAT, info, "no map 'shard_counts'");
    for (size_t i = 0; i < counts->n_items; i++)
        add_shard(s, s2s_xasprintf("%s/%s", folder, counts->items[i]->key));
    return 0;
}

/* Where the text is: a suffix, or json[KEY]. */
static int map_text(struct webdataset *s, const struct s2s_conf *node, const char *from,
                    struct s2s_error *err)
{
    const size_t len = strlen(from);
    if (!s2s_starts_with(from, "json[")) {
        if (strpbrk(from, "[]"))
            return s2s_conf_error(err, S2S_E_UNSUPPORTED, node, "'%s' is not read here", from);
        free(s->text_suffix);
        s->text_suffix = s2s_xasprintf(".%s", from);
        return 0;
    }
    if (len < 7 || strcspn(from + 5, "[]") != len - 6 || from[len - 1] != ']')
        return s2s_conf_error(err, S2S_E_UNSUPPORTED, node, "'%s': a key of json is expected",
                              from);
    s->text_in_json = true;
    if (!s->text_field) /* else the command line says it */
        s->text_field = s2s_xstrndup(from + 5, len - 6);
    return 0;
}

/* Energon's field_map says which members are what a sample has. */
static int read_field_map(struct webdataset *s, const char *folder, struct s2s_error *err)
{
    static const char *const words[] = {"text", "caption", "transcript", "answers", NULL};
    struct s2s_conf *conf = NULL;
    int rc = read_meta(&conf, folder, "dataset.yaml", S2S_CONF_YAML, err);
    const struct s2s_conf *map = conf ? s2s_conf_key(conf, "field_map") : NULL;
    const struct s2s_conf *sound = map ? s2s_conf_key(map, "audio") : NULL, *text = NULL;
    const char *from = NULL;
    for (const char *const *w = words; map && *w && !text; w++)
        text = s2s_conf_key(map, *w);
    if (rc == 0 && sound && (rc = s2s_conf_as_str(&from, sound, err)) == 0) {
        free(s->sound_suffix);
        s->sound_suffix = s2s_xasprintf(".%s", from);
    }
    if (rc == 0 && text && (rc = s2s_conf_as_str(&from, text, err)) == 0)
        rc = map_text(s, text, from, err);
    s2s_conf_free(conf);
    return rc;
}

/* What Energon's `prepare` found, or the tars that are there. */
static int add_folder(struct webdataset *s, const char *folder, struct s2s_error *err)
{
    struct s2s_conf *split = NULL, *info = NULL;
    int rc = read_meta(&split, folder, "split.yaml", S2S_CONF_YAML, err);
    const struct s2s_conf *parts = split ? s2s_conf_key(split, "split_parts") : NULL;
    const struct s2s_conf *train = parts ? s2s_conf_key(parts, "train") : NULL;
    if (rc == 0 && split && (!train || train->kind != S2S_CONF_LIST))
        rc = s2s_conf_error(err, S2S_E_FORMAT, split, "no list 'split_parts.train'");
    else if (rc == 0 && split)
        rc = add_split(s, folder, train, err);
    if (rc == 0 && !split)
        rc = read_meta(&info, folder, ".info.json", S2S_CONF_JSON, err);
    if (rc == 0 && !split && !info)
        rc = read_meta(&info, folder, ".info.yaml", S2S_CONF_YAML, err);
    if (rc == 0 && info)
        rc = add_counted(s, folder, info, err);
    if (rc == 0 && !split && !info)
        rc = add_tars_of(s, folder, err);
    if (rc == 0)
        rc = read_field_map(s, folder, err);
    s2s_conf_free(split);
    s2s_conf_free(info);
    return rc;
}

static int add_path(struct webdataset *s, const char *path, struct s2s_error *err)
{
    struct stat st;
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode))
        return add_folder(s, path, err);
    add_shard(s, s2s_xstrdup(path));
    return 0;
}

int s2s_source_open_webdataset(struct s2s_source **source, const char *const *paths, size_t n_paths,
                               const struct s2s_source_options *opt, struct s2s_error *err)
{
    struct webdataset *s = s2s_xcalloc(1, sizeof *s);
    int rc = 0;
    s->base.kind = &kind_of_webdataset;
    s->text_field = opt->text_field ? s2s_xstrdup(opt->text_field) : NULL;
    s->lang_field = opt->lang_field ? s2s_xstrdup(opt->lang_field) : NULL;
    s->shuffle = opt->shuffle;
    s->seed = opt->seed;
    s->tags = json_incref(opt->tags);
    for (size_t i = 0; rc == 0 && i < n_paths; i++)
        rc = add_path(s, paths[i], err);
    if (rc == 0)
        *source = &s->base;
    else
        close_all(&s->base);
    return rc;
}
