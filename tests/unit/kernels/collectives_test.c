/*
 * What a table of a device has for several ranks, called as it is, by processes without a launcher:
 * over the emulation and the host's library of NCCL's names, or, with S2S_TEST_TABLES=cuda, over
 * NCCL, as one rank and, where two may share a GPU or there are two, as two.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "kernels/kernels.h"
#include "lib/base/error.h"
#include "lib/tensor/device.h"

enum { LEN = 7 * 14287, LIMIT_S = 60, SKIPPED = 77 };

/* What the processes of a launch have in common. */
struct meeting {
    _Atomic int n_ready;
    char id[S2S_LINK_ID_BYTES], devices[4][S2S_DEVICE_ID_BYTES];
};

static const struct s2s_kernels *k;
static struct s2s_queue queue;
static int bad;

static bool on_gpu(void)
{
    const char *tables = getenv("S2S_TEST_TABLES");
    return tables && strstr(tables, "cuda");
}

static void must(int status, const char *what)
{
    if (status == 0)
        return;
    fprintf(stderr, "%s: %s\n", what, k->collectives->status_text(status));
    exit(1);
}

static void expect(bool truth, const char *what)
{
    if (!truth)
        fprintf(stderr, "not as expected: %s\n", what);
    bad |= !truth;
}

/* ---- buffers ---- */

static float *numbers(int64_t n, float first)
{
    float *host = malloc((size_t)n * sizeof *host);
    for (int64_t i = 0; i < n; i++)
        host[i] = first + (float)(i % 7);
    float *x = k->alloc(&queue, (size_t)n * sizeof *x);
    expect(x != NULL, "device memory");
    k->copy_in(&queue, x, host, (size_t)n * sizeof *x);
    free(host);
    return x;
}

/* x [n] is `first`, and what numbers adds to it, `times` times. */
static void are(const float *x, int64_t n, float first, float times, const char *what)
{
    float *host = malloc((size_t)n * sizeof *host);
    int64_t i = 0;
    k->copy_out(&queue, host, x, (size_t)n * sizeof *host);
    while (i < n && host[i] == first + times * (float)(i % 7))
        i++;
    if (i < n)
        fprintf(stderr, "element %lld is %g\n", (long long)i, (double)host[i]);
    expect(i == n, what);
    free(host);
}

/* ---- a rank ---- */

struct rank {
    struct s2s_link *link;
    int n, number;
    struct s2s_event *done;
};

static void issue(const struct rank *r, const struct s2s_link_call *call, bool beside,
                  const char *what)
{
    must(k->collectives->issue(r->link, &queue, call, r->done, beside), what);
    if (beside)
        k->event_wait(&queue, r->done);
}

static void every_kind(const struct rank *r, bool beside)
{
    const int next = (r->number + 1) % r->n, last = (r->number + r->n - 1) % r->n;
    const float mine = (float)(r->number + 1), n = (float)r->n, sum = n * (n + 1) / 2;
    float *x = numbers(LEN, mine), *y = numbers(LEN, mine), *z = numbers(LEN, mine),
          *got = numbers(LEN, 0), *all = numbers((int64_t)LEN * r->n, 0), *part = numbers(LEN, 0),
          *whole = numbers((int64_t)LEN * r->n, mine);
    const struct s2s_link_message list[] = {{z, LEN * sizeof *z, next, true},
                                            {got, LEN * sizeof *got, last, false}};
    issue(r, &(struct s2s_link_call){.kind = S2S_LINK_EXCHANGE, .list = list, .n_list = 2}, beside,
          "exchange");
    issue(
        r,
        &(struct s2s_link_call){.kind = S2S_LINK_ALL_REDUCE, .recv = x, .n = LEN, .dtype = S2S_F32},
        beside, "all_reduce");
    issue(r,
          &(struct s2s_link_call){
              .kind = S2S_LINK_ALL_REDUCE, .recv = y, .n = LEN, .dtype = S2S_F32, .max = true},
          beside, "all_reduce of the largest");
    issue(r,
          &(struct s2s_link_call){
              .kind = S2S_LINK_ALL_GATHER, .recv = all, .send = z, .n = LEN, .dtype = S2S_F32},
          beside, "all_gather");
    issue(r,
          &(struct s2s_link_call){.kind = S2S_LINK_REDUCE_SCATTER,
                                  .recv = part,
                                  .send = whole,
                                  .n = LEN,
                                  .dtype = S2S_F32},
          beside, "reduce_scatter");
    issue(r,
          &(struct s2s_link_call){
              .kind = S2S_LINK_BROADCAST, .recv = z, .n = LEN, .dtype = S2S_F32, .root = r->n - 1},
          beside, "broadcast");
    are(x, LEN, sum, n, "all_reduce");
    are(y, LEN, n, 1, "all_reduce of the largest");
    are(got, LEN, (float)(last + 1), 1, "exchange");
    for (int p = 0; p < r->n; p++)
        are(all + (int64_t)p * LEN, LEN, (float)(p + 1), 1, "all_gather");
    are(z, LEN, n, 1, "broadcast");
    are(part, LEN, sum, n, "reduce_scatter");
    float *const buffers[] = {x, y, z, got, all, part, whole};
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++)
        k->free(&queue, buffers[i]);
}

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* For people to read: what a small and a large sum take, of so many each. */
static void measure(const struct rank *r, int times)
{
    static const int64_t sizes[] = {1024, 16 << 20};
    for (int i = 0; i < 2; i++) {
        float *x = numbers(sizes[i], 0);
        const struct s2s_link_call call = {
            .kind = S2S_LINK_ALL_REDUCE, .recv = x, .n = sizes[i], .dtype = S2S_F32};
        issue(r, &call, false, "all_reduce");
        k->sync(&queue);
        const double begin_s = now_s();
        for (int t = 0; t < times; t++)
            issue(r, &call, false, "all_reduce");
        k->sync(&queue);
        const double s = (now_s() - begin_s) / times;
        if (r->number == 0)
            printf("all_reduce of %lld bytes over %d: %.1f us, %.1f GB/s\n",
                   (long long)sizes[i] * 4, r->n, 1e6 * s, 4e-9 * (double)sizes[i] / s);
        k->free(&queue, x);
    }
}

/* Whether each rank may have its device. */
static bool is_seated(struct meeting *m, int n, int number)
{
    k->collectives->device_id(&queue, m->devices[number]);
    m->n_ready++;
    while (m->n_ready < n)
        usleep(1000);
    for (int a = 0; a < n; a++)
        for (int b = 0; b < a; b++)
            if (strcmp(m->devices[a], m->devices[b]) == 0 && !k->collectives->may_share())
                return false;
    return true;
}

static int run_rank(struct meeting *m, int n, int number)
{
    struct rank r = {.n = n, .number = number};
    struct s2s_error err = S2S_ERROR_INIT;
    int version;
    alarm(LIMIT_S);
    if (s2s_device_kernels(&k, "cuda", &err) < 0) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    if (k->open(&queue, number) != 0) {
        fprintf(stderr, "%s\n", k->status_text(queue.status));
        return 1;
    }
    must(k->collectives->load(&version), "load");
    if (number == 0)
        must(k->collectives->make_id(m->id), "id");
    if (!is_seated(m, n, number))
        return SKIPPED;
    must(k->collectives->open(&r.link, &queue, m->id, n, number), "open");
    r.done = k->event_new(&queue);
    for (int beside = 0; beside < 2; beside++)
        every_kind(&r, beside == 1);
    k->sync(&queue);
    bool remote;
    expect(k->collectives->passed(r.done), "all is done after a wait");
    must(k->collectives->failure(r.link, &remote), "failure");
    if (on_gpu()) {
        if (number == 0)
            printf("%s %d, %d ranks\n", k->collectives->name, version, n);
        /* an emulated GPU takes half a second for a sum, which says nothing */
        measure(&r, strncmp(m->devices[number], "emulated", 8) == 0 ? 1 : 20);
    }
    k->collectives->close(r.link);
    k->event_free(&queue, r.done);
    k->close(&queue);
    return bad;
}

/* Processes that have opened nothing before. */
static void launch(int n)
{
    struct meeting *m =
        mmap(NULL, sizeof *m, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(m != MAP_FAILED);
    pid_t pids[4];
    bool skipped = false;
    int failed = 0;
    fflush(NULL);
    for (int r = 0; r < n; r++) {
        pids[r] = fork();
        assert_true(pids[r] >= 0);
        if (pids[r] == 0) {
            const int rc = run_rank(m, n, r);
            fflush(NULL);
            _exit(rc);
        }
    }
    for (int r = 0; r < n; r++) {
        int status = 0;
        assert_int_equal(waitpid(pids[r], &status, 0), pids[r]);
        skipped |= WIFEXITED(status) && WEXITSTATUS(status) == SKIPPED;
        failed +=
            !WIFEXITED(status) || (WEXITSTATUS(status) != 0 && WEXITSTATUS(status) != SKIPPED);
    }
    munmap(m, sizeof *m);
    assert_int_equal(failed, 0);
    if (skipped)
        skip();
}

static void one_rank_has_what_it_gives(void **state)
{
    (void)state;
    launch(1);
}

static void two_ranks_have_what_both_give(void **state)
{
    (void)state;
    launch(2);
}

static void three_ranks_too(void **state)
{
    (void)state;
    if (on_gpu())
        skip();
    launch(3);
}

int main(void)
{
    if (!on_gpu()) {
        setenv("S2S_CUDA", "libs2s-emu.so", 1);
        setenv("S2S_NCCL", "libnccl-host.so", 1);
        setenv("S2S_EMU_LATE_MS", "2", 0);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_rank_has_what_it_gives),
        cmocka_unit_test(two_ranks_have_what_both_give),
        cmocka_unit_test(three_ranks_too),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
