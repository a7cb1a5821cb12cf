/* Mixtures of experts in config.json. */
#include "lib/model/moe.h"

#include <stdlib.h>
#include <string.h>

#include "lib/base/error.h"
#include "lib/base/mem.h"
#include "lib/conf/conf.h"
#include "lib/model/model.h"

static const struct s2s_nn_moe_names mixtral_names = {.gate = "gate",
                                                      .experts = "experts",
                                                      .expert_gate = "w1",
                                                      .expert_up = "w3",
                                                      .expert_down = "w2"};
static const struct s2s_nn_moe_names qwen_names = {.gate = "gate",
                                                   .experts = "experts",
                                                   .expert_gate = "gate_proj",
                                                   .expert_up = "up_proj",
                                                   .expert_down = "down_proj"};

static const struct s2s_nn_moe_names nemotron_names = {.gate = "gate",
                                                       .bias = "e_score_correction_bias",
                                                       .experts = "experts",
                                                       .expert_up = "up_proj",
                                                       .expert_down = "down_proj",
                                                       .shared = "shared_experts",
                                                       .narrow = "fc1_latent_proj",
                                                       .widen = "fc2_latent_proj"};

/* What each class calls its sizes, and takes for an absent one. */
static const struct {
    const char *place;
    const struct s2s_nn_moe_names *names;
    const char *n_experts, *inner;
    int64_t default_experts, default_chosen, default_inner;
    bool normalises; /* whatever the config says */
    bool normalise;  /* where it says nothing */
    enum s2s_score score;
} families[] = {
    [MODEL_MIXTRAL] = {"block_sparse_moe", &mixtral_names, "num_local_experts", "intermediate_size",
                       8, 2, 14336, true, true, S2S_SCORE_SOFTMAX},
    [MODEL_QWEN3_MOE] = {"mlp", &qwen_names, "num_experts", "moe_intermediate_size", 128, 8, 768,
                         false, false, S2S_SCORE_SOFTMAX},
    [MODEL_NEMOTRON_H] = {"mixer", &nemotron_names, "n_routed_experts", "moe_intermediate_size", 8,
                          2, 7688, false, true, S2S_SCORE_SIGMOID},
};

/* ---- values ---- */

/* Published files have the class's name, newer libraries write both classes' sizes under one. */
static int read_n_experts(int64_t *n, enum model_moe_family family, const struct s2s_conf *conf,
                          struct s2s_error *err)
{
    static const char written[] = "num_local_experts";
    int64_t other;
    int rc = s2s_conf_get_i64_or(&other, conf, written, 1, S2S_MAX_EXPERTS,
                                 families[family].default_experts, err);
    if (rc < 0 || (rc = s2s_conf_get_i64_or(n, conf, families[family].n_experts, 1, S2S_MAX_EXPERTS,
                                            other, err)) < 0)
        return rc;
    if (*n != other && !s2s_conf_is_unset(conf, written))
        return s2s_conf_error(err, S2S_E_RANGE, s2s_conf_find(conf, written),
                              "it is %lld, but %s is %lld", (long long)other,
                              families[family].n_experts, (long long)*n);
    return 0;
}

static int read_router(struct model_moe *moe, enum model_moe_family family,
                       const struct s2s_conf *conf, struct s2s_error *err)
{
    struct s2s_router *r = &moe->options.router;
    int rc;
    *r = (struct s2s_router){.score = families[family].score, .scale = 1};
    if ((rc = read_n_experts(&r->n_experts, family, conf, err)) < 0 ||
        (rc = s2s_conf_get_i64_or(&r->n_chosen, conf, "num_experts_per_tok", 1, r->n_experts,
                                  families[family].default_chosen, err)) < 0 ||
        (rc = s2s_conf_get_bool_or(&r->normalise, conf, "norm_topk_prob",
                                   families[family].normalise, err)) < 0)
        return rc;
    if (r->n_chosen > r->n_experts)
        return s2s_conf_error(err, S2S_E_RANGE, conf,
                              "%lld experts a token (num_experts_per_tok) "
                              "of %lld",
                              (long long)r->n_chosen, (long long)r->n_experts);
    r->normalise |= families[family].normalises;
    return 0;
}

/* Groups of which some are chosen first, by their two best experts. */
static int read_groups(struct s2s_router *r, const struct s2s_conf *conf, struct s2s_error *err)
{
    int rc = s2s_conf_get_i64_or(&r->n_groups, conf, "n_group", 1, r->n_experts, 1, err);
    if (rc < 0 || (rc = s2s_conf_get_i64_or(&r->n_chosen_groups, conf, "topk_group", 1, r->n_groups,
                                            1, err)) < 0)
        return rc;
    const int64_t width = r->n_experts / r->n_groups;
    if (r->n_experts % r->n_groups || (r->n_groups > 1 && width < 2))
        return s2s_conf_error(err, S2S_E_RANGE, s2s_conf_find(conf, "n_group"),
                              "%lld experts cannot form %lld groups of two or more",
                              (long long)r->n_experts, (long long)r->n_groups);
    if (r->n_chosen_groups * width < r->n_chosen)
        return s2s_conf_error(err, S2S_E_RANGE, s2s_conf_find(conf, "topk_group"),
                              "%lld groups of %lld experts have fewer than the %lld that are "
                              "chosen (num_experts_per_tok)",
                              (long long)r->n_chosen_groups, (long long)width,
                              (long long)r->n_chosen);
    r->n_group_best = 2;
    if (r->n_chosen_groups == r->n_groups) /* all of them: no choice */
        r->n_groups = r->n_chosen_groups = r->n_group_best = 0;
    return 0;
}

static int read_nemotron_h(struct model_moe *moe, const struct s2s_conf *conf,
                           struct s2s_error *err)
{
    struct s2s_nn_moe_options *o = &moe->options;
    double scale;
    int rc = read_groups(&o->router, conf, err);
    if (rc < 0 || (rc = s2s_conf_get_f64_or(&scale, conf, "routed_scaling_factor", 1, err)) < 0 ||
        (rc = s2s_conf_get_i64_or(&o->latent, conf, "moe_latent_size", 0, 1 << 30, 0, err)) < 0 ||
        (rc = s2s_conf_get_bool_or(&o->bias, conf, "mlp_bias", false, err)) < 0)
        return rc;
    o->router.scale = (float)scale;
    return s2s_conf_get_i64_or(&o->shared_inner, conf, "moe_shared_expert_intermediate_size", 1,
                               1 << 30, 7688, err);
}

static int read_dense(struct model_moe *moe, const struct s2s_conf *conf, struct s2s_error *err)
{
    int64_t layer;
    int rc = s2s_conf_get_list(&moe->dense, conf, "mlp_only_layers", err);
    for (size_t i = 0; rc == 0 && moe->dense && i < moe->dense->n_items; i++)
        rc = s2s_conf_as_i64(&layer, moe->dense->items[i], 0, INT32_MAX, err);
    return rc;
}

int model_read_moe(struct model_moe *moe, enum model_moe_family family, const struct s2s_conf *conf,
                   int64_t width, enum s2s_act act, struct s2s_error *err)
{
    int rc = 0;
    *moe = (struct model_moe){.place = families[family].place, .step = 1};
    if ((rc = read_router(moe, family, conf, err)) < 0 ||
        (rc = s2s_conf_get_i64_or(&moe->options.inner, conf, families[family].inner, 1, 1 << 30,
                                  families[family].default_inner, err)) < 0)
        return rc;
    moe->options.names = families[family].names;
    moe->options.width = width;
    moe->options.act = act;
    if (family == MODEL_NEMOTRON_H)
        return read_nemotron_h(moe, conf, err);
    if (family != MODEL_QWEN3_MOE)
        return 0;
    rc = s2s_conf_get_i64_or(&moe->step, conf, "decoder_sparse_step", 1, 100000, 1, err);
    return rc < 0 ? rc : read_dense(moe, conf, err);
}

bool model_is_sparse(const struct model_moe *moe, int64_t layer)
{
    struct s2s_error unread = S2S_ERROR_INIT;
    if (moe->options.router.n_experts == 0 || (layer + 1) % moe->step != 0)
        return false;
    for (size_t i = 0; moe->dense && i < moe->dense->n_items; i++) {
        int64_t dense;
        s2s_conf_as_i64(&dense, moe->dense->items[i], 0, INT32_MAX, &unread);
        if (dense == layer)
            return false;
    }
    return true;
}

/* ---- the load ---- */

/* Of each slot its sequence, or 0; -1 where there is no token. */
static int32_t *find_segments(const struct s2s_batch *batch, bool by_sequence, int64_t n_rows)
{
    int32_t *segments = s2s_xmalloc((size_t)(n_rows + 1) * sizeof *segments);
    for (int64_t i = 0; i < n_rows; i++)
        segments[i] = -1;
    for (int64_t s = 0; s < batch->n_seqs; s++) {
        const int64_t begin = batch->cu_seqlens[s];
        const int64_t end = batch->seq_lens ? begin + batch->seq_lens[s] : batch->cu_seqlens[s + 1];
        for (int64_t i = begin; i < end; i++)
            if (batch->input_ids[i] >= 0)
                segments[i] = by_sequence ? (int32_t)s : 0;
    }
    return segments;
}

const struct s2s_nn_load *model_load(const struct s2s_pass *pass, int64_t n_rows)
{
    const struct s2s_model_balance *asked = pass->fwd->balance;
    const struct s2s_batch *batch = pass->batch;
    const struct s2s_par *par = pass->model->par;
    const struct s2s_nn_tp *tp = &pass->tp;
    if (!asked)
        return NULL;
    const int64_t n = tp->sp ? n_rows / s2s_group_size(tp->group) : n_rows,
                  begin = tp->sp ? n * s2s_group_rank(tp->group) : 0;
    int32_t *segments = find_segments(batch, asked->by_sequence, n_rows);
    struct s2s_nn_load *load = s2s_tape_host_alloc(pass->tape, sizeof *load);
    struct s2s_tensor *own = s2s_tape_upload_i32(pass->tape, segments + begin, n);
    load->balance = (struct s2s_balance){.segments = own,
                                         .n_segments = asked->by_sequence ? batch->n_seqs : 1,
                                         .balance = (float)(asked->balance * pass->fwd->seed),
                                         .square = (float)(asked->square * pass->fwd->seed),
                                         .group = asked->over_step ? par->batch : par->tokens,
                                         .losses = asked->losses,
                                         .over_step = asked->over_step};
    load->loads = asked->loads;
    /* ranks that cut each expert route what all of them have */
    const bool gathers = tp->sp && s2s_group_size(par->etp) > 1;
    load->routed =
        gathers && asked->loads ? s2s_tape_upload_i32(pass->tape, segments, n_rows) : own;
    free(segments);
    return load;
}
