/* Changes the sampling rate of a whole clip, by libsoxr. */
#include <soxr.h>

#include "lib/audio/audio.h"
#include "lib/audio/audio_internal.h"

int64_t s2s_audio_n_resampled(int64_t n, int from_hz, int to_hz)
{
    return (int64_t)(((__int128)2 * n * to_hz + from_hz) / ((__int128)2 * from_hz));
}

int s2s_audio_resample(float *out, const float *in, size_t n, int from_hz, int to_hz,
                       struct s2s_error *err)
{
    const soxr_io_spec_t io = soxr_io_spec(SOXR_FLOAT32_I, SOXR_FLOAT32_I);
    const soxr_quality_spec_t quality = soxr_quality_spec(SOXR_HQ, 0);
    const soxr_runtime_spec_t one_thread = soxr_runtime_spec(1);
    if (from_hz <= 0 || to_hz <= 0)
        return s2s_error_set(err, S2S_E_RANGE, "resampling from %d Hz to %d Hz", from_hz, to_hz);
    size_t n_out = (size_t)s2s_audio_n_resampled((int64_t)n, from_hz, to_hz), n_done = 0;
    soxr_error_t failed = soxr_oneshot(from_hz, to_hz, 1, in, n, NULL, out, n_out, &n_done, &io,
                                       &quality, &one_thread);
    if (failed)
        return s2s_error_set(err, S2S_E_UNSUPPORTED, "resampling from %d Hz to %d Hz: %s", from_hz,
                             to_hz, failed);
    /* its own count may round the last half sample the other way */
    for (size_t i = n_done; i < n_out; i++)
        out[i] = 0;
    return 0;
}
