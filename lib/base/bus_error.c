/* Ends the program with the file's name when a mapped file becomes shorter. */
#include "lib/base/bus_error.h"

#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Everything here is async-signal-safe; memory is static. */
static const char *program_name;
static char line[PATH_MAX + 128];

/* Is the address in the range of this line, "55d0c0a00000-55d0c0a21000 r--p ..."? */
static int is_in_range(uintptr_t address)
{
    uintptr_t bounds[2] = {0, 0};
    const char *p = line;
    for (int i = 0; i < 2; i++, p++)
        for (; *p && *p != '-' && *p != ' '; p++)
            bounds[i] = bounds[i] * 16 + (uintptr_t)(*p <= '9' ? *p - '0' : *p - 'a' + 10);
    return bounds[0] <= address && address < bounds[1];
}

/* The file mapped at an address, from /proc/self/maps; NULL: not found. */
static const char *file_at(uintptr_t address)
{
    size_t len = 0;
    char c;
    const char *name = NULL;
    int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    while (fd >= 0 && !name && read(fd, &c, 1) == 1) {
        if (c != '\n') {
            line[len] = c;
            len += len + 1 < sizeof line;
            continue;
        }
        line[len] = 0;
        len = 0;
        if (is_in_range(address))
            name = strchr(line, '/');
    }
    if (fd >= 0)
        close(fd);
    return name;
}

static void put(const char *text)
{
    if (write(STDERR_FILENO, text, strlen(text)) < 0)
        return; /* there is nothing else to do */
}

static void on_bus_error(int sig, siginfo_t *info, void *context)
{
    static volatile sig_atomic_t is_known;
    if (is_known) /* another thread reports it */
        for (;;)
            pause();
    is_known = 1;
    const char *name = file_at((uintptr_t)info->si_addr);
    put(program_name);
    put(": ");
    put(name ? name : "a file that is read");
    put(": cannot be read on: it became shorter meanwhile, or its disk fails or is full\n");
    quick_exit(1);
}

void s2s_catch_bus_errors(const char *program)
{
    struct sigaction act = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO};
    sigfillset(&act.sa_mask);
    program_name = program;
    sigaction(SIGBUS, &act, NULL);
}
