/* What a pipeline does in a step, as JSON and text. */
#include "tools/train/plan_pipeline.h"

#include <stdio.h>
#include <stdlib.h>

#include "lib/base/base.h"
#include "lib/train/simulate_pp.h"

/* Stages take as long as they have layers, a backward twice as long as a forward, and messages no
 * time. Without layers (the first and the last stage may have none) they take a little. */
static int simulate(struct s2s_pp_result *result, const struct s2s_plan *plan,
                    struct s2s_error *err)
{
    const int n = plan->pipeline.n_ranks * plan->pipeline.n_chunks;
    double *stages = s2s_xcalloc((size_t)n, sizeof *stages);
    for (int i = 0; i < n; i++)
        stages[i] = plan->stage_layers[i] > 0 ? plan->stage_layers[i] : 1e-3;
    const struct s2s_pp_times times = {.stages = stages, .forward = 1, .backward = 2};
    int rc = s2s_pp_simulate(result, &plan->pipeline, &times, err);
    free(stages);
    return rc;
}

/* The first `most` actions of a rank, or all (0). */
static void say_actions(struct s2s_buf *text, const struct s2s_pipeline *pipeline, int rank,
                        int64_t most)
{
    struct s2s_pp_schedule s;
    s2s_pp_schedule_init(&s, pipeline, rank);
    const int64_t n = most > 0 && most < s.n_actions ? most : s.n_actions;
    s2s_buf_puts(text, "");
    for (int64_t i = 0; i < n; i++)
        s2s_buf_printf(text, "%s%c%lld.%d", i ? " " : "",
                       s.actions[i].kind == S2S_ACTION_FORWARD ? 'F' : 'B',
                       (long long)s.actions[i].microbatch, s.actions[i].chunk);
    if (n < s.n_actions)
        s2s_buf_puts(text, " ..");
    s2s_pp_schedule_release(&s);
}

int plan_pipeline_json(json_t *to, const struct s2s_plan *plan, struct s2s_error *err)
{
    const struct s2s_pipeline *p = &plan->pipeline;
    struct s2s_pp_result result;
    int rc = simulate(&result, plan, err);
    if (rc < 0)
        return rc;
    json_t *layers = json_array(), *actions = json_array();
    for (int i = 0; i < p->n_ranks * p->n_chunks; i++)
        json_array_append_new(layers, json_integer(plan->stage_layers[i]));
    for (int rank = 0; rank < p->n_ranks; rank++) {
        struct s2s_buf text = S2S_BUF_INIT;
        say_actions(&text, p, rank, 0);
        json_array_append_new(actions, json_stringn(text.data, text.len));
        s2s_buf_release(&text);
    }
    json_object_set_new(to, "pipeline",
                        json_pack("{s:i, s:i, s:I, s:I, s:f, s:o, s:o}", "ranks", p->n_ranks,
                                  "chunks", p->n_chunks, "group",
                                  (json_int_t)(p->group > 0 ? p->group : p->n_ranks),
                                  "microbatches", (json_int_t)p->n_microbatches, "idle",
                                  result.idle, "stage_layers", layers, "actions", actions));
    return 0;
}

int plan_pipeline_print(const struct s2s_plan *plan, struct s2s_error *err)
{
    enum { SHOWN = 24 };
    const struct s2s_pipeline *p = &plan->pipeline;
    struct s2s_buf text = S2S_BUF_INIT;
    struct s2s_pp_result result;
    int rc = simulate(&result, plan, err);
    if (rc < 0)
        return rc;
    printf("pipeline: this rank has");
    for (int chunk = 0; chunk < p->n_chunks; chunk++) {
        const int stage = s2s_pipeline_stage(p, plan->stage_rank, chunk);
        printf("%s stage %d (%d layers)", chunk ? "," : "", stage, plan->stage_layers[stage]);
    }
    say_actions(&text, p, plan->stage_rank, SHOWN);
    printf(" of %d; ranks wait %.1f %% of the time\n  %s\n", p->n_ranks * p->n_chunks,
           100 * result.idle, text.data);
    s2s_buf_release(&text);
    return 0;
}
