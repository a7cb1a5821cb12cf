/* Name maps of any text: every family, every rule against a name and back. */
/* run.sh: max_len=3000 */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "lib/base/base.h"
#include "lib/ckpt/map/map.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void try_map(const struct ckpt_map *map)
{
    struct ckpt_match match;
    for (size_t i = 0; i < map->n_rules; i++) {
        ckpt_map_match(map->rules[i].megatron, "decoder.layers.3.mlp.linear_fc1.weight", &match);
        match = (struct ckpt_match){.layer = 3, .expert = 2, .item = 0};
        char *name = ckpt_map_fill(map->rules[i].megatron, &match);
        ckpt_map_match(map->rules[i].megatron, name, &match);
        free(name);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct ckpt_map map;
    struct s2s_error err = S2S_ERROR_INIT;
    struct ckpt_map_family family;
    char *text = s2s_xmalloc(size + 1);
    memcpy(text, data, size);
    text[size] = 0;
    for (size_t at = 0, n = 0; n < 8 && ckpt_map_next_family(text, &at, &family); n++)
        if (ckpt_map_parse(&map, text, "map", family.name, NULL, NULL, &err) == 0) {
            try_map(&map);
            ckpt_map_release(&map);
        }
    free(text);
    return 0;
}
