/* Whether a name is there. */
#ifndef S2S_IO_THERE_H
#define S2S_IO_THERE_H

#include <stdbool.h>

/* Does the file or folder at/name exist (at as openat takes it)? A link that leads nowhere does
 * not. Where the system cannot tell (a failing disk, a folder that must not be looked into) the
 * answer is yes: opening it then fails with the reason, while a no leaves it out in silence. */
bool s2s_is_there(int at, const char *name);

#endif
