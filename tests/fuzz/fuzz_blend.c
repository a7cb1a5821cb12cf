/* Blends of strangers, over two files that are there (a.txt and m.json): those that are accepted
 * are drawn from. run.sh: max_len=4096 */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/base.h"
#include "lib/data/blend.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char folder[] = "/tmp/s2s-fuzz-blend-XXXXXX";

static void put(const char *name, const void *bytes, size_t len)
{
    FILE *file = fopen(name, "wb");
    if (!file || fwrite(bytes, 1, len, file) != len || fclose(file) != 0)
        abort();
}

static int home; /* the folder that the driver works in */

static void clean_up(void)
{
    if (chdir(folder) != 0)
        return;
    unlink("a.txt");
    unlink("m.json");
    unlink("b.yaml");
    rmdir(folder);
}

static void make_folder(void)
{
    static const char text[] = "one\ntwo\nthree\n";
    static const char line[] =
        "{\"audio_filepath\": \"x.wav\", \"duration\": 1, \"text\": \"x\"}\n";
    static bool made;
    if (made) {
        if (chdir(folder) != 0)
            abort();
        return;
    }
    made = true;
    home = open(".", O_RDONLY | O_DIRECTORY);
    s2s_log_set_verbosity(-1);
    if (!mkdtemp(folder) || chdir(folder) != 0 || !freopen("/dev/null", "r", stdin))
        abort();
    atexit(clean_up);
    put("a.txt", text, sizeof text - 1);
    put("m.json", line, sizeof line - 1);
}

static void draw(const uint8_t *data, size_t size)
{
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_blend_options opt = {.source = S2S_SOURCE_OPTIONS_DEFAULT};
    struct s2s_source *source = NULL;
    struct s2s_place place;
    put("b.yaml", data, size);
    opt.n_samples = size % 2 ? 50 : 0;
    if (s2s_source_open_input_cfg(&source, "b.yaml", &opt, &err) < 0)
        return;
    for (int i = 0; i < 100; i++) {
        struct s2s_sample sample;
        if (s2s_source_next(source, &place, &err) <= 0)
            break;
        if (s2s_source_load(source, &sample, &place, &err) > 0)
            s2s_sample_release(&sample);
    }
    char hex[33];
    for (size_t k = 0; s2s_source_digest(source, k, hex); k++)
        ;
    s2s_source_close(source);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (memmem(data, size, "dev", 3) || memmem(data, size, "proc", 4)) /* not the machine's files */
        return 0;
    make_folder();
    draw(data, size);
    if (fchdir(home) != 0)
        abort();
    return 0;
}
