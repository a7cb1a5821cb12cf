/* Zip archives from memory: the directory, and every member. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "lib/base/base.h"
#include "lib/io/zip.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct s2s_zip zip;
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_zip_source source = {.fd = -1, .bytes = data, .len_bytes = (int64_t)size};
    if (s2s_zip_open(&zip, &source, &err) < 0)
        return 0;
    for (size_t i = 0; i < zip.n_members; i++) {
        char *bytes;
        if (s2s_zip_read_member(&zip, &zip.members[i], (int64_t)size, &bytes, &err) == 0)
            free(bytes);
    }
    s2s_zip_release(&zip);
    return 0;
}
