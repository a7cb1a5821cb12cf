/* What lib/tensor calls: order against the queue, tickets, exchanges of any lengths. */
#include "launch.h"

/* A queue that is behind: what it was given is done when it is waited for. */
struct s2s_queue {
    float *dst;
    float value;
};

static void catch_up(struct s2s_queue *queue)
{
    if (queue->dst)
        *queue->dst = queue->value;
    queue->dst = NULL;
}

static const struct s2s_group *group_of(struct s2s_comm *comm)
{
    return s2s_comm_group(comm, "dp", catch_up);
}

/* ---- of one process ---- */

static void a_comm_is_a_group_of_each_name(void **state)
{
    struct s2s_comm *world = s2s_mesh_world(*state);
    const struct s2s_group *dp = s2s_comm_group(world, "dp", NULL);
    assert_ptr_equal(dp, s2s_comm_group(world, "dp", NULL));
    assert_string_equal(s2s_comm_group(world, "fsdp", NULL)->axis, "fsdp");
    assert_string_equal(dp->axis, "dp");
    assert_string_equal(dp->ops->memory, "cpu");
}

static void wait_twice(void *mesh)
{
    const struct s2s_group *group = group_of(s2s_mesh_world(mesh));
    struct s2s_queue queue = {0};
    float x = 1;
    int64_t ticket = group->ops->start_all_reduce(group, &queue, &x, 1, S2S_F32, S2S_GROUP_SUM);
    group->ops->wait(group, &queue, ticket);
    group->ops->wait(group, &queue, ticket);
}

static void a_ticket_is_waited_for_once(void **state)
{
    is_our_bug(wait_twice, *state);
}

static void messages_to_oneself_arrive_in_order(void **state)
{
    const struct s2s_group *group = group_of(s2s_mesh_world(*state));
    struct s2s_queue queue = {0};
    int32_t a = 1, b[2] = {2, 3}, to_a = 0, to_b[2] = {0};
    const struct s2s_transfer list[] = {{&to_a, 1, S2S_I32, 0, false},
                                        {&a, 1, S2S_I32, 0, true},
                                        {b, 2, S2S_I32, 0, true},
                                        {to_b, 2, S2S_I32, 0, false}};
    group->ops->exchange(group, &queue, list, 4);
    assert_int_equal(to_a, 1);
    assert_memory_equal(to_b, b, sizeof b);
}

static int open_mesh(void **state)
{
    return s2s_mesh_open((struct s2s_mesh **)state, NULL, NULL);
}

static int close_mesh(void **state)
{
    s2s_mesh_close(*state);
    return 0;
}

/* ---- of four ranks ---- */

/* The value is written by the queue: whoever does not wait for it sends a 0. */
static void operations_come_after_the_queue(struct s2s_comm *comm)
{
    const struct s2s_group *g = group_of(comm);
    const int size = g->size, rank = g->rank;
    const int64_t one[4] = {1, 1, 1, 1};
    float x = 0, all[4] = {0}, of_all[4] = {1, 1, 1, 1};
    struct s2s_queue q = {&x, (float)(rank + 1)};
    g->ops->all_reduce(g, &q, &x, 1, S2S_F32, S2S_GROUP_SUM);
    expect(x == (float)(size * (size + 1) / 2), "all_reduce after the queue");
    q = (struct s2s_queue){&x, (float)rank};
    g->ops->all_gather(g, &q, all, &x, 1, S2S_F32);
    expect(all[size - 1] == (float)(size - 1), "all_gather after the queue");
    q = (struct s2s_queue){&x, (float)(10 * rank)};
    g->ops->all_gatherv(g, &q, all, &x, one, S2S_F32);
    expect(all[size - 1] == (float)(10 * (size - 1)), "all_gatherv after the queue");
    q = (struct s2s_queue){&of_all[size - 1], 7};
    g->ops->reduce_scatter(g, &q, &x, of_all, 1, S2S_F32);
    expect(x == (float)(rank == size - 1 ? 7 * size : size), "reduce_scatter after the queue");
    q = (struct s2s_queue){&of_all[0], (float)rank};
    g->ops->all_to_all(g, &q, all, one, of_all, one, S2S_F32);
    expect(all[size - 1] == (float)(rank == 0          ? size - 1
                                    : rank == size - 1 ? 7
                                                       : 1),
           "all_to_all after the queue");
    q = (struct s2s_queue){&x, (float)(rank + 5)};
    g->ops->broadcast(g, &q, &x, 1, S2S_F32, size - 1);
    expect(x == (float)(size + 4), "broadcast after the queue");
    float got = 0;
    q = (struct s2s_queue){&x, (float)rank};
    const struct s2s_transfer list[] = {{&x, 1, S2S_F32, (rank + 1) % size, true},
                                        {&got, 1, S2S_F32, (rank + size - 1) % size, false}};
    g->ops->exchange(g, &q, list, 2);
    expect(got == (float)((rank + size - 1) % size), "exchange after the queue");
}

static void started_operations(struct s2s_comm *comm)
{
    const struct s2s_group *g = group_of(comm);
    const int size = g->size, rank = g->rank;
    float x = 0, y = (float)rank, all[4] = {0}, part = 0, of_all[4] = {1, 2, 3, 4};
    struct s2s_queue q = {&x, 1};
    int64_t a = g->ops->start_all_reduce(g, &q, &x, 1, S2S_F32, S2S_GROUP_SUM);
    int64_t b = g->ops->start_all_gather(g, &q, all, &y, 1, S2S_F32);
    int64_t c = g->ops->start_reduce_scatter(g, &q, &part, of_all, 1, S2S_F32);
    const int next = (rank + 1) % size, before = (rank + size - 1) % size;
    float sent = (float)rank, got = -1;
    struct s2s_transfer list[] = {{&sent, 1, S2S_F32, next, true},
                                  {&got, 1, S2S_F32, before, false}};
    int64_t d = g->ops->start_exchange(g, &q, list, 2);
    list[1].buf = NULL; /* it was read */
    expect(a > 0 && b > 0 && c > 0 && a != b && b != c && a != c && d > 0 && d != a && d != b &&
               d != c,
           "tickets differ");
    g->ops->wait(g, &q, d);
    expect(got == (float)before, "started exchange");
    g->ops->wait(g, &q, c);
    g->ops->wait(g, &q, a);
    g->ops->wait(g, &q, b);
    expect(x == (float)size && all[size - 1] == (float)(size - 1), "started sum and gather");
    expect(part == (float)(size * (rank + 1)), "started reduce_scatter");
}

/* Sums of many elements go on while nobody of this rank is inside MPI, in the order of starting;
 * the sums are those that the caller's own thread gets, and are counted as sent. */
static void what_runs_beside_completes_unattended(struct s2s_comm *comm, struct s2s_comm *world)
{
    enum { N = 1 << 20, PARTS = 3 };
    const struct s2s_group *g = group_of(comm);
    float *own = s2s_xcalloc(PARTS * N, sizeof *own), *beside = s2s_xcalloc(PARTS * N, sizeof *own);
    int64_t tickets[PARTS];
    struct s2s_queue q = {0};
    for (int i = 0; i < PARTS * N; i++)
        own[i] = beside[i] = (float)(g->rank + 1) * 0.1f + (float)(i % 7) * 1e-4f;
    g->ops->all_reduce(g, &q, own, PARTS * N, S2S_F32, S2S_GROUP_SUM);
    const int64_t sent = s2s_comm_sent_bytes(comm);
    s2s_comm_run_beside(comm);
    if (g->rank > 0) /* when the first rank has started */
        s2s_comm_barrier(world);
    for (int p = 0; p < PARTS; p++)
        tickets[p] = g->ops->start_all_reduce(g, &q, beside + p * N, N, S2S_F32, S2S_GROUP_SUM);
    if (g->rank == 0)
        s2s_comm_barrier(world);
    const volatile float *last = beside + PARTS * N - 1;
    const double start_s = s2s_now_s();
    while (*last != own[PARTS * N - 1] && s2s_now_s() - start_s < 8)
        usleep(1000);
    expect(*last == own[PARTS * N - 1], "the last sum arrives before anybody waits for it");
    for (int p = PARTS - 1; p >= 0; p--)
        g->ops->wait(g, &q, tickets[p]);
    expect(memcmp(own, beside, PARTS * N * sizeof *own) == 0, "the same sums beside");
    expect(s2s_comm_sent_bytes(comm) == 2 * sent, "the same bytes sent beside");
    started_operations(comm);
    free(own);
    free(beside);
}

/* More than any library keeps for a receiver that has not come: blocking sends would both wait. */
static void two_ranks_send_to_each_other(struct s2s_comm *pair)
{
    enum { N = 1 << 20 };
    const struct s2s_group *g = group_of(pair);
    struct s2s_queue q = {0};
    char *out = s2s_xmalloc(N), *in = s2s_xmalloc(N);
    memset(out, 'a' + g->rank, N);
    const struct s2s_transfer list[] = {{out, N, S2S_U8, 1 - g->rank, true},
                                        {in, N, S2S_U8, 1 - g->rank, false}};
    g->ops->exchange(g, &q, list, 2);
    int same = 1;
    for (int i = 0; i < N; i++)
        same &= in[i] == 'b' - g->rank;
    expect(same, "1 MiB both ways");
    free(out);
    free(in);
}

/* Three messages to the next rank, of as many elements as the sender's rank, none, and many. */
static void messages_round_a_ring(struct s2s_comm *comm)
{
    enum { MANY = 300000 };
    const struct s2s_group *g = group_of(comm);
    const int next = (g->rank + 1) % g->size, last = (g->rank + g->size - 1) % g->size;
    struct s2s_queue q = {0};
    int32_t few[4] = {g->rank, g->rank, g->rank, g->rank}, few_in[4] = {-1, -1, -1, -1};
    int32_t *many = s2s_xcalloc(MANY, sizeof *many), *many_in = s2s_xcalloc(MANY, sizeof *many_in);
    many[MANY - 1] = 100 + g->rank;
    const struct s2s_transfer list[] = {
        {few, g->rank, S2S_I32, next, true},  {few_in, last, S2S_I32, last, false},
        {NULL, 0, S2S_I32, next, true},       {NULL, 0, S2S_I32, last, false},
        {many, MANY, S2S_I32, next, true},    {many_in, MANY, S2S_I32, last, false},
        {few + 3, 1, S2S_I32, g->rank, true}, {few_in + 3, 1, S2S_I32, g->rank, false},
    };
    g->ops->exchange(g, &q, list, sizeof list / sizeof *list);
    for (int i = 0; i < 3; i++)
        expect(few_in[i] == (i < last ? last : -1), "few numbers round the ring");
    expect(many_in[MANY - 1] == 100 + last, "many numbers round the ring");
    expect(few_in[3] == g->rank, "a number to oneself");
    free(many);
    free(many_in);
}

/* Rank 0 sends to rank 1, which expects another length. */
static void another_length(struct s2s_comm *comm, int64_t n_sent, int64_t n_expected)
{
    char text[8] = "1234567";
    if (s2s_comm_rank(comm) == 0)
        s2s_comm_send(comm, text, n_sent, S2S_U8, 1);
    else if (s2s_comm_rank(comm) == 1)
        s2s_comm_recv(comm, text, n_expected, S2S_U8, 0);
    s2s_comm_barrier(comm);
}

static int child(const char *what)
{
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_mesh_options options = {.timeout_s = 10};
    struct s2s_mesh *mesh;
    if (s2s_mesh_open(&mesh, &options, &err) < 0)
        return 1;
    s2s_log_init("group_test", 0);
    struct s2s_comm *world = s2s_mesh_world(mesh);
    if (strcmp(what, "short") == 0)
        another_length(world, 3, 5);
    if (strcmp(what, "long") == 0)
        another_length(world, 5, 3);
    operations_come_after_the_queue(world);
    started_operations(world);
    struct s2s_grid *grid = two_by_two(mesh);
    two_ranks_send_to_each_other(s2s_grid_comm(grid, S2S_AXIS_BIT(S2S_AXIS_TP)));
    messages_round_a_ring(world);
    what_runs_beside_completes_unattended(s2s_grid_comm(grid, S2S_AXIS_BIT(S2S_AXIS_DP)), world);
    s2s_mesh_close(mesh);
    return bad;
}

static void operations_of_four_ranks(void **state)
{
    (void)state;
    launch_well(4, "ok");
}

static void a_message_of_another_length_ends_the_job(void **state)
{
    (void)state;
    launch_badly(2, "short", SAYS("exchange over world", "expected 5 bytes from rank 0, found 3"));
    launch_badly(2, "long",
                 SAYS("exchange over world", "expected 3 bytes from rank 0, found more"));
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "--child") == 0)
        return child(argv[2]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_comm_is_a_group_of_each_name),
        cmocka_unit_test(a_ticket_is_waited_for_once),
        cmocka_unit_test(messages_to_oneself_arrive_in_order),
        cmocka_unit_test(operations_of_four_ranks),
        cmocka_unit_test(a_message_of_another_length_ends_the_job),
    };
    return cmocka_run_group_tests(tests, open_mesh, close_mesh);
}
