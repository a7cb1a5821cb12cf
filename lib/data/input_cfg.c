/* Makes a blend of the input_cfg of a NeMo config. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/base.h"
#include "lib/data/blend.h"
#include "lib/data/input_cfg.h"

enum { MAX_DEPTH = 32 };

/* ---- values ---- */

static int fail(const struct data_blend_reader *r, int code, const struct s2s_conf *node,
                const char *what)
{
    return s2s_conf_error(r->err, code, node, "%s", what);
}

int data_blend_seed(uint64_t *seed, bool *has, const struct s2s_conf *conf, const char *key,
                    const struct data_blend_reader *r)
{
    const struct s2s_conf *node = s2s_conf_key(conf, key);
    int64_t value = 0;
    const bool is_there = node && node->kind != S2S_CONF_NULL;
    if (has)
        *has = is_there;
    if (!is_there)
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

static int get_attributes(struct data_attributes *a, const struct s2s_conf *conf,
                          const struct data_blend_reader *r)
{
    struct s2s_error *err = r->err;
    struct s2s_source_options *s = &a->source;
    bool map = false, iterable = false, finite = a->force_finite;
    int64_t max_open = (int64_t)a->max_open;
    int rc = data_blend_seed(&s->seed, NULL, conf, "shard_seed", r);
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
static int add_tags(struct data_attributes *a, const struct s2s_conf *conf,
                    const struct data_blend_reader *r)
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

/* ---- levels ---- */

void data_blend_end_list(struct s2s_blend_node **node, const struct data_attributes *a)
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

/* w_i^T / sum of w_j^T: T = 1 keeps the ratios, 0 makes all equal. */
static int reweight(struct s2s_blend_node *mux, const struct s2s_conf *list,
                    const struct data_blend_reader *r)
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

static int read_list(struct data_blend_item *item, const struct s2s_conf *list,
                     const struct data_attributes *a, struct data_blend_reader *r);

/* A list, or the name of a file with one. */
static int read_list_or_file(struct data_blend_item *item, const struct s2s_conf *conf,
                             const struct data_attributes *a, struct data_blend_reader *r)
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

/* Warns about a key; takes what. */
static void tell(const struct s2s_conf *at, char *what)
{
    struct s2s_buf place = S2S_BUF_INIT;
    s2s_conf_add_place(&place, &at->place);
    s2s_warn("input-cfg", "%s: key '%s' %s", place.data, at->key, what);
    s2s_buf_release(&place);
    free(what);
}

/* A key that is misspelt, or has no meaning here, is told; one that changes samples is refused. */
static int check_keys(const struct s2s_conf *conf, const struct data_blend_reader *r)
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
                                        "extra_fields",
                                        "questions_path",
                                        "questions_language",
                                        "audio_placeholders",
                                        "input_roles",
                                        "output_roles",
                                        "strip_timestamp_tokens",
                                        "audio_locator_tag",
                                        "token_equivalent_duration",
                                        "metadata_only",
                                        "language",
                                        NULL};
    for (size_t i = 0; i < conf->n_items; i++) {
        const struct s2s_conf *at = conf->items[i];
        if (!strcmp(at->key, "channel"))
            return s2s_conf_error(r->err, S2S_E_UNSUPPORTED, at, "%s is not read here", at->key);
        bool is_known = false;
        for (const char *const *k = known; *k; k++)
            is_known |= strcmp(*k, at->key) == 0;
        if (is_known)
            continue;
        const char *near = s2s_conf_nearest(at->key, known);
        tell(at, s2s_xasprintf("is not known here, and ignored%s%s%s",
                               near ? "; did you mean '" : "", near ? near : "", near ? "'?" : ""));
    }
    return 0;
}

/* Keys that items of other types may have, where NeMo does not look at them either. */
static void check_effect(const struct s2s_conf *conf, const char *type)
{
    static const struct {
        const char *key, *types;
    } all[] = {{"extra_fields", " nemo nemo_tarred lhotse_as_conversation "},
               {"questions_path", " txt_pair "},
               {"audio_placeholders", " share_gpt "},
               {"input_roles", " s2s_as_conversation "},
               {"output_roles", " s2s_as_conversation "},
               {"strip_timestamp_tokens", " s2s_as_conversation "}};
    char *word = s2s_xasprintf(" %s ", type);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        const struct s2s_conf *at = s2s_conf_key(conf, all[i].key);
        if (at && !strstr(all[i].types, word))
            tell(at, s2s_xasprintf("has no effect on items of type '%s', and is ignored", type));
    }
    free(word);
}

static int read_item(struct data_blend_item *item, const struct s2s_conf *conf,
                     struct data_attributes *a, struct data_blend_reader *r)
{
    const char *name;
    int rc = conf->kind == S2S_CONF_MAP ? 0 : fail(r, S2S_E_FORMAT, conf, "expected a map");
    if (rc == 0)
        rc = check_keys(conf, r);
    if (rc == 0)
        rc = s2s_conf_get_str(&name, conf, "type", r->err);
    if (rc == 0)
        check_effect(conf, name);
    if (rc == 0)
        rc = get_attributes(a, conf, r);
    if (rc == 0)
        rc = add_tags(a, conf, r);
    if (rc < 0)
        return rc;
    const struct s2s_conf *list = s2s_conf_key(conf, "input_cfg");
    const bool is_group = !strcmp(name, "group");
    if (is_group && s2s_conf_is_unset(conf, "input_cfg"))
        return s2s_conf_error(r->err, S2S_E_NOTFOUND, conf, "'input_cfg' is missing");
    /* every cut is a conversation here, those below it too */
    if (is_group || (list && !strcmp(name, "lhotse_as_conversation")))
        return read_list_or_file(item, list, a, r);
    return data_blend_read_files(item, conf, name, a, r);
}

static int get_weight(double *weight, const struct s2s_conf *conf,
                      const struct data_blend_reader *r)
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
static int add_item(struct data_blend_item *level, const struct s2s_conf *list, size_t i,
                    double *first_weight, const struct data_attributes *above,
                    struct data_blend_reader *r)
{
    struct data_attributes a = *above;
    struct data_blend_item one = {.node = NULL};
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

static int read_list(struct data_blend_item *item, const struct s2s_conf *list,
                     const struct data_attributes *a, struct data_blend_reader *r)
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
        data_blend_end_list(&item->node, a);
    return rc;
}

/* ---- the file ---- */

static int get_temperatures(struct data_blend_reader *r, const struct s2s_conf *conf)
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
static int read_root(struct data_blend_item *item, const struct s2s_conf *conf,
                     struct data_blend_reader *r)
{
    struct data_attributes a = {.source = r->opt->source, .force_finite = r->opt->n_samples == 0};
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

static int check_end(const struct data_blend_item *item, const struct data_blend_reader *r,
                     const struct s2s_conf *conf)
{
    if (r->opt->n_samples > 0 || s2s_blend_is_finite(item->node))
        return 0;
    int rc = fail(r, S2S_E_ARG, conf, "this blend has no end (force_finite, max_open_streams)");
    return s2s_error_hint(r->err, rc, "--samples N takes N samples of it");
}

int s2s_source_open_input_cfg(struct s2s_source **source, const char *path,
                              const struct s2s_blend_options *opt, struct s2s_error *err)
{
    struct data_blend_reader r = {.opt = opt, .err = err};
    struct s2s_conf *conf = NULL;
    struct s2s_conf_faults faults = {.n = 0};
    struct data_blend_item item = {.node = NULL};
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
