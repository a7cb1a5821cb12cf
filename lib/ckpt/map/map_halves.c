/*
 * The two halves of a gated MLP's first matrix (gate and up) as Megatron-Core up to 0.18 saves them
 * from --use-torch-fsdp2. There each data-parallel rank has a range of the rows of its
 * tensor-parallel rank's gate and up behind each other; the writer takes that range for a rank's
 * gate and up, cuts it in two, and puts one part among the gates and the other among the ups. Its
 * loader undoes that for as many ranks. Since 0.19 a range is saved whole, where it belongs.
 */
#include "lib/base/base.h"
#include "lib/ckpt/map/map_internal.h"
#include "lib/ckpt/model.h"

/* Ranks that each have a range of the rows of every tensor; 1: the data-parallel ranks have all. */
static int64_t count_sharing(const struct ckpt_map_engine *e)
{
    const char *format = json_string_value(json_object_get(e->args, "ckpt_format"));
    if (!json_is_true(json_object_get(e->args, "use_torch_fsdp2")) || !format ||
        strcmp(format, "torch_dist") != 0)
        return 1;
    const int64_t n = ckpt_map_number(e, "data_parallel_size", "data_parallel_size");
    const int64_t context = ckpt_map_number(e, "context_parallel_size", "context_parallel_size");
    return (n ? n : 1) * (context ? context : 1);
}

int ckpt_map_half(const struct ckpt_map_engine *e, const struct s2s_ckpt_tensor *t, int axis,
                  int half, ckpt_map_rows *add, void *ctx)
{
    static const char key[] = "tensor_model_parallel_size";
    const int64_t rows = t->shape[axis], n_sharing = count_sharing(e);
    const int64_t said = ckpt_map_number(e, key, key), n_ranks = said ? said : 1;
    const int64_t n = t->n_chunks ? ckpt_chunk_at(t, 0).size[axis] : 0, n_ranges = n ? rows / n : 0;
    const __int128 n_held = (__int128)n_ranks * n_sharing;
    if (n_sharing == 1 || rows == 0 || n_ranges == n_held) {
        add(ctx, half * (rows / 2), rows / 2);
        return 0;
    }
    if (n_ranges != 2 * n_held || rows % n) {
        int rc = s2s_error_set(e->err, S2S_E_UNSUPPORTED,
                               "%s: trained with --use-torch-fsdp2, of which Megatron-Core up to "
                               "0.18 saves the rows of gate and up mixed; a copy of what it saved "
                               "does not show whether these are",
                               t->name);
        return s2s_error_hint(e->err, rc, "convert what Megatron-LM itself saved");
    }
    for (int64_t rank = 0; rank < n_ranks; rank++)
        for (int64_t i = half * n_sharing; i < (half + 1) * n_sharing; i++)
            add(ctx, ((i % 2 * n_ranks + rank) * n_sharing + i / 2) * n, n);
    return 0;
}
