/* The order of a step without a pipeline: a microbatch's activations are gone before the next. */
#include "lib/train/actions.h"

#include "lib/base/mem.h"

struct s2s_action *s2s_actions_new(int64_t n_microbatches, int64_t *n_actions)
{
    struct s2s_action *list = s2s_xcalloc((size_t)(2 * n_microbatches) + 1, sizeof *list);
    for (int64_t i = 0; i < n_microbatches; i++) {
        list[2 * i] = (struct s2s_action){S2S_ACTION_FORWARD, i};
        list[2 * i + 1] = (struct s2s_action){S2S_ACTION_BACKWARD, i};
    }
    *n_actions = 2 * n_microbatches;
    return list;
}
