#include "engine/plan/plan.h"

#include <stdlib.h>
#include <string.h>

#include "engine/plan/dry_run.h"

_Static_assert((int)PRECISION_STATES_MAX == (int)OPTIMIZER_STATES_MAX + 1, "the average is a state more");

enum { ALIAS_BYTES = 4096, STAGGER_BYTES = 5 * ALIGN_BYTES };

const char *memory_row_name(enum memory_row row) {
    static const char *const names[MEMORY_ROWS] = {[MEMORY_PARAMETERS] = "parameters",
                                                   [MEMORY_GRADIENTS] = "gradients",
                                                   [MEMORY_STATE0] = "optimizer state 0",
                                                   [MEMORY_STATE1] = "optimizer state 1",
                                                   [MEMORY_GATHERED] = "gathered units",
                                                   [MEMORY_STAGING] = "reduction staging",
                                                   [MEMORY_MESSAGES] = "messages",
                                                   [MEMORY_MASTERS] = "master weights",
                                                   [MEMORY_DEVICE_STATE0] = "optimizer state 0 on the device",
                                                   [MEMORY_DEVICE_STATE1] = "optimizer state 1 on the device",
                                                   [MEMORY_DEVICE_MASTERS] = "master weights on the device",
                                                   [MEMORY_OFFLOADED_PARAMETERS] = "offloaded parameters",
                                                   [MEMORY_RECORDS] = "chunks of optimizer state",
                                                   [MEMORY_COMMITS] = "commit records",
                                                   [MEMORY_SLOTS] = "chunk staging",
                                                   [MEMORY_PARAM_STAGING] = "parameter staging",
                                                   [MEMORY_CHECKPOINT] = "checkpoint staging",
                                                   [MEMORY_HOST_GRADIENTS] = "gradients on the host",
                                                   [MEMORY_UPDATE_STAGING] = "update staging",
                                                   [MEMORY_NORMS] = "norms",
                                                   [MEMORY_GRAD_STAGING] = "gradient staging",
                                                   [MEMORY_OFFLOADED_GRADIENTS] = "offloaded gradients",
                                                   [MEMORY_DIRECTIONS] = "update directions",
                                                   [MEMORY_AVERAGES] = "averaged weights",
                                                   [MEMORY_DEVICE_AVERAGES] =
                                                       "averaged weights on the device"};
    return names[row];
}

static uint32_t add_buffer(struct plan *plan, enum memory_row row, uint64_t bytes) {
    plan->buffer[plan->buffers] =
        (struct plan_buffer){.offset = plan->row_bytes[row], .bytes = bytes, .row = (uint8_t)row};
    plan->row_bytes[row] += (bytes + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES;
    return plan->buffers++;
}

/* The rows whose content is needed from step to step. Each step makes its gradients anew, and a pass hpZ's second shards. */
static const bool row_rests[MEMORY_ROWS] = {
    [MEMORY_PARAMETERS] = true,     [MEMORY_STATE0] = true,
    [MEMORY_STATE1] = true,         [MEMORY_MASTERS] = true,
    [MEMORY_DEVICE_STATE0] = true,  [MEMORY_DEVICE_STATE1] = true,
    [MEMORY_DEVICE_MASTERS] = true, [MEMORY_OFFLOADED_PARAMETERS] = true,
    [MEMORY_AVERAGES] = true,       [MEMORY_DEVICE_AVERAGES] = true,
};

static void fix(struct plan *plan, enum buffer_kind kind, uint32_t index, enum memory_row row,
                uint64_t bytes) {
    uint32_t buffer = add_buffer(plan, row, bytes);
    plan->buffer[buffer].rests = row_rests[row] && kind != BUFFER_PARAM_SECOND;
    plan->fixed[kind * plan->fixed_width + index] = buffer;
}

/* Buffers that live for one use of their unit: those of every other unit share memory, so that one is used up while the next is made.
 * Of a unit's regions, each has its own. */
static bool take_same_turn(const struct plan *plan, uint32_t a, uint32_t b) {
    const struct model_region *all = plan->model->region;
    uint32_t units[2] = {all[a].unit, all[b].unit}, first[2] = {a, b};
    for (int k = 0; k < 2; k++)
        while (first[k] > 0 && all[first[k] - 1].unit == units[k]) first[k]--;
    return units[0] % 2 == units[1] % 2 && a - first[0] == b - first[1];
}

/* bytes[i]: of region i; 0: it has no such buffer. */
static void fix_in_turn(struct plan *plan, enum buffer_kind kind, enum memory_row row,
                        const uint64_t *bytes) {
    uint32_t *fixed = plan->fixed + kind * plan->fixed_width;
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
    return region_precision(&plan->model->region[region], &plan->precision);
}

/* What the plan's states of a region are: all of them, and those that its optimizer uses. */
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

/* The master weights and states of a shard that stay in memory. Those of the chunks whose state is on the device, while other state is
 * not, are apart. */
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
           (plan_host_updates(plan) || plan->grad_tier != TIER_DEVICE);
}

/* Reduced shards that live for one use, of the regions whose shards are on the host, or of the others. */
static void fix_brief(struct plan *plan, bool host) {
    uint64_t *bytes = plan->turn_bytes;
    for (uint32_t i = 0; i < plan->policy->regions; i++) {
        const struct region *r = &plan->policy->region[i];
        bool brief = r->grad_brief && !r->frozen && grad_on_host(plan, i) == host;
        bytes[i] = brief ? plan_part_bytes(plan, i, r->grad_step, plan_precision(plan, i).reduced) : 0;
    }
    fix_in_turn(plan, BUFFER_GRAD_SHARD, host ? MEMORY_HOST_GRADIENTS : MEMORY_GRADIENTS, bytes);
}

/* The reduced shard: on a drive, in host memory, or on the device; there, too, if the device has all of the shard's state. */
static void fix_grad_shard(struct plan *plan, uint32_t i) {
    const struct region *r = &plan->policy->region[i];
    bool gathered = placement_is(r->grad_step, REPLICATE, REPLICATE);
    if (r->grad_brief) return; /* fix_brief has planned it */
    bool host = !gathered && grad_on_host(plan, i);
    struct placement shard = gathered ? (struct placement){{SHARD, REPLICATE}} : r->grad_step;
    if (plan->layout.region[i].grads)
        fix(plan, BUFFER_GRAD_SHARD, i, MEMORY_OFFLOADED_GRADIENTS,
            chunk_layout_grad_bytes(&plan->layout, i));
    else
        fix(plan, BUFFER_GRAD_SHARD, i, host ? MEMORY_HOST_GRADIENTS : MEMORY_GRADIENTS,
            plan_part_bytes(plan, i, shard, plan_precision(plan, i).reduced));
}

/* Plans the buffers of a region that live from step to step. A lent one has no bytes here, but hazards need a buffer. */
static void fix_region(struct plan *plan, uint32_t i, struct states states) {
    const struct placement whole = {{REPLICATE, REPLICATE}};
    const struct region *r = &plan->policy->region[i];
    const struct precision p = plan_precision(plan, i);
    if (placement_equal(r->rest, whole))
        fix(plan, BUFFER_PARAM_FULL, i, MEMORY_PARAMETERS,
            r->lent ? 0 : plan_part_bytes(plan, i, whole, p.compute));
    else if (plan->param_tier == TIER_DEVICE)
        fix(plan, BUFFER_PARAM_SHARD, i, MEMORY_PARAMETERS, plan_part_bytes(plan, i, r->rest, p.compute));
    else
        fix(plan, BUFFER_PARAM_SHARD, i, MEMORY_OFFLOADED_PARAMETERS,
            chunk_layout_param_bytes(&plan->layout, i));
    if (!placement_equal(r->between, r->rest) && !placement_equal(r->between, whole))
        fix(plan, BUFFER_PARAM_SECOND, i, MEMORY_PARAMETERS, plan_part_bytes(plan, i, r->between, p.compute));
    if (r->frozen) return;
    /* If the step needs the whole gradient, the reduced gradient is gathered into the backward's buffer. */
    bool gathered = placement_equal(r->grad_step, whole);
    if (r->grad_kept)
        fix(plan, BUFFER_GRAD_FULL, i, MEMORY_GRADIENTS,
            r->grad_lent
                ? 0
                : plan_part_bytes(plan, i, whole, gathered && precision_widens(&p) ? p.reduced : p.compute));
    if (!r->grad_in_place) fix_grad_shard(plan, i);
    fix_state(plan, i, states);
    if (plan_host_updates(plan) && gathered && !chunk_layout_device_whole(&plan->layout, i))
        fix(plan, BUFFER_GRAD_HOST, i, MEMORY_HOST_GRADIENTS, plan_part_bytes(plan, i, r->state, p.reduced));
}

bool plan_host_updates(const struct plan *plan) {
    return plan->discrete && plan->row_tier[MEMORY_STATE0] != TIER_DEVICE;
}

bool plan_updates_by_chunk(const struct plan *plan) {
    return plan_host_updates(plan) && (plan->param_tier == TIER_DEVICE || plan->policy->directions);
}

static uint64_t round_up(uint64_t bytes, uint64_t unit) { return (bytes + unit - 1) / unit * unit; }

/* The most bytes of a region that pass through staging in one update of the host: parameters on the device, and directions. */
static uint64_t update_bytes(const struct plan *plan, uint32_t region) {
    const struct chunk_layout *layout = &plan->layout;
    const struct region *r = &plan->policy->region[region];
    uint64_t count = layout->elements[region] - chunk_layout_device(layout, region);
    bool rests_whole = placement_is(r->rest, REPLICATE, REPLICATE);
    if (plan_updates_by_chunk(plan) && layout->chunk_elements < count) count = layout->chunk_elements;
    uint64_t params = rests_whole || plan->param_tier == TIER_DEVICE
                          ? count * dtype_bytes(plan_precision(plan, region).compute)
                          : 0;
    return r->matrices ? round_up(params, ALIGN_BYTES) + count * sizeof(float) : params;
}

/* Of whole regions, in fp32. */
static void fix_directions(struct plan *plan, uint64_t scratch_bytes) {
    uint64_t most = 0;
    for (uint32_t i = 0; i < plan->policy->regions; i++)
        if (plan->policy->region[i].matrices && plan->model->region[i].padded > most)
            most = plan->model->region[i].padded;
    for (uint32_t k = 0; k < plan->policy->directions; k++)
        fix(plan, BUFFER_DIRECTION, k, MEMORY_DIRECTIONS, most * sizeof(float));
    if (plan->policy->directions) fix(plan, BUFFER_MATRIX_SCRATCH, 0, MEMORY_DIRECTIONS, scratch_bytes);
}

/* Plans the additional buffers of a discrete device and its host. */
static void fix_discrete(struct plan *plan) {
    uint64_t updated = 0, blocks = 0;
    for (uint32_t i = 0; i < plan->policy->regions && plan->discrete; i++) {
        const struct region *r = &plan->policy->region[i];
        if (r->frozen) continue;
        uint64_t bytes = update_bytes(plan, i),
                 all = (plan->model->region[i].padded + NORM_BLOCK_ELEMENTS - 1) / NORM_BLOCK_ELEMENTS;
        if (bytes > updated) updated = bytes;
        if (all > blocks) blocks = all;
    }
    plan->row_bytes[MEMORY_NORMS] = blocks * sizeof(double);
    for (uint32_t k = 0; k < UPDATE_STAGINGS && plan_host_updates(plan); k++)
        fix(plan, BUFFER_UPDATE_STAGING, k, MEMORY_UPDATE_STAGING, updated);
}

/* The sums of micro-batches on their way to the drive, in whole pages. */
static void fix_held(struct plan *plan) {
    uint64_t *bytes = plan->turn_bytes;
    for (uint32_t i = 0; i < plan->policy->regions; i++)
        bytes[i] = plan->layout.region[i].held ? chunk_layout_grad_bytes(&plan->layout, i) : 0;
    fix_in_turn(plan, BUFFER_GRAD_HELD, MEMORY_GRAD_STAGING, bytes);
}

/* Plans the buffers of chunks: records and commit pages on the drive, staging slots, and the rings of parameters and gradients. */
static void fix_staging(struct plan *plan) {
    const struct chunk_layout *layout = &plan->layout;
    plan->row_bytes[MEMORY_RECORDS] = layout->record_row_bytes * (1 + plan->shadow);
    plan->row_bytes[MEMORY_COMMITS] = plan->shadow ? 2 * CHUNK_ALIGN_BYTES : 0;
    if (!layout->record_row_bytes && !layout->grad_bytes && plan->param_tier != TIER_NVME && !plan->shadow)
        return;
    uint64_t page = plan->shadow ? CHUNK_ALIGN_BYTES : 0; /* a commit goes through the slot for access */
    plan->row_bytes[MEMORY_SLOTS] =
        layout->slots * layout->slot_bytes + (layout->slot_bytes > page ? layout->slot_bytes : page);
    fix_held(plan);
    if (layout->grads.slots)
        fix(plan, BUFFER_GRAD_STAGED, 0, MEMORY_GRAD_STAGING, layout->grads.slots * layout->grads.slot_bytes);
    if (layout->params.slots)
        fix(plan, BUFFER_PARAM_STAGED, 0, MEMORY_PARAM_STAGING,
            layout->params.slots * layout->params.slot_bytes);
}

/* Gives each interval a place of its own. Returns the bytes that are in use at most. */
static uint64_t lay_out_apart(struct plan *plan, struct intervals *intervals) {
    const uint64_t unit = plan->discrete ? ALIGN_BYTES : DEVICE_PART_BYTES;
    uint64_t end = 0, sums[ROOMS] = {0}, most = 0;
    for (uint32_t i = 0; i < intervals->count; i++) {
        struct interval *v = &intervals->item[i];
        v->offset = end;
        end += round_up(v->bytes, unit);
        sums[v->ref.kind == BUFFER_GRAD_FULL] += round_up(v->bytes, DEVICE_PAGE_BYTES);
    }
    for (int object = 0; object < ROOMS; object++)
        most += sums[object] < plan->policy->room[object] ? sums[object] : plan->policy->room[object];
    plan->space_bytes = plan->discrete ? 0 : end;
    return plan->discrete ? end : most;
}

/* Makes each interval a buffer of the row of gathered units, and lists the pairs of buffers that share bytes. */
static zero_status place_slots(struct plan *plan, struct intervals *intervals, struct zero_error *error) {
    uint32_t first = plan->buffers, count = intervals->count;
    uint64_t pairs = 0;
    plan->row_bytes[MEMORY_GATHERED] = plan->policy->bound
                                           ? lay_out_apart(plan, intervals)
                                           : intervals_lay_out(intervals, &plan->lasting_bytes);
    for (uint32_t i = 0; i < count; i++)
        plan->buffer[plan->buffers++] = (struct plan_buffer){
            .offset = intervals->item[i].offset, .bytes = intervals->item[i].bytes, .row = MEMORY_GATHERED};
    for (uint32_t i = 0; i < dry_run_slots(plan->policy); i++)
        if (plan->slot[i] != NO_BUFFER) plan->slot[i] += first;
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t k = 0; k < count; k++) pairs += i != k && intervals_share(intervals, i, k);
    plan->overlap = malloc((pairs + 1) * sizeof *plan->overlap);
    plan->overlap_first = calloc(plan->buffers + 1, sizeof *plan->overlap_first);
    if (!plan->overlap || !plan->overlap_first)
        return error_set(error, ZERO_E_MEMORY, "no memory for the plan");
    for (uint32_t i = 0, n = 0; i < count; i++) {
        for (uint32_t k = 0; k < count; k++)
            if (i != k && intervals_share(intervals, i, k)) plan->overlap[n++] = first + k;
        plan->overlap_first[first + i + 1] = n;
    }
    return ZERO_OK;
}

/* Places the rows of a tier one after another in its extent. The starts of the rows are staggered by distinct cache
 * lines: an update walks parameters, moments and gradients at once, and equal offsets modulo a page would alias in
 * the cache. Rows that a drive reads or writes start on a page. An extent has whole pages. */
static void place_row(struct plan *plan, int r) {
    if (!plan->row_bytes[r]) return;
    uint64_t *end = &plan->tier_bytes[plan->row_tier[r]];
    bool walked = r < MEMORY_OFFLOADED_PARAMETERS || r >= MEMORY_AVERAGES;
    uint64_t stagger = walked ? (uint64_t)r * STAGGER_BYTES : 0;
    plan->row_offset[r] = round_up(*end, ALIAS_BYTES) + stagger;
    *end = plan->row_offset[r] + plan->row_bytes[r];
}

/* Commits come first on their tier, so that a run with another plan finds them, too. What is not in the extent comes last. */
static void place_rows(struct plan *plan) {
    uint64_t *device = &plan->tier_bytes[TIER_DEVICE];
    place_row(plan, MEMORY_COMMITS);
    for (int r = 0; r < MEMORY_ROWS; r++)
        if (r != MEMORY_COMMITS && (r != MEMORY_GATHERED || !plan->space_bytes)) place_row(plan, r);
    for (int t = 0; t < TIERS; t++) plan->tier_bytes[t] = round_up(plan->tier_bytes[t], ALIAS_BYTES);
    if (!plan->space_bytes) return;
    plan->row_offset[MEMORY_GATHERED] = *device;
    *device += plan->row_bytes[MEMORY_GATHERED];
}

static zero_status allocate_tables(struct plan *plan, const struct plan_options *o,
                                   struct zero_error *error) {
    const struct policy *p = o->policy;
    uint32_t slots = dry_run_slots(p);
    plan->fixed_width = p->regions * PRECISION_STATES_MAX + p->stagings + p->gather_stagings +
                        p->lent_stagings + UPDATE_STAGINGS + p->directions;
    plan->capacity = BUFFER_KINDS * plan->fixed_width + slots;
    plan->buffer = calloc(plan->capacity, sizeof *plan->buffer);
    plan->fixed = malloc(BUFFER_KINDS * plan->fixed_width * sizeof *plan->fixed);
    plan->slot = malloc(slots * sizeof *plan->slot);
    plan->turn_bytes = calloc(p->regions, sizeof *plan->turn_bytes);
    if (!plan->buffer || !plan->fixed || !plan->slot || !plan->turn_bytes)
        return error_set(error, ZERO_E_MEMORY, "no memory for the plan");
    memset(plan->fixed, 0xff, BUFFER_KINDS * plan->fixed_width * sizeof *plan->fixed);
    memset(plan->slot, 0xff, slots * sizeof *plan->slot);
    return ZERO_OK;
}

static struct chunk_format format_of(const struct plan_options *o, bool keeps_fp32, bool other) {
    const struct precision kept = precision_kept_fp32(&o->precision), *p = keeps_fp32 ? &kept : &o->precision;
    struct chunk_format format = {.states = o->states[other] + o->precision.average,
                                  .moments = o->states[other],
                                  .param_dtype = p->compute,
                                  .grad_dtype = p->reduced};
    format.arrays = precision_arrays(p, format.states, format.array_bytes);
    return format;
}

static zero_status cut_chunks(struct plan *plan, const struct plan_options *o, struct zero_error *error) {
    struct chunk_layout_options options = {.state = o->state_tier == TIER_NVME,
                                           .params = o->param_tier == TIER_NVME,
                                           .grads = o->state_tier == TIER_NVME && o->grad_tier == TIER_NVME,
                                           .grad_resident_bytes = o->grad_resident_bytes,
                                           .piece_bytes = o->piece_bytes,
                                           .chunk_elements_max = o->chunk_elements_max,
                                           .align_bytes = o->chunk_align_bytes,
                                           .slots = o->slots,
                                           .device_share = o->device_share,
                                           .device_bytes = o->device_bytes,
                                           .device_grads = o->discrete || o->grad_tier != TIER_DEVICE,
                                           .resident_bytes = o->resident_bytes};
    for (int other = 0; other < 2; other++)
        for (int kept = 0; kept < 2; kept++)
            options.format[chunk_format_index(kept, other)] = format_of(o, kept, other);
    return chunk_layout_make(&plan->layout, &options, o->model, o->policy, error);
}

static void place_tiers(struct plan *plan, const struct plan_options *o) {
    enum tier_kind resident = o->state_tier == TIER_NVME ? TIER_CPU : o->state_tier;
    plan->row_tier[MEMORY_MASTERS] = plan->row_tier[MEMORY_STATE0] = plan->row_tier[MEMORY_STATE1] = resident;
    plan->row_tier[MEMORY_AVERAGES] = resident;
    plan->row_tier[MEMORY_DIRECTIONS] = o->discrete ? TIER_DEVICE : resident; /* where they are gathered */
    plan->row_tier[MEMORY_DEVICE_STATE0] = plan->row_tier[MEMORY_DEVICE_STATE1] = TIER_DEVICE;
    plan->row_tier[MEMORY_DEVICE_MASTERS] = plan->row_tier[MEMORY_DEVICE_AVERAGES] = TIER_DEVICE;
    plan->row_tier[MEMORY_OFFLOADED_PARAMETERS] = o->param_tier;
    plan->row_tier[MEMORY_RECORDS] = plan->row_tier[MEMORY_COMMITS] = TIER_NVME;
    plan->row_tier[MEMORY_OFFLOADED_GRADIENTS] = TIER_NVME;
    plan->row_tier[MEMORY_GRAD_STAGING] = TIER_CPU;
    plan->row_tier[MEMORY_SLOTS] = plan->row_tier[MEMORY_PARAM_STAGING] = TIER_CPU;
    plan->row_tier[MEMORY_CHECKPOINT] = TIER_CPU;
    plan->row_tier[MEMORY_HOST_GRADIENTS] = plan->row_tier[MEMORY_UPDATE_STAGING] = TIER_CPU;
    plan->row_tier[MEMORY_MESSAGES] = o->discrete ? TIER_CPU : TIER_DEVICE;
}

zero_status plan_make(struct plan *plan, const struct plan_options *o, struct zero_error *error) {
    *plan = (struct plan){.model = o->model,
                          .policy = o->policy,
                          .precision = o->precision,
                          .param_tier = o->param_tier,
                          .grad_tier = o->grad_tier,
                          .shadow = o->shadow,
                          .discrete = o->discrete};
    struct intervals intervals = {0};
    zero_status status = allocate_tables(plan, o, error);
    if (!status) status = cut_chunks(plan, o, error);
    if (status) return status;
    place_tiers(plan, o);
    fix_brief(plan, false);
    fix_brief(plan, true);
    for (uint32_t i = 0; i < o->policy->regions; i++)
        fix_region(plan, i, (struct states){o->state_count, o->states[region_other(&o->model->region[i])]});
    for (uint32_t k = 0; k < o->policy->stagings; k++)
        fix(plan, BUFFER_STAGING, k, MEMORY_STAGING, o->staging_bytes);
    for (uint32_t k = 0; k < o->policy->gather_stagings; k++)
        fix(plan, BUFFER_GATHER_STAGING, k, MEMORY_STAGING, o->gather_staging_bytes);
    for (uint32_t k = 0; k < o->policy->lent_stagings; k++)
        fix(plan, BUFFER_LENT_STAGING, k, MEMORY_STAGING, o->lent_staging_bytes);
    fix_staging(plan); /* first: a drive needs whole pages */
    for (uint32_t k = 0; k < o->policy->stagings && o->round_staging_bytes; k++)
        fix(plan, BUFFER_ROUND_STAGING, k, MEMORY_GRAD_STAGING, o->round_staging_bytes);
    fix_discrete(plan);
    fix_directions(plan, o->matrix_scratch_bytes);
    plan->row_bytes[MEMORY_MESSAGES] = o->message_bytes;
    plan->row_bytes[MEMORY_CHECKPOINT] = o->checkpoint_bytes;
    status = intervals_open(&intervals, dry_run_slots(o->policy), error);
    if (!status) dry_run_begin_apart(plan, &intervals);
    if (!status) status = dry_run(plan, &intervals, error);
    for (uint32_t i = 0; i < intervals.count && !status; i++)
        if (intervals.item[i].open)
            status = error_set(error, ZERO_E_INTERNAL, "the plan's dry run never released region %d",
                               intervals.item[i].ref.region);
    if (!status) status = place_slots(plan, &intervals, error);
    intervals_close(&intervals);
    place_rows(plan);
    return status;
}

void plan_free(struct plan *plan) {
    free(plan->buffer);
    free(plan->fixed);
    free(plan->slot);
    free(plan->turn_bytes);
    free(plan->overlap);
    free(plan->overlap_first);
    chunk_layout_free(&plan->layout);
}

uint32_t plan_fixed(const struct plan *plan, struct buffer_ref ref) {
    return plan->fixed[ref.kind * plan->fixed_width + ref.region];
}

uint32_t plan_slot(const struct plan *plan, bool evaluating, uint32_t position, struct buffer_ref ref) {
    const uint32_t *slot = dry_run_slot(plan, evaluating, position, ref);
    return slot ? *slot : NO_BUFFER;
}

uint32_t plan_any(const struct plan *plan, struct buffer_ref ref) {
    uint32_t buffer = plan_fixed(plan, ref);
    for (uint32_t q = 0; q < 2 * plan->policy->uses && buffer == NO_BUFFER; q++)
        buffer = plan_slot(plan, false, q, ref);
    return buffer;
}

bool plan_in_space(const struct plan *plan, uint32_t buffer) {
    return plan->space_bytes && plan->buffer[buffer].row == MEMORY_GATHERED;
}

uint64_t plan_extent_bytes(const struct plan *plan, enum tier_kind tier) {
    return plan->space_bytes && tier == TIER_DEVICE ? plan->row_offset[MEMORY_GATHERED]
                                                    : plan->tier_bytes[tier];
}

uint64_t plan_place(const struct plan *plan, uint32_t buffer) {
    const struct plan_buffer *b = &plan->buffer[buffer];
    return plan->row_offset[b->row] + b->offset;
}

/* The rows of a tier lie in their order, and so do the buffers of a row. Between two of them is alignment. */
uint32_t plan_rest(const struct plan *plan, enum tier_kind tier, struct plan_range *out) {
    uint32_t count = 0;
    for (uint32_t row = 0; row < MEMORY_ROWS; row++) {
        bool follows = false; /* the last range, without a buffer between them that does not rest */
        for (uint32_t i = 0; i < plan->buffers && plan->row_tier[row] == tier && row_rests[row]; i++) {
            const struct plan_buffer *b = &plan->buffer[i];
            if (b->row != row || !b->bytes) continue;
            uint64_t place = plan_place(plan, i);
            if (b->rests && !follows) out[count++] = (struct plan_range){.offset = place};
            if (b->rests) out[count - 1].bytes = place + b->bytes - out[count - 1].offset;
            follows = b->rests;
        }
    }
    return count;
}

struct hazard_overlaps plan_overlaps(const struct plan *plan) {
    return (struct hazard_overlaps){plan->overlap_first, plan->overlap};
}
