/* The kernels of one instruction level, as the CPU table calls them. */
#include "kernels/cpu/cpu.h"

const struct s2s_kernels cpu_entries = {
#define PLAIN(name)
#define WORKSPACE(name) .name##_workspace = cpu_##name##_workspace,
#define X(name, suffix, kind, mats) .name = cpu_##name, kind(name)
    S2S_KERNELS(X)
#undef X
#undef PLAIN
#undef WORKSPACE
};
