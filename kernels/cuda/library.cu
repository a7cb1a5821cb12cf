/* Where NVIDIA's libraries are looked for. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/library.h"

static void *open_in(const char *dir, const char *const *names)
{
    char path[4352];
    void *lib = NULL;
    for (; !lib && *names; names++) {
        snprintf(path, sizeof path, "%s%s%s", dir, *dir ? "/" : "", *names);
        lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    }
    return lib;
}

void *library_open(const char *const *names)
{
    const char *own = getenv("S2S_CUDA_LIBS");
    void *lib = own ? open_in(own, names) : NULL;
    if (!lib)
        lib = open_in("", names);
    if (!lib)
        lib = open_in("/usr/local/cuda/lib64", names);
    Dl_info info;
    if (lib || !dladdr((const void *)&library_open, &info) || !info.dli_fname)
        return lib;
    char dir[4096];
    const char *slash = strrchr(info.dli_fname, '/');
    const int n = slash ? (int)(slash - info.dli_fname) : 0;
    snprintf(dir, sizeof dir, "%.*s/../lib/s2s/cuda", n, info.dli_fname);
    lib = open_in(dir, names);
    if (!lib) {
        snprintf(dir, sizeof dir, "%.*s/cuda", n, info.dli_fname);
        lib = open_in(dir, names);
    }
    return lib;
}
