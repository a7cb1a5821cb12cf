/* Which branches of a launch script are taken, as far as its own text says. */
#include <string.h>

#include "lib/rules/shell_internal.h"

static bool is_any_of(const char *word, const char *const *names)
{
    for (; *names; names++)
        if (!strcmp(word, *names))
            return true;
    return false;
}

/* [ A = B ], [[ A != B ]], [ -z A ], [ -n A ] and tests of integers, all words known: 1 or 0;
 * -1 for any other test, or one that hangs together with another. */
static int test_holds(const struct rules_shell *sh, const struct rules_words *words)
{
    const char *parts[8];
    size_t n = words->n < 8 ? words->n : 0;
    for (size_t i = 0; i < n; i++) {
        parts[i] = words->items[i].text;
        if (strstr(parts[i], RULES_SHELL_UNKNOWN) || (i > 1 && strpbrk(parts[i], "*?")))
            return -1;
    }
    if (n < 4 || *sh->at == '&' || *sh->at == '|')
        return -1;
    parts[0] = "if"; /* of an elif too */
    int holds = rules_test_holds(parts, n);
    bool bracket = !strcmp(parts[1], "[") || !strcmp(parts[1], "[[");
    if (holds >= 0 || !bracket)
        return holds;
    if (n == 5 && (!strcmp(parts[2], "-z") || !strcmp(parts[2], "-n")))
        return (*parts[3] == 0) == (parts[2][1] == 'z');
    bool equal = n == 6 && (!strcmp(parts[3], "=") || !strcmp(parts[3], "=="));
    bool differ = n == 6 && !strcmp(parts[3], "!=");
    return equal || differ ? (strcmp(parts[2], parts[4]) == 0) == equal : -1;
}

static void set_taken(struct rules_shell *sh, struct rules_branch *b, enum rules_taken taken)
{
    sh->conditional += (taken == RULES_MAYBE) - (b->taken == RULES_MAYBE);
    sh->dead += (taken == RULES_DEAD) - (b->taken == RULES_DEAD);
    b->taken = taken;
}

static void open_branch(struct rules_shell *sh, int holds)
{
    enum rules_taken taken = holds < 0 ? RULES_MAYBE : holds ? RULES_LIVE : RULES_DEAD;
    if (sh->n_branches >= RULES_SHELL_BRANCHES) {
        sh->n_branches++; /* MAYBE as the last that has a place, if that one is */
        return;
    }
    struct rules_branch *b = &sh->branches[sh->n_branches++];
    *b = (struct rules_branch){RULES_MAYBE, holds == 1};
    sh->conditional++;
    set_taken(sh, b, taken);
}

static void close_branch(struct rules_shell *sh)
{
    if (sh->n_branches > 0 && --sh->n_branches < RULES_SHELL_BRANCHES) {
        set_taken(sh, &sh->branches[sh->n_branches], RULES_LIVE);
    }
}

/* elif (holds: its test) and else (holds: 1) */
static void next_branch(struct rules_shell *sh, int holds)
{
    if (!sh->n_branches || sh->n_branches > RULES_SHELL_BRANCHES)
        return;
    struct rules_branch *b = &sh->branches[sh->n_branches - 1];
    bool maybe = b->taken == RULES_MAYBE; /* then nobody knows about the others either */
    set_taken(sh, b,
              b->done     ? RULES_DEAD
              : maybe     ? RULES_MAYBE
              : holds < 0 ? RULES_MAYBE
              : holds     ? RULES_LIVE
                          : RULES_DEAD);
    b->done |= !maybe && holds == 1;
}

void rules_shell_follow(struct rules_shell *sh, const struct rules_words *words)
{
    static const char *const openers[] = {"case", "for", "while", "until", NULL};
    static const char *const closers[] = {"fi", "esac", "done", NULL};
    const char *first = words->n ? words->items[0].text : "";
    if (!strcmp(first, "if"))
        open_branch(sh, test_holds(sh, words));
    else if (!strcmp(first, "elif"))
        next_branch(sh, test_holds(sh, words));
    else if (!strcmp(first, "else"))
        next_branch(sh, 1);
    else if (is_any_of(first, openers))
        open_branch(sh, -1);
    else if (is_any_of(first, closers))
        close_branch(sh);
}
