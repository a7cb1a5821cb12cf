/* JSON objects of plain values, as most lines of manifests are, read by simdjson. Inside lib/data.
 */
#ifndef S2S_DATA_FLAT_JSON_H
#define S2S_DATA_FLAT_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum data_flat_kind {
    DATA_FLAT_NULL,
    DATA_FLAT_BOOL,
    DATA_FLAT_INT,
    DATA_FLAT_REAL,
    DATA_FLAT_STRING
};

struct data_flat {
    enum data_flat_kind kind;
    const char *key,
        *text; /* ended by a NUL, and holding no other; lent until the thread's next call */
    size_t key_len, text_len;
    int64_t whole; /* of BOOL (0, 1) and INT */
    double real;   /* of INT and REAL */
};

/*
 * The values of the object in text [len], into out [cap], in their order. Returns how many they
 * are, or -1 for whatever else the text is: no JSON, nested, with a key twice, a number beyond 64
 * bits, a NUL in a string, more than cap values. Any thread.
 */
int data_flat_parse(struct data_flat *out, size_t cap, const char *text, size_t len);

#ifdef __cplusplus
}
#endif

#endif
