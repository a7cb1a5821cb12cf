/* Existence of a file. */
#ifndef S2S_IO_THERE_H
#define S2S_IO_THERE_H

#include <stdbool.h>

/* Does the file or folder at/name exist (at: as in openat)? false for a dangling link. true if that
 * cannot be determined (a failing disk, a folder without permission): opening it will then fail
 * with the reason, while false would leave it out silently. */
bool s2s_is_there(int at, const char *name);

#endif
