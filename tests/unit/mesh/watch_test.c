/* The watch: several operations in flight, from several threads, and who is missing. */
#include "launch.h"
#include "lib/mesh/mesh_internal.h"

static bool never(void *arg)
{
    (void)arg;
    return false;
}

static bool when_set(void *arg)
{
    return atomic_load((atomic_int *)arg) != 0;
}

/* As a backend does whose calls return before the operation is complete. */
static void enqueue(struct s2s_comm *comm, const char *op, int64_t len_bytes, mesh_done *done,
                    void *arg)
{
    int64_t ticket = mesh_enter(comm, op, len_bytes);
    mesh_leave_until(comm->mesh, ticket, done, arg);
}

/* Rank 1 comes to the first operation alone; rank 2 to all, and is in another one since. */
static void one_comes_to_the_first_alone(struct s2s_comm *world)
{
    static atomic_int set = 1;
    enqueue(world, "first", 10, when_set, &set);
    if (s2s_comm_rank(world) != 1) {
        enqueue(world, "second", 20, never, NULL);
        enqueue(world, "third", 30, never, NULL);
    }
    if (s2s_comm_rank(world) == 2)
        enqueue(world, "fourth", 40, never, NULL);
    sleep(30);
}

/* Over its time limit an operation is complete, and so are those that a thread left. */
static void complete_ones_are_not_watched(struct s2s_comm *world)
{
    static atomic_int set;
    enqueue(world, "first", 10, when_set, &set);
    int64_t second = mesh_enter(world, "second", 10);
    mesh_leave_until(world->mesh, second, never, NULL);
    mesh_leave(world->mesh, second);
    usleep(300000);
    atomic_store(&set, 1);
    sleep(2);
    expect(world->mesh->watch.n_flights == 0, "nothing is in flight");
}

/* Rank 0 has broadcast and gone on when rank 2 finds that rank 1 does not come. */
static void a_rank_that_went_on_is_not_missing(struct s2s_mesh *mesh)
{
    char byte = 1;
    if (s2s_mesh_rank(mesh) == 1)
        sleep(30);
    if (s2s_mesh_rank(mesh) == 2) { /* alone in it, as one who waits for rank 1's part */
        mesh_enter(s2s_mesh_world(mesh), "broadcast", 1);
        sleep(30);
    }
    s2s_comm_broadcast(s2s_mesh_world(mesh), &byte, 1, S2S_U8, 0);
    sleep(30);
}

/* Rank 0 waits for a message of rank 1; rank 2 has nothing to do with it. */
static void a_message_that_does_not_come(struct s2s_comm *world)
{
    char byte;
    if (s2s_comm_rank(world) == 0)
        s2s_comm_recv(world, &byte, 1, S2S_U8, 1);
    sleep(30);
}

/* Rank 1 takes its time, but comes. */
static void a_slow_rank(struct s2s_comm *world)
{
    if (s2s_comm_rank(world) == 1)
        usleep(600000);
    s2s_comm_barrier(world);
}

/* Rank 1 dies where nobody waits for it. */
static void a_rank_dies(struct s2s_comm *world)
{
    if (s2s_comm_rank(world) == 1)
        raise(SIGKILL);
    sleep(30);
}

static void die(struct s2s_mesh *mesh)
{
    (void)mesh;
    raise(SIGKILL);
}

/* All is done when rank 1 dies, but the others still wait for it. */
static void a_rank_dies_in_the_end(struct s2s_mesh *mesh)
{
    static struct mesh_backend dies;
    if (s2s_mesh_rank(mesh) != 1)
        return;
    dies = *mesh->backend;
    dies.finalize = die;
    mesh->backend = &dies;
}

/* ---- threads ---- */

struct work {
    struct s2s_comm *comm;
    int64_t sum;
};

static void *reduce_often(void *arg)
{
    struct work *work = arg;
    for (int i = 0; i < 300; i++) {
        int64_t x[2] = {i, s2s_comm_rank(work->comm)};
        s2s_comm_all_reduce(work->comm, x, 2, S2S_I64, S2S_GROUP_SUM);
        work->sum += x[0] + x[1];
    }
    return NULL;
}

static void threads_reduce_side_by_side(struct s2s_mesh *mesh)
{
    struct s2s_grid *grid = two_by_two(mesh);
    struct work tp = {s2s_grid_comm(grid, S2S_AXIS_BIT(S2S_AXIS_TP)), 0};
    struct work dp = {s2s_grid_comm(grid, S2S_AXIS_BIT(S2S_AXIS_DP)), 0};
    pthread_t thread;
    expect(mesh->threads == MESH_ANY_THREAD, "MPI_THREAD_MULTIPLE");
    expect(pthread_create(&thread, NULL, reduce_often, &dp) == 0, "thread");
    reduce_often(&tp);
    pthread_join(thread, NULL);
    expect(tp.sum == 2 * 299 * 300 / 2 + 300 && dp.sum == tp.sum, "sums of two threads");
}

static void *barrier(void *comm)
{
    s2s_comm_barrier(comm);
    return NULL;
}

/* A second thread, while the first is in an operation over `busy`. */
static void second_thread(struct s2s_mesh *mesh, enum mesh_threads threads, struct s2s_comm *busy)
{
    pthread_t thread;
    mesh->threads = threads;
    if (busy)
        mesh_enter(busy, "all_reduce", 8);
    pthread_create(&thread, NULL, barrier, s2s_mesh_world(mesh));
    sleep(30);
}

static int child(const char *what)
{
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_mesh_options options = {.timeout_s = strcmp(what, "threads") == 0 ? 60 : 1};
    struct s2s_mesh *mesh;
    s2s_log_init("watch_test", 0);
    if (s2s_mesh_open(&mesh, &options, &err) < 0)
        return 1;
    struct s2s_comm *world = s2s_mesh_world(mesh);
    if (strcmp(what, "oldest") == 0)
        one_comes_to_the_first_alone(world);
    if (strcmp(what, "went on") == 0)
        a_rank_that_went_on_is_not_missing(mesh);
    if (strcmp(what, "message") == 0)
        a_message_that_does_not_come(world);
    if (strcmp(what, "complete") == 0)
        complete_ones_are_not_watched(world);
    if (strcmp(what, "slow") == 0)
        a_slow_rank(world);
    if (strcmp(what, "dies") == 0)
        a_rank_dies(world);
    if (strcmp(what, "dies in the end") == 0)
        a_rank_dies_in_the_end(mesh);
    if (strcmp(what, "threads") == 0)
        threads_reduce_side_by_side(mesh);
    if (strcmp(what, "first thread") == 0)
        second_thread(mesh, MESH_FIRST_THREAD, NULL);
    if (strcmp(what, "one at a time") == 0)
        second_thread(mesh, MESH_ONE_AT_A_TIME, s2s_grid_comm(two_by_two(mesh), 1));
    if (strcmp(what, "same comm") == 0)
        second_thread(mesh, MESH_ANY_THREAD, world);
    s2s_mesh_close(mesh);
    return bad;
}

static void the_oldest_operation_is_named_with_who_has_not_come(void **state)
{
    (void)state;
    struct s2s_buf said = S2S_BUF_INIT;
    assert_int_not_equal(launch(3, "oldest", &said), 0);
    assert_non_null(
        strstr(said.data, "second over world (20 bytes) is not complete after 1 s, nor"));
    assert_non_null(strstr(said.data, "; missing: rank 1 (pid "));
    assert_null(strstr(said.data, "rank 2 (pid "));
    assert_null(strstr(said.data, "rank 0 (pid "));
    s2s_buf_release(&said);
}

static void who_has_come_and_gone_on_is_not_missing(void **state)
{
    (void)state;
    struct s2s_buf said = S2S_BUF_INIT;
    assert_int_not_equal(launch(3, "went on", &said), 0);
    assert_non_null(strstr(said.data, "; missing: rank 1 (pid "));
    assert_null(strstr(said.data, "rank 0 (pid "));
    s2s_buf_release(&said);
}

static void a_message_is_missed_from_its_sender_alone(void **state)
{
    (void)state;
    struct s2s_buf said = S2S_BUF_INIT;
    assert_int_not_equal(launch(3, "message", &said), 0);
    assert_non_null(strstr(said.data, "exchange over world"));
    assert_non_null(strstr(said.data, "; missing: rank 1 (pid "));
    assert_null(strstr(said.data, "rank 2 (pid "));
    s2s_buf_release(&said);
}

/* How often text is in said. */
static int times(const char *said, const char *text)
{
    int n = 0;
    for (const char *at = said; (at = strstr(at, text)); at++)
        n++;
    return n;
}

static void a_slow_rank_is_told_once_and_goes_on(void **state)
{
    (void)state;
    struct s2s_buf said = S2S_BUF_INIT;
    assert_int_equal(launch(3, "slow", &said), 0);
    assert_int_equal(times(said.data, "; missing: rank 1 (pid "), 1);
    assert_non_null(strstr(said.data, "; the job ends after 1 s"));
    s2s_buf_release(&said);
}

static void one_rank_says_that_the_time_is_over(void **state)
{
    (void)state;
    struct s2s_buf said = S2S_BUF_INIT;
    assert_int_not_equal(launch(4, "went on", &said), 0);
    assert_int_equal(times(said.data, "is not complete after 1 s; missing: rank 1"), 1);
    s2s_buf_release(&said);
}

static void a_death_is_told_by_one_rank(void **state)
{
    (void)state;
    struct s2s_buf said = S2S_BUF_INIT;
    assert_int_not_equal(launch(4, "dies", &said), 0);
    /* MPICH's launcher sees it first, says so and ends the others */
    if (!strstr(said.data, "BAD TERMINATION"))
        assert_int_equal(times(said.data, " died in start"), 1);
    s2s_buf_release(&said);
}

static void a_death_where_all_is_done_is_told_too(void **state)
{
    (void)state;
    struct s2s_buf said = S2S_BUF_INIT;
    assert_int_not_equal(launch(3, "dies in the end", &said), 0);
    if (!strstr(said.data, "BAD TERMINATION"))
        assert_int_equal(times(said.data, " died in end"), 1);
    s2s_buf_release(&said);
}

static void an_operation_is_watched_until_it_is_complete(void **state)
{
    (void)state;
    launch_well(2, "complete");
}

static void threads_may_have_collectives_in_flight(void **state)
{
    (void)state;
    launch_well(4, "threads");
}

static void a_second_thread_is_refused_where_mpi_stands_one(void **state)
{
    (void)state;
    launch_badly(4, "first thread", SAYS("barrier over world", "only the thread that started it"));
    launch_badly(4, "one at a time", SAYS("barrier over world", "only one thread at a time"));
}

static void two_threads_in_one_communicator_are_our_bug(void **state)
{
    (void)state;
    launch_badly(2, "same comm", SAYS("barrier over world, where another thread is in all_reduce"));
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "--child") == 0)
        return child(argv[2]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_oldest_operation_is_named_with_who_has_not_come),
        cmocka_unit_test(who_has_come_and_gone_on_is_not_missing),
        cmocka_unit_test(a_message_is_missed_from_its_sender_alone),
        cmocka_unit_test(a_slow_rank_is_told_once_and_goes_on),
        cmocka_unit_test(one_rank_says_that_the_time_is_over),
        cmocka_unit_test(a_death_is_told_by_one_rank),
        cmocka_unit_test(a_death_where_all_is_done_is_told_too),
        cmocka_unit_test(an_operation_is_watched_until_it_is_complete),
        cmocka_unit_test(threads_may_have_collectives_in_flight),
        cmocka_unit_test(a_second_thread_is_refused_where_mpi_stands_one),
        cmocka_unit_test(two_threads_in_one_communicator_are_our_bug),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
