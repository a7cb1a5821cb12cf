/* Whether an output is on the disk before it gets its name. */
#ifndef S2S_IO_DURABLE_H
#define S2S_IO_DURABLE_H

#include <stdbool.h>
#include <stdint.h>

/*
 * On unless said otherwise, for the whole process, before anything is written. Off, storing is left
 * to the system, as cp does: outputs still appear whole or not at all whatever becomes of the
 * process, but a power cut soon after may leave a named output with wrong bytes.
 */
void s2s_durable_set(bool on);

/* fsync, unless it is off. Some file systems and all pipes have none, which is no failure. -1 with
 * errno. */
int s2s_durable_sync(int fd);

/* The same for a name that a file or folder has got: its folder is synced. One that may be written
 * but not read is left to the system. IO: path has its name, and may lose it in a power cut. */
struct s2s_error;
int s2s_durable_sync_name(const char *path, struct s2s_error *err);

/* Asks for storing bytes [begin, end) to begin, so that the sync finds little left. */
void s2s_durable_begin(int fd, int64_t begin, int64_t end);

#endif
