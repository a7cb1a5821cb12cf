/* Signals that ask a program to end. */
#ifndef S2S_BASE_SIGNALS_H
#define S2S_BASE_SIGNALS_H

/* From now on handler is called at each of them that would end the program: what is ignored, or has
 * a handler already, stays so. SIGQUIT is left alone: whoever sends it wants all as it is, beside
 * the core. */
void s2s_catch_fatal_signals(void (*handler)(int signal_number));

#endif
