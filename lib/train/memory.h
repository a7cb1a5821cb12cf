/* The device memory that a rank's training has, part by part. */
#ifndef S2S_TRAIN_MEMORY_H
#define S2S_TRAIN_MEMORY_H

#include <stddef.h>
#include <stdint.h>

struct s2s_buf;
struct s2s_side;

/* Bytes of device memory that a rank has in use at most, part by part. */
struct s2s_train_memory {
    int64_t parameters, gradients, optimizer;
    int64_t activations;          /* kept from the forward to the backward pass: the tape */
    int64_t recompute;            /* of the part of the model that runs again */
    int64_t activation_gradients; /* from their first writer to their reader */
    int64_t scratch;              /* workspaces of kernels, and slices of logits */
    int64_t results;              /* losses and statistics that a step reads at its end */
};

/* Its parts by name: "activation_gradients", "gradients of activations". */
struct s2s_memory_part {
    const char *key, *title;
    size_t offset;
};
enum { S2S_MEMORY_PARTS = 8 };
extern const struct s2s_memory_part s2s_memory_parts[S2S_MEMORY_PARTS];

int64_t s2s_train_memory_part(const struct s2s_train_memory *memory, int part);
int64_t s2s_train_memory_sum(const struct s2s_train_memory *memory);
/* Of what the side has done so far. */
void s2s_train_memory_of(struct s2s_train_memory *memory, const struct s2s_side *side);
/* Adds "12.0 MiB in use: 3.1 MiB parameters, .." with the parts that are there. */
void s2s_train_memory_say(struct s2s_buf *buf, const struct s2s_train_memory *memory);

#endif
