/* A .metadata of any bytes beside one real .distcp file, and whatever it says can be read. */
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "lib/base/base.h"
#include "lib/ckpt/ckpt.h"
#include "lib/ckpt/ckpt_files.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char dir[64];

static void clean_up(void)
{
    s2s_ckpt_remove_tree(dir, NULL);
}

static void put(const char *name, const void *bytes, size_t len)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (fd < 0 || write(fd, bytes, len) != (ssize_t)len)
        abort();
    close(fd);
}

static void make_dir(void)
{
    static char data[4096];
    snprintf(dir, sizeof dir, "/tmp/s2s-fuzz-metadata-XXXXXX");
    if (!mkdtemp(dir))
        abort();
    atexit(clean_up);
    put("__0_0.distcp", data, sizeof data);
    put("__1_0.distcp", data, sizeof data);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct s2s_ckpt *ckpt;
    struct s2s_error err = S2S_ERROR_INIT;
    size_t n;
    if (!*dir)
        make_dir();
    put(".metadata", data, size);
    if (s2s_ckpt_open(&ckpt, dir, &err) < 0)
        return 0;
    const struct s2s_ckpt_tensor *tensors = s2s_ckpt_tensors(ckpt, &n);
    for (size_t i = 0; i < n; i++)
        s2s_ckpt_verify_tensor(ckpt, &tensors[i], &err);
    s2s_ckpt_close(ckpt);
    return 0;
}
