/*
 * The context-parallel partition (DualChunkSwap): each padded utterance is cut into 2*cp_size equal
 * chunks, rank r has chunks r and 2*cp_size-1-r, so that causal work is balanced. Utterances in
 * order, local order is ascending global order.
 *
 * In all functions cu_seqlens is the vector that bounds slots, int32 [n_seqs + 1], borrowed: starts
 * at 0, never goes down, every entry a multiple of 2*cp_size (with cp_size 1 any lengths go), ends
 * at T > 0.
 *
 * Source: thd_get_partitioned_indices of TransformerEngine, which checks alignment on the device
 * only; here s2s_thd_cp_check does it.
 */
#ifndef S2S_THD_CP_H
#define S2S_THD_CP_H

#include <stddef.h>
#include <stdint.h>

struct s2s_error;

/* All that the partition demands. SHAPE names the entry; RANGE for cp_size and cp_rank. */
int s2s_thd_cp_check(const int32_t *cu_seqlens, size_t n_seqs, int64_t n_slots, int cp_size,
                     int cp_rank, struct s2s_error *err);

/* The functions below want arguments that s2s_thd_cp_check accepts. They allocate nothing. */

/* index [T / cp_size]: the slots that the rank holds. */
void s2s_thd_cp_index(int32_t *index, const int32_t *cu_seqlens, size_t n_seqs, int cp_size,
                      int cp_rank);
/* inverse [T]: where slot g lies when the ranks' local rows are laid one behind the other. */
void s2s_thd_cp_inverse(int32_t *inverse, const int32_t *cu_seqlens, size_t n_seqs, int cp_size);

/* local [T / cp_size] from global [T], and back into its places; slots of slot_bytes. Two copies an
 * utterance, no index. */
void s2s_thd_cp_split(void *local, const void *global, size_t slot_bytes, const int32_t *cu_seqlens,
                      size_t n_seqs, int cp_size, int cp_rank);
void s2s_thd_cp_join(void *global, const void *local, size_t slot_bytes, const int32_t *cu_seqlens,
                     size_t n_seqs, int cp_size, int cp_rank);

/* Rows that exist only for the slots of clips: audio_slot, audio_frames [n_clips] as in a pack, in
 * slot order. */
struct s2s_thd_clips {
    const int32_t *slot, *frames;
    size_t n_clips;
};

/* Number of the rank's rows. */
int64_t s2s_thd_cp_rows(const struct s2s_thd_clips *clips, const int32_t *cu_seqlens, size_t n_seqs,
                        int cp_size, int cp_rank);
/* As split and join above, for rows [sum of frames] of row_bytes. */
void s2s_thd_cp_split_rows(void *local, const void *global, size_t row_bytes,
                           const struct s2s_thd_clips *clips, const int32_t *cu_seqlens,
                           size_t n_seqs, int cp_size, int cp_rank);
void s2s_thd_cp_join_rows(void *global, const void *local, size_t row_bytes,
                          const struct s2s_thd_clips *clips, const int32_t *cu_seqlens,
                          size_t n_seqs, int cp_size, int cp_rank);

#endif
