/* Filters log messages by level and room, and writes each as one line. */
#include "lib/base/log.h"

#include "lib/base/utf8.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *program_name = "s2s";
static int rank_shown = -1;
static int default_level = S2S_LOG_WARN;
static const char *only_room;
static void (*listener)(const char *text);

static int level_by_name(const char *name, size_t len)
{
    static const char *const names[] = {"error", "warn", "info", "debug"};
    for (int i = 0; i < 4; i++)
        if (strlen(names[i]) == len && !strncmp(name, names[i], len))
            return i;
    return -1;
}

void s2s_log_set_verbosity(int verbosity)
{
    default_level = S2S_LOG_WARN + verbosity;
    if (default_level < S2S_LOG_ERROR)
        default_level = S2S_LOG_ERROR;
    if (default_level > S2S_LOG_DEBUG)
        default_level = S2S_LOG_DEBUG;
}

void s2s_log_set_only(const char *room)
{
    only_room = room;
}

void s2s_log_init(const char *program, int verbosity)
{
    program_name = program;
    s2s_log_set_verbosity(verbosity);
}

void s2s_log_set_listener(void (*heard)(const char *text))
{
    listener = heard;
}

void s2s_log_set_rank(int world_rank)
{
    rank_shown = world_rank;
}

const char *s2s_log_program(void)
{
    return program_name;
}

/* The level of a room: from the last matching word of S2S_LOG, otherwise from -v and -q. */
static int level_of(const char *room)
{
    const bool is_muted = only_room && strcmp(room, only_room) != 0;
    int level = is_muted ? S2S_LOG_ERROR : default_level;
    const char *word = getenv("S2S_LOG");
    while (word && *word) {
        size_t len = strcspn(word, ",");
        const char *eq = memchr(word, '=', len);
        size_t name_len = eq ? (size_t)(eq - word) : 0;
        int named = level_by_name(eq ? eq + 1 : word, eq ? len - name_len - 1 : len);
        if (named >= 0 &&
            (!eq ? named > level : strlen(room) == name_len && !strncmp(word, room, name_len)))
            level = named;
        word += len + (word[len] == ',');
    }
    return level;
}

bool s2s_log_on(enum s2s_log_level level, const char *room)
{
    return (int)level <= level_of(room ? room : "");
}

void s2s_log(enum s2s_log_level level, const char *room, const char *fmt, ...)
{
    static const char *const words[] = {"", "warning: ", "", ""};
    char body[2048], line[2048];
    const bool shown = s2s_log_on(level, room), heard = listener && level <= S2S_LOG_WARN;
    if (!shown && !heard)
        return;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(body, sizeof body, fmt, ap);
    va_end(ap);
    if (heard)
        listener(body);
    if (!shown)
        return;
    const char *chosen = getenv("S2S_LOG");
    if (!chosen || !*chosen) /* only of interest if S2S_LOG selects rooms */
        room = NULL;
    int len = rank_shown >= 0 ? snprintf(line, sizeof line, "%s[%d]", program_name, rank_shown)
                              : snprintf(line, sizeof line, "%s", program_name);
    len += snprintf(line + len, sizeof line - (size_t)len, "%s%s: %s", room && *room ? " " : "",
                    room ? room : "", words[level]);
    /* a message stays one line, whatever it quotes */
    s2s_utf8_show_text(line + len, sizeof line - (size_t)len - 1, body);
    len = (int)strlen(line);
    line[len++] = '\n';
    /* one write(2), so that lines of several ranks do not mix; losing a message is not an error */
    if (write(STDERR_FILENO, line, (size_t)len) < 0)
        return;
}
