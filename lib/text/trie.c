/* A trie that finds the longest added token at a place. */
#include "lib/text/text_internal.h"

/* Children of a node are a list of siblings; the first byte is found through a table, since almost
 * every position of a text fails there. */
struct node {
    int32_t child, sibling, value;
    unsigned char byte;
};

struct text_trie {
    int32_t first[256]; /* node of a one-byte prefix, or -1 */
    struct node *nodes;
    size_t n_nodes, cap;
};

struct text_trie *text_trie_new(void)
{
    struct text_trie *trie = s2s_xcalloc(1, sizeof *trie);
    memset(trie->first, 0xff, sizeof trie->first);
    return trie;
}

void text_trie_free(struct text_trie *trie)
{
    if (!trie)
        return;
    free(trie->nodes);
    free(trie);
}

static int32_t new_node(struct text_trie *trie, unsigned char byte)
{
    s2s_grow(&trie->nodes, trie->n_nodes, &trie->cap, sizeof *trie->nodes);
    trie->nodes[trie->n_nodes] = (struct node){-1, -1, -1, byte};
    return (int32_t)trie->n_nodes++;
}

static int32_t child_of(const struct text_trie *trie, int32_t node, unsigned char byte)
{
    int32_t child = trie->nodes[node].child;
    while (child >= 0 && trie->nodes[child].byte != byte)
        child = trie->nodes[child].sibling;
    return child;
}

void text_trie_add(struct text_trie *trie, const char *key, size_t len, int32_t value)
{
    if (len == 0)
        return;
    unsigned char byte = (unsigned char)key[0];
    if (trie->first[byte] < 0)
        trie->first[byte] = new_node(trie, byte);
    int32_t node = trie->first[byte];
    for (size_t i = 1; i < len; i++) {
        byte = (unsigned char)key[i];
        int32_t child = child_of(trie, node, byte);
        if (child < 0) {
            child = new_node(trie, byte);
            trie->nodes[child].sibling = trie->nodes[node].child;
            trie->nodes[node].child = child;
        }
        node = child;
    }
    trie->nodes[node].value = value;
}

int32_t text_trie_find(const struct text_trie *trie, struct text_span *match, const char *text,
                       size_t len, size_t from)
{
    if (trie->n_nodes == 0)
        return -1;
    for (size_t begin = from; begin < len; begin++) {
        int32_t node = trie->first[(unsigned char)text[begin]], value = -1;
        for (size_t i = begin + 1; node >= 0; i++) {
            if (trie->nodes[node].value >= 0) {
                value = trie->nodes[node].value;
                *match = (struct text_span){begin, i};
            }
            node = i < len ? child_of(trie, node, (unsigned char)text[i]) : -1;
        }
        if (value >= 0)
            return value;
    }
    return -1;
}
