/* Reads the calls that rebuild tensors. */
#include "lib/ckpt/pickle/view.h"

#include "lib/base/base.h"
#include "lib/ckpt/box.h"
#include "lib/ckpt/names.h"
#include "lib/ckpt/pickle/torch_dtype.h"

static int bad_view(const struct ckpt_node *node, const char *what, struct s2s_error *err)
{
    return s2s_error_set(err, S2S_E_FORMAT, "tensor at byte %u of its pickle: %s", node->offset,
                         what);
}

static int unknown_dtype(const struct ckpt_node *node, const struct ckpt_node *global,
                         struct s2s_error *err)
{
    if (!global || global->kind != CKPT_GLOBAL)
        return bad_view(node, "it names no dtype", err);
    size_t len;
    const char *name = ckpt_global_name(global, &len);
    return s2s_error_set(err, S2S_E_UNSUPPORTED,
                         "tensor at byte %u of its pickle: its dtype %.*s is not read",
                         node->offset, ckpt_shown_len(len, 40), name);
}

/* A persistent id is ('storage', class, key, location, numel). */
int ckpt_storage_of(const struct ckpt_node *persid, struct ckpt_view *view, struct s2s_error *err)
{
    const struct ckpt_node *parts = persid->kind == CKPT_PERSID ? persid->items[0] : NULL;
    int64_t count;
    if (!parts || parts->kind != CKPT_TUPLE || parts->n < 5 ||
        !ckpt_str_is(parts->items[0], "storage") || parts->items[1]->kind != CKPT_GLOBAL ||
        parts->items[2]->kind != CKPT_STR || !ckpt_get_int(parts->items[4], &count) || count < 0)
        return bad_view(persid, "it names no storage", err);
    if (parts->n > 5 && parts->items[5]->kind != CKPT_NONE)
        return s2s_error_set(err, S2S_E_UNSUPPORTED,
                             "storage that is a view of another (torch before 0.4)");
    const struct ckpt_node *class = parts->items[1];
    view->key = parts->items[2]->text;
    view->key_len = parts->items[2]->len;
    view->store_numel = view->store_len = count;
    view->dtype = S2S_DTYPE_NONE;
    if (ckpt_is(class, "torch.storage", "UntypedStorage"))
        return 0;
    size_t len;
    const char *name = ckpt_global_name(class, &len);
    if (ckpt_is_of(class, "torch"))
        view->dtype = ckpt_dtype_of_storage(name, len);
    if (!view->dtype) /* such as those of quantized tensors */
        return s2s_error_set(err, S2S_E_UNSUPPORTED,
                             "tensor at byte %u of its pickle: its storage class %.*s is not read",
                             persid->offset, ckpt_shown_len(len, 40), name);
    if (__builtin_mul_overflow(count, (int64_t)s2s_dtype_size(view->dtype), &view->store_len))
        return bad_view(persid, "its storage has an absurd size", err);
    return 0;
}

/* Checks that offset + sum((size - 1) * stride) is inside the storage; an empty tensor is placed at
 * its start. */
static int check_bounds(const struct ckpt_node *node, struct ckpt_view *view, struct s2s_error *err)
{
    __int128 last = view->offset;
    int64_t numel = ckpt_box_numel(view->size, view->n_dims);
    if (numel < 0 || view->offset < 0)
        return bad_view(node, "absurd size or offset", err);
    for (int d = 0; d < view->n_dims; d++)
        if (view->stride[d] < 0)
            return bad_view(node, "negative stride", err);
    if (numel == 0) {
        view->offset = 0;
        memset(view->stride, 0, sizeof view->stride);
        return 0;
    }
    /* the product of all sizes fits 63 bits, so this sum fits 127 */
    for (int d = 0; d < view->n_dims; d++)
        last += (__int128)(view->size[d] - 1) * view->stride[d];
    if (last >= view->store_numel)
        return bad_view(node, "it reaches past the end of its storage", err);
    return 0;
}

/* Refuses conjugated and negated views, whose storage has other numbers than the tensor. */
static int check_bits(const struct ckpt_node *node, const struct ckpt_node *args, uint32_t at,
                      struct s2s_error *err)
{
    static const char *const bits[] = {"conj", "neg"};
    const struct ckpt_node *metadata = args->n > at ? args->items[at] : NULL;
    for (size_t i = 0; i < 2 && metadata && metadata->kind == CKPT_DICT; i++) {
        const struct ckpt_node *set = ckpt_get(metadata, bits[i]);
        if (set && !(set->kind == CKPT_BOOL && !set->i)) {
            int rc = s2s_error_set(err, S2S_E_UNSUPPORTED,
                                   "tensor at byte %u of its pickle: a %s view, whose numbers are "
                                   "not those of its storage",
                                   node->offset, i ? "negated" : "conjugated");
            return s2s_error_hint(err, rc, "save it after resolve_%s()", bits[i]);
        }
    }
    return 0;
}

int ckpt_view_of(const struct ckpt_node *node, struct ckpt_view *view, struct s2s_error *err)
{
    if (node && node->kind == CKPT_TENSOR) {
        *view = *node->view;
        return 1;
    }
    if (!node || node->kind != CKPT_RECORD)
        return 0;
    bool v3 = ckpt_is(node, "torch._utils", "_rebuild_tensor_v3");
    if (!v3 && !ckpt_is(node, "torch._utils", "_rebuild_tensor_v2") &&
        !ckpt_is(node, "torch._utils", "_rebuild_tensor"))
        return 0;
    const struct ckpt_node *args = node->items[1];
    *view = (struct ckpt_view){.n_dims = 0};
    if (args->n < 4 || (v3 && args->n < 7))
        return bad_view(node, "too few arguments", err);
    enum s2s_dtype dtype = v3 ? ckpt_dtype_of_global(args->items[6]) : S2S_DTYPE_NONE;
    if (v3 && !dtype)
        return unknown_dtype(node, args->items[6], err);
    int rc = check_bits(node, args, v3 ? 7 : 6, err);
    if (rc == 0)
        rc = ckpt_storage_of(args->items[0], view, err);
    if (rc < 0)
        return rc;
    if (!view->dtype) { /* untyped storage: the count is in bytes */
        view->dtype = dtype;
        view->store_numel = dtype ? view->store_len / (int64_t)s2s_dtype_size(dtype) : 0;
    } else if (dtype && dtype != view->dtype) {
        return bad_view(node, "dtype and storage class disagree", err);
    }
    if (!view->dtype)
        return bad_view(node, "its storage has no dtype", err);
    view->n_dims = ckpt_get_ints(args->items[2], view->size, S2S_MAX_DIMS);
    if (view->n_dims < 0 ||
        ckpt_get_ints(args->items[3], view->stride, S2S_MAX_DIMS) != view->n_dims ||
        !ckpt_get_int(args->items[1], &view->offset))
        return bad_view(node, "bad size, stride or offset (at most 8 axes are read)", err);
    view->requires_grad =
        !v3 && args->n > 4 && args->items[4]->kind == CKPT_BOOL && args->items[4]->i;
    rc = check_bounds(node, view, err);
    return rc < 0 ? rc : 1;
}

/* Only the arguments (storage, offset, size, stride, requires_grad, {}). */
bool ckpt_view_is_plain(const struct ckpt_node *node)
{
    const struct ckpt_node *args = node->kind == CKPT_RECORD ? node->items[1] : NULL;
    return args && args->n == 6 && !node->items[2] && !node->items[3] &&
           args->items[4]->kind == CKPT_BOOL && args->items[5]->kind == CKPT_DICT &&
           args->items[5]->n == 0 && ckpt_is(node, "torch._utils", "_rebuild_tensor_v2");
}

static json_t *ints_json(const int64_t *values, int n)
{
    json_t *list = json_array();
    for (int i = 0; i < n; i++)
        json_array_append_new(list, json_integer(values[i]));
    return list;
}

json_t *ckpt_view_args(const struct ckpt_view *view)
{
    return json_pack("[s, I, o, o, b, {}]", "(storage)", (json_int_t)view->offset,
                     ints_json(view->size, view->n_dims), ints_json(view->stride, view->n_dims),
                     view->requires_grad);
}
