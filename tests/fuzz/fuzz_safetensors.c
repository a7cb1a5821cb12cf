/* Any bytes as a safetensors file: what is taken lies inside the bytes and can be written again. */
#include <stdint.h>
#include <stdlib.h>

#include "lib/base/base.h"
#include "lib/io/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile uint8_t sink;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct s2s_safetensors st;
    if (s2s_safetensors_parse(&st, data, size, NULL) < 0)
        return 0;
    for (size_t i = 0; i < st.n_tensors; i++) {
        const struct s2s_st_tensor *t = &st.tensors[i];
        const uint8_t *bytes = t->data;
        if (s2s_safetensors_find(&st, t->name) != t || t->len_bytes > size ||
            (uint64_t)s2s_st_numel(t) * s2s_dtype_size(t->dtype) != t->len_bytes)
            S2S_BUG("tensor '%s' is not what it says", t->name);
        for (size_t k = 0; k < t->len_bytes; k++)
            sink ^= bytes[k];
    }
    for (size_t i = 0; i < st.n_meta; i++)
        if (!s2s_safetensors_meta(&st, st.meta[i].key))
            S2S_BUG("metadata '%s' is lost", st.meta[i].key);
    char *header = NULL;
    size_t len = 0;
    if (s2s_safetensors_header(&header, &len, st.tensors, st.n_tensors, st.meta, st.n_meta, NULL) <
        0)
        S2S_BUG("what was read cannot be written");
    free(header);
    s2s_safetensors_release(&st);
    return 0;
}
