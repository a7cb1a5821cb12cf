#include "lib/tensor/device.h"

#include <stdlib.h>
#include <string.h>

#include "lib/base/error.h"
#include "lib/base/mem.h"

int s2s_device_open(struct s2s_device **device, const char *name, struct s2s_error *err)
{
    *device = NULL;
    if (strcmp(name, "cpu") != 0)
        return s2s_error_hint(
            err, s2s_error_set(err, S2S_E_UNSUPPORTED, "device \"%s\" is not in this build", name),
            "use \"cpu\"");
    struct s2s_device *dev = s2s_xcalloc(1, sizeof *dev);
    dev->kind = S2S_DEVICE_CPU;
    dev->kernels = &s2s_kernels_cpu;
    s2s_arena_init(&dev->scratch, dev->kernels, 1 << 20);
    s2s_pool_init(&dev->pool, dev->kernels);
    *device = dev;
    return 0;
}

void s2s_device_close(struct s2s_device *device)
{
    if (!device)
        return;
    s2s_arena_release(&device->scratch);
    s2s_pool_release(&device->pool);
    free(device);
}

int s2s_device_sync(struct s2s_device *device, struct s2s_error *err)
{
    device->kernels->sync(&device->queue);
    if (device->queue.status)
        return s2s_error_set(err, S2S_E_UNSUPPORTED, "%s kernels failed with code %d",
                             device->kernels->name, device->queue.status);
    return 0;
}

size_t s2s_device_peak_bytes(const struct s2s_device *device)
{
    return device->scratch.peak_bytes + device->pool.arena.peak_bytes;
}
