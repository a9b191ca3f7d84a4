/* The block's forward, turned around, in four phases: the weights, transposed; tiles back to attention's
 * output; heads, along with the weights' gradients that are ready by then; tiles to the block's input, along
 * with the last weight's gradient. */
#include "engine/zero.h"
#include "tools/gpt/attention.h"
#include "tools/gpt/block.h"
#include "tools/gpt/matmul.h"
#include "tools/gpt/phase.h"

/* Where each sum over rows lies in a tile's partial sums, in widths; the inner bias is last, having its own
 * size. */
enum {
    NARROW_AT,
    NORM2_WEIGHT_AT,
    NORM2_BIAS_AT,
    PROJECT_AT,
    NORM1_WEIGHT_AT,
    NORM1_BIAS_AT,
    QKV_AT,
    WIDEN_AT = 9
};

/* A product with a transposed weight runs at 70 to 90 % of the rate of a plain one, as oneDNN then packs the
 * weight in another order for every tile; so weights are transposed once, before the tiles. Products of bf16 take
 * either form at the same rate. */
struct turn {
    const struct kernels *kernels;
    float *to;
    const float *from;
    uint32_t rows, columns;
};

enum { TURN_ROWS = 64 };

static void turn_rows(void *context, uint32_t index, uint32_t thread) {
    const struct turn *t = context;
    uint32_t first = index * TURN_ROWS, rows = t->rows - first < TURN_ROWS ? t->rows - first : TURN_ROWS;
    t->kernels->transpose(t->to + first, t->rows, t->from + (uint64_t)first * t->columns, t->columns, rows,
                          t->columns);
}

static void turn_weights(struct block *b) {
    if (b->gpt->bf16) return;
    const struct kernels *k = b->gpt->kernels;
    const struct activations *a = &b->gpt->activations;
    uint32_t width = b->gpt->config.width, wide = b->gpt->config.inner;
    struct turn turns[] = {{k, a->turned_qkv, param(b, QKV_WEIGHT), width, 3 * width},
                           {k, a->turned_project, param(b, PROJECT_WEIGHT), width, width},
                           {k, a->turned_widen, param(b, WIDEN_WEIGHT), width, wide},
                           {k, a->turned_narrow, param(b, NARROW_WEIGHT), wide, width}};
    struct phase phase = {.groups = 0};
    for (int i = 0; i < 4; i++)
        phase_add(&phase, (turns[i].rows + TURN_ROWS - 1) / TURN_ROWS, turn_rows, &turns[i]);
    phase_run(&phase, b->gpt->threads);
}

/* The transpose of a weight stored as [inputs][outputs]. */
static struct matrix turned(const struct block *b, enum block_param index, const float *to, uint32_t inputs,
                            uint32_t outputs) {
    return b->gpt->bf16 ? weight_of(b->gpt, &b->unit->view[index], outputs, TRANSPOSED) : plain(to, inputs);
}

static void to_attention(void *context, uint32_t index, uint32_t thread) {
    struct block *b = context;
    struct gpt *gpt = b->gpt;
    const struct activations *a = &gpt->activations;
    const struct kernels *k = gpt->kernels;
    uint32_t width = gpt->config.width, wide = gpt->config.inner;
    uint32_t first = tile_first(gpt, index), rows = tile_rows(gpt, index);
    uint64_t at = (uint64_t)first * width, wide_at = (uint64_t)first * wide;
    float *sums = tile_partial(gpt, index), *gradient = b->gradient + at, *inner = b->saved->inner + wide_at;
    const float *middle = b->saved->middle + at;
    float *norm_gradient =
        a->norm1 + (uint64_t)tile_first(gpt, thread) * width; /* norm1 itself comes later */
    const float *mean = b->saved->mean2 + first, *rstd = b->saved->rstd2 + first;

    partial_clear(gpt, index, WIDEN_AT * (uint64_t)width + wide);
    k->column_sums(sums + NARROW_AT * width, gradient, rows, width);
    product(gpt, thread, rows, wide, width, gradient, turned(b, NARROW_WEIGHT, a->turned_narrow, wide, width),
            0, a->gelu + wide_at, wide);
    k->gelu_backward(inner, a->gelu + wide_at, sums + WIDEN_AT * width, rows, wide);
    product(gpt, thread, rows, width, wide, inner, turned(b, WIDEN_WEIGHT, a->turned_widen, width, wide), 0,
            norm_gradient, width);
    k->norm_again(a->norm2 + at, middle, mean, rstd, param(b, NORM2_WEIGHT), param(b, NORM2_BIAS), rows,
                  width);
    k->norm_backward(b->middle_gradient + at, sums + NORM2_WEIGHT_AT * width, sums + NORM2_BIAS_AT * width,
                     gradient, norm_gradient, middle, mean, rstd, param(b, NORM2_WEIGHT), rows, width);
    k->column_sums(sums + PROJECT_AT * width, b->middle_gradient + at, rows, width);
    product(gpt, thread, rows, width, width, b->middle_gradient + at,
            turned(b, PROJECT_WEIGHT, a->turned_project, width, width), 0, a->mixed_gradient + at, width);
}

static void attention(void *context, uint32_t index, uint32_t thread) {
    struct block *b = context;
    attention_backward(b->gpt, b->saved, b->gpt->activations.mixed_gradient, index, thread);
}

static void first_norm(void *context, uint32_t index, uint32_t thread) {
    struct block *b = context;
    uint32_t width = b->gpt->config.width, first = tile_first(b->gpt, index);
    uint64_t at = (uint64_t)first * width;
    b->gpt->kernels->norm_again(b->gpt->activations.norm1 + at, b->input + at, b->saved->mean1 + first,
                                b->saved->rstd1 + first, param(b, NORM1_WEIGHT), param(b, NORM1_BIAS),
                                tile_rows(b->gpt, index), width);
}

static void to_input(void *context, uint32_t index, uint32_t thread) {
    struct block *b = context;
    struct gpt *gpt = b->gpt;
    const struct kernels *k = gpt->kernels;
    uint32_t width = gpt->config.width, first = tile_first(gpt, index), rows = tile_rows(gpt, index);
    uint64_t at = (uint64_t)first * width;
    float *sums = tile_partial(gpt, index), *qkv = b->saved->qkv + 3 * at;
    float *norm_gradient =
        gpt->activations.norm2 + (uint64_t)tile_first(gpt, thread) * width; /* norm2 is used up */

    k->column_sums(sums + QKV_AT * width, qkv, rows, 3 * width);
    product(gpt, thread, rows, width, 3 * width, qkv,
            turned(b, QKV_WEIGHT, gpt->activations.turned_qkv, width, 3 * width), 0, norm_gradient, width);
    k->norm_backward(b->gradient + at, sums + NORM1_WEIGHT_AT * width, sums + NORM1_BIAS_AT * width,
                     b->middle_gradient + at, norm_gradient, b->input + at, b->saved->mean1 + first,
                     b->saved->rstd1 + first, param(b, NORM1_WEIGHT), rows, width);
}

static struct weight_gradient gradient_of(struct block *b, enum block_param index, const float *input,
                                          uint32_t inputs, const float *output_gradient, uint32_t outputs) {
    const struct view *view = &b->unit->view[index];
    return (struct weight_gradient){.gpt = b->gpt,
                                    .view = view,
                                    .add = view->add,
                                    .input = input,
                                    .output_gradient = output_gradient,
                                    .rows = b->gpt->pass.rows,
                                    .inputs = inputs,
                                    .outputs = outputs};
}

/* bf16: output gradients are rounded once, not for every panel. */
static void round_gradients(struct block *b, struct weight_gradient *const *list, uint32_t count) {
    struct phase phase = {.groups = 0};
    uint16_t *rounded = b->gpt->activations.rounded;
    for (uint32_t i = 0; i < count && b->gpt->bf16; i++) {
        list[i]->rounded = rounded;
        rounded += (uint64_t)list[i]->rows * list[i]->outputs;
        phase_add(&phase, weight_gradient_tiles(list[i]), weight_gradient_round, list[i]);
    }
    if (phase.groups) phase_run(&phase, b->gpt->threads);
}

static void run_middle(struct block *b) {
    struct gpt *gpt = b->gpt;
    const struct activations *a = &gpt->activations;
    uint32_t width = gpt->config.width, wide = gpt->config.inner;
    struct weight_gradient narrow = gradient_of(b, NARROW_WEIGHT, a->gelu, wide, b->gradient, width);
    struct weight_gradient widen = gradient_of(b, WIDEN_WEIGHT, a->norm2, width, b->saved->inner, wide);
    struct weight_gradient project =
        gradient_of(b, PROJECT_WEIGHT, b->saved->mixed, width, b->middle_gradient, width);
    struct weight_gradient *const all[] = {&widen, &narrow, &project};
    round_gradients(b, all, 3);
    struct phase phase = {.groups = 0};
    phase_add(&phase, weight_gradient_panels(&widen), weight_gradient_panel, &widen);
    phase_add(&phase, weight_gradient_panels(&narrow), weight_gradient_panel, &narrow);
    phase_add(&phase, weight_gradient_panels(&project), weight_gradient_panel, &project);
    phase_add(&phase, gpt->pass.batch * gpt->config.heads, attention, b);
    phase_add(&phase, gpt->pass.tiles, first_norm, b);
    phase_run(&phase, gpt->threads);
}

static void run_last(struct block *b) {
    struct gpt *gpt = b->gpt;
    uint32_t width = gpt->config.width;
    struct weight_gradient qkv =
        gradient_of(b, QKV_WEIGHT, gpt->activations.norm1, width, b->saved->qkv, 3 * width);
    struct weight_gradient *const all[] = {&qkv};
    round_gradients(b, all, 1);
    struct phase phase = {.groups = 0};
    phase_add(&phase, weight_gradient_panels(&qkv), weight_gradient_panel, &qkv);
    phase_add(&phase, gpt->pass.tiles, to_input, b);
    phase_run(&phase, gpt->threads);
}

static void finish_sums(struct block *b) {
    uint32_t width = b->gpt->config.width;
    const struct view *view = b->unit->view;
    const struct partial partials[] = {
        {&view[NARROW_BIAS], NARROW_AT * width, width},
        {&view[NORM2_WEIGHT], NORM2_WEIGHT_AT * width, width},
        {&view[NORM2_BIAS], NORM2_BIAS_AT * width, width},
        {&view[PROJECT_BIAS], PROJECT_AT * width, width},
        {&view[NORM1_WEIGHT], NORM1_WEIGHT_AT * width, width},
        {&view[NORM1_BIAS], NORM1_BIAS_AT * width, width},
        {&view[QKV_BIAS], QKV_AT * width, 3 * width},
        {&view[WIDEN_BIAS], WIDEN_AT * width, b->gpt->config.inner},
    };
    partial_finish(b->gpt, partials, sizeof partials / sizeof *partials);
}

zero_status block_backward(struct gpt *gpt, uint32_t index, float *gradient, float **out_gradient) {
    struct block b = block_at(gpt, index);
    b.gradient = gradient;
    b.middle_gradient = gpt->activations.gradient[gradient == gpt->activations.gradient[0]];
    zero_status status = unit_backward_begin(gpt, b.unit);
    if (status) return status;
    turn_weights(&b);
    parallel_run(gpt->threads, gpt->pass.tiles, to_attention, &b);
    run_middle(&b);
    run_last(&b);
    finish_sums(&b);
    *out_gradient = gradient;
    return unit_backward_end(gpt, b.unit);
}
