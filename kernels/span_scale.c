#include "kernels/span_scale.h"

#include "engine/device/kernel.h"
#include "kernels/span.h"

KERNEL_FATBIN(span_scale_fatbin);

static void run(void *argument) {
    const struct span_scale_argument *a = argument;
    span_scale(a->span, a->factor, a->count);
}

static struct kernel_grid grid(const void *argument) {
    const struct span_scale_argument *a = argument;
    return kernel_grid_of(a->count, 256, 4);
}

const struct kernel kernel_span_scale = {
    .name = "span_scale",
    .fatbin = span_scale_fatbin,
    .run = run,
    .grid = grid,
    .argument_bytes = sizeof(struct span_scale_argument),
};
