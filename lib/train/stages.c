/* Blocks are dealt to stages, and parameters of other stages taken away. */
#include "lib/train/stages.h"

#include <stdlib.h>

#include "lib/base/error.h"
#include "lib/base/mem.h"

/* ---- blocks ---- */

static int check_list(const struct s2s_stages_spec *spec, int n_stages, int n_layers,
                      struct s2s_error *err)
{
    int64_t sum = 0;
    if (spec->n_layers != (size_t)n_stages)
        return s2s_error_set(err, S2S_E_RANGE, "layers of %zu stages, but there are %d",
                             spec->n_layers, n_stages);
    for (int i = 0; i < n_stages; i++) {
        const int64_t n = spec->layers[i];
        if (n < 0 || n > n_layers || (n == 0 && i > 0 && i < n_stages - 1))
            return s2s_error_set(err, S2S_E_RANGE, "stage %d has %lld of %d layers", i,
                                 (long long)n, n_layers);
        sum += n;
    }
    if (sum != n_layers)
        return s2s_error_set(err, S2S_E_RANGE, "the stages have %lld layers, the model has %d",
                             (long long)sum, n_layers);
    return 0;
}

/* Layers in order; where they do not come out even the first stages have one more. */
static int deal(struct s2s_stages *s, const struct s2s_model *model,
                const struct s2s_stages_spec *spec, struct s2s_error *err)
{
    const int first = model->n_media_blocks + 1, n_layers = model->n_blocks - 1 - first;
    if (model->vocab_size == 0 || n_layers < 0)
        return s2s_error_set(err, S2S_E_UNSUPPORTED, "%s: a model without decoder is no pipeline",
                             model->config_path);
    if (s->pipeline.n_ranks == 1)
        return s2s_error_set(err, S2S_E_RANGE, "%d chunks on a single rank are no pipeline",
                             s->n_stages);
    if (!spec->layers && n_layers < s->n_stages)
        return s2s_error_set(err, S2S_E_RANGE, "%d layers cannot be dealt to %d stages", n_layers,
                             s->n_stages);
    int rc = spec->layers ? check_list(spec, s->n_stages, n_layers, err) : 0;
    if (rc < 0)
        return rc;
    int at = first;
    for (int i = 0; i < s->n_stages; i++) {
        s->bounds[i] = i > 0 ? at : 0;
        at += spec->layers ? (int)spec->layers[i]
                           : n_layers / s->n_stages + (i < n_layers % s->n_stages);
    }
    for (int i = 1; i < s->n_stages; i++)
        if (model->blocks[s->bounds[i]].n_carried + model->blocks[s->bounds[i]].n_in != 1)
            S2S_BUG("%s: a stage cannot begin where %d tensors go in",
                    model->blocks[s->bounds[i]].layer,
                    model->blocks[s->bounds[i]].n_carried + model->blocks[s->bounds[i]].n_in);
    return 0;
}

static int stage_of_block(const struct s2s_stages *s, int block)
{
    int stage = 0;
    while (s->bounds[stage + 1] <= block)
        stage++;
    return stage;
}

/* ---- parameters ---- */

/* What no block claims is computed with nowhere; it is the first stage's to keep. */
static int *stages_of_params(const struct s2s_stages *s, const struct s2s_model *model)
{
    int *stages = s2s_model_blocks_of_params(model);
    for (size_t i = 0; i < model->params->n; i++)
        stages[i] = stage_of_block(s, stages[i]);
    return stages;
}

/* A block that reads a parameter of another stage has a copy of it, as both first and last stage
 * have the embedding where the output layer is tied to it. */
static void share(struct s2s_stages *s, struct s2s_model *model, const int *stages)
{
    for (int b = 0; b < model->n_blocks; b++) {
        struct s2s_param *p = model->blocks[b].uses;
        const int user = stage_of_block(s, b);
        size_t i = 0;
        while (p && model->params->list[i] != p)
            i++;
        if (!p || stages[i] == user)
            continue;
        if (s->shared || stages[i] != 0 || user != s->n_stages - 1)
            S2S_BUG("%s is read by stages %d and %d", p->name, stages[i], user);
        s->shared = p;
    }
}

static void keep_own(struct s2s_stages *s, struct s2s_model *model)
{
    const int p = s->pipeline.n_ranks;
    int *stages = stages_of_params(s, model);
    share(s, model, stages);
    for (size_t i = 0; i < model->params->n; i++) {
        struct s2s_param *param = model->params->list[i];
        const bool owner = stages[i] % p == s->rank;
        for (int k = stages[i] + 1; s2s_param_learns(param) && k < s->n_stages; k++)
            s->trained[k] = true;
        if (param == s->shared && (s->rank == 0 || s->rank == p - 1))
            s2s_param_share(param, !owner);
        else if (!owner)
            s2s_param_remove(param);
    }
    if (s->rank > 0 && s->rank < p - 1)
        s->shared = NULL;
    free(stages);
}

/* ---- the door ---- */

int s2s_stages_init(struct s2s_stages *s, struct s2s_model *model,
                    const struct s2s_stages_spec *spec, int n_ranks, int rank,
                    struct s2s_error *err)
{
    *s = (struct s2s_stages){
        .pipeline = {.n_ranks = n_ranks, .n_chunks = spec->n_chunks, .group = spec->group},
        .rank = rank,
        .n_stages = n_ranks * spec->n_chunks};
    s->bounds = s2s_xcalloc((size_t)s->n_stages + 1, sizeof *s->bounds);
    s->trained = s2s_xcalloc((size_t)s->n_stages, sizeof *s->trained);
    s->bounds[s->n_stages] = model->n_blocks;
    if (s->n_stages == 1)
        return 0;
    int rc = deal(s, model, spec, err);
    if (rc < 0) {
        s2s_stages_release(s);
        return rc;
    }
    keep_own(s, model);
    return 0;
}

void s2s_stages_release(struct s2s_stages *s)
{
    free(s->bounds);
    free(s->trained);
    *s = (struct s2s_stages){.bounds = NULL};
}

int s2s_stages_layers(const struct s2s_stages *s, const struct s2s_model *model, int stage)
{
    const int first = stage == 0 ? model->n_media_blocks + 1 : s->bounds[stage],
              end = stage == s->n_stages - 1 ? model->n_blocks - 1 : s->bounds[stage + 1];
    return end - first;
}

struct s2s_pipeline s2s_stages_pipeline(const struct s2s_stages *s, int64_t n)
{
    struct s2s_pipeline p = s->pipeline;
    const int64_t group = p.group > 0 ? p.group : p.n_ranks;
    p.n_microbatches = n;
    if (s2s_pipeline_check(&p, NULL) < 0)
        p.n_microbatches = n > 0 ? (n + group - 1) / group * group : group;
    return p;
}
