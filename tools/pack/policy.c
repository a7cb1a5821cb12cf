/* What becomes of samples that are bad. */
#include "tools/pack/pack.h"

const char *const pack_fault_names[PACK_N_FAULTS] = {"other",      "absent", "short",
                                                     "not_finite", "empty",  "silent"};

enum pack_fault pack_fault_of(int code)
{
    switch (code) {
    case S2S_E_NOTFOUND:
    case S2S_E_OPEN:
        return PACK_FAULT_ABSENT;
    case S2S_E_TRUNCATED:
        return PACK_FAULT_SHORT;
    case S2S_E_NONFINITE:
        return PACK_FAULT_NONFINITE;
    case S2S_E_EMPTY:
        return PACK_FAULT_EMPTY;
    case S2S_E_SILENT:
        return PACK_FAULT_SILENT;
    default:
        return PACK_FAULT_OTHER;
    }
}

static int index_of(const char *const *names, size_t n, const char *text, size_t len)
{
    for (size_t i = 0; i < n; i++)
        if (strlen(names[i]) == len && !memcmp(names[i], text, len))
            return (int)i;
    return -1;
}

int pack_policy_parse(enum pack_policy policy[PACK_N_FAULTS], const char *text,
                      struct s2s_error *err)
{
    static const char *const names[] = {"fail", "skip", "keep"};
    for (const char *p = text;; p++) {
        const size_t len = strcspn(p, ","), name_len = strcspn(p, "=,");
        const bool is_one = name_len < len;
        const size_t skip = is_one ? name_len + 1 : 0;
        const int fault = is_one ? index_of(pack_fault_names, PACK_N_FAULTS, p, name_len) : -1;
        const int what = index_of(names, 3, p + skip, len - skip);
        if (what < 0 || (is_one && fault < 0) || (what == PACK_KEEP && fault != PACK_FAULT_SILENT))
            return s2s_error_set(
                err, S2S_E_ARG,
                "'%.*s': fail, skip or FAULT=fail|skip expected, with FAULT one of "
                "other, absent, short, not_finite, empty and silent (which may "
                "also be kept)",
                (int)len, p);
        for (int i = 0; i < PACK_N_FAULTS; i++)
            if (is_one ? i == fault : i != PACK_FAULT_SILENT)
                policy[i] = (enum pack_policy)what;
        p += len;
        if (!*p)
            return 0;
    }
}
