/* Changes the sampling rate of a whole clip, by libsoxr. */
#include <soxr.h>

#include "lib/audio/audio.h"
#include "lib/audio/audio_internal.h"

int64_t s2s_audio_n_resampled(int64_t n, int from_hz, int to_hz)
{
    return (int64_t)(((__int128)2 * n * to_hz + from_hz) / ((__int128)2 * from_hz));
}

int s2s_audio_resample_to(float *out, int64_t n_out, const float *in, int64_t n, double from_hz,
                          double to_hz, struct s2s_error *err)
{
    const soxr_io_spec_t io = soxr_io_spec(SOXR_FLOAT32_I, SOXR_FLOAT32_I);
    const soxr_quality_spec_t quality = soxr_quality_spec(SOXR_HQ, 0);
    const soxr_runtime_spec_t one_thread = soxr_runtime_spec(1);
    size_t n_done = 0;
    if (!(from_hz >= 1) || !(to_hz >= 1))
        return s2s_error_set(err, S2S_E_RANGE, "resampling from %g Hz to %g Hz", from_hz, to_hz);
    soxr_error_t failed = soxr_oneshot(from_hz, to_hz, 1, in, (size_t)n, NULL, out, (size_t)n_out,
                                       &n_done, &io, &quality, &one_thread);
    if (failed)
        return s2s_error_set(err, S2S_E_UNSUPPORTED, "resampling from %g Hz to %g Hz: %s", from_hz,
                             to_hz, failed);
    /* its own count may round the last half sample the other way */
    for (int64_t i = (int64_t)n_done; i < n_out; i++)
        out[i] = 0;
    return 0;
}

int s2s_audio_resample(float *out, const float *in, size_t n, int from_hz, int to_hz,
                       struct s2s_error *err)
{
    if (from_hz <= 0 || to_hz <= 0)
        return s2s_error_set(err, S2S_E_RANGE, "resampling from %d Hz to %d Hz", from_hz, to_hz);
    const int64_t n_out = s2s_audio_n_resampled((int64_t)n, from_hz, to_hz);
    return s2s_audio_resample_to(out, n_out, in, (int64_t)n, from_hz, to_hz, err);
}
