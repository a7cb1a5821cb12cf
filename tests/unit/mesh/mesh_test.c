/* Groups against Megatron's, one process, and (started again under mpirun) four ranks. */
#include "launch.h"
#include "lib/mesh/mesh_internal.h"

/* ---- groups ---- */

static void groups_follow_megatron(void **state)
{
    (void)state;
    struct s2s_grid_spec spec = S2S_GRID_SPEC_INIT;
    spec.size[S2S_AXIS_TP] = 2;
    spec.size[S2S_AXIS_CP] = 2;
    spec.size[S2S_AXIS_DP] = 2;
    spec.size[S2S_AXIS_PP] = 2;
    /* the docstring of megatron.core.parallel_state with 16 ranks */
    const int dp[] = {0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15};
    const int pp[] = {0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15};
    const int dp_cp[] = {0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15};
    int *ranks, n_groups, size;
    assert_int_equal(
        s2s_grid_groups(&ranks, &n_groups, &size, &spec, S2S_AXIS_BIT(S2S_AXIS_DP), NULL), 0);
    assert_int_equal(n_groups, 8);
    assert_memory_equal(ranks, dp, sizeof dp);
    free(ranks);
    s2s_grid_groups(&ranks, &n_groups, &size, &spec, S2S_AXIS_BIT(S2S_AXIS_PP), NULL);
    assert_memory_equal(ranks, pp, sizeof pp);
    free(ranks);
    s2s_grid_groups(&ranks, &n_groups, &size, &spec,
                    S2S_AXIS_BIT(S2S_AXIS_DP) | S2S_AXIS_BIT(S2S_AXIS_CP), NULL);
    assert_int_equal(size, 4);
    assert_memory_equal(ranks, dp_cp, sizeof dp_cp);
    free(ranks);
}

static void order_and_sizes_are_checked(void **state)
{
    (void)state;
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_grid_spec spec = S2S_GRID_SPEC_INIT;
    int *ranks, n_groups, size;
    spec.order = "tp-cp-ep-pp-pp";
    assert_int_equal(s2s_grid_groups(&ranks, &n_groups, &size, &spec, 1, &err), S2S_E_ARG);
    spec.order = "tp-cp-ep-dp-pp-tp";
    assert_int_equal(s2s_grid_groups(&ranks, &n_groups, &size, &spec, 1, &err), S2S_E_ARG);
    spec.order = "tp-cp-ep-dp-pp";
    spec.size[S2S_AXIS_CP] = 0;
    assert_int_equal(s2s_grid_groups(&ranks, &n_groups, &size, &spec, 1, &err), S2S_E_ARG);
    assert_non_null(strstr(err.text, "cp is 0"));
}

static void one_process_is_a_mesh_of_one(void **state)
{
    (void)state;
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_mesh *mesh;
    assert_int_equal(s2s_mesh_open(&mesh, NULL, &err), 0);
    assert_int_equal(s2s_mesh_size(mesh), 1);
    struct s2s_grid_spec spec = S2S_GRID_SPEC_INIT;
    struct s2s_grid *grid;
    assert_int_equal(s2s_mesh_add_grid(&grid, mesh, &spec, &err), 0);
    struct s2s_comm *dp = s2s_grid_comm(grid, S2S_AXIS_BIT(S2S_AXIS_DP));
    assert_ptr_equal(dp, s2s_grid_comm(grid, S2S_AXIS_BIT(S2S_AXIS_DP)));
    float x[3] = {1, 2, 3}, y[3] = {0};
    const int64_t counts[1] = {3};
    s2s_comm_all_reduce(dp, x, 3, S2S_F32, S2S_GROUP_SUM);
    s2s_comm_reduce_scatter(dp, y, x, counts, S2S_F32);
    assert_memory_equal(x, y, sizeof x);
    s2s_comm_send(dp, x, 3, S2S_F32, 0);
    memset(y, 0, sizeof y);
    s2s_comm_recv(dp, y, 3, S2S_F32, 0);
    assert_memory_equal(x, y, sizeof x);
    spec.size[S2S_AXIS_DP] = 2;
    assert_int_equal(s2s_mesh_add_grid(&grid, mesh, &spec, &err), S2S_E_RANGE);
    s2s_error_set(&err, S2S_E_FORMAT, "bad");
    assert_int_equal(s2s_mesh_all_ok(mesh, S2S_E_FORMAT, &err), S2S_E_FORMAT);
    assert_string_equal(err.text, "bad");
    s2s_mesh_close(mesh);
}

/* A rank's chunk of a piece is a message. */
static void pieces_grow_with_the_ranks(void **state)
{
    (void)state;
    assert_int_equal(mesh_piece_bytes(2), 2 << 20);
    assert_int_equal(mesh_piece_bytes(32), 2 << 20);
    assert_int_equal(mesh_piece_bytes(33), 33 * 65536);
    assert_int_equal(mesh_piece_bytes(1024) / 1024, 65536);
    assert_int_equal(mesh_piece_bytes(100000), 1 << 30);
}

/* ---- four ranks: this program again, under mpirun ---- */

static void reduce_sizes(struct s2s_comm *comm)
{
    const int64_t sizes[] = {1, 3, 5000, 1 << 20, (1 << 20) + 7};
    const int size = s2s_comm_size(comm), rank = s2s_comm_rank(comm);
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        const int64_t n = sizes[s];
        float *x = s2s_xmalloc((size_t)n * sizeof *x);
        for (int64_t i = 0; i < n; i++)
            x[i] = (float)((i % 1000) + rank);
        s2s_comm_all_reduce(comm, x, n, S2S_F32, S2S_GROUP_SUM);
        int same = 1;
        for (int64_t i = 0; i < n; i++)
            same &= x[i] == (float)((i % 1000) * size + size * (size - 1) / 2);
        expect(same, "all_reduce sum");
        free(x);
    }
    uint16_t half = s2s_f32_to_bf16((float)(rank + 1));
    s2s_comm_all_reduce(comm, &half, 1, S2S_BF16, S2S_GROUP_SUM);
    expect(s2s_bf16_to_f32(half) == (float)(size * (size + 1) / 2), "bf16 sum");
    int64_t most = rank * 10;
    s2s_comm_all_reduce(comm, &most, 1, S2S_I64, S2S_GROUP_MAX);
    expect(most == (size - 1) * 10, "max");
}

/* 1 + 1e16 - 1e16 + 1 is 1 in the order of the ranks, and 2 or 0 in others; in pieces or not. */
static void reduce_in_order(struct s2s_comm *comm)
{
    const int64_t sizes[] = {1, 5000, 600000}, n_most = 600000;
    const double parts[] = {1, 1e16, -1e16, 1};
    int64_t counts[4] = {0, n_most - 10, 10, 0};
    double *x = s2s_xmalloc((size_t)n_most * sizeof *x),
           *y = s2s_xmalloc((size_t)n_most * sizeof *y);
    int same = 1;
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        for (int64_t i = 0; i < n_most; i++)
            x[i] = parts[s2s_comm_rank(comm)];
        s2s_comm_all_reduce(comm, x, sizes[s], S2S_F64, S2S_GROUP_SUM);
        for (int64_t i = 0; i < n_most; i++)
            same &= x[i] == (i < sizes[s] ? 1 : parts[s2s_comm_rank(comm)]);
    }
    expect(same, "all_reduce in the order of the ranks");
    for (int64_t i = 0; i < n_most; i++)
        x[i] = parts[s2s_comm_rank(comm)];
    s2s_comm_reduce_scatter(comm, y, x, counts, S2S_F64);
    for (int64_t i = 0; i < counts[s2s_comm_rank(comm)]; i++)
        same &= y[i] == 1;
    expect(same, "reduce_scatter in the order of the ranks");
    free(x);
    free(y);
}

/* In F32 the ones beside 2^30 would be lost, in double they are not: each sum is rounded once. */
static void reduce_in_double(struct s2s_comm *comm)
{
    const float parts[] = {1, 0x1p30f, -0x1p30f, 1}, mine = parts[s2s_comm_rank(comm)];
    const int64_t counts[] = {1, 0, 1, 0};
    float sum = mine, two[2] = {mine, mine}, part = 0;
    s2s_comm_all_reduce(comm, &sum, 1, S2S_F32, S2S_GROUP_SUM);
    s2s_comm_reduce_scatter(comm, &part, two, counts, S2S_F32);
    expect(sum == 2, "all_reduce of F32 in double");
    expect(part == (counts[s2s_comm_rank(comm)] ? 2 : 0), "reduce_scatter of F32 in double");
}

/* Rank r has counts[r] numbers, from small to several messages' worth. */
static void gather_and_scatter(struct s2s_comm *comm, int64_t unit)
{
    const int size = s2s_comm_size(comm), rank = s2s_comm_rank(comm);
    int64_t counts[8], total = 0, at = 0;
    for (int r = 0; r < size; r++) {
        counts[r] = r * unit; /* rank 0 has none */
        at = r == rank ? total : at;
        total += counts[r];
    }
    int32_t *all = s2s_xcalloc((size_t)total, sizeof *all);
    for (int64_t i = 0; i < counts[rank]; i++)
        all[at + i] = (int32_t)(at + i);
    s2s_comm_all_gatherv(comm, all, all + at, counts, S2S_I32);
    int same = 1;
    for (int64_t i = 0; i < total; i++)
        same &= all[i] == (int32_t)i;
    expect(same, "all_gatherv");
    int32_t *sum = s2s_xcalloc((size_t)counts[rank] + 1, sizeof *sum);
    s2s_comm_reduce_scatter(comm, sum, all, counts, S2S_I32);
    for (int64_t i = 0; i < counts[rank]; i++)
        same &= sum[i] == (int32_t)(at + i) * size;
    expect(same, "reduce_scatter");
    free(sum);
    free(all);
}

static void to_all_and_pairs(struct s2s_comm *comm)
{
    const int size = s2s_comm_size(comm), rank = s2s_comm_rank(comm);
    int64_t in[8], out[8], n_in = 0, n_out = 0, at = 0;
    for (int r = 0; r < size; r++) {
        out[r] = rank + r; /* rank to r */
        in[r] = rank + r;
        n_in += in[r];
        n_out += out[r];
    }
    int32_t send[64], recv[64];
    for (int r = 0; r < size; r++)
        for (int64_t i = 0; i < out[r]; i++)
            send[at++] = rank * 100 + r;
    s2s_comm_all_to_all(comm, recv, in, send, out, S2S_I32);
    int same = 1;
    at = 0;
    for (int r = 0; r < size; r++)
        for (int64_t i = 0; i < in[r]; i++)
            same &= recv[at++] == r * 100 + rank;
    expect(same && at == n_in, "all_to_all");
    double token = 0;
    if (rank > 0)
        s2s_comm_recv(comm, &token, 1, S2S_F64, rank - 1);
    token += 1;
    if (rank < size - 1)
        s2s_comm_send(comm, &token, 1, S2S_F64, rank + 1);
    expect(token == rank + 1, "send and receive");
    s2s_comm_broadcast(comm, &token, 1, S2S_F64, size - 1);
    expect(token == size, "broadcast");
}

static void groups_of_a_list(struct s2s_mesh *mesh, struct s2s_grid *grid)
{
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_comm *ends, *line, *alone;
    const int rank = s2s_mesh_rank(mesh), twice[] = {1, 0, 1}, outside[] = {0, 4}, below[] = {-1};
    expect(s2s_mesh_add_group(&ends, mesh, "ends", twice, 3, &err) == S2S_E_ARG, "a rank twice");
    expect(strcmp(err.text, "group ends has rank 1 twice") == 0, "which rank is there twice");
    expect(s2s_mesh_add_group(&ends, mesh, "ends", outside, 2, &err) == S2S_E_ARG, "rank 4 of 4");
    expect(s2s_mesh_add_group(&ends, mesh, "ends", below, 1, &err) == S2S_E_ARG, "rank -1");
    expect(s2s_mesh_add_group(&ends, mesh, "ends", below, 0, &err) == S2S_E_ARG, "no rank");
    const int last_first[] = {3, 0}, two_three[] = {2, 3}, two[] = {2};
    expect(s2s_mesh_add_group(&ends, mesh, "ends", last_first, 2, &err) == 0, "a group of two");
    expect(!ends == (rank == 1 || rank == 2), "who is in the group");
    if (ends) {
        int32_t in_order[2], mine = rank;
        expect(s2s_comm_rank(ends) == (rank == 0), "ranks are in the order of the list");
        s2s_comm_all_gather(ends, in_order, &mine, 1, S2S_I32);
        expect(in_order[0] == 3 && in_order[1] == 0, "parts are in the order of the list");
    }
    expect(s2s_mesh_add_group(&line, mesh, "line", two_three, 2, &err) == 0, "a grid's group");
    expect(line == (rank < 2 ? NULL : s2s_grid_comm(grid, S2S_AXIS_BIT(S2S_AXIS_TP))), "is its");
    expect(s2s_mesh_add_group(&alone, mesh, "alone", two, 1, &err) == 0, "a group of one");
    expect(!alone == (rank != 2) && (!alone || s2s_comm_size(alone) == 1), "one rank has it");
}

static void failures_are_shared(struct s2s_mesh *mesh)
{
    struct s2s_error err = S2S_ERROR_INIT;
    int rank = s2s_mesh_rank(mesh), rc = 0;
    expect(s2s_mesh_all_ok(mesh, 0, &err) == 0, "all ok");
    if (rank >= 2)
        rc = s2s_error_set(&err, S2S_E_TRUNCATED, "record %d", rank);
    rc = s2s_mesh_all_ok(mesh, rc, &err);
    expect(rc == S2S_E_TRUNCATED && strcmp(err.text, "[rank 2]: record 2") == 0, "one failure");
}

/* Ranks 0 and 3 ask for tp first, 1 and 2 for dp. */
static void ask_in_another_order(struct s2s_mesh *mesh)
{
    struct s2s_grid *grid = two_by_two(mesh);
    const int rank = s2s_mesh_rank(mesh), tp_first = rank == 0 || rank == 3;
    enum s2s_axis a = tp_first ? S2S_AXIS_TP : S2S_AXIS_DP;
    enum s2s_axis b = tp_first ? S2S_AXIS_DP : S2S_AXIS_TP;
    expect(s2s_comm_size(s2s_grid_comm(grid, S2S_AXIS_BIT(a))) == 2, "first group");
    expect(s2s_comm_size(s2s_grid_comm(grid, S2S_AXIS_BIT(b))) == 2, "second group");
}

/* Groups of the same ranks are one communicator, in a grid and between grids. */
static void shared_communicators(struct s2s_mesh *mesh, struct s2s_grid *grid)
{
    struct s2s_error err = S2S_ERROR_INIT;
    const unsigned tp = S2S_AXIS_BIT(S2S_AXIS_TP), cp = S2S_AXIS_BIT(S2S_AXIS_CP);
    const unsigned ep = S2S_AXIS_BIT(S2S_AXIS_EP), dp = S2S_AXIS_BIT(S2S_AXIS_DP);
    expect(s2s_grid_comm(grid, tp | cp) == s2s_grid_comm(grid, tp), "tp-cp is tp where cp is 1");
    expect(s2s_grid_comm(grid, tp) != s2s_grid_comm(grid, dp), "tp is not dp");
    expect(s2s_comm_size(s2s_grid_comm(grid, cp)) == 1, "cp is 1");
    expect(s2s_comm_size(s2s_grid_comm(grid, tp | dp)) == 4, "tp-dp is all");
    struct s2s_grid_spec spec = S2S_GRID_SPEC_INIT;
    spec.name = "experts";
    spec.size[S2S_AXIS_EP] = 2;
    spec.size[S2S_AXIS_DP] = 2;
    struct s2s_grid *experts;
    expect(s2s_mesh_add_grid(&experts, mesh, &spec, &err) == 0, "grid of experts");
    expect(s2s_grid_comm(experts, ep) == s2s_grid_comm(grid, tp), "ep over the ranks of tp");
    expect(s2s_grid_comm(experts, dp) == s2s_grid_comm(grid, dp), "dp over the ranks of dp");
}

/* What: "ok", "order", or how rank 1 misbehaves. */
static int child(const char *what)
{
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_mesh *mesh;
    struct s2s_mesh_options options = {.timeout_s = strcmp(what, "ok") == 0 ? 60 : 1};
    s2s_log_init("mesh_test", 0);
    if (s2s_mesh_open(&mesh, &options, &err) < 0)
        return 1;
    struct s2s_comm *world = s2s_mesh_world(mesh);
    s2s_mesh_note(mesh, 12, "forward");
    if (strcmp(what, "order") == 0) {
        ask_in_another_order(mesh);
        s2s_mesh_close(mesh);
        return bad;
    }
    if (strcmp(what, "ok") != 0) {
        if (s2s_mesh_rank(mesh) == 1) {
            if (strcmp(what, "die") == 0)
                _exit(137);
            sleep(30);
        }
        if (strcmp(what, "no grid") == 0)
            two_by_two(mesh);
        s2s_comm_barrier(world);
        return 0;
    }
    reduce_sizes(world);
    reduce_in_order(world);
    reduce_in_double(world);
    struct s2s_grid *grid = two_by_two(mesh), *again;
    struct s2s_grid_spec spec = S2S_GRID_SPEC_INIT;
    expect(s2s_mesh_add_grid(&again, mesh, &spec, &err) == S2S_E_ARG, "two grids of a name");
    shared_communicators(mesh, grid);
    groups_of_a_list(mesh, grid);
    struct s2s_comm *dp = s2s_grid_comm(grid, S2S_AXIS_BIT(S2S_AXIS_DP));
    int32_t sum = s2s_mesh_rank(mesh);
    s2s_comm_all_reduce(dp, &sum, 1, S2S_I32, S2S_GROUP_SUM);
    expect(sum == s2s_grid_coord(grid, S2S_AXIS_TP) * 2 + 2, "dp group");
    gather_and_scatter(world, 3);
    gather_and_scatter(world, 700000);
    to_all_and_pairs(world);
    failures_are_shared(mesh);
    s2s_mesh_close(mesh);
    return bad;
}

static void collectives_of_four_ranks(void **state)
{
    (void)state;
    launch_well(4, "ok");
}

static void groups_asked_for_in_another_order_do_not_deadlock(void **state)
{
    (void)state;
    launch_well(4, "order");
}

static void a_rank_that_adds_no_grid_is_named(void **state)
{
    (void)state;
    launch_badly(4, "no grid", SAYS("new grid over world", "missing: rank 1 (pid "));
}

static void a_rank_that_does_not_come_is_named(void **state)
{
    (void)state;
    launch_badly(4, "stop",
                 SAYS("barrier over world", "missing: rank 1 (pid ", "step 12, forward"));
}

static void a_rank_that_died_ends_the_job(void **state)
{
    (void)state;
    launch_badly(4, "die", SAYS(""));
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "--child") == 0)
        return child(argv[2]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(groups_follow_megatron),
        cmocka_unit_test(order_and_sizes_are_checked),
        cmocka_unit_test(one_process_is_a_mesh_of_one),
        cmocka_unit_test(pieces_grow_with_the_ranks),
        cmocka_unit_test(collectives_of_four_ranks),
        cmocka_unit_test(groups_asked_for_in_another_order_do_not_deadlock),
        cmocka_unit_test(a_rank_that_adds_no_grid_is_named),
        cmocka_unit_test(a_rank_that_does_not_come_is_named),
        cmocka_unit_test(a_rank_that_died_ends_the_job),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
