/*
 * Codecs below libsndfile (mpg123) write warnings to stderr. Their FILE *stderr is replaced by one
 * that drops what a thread writes while it decodes and passes on what all others write. Our own
 * messages do not go through it.
 */
#include <stdio.h>
#include <pthread.h>
#include <unistd.h>

#include "lib/audio/audio_internal.h"

static _Thread_local int decoding;

static ssize_t pass_on(void *cookie, const char *text, size_t len)
{
    return decoding > 0 ? (ssize_t)len : write(STDERR_FILENO, text, len);
}

static void replace_stderr(void)
{
    FILE *filtered = fopencookie(NULL, "w", (cookie_io_functions_t){.write = pass_on});
    if (!filtered)
        return;
    fflush(stderr);
    setvbuf(filtered, NULL, _IONBF, 0);
    stderr = filtered;
}

void audio_quiet_begin(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, replace_stderr);
    decoding++;
}

void audio_quiet_end(void)
{
    decoding--;
}
