/* Signals that ask a program to end. */
#ifndef S2S_BASE_SIGNALS_H
#define S2S_BASE_SIGNALS_H

/* Installs handler for each of them, unless it is ignored or has a handler already. SIGQUIT is left
 * alone: it is meant to leave everything as it is, for debugging with the core. */
void s2s_catch_fatal_signals(void (*handler)(int signal_number));

#endif
