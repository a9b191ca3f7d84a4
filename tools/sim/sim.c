#include "tools/sim/sim.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "tools/sim/run.h"

/* ---- state that all ranks share ---- */

static zero_status check_setup(const struct sim_setup *s, struct zero_error *error) {
    uint64_t ranks = (uint64_t)s->terms.mesh[AXIS_SHARD] * s->terms.mesh[AXIS_REPLICATE];
    if (!ranks || ranks > RANKS_MAX)
        return error_set(error, ZERO_E_ARGUMENT,
                         "a mesh of %" PRIu32 " x %" PRIu32 " ranks: 1 to %d are possible",
                         s->terms.mesh[AXIS_SHARD], s->terms.mesh[AXIS_REPLICATE], (int)RANKS_MAX);
    if (!s->steps || s->steps > STEPS_MAX || !s->terms.micro_steps)
        return error_set(error, ZERO_E_ARGUMENT,
                         "%" PRIu32 " steps of %" PRIu32
                         " micro-steps: 1 to %d steps of at least one are possible",
                         s->steps, s->terms.micro_steps, STEPS_MAX);
    if (s->host && s->terms.precision.compute != DTYPE_F32)
        return error_set(error, ZERO_E_UNSUPPORTED, "data are simulated in fp32 alone");
    if (s->host && s->terms.discrete)
        return error_set(error, ZERO_E_UNSUPPORTED, "data are simulated in the host's memory alone");
    bool drive = s->terms.state_tier == TIER_NVME || s->terms.param_tier == TIER_NVME;
    if (s->faults >> SIM_DRIVE & 1 && !drive)
        return error_set(error, ZERO_E_ARGUMENT,
                         "there is no drive to fail: offload the optimizer or the parameters to nvme, or "
                         "leave the fault out");
    return ZERO_OK;
}

/* Declares segments as a trainer does with zero_engine_add_segment; a segment of one unit is not declared. */
static void declare_segments(struct run *run) {
    const struct pass_segments *s = &run->setup->segments;
    for (uint32_t u = 0, first; u < run->model.units; u++)
        for (uint32_t i = pass_segment(s, u, &first) && s->blocks > 1 ? first : u + 1; i <= u; i++)
            run->model.unit[i]->segment_first = first, run->model.unit[i]->segment_last = u;
}

/* If the setup gives no times, they follow from the model's operations. */
static zero_status make_pass(struct run *run, struct zero_error *error) {
    const struct sim_setup *s = run->setup;
    uint32_t units = s->model->units;
    struct pass_work *work = calloc(units, sizeof *work);
    if (!work) return error_set(error, ZERO_E_MEMORY, "no memory for the times of %" PRIu32 " units", units);
    for (uint32_t u = 0; u < units; u++) {
        uint64_t flops = s->model->unit[u].flops, rate = s->speeds.flops_per_s;
        uint64_t forward = speeds_ns(flops, rate), backward = speeds_ns(2 * flops, rate);
        work[u] = s->work ? s->work[u] : (struct pass_work){forward, backward, forward, true, 0};
    }
    zero_status status = pass_make(work, units, &s->segments, &run->pass, error);
    free(work);
    return status;
}

static zero_status declare(struct run *run, struct zero_error *error) {
    const struct sim_model *m = run->setup->model;
    zero_status status = ZERO_OK;
    run->model.dtype = run->setup->terms.precision.compute;
    for (uint32_t u = 0, i = 0; u < m->units && !status; u++) {
        zero_unit *unit;
        status = model_add_unit(&run->model, NULL, m->unit[u].name, &unit, error);
        for (; i < m->params && m->param[i].unit == u && !status; i++) {
            const struct sim_param *p = &m->param[i];
            zero_param param = {.struct_size = sizeof param,
                                .name = p->name,
                                .dims = p->columns ? 2 : 1,
                                .group = p->other,
                                .flags = p->flags,
                                .shape = {p->columns ? p->count / p->columns : p->count, p->columns},
                                .tied_to = p->tied_to,
                                .slot = &run->slot};
            status = model_add_param(&run->model, unit, &param, error);
            if (status) continue;
            run->model.param[i].other = p->other;
            run->model.param[i].code = p->code;
        }
    }
    if (!status) declare_segments(run);
    return status ? status : model_lay_out(&run->model, run->ranks, run->setup->persistence_threshold, error);
}

static zero_status make_blueprint(struct run *run, struct zero_error *error) {
    const struct sim_setup *s = run->setup;
    uint32_t states = optimizer_states_used(s->optimizer, &s->params[0]);
    if (s->other && s->other->state_count > states) states = s->other->state_count;
    struct blueprint_options options = {.model = &run->model,
                                        .optimizer = s->optimizer,
                                        .other = s->other,
                                        .state_count = states,
                                        .group = (struct comm_group *const(*)[STREAMS])run->rank[0].group};
    zero_status status = blueprint_make(&run->blueprint, &s->terms, &options, error);
    struct plan *plan = &run->blueprint.plan;
    if (!status && s->sabotage && s->sabotage->planned) s->sabotage->planned(s->sabotage->user, plan);
    return status ? status : ledger_plan_make(&run->ledger, plan, error);
}

/* Reserves addresses without memory: an access to them ends the program. */
static zero_status reserve(struct run *run, struct zero_error *error) {
    for (int t = 0; t < TIER_NVME && !run->setup->host; t++) {
        uint64_t bytes = run->blueprint.plan.tier_bytes[t];
        if (!bytes) continue;
        void *memory = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED)
            return error_set(error, ZERO_E_MEMORY, "no room for %" PRIu64 " bytes of a rank's addresses",
                             bytes);
        run->memory[t] = memory;
    }
    return ZERO_OK;
}

static zero_status open_ranks(struct run *run, struct zero_error *error) {
    const struct sim_setup *s = run->setup;
    struct sim_options options = {.ranks = run->ranks,
                                  .without_data = !s->host,
                                  .without_staging = !s->staging,
                                  .one_order = s->one_order,
                                  .levels = s->levels,
                                  .network = &run->network};
    run->rank = calloc(run->ranks, sizeof *run->rank);
    run->agreed = calloc(s->steps, sizeof *run->agreed);
    run->agreed_ns = calloc(s->steps, sizeof *run->agreed_ns);
    run->emitted_count = 4 * same_operations(run);
    run->emitted = calloc(run->emitted_count, sizeof *run->emitted);
    run->world = sim_world_create(&options);
    if (!run->rank || !run->agreed || !run->agreed_ns || !run->emitted || !run->world)
        return error_set(error, ZERO_E_MEMORY, "no memory for %" PRIu32 " ranks", run->ranks);
    for (uint32_t k = 0; k < run->ranks; k++) TRY(rank_join(&run->rank[k], run, k, error));
    TRY(make_blueprint(run, error));
    TRY(reserve(run, error));
    for (uint32_t k = 0; k < run->ranks; k++) TRY(rank_open(&run->rank[k], error));
    return ZERO_OK;
}

static zero_status open_run(struct run *run, const struct sim_setup *s, struct zero_error *error) {
    TRY(check_setup(s, error));
    *run = (struct run){.setup = s,
                        .ranks = s->terms.mesh[AXIS_SHARD] * s->terms.mesh[AXIS_REPLICATE],
                        .clock = {.seed = s->seed, .chaos_events = s->chaos_events}};
    run->live = run->ranks;
    error_clear(&run->violation);
    network_open(run);
    TRY(make_pass(run, error));
    run->faults = sim_faults_draw(s->faults, s->seed, run->ranks, s->steps, run->pass.uses);
    zero_status status = declare(run, error);
    return status ? status : open_ranks(run, error);
}

static void close_run(struct run *run) {
    for (uint32_t k = 0; k < run->ranks && run->rank; k++)
        if (run->rank[k].comm) rank_close(&run->rank[k]);
    sim_world_destroy(run->world);
    for (int t = 0; t < TIER_NVME; t++)
        if (run->memory[t]) munmap(run->memory[t], run->blueprint.plan.tier_bytes[t]);
    ledger_plan_free(&run->ledger);
    blueprint_free(&run->blueprint);
    model_free(&run->model);
    clock_close(&run->clock);
    pass_free(&run->pass);
    free(run->rank);
    free(run->agreed);
    free(run->agreed_ns);
    free(run->emitted);
}

/* ---- invariants of the whole run ---- */

/* The shards of every copy of a region must cover it exactly once. */
static void check_shards(struct run *run) {
    uint32_t *owned = calloc(run->ranks, sizeof *owned);
    if (!owned) run_violated(run, 0, ZERO_E_MEMORY, "no memory to check shards");
    for (uint32_t i = 0; i < run->model.regions && owned; i++) {
        struct placement cut = run->blueprint.regions[i].state;
        uint32_t parts = placement_parts(cut, run->blueprint.policy.mesh);
        uint64_t shard = run->blueprint.plan.layout.elements[i];
        memset(owned, 0, run->ranks * sizeof *owned);
        bool exact = run->blueprint.regions[i].frozen || shard * parts == run->model.region[i].padded;
        for (uint32_t k = 0; k < run->ranks; k++) owned[placement_part(cut, run->blueprint.policy.mesh, k)]++;
        for (uint32_t p = 0; p < run->ranks; p++) exact &= owned[p] == (p < parts ? run->ranks / parts : 0);
        if (!exact)
            run_violated(run, 0, ZERO_E_INTERNAL, "the shards of \"%s\" do not partition it",
                         run_unit_name(run, i));
    }
    free(owned);
}

static uint64_t applied_steps(const struct sim_setup *s) {
    uint64_t applied = s->steps;
    for (uint32_t k = 0; k < s->steps; k++) applied -= sim_step_bit(s->skipped, k);
    return applied;
}

/* Every rank must have updated its whole shard exactly once in every step that was not skipped. */
static void check_updates(struct run *run) {
    for (uint32_t k = 0; k < run->ranks; k++)
        for (uint32_t i = 0; i < run->model.regions; i++) {
            uint64_t expected = run->blueprint.regions[i].frozen
                                    ? 0
                                    : run->blueprint.plan.layout.elements[i] * applied_steps(run->setup);
            if (run->rank[k].updated[i] == expected) continue;
            run_violated(run, k, ZERO_E_INTERNAL,
                         "%" PRIu64 " elements of \"%s\" were updated in %" PRIu32 " steps, not %" PRIu64,
                         run->rank[k].updated[i], run_unit_name(run, i), run->setup->steps, expected);
        }
}

/* Reports the oldest call that a rank waits in, or else the reason why it waits. */
static void check_deadlock(struct run *run) {
    for (uint32_t k = 0; k < run->ranks; k++) {
        const struct rank *r = &run->rank[k];
        if (r->ended || r->lost) continue;
        const char *what = sim_wait_name(rank_blame(r));
        for (int s = 0; s < STREAMS; s++) {
            const struct operation *op = stream_in_flight(r->executor, (enum stream)s);
            if (!op) continue;
            run_violated(run, k, ZERO_E_PEER,
                         "nothing can go on: in step %" PRIu32
                         " %s of \"%s\" is never done, and this rank waits for %s",
                         r->loop.step + 1, operation_kind_name((enum operation_kind)op->kind),
                         op->kind == OP_AGREE ? "the step" : run_unit_name(run, op->region), what);
        }
        run_violated(run, k, ZERO_E_PEER, "nothing can go on: in step %" PRIu32 " this rank waits for %s",
                     r->loop.step + 1, what);
    }
}

/* A rank that waits for no one receives no failure message and first finishes its own work of one step. This is the
 * longest time of that work. */
static uint64_t grace_ns(const struct run *run) {
    enum { SLOWEST = 5, MOMENT_NS = 1000000 };
    const struct sim_setup *s = run->setup;
    const struct chunk_layout *layout = &run->blueprint.plan.layout;
    uint64_t compute = 0,
             drive = plan_read_bytes(&run->blueprint.plan) + plan_write_bytes(&run->blueprint.plan),
             least = s->speeds.drive_read_bytes_per_s;
    if (s->speeds.drive_write_bytes_per_s < least) least = s->speeds.drive_write_bytes_per_s;
    if (s->speeds.drive_mixed_bytes_per_s < least) least = s->speeds.drive_mixed_bytes_per_s;
    for (uint32_t i = 0; i < run->pass.uses; i++)
        compute += 2 * run->pass.use[i].compute_ns; /* twice, because of an evaluation */
    uint64_t ns = SLOWEST * s->terms.micro_steps * compute + MOMENT_NS;
    if (drive) ns += SLOWEST * speeds_ns(drive, least) + 4 * layout->chunks * s->speeds.drive_latency_ns;
    return ns + s->chaos_ns * same_operations(run);
}

static bool names_rank(const char *message, uint32_t rank) {
    char name[32];
    int length = snprintf(name, sizeof name, "rank %" PRIu32, rank);
    for (const char *at = strstr(message, name); at; at = strstr(at + 1, name))
        if (at[length] < '0' || at[length] > '9') return true;
    return false;
}

static bool names_cause(const struct run *run, const char *message) {
    for (uint32_t f = 0; f < SIM_FAULT_KINDS; f++)
        if (run->faulted >> f & 1 && names_rank(message, run->faults.rank[f])) return true;
    return false;
}

/* After a fault that ends ranks, every live rank must have ended in time: with its work done, or with an error that
 * names the cause. */
static void check_ending(struct run *run) {
    uint64_t timeouts = run->faulted >> SIM_STUCK & 1                    ? SIM_STUCK_TIMEOUTS
                        : run->faulted & (1 << SIM_LOST | 1 << SIM_NODE) ? 1
                                                                         : 0;
    uint64_t deadline = run->fault_ns + timeouts * run->setup->timeout_ns + grace_ns(run);
    for (uint32_t k = 0; k < run->ranks && run->faulted; k++) {
        const struct rank *r = &run->rank[k];
        if (r->lost) continue;
        if (r->error.code && !names_cause(run, r->error.message))
            run_violated(run, k, r->error.code, "the rank's error does not name the cause: %s",
                         r->error.message);
        else if (r->ended_ns > deadline)
            run_violated(run, k, ZERO_E_PEER,
                         "the rank ended %" PRIu64 " ms after the fault, past the deadline",
                         (r->ended_ns - run->fault_ns) / 1000000);
    }
}

/* ---- the loop ---- */

/* Any live rank detects a silent rank. Only a rank that waits for a stuck rank detects that. */
static bool finds(struct run *run, const struct rank *r, const struct clock_event *event) {
    double timeout_s = (double)run->setup->timeout_ns * 1e-9;
    if (r->lost || r->ended) return false;
    if (event->kind == EVENT_STUCK)
        return sim_raise_stuck(r->comm, event->rank, SIM_STUCK_TIMEOUTS * timeout_s);
    sim_raise_silent(r->comm, event->rank, timeout_s);
    return true;
}

static void deadline(struct run *run, const struct clock_event *event) {
    uint32_t finder = 0;
    while (finder < run->ranks && !finds(run, &run->rank[finder], event)) finder++;
    for (uint32_t k = 0; k < run->ranks; k++) clock_add(&run->clock, run->clock.now_ns, EVENT_WAKE, k);
}

static void loop(struct run *run) {
    struct clock_event event;
    for (uint32_t k = 0; k < run->ranks; k++) clock_add(&run->clock, 0, EVENT_WAKE, k);
    while (run->live && !run->violation.code && clock_take(&run->clock, &event)) {
        struct rank *r = &run->rank[event.rank];
        if (event.kind == EVENT_DEADLINE || event.kind == EVENT_STUCK) {
            deadline(run, &event);
            continue;
        }
        if (event.kind == EVENT_HOST) r->busy = false;
        rank_go(r);
    }
    if (run->clock.failed) run_violated(run, 0, ZERO_E_MEMORY, "no memory for what is to happen");
    if (!run->violation.code && run->live) check_deadlock(run);
    if (!run->violation.code) check_ending(run);
    if (!run->violation.code && !run->faulted) check_updates(run);
    if (!run->violation.code && !run->faulted && run->setup->host) data_collect(run);
}

/* ---- results ---- */

static int ascending(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* Measures a run that reached its end. */
static void measure_steps(struct run *run, struct sim_result *out) {
    uint64_t *at = run->agreed_ns;
    uint32_t steps = run->setup->steps;
    out->step_ns = steps == 1 ? run->clock.now_ns : 0;
    for (uint32_t i = steps - 1; i > 0; i--) at[i] -= at[i - 1];
    if (steps == 1) return;
    qsort(at + 1, steps - 1, sizeof *at, ascending);
    out->step_ns = at[1 + (steps - 1) / 2 - (steps % 2 == 1 && steps > 2)];
}

static void measure_ranks(const struct run *run, struct sim_result *out) {
    uint64_t shares = (uint64_t)run->ranks * run->setup->steps;
    for (uint32_t k = 0; k < run->ranks; k++) {
        const struct rank *r = &run->rank[k];
        uint64_t waits = 0;
        for (int w = 0; w < WAITS; w++) out->wait_ns[w] += r->wait_ns[w], waits += r->wait_ns[w];
        if (waits / run->setup->steps > out->most_wait_ns) out->most_wait_ns = waits / run->setup->steps;
        out->compute_ns += r->compute_ns;
        struct comm_counters counters;
        comm_counters_read(r->comm, &counters);
        out->wire_bytes += counters.bytes;
        if (r->drive)
            out->drive_read_bytes += r->drive->read_bytes, out->drive_write_bytes += r->drive->written_bytes;
    }
    for (int w = 0; w < WAITS; w++) out->wait_ns[w] /= shares;
    out->compute_ns /= shares;
    out->wire_bytes /= shares;
    out->drive_read_bytes /= shares, out->drive_write_bytes /= shares;
}

static void measure_ending(const struct run *run, struct sim_result *out) {
    out->faulted = run->faulted;
    out->fault_ns = run->fault_ns;
    for (uint32_t k = 0; k < run->ranks; k++) {
        const struct rank *r = &run->rank[k];
        if (!r->error.code) continue;
        out->ended++;
        if (r->ended_ns > out->ended_ns) out->ended_ns = r->ended_ns;
        if (!*out->ending || r->error.code != ZERO_E_PEER)
            memcpy(out->ending, r->error.message, sizeof out->ending);
    }
}

static void measure(struct run *run, struct sim_result *out) {
    *out = (struct sim_result){.status = run->violation.code,
                               .error = run->violation,
                               .events = run->clock.events,
                               .end_ns = run->clock.now_ns,
                               .schedule = run->schedule,
                               .operations = executor_trace(run->rank[0].executor),
                               .faults = run->faults};
    for (int t = 0; t < TIERS; t++) out->planned_bytes[t] = run->blueprint.plan.tier_bytes[t];
    measure_steps(run, out);
    measure_ranks(run, out);
    measure_ending(run, out);
}

zero_status sim_run(const struct sim_setup *setup, struct sim_result *out, struct zero_error *error) {
    struct run *run = calloc(1, sizeof *run);
    if (!run) return error_set(error, ZERO_E_MEMORY, "no memory for a simulation");
    zero_status status = open_run(run, setup, error);
    if (!status) {
        check_shards(run);
        loop(run);
        measure(run, out);
        out->untraced = sim_trace_write(run);
    }
    close_run(run);
    free(run);
    return status;
}
