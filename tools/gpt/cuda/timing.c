#include "tools/gpt/cuda/timing.h"

#include <stdlib.h>

enum { REPEATS = 4 };

/* The first is not timed: the host enqueues the others while the GPU works on it. */
CUresult timing_take(const struct timing *t, CUresult (*enqueue)(void *user, int count), void *user,
                     float *out_ms) {
    const struct cuda_driver *d = &t->c->driver;
    CUresult result = enqueue(user, 1);
    if (!result) result = d->cuEventRecord(t->begin, t->c->stream);
    if (!result) result = enqueue(user, REPEATS);
    if (!result) result = d->cuEventRecord(t->end, t->c->stream);
    if (!result) result = d->cuEventSynchronize(t->end);
    return result ? result : d->cuEventElapsedTime(out_ms, t->begin, t->end);
}

static int compare(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

float timing_median(float ms[TIMING_ROUNDS]) {
    qsort(ms, TIMING_ROUNDS, sizeof *ms, compare);
    return ms[TIMING_ROUNDS / 2];
}
