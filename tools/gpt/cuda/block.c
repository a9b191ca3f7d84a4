/* x -> m = x + project(attention(norm1(x))) -> m + narrow(mlp(widen(norm2(m)))), and its backward. The products add
 * residuals and biases themselves, and multiply by GELU's slope, if cuBLASLt can. */
#include <math.h>

#include "tools/gpt/cuda/state.h"

struct block {
    struct gpt *gpt;
    struct cuda_gpt *c;
    const struct cuda_saved *saved;
    const zero_slot *slot;
    const struct view *view;
    void *input, *output;
    uint32_t rows, width, query, qkv, inner, wide, window;
    bool keeps_norms, keeps_inner; /* outputs of norms, and of the activation */
    bool has_attention, has_mlp;
};

bool cuda_block_has(const struct gpt *gpt, uint32_t index, enum gpt_output part) {
    return gpt->pass.again && gpt_cuda_keeps(&gpt->config, gpt->cuda->memory.kept, index, part);
}

static struct block block_at(struct gpt *gpt, uint32_t index) {
    const struct cuda_memory *m = &gpt->cuda->memory;
    return (struct block){.gpt = gpt,
                          .c = gpt->cuda,
                          .saved = &m->saved[index],
                          .slot = gpt->blocks[index].slot,
                          .view = gpt->blocks[index].view,
                          .input = m->residual[index],
                          .output = m->residual[index + 1],
                          .rows = gpt->pass.rows,
                          .width = gpt->config.width,
                          .query = (uint32_t)extent_of(&gpt->config, QUERY),
                          .qkv = (uint32_t)extent_of(&gpt->config, QKV),
                          .inner = gpt->config.inner,
                          .wide = (uint32_t)projection_outputs(&gpt->config, PROJECT_WIDEN),
                          .window = window_of(&gpt->config, index),
                          .keeps_norms = m->saved[index].normed1 != m->normed,
                          .keeps_inner = m->saved[index].inner != m->inner,
                          .has_attention = cuda_block_has(gpt, index, GPT_ATTENTION),
                          .has_mlp = cuda_block_has(gpt, index, GPT_MLP)};
}

static struct cuda_norm first_norm(const struct block *b) {
    return (struct cuda_norm){&b->slot[NORM1_WEIGHT], &b->slot[NORM1_BIAS], b->saved->norm1};
}
static struct cuda_norm second_norm(const struct block *b) {
    return (struct cuda_norm){&b->slot[NORM2_WEIGHT], &b->slot[NORM2_BIAS], b->saved->norm2};
}

static struct cuda_head_norms head_norms(const struct block *b) {
    return (struct cuda_head_norms){&b->slot[QUERY_NORM_WEIGHT], &b->slot[KEY_NORM_WEIGHT], b->saved->raw,
                                    b->saved->raw_rstd};
}

/* ---- linear layers: the layers of a projection stand side by side in its output ---- */

/* Layers of a projection whose weights are one array [outputs][inputs]: one product computes them all. */
struct run {
    uint32_t first, layers; /* of the projection */
    const zero_slot *slot;  /* of the first layer */
    /* outputs: of all its layers; at: its first column in the output of the projection. */
    uint32_t inputs, outputs, at;
};

static uint32_t layers_of(const struct block *b, enum projection_index index) {
    return b->gpt->architecture->projection[index].layers;
}

/* The run of one layer that begins after `before`. */
static struct run layer_after(const struct block *b, enum projection_index index, const struct run *before) {
    const struct architecture *a = b->gpt->architecture;
    uint32_t first = before->first + before->layers;
    if (first == layers_of(b, index)) return (struct run){.layers = 0};
    uint32_t param = a->projection[index].weight[first];
    const struct view *view = &b->view[param];
    return (struct run){.first = first,
                        .layers = 1,
                        .slot = &b->slot[param],
                        .inputs = a->outputs_first ? view->columns : view->rows,
                        .outputs = a->outputs_first ? view->rows : view->columns,
                        .at = before->at + before->outputs};
}

/* The bias of each layer. No architecture has gates with biases. */
static const uint8_t biases[PROJECTIONS][LAYERS_MAX] = {
    [PROJECT_QKV] = {QUERY_BIAS, KEY_BIAS, VALUE_BIAS},
    [PROJECT_MIXED] = {PROJECT_BIAS},
    [PROJECT_WIDEN] = {WIDEN_BIAS, WIDEN_BIAS},
    [PROJECT_NARROW] = {NARROW_BIAS},
};

/* The layer's parameters are behind those of the layer before it. */
static bool adjoins(const struct block *b, enum projection_index index, uint32_t layer) {
    const struct view *bias = &b->view[biases[index][layer]];
    return b->view[b->gpt->architecture->projection[index].weight[layer]].adjoins &&
           (!bias->count || bias->adjoins);
}

/* The longest run after `before`; no layers: there is none. */
static struct run run_after(const struct block *b, enum projection_index index, struct run before) {
    const struct architecture *a = b->gpt->architecture;
    struct run run = layer_after(b, index, &before);
    if (!run.layers || !a->outputs_first) return run;
    for (uint32_t i = run.first + 1; i < layers_of(b, index) && adjoins(b, index, i); i++)
        run.layers++, run.outputs += b->view[a->projection[index].weight[i]].rows;
    return run;
}

static struct run first_run(const struct block *b, enum projection_index index) {
    return run_after(b, index, (struct run){.layers = 0});
}

static struct factor weight_factor(const struct block *b, const struct run *run, bool backward) {
    bool outputs_first = b->gpt->architecture->outputs_first;
    return (struct factor){run->slot->param, outputs_first ? run->inputs : run->outputs,
                           outputs_first != backward};
}

/* y[rows][outputs] = x weight + bias + add */
static struct product forward_product(const struct block *b, enum projection_index index,
                                      const struct run *run, const void *x, const void *add, void *y) {
    return (struct product){.type = b->c->type,
                            .m = b->rows,
                            .n = run->outputs,
                            .k = run->inputs,
                            .a = {x, run->inputs, false},
                            .b = weight_factor(b, run, false),
                            .add = add,
                            .c = number_at(b->c, y, run->at),
                            .ldc = (uint32_t)projection_outputs(&b->gpt->config, index)};
}

static void forward(const struct block *b, enum projection_index index, const void *x, const void *add,
                    void *y) {
    for (struct run run = first_run(b, index); run.layers; run = run_after(b, index, run)) {
        struct product p = forward_product(b, index, &run, x, add, y);
        const zero_slot *bias = &b->slot[biases[index][run.first]];
        if (bias->param) p.end = PRODUCT_BIAS, p.bias = bias->param;
        cuda_multiply(b->c, &p);
    }
}

/* dx[rows][inputs] = dy weights^T. The sum over runs, which is the gradient of a norm's output, is fp32. */
static struct product backward_product(const struct block *b, enum projection_index index,
                                       const struct run *run, const void *dy, void *dx) {
    return (struct product){
        .type = b->c->type,
        .m = b->rows,
        .n = run->inputs,
        .k = run->outputs,
        .a = {number_at(b->c, dy, run->at), (uint32_t)projection_outputs(&b->gpt->config, index), false},
        .b = weight_factor(b, run, true),
        .wide = dx == b->c->memory.normed_gradient,
        .add = run->first ? dx : NULL,
        .c = dx,
        .ldc = run->inputs};
}

static void backward(const struct block *b, enum projection_index index, const void *dy, void *dx) {
    for (struct run run = first_run(b, index); run.layers; run = run_after(b, index, run)) {
        struct product p = backward_product(b, index, &run, dy, dx);
        cuda_multiply(b->c, &p);
    }
}

static void weight_gradients(const struct block *b, enum projection_index index, const void *x,
                             const void *dy) {
    uint64_t ld = projection_outputs(&b->gpt->config, index);
    for (struct run run = first_run(b, index); run.layers; run = run_after(b, index, run)) {
        struct factor in = {x, run.inputs, false}, out = {number_at(b->c, dy, run.at), ld, false};
        if (b->gpt->architecture->outputs_first)
            cuda_weight_gradient(b->gpt, run.slot, run.outputs, run.inputs, out, in);
        else
            cuda_weight_gradient(b->gpt, run.slot, run.inputs, run.outputs, in, out);
    }
}

/* Of one bias of all columns, or of three. */
static void qkv_bias_gradients(const struct block *b) {
    struct cuda_bias each[LAYERS_MAX];
    uint32_t layers = layers_of(b, PROJECT_QKV);
    for (uint32_t i = 0; i < layers; i++) {
        uint8_t param = biases[PROJECT_QKV][i];
        each[i] = (struct cuda_bias){&b->slot[param], (uint32_t)b->view[param].count};
    }
    cuda_bias_gradients(b->gpt, each, layers, b->c->memory.qkv_gradient, b->qkv);
}

/* ---- the MLP's activation ---- */

struct activation {
    enum gpt_kernel forward, backward;
    bool gate; /* the kernels' arguments have columns */
};
static const struct activation activations[MLP_KINDS] = {
    [GELU] = {KERNEL_gelu_forward, KERNEL_gelu_backward, false},
    [SWIGLU] = {KERNEL_swiglu_forward, KERNEL_swiglu_backward, true},
};

/* The threads of an elementwise kernel: activation.cu handles neighbours together if they fill 16 bytes. */
static uint64_t groups_of(const struct block *b, bool gate) {
    uint64_t count = (uint64_t)b->rows * b->inner, whole = gate ? b->inner : count;
    return whole % b->c->widest ? count : count / b->c->widest;
}

static void activate(const struct block *b) {
    const struct activation *a = &activations[b->gpt->architecture->mlp];
    struct swiglu_forward_argument argument = {b->saved->inner, b->saved->wide, (uint64_t)b->rows * b->inner,
                                               b->inner};
    cuda_launch_flat(b->c, a->forward, groups_of(b, a->gate), &argument);
}

/* Turns the gradient of `inner` into the gradient of `wide`, and returns it. */
static void *activate_backward(const struct block *b) {
    const struct activation *a = &activations[b->gpt->architecture->mlp];
    void *to = a->gate ? b->saved->wide : b->c->memory.inner_gradient;
    struct swiglu_backward_argument argument = {to, b->c->memory.inner_gradient, b->saved->wide,
                                                (uint64_t)b->rows * b->inner, b->inner};
    cuda_launch_flat(b->c, a->backward, groups_of(b, a->gate), &argument);
    return to;
}

static bool has_slope_end(const struct block *b, const struct product *p) {
    return b->gpt->architecture->mlp == GELU && b->c->slope_ends && cublaslt_can(b->c->products, p);
}

/* Turns the output's gradient into the gradient of `wide`; `inner` is there afterwards. */
static void *narrow_backward(const struct block *b, const void *gradient) {
    struct run run = first_run(b, PROJECT_NARROW);
    struct product p = backward_product(b, PROJECT_NARROW, &run, gradient, b->c->memory.inner_gradient);
    p.end = PRODUCT_GELU_BACKWARD, p.aux = b->saved->wide;
    if (!b->keeps_inner) activate(b);
    if (has_slope_end(b, &p)) {
        cuda_multiply(b->c, &p);
        return b->c->memory.inner_gradient;
    }
    backward(b, PROJECT_NARROW, gradient, b->c->memory.inner_gradient);
    return activate_backward(b);
}

/* ---- attention ---- */

static void turn(const struct block *b, void *qkv, bool back) {
    const struct gpt_config *config = &b->gpt->config;
    struct rotary_argument a = {.x = qkv,
                                .cosine = b->c->memory.cosine,
                                .sine = b->c->memory.sine,
                                .stride = b->qkv,
                                .heads = config->heads + config->kv_heads,
                                .half = config->head_width / 2,
                                .length = b->gpt->pass.length,
                                .position = b->c->memory.batch.position,
                                .sign = back ? -1 : 1};
    if (b->gpt->architecture->rotary) cuda_launch_blocks(b->c, KERNEL_rotary, b->rows, &a);
}

static struct attention_argument attention_of(const struct block *b) {
    const struct gpt_config *config = &b->gpt->config;
    const struct cuda_memory *m = &b->c->memory;
    return (struct attention_argument){.qkv = b->saved->qkv,
                                       .mixed = b->saved->mixed,
                                       .lse = b->saved->lse,
                                       .dots = m->dots,
                                       .mixed_gradient = m->mixed_gradient,
                                       .qkv_gradient = m->qkv_gradient,
                                       .batch = b->gpt->pass.batch,
                                       .length = b->gpt->pass.length,
                                       .heads = config->heads,
                                       .kv_heads = config->kv_heads,
                                       .width = config->head_width,
                                       .scale = 1 / sqrtf((float)config->head_width),
                                       .scratch = m->normed_gradient,
                                       .window = b->window,
                                       .begins = m->batch.begins,
                                       .ends = m->batch.ends};
}

static uint32_t tile_of(const struct block *b) { return gpt_cuda_head(&b->gpt->config, b->c->type); }

static void attend(const struct block *b) {
    struct attention_argument a = attention_of(b);
    cuda_attention_forward(b->c, tile_of(b), &a);
}

static void attend_backward(const struct block *b) {
    struct attention_argument a = attention_of(b);
    cuda_attention_backward(b->c, tile_of(b), &a);
}

/* ---- the block ---- */

static void mix(const struct block *b) {
    cuda_norm_forward(b->gpt, first_norm(b), b->input, b->saved->normed1);
    forward(b, PROJECT_QKV, b->saved->normed1, NULL, b->saved->qkv);
    if (norms_heads(&b->gpt->config)) cuda_head_norms_forward(b->gpt, head_norms(b), b->saved->qkv);
    turn(b, b->saved->qkv, false);
    attend(b);
    forward(b, PROJECT_MIXED, b->saved->mixed, b->input, b->saved->middle);
}

static void widen(const struct block *b) {
    cuda_norm_forward(b->gpt, second_norm(b), b->saved->middle, b->saved->normed2);
    forward(b, PROJECT_WIDEN, b->saved->normed2, NULL, b->saved->wide);
}

/* Without `output` nothing reads `inner` before a backward computes it again, unless it is kept. cuBLASLt's own GELU at a product's
 * end has other bits than the kernel that computes it again. */
void cuda_block_forward(struct gpt *gpt, uint32_t index, bool output) {
    struct block b = block_at(gpt, index);
    if (!b.has_attention) mix(&b);
    if (!b.has_mlp) widen(&b);
    if (output || b.keeps_inner) activate(&b);
    if (output) forward(&b, PROJECT_NARROW, b.saved->inner, b.saved->middle, b.output);
}

static void mlp_backward(const struct block *b) {
    struct gpt *gpt = b->gpt;
    const struct cuda_memory *m = &b->c->memory;
    void *gradient = m->gradient[0], *wide_gradient = narrow_backward(b, gradient);
    cuda_stream_bias_gradient(gpt, &b->slot[NARROW_BIAS], gradient);
    weight_gradients(b, PROJECT_NARROW, b->saved->inner, gradient);
    cuda_bias_gradient(gpt, &b->slot[WIDEN_BIAS], wide_gradient, b->wide);
    if (!b->keeps_norms) cuda_norm_forward(gpt, second_norm(b), b->saved->middle, b->saved->normed2);
    weight_gradients(b, PROJECT_WIDEN, b->saved->normed2, wide_gradient);
    backward(b, PROJECT_WIDEN, wide_gradient, m->normed_gradient);
    cuda_norm_backward(gpt, second_norm(b), gradient, m->normed_gradient, b->saved->middle, m->gradient[1]);
}

static void mix_backward(const struct block *b) {
    struct gpt *gpt = b->gpt;
    const struct cuda_memory *m = &b->c->memory;
    void *gradient = m->gradient[1];
    cuda_stream_bias_gradient(gpt, &b->slot[PROJECT_BIAS], gradient);
    weight_gradients(b, PROJECT_MIXED, b->saved->mixed, gradient);
    backward(b, PROJECT_MIXED, gradient, m->mixed_gradient);
    attend_backward(b);
    turn(b, m->qkv_gradient, true);
    if (norms_heads(&gpt->config)) cuda_head_norms_backward(gpt, head_norms(b), m->qkv_gradient);
    qkv_bias_gradients(b);
    if (!b->keeps_norms) cuda_norm_forward(gpt, first_norm(b), b->input, b->saved->normed1);
    weight_gradients(b, PROJECT_QKV, b->saved->normed1, m->qkv_gradient);
    backward(b, PROJECT_QKV, m->qkv_gradient, m->normed_gradient);
    cuda_norm_backward(gpt, first_norm(b), gradient, m->normed_gradient, b->input, m->gradient[0]);
}

void cuda_block_backward(struct gpt *gpt, uint32_t index) {
    struct block b = block_at(gpt, index);
    mlp_backward(&b);
    mix_backward(&b);
}
