/* Opens the files of the items of input_cfg. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/base.h"
#include "lib/data/expand.h"
#include "lib/data/input_cfg.h"
#include "lib/data/lines.h"
#include "lib/data/shar.h"
#include "lib/data/spool.h"
#include "lib/data/tar_source.h"

static int fail(const struct data_blend_reader *r, int code, const struct s2s_conf *node,
                const char *what)
{
    return s2s_conf_error(r->err, code, node, "%s", what);
}

/* How the items of a type are read. */
struct type {
    const char *name, *paths; /* key of its files */
    enum s2s_lines_kind kind;
    bool takes_tars, is_text; /* text counts as tarred, as upstream has it */
    bool takes_shar, takes_nemo;
};

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

/* One name, or a command if those may be run. */
static int get_name(const char **name, const struct s2s_conf *node,
                    const struct data_blend_reader *r)
{
    int rc = s2s_conf_as_str(name, node, r->err);
    if (rc < 0 || !s2s_spool_is_pipe(*name) || r->opt->run_pipes)
        return rc;
    rc = fail(r, S2S_E_UNSUPPORTED, node, "commands of a config are not run unasked");
    return s2s_error_hint(r->err, rc, "--run-pipes runs those of this file");
}

static int add_names(struct names *names, const struct s2s_conf *node,
                     const struct data_blend_reader *r)
{
    const char *text;
    int rc = get_name(&text, node, r);
    return rc < 0 ? rc : s2s_data_expand(&names->items, &names->n, text, r->err);
}

/* A name, a list of names, or lists of one name. */
static int get_names(struct names *names, const struct s2s_conf *node,
                     const struct data_blend_reader *r)
{
    int rc = 0;
    if (node->kind != S2S_CONF_LIST)
        return add_names(names, node, r);
    for (size_t i = 0; rc == 0 && i < node->n_items; i++)
        rc = get_names(names, node->items[i], r);
    return rc;
}

static const struct s2s_conf *need(const struct s2s_conf *conf, const char *key, int *rc,
                                   const struct data_blend_reader *r)
{
    const struct s2s_conf *node = s2s_conf_key(conf, key);
    if (node && node->kind != S2S_CONF_NULL)
        return node;
    *rc = s2s_conf_error(r->err, S2S_E_NOTFOUND, conf, "'%s' is missing", key);
    return NULL;
}

/* ---- keys of other files ---- */

static int read_field(struct s2s_field *field, const struct s2s_conf *conf,
                      const struct data_blend_reader *r)
{
    static const char *const types[] = {"text_iter", "text_sample", NULL};
    static const char *const keys[] = {"type", "name", "path", "seed", NULL};
    /* what a sample has anyway, where upstream would change the cut itself */
    static const char *const taken[] = {"id",           "start",    "duration",  "channel",
                                        "supervisions", "features", "recording", "custom"};
    int type = 0, rc = conf->kind == S2S_CONF_MAP
                           ? s2s_conf_check_keys(conf, "", keys, r->err)
                           : fail(r, S2S_E_FORMAT, conf, "expected {type, name, path}");
    const struct s2s_conf *path = rc == 0 ? s2s_conf_key(conf, "path") : NULL;
    if (rc == 0)
        rc = s2s_conf_get_choice(&type, conf, "type", types, r->err);
    if (rc == 0)
        rc = s2s_conf_get_str(&field->name, conf, "name", r->err);
    if (rc == 0 && !path)
        rc = s2s_conf_error(r->err, S2S_E_NOTFOUND, conf, "'path' is missing");
    if (rc == 0)
        rc = get_name(&field->path, path, r);
    if (rc == 0)
        rc = data_blend_seed(&field->seed, &field->has_seed, conf, "seed", r);
    for (size_t i = 0; rc == 0 && i < sizeof taken / sizeof *taken; i++)
        if (!strcmp(field->name, taken[i]))
            rc = fail(r, S2S_E_UNSUPPORTED, conf, "this name is a part of each sample");
    field->is_drawn = type == 1;
    return rc;
}

/* extra_fields: a list. Gives *fields: free. */
static int read_fields(struct s2s_field **fields, size_t *n, const struct s2s_conf *conf,
                       const struct data_blend_reader *r)
{
    const struct s2s_conf *list;
    int rc = s2s_conf_get_list(&list, conf, "extra_fields", r->err);
    *fields = NULL;
    *n = 0;
    if (rc < 0 || !list)
        return rc;
    *fields = s2s_xcalloc(list->n_items + 1, sizeof **fields);
    for (; rc == 0 && *n < list->n_items; ++*n)
        rc = read_field(&(*fields)[*n], list->items[*n], r);
    return rc;
}

/* Lines are given in the order of samples, which several readers side by side do not have. */
static int check_by_shard(const struct data_attributes *a, const struct s2s_conf *conf,
                          const struct data_blend_reader *r)
{
    for (size_t i = 0; i < a->source.n_fields; i++)
        if (!a->source.fields[i].is_drawn)
            return fail(r, S2S_E_UNSUPPORTED, conf,
                        "text_iter of extra_fields has no order beside max_open_streams, which "
                        "draws of each shard alone");
    return 0;
}

/* A string, or a list of strings, as a list; NULL: it is not there. Gives: json_decref. */
static int read_words(json_t **words, const struct s2s_conf *conf, const char *key,
                      const struct data_blend_reader *r)
{
    const struct s2s_conf *node = s2s_conf_key(conf, key);
    const bool is_list = node && node->kind == S2S_CONF_LIST;
    int rc = 0;
    *words = NULL;
    if (!node || node->kind == S2S_CONF_NULL)
        return 0;
    *words = json_array();
    for (size_t i = 0; rc == 0 && i < (is_list ? node->n_items : 1); i++) {
        const char *word = "";
        rc = s2s_conf_as_str(&word, is_list ? node->items[i] : node, r->err);
        json_array_append_new(*words, json_string(word));
    }
    if (rc == 0 && json_array_size(*words) == 0)
        rc = fail(r, S2S_E_FORMAT, node, "an empty list");
    return rc;
}

/* How conversations are made: of ShareGPT's turns, and of supervisions. */
static int read_rules(struct s2s_source_options *opt, const struct s2s_conf *conf,
                      const struct type *type, const struct data_blend_reader *r)
{
    bool strip = true;
    int rc = 0;
    opt->as_turns = type->kind == S2S_LINES_TURNS;
    if (type->kind == S2S_LINES_SHARE_GPT)
        rc = read_words(&opt->placeholders, conf, "audio_placeholders", r);
    if (rc < 0 || type->kind != S2S_LINES_TURNS)
        return rc;
    rc = read_words(&opt->turns.input_roles, conf, "input_roles", r);
    if (rc == 0)
        rc = read_words(&opt->turns.output_roles, conf, "output_roles", r);
    if (rc == 0)
        rc = s2s_conf_get_bool_or(&strip, conf, "strip_timestamp_tokens", true, r->err);
    opt->turns.keep_stamps = !strip;
    return rc;
}

/* ---- lists that are drawn from ---- */

/* Opens what an entry names, with its tars (NULL: none), and adds it to the mux with its weight;
 * one below 0 is not given. */
typedef int open_entry(struct s2s_blend_node *mux, const struct s2s_conf *what, double weight,
                       const struct s2s_conf *tar, const struct data_attributes *a,
                       const struct data_blend_reader *r);

/* An entry: a name, [name] or [name, weight]. */
static int add_entry(struct s2s_blend_node *mux, const struct s2s_conf *entry,
                     const struct s2s_conf *tar, open_entry *open, const struct data_attributes *a,
                     const struct data_blend_reader *r)
{
    const bool is_list = entry->kind == S2S_CONF_LIST;
    double weight = -1;
    if (is_list && entry->n_items != 1 && entry->n_items != 2)
        return fail(r, S2S_E_FORMAT, entry, "expected a name, [name] or [name, weight]");
    if (is_list && entry->n_items == 2) {
        int rc = s2s_conf_as_f64(&weight, entry->items[1], r->err);
        if (rc == 0 && !(weight >= 0 && isfinite(weight)))
            rc = fail(r, S2S_E_RANGE, entry, "a weight is at least 0");
        if (rc < 0)
            return rc;
    }
    return open(mux, is_list ? entry->items[0] : entry, weight, tar, a, r);
}

static int read_entries(struct data_blend_item *item, const struct s2s_conf *list,
                        const struct s2s_conf *tars, open_entry *open,
                        const struct data_attributes *a, const struct data_blend_reader *r)
{
    int rc = 0;
    item->node = s2s_blend_mux(a->source.seed);
    if (list->n_items == 0)
        rc = fail(r, S2S_E_FORMAT, list, "an empty list");
    if (rc == 0 && tars && (tars->kind != S2S_CONF_LIST || tars->n_items != list->n_items))
        rc = fail(r, S2S_E_SHAPE, tars, "expected a list as long as manifest_filepath");
    for (size_t i = 0; rc == 0 && i < list->n_items; i++)
        rc = add_entry(item->node, list->items[i], tars ? tars->items[i] : NULL, open, a, r);
    if (rc == 0)
        data_blend_end_list(&item->node, a);
    return rc;
}

/* ---- manifests, and other lines ---- */

/* Files of lines, perhaps with their tars. */
static int open_files(struct s2s_source **leaf, enum s2s_lines_kind kind, const struct names *paths,
                      const struct names *tars, const struct data_attributes *a,
                      const struct data_blend_reader *r)
{
    struct s2s_source_options opt = a->source;
    const char *const *names = (const char *const *)paths->items;
    opt.tags = a->tags;
    if (tars->n == 0)
        return s2s_source_open_lines(leaf, kind, names, paths->n, &opt, r->err);
    return s2s_source_open_tars(leaf, kind, names, paths->n, (const char *const *)tars->items,
                                tars->n, &opt, r->err);
}

/* Lines of files: the weight of a manifest that was given none. */
static int count_lines(double *n, const struct names *paths, const struct data_blend_reader *r)
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

/* A manifest of the older form of blends, with its tars. */
static int open_manifest(struct s2s_blend_node *mux, const struct s2s_conf *what, double weight,
                         const struct s2s_conf *tar, const struct data_attributes *a,
                         const struct data_blend_reader *r)
{
    struct names paths = {.n = 0}, tars = {.n = 0};
    struct s2s_source *leaf = NULL;
    int rc = add_names(&paths, what, r);
    if (rc == 0 && tar)
        rc = get_names(&tars, tar, r);
    if (rc == 0 && weight < 0)
        rc = count_lines(&weight, &paths, r);
    /* with few open streams each shard is one: the draw among them is finer */
    const bool by_shard = a->max_open > 0 && tars.n > 1 && paths.n == tars.n;
    if (rc == 0 && by_shard)
        rc = check_by_shard(a, what, r);
    for (size_t i = 0; rc == 0 && i < (by_shard ? tars.n : 1); i++) {
        const struct names one = {&paths.items[i], 1}, its_tar = {&tars.items[i], 1};
        rc = open_files(&leaf, S2S_LINES_NEMO, by_shard ? &one : &paths,
                        by_shard ? &its_tar : &tars, a, r);
        if (rc == 0)
            s2s_blend_add(mux, s2s_blend_leaf(leaf), weight);
    }
    names_release(&paths);
    names_release(&tars);
    return rc;
}

static int read_lines(struct data_blend_item *item, const struct s2s_conf *conf,
                      const struct type *type, const struct data_attributes *a,
                      const struct data_blend_reader *r)
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
    item->is_tarred = type->is_text || tar;
    if (rc == 0 && type->kind == S2S_LINES_NEMO && from->kind == S2S_CONF_LIST)
        return read_entries(item, from, tar, open_manifest, a, r);
    if (rc == 0)
        rc = get_names(&paths, from, r);
    if (rc == 0 && tar)
        rc = get_names(&tars, tar, r);
    if (rc == 0)
        rc = open_files(&leaf, type->kind, &paths, &tars, a, r);
    if (rc == 0) {
        item->node = s2s_blend_leaf(leaf);
        item->node->repeat = item->is_tarred && !a->force_finite;
    }
    names_release(&paths);
    names_release(&tars);
    return rc;
}

/* Files of questions and of answers, line by line. */
static int read_pairs(struct data_blend_item *item, const struct s2s_conf *conf,
                      const struct data_attributes *a, const struct data_blend_reader *r)
{
    struct names paths = {.n = 0}, answers = {.n = 0};
    struct s2s_source_options opt = a->source;
    struct s2s_source *leaf = NULL;
    int rc = 0;
    const struct s2s_conf *from = need(conf, "source_paths", &rc, r);
    const struct s2s_conf *to = rc == 0 ? need(conf, "target_paths", &rc, r) : NULL;
    const struct s2s_conf *asked = s2s_conf_key(conf, "questions_path");
    opt.tags = a->tags;
    item->is_tarred = true; /* as all text */
    if (rc == 0)
        rc = get_names(&paths, from, r);
    if (rc == 0)
        rc = get_names(&answers, to, r);
    if (rc == 0 && paths.n != answers.n)
        rc = fail(r, S2S_E_SHAPE, to, "expected as many files as source_paths");
    if (rc == 0 && asked && asked->kind != S2S_CONF_NULL)
        rc = get_name(&opt.questions, asked, r);
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

/* ---- Shar ---- */

static void add_spec(struct names *specs, char *spec)
{
    specs->items = s2s_xrealloc(specs->items, specs->n + 1, sizeof *specs->items);
    specs->items[specs->n++] = spec;
}

/* A folder, or a map of fields to the names of their shards: as s2s_source_open_shar takes them. */
static int add_shar_specs(struct names *specs, const struct s2s_conf *node,
                          const struct data_blend_reader *r)
{
    struct names files = {.n = 0};
    int rc = 0;
    if (node->kind != S2S_CONF_MAP) {
        const char *folder;
        rc = s2s_conf_as_str(&folder, node, r->err);
        if (rc == 0)
            add_spec(specs, s2s_xstrdup(folder));
        return rc;
    }
    for (size_t i = 0; rc == 0 && i < node->n_items; i++) {
        const size_t before = files.n;
        rc = get_names(&files, node->items[i], r);
        for (size_t k = before; k < files.n; k++)
            add_spec(specs, s2s_xasprintf("%s=%s", node->items[i]->key, files.items[k]));
    }
    names_release(&files);
    return rc;
}

static int open_shar(struct s2s_source **leaf, const struct s2s_conf *node,
                     const struct data_attributes *a, const struct data_blend_reader *r)
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

/* One of a list; without a weight as many as it has cuts. */
static int open_shar_entry(struct s2s_blend_node *mux, const struct s2s_conf *what, double weight,
                           const struct s2s_conf *tar, const struct data_attributes *a,
                           const struct data_blend_reader *r)
{
    struct s2s_source *leaf = NULL;
    int rc = open_shar(&leaf, what, a, r);
    if (rc == 0)
        s2s_blend_add(mux, s2s_blend_leaf(leaf),
                      weight < 0 ? (double)s2s_shar_n_cuts(leaf) : weight);
    return rc;
}

static int read_shar(struct data_blend_item *item, const struct s2s_conf *conf,
                     const struct data_attributes *a, const struct data_blend_reader *r)
{
    const struct s2s_conf *from = s2s_conf_key(conf, "shar_path");
    struct s2s_source *leaf = NULL;
    item->is_tarred = true;
    if (from->kind == S2S_CONF_LIST)
        return read_entries(item, from, NULL, open_shar_entry, a, r);
    int rc = open_shar(&leaf, from, a, r);
    if (rc == 0) {
        item->node = s2s_blend_leaf(leaf);
        item->node->repeat = !a->force_finite;
    }
    return rc;
}

/* ---- types ---- */

static const struct type types[] = {
    {"nemo", "manifest_filepath", S2S_LINES_NEMO, .takes_tars = true},
    {"nemo_tarred", "manifest_filepath", S2S_LINES_NEMO, .takes_tars = true},
    {"lhotse", "cuts_path", S2S_LINES_CUTS, .takes_shar = true},
    {"lhotse_shar", "cuts_path", S2S_LINES_CUTS, .takes_shar = true},
    {"lhotse_as_conversation", "cuts_path", S2S_LINES_CUTS, .takes_shar = true, .takes_nemo = true},
    {"s2s_as_conversation", "cuts_path", S2S_LINES_TURNS, .takes_shar = true},
    {"multimodal_conversation", "manifest_filepath", S2S_LINES_CONVERSATION, .takes_tars = true,
     .is_text = true},
    {"share_gpt", "manifest_filepath", S2S_LINES_SHARE_GPT, .takes_tars = true, .is_text = true},
    {"nemo_sft_jsonl", "paths", S2S_LINES_SFT, .is_text = true},
    {"txt", "paths", S2S_LINES_TEXT, .is_text = true},
    {"txt_pair", "source_paths", S2S_LINES_PAIRS, .is_text = true},
    {"txt_jsonl", "paths", S2S_LINES_TEXT_JSONL, .is_text = true},
};

/* How an item of this type is read: where it names no cuts but a manifest, as one. */
static const struct type *type_of(const char *name, const struct s2s_conf *conf,
                                  const struct data_blend_reader *r)
{
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        const bool is_nemo = types[i].takes_nemo && s2s_conf_is_unset(conf, "cuts_path") &&
                             s2s_conf_is_unset(conf, "shar_path") &&
                             !s2s_conf_is_unset(conf, "manifest_filepath");
        if (!strcmp(name, types[i].name))
            return is_nemo ? &types[0] : &types[i];
    }
    s2s_conf_error(r->err, S2S_E_UNSUPPORTED, s2s_conf_key(conf, "type"),
                   "type '%s' is not read here; nemo, nemo_tarred, lhotse, lhotse_shar, "
                   "lhotse_as_conversation, s2s_as_conversation, multimodal_conversation, "
                   "share_gpt, nemo_sft_jsonl, txt, txt_pair, txt_jsonl and group are",
                   name);
    return NULL;
}

static int read_type(struct data_blend_item *item, const struct s2s_conf *conf,
                     const struct type *type, const struct data_attributes *a,
                     const struct data_blend_reader *r)
{
    if (type->takes_shar && !s2s_conf_is_unset(conf, "shar_path"))
        return read_shar(item, conf, a, r);
    if (type->takes_shar && s2s_conf_is_unset(conf, "cuts_path"))
        return s2s_conf_error(r->err, S2S_E_NOTFOUND, conf,
                              "'cuts_path' or 'shar_path' is missing");
    return type->kind == S2S_LINES_PAIRS ? read_pairs(item, conf, a, r)
                                         : read_lines(item, conf, type, a, r);
}

int data_blend_read_files(struct data_blend_item *item, const struct s2s_conf *conf,
                          const char *name, const struct data_attributes *above,
                          const struct data_blend_reader *r)
{
    const struct type *type = type_of(name, conf, r);
    struct data_attributes a = *above;
    struct s2s_field *fields = NULL;
    int rc = 0;
    if (!type)
        return S2S_E_UNSUPPORTED;
    if (type->kind == S2S_LINES_NEMO)
        rc = read_fields(&fields, &a.source.n_fields, conf, r);
    a.source.fields = fields;
    if (rc == 0)
        rc = read_rules(&a.source, conf, type, r);
    if (rc == 0)
        rc = read_type(item, conf, type, &a, r);
    free(fields);
    json_decref(a.source.placeholders);
    json_decref(a.source.turns.input_roles);
    json_decref(a.source.turns.output_roles);
    return rc;
}
