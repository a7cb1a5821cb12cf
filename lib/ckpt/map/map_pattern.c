/* Names against the patterns of a map. */
#include <ctype.h>

#include "lib/base/base.h"
#include "lib/ckpt/map/map.h"

int ckpt_map_items(const char *pattern)
{
    for (const char *open = strchr(pattern, '{'); open; open = strchr(open + 1, '{')) {
        const char *close = strchr(open, '}');
        int n = 1;
        for (const char *at = open; close && at < close; at++)
            n += *at == ',';
        if (n > 1)
            return n;
    }
    return 0;
}

int ckpt_map_names(const char *pattern)
{
    const int n = ckpt_map_items(pattern);
    return n ? n : 1;
}

bool ckpt_map_is_open(const char *pattern)
{
    return s2s_ends_with(pattern, "{*}");
}

/* layers and experts are gone through one by one, up to the highest: no name makes that millions */
static bool take_number(const char **name, int64_t *value)
{
    size_t n = strspn(*name, "0123456789");
    char text[20];
    if (n == 0 || n > 4)
        return false;
    snprintf(text, sizeof text, "%.*s", (int)n, *name);
    *name += n;
    return s2s_parse_i64(value, text, 0, INT64_MAX, NULL) == 0;
}

static bool match_from(const char *pattern, const char *name, struct ckpt_match *match);

/* tries each item of the list that begins at pattern */
static bool match_list(const char *pattern, const char *name, struct ckpt_match *match)
{
    const char *close = strchr(pattern, '}'), *item = pattern + 1;
    for (int i = 0; item < close; i++) {
        size_t len = strcspn(item, ",}");
        struct ckpt_match tried = *match;
        tried.item = i;
        if (strncmp(item, name, len) == 0 && match_from(close + 1, name + len, &tried)) {
            *match = tried;
            return true;
        }
        item += len + 1;
    }
    return false;
}

static bool match_from(const char *pattern, const char *name, struct ckpt_match *match)
{
    while (*pattern) {
        if (*pattern != '.' && *pattern != '{') {
            if (*pattern++ != *name++)
                return false;
        } else if (s2s_starts_with(pattern, ".{N}") &&
                   !(name[0] == '.' && isdigit((unsigned char)name[1]))) {
            match->stacked = true;
            pattern += 4;
        } else if (s2s_starts_with(pattern, "{N}") || s2s_starts_with(pattern, "{E}")) {
            if (!take_number(&name, pattern[1] == 'N' ? &match->layer : &match->expert))
                return false;
            pattern += 3;
        } else if (strcmp(pattern, "{*}") == 0) {
            match->rest = name;
            return *name;
        } else if (*pattern == '{') {
            return match_list(pattern, name, match);
        } else if (*pattern++ != *name++) {
            return false;
        }
    }
    return !*name;
}

bool ckpt_map_match(const char *pattern, const char *name, struct ckpt_match *match)
{
    *match = (struct ckpt_match){.layer = -1, .expert = -1, .item = -1};
    return match_from(pattern, name, match);
}

char *ckpt_map_fill(const char *pattern, const struct ckpt_match *match)
{
    struct s2s_buf out = S2S_BUF_INIT;
    while (*pattern) {
        if (s2s_starts_with(pattern, ".{N}") && match->stacked && match->layer < 0) {
            pattern += 4;
        } else if (s2s_starts_with(pattern, "{N}") || s2s_starts_with(pattern, "{E}")) {
            s2s_buf_printf(&out, "%lld",
                           (long long)(pattern[1] == 'N' ? match->layer : match->expert));
            pattern += 3;
        } else if (strcmp(pattern, "{*}") == 0) {
            s2s_buf_puts(&out, match->rest ? match->rest : "");
            pattern += 3;
        } else if (*pattern == '{') {
            const char *item = pattern + 1;
            for (int i = 0; i < match->item; i++)
                item += strcspn(item, ",}") + 1;
            s2s_buf_add(&out, item, strcspn(item, ",}"));
            pattern = strchr(pattern, '}') + 1;
        } else {
            const size_t len = 1 + strcspn(pattern + 1, ".{");
            s2s_buf_add(&out, pattern, len);
            pattern += len;
        }
    }
    s2s_buf_putc(&out, 0);
    return out.data;
}
