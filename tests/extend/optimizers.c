/* The table of optimizers with one more row. */
#include <stddef.h>

#include "kernels/optimizer.h"

extern const struct optimizer optimizer_signum;

const struct optimizer *const optimizers[] = {
#define OPTIMIZER(name) &optimizer_##name,
#include "kernels/optimizers.def"
    &optimizer_signum, NULL};
