/* What a rank of a recipe of s2s-train needs: its plan. */
#include "lib/train/plan.h"

#include "kernels/cpu/cpu.h"
#include "lib/base/base.h"
#include "lib/train/recipe.h"
#include "tools/validate/check.h"

/* What of oneDNN the kernels use. A plan calls no kernel, and without the library the program
 * starts in a fraction of the time. */
void cpu_sgemm(bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, float alpha,
               const float *a, int64_t lda, const float *b, int64_t ldb, float beta, float *c,
               int64_t ldc)
{
    S2S_BUG("s2s-check multiplies matrices");
}

bool cpu_has_bgemm(void)
{
    return false;
}

void cpu_gemm_open(void)
{
}

void cpu_bgemm(const struct s2s_k_gemm *args)
{
    S2S_BUG("s2s-check multiplies matrices");
}

struct cpu_room *cpu_bgemm_room(const struct s2s_k_gemm *args)
{
    return NULL;
}

void cpu_bgemm_order(const struct s2s_k_gemm *args, struct cpu_room *room, int64_t n0, int64_t n)
{
    S2S_BUG("s2s-check multiplies matrices");
}

void cpu_bgemm_ordered(const struct s2s_k_gemm *args, const struct cpu_room *room)
{
    S2S_BUG("s2s-check multiplies matrices");
}

static void take(struct s2s_memory *memory, const struct s2s_plan *plan)
{
    const struct s2s_train_memory *m = &plan->memory;
    *memory =
        (struct s2s_memory){.parameters = (double)plan->n_parameters,
                            .planned = true,
                            .n_stages = 1,
                            .stages = {{.name = "every",
                                        .parameters = (double)plan->n_parameters,
                                        .weights = (double)m->parameters,
                                        .gradients = (double)m->gradients,
                                        .optimizer = (double)m->optimizer,
                                        .activations = (double)(m->activations + m->recompute +
                                                                m->activation_gradients),
                                        .logits = (double)(m->scratch + m->results)}}};
}

/* The recipe and its mesh, of which nothing is started. Both are released and closed by the caller.
 */
static int open_recipe(struct s2s_recipe *r, struct s2s_mesh **mesh, const struct s2s_conf *recipe,
                       int64_t world_size, struct s2s_error *err)
{
    *mesh = NULL;
    int rc = s2s_recipe_take(r, s2s_conf_copy(recipe), NULL, 0, err);
    if (rc < 0)
        return rc;
    int *dp = &r->mesh.size[S2S_AXIS_DP];
    const int peers = s2s_layout_peers(&r->mesh);
    if (*dp == 0)
        *dp = world_size >= peers ? (int)world_size / peers : 1;
    return s2s_mesh_open_count(mesh, peers * *dp, 0, err);
}

int check_plan(struct s2s_memory *memory, const struct s2s_conf *recipe, int64_t world_size,
               struct s2s_error *err)
{
    static const struct s2s_plan_options options = {.tokens = 0};
    struct s2s_recipe r;
    struct s2s_plan plan;
    struct s2s_mesh *mesh;
    int rc = open_recipe(&r, &mesh, recipe, world_size, err);
    if (rc == 0 && (rc = s2s_plan_make(&plan, &r, mesh, &options, err)) == 0) {
        take(memory, &plan);
        s2s_plan_release(&plan);
    }
    s2s_mesh_close(mesh);
    s2s_recipe_release(&r);
    return rc;
}

/* Whether one process could train it: then the mesh is at fault. */
static bool fits_alone(struct s2s_recipe *r)
{
    static const struct s2s_layout_spec one = S2S_LAYOUT_SPEC_INIT;
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_mesh *mesh;
    r->mesh = one;
    r->stages.n_chunks = 1;
    r->sharding = S2S_NO_SHARD;
    int rc = s2s_mesh_open_count(&mesh, 1, 0, &err);
    if (rc == 0)
        rc = s2s_plan_try(r, mesh, &err);
    s2s_mesh_close(mesh);
    return rc == 0;
}

int check_fits(const struct s2s_conf *recipe, int64_t world_size, struct s2s_error *err)
{
    struct s2s_recipe r;
    struct s2s_mesh *mesh;
    int rc = open_recipe(&r, &mesh, recipe, world_size, err);
    if (rc < 0 || s2s_recipe_fit(&r, s2s_mesh_size(mesh), true, err) < 0)
        rc = S2S_E_RANGE;
    else if ((rc = s2s_plan_try(&r, mesh, err)) < 0 && fits_alone(&r))
        rc = S2S_E_RANGE;
    s2s_mesh_close(mesh);
    s2s_recipe_release(&r);
    return rc;
}
