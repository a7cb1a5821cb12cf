/* The storages of a torch.save file, and how its tensors are added to the checkpoint. */
#include "lib/ckpt/pickle/dtensor.h"
#include "lib/ckpt/read/fsdp_place.h"
#include "lib/ckpt/read/torch_walk.h"

/* ---- storages ---- */

struct ckpt_torch_store *ckpt_find_torch_store(const struct ckpt_torch_stores *stores,
                                               const char *key, size_t len)
{
    if (memchr(key, 0, len))
        return NULL;
    char *text = s2s_xstrndup(key, len);
    const json_t *idx = json_object_get(stores->idx, text);
    free(text);
    return idx ? &stores->v[json_integer_value(idx)] : NULL;
}

struct ckpt_torch_store *ckpt_add_torch_store(struct ckpt_torch_stores *stores, const char *key,
                                              size_t len)
{
    struct ckpt_torch_store *had = ckpt_find_torch_store(stores, key, len);
    if (had || memchr(key, 0, len))
        return had;
    if (!stores->idx)
        stores->idx = json_object();
    char *text = s2s_xstrndup(key, len);
    json_object_set_new_nocheck(stores->idx, text, json_integer((json_int_t)stores->n));
    free(text);
    s2s_grow(&stores->v, stores->n, &stores->cap, sizeof *stores->v);
    stores->v[stores->n] = (struct ckpt_torch_store){.pos = 0};
    return &stores->v[stores->n++];
}

void ckpt_torch_stores_release(struct ckpt_torch_stores *stores)
{
    free(stores->v);
    json_decref(stores->idx);
    *stores = (struct ckpt_torch_stores){.v = NULL};
}

/* ---- tensors ---- */

int ckpt_torch_tensor(struct ckpt_torch_walk *w, struct s2s_ckpt_tensor *tensor, const char *name,
                      const struct ckpt_view *view)
{
    struct s2s_ckpt *ckpt = w->ckpt;
    const struct ckpt_torch_store *store =
        ckpt_find_torch_store(&w->stores, view->key, view->key_len);
    if (!store || !store->is_listed)
        return s2s_error_set(w->err, S2S_E_FORMAT, "storage %.*s is not in the file",
                             ckpt_shown_len(view->key_len, 40), view->key);
    if (store->len_bytes != view->store_len)
        return s2s_error_set(w->err, S2S_E_FORMAT,
                             "storage %.*s has %lld bytes, its tensor says %lld",
                             ckpt_shown_len(view->key_len, 40), view->key,
                             (long long)store->len_bytes, (long long)view->store_len);
    *tensor = (struct s2s_ckpt_tensor){.name = name,
                                       .dtype = view->dtype,
                                       .n_dims = view->n_dims,
                                       .shape = ckpt_arena_ints(ckpt, view->size, view->n_dims)};
    struct ckpt_chunk chunk = {.offset = ckpt_origin,
                               .size = tensor->shape,
                               .stride = view->stride,
                               .data =
                                   store->pos + view->offset * (int64_t)s2s_dtype_size(view->dtype),
                               .place = {.file = w->file,
                                         .located = true,
                                         .has_crc = store->crc != 0,
                                         .crc = store->crc,
                                         .store_pos = store->pos,
                                         .store_len = store->len_bytes}};
    ckpt_set_chunks(ckpt, tensor, &chunk, 1);
    return 0;
}

int ckpt_torch_take_name(struct ckpt_torch_walk *w, size_t len)
{
    if (len > w->names_left)
        return s2s_error_set(w->err, S2S_E_FORMAT,
                             "%.60s..: names far longer than the pickle itself: a bomb",
                             w->name.data);
    w->names_left -= len;
    return 0;
}

/* Adds a tensor under the current name. */
static int add_made(struct ckpt_torch_walk *w, const struct s2s_ckpt_tensor *made)
{
    struct s2s_ckpt_tensor *tensor;
    int rc = ckpt_torch_take_name(w, w->name.len);
    if (rc == 0)
        rc = ckpt_add_tensor(w->ckpt, &tensor, w->name.data, w->name.len, w->err);
    if (rc < 0)
        return rc;
    const char *name = tensor->name;
    *tensor = *made;
    tensor->name = name;
    return 0;
}

/* Adds what this FSDP rank has of a tensor, d; NULL: all of it. */
static int add_part(struct ckpt_torch_walk *w, struct s2s_ckpt_tensor *made,
                    const struct ckpt_dtensor *d)
{
    int rc;
    if (w->fsdp->rank == 0) {
        rc = ckpt_fsdp_place(w->fsdp, w->name.data, made, d, w->err);
        return rc < 0 ? rc : add_made(w, made);
    }
    rc = ckpt_torch_take_name(w, w->name.len);
    return rc < 0 ? rc : ckpt_fsdp_put(w->fsdp, w->name.data, w->name.len, made, d, w->err);
}

int ckpt_torch_add(struct ckpt_torch_walk *w, const struct ckpt_view *view)
{
    struct s2s_ckpt_tensor made;
    int rc = ckpt_torch_tensor(w, &made, NULL, view);
    if (rc == 0)
        rc = w->fsdp ? add_part(w, &made, NULL) : add_made(w, &made);
    return rc;
}

int ckpt_torch_add_dtensor(struct ckpt_torch_walk *w, const struct ckpt_node *node)
{
    struct ckpt_dtensor dtensor;
    struct s2s_ckpt_tensor made;
    int rc = ckpt_dtensor_of(&dtensor, node, w->err);
    if (rc == 0)
        rc = ckpt_torch_tensor(w, &made, NULL, &dtensor.local);
    return rc < 0 ? s2s_error_add(w->err, rc, "%s", w->name.len ? w->name.data : "tensor")
                  : add_part(w, &made, &dtensor);
}
