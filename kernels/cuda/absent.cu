/*
 * Every entry of the list, as one that is not there: what has a definition in another file takes
 * its place when the library is linked. A queue keeps the first one that is called.
 */
#include "kernels/cuda/cuda.h"

#define PLAIN(name, suffix)
#define WORKSPACE(name, suffix) \
    __attribute__((weak)) size_t cuda_##name##_workspace(const struct s2s_queue *queue, \
                                                         const struct s2s_k_##suffix *args) \
    { \
        return 0; \
    }
#define X(name, suffix, kind, mats) \
    __attribute__((weak)) void cuda_##name(struct s2s_queue *queue, \
                                           const struct s2s_k_##suffix *args) \
    { \
        rt_keep(queue, CUDA_ABSENT + ENTRY_##name); \
    } \
    kind(name, suffix)
S2S_KERNELS(X)
