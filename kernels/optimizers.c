/* The table. A program that defines it itself is linked with its own. */
#include <stddef.h>

#include "kernels/optimizer.h"

const struct optimizer *const optimizers[] = {
#define OPTIMIZER(name) &optimizer_##name,
#include "kernels/optimizers.def"
    NULL};
