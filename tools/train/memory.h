/* Numbers of memory and work as plan and --profile show them. */
#ifndef TRAIN_MEMORY_H
#define TRAIN_MEMORY_H

#include <stdio.h>

#include <jansson.h>

#include "lib/train/plan.h"

enum { TRAIN_UNIT_TEXT = 32 };

/* "1.50 GiB", "36.9 TFLOP", into out [TRAIN_UNIT_TEXT], which is returned. */
const char *train_bytes_text(char *out, double bytes);
const char *train_flops_text(char *out, double flops);

/* {"parameters": bytes, .., "sum": bytes} */
json_t *train_memory_json(const struct s2s_train_memory *memory);
void train_memory_print(FILE *to, const struct s2s_train_memory *memory);

#endif
