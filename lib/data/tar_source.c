/* Walks shards of manifests and tars. */
#include "lib/data/tar_source.h"

#include <stdlib.h>
#include <string.h>

#include "lib/base/base.h"
#include "lib/base/pyrandom.h"
#include "lib/data/conversation.h"
#include "lib/data/line_json.h"
#include "lib/data/lines.h"
#include "lib/data/manifest.h"
#include "lib/data/members.h"
#include "lib/data/order.h"
#include "lib/data/texts.h"
#include "lib/data/wrong_kind.h"
#include "lib/io/digest.h"

/* A member about as long as its line says is taken whole. */
#define WHOLE_WITHIN_S 0.2

struct shard {
    int64_t id;
    uint32_t manifest; /* of files */
    char *tar_path;
    struct s2s_members *tar; /* once it was opened: for those who load from it */
};

struct tar_source {
    struct s2s_source base;
    enum s2s_lines_kind kind;
    struct s2s_lines *files; /* manifests [n_files] */
    size_t n_files;
    struct shard *shards; /* [n_shards]: of a NeMo manifest by their ids, else as given */
    size_t n_shards;
    struct s2s_source_options opt; /* its strings and tags are owned */
    char *text_field, *lang_field;
    struct data_fields *fields; /* of NeMo */
    uint64_t epoch;
};

/* A line of a shard's manifest. */
struct entry {
    char *member, *audio_filepath;
    struct s2s_line line;
    bool marked, found;
};

struct tar_walk {
    struct s2s_walk base;
    struct s2s_pyrandom random;
    uint32_t *order; /* [n_shards] */
    size_t idx;      /* of order */
    bool in_shard;
    struct s2s_members *tar; /* of the shard */
    struct entry *entries;   /* [n_entries] of the shard, by member, then audio_filepath */
    size_t n_entries;
    size_t n_names;       /* members that they name */
    struct s2s_line line; /* of conversations: the last one taken */
    /* the member in hand: its entries [from, to) and its place */
    size_t from, to;
    uint64_t member;
    struct data_slice slice; /* of the shard */
    struct data_fields_walk *fields;
};

/* ---- ids of shards ---- */

int64_t s2s_data_shard_id(const char *path, const char *word, const char *suffix)
{
    for (const char *at = path; (at = strstr(at, word)); at++) {
        const size_t len = strcspn(at, "/");
        const char *last = NULL;
        for (const char *c = at + strlen(word); c < at + len; c++)
            if (*c == '_' && c[1] >= '0' && c[1] <= '9' &&
                memmem(c + 1, (size_t)(at + len - c - 1), suffix, strlen(suffix)))
                last = c + 1;
        if (last && strspn(last, "0123456789") < 19)
            return strtoll(last, NULL, 10);
    }
    return -1;
}

static int by_id(const void *a, const void *b)
{
    const struct shard *x = a, *y = b;
    return x->id < y->id ? -1 : x->id > y->id;
}

static int shard_id_of(int64_t *id, const char *path, const char *word, const char *suffix,
                       struct s2s_error *err)
{
    *id = s2s_data_shard_id(path, word, suffix);
    if (*id >= 0)
        return 0;
    int rc = s2s_error_set(err, S2S_E_FORMAT, "%s: its name tells no shard", path);
    return s2s_error_hint(err, rc, "%s_NUMBER%s is expected", word, suffix);
}

/* Sorts the shards by their ids, and finds each one's manifest. */
static int match_shards(struct tar_source *s, const char *const *manifests, struct s2s_error *err)
{
    if (s->n_files == 1 && s->n_shards == 1) {
        s->shards[0].id = -1;
        return 0;
    }
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < s->n_shards; i++)
        rc = shard_id_of(&s->shards[i].id, s->shards[i].tar_path, "audio", ".tar", err);
    if (rc < 0)
        return rc;
    qsort(s->shards, s->n_shards, sizeof *s->shards, by_id);
    for (size_t i = 1; i < s->n_shards; i++)
        if (s->shards[i - 1].id == s->shards[i].id)
            return s2s_error_set(err, S2S_E_FORMAT, "%s and %s are both shard %lld",
                                 s->shards[i - 1].tar_path, s->shards[i].tar_path,
                                 (long long)s->shards[i].id);
    if (s->n_files == 1)
        return 0;
    bool *has = s2s_xcalloc(s->n_shards + 1, sizeof *has);
    for (size_t k = 0; rc == 0 && k < s->n_files; k++) {
        struct shard key;
        rc = shard_id_of(&key.id, manifests[k], "manifest", ".json", err);
        struct shard *shard =
            rc == 0 ? bsearch(&key, s->shards, s->n_shards, sizeof key, by_id) : NULL;
        if (rc == 0 && (!shard || has[shard - s->shards]))
            rc = s2s_error_set(err, S2S_E_FORMAT, "%s: shard %lld has %s", manifests[k],
                               (long long)key.id, shard ? "another manifest too" : "no tar");
        if (rc < 0)
            break;
        shard->manifest = (uint32_t)k;
        has[shard - s->shards] = true;
    }
    for (size_t i = 0; rc == 0 && i < s->n_shards; i++)
        if (!has[i])
            rc = s2s_error_set(err, S2S_E_FORMAT, "%s: shard %lld has no manifest",
                               s->shards[i].tar_path, (long long)s->shards[i].id);
    free(has);
    return rc;
}

/* ---- the lines of a shard ---- */

/* The member that holds a line's sound: stem-subN.ext is a part of stem.ext. Gives: free. */
static char *member_of(const char *audio_filepath)
{
    const size_t len = strlen(audio_filepath);
    size_t ext = len; /* of the suffix, which is of letters, digits and underscores */
    while (ext > 0 &&
           (strchr("_", audio_filepath[ext - 1]) ||
            ((audio_filepath[ext - 1] | 32) >= 'a' && (audio_filepath[ext - 1] | 32) <= 'z') ||
            (audio_filepath[ext - 1] >= '0' && audio_filepath[ext - 1] <= '9')))
        ext--;
    ext = ext > 0 && ext < len && audio_filepath[ext - 1] == '.' ? ext - 1 : len;
    for (int with_ext = ext < len; with_ext >= 0; with_ext--) {
        const size_t end = with_ext ? ext : len;
        size_t digits = end;
        while (digits > 0 && audio_filepath[digits - 1] >= '0' && audio_filepath[digits - 1] <= '9')
            digits--;
        if (digits < end && digits > 4 && !memcmp(audio_filepath + digits - 4, "-sub", 4))
            return s2s_xasprintf("%.*s%s", (int)digits - 4, audio_filepath, audio_filepath + end);
    }
    return s2s_xstrdup(audio_filepath);
}

static int by_member(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    int order = strcmp(x->member, y->member);
    if (order == 0)
        order = strcmp(x->audio_filepath, y->audio_filepath);
    return order != 0 ? order
                      : (x->line.number > y->line.number) - (x->line.number < y->line.number);
}

static void release_entries(struct tar_walk *w)
{
    for (size_t i = 0; i < w->n_entries; i++) {
        free(w->entries[i].member);
        free(w->entries[i].audio_filepath);
    }
    free(w->entries);
    w->entries = NULL;
    w->n_entries = w->n_names = w->from = w->to = 0;
}

/* Fills an entry; 0: the line is another shard's. */
static int read_entry(struct entry *entry, const struct shard *shard, const struct tar_source *s,
                      const struct s2s_line *line, struct s2s_error *err)
{
    json_t *object = data_load_object(line, err);
    const json_t *id = json_object_get(object, "shard_id");
    if (!object)
        return S2S_E_FORMAT;
    *entry = (struct entry){.line = *line};
    entry->marked = data_is_truthy(json_object_get(object, "_skipme"));
    int rc = 1;
    if (s->n_files == 1 && s->n_shards > 1) {
        if (!json_is_integer(id))
            rc = s2s_error_set(err, S2S_E_FORMAT, "'shard_id' is missing or no whole number");
        else if (json_integer_value(id) != shard->id)
            rc = 0;
    }
    if (rc > 0)
        rc = data_get_string(&entry->audio_filepath, object, "audio_filepath", err);
    if (rc == 0 && !(s->n_files == 1 && s->n_shards > 1))
        rc = s2s_error_set(err, S2S_E_FORMAT, "'audio_filepath' is missing");
    if (rc > 0)
        entry->member = member_of(entry->audio_filepath);
    json_decref(object);
    return rc;
}

static int read_entries(struct tar_walk *w, const struct shard *shard, const struct tar_source *s,
                        struct s2s_error *err)
{
    const struct s2s_lines *file = &s->files[shard->manifest];
    struct s2s_line line = {.number = 0};
    size_t cap = 0;
    while (s2s_lines_next(file, &line)) {
        s2s_grow(&w->entries, w->n_entries, &cap, sizeof *w->entries);
        int rc = read_entry(&w->entries[w->n_entries], shard, s, &line, err);
        if (rc < 0)
            return s2s_error_add(err, rc, "%s:%lld", file->path, (long long)line.number);
        w->n_entries += rc > 0;
    }
    if (w->n_entries > 1)
        qsort(w->entries, w->n_entries, sizeof *w->entries, by_member);
    for (size_t i = 0; i < w->n_entries; i++)
        w->n_names += i == 0 || strcmp(w->entries[i - 1].member, w->entries[i].member) != 0;
    return 0;
}

/* ---- walking: what both kinds share ---- */

static struct s2s_walk *begin(struct s2s_source *base)
{
    struct tar_walk *w = s2s_xcalloc(1, sizeof *w);
    w->base.source = base;
    return &w->base;
}

static struct shard *shard_of(const struct tar_walk *w, const struct tar_source *s)
{
    return &s->shards[w->order[w->idx]];
}

static int begin_shard(struct tar_walk *w, struct tar_source *s, struct s2s_error *err)
{
    struct shard *shard = shard_of(w, s);
    const bool is_nemo = s->kind == S2S_LINES_NEMO;
    int rc = is_nemo ? read_entries(w, shard, s, err) : 0;
    if (rc == 0 && !shard->tar)
        rc = s2s_members_open(&shard->tar, shard->tar_path, err);
    if (rc < 0)
        return rc == S2S_E_OPEN ? err->code = S2S_E_NOTFOUND : rc;
    rc = s2s_members_share(&w->tar, shard->tar, err);
    if (rc < 0)
        return rc;
    w->line = (struct s2s_line){.number = 0};
    const int64_t wanted = s->opt.slice_length;
    data_slice_begin(&w->slice, wanted,
                     is_nemo      ? w->n_names
                     : wanted > 0 ? s2s_lines_count(&s->files[shard->manifest])
                                  : 0,
                     &w->random);
    w->in_shard = true;
    return 0;
}

static void end_shard(struct tar_walk *w, struct tar_source *s)
{
    size_t n_lost = 0;
    struct shard *shard = shard_of(w, s);
    for (size_t i = 0; w->in_shard && i < w->n_entries; i++)
        n_lost += !w->entries[i].found;
    if (n_lost > 0 && s->opt.slice_length == 0)
        s2s_warn("data", "%s: %zu lines of %s have no sound in it", shard->tar_path, n_lost,
                 s->files[shard->manifest].path);
    release_entries(w);
    s2s_members_close(w->tar);
    w->tar = NULL;
    w->in_shard = false;
    w->idx++;
    s->epoch += w->idx == s->n_shards;
}

/* ---- NeMo: samples in the order of members ---- */

/* Finds the entries of a member. */
static bool find_entries(struct tar_walk *w, const char *name)
{
    size_t low = 0, high = w->n_entries;
    while (low < high) {
        const size_t mid = low + (high - low) / 2;
        if (strcmp(w->entries[mid].member, name) < 0)
            low = mid + 1;
        else
            high = mid;
    }
    w->from = w->to = low;
    while (w->to < w->n_entries && !strcmp(w->entries[w->to].member, name))
        w->entries[w->to++].found = true;
    return w->to > w->from;
}

/* Goes on to a member that has entries: 1; 0 at the end. */
static int next_member(struct tar_walk *w, struct tar_source *s, struct s2s_error *err)
{
    struct shard *shard = shard_of(w, s);
    struct s2s_member member;
    int rc;
    while ((rc = s2s_members_next(w->tar, &member, err)) > 0) {
        if (data_slice_skips(&w->slice))
            continue;
        if (data_slice_is_full(&w->slice))
            return 0;
        if (find_entries(w, member.name)) {
            w->member = (uint64_t)member.at;
            w->slice.n_taken++;
            return 1;
        }
        if (s->opt.skip_missing)
            continue;
        rc = s2s_error_set(err, S2S_E_FORMAT, "%s: %s is not in %s", shard->tar_path, member.name,
                           s->files[shard->manifest].path);
        return s2s_error_hint(err, rc,
                              "skip_missing_manifest_entries leaves out what is not listed");
    }
    return rc;
}

static int next_of_nemo(struct tar_walk *w, struct tar_source *s, struct s2s_place *place,
                        struct s2s_error *err)
{
    for (;;) {
        while (w->from < w->to) {
            const struct entry *entry = &w->entries[w->from++];
            if (entry->marked) {
                s->base.n_marked++;
                continue;
            }
            *place = (struct s2s_place){.at = entry->line.begin,
                                        .line = entry->line.number,
                                        .part = w->order[w->idx],
                                        .member = w->member};
            int rc = data_fields_next(w->fields, &place->field, err);
            return rc < 0 ? rc : 1;
        }
        int rc = next_member(w, s, err);
        if (rc <= 0)
            return rc;
    }
}

/* ---- conversations: samples in the order of lines ---- */

static int parse_turns(const struct tar_source *s, struct s2s_sample *sample,
                       const struct s2s_line *line, struct s2s_error *err)
{
    const struct s2s_manifest_options how = {.text_field = s->text_field,
                                             .lang_field = s->lang_field};
    if (s->kind == S2S_LINES_SHARE_GPT)
        return s2s_data_parse_share_gpt(sample, line, &how, s->opt.placeholders, err);
    return s2s_data_parse_conversation(sample, line, &how, err);
}

/* The next member that is sound: Lhotse's tars have a description behind each. */
static int next_sound(struct s2s_members *tar, struct s2s_member *member, struct s2s_error *err)
{
    int rc;
    do
        rc = s2s_members_next(tar, member, err);
    while (rc > 0 && s2s_ends_with(member->name, ".json"));
    return rc;
}

/* Takes the members of a line's clips, which must have their names. A marked line has clips too. */
static int take_members(struct tar_walk *w, const struct shard *shard, const json_t *names,
                        struct s2s_error *err)
{
    struct s2s_member member;
    for (size_t k = 0; k < json_array_size(names); k++) {
        const char *want = json_string_value(json_array_get(names, k));
        int rc = next_sound(w->tar, &member, err);
        if (rc < 0)
            return rc;
        if (rc == 0 || strcmp(member.name, want) != 0)
            return s2s_error_set(err, S2S_E_FORMAT, "%s has %s where '%s' is expected",
                                 shard->tar_path, rc ? member.name : "no more sound", want);
        if (k == 0)
            w->member = (uint64_t)member.at;
    }
    return 1;
}

/* Names of the clips of a line, of a marked one too. Gives a list, or NULL. */
static json_t *clip_names(const struct tar_source *s, const struct s2s_line *line, bool *marked,
                          struct s2s_error *err)
{
    struct s2s_sample sample;
    json_t *object = data_load_object(line, err), *names = json_array();
    json_t *custom = json_object_get(object, "custom");
    *marked =
        s->kind == S2S_LINES_CONVERSATION && data_is_truthy(json_object_get(custom, "_skipme"));
    if (*marked)
        json_object_del(custom, "_skipme");
    char *text = object ? json_dumps(object, 0) : NULL;
    const struct s2s_line plain = {.text = text, .len = text ? strlen(text) : 0, .number = 1};
    if (!text || parse_turns(s, &sample, &plain, err) <= 0) {
        json_decref(names);
        names = NULL;
    }
    const struct s2s_sound *sound;
    for (size_t k = 0; names && (sound = s2s_sample_sound(&sample, k)); k++)
        json_array_append_new(names, json_string(sound->source));
    if (names)
        s2s_sample_release(&sample);
    free(text);
    json_decref(object);
    return names;
}

static int next_of_conversation(struct tar_walk *w, struct tar_source *s, struct s2s_place *place,
                                struct s2s_error *err)
{
    const struct shard *shard = shard_of(w, s);
    const struct s2s_lines *file = &s->files[shard->manifest];
    while (s2s_lines_next(file, &w->line)) {
        bool marked;
        json_t *names = clip_names(s, &w->line, &marked, err);
        int rc = names ? take_members(w, shard, names, err) : S2S_E_FORMAT;
        json_decref(names);
        if (rc < 0)
            return s2s_error_add(err, rc, "%s:%lld", file->path, (long long)w->line.number);
        const bool left_out = data_slice_skips(&w->slice);
        s->base.n_marked += marked;
        if (marked || left_out)
            continue;
        if (data_slice_is_full(&w->slice))
            return 0;
        w->slice.n_taken++;
        *place = (struct s2s_place){.at = w->line.begin,
                                    .line = w->line.number,
                                    .part = w->order[w->idx],
                                    .member = w->member};
        return 1;
    }
    return 0;
}

static int next(struct s2s_walk *base, struct s2s_place *place, struct s2s_error *err)
{
    struct tar_walk *w = (struct tar_walk *)base;
    struct tar_source *s = (struct tar_source *)base->source;
    if (!w->order) {
        w->fields = data_fields_begin(s->fields, s->opt.seed + s->epoch);
        w->order =
            data_shard_order(&w->random, s->n_shards, s->opt.seed + s->epoch, s->opt.shuffle);
    }
    while (w->idx < s->n_shards) {
        int rc = w->in_shard ? 0 : begin_shard(w, s, err);
        if (rc == 0)
            rc = s->kind == S2S_LINES_NEMO ? next_of_nemo(w, s, place, err)
                                           : next_of_conversation(w, s, place, err);
        if (rc > 0)
            return 1;
        if (rc < 0)
            release_entries(w);
        end_shard(w, s);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static void end(struct s2s_walk *base)
{
    struct tar_walk *w = (struct tar_walk *)base;
    release_entries(w);
    s2s_members_close(w->tar);
    data_fields_end(w->fields);
    free(w->order);
    free(w);
}

/* ---- loading ---- */

static void put_in_tar(const struct s2s_sample *sample, struct s2s_sound *sound,
                       const struct shard *shard, int64_t at)
{
    s2s_sample_free(sample, sound->path);
    sound->path = s2s_xstrdup(shard->tar_path);
    sound->tar = shard->tar;
    sound->at = at;
}

static int load_nemo(const struct tar_source *s, struct s2s_sample *sample,
                     const struct s2s_line *line, const struct s2s_place *place,
                     struct s2s_error *err)
{
    const struct s2s_manifest_options how = {
        .text_field = s->text_field, .lang_field = s->lang_field, .window = s->opt.window};
    int n = s2s_data_parse_nemo(sample, line, place->variant, &how, err);
    if (n <= 0)
        return n;
    if (!sample->text)
        return s2s_error_set(err, S2S_E_FORMAT, "sample '%s' has no text", sample->id);
    struct s2s_sound *sound = s2s_sample_sound(sample, 0);
    char *member = member_of(sound->source);
    s2s_sample_free(sample, sound->source);
    sound->source = member;
    sound->has_range = sound->has_range || sound->duration_s > 0;
    sound->whole_within_s = s->opt.window.length_s > 0 ? 0 : WHOLE_WITHIN_S;
    put_in_tar(sample, sound, &s->shards[place->part], (int64_t)place->member);
    return n;
}

static int load_conversation(const struct tar_source *s, struct s2s_sample *sample,
                             const struct s2s_line *line, const struct s2s_place *place,
                             struct s2s_error *err)
{
    const struct shard *shard = &s->shards[place->part];
    struct s2s_sound *sound;
    int n = parse_turns(s, sample, line, err);
    int64_t at = (int64_t)place->member;
    for (size_t k = 0; n > 0 && (sound = s2s_sample_sound(sample, k)); k++) {
        if (k > 0)
            n = s2s_members_find(shard->tar, &at, sound->source, err);
        put_in_tar(sample, sound, shard, at);
    }
    return n;
}

static int load(const struct s2s_source *base, struct s2s_sample *sample,
                const struct s2s_place *place, struct s2s_error *err)
{
    const struct tar_source *s = (const struct tar_source *)base;
    const struct s2s_lines *file = &s->files[s->shards[place->part].manifest];
    const struct s2s_line line = s2s_lines_at(file, place->at, place->line);
    int n = s->kind == S2S_LINES_NEMO ? load_nemo(s, sample, &line, place, err)
                                      : load_conversation(s, sample, &line, place, err);
    if (n > 0)
        data_fields_give(s->fields, sample, place->field);
    if (n > 0)
        s2s_sample_tag(sample, s->opt.tags, s->kind != S2S_LINES_NEMO);
    return n;
}

static char *where(const struct s2s_source *base, const struct s2s_place *place)
{
    const struct tar_source *s = (const struct tar_source *)base;
    const struct shard *shard = &s->shards[place->part];
    return s2s_xasprintf("%s:%lld (%s)", s->files[shard->manifest].path, (long long)place->line,
                         shard->tar_path);
}

static bool digest(const struct s2s_source *base, size_t k, char hex[33])
{
    const struct tar_source *s = (const struct tar_source *)base;
    if (k >= s->n_files)
        return data_fields_digest(s->fields, k - s->n_files, hex);
    s2s_xxh3_128_hex(hex, s->files[k].data, s->files[k].len);
    return true;
}

/* ---- opening ---- */

static void close_tars(struct s2s_source *base)
{
    struct tar_source *s = (struct tar_source *)base;
    for (size_t i = 0; i < s->n_files; i++)
        s2s_lines_close(&s->files[i]);
    for (size_t i = 0; i < s->n_shards; i++) {
        s2s_members_close(s->shards[i].tar);
        free(s->shards[i].tar_path);
    }
    data_fields_close(s->fields);
    free(s->files);
    free(s->shards);
    free(s->text_field);
    free(s->lang_field);
    data_drop_lists(&s->opt);
    free(s);
}

static const struct s2s_source_kind kind_of_tars = {begin, next,   end,       load,
                                                    where, digest, close_tars};

static int open_files(struct tar_source *s, const char *const *manifests, size_t n_manifests,
                      struct s2s_error *err)
{
    int rc = 0;
    s->files = s2s_xcalloc(n_manifests + 1, sizeof *s->files);
    while (rc == 0 && s->n_files < n_manifests) {
        rc = s2s_lines_open(&s->files[s->n_files], manifests[s->n_files], err);
        s->n_files += rc == 0;
        if (rc == 0)
            rc = data_check_kind(&s->files[s->n_files - 1], s->kind, err);
    }
    return rc;
}

int s2s_source_open_tars(struct s2s_source **source, enum s2s_lines_kind kind,
                         const char *const *manifests, size_t n_manifests, const char *const *tars,
                         size_t n_tars, const struct s2s_source_options *opt, struct s2s_error *err)
{
    if (n_manifests != n_tars && (kind != S2S_LINES_NEMO || n_manifests != 1))
        return s2s_error_set(err, S2S_E_SHAPE, "%zu manifests and %zu tars", n_manifests, n_tars);
    struct tar_source *s = s2s_xcalloc(1, sizeof *s);
    s->base.kind = &kind_of_tars;
    s->kind = kind;
    s->opt = *opt;
    data_keep_lists(&s->opt);
    s->text_field = opt->text_field ? s2s_xstrdup(opt->text_field) : NULL;
    s->lang_field = opt->lang_field ? s2s_xstrdup(opt->lang_field) : NULL;
    s->shards = s2s_xcalloc(n_tars + 1, sizeof *s->shards);
    for (s->n_shards = 0; s->n_shards < n_tars; s->n_shards++) {
        const size_t i = s->n_shards;
        s->shards[i] = (struct shard){.manifest = (uint32_t)(n_manifests > 1 ? i : 0),
                                      .tar_path = s2s_xstrdup(tars[i])};
    }
    int rc = open_files(s, manifests, n_manifests, err);
    if (rc == 0 && kind == S2S_LINES_NEMO)
        rc = match_shards(s, manifests, err);
    if (rc == 0 && kind == S2S_LINES_NEMO)
        rc = data_fields_open(&s->fields, opt->fields, opt->n_fields, err);
    if (rc == 0)
        *source = &s->base;
    else
        close_tars(&s->base);
    return rc;
}
