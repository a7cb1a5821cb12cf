/* Turns keys of any dialect into facts with common names. */
#include "lib/rules/rules_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/error.h"

/* The first blank-separated key that is set; otherwise the first that is there; or NULL. *key is
 * its name, or the first of all. */
static const struct s2s_conf *find_any(struct rules_check *check, const char *keys,
                                       const char **key)
{
    const struct s2s_conf *there = NULL;
    *key = NULL;
    while (*keys) {
        size_t len = strcspn(keys, " ");
        char *one = rules_keep(&check->facts,
                               keys[0] == '@'
                                   ? s2s_xasprintf("%s%.*s", check->section, (int)len - 1, keys + 1)
                                   : s2s_xstrndup(keys, len));
        const struct s2s_conf *node = s2s_conf_find(check->conf, one);
        if (node && node->kind != S2S_CONF_NULL) {
            *key = one;
            return node;
        }
        if (!*key || (node && !there))
            *key = one;
        there = there ? there : node;
        keys += len;
        keys += strspn(keys, " ");
    }
    return there;
}

static void wrong_type(struct rules_check *check, const struct s2s_conf *node, const char *expected)
{
    if (node->text)
        rules_find(check, "S2S-CFG-004", node, false, "", "expected %s, found '%s'", expected,
                   node->text);
    else
        rules_find(check, "S2S-CFG-004", node, false, "", "expected %s, found %s", expected,
                   s2s_conf_kind_name(node->kind));
}

static bool is_auto(struct rules_value v)
{
    return v.type == RULES_TEXT && !strcmp(v.s, "auto");
}

/* The value if it is of the type, else a finding and UNKNOWN. */
static struct rules_value typed(struct rules_check *check, const struct s2s_conf *node,
                                const char *type)
{
    struct rules_value v = rules_value_of(node);
    bool number = v.type == RULES_INT || v.type == RULES_FLOAT;
    if (v.type == RULES_UNKNOWN && (node->kind == S2S_CONF_STRING || !strcmp(type, "any")))
        return v;
    if (!strcmp(type, "size") && v.type == RULES_INT && v.i < 1) {
        rules_find(check, "S2S-WLD-007", node, false, "use an integer of at least 1",
                   "a size must be at least 1, found %lld", (long long)v.i);
        return rules_unknown();
    }
    if (is_auto(v) && strcmp(type, "text") != 0)
        return rules_unknown();
    const char *expected =
        !strcmp(type, "size") || !strcmp(type, "int") ? (v.type == RULES_INT ? NULL : "an integer")
        : !strcmp(type, "number")                     ? (number ? NULL : "a number")
        : !strcmp(type, "bool") ? (v.type == RULES_BOOL ? NULL : "true or false")
        : !strcmp(type, "list") ? (v.type == RULES_LIST ? NULL : "a list")
        : !strcmp(type, "text") ? (v.type != RULES_LIST && v.type != RULES_UNKNOWN ? NULL : "text")
                                : NULL;
    if (!expected)
        return !strcmp(type, "text") && node->text ? rules_text(node->text) : v;
    wrong_type(check, node, expected);
    return rules_unknown();
}

static struct rules_value fallback(struct rules_check *check, const char *text)
{
    if (!strcmp(text, "?"))
        return rules_unknown();
    char *end;
    if (!*text)
        return rules_null();
    if (!strcmp(text, "true") || !strcmp(text, "false"))
        return rules_bool(text[0] == 't');
    long long i = strtoll(text, &end, 10);
    if (!*end)
        return rules_int(i);
    double f = strtod(text, &end);
    return *end ? rules_text(text) : (struct rules_value){RULES_FLOAT, {.f = f}};
}

void rules_lower_map(struct rules_check *check, const struct rules_map *map)
{
    for (; map->name; map++) {
        const char *key = NULL;
        const struct s2s_conf *node = find_any(check, map->keys, &key);
        struct rules_fact *fact = rules_fact_make(&check->facts, map->name);
        fact->key = key;
        if (node && node->kind != S2S_CONF_NULL) {
            fact->node = node;
            fact->origin = node->place.source ? node->place.source->origin : S2S_CONF_FROM_FILE;
            struct rules_value v = typed(check, node, map->type);
            rules_fact_find(&check->facts, map->name)->value = v;
        } else {
            fact->value = check->incomplete ? rules_unknown() : fallback(check, map->other);
            fact->origin = S2S_CONF_FROM_DEFAULT;
        }
    }
}

/* Sizes that only the language model's own config knows. */
static const struct rules_map model_map[] = {
    {"heads", "num_attention_heads", "int", "?"},
    {"kv_heads", "num_key_value_heads num_attention_heads", "int", "?"},
    {"hidden", "hidden_size", "int", "?"},
    {"layers", "num_hidden_layers", "int", "?"},
    {"ffn", "intermediate_size", "int", "?"},
    {"vocab", "vocab_size", "int", "?"},
    {"head_dim", "head_dim", "int", "?"},
    {"experts", "n_routed_experts num_experts num_local_experts", "int", "?"},
    {"topk", "num_experts_per_tok", "int", "?"},
    {"mamba_heads", "mamba_num_heads", "int", "?"},
    {"mamba_groups", "n_groups mamba_n_groups", "int", "?"},
    {"expert_ffn", "moe_intermediate_size intermediate_size", "int", "?"},
    {"kv_rank", "kv_lora_rank", "any", "?"},
    {"model_yarn", "rope_scaling.rope_type rope_scaling.type rope_parameters.rope_type", "text",
     "?"},
    {"model_rope_factor", "rope_scaling.factor rope_parameters.factor", "number", "?"},
    {"model_rope_original",
     "rope_scaling.original_max_position_embeddings "
     "rope_parameters.original_max_position_embeddings",
     "number", "?"},
    {0},
};

void rules_lower_model(struct rules_check *check)
{
    struct s2s_conf *config = check->conf;
    const struct s2s_conf *types = s2s_conf_find(check->model, "layer_types");
    bool linear = false;
    check->conf = check->model;
    rules_lower_map(check, model_map);
    check->conf = config;
    for (const struct rules_map *m = model_map; m->name; m++)
        rules_fact_find(&check->facts, m->name)->of_model = true;
    for (size_t i = 0; types && i < types->n_items; i++)
        linear |= types->items[i]->text && !strcmp(types->items[i]->text, "linear_attention");
    struct rules_value architecture =
        rules_value_of(s2s_conf_find(check->model, "architectures[0]"));
    rules_fact_set(&check->facts, "architecture",
                   architecture.type == RULES_TEXT ? architecture : rules_unknown());
    static const struct rules_derived derived[] = {
        /* null if a tensor-parallel plan is written for the architecture */
        {"architecture_plan",
         "stranger(architecture, 'BaichuanForCausalLM Qwen2ForCausalLM Qwen3ForCausalLM "
         "LlamaForCausalLM "
         "Gemma3ForCausalLM Gemma3ForConditionalGeneration Qwen3_5ForCausalLM "
         "Qwen3_5ForConditionalGeneration FalconH1ForCausalLM Ministral3ForCausalLM "
         "Mistral3ForConditionalGeneration PhiForCausalLM Phi3ForCausalLM NemotronFlashForCausalLM "
         "DeciLMForCausalLM NemotronLabsDiffusionModel MuseGlimmerForConditionalGeneration "
         "Qwen3ForSequenceClassification Qwen2ForSequenceClassification "
         "LlamaForSequenceClassification')"},
        {0},
    };
    rules_lower_derived(check, derived);
    /* a config.json with the sizes and no experts among them */
    rules_fact_set(
        &check->facts, "dense",
        rules_eval(&check->facts, "if(known(hidden), not known(experts), unknown)", NULL));
    rules_fact_set(&check->facts, "linear_attention",
                   check->opt->model_config ? rules_bool(linear) : rules_unknown());
}

void rules_lower_nemotron_h(struct rules_check *check, struct rules_value name)
{
    static const char *const names[] = {
        "Nemotron-H-",        "NVIDIA-Nemotron-Nano-9B-v2", "NVIDIA-Nemotron-Nano-12B-v2",
        "NVIDIA-Nemotron-3-", "NVIDIA-Nemotron-3.5-",       NULL,
    };
    const struct s2s_conf *architecture = s2s_conf_find(check->model, "architectures[0]");
    struct rules_value found = rules_unknown();
    if (architecture && architecture->text)
        found = rules_bool(!strcmp(architecture->text, "NemotronHForCausalLM"));
    for (int i = 0; name.type == RULES_TEXT && names[i]; i++)
        if (strstr(name.s, names[i]))
            found = rules_bool(true);
    rules_fact_set(&check->facts, "nemotron_h", found);
}

void rules_lower_derived(struct rules_check *check, const struct rules_derived *derived)
{
    for (; derived->name; derived++) {
        struct rules_value v = rules_eval(&check->facts, derived->expression, NULL);
        struct rules_fact *fact = rules_fact_make(&check->facts, derived->name);
        if (fact->node && fact->value.type != RULES_UNKNOWN)
            continue; /* given on the command line */
        fact->value = v;
        fact->origin = S2S_CONF_FROM_DERIVED;
    }
}

void rules_lower_device(struct rules_check *check)
{
    /* device, compute capability, memory in GiB, linked by NVLink */
    static const struct {
        const char *name;
        int major, minor, memory_gib;
        bool nvlink;
    } devices[] = {
        {"v100", 7, 0, 32, true},         {"t4", 7, 5, 16, false},
        {"a100", 8, 0, 80, true},         {"a40", 8, 6, 48, false},
        {"l40", 8, 9, 48, false},         {"l40s", 8, 9, 48, false},
        {"rtx4090", 8, 9, 24, false},     {"h100", 9, 0, 80, true},
        {"h200", 9, 0, 141, true},        {"gh200", 9, 0, 96, true},
        {"b200", 10, 0, 192, true},       {"gb200", 10, 0, 192, true},
        {"b300", 10, 3, 288, true},       {"gb300", 10, 3, 288, true},
        {"thor", 11, 0, 128, false},      {"rtx5090", 12, 0, 32, false},
        {"rtxpro6000", 12, 0, 96, false},
    };
    struct rules_facts *f = &check->facts;
    const struct s2s_rules_options *opt = check->opt;
    int major = opt->sm_major, minor = opt->sm_minor;
    rules_fact_set(f, "sm", rules_unknown());
    rules_fact_set(f, "device_gib", rules_unknown());
    rules_fact_set(f, "nvlink", rules_unknown());
    rules_fact_set(f, "device", opt->device ? rules_text(opt->device) : rules_null());
    bool found = !opt->device;
    for (size_t i = 0; opt->device && i < sizeof devices / sizeof *devices; i++) {
        if (strcmp(devices[i].name, opt->device) != 0)
            continue;
        found = true;
        rules_fact_set(f, "device_gib", rules_int(devices[i].memory_gib));
        rules_fact_set(f, "nvlink", rules_bool(devices[i].nvlink));
        if (!major) {
            major = devices[i].major;
            minor = devices[i].minor;
        }
    }
    rules_fact_set(f, "device_known", rules_bool(found));
    if (major)
        rules_fact_set(f, "sm", rules_int(10 * major + minor));
}

/* GPUs that CUDA_VISIBLE_DEVICES lists; unknown if it is not given */
static struct rules_value visible_devices(const struct rules_facts *facts)
{
    struct rules_value env = rules_eval(facts, "env('CUDA_VISIBLE_DEVICES')", NULL);
    if (env.type != RULES_TEXT)
        return rules_unknown();
    int64_t n = *env.s != 0;
    for (const char *s = env.s; *s; s++)
        n += *s == ',';
    return rules_int(n);
}

/* Common names of the run whose checkpoint is resumed, as previous_NAME; null without --previous.
 */
static void lower_previous(struct rules_check *check)
{
    static const char *const names[] = {"tp", "pp", "ep", "save", "reshardable"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const struct s2s_conf *node =
            check->opt->previous ? s2s_conf_key(check->opt->previous, names[i]) : NULL;
        struct rules_value v = rules_value_of(node);
        if (!check->opt->previous)
            v = rules_null();
        else if (v.type == RULES_TEXT && !strcmp(v.s, "?"))
            v = rules_unknown();
        char *name = rules_keep(&check->facts, s2s_xasprintf("previous_%s", names[i]));
        rules_fact_set(&check->facts, name, v);
    }
}

void rules_lower_common(struct rules_check *check)
{
    const struct s2s_rules_options *opt = check->opt;
    struct rules_facts *f = &check->facts;
    f->env = opt->env;
    rules_fact_set(f, "world_given",
                   opt->world_size > 0 ? rules_int(opt->world_size) : rules_null());
    rules_fact_set(f, "gpus_given",
                   opt->gpus_per_node > 0 ? rules_int(opt->gpus_per_node) : rules_null());
    rules_fact_set(f, "upstream", opt->upstream ? rules_text(opt->upstream) : rules_null());
    rules_fact_set(f, "launch", rules_bool(opt->launch));
    rules_fact_set(f, "visible_devices", visible_devices(f));
    lower_previous(check);
    rules_fact_set(f, "cudnn", opt->cudnn > 0 ? rules_int(opt->cudnn) : rules_unknown());
    rules_lower_device(check);
}

void rules_find(struct rules_check *check, const char *id, const struct s2s_conf *node, bool at_key,
                const char *fix, const char *fmt, ...)
{
    struct s2s_report *report = check->report;
    struct s2s_finding found = {.rule = s2s_rule_by_id(id)};
    struct s2s_buf key = S2S_BUF_INIT;
    char text[1024];
    va_list ap;
    if (!found.rule)
        S2S_BUG("no rule %s", id);
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    found.severity = found.rule->severity;
    found.message = s2s_xstrdup(text);
    found.fix = s2s_xstrdup(fix);
    if (node) {
        found.place = node->place;
        if (at_key && node->key_line) {
            found.place.line = node->key_line;
            found.place.column = node->key_column;
        }
        s2s_conf_add_path(&key, node);
    }
    found.key = key.data ? key.data : s2s_xstrdup("");
    s2s_grow(&report->findings, report->n_findings, &report->cap_findings,
             sizeof *report->findings);
    report->findings[report->n_findings++] = found;
}
