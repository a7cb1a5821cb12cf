/* The ending of a noun after a number in a message: "1 tensor", "2 tensors". */
#ifndef S2S_BASE_PLURAL_H
#define S2S_BASE_PLURAL_H

#include <stddef.h>

static inline const char *s2s_plural(size_t n)
{
    return n == 1 ? "" : "s";
}

#endif
