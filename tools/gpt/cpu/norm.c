/* The architecture's norm over some rows. A norm without mean or bias has NULL in their place. */
#include "tools/gpt/model.h"

static float *from(float *array, uint32_t first) { return array ? array + first : NULL; }

static const struct norm_kernels *kernels_of(const struct gpt *gpt) {
    return &gpt->kernels->norm[gpt->architecture->norm];
}

void norm_forward(const struct gpt *gpt, struct norm n, uint32_t first, uint32_t rows, const float *x,
                  float *y) {
    kernels_of(gpt)->forward(y, from(n.statistics->mean, first), n.statistics->rstd + first, x,
                             n.weight->param, n.bias->param, rows, gpt->config.width,
                             (float)gpt->config.layer_norm_epsilon);
}

void norm_recompute(const struct gpt *gpt, struct norm n, uint32_t first, uint32_t rows, const float *x,
                    float *y) {
    kernels_of(gpt)->recompute(y, x, from(n.statistics->mean, first), n.statistics->rstd + first,
                               n.weight->param, n.bias->param, rows, gpt->config.width);
}

void norm_backward(const struct gpt *gpt, struct norm n, uint32_t first, uint32_t rows, float *sums,
                   const float *skip, const float *dy, const float *x, float *dx) {
    kernels_of(gpt)->backward(dx, sums_of(sums, n.weight), sums_of(sums, n.bias), skip, dy, x,
                              from(n.statistics->mean, first), n.statistics->rstd + first, n.weight->param,
                              rows, gpt->config.width);
}
