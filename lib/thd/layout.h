/*
 * The layouts of a pack: how rows of ids become one THD row. salm (salm.h) is NeMo's SALM; the
 * others are those of its neighbours, step by step, so that what was packed here can take the place
 * of what they pack:
 *
 *   rl     NeMo-RL for Automodel models: labels are the ids themselves (the loss shifts them), what
 *          is not to be trained on is S2S_IGNORE; positions are 0 in what fills the row up.
 *   mcore  NeMo-RL for Megatron-core: each sequence is rounded up, then the pack; fill is id 0.
 *          Labels are shifted inside the sequence. No positions: rope goes by the bounds.
 *   sft    packed files of NeMo and Megatron-Bridge: of n ids the first n - 1 are input and the
 * last n - 1 labels, all of them; loss_mask says which count.
 *
 * A clip's placeholder becomes its frames in all of them. The last utterance takes what fills the
 * pack up. Beside the errors of salm there are E_ALIGN (the row is no multiple of 2*cp_size) and
 * E_TOO_SHORT (the fixed length is less than what is in the pack).
 */
#ifndef S2S_THD_LAYOUT_H
#define S2S_THD_LAYOUT_H

#include "lib/thd/salm.h"

enum s2s_thd_layout { S2S_THD_SALM, S2S_THD_RL, S2S_THD_MCORE, S2S_THD_SFT };

/* "salm", "rl", "mcore", "sft"; NULL-ended, in the order of the enum. */
extern const char *const s2s_thd_layouts[];

struct s2s_layout {
    enum s2s_thd_layout kind;
    int64_t min_seq_len;   /* rl: slots of a row at least; 0: what is in it */
    int64_t multiple;      /* mcore: of each sequence; 0: what cp and (with strict_sp) tp need */
    int64_t pack_multiple; /* mcore: of the pack; 0: any */
    int64_t pack_to;       /* mcore, sft: slots of every pack; 0: what is in it */
};

/* ARG for numbers that cannot go together: names the option. */
int s2s_layout_check(const struct s2s_layout *layout, const struct s2s_salm_options *opt,
                     struct s2s_error *err);
/* As s2s_salm_measure, _truncate and _capacity. */
int s2s_layout_measure(struct s2s_salm_shape *shape, const struct s2s_thd_row *row,
                       const struct s2s_layout *layout, const struct s2s_salm_options *opt,
                       struct s2s_error *err);
void s2s_layout_truncate(size_t *n_ids, size_t *n_clips, const struct s2s_thd_row *row,
                         const struct s2s_layout *layout, const struct s2s_salm_options *opt,
                         int64_t max_len);
int64_t s2s_layout_capacity(int64_t max_tokens, const struct s2s_layout *layout,
                            const struct s2s_salm_options *opt);
/* What bin packers round lengths up to: NeMo-RL counts tp in, and lays rows out without it. */
int64_t s2s_layout_bin_multiple(const struct s2s_layout *layout,
                                const struct s2s_salm_options *opt);
/* Slots of a pack whose utterances have n_slots. */
int64_t s2s_layout_slots(int64_t n_slots, const struct s2s_layout *layout,
                         const struct s2s_salm_options *opt);

/* As s2s_salm_pack, which lays salm out. */
int s2s_layout_pack(struct s2s_salm_pack *pack, const struct s2s_thd_row *rows, size_t n_rows,
                    const struct s2s_layout *layout, const struct s2s_salm_options *opt,
                    struct s2s_error *err);

#endif
