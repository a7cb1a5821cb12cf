/* The pickle machine: any bytes, both modes, and the tree as JSON; from a file the same, also where
 * lists are taken out of it while it is read. */
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#include "lib/base/base.h"
#include "lib/ckpt/pickle/pickle.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int take_lists(void *ctx, struct ckpt_node *key, struct ckpt_node *value,
                      struct s2s_error *err)
{
    return value->kind == CKPT_LIST;
}

/* Releases the pickle. NULL: it was refused. Gives: json_decref. */
static json_t *tree_of(struct ckpt_pickle *pickle, int rc, size_t size)
{
    struct ckpt_json_left left = ckpt_json_limit(size);
    if (rc < 0)
        return NULL;
    json_t *tree = ckpt_node_json(pickle->root, &left);
    ckpt_pickle_release(pickle);
    return tree;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static int fd = -1;
    struct ckpt_pickle pickle;
    struct s2s_error err = S2S_ERROR_INIT;
    s2s_log_set_verbosity(-1);
    if (fd < 0)
        fd = memfd_create("pickle", 0);
    if (ftruncate(fd, 0) < 0 || pwrite(fd, data, size, 0) != (ssize_t)size)
        abort();
    const struct ckpt_pickle_taker taker = {.item = take_lists, .dtensors = true};
    for (int mode = CKPT_STRICT; mode <= CKPT_OPEN; mode++) {
        int rc = ckpt_pickle_parse(&pickle, data, size, (enum ckpt_pickle_mode)mode, &err);
        json_t *tree = tree_of(&pickle, rc, size);
        rc = ckpt_pickle_parse_file(&pickle, fd, 0, size, (enum ckpt_pickle_mode)mode, NULL, &err);
        json_t *other = tree_of(&pickle, rc, size);
        if (!tree != !other || (tree && !json_equal(tree, other)))
            S2S_BUG("a pickle reads otherwise from a file");
        rc =
            ckpt_pickle_parse_file(&pickle, fd, 0, size, (enum ckpt_pickle_mode)mode, &taker, &err);
        json_decref(tree_of(&pickle, rc, size));
        json_decref(tree);
        json_decref(other);
    }
    return 0;
}
