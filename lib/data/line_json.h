/* Values of the JSON object of a line. Inside lib/data. */
#ifndef S2S_DATA_LINE_JSON_H
#define S2S_DATA_LINE_JSON_H

#include <stdbool.h>

#include <jansson.h>

#include "lib/data/lines.h"

struct s2s_error;

/* The object of the line (json_decref), or NULL: FORMAT with the column. */
json_t *data_load_object(const struct s2s_line *line, struct s2s_error *err);
/* A string: 1, and *out is replaced; 0: absent or null; FORMAT. */
int data_get_string(char **out, const json_t *object, const char *key, struct s2s_error *err);
/* A finite number of at least min, in the same way. */
int data_get_number(double *out, const json_t *object, const char *key, double min,
                    struct s2s_error *err);
int data_get_int(int *out, const json_t *object, const char *key, int min, struct s2s_error *err);
/* Numbers of channels: a list of them, or one alone. Gives *channels. 0 or FORMAT. */
int data_get_channels(int **channels, int *n_channels, const json_t *value, struct s2s_error *err);
/* Python's truth of a value; NULL is false. */
bool data_is_truthy(const json_t *value);
/* A relative name means the file beside the manifest, if there is one, else the name as given.
 * manifest NULL: as given. Gives: free. */
char *data_resolve(const char *source, const char *manifest);
/* The last part of a path without its last suffix, as pathlib's stem. Gives: free. */
char *data_stem_of(const char *path);
/* The same as bytes of path [len]: where they begin. */
const char *data_stem_find(const char *path, size_t len, size_t *stem_len);
/* Is `source` the name of the file whatever the manifest is? */
bool data_is_resolved(const char *source, const char *manifest);

#endif
