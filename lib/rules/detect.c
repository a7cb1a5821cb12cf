/* Tells the dialect of a config by its keys. */
#include "lib/rules/rules_internal.h"

#include <string.h>

static const struct {
    enum s2s_dialect dialect;
    const char *name;
} dialects[] = {
    {S2S_DIALECT_S2S, "s2s"}, {S2S_DIALECT_SLM, "slm"}, {S2S_DIALECT_RL, "rl"},
    {S2S_DIALECT_AM, "am"},   {S2S_DIALECT_MLM, "mlm"}, {S2S_DIALECT_HET, "het"},
};

enum { N_DIALECTS = sizeof dialects / sizeof *dialects };

const char *s2s_dialect_name(enum s2s_dialect dialect)
{
    for (int i = 0; i < N_DIALECTS; i++)
        if (dialects[i].dialect == dialect)
            return dialects[i].name;
    return NULL;
}

enum s2s_dialect s2s_dialect_by_name(const char *name)
{
    for (int i = 0; i < N_DIALECTS; i++)
        if (!strcmp(dialects[i].name, name))
            return dialects[i].dialect;
    return S2S_DIALECT_NONE;
}

static bool has(const struct s2s_conf *conf, const char *path)
{
    return s2s_conf_find(conf, path) != NULL;
}

static bool is_slm(const struct s2s_conf *c)
{
    return has(c, "model") && has(c, "trainer") && has(c, "data") &&
           (has(c, "model.pretrained_llm") || has(c, "model.perception") ||
            has(c, "trainer.strategy._target_"));
}

/* policy, student or teacher with a backend of NeMo-RL */
static bool is_rl(const struct s2s_conf *c)
{
    static const char *const sections[] = {"policy", "student", "teacher"};
    for (size_t i = 0; i < sizeof sections / sizeof *sections; i++) {
        const struct s2s_conf *section = s2s_conf_key(c, sections[i]);
        if (section &&
            (s2s_conf_key(section, "megatron_cfg") || s2s_conf_key(section, "dtensor_cfg")))
            return true;
    }
    return false;
}

static bool is_am(const struct s2s_conf *c)
{
    const struct s2s_conf *target = s2s_conf_find(c, "model._target_");
    return (has(c, "distributed") || has(c, "recipe")) &&
           (has(c, "step_scheduler") ||
            (target && target->text && !strncmp(target->text, "nemo_automodel", 14)));
}

static bool is_mlm(const struct s2s_conf *c)
{
    return has(c, "MODEL_ARGS") || has(c, "BASE_MODEL_ARGS") ||
           (has(c, "language_model") && has(c, "model_parallel"));
}

/* a grid of its own for each module */
static bool is_het(const struct s2s_conf *c)
{
    static const char *const flags[] = {"llm-tp", "llm-dp", "encoder-dp", NULL};
    const struct s2s_conf *args = s2s_conf_key(c, "MODEL_ARGS"),
                          *program = s2s_conf_key(c, "PROGRAM");
    if (program && program->text &&
        (strstr(program->text, "train_hetero.py") || strstr(program->text, "pretrain_mimo")))
        return true;
    for (size_t i = 0; args && i < args->n_items; i++) {
        char name[16];
        const char *key = args->items[i]->key ? args->items[i]->key : "";
        key += strspn(key, "-");
        size_t n = 0;
        for (; key[n] && n + 1 < sizeof name; n++)
            name[n] = key[n];
        name[n] = 0;
        for (char *s = name; *s; s++)
            *s = *s == '_' ? '-' : *s;
        for (int k = 0; flags[k]; k++)
            if (!strcmp(name, flags[k]))
                return true;
    }
    return false;
}

static bool is_s2s(const struct s2s_conf *c)
{
    /* overrides of Megatron-Bridge have the same sections with other keys */
    const bool data = has(c, "data.train");
    const bool parts = has(c, "model.path") || has(c, "model.llm") || has(c, "model.encoder");
    if (has(c, "train.train_iters") || has(c, "train.global_batch_size"))
        return false;
    return (data && parts) || (has(c, "model") && has(c, "optimizer") && (data || has(c, "train")));
}

const char *rules_foreign(const struct s2s_conf *c)
{
    if (has(c, "actor_rollout_ref") || has(c, "rollout.tensor_model_parallel_size"))
        return "verl";
    if (has(c, "train.train_iters") || has(c, "train.global_batch_size"))
        return "Megatron-Bridge";
    if (has(c, "parallelism.tensor_parallel_degree") || has(c, "job.dump_folder"))
        return "torchtitan";
    return has(c, "train_micro_batch_size_per_gpu") || has(c, "zero_optimization") ? "DeepSpeed"
                                                                                   : NULL;
}

enum s2s_dialect s2s_dialect_detect(const struct s2s_conf *conf)
{
    return is_slm(conf)   ? S2S_DIALECT_SLM
           : is_rl(conf)  ? S2S_DIALECT_RL
           : is_am(conf)  ? S2S_DIALECT_AM
           : is_het(conf) ? S2S_DIALECT_HET
           : is_mlm(conf) ? S2S_DIALECT_MLM
           : is_s2s(conf) ? S2S_DIALECT_S2S
                          : S2S_DIALECT_NONE;
}
