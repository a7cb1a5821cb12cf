/* Shar and WebDataset's tars of strangers, walked and loaded. The first byte chooses; of Shar two
 * bytes of length (little-endian) and the cuts come before the tar. run.sh: max_len=16384 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "lib/base/base.h"
#include "lib/data/cut.h"
#include "lib/data/shar.h"
#include "lib/data/webdataset.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int file_of(const uint8_t *bytes, size_t len, char name[64], const char *field)
{
    int fd = memfd_create("fuzz", 0);
    if (fd < 0 || write(fd, bytes, len) != (ssize_t)len)
        abort();
    snprintf(name, 64, "%s/proc/self/fd/%d", field, fd);
    return fd;
}

static void load(const struct s2s_source *source, const struct s2s_place *place)
{
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_sample sample;
    void *bytes = NULL;
    size_t len;
    if (s2s_source_load(source, &sample, place, &err) <= 0)
        return;
    if (!sample.id || !sample.text)
        S2S_BUG("a sample without an id or a text");
    const struct s2s_sound *sound = s2s_sample_sound(&sample, 0);
    if (sound->tar && s2s_sound_read(sound, &bytes, &len, &err) == 0)
        free(bytes);
    s2s_sample_release(&sample);
}

static void walk(struct s2s_source *source)
{
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_place place;
    for (int i = 0, rc = 1; rc != 0 && i < 64; i++) {
        rc = s2s_source_next(source, &place, &err);
        if (rc > 0)
            load(source, &place);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_source_options opt = S2S_SOURCE_OPTIONS_DEFAULT;
    struct s2s_source *source = NULL;
    char cuts[64], tar[64];
    const char *specs[] = {tar, cuts};
    s2s_log_set_verbosity(-1);
    if (size < 3)
        return 0;
    const bool is_shar = data[0] & 1;
    size_t len = is_shar ? (size_t)data[1] | (size_t)data[2] << 8 : 0;
    const uint8_t *from = data + (is_shar ? 3 : 1), *end = data + size;
    len = len < (size_t)(end - from) ? len : (size_t)(end - from);
    opt.shuffle = data[0] & 2;
    opt.slice_length = data[0] & 4 ? 1 : 0;
    int fd = file_of(from, len, cuts, "cuts=");
    int tar_fd = file_of(from + len, (size_t)(end - from) - len, tar, is_shar ? "recording=" : "");
    int rc = is_shar ? s2s_source_open_shar(&source, specs, 2, &opt, &err)
                     : s2s_source_open_webdataset(&source, specs, 1, &opt, &err);
    if (rc == 0) {
        walk(source);
        s2s_source_rewind(source);
        walk(source);
        s2s_source_close(source);
    }
    close(fd);
    close(tar_fd);
    return 0;
}
