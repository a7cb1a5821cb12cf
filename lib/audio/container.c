/*
 * libsndfile (like most decoders) takes a cut file as a shorter one. Here the container's own words
 * are held against the bytes: RIFF/RIFX/RF64 WAV, W64, AIFF, AU, CAF, SPHERE, Ogg (RFC 3533), FLAC
 * (RFC 9639), MP3.
 */
#include <pthread.h>
#include <stdlib.h>

#include "lib/audio/audio_internal.h"
#include "lib/base/le.h"

static uint32_t be32(const unsigned char *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

/* Of a container of either byte order. */
static uint32_t u32_of(const unsigned char *p, bool is_big)
{
    return is_big ? be32(p) : s2s_le32(p);
}

static int truncated(struct s2s_error *err, const char *kind, const char *what, uint64_t promised,
                     uint64_t there)
{
    return s2s_error_set(err, S2S_E_TRUNCATED,
                         "%s: %s promises %llu bytes, the file has %llu of them", kind, what,
                         (unsigned long long)promised, (unsigned long long)there);
}

/* ---- WAV ---- */

/* What writers into a pipe leave as a size, because they could not go back: to the end of the file.
 * Zero is one of them, unless the outer size shows that the writer did go back. */
static bool is_unknown_size(uint64_t size, bool outer_fits)
{
    return size == UINT32_MAX || size == INT32_MAX || size == 0x80000000 || size == 0x7ffff000 ||
           (size == 0 && !outer_fits);
}

struct wav {
    const unsigned char *format;
    uint32_t format_len;
    uint64_t data64; /* RF64: the real size of data */
    bool is_big;     /* RIFX: numbers begin with their high byte */
    bool outer_fits; /* the size of all chunks is that of the file */
};

/* begin: of the samples. */
static int wav_data(struct audio_container *container, const struct wav *wav, size_t begin,
                    uint64_t size, size_t there, struct s2s_error *err)
{
    if (size == UINT32_MAX && wav->data64)
        size = wav->data64;
    else if (is_unknown_size(size, wav->outer_fits))
        size = there;
    if (size > there)
        return truncated(err, "WAV", "chunk data", size, there);
    if (!wav->format || wav->format_len < 16 || wav->is_big)
        return 0;
    uint32_t channels = s2s_le16(wav->format + 2), block = s2s_le16(wav->format + 12);
    uint32_t tag = s2s_le16(wav->format);
    if (tag == 0xfffe && wav->format_len >= 26) /* extensible: the tag is in the GUID */
        tag = s2s_le16(wav->format + 24);
    if (tag != 1 || block == 0 || channels == 0)
        return 0;
    if (size % block)
        return s2s_error_set(err, S2S_E_TRUNCATED,
                             "WAV: the data end inside a sample (%llu bytes, %u a sample)",
                             (unsigned long long)size, block);
    container->n_samples = (int64_t)(size / block);
    if (s2s_le16(wav->format + 14) == 16 && block == 2 * channels) {
        container->pcm = begin;
        container->rate_hz = (int)s2s_le32(wav->format + 4);
        container->channels = (int)channels;
    }
    return 0;
}

static bool is_wav(const unsigned char *bytes, size_t len)
{
    return len >= 12 &&
           (!memcmp(bytes, "RIFF", 4) || !memcmp(bytes, "RIFX", 4) || !memcmp(bytes, "RF64", 4)) &&
           !memcmp(bytes + 8, "WAVE", 4);
}

/* A WAV is looked at up to where its samples begin. */
bool audio_container_needs_head(const unsigned char *head, size_t n)
{
    uint64_t at = 12;
    while (is_wav(head, n) && at + 8 <= n) {
        if (!memcmp(head + at, "data", 4))
            return true;
        const uint64_t size = u32_of(head + at + 4, head[3] == 'X');
        at += 8 + size + size % 2;
    }
    return false;
}

static int check_wav(struct audio_container *container, const unsigned char *bytes, size_t len,
                     struct s2s_error *err)
{
    struct wav wav = {.is_big = bytes[3] == 'X'};
    container->kind = "WAV";
    wav.outer_fits = u32_of(bytes + 4, wav.is_big) + (uint64_t)8 == len;
    for (size_t at = 12; at + 8 <= len;) {
        const unsigned char *chunk = bytes + at;
        uint64_t size = u32_of(chunk + 4, wav.is_big);
        size_t there = len - at - 8;
        if (!memcmp(chunk, "data", 4))
            return wav_data(container, &wav, at + 8, size, there, err);
        if (size > there)
            return truncated(err, "WAV", "a chunk", size, there);
        if (!memcmp(chunk, "fmt ", 4))
            wav.format = chunk + 8, wav.format_len = (uint32_t)size;
        else if (!memcmp(chunk, "ds64", 4) && size >= 16)
            wav.data64 = s2s_le64(chunk + 16);
        at += 8 + size + size % 2;
    }
    return s2s_error_set(err, S2S_E_TRUNCATED, "WAV: the file ends before its data");
}

/* ---- AIFF, AU ---- */

static int check_aiff(struct audio_container *container, const unsigned char *bytes, size_t len,
                      struct s2s_error *err)
{
    container->kind = "AIFF";
    for (size_t at = 12; at + 8 <= len;) {
        uint64_t size = be32(bytes + at + 4);
        if (size > len - at - 8)
            return truncated(err, "AIFF", "a chunk", size, len - at - 8);
        if (!memcmp(bytes + at, "COMM", 4) && size >= 6)
            container->n_samples = be32(bytes + at + 10);
        if (!memcmp(bytes + at, "SSND", 4) && container->n_samples >= 0)
            return 0;
        at += 8 + size + size % 2;
    }
    return s2s_error_set(err, S2S_E_TRUNCATED, "AIFF: the file ends before its data");
}

static int check_au(struct audio_container *container, const unsigned char *bytes, size_t len,
                    struct s2s_error *err)
{
    container->kind = "AU";
    if (len < 24)
        return truncated(err, "AU", "the header", 24, len);
    const bool is_big = bytes[0] == '.';
    uint64_t begin = u32_of(bytes + 4, is_big), size = u32_of(bytes + 8, is_big);
    uint64_t there = begin < len ? len - begin : 0;
    if (size != UINT32_MAX && size > there)
        return truncated(err, "AU", "the header", size, there);
    return 0;
}

/* ---- W64, CAF, SPHERE ---- */

static int check_w64(struct audio_container *container, const unsigned char *bytes, size_t len,
                     struct s2s_error *err)
{
    container->kind = "W64";
    uint64_t size = len >= 24 ? s2s_le64(bytes + 16) : 24; /* of the whole file */
    if (size == UINT64_MAX)                                /* written into a pipe */
        return 0;
    return size > len ? truncated(err, "W64", "the header", size, len) : 0;
}

static int check_caf(struct audio_container *container, const unsigned char *bytes, size_t len,
                     struct s2s_error *err)
{
    container->kind = "CAF";
    for (size_t at = 8; at + 12 <= len;) {
        uint64_t size = (uint64_t)be32(bytes + at + 4) << 32 | be32(bytes + at + 8);
        size_t there = len - at - 12;
        const bool is_data = !memcmp(bytes + at, "data", 4);
        if (is_data && size == UINT64_MAX) /* to the end of the file */
            return 0;
        if (size > there)
            return truncated(err, "CAF", "a chunk", size, there);
        if (is_data)
            return 0;
        at += 12 + size;
    }
    return s2s_error_set(err, S2S_E_TRUNCATED, "CAF: the file ends before its data");
}

/* A text of a size that its second line says, with lines such as "sample_count -i 16000". */
static int check_sphere(struct audio_container *container, const unsigned char *bytes, size_t len,
                        struct s2s_error *err)
{
    char head[4096] = "";
    const char *key = "\nsample_count -i ", *at;
    container->kind = "SPHERE";
    memcpy(head, bytes, len < sizeof head - 1 ? len : sizeof head - 1);
    at = strstr(head, key);
    if (at)
        container->n_samples = strtoll(at + strlen(key), NULL, 10);
    else if (!strstr(head, "\nend_head"))
        return s2s_error_set(err, S2S_E_TRUNCATED, "SPHERE: the file ends inside of its header");
    return 0;
}

/* ---- Ogg ---- */

/* CRC-32 of polynomial 0x04c11db7, not reflected, start 0: eight bytes a step. */
static uint32_t crc_table[8][256];

static void make_crc_table(void)
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t crc = i << 24;
        for (int bit = 0; bit < 8; bit++)
            crc = crc << 1 ^ (crc >> 31 ? UINT32_C(0x04c11db7) : 0);
        crc_table[0][i] = crc;
    }
    for (uint32_t i = 0; i < 256; i++)
        for (int k = 1; k < 8; k++)
            crc_table[k][i] = crc_table[k - 1][i] << 8 ^ crc_table[0][crc_table[k - 1][i] >> 24];
}

static uint32_t crc_update(uint32_t crc, const unsigned char *p, size_t len)
{
    for (; len >= 8; p += 8, len -= 8) {
        uint32_t a = crc ^ be32(p), b = be32(p + 4);
        crc = crc_table[7][a >> 24] ^ crc_table[6][a >> 16 & 255] ^ crc_table[5][a >> 8 & 255] ^
              crc_table[4][a & 255] ^ crc_table[3][b >> 24] ^ crc_table[2][b >> 16 & 255] ^
              crc_table[1][b >> 8 & 255] ^ crc_table[0][b & 255];
    }
    for (; len > 0; p++, len--)
        crc = crc << 8 ^ crc_table[0][crc >> 24 ^ *p];
    return crc;
}

static uint32_t page_crc(const unsigned char *page, size_t len)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    static const unsigned char zero[4] = {0};
    pthread_once(&once, make_crc_table);
    uint32_t crc = crc_update(0, page, 22);
    return crc_update(crc_update(crc, zero, 4), page + 26, len - 26);
}

static int check_ogg(struct audio_container *container, const unsigned char *bytes, size_t len,
                     struct s2s_error *err)
{
    int last = 0;
    bool has_sound = false; /* a page that begins no stream was there */
    bool is_vorbis = len >= 35 && !memcmp(bytes + 28, "\x01vorbis", 7);
    int64_t end = 0; /* of the samples so far */
    container->kind = "Ogg";
    container->has_memory = true;
    for (size_t at = 0, n = 0; at < len; n++) {
        const unsigned char *page = bytes + at;
        size_t there = len - at, size = 27;
        if (there >= 4 && memcmp(page, "OggS", 4))
            return s2s_error_set(err, S2S_E_FORMAT, "Ogg: no page at byte %zu", at);
        if (there >= 27)
            size += page[26];
        if (there >= size)
            for (size_t i = 0, n_segments = size - 27; i < n_segments; i++)
                size += page[27 + i];
        if (there < size)
            return truncated(err, "Ogg", "the last page", size, there);
        if (page_crc(page, size) != s2s_le32(page + 22))
            return s2s_error_set(err, S2S_E_DIGEST,
                                 "Ogg: page %zu at byte %zu has a wrong checksum", n, at);
        if (has_sound && (page[5] & 2)) {
            int rc = s2s_error_set(err, S2S_E_UNSUPPORTED,
                                   "Ogg: another stream begins at byte %zu, and libsndfile reads "
                                   "the first alone",
                                   at);
            return s2s_error_hint(err, rc, "make one file of them: ffmpeg -i IN.ogg OUT.flac");
        }
        has_sound |= !(page[5] & 2);
        last = page[5] & 4;
        if (is_vorbis && (int64_t)s2s_le64(page + 6) >= 0) { /* -1: no packet ends in it */
            container->tail = end;
            end = (int64_t)s2s_le64(page + 6);
        }
        at += size;
    }
    if (!last)
        return s2s_error_set(err, S2S_E_TRUNCATED, "Ogg: the page that ends the stream is missing");
    return 0;
}

/* ---- FLAC ---- */

static int check_flac(struct audio_container *container, const unsigned char *bytes, size_t len,
                      struct s2s_error *err)
{
    container->kind = "FLAC";
    if (len < 42)
        return truncated(err, "FLAC", "the header", 42, len);
    uint64_t total = (uint64_t)(bytes[21] & 15) << 32 | be32(bytes + 22);
    container->n_samples = total ? (int64_t)total : -1;
    return 0;
}

/* ---- MP3 ---- */

/* Bytes of the frame whose header is at p; 0 when there is none. */
static size_t mp3_frame(const unsigned char *p)
{
    static const short kbps[2][3][15] = {
        {{0, 32, 64, 96, 128, 160, 192, 224, 256, 288, 320, 352, 384, 416, 448},
         {0, 32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384},
         {0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320}},
        {{0, 32, 48, 56, 64, 80, 96, 112, 128, 144, 160, 176, 192, 224, 256},
         {0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160},
         {0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160}}};
    static const int rates[3] = {44100, 48000, 32000};
    unsigned version = p[1] >> 3 & 3, layer = 4 - (p[1] >> 1 & 3); /* version 3: MPEG-1 */
    unsigned bitrate = p[2] >> 4, rate = p[2] >> 2 & 3, padding = p[2] >> 1 & 1;
    if (p[0] != 0xff || (p[1] & 0xe0) != 0xe0 || version == 1 || layer == 4 || bitrate == 0 ||
        bitrate == 15 || rate == 3)
        return 0;
    int hz = rates[rate] >> (version == 3 ? 0 : version == 2 ? 1 : 2);
    int bps = kbps[version != 3][layer - 1][bitrate] * 1000;
    if (layer == 1)
        return (size_t)(12 * bps / hz + (int)padding) * 4;
    int scale = layer == 3 && version != 3 ? 72 : 144; /* an eighth of the samples of a frame */
    return (size_t)(scale * bps / hz + (int)padding);
}

static int mp3_frame_samples(const unsigned char *p)
{
    unsigned version = p[1] >> 3 & 3, layer = 4 - (p[1] >> 1 & 3);
    return layer == 1 ? 384 : layer == 2 || version == 3 ? 1152 : 576;
}

/* Where the first frame has its Xing or Info tag, if it has one. */
static size_t mp3_tag(const unsigned char *frame)
{
    bool mpeg_1 = (frame[1] >> 3 & 3) == 3, mono = frame[3] >> 6 == 3;
    return 4 + (size_t)(mpeg_1 ? (mono ? 17 : 32) : (mono ? 9 : 17));
}

/* How many frames the first one says there are, itself not counted: Xing, Info or VBRI; 0: it does
 * not. */
static int64_t mp3_told_frames(const unsigned char *frame, size_t len)
{
    size_t at = mp3_tag(frame);
    if (len >= 54 && !memcmp(frame + 36, "VBRI", 4))
        return be32(frame + 50);
    if (len >= at + 12 && (!memcmp(frame + at, "Xing", 4) || !memcmp(frame + at, "Info", 4)) &&
        (be32(frame + at + 4) & 1))
        return be32(frame + at + 8);
    return 0;
}

/* Bytes from the first frame on that its Xing or Info tag promises; 0 when it has none. */
static size_t mp3_promised(const unsigned char *frame, size_t len)
{
    size_t at = mp3_tag(frame);
    if (len < at + 16 || (memcmp(frame + at, "Xing", 4) && memcmp(frame + at, "Info", 4)))
        return 0;
    uint32_t flags = be32(frame + at + 4);
    if (!(flags & 2))
        return 0;
    return be32(frame + at + 8 + (flags & 1 ? 4 : 0));
}

/* Bytes of the ID3v2 tag that stands here; 0: none does. */
static size_t id3_tag(const unsigned char *p, size_t len)
{
    if (len < 10 || memcmp(p, "ID3", 3))
        return 0;
    /* seven bits a byte; the tag may have a footer like its header */
    size_t size = (size_t)p[6] << 21 | (size_t)p[7] << 14 | (size_t)p[8] << 7 | p[9];
    return 10 + size + (p[5] & 0x10 ? 10 : 0);
}

/* Bytes of the tags between two frames, which files have that were joined; 0: no frame is behind.
 */
static size_t mp3_inner_tags(const unsigned char *p, size_t len)
{
    enum { ID3V1_BYTES = 128 };
    size_t at = 0;
    while (len - at >= 4 && !mp3_frame(p + at)) {
        size_t size = memcmp(p + at, "TAG", 3) ? id3_tag(p + at, len - at) : ID3V1_BYTES;
        if (size == 0 || size > len - at)
            return 0;
        at += size;
    }
    return len - at >= 4 ? at : 0;
}

/* Tags behind the frames: ID3v1, Lyrics3 and APE, or zeros. */
static int is_mp3_tail(const unsigned char *p, size_t len)
{
    static const char *const tags[] = {"TAG", "APETAGEX", "LYRICSBEGIN", "ID3"};
    for (size_t i = 0; i < sizeof tags / sizeof *tags; i++)
        if (len >= strlen(tags[i]) && !memcmp(p, tags[i], strlen(tags[i])))
            return 1;
    while (len > 0 && *p == 0)
        p++, len--;
    return len == 0;
}

/* Frames that the tag does not count are of a second file behind the first, and libsndfile reads
 * as many as it counts. */
static int check_mp3_count(int64_t n_frames, int64_t told, struct s2s_error *err)
{
    if (told == 0 || n_frames <= told + 2) /* the tag's own, and one for those who count it */
        return 0;
    int rc = s2s_error_set(err, S2S_E_UNSUPPORTED,
                           "MP3: %lld frames, of which its first says that there are %lld",
                           (long long)n_frames, (long long)told);
    return s2s_error_hint(err, rc, "store it anew: ffmpeg -i IN.mp3 -c copy OUT.mp3");
}

static int check_mp3(struct audio_container *container, const unsigned char *bytes, size_t len,
                     struct s2s_error *err)
{
    size_t at = id3_tag(bytes, len), n_frames = 0;
    int64_t n_samples = 0, told = 0;
    container->kind = "MP3";
    container->has_memory = true;
    if (at >= len)
        return truncated(err, "MP3", "the ID3 tag", at, len);
    while (len - at >= 4) {
        size_t size = mp3_frame(bytes + at);
        if (size < 4) {
            size_t tag = n_frames > 0 ? mp3_inner_tags(bytes + at, len - at) : 0;
            if (tag == 0)
                break;
            at += tag;
            continue;
        }
        size_t promised = n_frames == 0 ? mp3_promised(bytes + at, len - at) : 0;
        if (promised > len - at)
            return truncated(err, "MP3", "its first frame", promised, len - at);
        if (size > len - at)
            return truncated(err, "MP3", "the last frame", size, len - at);
        if (n_frames == 0)
            told = mp3_told_frames(bytes + at, len - at);
        n_samples += mp3_frame_samples(bytes + at);
        at += size;
        n_frames++;
    }
    container->untold = told == 0 ? n_samples : 0;
    int rc = check_mp3_count((int64_t)n_frames, told, err);
    if (rc < 0 || n_frames == 0 || at == len || is_mp3_tail(bytes + at, len - at))
        return rc; /* without a frame the decoder may still find one */
    if (len - at < 4)
        return truncated(err, "MP3", "the last frame", 4, len - at);
    return s2s_error_set(err, S2S_E_FORMAT, "MP3: no frame at byte %zu", at);
}

/* 1: nothing that is known by its first bytes. */
static int check_by_magic(struct audio_container *container, const unsigned char *bytes, size_t len,
                          struct s2s_error *err)
{
    if (is_wav(bytes, len))
        return check_wav(container, bytes, len, err);
    if (len >= 12 && !memcmp(bytes, "FORM", 4) && !memcmp(bytes + 8, "AIF", 3))
        return check_aiff(container, bytes, len, err);
    if (len >= 4 && (!memcmp(bytes, ".snd", 4) || !memcmp(bytes, "dns.", 4)))
        return check_au(container, bytes, len, err);
    if (len >= 16 && !memcmp(bytes, "riff\x2e\x91\xcf\x11\xa5\xd6\x28\xdb\x04\xc1", 14))
        return check_w64(container, bytes, len, err);
    if (len >= 8 && !memcmp(bytes, "caff", 4))
        return check_caf(container, bytes, len, err);
    if (len >= 8 && !memcmp(bytes, "NIST_1A\n", 8))
        return check_sphere(container, bytes, len, err);
    if (len >= 4 && !memcmp(bytes, "OggS", 4))
        return check_ogg(container, bytes, len, err);
    if (len >= 4 && !memcmp(bytes, "fLaC", 4))
        return check_flac(container, bytes, len, err);
    return 1;
}

int audio_container_check(struct audio_container *container, const unsigned char *bytes, size_t len,
                          struct s2s_error *err)
{
    *container = (struct audio_container){.kind = "other", .n_samples = -1, .tail = INT64_MAX};
    if (len == 0)
        return s2s_error_set(err, S2S_E_EMPTY, "the file is empty");
    size_t tag = id3_tag(bytes, len);
    tag = tag < len ? tag : 0;
    int rc = check_by_magic(container, bytes + tag, len - tag, err);
    if (rc <= 0)
        container->begin = tag;
    else if (len >= 4 && (!memcmp(bytes, "ID3", 3) || mp3_frame(bytes)))
        rc = check_mp3(container, bytes, len, err);
    return rc < 0 ? rc : 0;
}
