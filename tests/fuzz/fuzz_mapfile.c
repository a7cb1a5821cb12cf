/*
 * The reader of --map FILE alone: any text, every family of it, read as it is and with Hugging
 * Face's names on both sides; the parts of a "part" line are there or not. fuzz_map goes on with
 * what was read.
 */
/* run.sh: max_len=1024 */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "lib/base/base.h"
#include "lib/ckpt/map/map_internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static bool choose_second(void *ctx, const char *text, const char *family, const char *m_prefix,
                          const char *h_prefix)
{
    int *n_asked = ctx;
    if (!text || strpbrk(family, " \t\r\n|") || !m_prefix || !h_prefix)
        S2S_BUG("asked for the part \"%s\"", family);
    return ++*n_asked % 2 == 0;
}

/* what those who go through a map may take for granted */
static void demand_sound(const struct ckpt_map *map)
{
    for (size_t i = 0; i < map->n_rules; i++) {
        const struct ckpt_rule *rule = &map->rules[i];
        const bool drop = rule->transform == CKPT_MAP_DROP;
        if (!rule->megatron || !rule->hf || (!drop && !rule->same))
            S2S_BUG("rule %zu has no name", i);
        if (rule->section >= (int)map->n_sections || rule->group >= (int)map->n_stacks)
            S2S_BUG("rule %zu is of no section or stack", i);
        if (ckpt_map_items(rule->megatron) > 16 || ckpt_map_items(rule->hf) > 16)
            S2S_BUG("rule %zu has a long list", i);
    }
}

/* names as the family's lines "rename" say */
static void respell(const char *text, const char *family)
{
    static const struct s2s_ckpt_tensor tensors[] = {
        {.name = "a.b.c"},
        {.name = "a.b.d"},
        {.name = "a.x{y,.c"},
        {.name = "layers.3.experts.7.w"},
        {.name = "modality_submodules.a.encoders.b.x"}};
    const size_t n = sizeof tensors / sizeof *tensors;
    struct ckpt_map_source *sources = s2s_xcalloc(n, sizeof *sources);
    for (size_t i = 0; i < n; i++)
        sources[i] =
            (struct ckpt_map_source){.name = s2s_xstrdup(tensors[i].name), .tensor = &tensors[i]};
    ckpt_map_respell(sources, n, text, family);
    for (size_t i = 0; i < n; i++)
        if (!sources[i].name)
            S2S_BUG("a name was lost");
    ckpt_map_free_list(sources, n);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct ckpt_map_family family;
    char mirrored[66], *text = s2s_xmalloc(size + 1);
    memcpy(text, data, size);
    text[size] = 0;
    for (size_t at = 0, n = 0; n < 4 && ckpt_map_next_family(text, &at, &family); n++) {
        respell(text, family.name);
        for (int how = 0; how < 2; how++) {
            struct ckpt_map map;
            struct s2s_error err = S2S_ERROR_INIT;
            int n_asked = 0;
            snprintf(mirrored, sizeof mirrored, "=%s", family.name);
            const int rc =
                how ? ckpt_map_parse(&map, text, "map", mirrored, choose_second, &n_asked, &err)
                    : ckpt_map_parse(&map, text, "map", family.name, NULL, NULL, &err);
            if (rc < 0 && !*err.text)
                S2S_BUG("an error without a text");
            if (rc == 0) {
                demand_sound(&map);
                ckpt_map_release(&map);
            }
        }
    }
    free(text);
    return 0;
}
