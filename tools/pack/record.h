/* One pack as a record of the stream. */
#ifndef TOOLS_PACK_RECORD_H
#define TOOLS_PACK_RECORD_H

#include "lib/stream/stream.h"
#include "tools/pack/row.h"

enum { RECORD_MAX_TENSORS = 16, RECORD_MAX_META = 4 };

struct pack_record {
    struct s2s_salm_pack pack;
    int64_t *cu_audio;               /* [n_clips + 1] */
    struct s2s_buf audio;            /* samples, features or files of all clips */
    int32_t *channels[PACK_N_SIDES]; /* of duplex speech: tokens */
    int64_t num_examples;
    struct s2s_st_tensor tensors[RECORD_MAX_TENSORS];
    size_t n_tensors;
    struct s2s_st_meta meta[RECORD_MAX_META];
    char *meta_text[RECORD_MAX_META];
    size_t n_meta;
};

/* Lays out rows [n_rows] as a record. record->audio has their clips already, as pack_row_decode
 * appended them (exact16 as there), all else is empty. Release with pack_record_release, also after
 * a failure. */
int pack_record_make(struct pack_record *record, const struct pack_row *rows, size_t n_rows,
                     const struct pack_loader *loader, bool exact16, struct s2s_error *err);
/* Adds a tensor; data is not copied. */
void pack_record_add(struct pack_record *record, const char *name, enum s2s_dtype dtype,
                     const void *data, int n_dims, int64_t rows, int64_t width);
/* But for record->audio. */
void pack_record_release(struct pack_record *record);

#endif
