#include "engine/blueprint/blueprint.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "engine/ranks/rank_agreement.h"

_Static_assert((int)CONFIG_ACCUMULATE_LAST == (int)ACCUMULATE_LAST, "accumulation modes are numbered alike");
_Static_assert((int)CONFIG_FP32 == (int)DTYPE_F32 && (int)CONFIG_BF16 == (int)DTYPE_BF16 &&
                   (int)CONFIG_FP16 == (int)DTYPE_F16,
               "types are numbered alike");

enum { REDUCE_STAGINGS = 2, GATHER_STAGINGS = 2 }; /* one at work while the next begins */

/* ---- what the configuration says ---- */

const struct stage *blueprint_stage(const struct config *c) {
    return stage_find((uint32_t)c->stage, (enum reshard)c->reshard);
}

struct precision blueprint_precision(const struct config *c) {
    bool shards_accumulate = c->accumulation_steps > 1 && c->accumulation_mode == CONFIG_ACCUMULATE_EVERY;
    struct precision precision =
        precision_make((enum dtype)c->compute_dtype, (enum dtype)c->communication_dtype, shards_accumulate);
    precision.state = c->bf16_states ? DTYPE_BF16 : DTYPE_F32;
    precision.copies = c->nvme_shadow;
    precision.split = c->nvme_masters == CONFIG_MASTERS_SPLIT;
    return precision;
}

void blueprint_mesh(const struct config *config, uint32_t ranks, uint32_t out_mesh[AXES]) {
    out_mesh[AXIS_SHARD] = (uint32_t)config->shard_ranks;
    out_mesh[AXIS_REPLICATE] = ranks / out_mesh[AXIS_SHARD];
}

uint64_t blueprint_checkpoint_bytes(const struct config *c) {
    return c->checkpoint_async ? PIECE_BYTES + c->checkpoint_async_bytes / PIECE_BYTES * PIECE_BYTES : 0;
}

/* ---- the policy ---- */

static zero_status open_policy(struct blueprint *b, struct zero_error *error) {
    const struct config *c = b->o.config;
    const struct model *m = b->o.model;
    struct policy *p = &b->policy;
    b->regions = calloc(m->regions, sizeof *b->regions);
    b->refresh = calloc(m->regions, sizeof *b->refresh);
    if (!b->regions || !b->refresh)
        return error_set(error, ZERO_E_MEMORY, "no memory for the policy's tables");
    for (uint32_t i = 0; i < m->regions; i++) {
        b->regions[i].frozen = region_frozen(&m->region[i]);
        b->regions[i].persistent = region_persistent(&m->region[i]);
        b->regions[i].elements = m->region[i].padded;
    }
    p->stage = blueprint_stage(c);
    p->accumulation = (enum accumulation)c->accumulation_mode;
    p->micro_steps = (uint32_t)c->accumulation_steps;
    p->depth = (uint32_t)c->comm.prefetch_depth;
    p->backward_depth = (uint32_t)c->comm.backward_depth;
    p->live_max = c->live_max;
    p->ahead_max = c->ahead_max;
    p->grad_widens = precision_widens(&b->precision);
    p->forward = m->use;
    p->uses = m->units;
    p->region = b->regions;
    p->regions = m->regions;
    p->refresh = b->refresh;
    policy_open(p);
    return ZERO_OK;
}

/* Borrowed memory is a whole copy of a parameter, which a stage that shards parameters at rest does not keep. */
static zero_status check_borrowed(const struct blueprint *b, struct zero_error *error) {
    const struct stage *stage = b->policy.stage;
    for (uint32_t i = 0; i < b->o.model->params; i++) {
        const struct model_param *p = &b->o.model->param[i];
        if (!p->spans || placement_is(stage->param_rest, REPLICATE, REPLICATE)) continue;
        return error_set(error, ZERO_E_UNSUPPORTED,
                         "parameter \"%s\" is in the host's own memory, and %s keeps parameters sharded: use "
                         "stage 0, 1 or 2, or give the parameter a slot instead of spans",
                         p->name, stage->name);
    }
    return ZERO_OK;
}

/* ---- the plan ---- */

struct executor_options blueprint_executor_options(const struct blueprint *b) {
    const struct config *c = b->o.config;
    struct executor_options o = {.policy = (struct policy *)&b->policy,
                                 .model = b->o.model,
                                 .plan = &b->plan,
                                 .discrete = b->o.discrete,
                                 .host_updates = b->o.discrete && c->optimizer_tier != CONFIG_TIER_DEVICE,
                                 .optimizer = b->o.optimizer,
                                 .state_count = b->o.state_count,
                                 .precision = b->precision,
                                 .param_bits = b->param_bits,
                                 .gradient_bits = b->gradient_bits,
                                 .gradient_factor = b->gradient_factor,
                                 .native_reduction = c->comm.reduction == CONFIG_REDUCTION_NATIVE};
    memcpy(o.group, b->o.group, sizeof o.group);
    return o;
}

static uint64_t place(struct blueprint_messages *m, uint64_t bytes) {
    uint64_t at = m->bytes;
    m->bytes += bytes;
    return at;
}

struct blueprint_messages blueprint_messages(const struct blueprint *b) {
    uint64_t bounce = b->o.discrete ? PIECE_BYTES : 0;
    struct blueprint_messages m = {0};
    m.agreements = place(&m, (b->o.ranks + 1) * sizeof(struct agreement));
    m.message = place(&m, ranks_message_bytes(b->o.ranks));
    m.piece = place(&m, PIECE_BYTES);
    for (int i = 0; i < 2; i++) m.bounce[i] = place(&m, bounce);
    m.norms = place(&m, b->o.discrete ? b->o.model->regions * sizeof(double) : 0);
    return m;
}

static struct plan_options plan_options(const struct blueprint *b) {
    const struct config *c = b->o.config;
    struct executor_options executor = blueprint_executor_options(b);
    return (struct plan_options){.model = b->o.model,
                                 .policy = &b->policy,
                                 .state_count = b->o.state_count,
                                 .state_tier = (enum tier_kind)c->optimizer_tier,
                                 .param_tier = (enum tier_kind)c->param_tier,
                                 .chunk_elements_max = c->chunk_elements_max,
                                 .slots = (uint32_t)c->slots,
                                 .shadow = c->nvme_shadow,
                                 .discrete = b->o.discrete,
                                 .staging_bytes = executor_staging_bytes(&executor),
                                 .gather_staging_bytes = executor_gather_staging_bytes(&executor),
                                 .message_bytes = blueprint_messages(b).bytes,
                                 .checkpoint_bytes = blueprint_checkpoint_bytes(c),
                                 .precision = b->precision};
}

static zero_status make_plan(struct blueprint *b, struct zero_error *error) {
    struct plan_options options = plan_options(b);
    b->policy.stagings = options.staging_bytes ? REDUCE_STAGINGS : 0;
    b->policy.gather_stagings = b->param_bits ? GATHER_STAGINGS : 0;
    return plan_make(&b->plan, &options, error);
}

zero_status blueprint_make(struct blueprint *b, const struct blueprint_options *options,
                           struct zero_error *error) {
    const struct config *c = options->config;
    *b = (struct blueprint){.o = *options,
                            .precision = blueprint_precision(c),
                            .param_bits = c->quantized_weights ? 8 : 0,
                            .gradient_bits =
                                c->quantized_gradients ? (uint32_t)c->comm.quantized_gradient_bits : 0,
                            .gradient_factor = c->gradient_factor == 1 ? 0 : (float)c->gradient_factor};
    blueprint_mesh(c, options->ranks, b->policy.mesh);
    zero_status status = open_policy(b, error);
    if (!status) status = check_borrowed(b, error);
    return status ? status : make_plan(b, error);
}

void blueprint_free(struct blueprint *b) {
    plan_free(&b->plan);
    free(b->regions);
    free(b->refresh);
    b->regions = NULL, b->refresh = NULL;
}

/* ---- within budgets ---- */

static uint64_t add_saturated(uint64_t a, uint64_t b) { return a + b < a ? UINT64_MAX : a + b; }

uint64_t blueprint_bytes(const struct blueprint *b, int tier) {
    return add_saturated(b->plan.tier_bytes[tier], reservations_bytes(b->o.reservations, tier));
}

uint64_t blueprint_host_bytes(const struct blueprint *b) {
    uint64_t device = b->o.discrete ? 0 : blueprint_bytes(b, TIER_DEVICE);
    return add_saturated(blueprint_bytes(b, TIER_CPU), device);
}

/* What a cpu budget leaves beside the rest of the plan, for state that need not go to the drive. Rows and buffers are aligned:
 * so many bytes are kept free. */
static uint64_t resident_bytes(const struct blueprint *b) {
    const struct config *c = b->o.config;
    uint64_t budget = c->budget_bytes[TIER_CPU], planned = blueprint_bytes(b, TIER_CPU);
    uint64_t arrays = OPTIMIZER_STATES_MAX + 1; /* states, and masters */
    uint64_t aligned =
        arrays * (b->o.model->regions * ALIGN_BYTES + 2 * CHUNK_ALIGN_BYTES) + CHUNK_ALIGN_BYTES;
    if (c->optimizer_tier != CONFIG_TIER_NVME || budget == CONFIG_BYTES_UNLIMITED) return 0;
    if (c->nvme_shadow) return 0; /* all of a step is on the drive */
    return budget > planned + aligned ? budget - planned - aligned : 0;
}

/* Chunks as large as the plan has them, or smaller where their slots would break the cpu budget. There are more of smaller
 * chunks, and so there may be more slots. */
static uint64_t fitting_chunk(const struct blueprint *b) {
    const struct config *c = b->o.config;
    uint64_t budget = c->budget_bytes[TIER_CPU], planned = blueprint_bytes(b, TIER_CPU);
    uint64_t slots = b->plan.row_bytes[MEMORY_SLOTS], chunk = b->plan.layout.chunk_elements;
    if (planned <= budget || planned - budget >= slots) return chunk;
    uint64_t most = 1 + (c->slots ? (uint64_t)c->slots : SLOTS_DEFAULT);
    uint64_t room = slots - (planned - budget), pages = most * CHUNK_ALIGN_BYTES;
    double all = (double)(most * b->plan.layout.slot_bytes);
    return room > pages ? (uint64_t)((double)chunk * (double)(room - pages) / all) : chunk;
}

bool blueprint_has_drive(const struct config *c) {
    return c->optimizer_tier == CONFIG_TIER_NVME || c->param_tier == CONFIG_TIER_NVME;
}

struct blueprint_room blueprint_room(const struct blueprint *b) {
    return (struct blueprint_room){fitting_chunk(b), resident_bytes(b)};
}

zero_status blueprint_replan(struct blueprint *b, struct blueprint_room room, struct zero_error *error) {
    if (room.chunk_elements == b->plan.layout.chunk_elements && !room.resident_bytes) return ZERO_OK;
    struct plan_options options = plan_options(b);
    options.chunk_elements_max = room.chunk_elements;
    options.resident_bytes = room.resident_bytes;
    plan_free(&b->plan);
    return plan_make(&b->plan, &options, error);
}
