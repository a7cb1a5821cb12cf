/*
 * libsndfile and the codecs below it write warnings to stderr, and of a damaged file some to
 * stdout, where they would end up in the midst of a stream. Their FILE *stdout and *stderr are
 * replaced by ones that drop what a thread writes while it decodes and pass on what all others
 * write. Our own messages and streams do not go through them.
 */
#include <stdio.h>
#include <pthread.h>
#include <unistd.h>

#include "lib/audio/audio_internal.h"

static _Thread_local int decoding;

static ssize_t pass_on(void *before, const char *text, size_t len)
{
    return decoding > 0 ? (ssize_t)len : (ssize_t)fwrite(text, 1, len, before);
}

/* Whoever closes stdout wants to know whether all of it arrived. */
static int close_before(void *before)
{
    return fclose(before);
}

static FILE *filtered(FILE *before)
{
    FILE *file =
        fopencookie(before, "w", (cookie_io_functions_t){.write = pass_on, .close = close_before});
    if (!file)
        return before;
    setvbuf(file, NULL, _IONBF, 0);
    return file;
}

static void replace_both(void)
{
    stderr = filtered(stderr);
    stdout = filtered(stdout);
}

void audio_quiet_begin(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, replace_both);
    decoding++;
}

void audio_quiet_end(void)
{
    decoding--;
}
