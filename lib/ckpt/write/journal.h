/*
 * What of a conversion is done, so that another process can go on with it: the file s2s-resume in
 * the folder that is being written. Its first line is the key, a digest of all that decides what is
 * written (source, options, version). Then comes a line for each file that is complete and synced:
 *   LENGTH DIGEST PATH XXH3      separated by tabs; XXH3 is the XXH3-64 of the line before it
 * Each rank of a shared conversion has a journal of its own: rank 1 s2s-resume.1, and so on. If a
 * writer has to remember more about a file, it writes that into another file, which is noted, too.
 * A line that is cut or altered, and a file that is not what its line says, count as absent: the
 * file is written again.
 */
#ifndef CKPT_JOURNAL_H
#define CKPT_JOURNAL_H

#include <stdbool.h>
#include <stdint.h>

struct s2s_error;
struct ckpt_journal;

/* Opens the journal in the folder dir, which stays locked until close. resume, and a journal is
 * there that has this key: the files that it notes stay, all others, which a kill left unfinished,
 * are removed. Else the folder is emptied, or made. Gives: s2s_ckpt_journal_close. IO: also when
 * another process has the lock; ARG: somebody else's files are in the folder. */
int s2s_ckpt_journal_open(struct ckpt_journal **out, const char *dir, const char *key, bool resume,
                          struct s2s_error *err);
/* Opens the journal of another rank (> 0), after rank 0 has opened its own. It knows what all ranks
 * of an earlier run noted. IO. */
int s2s_ckpt_journal_join(struct ckpt_journal **out, const char *dir, const char *key, int rank,
                          struct s2s_error *err);
/* Is the file `path`, in dir or below, noted, and still what was noted? It is read to find out.
 * Sets *len and digest (32 hex digits). false: it must be written; always so if journal is NULL. */
bool ckpt_journal_has(struct ckpt_journal *journal, const char *path, int64_t *len,
                      char digest[33]);
/* How many bytes all noted files have; 0 if journal is NULL. */
int64_t ckpt_journal_bytes(const struct ckpt_journal *journal);
/* Notes a file that is complete, synced and has its final name. Does nothing if journal is NULL.
 * IO. */
int ckpt_journal_add(struct ckpt_journal *journal, const char *path, int64_t len,
                     const char *digest, struct s2s_error *err);
/* Removes the journals of all ranks: the conversion is done. IO. */
int s2s_ckpt_journal_remove(struct ckpt_journal *journal, struct s2s_error *err);
void s2s_ckpt_journal_close(struct ckpt_journal *journal); /* NULL is a no-op */

#endif
