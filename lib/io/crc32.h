/* CRC-32 of zip, gzip and PNG (polynomial 0xEDB88320, reflected). Not CRC-32C. */
#ifndef S2S_IO_CRC32_H
#define S2S_IO_CRC32_H

#include <stddef.h>
#include <stdint.h>

/* Continues crc (0 at the start) over len bytes, with carry-less multiplication if the CPU has it,
 * which is faster than memory, otherwise with tables, eight bytes at a time. Thread-safe. */
uint32_t s2s_crc32(uint32_t crc, const void *bytes, size_t len);

/* What bytes with this CRC-32 contribute to that of longer data, in which len bytes follow them.
 * The CRC-32 of data in parts is the XOR of what each part contributes. */
uint32_t s2s_crc32_shift(uint32_t crc, int64_t len);

/* s2s_crc32, limited to an implementation, so that tests can run all of them on any machine. */
enum s2s_crc32_way { S2S_CRC32_TABLES, S2S_CRC32_CLMUL, S2S_CRC32_AVX512 };
uint32_t s2s_crc32_by(enum s2s_crc32_way fastest, uint32_t crc, const void *bytes, size_t len);

#endif
