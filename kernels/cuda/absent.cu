/*
 * Every entry of the list, as one that is not there: what has a definition in another file takes
 * its place when the library is linked. A queue keeps the first one that is called. Their code has
 * a section of its own, by which they are told from those that are there.
 */
#include <string.h>

#include "kernels/cuda/cuda.h"

#define PLAIN(name, suffix)
#define WORKSPACE(name, suffix) \
    __attribute__((weak)) size_t cuda_##name##_workspace(const struct s2s_queue *queue, \
                                                         const struct s2s_k_##suffix *args) \
    { \
        return 0; \
    }
#define X(name, suffix, kind, mats) \
    __attribute__((weak, section("s2s_absent"))) void cuda_##name( \
        struct s2s_queue *queue, const struct s2s_k_##suffix *args) \
    { \
        rt_keep(queue, CUDA_ABSENT + ENTRY_##name); \
    } \
    kind(name, suffix)
S2S_KERNELS(X)

extern "C" const char __start_s2s_absent[], __stop_s2s_absent[]; /* the linker's */

/* For tests: whether the entry of this name is one of these. */
extern "C" __attribute__((visibility("default"))) bool s2s_cuda_is_absent(const char *name)
{
#undef X
#define X(entry, suffix, kind, mats) {#entry, (const char *)&cuda_##entry},
    static const struct {
        const char *name, *code;
    } entries[] = {S2S_KERNELS(X)};
    for (const auto &entry : entries)
        if (strcmp(entry.name, name) == 0)
            return entry.code >= __start_s2s_absent && entry.code < __stop_s2s_absent;
    return false;
}
