/* Scalars are copied to the host in the order of the queue, and added there when it was waited for.
 */
#include "lib/tensor/sums.h"

#include <stdlib.h>

#include "lib/base/error.h"
#include "lib/base/mem.h"
#include "lib/tensor/device.h"

enum { AHEAD = 1024 };

struct s2s_sums {
    struct s2s_device *device;
    double *host; /* [AHEAD] of the device's host memory: on their way */
    int to[AHEAD];
    int n_ahead, n;
    double sums[S2S_SUMS_MAX];
};

struct s2s_sums *s2s_sums_new(struct s2s_device *device, int n)
{
    if (n < 1 || n > S2S_SUMS_MAX)
        S2S_BUG("%d sums", n);
    struct s2s_sums *s = s2s_xcalloc(1, sizeof *s);
    s->device = device;
    s->n = n;
    s->host = device->kernels->alloc_host(&device->queue, AHEAD * sizeof *s->host);
    if (!s->host)
        s2s_device_out_of_memory(device, AHEAD * sizeof *s->host);
    return s;
}

/* What has arrived. */
static void add_up(struct s2s_sums *s)
{
    for (int k = 0; k < s->n_ahead; k++)
        s->sums[s->to[k]] += s->host[k];
    s->n_ahead = 0;
}

void s2s_sums_free(struct s2s_sums *s)
{
    if (!s)
        return;
    if (s->n_ahead > 0) /* copies still write to the memory */
        s->device->kernels->sync(&s->device->queue);
    s->device->kernels->free_host(&s->device->queue, s->host);
    free(s);
}

void s2s_sums_add(struct s2s_sums *s, int i, const struct s2s_tensor *scalar)
{
    if (i < 0 || i >= s->n || scalar->dtype != S2S_F64 || s2s_tensor_numel(scalar) != 1)
        S2S_BUG("sum %d of %d takes F64 scalars", i, s->n);
    if (s->n_ahead == AHEAD) {
        s->device->kernels->sync(&s->device->queue);
        add_up(s);
    }
    s->device->kernels->copy_out_async(&s->device->queue, s->host + s->n_ahead, scalar->data,
                                       sizeof(double));
    s->to[s->n_ahead++] = i;
}

int s2s_sums_read(struct s2s_sums *s, double *values, struct s2s_error *err)
{
    int rc = s2s_device_sync(s->device, err);
    add_up(s);
    for (int i = 0; i < s->n; i++) {
        values[i] = s->sums[i];
        s->sums[i] = 0;
    }
    return rc;
}
