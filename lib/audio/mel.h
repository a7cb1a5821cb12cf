/*
 * Log-mel features of FastConformer encoders (NeMo's AudioToMelSpectrogramPreprocessor, the
 * Parakeet feature extractor of transformers): pre-emphasis, STFT of zero-padded centred frames
 * with a symmetric Hann window, |X| squared, Slaney mel filters, log(p + 2^-24), then each mel bin
 * normalised by mean and standard deviation over the utterance. fp32; reductions over time in fp64.
 *
 * The features of a clip are a function of its samples alone: the same bytes whatever else is
 * computed, in whatever order, on however many threads. tests/oracle/parakeet_features pins them.
 */
#ifndef S2S_AUDIO_MEL_H
#define S2S_AUDIO_MEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

struct s2s_error;
struct s2s_mel;
struct s2s_mel_work;

struct s2s_mel_config {
    int rate_hz;
    int n_mels;
    int n_fft;    /* a power of two in [32, 8192] */
    int win, hop; /* samples; hop <= win <= n_fft */
    float preemphasis;
};

#define S2S_MEL_CONFIG_DEFAULT \
    { \
        .rate_hz = 16000, .n_mels = 80, .n_fft = 512, .win = 400, .hop = 160, .preemphasis = 0.97f \
    }

/*
 * Reads preprocessor_config.json (feature_size, sampling_rate, n_fft, win_length, hop_length,
 * preemphasis; what is absent keeps its default), or processor_config.json, which has them under
 * feature_extractor. UNSUPPORTED for another feature extractor, FORMAT and RANGE name the key.
 */
int s2s_mel_config_open(struct s2s_mel_config *config, const char *path, struct s2s_error *err);
/* Of a Hugging Face folder, whichever of the two it has (transformers 5 saves a processor in the
 * second alone). A folder with neither leaves *config as it is. */
int s2s_mel_config_find(struct s2s_mel_config *config, const char *dir, struct s2s_error *err);

/* As a stream's header has it under config.features. Gives. */
json_t *s2s_mel_config_json(const struct s2s_mel_config *config);
/* UNSUPPORTED when a stream's header says that its clips are at another rate, or features of
 * another setting (not looked at where config->n_mels is 0). */
int s2s_mel_config_fits(const struct s2s_mel_config *config, const json_t *header,
                        struct s2s_error *err);

/* Tables of a setting; not changed afterwards, so shared by all threads. RANGE names the value. */
int s2s_mel_new(struct s2s_mel **mel, const struct s2s_mel_config *config, struct s2s_error *err);
void s2s_mel_free(struct s2s_mel *mel);
const struct s2s_mel_config *s2s_mel_config(const struct s2s_mel *mel);
/* The filter bank, [n_mels, n_fft/2 + 1]; lent. */
const float *s2s_mel_filters(const struct s2s_mel *mel);

/* Buffers of one thread. */
struct s2s_mel_work *s2s_mel_work_new(const struct s2s_mel *mel);
void s2s_mel_work_free(struct s2s_mel_work *work);

/* Valid frames of n samples: floor(n / hop). */
int64_t s2s_mel_frames(const struct s2s_mel *mel, size_t n_samples);

/*
 * out [s2s_mel_frames, n_mels]: the normalised features of pcm [n_samples], valid frames only. With
 * one frame the deviation is taken as 0, as NeMo does.
 */
void s2s_mel_compute(const struct s2s_mel *mel, struct s2s_mel_work *work, float *out,
                     const float *pcm, size_t n_samples);
/*
 * Before normalisation. n_frames may be any number up to floor(n / hop) + 1: the last one is what
 * upstream computes and then masks.
 */
void s2s_mel_log(const struct s2s_mel *mel, struct s2s_mel_work *work, float *out, int64_t n_frames,
                 const float *pcm, size_t n_samples);
/* The normalisation alone, in place: mel [n_frames, n_mels]. */
void s2s_mel_normalize(float *mel, int64_t n_frames, int n_mels);

#endif
