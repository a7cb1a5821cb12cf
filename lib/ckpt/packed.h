/* Variable-length integers (LEB128): 7 bits per byte, lowest first, with the highest bit set in all
 * bytes but the last. Unpacking trusts its input, which was packed here. */
#ifndef CKPT_PACKED_H
#define CKPT_PACKED_H

#include <stdint.h>

#include "lib/base/base.h"

static inline void ckpt_pack(struct s2s_buf *out, uint64_t v)
{
    for (; v > 127; v >>= 7)
        s2s_buf_putc(out, (char)(v | 128));
    s2s_buf_putc(out, (char)v);
}

static inline uint64_t ckpt_unpack(const char **at)
{
    uint64_t v = 0, byte;
    int shift = 0;
    do {
        byte = (unsigned char)*(*at)++;
        v |= (byte & 127) << shift;
        shift += 7;
    } while (byte & 128);
    return v;
}

static inline void ckpt_pack_ints(struct s2s_buf *out, const int64_t *v, int n)
{
    for (int d = 0; d < n; d++)
        ckpt_pack(out, (uint64_t)v[d]);
}

static inline void ckpt_unpack_ints(const char **at, int64_t *v, int n)
{
    for (int d = 0; d < n; d++)
        v[d] = (int64_t)ckpt_unpack(at);
}

#endif
