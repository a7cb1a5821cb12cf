/* NeMo speechlm2: SALM, SALMAutomodel, duplex and streaming models trained with Lightning. */
#include "lib/base/affix.h"
#include "lib/rules/rules_internal.h"

#include <stdlib.h>
#include <string.h>

#include "lib/base/num.h"

#define STRATEGY "trainer.strategy."

static const struct rules_map map[] = {
    {"strategy_target", STRATEGY "_target_", "text", ""},
    {"devices", "trainer.devices", "any", "?"},
    {"nodes", "trainer.num_nodes", "size", "1"},
    {"tp", STRATEGY "tp_size " STRATEGY "tensor_parallel_size", "size", "1"},
    {"cp", STRATEGY "cp_size", "size", "1"},
    {"pp", STRATEGY "pp_size", "size", "1"},
    {"ep", STRATEGY "ep_size", "size", "1"},
    {"dp_cfg", STRATEGY "dp_size " STRATEGY "data_parallel_size", "size", ""},
    {"dp_replicate", STRATEGY "dp_replicate_size", "size", ""},
    {"sp", STRATEGY "distributed_config.sequence_parallel", "bool", "false"},
    {"moe_config", STRATEGY "moe_config", "any", ""},
    {"find_unused", STRATEGY "find_unused_parameters", "bool", "false"},
    {"ckpt_sharded", STRATEGY "save_distributed_checkpoint", "bool", "true"},
    {"recompute_llm", STRATEGY "activation_checkpointing_llm", "bool", "false"},
    {"timeout_minutes", STRATEGY "timeout_minutes", "number", ""},
    {"use_automodel", "model.use_nemo_automodel", "bool", "false"},
    {"packed", "model.packed_sequences", "bool", "false"},
    {"attn", "model.automodel_backend.attn", "text", "te"},
    {"backend", "model.automodel_backend", "any", ""},
    {"experts_backend", "model.automodel_backend.experts", "text", ""},
    {"dispatcher", "model.automodel_backend.dispatcher", "text", ""},
    {"rope_fusion", "model.automodel_backend.rope_fusion", "bool", ""},
    {"enable_deepep", "model.automodel_backend.enable_deepep", "any", ""},
    {"llm", "model.pretrained_llm", "text", ""},
    {"freeze", "model.freeze_params", "list", ""},
    {"prevent_freeze", "model.prevent_freeze_params", "list", ""},
    {"lora", "model.lora", "any", ""},
    {"lora_r", "model.lora.r", "any", ""},
    {"lora_lora_alpha", "model.lora.lora_alpha", "any", ""},
    {"lora_dim", "model.lora.dim", "any", ""},
    {"lora_alpha", "model.lora.alpha", "any", ""},
    {"mtp", "model.mtp.enabled", "bool", "false"},
    {"mtp_mode", "model.mtp.training_mode", "text", "joint"},
    {"dflash", "model.dflash.enabled", "bool", "false"},
    {"pe_encoder", "model.pe_encoder_path", "text", ""},
    {"output_dim", "model.perception.output_dim", "int", ""},
    {"rote_dim", "model.rote.dim", "int", ""},
    {"foreach", "model.optimizer.foreach", "bool", "false"},
    {"lr", "model.optimizer.lr", "number", "?"},
    {"min_lr", "model.lr_scheduler.min_lr", "number", "0"},
    {"warmup", "model.lr_scheduler.warmup_steps", "int", "0"},
    {"decay", "model.lr_scheduler.max_steps", "int", ""},
    {"steps", "trainer.max_steps", "int", ""},
    {"precision", "trainer.precision", "text", ""},
    {"nmb", "trainer.accumulate_grad_batches", "int", "1"},
    {"dist_sampler", "trainer.use_distributed_sampler", "bool", "true"},
    {"limit_train", "trainer.limit_train_batches", "number", ""},
    {"val_check", "trainer.val_check_interval", "number", ""},
    {"mbs", "data.train_ds.batch_size", "int", ""},
    {"seq", "data.train_ds.batch_tokens data.train_ds.max_tokens", "int", "?"},
    {"batch_tokens", "data.train_ds.batch_tokens", "number", ""},
    {"batch_duration", "data.train_ds.batch_duration", "number", ""},
    {"quadratic_duration", "data.train_ds.quadratic_duration", "number", ""},
    {"quadratic_factor", "data.train_ds.quadratic_factor", "number", ""},
    {"multimodal", "data.train_ds.use_multimodal_sampling", "bool", "false"},
    {"bucket_batch_size", "data.train_ds.bucket_batch_size", "list", ""},
    {"bucket_bins", "data.train_ds.bucket_duration_bins", "list", ""},
    {"num_buckets", "data.train_ds.num_buckets", "int", ""},
    {"use_bucketing", "data.train_ds.use_bucketing", "bool", "false"},
    {"shard_seed", "data.train_ds.shard_seed", "any", ""},
    {"train_token_duration", "data.train_ds.token_equivalent_duration", "number", ""},
    {"val_token_duration", "data.validation_ds.token_equivalent_duration", "number", ""},
    {"train_ds", "data.train_ds", "any", ""},
    {"val_ds", "data.validation_ds", "any", ""},
    {"val_datasets", "data.validation_ds.datasets", "any", ""},
    {"source_rate", "data.source_sample_rate", "int", ""},
    {"target_rate", "data.target_sample_rate", "int", ""},
    {"train_rate", "data.train_ds.sample_rate", "int", ""},
    {"frame_length", "data.frame_length", "number", "?"},
    {"window_stride", "model.perception.preprocessor.window_stride", "number", "?"},
    {"subsampling", "model.perception.encoder.subsampling_factor", "int", "?"},
    {"adapter_factor", "model.perception.modality_adapter.subsampling_factor", "int", "1"},
    {"resume", "exp_manager.resume_if_exists", "bool", "false"},
    {"max_tokens", "data.train_ds.max_tokens", "int", "?"},
    {"host_gib", "host_gib", "number", ""},
    {0},
};

static bool present(const struct rules_check *check, const char *path)
{
    return s2s_conf_find(check->conf, path) != NULL;
}

/* automodel, model_parallel, ddp, other: by the class's name */
static void lower_strategy(struct rules_check *check)
{
    struct rules_value target = rules_fact_find(&check->facts, "strategy_target")->value;
    struct rules_value strategy = rules_unknown();
    if (target.type == RULES_TEXT)
        strategy = rules_text(s2s_ends_with(target.s, ".AutomodelParallelStrategy") ? "automodel"
                              : s2s_ends_with(target.s, ".ModelParallelStrategy") ? "model_parallel"
                              : s2s_ends_with(target.s, ".DDPStrategy")           ? "ddp"
                                                                                  : "other");
    else if (target.type == RULES_NULL) /* `strategy: ddp`, or none */
        strategy = rules_text("other");
    rules_fact_set(&check->facts, "strategy", strategy);
}

/* Which model class the training script of such a config builds: the file does not say. */
static void lower_class(struct rules_check *check)
{
    struct rules_value automodel = rules_fact_find(&check->facts, "use_automodel")->value;
    bool streaming = present(check, "model.blank_token") || present(check, "model.chunk_size");
    bool duplex = present(check, "model.pretrained_audio_codec") ||
                  present(check, "data.target_sample_rate") ||
                  present(check, "model.audio_loss_weight") ||
                  present(check, "model.speech_generation");
    /* the key is missing, but the rest of the file is written for the Automodel backend: that is
     * S2S-SLM-002, and what it means is still SALMAutomodel */
    struct rules_value strategy = rules_fact_find(&check->facts, "strategy")->value;
    bool automodel_like =
        !present(check, "model.use_nemo_automodel") &&
        ((strategy.type == RULES_TEXT && !strcmp(strategy.s, "automodel")) ||
         (!present(check, STRATEGY "_target_") && present(check, "model.automodel_backend")));
    bool on = (automodel.type == RULES_BOOL && automodel.b) || automodel_like;
    const char *name = streaming ? "streaming" : duplex ? "duplex" : on ? "salm_automodel" : "salm";
    rules_fact_set(&check->facts, "model_class",
                   automodel.type == RULES_UNKNOWN && !streaming && !duplex ? rules_unknown()
                                                                            : rules_text(name));
}

static void lower_world(struct rules_check *check)
{
    struct rules_fact *devices = rules_fact_find(&check->facts, "devices");
    struct rules_value v = devices->value;
    struct rules_value given = rules_fact_find(&check->facts, "gpus_given")->value;
    /* devices: 8, "8", [0, 1], -1 or auto: all GPUs of the node */
    if (v.type == RULES_LIST)
        v = rules_int((int64_t)v.list->n_items);
    else if (v.type == RULES_TEXT) {
        int64_t n = 0;
        v = s2s_parse_i64(&n, v.s, 1, INT32_MAX, NULL) == 0 ? rules_int(n) : rules_unknown();
    }
    if (v.type != RULES_INT || v.i < 1)
        v = given.type == RULES_INT ? given : rules_unknown();
    rules_fact_set(&check->facts, "gpus_per_node", v);
}

static bool list_has(struct rules_value list, const char *const *texts)
{
    for (size_t i = 0; list.type == RULES_LIST && i < list.list->n_items; i++)
        for (int k = 0; texts[k]; k++)
            if (list.list->items[i]->text && !strcmp(list.list->items[i]->text, texts[k]))
                return true;
    return false;
}

/* Regular expressions of freeze_params that are plainly about everything, or about all of a part */
static void lower_freeze(struct rules_check *check)
{
    static const char *const everything[] = {".*", ".+", "^.*$", "^.+$", "^.*", "^.+", NULL};
    static const char *const all_llm[] = {"^llm\\..+$", "^llm\\..*$", "^llm", NULL};
    static const char *const all_perception[] = {"^perception\\..+$", "^perception\\..*$",
                                                 "^perception", NULL};
    struct rules_value freeze = rules_fact_find(&check->facts, "freeze")->value;
    struct rules_value keep = rules_fact_find(&check->facts, "prevent_freeze")->value;
    bool kept = keep.type == RULES_LIST && keep.list->n_items;
    bool no_path = list_has(freeze, all_llm) && list_has(freeze, all_perception) && !kept &&
                   !present(check, "model.lora");
    rules_fact_set(&check->facts, "all_frozen", rules_bool(list_has(freeze, everything) && !kept));
    rules_fact_set(&check->facts, "no_gradient_path", rules_bool(no_path));
}

/* "not closed", "nothing to repeat" and so on, or NULL: what the compiler of Python's re refuses.
 */
static const char *regex_fault(const char *text)
{
    int depth = 0;
    bool can_repeat = false;
    for (const char *s = text; *s; s++) {
        bool repeat = strchr("*+?", *s) != NULL;
        if (repeat && !can_repeat)
            return "a repetition of nothing";
        can_repeat = !strchr("(|^", *s) && (!repeat || s[1] == '?' || s[1] == '+');
        if (*s == '\\' && !*++s)
            return "a backslash at its end";
        if (*s == '[' && s[-1 + (s == text)] != '\\') {
            s += s[1] == '^';
            const char *close = strchr(s + 2, ']');
            if (!s[1] || !close)
                return "a bracket that is not closed";
            s = close;
        } else if (s == text || s[-1] != '\\') {
            depth += (*s == '(') - (*s == ')');
            if (depth < 0)
                return "a parenthesis that is not opened";
            if (*s == '(' && s[1] == '?')
                s++; /* a group with a property: not looked into */
        }
    }
    return depth ? "a parenthesis that is not closed" : NULL;
}

/* Whether every match of "^name\\.." begins with a name that no part of the model has: anything
 * else than the parts of a SALM, for other models one that is nearly the name of a part. */
static bool names_nothing(const char *text, bool salm)
{
    static const char *const salm_parts[] = {"llm", "perception", "embed_tokens", "lm_head",
                                             "mtp", "draft",      "dflash",       NULL};
    static const char *const near[] = {"llm",         "perception",         "embed_tokens",
                                       "lm_head",     "embed_audio_tokens", "audio_head",
                                       "audio_codec", "speech_generation",  NULL};
    const char *const *parts = salm ? salm_parts : near;
    text += *text == '^';
    size_t len = strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_");
    if (!len || text[len] != '\\' || text[len + 1] != '.')
        return false;
    char *name = s2s_xstrndup(text, len);
    const char *nearest = s2s_conf_nearest(name, parts);
    bool known = false;
    for (int i = 0; parts[i]; i++)
        known |= !strcmp(parts[i], name);
    free(name);
    return !known && (salm || nearest);
}

static bool is_salm(const struct rules_check *check)
{
    struct rules_value class = rules_fact_find(&check->facts, "model_class")->value;
    return class.type == RULES_TEXT && !strncmp(class.s, "salm", 4) &&
           present(check, "model.pretrained_llm") && present(check, "model.perception") &&
           present(check, "model.audio_locator_tag");
}

/* What is wrong with a pattern of freeze_params or prevent_freeze_params; the first of them. */
static void lower_patterns(struct rules_check *check)
{
    static const char *const lists[] = {"freeze", "prevent_freeze"};
    struct rules_fact *fault = rules_fact_make(&check->facts, "pattern_fault");
    fault->value = rules_null();
    for (size_t k = 0; k < 2 && fault->value.type == RULES_NULL; k++) {
        struct rules_value v = rules_fact_find(&check->facts, lists[k])->value;
        for (size_t i = 0; v.type == RULES_LIST && i < v.list->n_items; i++) {
            const struct s2s_conf *item = v.list->items[i];
            const char *text = item->text && !strchr(item->text, '{') ? item->text : "";
            const char *wrong = regex_fault(text);
            if (!wrong && names_nothing(text, is_salm(check)))
                wrong = "the name of no part of the model";
            if (!wrong || fault->value.type != RULES_NULL)
                continue;
            fault->value = rules_text(wrong);
            fault->node = item;
            fault->key = k ? "model.prevent_freeze_params" : "model.freeze_params";
            rules_fact_set(&check->facts, "pattern_text", rules_text(item->text));
        }
    }
    if (fault->value.type == RULES_NULL)
        rules_fact_set(&check->facts, "pattern_text", rules_null());
}

/* Whether NeMo makes text or conversations of sources of that type, which have tokens but, other
 * than cuts, no duration (nemo/collections/common/data/lhotse/cutset.py, text_adapters.py). */
static bool has_no_duration(const char *type)
{
    static const char *const types[] = {"multimodal_conversation",
                                        "lhotse_as_conversation",
                                        "share_gpt",
                                        "share_gpt_webdataset",
                                        "txt",
                                        "txt_jsonl",
                                        "txt_pair",
                                        "nemo_sft_jsonl",
                                        NULL};
    for (int i = 0; types[i]; i++)
        if (!strcmp(types[i], type))
            return true;
    return false;
}

/* The first source without durations of an input_cfg and its groups; *known becomes false where the
 * list is in another file. */
static const struct s2s_conf *source_without_duration(const struct s2s_conf *sources, bool *known)
{
    if (!sources || sources->kind == S2S_CONF_NULL)
        return NULL;
    if (sources->kind != S2S_CONF_LIST) {
        *known = false;
        return NULL;
    }
    for (size_t i = 0; i < sources->n_items; i++) {
        const struct s2s_conf *type = s2s_conf_key(sources->items[i], "type");
        if (type && type->text && has_no_duration(type->text))
            return type;
        const struct s2s_conf *inner =
            source_without_duration(s2s_conf_key(sources->items[i], "input_cfg"), known);
        if (inner)
            return inner;
    }
    return NULL;
}

static void lower_sources(struct rules_check *check)
{
    bool known = true;
    const struct s2s_conf *sources = s2s_conf_find(check->conf, "data.train_ds.input_cfg");
    const struct s2s_conf *type = source_without_duration(sources, &known);
    struct rules_fact *fact = rules_fact_make(&check->facts, "conversation");
    fact->value = type ? rules_text(type->text) : known ? rules_null() : rules_unknown();
    fact->node = type;
    fact->key = "data.train_ds.input_cfg";
}

/* Facts that are a comparison too odd for an expression. */
static void lower_rest(struct rules_check *check)
{
    struct rules_value seed = rules_fact_find(&check->facts, "shard_seed")->value;
    struct rules_value llm = rules_fact_find(&check->facts, "llm")->value;
    const char *name = llm.type == RULES_TEXT ? llm.s : "";
    /* dense models that transformers builds; mixtures of experts are named after active weights */
    bool plain = !strncmp(name, "TinyLlama/", 10) ||
                 (!strncmp(name, "Qwen/Qwen3-", 11) && !strstr(name, "B-A"));
    rules_fact_set(&check->facts, "shard_seed_fixed", rules_bool(seed.type == RULES_INT));
    rules_fact_set(&check->facts, "plain_hf_llm", rules_bool(plain));
    rules_fact_set(&check->facts, "train_ds_own_sampler",
                   rules_bool(present(check, "data.train_ds.multi_config") ||
                              present(check, "data.train_ds.sampler")));
}

int rules_lower_slm(struct rules_check *check)
{
    static const struct rules_derived derived[] = {
        {"world", "if(world_given == null, gpus_per_node * nodes, world_given)"},
        {"dp", "world / (tp*cp*pp)"},
        {"gbs", "mbs*dp*nmb"},
        {"encoder_stride", "window_stride*subsampling*adapter_factor"},
        {"fsdp_on", "strategy in ('automodel', 'model_parallel')"},
        {"gtp", "1"},
        {"etp", "1"},
        {"model_params", "layers*(4*hidden*hidden + 3*hidden*if(known(experts), "
                         "experts*expert_ffn, ffn)) + 2*vocab*hidden"},
        {"host_room", "if(host_gib == null, 2*gpus_per_node*device_gib, host_gib)"},
        {0},
    };
    rules_lower_map(check, map);
    rules_lower_model(check);
    lower_strategy(check);
    lower_class(check);
    lower_world(check);
    lower_freeze(check);
    lower_patterns(check);
    lower_sources(check);
    lower_rest(check);
    rules_lower_derived(check, derived);
    return 0;
}
