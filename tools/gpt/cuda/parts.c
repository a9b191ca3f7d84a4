/* Norms, and the gradients of vectors and weights. */
#include "tools/gpt/cuda/state.h"

static uint32_t parts_of(uint32_t rows, uint32_t each) { return (rows + each - 1) / each; }

static struct grid sum_blocks(uint32_t rows, uint32_t columns) {
    return (struct grid){(columns + SUM_COLUMNS - 1) / SUM_COLUMNS, parts_of(rows, SUM_ROWS), 1};
}
static const struct grid sum_threads = {WARP, SUM_LANES, 1};

/* Of one vector or two, of which each may be frozen, or no parameter: then nothing is computed. `stride`: of the parts. */
static void finish_two(struct gpt *gpt, const struct zero_slot *slot[2], float *const sums[2], uint32_t parts,
                       uint32_t columns, uint32_t stride) {
    struct finish_sums_argument a = {.parts = parts, .columns = columns, .stride = stride};
    uint32_t count = 0;
    for (int i = 0; i < 2; i++)
        if (slot[i] && slot[i]->grad)
            a.vector[count++] = (struct finished_vector){slot[i]->grad, sums[i], slot[i]->add != 0};
    cuda_launch(gpt->cuda, KERNEL_finish_sums, (struct grid){(columns + WARP - 1) / WARP, count, 1},
                (struct grid){WARP, FINISH_LANES, 1}, &a);
}

static void finish(struct gpt *gpt, const struct zero_slot *slot, float *sums, uint32_t parts,
                   uint32_t columns, uint32_t stride) {
    finish_two(gpt, (const struct zero_slot *[]){slot, NULL}, (float *[]){sums, NULL}, parts, columns,
               stride);
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

enum gpt_kernel cuda_norm_back(const struct cuda_gpt *c, uint32_t columns) {
    uint32_t k = parts_of(columns, NORM_GROUPS * c->widest);
    if (columns % c->widest || k > 2) return GPT_KERNELS;
    return k == 1 ? KERNEL_norm_back_1 : KERNEL_norm_back_2;
}

static uint32_t norm_part_rows(const struct cuda_gpt *c, uint32_t rows, uint32_t columns) {
    return parts_of(rows, cuda_norm_parts_most(rows, columns, c->widest));
}
static uint32_t norm_parts(const struct cuda_gpt *c, uint32_t rows, uint32_t columns) {
    return parts_of(rows, norm_part_rows(c, rows, columns));
}

void cuda_launch_norm_back(struct cuda_gpt *c, struct norm_backward_argument *a) {
    struct grid blocks = {norm_parts(c, a->rows, a->columns), 1, 1},
                threads = {cuda_norm_threads(a->columns, c->widest), 1, 1};
    uint32_t shared = NORM_ROWS * NORM_PIECES(c->number_bytes) * threads.x * 16;
    a->part_rows = norm_part_rows(c, a->rows, a->columns);
    cuda_launch_shared(c, cuda_norm_back(c, a->columns), blocks, threads, shared, a);
}

static void norm_apart(struct gpt *gpt, struct norm_backward_argument *a) {
    struct cuda_gpt *c = gpt->cuda;
    struct norm_sums_argument sums = {.gain = a->gain_sums,
                                      .bias = a->bias_sums,
                                      .dy = a->dy,
                                      .x = a->x,
                                      .mean = a->mean,
                                      .rstd = a->rstd,
                                      .rows = a->rows,
                                      .columns = a->columns};
    if (sums.gain) cuda_launch(c, KERNEL_norm_sums, sum_blocks(a->rows, a->columns), sum_threads, &sums);
    cuda_launch_rows(c, KERNEL_norm_backward, a->rows, a);
}

void cuda_norm_backward(struct gpt *gpt, struct cuda_norm n, const void *skip, const float *dy, const void *x,
                        void *dx) {
    struct cuda_gpt *c = gpt->cuda;
    uint32_t rows = gpt->pass.rows, width = gpt->config.width;
    bool apart = cuda_norm_back(c, width) == GPT_KERNELS;
    uint32_t parts = apart ? parts_of(rows, SUM_ROWS) : norm_parts(c, rows, width);
    float *sums = c->memory.sums, *bias = sums + (uint64_t)parts * width;
    struct norm_backward_argument a = {.dx = dx,
                                       .skip = skip,
                                       .dy = dy,
                                       .x = x,
                                       .gain = n.weight->param,
                                       .mean = n.statistics.mean,
                                       .rstd = n.statistics.rstd,
                                       .rows = rows,
                                       .columns = width,
                                       .gain_sums = n.weight->grad || n.bias->grad ? sums : NULL,
                                       .bias_sums = n.bias->grad ? bias : NULL,
                                       .dx_sums = c->memory.stream_sums};
    if (apart)
        norm_apart(gpt, &a);
    else
        cuda_launch_norm_back(c, &a);
    finish_two(gpt, (const struct zero_slot *[]){n.weight, n.bias}, (float *[]){sums, bias}, parts, width,
               width);
}

static struct head_norm_forward_argument head_norms_of(const struct gpt *gpt, struct cuda_head_norms n,
                                                       void *x) {
    const struct gpt_config *c = &gpt->config;
    return (struct head_norm_forward_argument){.x = x,
                                               .raw = n.raw,
                                               .rstd = n.rstd,
                                               .query_gain = n.query->param,
                                               .key_gain = n.key->param,
                                               .rows = gpt->pass.rows,
                                               .stride = (uint32_t)extent_of(c, QKV),
                                               .heads = c->heads,
                                               .kv_heads = c->kv_heads,
                                               .width = c->head_width,
                                               .epsilon = (float)c->layer_norm_epsilon,
                                               .sums = gpt->cuda->memory.sums};
}

void cuda_head_norms_forward(struct gpt *gpt, struct cuda_head_norms norms, void *qkv) {
    struct head_norm_forward_argument a = head_norms_of(gpt, norms, qkv);
    cuda_launch_rows(gpt->cuda, KERNEL_head_norm_forward, (uint64_t)a.rows * (a.heads + a.kv_heads), &a);
}

void cuda_head_norms_backward(struct gpt *gpt, struct cuda_head_norms norms, void *qkv_gradient) {
    struct head_norm_forward_argument a = head_norms_of(gpt, norms, qkv_gradient);
    uint32_t parts = parts_of(a.rows, SUM_ROWS);
    float *key_sums = a.sums + (uint64_t)parts * a.heads * a.width;
    cuda_launch(gpt->cuda, KERNEL_head_norm_backward, (struct grid){parts, a.heads + a.kv_heads, 1},
                sum_threads, &a);
    finish(gpt, norms.query, a.sums, parts * a.heads, a.width, a.width);
    finish(gpt, norms.key, key_sums, parts * a.kv_heads, a.width, a.width);
}

void cuda_launch_cross_entropy(struct cuda_gpt *c, struct cross_entropy_argument *a) {
    uint32_t needed = parts_of(a->stride, LOSS_THREADS * c->widest);
    struct grid blocks = {a->rows, 1, 1}, threads = {LOSS_THREADS, 1, 1};
    a->slots = a->stride % c->widest ? 0 : needed < LOSS_SLOTS ? needed : LOSS_SLOTS;
    cuda_launch_shared(c, KERNEL_cross_entropy, blocks, threads, a->slots * LOSS_THREADS * 16, a);
}

void cuda_bias_gradients(struct gpt *gpt, const struct cuda_bias biases[], uint32_t count,
                         const void *gradient, uint32_t columns) {
    struct bias_sums_argument a = {gpt->cuda->memory.sums, gradient, gpt->pass.rows, columns};
    uint32_t parts = parts_of(a.rows, SUM_ROWS), at = 0;
    bool any = false;
    for (uint32_t i = 0; i < count; i++) any |= biases[i].slot->grad != NULL;
    if (any) cuda_launch(gpt->cuda, KERNEL_bias_sums, sum_blocks(a.rows, columns), sum_threads, &a);
    for (uint32_t i = 0; i < count; at += biases[i++].columns)
        finish(gpt, biases[i].slot, a.sums + at, parts, biases[i].columns, columns);
}

void cuda_bias_gradient(struct gpt *gpt, const struct zero_slot *bias, const void *gradient,
                        uint32_t columns) {
    cuda_bias_gradients(gpt, &(struct cuda_bias){bias, columns}, 1, gradient, columns);
}

void cuda_stream_bias_gradient(struct gpt *gpt, const struct zero_slot *bias, const void *gradient) {
    uint32_t width = gpt->config.width;
    if (cuda_norm_back(gpt->cuda, width) == GPT_KERNELS)
        cuda_bias_gradient(gpt, bias, gradient, width);
    else
        finish(gpt, bias, gpt->cuda->memory.stream_sums, norm_parts(gpt->cuda, gpt->pass.rows, width), width,
               width);
}

void cuda_weight_gradient(struct gpt *gpt, const struct zero_slot *slot, uint32_t outer, uint32_t inner,
                          struct factor left, struct factor right) {
    if (!slot->grad) return; /* frozen */
    left.transposed = true;
    struct product p = {.type = gpt->cuda->type,
                        .m = outer,
                        .n = inner,
                        .k = gpt->pass.rows,
                        .a = left,
                        .b = right,
                        .add = slot->add ? slot->grad : NULL,
                        .c = slot->grad,
                        .ldc = inner};
    cuda_multiply(gpt->cuda, &p);
}
