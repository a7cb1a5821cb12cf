/* Reads Lhotse's Shar. */
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/base.h"
#include "lib/base/pyrandom.h"
#include "lib/data/cut.h"
#include "lib/data/expand.h"
#include "lib/data/line_json.h"
#include "lib/data/lines.h"
#include "lib/data/members.h"
#include "lib/data/order.h"
#include "lib/data/shar.h"
#include "lib/data/turns.h"
#include "lib/io/digest.h"

enum { MAX_SUFFIXES = 64 };

/* Where a field's value of a cut is in its tar: two members, data and description. */
struct pair {
    int64_t data, meta;
    int32_t suffix; /* of the data, of the source's list; -1: the cut has no value */
};

/* A field that is lines. */
struct field {
    char *name;
    struct s2s_lines lines;
    uint64_t *at; /* [n] offsets, filled when the shard is walked */
    size_t n, cap;
};

/* The tar of a field that is sound. */
struct sounds {
    char *path; /* NULL: there is none; the cuts name files of their own */
    struct s2s_members *tar;
    struct pair *pairs; /* [n_pairs], once it was walked */
    size_t n_pairs, cap_pairs;
};

enum { HEARD, SAID, N_SOUNDS }; /* the wanted field, and the second one of duplex speech */

struct shard {
    struct s2s_lines cuts;
    struct sounds sounds[N_SOUNDS];
    struct field *fields; /* [n_fields] */
    size_t n_fields;
    bool is_walked;
};

struct shar_source {
    struct s2s_source base;
    struct shard *shards; /* [n_shards] */
    size_t n_shards;
    char *sound_fields[N_SOUNDS]; /* the second may be NULL */
    bool shuffle;
    uint64_t seed, epoch;
    int64_t slice_length;
    struct s2s_source_options opt; /* its lists are kept */
    char *suffixes[MAX_SUFFIXES];  /* of data in tars; those that places refer to stay */
    size_t n_suffixes;
};

struct shar_walk {
    struct s2s_walk base;
    struct s2s_pyrandom random;
    uint32_t *order; /* [n_shards]; NULL: nothing was drawn yet */
    size_t idx;
    bool in_shard;
    struct s2s_line line;
    struct data_slice slice; /* of its cuts */
    struct s2s_error *fault; /* of the shard's tar, for when its whole cuts are given */
};

/* ---- names ---- */

struct names {
    char **items;
    size_t n;
};

/* Shards of one field. */
struct spec {
    char *field;
    struct names names;
};

struct specs {
    struct spec *all;
    size_t n, cap;
};

static void release_specs(struct specs *specs)
{
    for (size_t i = 0; i < specs->n; i++) {
        for (size_t k = 0; k < specs->all[i].names.n; k++)
            free(specs->all[i].names.items[k]);
        free(specs->all[i].names.items);
        free(specs->all[i].field);
    }
    free(specs->all);
}

static struct spec *spec_of(struct specs *specs, const char *field, size_t len)
{
    for (size_t i = 0; i < specs->n; i++)
        if (strlen(specs->all[i].field) == len && !memcmp(specs->all[i].field, field, len))
            return &specs->all[i];
    s2s_grow(&specs->all, specs->n, &specs->cap, sizeof *specs->all);
    struct spec *spec = &specs->all[specs->n++];
    *spec = (struct spec){.field = s2s_xstrndup(field, len)};
    return spec;
}

static void add_name(struct names *names, char *name)
{
    names->items = s2s_xrealloc(names->items, names->n + 1, sizeof *names->items);
    names->items[names->n++] = name;
}

static bool is_lines(const char *name)
{
    return strstr(name, ".jsonl") != NULL;
}

static bool is_tar(const char *name)
{
    return strstr(name, ".tar") != NULL;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* All files of a folder, by field, sorted. */
static int add_folder(struct specs *specs, const char *path, struct s2s_error *err)
{
    DIR *dir = opendir(path);
    const struct dirent *entry;
    struct specs here = {.n = 0};
    if (!dir) {
        const bool is_file = errno == ENOTDIR;
        int rc = s2s_error_errno(err, S2S_E_OPEN, "%s: cannot open", path);
        return is_file ? s2s_error_hint(err, rc,
                                        "--shar takes a folder, or files as FIELD=F; --cuts takes "
                                        "lines of cuts, --tar the tars of WebDataset")
                       : rc;
    }
    while ((entry = readdir(dir))) {
        const size_t len = strcspn(entry->d_name, ".");
        if (len == 0 || (!is_lines(entry->d_name) && !is_tar(entry->d_name)))
            continue;
        struct names *names = &spec_of(&here, entry->d_name, len)->names;
        add_name(names, s2s_xasprintf("%s/%s", path, entry->d_name));
    }
    closedir(dir);
    for (size_t i = 0; i < here.n; i++) {
        struct names *from = &here.all[i].names;
        struct spec *to = spec_of(specs, here.all[i].field, strlen(here.all[i].field));
        qsort(from->items, from->n, sizeof *from->items, by_name);
        for (size_t k = 0; k < from->n; k++)
            add_name(&to->names, from->items[k]);
        from->n = 0;
    }
    if (here.n == 0) {
        int rc = s2s_error_set(err, S2S_E_NOTFOUND, "%s: has no shard of cuts", path);
        release_specs(&here);
        return s2s_error_hint(err, rc,
                              "cuts.000000.jsonl.gz is expected, as lhotse shar writes it");
    }
    release_specs(&here);
    return 0;
}

static int add_spec(struct specs *specs, const char *text, struct s2s_error *err)
{
    const size_t len =
        strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_");
    if (len == 0 || text[len] != '=')
        return add_folder(specs, text, err);
    struct names *names = &spec_of(specs, text, len)->names;
    return s2s_data_expand(&names->items, &names->n, text + len + 1, err);
}

/* ---- walking ---- */

/* -1: there are too many kinds. */
static int suffix_of(struct shar_source *s, const char *name)
{
    const char *slash = strrchr(name, '/'), *dot = strrchr(slash ? slash : name, '.');
    const char *suffix = dot ? dot : "";
    for (size_t i = 0; i < s->n_suffixes; i++)
        if (!strcmp(s->suffixes[i], suffix))
            return (int)i;
    if (s->n_suffixes == MAX_SUFFIXES)
        return -1;
    s->suffixes[s->n_suffixes] = s2s_xstrdup(suffix);
    return (int)s->n_suffixes++;
}

/* Finds all pairs of a tar, so that what loads them needs not walk. */
static int find_pairs(struct shar_source *s, struct sounds *sounds, struct s2s_error *err)
{
    struct s2s_members *tar;
    struct s2s_member member;
    int rc = sounds->tar ? 0 : s2s_members_open(&sounds->tar, sounds->path, err);
    if (rc < 0)
        return rc == S2S_E_OPEN ? err->code = S2S_E_NOTFOUND : rc;
    rc = s2s_members_share(&tar, sounds->tar, err);
    if (rc < 0)
        return rc;
    while ((rc = s2s_members_next(tar, &member, err)) > 0) {
        struct pair pair = {.data = member.at, .suffix = -1};
        if (!s2s_ends_with(member.name, ".nodata"))
            pair.suffix = suffix_of(s, member.name);
        rc = s2s_members_next(tar, &member, err);
        if (rc == 0)
            rc = s2s_error_set(err, S2S_E_FORMAT,
                               "%s: its last member lacks the description behind it", sounds->path);
        if (rc < 0)
            break;
        pair.meta = member.at;
        s2s_grow(&sounds->pairs, sounds->n_pairs, &sounds->cap_pairs, sizeof *sounds->pairs);
        sounds->pairs[sounds->n_pairs++] = pair;
    }
    s2s_members_close(tar);
    return rc;
}

static void find_lines(struct field *field)
{
    struct s2s_line line = {.number = 0};
    while (s2s_lines_next(&field->lines, &line)) {
        s2s_grow(&field->at, field->n, &field->cap, sizeof *field->at);
        field->at[field->n++] = line.begin;
    }
}

static struct s2s_walk *begin(struct s2s_source *base)
{
    struct shar_walk *w = s2s_xcalloc(1, sizeof *w);
    w->base.source = base;
    return &w->base;
}

static void begin_shard(struct shar_walk *w, struct shar_source *s)
{
    struct shard *shard = &s->shards[w->order[w->idx]];
    struct s2s_error fault = S2S_ERROR_INIT;
    int rc = 0;
    for (size_t i = 0; !shard->is_walked && i < shard->n_fields; i++)
        find_lines(&shard->fields[i]);
    for (size_t i = 0; !shard->is_walked && rc == 0 && i < N_SOUNDS; i++)
        if (shard->sounds[i].path)
            rc = find_pairs(s, &shard->sounds[i], &fault);
    shard->is_walked = true;
    if (rc < 0) {
        w->fault = s2s_xmalloc(sizeof *w->fault);
        *w->fault = fault;
    }
    w->line = (struct s2s_line){.number = 0};
    data_slice_begin(&w->slice, s->slice_length,
                     s->slice_length > 0 ? s2s_lines_count(&shard->cuts) : 0, &w->random);
    w->in_shard = true;
}

/* How many cuts the shortest field has. */
static size_t n_of(const struct shard *shard)
{
    size_t n = SIZE_MAX;
    for (size_t i = 0; i < N_SOUNDS; i++)
        if (shard->sounds[i].path && shard->sounds[i].n_pairs < n)
            n = shard->sounds[i].n_pairs;
    for (size_t i = 0; i < shard->n_fields; i++)
        n = shard->fields[i].n < n ? shard->fields[i].n : n;
    return n;
}

static bool next_of_shard(struct shar_walk *w, const struct shar_source *s, struct s2s_place *place)
{
    const struct shard *shard = &s->shards[w->order[w->idx]];
    while ((size_t)w->slice.n_seen < n_of(shard) && s2s_lines_next(&shard->cuts, &w->line)) {
        const size_t idx = (size_t)w->slice.n_seen;
        if (data_slice_skips(&w->slice))
            continue;
        if (data_slice_is_full(&w->slice))
            return false;
        w->slice.n_taken++;
        *place = (struct s2s_place){
            .at = w->line.begin, .line = w->line.number, .part = w->order[w->idx], .member = idx};
        return true;
    }
    return false;
}

/* The shard's fault, if its tar had one; where a field is shorter than another, a warning. */
static int end_shard(struct shar_walk *w, struct shar_source *s, struct s2s_error *err)
{
    const struct shard *shard = &s->shards[w->order[w->idx]];
    struct s2s_line rest = w->line;
    int rc = 0;
    if (w->fault) {
        *err = *w->fault;
        rc = err->code;
    } else if (s->slice_length == 0 && s2s_lines_next(&shard->cuts, &rest)) {
        s2s_warn("data", "%s: has more cuts than %s: those from line %lld on are left out",
                 shard->cuts.path,
                 shard->sounds[HEARD].path ? shard->sounds[HEARD].path : "its fields",
                 (long long)rest.number);
    }
    free(w->fault);
    w->fault = NULL;
    w->in_shard = false;
    w->idx++;
    s->epoch += w->idx == s->n_shards;
    return rc;
}

static int next(struct s2s_walk *base, struct s2s_place *place, struct s2s_error *err)
{
    struct shar_walk *w = (struct shar_walk *)base;
    struct shar_source *s = (struct shar_source *)base->source;
    if (!w->order) {
        w->order = data_shard_order(&w->random, s->n_shards, s->seed + s->epoch, s->shuffle);
        /* what slices draw begins anew, with the same seed as the order */
        s2s_pyrandom_seed(&w->random, s->seed + s->epoch);
    }
    while (w->idx < s->n_shards) {
        if (!w->in_shard)
            begin_shard(w, s);
        if (next_of_shard(w, s, place))
            return 1;
        int rc = end_shard(w, s, err);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static void end(struct s2s_walk *base)
{
    struct shar_walk *w = (struct shar_walk *)base;
    free(w->order);
    free(w->fault);
    free(w);
}

/* ---- loading ---- */

/* A field of lines: {"cut_id": .., FIELD: ..} sets it, and without FIELD leaves it. */
static int take_line(json_t *cut, const struct field *field, size_t idx, struct s2s_error *err)
{
    static const char *const own[] = {"recording", "supervisions", "features", "channel"};
    const struct s2s_line line = s2s_lines_at(&field->lines, field->at[idx], (int64_t)idx + 1);
    json_t *object = data_load_object(&line, err);
    json_t *to = cut, *value = json_object_get(object, field->name);
    const char *id = json_string_value(json_object_get(object, "cut_id"));
    const char *cut_id = json_string_value(json_object_get(cut, "id"));
    bool is_own = false;
    int rc = 0;
    if (!object)
        return s2s_error_add(err, S2S_E_FORMAT, "%s:%zu", field->lines.path, idx + 1);
    if (!id || !cut_id || strcmp(id, cut_id) != 0)
        rc = s2s_error_set(err, S2S_E_FORMAT, "%s:%zu is about cut '%s', not '%s'",
                           field->lines.path, idx + 1, id ? id : "", cut_id ? cut_id : "");
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        is_own |= !strcmp(field->name, own[i]);
    if (rc == 0 && value && !is_own) {
        to = json_object_get(cut, "custom");
        if (!json_is_object(to)) {
            to = json_object();
            json_object_set_new(cut, "custom", to);
        }
    }
    if (rc == 0 && value)
        json_object_set(to, field->name, value);
    json_decref(object);
    return rc;
}

/* The description behind the data takes the place of the recording in the cut. */
static int take_meta(json_t *cut, const char *field, const struct sounds *sounds,
                     const struct pair *pair, const char *id, struct s2s_error *err)
{
    char *name = s2s_xasprintf("%s.json", id);
    void *bytes = NULL;
    size_t len = 0;
    json_error_t at;
    int rc = s2s_members_read(sounds->tar, pair->meta, name, &bytes, &len, err);
    free(name);
    if (rc < 0)
        return s2s_error_hint(err, rc, "its members are not those of the cuts, in their order");
    json_t *meta = json_loadb(bytes, len, JSON_REJECT_DUPLICATES, &at), *to = cut;
    free(bytes);
    if (!json_is_object(meta)) {
        json_decref(meta);
        return s2s_error_set(err, S2S_E_FORMAT, "%s: the description of '%s' is no JSON object",
                             sounds->path, id);
    }
    if (strcmp(field, "recording") != 0) {
        to = json_object_get(cut, "custom");
        if (!json_is_object(to)) {
            to = json_object();
            json_object_set_new(cut, "custom", to);
        }
    }
    json_object_set_new(to, field, meta);
    return 0;
}

/* The first recording of the cut that has no sound yet. */
static struct s2s_sound *placeholder(const struct s2s_cut *cut)
{
    for (size_t i = 0; i < cut->n_tracks; i++) {
        const struct s2s_recording *r = cut->tracks[i].recording;
        if (r && !r->sources[0].sound.path && !r->sources[0].sound.bytes)
            return &r->sources[0].sound;
    }
    return NULL;
}

static int put_sound(struct s2s_cut *cut, const struct shar_source *s, const struct sounds *sounds,
                     const struct pair *pair, struct s2s_error *err)
{
    struct s2s_sound *sound = placeholder(cut);
    if (!sound)
        return s2s_error_set(err, S2S_E_FORMAT, "%s: what it describes is no recording of Shar",
                             sounds->path);
    free(sound->source);
    sound->source = s2s_xasprintf("%s%s", cut->id, s->suffixes[pair->suffix]);
    sound->path = s2s_xstrdup(sounds->path);
    sound->tar = sounds->tar;
    sound->at = pair->data;
    return 0;
}

/* The cut with one of its sounds, described by json so far as it is not in a tar. */
static int make_cut(struct s2s_cut **cut, const struct shar_source *s, json_t *json, int which,
                    const struct s2s_place *place, struct s2s_error *err)
{
    const struct shard *shard = &s->shards[place->part];
    const struct sounds *sounds = &shard->sounds[which];
    const struct pair *pair = sounds->path ? &sounds->pairs[place->member] : NULL;
    const char *id = json_string_value(json_object_get(json, "id")),
               *field = s->sound_fields[which];
    int rc = 0;
    pair = pair && pair->suffix >= 0 ? pair : NULL;
    if (pair)
        rc = take_meta(json, field, sounds, pair, id ? id : "", err);
    if (rc == 0)
        rc = s2s_cut_parse(cut, json, field, shard->cuts.path, err);
    if (rc < 0 || !pair)
        return rc;
    rc = put_sound(*cut, s, sounds, pair, err);
    if (rc < 0)
        s2s_cut_free(*cut);
    return rc;
}

/* What makes a part of a cut of its description. */
struct part_context {
    const struct shar_source *source;
    const struct s2s_place *place;
};

static int make_part(struct s2s_cut **cut, json_t *json, void *ctx, struct s2s_error *err)
{
    const struct part_context *part = ctx;
    return make_cut(cut, part->source, json, HEARD, part->place, err);
}

/* The cut of a window goes by a name of its own, and its sound by that of the whole. Returns the
 * number of windows. */
static int load_window(struct s2s_cut **heard, const struct shar_source *s, json_t *json,
                       const struct s2s_place *place, struct s2s_error *err)
{
    json_t *whole = json_incref(json_object_get(json, "id"));
    int n = data_window_cut(json, &s->opt.window, place->variant, err);
    json_t *part = json_incref(json_object_get(json, "id"));
    json_object_set(json, "id", whole);
    int rc = n < 0 ? n : make_cut(heard, s, json, HEARD, place, err);
    if (rc == 0 && part != whole) {
        free((*heard)->id);
        (*heard)->id = s2s_xstrdup(json_string_value(part));
    }
    json_decref(whole);
    json_decref(part);
    return rc < 0 ? rc : n;
}

static int load_cut(const struct shar_source *s, struct s2s_sample *sample, json_t *json,
                    const struct s2s_place *place, struct s2s_error *err)
{
    const struct shard *shard = &s->shards[place->part];
    struct s2s_cut *heard, *said;
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < shard->n_fields; i++)
        rc = take_line(json, &shard->fields[i], place->member, err);
    if (rc == 0 && s->opt.as_turns) {
        struct part_context part = {s, place};
        const struct data_cut_maker maker = {make_part, &part};
        return data_turns_of_cut(sample, json, &s->opt.turns, &maker, err);
    }
    if (rc == 0 && !s->sound_fields[SAID]) {
        const int n = load_window(&heard, s, json, place, err);
        rc = n < 0 ? n : s2s_sample_of_cut(sample, json, heard, err);
        return rc < 0 ? rc : n;
    }
    if (rc == 0)
        rc = make_cut(&heard, s, json, HEARD, place, err);
    if (rc < 0)
        return rc;
    rc = make_cut(&said, s, json, SAID, place, err);
    if (rc == 0)
        return s2s_sample_of_duplex(sample, json, heard, said, err);
    s2s_cut_free(heard);
    return rc;
}

static int load(const struct s2s_source *base, struct s2s_sample *sample,
                const struct s2s_place *place, struct s2s_error *err)
{
    const struct shar_source *s = (const struct shar_source *)base;
    const struct s2s_line line = s2s_lines_at(&s->shards[place->part].cuts, place->at, place->line);
    *sample = (struct s2s_sample)S2S_SAMPLE_INIT;
    json_t *json = data_load_object(&line, err);
    if (!json)
        return S2S_E_FORMAT;
    int rc = load_cut(s, sample, json, place, err);
    json_decref(json);
    if (rc > 0 && !sample->text && !sample->is_duplex)
        rc = s2s_error_set(err, S2S_E_FORMAT, "sample '%s' has no text", sample->id);
    if (rc > 0)
        s2s_sample_tag(sample, s->opt.tags, false);
    else
        s2s_sample_release(sample);
    return rc;
}

static char *where(const struct s2s_source *base, const struct s2s_place *place)
{
    const struct shar_source *s = (const struct shar_source *)base;
    return s2s_xasprintf("%s:%lld", s->shards[place->part].cuts.path, (long long)place->line);
}

static bool digest(const struct s2s_source *base, size_t k, char hex[33])
{
    const struct shar_source *s = (const struct shar_source *)base;
    if (k >= s->n_shards)
        return false;
    s2s_xxh3_128_hex(hex, s->shards[k].cuts.data, s->shards[k].cuts.len);
    return true;
}

/* ---- opening ---- */

static void close_shar(struct s2s_source *base)
{
    struct shar_source *s = (struct shar_source *)base;
    for (size_t i = 0; i < s->n_shards; i++) {
        struct shard *shard = &s->shards[i];
        for (size_t k = 0; k < shard->n_fields; k++) {
            s2s_lines_close(&shard->fields[k].lines);
            free(shard->fields[k].name);
            free(shard->fields[k].at);
        }
        s2s_lines_close(&shard->cuts);
        for (size_t k = 0; k < N_SOUNDS; k++) {
            s2s_members_close(shard->sounds[k].tar);
            free(shard->sounds[k].path);
            free(shard->sounds[k].pairs);
        }
        free(shard->fields);
    }
    for (size_t i = 0; i < s->n_suffixes; i++)
        free(s->suffixes[i]);
    free(s->shards);
    for (size_t i = 0; i < N_SOUNDS; i++)
        free(s->sound_fields[i]);
    data_drop_lists(&s->opt);
    free(s);
}

static const struct s2s_source_kind kind_of_shar = {begin, next,   end,       load,
                                                    where, digest, close_shar};

static int open_field(struct shar_source *s, const struct spec *spec, struct s2s_error *err)
{
    int rc = 0;
    if (spec->names.n != s->n_shards)
        return s2s_error_set(err, S2S_E_SHAPE, "%zu shards of cuts and %zu of %s", s->n_shards,
                             spec->names.n, spec->field);
    for (size_t i = 0; rc == 0 && i < s->n_shards; i++) {
        struct shard *shard = &s->shards[i];
        if (is_lines(spec->names.items[i])) {
            shard->fields = s2s_xrealloc(shard->fields, shard->n_fields + 1, sizeof *shard->fields);
            struct field *field = &shard->fields[shard->n_fields];
            *field = (struct field){.name = s2s_xstrdup(spec->field)};
            shard->n_fields++;
            rc = s2s_lines_open(&field->lines, spec->names.items[i], err);
        }
        for (size_t k = 0; k < N_SOUNDS && !is_lines(spec->names.items[i]); k++)
            if (s->sound_fields[k] && !strcmp(spec->field, s->sound_fields[k]))
                shard->sounds[k].path = s2s_xstrdup(spec->names.items[i]);
    }
    return rc;
}

static int open_shards(struct shar_source *s, const struct specs *specs, struct s2s_error *err)
{
    const struct spec *cuts = NULL;
    int rc = 0;
    for (size_t i = 0; i < specs->n; i++)
        cuts = strcmp(specs->all[i].field, "cuts") ? cuts : &specs->all[i];
    if (!cuts || cuts->names.n == 0)
        return s2s_error_set(err, S2S_E_NOTFOUND, "Shar without a shard of cuts");
    s->shards = s2s_xcalloc(cuts->names.n, sizeof *s->shards);
    while (rc == 0 && s->n_shards < cuts->names.n) {
        rc = s2s_lines_open(&s->shards[s->n_shards].cuts, cuts->names.items[s->n_shards], err);
        s->n_shards += rc == 0;
    }
    for (size_t i = 0; rc == 0 && i < specs->n; i++)
        if (&specs->all[i] != cuts)
            rc = open_field(s, &specs->all[i], err);
    return rc;
}

int s2s_source_open_shar(struct s2s_source **source, const char *const *specs, size_t n_specs,
                         const struct s2s_source_options *opt, struct s2s_error *err)
{
    struct shar_source *s = s2s_xcalloc(1, sizeof *s);
    struct specs all = {.n = 0};
    int rc = 0;
    s->base.kind = &kind_of_shar;
    s->sound_fields[HEARD] = s2s_xstrdup(opt->audio_field ? opt->audio_field : "recording");
    s->sound_fields[SAID] = opt->said_field ? s2s_xstrdup(opt->said_field) : NULL;
    s->shuffle = opt->shuffle;
    s->seed = opt->seed;
    s->slice_length = opt->slice_length;
    s->opt = *opt;
    data_keep_lists(&s->opt);
    for (size_t i = 0; rc == 0 && i < n_specs; i++)
        rc = add_spec(&all, specs[i], err);
    if (rc == 0)
        rc = open_shards(s, &all, err);
    release_specs(&all);
    if (rc == 0)
        *source = &s->base;
    else
        close_shar(&s->base);
    return rc;
}

size_t s2s_shar_n_cuts(const struct s2s_source *source)
{
    const struct shar_source *s = (const struct shar_source *)source;
    size_t n = 0;
    for (size_t i = 0; i < s->n_shards; i++)
        n += s2s_lines_count(&s->shards[i].cuts);
    return n;
}
