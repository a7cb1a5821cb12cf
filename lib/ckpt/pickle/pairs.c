/* Packs pairs of a text and a tensor tightly while a pickle is read. */
#include "lib/ckpt/pickle/pairs.h"

#include "lib/ckpt/packed.h"
#include "lib/ckpt/pickle/pickle_internal.h"

/* Fewer pairs are not worth it. Sanitizer builds have a lower limit, so that small files exercise
 * this. */
#ifndef PICKLE_PAIRS
#define PICKLE_PAIRS 16
#endif

enum {
    MAX_KEY = 255,    /* of longer keys, which a pickle may repeat, there must be one copy */
    MAX_PREFIX = 256, /* the same */
    MAX_PATH = 8
};

/*
 * A CKPT_PAIRS is the length of the prefix, then for each pair: the distance of its name in memory
 * from that before, and its packed tensor (view.h): how many bytes at its beginning are those of
 * the one before, how many follow, and these. Numbers are as in packed.h.
 */

/* ---- reading ---- */

static void begin_run(struct ckpt_pairs *pairs, const struct ckpt_node *run)
{
    pairs->left = run->n;
    pairs->at = run->text;
    pairs->prefix_len = ckpt_unpack(&pairs->at);
    pairs->text = (struct ckpt_node){.kind = CKPT_STR, .offset = run->offset};
    pairs->tensor =
        (struct ckpt_node){.kind = CKPT_TENSOR, .offset = run->offset, .text = pairs->packed};
    pairs->name = NULL;
}

static void next_of_run(struct ckpt_pairs *pairs)
{
    const uint64_t far = ckpt_unpack(&pairs->at);
    pairs->name = (const char *)((uintptr_t)pairs->name + (uintptr_t)(far >> 1 ^ -(far & 1)));
    const size_t same = ckpt_unpack(&pairs->at), n = ckpt_unpack(&pairs->at);
    memcpy(pairs->packed + same, pairs->at, n);
    pairs->at += n;
    pairs->text.text = pairs->name + pairs->prefix_len;
    pairs->text.len = (uint32_t)strlen(pairs->text.text);
    pairs->tensor.len = (uint32_t)(same + n);
    pairs->key = &pairs->text;
    pairs->value = &pairs->tensor;
    pairs->left--;
}

bool ckpt_pairs_next(struct ckpt_pairs *pairs)
{
    const struct ckpt_node *dict = pairs->dict;
    if (pairs->left == 0 && pairs->i < dict->n && dict->items[pairs->i]->kind == CKPT_PAIRS) {
        begin_run(pairs, dict->items[pairs->i]);
        pairs->i += 2;
    }
    if (pairs->left) {
        next_of_run(pairs);
        return true;
    }
    if (pairs->i >= dict->n)
        return false;
    pairs->name = NULL;
    pairs->key = dict->items[pairs->i];
    pairs->value = dict->items[pairs->i + 1];
    pairs->i += 2;
    return true;
}

/* ---- writing ---- */

/* Does a pair for a CKPT_PAIRS seem to be at this place of the stack? */
static bool is_pair(const struct pickle_machine *m, size_t at)
{
    if (at + 1 >= m->n_stack)
        return false;
    const struct ckpt_node *key = m->stack[at], *value = m->stack[at + 1];
    return key->kind == CKPT_STR && key->len && key->len <= MAX_KEY &&
           (value->kind == CKPT_TENSOR || ckpt_pickle_may_pack(m, value));
}

/*
 * The keys that lead to the dict at this place of the stack, if all around it are dicts that are
 * being filled; -1: they are not, or are too many. What is around a dict without a mark of its own
 * may be taken for another, so this is a guess.
 */
static int path_to(const struct pickle_machine *m, size_t dict_at,
                   const struct ckpt_node *keys[MAX_PATH])
{
    int n = 0;
    size_t mark = 0;
    for (size_t at = 0, inner; at < dict_at; at = inner) {
        mark += mark < m->n_marks && m->marks[mark] == at + 1;
        inner = mark < m->n_marks ? m->marks[mark] - 1 : dict_at;
        if (m->stack[at]->kind != CKPT_DICT || inner > dict_at || inner < at + 2 ||
            (inner - at) % 2 || m->stack[inner - 1]->kind != CKPT_STR || n == MAX_PATH)
            return -1;
        keys[n++] = m->stack[inner - 1];
    }
    return n;
}

/* Sets m->name to what is before the names of tensors in this dict, as far as can be told. */
static void put_prefix(struct pickle_machine *m, size_t dict_at)
{
    const struct ckpt_node *keys[MAX_PATH];
    const int n = m->taker && m->taker->prefix ? path_to(m, dict_at, keys) : -1;
    bool is_short = true;
    for (int i = 0; i < n; i++)
        is_short &= keys[i]->len <= MAX_KEY;
    s2s_buf_clear(&m->name);
    if (n >= 0 && is_short)
        m->taker->prefix(m->taker->ctx, &m->name, keys, n);
    if (m->name.len > MAX_PREFIX)
        s2s_buf_clear(&m->name);
}

/* m->name and a key, as a text that is kept. */
static const char *keep_name(struct pickle_machine *m, const struct ckpt_node *key)
{
    const size_t prefix_len = m->name.len;
    s2s_buf_add(&m->name, key->text, key->len);
    const char *name = m->taker && m->taker->known
                           ? m->taker->known(m->taker->ctx, m->name.data, m->name.len)
                           : NULL;
    if (!name)
        name = s2s_blocks_text(&m->out->names, m->name.data, m->name.len);
    m->name.len = prefix_len;
    return name;
}

static size_t common_len(const struct s2s_buf *a, const struct s2s_buf *b)
{
    size_t n = 0;
    while (n < a->len && n < b->len && a->data[n] == b->data[n])
        n++;
    return n;
}

/* Packs the tensor into out. false: it is not as plain as it seemed. */
static bool pack_tensor(struct pickle_machine *m, struct ckpt_node *value, struct s2s_buf *out)
{
    s2s_buf_clear(out);
    /* what the memo refers to must not stay as large as it is */
    if (value->in_memo && value->kind == CKPT_RECORD && !ckpt_pickle_pack(m, value))
        return false;
    if (value->kind == CKPT_RECORD)
        return ckpt_pickle_put_tensor(m, out, value);
    s2s_buf_add(out, value->text, value->len);
    return true;
}

static void put_pair(struct s2s_buf *run, uintptr_t far, const struct s2s_buf *packed,
                     const struct s2s_buf *before)
{
    const size_t same = common_len(packed, before);
    ckpt_pack(run, (uint64_t)far << 1 ^ -((uint64_t)far >> 63));
    ckpt_pack(run, same);
    ckpt_pack(run, packed->len - same);
    s2s_buf_add(run, packed->data + same, packed->len - same);
}

static void add_run(struct pickle_machine *m, struct ckpt_node *dict, const struct s2s_buf *run,
                    size_t n)
{
    struct ckpt_node *node = s2s_blocks_alloc(&m->out->kept, sizeof *node);
    *node = (struct ckpt_node){.kind = CKPT_PAIRS,
                               .is_kept = true,
                               .n = (uint32_t)n,
                               .len = (uint32_t)run->len,
                               .offset = (uint32_t)m->op_at};
    node->text = s2s_blocks_text(&m->out->kept, run->data, run->len);
    ckpt_pickle_add_item(m, dict, node); /* twice: it has the place of a key and a value */
    ckpt_pickle_add_item(m, dict, node);
    m->n_packed += n;
}

size_t ckpt_pickle_add_pairs(struct pickle_machine *m, struct ckpt_node *dict, size_t dict_at,
                             size_t at)
{
    enum { MOST = 4096 }; /* a run's bytes are counted in 32 bits */
    struct s2s_buf *run = &m->run, *now = &m->packed[0], *before = &m->packed[1];
    uintptr_t last = 0;
    size_t n = 0;
    for (size_t i = 0; i < PICKLE_PAIRS; i++)
        if (!is_pair(m, at + 2 * i))
            return 0;
    put_prefix(m, dict_at);
    s2s_buf_clear(run);
    s2s_buf_clear(before);
    ckpt_pack(run, m->name.len);
    for (; n < MOST && is_pair(m, at + 2 * n); n++) {
        struct ckpt_node *key = m->stack[at + 2 * n];
        if (memchr(key->text, 0, key->len) || !pack_tensor(m, m->stack[at + 2 * n + 1], now))
            break;
        const char *name = keep_name(m, key);
        put_pair(run, (uintptr_t)name - last, now, before);
        last = (uintptr_t)name;
        struct s2s_buf *other = before;
        before = now;
        now = other;
    }
    if (n)
        add_run(m, dict, run, n);
    return n;
}
