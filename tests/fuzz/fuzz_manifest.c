/* Lines of manifests of strangers: first byte N is NeMo, C a Lhotse cut, anything else a tokenized
 * row, which is then laid out: what the layout accepts must add up. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/base.h"
#include "lib/data/data.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Whole sound, and windows of it. */
static const struct s2s_window windows[] = {
    {.length_s = 0}, {.length_s = 1, .hop_s = 0.3}, {.length_s = 2.5, .which = S2S_WINDOW_LAST}};
enum { N_WINDOWS = sizeof windows / sizeof *windows };

static void try_nemo(const struct s2s_line *line, const struct s2s_window *window)
{
    const struct s2s_manifest_options opt = {.path = "no/such/folder/manifest.jsonl",
                                             .window = *window};
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_sample sample;
    int n = 1;
    for (int variant = 0; variant < n && variant < 64; variant++) {
        n = s2s_data_parse_nemo(&sample, line, variant, &opt, &err);
        if (n > 0 && (!sample.id || !sample.turns[0].sound.source || !sample.turns[0].sound.path))
            S2S_BUG("a sample without a file");
        if (n > 0)
            s2s_sample_release(&sample);
    }
}

static void try_cut(const struct s2s_line *line, const struct s2s_window *window)
{
    const struct s2s_manifest_options opt = {.path = "cuts.jsonl", .window = *window};
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_sample sample;
    int n = 1;
    for (int variant = 0; variant < n && variant < 64; variant++) {
        n = s2s_data_parse_cut(&sample, line, variant, &opt, &err);
        if (n > 0)
            s2s_sample_release(&sample);
    }
}

static void lay_out(const struct s2s_ids_row *row)
{
    struct s2s_salm_options opt = S2S_SALM_OPTIONS_DEFAULT;
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_salm_shape shape;
    struct s2s_salm_pack pack;
    const struct s2s_thd_row thd = {row->id,    row->ids,   row->loss_mask,
                                    row->n_ids, row->clips, row->n_clips};
    opt.cp_size = 2;
    opt.tp_size = 3;
    if (s2s_salm_measure(&shape, &thd, &opt, &err) < 0 || shape.len_padded > 1 << 16)
        return;
    if (s2s_salm_pack(&pack, &thd, 1, &opt, &err) < 0)
        S2S_BUG("measured, but not laid out: %s", err.text);
    if (pack.n_slots != (size_t)pack.cu_seqlens[1] || pack.n_slots % 12 != 0 ||
        pack.num_tokens != shape.len)
        S2S_BUG("%zu slots, %d tokens", pack.n_slots, (int)pack.num_tokens);
    s2s_salm_pack_release(&pack);
    for (int64_t max_len = 1; max_len < 40; max_len += 13) {
        size_t n_ids, n_clips;
        struct s2s_thd_row part = thd;
        s2s_salm_truncate(&n_ids, &n_clips, &thd, &opt, max_len);
        part.n_ids = n_ids;
        part.n_clips = n_clips;
        if (n_ids > 0 &&
            (s2s_salm_measure(&shape, &part, &opt, &err) < 0 || shape.len_padded > max_len))
            S2S_BUG("cut to %lld slots it has %lld", (long long)max_len,
                    (long long)shape.len_padded);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_ids_row row;
    if (size == 0)
        return 0;
    const struct s2s_line line = {.text = (const char *)data + 1, .len = size - 1, .number = 1};
    if (data[0] == 'N' || data[0] == 'C') {
        for (int i = 0; i < N_WINDOWS; i++)
            (data[0] == 'N' ? try_nemo : try_cut)(&line, &windows[i]);
    } else if (s2s_data_parse_ids(&row, &line, 0, &err) >= 0) {
        lay_out(&row);
        s2s_ids_row_release(&row);
    }
    return 0;
}
