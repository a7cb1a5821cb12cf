/*
 * Sums of scalars over many tapes, such as the loss of each batch of a data set: nothing waits for
 * the device until they are read.
 *
 *     struct s2s_sums *sums = s2s_sums_new(device, 1);
 *     s2s_sums_add(sums, 0, fwd.loss);              // after each forward pass
 *     rc = s2s_sums_read(sums, &loss, err);         // once, in the end
 */
#ifndef S2S_TENSOR_SUMS_H
#define S2S_TENSOR_SUMS_H

#include "lib/tensor/tensor.h"

struct s2s_error;
struct s2s_sums;

enum { S2S_SUMS_MAX = 8 };

/* n sums, all 0. */
struct s2s_sums *s2s_sums_new(struct s2s_device *device, int n);
void s2s_sums_free(struct s2s_sums *sums); /* NULL is a no-op */
/* Adds a F64 scalar to sum i; its tape may be reset at once. Waits for the device where more than
 * a thousand were added since the last read. */
void s2s_sums_add(struct s2s_sums *sums, int i, const struct s2s_tensor *scalar);
/* Waits for the device. values [n]: in each the order in which scalars were added; all are 0 again
 * then. A failure of the device is reported here. */
int s2s_sums_read(struct s2s_sums *sums, double *values, struct s2s_error *err);

#endif
