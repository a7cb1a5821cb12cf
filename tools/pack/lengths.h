/* What the commands have in common that work on bare lengths: bins, batches, buckets. */
#ifndef TOOLS_PACK_LENGTHS_H
#define TOOLS_PACK_LENGTHS_H

#include <stddef.h>
#include <stdint.h>

struct argp_state;
struct s2s_error;

/* Lengths, one a line; of reals one or two a line. */
struct pack_lengths {
    int32_t *lens;          /* [n], or */
    double *reals, *second; /* [n]; second: NULL, unless each line has two */
    size_t n;
};

/* One command. */
struct pack_lengths_command {
    int n_columns; /* 0: whole numbers; 1 or 2: reals */
    /* All that can fail; what is printed is kept in ctx. */
    int (*work)(void *ctx, const struct pack_lengths *lengths, struct s2s_error *err);
    void (*print)(const void *ctx, const struct pack_lengths *lengths); /* to stdout */
    void *ctx;
};

struct s2s_common;
/* ARG if --seed was given, to a command that draws nothing. */
int pack_refuse_seed(const struct s2s_common *common, struct s2s_error *err);

/* Takes the command's only argument. */
void pack_lengths_take(struct argp_state *state, const char **input, const char *arg);

/* Reads input (NULL or "-": stdin), works, and prints to out (NULL or "-": stdout): nothing where
 * anything fails. FORMAT names file and line. */
int pack_lengths_run(const struct pack_lengths_command *command, const char *input, const char *out,
                     struct s2s_error *err);

#endif
