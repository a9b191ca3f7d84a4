/* Checks, creation and micro-steps of the GPT. */
#include "tools/gpt/gpt.h"

#include <stdlib.h>

#include "tools/gpt/model.h"

static const char *rotary_problem(const struct gpt_config *config) {
    struct gpt_config c = gpt_complete(config);
    const struct gpt_rope *r = &c.rope;
    if (c.head_width % 2) return "rotary positions turn pairs of columns: the width of a head must be even";
    if (!(r->theta > 0)) return "the rotary positions' theta must be above 0";
    if (r->kind >= GPT_ROPE_KINDS) return "there is no such kind of rotary positions";
    if (r->kind != GPT_ROPE_PLAIN && !(r->factor > 0)) return "the rotary positions' factor must be above 0";
    bool ranges = r->kind == GPT_ROPE_LLAMA3 || r->kind == GPT_ROPE_YARN;
    if (ranges && !(r->high > r->low && r->low > 0 && r->original_context))
        return "the rotary positions' scaling needs 0 < low < high (low_freq_factor and high_freq_factor, or "
               "beta_slow and beta_fast), and the original context";
    if (r->kind == GPT_ROPE_YARN && !(r->attention > 0 && r->theta > 1))
        return "yarn's attention factor must be above 0, and its theta above 1";
    return NULL;
}

const char *gpt_config_problem(const struct gpt_config *c) {
    if (c->architecture >= GPT_ARCHITECTURES)
        return "no row of tools/gpt/architecture.c has the model's architecture";
    if (!c->layers || !c->width || !c->heads || !c->context || !c->vocab)
        return "layers, width, heads, context and vocabulary must be at least 1";
    if (!c->head_width && c->width % c->heads) return "the width must be a multiple of the number of heads";
    if (c->kv_heads && c->heads % c->kv_heads)
        return "the number of heads must be a multiple of the number of key-value heads";
    if (c->width > 1 << 20 || c->inner > 1 << 24 || c->context > 1 << 24 || c->layers > 1 << 16 ||
        c->vocab > 1 << 28)
        return "a size of the model is too large";
    if (!(c->layer_norm_epsilon > 0)) return "the norms' epsilon must be above 0";
    if ((uint64_t)c->heads * c->head_width > 1 << 20) return "a size of the model is too large";
    if (!(c->initializer_range >= 0)) return "the initializer range must not be negative";
    return architecture_of(c)->rotary ? rotary_problem(c) : NULL;
}

static _Thread_local struct zero_error last;

const char *gpt_last_error(void) { return last.code ? last.message : ""; }

static const struct backend *backend_of(const zero_engine *engine) {
    return zero_engine_cuda(engine, NULL) >= 0 ? &cuda_backend : &host_backend;
}

const char *gpt_engine_problem(const zero_engine *engine) {
    return backend_of(engine)->problem(zero_engine_dtype(engine));
}

static zero_status reserve(struct gpt *gpt, const uint64_t bytes[ZERO_TIERS]) {
    for (int tier = 0; tier < ZERO_TIERS; tier++)
        if (bytes[tier])
            TRY(zero_engine_reserve(gpt->engine, (zero_tier)tier, bytes[tier], gpt->backend->reserved[tier]));
    return ZERO_OK;
}

static zero_status reserve_outputs(struct gpt *gpt) {
    static const char *const names[GPT_OUTPUT_KINDS] = {
        "kept outputs of norms", "kept outputs of activations", "kept attention", "kept MLPs"};
    struct gpt_spare spare[GPT_OUTPUT_KINDS];
    bool fitting = gpt->backend->keep_outputs && gpt->config.outputs == GPT_OUTPUTS_FITTING;
    zero_dtype dtype = zero_engine_dtype(gpt->engine);
    uint32_t count = fitting ? gpt_cuda_spares(&gpt->config, gpt->batch, dtype,
                                               trained_blocks(&gpt->config, gpt->units), spare)
                             : 0;
    for (uint32_t i = 0; i < count; i++)
        TRY(zero_engine_reserve_spare(gpt->engine, spare[i].part_bytes, spare[i].parts, names[spare[i].kind],
                                      &gpt->granted[spare[i].kind]));
    return ZERO_OK;
}

static zero_status build(struct gpt *gpt) {
    uint64_t bytes[ZERO_TIERS] = {0};
    TRY(gpt->backend->open(gpt, bytes, &last));
    gpt->vocab_blocks = gpt_vocab_blocks(&gpt->config);
    gpt->units = gpt->embedding = calloc(gpt_units(&gpt->config), sizeof *gpt->units);
    if (!gpt->units) return ZERO_E_MEMORY;
    gpt->blocks = gpt->embedding + gpt->vocab_blocks;
    gpt->head = gpt->blocks + gpt->config.layers;
    zero_status status = declare_units(gpt, &last);
    if (!status) status = reserve(gpt, bytes);
    if (!status) status = reserve_outputs(gpt);
    return status ? status : checkpoints_open(gpt);
}

zero_status gpt_create(zero_engine *engine, const struct gpt_config *config, uint32_t batch,
                       struct gpt **out) {
    error_clear(&last);
    if (gpt_config_problem(config) || !batch || (uint64_t)batch * config->context > INT32_MAX)
        return ZERO_E_ARGUMENT;
    if (gpt_engine_problem(engine)) return ZERO_E_UNSUPPORTED;
    struct gpt *gpt = calloc(1, sizeof *gpt);
    if (!gpt) return ZERO_E_MEMORY;
    gpt->engine = engine;
    gpt->config = gpt_complete(config);
    gpt->config.micros = (uint32_t)zero_engine_use_micros(engine);
    gpt->architecture = architecture_of(config);
    gpt->batch = batch;
    gpt->backend = backend_of(engine);
    gpt->config.gpu = gpt->backend == &cuda_backend;
    zero_status status = build(gpt);
    if (status) {
        gpt_destroy(gpt);
        return status;
    }
    *out = gpt;
    return ZERO_OK;
}

zero_status gpt_declare(zero_engine *engine, const struct gpt_config *config, zero_slot *slot,
                        uint32_t *out_trained) {
    struct gpt_config c = gpt_complete(config);
    zero_scratch *unused;
    struct unit *units = calloc(gpt_units(&c), sizeof *units);
    zero_status status = units ? declare_plan(engine, &c, slot, units) : ZERO_E_MEMORY;
    c.micros = (uint32_t)zero_engine_use_micros(engine);
    uint32_t trained = status ? 0 : trained_blocks(&c, units);
    if (!status)
        status = checkpoints_declare(engine, &c, (uint32_t)zero_engine_micro_batch(engine), trained, &unused);
    if (out_trained) *out_trained = trained;
    free(units);
    return status;
}

void gpt_destroy(struct gpt *gpt) {
    if (!gpt) return;
    checkpoints_close(gpt);
    gpt->backend->close(gpt);
    free(gpt->units);
    free(gpt);
}

zero_status gpt_keep_outputs(struct gpt *gpt) {
    bool fitting = gpt->backend->keep_outputs && gpt->config.outputs == GPT_OUTPUTS_FITTING;
    error_clear(&last);
    return fitting ? gpt->backend->keep_outputs(gpt, &last) : ZERO_OK;
}

uint32_t gpt_kept(const struct gpt *gpt, enum gpt_output kind) {
    return gpt->backend->kept ? gpt->backend->kept(gpt, kind) : 0;
}

void gpt_device_name(const struct gpt *gpt, char out[GPT_DEVICE_NAME_BYTES]) {
    *out = 0;
    if (gpt->backend->device_name) gpt->backend->device_name(gpt, out);
}

double gpt_flops_per_token(const struct gpt_config *config) {
    struct gpt_config c = gpt_complete(config);
    double block = (double)(declared_elements(&c, 1, false) - declared_elements(&c, 1, true));
    double weights = c.layers * block + (double)c.width * c.vocab, seen = 0;
    for (uint32_t i = 0; i < c.layers; i++) seen += gpt_keys_seen(&c, i);
    return 6 * weights + 2 * 6 * seen * (double)extent_of(&c, QUERY);
}

/* `least`: the lowest number that is allowed. */
static bool in_vocabulary(const struct gpt *gpt, const int32_t *tokens, int32_t least) {
    for (uint64_t i = 0; i < (uint64_t)gpt->pass.rows * gpt->pass.micros; i++)
        if (tokens[i] < least || tokens[i] >= (int32_t)gpt->config.vocab) return false;
    return true;
}

void gpt_set_divisor(struct gpt *gpt, double divisor) { gpt->divisor = divisor; }

/* Checks the batch before any collective call, then runs one pass. `rest` is the last part of the pass. */
static zero_status run(struct gpt *gpt, zero_mode mode, struct pass pass, zero_status (*rest)(struct gpt *),
                       double *out_loss) {
    pass.micros = mode == ZERO_TRAIN ? gpt->config.micros : 1;
    pass.rows = pass.batch * pass.length;
    pass.divisor = gpt->divisor ? gpt->divisor : pass.rows;
    pass.scale = mode == ZERO_TRAIN ? zero_engine_loss_scale(gpt->engine) / (float)pass.divisor : 1;
    pass.trains = mode == ZERO_TRAIN;
    gpt->pass = pass;
    if (!in_vocabulary(gpt, pass.tokens, 0) ||
        (pass.targets && !in_vocabulary(gpt, pass.targets, GPT_NEXT_DOCUMENT)))
        return ZERO_E_ARGUMENT;
    error_clear(&last);
    zero_status status = gpt->backend->pass_begin(gpt);
    checkpoints_pass(gpt);
    if (!status) status = zero_micro_begin(gpt->engine, mode);
    if (!status) status = pass_forward(gpt);
    if (!status) status = rest(gpt);
    zero_status ended = gpt->backend->pass_end(gpt, out_loss, &last);
    return status ? status : ended;
}

static struct pass sequences_of(const struct gpt *gpt, uint32_t sequences, const int32_t *tokens,
                                const int32_t *targets) {
    return (struct pass){sequences, gpt->config.context, .tokens = tokens, .targets = targets};
}

zero_status gpt_train(struct gpt *gpt, const int32_t *tokens, const int32_t *targets, double out_loss[]) {
    return run(gpt, ZERO_TRAIN, sequences_of(gpt, gpt->batch, tokens, targets), pass_backward, out_loss);
}

zero_status gpt_evaluate(struct gpt *gpt, const int32_t *tokens, const int32_t *targets, uint32_t sequences,
                         double *out_loss) {
    if (!sequences) sequences = gpt->batch;
    if (sequences > gpt->batch) return ZERO_E_ARGUMENT;
    return run(gpt, ZERO_EVAL, sequences_of(gpt, sequences, tokens, targets), pass_evaluate, out_loss);
}

/* With recomputation, blocks share the memory of their keys and values. */
static bool keeps_keys(const struct gpt *gpt) {
    const struct gpt_config *c = &gpt->config;
    return gpt->backend->keeps_keys && (!c->recompute || c->recompute >= c->layers);
}

zero_status gpt_next_logits(struct gpt *gpt, const int32_t *tokens, uint32_t length, uint32_t known,
                            float *out_logits) {
    if (length < 1 || length > gpt->config.context || known >= length) return ZERO_E_ARGUMENT;
    struct pass pass = {1, length, .tokens = tokens, .logits = out_logits};
    pass.known = keeps_keys(gpt) ? known : 0;
    return run(gpt, ZERO_EVAL, pass, pass_logits, NULL);
}
