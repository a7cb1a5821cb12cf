/* Lhotse's cuts of strangers, read and, if they are short, loaded from a file that is there.
 * run.sh: max_len=4096 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "lib/audio/audio.h"
#include "lib/base/base.h"
#include "lib/data/cut.h"

enum { FD = 200, N = 400, HZ = 1000, CHANNELS = 2 }; /* seeds call the file /proc/self/fd/200 */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void put(unsigned char *to, uint32_t value, int n_bytes)
{
    for (int i = 0; i < n_bytes; i++)
        to[i] = (unsigned char)(value >> 8 * i);
}

static void make_file(void)
{
    static unsigned char wav[44 + 2 * N * CHANNELS];
    memcpy(wav, "RIFF....WAVEfmt ", 16);
    put(wav + 4, sizeof wav - 8, 4);
    put(wav + 16, 16, 4);
    put(wav + 20, 1, 2);
    put(wav + 22, CHANNELS, 2);
    put(wav + 24, HZ, 4);
    put(wav + 28, HZ * 2 * CHANNELS, 4);
    put(wav + 32, 2 * CHANNELS, 2);
    put(wav + 34, 16, 2);
    memcpy(wav + 36, "data", 4);
    put(wav + 40, 2 * N * CHANNELS, 4);
    for (int i = 0; i < N * CHANNELS; i++)
        put(wav + 44 + 2 * i, (uint32_t)(i * 37 % 5000), 2);
    int fd = memfd_create("cut", 0);
    if (fd < 0 || write(fd, wav, sizeof wav) != (ssize_t)sizeof wav || dup2(fd, FD) < 0)
        abort();
    close(fd);
}

static void load(const struct s2s_cut *cut)
{
    const struct s2s_waves_options opt = {.tolerance_s = 0.1};
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_audio audio;
    if (s2s_cut_check(cut, &opt, &err) < 0 || s2s_cut_load(&audio, cut, &opt, &err) < 0)
        return;
    if ((int64_t)audio.n_samples != s2s_cut_n_samples(cut))
        S2S_BUG("%zu samples, not %lld", audio.n_samples, (long long)s2s_cut_n_samples(cut));
    s2s_audio_release(&audio);
}

/* Long sounds take memory and time, and nothing else than short ones. */
static bool is_short(const struct s2s_cut *cut)
{
    enum { SHORT = 1 << 16 };
    for (size_t i = 0; i < cut->n_tracks; i++) {
        const struct s2s_track *track = &cut->tracks[i];
        if (track->rate_hz > SHORT ||
            (track->offset_s + track->duration_s) * track->rate_hz > SHORT || cut->n_tracks > 8)
            return false;
        for (size_t k = 0; track->recording && k < track->recording->n_transforms; k++)
            if (track->recording->n_transforms > 3 || track->recording->transforms[k].to_hz > SHORT)
                return false;
    }
    return s2s_cut_n_samples(cut) < SHORT;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static bool is_made;
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_cut_words words;
    struct s2s_cut *cut;
    if (!is_made)
        make_file();
    is_made = true;
    json_t *json = json_loadb((const char *)data, size, 0, NULL);
    if (!json_is_object(json)) {
        json_decref(json);
        return 0;
    }
    static const char *const fields[] = {"recording", "target_audio"};
    for (size_t i = 0; i < 2; i++)
        if (s2s_cut_parse(&cut, json, fields[i], "cuts.jsonl", &err) == 0) {
            if (is_short(cut))
                load(cut);
            s2s_cut_free(cut);
        }
    if (s2s_cut_words(&words, json, &err) == 0) {
        free(words.text);
        free(words.lang);
        free(words.speaker);
    }
    json_decref(s2s_cut_custom(json));
    json_decref(json);
    return 0;
}
