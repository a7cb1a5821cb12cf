/*
 * Groups of tensors in the memories of devices: three ranks, each with an emulated GPU, over the
 * host's library of NCCL's names. With S2S_CUDA (and S2S_NCCL) set: over what these name.
 */
#include "kernels/kernels.h"
#include "launch.h"
#include "lib/tensor/device.h"

/* More than what goes at a time. */
enum { MANY = 150001 };

static struct s2s_device *device;
static bool emulated;

/* What the program is given to open, where the caller does not say. */
static void emulate(void)
{
    if (getenv("S2S_CUDA"))
        return;
    emulated = true;
    setenv("S2S_CUDA", "libs2s-emu.so", 1);
    setenv("S2S_NCCL", "libnccl-host.so", 1);
    /* who does not wait for what is started reads too early */
    setenv("S2S_EMU_LATE_MS", "5", 0);
}

/* ---- tensors that are arrays of numbers ---- */

static float *on_device(const float *host, int64_t n)
{
    float *x = device->kernels->alloc(&device->queue, (size_t)n * sizeof *x);
    expect(x != NULL, "device memory");
    if (host)
        device->kernels->copy_in(&device->queue, x, host, (size_t)n * sizeof *x);
    else
        device->kernels->zero(&device->queue, x, (size_t)n * sizeof *x);
    return x;
}

/* Element i of rank r's array. */
static float number(int r, int64_t i)
{
    return (float)(r + 1) + (float)(i % 13) * 0.25f;
}

static float *numbers(int rank, int64_t n)
{
    float *host = s2s_xcalloc((size_t)n + 1, sizeof *host);
    for (int64_t i = 0; i < n; i++)
        host[i] = number(rank, i);
    float *x = on_device(host, n);
    free(host);
    return x;
}

static float sum_of(const struct s2s_group *g, int64_t i)
{
    float sum = 0;
    for (int r = 0; r < g->size; r++)
        sum += number(r, i);
    return sum;
}

/* x [n] is what `wanted` says of each place; frees it. */
typedef float wanted_fn(const struct s2s_group *g, int64_t i, int64_t n);
static void is_all(const struct s2s_group *g, float *x, int64_t n, wanted_fn *wanted,
                   const char *what)
{
    float *host = s2s_xcalloc((size_t)n + 1, sizeof *host);
    int64_t i = 0;
    device->kernels->copy_out(&device->queue, host, x, (size_t)n * sizeof *host);
    while (i < n && host[i] == wanted(g, i, n))
        i++;
    if (i < n)
        fprintf(stderr, "rank %d of %d: element %lld of %lld is %g, not %g\n", g->rank, g->size,
                (long long)i, (long long)n, (double)host[i], (double)wanted(g, i, n));
    expect(i == n, what);
    free(host);
    device->kernels->free(&device->queue, x);
}

static float the_sum(const struct s2s_group *g, int64_t i, int64_t n)
{
    (void)n;
    return sum_of(g, i);
}

static float the_largest(const struct s2s_group *g, int64_t i, int64_t n)
{
    (void)n;
    return number(g->size - 1, i);
}

static float each_part(const struct s2s_group *g, int64_t i, int64_t n)
{
    const int64_t part = n / g->size;
    return number((int)(i / part), i % part);
}

static float my_part_of_the_sum(const struct s2s_group *g, int64_t i, int64_t n)
{
    return sum_of(g, (int64_t)g->rank * n + i);
}

static float the_last_ranks(const struct s2s_group *g, int64_t i, int64_t n)
{
    (void)n;
    return number(g->size - 1, i);
}

static float the_one_befores(const struct s2s_group *g, int64_t i, int64_t n)
{
    (void)n;
    return number((g->rank + g->size - 1) % g->size, i);
}

/* Rank r gives r + 2 elements to everybody. */
static float parts_of_own_lengths(const struct s2s_group *g, int64_t i, int64_t n)
{
    int r = 0;
    (void)n;
    while (i >= r + 2)
        i -= 2 + r++;
    return number(r, i);
}

/* Rank r gives me the (me + 1) elements that follow those for the ranks before me. */
static float parts_for_me(const struct s2s_group *g, int64_t i, int64_t n)
{
    const int64_t mine = g->rank + 1, at = (int64_t)g->rank * (g->rank + 1) / 2;
    (void)n;
    return number((int)(i / mine), at + i % mine);
}

/* ---- operations ---- */

static void sums(const struct s2s_group *g, int64_t n)
{
    struct s2s_queue *q = &device->queue;
    float *x = numbers(g->rank, n), *y = numbers(g->rank, n), *z = numbers(g->rank, n);
    g->ops->all_reduce(g, q, x, n, S2S_F32, S2S_GROUP_SUM);
    g->ops->all_reduce(g, q, y, n, S2S_F32, S2S_GROUP_MAX);
    g->ops->broadcast(g, q, z, n, S2S_F32, g->size - 1);
    is_all(g, x, n, the_sum, "all_reduce");
    is_all(g, y, n, the_largest, "all_reduce of the largest");
    is_all(g, z, n, the_last_ranks, "broadcast");
    float *all = on_device(NULL, n * g->size), *whole = numbers(g->rank, n * g->size),
          *part = on_device(NULL, n);
    x = numbers(g->rank, n);
    g->ops->all_gather(g, q, all, x, n, S2S_F32);
    g->ops->reduce_scatter(g, q, part, whole, n, S2S_F32);
    is_all(g, all, n * g->size, each_part, "all_gather");
    is_all(g, part, n, my_part_of_the_sum, "reduce_scatter");
    device->kernels->free(q, x);
    device->kernels->free(q, whole);
}

static void in_place(const struct s2s_group *g, int64_t n)
{
    struct s2s_queue *q = &device->queue;
    float *all = on_device(NULL, n * g->size), *own = all + n * g->rank, *x = numbers(g->rank, n);
    device->kernels->copy(
        q, &(struct s2s_k_copy){
               .src = {x, n, S2S_F32}, .dst = {own, n, S2S_F32}, .rows = 1, .cols = n});
    g->ops->all_gather(g, q, all, own, n, S2S_F32);
    is_all(g, all, n * g->size, each_part, "all_gather in place");
    device->kernels->free(q, x);
}

static void messages(const struct s2s_group *g, int64_t n)
{
    struct s2s_queue *q = &device->queue;
    const int next = (g->rank + 1) % g->size, before = (g->rank + g->size - 1) % g->size;
    float *x = numbers(g->rank, n), *y = on_device(NULL, n), *a = on_device(NULL, 7),
          *b = on_device(NULL, 7);
    const struct s2s_transfer list[] = {
        {x, n, S2S_F32, next, true},     {y, n, S2S_F32, before, false},
        {x, 7, S2S_F32, next, true},     {a, 7, S2S_F32, before, false},
        {x, 7, S2S_F32, g->rank, true},  {NULL, 0, S2S_F32, next, true},
        {b, 7, S2S_F32, g->rank, false}, {NULL, 0, S2S_F32, before, false}};
    g->ops->exchange(g, q, list, sizeof list / sizeof *list);
    is_all(g, y, n, the_one_befores, "exchange");
    is_all(g, a, 7, the_one_befores, "the second message of an exchange");
    float *mine = numbers(g->rank, 7);
    float host[2][7];
    device->kernels->copy_out(q, host[0], mine, sizeof host[0]);
    device->kernels->copy_out(q, host[1], b, sizeof host[1]);
    expect(memcmp(host[0], host[1], sizeof host[0]) == 0, "a message to oneself");
    device->kernels->free(q, mine);
    device->kernels->free(q, b);
    device->kernels->free(q, x);
}

static void parts_of_any_length(const struct s2s_group *g)
{
    struct s2s_queue *q = &device->queue;
    int64_t counts[8], to[8], from[8], n = 0, sent = 0;
    for (int r = 0; r < g->size; r++) {
        counts[r] = r + 2;
        to[r] = r + 1;
        from[r] = g->rank + 1;
        n += counts[r];
        sent += to[r];
    }
    float *x = numbers(g->rank, n), *all = on_device(NULL, n),
          *got = on_device(NULL, g->size * (g->rank + 1));
    g->ops->all_gatherv(g, q, all, x, counts, S2S_F32);
    g->ops->all_to_all(g, q, got, from, x, to, S2S_F32);
    is_all(g, all, n, parts_of_own_lengths, "all_gatherv");
    is_all(g, got, g->size * (g->rank + 1), parts_for_me, "all_to_all");
    expect(sent <= n, "what was sent is there");
    device->kernels->free(q, x);
}

/* Waited for in another order, with others of the same ranks and of another group between. */
static void started(const struct s2s_group *g, const struct s2s_group *other)
{
    struct s2s_queue *q = &device->queue;
    const int64_t n = MANY;
    float *x = numbers(g->rank, n), *all = on_device(NULL, n * g->size), *own = numbers(g->rank, n),
          *whole = numbers(g->rank, n * g->size), *part = on_device(NULL, n),
          *y = numbers(other->rank, 100), *got = on_device(NULL, n), *z = numbers(g->rank, 100);
    const struct s2s_transfer list[] = {
        {own, n, S2S_F32, (g->rank + 1) % g->size, true},
        {got, n, S2S_F32, (g->rank + g->size - 1) % g->size, false}};
    const int64_t a = g->ops->start_all_reduce(g, q, x, n, S2S_F32, S2S_GROUP_SUM);
    other->ops->all_reduce(other, q, y, 100, S2S_F32, S2S_GROUP_SUM);
    const int64_t b = g->ops->start_all_gather(g, q, all, own, n, S2S_F32);
    const int64_t c = g->ops->start_reduce_scatter(g, q, part, whole, n, S2S_F32);
    g->ops->all_reduce(g, q, z, 100, S2S_F32, S2S_GROUP_SUM);
    const int64_t d = g->ops->start_exchange(g, q, list, 2);
    g->ops->wait(g, q, d);
    g->ops->wait(g, q, b);
    g->ops->wait(g, q, a);
    g->ops->wait(g, q, c);
    is_all(g, x, n, the_sum, "started all_reduce");
    is_all(g, all, n * g->size, each_part, "started all_gather");
    is_all(g, part, n, my_part_of_the_sum, "started reduce_scatter");
    is_all(g, got, n, the_one_befores, "started exchange");
    is_all(other, y, 100, the_sum, "a sum of others between started ones");
    is_all(g, z, 100, the_sum, "a sum between started ones");
    device->kernels->free(q, own);
    device->kernels->free(q, whole);
}

static void elements(const struct s2s_group *g)
{
    struct s2s_queue *q = &device->queue;
    const double wide = 1.5 + g->rank;
    const int32_t whole = 1 << g->rank;
    const uint16_t half = (uint16_t)(0x3f80 + 0x80 * g->rank); /* 1, 2, 4, .. in BF16 */
    double wide_sum = 0, got_wide;
    int32_t got_whole;
    uint16_t got_half;
    char *room = device->kernels->alloc(q, 1024);
    for (int r = 0; r < g->size; r++)
        wide_sum += 1.5 + r;
    device->kernels->copy_in(q, room, &wide, sizeof wide);
    device->kernels->copy_in(q, room + 256, &whole, sizeof whole);
    device->kernels->copy_in(q, room + 512, &half, sizeof half);
    g->ops->all_reduce(g, q, room, 1, S2S_F64, S2S_GROUP_SUM);
    g->ops->all_reduce(g, q, room + 256, 1, S2S_I32, S2S_GROUP_SUM);
    g->ops->all_reduce(g, q, room + 512, 1, S2S_BF16, S2S_GROUP_MAX);
    device->kernels->copy_out(q, &got_wide, room, sizeof got_wide);
    device->kernels->copy_out(q, &got_whole, room + 256, sizeof got_whole);
    device->kernels->copy_out(q, &got_half, room + 512, sizeof got_half);
    expect(got_wide == wide_sum, "a sum of F64");
    expect(got_whole == (1 << g->size) - 1, "a sum of I32");
    expect(got_half == 0x3f80 + 0x80 * (g->size - 1), "the largest of BF16");
    device->kernels->free(q, room);
}

static int child(const char *what)
{
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_mesh_options options = {.timeout_s = 20};
    struct s2s_mesh *mesh;
    struct s2s_comm *pair = NULL, *rest = NULL;
    s2s_log_init("links_test", 0);
    if (s2s_mesh_open(&mesh, &options, &err) < 0)
        return 1;
    int rc = s2s_device_open_at(&device, "cuda", s2s_mesh_local_rank(mesh), &err);
    if ((rc = s2s_mesh_all_ok(mesh, rc, &err)) == 0)
        rc = s2s_mesh_use_device(mesh, device->kernels, &device->queue, &err);
    if (rc < 0) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    const int n = s2s_mesh_size(mesh), ranks[] = {0, 1, 2, 3, 4, 5, 6, 7};
    const struct s2s_group *world = s2s_comm_group(s2s_mesh_world(mesh), "all", NULL);
    expect(strcmp(world->ops->memory, device->kernels->name) == 0, "whose memory");
    expect(s2s_mesh_add_group(&pair, mesh, "pair", ranks, 2, &err) == 0, "a pair");
    if (n > 2)
        expect(s2s_mesh_add_group(&rest, mesh, "rest", ranks + 2, n - 2, &err) == 0, "the rest");
    const struct s2s_group *other = s2s_comm_group(pair ? pair : rest, "other", NULL);
    sums(world, 1);
    sums(world, MANY);
    sums(world, 0);
    in_place(world, 1000);
    messages(world, MANY);
    parts_of_any_length(world);
    elements(world);
    started(world, other);
    device->kernels->sync(&device->queue);
    expect(device->queue.status == 0, "no kernel failed");
    s2s_mesh_close(mesh);
    s2s_device_close(device);
    return bad;
}

static int ranks(void)
{
    const char *n = getenv("S2S_TEST_RANKS");
    return n ? (int)strtol(n, NULL, 10) : 3;
}

static void every_operation_is_what_it_says(void **state)
{
    (void)state;
    launch_well(ranks(), "all");
}

/* An old NCCL does not keep to the order of calls: everything goes through one stream. */
static void in_one_stream_too(void **state)
{
    (void)state;
    if (!emulated)
        skip();
    setenv("S2S_NCCL_VERSION", "22005", 1);
    launch_well(ranks(), "all");
    unsetenv("S2S_NCCL_VERSION");
}

static void the_same_device_twice_is_refused(void **state)
{
    (void)state;
    if (!emulated)
        skip();
    setenv("S2S_EMU_DEVICES", "2", 1);
    launch_badly(3, "all", SAYS("ranks 0 and 2 on ", " have one GPU, emulated:0"));
    setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
    setenv("S2S_NCCL_VERSION", "22809", 1);
    launch_badly(3, "all", SAYS("ranks 0 and 2 on "));
    unsetenv("S2S_NCCL_VERSION");
    launch_well(3, "all");
    unsetenv("NCCL_MULTI_RANK_GPU_ENABLE");
    unsetenv("S2S_EMU_DEVICES");
}

static void a_library_that_is_too_old_is_refused(void **state)
{
    (void)state;
    if (!emulated)
        skip();
    setenv("S2S_NCCL_VERSION", "21703", 1);
    launch_badly(2, "all", SAYS("need NCCL: libnccl.so.2 is older than 2.18"));
    unsetenv("S2S_NCCL_VERSION");
}

int main(int argc, char **argv)
{
    emulate();
    if (argc == 3 && strcmp(argv[1], "--child") == 0)
        return child(argv[2]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_operation_is_what_it_says),
        cmocka_unit_test(in_one_stream_too),
        cmocka_unit_test(the_same_device_twice_is_refused),
        cmocka_unit_test(a_library_that_is_too_old_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
