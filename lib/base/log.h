/*
 * Log messages on stderr, one write(2) per line: "s2s-train[3]: text". Levels: warn = the result
 * may be surprising, info = once per run or file, debug = once per record or step.
 * S2S_LOG=warn|info|debug, optionally by room as in "warn,stream=debug"; then messages name their
 * room: "s2s-train[3] stream: text". The default level is warn; -v is info, -vv debug, -q errors
 * only.
 */
#ifndef S2S_BASE_LOG_H
#define S2S_BASE_LOG_H

#include <stdbool.h>

enum s2s_log_level { S2S_LOG_ERROR, S2S_LOG_WARN, S2S_LOG_INFO, S2S_LOG_DEBUG };

/* Sets the program name (kept), the rank to show (-1: none) and the level; reads S2S_LOG. Called by
 * lib/base/tool.c. */
void s2s_log_init(const char *program, int verbosity);
void s2s_log_set_verbosity(int verbosity); /* -1 quiet, 0 warn, 1 info, 2 debug; S2S_LOG refines */
void s2s_log_set_rank(int world_rank);     /* from then on "program[rank]" */
/* Of other rooms than this one errors alone are shown; S2S_LOG refines, too. */
void s2s_log_set_only(const char *room);
const char *s2s_log_program(void);
bool s2s_log_on(enum s2s_log_level level, const char *room);
/* From now on `heard` gets each error and warning, on the thread that logs it, also those that are
 * not shown: without program, room and escapes. NULL: no longer. */
void s2s_log_set_listener(void (*heard)(const char *text));

void s2s_log(enum s2s_log_level level, const char *room, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

#define s2s_warn(room, ...) s2s_log(S2S_LOG_WARN, room, __VA_ARGS__)
#define s2s_info(room, ...) s2s_log(S2S_LOG_INFO, room, __VA_ARGS__)
#define s2s_debug(room, ...) \
    (s2s_log_on(S2S_LOG_DEBUG, room) ? s2s_log(S2S_LOG_DEBUG, room, __VA_ARGS__) : (void)0)

#endif
