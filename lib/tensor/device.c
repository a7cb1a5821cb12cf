/* Opening a device by its name, and what its operations share. */
#include "lib/tensor/device.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/error.h"
#include "lib/base/mem.h"
#include "lib/tensor/tensor.h"

typedef const struct s2s_kernels *give_kernels(size_t table_bytes);

static const struct s2s_kernels *cpu(struct s2s_error *err)
{
    return &s2s_kernels_cpu;
}

/* The GPU's kernels are a library of their own, which programs that ask for none do without. It
 * lies beside the programs or in ../lib/s2s (their rpath); S2S_CUDA names another one. */
static const struct s2s_kernels *cuda(struct s2s_error *err)
{
    const char *path = getenv("S2S_CUDA");
    void *lib = dlopen(path && *path ? path : "libs2s-cuda.so", RTLD_NOW | RTLD_LOCAL);
    give_kernels *give = lib ? (give_kernels *)dlsym(lib, "s2s_kernels_cuda") : NULL;
    const struct s2s_kernels *kernels = give ? give(sizeof *kernels) : NULL;
    if (kernels)
        return kernels;
    int rc =
        s2s_error_set(err, S2S_E_UNSUPPORTED, "device \"cuda\": %s",
                      give ? "libs2s-cuda.so is of another build than this program" : dlerror());
    s2s_error_hint(err, rc, "make CUDA=1 builds libs2s-cuda.so (doc/GPU.md)");
    return NULL;
}

/* A backend is a name and a way to its table here, in the same order. */
const char *const s2s_device_names[] = {"cpu", "cuda", NULL};
static const struct s2s_kernels *(*const backends[])(struct s2s_error *err) = {cpu, cuda};
enum { N_BACKENDS = sizeof backends / sizeof *backends };
_Static_assert(N_BACKENDS + 1 == sizeof s2s_device_names / sizeof *s2s_device_names,
               "a name a backend");

static int device_new(struct s2s_device **out, const struct s2s_kernels *kernels, int index,
                      struct s2s_error *err)
{
    *out = NULL;
    struct s2s_device *device = s2s_xcalloc(1, sizeof *device);
    int status = kernels->open(&device->queue, index);
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

int s2s_device_new(struct s2s_device **device, const struct s2s_kernels *kernels,
                   struct s2s_error *err)
{
    return device_new(device, kernels, 0, err);
}

static int unknown(const char *name, struct s2s_error *err)
{
    struct s2s_buf known = S2S_BUF_INIT;
    for (size_t i = 0; i < N_BACKENDS; i++)
        s2s_buf_printf(&known, "%s%s", i ? ", " : "", s2s_device_names[i]);
    int rc = s2s_error_set(err, S2S_E_UNSUPPORTED, "device \"%s\" is not in this build", name);
    s2s_error_hint(err, rc, "it has: %s", known.data);
    s2s_buf_release(&known);
    return rc;
}

int s2s_device_kernels(const struct s2s_kernels **kernels, const char *name, struct s2s_error *err)
{
    *kernels = NULL;
    for (size_t i = 0; i < N_BACKENDS; i++)
        if (!name || strcmp(s2s_device_names[i], name) == 0) {
            *kernels = backends[i](err);
            return *kernels ? 0 : S2S_E_UNSUPPORTED;
        }
    return unknown(name, err);
}

int s2s_device_open_at(struct s2s_device **device, const char *name, int index,
                       struct s2s_error *err)
{
    const struct s2s_kernels *kernels;
    int rc = s2s_device_kernels(&kernels, name, err);
    *device = NULL;
    return rc < 0 ? rc : device_new(device, kernels, index, err);
}

int s2s_device_open(struct s2s_device **device, const char *name, struct s2s_error *err)
{
    return s2s_device_open_at(device, name, 0, err);
}

int s2s_device_work_in(struct s2s_device *device, enum s2s_dtype dtype, struct s2s_error *err)
{
    if (dtype != S2S_F32 && !(dtype == S2S_BF16 && device->kernels->has_bf16))
        return s2s_error_set(err, S2S_E_UNSUPPORTED, "device \"%s\" does not work in %s",
                             device->kernels->name, s2s_dtype_name(dtype));
    device->dtype = dtype;
    return 0;
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
