/*
 * Output that is not whole yet: what is listed here is removed when the process ends before it is,
 * by exit, for want of memory (quick_exit) or, if it is a file, by SIGINT, SIGTERM and similar
 * signals that the program has no handlers of its own for.
 */
#ifndef S2S_IO_TEMPS_H
#define S2S_IO_TEMPS_H

#include <stdbool.h>

enum { S2S_MAX_TEMPS = 4096 };

/* Lists a file, or a folder with all that will be in it. Keeps path until s2s_temp_drop. Returns
 * its number; -1: there are S2S_MAX_TEMPS already. */
int s2s_temp_add(const char *path, bool is_folder);
/* It is whole, or its owner removes it. -1 is a no-op. */
void s2s_temp_drop(int number);
/* Removes all files. Async-signal-safe. */
void s2s_temps_remove_files(void);

#endif
