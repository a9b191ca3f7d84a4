/* The parts of a virtual rank: a communicator and its groups, a device, a drive, an executor. */
#include <stdlib.h>
#include <string.h>

#include "tools/sim/run.h"

/* ---- checking each operation ---- */

static void say(struct rank *r, const struct operation *op, const struct ledger_fault *f) {
    static const char *const states[] = {[HELD_NOTHING] = "nothing was ever written to",
                                         [HELD_BEING_WRITTEN] = "is still being written",
                                         [HELD_RELEASED] = "was released before"};
    const char *kind = operation_kind_name((enum operation_kind)op->kind),
               *unit = run_unit_name(r->run, op->region);
    uint32_t regions = r->run->model.regions;
    const char *of = f->ref.region < regions ? run_unit_name(r->run, f->ref.region) : unit;
    if (f->with)
        run_violated(r->run, r->index, ZERO_E_INTERNAL,
                     "%s of \"%s\" starts while %s of \"%s\" uses the same memory (%s)", kind, unit,
                     operation_kind_name((enum operation_kind)f->with->kind),
                     run_unit_name(r->run, f->with->region), ledger_buffer_text(f->ref.kind));
    else if (f->held == HELD_OVERWRITTEN)
        run_violated(r->run, r->index, ZERO_E_INTERNAL,
                     "%s of \"%s\" reads %s of \"%s\", where %s of \"%s\" wrote since", kind, unit,
                     ledger_buffer_text(f->ref.kind), of, operation_kind_name(f->by),
                     run_unit_name(r->run, f->by_region));
    else
        run_violated(r->run, r->index, ZERO_E_INTERNAL, "%s of \"%s\" reads %s of \"%s\", which %s", kind,
                     unit, ledger_buffer_text(f->ref.kind), of, states[f->held]);
}

static void started(void *user, const struct operation *op, uint32_t item, const uint32_t *read,
                    const uint32_t *write) {
    struct rank *r = user;
    struct ledger_item starts = {op, read, write, item};
    struct ledger_fault fault;
    if (r->events.event) trace_events_start(&r->events, op, item, write, r->run->clock.now_ns);
    if (!r->run->violation.code && !ledger_start(&r->ledger, &starts, &fault)) say(r, op, &fault);
}

static uint64_t mix_event(uint64_t hash, const struct rank *r, const struct operation *op, uint32_t item) {
    uint64_t what =
        (uint64_t)op->kind | (uint64_t)op->stream << 8 | (uint64_t)op->region << 16 | (uint64_t)op->use << 32;
    return random_mix(random_mix(random_mix(hash ^ r->run->clock.now_ns) ^ what) ^
                      ((uint64_t)r->index << 32 | item));
}

static void done(void *user, const struct operation *op, uint32_t item, const uint32_t *read,
                 const uint32_t *write) {
    struct rank *r = user;
    struct run *run = r->run;
    if (run->violation.code) return; /* the ledger may not know the operation */
    ledger_done(&r->ledger, op, item);
    run->schedule = mix_event(run->schedule, r, op, item);
    bool updates = op->kind == OP_UPDATE && policy_leg(&r->policy, op)->writes & ARRAY_PARAMS;
    uint64_t elements = updates ? chunk_layout_updated(&run->blueprint.plan.layout, op, item).count : 0;
    if (op->outcome == OUTCOME_UPDATED) r->updated[op->region] += elements;
    if (op->outcome == OUTCOME_SKIPPED) r->updated[op->region] -= elements; /* taken back */
    if (r->events.event) trace_events_done(&r->events, op, item, run->clock.now_ns);
}

static void listed(void *user, struct operation_list *list) {
    struct rank *r = user;
    const struct sim_sabotage *sabotage = r->run->setup->sabotage;
    if (sabotage && sabotage->listed) sabotage->listed(sabotage->user, r->index, list);
    if (!sabotage || !sabotage->unequal) same_listed(r, list);
}

/* ---- opening ---- */

/* The members are `count` ranks from `first` on, `step` apart. The first of them lists them for all. */
static zero_status open_group(struct rank *r, uint32_t first, uint32_t step, uint32_t count,
                              const struct comm_group *of_first, struct comm_group **out) {
    if (r->index != first) return comm_group_open_like(r->comm, of_first, out);
    uint32_t *ranks = malloc(count * sizeof *ranks);
    if (!ranks) return ZERO_E_MEMORY;
    for (uint32_t i = 0; i < count; i++) ranks[i] = first + i * step;
    zero_status status = comm_group_open(r->comm, ranks, count, out);
    free(ranks);
    return status;
}

static zero_status open_stream(struct rank *r, uint8_t axes, enum stream stream) {
    const struct terms *terms = &r->run->setup->terms;
    uint32_t shards = terms->mesh[AXIS_SHARD], step = axes & AXES_SHARD ? 1 : shards;
    uint32_t count = (axes & AXES_SHARD ? shards : 1) * (axes & AXES_REPLICATE ? r->run->ranks / shards : 1);
    uint32_t first = axes == AXES_BOTH    ? 0
                     : axes == AXES_SHARD ? r->index / shards * shards
                                          : r->index % shards;
    struct comm_group **group = &r->group[axes][stream];
    zero_status status = open_group(r, first, step, count, r->run->rank[first].group[axes][stream], group);
    if (!status) comm_group_place(*group, terms->node_ranks, step);
    return status;
}

/* Opens groups in the engine's order (engine/api/commit.c), because messages name groups by that order. */
static zero_status open_groups(struct rank *r, struct zero_error *error) {
    static const enum stream streams[] = {STREAM_GATHER, STREAM_REDUCE};
    uint8_t most = r->run->setup->terms.mesh[AXIS_REPLICATE] > 1 ? AXES_BOTH : AXES_SHARD;
    zero_status status = open_group(r, 0, 1, r->run->ranks, r->run->rank[0].world, &r->world);
    for (uint8_t axes = AXES_SHARD; axes <= most; axes++)
        for (int s = 0; s < 2 && !status; s++) status = open_stream(r, axes, streams[s]);
    if (status == ZERO_E_MEMORY) return error_set(error, status, "no memory for the groups of a rank");
    return status ? error_pass(error, comm_error(r->comm)) : ZERO_OK;
}

static void open_policy(struct rank *r) {
    const struct run *run = r->run;
    const struct sim_sabotage *sabotage = run->setup->sabotage;
    memcpy(r->region, run->blueprint.regions, run->model.regions * sizeof *r->region);
    r->policy = run->blueprint.policy;
    r->policy.region = r->region;
    if (sabotage && r->index % 2)
        r->policy.depth += sabotage->odd_depth, r->policy.backward_depth += sabotage->odd_depth;
}

/* Without data all ranks' memory is at the same reserved addresses, which have no memory. */
static zero_status open_memory(struct rank *r, struct zero_error *error) {
    const struct run *run = r->run;
    for (int t = 0; t < TIER_NVME; t++) {
        r->memory[t] = run->memory[t];
        if (!run->setup->host || !run->blueprint.plan.tier_bytes[t]) continue;
        r->memory[t] = aligned_alloc(CHUNK_ALIGN_BYTES, run->blueprint.plan.tier_bytes[t]); /* whole pages */
        if (!r->memory[t]) return error_set(error, ZERO_E_MEMORY, "no memory for a rank's data");
        memset(r->memory[t], 0xff, run->blueprint.plan.tier_bytes[t]);
    }
    return ZERO_OK;
}

static zero_status open_tables(struct rank *r, struct zero_error *error) {
    const struct run *run = r->run;
    uint32_t messages = run->setup->host ? run->ranks + 1 : 1;
    r->region = calloc(run->model.regions, sizeof *r->region);
    r->updated = calloc(run->model.regions, sizeof *r->updated);
    r->agreement = calloc(messages, sizeof *r->agreement);
    if (run->setup->host) r->before = malloc(run->model.padded_elements * sizeof(float));
    if (!r->region || !r->updated || !r->agreement || (run->setup->host && !r->before))
        return error_set(error, ZERO_E_MEMORY, "no memory for rank %u's tables", r->index);
    if (!sim_trace_open(r))
        return error_set(error, ZERO_E_MEMORY, "no memory for rank %u's timeline", r->index);
    return ledger_open(&r->ledger, &run->ledger, error);
}

static zero_status open_executor(struct rank *r, struct zero_error *error) {
    struct run *run = r->run;
    r->watch = (struct executor_watch){.user = r, .listed = listed, .started = started, .done = done};
    struct executor_options o = blueprint_executor_options(&run->blueprint);
    o.shape.policy = &r->policy;
    memcpy(o.shape.group, r->group, sizeof o.shape.group);
    struct executor_mechanisms m = {.drive = r->drive,
                                    .comm = r->comm,
                                    .world = r->world,
                                    .device = r->device,
                                    .rank = r->index,
                                    .threads = 1,
                                    .agreements = r->agreement,
                                    .without_data = !run->setup->host,
                                    .watch = &r->watch};
    memcpy(m.memory, r->memory, sizeof m.memory);
    r->events.plan = o.plan, r->events.shape = o.shape;
    return executor_open(&o, &m, &r->executor, error);
}

static void begin_loop(struct rank *r) {
    const struct sim_setup *s = r->run->setup;
    r->loop = loop_begin(&r->run->pass, &r->policy);
    r->loop.evaluates = s->evaluate;
    r->loop.skip_unit = s->skip_unit;
}

zero_status rank_join(struct rank *r, struct run *run, uint32_t index, struct zero_error *error) {
    r->run = run;
    r->index = index;
    struct comm_options comm = {.rank = index,
                                .size = run->ranks,
                                .timeout_s = (double)run->setup->timeout_ns * 1e-9,
                                .sim = run->world};
    zero_status status = comm_open(&comm_sim_ops, &comm, &r->comm, error);
    return status ? status : open_groups(r, error);
}

zero_status rank_open(struct rank *r, struct zero_error *error) {
    zero_status status = open_tables(r, error);
    if (!status) open_policy(r);
    if (!status) begin_loop(r);
    if (!status) status = open_memory(r, error);
    if (!status) status = device_attach(r, error);
    if (!status) status = drive_open(r, error);
    return status ? status : open_executor(r, error);
}

void rank_close(struct rank *r) {
    executor_close(r->executor);
    for (int axes = 0; axes <= AXES_BOTH; axes++)
        for (int s = 0; s < STREAMS; s++) comm_group_close(r->group[axes][s]);
    comm_group_close(r->world);
    comm_close(r->comm);
    if (r->device) r->device->ops->close(r->device);
    if (r->drive) r->drive->ops->close(r->drive);
    for (int t = 0; t < TIER_NVME && r->run && r->run->setup->host; t++) free(r->memory[t]);
    ledger_close(&r->ledger);
    free(r->region);
    free(r->updated);
    free(r->events.event);
    free(r->agreement);
    free(r->before);
}
