/*
 * Journal of the files that a conversion has completed, so that another process can resume it: the
 * file s2s-resume in the folder that is being written. Its first line is the key, a digest of all
 * that determines the output (source, options, version). Then comes a line for each file that is
 * complete and synced:
 *   LENGTH DIGEST PATH XXH3      separated by tabs; XXH3 is the XXH3-64 of the text before it
 * with the number of values that became infinite, if there are any, between PATH and XXH3.
 * Every other rank of a conversion has its own journal: s2s-resume.1 for rank 1, and so on. If a
 * writer needs more data about a file to resume, it stores that in another file, also listed.
 * A truncated or altered line, and a file that does not match its line, are ignored: the file is
 * written again.
 */
#ifndef CKPT_JOURNAL_H
#define CKPT_JOURNAL_H

#include <stdbool.h>
#include <stdint.h>

struct s2s_error;
struct ckpt_journal;

/* Opens the journal in folder dir, and locks the folder until close. If resume is set and there is
 * a journal with this key, the files that it lists are kept, and all others, left unfinished by a
 * kill, are removed. Otherwise the folder is emptied or created. Gives: s2s_ckpt_journal_close. IO:
 * also if another process holds the lock; ARG: the folder has files of another program. */
int s2s_ckpt_journal_open(struct ckpt_journal **out, const char *dir, const char *key, bool resume,
                          struct s2s_error *err);
/* Opens the journal of another rank (> 0), after rank 0 has opened its own. It includes the entries
 * of all ranks of an earlier run. IO. */
int s2s_ckpt_journal_join(struct ckpt_journal **out, const char *dir, const char *key, int rank,
                          struct s2s_error *err);
/* Is the file `path`, in dir or below, listed and unchanged? The file is read to compare its
 * digest. Sets *len and digest (32 hex digits). false: it must be written; always so if journal is
 * NULL. */
bool ckpt_journal_has(struct ckpt_journal *journal, const char *path, int64_t *len,
                      char digest[33]);
/* From now on ckpt_journal_has adds to *n (kept) how many values of the file became infinite when
 * it was written, with a warning, and ckpt_journal_add notes by how many *n has grown. */
void s2s_ckpt_journal_count(struct ckpt_journal *journal, int64_t *n);
/* Total length of all listed files in bytes; 0 if journal is NULL. */
int64_t ckpt_journal_bytes(const struct ckpt_journal *journal);
/* Adds a file that is complete, synced and has its final name. Does nothing if journal is NULL. IO.
 */
int ckpt_journal_add(struct ckpt_journal *journal, const char *path, int64_t len,
                     const char *digest, struct s2s_error *err);
/* Removes the journals of all ranks, when the conversion is complete. IO. */
int s2s_ckpt_journal_remove(struct ckpt_journal *journal, struct s2s_error *err);
/* Removes the folder with all that is in it, as far as that goes, when the conversion has failed:
 * rank 0 does, once no rank writes, and before close, since the folder is another run's behind it.
 */
void s2s_ckpt_journal_discard(struct ckpt_journal *journal);
void s2s_ckpt_journal_close(struct ckpt_journal *journal); /* NULL is a no-op */

#endif
