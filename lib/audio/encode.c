/* Sound to the bytes of a FLAC or WAV file, by libsndfile. */
#include <math.h>

#include <sndfile.h>

#include "lib/audio/audio.h"
#include "lib/audio/audio_internal.h"

/* A file that grows in memory. */
struct memory {
    unsigned char *bytes;
    sf_count_t len, at, cap;
};

static sf_count_t memory_len(void *ctx)
{
    return ((struct memory *)ctx)->len;
}

static sf_count_t memory_seek(sf_count_t offset, int whence, void *ctx)
{
    struct memory *m = ctx;
    const sf_count_t base = whence == SEEK_SET ? 0 : whence == SEEK_CUR ? m->at : m->len;
    if (offset < -base)
        return -1;
    return m->at = base + offset;
}

static sf_count_t memory_read(void *to, sf_count_t n, void *ctx)
{
    struct memory *m = ctx;
    n = m->at >= m->len ? 0 : n < m->len - m->at ? n : m->len - m->at;
    memcpy(to, m->bytes + m->at, (size_t)n);
    m->at += n;
    return n;
}

static sf_count_t memory_write(const void *from, sf_count_t n, void *ctx)
{
    struct memory *m = ctx;
    if (m->at + n > m->cap) {
        m->cap = 2 * (m->at + n) + 4096;
        m->bytes = s2s_xrealloc(m->bytes, (size_t)m->cap, 1);
    }
    if (m->at > m->len)
        memset(m->bytes + m->len, 0, (size_t)(m->at - m->len));
    memcpy(m->bytes + m->at, from, (size_t)n);
    m->at += n;
    m->len = m->at > m->len ? m->at : m->len;
    return n;
}

static sf_count_t memory_tell(void *ctx)
{
    return ((struct memory *)ctx)->at;
}

/* 24 bits in the upper part of 32, rounded and clipped. */
static void to_s24(int *out, const float *in, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        double x = nearbyint((double)in[i] * 8388608.0);
        x = x > 8388607 ? 8388607 : x < -8388608 ? -8388608 : x;
        out[i] = (int)x * 256;
    }
}

static bool write_all(SNDFILE *snd, const struct s2s_audio *audio)
{
    enum { CHUNK = 8192 };
    short s16[CHUNK];
    int s24[CHUNK];
    for (size_t i = 0; i < audio->n_samples; i += CHUNK) {
        const size_t n = audio->n_samples - i < CHUNK ? audio->n_samples - i : CHUNK;
        sf_count_t n_done;
        if (audio->int16) {
            s2s_audio_to_s16(s16, audio->data + i, n);
            n_done = sf_write_short(snd, s16, (sf_count_t)n);
        } else {
            to_s24(s24, audio->data + i, n);
            n_done = sf_write_int(snd, s24, (sf_count_t)n);
        }
        if (n_done != (sf_count_t)n)
            return false;
    }
    return true;
}

int s2s_audio_encode(void **bytes, size_t *len_bytes, const struct s2s_audio *audio,
                     enum s2s_audio_file kind, struct s2s_error *err)
{
    static SF_VIRTUAL_IO calls = {memory_len, memory_seek, memory_read, memory_write, memory_tell};
    struct memory memory = {.bytes = NULL};
    SF_INFO info = {.samplerate = audio->rate_hz, .channels = 1};
    info.format = (kind == S2S_AUDIO_FILE_FLAC ? SF_FORMAT_FLAC : SF_FORMAT_WAV) |
                  (audio->int16 ? SF_FORMAT_PCM_16 : SF_FORMAT_PCM_24);
    audio_quiet_begin();
    SNDFILE *snd = sf_open_virtual(&calls, SFM_WRITE, &info, &memory);
    bool ok = snd && write_all(snd, audio);
    ok = (!snd || sf_close(snd) == 0) && ok;
    audio_quiet_end();
    if (!ok) {
        free(memory.bytes);
        return s2s_error_set(err, S2S_E_UNSUPPORTED, "%zu samples at %d Hz cannot be encoded",
                             audio->n_samples, audio->rate_hz);
    }
    *bytes = memory.bytes;
    *len_bytes = (size_t)memory.len;
    return 0;
}
