/*
 * The part of NCCL's C interface that nccl.cu calls: types, numbers and signatures as in the nccl.h
 * of 2.18 and later (https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/api.html), which
 * keep them. Declared here so that a build needs no header of the library; the library itself is
 * opened at run time. tests/emu/nccl_host.c is another library of these names. C and C++.
 */
#ifndef S2S_KERNELS_CUDA_NCCL_API_H
#define S2S_KERNELS_CUDA_NCCL_API_H

#include <limits.h>
#include <stddef.h>

typedef struct ncclComm *nccl_comm;

enum {
    NCCL_SUCCESS = 0,
    NCCL_SYSTEM_ERROR = 2,
    NCCL_INTERNAL_ERROR = 3,
    NCCL_INVALID_ARGUMENT = 4,
    NCCL_INVALID_USAGE = 5,
    NCCL_REMOTE_ERROR = 6,
    NCCL_IN_PROGRESS = 7
};
enum {
    NCCL_UINT8 = 1,
    NCCL_INT32 = 2,
    NCCL_INT64 = 4,
    NCCL_FLOAT16 = 6,
    NCCL_FLOAT32 = 7,
    NCCL_FLOAT64 = 8,
    NCCL_BFLOAT16 = 9
};
enum { NCCL_SUM = 0, NCCL_MAX = 2 };

struct nccl_id {
    char internal[128];
};

/* Of 2.18; `size` says to newer ones where it ends. */
struct nccl_config {
    size_t size;
    unsigned magic, version;
    int blocking, cga_cluster_size, min_ctas, max_ctas;
    const char *net_name;
    int split_share;
};

enum { NCCL_CONFIG_VERSION = 21800, NCCL_UNDEFINED = INT_MIN };
#define NCCL_MAGIC 0xcafebeefu

/* result, name in the library, what it takes */
#define NCCL_FUNCTIONS(X) \
    X(int, ncclGetVersion, (int *version)) \
    X(int, ncclGetUniqueId, (struct nccl_id * id)) \
    X(int, ncclCommInitRankConfig, \
      (nccl_comm * comm, int n_ranks, struct nccl_id id, int rank, struct nccl_config *config)) \
    X(int, ncclCommGetAsyncError, (nccl_comm comm, int *result)) \
    X(int, ncclCommFinalize, (nccl_comm comm)) \
    X(int, ncclCommDestroy, (nccl_comm comm)) \
    X(int, ncclCommAbort, (nccl_comm comm)) \
    X(const char *, ncclGetErrorString, (int result)) \
    X(const char *, ncclGetLastError, (nccl_comm comm)) \
    X(int, ncclAllReduce, \
      (const void *send, void *recv, size_t n, int type, int op, nccl_comm comm, void *stream)) \
    X(int, ncclReduceScatter, \
      (const void *send, void *recv, size_t n, int type, int op, nccl_comm comm, void *stream)) \
    X(int, ncclAllGather, \
      (const void *send, void *recv, size_t n, int type, nccl_comm comm, void *stream)) \
    X(int, ncclBroadcast, \
      (const void *send, void *recv, size_t n, int type, int root, nccl_comm comm, void *stream)) \
    X(int, ncclSend, \
      (const void *buf, size_t n, int type, int peer, nccl_comm comm, void *stream)) \
    X(int, ncclRecv, (void *buf, size_t n, int type, int peer, nccl_comm comm, void *stream)) \
    X(int, ncclGroupStart, (void)) \
    X(int, ncclGroupEnd, (void))

#endif
