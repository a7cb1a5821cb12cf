/*
 * Sound on one core, in hours of audio per second: our decoder beside libsndfile alone and memcpy,
 * libsoxr, log-mel. audio_bench [SECONDS a measurement]; needs the speech of
 * asterisk-core-sounds-en-wav or falls back to noise.
 */
#include <math.h>
#include <stdio.h>

#include <sndfile.h>

#include "lib/audio/audio.h"
#include "lib/audio/mel.h"
#include "lib/base/base.h"

enum { RATE = 16000 };

struct sound {
    float *pcm;
    int16_t *s16;
    size_t n;
    char *wav, *flac;
    size_t wav_len, flac_len;
    const struct s2s_mel *mel;
    struct s2s_mel_work *work;
    float *features;
};

static void write_file(const char *path, int format, int rate_hz, const int16_t *s16, size_t n)
{
    SF_INFO info = {.samplerate = rate_hz, .channels = 1, .format = format};
    SNDFILE *file = sf_open(path, SFM_WRITE, &info);
    if (!file || sf_writef_short(file, s16, (sf_count_t)n) != (sf_count_t)n)
        exit(1);
    sf_close(file);
}

static void run_memcpy(struct sound *s)
{
    memcpy(s->features, s->s16, s->n * sizeof *s->s16);
}

static void decode_ours(struct sound *s, const char *path)
{
    struct s2s_audio audio;
    struct s2s_error err = S2S_ERROR_INIT;
    if (s2s_audio_decode_file(&audio, path, NULL, &err) < 0) {
        fprintf(stderr, "%s\n", err.text);
        exit(1);
    }
    s2s_audio_release(&audio);
}

static void decode_snd(struct sound *s, const char *path)
{
    SF_INFO info = {0};
    SNDFILE *file = sf_open(path, SFM_READ, &info);
    sf_readf_float(file, s->features, info.frames);
    sf_close(file);
}

static void run_wav_snd(struct sound *s)
{
    decode_snd(s, s->wav);
}

static void run_wav(struct sound *s)
{
    decode_ours(s, s->wav);
}

static void run_flac_snd(struct sound *s)
{
    decode_snd(s, s->flac);
}

static void run_flac(struct sound *s)
{
    decode_ours(s, s->flac);
}

static void run_resample(struct sound *s)
{
    s2s_audio_resample(s->features, s->pcm, s->n, 44100, RATE, NULL);
}

static void run_log(struct sound *s)
{
    s2s_mel_log(s->mel, s->work, s->features, s2s_mel_frames(s->mel, s->n), s->pcm, s->n);
}

static void run_mel(struct sound *s)
{
    s2s_mel_compute(s->mel, s->work, s->features, s->pcm, s->n);
}

static void run_chain(struct sound *s)
{
    struct s2s_audio audio;
    if (s2s_audio_decode_file(&audio, s->wav, NULL, NULL) < 0)
        exit(1);
    s2s_mel_compute(s->mel, s->work, s->features, audio.data, audio.n_samples);
    s2s_audio_release(&audio);
}

/* The best of many runs of a clip of 12 s, as hours of audio a second. */
static void measure(const char *what, void (*run)(struct sound *), struct sound *s, double rate_hz,
                    double budget_s)
{
    double best_s = INFINITY, start_s = s2s_now_s();
    run(s);
    do {
        double t = s2s_now_s();
        run(s);
        best_s = fmin(best_s, s2s_now_s() - t);
    } while (s2s_now_s() - start_s < budget_s);
    printf("%-44s %7.2f h/s  (%.1f us a second of audio)\n", what,
           (double)s->n / rate_hz / 3600 / best_s, best_s * 1e6 / ((double)s->n / rate_hz));
}

int main(int argc, char **argv)
{
    double budget_s = 0.5;
    if (argc > 1 && s2s_parse_f64(&budget_s, argv[1], 0, 100, NULL) < 0)
        return 2;
    struct s2s_mel_config config = S2S_MEL_CONFIG_DEFAULT;
    struct s2s_mel *mel = NULL;
    struct sound s = {.n = 12 * RATE};
    char folder[] = "/tmp/audio_bench.XXXXXX";
    if (!mkdtemp(folder) || s2s_mel_new(&mel, &config, NULL) < 0)
        return 1;
    s.pcm = s2s_xmalloc(s.n * sizeof *s.pcm);
    s.s16 = s2s_xmalloc(s.n * sizeof *s.s16);
    s.features = s2s_xcalloc(s.n, sizeof *s.features);
    /* noise under a slow envelope: FLAC packs it about as it packs speech */
    s2s_rng_fill_normal(s.pcm, s.n, 1, 0, 0, 1);
    for (size_t i = 1; i < s.n; i++)
        s.pcm[i] = 0.9f * s.pcm[i - 1] + 0.02f * s.pcm[i] * (1 + sinf((float)i * 2e-3f));
    s2s_audio_to_s16(s.s16, s.pcm, s.n);
    s.mel = mel;
    s.work = s2s_mel_work_new(mel);
    s.wav = s2s_xasprintf("%s/x.wav", folder);
    s.flac = s2s_xasprintf("%s/x.flac", folder);
    write_file(s.wav, SF_FORMAT_WAV | SF_FORMAT_PCM_16, RATE, s.s16, s.n);
    write_file(s.flac, SF_FORMAT_FLAC | SF_FORMAT_PCM_16, RATE, s.s16, s.n);
    measure("memcpy of 16-bit samples", run_memcpy, &s, RATE, budget_s);
    measure("wav 16 kHz: libsndfile alone, float", run_wav_snd, &s, RATE, budget_s);
    measure("wav 16 kHz: decode", run_wav, &s, RATE, budget_s);
    measure("flac 16 kHz: libsndfile alone, float", run_flac_snd, &s, RATE, budget_s);
    measure("flac 16 kHz: decode", run_flac, &s, RATE, budget_s);
    measure("resample 44.1 -> 16 kHz (libsoxr HQ)", run_resample, &s, 44100, budget_s);
    measure("log-mel 80, before normalisation", run_log, &s, RATE, budget_s);
    measure("log-mel 80", run_mel, &s, RATE, budget_s);
    measure("wav 16 kHz -> log-mel 80", run_chain, &s, RATE, budget_s);
    remove(s.wav);
    remove(s.flac);
    remove(folder);
    return 0;
}
