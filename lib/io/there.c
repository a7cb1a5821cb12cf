/* Asks whether a file exists. */
#include "lib/io/there.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

bool s2s_is_there(int at, const char *name)
{
    return faccessat(at, name, F_OK, 0) == 0 ||
           (errno != ENOENT && errno != ENOTDIR && errno != ELOOP && errno != ENAMETOOLONG);
}
