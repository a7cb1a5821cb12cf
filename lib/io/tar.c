/* Composes and compares the tar headers of a stream. */
#include "lib/io/tar.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "lib/base/base.h"

/* Offsets of the fields of a ustar header (POSIX.1-1988, "ustar Interchange Format"). */
enum {
    NAME = 0,
    MODE = 100,
    UID = 108,
    GID = 116,
    SIZE = 124,
    MTIME = 136,
    SUM = 148,
    TYPE = 156,
    MAGIC = 257,
    DEVMAJOR = 329,
    DEVMINOR = 337
};

#define MAX_OCTAL_SIZE ((uint64_t)077777777777)
#define PAX_PREFIX "PaxHeaders/"

static void ustar(unsigned char *block, const char *name, uint64_t size, char type)
{
    char *text = (char *)block;
    memset(block, 0, S2S_TAR_BLOCK);
    snprintf(text + NAME, 100, "%s", name);
    memcpy(text + MODE, "0000644", 8);
    memcpy(text + UID, "0000000", 8);
    memcpy(text + GID, "0000000", 8);
    snprintf(text + SIZE, 12, "%011" PRIo64, size);
    memcpy(text + MTIME, "00000000000", 12);
    memset(text + SUM, ' ', 8);
    text[TYPE] = type;
    memcpy(text + MAGIC, "ustar\00000", 8);
    memcpy(text + DEVMAJOR, "0000000", 8);
    memcpy(text + DEVMINOR, "0000000", 8);
    unsigned sum = 0;
    for (int i = 0; i < S2S_TAR_BLOCK; i++)
        sum += block[i];
    snprintf(text + SUM, 7, "%06o", sum); /* six digits, NUL, space */
}

/* "LEN size=N\n", where LEN includes its own digits. */
static size_t pax_size_record(char *text, uint64_t size)
{
    char rest[40];
    size_t rest_len = (size_t)snprintf(rest, sizeof rest, " size=%" PRIu64 "\n", size);
    size_t digits = rest_len + 2 < 100 ? 2 : 3;
    return (size_t)snprintf(text, 64, "%zu%s", rest_len + digits, rest);
}

size_t s2s_tar_header_len(uint64_t size)
{
    return size > MAX_OCTAL_SIZE ? S2S_TAR_MAX_HEADER : S2S_TAR_BLOCK;
}

size_t s2s_tar_header(unsigned char header[S2S_TAR_MAX_HEADER], const char *name, uint64_t size)
{
    if (strlen(name) > 80)
        S2S_BUG("member name '%s' is too long", name);
    if (size <= MAX_OCTAL_SIZE) {
        ustar(header, name, size, '0');
        return S2S_TAR_BLOCK;
    }
    char pax_name[100];
    snprintf(pax_name, sizeof pax_name, PAX_PREFIX "%s", name);
    memset(header, 0, S2S_TAR_MAX_HEADER);
    size_t len = pax_size_record((char *)header + S2S_TAR_BLOCK, size);
    ustar(header, pax_name, len, 'x');
    ustar(header + 2 * S2S_TAR_BLOCK, name, 0, '0'); /* the size is in the pax record */
    return S2S_TAR_MAX_HEADER;
}

size_t s2s_tar_padding(uint64_t size)
{
    return (size_t)(-size % S2S_TAR_BLOCK);
}

bool s2s_tar_is_pax(const unsigned char block[S2S_TAR_BLOCK])
{
    return block[TYPE] == 'x';
}

bool s2s_tar_read(const unsigned char *block, bool is_pax, char name[101], uint64_t *size)
{
    const char *text = (const char *)block;
    memcpy(name, text + NAME, 100);
    name[100] = 0;
    if (memcmp(text + MAGIC, "ustar\00000", 8) != 0)
        return false;
    if (!is_pax) {
        *size = 0;
        for (int i = 0; i < 11; i++) {
            if (text[SIZE + i] < '0' || text[SIZE + i] > '7')
                return false;
            *size = *size * 8 + (uint64_t)(text[SIZE + i] - '0');
        }
        return true;
    }
    memcpy(name, text + 2 * S2S_TAR_BLOCK, 100);
    /* the exact form is compared later; only the number is needed here */
    const char *number = memmem(text + S2S_TAR_BLOCK, 12, " size=", 6);
    if (!number)
        return false;
    *size = 0;
    for (number += 6; *number >= '0' && *number <= '9'; number++)
        if (__builtin_mul_overflow(*size, (uint64_t)10, size) ||
            __builtin_add_overflow(*size, (uint64_t)(*number - '0'), size))
            return false;
    return *size > MAX_OCTAL_SIZE;
}

size_t s2s_tar_first_nonzero(const unsigned char *bytes, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if (bytes[i])
            return i;
    return len;
}
