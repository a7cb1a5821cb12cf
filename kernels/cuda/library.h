/* How NVIDIA's libraries, which no build needs, are found at run time. */
#ifndef S2S_KERNELS_CUDA_LIBRARY_H
#define S2S_KERNELS_CUDA_LIBRARY_H

/* The first of these names (NULL ends the list) in S2S_CUDA_LIBS, where the loader looks, in the
 * toolkit, and beside this library. NULL: it is nowhere. */
void *library_open(const char *const *names);

#define LIBRARY_PLACES \
    "is not in S2S_CUDA_LIBS, on the loader's path, in /usr/local/cuda/lib64 or in " \
    "lib/s2s/cuda beside this program"

#endif
