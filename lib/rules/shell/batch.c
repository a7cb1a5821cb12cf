/* Batch systems: how many ranks a script asks for; and the tests by which it guards itself. */
#include "lib/rules/shell/shell_internal.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"

int64_t rules_count_of(const char *text)
{
    size_t len = strspn(text, "0123456789");
    return len && len < 10 && !text[len] ? (int64_t)strtoll(text, NULL, 10) : 0;
}

/* "gpu:h100:8" -> 8, "8" -> 8, "gpu" -> 1 */
static int64_t gpus_of(const char *text)
{
    const char *last = strrchr(text, ':');
    if (!strcmp(text, "gpu"))
        return 1;
    return rules_count_of(last ? last + 1 : text);
}

static void set_flag(struct rules_sbatch *b, const char *name, size_t len, const char *value,
                     int line)
{
    struct {
        const char *name;
        int64_t *to, value;
    } flags[] = {
        {"-N", &b->nodes, rules_count_of(value)},
        {"--nodes", &b->nodes, rules_count_of(value)},
        {"-n", &b->ntasks, rules_count_of(value)},
        {"--ntasks", &b->ntasks, rules_count_of(value)},
        {"--ntasks-per-node", &b->ntasks_per_node, rules_count_of(value)},
        {"--gpus-per-node", &b->gpus_per_node, gpus_of(value)},
        {"--gres", &b->gpus_per_node, strncmp(value, "gpu", 3) == 0 ? gpus_of(value) : 0},
    };
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++)
        if (strlen(flags[i].name) == len && !memcmp(flags[i].name, name, len)) {
            *flags[i].to = flags[i].value;
            b->line = line;
        }
}

void rules_sbatch_words(struct rules_sbatch *batch, const char *const *words, size_t n, int line)
{
    for (size_t i = 0; i < n && words[i][0] == '-'; i++) {
        const char *word = words[i], *equals = strchr(word, '=');
        bool value_next = i + 1 < n && words[i + 1][0] != '-';
        if (equals) {
            set_flag(batch, word, (size_t)(equals - word), equals + 1, line);
        } else if (word[1] != '-' && isdigit((unsigned char)word[2 * (word[1] != 0)])) {
            set_flag(batch, word, 2, word + 2, line); /* -N4 */
        } else if (value_next) {
            /* a flag without a value before the program is taken for one with it; the only loss
             * is that what follows is not read */
            set_flag(batch, word, strlen(word), words[i + 1], line);
            i++;
        }
    }
}

void rules_sbatch_line(struct rules_sbatch *batch, const char *text, size_t len, int line)
{
    static const char mark[] = "#SBATCH";
    const char *words[64];
    size_t n = 0;
    if (len <= sizeof mark || memcmp(text, mark, sizeof mark - 1) != 0)
        return;
    char *copy = s2s_xstrndup(text + sizeof mark - 1, len - sizeof mark + 1), *rest = copy;
    for (char *word; n < 64 && (word = strsep(&rest, " \t\r")) != NULL;) {
        if (word[0] == '#')
            break; /* a comment behind */
        if (*word)
            words[n++] = word;
    }
    rules_sbatch_words(batch, words, n, line);
    free(copy);
}

/* ---- tests ---- */

static bool whole(const char *text, int64_t *value)
{
    const char *digits = text + (*text == '-');
    size_t len = strspn(digits, "0123456789");
    if (!len || len > 15 || digits[len])
        return false;
    *value = strtoll(text, NULL, 10);
    return true;
}

size_t rules_test_left(const char *const *words, size_t n)
{
    static const char *const openers[] = {"[[", "[", "test", "(("};
    size_t at = n && !strcmp(words[0], "if") ? 1 : 0;
    bool opened = false;
    for (size_t i = 0; at < n && i < sizeof openers / sizeof *openers; i++)
        opened |= !strcmp(words[at], openers[i]);
    if (!opened || n < at + 4)
        return 0;
    bool closed = !strcmp(words[at], "test") || n == at + 5;
    return closed ? at + 1 : 0;
}

int rules_test_holds(const char *const *words, size_t n)
{
    static const struct {
        const char *name;
        int less, equal, greater;
    } operators[] = {
        {"-eq", 0, 1, 0}, {"==", 0, 1, 0},  {"=", 0, 1, 0},   {"-ne", 1, 0, 1}, {"!=", 1, 0, 1},
        {"-lt", 1, 0, 0}, {"-gt", 0, 0, 1}, {"-le", 1, 1, 0}, {"-ge", 0, 1, 1}, {"<", 1, 0, 0},
        {">", 0, 0, 1},   {"<=", 1, 1, 0},  {">=", 0, 1, 1},
    };
    size_t left = rules_test_left(words, n);
    int64_t a, b;
    if (!left || left + 2 >= n || !whole(words[left], &a) || !whole(words[left + 2], &b))
        return -1;
    for (size_t i = 0; i < sizeof operators / sizeof *operators; i++)
        if (!strcmp(operators[i].name, words[left + 1]))
            return a < b ? operators[i].less : a == b ? operators[i].equal : operators[i].greater;
    return -1;
}
