/* Installs a handler for all signals that ask a program to end. */
#include "lib/base/signals.h"

#include <signal.h>
#include <stddef.h>

/* batch systems send USR1, USR2 and XCPU when a job's time is over */
static const int fatal[] = {SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGALRM, SIGUSR1, SIGUSR2, SIGXCPU};

void s2s_catch_fatal_signals(void (*handler)(int signal_number))
{
    struct sigaction act = {.sa_handler = handler}, now;
    sigfillset(&act.sa_mask);
    for (size_t i = 0; i < sizeof fatal / sizeof *fatal; i++)
        if (sigaction(fatal[i], NULL, &now) == 0 && now.sa_handler == SIG_DFL)
            sigaction(fatal[i], &act, NULL);
}
