/*
 * The instruction levels that this build has kernels for, and which of them a queue gets: the best
 * one of the machine, or the one that S2S_CPU_LEVEL names. The levels are LEVEL(symbol, name) in
 * CPU_LEVELS, the lowest first and each of them with all instructions of those before it; a build
 * without CPU_LEVELS has one, of the machine that compiled it.
 */
#include <stdlib.h>

#include "kernels/cpu/cpu.h"

#ifdef CPU_LEVELS
#define LEVEL(symbol, name) extern const struct s2s_kernels cpu_entries_##symbol;
CPU_LEVELS
#undef LEVEL
#define ENTRIES(symbol) cpu_entries_##symbol
#define MACHINE_HAS(name) (__builtin_cpu_supports(name) != 0)
#else
#define CPU_LEVELS LEVEL(native, "native")
#define ENTRIES(symbol) cpu_entries
#define MACHINE_HAS(name) true
#endif

static const struct {
    const char *name;
    const struct s2s_kernels *entries;
} levels[] = {
#define LEVEL(symbol, name) {name, &ENTRIES(symbol)},
    CPU_LEVELS
#undef LEVEL
};
enum { N_LEVELS = sizeof levels / sizeof *levels };

/* A status is one of these; above them, TOO_HIGH + the number of the machine's best level. */
enum { UNKNOWN = 1, NONE, TOO_HIGH };

/* The number of the machine's best level, -1 for none. */
static int best_level(void)
{
#define LEVEL(symbol, name) MACHINE_HAS(name),
    const bool has[] = {CPU_LEVELS};
#undef LEVEL
    int best = -1;
    while (best + 1 < N_LEVELS && has[best + 1])
        best++;
    return best;
}

const struct s2s_kernels *cpu_lowest(void)
{
    return levels[0].entries;
}

int cpu_choose(const struct s2s_kernels **entries)
{
    const char *wanted = getenv("S2S_CPU_LEVEL");
    const int best = best_level();
    int level = best;
    if (best < 0)
        return NONE;
    if (wanted && *wanted) {
        level = 0;
        while (level < N_LEVELS && strcmp(levels[level].name, wanted) != 0)
            level++;
        if (level == N_LEVELS)
            return UNKNOWN;
        if (level > best)
            return TOO_HIGH + best;
    }
    *entries = levels[level].entries;
    return 0;
}

#define LEVEL(symbol, name) " " name
static const char unknown[] =
    "S2S_CPU_LEVEL names no instruction level of this build, which has" CPU_LEVELS;
static const char none[] =
    "the machine has fewer instructions than every level of this build, which has" CPU_LEVELS;
#undef LEVEL

#define LEVEL(symbol, name) \
    "S2S_CPU_LEVEL names more instructions than the machine has, whose best level is " name,
static const char *const too_high[] = {CPU_LEVELS};
#undef LEVEL

const char *cpu_level_text(int status)
{
    if (status == UNKNOWN)
        return unknown;
    if (status == NONE)
        return none;
    if (status >= TOO_HIGH && status < TOO_HIGH + N_LEVELS)
        return too_high[status - TOO_HIGH];
    return NULL;
}
