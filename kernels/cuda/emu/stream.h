/* What libraries of the tests find behind a stream of the emulator. C and C++. */
#ifndef S2S_KERNELS_CUDA_EMU_STREAM_H
#define S2S_KERNELS_CUDA_EMU_STREAM_H

#include <stdbool.h>

struct emu_stream {
    bool beside;
    /* Runs fn(arg) after what was issued before: at once, in the caller's thread, or, in a stream
     * beside others, in a thread of the stream's own. */
    void (*issue)(struct emu_stream *stream, void (*fn)(void *arg), void *arg);
};

#endif
