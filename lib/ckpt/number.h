/* Elements of tensors as numbers, one or n at a time. Data need not be aligned. */
#ifndef CKPT_NUMBER_H
#define CKPT_NUMBER_H

#include <stdbool.h>
#include <stddef.h>

#include "lib/base/dtype.h"

/* Is an element of this dtype a single number? Not for complex dtypes, F4 in pairs, nor
 * S2S_DTYPE_NONE. */
bool s2s_ckpt_is_number(enum s2s_dtype dtype);
/* Element i of data, of such a dtype; rounded if a double cannot represent it. */
double s2s_ckpt_number(const void *data, enum s2s_dtype dtype, size_t i);
/* The first n elements of data, into out [n]. */
void s2s_ckpt_numbers(double *restrict out, const void *restrict data, enum s2s_dtype dtype,
                      size_t n);
/* Can checkpoints with tensors of this dtype be averaged? Floats are averaged, integers are taken
 * from the first checkpoint. Not smaller floats and complex numbers, which are not summed here
 * and would silently be the first's. */
bool s2s_ckpt_can_average(enum s2s_dtype dtype);

/* Below, every dtype is one of s2s_dtype_is_float: F64, F32, F16, BF16. */

/* Casts n elements from in to out, which must not overlap, to another dtype; as PyTorch does: round
 * to nearest even, and to 16-bit types through float32. */
void ckpt_numbers_cast(void *restrict out, enum s2s_dtype to_dtype, const void *restrict in,
                       enum s2s_dtype from_dtype, size_t n);
/* Number of infinite elements among n, fewer than 2^32. */
size_t ckpt_numbers_infinite(const void *data, enum s2s_dtype dtype, size_t n);
/* sum[i] += from[i], n elements. */
void ckpt_numbers_add(double *restrict sum, const void *restrict from, enum s2s_dtype dtype,
                      size_t n);
/* out[i] = from[i], n elements, rounded to dtype. */
void ckpt_numbers_store(void *restrict out, enum s2s_dtype dtype, const double *restrict from,
                        size_t n);

#endif
