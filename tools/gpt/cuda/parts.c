/* Norms, and the gradients of vectors and weights. */
#include "tools/gpt/cuda/state.h"

static uint32_t parts_of(uint32_t rows) { return (rows + SUM_ROWS - 1) / SUM_ROWS; }

static struct grid sum_blocks(uint32_t rows, uint32_t columns) {
    return (struct grid){(columns + SUM_COLUMNS - 1) / SUM_COLUMNS, parts_of(rows), 1};
}
static const struct grid sum_threads = {WARP, SUM_LANES, 1};

static void finish(struct gpt *gpt, const struct zero_slot *slot, const float *sums, uint32_t columns) {
    if (!slot->grad) return; /* frozen, or no such parameter */
    struct finish_sums_argument a = {slot->grad, sums, parts_of(gpt->pass.rows), columns, slot->add != 0};
    cuda_launch_flat(gpt->cuda, KERNEL_finish_sums, columns, &a);
}

void cuda_norm_forward(struct gpt *gpt, struct cuda_norm n, const void *x, void *y) {
    struct norm_forward_argument a = {.y = y,
                                      .x = x,
                                      .gain = n.weight->param,
                                      .bias = n.bias->param,
                                      .mean = n.statistics.mean,
                                      .rstd = n.statistics.rstd,
                                      .rows = gpt->pass.rows,
                                      .columns = gpt->config.width,
                                      .epsilon = (float)gpt->config.layer_norm_epsilon};
    cuda_launch_rows(gpt->cuda, KERNEL_norm_forward, a.rows, &a);
}

void cuda_norm_backward(struct gpt *gpt, struct cuda_norm n, const void *skip, const float *dy, const void *x,
                        void *dx) {
    struct cuda_gpt *c = gpt->cuda;
    uint32_t rows = gpt->pass.rows, width = gpt->config.width;
    float *bias = c->memory.sums + (uint64_t)parts_of(rows) * width;
    struct norm_sums_argument sums = {.gain = c->memory.sums,
                                      .bias = n.bias->grad ? bias : NULL,
                                      .dy = dy,
                                      .x = x,
                                      .mean = n.statistics.mean,
                                      .rstd = n.statistics.rstd,
                                      .rows = rows,
                                      .columns = width};
    if (n.weight->grad || n.bias->grad)
        cuda_launch(c, KERNEL_norm_sums, sum_blocks(rows, width), sum_threads, &sums);
    finish(gpt, n.weight, sums.gain, width);
    finish(gpt, n.bias, bias, width);
    struct norm_backward_argument a = {
        dx, skip, dy, x, n.weight->param, n.statistics.mean, n.statistics.rstd, rows, width};
    cuda_launch_rows(c, KERNEL_norm_backward, rows, &a);
}

void cuda_bias_gradient(struct gpt *gpt, const struct zero_slot *bias, const void *gradient,
                        uint32_t columns) {
    if (!bias->grad) return;
    struct bias_sums_argument a = {gpt->cuda->memory.sums, gradient, gpt->pass.rows, columns};
    cuda_launch(gpt->cuda, KERNEL_bias_sums, sum_blocks(a.rows, columns), sum_threads, &a);
    finish(gpt, bias, a.sums, columns);
}

void cuda_weight_gradient(struct gpt *gpt, const struct zero_slot *slot, uint32_t outer, uint32_t inner,
                          struct factor left, struct factor right) {
    if (!slot->grad) return; /* frozen */
    left.transposed = true;
    struct product p = {.type = gpt->cuda->type,
                        .m = outer,
                        .n = inner,
                        .k = gpt->pass.rows,
                        .alpha = 1,
                        .a = left,
                        .b = right,
                        .add = slot->add ? slot->grad : NULL,
                        .c = slot->grad,
                        .ldc = inner};
    cuda_multiply(gpt->cuda, &p);
}
