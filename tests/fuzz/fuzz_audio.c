/* A sound file, decoded whole and in part. */
#include <math.h>
#include <stdint.h>

#include "lib/audio/audio.h"
#include "lib/base/base.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct s2s_audio_options part = S2S_AUDIO_OPTIONS_DEFAULT;
    struct s2s_audio audio;
    part.offset_s = 0.005;
    part.duration_s = 0.01;
    part.channel = 0;
    if (s2s_audio_decode_bytes(&audio, data, size, NULL, NULL) == 0) {
        for (size_t i = 0; i < audio.n_samples; i++)
            if (!isfinite(audio.data[i]))
                S2S_BUG("sample %zu is not finite", i);
        s2s_audio_release(&audio);
    }
    if (s2s_audio_decode_bytes(&audio, data, size, &part, NULL) == 0)
        s2s_audio_release(&audio);
    return 0;
}
