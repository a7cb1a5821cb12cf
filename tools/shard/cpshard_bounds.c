/* The bounds by which s2s-cpshard cuts a record. */
#include "tools/shard/cpshard.h"

enum cpshard_share cpshard_share_of(const char *name)
{
    static const char *const slots[] = {"input_ids", "labels", "position_ids", "loss_mask"};
    for (size_t i = 0; i < sizeof slots / sizeof *slots; i++)
        if (!strcmp(name, slots[i]))
            return CPSHARD_SLOTS;
    return strcmp(name, "audio_embeds") ? CPSHARD_COPY : CPSHARD_ROWS;
}

static int32_t *copy_i32(const struct s2s_st_tensor *t)
{
    int32_t *copy = s2s_xmalloc(t->len_bytes + sizeof *copy);
    memcpy(copy, t->data, t->len_bytes);
    return copy;
}

void cpshard_bounds_read(struct cpshard_bounds *bounds, const struct s2s_safetensors *st)
{
    const struct s2s_st_tensor *cu = s2s_safetensors_find(st, "cu_seqlens_padded");
    const struct s2s_st_tensor *slot = s2s_safetensors_find(st, "audio_slot");
    cu = cu ? cu : s2s_safetensors_find(st, "cu_seqlens");
    cpshard_bounds_release(bounds);
    bounds->cu_seqlens = copy_i32(cu);
    bounds->n_seqs = (size_t)cu->shape[0] - 1;
    bounds->slot = copy_i32(slot);
    bounds->frames = copy_i32(s2s_safetensors_find(st, "audio_frames"));
    bounds->clips = (struct s2s_thd_clips){bounds->slot, bounds->frames, (size_t)slot->shape[0]};
    bounds->n_slots = bounds->cu_seqlens[bounds->n_seqs];
}

void cpshard_bounds_release(struct cpshard_bounds *bounds)
{
    free(bounds->cu_seqlens);
    free(bounds->slot);
    free(bounds->frames);
    *bounds = (struct cpshard_bounds){.cu_seqlens = NULL};
}

size_t cpshard_stride(const struct s2s_st_tensor *tensor)
{
    size_t stride = s2s_dtype_size(tensor->dtype);
    for (int d = 1; d < tensor->n_dims; d++)
        stride *= (size_t)tensor->shape[d];
    return stride;
}
