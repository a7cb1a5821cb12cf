/* Grids of a launch held against each other. */
#include "launch.h"

static struct s2s_mesh *mesh;
static struct s2s_error err;

static int open_eight(void **state)
{
    (void)state;
    return s2s_mesh_open_count(&mesh, 8, 0, NULL);
}

static int close_eight(void **state)
{
    (void)state;
    s2s_mesh_close(mesh);
    return 0;
}

static struct s2s_grid_spec grid(const char *name, int first_rank, int dp)
{
    struct s2s_grid_spec spec = S2S_GRID_SPEC_INIT;
    spec.name = name;
    spec.first_rank = first_rank;
    spec.size[S2S_AXIS_DP] = dp;
    return spec;
}

static void add(struct s2s_grid_spec spec)
{
    struct s2s_grid *added;
    assert_int_equal(s2s_mesh_add_grid(&added, mesh, &spec, &err), 0);
}

static void refused(enum s2s_errc code, const char *text)
{
    assert_int_equal(s2s_mesh_check(mesh, &err), code);
    assert_string_equal(err.text, text);
}

static void grids_that_cover_the_launch_pass(void **state)
{
    (void)state;
    add(grid("encoder", 0, 3));
    add(grid("main", 3, 5));
    assert_int_equal(s2s_mesh_check(mesh, &err), 0);
}

static void grids_over_the_same_ranks_pass(void **state)
{
    (void)state;
    struct s2s_grid_spec encoder = grid("encoder", 0, 4);
    encoder.size[S2S_AXIS_TP] = 2;
    add(encoder);
    add(grid("main", 0, 8));
    assert_int_equal(s2s_mesh_check(mesh, &err), 0);
}

static void a_rank_in_no_grid_is_named(void **state)
{
    (void)state;
    refused(S2S_E_RANGE, "ranks 0 to 7 of 8 are in no grid");
    add(grid("main", 4, 4));
    refused(S2S_E_RANGE, "ranks 0 to 3 of 8 are in no grid");
    add(grid("encoder", 0, 3));
    refused(S2S_E_RANGE, "rank 3 of 8 is in no grid");
}

static void the_last_rank_in_no_grid_is_named(void **state)
{
    (void)state;
    add(grid("main", 0, 7));
    refused(S2S_E_RANGE, "rank 7 of 8 is in no grid");
}

static void grids_that_share_some_ranks_are_refused(void **state)
{
    (void)state;
    add(grid("encoder", 0, 5));
    add(grid("main", 4, 4));
    refused(S2S_E_ARG, "grids encoder (ranks 0 to 4) and main (4 to 7) overlap");
}

/* Experts of main: tp 2, dp 2, pp 2. */
static struct s2s_grid_spec experts(void)
{
    struct s2s_grid_spec dense = grid("main", 0, 2), spec = grid("experts", 0, 1);
    dense.size[S2S_AXIS_TP] = dense.size[S2S_AXIS_PP] = 2;
    add(dense);
    spec.size[S2S_AXIS_EP] = 4;
    spec.size[S2S_AXIS_PP] = 2;
    spec.experts_of = "main";
    return spec;
}

static void experts_over_the_stages_of_their_grid_pass(void **state)
{
    (void)state;
    add(experts());
    assert_int_equal(s2s_mesh_check(mesh, &err), 0);
}

static void experts_have_the_pp_of_their_grid(void **state)
{
    (void)state;
    struct s2s_grid_spec spec = experts();
    spec.size[S2S_AXIS_EP] = 2;
    spec.size[S2S_AXIS_PP] = 4;
    add(spec);
    refused(S2S_E_ARG, "grid experts: pp is 4, expected 2 as in main");
}

static void experts_have_the_stages_of_their_grid(void **state)
{
    (void)state;
    struct s2s_grid_spec spec = experts();
    spec.order = "pp-tp-cp-ep-dp";
    add(spec);
    refused(S2S_E_ARG, "grid experts: order pp-tp-cp-ep-dp puts ranks in other stages than order "
                       "tp-cp-ep-dp-pp of main");
}

static void experts_have_the_ranks_of_their_grid(void **state)
{
    (void)state;
    struct s2s_grid_spec spec = experts();
    spec.size[S2S_AXIS_EP] = 2;
    add(spec);
    refused(S2S_E_ARG, "grid experts: expected the ranks of main, 0 to 7");
}

static void experts_have_no_cp(void **state)
{
    (void)state;
    struct s2s_grid_spec spec = experts();
    spec.size[S2S_AXIS_EP] = spec.size[S2S_AXIS_CP] = 2;
    add(spec);
    refused(S2S_E_ARG, "grid experts: cp is 2, expected 1 in a grid of experts");
}

static void experts_are_of_a_grid(void **state)
{
    (void)state;
    struct s2s_grid_spec spec = experts();
    spec.experts_of = "llm";
    add(spec);
    refused(S2S_E_ARG, "grid experts has the experts of llm, which is no grid");
}

/* A mask without groups, and one that the sizes make trivial, but that larger ones would not. */
static void ask_for_pp_and_dp(void *arg)
{
    s2s_grid_comm(arg, S2S_AXIS_BIT(S2S_AXIS_PP) | S2S_AXIS_BIT(S2S_AXIS_DP));
}

static void groups_that_were_not_made_are_our_bug(void **state)
{
    (void)state;
    struct s2s_grid_spec spec = grid("main", 0, 8);
    struct s2s_grid *added;
    assert_int_equal(s2s_mesh_add_grid(&added, mesh, &spec, &err), 0);
    is_our_bug(ask_for_pp_and_dp, added);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, open_eight, close_eight)
    const struct CMUnitTest tests[] = {
        TEST(grids_that_cover_the_launch_pass),
        TEST(grids_over_the_same_ranks_pass),
        TEST(a_rank_in_no_grid_is_named),
        TEST(the_last_rank_in_no_grid_is_named),
        TEST(grids_that_share_some_ranks_are_refused),
        TEST(experts_over_the_stages_of_their_grid_pass),
        TEST(experts_have_the_pp_of_their_grid),
        TEST(experts_have_the_stages_of_their_grid),
        TEST(experts_have_the_ranks_of_their_grid),
        TEST(experts_have_no_cp),
        TEST(experts_are_of_a_grid),
        TEST(groups_that_were_not_made_are_our_bug),
    };
#undef TEST
    return cmocka_run_group_tests(tests, NULL, NULL);
}
