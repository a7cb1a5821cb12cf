/* A mesh that counts: the grids of any launch, the bytes of a real one, and nothing sent. */
#include <sys/mman.h>

#include "launch.h"

enum { N = 1000, BYTES = N * 4 };

static struct s2s_mesh *counting(int n_ranks, int rank)
{
    struct s2s_mesh *mesh;
    assert_int_equal(s2s_mesh_open_count(&mesh, n_ranks, rank, NULL), 0);
    return mesh;
}

static void a_rank_must_be_one_of_the_launch(void **state)
{
    (void)state;
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_mesh *mesh;
    assert_int_equal(s2s_mesh_open_count(&mesh, 4, 4, &err), S2S_E_ARG);
    assert_string_equal(err.text, "rank 4 is not one of 4");
    assert_int_equal(s2s_mesh_open_count(&mesh, 0, 0, &err), S2S_E_ARG);
    assert_int_equal(s2s_mesh_open_count(&mesh, 4, -1, &err), S2S_E_ARG);
}

/* tp 8, cp 2, dp 16, pp 4 and experts over the same ranks: as the real launch counts them. */
static void a_large_launch_has_its_grids_and_few_communicators(void **state)
{
    (void)state;
    const int rank = 5 + 8 * 1 + 16 * 11 + 256 * 2;
    struct s2s_mesh *mesh = counting(1024, rank);
    struct s2s_grid_spec spec = S2S_GRID_SPEC_INIT;
    struct s2s_grid *grid, *experts;
    spec.size[S2S_AXIS_TP] = 8;
    spec.size[S2S_AXIS_CP] = 2;
    spec.size[S2S_AXIS_DP] = 16;
    spec.size[S2S_AXIS_PP] = 4;
    assert_int_equal(s2s_mesh_add_grid(&grid, mesh, &spec, NULL), 0);
    assert_int_equal(s2s_grid_coord(grid, S2S_AXIS_TP), 5);
    assert_int_equal(s2s_grid_coord(grid, S2S_AXIS_CP), 1);
    assert_int_equal(s2s_grid_coord(grid, S2S_AXIS_DP), 11);
    assert_int_equal(s2s_grid_coord(grid, S2S_AXIS_PP), 2);
    struct s2s_comm *dp_cp =
        s2s_grid_comm(grid, S2S_AXIS_BIT(S2S_AXIS_DP) | S2S_AXIS_BIT(S2S_AXIS_CP));
    assert_int_equal(s2s_comm_size(dp_cp), 32);
    assert_int_equal(s2s_comm_rank(dp_cp), 1 + 2 * 11);
    struct s2s_grid_spec of_experts = S2S_GRID_SPEC_INIT;
    of_experts.name = "experts";
    of_experts.size[S2S_AXIS_TP] = 8;
    of_experts.size[S2S_AXIS_EP] = 16;
    of_experts.size[S2S_AXIS_DP] = 2;
    of_experts.size[S2S_AXIS_PP] = 4;
    assert_int_equal(s2s_mesh_add_grid(&experts, mesh, &of_experts, NULL), 0);
    assert_int_equal(s2s_grid_coord(experts, S2S_AXIS_EP), 1 + 2 * (11 % 8));
    assert_ptr_equal(s2s_grid_comm(experts, S2S_AXIS_BIT(S2S_AXIS_PP)),
                     s2s_grid_comm(grid, S2S_AXIS_BIT(S2S_AXIS_PP)));
    struct s2s_mesh_sent sent;
    size_t n = 0;
    while (s2s_mesh_sent_bytes(&sent, mesh, n)) {
        assert_true(sent.n_ranks > 1);
        n++;
    }
    assert_in_range(n, 12, 20);
    s2s_mesh_close(mesh);
}

static void each_operation_counts_its_bytes(void **state)
{
    (void)state;
    struct s2s_mesh *mesh = counting(8, 3);
    struct s2s_comm *world = s2s_mesh_world(mesh);
    float *x = s2s_xcalloc(8 * N, sizeof *x), *y = s2s_xcalloc(8 * N, sizeof *y);
    int64_t counts[8] = {0}, was = 0;
    counts[3] = counts[4] = N;
#define COUNTS(bytes, call) \
    do { \
        call; \
        assert_int_equal(s2s_comm_sent_bytes(world) - was, bytes); \
        was = s2s_comm_sent_bytes(world); \
    } while (0)
    COUNTS(2 * BYTES * 7 / 8, s2s_comm_all_reduce(world, x, N, S2S_F32, S2S_GROUP_SUM));
    COUNTS(BYTES * 7, s2s_comm_all_gather(world, y, x, N, S2S_F32));
    COUNTS(BYTES * 7, s2s_comm_all_gatherv(world, y, x, counts, S2S_F32));
    COUNTS(BYTES, s2s_comm_reduce_scatter(world, y, x, counts, S2S_F32));
    COUNTS(0, s2s_comm_broadcast(world, x, N, S2S_F32, 0));
    COUNTS(BYTES * 7, s2s_comm_broadcast(world, x, N, S2S_F32, 3));
    COUNTS(BYTES, s2s_comm_all_to_all(world, y, counts, x, counts, S2S_F32));
    COUNTS(BYTES, s2s_comm_send(world, x, N, S2S_F32, 7));
    COUNTS(0, s2s_comm_recv(world, x, N, S2S_F32, 7));
    COUNTS(0, s2s_comm_barrier(world));
#undef COUNTS
    free(x);
    free(y);
    s2s_mesh_close(mesh);
}

static void host_collectives_give_this_ranks_part(void **state)
{
    (void)state;
    struct s2s_mesh *mesh = counting(4, 2);
    struct s2s_comm *world = s2s_mesh_world(mesh);
    int32_t mine = 7, all[4] = {0}, v[5] = {9, 9, 9, 9, 9}, part[2] = {5, 6}, got = -1;
    const int64_t counts[4] = {1, 0, 2, 2}, short_counts[4] = {0, 0, 1, 3};
    s2s_comm_all_reduce(world, &mine, 1, S2S_I32, S2S_GROUP_SUM);
    assert_int_equal(mine, 7);
    s2s_comm_all_gather(world, all, &mine, 1, S2S_I32);
    for (int r = 0; r < 4; r++)
        assert_int_equal(all[r], 7);
    s2s_comm_all_gatherv(world, v, part, counts, S2S_I32);
    assert_memory_equal(v, ((const int32_t[]){5, 5, 6, 5, 6}), sizeof v);
    s2s_comm_all_gatherv(world, all, part, short_counts, S2S_I32);
    assert_memory_equal(all, ((const int32_t[]){5, 5, 0, 0}), sizeof all);
    s2s_comm_reduce_scatter(world, part, v, counts, S2S_I32);
    assert_memory_equal(part, v + 1, sizeof part);
    s2s_comm_all_to_all(world, all, short_counts, v + 3, short_counts, S2S_I32);
    assert_memory_equal(all, ((const int32_t[]){5, 5, 0, 0}), sizeof all);
    s2s_comm_recv(world, &got, 1, S2S_I32, 0);
    assert_int_equal(got, 0);
    s2s_comm_send(world, &mine, 1, S2S_I32, 2);
    s2s_comm_recv(world, &got, 1, S2S_I32, 2);
    assert_int_equal(got, 7);
    struct s2s_buf text = S2S_BUF_INIT;
    s2s_buf_puts(&text, "mine");
    struct s2s_buf *bufs = s2s_comm_gather_bufs(world, &text);
    for (int r = 0; r < 4; r++) {
        assert_int_equal(bufs[r].len, 4);
        s2s_buf_release(&bufs[r]);
    }
    free(bufs);
    s2s_buf_release(&text);
    struct s2s_error err = S2S_ERROR_INIT;
    assert_int_equal(s2s_mesh_all_ok(mesh, 0, &err), 0);
    s2s_error_set(&err, S2S_E_FORMAT, "bad");
    assert_int_equal(s2s_mesh_all_ok(mesh, S2S_E_FORMAT, &err), S2S_E_FORMAT);
    assert_string_equal(err.text, "bad");
    s2s_mesh_close(mesh);
}

/* ---- groups, against the real thing ---- */

/* Every operation of a group, in memory that may or may not exist. */
static void all_operations(const struct s2s_group *g, float *x, float *y)
{
    int64_t counts[4] = {0};
    counts[0] = 3;
    counts[g->size - 1] = 5;
    int64_t tickets[4];
    int64_t out[4], in[4];
    for (int r = 0; r < 4; r++) {
        out[r] = 10 * g->rank + r;
        in[r] = 10 * r + g->rank;
    }
    const struct s2s_transfer list[] = {
        {x, 7 + g->rank, S2S_BF16, (g->rank + 1) % g->size, true},
        {y, 7 + (g->rank + g->size - 1) % g->size, S2S_BF16, (g->rank + g->size - 1) % g->size,
         false},
        {x + 100, 9, S2S_F32, g->rank, true},
        {y + 100, 9, S2S_F32, g->rank, false},
    };
    g->ops->all_reduce(g, NULL, x, N + 1, S2S_F32, S2S_GROUP_SUM);
    g->ops->all_gather(g, NULL, y, x, N / 4, S2S_F32);
    g->ops->all_gatherv(g, NULL, y, x, counts, S2S_F32);
    g->ops->reduce_scatter(g, NULL, y, x, N / 4, S2S_F32);
    g->ops->all_to_all(g, NULL, y, in, x, out, S2S_F32);
    g->ops->broadcast(g, NULL, x, N, S2S_BF16, g->size - 1);
    g->ops->exchange(g, NULL, list, 4);
    tickets[0] = g->ops->start_all_reduce(g, NULL, x, N, S2S_F32, S2S_GROUP_MAX);
    tickets[1] = g->ops->start_all_gather(g, NULL, y, x, 11, S2S_F32);
    tickets[2] = g->ops->start_reduce_scatter(g, NULL, y, x, 13, S2S_F32);
    tickets[3] = g->ops->start_exchange(g, NULL, list, 4);
    for (int i = 0; i < 4; i++)
        g->ops->wait(g, NULL, tickets[i]);
}

static void run_on(struct s2s_mesh *mesh, float *x, float *y)
{
    struct s2s_grid *grid = two_by_two(mesh);
    const unsigned tp = S2S_AXIS_BIT(S2S_AXIS_TP), dp = S2S_AXIS_BIT(S2S_AXIS_DP);
    all_operations(s2s_comm_group(s2s_grid_comm(grid, tp), "tp", NULL), x, y);
    all_operations(s2s_comm_group(s2s_grid_comm(grid, tp | dp), "tp-dp", NULL), x, y);
    all_operations(s2s_comm_group(s2s_grid_comm(grid, S2S_AXIS_BIT(S2S_AXIS_CP)), "cp", NULL), x,
                   y);
}

/* The same on a rank of four, and on one that is counted, whose memory cannot be touched. */
static int child(void)
{
    struct s2s_mesh *real, *counted;
    if (s2s_mesh_open(&real, NULL, NULL) < 0)
        return 1;
    expect(s2s_mesh_open_count(&counted, 4, s2s_mesh_rank(real), NULL) == 0, "counting mesh");
    float *x = s2s_xcalloc(2 * N, sizeof *x), *y = s2s_xcalloc(2 * N, sizeof *y);
    float *none = mmap(NULL, 2 * N * sizeof *none, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    run_on(real, x, y);
    run_on(counted, none, none);
    struct s2s_mesh_sent a, b;
    size_t n = 0;
    for (; s2s_mesh_sent_bytes(&a, real, n); n++) {
        expect(s2s_mesh_sent_bytes(&b, counted, n), "as many communicators");
        expect(strcmp(a.name, b.name) == 0 && a.n_ranks == b.n_ranks, "the same communicators");
        expect(a.sent_bytes == b.sent_bytes, "the same bytes");
        expect(n == 0 || strcmp(a.name, "main/dp") == 0 || a.sent_bytes > 0, "some bytes");
    }
    expect(n == 4 && !s2s_mesh_sent_bytes(&b, counted, n), "world, tp, dp, tp-dp");
    munmap(none, 2 * N * sizeof *none);
    free(x);
    free(y);
    s2s_mesh_close(counted);
    s2s_mesh_close(real);
    return bad;
}

static void counted_bytes_are_those_of_four_ranks(void **state)
{
    (void)state;
    launch_well(4, "bytes");
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "--child") == 0)
        return child();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rank_must_be_one_of_the_launch),
        cmocka_unit_test(a_large_launch_has_its_grids_and_few_communicators),
        cmocka_unit_test(each_operation_counts_its_bytes),
        cmocka_unit_test(host_collectives_give_this_ranks_part),
        cmocka_unit_test(counted_bytes_are_those_of_four_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
