/*
 * The members of a tar, in their order and by their places. libarchive reads it. A tar that is
 * compressed, or no file ("-", "pipe:COMMAND"), is unpacked to a temporary file first.
 */
#ifndef S2S_DATA_MEMBERS_H
#define S2S_DATA_MEMBERS_H

#include <stddef.h>
#include <stdint.h>

struct s2s_error;
struct s2s_members;

/* OPEN, IO; FORMAT: no tar. Safe for reading from any thread, for walking from one. */
int s2s_members_open(struct s2s_members **tar, const char *path, struct s2s_error *err);
void s2s_members_close(struct s2s_members *tar);
/* Another walk over the same tar, with what that has copied of it. */
int s2s_members_share(struct s2s_members **tar, const struct s2s_members *other,
                      struct s2s_error *err);

/* A regular file of the tar; name is lent until the next call. */
struct s2s_member {
    const char *name;
    int64_t at; /* of its header, for s2s_members_read */
    int64_t len_bytes;
};

/*
 * The next regular file; folders and other kinds are passed over. Returns 1, 0 behind the last one,
 * or TRUNCATED (also where the end mark is missing: members may be), FORMAT; after an error there
 * are no more. s2s_members_rewind begins anew.
 */
int s2s_members_next(struct s2s_members *tar, struct s2s_member *member, struct s2s_error *err);
void s2s_members_rewind(struct s2s_members *tar);
/* The same, where the first member is the one whose header is at `at`. */
void s2s_members_rewind_to(struct s2s_members *tar, int64_t at);
/* Bytes of the tar, not compressed. */
int64_t s2s_members_len_bytes(const struct s2s_members *tar);

/* The bytes of the member called `name` whose header is at `at`. Gives *bytes (free). FORMAT: it is
 * not there (any more); TRUNCATED. */
int s2s_members_read(const struct s2s_members *tar, int64_t at, const char *name, void **bytes,
                     size_t *len_bytes, struct s2s_error *err);

/* The place of the next member called `name` behind the one at *at: 1. FORMAT: there is none. */
int s2s_members_find(const struct s2s_members *tar, int64_t *at, const char *name,
                     struct s2s_error *err);

#endif
