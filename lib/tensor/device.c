/* Opening a device by its name, and what its operations share. */
#include "lib/tensor/device.h"

#include <stdlib.h>
#include <string.h>

#include "lib/base/error.h"
#include "lib/base/mem.h"
#include "lib/tensor/tensor.h"

/* A backend is a name and a table here, in the same order. */
const char *const s2s_device_names[] = {"cpu", NULL};
static const struct s2s_kernels *const backends[] = {&s2s_kernels_cpu};
enum { N_BACKENDS = sizeof backends / sizeof *backends };
_Static_assert(N_BACKENDS + 1 == sizeof s2s_device_names / sizeof *s2s_device_names,
               "a name a backend");

int s2s_device_new(struct s2s_device **out, const struct s2s_kernels *kernels,
                   struct s2s_error *err)
{
    *out = NULL;
    struct s2s_device *device = s2s_xcalloc(1, sizeof *device);
    int status = kernels->open(&device->queue, 0);
    if (status) {
        free(device);
        return s2s_error_set(err, S2S_E_UNSUPPORTED, "device \"%s\": %s", kernels->name,
                             kernels->status_text(status));
    }
    device->kernels = kernels;
    device->dtype = S2S_F32;
    s2s_arena_init(&device->scratch, device, 1 << 20);
    s2s_pool_init(&device->pool, device);
    *out = device;
    return 0;
}

const struct s2s_kernels *s2s_device_kernels(const char *name)
{
    for (size_t i = 0; i < N_BACKENDS; i++)
        if (!name || strcmp(s2s_device_names[i], name) == 0)
            return backends[i];
    return NULL;
}

int s2s_device_open(struct s2s_device **device, const char *name, struct s2s_error *err)
{
    const struct s2s_kernels *kernels = s2s_device_kernels(name);
    if (kernels)
        return s2s_device_new(device, kernels, err);
    struct s2s_buf known = S2S_BUF_INIT;
    *device = NULL;
    for (size_t i = 0; i < N_BACKENDS; i++)
        s2s_buf_printf(&known, "%s%s", i ? ", " : "", s2s_device_names[i]);
    int rc = s2s_error_set(err, S2S_E_UNSUPPORTED, "device \"%s\" is not in this build", name);
    s2s_error_hint(err, rc, "it has: %s", known.data);
    s2s_buf_release(&known);
    return rc;
}

void s2s_device_close(struct s2s_device *device)
{
    if (!device)
        return;
    for (int i = 0; i < device->n_children; i++)
        s2s_tape_free(device->children[i]);
    free(device->children);
    s2s_arena_release(&device->scratch);
    s2s_pool_release(&device->pool);
    device->kernels->close(&device->queue);
    free(device);
}

int s2s_device_sync(struct s2s_device *device, struct s2s_error *err)
{
    device->kernels->sync(&device->queue);
    if (device->queue.status == 0)
        return 0;
    return s2s_error_set(err, S2S_E_UNSUPPORTED, "%s kernels failed: %s", device->kernels->name,
                         device->kernels->status_text(device->queue.status));
}

void s2s_device_out_of_memory(struct s2s_device *device, size_t bytes)
{
    struct s2s_error err = S2S_ERROR_INIT;
    const char *layer = device->queue.layer ? device->queue.layer : "";
    s2s_error_set(&err, S2S_E_NOMEM, "%s%sout of memory: no room for %.1f MiB more", layer,
                  *layer ? ": " : "", (double)bytes / 1048576);
    s2s_error_hint(&err, S2S_E_NOMEM,
                   "train.recompute or shorter packs need less; s2s-train plan says how much");
    if (device->fail)
        device->fail(device->fail_ctx, &err);
    s2s_out_of_memory(&err);
}
