/* Elements of tensors as numbers: one by one, and n of them at a time. Nothing need be aligned. */
#ifndef CKPT_NUMBER_H
#define CKPT_NUMBER_H

#include <stdbool.h>
#include <stddef.h>

#include "lib/base/dtype.h"

/* Has an element of it one value? Those of complex numbers have two. */
bool s2s_ckpt_is_number(enum s2s_dtype dtype);
/* Element i of floating (F8 too) or integer data, rounded where a double cannot hold it. */
double s2s_ckpt_number(const void *data, enum s2s_dtype dtype, size_t i);
void s2s_ckpt_numbers(double *restrict out, const void *restrict data, enum s2s_dtype dtype,
                      size_t n);
/* Do tensors of this dtype go into a mean? Floating ones are averaged and those of integers stay
 * the first's; 8-bit floats and complex numbers would be the first's in silence. */
bool s2s_ckpt_can_average(enum s2s_dtype dtype);

/* The dtypes below are those of s2s_dtype_is_float: what is cast, and averaged. */
void ckpt_numbers_cast(void *restrict out, enum s2s_dtype to_dtype, const void *restrict in,
                       enum s2s_dtype from_dtype, size_t n);
/* How many of them are infinite. */
size_t ckpt_numbers_infinite(const void *data, enum s2s_dtype dtype, size_t n);
void ckpt_numbers_add(double *restrict sum, const void *restrict from, enum s2s_dtype dtype,
                      size_t n);
void ckpt_numbers_store(void *restrict out, enum s2s_dtype dtype, const double *restrict from,
                        size_t n);

#endif
