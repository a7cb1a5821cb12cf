/* Packs and unpacks the list of what a rank's .distcp file holds. */
#include "lib/ckpt/write/items.h"

#include <limits.h>

#include "lib/base/base.h"
#include "lib/ckpt/box.h"
#include "lib/ckpt/packed.h"
#include "lib/ckpt/plan.h"
#include "lib/ckpt/write/manifest.h"

/* ---- packed form: NUL-terminated strings and variable-length integers ---- */

const char *ckpt_rank_file(char text[CKPT_RANK_FILE], int rank)
{
    snprintf(text, CKPT_RANK_FILE, "__%d_0.distcp", rank);
    return text;
}

/* flags of a packed item */
enum { IS_FLATTENED = 1, IS_WHOLE = 2 };

void ckpt_item_pack(const struct ckpt_item *item, struct s2s_buf *out)
{
    const int n = item->n_dims;
    const bool whole = ckpt_same_shape(item->offset, n, ckpt_origin, n) &&
                       ckpt_same_shape(item->size, n, item->shape, n);
    if (!item->name_number)
        s2s_buf_puts(out, item->name);
    s2s_buf_putc(out, 0);
    if (item->name_number || !*item->name)
        ckpt_pack(out, item->name_number);
    ckpt_pack(out, item->rank);
    ckpt_pack(out, item->dtype);
    ckpt_pack(out, n);
    ckpt_pack(out, (item->is_flattened ? IS_FLATTENED : 0) | (whole ? IS_WHOLE : 0));
    ckpt_pack(out, item->pos);
    ckpt_pack(out, item->len);
    ckpt_pack_ints(out, item->shape, n);
    ckpt_pack_ints(out, item->offset, whole ? 0 : n);
    ckpt_pack_ints(out, item->size, whole ? 0 : n);
    ckpt_pack_ints(out, item->orig_shape, item->is_flattened ? n - 1 : 0);
}

struct cursor {
    const char *p;
    size_t left;
};

static int get(struct cursor *in, int64_t *value)
{
    uint64_t sum = 0;
    for (int shift = 0; shift < 63 && in->left; shift += 7) {
        unsigned char byte = (unsigned char)*in->p++;
        in->left--;
        sum |= (uint64_t)(byte & 0x7F) << shift;
        if (byte < 0x80) {
            *value = (int64_t)sum;
            return 0;
        }
    }
    return -1;
}

static int get_text(struct cursor *in, const char **text)
{
    size_t len = strnlen(in->p, in->left);
    if (len == in->left)
        return -1;
    *text = in->p;
    in->p += len + 1;
    in->left -= len + 1;
    return 0;
}

static int get_ints(struct cursor *in, int64_t *v, int n)
{
    int rc = 0;
    for (int d = 0; d < n && rc == 0; d++)
        rc = get(in, &v[d]);
    return rc;
}

size_t ckpt_item_unpack(struct ckpt_item *item, const char *list, size_t len)
{
    struct cursor in = {list, len};
    int64_t dtype, n, flags, rank, number = 0;
    *item = (struct ckpt_item){.n_dims = 0};
    if (get_text(&in, &item->name) < 0 || (!*item->name && get(&in, &number) < 0) ||
        get(&in, &rank) < 0 || get(&in, &dtype) < 0 || get(&in, &n) < 0 || get(&in, &flags) < 0 ||
        get(&in, &item->pos) < 0 || get(&in, &item->len) < 0 || rank > INT_MAX ||
        n > S2S_MAX_DIMS || flags > (IS_FLATTENED | IS_WHOLE) ||
        (dtype && (dtype > INT_MAX || !s2s_dtype_size((enum s2s_dtype)dtype))))
        return 0;
    item->name_number = (size_t)number;
    item->rank = (int)rank;
    item->dtype = (enum s2s_dtype)dtype;
    item->n_dims = (int)n;
    item->is_flattened = flags & IS_FLATTENED;
    if (get_ints(&in, item->shape, item->n_dims) < 0)
        return 0;
    if (flags & IS_WHOLE)
        memcpy(item->size, item->shape, sizeof item->size);
    else if (get_ints(&in, item->offset, item->n_dims) < 0 ||
             get_ints(&in, item->size, item->n_dims) < 0)
        return 0;
    if (item->is_flattened && get_ints(&in, item->orig_shape, item->n_dims - 1) < 0)
        return 0;
    return (size_t)(in.p - list);
}

/* ---- lists ---- */

int ckpt_items_add(struct ckpt_items *items, const struct s2s_buf *list, struct s2s_error *err)
{
    struct ckpt_item item;
    if (list->len > UINT32_MAX - items->len)
        return s2s_error_set(err, S2S_E_UNSUPPORTED, "more than 4 GiB of items");
    s2s_grow(&items->lists, items->n_lists, &items->cap_lists, sizeof *items->lists);
    items->lists[items->n_lists++] = (struct ckpt_item_list){list->data, items->len};
    for (size_t at = 0, len; at < list->len; at += len) {
        len = ckpt_item_unpack(&item, list->data + at, list->len - at);
        if (len == 0 || item.name_number > (items->plan ? items->plan->n_targets : 0))
            return s2s_error_set(err, S2S_E_FORMAT, "a rank's list of items is damaged");
        s2s_grow(&items->at, items->n, &items->cap, sizeof *items->at);
        items->at[items->n++] = (uint32_t)(items->len + at);
    }
    items->len += list->len;
    return 0;
}

void ckpt_items_release(struct ckpt_items *items)
{
    free(items->lists);
    free(items->at);
    *items = (struct ckpt_items){.n = 0};
}

static const char *packed_at(const struct ckpt_items *items, uint32_t at)
{
    size_t low = 0, high = items->n_lists;
    while (high - low > 1) {
        const size_t middle = low + (high - low) / 2;
        *(items->lists[middle].begin > at ? &high : &low) = middle;
    }
    return items->lists[low].bytes + (at - items->lists[low].begin);
}

struct ckpt_item ckpt_items_get(const struct ckpt_items *items, size_t i)
{
    struct ckpt_item item;
    (void)ckpt_item_unpack(&item, packed_at(items, items->at[i]), SIZE_MAX); /* checked already */
    if (item.name_number)
        item.name = s2s_ckpt_target_name(&items->plan->targets[item.name_number - 1]);
    return item;
}

static const char *name_at(const struct ckpt_items *items, const char *packed)
{
    const char *at = packed + 1;
    if (*packed) /* the name is the first field */
        return packed;
    const uint64_t number = ckpt_unpack(&at);
    return number ? s2s_ckpt_target_name(&items->plan->targets[number - 1]) : packed;
}

const char *ckpt_items_name(const struct ckpt_items *items, size_t i)
{
    return name_at(items, packed_at(items, items->at[i]));
}

bool ckpt_items_starts_name(const struct ckpt_items *items, size_t i)
{
    return i == 0 || strcmp(ckpt_items_name(items, i - 1), ckpt_items_name(items, i)) != 0;
}

void ckpt_items_take_digests(struct ckpt_items *items, json_t *manifest)
{
    size_t kept = 0, prefix = strlen(CKPT_ITEM_DIGEST);
    for (size_t i = 0; i < items->n; i++) {
        if (strncmp(ckpt_items_name(items, i), CKPT_ITEM_DIGEST, prefix) != 0) {
            items->at[kept++] = items->at[i];
            continue;
        }
        const struct ckpt_item item = ckpt_items_get(items, i);
        char file[CKPT_RANK_FILE];
        ckpt_manifest_add(manifest, ckpt_rank_file(file, item.rank), item.len, item.name + prefix);
    }
    items->n = kept;
}

/* ---- checks ---- */

static int by_name_offset(const void *a, const void *b, void *items)
{
    const char *p = packed_at(items, *(const uint32_t *)a);
    const char *q = packed_at(items, *(const uint32_t *)b);
    int order = strcmp(name_at(items, p), name_at(items, q));
    if (order)
        return order;
    struct ckpt_item x, y;
    (void)ckpt_item_unpack(&x, p, SIZE_MAX);
    (void)ckpt_item_unpack(&y, q, SIZE_MAX);
    for (int d = 0; d < x.n_dims && d < y.n_dims && order == 0; d++)
        order = (x.offset[d] > y.offset[d]) - (x.offset[d] < y.offset[d]);
    return order ? order : (x.rank > y.rank) - (x.rank < y.rank);
}

/* Checks the items [begin, begin + n), which have the same name. */
static int check_group(const struct ckpt_items *items, size_t begin, size_t n,
                       struct s2s_error *err)
{
    const struct ckpt_item first = ckpt_items_get(items, begin);
    if (first.dtype == S2S_DTYPE_NONE && n > 1)
        return s2s_error_set(err, S2S_E_FORMAT, "%s: object written %zu times", first.name, n);
    if (first.dtype == S2S_DTYPE_NONE)
        return 0;
    struct ckpt_item *group = s2s_xmalloc(n * sizeof *group);
    struct ckpt_box *boxes = s2s_xmalloc(n * sizeof *boxes);
    char a[CKPT_RANK_FILE], b[CKPT_RANK_FILE];
    int rc = 0;
    for (size_t i = 0; i < n && rc == 0; i++) {
        struct ckpt_item *item = &group[i];
        *item = ckpt_items_get(items, begin + i);
        boxes[i] = (struct ckpt_box){item->offset, item->size};
        if (item->dtype != first.dtype)
            rc = s2s_error_set(err, S2S_E_DTYPE, "%s: %s in %s, %s in %s", item->name,
                               s2s_dtype_name(first.dtype), ckpt_rank_file(a, first.rank),
                               s2s_dtype_name(item->dtype), ckpt_rank_file(b, item->rank));
        else if (!ckpt_same_shape(item->shape, item->n_dims, first.shape, first.n_dims))
            rc = s2s_error_set(err, S2S_E_SHAPE, "%s: %s and %s disagree about its shape",
                               item->name, ckpt_rank_file(a, first.rank),
                               ckpt_rank_file(b, item->rank));
    }
    if (rc == 0)
        rc = ckpt_boxes_tile(first.name, first.shape, first.n_dims, boxes, n, err);
    free(boxes);
    free(group);
    return rc;
}

size_t ckpt_items_end_of_name(const struct ckpt_items *items, size_t begin)
{
    size_t end = begin + 1;
    while (end < items->n && !ckpt_items_starts_name(items, end))
        end++;
    return end;
}

int ckpt_items_check(struct ckpt_items *items, struct s2s_error *err)
{
    if (items->n)
        qsort_r(items->at, items->n, sizeof *items->at, by_name_offset, items);
    for (size_t i = 0, next; i < items->n; i = next) {
        next = ckpt_items_end_of_name(items, i);
        int rc = check_group(items, i, next - i, err);
        if (rc < 0)
            return rc;
    }
    return 0;
}
