/* What follows for the operations and the memory of a rank. */
#include "engine/config/terms.h"

#include "engine/config/config.h"
#include "stages/stage.h"

static struct precision precision_of(const struct config *c) {
    bool shards_accumulate = config_accumulates(c) && c->accumulation_mode == ACCUMULATE_EVERY;
    struct precision precision =
        precision_make((enum dtype)c->compute_dtype, (enum dtype)c->communication_dtype, shards_accumulate);
    precision.state = c->bf16_states ? DTYPE_BF16 : DTYPE_F32;
    precision.copies = c->nvme_shadow;
    precision.average = c->ema.decay > 0;
    precision.split = c->masters == CONFIG_MASTERS_SPLIT;
    return precision;
}

static enum code_format gradient_code(const struct config *c) {
    if (!c->quantized_gradients) return CODE_NONE;
    return c->comm.quantized_gradient_bits == 4 ? CODE_INT4 : CODE_INT8;
}

void config_resolve_terms(struct config *c, uint32_t ranks) {
    struct terms *t = &c->terms;
    uint64_t staging = c->checkpoint_async_bytes / PIECE_BYTES * PIECE_BYTES;
    t->stage = stage_find((uint32_t)c->stage, (enum reshard)c->reshard);
    t->mesh[AXIS_SHARD] = (uint32_t)c->shard_ranks;
    t->node_ranks = c->node_group;
    t->mesh[AXIS_REPLICATE] = ranks / t->mesh[AXIS_SHARD];
    t->accumulation = (enum accumulation)c->accumulation_mode;
    t->micro_steps = t->by_program && c->accumulation_steps == 1 ? 2 : (uint32_t)c->accumulation_steps;
    t->vertical = c->micro_order == CONFIG_VERTICAL && c->accumulation_steps > 1;
    t->repeats = t->update_in_backward && c->gradient_clipping > 0;
    t->precision = precision_of(c);
    t->gradient_code = gradient_code(c);
    t->native_reduction = c->comm.reduction == CONFIG_REDUCTION_NATIVE;
    t->state_tier = (enum tier_kind)c->optimizer_tier;
    t->param_tier = (enum tier_kind)c->param_tier;
    t->grad_tier = (enum tier_kind)c->grad_tier;
    t->device_bytes = c->tiered ? 0 : UINT64_MAX; /* a ratio asks for them */
    t->shadow = c->nvme_shadow;
    t->checkpoint_bytes = c->checkpoint_async ? PIECE_BYTES + staging : 0;
}
