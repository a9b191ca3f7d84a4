/* Times of work on the GPU. What is compared takes turns, TIMING_ROUNDS times, so that a GPU that changes its clock treats
 * all alike; medians of the rounds are compared. */
#ifndef ZERO_TOOLS_GPT_CUDA_TIMING_H
#define ZERO_TOOLS_GPT_CUDA_TIMING_H

#include "tools/gpt/cuda/state.h"

enum { TIMING_ROUNDS = 5 };
static const float timing_faster = 0.98f; /* of the first way's time: another way that takes less replaces the first */

struct timing {
    struct cuda_gpt *c;
    CUevent begin, end;
};

CUresult timing_take(const struct timing *t, CUresult (*enqueue)(void *user, int count), void *user,
                     float *out_ms);
float timing_median(float ms[TIMING_ROUNDS]); /* sorts them */

#endif
