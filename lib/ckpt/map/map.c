/* Setup for both directions of a name map: finds the family of a source, and numbers such as heads.
 */
#include <fcntl.h>

#include "lib/base/base.h"
#include "lib/ckpt/box.h"
#include "lib/ckpt/config/args_config.h"
#include "lib/ckpt/file.h"
#include "lib/ckpt/map/map_internal.h"
#include "lib/ckpt/names.h"
#include "lib/ckpt/read/read.h"

enum { MAX_MAP_FILE = 1 << 20 };

/* ---- detection of the family ---- */

static bool any_matches(const struct ckpt_map_source *sources, size_t n, const char *pattern)
{
    struct ckpt_match match;
    for (size_t i = 0; i < n; i++)
        if (ckpt_map_match(pattern, sources[i].name, &match))
            return true;
    return false;
}

/* The next word of a detect line; false: none. */
static bool next_word(const char **at, char word[256])
{
    const size_t len = strcspn(*at, " ");
    snprintf(word, 256, "%.*s", (int)len, *at);
    *at += len + ((*at)[len] == ' ');
    return len > 0;
}

/* Do all words of a detect line hold? */
static bool detected(const struct ckpt_map_source *sources, size_t n, const char *detect)
{
    char word[256];
    if (s2s_starts_with(detect, "part "))
        return false; /* only for "part" lines */
    for (const char *at = detect; next_word(&at, word);) {
        const bool unwanted = word[0] == '!';
        if (any_matches(sources, n, word + unwanted) == unwanted)
            return false;
    }
    return *detect;
}

/* Iterates over the families of a text ("": none), then over the built-in ones. */
struct families {
    const char *text;
    size_t at;
    int n_built_in; /* texts started */
};

static bool next_family(struct families *all, struct ckpt_map_family *family)
{
    for (; all->text; all->text = ckpt_map_texts[all->n_built_in++], all->at = 0)
        if (ckpt_map_next_family(all->text, &all->at, family))
            return true;
    return false;
}

static bool find_family(struct ckpt_map_source *sources, size_t n, struct ckpt_map_family *family)
{
    struct families all = {.text = ""};
    while (next_family(&all, family)) {
        if (family->renames && *family->detect) /* those without detect are not models */
            ckpt_map_respell(sources, n, NULL, family->name);
        if (detected(sources, n, family->detect))
            return true;
    }
    return false;
}

static bool find_wanted(const struct s2s_ckpt *ckpt, struct ckpt_map_family *family)
{
    struct ckpt_map_source *sources;
    size_t n_state, n = ckpt_map_list(&sources, ckpt, false, &n_state);
    bool found = find_family(sources, n, family);
    ckpt_map_free_list(sources, n);
    return found;
}

bool ckpt_map_wanted(const struct s2s_ckpt *ckpt)
{
    struct ckpt_map_family family;
    return find_wanted(ckpt, &family);
}

bool ckpt_map_is_megatron(const struct s2s_ckpt *ckpt)
{
    struct ckpt_map_family family;
    return find_wanted(ckpt, &family) && !family.trains;
}

/* Parts of names that only Megatron uses, and what else precedes them there: transformers has
 * embeddings.word_embeddings.weight (BERT) and visual.blocks.0.mlp.linear_fc1.weight (Qwen3-VL). */
static const struct {
    const char *part, *before;
} megatron_marks[] = {{".linear_qkv.", ""},
                      {".linear_fc1.", "layers."},
                      {".linear_fc2.", "layers."},
                      {"encoder.linear_fc1.", ""}, /* of a projection */
                      {"encoder.linear_fc2.", ""},
                      {".embedding.word_embeddings.weight", ""},
                      {".mixer.in_proj.weight.z", ""},
                      {".mixer.in_proj.layer_norm_weight", ""}};

static bool is_megatron_name(const char *name)
{
    if (strcmp(name, "embedding.word_embeddings.weight") == 0)
        return true;
    for (size_t k = 0; k < sizeof megatron_marks / sizeof *megatron_marks; k++) {
        const char *part = strstr(name, megatron_marks[k].part);
        const char *before = strstr(name, megatron_marks[k].before);
        if (part && before && before <= part)
            return true;
    }
    return false;
}

const char *ckpt_map_megatron_name(const struct s2s_ckpt *ckpt)
{
    size_t n;
    const struct s2s_ckpt_tensor *tensors = s2s_ckpt_tensors(ckpt, &n);
    for (size_t i = 0; i < n; i++)
        if (is_megatron_name(tensors[i].name) && !s2s_ckpt_is_state(tensors[i].name))
            return tensors[i].name;
    return NULL;
}

/* ---- numbers ---- */

/* From config.json, else from the saved arguments; 0: unknown. */
int64_t ckpt_map_number(const struct ckpt_map_engine *e, const char *config_key,
                        const char *args_key)
{
    const json_t *config = e->config, *words = ckpt_text_config(config);
    const json_t *value = json_object_get(words, config_key);
    if (!json_is_integer(value))
        value = json_object_get(config, config_key);
    if (!json_is_integer(value))
        value = json_object_get(e->args, args_key);
    /* numbers are multiplied by each other */
    int64_t number = json_is_integer(value) ? json_integer_value(value)
                                            : (int64_t)ckpt_config_default(words, config_key);
    return number > 0 && number < 1 << 30 ? number : 0;
}

bool ckpt_map_is_tower(const struct ckpt_map_engine *e, const char *stack)
{
    static const char *const marks[] = {"vision",  "radio",      "modality", "sound",
                                        "encoder", "perception", "mtp."};
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++)
        if (e->map.n_stacks > 1 && strstr(stack, marks[i]))
            return true;
    return false;
}

/* The number of heads of a tower of this width: from the configuration, for known published sizes,
 * else assuming the language model's head size; 0: unknown. */
static int64_t heads_of_width(struct ckpt_map_engine *e, int64_t width)
{
    static const int64_t known[][2] = {{768, 12}, {1024, 16}, {1280, 16}, {1536, 24}};
    if (e->vision_heads > 0 && e->vision_heads <= width)
        return e->vision_heads;
    const int64_t heads = ckpt_map_number(e, "num_attention_heads", "num_attention_heads");
    const int64_t said = ckpt_map_number(e, "hidden_size", "hidden_size");
    if (e->map.n_stacks == 1 && heads > 0 &&
        (said == width || (!said && e->config != e->request->config)))
        return heads;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i][0] == width)
            return known[i][1];
    int64_t dim = ckpt_map_number(e, "head_dim", "kv_channels");
    if (dim <= 0 || width % dim != 0)
        return 0;
    if (!e->guessed)
        s2s_warn("ckpt",
                 "a vision tower of width %lld: nothing says how many heads it has; taken as %lld "
                 "of the "
                 "language model's %lld (--config with vision_config.num_attention_heads says it)",
                 (long long)width, (long long)(width / dim), (long long)dim);
    e->guessed = true;
    return width / dim;
}

int ckpt_map_attention(const struct ckpt_map_engine *e, const char *name, int64_t rows,
                       int64_t *heads, int64_t *groups, int64_t *dim)
{
    *heads = ckpt_map_number(e, "num_attention_heads", "num_attention_heads");
    *groups = ckpt_map_number(e, "num_key_value_heads", "num_query_groups");
    *dim = ckpt_map_number(e, "head_dim", "kv_channels");
    if (*heads && (!*groups || json_is_false(json_object_get(e->args, "group_query_attention"))))
        *groups = *heads;
    if (*heads && !*dim && rows % (*heads + 2 * *groups) == 0)
        *dim = rows / (*heads + 2 * *groups);
    if (!*heads || !*dim) {
        int rc = s2s_error_set(e->err, S2S_E_NOTFOUND,
                               "%s: how many heads and groups does it have? the checkpoint's "
                               "arguments do not say",
                               name);
        return s2s_error_hint(e->err, rc, "give the model's config.json with --config");
    }
    if (*heads % *groups || rows != (*heads + 2 * *groups) * *dim)
        return s2s_error_set(
            e->err, S2S_E_SHAPE, "%s: %lld rows are not %lld heads and 2 x %lld groups of %lld",
            name, (long long)rows, (long long)*heads, (long long)*groups, (long long)*dim);
    return 0;
}

int ckpt_map_vision_heads(struct ckpt_map_engine *e, const struct s2s_ckpt_tensor *t, int64_t rows,
                          int64_t *heads)
{
    *heads = rows % 3 == 0 ? heads_of_width(e, rows / 3) : 0;
    if (*heads && rows % (3 * *heads) == 0)
        return 0;
    int rc = s2s_error_set(e->err, S2S_E_NOTFOUND, "%s: how many heads do its %lld rows hold?",
                           t->name, (long long)rows);
    return s2s_error_hint(e->err, rc,
                          "--config takes a config.json with vision_config.num_attention_heads");
}

const struct s2s_ckpt_tensor *ckpt_map_tensor(const struct ckpt_map_engine *e,
                                              const struct ckpt_rule *rule,
                                              const struct ckpt_map_source *source)
{
    return rule->transposed ? ckpt_transposed(e->request->ckpt, source->tensor) : source->tensor;
}

int ckpt_map_check_alike(const struct ckpt_map_engine *e, const struct s2s_ckpt_tensor *a,
                         const struct s2s_ckpt_tensor *b, int rows_axis)
{
    bool fit = a->n_dims == b->n_dims && a->n_dims > rows_axis;
    for (int d = 0; fit && d < a->n_dims; d++)
        fit = d == rows_axis || a->shape[d] == b->shape[d];
    if (fit && a->dtype == b->dtype)
        return 0;
    char text[200], other[200];
    int rc = s2s_error_set(
        e->err, S2S_E_SHAPE,
        "%s (%s %s) and %s (%s %s) go into one tensor, but their shapes or dtypes do not fit",
        a->name, s2s_dtype_name(a->dtype), ckpt_shape_text(text, a->shape, a->n_dims), b->name,
        s2s_dtype_name(b->dtype), ckpt_shape_text(other, b->shape, b->n_dims));
    return fit && e->to_megatron
               ? s2s_error_hint(e->err, rc,
                                "give all one dtype first, under the names that they have: convert "
                                "--to hf --dtype ..")
               : rc;
}

/* ---- rules for the source's names ---- */

_Static_assert(CKPT_MAP_MAX_RULES < UINT16_MAX, "rules are numbered so");

const char *ckpt_map_source_side(const struct ckpt_map_engine *e, const struct ckpt_rule *rule)
{
    return e->to_megatron ? rule->hf : rule->megatron;
}

void ckpt_map_match_sources(struct ckpt_map_engine *e)
{
    struct ckpt_match match;
    for (size_t i = 0; i < e->n_sources; i++) {
        struct ckpt_map_source *source = &e->sources[i];
        struct ckpt_map_tries tries = ckpt_map_tries(&e->index, source->name);
        /* towards Megatron one name may belong to several stacks */
        for (size_t r; (e->to_megatron || !source->rule) && ckpt_map_next_try(&tries, &r);) {
            const struct ckpt_rule *rule = &e->map.rules[r];
            if (rule->transform == CKPT_MAP_AGAIN ||
                !ckpt_map_match(ckpt_map_source_side(e, rule), source->name, &match))
                continue;
            source->rule = source->rule ? source->rule : (uint16_t)(r + 1);
            if (e->to_megatron && rule->group >= 0 && !match.stacked &&
                match.layer >= e->n_layers[rule->group])
                e->n_layers[rule->group] = match.layer + 1;
        }
    }
}

const struct ckpt_rule *ckpt_map_rule_at(const struct ckpt_map_engine *e,
                                         const struct ckpt_map_source *source, int64_t layer)
{
    const struct ckpt_rule *first = source->rule ? &e->map.rules[source->rule - 1] : NULL;
    for (const struct ckpt_rule *rule = first; rule && rule < e->map.rules + e->map.n_rules; rule++)
        if (rule->transform != CKPT_MAP_AGAIN && rule->transform != CKPT_MAP_DROP &&
            strcmp(ckpt_map_source_side(e, rule), ckpt_map_source_side(e, first)) == 0 &&
            ckpt_map_in_section(e, rule->section, layer))
            return rule;
    return first;
}

/* ---- "part" lines: which family is at a prefix ---- */

/* Prefixes under which a family is searched; mirror: the source has the family's Hugging Face
 * names. */
struct place {
    const struct ckpt_map_engine *e;
    bool mirror;
    const char *m_prefix, *h_prefix;
};

/* Does the source have a name that matches the pattern at this place? */
static bool pattern_is_there(const struct place *at, const char *pattern)
{
    char *all = s2s_xasprintf("%s%s", at->e->to_megatron ? at->h_prefix : at->m_prefix, pattern);
    const bool there = any_matches(at->e->sources, at->e->n_sources, all);
    free(all);
    return there;
}

/* The same for a rule's pattern on the source's side. */
static bool rule_is_there(const struct place *at, const struct ckpt_rule *rule)
{
    return rule->transform != CKPT_MAP_DROP &&
           pattern_is_there(at, at->e->to_megatron || at->mirror ? rule->hf : rule->megatron);
}

/* The same for a word of a detect line, a Megatron name without prefix; in a source with Hugging
 * Face's names, for the rules that make this name. */
static bool word_is_there(const struct place *at, const struct ckpt_map *map, const char *word)
{
    const int n = ckpt_map_names(word);
    bool there = false;
    if (!at->e->to_megatron && !at->mirror)
        return pattern_is_there(at, word);
    for (int item = 0; !there && item < n; item++) {
        struct ckpt_match hole = {.layer = 0, .expert = 0, .item = item}, match;
        char *name = ckpt_map_fill(word, &hole);
        for (size_t i = 0; i < map->n_rules && !there; i++)
            there = ckpt_map_match(map->rules[i].megatron, name, &match) &&
                    rule_is_there(at, &map->rules[i]);
        free(name);
    }
    return there;
}

/* Is the family at this place? by_type: the configuration rules out the families that the !NAMEs
 * stand for. */
static bool part_is_there(const struct place *at, const struct ckpt_map *map, const char *detect,
                          bool by_type)
{
    char word[256];
    if (s2s_starts_with(detect, "part "))
        detect += 5;
    if (!*detect)
        for (size_t i = 0; i < map->n_rules; i++)
            if (rule_is_there(at, &map->rules[i]))
                return true;
    for (const char *next = detect; next_word(&next, word);) {
        const bool unwanted = word[0] == '!';
        if (unwanted && by_type)
            continue;
        if (word_is_there(at, map, word + unwanted) == unwanted)
            return false;
    }
    return *detect;
}

/* Finds a family by name in the user's text or the built-in ones; its name is empty if there is
 * none. */
static void find_named(const char *text, const char *wanted, struct ckpt_map_family *family)
{
    struct families all = {.text = text ? text : ""};
    while (next_family(&all, family) && strcmp(family->name, wanted) != 0)
        ;
}

/* ---- the configuration ---- */

/* The next word of a detect line without "!", or "". */
static void next_wanted(const char **at, char word[256])
{
    while (next_word(at, word) && word[0] == '!')
        ;
}

static bool wants_same(const char *a, const char *b)
{
    char x[256], y[256];
    do {
        next_wanted(&a, x);
        next_wanted(&b, y);
    } while (*x && strcmp(x, y) == 0);
    return !*x && !*y;
}

/* Of the families whose detect lines require the same names as this one, finds the one of the
 * configuration's model_type: the user's configuration, else the checkpoint's; else by the
 * arguments. */
static bool find_by_config(const struct ckpt_map_engine *e, const char *text,
                           const struct ckpt_map_family *alike, struct ckpt_map_family *family)
{
    const json_t *config = ckpt_text_config(e->any_config);
    const char *type = ckpt_config_type(config);
    struct families all = {.text = text ? text : ""};
    if (!*type && json_is_true(json_object_get(e->args, "squared_relu")))
        type = "nemotron"; /* the only one whose MLP is not gated */
    while (*type && *alike->detect && next_family(&all, family))
        if (ckpt_has_word(family->model_types, type) && wants_same(family->detect, alike->detect))
            return true;
    return false;
}

/* Callback of "part" lines (ckpt_map_choose). */
static bool choose_part(void *ctx, const char *text, const char *name, const char *m_prefix,
                        const char *h_prefix)
{
    const struct ckpt_map_engine *e = ctx;
    const bool mirror = *name == '=';
    const struct place at = {e, mirror, m_prefix, h_prefix};
    struct ckpt_map map;
    struct ckpt_map_family family, meant;
    if (ckpt_map_parse(&map, text, "", name + mirror, NULL, NULL, NULL) < 0)
        return false;
    find_named(text, name + mirror, &family);
    bool by_type = find_by_config(e, text, &family, &meant);
    bool there = !(family.trains && e->to_megatron) && /* a trainer's names are only read */
                 (!by_type || strcmp(meant.name, family.name) == 0) &&
                 part_is_there(&at, &map, family.detect, by_type);
    ckpt_map_release(&map);
    return there;
}

/* ---- opening ---- */

/* The config.json that is kept in the common state; NULL: none. Gives a reference. */
static json_t *kept_config(const struct s2s_ckpt *ckpt)
{
    const json_t *kept = json_object_get(s2s_ckpt_common(ckpt), "config/llm");
    return json_is_string(kept)
               ? s2s_ckpt_parse_config(json_string_value(kept), json_string_length(kept), 0, NULL)
               : NULL;
}

/* The language model's config.json: the one kept in the common state or, for NeMo's SALM, that in a
 * folder beside the weights. NULL for a part that is not the language model. Gives a reference. */
static json_t *load_own(const struct s2s_ckpt *ckpt, json_t *kept)
{
    json_t *own = NULL;
    if (ckpt->part && !ckpt_part_has_words(ckpt->part))
        return NULL;
    if (kept)
        return json_incref(kept);
    (void)ckpt_read_json(&own, ckpt, "llm_backbone/config.json", NULL);
    return own;
}

/* Detects the family from the names, and from the configuration if they are ambiguous. */
static int find_shown(struct ckpt_map_engine *e, char name[64], struct s2s_error *err)
{
    struct ckpt_map_family family, meant;
    if (!find_family(e->sources, e->n_sources, &family))
        return s2s_error_set(err, S2S_E_NOTFOUND, "the names belong to no known family");
    const bool is_meant = find_by_config(e, NULL, &family, &meant);
    snprintf(name, 64, "%s", is_meant ? meant.name : family.name);
    return 0;
}

/* Renames from transformers' names in memory to those of save_pretrained. */
static void as_saved(struct ckpt_map_engine *e)
{
    if (e->to_megatron && !e->as_saved)
        ckpt_map_respell(e->sources, e->n_sources, NULL, "saved_names");
    e->as_saved = true;
}

/* Finds a family by model_type, such as qwen3: if there are several, as for gemma3 with and without
 * vision, the first of which the source has anything, else the last. Its name is empty if there is
 * none. */
static void find_typed(struct ckpt_map_engine *e, const char *type, struct ckpt_map_family *family)
{
    struct ckpt_map_family next;
    struct families all = {.text = ""};
    bool there = false;
    *family = (struct ckpt_map_family){.name = ""};
    while (!there && next_family(&all, &next)) {
        if (!ckpt_has_word(next.model_types, type))
            continue;
        if (!*family->name)
            as_saved(e);
        *family = next;
        struct ckpt_map map;
        if (ckpt_map_parse(&map, NULL, NULL, next.name, NULL, NULL, NULL) < 0)
            continue;
        there = part_is_there(&(struct place){e, false, "", ""}, &map, "", false);
        ckpt_map_release(&map);
    }
}

/* Finds the family request->name; *file: the text of the user's map file, or NULL. */
static int find_map(struct ckpt_map_engine *e, char **file, char family[64], struct s2s_error *err)
{
    const char *name = e->request->name;
    struct ckpt_map_family found;
    size_t len, at = 0;
    *file = NULL;
    if (!name)
        return find_shown(e, family, err);
    find_named(NULL, name, &found);
    if (!*found.name)
        find_typed(e, name, &found);
    if (!*found.name) {
        int rc = ckpt_slurp(AT_FDCWD, name, MAX_MAP_FILE, file, &len, err);
        if (rc == S2S_E_OPEN)
            s2s_error_set(err, rc, "--map %s: neither a family of models nor a file", name);
        if (rc < 0)
            return s2s_error_hint(err, rc,
                                  "--map takes a family (llama, qwen_moe, mixtral, nemotron_h, "
                                  "nemotron_vlm, gemma2, radio, salm, ..), a model_type of "
                                  "config.json (qwen3, ..) or a file");
        if (strlen(*file) != len)
            return s2s_error_set(err, S2S_E_FORMAT, "%s: no text: byte %zu is 0", name,
                                 strlen(*file));
        if (s2s_starts_with(*file, "\xef\xbb\xbf")) /* a byte order mark */
            memset(*file, ' ', 3);
        if (!ckpt_map_next_family(*file, &at, &found))
            return s2s_error_set(err, S2S_E_FORMAT, "%s: no line \"family NAME\"", name);
    }
    snprintf(family, 64, "%s", found.name);
    return 0;
}

/* Sets the sources of numbers such as heads and layers; a part of a model has its own section. */
static void find_numbers(struct ckpt_map_engine *e)
{
    const char *part = e->request->ckpt->part;
    e->part_config = part ? ckpt_part_config(e->request->ckpt, e->request->config) : NULL;
    e->config = e->part_config ? e->part_config : e->request->config;
    e->args = part && !ckpt_part_has_words(part) ? NULL : ckpt_args(e->request->ckpt);
    json_t *kept = kept_config(e->request->ckpt);
    e->own_config = load_own(e->request->ckpt, kept);
    e->any_config = e->config ? e->config : e->own_config;
    /* of the whole model: a part's configuration has none */
    const json_t *whole = e->request->config ? e->request->config : kept;
    const json_t *vision = json_object_get(whole, "vision_config");
    e->vision_heads = json_integer_value(json_object_get(vision, "num_attention_heads"));
    json_decref(kept);
}

int ckpt_map_begin(struct ckpt_map_engine *e, struct s2s_ckpt_plan *plan,
                   const struct ckpt_map_request *request, bool to_megatron,
                   struct ckpt_map_result *result, struct s2s_error *err)
{
    char *file = NULL;
    *e = (struct ckpt_map_engine){
        .request = request, .plan = plan, .to_megatron = to_megatron, .err = err};
    find_numbers(e);
    e->n_sources = ckpt_map_list(&e->sources, request->ckpt, request->is_exact, &result->n_state);
    result->is_left = ckpt_map_is_state;
    int rc = ckpt_config_check(e->config, err);
    if (rc == 0 && request->is_part) {
        as_saved(e);
        snprintf(result->family, sizeof result->family, "part");
        rc = ckpt_map_find_part(e, &file, err);
    } else if (rc == 0) {
        rc = find_map(e, &file, result->family, err);
    }
    /* a user's map is written for the names in the file */
    if (rc == 0 && !file)
        as_saved(e);
    if (rc == 0)
        ckpt_map_respell(e->sources, e->n_sources, file, result->family);
    if (rc == 0 && !file && request->name)
        rc = ckpt_map_check_family(e, result->family, err);
    e->builtin = file && !request->is_part ? NULL : result->family;
    if (rc == 0)
        rc = ckpt_map_refuse(request->ckpt, !file, err);
    if (rc == 0)
        rc = ckpt_map_parse(&e->map, file, request->name, result->family, choose_part, e, err);
    if (rc == 0) {
        e->n_layers = s2s_xcalloc(e->map.n_stacks + 1, sizeof *e->n_layers);
        ckpt_map_index_begin(&e->index, &e->map, to_megatron);
        ckpt_map_mtp_begin(e);
    }
    free(file);
    return rc;
}

void ckpt_map_add_name(struct ckpt_map_names *names, const char *name)
{
    s2s_grow(&names->of, names->n, &names->cap, sizeof *names->of);
    names->of[names->n++] = name;
}

void ckpt_map_free_result(struct ckpt_map_result *result)
{
    free(result->unused.of);
    free(result->unused_objects.of);
    free(result->dropped.of);
    *result = (struct ckpt_map_result){.n_state = 0};
}

void ckpt_map_end(struct ckpt_map_engine *e, struct ckpt_map_result *result)
{
    result->rows_cut = e->rows_cut;
    for (size_t i = 0; i < e->n_sources; i++) {
        const struct ckpt_map_source *source = &e->sources[i];
        if (!source->used || source->dropped)
            ckpt_map_add_name(source->used ? &result->dropped : &result->unused,
                              source->tensor->name);
    }
    free(e->n_layers);
    ckpt_map_index_end(&e->index);
    free(e->prefix);
    json_decref(e->own_config);
    json_decref(e->part_config);
    ckpt_map_missed_release(e);
    ckpt_map_release(&e->map);
    ckpt_map_free_list(e->sources, e->n_sources);
}
