/* A run directory belongs to one job at a time. */
#ifndef S2S_TRAIN_LOCK_H
#define S2S_TRAIN_LOCK_H

struct s2s_error;
struct s2s_run_lock;

/* Makes DIR if needed and locks DIR/lock. RULE when another process has it: names its host and
 * process id. The lock of a process that died is free. Gives: s2s_run_unlock. */
int s2s_run_lock(struct s2s_run_lock **lock, const char *dir, struct s2s_error *err);
void s2s_run_unlock(struct s2s_run_lock *lock); /* NULL is a no-op */

/* All folders of path. */
int s2s_make_dirs(const char *path, struct s2s_error *err);

#endif
