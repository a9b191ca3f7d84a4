#include "engine/plan/plan_internal.h"

#include "engine/base/integer.h"
#include "kernels/tensor_norms.h"

_Static_assert((int)PRECISION_STATES_MAX == (int)OPTIMIZER_STATES_MAX + 1, "the average is a state more");

static uint32_t add_buffer(struct plan *plan, enum memory_row row, uint64_t bytes) {
    plan->buffer[plan->buffers] =
        (struct plan_buffer){.offset = plan->row_bytes[row], .bytes = bytes, .row = (uint8_t)row};
    plan->row_bytes[row] += round_up(bytes, ALIGN_BYTES);
    return plan->buffers++;
}

static const bool row_rests[] = {
#define MEMORY_ROW(row, tier, rests, name) rests,
#include "engine/plan/memory_rows.def"
};

static void fix(struct plan *plan, enum buffer_kind kind, uint32_t index, enum memory_row row,
                uint64_t bytes) {
    uint32_t buffer = add_buffer(plan, row, bytes);
    plan->buffer[buffer].rests = row_rests[row] && kind != BUFFER_PARAM_SECOND;
    plan->fixed[kind * plan->fixed_width + index] = buffer;
}

/* Buffers that live for one use of their unit. The units that have one take turns on some sets of memory: with two sets, one buffer is
 * read while the next is written. Each region of a unit has its own buffer. The buffers of held units live in the last use of the pass,
 * beside those of the unit in use. */
static bool take_same_turn(const struct plan *plan, uint32_t a, uint32_t b) {
    const struct model_region *all = plan->model->region;
    uint32_t units[2] = {all[a].unit, all[b].unit}, first[2] = {a, b};
    if (plan->model->unit[units[0]]->held || plan->model->unit[units[1]]->held) return false;
    for (int k = 0; k < 2; k++)
        while (first[k] > 0 && all[first[k] - 1].unit == units[k]) first[k]--;
    return plan->turn[a] == plan->turn[b] && a - first[0] == b - first[1];
}

static void find_turns(struct plan *plan, uint32_t sets, const uint64_t *bytes) {
    uint32_t units = 0, last = UINT32_MAX;
    for (uint32_t i = 0; i < plan->policy->regions; i++) {
        uint32_t unit = plan->model->region[i].unit;
        if (bytes[i] && unit != last) units++, last = unit;
        plan->turn[i] = units % sets;
    }
}

/* bytes[i]: of region i; 0: it has no such buffer. */
static void fix_in_turn(struct plan *plan, enum buffer_kind kind, enum memory_row row, uint32_t sets,
                        const uint64_t *bytes) {
    uint32_t *fixed = plan->fixed + kind * plan->fixed_width;
    find_turns(plan, sets, bytes);
    for (uint32_t i = 0; i < plan->policy->regions; i++) {
        uint64_t most = bytes[i];
        for (uint32_t k = i + 1; k < plan->policy->regions && bytes[i]; k++)
            if (bytes[k] > most && take_same_turn(plan, i, k)) most = bytes[k];
        if (bytes[i] && fixed[i] == NO_BUFFER) fix(plan, kind, i, row, most);
        for (uint32_t k = i + 1; k < plan->policy->regions && bytes[i]; k++)
            if (bytes[k] && take_same_turn(plan, i, k)) fixed[k] = fixed[i];
    }
}

uint64_t plan_part_bytes(const struct plan *plan, uint32_t region, struct placement placement,
                         enum dtype dtype) {
    uint64_t parts = placement_parts(placement, plan->policy->mesh);
    return plan->model->region[region].padded / parts * dtype_bytes(dtype);
}

struct precision plan_precision(const struct plan *plan, uint32_t region) {
    return region_precision(&plan->model->region[region], &plan->terms->precision);
}

/* The number of states per element in the plan, and the number that a region's optimizer uses. */
struct states {
    uint32_t count, used;
};

/* The row of a state; MEMORY_ROWS: the region's optimizer does not use it. */
static enum memory_row state_row(const struct precision *p, struct states states, uint32_t k, bool device) {
    if (precision_averages(p, k, states.count)) return device ? MEMORY_DEVICE_AVERAGES : MEMORY_AVERAGES;
    if (k >= states.used) return MEMORY_ROWS;
    if (device) return k ? MEMORY_DEVICE_STATE1 : MEMORY_DEVICE_STATE0;
    return k ? MEMORY_STATE1 : MEMORY_STATE0;
}

static void fix_states(struct plan *plan, uint32_t i, struct states states, bool device, uint64_t elements) {
    const struct precision p = plan_precision(plan, i);
    for (uint32_t k = 0; k < states.count; k++) {
        enum memory_row row = state_row(&p, states, k, device);
        if (row != MEMORY_ROWS)
            fix(plan, device ? BUFFER_DEVICE_STATE : BUFFER_STATE, k * plan->policy->regions + i, row,
                elements * dtype_bytes(precision_state(&p, k, states.count)));
    }
}

/* The master weights and states of a shard that stay in memory. If only part of the state is on the device, that part has buffers
 * of its own. */
static void fix_state(struct plan *plan, uint32_t i, struct states states) {
    const struct precision p = plan_precision(plan, i);
    uint64_t device = chunk_layout_device(&plan->layout, i),
             elements = chunk_layout_resident(&plan->layout, i) - device;
    if (precision_keeps_masters(&p))
        fix(plan, BUFFER_MASTER, i, MEMORY_MASTERS, elements * precision_master_bytes(&p));
    fix_states(plan, i, states, false, elements);
    if (plan->fixed[BUFFER_STATE * plan->fixed_width + i] == NO_BUFFER) /* hazards need one */
        fix(plan, BUFFER_STATE, i, MEMORY_STATE0, 0);
    if (!device) return;
    if (precision_keeps_masters(&p))
        fix(plan, BUFFER_DEVICE_MASTER, i, MEMORY_DEVICE_MASTERS, device * precision_master_bytes(&p));
    fix_states(plan, i, states, true, device);
}

static bool grad_on_host(const struct plan *plan, uint32_t i) {
    return !chunk_layout_device_whole(&plan->layout, i) &&
           (plan_host_updates(plan) || plan->terms->grad_tier != TIER_DEVICE);
}

/* Plans the reduced shards that live for one use: of the regions whose shards are on the host, or of the others. */
static void fix_brief(struct plan *plan, bool host) {
    uint64_t *bytes = plan->turn_bytes;
    for (uint32_t i = 0; i < plan->policy->regions; i++) {
        const struct region *r = &plan->policy->region[i];
        bool brief = r->grad_brief && !r->frozen && grad_on_host(plan, i) == host;
        bytes[i] = brief ? plan_part_bytes(plan, i, r->grad_step, plan_precision(plan, i).reduced) : 0;
    }
    fix_in_turn(plan, BUFFER_GRAD_SHARD, host ? MEMORY_HOST_GRADIENTS : MEMORY_GRADIENTS, 2, bytes);
}

/* Given gradients have no bytes, but hazards need a buffer. All regions of every second unit have the same one, so that a backward waits
 * until the gradients that were given before those of the last unit are read. */
static void fix_given(struct plan *plan) {
    uint32_t *fixed = plan->fixed + BUFFER_GRAD_FULL * plan->fixed_width, turn[2] = {NO_BUFFER, NO_BUFFER};
    for (uint32_t i = 0; i < plan->policy->regions; i++)
        plan->turn_bytes[i] = plan->policy->region[i].grad_given ? ALIGN_BYTES : 0;
    find_turns(plan, 2, plan->turn_bytes);
    for (uint32_t i = 0; i < plan->policy->regions; i++) {
        uint32_t *buffer = &turn[plan->turn[i]];
        if (!plan->turn_bytes[i]) continue;
        if (*buffer == NO_BUFFER)
            fix(plan, BUFFER_GRAD_FULL, i, MEMORY_GRADIENTS, ALIGN_BYTES), *buffer = fixed[i];
        fixed[i] = *buffer;
    }
}

/* The placement that a reduction writes, also if the step gathers the shard back. */
static struct placement reduced_shard(const struct region *r) {
    bool gathered = placement_is(r->grad_step, REPLICATE, REPLICATE);
    return gathered ? (struct placement){{SHARD, REPLICATE}} : r->grad_step;
}

/* Plans, for each part, the norms of all tensors of the region. */
static void fix_norms(struct plan *plan, uint32_t i) {
    const struct region *r = &plan->policy->region[i];
    uint64_t parts = placement_parts(reduced_shard(r), plan->policy->mesh);
    if (!update_makes(r->scope, BUFFER_TENSOR_NORMS)) return;
    fix(plan, BUFFER_TENSOR_NORMS, i, MEMORY_TENSOR_NORMS,
        parts * plan->model->region[i].params * sizeof(struct tensor_norms));
}

/* The reduced shard: on a drive, in host memory, or on the device; there, too, if the device has all of the shard's state. */
static void fix_grad_shard(struct plan *plan, uint32_t i) {
    const struct region *r = &plan->policy->region[i];
    bool gathered = placement_is(r->grad_step, REPLICATE, REPLICATE);
    if (r->grad_brief) return; /* fix_brief has planned it */
    bool host = !gathered && grad_on_host(plan, i);
    if (plan->layout.region[i].grads)
        fix(plan, BUFFER_GRAD_SHARD, i, MEMORY_OFFLOADED_GRADIENTS,
            chunk_layout_grad_bytes(&plan->layout, i));
    else
        fix(plan, BUFFER_GRAD_SHARD, i, host ? MEMORY_HOST_GRADIENTS : MEMORY_GRADIENTS,
            plan_part_bytes(plan, i, reduced_shard(r), plan_precision(plan, i).reduced));
}

/* Plans the buffers of a region that live from step to step. A lent one has no bytes here, but hazards need a buffer. */
static void fix_region(struct plan *plan, uint32_t i, struct states states) {
    const struct placement whole = {{REPLICATE, REPLICATE}};
    const struct region *r = &plan->policy->region[i];
    const struct precision p = plan_precision(plan, i);
    if (placement_equal(r->rest, whole))
        fix(plan, BUFFER_PARAM_FULL, i, MEMORY_PARAMETERS,
            r->lent ? 0 : plan_part_bytes(plan, i, whole, p.compute));
    else if (plan->terms->param_tier == TIER_DEVICE)
        fix(plan, BUFFER_PARAM_SHARD, i, MEMORY_PARAMETERS, plan_part_bytes(plan, i, r->rest, p.compute));
    else
        fix(plan, BUFFER_PARAM_SHARD, i, MEMORY_OFFLOADED_PARAMETERS,
            chunk_layout_param_bytes(&plan->layout, i));
    if (!placement_equal(r->between, r->rest) && !placement_equal(r->between, whole))
        fix(plan, BUFFER_PARAM_SECOND, i, MEMORY_PARAMETERS, plan_part_bytes(plan, i, r->between, p.compute));
    if (r->frozen) return;
    /* If the step needs the whole gradient, the reduced gradient is gathered into the backward's buffer. */
    bool gathered = placement_equal(r->grad_step, whole);
    if (r->grad_kept && !r->grad_given)
        fix(plan, BUFFER_GRAD_FULL, i, MEMORY_GRADIENTS,
            r->grad_lent
                ? 0
                : plan_part_bytes(plan, i, whole, gathered && precision_widens(&p) ? p.reduced : p.compute));
    if (!r->grad_in_place) fix_grad_shard(plan, i);
    fix_state(plan, i, states);
    fix_norms(plan, i);
    if (plan_host_updates(plan) && gathered && !chunk_layout_device_whole(&plan->layout, i))
        fix(plan, BUFFER_GRAD_HOST, i, MEMORY_HOST_GRADIENTS, plan_part_bytes(plan, i, r->state, p.reduced));
}

/* The most bytes of a region that pass through staging in one update of the host: parameters on the device, and directions. */
static uint64_t update_bytes(const struct plan *plan, uint32_t region) {
    const struct chunk_layout *layout = &plan->layout;
    const struct region *r = &plan->policy->region[region];
    uint64_t count = layout->elements[region] - chunk_layout_device(layout, region);
    bool rests_whole = placement_is(r->rest, REPLICATE, REPLICATE);
    if (plan_updates_by_chunk(plan) && layout->chunk_elements < count) count = layout->chunk_elements;
    uint64_t params = rests_whole || plan->terms->param_tier == TIER_DEVICE
                          ? count * dtype_bytes(plan_precision(plan, region).compute)
                          : 0;
    return update_makes(r->scope, BUFFER_DIRECTION) ? round_up(params, ALIGN_BYTES) + count * sizeof(float)
                                                    : params;
}

/* Plans the directions of whole regions, in fp32. */
static void fix_directions(struct plan *plan, uint64_t scratch_bytes) {
    uint64_t most = 0;
    for (uint32_t i = 0; i < plan->policy->regions; i++)
        if (update_makes(plan->policy->region[i].scope, BUFFER_DIRECTION) &&
            plan->model->region[i].padded > most)
            most = plan->model->region[i].padded;
    for (uint32_t k = 0; k < plan->policy->directions; k++)
        fix(plan, BUFFER_DIRECTION, k, MEMORY_DIRECTIONS, most * sizeof(float));
    if (plan->policy->directions) fix(plan, BUFFER_MATRIX_SCRATCH, 0, MEMORY_DIRECTIONS, scratch_bytes);
}

/* The most blocks of a tensor whose norms the device takes at once. */
static uint64_t measured_blocks(const struct plan *plan, uint32_t region) {
    const struct region *r = &plan->policy->region[region];
    uint64_t part =
        plan->model->region[region].padded / placement_parts(reduced_shard(r), plan->policy->mesh);
    bool takes = !plan_host_updates(plan) || chunk_layout_device(&plan->layout, region);
    return takes && update_makes(r->scope, BUFFER_TENSOR_NORMS) ? tensor_norms_blocks(0, part) : 0;
}

/* Plans the additional buffers of a discrete device and its host. */
static void fix_discrete(struct plan *plan) {
    uint64_t updated = 0, blocks = 0, measured = 0;
    for (uint32_t i = 0; i < plan->policy->regions && plan->terms->discrete; i++) {
        const struct region *r = &plan->policy->region[i];
        if (r->frozen) continue;
        uint64_t bytes = update_bytes(plan, i),
                 all = (plan->model->region[i].padded + NORM_BLOCK_ELEMENTS - 1) / NORM_BLOCK_ELEMENTS;
        if (bytes > updated) updated = bytes;
        if (all > blocks) blocks = all;
        if (measured_blocks(plan, i) > measured) measured = measured_blocks(plan, i);
    }
    plan->row_bytes[MEMORY_NORMS] = blocks * sizeof(double);
    if (measured) {
        plan->row_bytes[MEMORY_NORMS] = round_up(blocks * sizeof(double), ALIGN_BYTES);
        fix(plan, BUFFER_TENSOR_SUMS, 0, MEMORY_NORMS, measured * sizeof(struct tensor_norms));
    }
    for (uint32_t k = 0; k < UPDATE_STAGINGS && plan_host_updates(plan); k++)
        fix(plan, BUFFER_UPDATE_STAGING, k, MEMORY_UPDATE_STAGING, updated);
}

/* The sums of micro-batches, in whole pages. On a discrete device one set is enough: the next unit's sum begins a backward later. */
static void fix_held(struct plan *plan) {
    const bool discrete = plan->terms->discrete;
    uint64_t *bytes = plan->turn_bytes;
    for (uint32_t i = 0; i < plan->policy->regions; i++)
        bytes[i] = plan->layout.region[i].held ? chunk_layout_grad_bytes(&plan->layout, i) : 0;
    fix_in_turn(plan, BUFFER_GRAD_HELD, discrete ? MEMORY_STAGING : MEMORY_GRAD_STAGING, discrete ? 1 : 2,
                bytes);
}

/* Plans the buffers of chunks: records and commit pages on the drive, staging slots, and the rings of parameters and gradients. */
static void fix_staging(struct plan *plan) {
    const struct chunk_layout *layout = &plan->layout;
    plan->row_bytes[MEMORY_RECORDS] = layout->record_row_bytes * (1 + plan->terms->shadow);
    plan->row_bytes[MEMORY_COMMITS] = plan->terms->shadow ? 2 * CHUNK_ALIGN_BYTES : 0;
    if (!layout->record_row_bytes && !layout->grad_bytes && plan->terms->param_tier != TIER_NVME &&
        !plan->terms->shadow)
        return;
    uint64_t page =
        plan->terms->shadow ? CHUNK_ALIGN_BYTES : 0; /* a commit goes through the slot for access */
    plan->row_bytes[MEMORY_SLOTS] =
        layout->slots * layout->slot_bytes + (layout->slot_bytes > page ? layout->slot_bytes : page);
    if (!plan->terms->discrete) fix_held(plan);
    if (layout->grads.slots)
        fix(plan, BUFFER_GRAD_STAGED, 0, MEMORY_GRAD_STAGING, layout->grads.slots * layout->grads.slot_bytes);
    if (layout->params.slots)
        fix(plan, BUFFER_PARAM_STAGED, 0, MEMORY_PARAM_STAGING,
            layout->params.slots * layout->params.slot_bytes);
}

void fixed_make(struct plan *plan, const struct plan_options *o) {
    fix_brief(plan, false);
    fix_brief(plan, true);
    fix_given(plan);
    for (uint32_t i = 0; i < o->policy->regions; i++)
        fix_region(plan, i, (struct states){o->state_count, o->states[region_other(&o->model->region[i])]});
    for (uint32_t k = 0; k < o->policy->stagings; k++)
        fix(plan, BUFFER_STAGING, k, MEMORY_STAGING, o->staging_bytes);
    for (uint32_t k = 0; k < o->policy->gather_stagings; k++)
        fix(plan, BUFFER_GATHER_STAGING, k, MEMORY_STAGING, o->gather_staging_bytes);
    for (uint32_t k = 0; k < o->policy->lent_stagings; k++)
        fix(plan, BUFFER_LENT_STAGING, k, MEMORY_STAGING, o->lent_staging_bytes);
    if (plan->terms->discrete) fix_held(plan);
    fix_staging(plan); /* first: a drive needs whole pages */
    for (uint32_t k = 0; k < o->policy->stagings && o->round_staging_bytes; k++)
        fix(plan, BUFFER_ROUND_STAGING, k, MEMORY_GRAD_STAGING, o->round_staging_bytes);
    fix_discrete(plan);
    fix_directions(plan, o->matrix_scratch_bytes);
    bool cuts = false;
    for (uint32_t i = 0; i < o->policy->regions; i++)
        cuts |= update_makes(o->policy->region[i].scope, BUFFER_TENSOR_NORMS);
    if (cuts) fix(plan, BUFFER_TENSOR_CUT, 0, MEMORY_TENSOR_NORMS, TENSOR_CUTS * sizeof(struct tensor_cut));
}
