/*
 * What is done of a conversion, so that another process can go on with it: s2s-resume in the folder
 * that is being written. Its first line is the key, a digest of all that decides the bytes (source,
 * options, version); then a line for each file that has its final name and is synced:
 *   LENGTH DIGEST PATH XXH3      separated by tabs, XXH3-64 of what is before it
 * Ranks that share a conversion have a file each, s2s-resume.1 and so on beside that of rank 0.
 * What a writer has to know of a file is a file beside it, noted too. A line that is cut or
 * altered, and a file that is not what its line says, count as absent: they are written again.
 */
#ifndef CKPT_JOURNAL_H
#define CKPT_JOURNAL_H

#include <stdbool.h>
#include <stdint.h>

struct s2s_error;
struct ckpt_journal;

/* Opens that of the folder `dir`. With `resume`, and when the key is that of the journal found
 * there, its files stay, all others (halves that a kill left) go; else the folder is emptied, or
 * made. IO: another process is at it (the folder stays locked until close). */
int s2s_ckpt_journal_open(struct ckpt_journal **out, const char *dir, const char *key, bool resume,
                          struct s2s_error *err);
/* Another rank's, after rank 0 has opened: with what all ranks of an earlier run noted. */
int s2s_ckpt_journal_join(struct ckpt_journal **out, const char *dir, const char *key, int rank,
                          struct s2s_error *err);
/* Reads the file `path` (in dir, or below it) and compares; false: it must be written (journal NULL
 * too). digest gets the 32 digits. */
bool ckpt_journal_has(struct ckpt_journal *journal, const char *path, int64_t *len,
                      char digest[33]);
int64_t ckpt_journal_bytes(const struct ckpt_journal *journal); /* of all noted; NULL: 0 */
/* Notes a file that is synced and has its name. journal NULL: a no-op. */
int ckpt_journal_add(struct ckpt_journal *journal, const char *path, int64_t len,
                     const char *digest, struct s2s_error *err);
/* All is done: removes the journal, every rank's. */
int s2s_ckpt_journal_remove(struct ckpt_journal *journal, struct s2s_error *err);
void s2s_ckpt_journal_close(struct ckpt_journal *journal); /* NULL is a no-op */

#endif
