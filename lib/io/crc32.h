/* CRC-32 as zip, gzip and PNG use it (polynomial 0xEDB88320, reflected). Not crc32c. */
#ifndef S2S_IO_CRC32_H
#define S2S_IO_CRC32_H

#include <stddef.h>
#include <stdint.h>

/* Continues crc (0 at the start) over len bytes. Carry-less multiplication where the CPU has it:
 * faster than memory; otherwise eight table look-ups a step. Safe from any thread. */
uint32_t s2s_crc32(uint32_t crc, const void *bytes, size_t len);

/* The same by no faster way than this one, so that what other machines do can be tested on any. */
enum s2s_crc32_way { S2S_CRC32_TABLES, S2S_CRC32_CLMUL, S2S_CRC32_AVX512 };
uint32_t s2s_crc32_by(enum s2s_crc32_way fastest, uint32_t crc, const void *bytes, size_t len);

#endif
