/* Shapes of tensors, and copies between tensors and host memory. */
#include "lib/tensor/tensor.h"

#include "lib/base/error.h"

int64_t s2s_tensor_rows(const struct s2s_tensor *tensor)
{
    int64_t rows = 1;
    for (int i = 0; i + 1 < tensor->n_dims; i++)
        rows *= tensor->shape[i];
    return rows;
}

int64_t s2s_tensor_cols(const struct s2s_tensor *tensor)
{
    return tensor->n_dims ? tensor->shape[tensor->n_dims - 1] : 1;
}

int64_t s2s_tensor_numel(const struct s2s_tensor *tensor)
{
    return s2s_tensor_rows(tensor) * s2s_tensor_cols(tensor);
}

struct s2s_mat s2s_tensor_mat(const struct s2s_tensor *tensor)
{
    if (!tensor)
        return (struct s2s_mat){0};
    return (struct s2s_mat){tensor->data, tensor->row_stride, tensor->dtype};
}

void s2s_tensor_read(const struct s2s_tensor *tensor, void *host)
{
    struct s2s_device *dev = tensor->device;
    size_t elem = s2s_dtype_size(tensor->dtype);
    int64_t rows = s2s_tensor_rows(tensor), cols = s2s_tensor_cols(tensor);
    if (tensor->row_stride == cols) {
        dev->kernels->copy_out(&dev->queue, host, tensor->data, (size_t)(rows * cols) * elem);
        return;
    }
    for (int64_t r = 0; r < rows; r++)
        dev->kernels->copy_out(&dev->queue, (char *)host + (size_t)(r * cols) * elem,
                               (char *)tensor->data + (size_t)(r * tensor->row_stride) * elem,
                               (size_t)cols * elem);
}

void s2s_tensor_read_f32(const struct s2s_tensor *tensor, float *host)
{
    const int64_t n = s2s_tensor_numel(tensor);
    if (tensor->dtype != S2S_F32 && tensor->dtype != S2S_BF16)
        S2S_BUG("a %s tensor is read as floats", s2s_dtype_name(tensor->dtype));
    s2s_tensor_read(tensor, host);
    if (tensor->dtype != S2S_BF16)
        return;
    const uint16_t *halves = (const uint16_t *)(const void *)host;
    for (int64_t i = n; i-- > 0;) /* each stands before its float */
        host[i] = s2s_bf16_to_f32(halves[i]);
}

void s2s_tensor_write(struct s2s_tensor *tensor, const void *host)
{
    struct s2s_device *dev = tensor->device;
    if (tensor->row_stride != s2s_tensor_cols(tensor))
        S2S_BUG("write to a strided view");
    dev->kernels->copy_in(&dev->queue, tensor->data, host,
                          (size_t)s2s_tensor_numel(tensor) * s2s_dtype_size(tensor->dtype));
}

void s2s_tensor_copy(struct s2s_tensor *dst, const struct s2s_tensor *src)
{
    struct s2s_device *dev = src->device;
    dev->kernels->copy(&dev->queue, &(struct s2s_k_copy){.src = s2s_tensor_mat(src),
                                                         .dst = s2s_tensor_mat(dst),
                                                         .rows = s2s_tensor_rows(src),
                                                         .cols = s2s_tensor_cols(src)});
}

double s2s_tensor_scalar(const struct s2s_tensor *tensor)
{
    if (s2s_tensor_numel(tensor) != 1)
        S2S_BUG("a tensor of %lld elements is no scalar", (long long)s2s_tensor_numel(tensor));
    if (tensor->dtype == S2S_F64) {
        double x;
        s2s_tensor_read(tensor, &x);
        return x;
    }
    float x;
    s2s_tensor_read(tensor, &x);
    return x;
}
