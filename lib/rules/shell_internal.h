/* What the reader of launch scripts knows about batch systems and tests. */
#ifndef S2S_RULES_SHELL_INTERNAL_H
#define S2S_RULES_SHELL_INTERNAL_H

#include <stddef.h>
#include <stdint.h>

struct s2s_conf;

/* Numbers that #SBATCH lines or the flags of srun give; 0: not given. */
struct rules_sbatch {
    int64_t nodes, ntasks, ntasks_per_node, gpus_per_node;
    int line; /* of the last one */
};

/* The words of "#SBATCH WORDS" or behind "srun": -N 4, --nodes=4, --gres=gpu:8, .. Stops at the
 * first word that is no flag and no value of one. */
void rules_sbatch_words(struct rules_sbatch *batch, const char *const *words, size_t n, int line);
/* One comment line; nothing happens if it is not "#SBATCH". */
void rules_sbatch_line(struct rules_sbatch *batch, const char *text, size_t len, int line);

/*
 * A test over integers, its words expanded: "[[ 72 -eq 264 ]]", "[ 72 != 264 ]", "test 1 -lt 2",
 * "(( 72 == 264 ))". 1 it holds, 0 it does not, -1 it is another test or not known.
 */
int rules_test_holds(const char *const *words, size_t n);
/* The position of its left side among the words, or 0 if it is not such a test. */
size_t rules_test_left(const char *const *words, size_t n);

/* Scripts that run one after another in one environment: the second is handed the variables of the
 * first. Gives: s2s_conf_free; places in the second keep its name. */
struct rules_script {
    const char *text;
    size_t len_bytes;
    const char *name;
};
struct s2s_conf *rules_read_scripts(const struct rules_script *scripts, size_t n);

#endif
