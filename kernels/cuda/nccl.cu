/*
 * Collectives between GPUs over NCCL, which is opened when several ranks ask for it. Communicators
 * do not block, so that a call that others never come to can be given up: each call is polled until
 * it was taken. What is started beside the computation has a stream of each communicator's own.
 *
 * Operations of several communicators on one GPU hang where ranks start them in another order. The
 * order of the calls is the same on all ranks; that it is kept to is NCCL's from 2.26 on, when it
 * is asked for. With an older one all operations go through one stream.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/collectives.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/library.h"
#include "kernels/cuda/nccl_api.h"

/* statuses of this file: FAILED + a result of the library */
enum { MISSING = 6000, TOO_OLD, TYPE, LONELY, NO_MEMORY, FAILED = 6100 };
enum { OLDEST = 21800, ORDERED = 22600, SHARING = 23000 }; /* versions */

struct s2s_link {
    nccl_comm comm; /* NULL: one rank */
    int n_ranks, rank;
    struct rt_stream *beside;
    struct rt_event *before;
};

static struct {
#define X(result, name, arguments) result(*name) arguments;
    NCCL_FUNCTIONS(X)
#undef X
    int version;
    struct rt_stream *one; /* for everything, where the order of calls is not kept to */
} nccl;

static char failure_text[600]; /* of the last failure */

/* ---- the library ---- */

static bool is_set(const char *name)
{
    const char *text = getenv(name);
    return text && strcmp(text, "1") == 0;
}

/* S2S_NCCL names another file. */
static void *find(void)
{
    static const char *const names[] = {"libnccl.so.2", NULL};
    const char *own = getenv("S2S_NCCL");
    if (!own || !*own)
        return library_open(names);
    void *lib = dlopen(own, RTLD_NOW | RTLD_LOCAL);
    if (!lib)
        snprintf(failure_text, sizeof failure_text, "S2S_NCCL: %s", dlerror());
    return lib;
}

static int load(int *version)
{
    int rc = 0;
    *version = nccl.version;
    if (nccl.version)
        return 0;
    setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 0);
    void *lib = find();
    if (!lib)
        return MISSING;
#define X(result, name, arguments) \
    *(void **)&nccl.name = dlsym(lib, #name); \
    if (!nccl.name) \
        return MISSING;
    NCCL_FUNCTIONS(X)
#undef X
    if (nccl.ncclGetVersion(version) != NCCL_SUCCESS || *version < OLDEST)
        return TOO_OLD;
    if (*version < ORDERED || !is_set("NCCL_LAUNCH_ORDER_IMPLICIT"))
        rc = rt_stream_new_beside(&nccl.one);
    if (rc == 0)
        nccl.version = *version;
    return rc;
}

/* What the library says of a result, kept for status_text. */
static int status_of(int result)
{
    if (result == NCCL_SUCCESS)
        return 0;
    const char *more = nccl.ncclGetLastError(NULL);
    snprintf(failure_text, sizeof failure_text, "NCCL: %s%s%s", nccl.ncclGetErrorString(result),
             more && *more ? ": " : "", more ? more : "");
    return FAILED + result;
}

static const char *status_text(int status)
{
    switch (status) {
    case MISSING:
        return *failure_text ? failure_text : "libnccl.so.2 " LIBRARY_PLACES;
    case TOO_OLD:
        return "libnccl.so.2 is older than 2.18";
    case TYPE:
        return "an element type that NCCL has not";
    case LONELY:
        return "a message of a rank to itself has one end";
    case NO_MEMORY:
        return "out of memory";
    }
    return status >= FAILED ? failure_text : rt_status_text(status);
}

static void device_id(const struct s2s_queue *queue, char id[S2S_DEVICE_ID_BYTES])
{
    snprintf(id, S2S_DEVICE_ID_BYTES, "%s", cuda_queue_of(queue)->device.id);
}

static bool may_share(void)
{
    return nccl.version >= SHARING && is_set("NCCL_MULTI_RANK_GPU_ENABLE");
}

/* ---- calls ---- */

/* A communicator that does not block says that it is at it until a call was taken. */
static int settle(const struct s2s_link *link, int result)
{
    for (int tries = 0; result == NCCL_IN_PROGRESS; tries++) {
        const struct timespec nap = {0, tries < 100 ? 1000 : 100000};
        const int rc = nccl.ncclCommGetAsyncError(link->comm, &result);
        if (rc != NCCL_SUCCESS)
            return status_of(rc);
        if (result == NCCL_IN_PROGRESS)
            nanosleep(&nap, NULL);
    }
    return status_of(result);
}

static int type_of(enum s2s_dtype dtype)
{
    switch (dtype) {
    case S2S_F32:
        return NCCL_FLOAT32;
    case S2S_BF16:
        return NCCL_BFLOAT16;
    case S2S_F16:
        return NCCL_FLOAT16;
    case S2S_F64:
        return NCCL_FLOAT64;
    case S2S_I64:
        return NCCL_INT64;
    case S2S_I32:
        return NCCL_INT32;
    case S2S_U8:
        return NCCL_UINT8;
    default:
        return -1;
    }
}

static int copy(void *dst, const void *src, size_t bytes, struct rt_stream *stream)
{
    return dst == src ? 0 : rt_copy(stream, dst, src, bytes);
}

/* The i-th message of a rank to itself comes where it receives its i-th. */
static int keep_own(const struct s2s_link *link, const struct s2s_link_call *call,
                    struct rt_stream *stream)
{
    int from = 0, rc = 0;
    for (int to = 0; to < call->n_list && rc == 0; to++) {
        const struct s2s_link_message *m = &call->list[to];
        if (m->peer != link->rank || m->send)
            continue;
        while (from < call->n_list &&
               (call->list[from].peer != link->rank || !call->list[from].send))
            from++;
        if (from == call->n_list || call->list[from].len_bytes != m->len_bytes)
            return LONELY;
        rc = copy(m->buf, call->list[from++].buf, m->len_bytes, stream);
    }
    return rc;
}

static int exchange(const struct s2s_link *link, const struct s2s_link_call *call,
                    struct rt_stream *stream)
{
    int result = NCCL_SUCCESS, n = 0;
    const int rc = keep_own(link, call, stream);
    if (rc)
        return rc;
    for (int i = 0; i < call->n_list; i++)
        n += call->list[i].peer != link->rank && call->list[i].len_bytes > 0;
    if (n == 0)
        return 0;
    result = nccl.ncclGroupStart();
    for (int i = 0; i < call->n_list && result == NCCL_SUCCESS; i++) {
        const struct s2s_link_message *m = &call->list[i];
        if (m->peer == link->rank || m->len_bytes == 0)
            continue;
        result = m->send
                     ? nccl.ncclSend(m->buf, m->len_bytes, NCCL_UINT8, m->peer, link->comm, stream)
                     : nccl.ncclRecv(m->buf, m->len_bytes, NCCL_UINT8, m->peer, link->comm, stream);
        if (result == NCCL_IN_PROGRESS)
            result = NCCL_SUCCESS;
    }
    const int end = nccl.ncclGroupEnd();
    return settle(link, result == NCCL_SUCCESS ? end : result);
}

/* All parts are there already. */
static int run_alone(const struct s2s_link *link, const struct s2s_link_call *call,
                     struct rt_stream *stream)
{
    const size_t bytes = (size_t)call->n * s2s_dtype_size(call->dtype);
    if (call->kind == S2S_LINK_EXCHANGE)
        return keep_own(link, call, stream);
    if (call->kind == S2S_LINK_ALL_GATHER || call->kind == S2S_LINK_REDUCE_SCATTER)
        return copy(call->recv, call->send, bytes, stream);
    return 0;
}

static int run(const struct s2s_link *link, const struct s2s_link_call *call,
               struct rt_stream *stream)
{
    const size_t n = (size_t)call->n;
    const int type = type_of(call->dtype);
    int result = NCCL_SUCCESS;
    if (!link->comm)
        return run_alone(link, call, stream);
    if (call->kind == S2S_LINK_EXCHANGE)
        return exchange(link, call, stream);
    if (n == 0)
        return 0;
    if (type < 0)
        return TYPE;
    switch (call->kind) {
    case S2S_LINK_ALL_REDUCE:
        result = nccl.ncclAllReduce(call->recv, call->recv, n, type,
                                    call->max ? NCCL_MAX : NCCL_SUM, link->comm, stream);
        break;
    case S2S_LINK_ALL_GATHER:
        result = nccl.ncclAllGather(call->send, call->recv, n, type, link->comm, stream);
        break;
    case S2S_LINK_REDUCE_SCATTER:
        result =
            nccl.ncclReduceScatter(call->send, call->recv, n, type, NCCL_SUM, link->comm, stream);
        break;
    default:
        result =
            nccl.ncclBroadcast(call->recv, call->recv, n, type, call->root, link->comm, stream);
        break;
    }
    return settle(link, result);
}

static int issue(struct s2s_link *link, struct s2s_queue *queue, const struct s2s_link_call *call,
                 struct s2s_event *done, bool beside)
{
    struct rt_stream *own = rt_stream_of(queue), *stream = own;
    struct rt_event *end = (struct rt_event *)done;
    int rc = 0;
    if (nccl.one)
        stream = nccl.one;
    else if (beside)
        stream = link->beside;
    if (stream != own) {
        rc = rt_event_record(link->before, own);
        rc = rc ? rc : rt_event_wait(link->before, stream);
    }
    rc = rc ? rc : run(link, call, stream);
    rc = rc ? rc : rt_event_record(end, stream);
    if (rc == 0 && stream != own && !beside)
        rc = rt_event_wait(end, own);
    return rc;
}

/* ---- life ---- */

static int make_id(char id[S2S_LINK_ID_BYTES])
{
    struct nccl_id made;
    const int rc = status_of(nccl.ncclGetUniqueId(&made));
    if (rc == 0)
        memcpy(id, made.internal, S2S_LINK_ID_BYTES);
    return rc;
}

static void link_close(struct s2s_link *link)
{
    if (!link)
        return;
    if (link->beside)
        rt_stream_wait(link->beside);
    if (link->comm) {
        settle(link, nccl.ncclCommFinalize(link->comm));
        nccl.ncclCommDestroy(link->comm);
    }
    rt_event_free(link->before);
    rt_stream_free(link->beside);
    free(link);
}

static int connect(struct s2s_link *link, const char *id)
{
    struct nccl_config config = {sizeof config,  NCCL_MAGIC,     NCCL_CONFIG_VERSION, 0,
                                 NCCL_UNDEFINED, NCCL_UNDEFINED, NCCL_UNDEFINED,      NULL,
                                 NCCL_UNDEFINED};
    struct nccl_id name;
    memcpy(name.internal, id, sizeof name.internal);
    return settle(
        link, nccl.ncclCommInitRankConfig(&link->comm, link->n_ranks, name, link->rank, &config));
}

static int link_open(struct s2s_link **out, struct s2s_queue *queue, const char *id, int n_ranks,
                     int rank)
{
    *out = NULL;
    struct s2s_link *link = (struct s2s_link *)calloc(1, sizeof *link);
    if (!link)
        return NO_MEMORY;
    link->n_ranks = n_ranks;
    link->rank = rank;
    link->before = rt_event_new();
    int rc = link->before ? rt_stream_new_beside(&link->beside) : NO_MEMORY;
    if (rc == 0 && id)
        rc = connect(link, id);
    if (rc)
        return rc; /* what is half made may not be closed; the job ends */
    *out = link;
    return 0;
}

static bool passed(struct s2s_event *event)
{
    return rt_event_passed((struct rt_event *)event);
}

static int failure(struct s2s_link *link, bool *remote)
{
    int result = NCCL_SUCCESS;
    *remote = false;
    if (!link->comm || nccl.ncclCommGetAsyncError(link->comm, &result) != NCCL_SUCCESS ||
        result == NCCL_IN_PROGRESS)
        return 0;
    *remote = result == NCCL_REMOTE_ERROR;
    return status_of(result);
}

static void link_abort(struct s2s_link *link)
{
    if (link->comm)
        nccl.ncclCommAbort(link->comm);
}

static const struct s2s_collectives collectives = {"NCCL",    load,    status_text, device_id,
                                                   may_share, make_id, link_open,   link_close,
                                                   issue,     passed,  failure,     link_abort};

const struct s2s_collectives *cuda_collectives(void)
{
    return &collectives;
}
