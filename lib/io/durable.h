/* Durability: syncing an output to disk before it gets its name. */
#ifndef S2S_IO_DURABLE_H
#define S2S_IO_DURABLE_H

#include <stdbool.h>
#include <stdint.h>

/*
 * On by default; to be set once, before anything is written. If off, writeback is left to the
 * system, as by cp: outputs still appear complete or not at all when a process dies, but a power
 * failure soon after may leave a named output with wrong bytes.
 */
void s2s_durable_set(bool on);

/* fsync, if on. File systems and pipes without it are not errors. Returns 0, or -1 with errno. */
int s2s_durable_sync(int fd);

/* The same for the name of a new file or folder: syncs its parent folder, unless that is not
 * readable. IO: path exists, but may be lost in a power failure. */
struct s2s_error;
int s2s_durable_sync_name(const char *path, struct s2s_error *err);

/* Starts writeback of bytes [begin, end), so that little is left for the sync. */
void s2s_durable_begin(int fd, int64_t begin, int64_t end);

#endif
