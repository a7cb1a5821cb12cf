/* Lists what the ranks' .distcp files hold, and checks that it makes whole tensors. */
#include "lib/ckpt/write/items.h"

#include "lib/ckpt/box.h"
#include "lib/ckpt/write/dist.h"
#include "lib/ckpt/write/manifest.h"

const char *ckpt_rank_file(char text[CKPT_RANK_FILE], int rank)
{
    snprintf(text, CKPT_RANK_FILE, "__%d_0.distcp", rank);
    return text;
}

/* ---- lists ---- */

static size_t padded(size_t len)
{
    return (len + 7) / 8 * 8;
}

static void add_ints(struct s2s_buf *list, const int64_t *v, int n)
{
    if (n > 0)
        s2s_buf_add(list, v, (size_t)n * sizeof *v);
}

struct ckpt_item *ckpt_item_add(struct s2s_buf *list, int rank, int64_t pos, const char *name,
                                const struct s2s_dist_chunk *chunk)
{
    static const char zeros[8];
    struct ckpt_item item = {.pos = pos, .rank = rank};
    const size_t begin = list->len;
    if (chunk) {
        item.dtype = (int32_t)chunk->dtype;
        item.n_dims = chunk->n_dims;
        item.is_flattened = chunk->orig_shape != NULL;
    }
    s2s_buf_add(list, &item, sizeof item);
    if (chunk) {
        add_ints(list, chunk->shape, item.n_dims);
        add_ints(list, chunk->offset ? chunk->offset : ckpt_origin, item.n_dims);
        add_ints(list, chunk->size ? chunk->size : chunk->shape, item.n_dims);
        add_ints(list, chunk->orig_shape, item.is_flattened ? item.n_dims - 1 : 0);
    }
    s2s_buf_add(list, name, strlen(name) + 1);
    s2s_buf_add(list, zeros, padded(list->len - begin) - (list->len - begin));
    return (struct ckpt_item *)(void *)(list->data + begin);
}

/* The length of the first item of a list (bytes [len]); 0: it is damaged. */
static size_t len_of(const struct ckpt_item *item, size_t len)
{
    if (len < sizeof *item || item->rank < 0 || item->n_dims < 0 || item->n_dims > S2S_MAX_DIMS ||
        item->is_flattened < 0 || item->is_flattened > (item->n_dims > 0) ||
        (item->dtype && !s2s_dtype_size((enum s2s_dtype)item->dtype)))
        return 0;
    const size_t head = (size_t)(ckpt_item_name(item) - (const char *)item);
    const size_t name_len = head < len ? strnlen(ckpt_item_name(item), len - head) : len;
    return head + name_len < len ? padded(head + name_len + 1) : 0;
}

int ckpt_items_add(struct ckpt_items *items, const struct s2s_buf *list, struct s2s_error *err)
{
    for (size_t at = 0, len; at < list->len; at += len) {
        const struct ckpt_item *item = (const void *)(list->data + at);
        len = len_of(item, list->len - at);
        if (len == 0 || len > list->len - at)
            return s2s_error_set(err, S2S_E_FORMAT, "a rank's list of items is damaged");
        s2s_grow(&items->v, items->n, &items->cap, sizeof *items->v);
        items->v[items->n++] = item;
    }
    return 0;
}

void ckpt_items_release(struct ckpt_items *items)
{
    free(items->v);
    *items = (struct ckpt_items){.n = 0};
}

void ckpt_items_take_digests(struct ckpt_items *items, json_t *manifest)
{
    size_t kept = 0, prefix = strlen(CKPT_ITEM_DIGEST);
    for (size_t i = 0; i < items->n; i++) {
        const struct ckpt_item *item = items->v[i];
        char file[CKPT_RANK_FILE];
        if (s2s_starts_with(ckpt_item_name(item), CKPT_ITEM_DIGEST))
            ckpt_manifest_add(manifest, ckpt_rank_file(file, item->rank), item->len,
                              ckpt_item_name(item) + prefix);
        else
            items->v[kept++] = item;
    }
    items->n = kept;
}

/* ---- checks ---- */

static int by_name_offset(const void *a, const void *b)
{
    const struct ckpt_item *x = *(const struct ckpt_item *const *)a,
                           *y = *(const struct ckpt_item *const *)b;
    int order = strcmp(ckpt_item_name(x), ckpt_item_name(y));
    for (int d = 0; d < x->n_dims && d < y->n_dims && order == 0; d++)
        order = (ckpt_item_offset(x)[d] > ckpt_item_offset(y)[d]) -
                (ckpt_item_offset(x)[d] < ckpt_item_offset(y)[d]);
    return order ? order : (x->rank > y->rank) - (x->rank < y->rank);
}

/* Checks n items, which have the same name. */
static int check_group(const struct ckpt_item *const *group, size_t n, struct s2s_error *err)
{
    const struct ckpt_item *first = group[0];
    const char *name = ckpt_item_name(first);
    if (!first->dtype && n > 1)
        return s2s_error_set(err, S2S_E_FORMAT, "%s: object written %zu times", name, n);
    if (!first->dtype)
        return 0;
    struct ckpt_box *boxes = s2s_xmalloc(n * sizeof *boxes);
    char a[CKPT_RANK_FILE], b[CKPT_RANK_FILE];
    int rc = 0;
    for (size_t i = 0; i < n && rc == 0; i++) {
        const struct ckpt_item *item = group[i];
        boxes[i] = (struct ckpt_box){ckpt_item_offset(item), ckpt_item_size(item)};
        if (item->dtype != first->dtype)
            rc = s2s_error_set(
                err, S2S_E_DTYPE, "%s: %s in %s, %s in %s", name,
                s2s_dtype_name((enum s2s_dtype)first->dtype), ckpt_rank_file(a, first->rank),
                s2s_dtype_name((enum s2s_dtype)item->dtype), ckpt_rank_file(b, item->rank));
        else if (!ckpt_same_shape(ckpt_item_shape(item), item->n_dims, ckpt_item_shape(first),
                                  first->n_dims))
            rc = s2s_error_set(err, S2S_E_SHAPE, "%s: %s and %s disagree about its shape", name,
                               ckpt_rank_file(a, first->rank), ckpt_rank_file(b, item->rank));
    }
    if (rc == 0)
        rc = ckpt_boxes_tile(name, ckpt_item_shape(first), first->n_dims, boxes, n, err);
    free(boxes);
    return rc;
}

size_t ckpt_items_end_of_name(const struct ckpt_items *items, size_t begin)
{
    size_t end = begin + 1;
    while (end < items->n &&
           strcmp(ckpt_item_name(items->v[begin]), ckpt_item_name(items->v[end])) == 0)
        end++;
    return end;
}

int ckpt_items_check(struct ckpt_items *items, struct s2s_error *err)
{
    if (items->n)
        qsort(items->v, items->n, sizeof *items->v, by_name_offset);
    for (size_t i = 0, next; i < items->n; i = next) {
        next = ckpt_items_end_of_name(items, i);
        int rc = check_group(&items->v[i], next - i, err);
        if (rc < 0)
            return rc;
    }
    return 0;
}
