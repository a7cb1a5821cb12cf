/*
 * What training needs of a GPU's memory: weights, gradients and optimizer states, activations,
 * logits, for the ranks of the first, the middle and the last pipeline stage. A lower bound where a
 * choice is not in the config: what is allocated beside it (communication buffers, fragments, the
 * encoder of a speech model) is not counted.
 *
 * Sources: megatron/training/theoretical_memory_usage.py for parameters, 18 or 6 + 12/dp bytes a
 * parameter and the activations of a layer with sequence parallelism; Korthikanti et al. 2022
 * (arXiv 2205.05198, table 2) for those without and with full recomputation; Rajbhandari et al.
 * 2020 (ZeRO) for what sharding divides.
 */
#include "lib/rules/memory.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/error.h"

/* Bytes of a parameter on one rank: what each part takes, and what unsharding a layer needs. */
struct cost {
    double weights, gradients, optimizer;
    double live; /* bytes a parameter of the one layer that is whole while it computes; 0: none */
};

struct layout {
    double tp, pp, cp, ep, etp, dp, vpp, n_microbatches;
    double first_layers, last_layers; /* NaN: even */
    double tokens;                    /* of a microbatch */
    bool sequence_parallel, full_recompute;
};

static bool is_text(const struct rules_check *check, const char *name, const char *text)
{
    const struct rules_fact *f = rules_fact_find(&check->facts, name);
    return f && f->value.type == RULES_TEXT && !strcmp(f->value.s, text);
}

static bool is_null(const struct rules_check *check, const char *name)
{
    const struct rules_fact *f = rules_fact_find(&check->facts, name);
    return !f || f->value.type == RULES_NULL;
}

static bool is_off(const struct rules_check *check, const char *name)
{
    const struct rules_fact *f = rules_fact_find(&check->facts, name);
    return f && f->value.type == RULES_BOOL && !f->value.b;
}

/* a list with something in it */
static bool is_filled(const struct rules_check *check, const char *name)
{
    const struct rules_fact *f = rules_fact_find(&check->facts, name);
    return f && f->value.type == RULES_LIST && f->value.list->n_items;
}

/* One of the names, blank-separated, is not known: what depends on it is not either */
static bool any_unknown(const struct rules_check *check, const char *names)
{
    char name[64];
    while (*names) {
        size_t len = strcspn(names, " ");
        snprintf(name, sizeof name, "%.*s", (int)len, names);
        const struct rules_fact *f = rules_fact_find(&check->facts, name);
        if (f && f->value.type == RULES_UNKNOWN)
            return true;
        names += len;
        names += strspn(names, " ");
    }
    return false;
}

/* ---- bytes a parameter ---- */

static double state_bytes(const struct rules_check *check, const char *name)
{
    return is_text(check, name, "fp32")                                        ? 4
           : is_text(check, name, "bf16") || is_text(check, name, "fp16")      ? 2
           : is_text(check, name, "fp8") || is_text(check, name, "fp8_e4m3fn") ? 1
                                                                               : 4;
}

/* Megatron's mixed precision: 2 of weights, 4 of gradients, 4 + 4 + 4 of master weights and
 * moments, which the distributed optimizer shares among the ranks that hold the same weights. */
static struct cost cost_of_megatron(const struct rules_check *check, double shards)
{
    bool half = rules_on(check, "bf16") || rules_on(check, "fp16") || rules_on(check, "opt_bf16") ||
                rules_on(check, "opt_fp16") || is_text(check, "precision", "bfloat16");
    struct cost c = {half ? 2 : 4, rules_on(check, "grads_bf16") ? 2 : 4, half ? 12 : 8, 0};
    double on_cpu = 0;
    if (any_unknown(check, "megatron_fsdp torch_fsdp sharding dist_opt precision_aware grads_bf16 "
                           "offload_optimizer opt_offload grads_dtype params_dtype avg_dtype "
                           "avg_sq_dtype precision"))
        return (struct cost){NAN, NAN, NAN, 0};
    if (check->report->dialect == S2S_DIALECT_MLM && rules_on(check, "precision_aware")) {
        c.gradients = state_bytes(check, "grads_dtype");
        c.optimizer = state_bytes(check, "params_dtype") + state_bytes(check, "avg_dtype") +
                      state_bytes(check, "avg_sq_dtype");
    }
    if (rules_on(check, "offload_optimizer"))
        on_cpu = 1;
    if (rules_on(check, "opt_offload"))
        on_cpu = rules_number(check, "opt_offload_fraction", 1);
    c.optimizer *= 1 - on_cpu;
    bool fsdp = rules_on(check, "megatron_fsdp") || rules_on(check, "torch_fsdp");
    if (fsdp || rules_on(check, "dist_opt"))
        c.optimizer /= shards;
    if (fsdp &&
        (rules_on(check, "torch_fsdp") || is_text(check, "sharding", "optim_grads_params"))) {
        c.live = c.weights;
        c.weights /= shards;
        c.gradients /= shards;
    }
    return c;
}

/* FSDP2: everything is shared. Parameters are kept in float32 where mixed precision computes from
 * them, else (and where nobody says) in bfloat16 with gradients and moments like them. */
static struct cost cost_of_fsdp(const struct rules_check *check, double shards)
{
    bool rl = check->report->dialect == S2S_DIALECT_RL,
         is_slm = check->report->dialect == S2S_DIALECT_SLM;
    bool mixed = is_text(check, "precision", "bf16-mixed") ||
                 is_text(check, "precision", "32-true") || is_text(check, "precision", "32") ||
                 (rl && !is_null(check, "precision"));
    double each = mixed ? 4 : 2;
    double live = shards > 1 ? 2 : 0;
    struct cost c = {each / shards, each / shards, 2 * each / shards, live};
    if (any_unknown(check, "fsdp strategy precision cpu_offload lora freeze"))
        return (struct cost){NAN, NAN, NAN, live};
    bool frozen = is_slm ? !is_null(check, "lora") || is_filled(check, "freeze")
                         : !is_null(check, "lora") && (!rl || rules_on(check, "lora"));
    if (frozen) /* what trains is small, or not known from here */
        c = (struct cost){2 / shards, 0, 0, live};
    if (rules_on(check, "cpu_offload"))
        c = (struct cost){.live = 2};
    return c;
}

static bool is_megatron(const struct rules_check *check)
{
    return check->report->dialect == S2S_DIALECT_MLM ||
           (check->report->dialect == S2S_DIALECT_RL && rules_on(check, "meg"));
}

/* Ranks that share the states of a dense parameter */
static double n_shards(const struct rules_check *check, const struct layout *l)
{
    if (check->report->dialect == S2S_DIALECT_MLM)
        return l->dp * l->cp / rules_number(check, "dist_opt_instances", 1);
    if (is_megatron(check))
        return l->dp * l->cp;
    if (is_text(check, "fsdp", "ddp") || is_text(check, "strategy", "ddp"))
        return 1;
    return l->dp * l->cp / rules_number(check, "dp_replicate", 1);
}

/* ---- the layout ---- */

/* NaN where activations are kept in another way than is counted here */
static double tokens_of(const struct rules_check *check)
{
    static const char *const others[] = {
        "fp8", "fp4", "offload_acts", "cpu_offloading", "recompute_modules", "fp8_on", "te_fp8"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (!is_null(check, others[i]) && !is_off(check, others[i]))
            return NAN;
    if (any_unknown(check, "recompute recompute_granularity recompute_kind recompute_llm sp"))
        return NAN;
    double seq = rules_number(check, "seq", NAN), mbs = rules_number(check, "mbs", NAN);
    double packed = rules_number(check, "pack_tokens", 0);
    switch (check->report->dialect) {
    case S2S_DIALECT_SLM:
        return rules_number(check, "batch_tokens", NAN);
    case S2S_DIALECT_RL:
        if (rules_on(check, "packed"))
            return packed > 0 ? packed : NAN;
        return rules_on(check, "dynamic") ? rules_number(check, "dynamic_tokens", NAN) : seq * mbs;
    case S2S_DIALECT_AM:
        mbs = rules_number(check, "pp", 1) > 1 ? rules_number(check, "pp_mbs", 1) : mbs;
        return (packed > 0 ? packed : seq) * mbs;
    default:
        return seq * mbs;
    }
}

static bool recomputes_all(const struct rules_check *check)
{
    switch (check->report->dialect) {
    case S2S_DIALECT_SLM:
        return rules_on(check, "recompute_llm");
    case S2S_DIALECT_AM:
        return is_text(check, "recompute_kind", "full");
    case S2S_DIALECT_RL:
        if (rules_on(check, "meg"))
            return rules_on(check, "recompute") &&
                   !is_text(check, "recompute_granularity", "selective");
        const struct s2s_conf *node =
            s2s_conf_find(check->conf, "policy.dtensor_cfg.activation_checkpointing");
        return node && node->kind == S2S_CONF_BOOL && node->as_bool;
    default:
        return is_text(check, "recompute", "full");
    }
}

static struct layout layout_of(const struct rules_check *check)
{
    struct layout l = {
        .tp = rules_number(check, "tp", 1),
        .pp = rules_number(check, "pp", 1),
        .cp = rules_number(check, "cp", 1),
        .ep = rules_number(check, "ep", 1),
        .etp = rules_number(check, "etp", 1),
        .dp = rules_number(check, "dp", NAN),
        .vpp = rules_number(check, "vpp", 1),
        .n_microbatches = rules_number(check, "nmb", NAN),
        .first_layers = rules_number(check, "first_layers", NAN),
        .last_layers = rules_number(check, "last_layers", NAN),
        .tokens = tokens_of(check),
        .sequence_parallel = rules_on(check, "sp"),
        .full_recompute = recomputes_all(check),
    };
    return l;
}

/* The share of all layers on the first, a middle and the last stage */
static void shares_of(double share[3], const struct layout *l, double layers)
{
    double first = l->first_layers, last = l->last_layers;
    double n_other = l->pp - !isnan(first) - !isnan(last);
    double even = n_other > 0
                      ? (layers - (isnan(first) ? 0 : first) - (isnan(last) ? 0 : last)) / n_other
                      : 0;
    share[0] = (isnan(first) ? even : first) / layers;
    share[1] = even / layers;
    share[2] = (isnan(last) ? even : last) / layers;
}

/* ---- activations ---- */

/* Bytes that one microbatch leaves in all layers of the model, on one of the tp*cp ranks: per token
 * 18 a hidden value and 4 a value inside the MLP; inputs of the layers alone if they are
 * recomputed. */
static double activation_bytes(const struct rules_shape *s, const struct layout *l)
{
    double layers = s->n_norms / 2, inside = 0;
    if (s->n_mlp != 0)
        inside += s->n_mlp * s->ffn;
    if (s->n_moe != 0)
        inside += s->n_moe * (s->topk * s->expert_ffn + s->shared_ffn);
    if (s->n_mamba != 0)
        inside += s->n_mamba * 2 * s->mamba_inner;
    double shared = 8 * layers * s->hidden + 4 * inside, whole = 10 * layers * s->hidden;
    double bytes = shared / l->tp + whole / (l->sequence_parallel ? l->tp : 1);
    if (l->full_recompute)
        bytes = 2 * layers * s->hidden / (l->sequence_parallel ? l->tp : 1) + bytes / layers;
    return l->tokens / l->cp * bytes;
}

/* Microbatches whose activations a stage holds at once: 1F1B, and what interleaving adds */
static double in_flight(const struct layout *l, int stage)
{
    double n = stage == 0 ? l->pp : stage == 1 ? l->pp - 1 : 1;
    if (l->pp > 1 && l->vpp > 1)
        return n * (1 + (l->pp - 1) / (l->pp * l->vpp));
    return !isnan(l->n_microbatches) && l->n_microbatches < n ? l->n_microbatches : n;
}

/* ---- the ranks ---- */

static struct s2s_memory_stage stage_of(int i, const struct rules_shape *shape,
                                        const struct layout *l, const struct cost *dense,
                                        const struct cost *expert)
{
    static const char *const names[] = {"first", "middle", "last"};
    struct rules_params p = rules_count(shape);
    double share[3], layers = shape->n_norms / 2;
    shares_of(share, l, layers);
    double n = p.dense * share[i] + (i == 0 ? p.embedding : 0);
    if (i == 2 || l->pp == 1) /* a tied output on another stage is a copy */
        n += l->pp > 1 ? p.embedding : p.output;
    double own = n / l->tp, experts = p.experts * share[i] / (l->ep * l->etp);
    struct s2s_memory_stage s = {.name = l->pp > 1 ? names[i] : "every"};
    s.parameters = own + experts;
    s.weights = own * dense->weights + experts * expert->weights;
    s.gradients = own * dense->gradients + experts * expert->gradients;
    s.optimizer = own * dense->optimizer + experts * expert->optimizer;
    /* the layer that is whole, or the embedding, whichever is more */
    double layer = p.dense / layers / l->tp + p.experts / layers / (l->ep * l->etp);
    double matrix = i != 1 ? p.embedding / l->tp : 0;
    s.weights += dense->live * (layer > matrix ? layer : matrix);
    s.activations = activation_bytes(shape, l) * share[i] * in_flight(l, i);
    if (i == 2 || l->pp == 1) /* float32, as the loss wants them */
        s.logits = 4 * l->tokens * shape->vocab / (l->tp * l->cp);
    return s;
}

double s2s_memory_states(const struct s2s_memory_stage *s)
{
    return s->weights + s->gradients + s->optimizer;
}

double s2s_memory_total(const struct s2s_memory_stage *s)
{
    return s2s_memory_states(s) + s->activations + s->logits;
}

static void set_gib(struct rules_check *check, const char *name, double bytes)
{
    double tenths = round(bytes / 107374182.4); /* of a GiB: more is not known */
    struct rules_value v = rules_unknown();
    if (!isnan(bytes))
        v = (struct rules_value){RULES_FLOAT, {.f = tenths / 10}};
    rules_fact_set(&check->facts, name, v);
}

/* The stage that needs most of what `bytes` sums up; NaN wins, what is not known may be most */
static const struct s2s_memory_stage *greatest(const struct s2s_memory *m,
                                               double (*bytes)(const struct s2s_memory_stage *))
{
    const struct s2s_memory_stage *most = &m->stages[0];
    for (size_t i = 1; i < m->n_stages; i++)
        if (isnan(bytes(&m->stages[i])) || bytes(&m->stages[i]) > bytes(most))
            most = &m->stages[i];
    return most;
}

static const char *rank_of(const struct s2s_memory_stage *stage)
{
    return !strcmp(stage->name, "every")   ? "every rank"
           : !strcmp(stage->name, "first") ? "a rank of the first stage"
           : !strcmp(stage->name, "last")  ? "a rank of the last stage"
                                           : "a rank of a middle stage";
}

/* What the rules ask: unknown if a size is not known, so that they are not evaluated */
static void set_facts(struct rules_check *check, const struct rules_shape *shape,
                      const struct cost *expert)
{
    const struct s2s_memory *m = &check->report->memory;
    const struct s2s_memory_stage *states = greatest(m, s2s_memory_states),
                                  *total = greatest(m, s2s_memory_total),
                                  *last = &m->stages[m->n_stages - 1];
    double pp = rules_number(check, "pp", 1), etp = rules_number(check, "etp", 1);
    /* what is sharded is not there as often as there are data-parallel ranks */
    double each = expert->live > 0 ? 0 : expert->weights + expert->gradients + expert->optimizer;
    set_gib(check, "state_gib", s2s_memory_states(states));
    set_gib(check, "total_gib", s2s_memory_total(total));
    set_gib(check, "activation_gib", total->activations);
    set_gib(check, "logits_gib", last->logits);
    set_gib(check, "embedding_gib", 2 * shape->vocab * shape->hidden);
    set_gib(check, "experts_gib", rules_count(shape).experts / (pp * etp) * each);
    rules_fact_set(&check->facts, "state_rank", rules_text(rank_of(states)));
    rules_fact_set(&check->facts, "total_rank", rules_text(rank_of(total)));
}

/* Recipes of s2s-train are planned by the code that trains. */
static void take_plan(struct rules_check *check)
{
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_memory *m = &check->report->memory;
    const struct s2s_rules_options *opt = check->opt;
    if (!opt->memory || !opt->plan)
        return;
    /* a config is lowered again when --set has changed it */
    *m = (struct s2s_memory){.n_stages = 0};
    free(check->report->no_plan);
    check->report->no_plan = NULL;
    if (opt->plan(m, check->conf, opt->world_size, &err) < 0) {
        check->report->no_plan = s2s_xstrdup(err.text);
        return;
    }
    set_gib(check, "state_gib", s2s_memory_states(m->stages));
    set_gib(check, "total_gib", s2s_memory_total(m->stages));
    set_gib(check, "activation_gib", m->stages->activations);
    set_gib(check, "logits_gib", m->stages->logits);
    rules_fact_set(&check->facts, "logits_name", rules_text("scratch"));
}

/* Whether a config is about training whole models: inference keeps weights alone, and programs for
 * several modalities freeze what their flags do not all say. */
static bool is_counted(const struct rules_check *check)
{
    const unsigned with = S2S_DIALECT_SLM | S2S_DIALECT_RL | S2S_DIALECT_AM | S2S_DIALECT_MLM;
    const struct s2s_conf *raw = check->report->raw;
    const struct s2s_conf *program = raw ? s2s_conf_key(raw, "PROGRAM") : NULL;
    if (!(check->report->dialect & with))
        return false;
    if (check->report->dialect != S2S_DIALECT_MLM)
        return true;
    for (size_t i = 0; i < check->conf->n_items; i++) {
        const char *key = check->conf->items[i]->key ? check->conf->items[i]->key : "";
        if (!strncmp(key, "freeze", 6) || !strcmp(key, "model_provider") ||
            !strncmp(key, "language_model", 14))
            return false;
    }
    return rules_on(check, "trains") && !rules_on(check, "inference") &&
           !(program && program->text &&
             (strstr(program->text, "mimo") || strstr(program->text, "multimodal")));
}

void rules_lower_memory(struct rules_check *check)
{
    static const char *const names[] = {"state_gib",  "total_gib",     "activation_gib",
                                        "logits_gib", "embedding_gib", "experts_gib",
                                        "state_rank", "total_rank"};
    struct rules_shape shape = {0};
    struct s2s_memory *m = &check->report->memory;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        rules_fact_set(&check->facts, names[i], rules_unknown());
    rules_fact_set(&check->facts, "report", rules_bool(check->opt->memory));
    rules_fact_set(&check->facts, "logits_name", rules_text("logits"));
    if (check->report->dialect == S2S_DIALECT_S2S)
        take_plan(check);
    if (!is_counted(check))
        return;
    const struct s2s_conf *own = s2s_conf_find(check->conf, "model.config");
    bool scratch = check->report->dialect == S2S_DIALECT_AM && !check->opt->model_config && own &&
                   own->kind == S2S_CONF_MAP;
    if (check->report->dialect == S2S_DIALECT_MLM)
        rules_shape_of_mlm(&shape, check);
    else
        rules_shape_of_hf(&shape, scratch ? own : check->model);
    struct layout l = layout_of(check);
    double shards = n_shards(check, &l), ranks = l.tp * l.cp * l.dp;
    struct cost dense =
        is_megatron(check) ? cost_of_megatron(check, shards) : cost_of_fsdp(check, shards);
    /* experts are shared by the ranks that hold the same ones */
    double expert_shards = ranks / (l.ep * l.etp) * shards / (l.dp * l.cp);
    struct cost expert = is_megatron(check) ? cost_of_megatron(check, expert_shards)
                                            : cost_of_fsdp(check, expert_shards);
    struct rules_params p = rules_count(&shape);
    m->parameters = p.dense + p.experts + p.embedding + p.output;
    m->no_vocabulary = shape.vocab == 0;
    m->n_stages = l.pp > 2 ? 3 : l.pp > 1 ? 2 : 1;
    for (size_t i = 0; i < m->n_stages; i++)
        m->stages[i] =
            stage_of(m->n_stages == 2 && i == 1 ? 2 : (int)i, &shape, &l, &dense, &expert);
    set_facts(check, &shape, &expert);
}
