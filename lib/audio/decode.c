/* Sound from files and from bytes in memory, by libsndfile. */
#include "lib/audio/audio.h"

#include <fcntl.h>
#include <math.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <sndfile.h>

#include "lib/audio/audio_internal.h"
#include "lib/io/digest.h"
#include "lib/io/pread.h"

enum {
    CHUNK = 16384,          /* values decoded at a time */
    COPIED_BYTES = 4 << 20, /* a file that is read, not mapped */
};

int64_t s2s_audio_n_samples(double seconds, int rate_hz)
{
    /* Python's round to 8 decimals is exact on the decimal expansion, and so is printf's */
    char text[64];
    snprintf(text, sizeof text, "%.8f", seconds * rate_hz);
    return (int64_t)floor(strtod(text, NULL) + 0.5);
}

void s2s_audio_to_s16(int16_t *out, const float *in, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        float x = rintf(in[i] * 32768.0f);
        x = x > 32767.0f ? 32767.0f : x;
        x = x < -32768.0f ? -32768.0f : x;
        out[i] = (int16_t)x;
    }
}

void s2s_audio_from_s16(float *out, const int16_t *in, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = (float)in[i] * (1.0f / 32768.0f);
}

bool s2s_audio_is_silent(const struct s2s_audio *audio)
{
    enum { BLOCK = 4096 };
    for (size_t i = 0; i < audio->n_samples; i += BLOCK) {
        const size_t left = audio->n_samples - i, n = left < BLOCK ? left : BLOCK;
        float most = 0;
        int any = 0;
        for (size_t k = 0; audio->s16 && k < n; k++)
            any |= audio->s16[i + k];
        for (size_t k = 0; audio->data && k < n; k++)
            most = fabsf(audio->data[i + k]) > most ? fabsf(audio->data[i + k]) : most;
        if (any || most >= 1.0f / 32768)
            return false;
    }
    return true;
}

void s2s_audio_release(struct s2s_audio *audio)
{
    if (!audio->is_lent) {
        free(audio->data);
        free(audio->s16);
    }
    *audio = (struct s2s_audio)S2S_AUDIO_INIT;
}

/* ---- libsndfile over bytes ---- */

struct memory_file {
    const unsigned char *bytes;
    sf_count_t len, at;
};

static sf_count_t memory_len(void *ctx)
{
    return ((struct memory_file *)ctx)->len;
}

static sf_count_t memory_seek(sf_count_t offset, int whence, void *ctx)
{
    struct memory_file *file = ctx;
    sf_count_t base = whence == SEEK_SET ? 0 : whence == SEEK_CUR ? file->at : file->len;
    if (offset < -base || offset > file->len - base)
        return -1;
    return file->at = base + offset;
}

static sf_count_t memory_read(void *to, sf_count_t n, void *ctx)
{
    struct memory_file *file = ctx;
    if (n > file->len - file->at)
        n = file->len - file->at;
    memcpy(to, file->bytes + file->at, (size_t)n);
    file->at += n;
    return n;
}

static sf_count_t memory_write(const void *from, sf_count_t n, void *ctx)
{
    return 0;
}

static sf_count_t memory_tell(void *ctx)
{
    return ((struct memory_file *)ctx)->at;
}

/* A file being read: either libsndfile's, or samples of a WAV as they lie there. */
struct reader {
    struct audio_container container;
    struct memory_file memory;
    SNDFILE *snd;
    bool is_seekable;
    struct s2s_audio_info info;
    int64_t at; /* of the direct samples */
};

static bool is_int16(int format)
{
    int sub = format & SF_FORMAT_SUBMASK;
    return sub == SF_FORMAT_PCM_16 || sub == SF_FORMAT_PCM_S8 || sub == SF_FORMAT_PCM_U8;
}

/* Are the samples read as they lie in the file? */
static bool is_direct(const struct audio_container *container)
{
    return container->pcm && container->rate_hz > 0;
}

static SNDFILE *open_memory(SF_INFO *info, struct memory_file *memory)
{
    static SF_VIRTUAL_IO calls = {memory_len, memory_seek, memory_read, memory_write, memory_tell};
    memory->at = 0;
    *info = (SF_INFO){0};
    return sf_open_virtual(&calls, SFM_READ, info, memory);
}

/* A FLAC that was written into a pipe does not say how long it is: it is decoded to see. */
static int count_samples(struct reader *reader, SF_INFO *info, struct s2s_error *err)
{
    const int64_t step = CHUNK / info->channels + 1;
    float *out = s2s_xmalloc((size_t)(step * info->channels) * sizeof *out);
    int64_t n_samples = 0, n;
    int rc = 0;
    while ((n = sf_readf_float(reader->snd, out, step)) > 0)
        n_samples += n;
    if (sf_error(reader->snd))
        rc = s2s_error_set(err, S2S_E_FORMAT, "%s: after %lld samples: %s", reader->container.kind,
                           (long long)n_samples, sf_strerror(reader->snd));
    free(out);
    sf_close(reader->snd);
    reader->snd = open_memory(info, &reader->memory);
    info->frames = n_samples;
    if (rc == 0 && !reader->snd)
        rc = s2s_error_set(err, S2S_E_NOMEM, "%s: cannot be opened again", reader->container.kind);
    return rc;
}

/* What libsndfile says, against what the container says. */
static int check_snd(struct reader *reader, SF_INFO info, struct s2s_error *err)
{
    if (info.frames == SF_COUNT_MAX && info.channels > 0) {
        int rc = count_samples(reader, &info, err);
        if (rc < 0)
            return rc;
    }
    reader->info =
        (struct s2s_audio_info){info.samplerate, info.channels, info.frames, is_int16(info.format)};
    reader->is_seekable = info.seekable;
    int64_t promised = reader->container.n_samples;
    if (promised > info.frames)
        return s2s_error_set(err, S2S_E_TRUNCATED,
                             "%s: the header promises %lld samples, %lld are there",
                             reader->container.kind, (long long)promised, (long long)info.frames);
    const int64_t untold = reader->container.untold;
    if (untold > info.frames + info.samplerate / 10) {
        /* it takes all frames to be as large as the first, and reads no further; tags before them
         * and small first frames make too many of it, and then it reads all */
        int rc = s2s_error_set(err, S2S_E_UNSUPPORTED,
                               "MP3: frames of %lld samples, of which libsndfile finds %lld, as no "
                               "Xing tag tells their number",
                               (long long)untold, (long long)info.frames);
        return s2s_error_hint(err, rc, "store it anew: ffmpeg -i IN.mp3 -c copy OUT.mp3");
    }
    if (untold > 0 && untold < info.frames)
        reader->info.n_samples = untold;
    if (info.samplerate <= 0 || info.channels <= 0 || info.frames < 0)
        return s2s_error_set(err, S2S_E_FORMAT, "%s: %d Hz, %d channels", reader->container.kind,
                             info.samplerate, info.channels);
    return 0;
}

static int open_snd(struct reader *reader, bool is_checked, struct s2s_error *err)
{
    SF_INFO info;
    reader->snd = open_memory(&info, &reader->memory);
    const char *foreign =
        reader->snd ? NULL : audio_foreign_kind(reader->memory.bytes, (size_t)reader->memory.len);
    if (foreign) {
        int rc = s2s_error_set(err, S2S_E_UNSUPPORTED, "%s is not decoded here", foreign);
        return s2s_error_hint(err, rc, "make FLAC of it: ffmpeg -i IN -c:a flac OUT.flac");
    }
    if (!reader->snd) {
        int rc = s2s_error_set(err, S2S_E_FORMAT, "not a sound file that can be read: %s",
                               sf_strerror(NULL));
        return strcmp(reader->container.kind, "other") != 0
                   ? s2s_error_add(err, rc, "%s", reader->container.kind)
                   : rc;
    }
    return is_checked ? 0 : check_snd(reader, info, err);
}

static void reader_close(struct reader *reader)
{
    if (reader->snd)
        sf_close(reader->snd);
    reader->snd = NULL;
}

/* What `facts` has of the file is believed, what it lacks is found out and put there. */
static int reader_open(struct reader *reader, const void *bytes, size_t len,
                       struct audio_facts *facts, struct s2s_error *err)
{
    *reader = (struct reader){
        .container = facts->container, .info = facts->info, .is_seekable = facts->is_seekable};
    int rc = facts->is_checked ? 0 : audio_container_check(&reader->container, bytes, len, err);
    if (rc < 0)
        return rc;
    const struct audio_container *c = &reader->container;
    /* libsndfile loses its place behind a tag */
    reader->memory.bytes = (const unsigned char *)bytes + c->begin;
    reader->memory.len = (sf_count_t)(len - c->begin);
    if (is_direct(c))
        reader->info = (struct s2s_audio_info){c->rate_hz, c->channels, c->n_samples, true};
    else
        rc = open_snd(reader, facts->is_checked, err);
    if (rc < 0) {
        reader_close(reader);
        return rc;
    }
    facts->is_checked = true;
    facts->container = reader->container;
    facts->info = reader->info;
    facts->is_seekable = reader->is_seekable;
    return 0;
}

/* Up to n samples of all channels, interleaved, into out or (16-bit files) out16. */
static int64_t reader_read(struct reader *reader, float *out, int16_t *out16, int64_t n)
{
    if (reader->snd)
        return reader->info.int16 ? sf_readf_short(reader->snd, out16, n)
                                  : sf_readf_float(reader->snd, out, n);
    int64_t left = reader->info.n_samples - reader->at;
    size_t block = sizeof *out16 * (size_t)reader->info.n_channels;
    n = n < left ? n : left;
    memcpy(out16, reader->memory.bytes + reader->container.pcm + (size_t)reader->at * block,
           (size_t)n * block);
    reader->at += n;
    return n;
}

/* Where libsndfile is sent so that what it decodes is what it decodes of the whole file: MP3 and
 * Opus need frames from before (a second is more than enough), Vorbis is some samples off when it
 * is sent into the last page, and some files can only be read on. */
static int64_t place_before(const struct reader *reader, int64_t sample)
{
    if (!reader->is_seekable)
        return 0;
    if (!reader->container.has_memory)
        return sample;
    int64_t from = sample < reader->container.tail ? sample : reader->container.tail;
    return from > reader->info.rate_hz ? from - reader->info.rate_hz : 0;
}

static int reader_seek(struct reader *reader, int64_t sample, struct s2s_error *err)
{
    if (!reader->snd) {
        reader->at = sample;
        return 0;
    }
    int64_t at = place_before(reader, sample), step = CHUNK / reader->info.n_channels + 1, n = 1;
    if (at > 0 && sf_seek(reader->snd, at, SEEK_SET) != at)
        return s2s_error_set(err, S2S_E_FORMAT, "cannot go to sample %lld: %s", (long long)at,
                             sf_strerror(reader->snd));
    float *skipped = s2s_xmalloc((size_t)(step * reader->info.n_channels) * sizeof *skipped);
    for (; at < sample && n > 0; at += n)
        n = reader_read(reader, skipped, (int16_t *)(void *)skipped,
                        sample - at < step ? sample - at : step);
    free(skipped);
    return at == sample ? 0
                        : s2s_error_set(err, S2S_E_TRUNCATED,
                                        "%s: the decoder gave %lld samples of more than %lld",
                                        reader->container.kind, (long long)at, (long long)sample);
}

/* ---- channels ---- */

static void mix_down(float *out, const float *in, int64_t n, int n_channels, int channel)
{
    for (int64_t i = 0; i < n; i++, in += n_channels) {
        float sum = in[0];
        for (int c = 1; c < n_channels; c++)
            sum += in[c];
        out[i] = channel >= 0 ? in[channel] : sum / (float)n_channels;
    }
}

static int check_finite(const float *x, size_t n, struct s2s_error *err)
{
    float sum = 0; /* x - x is 0 for what is finite, else NaN */
    for (size_t i = 0; i < n; i++)
        sum += x[i] - x[i];
    if (sum == 0)
        return 0;
    size_t i = 0;
    while (isfinite(x[i]))
        i++;
    return s2s_error_set(err, S2S_E_NONFINITE, "sample %zu is %s", i,
                         isnan(x[i]) ? "NaN" : "infinite");
}

/* One channel, or all, of n samples that the file has interleaved. */
static void take_channels(float *to, const float *wide, int64_t n, int n_channels, int channel)
{
    if (n_channels == 1 || channel == S2S_AUDIO_ALL_CHANNELS)
        memcpy(to, wide, (size_t)(n * n_channels) * sizeof *to);
    else
        mix_down(to, wide, n, n_channels, channel);
}

/* Up to n samples as floats. */
static int64_t read_floats(struct reader *reader, float *to, int64_t n, int channel,
                           struct audio_room *chunk)
{
    const int n_channels = reader->info.n_channels;
    const size_t n_values = (size_t)(n * n_channels);
    if (!reader->info.int16 && n_channels == 1)
        return reader_read(reader, to, (int16_t *)(void *)to, n);
    float *wide = audio_room_reserve(chunk, n_values * (sizeof *wide + sizeof(int16_t)));
    int16_t *wide16 = (int16_t *)(void *)(wide + n_values);
    n = reader_read(reader, wide, wide16, n);
    if (n <= 0)
        return n;
    if (!reader->info.int16) {
        take_channels(to, wide, n, n_channels, channel);
    } else if (n_channels == 1 || channel == S2S_AUDIO_ALL_CHANNELS) {
        s2s_audio_from_s16(to, wide16, (size_t)(n * n_channels));
    } else {
        s2s_audio_from_s16(wide, wide16, (size_t)(n * n_channels));
        mix_down(to, wide, n, n_channels, channel);
    }
    return n;
}

/* Up to n samples of a file of 16 bits as they are, of its only channel or the chosen one. */
static int64_t read_s16(struct reader *reader, int16_t *to, int64_t n, int channel,
                        struct audio_room *chunk)
{
    const int n_channels = reader->info.n_channels;
    if (n_channels == 1)
        return reader_read(reader, NULL, to, n);
    int16_t *wide = audio_room_reserve(chunk, (size_t)(n * n_channels) * sizeof *wide);
    n = reader_read(reader, NULL, wide, n);
    for (int64_t i = 0; i < n; i++)
        to[i] = wide[i * n_channels + channel];
    return n;
}

/* Reads n_wanted samples, of which that many are promised, into one channel, or all of them. */
static int read_samples(struct reader *reader, struct s2s_audio *out, int64_t n_wanted,
                        const struct s2s_audio_options *opt, bool s16, struct s2s_error *err)
{
    enum { BELIEVED = 1 << 20 }; /* samples of the promise that get memory before they come */
    const int n_channels = reader->info.n_channels;
    const size_t width = opt->channel == S2S_AUDIO_ALL_CHANNELS ? (size_t)n_channels : 1;
    const size_t sample_bytes = s16 ? sizeof(int16_t) : width * sizeof(float);
    const int64_t step = CHUNK / n_channels > 0 ? CHUNK / n_channels : 1;
    struct audio_room *room = &opt->space->decoded, *chunk = &opt->space->chunk;
    int64_t done = 0, cap = n_wanted < BELIEVED ? n_wanted : BELIEVED, n = 1;
    char *to = audio_room_reserve(room, (size_t)cap * sample_bytes);
    for (; done < n_wanted; done += n) {
        n = n_wanted - done < step ? n_wanted - done : step;
        if (done + n > cap) {
            cap = 2 * cap < n_wanted ? 2 * cap : n_wanted;
            to = audio_room_reserve(room, (size_t)cap * sample_bytes);
        }
        void *at = to + (size_t)done * sample_bytes;
        n = s16 ? read_s16(reader, at, n, opt->channel, chunk)
                : read_floats(reader, at, n, opt->channel, chunk);
        if (n <= 0)
            break;
    }
    out->is_lent = true;
    out->data = s16 ? NULL : (float *)(void *)to;
    out->s16 = s16 ? (int16_t *)(void *)to : NULL;
    out->n_samples = (size_t)done;
    if (done < n_wanted)
        return s2s_error_set(err, S2S_E_TRUNCATED, "%s: the decoder gave %lld samples of %lld%s%s",
                             reader->container.kind, (long long)done, (long long)n_wanted,
                             reader->snd && sf_error(reader->snd) ? ": " : "",
                             reader->snd && sf_error(reader->snd) ? sf_strerror(reader->snd) : "");
    return reader->info.int16 ? 0 : check_finite(out->data, out->n_samples * width, err);
}

/* ---- the asked range ---- */

static int find_range(const struct s2s_audio_info *info, const struct s2s_audio_options *opt,
                      int64_t *begin, int64_t *n, struct s2s_error *err)
{
    int64_t total = info->n_samples;
    int rate = info->rate_hz;
    if (!(opt->offset_s >= 0) || !(opt->duration_s >= 0) || opt->offset_s > 1e9 ||
        opt->duration_s > 1e9)
        return s2s_error_set(err, S2S_E_RANGE, "offset %g s, duration %g s", opt->offset_s,
                             opt->duration_s);
    *begin = s2s_audio_n_samples(opt->offset_s, rate);
    *n = opt->duration_s > 0 ? s2s_audio_n_samples(opt->duration_s, rate) : total - *begin;
    int64_t missing = *begin + *n - total;
    if (total == 0)
        return s2s_error_set(err, S2S_E_EMPTY, "no sample in the file");
    if (*begin >= total || missing > (int64_t)(opt->tolerance_s * rate + 0.5))
        return s2s_error_set(err, S2S_E_TRUNCATED,
                             "wanted are %g s from %g s on, the file ends at %g s",
                             (double)(*n > 0 ? *n : 0) / rate, opt->offset_s, (double)total / rate);
    if (missing > 0)
        *n -= missing;
    return *n > 0 ? 0 : s2s_error_set(err, S2S_E_EMPTY, "no sample in the asked range");
}

/* Samples of the range in the end. */
static int64_t n_changed(int64_t n, const struct s2s_audio_options *opt, int from_hz)
{
    const int to_hz = opt->rate_hz > 0 ? opt->rate_hz : from_hz;
    if (opt->fits && !s2s_audio_changes_length(&opt->change))
        return s2s_audio_n_samples(opt->duration_s, to_hz);
    if (opt->fits)
        n = s2s_audio_n_samples(opt->duration_s, from_hz);
    return s2s_audio_n_changed(n, &opt->change, from_hz, to_hz);
}

int s2s_audio_measure(int64_t *n_samples, const struct s2s_audio_info *info,
                      const struct s2s_audio_options *opt, struct s2s_error *err)
{
    int64_t begin = 0, n = 0;
    int rc = find_range(info, opt, &begin, &n, err);
    if (rc == 0)
        *n_samples = n_changed(n, opt, info->rate_hz);
    return rc;
}

int64_t s2s_audio_mirrored(int64_t at, int64_t n)
{
    if (n < 2)
        return 0;
    const int64_t period = 2 * (n - 1), in_period = at % period;
    return in_period < n ? in_period : period - in_period;
}

/* Memory for n samples that has those of audio. */
static void reserve(struct s2s_audio *audio, int64_t n, struct s2s_audio_space *space)
{
    if (!audio->is_lent)
        audio->data = s2s_xrealloc(audio->data, (size_t)n, sizeof *audio->data);
    else
        audio->data = audio_room_reserve(audio->data == space->decoded.data ? &space->decoded
                                                                            : &space->changed,
                                         (size_t)n * sizeof *audio->data);
}

/* Cuts off what is more than n, and goes on with the mirror image for what is less. */
static void fit(struct s2s_audio *audio, int64_t n, struct s2s_audio_space *space)
{
    const int64_t had = (int64_t)audio->n_samples;
    if (n > had && had > 0) {
        reserve(audio, n, space);
        for (int64_t i = had; i < n; i++)
            audio->data[i] = audio->data[s2s_audio_mirrored(i, had)];
    }
    audio->n_samples = (size_t)n;
}

/* Is what is decoded given as it is? */
static bool is_kept(const struct s2s_audio_options *opt, int from_hz)
{
    return !opt->fits && (opt->rate_hz <= 0 || opt->rate_hz == from_hz) &&
           !s2s_audio_changes(&opt->change);
}

int s2s_audio_finish(struct s2s_audio *audio, const struct s2s_audio_options *opt,
                     struct s2s_error *err)
{
    const int from_hz = audio->rate_hz, to_hz = opt->rate_hz > 0 ? opt->rate_hz : from_hz;
    struct s2s_audio_space *space = opt->space;
    int rc = 0;
    if (is_kept(opt, from_hz))
        return 0;
    if (opt->fits)
        fit(audio, s2s_audio_n_samples(opt->duration_s, from_hz), space);
    const int64_t had = (int64_t)audio->n_samples, n = n_changed(had, opt, from_hz);
    if (from_hz != to_hz || s2s_audio_changes(&opt->change)) {
        const int64_t n_out = s2s_audio_n_changed(had, &opt->change, from_hz, to_hz);
        const size_t len_bytes = (size_t)(n_out + 1) * sizeof(float);
        float *out =
            space ? audio_room_reserve(&space->changed, len_bytes) : s2s_xmalloc(len_bytes);
        rc = s2s_audio_change(out, audio->data, had, &opt->change, from_hz, to_hz, err);
        if (!audio->is_lent)
            free(audio->data);
        audio->data = out;
        audio->is_lent = space;
        audio->n_samples = (size_t)n_out;
        audio->rate_hz = to_hz;
        audio->int16 = false;
    }
    if (opt->fits)
        fit(audio, n, space);
    return rc;
}

/* Lends n samples of 16 bits where they lie in the space's copy of the file, if they do. */
static bool lend_s16(struct s2s_audio *out, const struct reader *reader, int64_t n,
                     const struct s2s_audio_space *space)
{
    const unsigned char *bytes = reader->memory.bytes + reader->container.pcm + 2 * reader->at;
    if (reader->snd || reader->info.n_channels != 1 || reader->memory.bytes != space->file.data ||
        (uintptr_t)bytes % sizeof *out->s16)
        return false;
    out->is_lent = true;
    out->s16 = (int16_t *)(uintptr_t)bytes;
    out->n_samples = (size_t)n;
    return true;
}

/* opt->space is there. */
static int decode(struct s2s_audio *out, struct reader *reader, const struct s2s_audio_options *opt,
                  struct s2s_error *err)
{
    int64_t begin = 0, n = 0;
    out->in = reader->info;
    out->rate_hz = reader->info.rate_hz;
    out->int16 = reader->info.int16 && (reader->info.n_channels == 1 || opt->channel >= 0);
    if (opt->channel >= reader->info.n_channels)
        return s2s_error_set(err, S2S_E_RANGE, "channel %d of %d", opt->channel,
                             reader->info.n_channels);
    int rc = find_range(&reader->info, opt, &begin, &n, err);
    if (rc == 0)
        rc = reader_seek(reader, begin, err);
    const bool s16 = opt->s16 && out->int16 && opt->channel != S2S_AUDIO_ALL_CHANNELS &&
                     is_kept(opt, out->rate_hz);
    if (rc == 0 && !(s16 && lend_s16(out, reader, n, opt->space)))
        rc = read_samples(reader, out, n, opt, s16, err);
    return rc < 0 || opt->channel == S2S_AUDIO_ALL_CHANNELS ? rc : s2s_audio_finish(out, opt, err);
}

/* What is decoded into a space that is given up becomes the sound's own. */
static void take_over(struct s2s_audio *audio, struct s2s_audio_space *space)
{
    const void *samples = audio->s16 ? (void *)audio->s16 : audio->data;
    struct audio_room *room = samples == space->decoded.data ? &space->decoded : &space->changed;
    if (audio->is_lent)
        room->data = NULL;
    audio->is_lent = false;
    audio_space_release(space);
}

static int decode_bytes(struct s2s_audio *out, const void *bytes, size_t len,
                        const struct s2s_audio_options *opt, struct audio_facts *facts,
                        struct s2s_error *err)
{
    struct reader reader;
    struct s2s_audio_space own = {.file = {NULL, 0}};
    struct s2s_audio_options here = *opt;
    here.space = opt->space ? opt->space : &own;
    *out = (struct s2s_audio)S2S_AUDIO_INIT;
    audio_quiet_begin();
    int rc = reader_open(&reader, bytes, len, facts, err);
    if (rc == 0) {
        rc = decode(out, &reader, &here, err);
        reader_close(&reader);
    }
    audio_quiet_end();
    if (!opt->space)
        take_over(out, &own);
    if (rc < 0) {
        s2s_audio_release(out);
        return rc;
    }
    if (opt->digest && !facts->xxh3[0])
        s2s_xxh3_128_hex(facts->xxh3, bytes, len);
    if (opt->digest)
        memcpy(out->xxh3, facts->xxh3, sizeof out->xxh3);
    return 0;
}

static const struct s2s_audio_options default_options = S2S_AUDIO_OPTIONS_DEFAULT;

int s2s_audio_decode_bytes(struct s2s_audio *out, const void *bytes, size_t len,
                           const struct s2s_audio_options *opt, struct s2s_error *err)
{
    struct audio_facts facts = {.is_checked = false};
    return decode_bytes(out, bytes, len, opt ? opt : &default_options, &facts, err);
}

static int info_bytes(const void *bytes, size_t len, struct audio_facts *facts,
                      struct s2s_error *err)
{
    struct reader reader;
    audio_quiet_begin();
    int rc = reader_open(&reader, bytes, len, facts, err);
    if (rc == 0)
        reader_close(&reader);
    audio_quiet_end();
    return rc;
}

int s2s_audio_info_bytes(struct s2s_audio_info *info, const void *bytes, size_t len,
                         struct s2s_error *err)
{
    struct audio_facts facts = {.is_checked = false};
    int rc = info_bytes(bytes, len, &facts, err);
    if (rc == 0)
        *info = facts.info;
    return rc;
}

/* ---- files ---- */

struct mapped {
    struct stat st;
    int fd;
    const void *bytes;
    size_t len;
    bool is_mapped;
};

static int open_file(struct mapped *file, const char *path, struct s2s_error *err)
{
    /* a named pipe is refused, not waited for */
    *file = (struct mapped){.bytes = "", .fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
    if (file->fd < 0 || fstat(file->fd, &file->st) < 0)
        return s2s_error_errno(err, S2S_E_OPEN, "cannot open");
    return S_ISREG(file->st.st_mode) ? 0 : s2s_error_set(err, S2S_E_OPEN, "not a regular file");
}

/* populate: all of it will be read; else the pages that are touched. */
static int map_file(struct mapped *file, bool populate, struct s2s_error *err)
{
    const size_t len = (size_t)file->st.st_size;
    const int flags = MAP_PRIVATE | (populate ? MAP_POPULATE : 0);
    void *map = len > 0 ? mmap(NULL, len, PROT_READ, flags, file->fd, 0) : (void *)"";
    if (map == MAP_FAILED)
        return s2s_error_errno(err, S2S_E_IO, "cannot map %zu bytes", len);
    file->bytes = map;
    file->len = len;
    file->is_mapped = len > 0;
    return 0;
}

/* Copies all of it: of a small file that is faster than a map, and stays in the cache. */
static int read_file(struct mapped *file, struct audio_room *room, struct s2s_error *err)
{
    const size_t len = (size_t)file->st.st_size;
    file->bytes = audio_room_reserve(room, len + 1);
    file->len = len;
    return s2s_pread(file->fd, room->data, len, 0, err);
}

static void close_file(struct mapped *file)
{
    if (file->is_mapped)
        munmap((void *)(uintptr_t)file->bytes, file->len);
    if (file->fd >= 0)
        close(file->fd);
}

int s2s_audio_decode_file(struct s2s_audio *out, const char *path,
                          const struct s2s_audio_options *opt, struct s2s_error *err)
{
    struct mapped file;
    struct audio_facts facts;
    opt = opt ? opt : &default_options;
    *out = (struct s2s_audio)S2S_AUDIO_INIT;
    int rc = open_file(&file, path, err);
    if (rc == 0) {
        audio_known_find(&facts, opt->known, &file.st);
        /* of a part only its pages are mapped in: the digest reads the file piece by piece */
        const bool is_part = opt->offset_s > 0 || opt->duration_s > 0;
        if (is_part && opt->digest && !facts.xxh3[0] &&
            (rc = s2s_digest_file(facts.xxh3, path, err)) < 0) {
            close_file(&file);
            return rc; /* names the file already */
        }
        rc = opt->space && !is_part && file.st.st_size <= COPIED_BYTES
                 ? read_file(&file, &opt->space->file, err)
                 : map_file(&file, !is_part, err);
    }
    if (rc == 0)
        rc = decode_bytes(out, file.bytes, file.len, opt, &facts, err);
    if (rc == 0)
        audio_known_add(opt->known, &file.st, &facts);
    close_file(&file);
    return rc < 0 ? s2s_error_add(err, rc, "%s", path) : 0;
}

/* Of a file whose first bytes say all of it: of a small one a map costs more than to decode it. */
static int look_at_head(struct audio_facts *facts, const struct mapped *file, struct s2s_error *err)
{
    unsigned char head[4096];
    const size_t len = (size_t)file->st.st_size, n = len < sizeof head ? len : sizeof head;
    struct audio_container container;
    struct reader reader;
    int rc = s2s_pread(file->fd, head, n, 0, err);
    if (rc < 0 || !audio_container_needs_head(head, n))
        return rc;
    rc = audio_container_check(&container, head, len, err);
    if (rc < 0 || !is_direct(&container))
        return rc;
    facts->is_checked = true;
    facts->container = container;
    return reader_open(&reader, head, len, facts, err);
}

int s2s_audio_info_file(struct s2s_audio_info *info, const char *path,
                        struct s2s_audio_known *known, struct s2s_error *err)
{
    struct mapped file;
    struct audio_facts facts;
    int rc = open_file(&file, path, err);
    if (rc == 0)
        audio_known_find(&facts, known, &file.st);
    if (rc == 0 && !facts.is_checked)
        rc = look_at_head(&facts, &file, err);
    if (rc == 0 && !facts.is_checked && (rc = map_file(&file, false, err)) == 0 &&
        (rc = info_bytes(file.bytes, file.len, &facts, err)) == 0)
        audio_known_add(known, &file.st, &facts);
    if (rc == 0)
        *info = facts.info;
    close_file(&file);
    return rc < 0 ? s2s_error_add(err, rc, "%s", path) : 0;
}
