/*
 * The tar headers of a stream, byte for byte: ustar, preceded by a pax header only if the size
 * requires it (8 GiB and more). Readers compare all bytes with those composed here, as the checksum
 * of a tar header misses some flipped bits.
 */
#ifndef S2S_IO_TAR_H
#define S2S_IO_TAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { S2S_TAR_BLOCK = 512, S2S_TAR_MAX_HEADER = 3 * S2S_TAR_BLOCK, S2S_TAR_TAIL = 1024 };

/* Composes the header of a regular file (name: at most 80 bytes) and returns its length: 512, or
 * 1536 with a pax header. */
size_t s2s_tar_header(unsigned char header[S2S_TAR_MAX_HEADER], const char *name, uint64_t size);
/* Length of that header alone. */
size_t s2s_tar_header_len(uint64_t size);
/* Number of zero bytes after `size` bytes of data. */
size_t s2s_tar_padding(uint64_t size);

/*
 * Reads name (NUL-terminated) and size from a header block, before it is compared. is_pax: it is
 * the pax header of a large member; `block` must then have S2S_TAR_MAX_HEADER bytes. false: not a
 * header that this library writes.
 */
bool s2s_tar_is_pax(const unsigned char block[S2S_TAR_BLOCK]);
bool s2s_tar_read(const unsigned char *block, bool is_pax, char name[101], uint64_t *size);
/* Index of the first non-zero byte; len if there is none. */
size_t s2s_tar_first_nonzero(const unsigned char *bytes, size_t len);

#endif
