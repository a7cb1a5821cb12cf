/*
 * A library of NCCL's names for ranks on emulated GPUs: processes of one host, which share memory.
 * kernels/cuda/nccl.cu opens it as it opens NCCL (S2S_NCCL), and runs as it is.
 *
 * It is stricter than NCCL. Ranks of a communicator that are in different operations, sizes, types
 * or roots are told so by name, where NCCL would hang or add up what is not alike; a message is
 * sent when it is received; calls say now and then that they are not done yet. Sums are in the
 * order of the ranks, in double, and rounded once.
 *
 * S2S_NCCL_FAULT="WHAT RANK N": in its N-th operation (of all communicators, from 1) this rank of
 * the launch
 *   fails   gets a failure
 *   sleeps  never comes
 *   errs    says one element more than it is
 * S2S_NCCL_VERSION is the version that it says it is.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "kernels/cuda/emu/stream.h"
#include "kernels/cuda/nccl_api.h"
#include "lib/base/half.h"

enum {
    MAX_RANKS = 16,
    WINDOW = 256 << 10,
    MESSAGE = 64 << 10,
    MAX_MESSAGES = 256,
    VERSION = 23007
};

/* What a rank says that it is in. */
struct call {
    char what[16];
    uint64_t n;
    int type, op, root;
};

/* The way of messages from one rank to another: one piece at a time. */
struct box {
    _Atomic uint32_t full;
    uint64_t total_bytes, len_bytes;
};

struct shared {
    _Atomic int n_joined;
    _Atomic uint32_t aborted, n_arrived, epoch;
    struct call calls[MAX_RANKS];
    struct box boxes[MAX_RANKS][MAX_RANKS]; /* from, to */
};

struct ncclComm {
    struct shared *shared;
    char *windows, *messages; /* [n_ranks][WINDOW], [n_ranks][n_ranks][MESSAGE] */
    size_t bytes;
    char name[64];
    int n_ranks, rank;
    _Atomic int error, n_busy; /* n_busy: times that it says that it is at it */
    char text[400];
    /* operations run in the order of their calls, whatever streams they are in */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t n_issued, n_done;
};

struct message {
    bool send;
    int peer;
    char *buf;
    size_t len_bytes, at;
};

struct operation {
    struct ncclComm *comm;
    struct call call;
    const char *send;
    char *recv;
    uint64_t number;
    struct emu_stream *stream;
    int n_messages; /* above 0: a group of these */
    struct message messages[];
};

static _Thread_local struct operation
    *group[8]; /* of one communicator each, until the group ends */
static _Thread_local int n_groups, depth;
static char last_error[400];

__attribute__((format(printf, 3, 4))) static int fail(struct ncclComm *c, int result,
                                                      const char *fmt, ...)
{
    char text[400];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    memcpy(last_error, text, sizeof text);
    if (c && c->error == NCCL_SUCCESS) {
        memcpy(c->text, text, sizeof text);
        c->error = result;
    }
    return result;
}

/* ---- meeting ---- */

static void wait_on(_Atomic uint32_t *word, uint32_t value)
{
    const struct timespec limit = {.tv_nsec = 20000000};
    syscall(SYS_futex, word, FUTEX_WAIT, value, &limit, NULL, 0);
}

static void wake(_Atomic uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static bool is_over(struct ncclComm *c)
{
    if (!c->shared->aborted)
        return false;
    fail(c, NCCL_REMOTE_ERROR, "another rank gave up");
    return true;
}

/* All ranks of the communicator. false: somebody gave up. */
static bool meet(struct ncclComm *c)
{
    struct shared *s = c->shared;
    const uint32_t epoch = s->epoch;
    if (atomic_fetch_add(&s->n_arrived, 1) + 1 == (uint32_t)c->n_ranks) {
        s->n_arrived = 0;
        atomic_fetch_add(&s->epoch, 1);
        wake(&s->epoch);
    }
    while (s->epoch == epoch) {
        if (is_over(c))
            return false;
        wait_on(&s->epoch, epoch);
    }
    return true;
}

/* ---- elements ---- */

static size_t width(int type)
{
    switch (type) {
    case NCCL_UINT8:
        return 1;
    case NCCL_FLOAT16:
    case NCCL_BFLOAT16:
        return 2;
    case NCCL_INT32:
    case NCCL_FLOAT32:
        return 4;
    default:
        return 8;
    }
}

static const char *name_of(int type)
{
    static const char *const names[] = {"int8",   "uint8",   "int32",   "uint32",  "int64",
                                        "uint64", "float16", "float32", "float64", "bfloat16"};
    return type >= 0 && type <= NCCL_BFLOAT16 ? names[type] : "?";
}

static double get(const char *from, int type, size_t i)
{
    const void *p = from + i * width(type);
    switch (type) {
    case NCCL_FLOAT32:
        return *(const float *)p;
    case NCCL_FLOAT64:
        return *(const double *)p;
    case NCCL_BFLOAT16:
        return s2s_f32_of_bits(s2s_bits_bf16_to_f32(*(const uint16_t *)p));
    case NCCL_FLOAT16:
        return s2s_f32_of_bits(s2s_bits_f16_to_f32(*(const uint16_t *)p));
    case NCCL_INT32:
        return *(const int32_t *)p;
    case NCCL_INT64:
        return (double)*(const int64_t *)p;
    default:
        return *(const uint8_t *)p;
    }
}

static void put(char *to, int type, size_t i, double x)
{
    void *p = to + i * width(type);
    switch (type) {
    case NCCL_FLOAT32:
        *(float *)p = (float)x;
        break;
    case NCCL_FLOAT64:
        *(double *)p = x;
        break;
    case NCCL_BFLOAT16:
        *(uint16_t *)p = s2s_bits_f32_to_bf16(s2s_bits_of_f32((float)x));
        break;
    case NCCL_FLOAT16:
        *(uint16_t *)p = s2s_bits_f32_to_f16(s2s_bits_of_f32((float)x));
        break;
    case NCCL_INT32:
        *(int32_t *)p = (int32_t)x;
        break;
    case NCCL_INT64:
        *(int64_t *)p = (int64_t)x;
        break;
    default:
        *(uint8_t *)p = (uint8_t)x;
    }
}

/* ---- collectives ---- */

/* The lowest rank says how they differ. */
static bool agree(struct ncclComm *c)
{
    const struct call *a = &c->shared->calls[0];
    for (int r = 1; r < c->n_ranks; r++) {
        const struct call *b = &c->shared->calls[r];
        if (memcmp(a, b, sizeof *a) == 0)
            continue;
        if (c->rank == 0)
            fail(c, NCCL_INVALID_USAGE,
                 "rank 0 is in %s of %llu %s (operation %d, root %d), and rank %d in %s of %llu %s "
                 "(operation %d, root %d)",
                 a->what, (unsigned long long)a->n, name_of(a->type), a->op, a->root, r, b->what,
                 (unsigned long long)b->n, name_of(b->type), b->op, b->root);
        else
            fail(c, NCCL_REMOTE_ERROR, "ranks are in different operations");
        return false;
    }
    return true;
}

/* What this rank makes of bytes [at, at + n) of everybody's `send`. */
static void take(const struct operation *o, size_t at, size_t n)
{
    const struct ncclComm *c = o->comm;
    const size_t w = width(o->call.type), part = o->call.n * w;
    if (strcmp(o->call.what, "Broadcast") == 0) {
        memcpy(o->recv + at, c->windows + (size_t)o->call.root * WINDOW, n);
        return;
    }
    if (strcmp(o->call.what, "AllGather") == 0) {
        for (int r = 0; r < c->n_ranks; r++)
            memcpy(o->recv + (size_t)r * part + at, c->windows + (size_t)r * WINDOW, n);
        return;
    }
    const bool scatter = strcmp(o->call.what, "ReduceScatter") == 0;
    const size_t begin = scatter ? (size_t)c->rank * part : 0, end = begin + part;
    for (size_t i = 0; i < n / w; i++) {
        if (at + i * w < begin || at + i * w >= end)
            continue;
        double x = get(c->windows, o->call.type, i);
        for (int r = 1; r < c->n_ranks; r++) {
            const double y = get(c->windows + (size_t)r * WINDOW, o->call.type, i);
            x = o->call.op == NCCL_SUM ? x + y : y > x || y != y ? y : x;
        }
        put(o->recv, o->call.type, (at + i * w - begin) / w, x);
    }
}

static void run_collective(struct operation *o)
{
    struct ncclComm *c = o->comm;
    const size_t bytes = o->call.n * width(o->call.type) *
                         (strcmp(o->call.what, "ReduceScatter") == 0 ? (size_t)c->n_ranks : 1);
    const bool sends = strcmp(o->call.what, "Broadcast") != 0 || c->rank == o->call.root;
    c->shared->calls[c->rank] = o->call;
    if (!meet(c) || !agree(c) || !meet(c))
        return;
    for (size_t at = 0; at < bytes; at += WINDOW) {
        const size_t n = bytes - at < WINDOW ? bytes - at : WINDOW;
        if (sends)
            memcpy(c->windows + (size_t)c->rank * WINDOW, o->send + at, n);
        if (!meet(c))
            return;
        take(o, at, n);
        if (!meet(c))
            return;
    }
}

/* ---- messages ---- */

/* One piece, if the other side is ready for it. */
static bool move(struct ncclComm *c, struct message *m)
{
    const int from = m->send ? c->rank : m->peer, to = m->send ? m->peer : c->rank;
    struct box *box = &c->shared->boxes[from][to];
    char *piece = c->messages + (size_t)(from * c->n_ranks + to) * MESSAGE;
    if (box->full != !m->send)
        return false;
    if (m->send) {
        const size_t rest = m->len_bytes - m->at;
        box->total_bytes = m->len_bytes;
        box->len_bytes = rest < MESSAGE ? rest : MESSAGE;
        memcpy(piece, m->buf + m->at, box->len_bytes);
    } else if (box->total_bytes != m->len_bytes) {
        fail(c, NCCL_INVALID_USAGE, "rank %d receives %zu bytes of rank %d, which sends %llu", to,
             m->len_bytes, from, (unsigned long long)box->total_bytes);
        return false;
    } else {
        memcpy(m->buf + m->at, piece, box->len_bytes);
    }
    m->at += box->len_bytes;
    box->full = m->send;
    return true;
}

/* The first message of a pair, one way, that is not through. */
static bool is_first(const struct operation *o, int i)
{
    const struct message *m = &o->messages[i];
    for (int k = 0; k < i; k++)
        if (o->messages[k].peer == m->peer && o->messages[k].send == m->send &&
            o->messages[k].at < o->messages[k].len_bytes)
            return false;
    return m->at < m->len_bytes;
}

/* Whether the receiver has all that was sent. */
static bool is_taken(const struct operation *o)
{
    for (int i = 0; i < o->n_messages; i++)
        if (o->messages[i].send && o->comm->shared->boxes[o->comm->rank][o->messages[i].peer].full)
            return false;
    return true;
}

static void run_messages(struct operation *o)
{
    struct ncclComm *c = o->comm;
    for (int idle = 0;;) {
        bool moved = false, left = false;
        for (int i = 0; i < o->n_messages && c->error == NCCL_SUCCESS; i++) {
            moved |= is_first(o, i) && move(c, &o->messages[i]);
            left |= o->messages[i].at < o->messages[i].len_bytes;
        }
        if (c->error != NCCL_SUCCESS || is_over(c) || (!left && is_taken(o)))
            return;
        idle = moved ? 0 : idle + 1;
        if (idle > 20)
            nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
    }
}

/* ---- operations in their streams ---- */

static bool is_told(const char *what, int number)
{
    const char *fault = getenv("S2S_NCCL_FAULT"), *me = getenv("OMPI_COMM_WORLD_RANK");
    me = me ? me : getenv("PMI_RANK"); /* MPICH */
    char kind[16];
    int rank, n;
    return fault && me && sscanf(fault, "%15s %d %d", kind, &rank, &n) == 3 &&
           strcmp(kind, what) == 0 && rank == strtol(me, NULL, 10) && n == number;
}

static void run(void *arg)
{
    static _Atomic int n_so_far;
    struct operation *o = arg;
    struct ncclComm *c = o->comm;
    pthread_mutex_lock(&c->lock);
    while (c->n_done != o->number)
        pthread_cond_wait(&c->changed, &c->lock);
    pthread_mutex_unlock(&c->lock);
    const int number = ++n_so_far;
    if (is_told("fails", number))
        fail(c, NCCL_SYSTEM_ERROR, "it was told to fail");
    while (is_told("sleeps", number))
        sleep(1);
    if (is_told("errs", number))
        o->call.n++;
    if (c->error == NCCL_SUCCESS)
        (o->n_messages > 0 ? run_messages : run_collective)(o);
    while (c->error != NCCL_SUCCESS && o->stream->beside) /* what failed is never done */
        sleep(1);
    pthread_mutex_lock(&c->lock);
    c->n_done++;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
    free(o);
}

static int issue(struct operation *o, void *stream)
{
    struct ncclComm *c = o->comm;
    struct emu_stream *s = stream;
    o->number = c->n_issued++;
    o->stream = s;
    s->issue(s, run, o);
    if (c->error != NCCL_SUCCESS)
        return c->error;
    c->n_busy = (int)(c->n_issued % 3);
    return c->n_busy > 0 ? NCCL_IN_PROGRESS : NCCL_SUCCESS;
}

static int collective(const char *what, const void *send, void *recv, size_t n, int type, int op,
                      int root, nccl_comm c, void *stream)
{
    if (depth > 0)
        return fail(c, NCCL_INVALID_USAGE, "%s in a group, which has messages alone here", what);
    struct operation *o = calloc(1, sizeof *o);
    o->comm = c;
    o->send = send;
    o->recv = recv;
    o->call = (struct call){.n = n, .type = type, .op = op, .root = root};
    snprintf(o->call.what, sizeof o->call.what, "%s", what);
    return issue(o, stream);
}

/* ---- the names ---- */

#define EXPORT __attribute__((visibility("default")))
#define X(result, name, arguments) EXPORT result name arguments;
NCCL_FUNCTIONS(X)
#undef X

int ncclAllReduce(const void *send, void *recv, size_t n, int type, int op, nccl_comm c,
                  void *stream)
{
    return collective("AllReduce", send, recv, n, type, op, 0, c, stream);
}

int ncclReduceScatter(const void *send, void *recv, size_t n, int type, int op, nccl_comm c,
                      void *stream)
{
    return collective("ReduceScatter", send, recv, n, type, op, 0, c, stream);
}

int ncclAllGather(const void *send, void *recv, size_t n, int type, nccl_comm c, void *stream)
{
    return collective("AllGather", send, recv, n, type, 0, 0, c, stream);
}

int ncclBroadcast(const void *send, void *recv, size_t n, int type, int root, nccl_comm c,
                  void *stream)
{
    return collective("Broadcast", send, recv, n, type, 0, root, c, stream);
}

int ncclGroupStart(void)
{
    depth++;
    return NCCL_SUCCESS;
}

int ncclGroupEnd(void)
{
    int result = NCCL_SUCCESS;
    if (--depth > 0)
        return NCCL_SUCCESS;
    for (int i = 0; i < n_groups; i++) {
        const int rc = issue(group[i], group[i]->stream);
        result = rc == NCCL_SUCCESS ? result : rc;
    }
    n_groups = 0;
    return result;
}

static int message(bool send, void *buf, size_t n, int type, int peer, nccl_comm c, void *stream)
{
    int i = 0;
    if (depth == 0 || peer == c->rank || peer < 0 || peer >= c->n_ranks)
        return fail(c, NCCL_INVALID_USAGE, "a message for rank %d of %d, %s a group", peer,
                    c->n_ranks, depth > 0 ? "in" : "outside of");
    while (i < n_groups && group[i]->comm != c)
        i++;
    if (i == n_groups) {
        group[n_groups++] = calloc(1, sizeof **group + MAX_MESSAGES * sizeof(struct message));
        group[i]->comm = c;
        group[i]->stream = stream;
    }
    if (group[i]->n_messages == MAX_MESSAGES)
        return fail(c, NCCL_INVALID_USAGE, "more than %d messages in a group", MAX_MESSAGES);
    group[i]->messages[group[i]->n_messages++] =
        (struct message){send, peer, buf, n * width(type), 0};
    return NCCL_SUCCESS;
}

int ncclSend(const void *buf, size_t n, int type, int peer, nccl_comm c, void *stream)
{
    return message(true, (void *)buf, n, type, peer, c, stream);
}

int ncclRecv(void *buf, size_t n, int type, int peer, nccl_comm c, void *stream)
{
    return message(false, buf, n, type, peer, c, stream);
}

/* ---- life ---- */

int ncclGetVersion(int *version)
{
    const char *text = getenv("S2S_NCCL_VERSION");
    *version = text ? (int)strtol(text, NULL, 10) : VERSION;
    return NCCL_SUCCESS;
}

int ncclGetUniqueId(struct nccl_id *id)
{
    uint64_t random[2];
    memset(id, 0, sizeof *id);
    if (getrandom(random, sizeof random, 0) < 0)
        return fail(NULL, NCCL_SYSTEM_ERROR, "getrandom: %s", strerror(errno));
    snprintf(id->internal, sizeof id->internal, "/s2s-nccl-%016llx%016llx",
             (unsigned long long)random[0], (unsigned long long)random[1]);
    return NCCL_SUCCESS;
}

int ncclCommInitRankConfig(nccl_comm *out, int n_ranks, struct nccl_id id, int rank,
                           struct nccl_config *config)
{
    if (n_ranks > MAX_RANKS || rank < 0 || rank >= n_ranks || config->magic != NCCL_MAGIC ||
        config->blocking != 0)
        return fail(NULL, NCCL_INVALID_ARGUMENT, "rank %d of %d", rank, n_ranks);
    struct ncclComm *c = calloc(1, sizeof *c);
    const size_t head = (sizeof *c->shared + 4095) / 4096 * 4096, n = (size_t)n_ranks;
    c->n_ranks = n_ranks;
    c->rank = rank;
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->changed, NULL);
    snprintf(c->name, sizeof c->name, "%.60s", id.internal);
    c->bytes = head + n * WINDOW + n * n * MESSAGE;
    const int fd = shm_open(c->name, O_CREAT | O_RDWR, 0600);
    if (fd < 0 || ftruncate(fd, (off_t)c->bytes) < 0)
        return fail(NULL, NCCL_SYSTEM_ERROR, "%s: %s", c->name, strerror(errno));
    void *base = mmap(NULL, c->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (base == MAP_FAILED)
        return fail(NULL, NCCL_SYSTEM_ERROR, "%s: %s", c->name, strerror(errno));
    c->shared = base;
    c->windows = (char *)base + head;
    c->messages = c->windows + n * WINDOW;
    /* all that come have it open: it needs no name */
    if (atomic_fetch_add(&c->shared->n_joined, 1) + 1 == n_ranks)
        shm_unlink(c->name);
    *out = c;
    return NCCL_IN_PROGRESS;
}

int ncclCommGetAsyncError(nccl_comm c, int *result)
{
    *result = c->error;
    if (*result == NCCL_SUCCESS && is_over(c))
        *result = NCCL_REMOTE_ERROR;
    else if (*result == NCCL_SUCCESS && c->shared->n_joined < c->n_ranks)
        *result = NCCL_IN_PROGRESS;
    else if (*result == NCCL_SUCCESS && c->n_busy > 0) {
        c->n_busy--;
        *result = NCCL_IN_PROGRESS;
    }
    return NCCL_SUCCESS;
}

int ncclCommFinalize(nccl_comm c)
{
    return NCCL_SUCCESS;
}

int ncclCommDestroy(nccl_comm c)
{
    munmap(c->shared, c->bytes);
    free(c);
    return NCCL_SUCCESS;
}

int ncclCommAbort(nccl_comm c)
{
    c->shared->aborted = 1;
    shm_unlink(c->name);
    return NCCL_SUCCESS;
}

const char *ncclGetErrorString(int result)
{
    static const char *const texts[] = {"no error",       "CUDA failed",      "system error",
                                        "internal error", "invalid argument", "invalid usage",
                                        "remote error",   "in progress"};
    return result >= 0 && result <= NCCL_IN_PROGRESS ? texts[result] : "unknown";
}

const char *ncclGetLastError(nccl_comm c)
{
    return c ? c->text : last_error;
}
