/* The pickle machine: any bytes, both modes, and the tree as JSON. */
#include <stddef.h>
#include <stdint.h>

#include "lib/base/base.h"
#include "lib/ckpt/pickle/pickle.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct ckpt_pickle pickle;
    struct s2s_error err = S2S_ERROR_INIT;
    for (int mode = CKPT_STRICT; mode <= CKPT_OPEN; mode++)
        if (ckpt_pickle_parse(&pickle, data, size, (enum ckpt_pickle_mode)mode, &err) == 0) {
            struct ckpt_json_left left = ckpt_json_limit(size);
            json_decref(ckpt_node_json(pickle.root, &left));
            ckpt_pickle_release(&pickle);
        }
    return 0;
}
