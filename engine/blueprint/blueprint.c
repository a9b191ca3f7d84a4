#include "engine/blueprint/blueprint.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "engine/ranks/rank_agreement.h"
#include "kernels/device_work.h"

enum { REDUCE_STAGINGS = 2, GATHER_STAGINGS = 2, DIRECTIONS = 2 }; /* one at work while the next begins */

struct precision blueprint_precision_of(const struct blueprint *b, uint32_t region) {
    return region_precision(&b->o.model->region[region], &b->terms.precision);
}

/* ---- the policy ---- */

/* The parameters are in the program's spans alone if they rest whole, the device is not discrete, and the optimizer updates each
 * element by itself. */
static bool lends_params(const struct blueprint *b, uint32_t region) {
    const struct terms *t = &b->terms;
    bool whole = placement_is(t->stage->param_rest, REPLICATE, REPLICATE);
    bool elements = update_rows[b->regions[region].scope].legs == 1;
    return b->o.model->region[region].lends && whole && !t->discrete && elements;
}

/* At the end of a step's backwards the program's arrays hold the whole gradient: the step has one micro-step, or the
 * program adds up the gradients of all of them. */
static bool collects_grads(const struct blueprint *b, const struct model_region *r) {
    bool adds = b->terms.accumulation == ACCUMULATE_LAST;
    for (uint32_t i = 0; i < r->params; i++)
        adds &= (b->o.model->param[r->param[i]].flags & ZERO_ADDS_GRAD) != 0;
    return !b->o.model->free_order && (b->terms.micro_steps == 1 || adds);
}

static bool sends_as_is(const struct blueprint *b, uint32_t region) {
    const struct terms *t = &b->terms;
    struct precision precision = blueprint_precision_of(b, region);
    return precision.message == precision.compute && !t->gradient_factor && !t->gradient_code &&
           !t->native_reduction;
}

/* The reduction may read the gradient in the program's arrays: it needs no other type, and the step does not return
 * before it has used the gradient. */
static bool lends_grads(const struct blueprint *b, uint32_t region) {
    const struct terms *t = &b->terms;
    const struct model_region *r = &b->o.model->region[region];
    struct precision precision = blueprint_precision_of(b, region);
    bool as_is = sends_as_is(b, region) && precision.reduced == precision.compute;
    bool settles = t->state_tier != TIER_NVME && !t->shadow, plain = t->mesh[AXIS_REPLICATE] == 1;
    return b->regions[region].lent && !b->regions[region].frozen && r->lends_grads && collects_grads(b, r) &&
           as_is && settles && plain;
}

static zero_status open_policy(struct blueprint *b, struct zero_error *error) {
    const struct terms *t = &b->terms;
    const struct model *m = b->o.model;
    uint32_t directions = 0;
    b->regions = calloc(m->regions, sizeof *b->regions);
    b->refresh = calloc(m->regions, sizeof *b->refresh);
    if (!b->regions || !b->refresh)
        return error_set(error, ZERO_E_MEMORY, "no memory for the policy's tables");
    for (uint32_t i = 0; i < m->regions; i++) {
        b->regions[i].frozen = region_frozen(&m->region[i]);
        b->regions[i].persistent = region_persistent(&m->region[i]);
        b->regions[i].elements = m->region[i].padded;
        if (!b->regions[i].frozen) b->regions[i].scope = blueprint_optimizer(b, i)->scope;
        if (update_makes(b->regions[i].scope, BUFFER_DIRECTION)) directions = DIRECTIONS;
        struct precision precision = blueprint_precision_of(b, i);
        b->regions[i].bytes = plan_room_bytes(m->region[i].padded, precision.compute);
        b->regions[i].grad_widens = precision_widens(&precision);
        b->regions[i].lent = lends_params(b, i);
        b->regions[i].grad_lent = lends_grads(b, i);
        b->regions[i].grad_given = m->region[i].gives && !b->regions[i].frozen && sends_as_is(b, i);
    }
    b->policy = (struct policy){.stage = t->stage,
                                .mesh = {t->mesh[AXIS_SHARD], t->mesh[AXIS_REPLICATE]},
                                .accumulation = t->accumulation,
                                .micro_steps = t->micro_steps,
                                .by_program = t->by_program,
                                .vertical = t->vertical,
                                .update_in_backward = t->update_in_backward,
                                .repeats = t->repeats,
                                .waiting_share = t->waiting_share,
                                .free_order = b->o.model->free_order,
                                .bound = b->o.model->bound,
                                .roomy = !t->page_bytes,
                                .depth = (uint32_t)t->depth,
                                .backward_depth = (uint32_t)t->backward_depth,
                                .live_max = t->live_max,
                                .ahead_max = t->ahead_max,
                                .directions = directions,
                                .forward = m->use,
                                .uses = m->units,
                                .region = b->regions,
                                .regions = m->regions,
                                .refresh = b->refresh};
    policy_open(&b->policy);
    return ZERO_OK;
}

/* Borrowed memory is a whole copy of a parameter, which a stage that shards parameters at rest does not keep. */
static zero_status check_borrowed(const struct blueprint *b, struct zero_error *error) {
    const struct stage *stage = b->policy.stage;
    for (uint32_t i = 0; i < b->o.model->params; i++) {
        const struct model_param *p = &b->o.model->param[i];
        if (!p->spans || placement_is(stage->param_rest, REPLICATE, REPLICATE)) continue;
        return error_set(error, ZERO_E_UNSUPPORTED,
                         "parameter \"%s\" is in memory that the program gave, and %s keeps parameters "
                         "sharded: use stage 0, 1 or 2, or give the parameter a slot instead of spans",
                         p->name, stage->name);
    }
    return ZERO_OK;
}

static bool has_ties(const struct model *m, uint32_t param) {
    return m->param[param].owner == param && m->param[param].last_tied;
}

/* The gradients of a region are reduced together. If other units use two of its parameters, the uses of one would move the sums of the
 * other, and regions depend on the stage. */
static zero_status check_ties(const struct model *m, const char *instead, struct zero_error *error) {
    for (uint32_t i = 0; i < m->params; i++)
        for (uint32_t k = i + 1; k < m->params && has_ties(m, i); k++)
            if (m->param[k].unit == m->param[i].unit && has_ties(m, k))
                return error_set(error, ZERO_E_UNSUPPORTED,
                                 "parameters are tied to both \"%s\" and \"%s\" of unit \"%s\", and vertical "
                                 "order allows one such parameter in a unit: %s",
                                 m->param[i].name, m->param[k].name, m->unit[m->param[i].unit]->name,
                                 instead);
    return ZERO_OK;
}

/* In vertical order a use has each micro-batch once, in order. A tied parameter's gradient is a sum over its uses, first over all
 * micro-batches of one use. */
static zero_status check_vertical(const struct blueprint *b, struct zero_error *error) {
    static const char instead[] = "remove zero_optimization.micro_order \"vertical\"";
    const struct model *m = b->o.model;
    if (!b->policy.vertical) return ZERO_OK;
    if (m->helds)
        return error_set(error, ZERO_E_UNSUPPORTED,
                         "unit \"%s\" is held, so a pass uses it several times, and vertical order needs one "
                         "use of each unit: %s",
                         m->unit[m->held[0]]->name, instead);
    if (m->free_order)
        return error_set(error, ZERO_E_UNSUPPORTED,
                         "passes use units in any order (zero_engine_free_order), and vertical order needs "
                         "one use of each unit: %s",
                         instead);
    return check_ties(m, instead, error);
}

/* An update in the backward would write what the program's own arrays hold, or what a later use needs. */
static zero_status check_updates(const struct blueprint *b, struct zero_error *error) {
    static const char instead[] = "remove zero_optimization.update_in_backward";
    const struct model *m = b->o.model;
    if (!b->policy.update_in_backward) return ZERO_OK;
    if (b->o.model_ranks > 1 && b->o.config->nvme_shadow)
        return error_set(
            error, ZERO_E_UNSUPPORTED,
            "zero_runtime.model_size is %" PRIu32
            ": with nvme.shadow a backward that updates first commits the step before on all ranks, and so "
            "would wait for the backwards of other model ranks: %s, or nvme.shadow",
            b->o.model_ranks, instead);
    for (uint32_t i = 0; i < m->params; i++)
        if (m->param[i].spans)
            return error_set(
                error, ZERO_E_UNSUPPORTED,
                "parameter \"%s\" is in memory that the program gave, which the program's backward may still "
                "read when the update writes it: %s, or give the parameter a slot instead of spans",
                m->param[i].name, instead);
    if (m->free_order)
        return error_set(error, ZERO_E_UNSUPPORTED,
                         "passes use units in any order (zero_engine_free_order), so that no backward is "
                         "known to be a unit's last: %s",
                         instead);
    return ZERO_OK;
}

/* ---- the plan ---- */

static struct executor_shape shape_of(const struct blueprint *b) {
    const struct terms *t = &b->terms;
    struct executor_shape shape = {.policy = (struct policy *)&b->policy,
                                   .model = b->o.model,
                                   .terms = t,
                                   .host_updates = t->discrete && t->state_tier != TIER_DEVICE,
                                   .matrix_owner = b->matrix_owner};
    memcpy(shape.group, b->o.group, sizeof shape.group);
    return shape;
}

struct executor_options blueprint_executor_options(const struct blueprint *b) {
    return (struct executor_options){.shape = shape_of(b),
                                     .plan = &b->plan,
                                     .optimizer = {b->o.optimizer, b->o.other ? b->o.other : b->o.optimizer},
                                     .state_count = b->o.state_count};
}

static uint64_t place(struct blueprint_messages *m, uint64_t bytes) {
    uint64_t at = m->bytes;
    m->bytes += bytes;
    return at;
}

struct blueprint_messages blueprint_messages(const struct blueprint *b) {
    uint64_t bounce = b->terms.discrete ? PIECE_BYTES : 0;
    struct blueprint_messages m = {0};
    uint32_t world = b->ranks * (b->o.model_ranks ? b->o.model_ranks : 1);
    m.agreements = place(&m, (world + 1) * sizeof(struct agreement));
    m.message = place(&m, ranks_message_bytes(world));
    m.piece = place(&m, PIECE_BYTES);
    for (int i = 0; i < 2; i++) m.bounce[i] = place(&m, bounce);
    m.norms = place(&m, b->terms.discrete ? b->o.model->regions * sizeof(double) : 0);
    return m;
}

/* The states of the regions that one of the two optimizers updates. The larger count of both optimizers, with the
 * averaged weights, is state_count. */
static uint32_t region_states(const struct blueprint *b, bool other) {
    uint32_t all = b->o.state_count - b->terms.precision.average;
    if (!b->o.other) return all;
    const struct optimizer *row = other ? b->o.other : b->o.optimizer;
    return row->state_count < all ? row->state_count : all;
}

static zero_status make_plan(struct blueprint *b, struct zero_error *error) {
    struct executor_shape shape = shape_of(b);
    struct plan_options options = {.terms = &b->terms,
                                   .model = b->o.model,
                                   .policy = &b->policy,
                                   .state_count = b->o.state_count,
                                   .states = {region_states(b, false), region_states(b, true)},
                                   .matrix_scratch_bytes = matrices_scratch_bytes(b),
                                   .staging_bytes = executor_staging_bytes(&shape),
                                   .round_staging_bytes = executor_round_staging_bytes(&shape),
                                   .gather_staging_bytes = executor_gather_staging_bytes(&shape),
                                   .lent_staging_bytes = executor_lent_staging_bytes(&shape),
                                   .message_bytes = blueprint_messages(b).bytes};
    b->policy.stagings = options.staging_bytes ? REDUCE_STAGINGS : 0;
    for (uint32_t i = 0; i < b->o.model->regions; i++)
        b->regions[i].staged = executor_gather_staging(&shape, i) > 0;
    b->policy.gather_stagings = options.gather_staging_bytes ? GATHER_STAGINGS : 0;
    b->policy.lent_stagings = options.lent_staging_bytes ? GATHER_STAGINGS : 0;
    return plan_make(&b->plan, &options, error);
}

static bool fills_by_default(const struct config *c, bool discrete) {
    return c && c->fills_device && !c->tiered && discrete;
}

/* By default offloaded state fills the budget of a discrete device, from the units on that the next forward needs first: their gradients
 * come last, and need not cross. The device must have a kernel of the optimizer. Norms of tensors take memory that depends on what the
 * device updates, so they are left to a ratio. */
static void fill_device(struct blueprint *b) {
    bool fills = fills_by_default(b->o.config, b->terms.discrete);
    for (int other = 0; other < 2 && fills; other++) {
        const struct optimizer *optimizer = other ? b->o.other : b->o.optimizer;
        fills = !optimizer || (kernel_optimizer_step(optimizer) && optimizer->scope != SCOPE_TENSOR);
    }
    if (fills) b->terms.device_share = 1, b->terms.device_bytes = 0; /* blueprint_room has the bytes */
}

static zero_status make(struct blueprint *b, const struct terms *terms,
                        const struct blueprint_options *options, struct zero_error *error) {
    *b = (struct blueprint){
        .o = *options, .terms = *terms, .ranks = terms->mesh[AXIS_SHARD] * terms->mesh[AXIS_REPLICATE]};
    b->o.state_count += terms->precision.average;
    fill_device(b);
    if (b->o.config && b->o.config->chooses_waiting && !b->terms.discrete) b->terms.waiting_share = 0;
    zero_status status = open_policy(b, error);
    if (!status) status = check_borrowed(b, error);
    if (!status) status = check_vertical(b, error);
    if (!status) status = check_updates(b, error);
    if (!status) status = scopes_check(b, error);
    if (!status) status = matrices_share_out(b, error);
    return status ? status : make_plan(b, error);
}

/* Where pages would take no less than all units (plan.c), the policy is that of a device without pages. */
zero_status blueprint_make(struct blueprint *b, const struct terms *terms,
                           const struct blueprint_options *options, struct zero_error *error) {
    struct terms roomy = *terms;
    zero_status status = make(b, terms, options, error);
    bool keeps_all = b->policy.bound && b->plan.row_bytes[MEMORY_GATHERED] && !b->plan.space_bytes;
    if (status || !keeps_all || !terms->page_bytes) return status;
    roomy.page_bytes = 0;
    blueprint_free(b);
    return make(b, &roomy, options, error);
}

void blueprint_free(struct blueprint *b) {
    plan_free(&b->plan);
    free(b->regions);
    free(b->refresh);
    free(b->matrix_owner);
    b->regions = NULL, b->refresh = NULL, b->matrix_owner = NULL;
}

/* ---- within budgets ---- */

static uint64_t add_saturated(uint64_t a, uint64_t b) { return a + b < a ? UINT64_MAX : a + b; }

uint64_t blueprint_bytes(const struct blueprint *b, int tier) {
    return add_saturated(b->plan.tier_bytes[tier], reservations_bytes(b->o.reservations, tier));
}

uint64_t blueprint_host_bytes(const struct blueprint *b) {
    uint64_t device = b->terms.discrete ? 0 : blueprint_bytes(b, TIER_DEVICE);
    return add_saturated(blueprint_bytes(b, TIER_CPU), device);
}

/* The bytes of a tier's budget that the rest of the plan leaves to state and gradients. Some bytes of the budget stay free for
 * the alignment of rows and buffers. */
static uint64_t left_bytes(const struct blueprint *b, enum tier_kind tier, uint64_t arrays) {
    uint64_t budget = b->o.config->budget_bytes[tier], planned = blueprint_bytes(b, tier);
    uint64_t aligned =
        arrays * (b->o.model->regions * ALIGN_BYTES + 2 * CHUNK_ALIGN_BYTES) + CHUNK_ALIGN_BYTES;
    if (budget == CONFIG_BYTES_UNLIMITED && tier == TIER_DEVICE && b->o.device_budget)
        budget = b->o.device_budget;
    bool fills = tier == TIER_DEVICE && fills_by_default(b->o.config, b->terms.discrete);
    if (fills && b->o.device_room < budget) budget = b->o.device_room;
    if (budget == CONFIG_BYTES_UNLIMITED) return UINT64_MAX;
    return budget > planned + aligned ? budget - planned - aligned : 0;
}

/* The bytes of host memory for state and gradients that need not go to the drive. Without a budget all state goes to the
 * drive, unless it is tiered: tiered state fills memory first. */
static uint64_t free_bytes(const struct blueprint *b) {
    const struct config *c = b->o.config;
    /* states, masters, gradients */
    uint64_t arrays = OPTIMIZER_STATES_MAX + b->terms.precision.average + 1 + (c->grad_tier == TIER_NVME);
    bool bounded = c->budget_bytes[TIER_CPU] != CONFIG_BYTES_UNLIMITED;
    return c->optimizer_tier == TIER_NVME && (bounded || c->tiered) ? left_bytes(b, TIER_CPU, arrays) : 0;
}

/* The part of these bytes that gradients take: whole shards, from the region that is refreshed first. Gradients take
 * memory before state, because every micro-step moves them. With a shadow, gradients take all of it. */
static uint64_t grad_resident_bytes(const struct blueprint *b, uint64_t free_bytes) {
    const struct chunk_layout *layout = &b->plan.layout;
    uint64_t taken = 0;
    for (uint32_t k = 0; k < b->policy.refreshes; k++) {
        uint32_t region = b->policy.refresh[k];
        uint64_t bytes = layout->region[region].grads ? chunk_layout_grad_bytes(layout, region) : 0;
        if (taken + bytes > free_bytes) break;
        taken += bytes;
    }
    return taken;
}

/* The plan's size of chunks, or a smaller size if the slots and rings would exceed the cpu budget. Smaller chunks are more
 * chunks, so they may take more slots. */
static uint64_t fitting_chunk(const struct blueprint *b) {
    const struct config *c = b->o.config;
    uint64_t budget = c->budget_bytes[TIER_CPU], planned = blueprint_bytes(b, TIER_CPU);
    const struct chunk_layout *layout = &b->plan.layout;
    uint64_t slots = b->plan.row_bytes[MEMORY_SLOTS] + b->plan.row_bytes[MEMORY_PARAM_STAGING] +
                     layout->grads.slots * layout->grads.slot_bytes,
             chunk = layout->chunk_elements;
    if (planned <= budget || planned - budget >= slots) return chunk;
    uint64_t most = 1 + (b->terms.slots ? b->terms.slots : SLOTS_DEFAULT);
    uint64_t ring = layout->params.slot_bytes + layout->grads.slot_bytes;
    uint64_t room = slots - (planned - budget), pages = (most + 2 * RING_SLOTS_MAX) * CHUNK_ALIGN_BYTES;
    double all = (double)(most * layout->slot_bytes + RING_SLOTS_MAX * ring);
    return room > pages ? (uint64_t)((double)chunk * (double)(room - pages) / all) : chunk;
}

uint32_t blueprint_rooms(const struct config *c, bool discrete) {
    bool fills = c->tiered || (c->fills_device && discrete);
    return fills ? 2 : c->optimizer_tier == TIER_NVME || c->param_tier == TIER_NVME;
}

struct blueprint_room blueprint_room(const struct blueprint *b, uint32_t round) {
    const uint64_t arrays =
        OPTIMIZER_STATES_MAX + b->terms.precision.average + 2; /* states, masters, gradients */
    struct blueprint_room out = {.chunk_elements = fitting_chunk(b), .device_bytes = b->terms.device_bytes};
    if (round + 1 < blueprint_rooms(b->o.config, b->terms.discrete)) { /* other spare memory has the rest */
        uint64_t left = left_bytes(b, TIER_DEVICE, arrays),
                 single = b->o.config->tiered ? 0 : reservations_single_bytes(b->o.reservations);
        out.device_bytes = left > single ? left - single : 0;
        return out;
    }
    uint64_t room = free_bytes(b);
    out.grad_resident_bytes = grad_resident_bytes(b, room);
    /* with a shadow, all state of a step is on the drive */
    out.resident_bytes = b->o.config->nvme_shadow ? 0 : room - out.grad_resident_bytes;
    return out;
}

zero_status blueprint_replan(struct blueprint *b, struct blueprint_room room, struct zero_error *error) {
    if (room.chunk_elements == b->plan.layout.chunk_elements && !room.resident_bytes &&
        !room.grad_resident_bytes && room.device_bytes == b->terms.device_bytes)
        return ZERO_OK;
    b->terms.chunk_elements_max = room.chunk_elements;
    b->terms.resident_bytes = room.resident_bytes;
    b->terms.grad_resident_bytes = room.grad_resident_bytes;
    b->terms.device_bytes = room.device_bytes;
    plan_free(&b->plan);
    return make_plan(b, error);
}

zero_status blueprint_fit(struct blueprint *b, struct zero_error *error) {
    for (uint32_t i = 0; i < blueprint_rooms(b->o.config, b->terms.discrete); i++)
        TRY(blueprint_replan(b, blueprint_room(b, i), error));
    return ZERO_OK;
}
