/* The parts of memory by name, and numbers with units, for plan and --profile. */
#include "tools/train/memory.h"

static const char *unit_text(char *out, double x, double base, const char *const *units)
{
    while (x >= base && units[1]) {
        x /= base;
        units++;
    }
    const int digits = x >= 100 ? 1 : 2;
    snprintf(out, TRAIN_UNIT_TEXT, "%.*f %s", x == (double)(int64_t)x && x < 1000 ? 0 : digits, x,
             *units);
    return out;
}

const char *train_bytes_text(char *out, double bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", NULL};
    return unit_text(out, bytes, 1024, units);
}

const char *train_flops_text(char *out, double flops)
{
    static const char *const units[] = {"FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP", NULL};
    return unit_text(out, flops, 1000, units);
}

json_t *train_memory_json(const struct s2s_train_memory *memory)
{
    json_t *json = json_object();
    for (int i = 0; i < S2S_MEMORY_PARTS; i++)
        json_object_set_new(json, s2s_memory_parts[i].key,
                            json_integer(s2s_train_memory_part(memory, i)));
    json_object_set_new(json, "sum", json_integer(s2s_train_memory_sum(memory)));
    return json;
}

void train_memory_print(FILE *to, const struct s2s_train_memory *memory)
{
    char text[TRAIN_UNIT_TEXT];
    for (int i = 0; i < S2S_MEMORY_PARTS; i++)
        fprintf(to, "  %-26s %12s\n", s2s_memory_parts[i].title,
                train_bytes_text(text, (double)s2s_train_memory_part(memory, i)));
    fprintf(to, "  %-26s %12s\n", "sum",
            train_bytes_text(text, (double)s2s_train_memory_sum(memory)));
}
