/* Manifests, conversations, texts and tars of strangers, walked and loaded. The first byte chooses
 * the kind; with a tar, two bytes of length (little-endian) and a manifest come before it. run.sh:
 * max_len=8192 */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "lib/base/base.h"
#include "lib/data/tar_source.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A file in memory with these bytes, and its name. */
static int file_of(const uint8_t *bytes, size_t len, char name[32])
{
    int fd = memfd_create("fuzz", 0);
    if (fd < 0 || write(fd, bytes, len) != (ssize_t)len)
        abort();
    snprintf(name, 32, "/proc/self/fd/%d", fd);
    return fd;
}

static void load(const struct s2s_source *source, const struct s2s_place *place)
{
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_place at = *place;
    int n = 1;
    for (; at.variant < n && at.variant < 8; at.variant++) {
        struct s2s_sample sample;
        struct s2s_sound *sound;
        n = s2s_source_load(source, &sample, &at, &err);
        if (n <= 0)
            return;
        if (!sample.id || (!sample.has_ids && sample.n_turns == 0))
            S2S_BUG("a sample without an id or a turn");
        for (size_t k = 0; (sound = s2s_sample_sound(&sample, k)); k++) {
            void *bytes = NULL;
            size_t len;
            if (sound->tar && s2s_sound_read(sound, &bytes, &len, &err) == 0)
                free(bytes);
        }
        s2s_sample_release(&sample);
    }
}

static void walk(struct s2s_source *source)
{
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_place place;
    for (int i = 0; i < 64; i++) {
        int rc = s2s_source_next(source, &place, &err);
        if (rc == 0)
            break;
        if (rc > 0)
            load(source, &place);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_source_options opt = S2S_SOURCE_OPTIONS_DEFAULT;
    struct s2s_source *source = NULL;
    char lines[32], tar[32] = "";
    s2s_log_set_verbosity(-1);
    if (size < 3)
        return 0;
    const enum s2s_lines_kind kind =
        (enum s2s_lines_kind)((data[0] & 0x0f) % (S2S_LINES_PAIRS + 1));
    const bool with_tar = data[0] & 0x80 || kind == S2S_LINES_PAIRS;
    size_t len = with_tar ? (size_t)data[1] | (size_t)data[2] << 8 : size - 1;
    const uint8_t *from = data + (with_tar ? 3 : 1);
    len = len < size - (size_t)(from - data) ? len : size - (size_t)(from - data);
    opt.shuffle = data[0] & 0x40;
    opt.skip_missing = data[0] & 0x20;
    int fd = file_of(from, len, lines), tar_fd = -1;
    const char *manifests[] = {lines}, *tars[] = {tar};
    if (with_tar)
        tar_fd = file_of(from + len, size - (size_t)(from - data) - len, tar);
    int rc = kind == S2S_LINES_PAIRS
                 ? s2s_source_open_pairs(&source, manifests, tars, 1, &opt, &err)
             : with_tar ? s2s_source_open_tars(&source, kind, manifests, 1, tars, 1, &opt, &err)
                        : s2s_source_open_lines(&source, kind, manifests, 1, &opt, &err);
    if (rc == 0) {
        walk(source);
        s2s_source_rewind(source);
        walk(source);
    }
    s2s_source_close(source);
    close(fd);
    if (tar_fd >= 0)
        close(tar_fd);
    return 0;
}
