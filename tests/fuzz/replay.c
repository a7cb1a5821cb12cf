/*
 * Runs a fuzz target over saved inputs without a fuzzer, so that old crashes are ordinary tests:
 * fuzz_NAME FILE|FOLDER...   prints the number of inputs; fails when there was none.
 */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int n_inputs;

static int replay_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (!file) {
        perror(path);
        return 1;
    }
    fseek(file, 0, SEEK_END);
    long size = ftell(file);
    rewind(file);
    /* exactly as large as the input, so that ASan sees the first byte read past it */
    uint8_t *data = malloc(size > 0 ? (size_t)size : 1);
    int bad = !data || fread(data, 1, (size_t)size, file) != (size_t)size;
    fclose(file);
    if (!bad) {
        LLVMFuzzerTestOneInput(data, (size_t)size);
        n_inputs++;
    }
    free(data);
    return bad;
}

static int replay_folder(const char *path)
{
    DIR *folder = opendir(path);
    if (!folder) {
        perror(path);
        return 1;
    }
    int bad = 0;
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        char name[4096];
        if (entry->d_name[0] == '.')
            continue;
        snprintf(name, sizeof name, "%s/%s", path, entry->d_name);
        bad |= replay_file(name);
    }
    closedir(folder);
    return bad;
}

int main(int argc, char **argv)
{
    int bad = 0;
    for (int i = 1; i < argc; i++) {
        struct stat st;
        bad |= stat(argv[i], &st) == 0 && S_ISDIR(st.st_mode) ? replay_folder(argv[i])
                                                              : replay_file(argv[i]);
    }
    printf("%d inputs\n", n_inputs);
    return bad || n_inputs == 0;
}
