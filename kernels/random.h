/*
 * Arguments of dropout. What is drawn is a function of a key and of where an element stands in the
 * whole: not of its place in a matrix, so that other cuts over ranks, other packs and a second
 * computation draw the same.
 */
#ifndef S2S_KERNELS_RANDOM_H
#define S2S_KERNELS_RANDOM_H

#include "kernels/types.h"

/*
 * Element e of a row is left out where word e % 4 of Philox4x32-10 (lib/base/rng.h) is below
 * floor(rate 2^32); its counter is (rows[0], rows[1], e / 4, plane), its key `key`, low words
 * first. What stays is divided by 1 - rate (Srivastava et al. 2014).
 */
struct s2s_draw {
    const uint32_t *rows; /* [n, 2] two words that name the row; NULL: nothing is left out */
    uint64_t key;         /* of the seed and the place of use */
    float rate;           /* [0, 1) */
};

/* y (+)= x with some elements left out, which is its own backward; y may be x. Column c of x is
 * element first + c, of plane 0. */
struct s2s_k_dropout {
    struct s2s_mat x, y;
    int64_t rows, cols, first;
    struct s2s_draw draw;
    bool accumulate;
};

#endif
