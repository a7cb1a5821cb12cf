/* torch.save files of any bytes: zip and legacy, flattened, every tensor read. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "lib/base/base.h"
#include "lib/ckpt/ckpt.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int ignore(void *ctx, const void *bytes, size_t len, struct s2s_error *err)
{
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct s2s_ckpt *ckpt;
    struct s2s_error err = S2S_ERROR_INIT;
    char path[64];
    size_t n;
    int fd = memfd_create("fuzz", 0);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size)
        abort();
    s2s_log_set_verbosity(-1);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (s2s_ckpt_open(&ckpt, path, &err) == 0) {
        const struct s2s_ckpt_tensor *tensors = s2s_ckpt_tensors(ckpt, &n);
        /* views may say "a billion times this row" (stride 0): legal, and no fault of the reader */
        for (size_t i = 0; i < n; i++)
            if (s2s_ckpt_numel(&tensors[i]) < 1 << 16)
                s2s_ckpt_stream(ckpt, &tensors[i], NULL, NULL, ignore, NULL, &err);
        s2s_ckpt_close(ckpt);
    }
    close(fd);
    return 0;
}
