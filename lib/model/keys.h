/*
 * Which keys of config.json a class of models knows. Whatever else stands there may change the
 * mathematics, and weights would be trained as what they are not: a key that sounds like it is an
 * error, any other is a warning.
 */
#ifndef S2S_MODEL_KEYS_H
#define S2S_MODEL_KEYS_H

#include <stddef.h>

struct s2s_conf;
struct s2s_error;

enum model_key_use {
    MODEL_KEY_NEEDED, /* has no default here */
    MODEL_KEY_READ,
    MODEL_KEY_QUIET, /* whatever it says, the same is computed */
    MODEL_KEY_OFF,   /* null, false, 0 or empty alone: what it switches on is not implemented */
    MODEL_KEY_FIXED  /* null or `value` alone */
};

/* A class may have several lines of one key: that of its own family counts. */
struct model_key {
    const char *key;
    enum model_key_use use;
    unsigned families;  /* bits of the caller's own; a key of others is as one not known */
    const char *value;  /* of MODEL_KEY_FIXED */
    const char *reason; /* NULL, or what stands in the way of another value */
};

/* A map of keys for one of the families that a table is about. */
struct model_keys {
    const struct model_key *list;
    size_t n;
    unsigned family;
    const char *name; /* of the family, in messages */
};

/*
 * Keys that say nothing of the mathematics (names of classes, token ids, settings of generation)
 * are known of every model. NOTFOUND names what is needed and absent, UNSUPPORTED the key that is
 * not known or not implemented, with its place and what the family knows.
 */
int model_check_keys(const struct s2s_conf *conf, const struct model_keys *keys,
                     struct s2s_error *err);

#endif
