/* Folders of WebDataset's tars as Energon prepares them, and wids' lists of shards, of strangers:
 * walked and loaded. run.sh: max_len=16384 */
#include <stdint.h>
#include <stdlib.h>

#include "lib/data/webdataset.h"
#include "tests/fuzz/folder.h"

static const struct folder_name names[] = {
    {"0.tar", false},
    {"0.tar.idx", false},
    {".nv-meta/split.yaml", false},
    {".nv-meta/.info.json", false},
    {".nv-meta/dataset.yaml", false},
    {"list.json", false},
};

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
    if (s2s_sound_read(s2s_sample_sound(&sample, 0), &bytes, &len, &err) == 0)
        free(bytes);
    s2s_sample_release(&sample);
}

static void walk(const char *path)
{
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_source_options opt = S2S_SOURCE_OPTIONS_DEFAULT;
    struct s2s_source *source = NULL;
    struct s2s_place place;
    const char *paths[] = {path};
    if (s2s_source_open_webdataset(&source, paths, 1, &opt, &err) < 0)
        return;
    for (int i = 0, rc = 1; rc != 0 && i < 64; i++) {
        rc = s2s_source_next(source, &place, &err);
        if (rc > 0)
            load(source, &place);
    }
    s2s_source_close(source);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *list;
    /* names of the machine's files, and of others' folders */
    if (memmem(data, size, "dev", 3) || memmem(data, size, "proc", 4) ||
        memmem(data, size, "..", 2))
        return 0;
    folder_fill(data, size, names, sizeof names / sizeof *names);
    walk(folder);
    list = s2s_xasprintf("%s/list.json", folder);
    if (access(list, R_OK) == 0)
        walk(list);
    free(list);
    return 0;
}
