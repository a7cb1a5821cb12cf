/* Makes a blend of the input_cfg of a NeMo config. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/base.h"
#include "lib/conf/conf.h"
#include "lib/data/blend.h"
#include "lib/data/expand.h"
#include "lib/data/lines.h"
#include "lib/data/spool.h"
#include "lib/data/tar_source.h"
#include "lib/data/shar.h"

enum { MAX_DEPTH = 32 };

/* What flows down to the items of a group. */
struct attributes {
    struct s2s_source_options source; /* text_field, lang_field, shuffle, seed, .. */
    bool force_finite, force_one_kind;
    size_t max_open; /* streams; 0: all */
    json_t *tags;    /* those of the groups above, which win over an item's; owned, may be NULL */
};

struct reader {
    const struct s2s_blend_options *opt;
    double *temperatures; /* [n_temperatures]; one: of all levels */
    size_t n_temperatures;
    size_t depth, deepest; /* levels of lists */
    struct s2s_error *err;
};

/* A node, and what must be the same for all items of a level. */
struct item {
    struct s2s_blend_node *node;
    bool is_tarred;
};

/* ---- values ---- */

static int fail(const struct reader *r, int code, const struct s2s_conf *node, const char *what)
{
    return s2s_conf_error(r->err, code, node, "%s", what);
}

/* shard_seed: a number, or a word that stands for the seed of the run. */
static int get_seed(uint64_t *seed, const struct s2s_conf *conf, const struct reader *r)
{
    const struct s2s_conf *node = s2s_conf_key(conf, "shard_seed");
    int64_t value = 0;
    if (!node || node->kind == S2S_CONF_NULL)
        return 0;
    if (node->kind == S2S_CONF_STRING &&
        (!strcmp(node->text, "trng") || !strcmp(node->text, "randomized"))) {
        *seed = r->opt->source.seed;
        return 0;
    }
    int rc = s2s_conf_as_i64(&value, node, 0, INT64_MAX, r->err);
    if (rc == 0)
        *seed = (uint64_t)value;
    return rc;
}

static int get_attributes(struct attributes *a, const struct s2s_conf *conf, const struct reader *r)
{
    struct s2s_error *err = r->err;
    struct s2s_source_options *s = &a->source;
    bool map = false, iterable = false, finite = a->force_finite;
    int64_t max_open = (int64_t)a->max_open;
    int rc = get_seed(&s->seed, conf, r);
    if (rc == 0)
        rc = s2s_conf_get_bool_or(&s->shuffle, conf, "shuffle", s->shuffle, err);
    if (rc == 0)
        rc = s2s_conf_get_str_or(&s->text_field, conf, "text_field", s->text_field, err);
    if (rc == 0)
        rc = s2s_conf_get_str_or(&s->lang_field, conf, "lang_field", s->lang_field, err);
    if (rc == 0)
        rc = s2s_conf_get_bool_or(&finite, conf, "force_finite", finite, err);
    if (rc == 0)
        rc = s2s_conf_get_bool_or(&map, conf, "force_map_dataset", false, err);
    if (rc == 0)
        rc = s2s_conf_get_bool_or(&iterable, conf, "force_iterable_dataset", false, err);
    if (rc == 0)
        rc = s2s_conf_get_bool_or(&s->skip_missing, conf, "skip_missing_manifest_entries",
                                  s->skip_missing, err);
    if (rc == 0)
        rc = s2s_conf_get_i64_or(&s->slice_length, conf, "slice_length", 1, INT32_MAX,
                                 s->slice_length, err);
    if (rc == 0)
        rc = s2s_conf_get_i64_or(&max_open, conf, "max_open_streams", 1, INT32_MAX, max_open, err);
    a->force_finite = finite;
    a->force_one_kind |= map || iterable;
    a->max_open = (size_t)max_open;
    return rc;
}

static json_t *json_of(const struct s2s_conf *node)
{
    struct s2s_buf text = S2S_BUF_INIT;
    s2s_conf_dump_json(&text, node);
    json_t *json = json_loadb(text.data ? text.data : "", text.len, JSON_DECODE_ANY, NULL);
    s2s_buf_release(&text);
    return json ? json : json_null();
}

/* The tags of an item under those of the groups above it. */
static int add_tags(struct attributes *a, const struct s2s_conf *conf, const struct reader *r)
{
    const struct s2s_conf *map;
    int rc = s2s_conf_get_map(&map, conf, "tags", r->err);
    if (rc < 0 || (!map && !a->tags))
        return rc;
    json_t *tags = json_object();
    for (size_t i = 0; map && i < map->n_items; i++)
        json_object_set_new(tags, map->items[i]->key, json_of(map->items[i]));
    if (a->tags)
        json_object_update(tags, a->tags);
    a->tags = tags;
    return 0;
}

/* ---- names of files ---- */

struct names {
    char **items;
    size_t n;
};

static void names_release(struct names *names)
{
    for (size_t i = 0; i < names->n; i++)
        free(names->items[i]);
    free(names->items);
}

static int add_names(struct names *names, const struct s2s_conf *node, const struct reader *r)
{
    const char *text;
    int rc = s2s_conf_as_str(&text, node, r->err);
    if (rc < 0)
        return rc;
    if (s2s_spool_is_pipe(text) && !r->opt->run_pipes) {
        rc = fail(r, S2S_E_UNSUPPORTED, node, "commands of a config are not run unasked");
        return s2s_error_hint(r->err, rc, "--run-pipes runs those of this file");
    }
    return s2s_data_expand(&names->items, &names->n, text, r->err);
}

/* A name, a list of names, or lists of one name. */
static int get_names(struct names *names, const struct s2s_conf *node, const struct reader *r)
{
    int rc = 0;
    if (node->kind != S2S_CONF_LIST)
        return add_names(names, node, r);
    for (size_t i = 0; rc == 0 && i < node->n_items; i++)
        rc = get_names(names, node->items[i], r);
    return rc;
}

static const struct s2s_conf *need(const struct s2s_conf *conf, const char *key, int *rc,
                                   const struct reader *r)
{
    const struct s2s_conf *node = s2s_conf_key(conf, key);
    if (node && node->kind != S2S_CONF_NULL)
        return node;
    *rc = s2s_conf_error(r->err, S2S_E_NOTFOUND, conf, "'%s' is missing", key);
    return NULL;
}

/* ---- leaves ---- */

static int open_lines(struct s2s_source **leaf, enum s2s_lines_kind kind, const struct names *paths,
                      const struct attributes *a, const struct reader *r)
{
    struct s2s_source_options opt = a->source;
    opt.tags = a->tags;
    return s2s_source_open_lines(leaf, kind, (const char *const *)paths->items, paths->n, &opt,
                                 r->err);
}

/* Manifests, perhaps with their tars. */
static int open_manifests(struct s2s_source **leaf, enum s2s_lines_kind kind,
                          const struct names *paths, const struct names *tars,
                          const struct attributes *a, const struct reader *r)
{
    struct s2s_source_options opt = a->source;
    if (tars->n == 0)
        return open_lines(leaf, kind, paths, a, r);
    opt.tags = a->tags;
    return s2s_source_open_tars(leaf, kind, (const char *const *)paths->items, paths->n,
                                (const char *const *)tars->items, tars->n, &opt, r->err);
}

/* Lines of files: the weight of a manifest that was given none. */
static int count_lines(double *n, const struct names *paths, const struct reader *r)
{
    int rc = 0;
    *n = 0;
    for (size_t i = 0; rc == 0 && i < paths->n; i++) {
        struct s2s_lines lines;
        rc = s2s_lines_open(&lines, paths->items[i], r->err);
        if (rc < 0)
            break;
        *n += (double)s2s_lines_count(&lines);
        s2s_lines_close(&lines);
    }
    return rc;
}

/* One entry of the older form: [path], [path, weight] or path, with its tars. */
static int add_weighted(struct s2s_blend_node *mux, const struct s2s_conf *entry,
                        const struct s2s_conf *tar, const struct attributes *a,
                        const struct reader *r)
{
    struct names paths = {.n = 0}, tars = {.n = 0};
    struct s2s_source *leaf = NULL;
    const bool is_list = entry->kind == S2S_CONF_LIST;
    double weight = 0;
    int rc = is_list && entry->n_items != 1 && entry->n_items != 2
                 ? fail(r, S2S_E_FORMAT, entry, "expected [path] or [path, weight]")
                 : add_names(&paths, is_list ? entry->items[0] : entry, r);
    if (rc == 0 && tar)
        rc = get_names(&tars, tar, r);
    if (rc == 0 && is_list && entry->n_items == 2)
        rc = s2s_conf_as_f64(&weight, entry->items[1], r->err);
    else if (rc == 0)
        rc = count_lines(&weight, &paths, r);
    if (rc == 0 && !(weight >= 0 && isfinite(weight)))
        rc = fail(r, S2S_E_RANGE, entry, "a weight is at least 0");
    /* with few open streams each shard is one: the draw among them is finer */
    const bool by_shard = a->max_open > 0 && tars.n > 1 && paths.n == tars.n;
    for (size_t i = 0; rc == 0 && i < (by_shard ? tars.n : 1); i++) {
        const struct names one = {&paths.items[i], 1}, its_tar = {&tars.items[i], 1};
        rc = open_manifests(&leaf, S2S_LINES_NEMO, by_shard ? &one : &paths,
                            by_shard ? &its_tar : &tars, a, r);
        if (rc == 0)
            s2s_blend_add(mux, s2s_blend_leaf(leaf), weight);
    }
    names_release(&paths);
    names_release(&tars);
    return rc;
}

/* What is not finite repeats its items; a mux of one item is that item. */
static void end_mux(struct s2s_blend_node **node, const struct attributes *a)
{
    struct s2s_blend_node *mux = *node;
    if (a->max_open > 0) {
        mux->kind = S2S_BLEND_OPEN_MUX;
        mux->max_open = a->max_open;
        return;
    }
    for (size_t i = 0; i < mux->n_items; i++)
        mux->items[i]->repeat |= !a->force_finite;
    if (mux->n_items == 1)
        s2s_blend_unwrap(node);
}

/* manifest_filepath as a list: a mux of manifests, weighted by their lines if not otherwise. */
static int read_weighted(struct item *item, const struct s2s_conf *list,
                         const struct s2s_conf *tars, const struct attributes *a,
                         const struct reader *r)
{
    int rc = 0;
    item->node = s2s_blend_mux(a->source.seed);
    if (list->n_items == 0)
        rc = fail(r, S2S_E_FORMAT, list, "an empty list");
    if (rc == 0 && tars && (tars->kind != S2S_CONF_LIST || tars->n_items != list->n_items))
        rc = fail(r, S2S_E_SHAPE, tars, "expected a list as long as manifest_filepath");
    for (size_t i = 0; rc == 0 && i < list->n_items; i++)
        rc = add_weighted(item->node, list->items[i], tars ? tars->items[i] : NULL, a, r);
    if (rc == 0)
        end_mux(&item->node, a);
    return rc;
}

/* ---- Shar ---- */

/* A folder, or a map of fields to the names of their shards: as s2s_source_open_shar takes them. */
static int add_shar_specs(struct names *specs, const struct s2s_conf *node, const struct reader *r)
{
    struct names files = {.n = 0};
    int rc = 0;
    if (node->kind != S2S_CONF_MAP) {
        const char *folder;
        rc = s2s_conf_as_str(&folder, node, r->err);
        if (rc < 0)
            return rc;
        specs->items = s2s_xrealloc(specs->items, specs->n + 1, sizeof *specs->items);
        specs->items[specs->n++] = s2s_xstrdup(folder);
        return 0;
    }
    for (size_t i = 0; rc == 0 && i < node->n_items; i++) {
        const size_t before = files.n;
        rc = get_names(&files, node->items[i], r);
        for (size_t k = before; k < files.n; k++) {
            specs->items = s2s_xrealloc(specs->items, specs->n + 1, sizeof *specs->items);
            specs->items[specs->n++] = s2s_xasprintf("%s=%s", node->items[i]->key, files.items[k]);
        }
    }
    names_release(&files);
    return rc;
}

static int open_shar(struct s2s_source **leaf, const struct s2s_conf *node,
                     const struct attributes *a, const struct reader *r)
{
    struct s2s_source_options opt = a->source;
    struct names specs = {.n = 0};
    opt.tags = a->tags;
    opt.shuffle = true; /* as upstream, always */
    int rc = add_shar_specs(&specs, node, r);
    if (rc == 0)
        rc = s2s_source_open_shar(leaf, (const char *const *)specs.items, specs.n, &opt, r->err);
    names_release(&specs);
    return rc;
}

/* One of a list: a folder, [folder], [folder, weight]; without a weight as many as it has cuts. */
static int add_shar(struct s2s_blend_node *mux, const struct s2s_conf *entry,
                    const struct attributes *a, const struct reader *r)
{
    const bool is_list = entry->kind == S2S_CONF_LIST;
    struct s2s_source *leaf = NULL;
    double weight = 0;
    int rc = is_list && entry->n_items != 1 && entry->n_items != 2
                 ? fail(r, S2S_E_FORMAT, entry, "expected [folder] or [folder, weight]")
                 : open_shar(&leaf, is_list ? entry->items[0] : entry, a, r);
    if (rc < 0)
        return rc;
    weight = (double)s2s_shar_n_cuts(leaf);
    if (is_list && entry->n_items == 2)
        rc = s2s_conf_as_f64(&weight, entry->items[1], r->err);
    if (rc == 0 && !(weight >= 0 && isfinite(weight)))
        rc = fail(r, S2S_E_RANGE, entry, "a weight is at least 0");
    if (rc == 0)
        s2s_blend_add(mux, s2s_blend_leaf(leaf), weight);
    else
        s2s_source_close(leaf);
    return rc;
}

static int read_shar(struct item *item, const struct s2s_conf *conf, const struct attributes *a,
                     const struct reader *r)
{
    int rc = 0;
    const struct s2s_conf *from = need(conf, "shar_path", &rc, r);
    if (rc < 0)
        return rc;
    item->is_tarred = true;
    if (from->kind == S2S_CONF_LIST) {
        item->node = s2s_blend_mux(a->source.seed);
        if (from->n_items == 0)
            rc = fail(r, S2S_E_FORMAT, from, "an empty list");
        for (size_t i = 0; rc == 0 && i < from->n_items; i++)
            rc = add_shar(item->node, from->items[i], a, r);
        if (rc == 0)
            end_mux(&item->node, a);
        return rc;
    }
    struct s2s_source *leaf = NULL;
    rc = open_shar(&leaf, from, a, r);
    if (rc == 0) {
        item->node = s2s_blend_leaf(leaf);
        item->node->repeat = !a->force_finite;
    }
    return rc;
}

/* ---- files ---- */

/* How the types of items are read. */
struct type {
    const char *name, *paths; /* key of its files */
    enum s2s_lines_kind kind;
    bool takes_tars, text; /* text counts as tarred, as upstream has it */
};

static const struct type types[] = {
    {"nemo", "manifest_filepath", S2S_LINES_NEMO, true, false},
    {"nemo_tarred", "manifest_filepath", S2S_LINES_NEMO, true, false},
    {"lhotse", "cuts_path", S2S_LINES_CUTS, false, false},
    {"lhotse_as_conversation", "cuts_path", S2S_LINES_CUTS, false, false},
    {"s2s_as_conversation", "cuts_path", S2S_LINES_TURNS, false, false},
    {"multimodal_conversation", "manifest_filepath", S2S_LINES_CONVERSATION, true, true},
    {"share_gpt", "manifest_filepath", S2S_LINES_SHARE_GPT, true, true},
    {"nemo_sft_jsonl", "paths", S2S_LINES_SFT, false, true},
    {"txt", "paths", S2S_LINES_TEXT, false, true},
    {"txt_jsonl", "paths", S2S_LINES_TEXT_JSONL, false, true},
};

static int read_leaf(struct item *item, const struct s2s_conf *conf, const struct type *type,
                     const struct attributes *a, const struct reader *r)
{
    struct names paths = {.n = 0}, tars = {.n = 0};
    struct s2s_source *leaf = NULL;
    int rc = 0;
    const struct s2s_conf *from = need(conf, type->paths, &rc, r);
    const struct s2s_conf *tar = s2s_conf_key(conf, "tarred_audio_filepaths");
    if (rc < 0)
        return rc;
    tar = tar && tar->kind != S2S_CONF_NULL && type->takes_tars ? tar : NULL;
    if (!tar && !strcmp(type->name, "nemo_tarred"))
        need(conf, "tarred_audio_filepaths", &rc, r);
    item->is_tarred = type->text || tar;
    if (rc == 0 && type->kind == S2S_LINES_NEMO && from->kind == S2S_CONF_LIST)
        return read_weighted(item, from, tar, a, r);
    if (rc == 0)
        rc = get_names(&paths, from, r);
    if (rc == 0 && tar)
        rc = get_names(&tars, tar, r);
    if (rc == 0)
        rc = open_manifests(&leaf, type->kind, &paths, &tars, a, r);
    if (rc == 0) {
        item->node = s2s_blend_leaf(leaf);
        item->node->repeat = item->is_tarred && !a->force_finite;
    }
    names_release(&paths);
    names_release(&tars);
    return rc;
}

/* Files of questions and of answers, line by line. */
static int read_pairs(struct item *item, const struct s2s_conf *conf, const struct attributes *a,
                      const struct reader *r)
{
    struct names paths = {.n = 0}, answers = {.n = 0};
    struct s2s_source_options opt = a->source;
    struct s2s_source *leaf = NULL;
    int rc = 0;
    const struct s2s_conf *from = need(conf, "source_paths", &rc, r);
    const struct s2s_conf *to = rc == 0 ? need(conf, "target_paths", &rc, r) : NULL;
    opt.tags = a->tags;
    item->is_tarred = true; /* as all text */
    if (rc == 0)
        rc = get_names(&paths, from, r);
    if (rc == 0)
        rc = get_names(&answers, to, r);
    if (rc == 0 && paths.n != answers.n)
        rc = fail(r, S2S_E_SHAPE, to, "expected as many files as source_paths");
    if (rc == 0)
        rc = s2s_source_open_pairs(&leaf, (const char *const *)paths.items,
                                   (const char *const *)answers.items, paths.n, &opt, r->err);
    if (rc == 0) {
        item->node = s2s_blend_leaf(leaf);
        item->node->repeat = !a->force_finite;
    }
    names_release(&paths);
    names_release(&answers);
    return rc;
}

/* ---- levels ---- */

/* w_i^T / sum of w_j^T: T = 1 keeps the ratios, 0 makes all equal. */
static int reweight(struct s2s_blend_node *mux, const struct s2s_conf *list, const struct reader *r)
{
    const size_t level = r->n_temperatures > 1 ? r->depth - 1 : 0;
    double sum = 0;
    if (r->n_temperatures == 0)
        return 0;
    if (level >= r->n_temperatures)
        return fail(r, S2S_E_SHAPE, list,
                    "a deeper level than reweight_temperature has values for");
    for (size_t i = 0; i < mux->n_items; i++) {
        if (!(mux->weights[i] > 0))
            return fail(r, S2S_E_RANGE, list->items[i],
                        "reweight_temperature needs weights above 0");
        mux->weights[i] = pow(mux->weights[i], r->temperatures[level]);
        sum += mux->weights[i];
    }
    for (size_t i = 0; i < mux->n_items; i++)
        mux->weights[i] /= sum;
    return 0;
}

static int read_list(struct item *item, const struct s2s_conf *list, const struct attributes *a,
                     struct reader *r);

/* A list, or the name of a file with one. */
static int read_list_or_file(struct item *item, const struct s2s_conf *conf,
                             const struct attributes *a, struct reader *r)
{
    struct s2s_conf *file = NULL;
    if (conf->kind == S2S_CONF_LIST)
        return read_list(item, conf, a, r);
    if (conf->kind != S2S_CONF_STRING)
        return fail(r, S2S_E_FORMAT, conf, "expected a list of items, or the name of its file");
    int rc = s2s_conf_read(&file, conf->text, S2S_CONF_AUTO, r->err);
    if (rc == 0)
        rc = read_list_or_file(item, file, a, r);
    /* strings of options are lent by the file, but copied when a source is opened */
    s2s_conf_free(file);
    return rc;
}

/* A key that is misspelt, or has no meaning here, is told; one that changes samples is refused. */
static int check_keys(const struct s2s_conf *conf, const struct reader *r)
{
    static const char *const known[] = {"type",
                                        "weight",
                                        "tags",
                                        "input_cfg",
                                        "shuffle",
                                        "shard_seed",
                                        "text_field",
                                        "lang_field",
                                        "force_finite",
                                        "force_map_dataset",
                                        "force_iterable_dataset",
                                        "skip_missing_manifest_entries",
                                        "slice_length",
                                        "max_open_streams",
                                        "manifest_filepath",
                                        "tarred_audio_filepaths",
                                        "cuts_path",
                                        "paths",
                                        "source_paths",
                                        "target_paths",
                                        "source_language",
                                        "target_language",
                                        "shar_path",
                                        "reweight_temperature",
                                        NULL};
    for (size_t i = 0; i < conf->n_items; i++) {
        const struct s2s_conf *at = conf->items[i];
        if (!strcmp(at->key, "extra_fields") || !strcmp(at->key, "channel") ||
            !strcmp(at->key, "questions_path") || !strcmp(at->key, "input_roles") ||
            !strcmp(at->key, "output_roles"))
            return s2s_conf_error(r->err, S2S_E_UNSUPPORTED, at, "%s is not read here", at->key);
        bool is_known = false;
        for (const char *const *k = known; *k; k++)
            is_known |= strcmp(*k, at->key) == 0;
        if (is_known)
            continue;
        const char *near = s2s_conf_nearest(at->key, known);
        struct s2s_buf place = S2S_BUF_INIT;
        s2s_conf_add_place(&place, &at->place);
        s2s_warn("input-cfg", "%s: key '%s' is not known here, and ignored%s%s%s", place.data,
                 at->key, near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
        s2s_buf_release(&place);
    }
    return 0;
}

static int read_item(struct item *item, const struct s2s_conf *conf, struct attributes *a,
                     struct reader *r)
{
    const char *name;
    int rc = conf->kind == S2S_CONF_MAP ? 0 : fail(r, S2S_E_FORMAT, conf, "expected a map");
    if (rc == 0)
        rc = check_keys(conf, r);
    if (rc == 0)
        rc = s2s_conf_get_str(&name, conf, "type", r->err);
    if (rc == 0)
        rc = get_attributes(a, conf, r);
    if (rc == 0)
        rc = add_tags(a, conf, r);
    if (rc < 0)
        return rc;
    if (!strcmp(name, "group")) {
        const struct s2s_conf *list = need(conf, "input_cfg", &rc, r);
        return list ? read_list_or_file(item, list, a, r) : rc;
    }
    if (!strcmp(name, "lhotse_shar"))
        return read_shar(item, conf, a, r);
    if (!strcmp(name, "txt_pair"))
        return read_pairs(item, conf, a, r);
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (!strcmp(name, types[i].name))
            return read_leaf(item, conf, &types[i], a, r);
    return s2s_conf_error(r->err, S2S_E_UNSUPPORTED, s2s_conf_key(conf, "type"),
                          "type '%s' is not read here; nemo, nemo_tarred, lhotse, lhotse_shar, "
                          "lhotse_as_conversation, s2s_as_conversation, multimodal_conversation, "
                          "share_gpt, nemo_sft_jsonl, txt, txt_pair, txt_jsonl and group are",
                          name);
}

static int get_weight(double *weight, const struct s2s_conf *conf, const struct reader *r)
{
    *weight = -1;
    if (s2s_conf_is_unset(conf, "weight"))
        return 0;
    int rc = s2s_conf_get_f64(weight, conf, "weight", r->err);
    if (rc == 0 && !(*weight >= 0 && isfinite(*weight)))
        rc = fail(r, S2S_E_RANGE, s2s_conf_key(conf, "weight"), "a weight is at least 0");
    return rc;
}

/* Adds an item; says whether it is like the first one. */
static int add_item(struct item *level, const struct s2s_conf *list, size_t i, double *first_weight,
                    const struct attributes *above, struct reader *r)
{
    struct attributes a = *above;
    struct item one = {.node = NULL};
    double weight = -1;
    int rc = read_item(&one, list->items[i], &a, r);
    if (a.tags != above->tags)
        json_decref(a.tags);
    if (rc == 0)
        rc = get_weight(&weight, list->items[i], r);
    if (rc < 0) {
        s2s_blend_node_free(one.node);
        return rc;
    }
    s2s_blend_add(level->node, one.node, weight);
    if (i == 0) {
        *first_weight = weight;
        level->is_tarred = one.is_tarred;
    }
    if ((weight < 0) != (*first_weight < 0))
        return fail(r, S2S_E_FORMAT, list->items[i],
                    "either all items of a list have a weight, or none");
    if (one.is_tarred != level->is_tarred && !above->force_one_kind)
        return fail(r, S2S_E_FORMAT, list->items[i],
                    "tars and single files in one list: say how to take them with "
                    "force_iterable_dataset or force_map_dataset");
    return 0;
}

static int read_list(struct item *item, const struct s2s_conf *list, const struct attributes *a,
                     struct reader *r)
{
    double first_weight = 0, sum = 0;
    int rc = list->n_items > 0 ? 0 : fail(r, S2S_E_FORMAT, list, "an empty list of items");
    if (rc == 0 && ++r->depth > MAX_DEPTH)
        rc = fail(r, S2S_E_RANGE, list, "groups are nested too deep");
    if (rc < 0)
        return rc;
    r->deepest = r->depth > r->deepest ? r->depth : r->deepest;
    item->node = s2s_blend_mux(a->source.seed);
    for (size_t i = 0; rc == 0 && i < list->n_items; i++) {
        rc = add_item(item, list, i, &first_weight, a, r);
        sum += rc == 0 ? item->node->weights[i] : 0;
    }
    if (rc == 0 && !(sum > 0))
        rc = fail(r, S2S_E_RANGE, list, "all weights are 0");
    if (rc == 0 && first_weight >= 0)
        rc = reweight(item->node, list, r);
    r->depth--;
    if (rc == 0 && list->n_items == 1)
        s2s_blend_unwrap(&item->node);
    else if (rc == 0)
        end_mux(&item->node, a);
    return rc;
}

/* ---- the file ---- */

static int get_temperatures(struct reader *r, const struct s2s_conf *conf)
{
    const struct s2s_conf *node = s2s_conf_key(conf, "reweight_temperature");
    if (!node || node->kind == S2S_CONF_NULL)
        return 0;
    const bool is_list = node->kind == S2S_CONF_LIST;
    const size_t n = is_list ? node->n_items : 1;
    int rc = n > 0 ? 0 : fail(r, S2S_E_FORMAT, node, "an empty list");
    r->temperatures = s2s_xcalloc(n + 1, sizeof *r->temperatures);
    for (size_t i = 0; rc == 0 && i < n; i++) {
        rc = s2s_conf_as_f64(&r->temperatures[i], is_list ? node->items[i] : node, r->err);
        if (rc == 0 && !(r->temperatures[i] >= 0 && isfinite(r->temperatures[i])))
            rc = fail(r, S2S_E_RANGE, node, "a temperature is at least 0");
    }
    r->n_temperatures = n;
    return rc;
}

/* The root: a list, or a map with input_cfg, or with one data set alone. */
static int read_root(struct item *item, const struct s2s_conf *conf, struct reader *r)
{
    struct attributes a = {.source = r->opt->source, .force_finite = r->opt->n_samples == 0};
    a.source.tags = NULL;
    if (conf->kind == S2S_CONF_LIST)
        return read_list(item, conf, &a, r);
    const struct s2s_conf *list = s2s_conf_key(conf, "input_cfg");
    if (!list) {
        int rc = fail(r, S2S_E_FORMAT, conf, "expected a list of data sets, or 'input_cfg'");
        if (s2s_conf_key(conf, "audio_filepath") || s2s_conf_key(conf, "recording"))
            return s2s_error_hint(r->err, rc, "lines of samples go to --manifest or --cuts");
        return s2s_error_hint(r->err, rc, "- {type: nemo, manifest_filepath: train.jsonl}");
    }
    int rc = get_attributes(&a, conf, r);
    if (rc == 0)
        rc = get_temperatures(r, conf);
    if (rc == 0)
        rc = read_list_or_file(item, list, &a, r);
    if (rc == 0 && r->n_temperatures > 1 && r->deepest != r->n_temperatures)
        rc = s2s_conf_error(r->err, S2S_E_SHAPE, s2s_conf_key(conf, "reweight_temperature"),
                            "%zu values, but lists are nested %zu deep", r->n_temperatures,
                            r->deepest);
    return rc;
}

static int check_end(const struct item *item, const struct reader *r, const struct s2s_conf *conf)
{
    if (r->opt->n_samples > 0 || s2s_blend_is_finite(item->node))
        return 0;
    int rc = fail(r, S2S_E_ARG, conf, "this blend has no end (force_finite, max_open_streams)");
    return s2s_error_hint(r->err, rc, "--samples N takes N samples of it");
}

int s2s_source_open_input_cfg(struct s2s_source **source, const char *path,
                              const struct s2s_blend_options *opt, struct s2s_error *err)
{
    struct reader r = {.opt = opt, .err = err};
    struct s2s_conf *conf = NULL;
    struct s2s_conf_faults faults = {.n = 0};
    struct item item = {.node = NULL};
    int rc = s2s_conf_read(&conf, path, S2S_CONF_AUTO, err);
    if (rc == S2S_E_FORMAT && strstr(path, ".json"))
        s2s_error_hint(err, rc, "lines of samples go to --manifest or --cuts");
    if (rc < 0)
        return rc;
    s2s_conf_resolve(conf, S2S_CONF_OMEGACONF, NULL, &faults);
    if (faults.n > 0)
        rc = s2s_conf_error(err, S2S_E_FORMAT, faults.items[0].node, "%s", faults.items[0].text);
    free(faults.items);
    if (rc == 0)
        rc = read_root(&item, conf, &r);
    if (rc == 0)
        rc = check_end(&item, &r, conf);
    if (rc == 0) {
        item.node->repeat |= opt->n_samples > 0;
        *source = s2s_source_open_blend(item.node, opt->n_samples, conf->place.source->text,
                                        conf->place.source->len_bytes);
        item.node = NULL;
    }
    s2s_blend_node_free(item.node);
    free(r.temperatures);
    s2s_conf_free(conf);
    return rc;
}
