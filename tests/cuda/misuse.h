/* A kernel with errors that a GPU does not tolerate, for emulator_test.c. */
#ifndef ZERO_TESTS_CUDA_MISUSE_H
#define ZERO_TESTS_CUDA_MISUSE_H

#include <stdint.h>

enum misuse {
    MISUSE_NONE,
    MISUSE_BARRIERS, /* half of the block waits elsewhere than the other half */
    MISUSE_WARPS,    /* half of a warp does */
    MISUSE_EXIT,     /* a lane is gone that its warp waits for */
    MISUSE_ADDRESS,  /* two words are loaded at once, from an odd one */
    MISUSE_INDEX,    /* behind the end of a shared array */
    MISUSE_SHIFT,    /* by 32 */
    MISUSE_CAST,     /* of a float that is too large */
    MISUSE_COPY,     /* asynchronous, of 16 bytes, to the second word */
    MISUSE_MATRIX,   /* of which a row begins there */
    MISUSE_PRODUCT,  /* of a warpgroup, that was not begun */
    MISUSE_GROUP,    /* nor was the second, after a commit */
    MISUSE_OPERAND,  /* of which is not in the block's shared memory */
    MISUSE_LEFT,     /* nor the left one */
    MISUSE_FENCE,    /* of what was copied, without a fence */
    MISUSES,
};

enum { LEFT_OUTSIDE = 0x20000 }; /* an address behind any that the right operand has */

struct misuse_argument {
    uint32_t misuse, one; /* one: 1, which the compiler must not know */
    float large;          /* 2^40 */
    uint32_t *out;        /* [64] */
};

#endif
