/* rt.h over cudart, which is linked in and finds the driver itself, when it is first called. */
#include <cuda.h>
#include <stdio.h>
#include <string.h>

#include "kernels/cuda/rt.h"

int rt_open(int index, struct rt_device *device)
{
    struct cudaDeviceProp properties;
    int n = 0;
    memset(device, 0, sizeof *device);
    cudaError_t rc = cudaGetDeviceCount(&n);
    if (rc == cudaSuccess && n == 0)
        rc = cudaErrorNoDevice;
    if (rc == cudaSuccess)
        rc = cudaSetDevice(index % n);
    if (rc == cudaSuccess)
        rc = cudaGetDeviceProperties(&properties, index % n);
    if (rc == cudaSuccess)
        rc = cudaDeviceGetPCIBusId(device->id, sizeof device->id, index % n);
    if (rc != cudaSuccess) {
        cudaGetLastError(); /* or the next launch is told of it */
        return (int)rc;
    }
    snprintf(device->name, sizeof device->name, "%s", properties.name);
    device->bytes = properties.totalGlobalMem;
    device->multiprocessors = properties.multiProcessorCount;
    device->major = properties.major;
    device->minor = properties.minor;
    device->shared_bytes = (int)properties.sharedMemPerBlockOptin;
    return 0;
}

const char *rt_status_text(int status)
{
    if (status == 0)
        return "no failure";
    if (status == (int)cudaErrorInsufficientDriver)
        return "there is no NVIDIA driver here that CUDA 13 can use (nvidia-smi says which there "
               "is; 580 or later is needed)";
    if (status == (int)cudaErrorNoDevice)
        return "the driver sees no GPU (nvidia-smi, CUDA_VISIBLE_DEVICES)";
    if (status == (int)cudaErrorNoKernelImageForDevice)
        return "this build has no code for this GPU (make CUDA=1 ARCHS=..)";
    return cudaGetErrorString((cudaError_t)status);
}

int rt_stream_new(struct rt_stream **stream)
{
    return (int)cudaStreamCreateWithFlags((cudaStream_t *)stream, cudaStreamNonBlocking);
}

int rt_stream_new_beside(struct rt_stream **stream)
{
    int lowest = 0, highest = 0;
    cudaDeviceGetStreamPriorityRange(&lowest, &highest);
    return (int)cudaStreamCreateWithPriority((cudaStream_t *)stream, cudaStreamNonBlocking,
                                             highest);
}

void rt_stream_free(struct rt_stream *stream)
{
    if (!stream)
        return;
    cudaStreamSynchronize((cudaStream_t)stream);
    cudaStreamDestroy((cudaStream_t)stream);
}

int rt_stream_wait(struct rt_stream *stream)
{
    return (int)cudaStreamSynchronize((cudaStream_t)stream);
}

void *rt_alloc(size_t bytes)
{
    void *ptr = NULL;
    if (cudaMalloc(&ptr, bytes ? bytes : 1) == cudaSuccess)
        return ptr;
    cudaGetLastError();
    return NULL;
}

void rt_free(void *ptr)
{
    cudaFree(ptr);
}

void *rt_alloc_host(size_t bytes)
{
    void *ptr = NULL;
    if (cudaMallocHost(&ptr, bytes ? bytes : 1) == cudaSuccess)
        return ptr;
    cudaGetLastError();
    return NULL;
}

void rt_free_host(void *ptr)
{
    if (ptr)
        cudaFreeHost(ptr);
}

int rt_copy(struct rt_stream *stream, void *dst, const void *src, size_t bytes)
{
    return bytes ? (int)cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, (cudaStream_t)stream)
                 : 0;
}

int rt_zero(struct rt_stream *stream, void *dst, size_t bytes)
{
    return bytes ? (int)cudaMemsetAsync(dst, 0, bytes, (cudaStream_t)stream) : 0;
}

struct rt_event *rt_event_new(void)
{
    cudaEvent_t event = NULL;
    if (cudaEventCreateWithFlags(&event, cudaEventDisableTiming) == cudaSuccess)
        return (struct rt_event *)event;
    cudaGetLastError();
    return NULL;
}

void rt_event_free(struct rt_event *event)
{
    if (event)
        cudaEventDestroy((cudaEvent_t)event);
}

int rt_event_record(struct rt_event *event, struct rt_stream *stream)
{
    return (int)cudaEventRecord((cudaEvent_t)event, (cudaStream_t)stream);
}

int rt_event_wait(struct rt_event *event, struct rt_stream *stream)
{
    return (int)cudaStreamWaitEvent((cudaStream_t)stream, (cudaEvent_t)event, 0);
}

bool rt_event_passed(struct rt_event *event)
{
    return cudaEventQuery((cudaEvent_t)event) != cudaErrorNotReady;
}

/* The driver's own library is opened by cudart, and may be asked through it alone. */
int rt_tensor_map(struct tensor_map *map, const struct tensor_shape *t)
{
    static_assert(sizeof *map == sizeof(CUtensorMap) && alignof(tensor_map) >= 64, "the driver's");
    void *fn = NULL;
    cudaDriverEntryPointQueryResult found;
    cudaError_t rc = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &fn, 12000,
                                                      cudaEnableDefault, &found);
    if (rc != cudaSuccess || found != cudaDriverEntryPointSuccess) {
        cudaGetLastError();
        return (int)(rc != cudaSuccess ? rc : cudaErrorNotSupported);
    }
    const cuuint64_t sizes[] = {(cuuint64_t)t->cols, (cuuint64_t)t->planes, (cuuint64_t)t->rows};
    const cuuint64_t strides[] = {(cuuint64_t)t->cols * 2, (cuuint64_t)t->row_stride * 2};
    const cuuint32_t box[] = {(cuuint32_t)t->box_cols, 1, (cuuint32_t)t->box_rows};
    const cuuint32_t steps[] = {1, 1, 1};
    const CUresult made = ((decltype(&cuTensorMapEncodeTiled))fn)(
        (CUtensorMap *)map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, (void *)t->data, sizes, strides,
        box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
        t->swizzle == 128 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B,
        CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return (int)(made == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue);
}

/* What a block may have without being asked. */
enum { SHARED_ALWAYS = 48 << 10 };

int rt_before_launch(const void *kernel, size_t shared_bytes)
{
    if (shared_bytes <= SHARED_ALWAYS)
        return 0;
    return (int)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     (int)shared_bytes);
}

int rt_after_launch(void)
{
    return (int)cudaGetLastError();
}
