/* Little-endian unsigned numbers at any address, as in most file formats. */
#ifndef S2S_BASE_LE_H
#define S2S_BASE_LE_H

#include <stdint.h>

static inline uint32_t s2s_le16(const unsigned char *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8;
}

static inline uint32_t s2s_le32(const unsigned char *p)
{
    return s2s_le16(p) | s2s_le16(p + 2) << 16;
}

static inline uint64_t s2s_le64(const unsigned char *p)
{
    return s2s_le32(p) | (uint64_t)s2s_le32(p + 4) << 32;
}

#endif
