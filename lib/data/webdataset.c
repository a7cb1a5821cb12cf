/* Reads tars of WebDataset and Energon. */
#include "lib/data/webdataset.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/affix.h"
#include "lib/base/base.h"
#include "lib/base/le.h"
#include "lib/base/pyrandom.h"
#include "lib/conf/conf.h"
#include "lib/data/expand.h"
#include "lib/data/line_json.h"
#include "lib/data/members.h"
#include "lib/data/order.h"
#include "lib/data/spool.h"
#include "lib/io/pread.h"

/* A sample's members: their places, and names behind its key (NULL: it has none). */
struct group {
    char *key;
    char *sound;
    int64_t sound_at, json_at, text_at; /* -1: none */
    bool has_two;                       /* sounds */
};

struct shard {
    char *path;
    const char *name; /* a part of path: as lists of the folder have it */
    struct s2s_members *tar;
    int64_t *begins; /* [n_samples + 1] where samples begin, and the last one ends */
    size_t n_samples, cap_begins;
    char *index;    /* the file that they are of; NULL: the tar was walked */
    int64_t n_said; /* samples according to the list of shards; -1: it does not say */
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
    json_t *excluded; /* an object: shards, and "SHARD/KEY" of samples, that are left out */
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

/* Names of which neither Energon nor WebDataset makes samples: without a suffix, or __of_this__. */
static bool is_no_part(const char *name)
{
    const size_t len = strcspn(name, "/");
    const bool is_meta =
        len >= 4 && s2s_starts_with(name, "__") && name[len - 1] == '_' && name[len - 2] == '_';
    return is_meta || !name[key_len(name)];
}

static void add_member(struct group *group, const struct s2s_member *member,
                       const struct webdataset *s)
{
    const char *suffix = member->name + key_len(member->name);
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

static bool has_key(const struct s2s_member *member, const char *key)
{
    const size_t len = key_len(member->name);
    return strlen(key) == len && !memcmp(key, member->name, len);
}

static void add_begin(struct shard *shard, size_t k, int64_t at)
{
    s2s_grow(&shard->begins, k, &shard->cap_begins, sizeof *shard->begins);
    shard->begins[k] = at;
}

/* Walks the whole tar: a sample begins where the key is another one than before. */
static int read_members(struct shard *shard, struct s2s_error *err)
{
    struct s2s_members *tar;
    struct s2s_member member;
    char *key = NULL;
    int rc = s2s_members_share(&tar, shard->tar, err);
    if (rc < 0)
        return rc;
    while ((rc = s2s_members_next(tar, &member, err)) > 0) {
        if (is_no_part(member.name) || (key && has_key(&member, key)))
            continue;
        free(key);
        key = s2s_xstrndup(member.name, key_len(member.name));
        add_begin(shard, shard->n_samples++, member.at);
    }
    add_begin(shard, shard->n_samples, s2s_members_len_bytes(tar));
    free(key);
    s2s_members_close(tar);
    return rc;
}

/* ---- Energon's index of a tar ---- */

static int wrong_index(const struct shard *shard, struct s2s_error *err)
{
    s2s_error_add(err, S2S_E_FORMAT, "%s", shard->index);
    return s2s_error_hint(err, S2S_E_FORMAT,
                          "'energon prepare' makes it of this tar; without it the tar is walked");
}

/* Behind the last sample is the end of the tar. */
static int check_end(const struct shard *shard, int64_t at, struct s2s_error *err)
{
    static const char zeros[512];
    char block[sizeof zeros];
    struct s2s_error ignored = S2S_ERROR_INIT;
    int fd = open(shard->path, O_RDONLY | O_CLOEXEC);
    int rc = fd < 0 ? S2S_E_OPEN : s2s_pread(fd, block, sizeof block, at, &ignored);
    if (fd >= 0)
        close(fd);
    if (rc < 0)
        return s2s_error_set(err, S2S_E_TRUNCATED, "the tar has no end mark where it ends, at %lld",
                             (long long)at);
    return memcmp(block, zeros, sizeof zeros) == 0
               ? 0
               : s2s_error_set(err, S2S_E_FORMAT, "the tar goes on behind its last entry, %lld",
                               (long long)at);
}

/* Its numbers [n], of 64 bits: where samples begin, and where the last one ends. */
static int take_entries(struct shard *shard, const unsigned char *bytes, int64_t n,
                        struct s2s_error *err)
{
    const uint64_t len = (uint64_t)s2s_members_len_bytes(shard->tar);
    uint64_t least = 0;
    for (int64_t k = 0; k < n; k++) {
        const uint64_t at = s2s_le64(bytes + 8 * k);
        if (at < least || at > len)
            return s2s_error_set(
                err, S2S_E_FORMAT,
                "entry %lld is %llu, where %llu to %llu, the tar's end, is expected", (long long)k,
                (unsigned long long)at, (unsigned long long)least, (unsigned long long)len);
        least = at + 512;
        add_begin(shard, (size_t)k, (int64_t)at);
    }
    shard->n_samples = (size_t)n - 1;
    return check_end(shard, shard->begins[n - 1], err);
}

static int read_index(struct shard *shard, int fd, int64_t len, struct s2s_error *err)
{
    const int64_t n = len / 8;
    if (len % 8 != 0 || n < 1 || n > s2s_members_len_bytes(shard->tar) / 512 + 1)
        return s2s_error_set(err, S2S_E_FORMAT,
                             "its %lld bytes are no list of offsets in a tar of %lld bytes",
                             (long long)len, (long long)s2s_members_len_bytes(shard->tar));
    unsigned char *bytes = s2s_xmalloc((size_t)len);
    int rc = s2s_pread(fd, bytes, (size_t)len, 0, err);
    if (rc == 0)
        rc = take_entries(shard, bytes, n, err);
    free(bytes);
    return rc;
}

/* 1: the shard is as its index says; 0: it has none. */
static int take_index(struct shard *shard, struct s2s_error *err)
{
    struct stat st;
    if (s2s_spool_is_pipe(shard->path) || !s2s_ends_with(shard->path, ".tar"))
        return 0;
    shard->index = s2s_xasprintf("%s.idx", shard->path);
    int fd = open(shard->index, O_RDONLY | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT) {
        free(shard->index);
        shard->index = NULL;
        return 0;
    }
    if (fd < 0 || fstat(fd, &st) < 0) {
        int rc = s2s_error_errno(err, S2S_E_OPEN, "%s: cannot open", shard->index);
        if (fd >= 0)
            close(fd);
        return rc;
    }
    int rc = read_index(shard, fd, st.st_size, err);
    close(fd);
    return rc < 0 ? wrong_index(shard, err) : 1;
}

static int read_shard(struct shard *shard, struct s2s_error *err)
{
    int rc = shard->tar ? 0 : s2s_members_open(&shard->tar, shard->path, err);
    if (rc < 0)
        return rc == S2S_E_OPEN ? err->code = S2S_E_NOTFOUND : rc;
    rc = take_index(shard, err);
    if (rc == 0)
        rc = read_members(shard, err);
    if (rc >= 0 && shard->n_said >= 0 && shard->n_said != (int64_t)shard->n_samples)
        return s2s_error_set(err, S2S_E_SHAPE,
                             "%s: has %zu samples, where the list of shards says %lld", shard->path,
                             shard->n_samples, (long long)shard->n_said);
    return rc < 0 ? rc : 0;
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
        if (!shard->is_walked && read_shard(shard, &fault) < 0) {
            w->fault = s2s_xmalloc(sizeof *w->fault);
            *w->fault = fault;
        }
        shard->is_walked = true;
        if (w->n_given < shard->n_samples) {
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

static void release_group(struct group *group)
{
    free(group->key);
    free(group->sound);
}

/* The members from where sample k begins to where the next one does; they have one key. */
static int find_members(struct group *group, const struct webdataset *s, const struct shard *shard,
                        size_t k, struct s2s_error *err)
{
    struct s2s_members *tar;
    struct s2s_member member;
    *group = (struct group){.sound_at = -1, .json_at = -1, .text_at = -1};
    int rc = s2s_members_share(&tar, shard->tar, err);
    if (rc < 0)
        return rc;
    s2s_members_rewind_to(tar, shard->begins[k]);
    while ((rc = s2s_members_next(tar, &member, err)) > 0) {
        const bool is_behind = member.at >= shard->begins[k + 1];
        const bool is_part = !is_no_part(member.name);
        if (is_behind && !(is_part && group->key && has_key(&member, group->key)))
            break;
        if (is_part && !group->key)
            group->key = s2s_xstrndup(member.name, key_len(member.name));
        if (is_behind || (is_part && !has_key(&member, group->key))) {
            rc = s2s_error_set(err, S2S_E_FORMAT, "entry %zu: %s is a part of %s sample", k,
                               member.name, is_behind ? "this" : "another");
            break;
        }
        if (is_part)
            add_member(group, &member, s);
    }
    s2s_members_close(tar);
    if (rc >= 0 && !group->key)
        rc = s2s_error_set(err, S2S_E_FORMAT, "entry %zu: no sample begins there", k);
    return rc >= 0 ? 0 : shard->index ? wrong_index(shard, err) : rc;
}

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

static bool is_excluded(const struct webdataset *s, const struct shard *shard, const char *key)
{
    if (json_object_size(s->excluded) == 0)
        return false;
    char *name = s2s_xasprintf("%s/%s", shard->name, key);
    const bool is_there = json_object_get(s->excluded, name) != NULL;
    free(name);
    return is_there;
}

static int load(const struct s2s_source *base, struct s2s_sample *sample,
                const struct s2s_place *place, struct s2s_error *err)
{
    const struct webdataset *s = (const struct webdataset *)base;
    const struct shard *shard = &s->shards[place->part];
    struct group group;
    *sample = (struct s2s_sample)S2S_SAMPLE_INIT;
    int rc = find_members(&group, s, shard, place->at, err);
    if (rc == 0 && is_excluded(s, shard, group.key)) {
        release_group(&group);
        return 0;
    }
    if (rc == 0)
        rc = fill(sample, s, shard, &group, err);
    if (rc < 0)
        s2s_sample_release(sample);
    release_group(&group);
    return rc;
}

static char *where(const struct s2s_source *base, const struct s2s_place *place)
{
    const struct webdataset *s = (const struct webdataset *)base;
    const struct shard *shard = &s->shards[place->part];
    struct group group;
    struct s2s_error ignored = S2S_ERROR_INIT;
    (void)find_members(&group, s, shard, place->at, &ignored);
    char *name =
        group.key ? s2s_xasprintf("%s:%s", shard->path, group.key)
                  : s2s_xasprintf("%s:sample %llu", shard->path, (unsigned long long)place->at + 1);
    release_group(&group);
    return name;
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
        s2s_members_close(shard->tar);
        free(shard->begins);
        free(shard->index);
        free(shard->path);
    }
    free(s->shards);
    free(s->text_field);
    free(s->lang_field);
    free(s->sound_suffix);
    free(s->text_suffix);
    json_decref(s->tags);
    json_decref(s->excluded);
    free(s);
}

static const struct s2s_source_kind kind_of_webdataset = {begin, next,   end,      load,
                                                          where, digest, close_all};

/* Takes path; n_said below 0: not known. */
static struct shard *add_shard(struct webdataset *s, char *path, int64_t n_said)
{
    s2s_grow(&s->shards, s->n_shards, &s->cap_shards, sizeof *s->shards);
    struct shard *shard = &s->shards[s->n_shards++];
    *shard = (struct shard){.path = path, .name = path, .n_said = n_said};
    return shard;
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
            add_shard(s, s2s_xasprintf("%s/%s", folder, entry->d_name), -1);
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

/* Adds a shard of a folder that Energon has prepared, unless it is excluded. */
static int add_prepared(struct webdataset *s, const char *folder, const char *name,
                        const struct s2s_conf *counts, struct s2s_error *err)
{
    const struct s2s_conf *count = counts ? s2s_conf_key(counts, name) : NULL;
    int64_t n = -1;
    int rc = count ? s2s_conf_as_i64(&n, count, 0, INT64_MAX, err) : 0;
    if (rc < 0 || json_object_get(s->excluded, name))
        return rc;
    struct shard *shard = add_shard(s, s2s_xasprintf("%s/%s", folder, name), n);
    shard->name = shard->path + strlen(folder) + 1;
    return 0;
}

/* Calls for each name that a list of names with braces stands for; counts is for `each`. */
static int for_names(struct webdataset *s, const char *folder, const struct s2s_conf *list,
                     const struct s2s_conf *counts, bool exclude, struct s2s_error *err)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && list && i < list->n_items; i++) {
        const char *pattern;
        char **names = NULL;
        size_t n = 0;
        rc = s2s_conf_as_str(&pattern, list->items[i], err);
        if (rc == 0)
            rc = s2s_data_expand(&names, &n, pattern, err);
        for (size_t k = 0; k < n; k++) {
            if (rc == 0 && exclude)
                json_object_set_new(s->excluded, names[k], json_true());
            else if (rc == 0)
                rc = add_prepared(s, folder, names[k], counts, err);
            free(names[k]);
        }
        free(names);
    }
    return rc;
}

/* The shards of split.yaml, without those that it excludes, or all that were counted. */
static int add_listed(struct webdataset *s, const char *folder, const struct s2s_conf *split,
                      const struct s2s_conf *info, struct s2s_error *err)
{
    const struct s2s_conf *counts = info ? s2s_conf_key(info, "shard_counts") : NULL;
    const struct s2s_conf *train = split ? s2s_conf_find(split, "split_parts.train") : NULL, *out;
    int rc = 0;
    if (info && (!counts || counts->kind != S2S_CONF_MAP))
        return s2s_conf_error(err, S2S_E_FORMAT, info, "no map 'shard_counts'");
    if (split && (!train || train->kind != S2S_CONF_LIST))
        return s2s_conf_error(err, S2S_E_FORMAT, split, "no list 'split_parts.train'");
    if (split && (rc = s2s_conf_get_list(&out, split, "exclude", err)) == 0)
        rc = for_names(s, folder, out, counts, true, err);
    if (rc == 0 && split)
        return for_names(s, folder, train, counts, false, err);
    for (size_t i = 0; rc == 0 && i < counts->n_items; i++)
        rc = add_prepared(s, folder, counts->items[i]->key, counts, err);
    return rc;
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

/* The first of two files of .nv-meta. */
static int read_either(struct s2s_conf **conf, const char *folder, const char *name,
                       enum s2s_conf_format format, const char *other,
                       enum s2s_conf_format other_format, struct s2s_error *err)
{
    int rc = read_meta(conf, folder, name, format, err);
    return rc < 0 || *conf ? rc : read_meta(conf, folder, other, other_format, err);
}

/* What Energon's `prepare` found, or the tars that are there. */
static int add_folder(struct webdataset *s, const char *folder, struct s2s_error *err)
{
    struct s2s_conf *split = NULL, *info = NULL;
    int rc =
        read_either(&split, folder, "split.yaml", S2S_CONF_YAML, "split.json", S2S_CONF_JSON, err);
    if (rc == 0)
        rc = read_either(&info, folder, ".info.json", S2S_CONF_JSON, ".info.yaml", S2S_CONF_YAML,
                         err);
    if (rc == 0)
        rc = split || info ? add_listed(s, folder, split, info, err) : add_tars_of(s, folder, err);
    if (rc == 0)
        rc = read_field_map(s, folder, err);
    s2s_conf_free(split);
    s2s_conf_free(info);
    return rc;
}

/* A list of shards as `wids-index` writes it: {"shardlist": [{"url", "nsamples"}, ..]}, whose names
 * are relative to "base", or to the list. */
static int add_list(struct webdataset *s, const char *path, struct s2s_error *err)
{
    struct s2s_conf *conf = NULL;
    const struct s2s_conf *list = NULL;
    const char *slash = strrchr(path, '/'), *base = NULL;
    int rc = s2s_conf_read(&conf, path, S2S_CONF_JSON, err);
    if (rc == 0)
        rc = s2s_conf_get_list(&list, conf, "shardlist", err);
    if (rc == 0 && !list)
        rc = s2s_conf_error(err, S2S_E_FORMAT, conf, "no list 'shardlist' of tars");
    if (rc == 0)
        rc = s2s_conf_get_str_or(&base, conf, "base", NULL, err);
    for (size_t i = 0; rc == 0 && i < list->n_items; i++) {
        const char *url = NULL;
        int64_t n = -1;
        rc = s2s_conf_get_str(&url, list->items[i], "url", err);
        if (rc == 0)
            rc = s2s_conf_get_i64_or(&n, list->items[i], "nsamples", 0, INT64_MAX, -1, err);
        if (rc < 0)
            break;
        if (s2s_spool_is_pipe(url)) {
            rc = s2s_conf_error(err, S2S_E_UNSUPPORTED, list->items[i],
                                "commands of a list of shards are not run");
            break;
        }
        const bool is_whole = *url == '/';
        char *name = is_whole        ? s2s_xstrdup(url)
                     : base && *base ? s2s_xasprintf("%s/%s", base, url)
                     : slash         ? s2s_xasprintf("%.*s/%s", (int)(slash - path), path, url)
                                     : s2s_xstrdup(url);
        add_shard(s, name, n);
    }
    s2s_conf_free(conf);
    return rc;
}

static int add_path(struct webdataset *s, const char *path, struct s2s_error *err)
{
    struct stat st;
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode))
        return add_folder(s, path, err);
    if (s2s_ends_with(path, ".json") && !s2s_spool_is_pipe(path))
        return add_list(s, path, err);
    add_shard(s, s2s_xstrdup(path), -1);
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
    s->excluded = json_object();
    for (size_t i = 0; rc == 0 && i < n_paths; i++)
        rc = add_path(s, paths[i], err);
    if (rc == 0)
        *source = &s->base;
    else
        close_all(&s->base);
    return rc;
}
