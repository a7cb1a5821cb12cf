/* Names the kinds of sound that libsndfile does not read, by their first bytes. */
#include <string.h>

#include "lib/audio/audio_internal.h"

const char *audio_foreign_kind(const unsigned char *bytes, size_t len)
{
    static const struct {
        size_t at, len;
        const char *bytes, *name;
    } kinds[] = {
        {4, 4, "ftyp", "MPEG-4 (m4a, mp4, mov)"},
        {0, 4, "\x1a\x45\xdf\xa3", "Matroska (webm, mka, mkv)"},
        {0, 4, "\x30\x26\xb2\x75", "ASF (wma)"},
        {0, 5, "#!AMR", "AMR"},
        {0, 4, "wvpk", "WavPack"},
        {0, 4, "MAC ", "Monkey's Audio"},
        {0, 4, "\0\0\1\xba", "an MPEG stream"},
        {0, 4, "ADIF", "AAC"},
    };
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (len >= kinds[i].at + kinds[i].len &&
            !memcmp(bytes + kinds[i].at, kinds[i].bytes, kinds[i].len))
            return kinds[i].name;
    /* ADTS: twelve bits of one, and layer 0, which MP3 has not */
    return len >= 2 && bytes[0] == 0xff && (bytes[1] & 0xf6) == 0xf0 ? "AAC" : NULL;
}
