/*
 * The tar headers of a stream, byte for byte: ustar, with a pax header in front only where a size
 * needs it (8 GiB and more). Readers compare all bytes with what is composed here, because the sum
 * in a tar header lets some flipped bits pass.
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
/* Zero bytes behind `size` bytes of data. */
size_t s2s_tar_padding(uint64_t size);

/*
 * What a header block says, before it is compared: name (NUL-ended) and size. is_pax: this is the
 * pax header that stands in front of a large member; `block` must then have S2S_TAR_MAX_HEADER
 * bytes. false: no header of ours.
 */
bool s2s_tar_is_pax(const unsigned char block[S2S_TAR_BLOCK]);
bool s2s_tar_read(const unsigned char *block, bool is_pax, char name[101], uint64_t *size);
/* Index of the first byte that is not zero; len if all are. */
size_t s2s_tar_first_nonzero(const unsigned char *bytes, size_t len);

#endif
