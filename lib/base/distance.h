/* How much two names differ, for "did you mean". */
#ifndef S2S_BASE_DISTANCE_H
#define S2S_BASE_DISTANCE_H

/* Optimal string alignment distance: the least number of insertions, deletions and replacements of
 * a byte, and swaps of two neighbours, that turn one name into the other. Returns most + 1 if it is
 * larger than `most`, or if a name is longer than 256 bytes. */
int s2s_name_distance(const char *a, const char *b, int most);

#endif
