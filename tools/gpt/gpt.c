/* The order of calls: create, and the passes over the units. */
#include "tools/gpt/gpt.h"

#include <math.h>
#include <stdlib.h>

#include "tools/gpt/model.h"
#include "tools/gpt/parallel.h"
#include "tools/gpt/rotary.h"

static const char *rotary_problem(const struct gpt_config *config) {
    struct gpt_config c = gpt_complete(config);
    const struct gpt_rope *r = &c.rope;
    if (c.head_width % 2) return "rotary positions turn pairs of columns: the width of a head must be even";
    if (!(r->theta > 0)) return "the rotary positions' theta must be above 0";
    if (r->factor > 0 && !(r->high > r->low && r->low > 0 && r->original_context))
        return "the rotary positions' scaling needs 0 < low_freq_factor < high_freq_factor and the original "
               "context";
    return NULL;
}

const char *gpt_config_problem(const struct gpt_config *c) {
    if (!c->layers || !c->width || !c->heads || !c->context || !c->vocab)
        return "layers, width, heads, context and vocabulary must be at least 1";
    if (!c->head_width && c->width % c->heads) return "the width must be a multiple of the number of heads";
    if (c->kv_heads && c->heads % c->kv_heads)
        return "the number of heads must be a multiple of the number of key-value heads";
    if (c->width > 1 << 20 || c->inner > 1 << 24 || c->context > 1 << 24 || c->layers > 1 << 16 ||
        c->vocab > 1 << 28)
        return "a size of the model is beyond any GPT";
    if (!(c->layer_norm_epsilon > 0)) return "the norms' epsilon must be above 0";
    if ((uint64_t)c->heads * c->head_width > 1 << 20) return "a size of the model is beyond any GPT";
    if (!(c->initializer_range >= 0)) return "the initializer range must not be negative";
    return architecture_of(c)->rotary ? rotary_problem(c) : NULL;
}

const char *gpt_engine_problem(const zero_engine *engine) {
    zero_dtype dtype = zero_engine_dtype(engine);
    if (dtype == ZERO_BF16 && !matmul_has_bf16())
        return "this processor does not multiply bf16 itself: set bf16.enabled to false";
    return NULL;
}

static void choose_arithmetic(struct gpt *gpt) {
    const struct kernels *k = gpt->kernels = kernels_best();
    zero_dtype dtype = zero_engine_dtype(gpt->engine);
    gpt->bf16 = dtype == ZERO_BF16;
    gpt->widen = dtype == ZERO_F16 ? k->widen_fp16 : gpt->bf16 ? k->widen : NULL;
    gpt->narrow = dtype == ZERO_F16 ? k->narrow_fp16 : gpt->bf16 ? k->narrow : NULL;
}

static zero_status build(struct gpt *gpt) {
    zero_status status = activations_create(&gpt->activations, &gpt->config, gpt->batch, gpt->threads,
                                            zero_engine_dtype(gpt->engine));
    if (status) return status;
    rotary_fill(&gpt->activations, &gpt->config);
    gpt->blocks = calloc(gpt->config.layers, sizeof *gpt->blocks);
    if (!gpt->blocks) return ZERO_E_MEMORY;
    status = declare_units(gpt);
    if (!status)
        status = zero_engine_reserve(gpt->engine, ZERO_DEVICE, gpt->activations.device.bytes, "activations");
    if (!status && gpt->activations.cpu.bytes)
        status =
            zero_engine_reserve(gpt->engine, ZERO_CPU, gpt->activations.cpu.bytes, "activation checkpoints");
    return status;
}

zero_status gpt_create(zero_engine *engine, const struct gpt_config *config, uint32_t batch,
                       struct gpt **out) {
    if (gpt_config_problem(config) || !batch || (uint64_t)batch * config->context > INT32_MAX)
        return ZERO_E_ARGUMENT;
    if (gpt_engine_problem(engine)) return ZERO_E_UNSUPPORTED;
    struct gpt *gpt = calloc(1, sizeof *gpt);
    if (!gpt) return ZERO_E_MEMORY;
    gpt->engine = engine;
    gpt->config = gpt_complete(config);
    gpt->architecture = architecture_of(config);
    gpt->batch = batch;
    gpt->threads = zero_engine_threads(engine);
    choose_arithmetic(gpt);
    zero_status status = build(gpt);
    if (status) {
        gpt_destroy(gpt);
        return status;
    }
    *out = gpt;
    return ZERO_OK;
}

void gpt_destroy(struct gpt *gpt) {
    if (!gpt) return;
    activations_destroy(&gpt->activations);
    free(gpt->blocks);
    free(gpt);
}

double gpt_flops_per_token(const struct gpt_config *config) {
    struct gpt_config c = gpt_complete(config);
    double block = (double)(declared_elements(&c, 1, false) - declared_elements(&c, 1, true));
    double weights = c.layers * block + (double)c.width * c.vocab, seen = (c.context + 1) / 2.;
    return 6 * weights + c.layers * 2 * 6 * seen * (double)extent_of(&c, QUERY);
}

static int in_vocabulary(const struct gpt *gpt, const int32_t *tokens) {
    for (uint32_t i = 0; i < gpt->pass.rows; i++)
        if (tokens[i] < 0 || (uint32_t)tokens[i] >= gpt->config.vocab) return 0;
    return 1;
}

/* Checks the batch before any collective call, then begins the micro-step. */
static zero_status begin(struct gpt *gpt, zero_mode mode, struct pass pass) {
    pass.rows = pass.batch * pass.length;
    pass.tiles = (pass.rows + gpt->activations.tile_rows - 1) / gpt->activations.tile_rows;
    pass.loss_scale = mode == ZERO_TRAIN ? zero_engine_loss_scale(gpt->engine) : 1;
    gpt->pass = pass;
    if (!in_vocabulary(gpt, pass.tokens) || (pass.targets && !in_vocabulary(gpt, pass.targets)))
        return ZERO_E_ARGUMENT;
    atomic_store(&gpt->failed, 0);
    return zero_micro_begin(gpt->engine, mode);
}

static struct pass sequences_of(const struct gpt *gpt, uint32_t sequences, const int32_t *tokens,
                                const int32_t *targets) {
    return (struct pass){sequences, gpt->config.context, .tokens = tokens, .targets = targets};
}

static zero_status forward(struct gpt *gpt) {
    zero_status status = embedding_forward(gpt);
    for (uint32_t i = 0; i < gpt->config.layers && !status; i++) status = block_forward(gpt, i);
    return status;
}

/* How many blocks the backward goes through: below the lowest that trains nobody needs a gradient. */
static uint32_t trained_blocks(const struct gpt *gpt) {
    uint32_t first = 0;
    if (zero_unit_trains(gpt->embedding.handle)) return gpt->config.layers;
    while (first < gpt->config.layers && !zero_unit_trains(gpt->blocks[first].handle)) first++;
    return gpt->config.layers - first;
}

/* Before the backward of block `last`: the blocks of the segment that it ends. */
static zero_status recompute(struct gpt *gpt, uint32_t last) {
    uint32_t segment = gpt->config.recompute;
    bool ends = segment && (last + 1) % segment == 0 && last + 1 < gpt->config.layers;
    zero_status status = ZERO_OK;
    for (uint32_t i = last + 1 - segment; ends && i <= last && !status; i++)
        status = block_recompute(gpt, i, i < last);
    return status;
}

static zero_status backward(struct gpt *gpt, double *out_loss) {
    float *gradient = NULL;
    uint32_t blocks = trained_blocks(gpt);
    zero_status status = head_backward(gpt, out_loss, &gradient);
    for (uint32_t i = gpt->config.layers; i-- > gpt->config.layers - blocks && !status;) {
        status = recompute(gpt, i);
        if (!status) status = block_backward(gpt, i, gradient, &gradient);
    }
    if (status || !zero_unit_trains(gpt->embedding.handle)) return status;
    return embedding_backward(gpt, gradient);
}

static zero_status end(struct gpt *gpt, zero_status status, uint32_t limit) {
    parallel_limit(limit);
    return status == ZERO_OK && atomic_load(&gpt->failed) ? ZERO_E_MEMORY : status;
}

zero_status gpt_train(struct gpt *gpt, const int32_t *tokens, const int32_t *targets, double *out_loss) {
    uint32_t limit = parallel_limit(gpt->threads);
    zero_status status = begin(gpt, ZERO_TRAIN, sequences_of(gpt, gpt->batch, tokens, targets));
    if (!status) status = forward(gpt);
    if (!status) status = backward(gpt, out_loss);
    return end(gpt, status, limit);
}

zero_status gpt_evaluate(struct gpt *gpt, const int32_t *tokens, const int32_t *targets, double *out_loss) {
    return gpt_evaluate_some(gpt, tokens, targets, gpt->batch, out_loss);
}

zero_status gpt_evaluate_some(struct gpt *gpt, const int32_t *tokens, const int32_t *targets,
                              uint32_t sequences, double *out_loss) {
    if (sequences < 1 || sequences > gpt->batch) return ZERO_E_ARGUMENT;
    uint32_t limit = parallel_limit(gpt->threads);
    zero_status status = begin(gpt, ZERO_EVAL, sequences_of(gpt, sequences, tokens, targets));
    if (!status) status = forward(gpt);
    if (!status) status = head_evaluate(gpt, out_loss);
    return end(gpt, status, limit);
}

zero_status gpt_logits(struct gpt *gpt, const int32_t *tokens, uint32_t length, float *out_logits) {
    if (length < 1 || length > gpt->config.context) return ZERO_E_ARGUMENT;
    uint32_t limit = parallel_limit(gpt->threads);
    zero_status status = begin(gpt, ZERO_EVAL, (struct pass){1, length, .tokens = tokens});
    if (!status) status = forward(gpt);
    if (!status) status = head_logits(gpt, out_logits);
    return end(gpt, status, limit);
}
