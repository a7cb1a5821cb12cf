/* Sets of numbered files: "model-00002-of-00003.safetensors". */
#include <stdlib.h>

#include "lib/base/base.h"
#include "lib/ckpt/read/read_internal.h"

/* torch names a rank's shard of such a file "shard-00004-model-00002-of-00003.safetensors". A rank
 * without data writes none, so any rank will do. */
static const char *without_rank(const char *name, long *rank)
{
    static const char prefix[] = "shard-";
    size_t n = strlen(prefix), digits;
    *rank = 0;
    if (strncmp(name, prefix, n) != 0)
        return name;
    digits = strspn(name + n, "0123456789");
    if (digits < 1 || digits > 9 || name[n + digits] != '-')
        return name;
    *rank = strtol(name + n, NULL, 10);
    return name + n + digits + 1;
}

/* STEM-K-of-N.SUFFIX */
struct part {
    const char *name, *suffix; /* suffix: from the dot on; the stem is what precedes the first digit
                                */
    size_t stem_len, n_digits;
    long k, n;
    long rank; /* from 1; 0: none in the name */
};

static bool parse_part(struct part *part, const char *path)
{
    const char *slash = strrchr(path, '/'), *name;
    long rank;
    name = without_rank(slash ? slash + 1 : path, &rank);
    const char *of = strstr(name, "-of-"), *k = of;
    char *end;
    for (const char *next = of; next; next = strstr(of + 1, "-of-"))
        of = next;
    if (!of)
        return false;
    for (k = of; k > name && k[-1] >= '0' && k[-1] <= '9';)
        k--;
    size_t n_digits = (size_t)(of - k);
    /* nine digits fit in a long */
    if (!n_digits || n_digits > 9 || k == name || k[-1] != '-' ||
        strspn(of + strlen("-of-"), "0123456789") - 1 > 8)
        return false;
    *part = (struct part){.name = name,
                          .stem_len = (size_t)(k - name),
                          .n_digits = n_digits,
                          .k = strtol(k, NULL, 10),
                          .rank = rank,
                          .n = strtol(of + strlen("-of-"), &end, 10)};
    part->suffix = end;
    return *end == '.';
}

static int order(const struct part *a, const struct part *b)
{
    size_t len = a->stem_len < b->stem_len ? a->stem_len : b->stem_len;
    int by = memcmp(a->name, b->name, len);
    if (by == 0)
        by = (a->stem_len > b->stem_len) - (a->stem_len < b->stem_len);
    if (by == 0)
        by = (a->n > b->n) - (a->n < b->n);
    return by ? by : strcmp(a->suffix, b->suffix);
}

static int by_set_and_number(const void *a, const void *b)
{
    const struct part *x = a, *y = b;
    int by = order(x, y);
    if (by == 0)
        by = (x->k > y->k) - (x->k < y->k);
    return by ? by : (x->rank > y->rank) - (x->rank < y->rank);
}

/*
 * Nothing records how many ranks there were, nor the full length of a tensor: its last rows are
 * where the file of its last rank ends. If other files of the set have shards of more ranks than
 * one has, the missing shards may be lost, or may never have existed.
 */
static void warn_of_ranks(const struct part *parts, size_t n)
{
    for (size_t first = 0, i; first < n; first = i) {
        long most = 0;
        for (i = first; i < n && order(&parts[i], &parts[first]) == 0; i++)
            most = parts[i].rank > most ? parts[i].rank : most;
        for (size_t j = first; j < i; j++) {
            const struct part *p = &parts[j];
            if ((j + 1 == i || p[1].k != p->k) && p->rank > 0 && p->rank < most) {
                s2s_warn("ckpt",
                         "%s: the last share is of rank %ld, that of other files of rank %ld; if "
                         "one was lost, so were the last rows of its tensors",
                         p->name, p->rank, most);
                return;
            }
        }
    }
}

void ckpt_warn_of_part(const char *path)
{
    struct part part;
    const char *slash = strrchr(path, '/');
    if (s2s_starts_with(slash ? slash + 1 : path, CKPT_FSDP_RANK))
        s2s_warn("ckpt",
                 "%s: by its name one of a file for each rank, and read alone; name the folder "
                 "for whole tensors",
                 path);
    else if (parse_part(&part, path) && part.n > 1)
        s2s_warn("ckpt",
                 "%s: by its name one of %ld files, and read alone; name the folder for all", path,
                 part.n);
}

int ckpt_check_parts(char **files, size_t n_files, struct s2s_error *err)
{
    struct part *parts = s2s_xcalloc(n_files + 1, sizeof *parts);
    size_t n = 0;
    long before = 0, end = 0; /* last number of the set so far; first number past its end */
    int rc = 0;
    for (size_t i = 0; i < n_files; i++)
        n += parse_part(&parts[n], files[i]);
    if (n)
        qsort(parts, n, sizeof *parts, by_set_and_number);
    for (size_t i = 0; i < n && rc == 0; i++) {
        const struct part *p = &parts[i];
        bool first = i == 0 || order(p, &parts[i - 1]) != 0;
        bool last = i + 1 == n || order(p, &parts[i + 1]) != 0;
        if (first) { /* some sets count from 0 */
            before = p->k == 0 ? -1 : 0;
            end = p->n + (p->k > 0);
        }
        long absent = p->k > before + 1 ? before + 1 : last ? p->k + 1 : end;
        before = p->k;
        if (absent < end)
            rc = s2s_error_set(err, S2S_E_NOTFOUND,
                               "%.*s%0*ld-of-%0*ld%s is missing: %s says that there are %ld",
                               (int)p->stem_len, p->name, (int)p->n_digits, absent,
                               (int)p->n_digits, p->n, p->suffix, p->name, p->n);
    }
    if (rc == 0)
        warn_of_ranks(parts, n);
    free(parts);
    return rc < 0 ? s2s_error_hint(err, rc, "copy the whole folder") : 0;
}
