/* The host of a virtual rank: the training loop of tools/plan/loop.h. It makes one move at a time, as soon as the executor
 * allows it. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "engine/executor/stream/decision.h"
#include "tools/sim/run.h"

/* A unit uses the same regions in the forward and in the backward. */
static const struct use *current_use(const struct rank *r) {
    return &r->policy.forward[loop_use(&r->loop)->unit];
}

/* ---- the host is busy ---- */

static void be_busy(struct rank *r, uint64_t ns) {
    r->busy = true;
    clock_add(&r->run->clock, r->run->clock.now_ns + ns, EVENT_HOST, r->index);
}

static uint64_t compute_ns(const struct rank *r) {
    const struct run *run = r->run;
    if (run->setup->chaos_ns) return run_chaos_ns(run, RANDOM_HOST, r->index, r->turns);
    uint64_t ns = loop_use(&r->loop)->compute_ns;
    bool late = sim_fault_on(&run->faults, SIM_STRAGGLER) && r->index == run->faults.rank[SIM_STRAGGLER];
    return late ? ns * run->faults.straggler_percent / 100 : ns;
}

/* With random times the host pauses between any two actions. */
static bool dawdles(struct rank *r) {
    const struct run *run = r->run;
    uint64_t turn = r->turns++;
    if (!run->setup->chaos_ns || !clock_chaotic(&run->clock) || turn % 2) return false;
    be_busy(r, run_chaos_ns(run, RANDOM_HOST, r->index, turn));
    return true;
}

/* ---- faults ---- */

/* The rank is lost or stuck: its host and its executor stop. */
static void stop(struct rank *r) {
    if (r->lost || r->ended) return;
    r->lost = true;
    r->run->live--;
}

static void stop_node(struct rank *r) {
    struct run *run = r->run;
    uint32_t each = run->setup->speeds.node_ranks ? run->setup->speeds.node_ranks : 1,
             first = r->index / each * each;
    for (uint32_t k = first; k < first + each && k < run->ranks; k++) stop(&run->rank[k]);
}

static bool gets_lost(struct rank *r) {
    static const struct {
        enum sim_fault fault;
        void (*stop)(struct rank *r);
        enum clock_event_kind found;
        uint64_t timeouts;
    } rows[] = {{SIM_LOST, stop, EVENT_DEADLINE, 1},
                {SIM_NODE, stop_node, EVENT_DEADLINE, 1},
                {SIM_STUCK, stop, EVENT_STUCK, SIM_STUCK_TIMEOUTS}};
    struct run *run = r->run;
    const struct sim_faults *f = &run->faults;
    for (size_t i = 0; i < sizeof rows / sizeof *rows && !r->lost; i++) {
        enum sim_fault fault = rows[i].fault;
        bool here =
            r->index == f->rank[fault] && r->loop.step == f->step[fault] && r->loop.use >= f->use[fault];
        if (!here || !sim_fault_on(f, fault)) continue;
        rows[i].stop(r);
        run->faulted |= 1u << fault;
        run->fault_ns = run->clock.now_ns;
        clock_add(&run->clock, run->clock.now_ns + rows[i].timeouts * run->setup->timeout_ns, rows[i].found,
                  r->index);
    }
    return r->lost;
}

/* ---- the host's work in each move; true: the event follows at once, false: the host is busy or lost ---- */

static double mean_of(const struct rank *r) {
    return 1.0 / ((double)r->run->ranks * r->run->setup->terms.micro_steps);
}

/* The settings of the updates of the present step. Without data no code uses them. */
static void set_update(struct rank *r, double scale) {
    const struct sim_setup *s = r->run->setup;
    for (int g = 0; g < 4; g++) {
        bool other = s->other && g > 1;
        optimizer_prepare(other ? s->other : s->optimizer, &(other ? s->other_params : s->params)[g % 2],
                          r->applied + 1, &r->scalars[g]);
    }
    float share = s->terms.precision.average ? 0.5f : 0;
    r->loop.event.update = &r->update;
    r->update = (struct update_settings){(float)scale, r->scalars, 4, r->applied + 1, share};
}

/* Without data there are no norms: the setup says which steps are clipped. */
static struct host_decision decide(const struct rank *r) {
    const struct sim_setup *s = r->run->setup;
    const struct agreement *all = executor_agreements(r->executor);
    double squared = s->host ? host_norm_squared(&r->policy, r->index, all, NULL, 1) : 0;
    struct host_decision d = host_decide(&r->policy, squared, mean_of(r), s->clip);
    if (!s->host && r->policy.repeats && sim_step_bit(s->repeated, r->loop.step))
        d.outcome = OUTCOME_REPEATED;
    if (sim_step_bit(s->skipped, r->loop.step)) d.outcome = OUTCOME_SKIPPED;
    return d;
}

static bool work_pass(struct rank *r) {
    if (r->policy.update_in_backward) set_update(r, mean_of(r));
    return !dawdles(r);
}

/* Commits as shadow_commit does, and waits for the page. The ranks' exchange before it takes no time. */
static bool commits(struct rank *r) {
    static const uint8_t page[CHUNK_ALIGN_BYTES];
    const struct run *run = r->run;
    if (!loop_commits(&r->loop, r->executor)) return false;
    drive_set_immediate(r->drive, true);
    executor_complete_epoch(r->executor);
    executor_commit(r->executor, page);
    drive_set_immediate(r->drive, false);
    uint64_t ns = speeds_ns(CHUNK_ALIGN_BYTES, run->setup->speeds.drive_write_bytes_per_s) +
                  run->setup->speeds.drive_latency_ns;
    be_busy(r, run->setup->chaos_ns ? run_chaos_ns(run, RANDOM_HOST, r->index, r->turns) : ns);
    return true;
}

static bool work_begin(struct rank *r) {
    const struct sim_setup *s = r->run->setup;
    const struct loop *l = &r->loop;
    if (commits(r)) return false;
    if (dawdles(r) || gets_lost(r)) return false;
    if (s->host && !l->evaluating) s->host->micro(s->host->user, r->index, l->step, l->micro + l->within);
    for (uint8_t i = 0; i < current_use(r)->count; i++) {
        const struct region *region = &r->region[current_use(r)->region[i]];
        r->fresh[i] = rank_backward(r) && !region->frozen && !region->partial;
    }
    return true;
}

/* The unit's parameters must stay in memory while the host computes with them. */
static bool has_parameters(const struct rank *r) {
    for (uint8_t i = 0; i < current_use(r)->count; i++) {
        struct buffer_ref ref = {BUFFER_PARAM_FULL, current_use(r)->region[i]};
        if (executor_address(r->executor, ref)) continue;
        run_violated(r->run, r->index, ZERO_E_INTERNAL,
                     "%s of \"%s\" computes, and the parameters of \"%s\" were released",
                     rank_backward(r) ? "the backward" : "the forward",
                     r->run->setup->model->unit[loop_use(&r->loop)->unit].name,
                     run_unit_name(r->run, ref.region));
        return false;
    }
    return true;
}

static bool work_compute(struct rank *r) {
    if (!has_parameters(r)) return false;
    if (r->run->setup->host) data_begin(r);
    uint64_t ns = compute_ns(r);
    r->compute_ns += ns;
    be_busy(r, ns);
    return true;
}

static bool work_end(struct rank *r) {
    if (!has_parameters(r)) return false;
    if (r->run->setup->host) data_compute(r);
    return true;
}

static bool work_agree(struct rank *r) {
    static const struct agreement nothing;
    r->loop.event.mine = &nothing;
    return !dawdles(r);
}

static bool work_agreed(struct rank *r) {
    commits(r);
    return true;
}

static bool work_apply(struct rank *r) {
    same_agreement(r);
    struct host_decision decision = decide(r);
    if (!isfinite(decision.norm)) {
        run_violated(r->run, r->index, ZERO_E_INTERNAL, "the norm of the gradients is inf or NaN");
        return false;
    }
    set_update(r, decision.scale);
    r->loop.event.outcome = decision.outcome;
    r->applied += decision.outcome != OUTCOME_SKIPPED;
    return true;
}

static bool (*const work[])(struct rank *) = {
    [MOVE_PASS] = work_pass,   [MOVE_BEGIN] = work_begin, [MOVE_COMPUTE] = work_compute,
    [MOVE_END] = work_end,     [MOVE_AGREE] = work_agree, [MOVE_AGREED] = work_agreed,
    [MOVE_APPLY] = work_apply, [MOVE_SETTLE] = NULL,
};

/* ---- moves ---- */

/* Makes the next move, if it is ready. */
static bool move(struct rank *r) {
    loop_prepare(&r->loop);
    if (!loop_ready(&r->loop, r->executor)) return false;
    if (work[r->loop.next] && !work[r->loop.next](r)) return false;
    loop_emit(&r->loop, r->executor); /* the next poll reports a failure */
    loop_advance(&r->loop);
    return !r->busy;
}

/* Writes the weights at rest and refreshes them, as zero_engine_fill does. */
static void fill(struct rank *r) {
    drive_set_immediate(r->drive, true);
    data_fill(r);
    executor_emit(r->executor, &(struct event){.kind = EVENT_WRITTEN});
    executor_emit(r->executor, &(struct event){.kind = EVENT_FLUSH});
    drive_set_immediate(r->drive, false);
    executor_set_commits(r->executor, r->policy.update_in_backward && r->run->setup->terms.shadow);
    r->phase = RANK_TRAINS;
}

static void flush(struct rank *r) {
    executor_emit(r->executor, &(struct event){.kind = EVENT_FLUSH});
    r->phase = RANK_FLUSHED;
}

/* Does one thing that the host can do now, if there is one. */
static bool advance(struct rank *r) {
    if (r->phase == RANK_FLUSHED) return false;
    bool ended = loop_ended(&r->loop, r->run->setup->steps);
    if (r->phase == RANK_TRAINS && !ended) return move(r);
    if (!executor_has_room(r->executor)) return false;
    if (r->phase == RANK_FILLS)
        fill(r);
    else
        flush(r);
    return true;
}

/* ---- running and ending ---- */

static void end_rank(struct rank *r) {
    r->ended = true;
    r->ended_ns = r->run->clock.now_ns;
    r->run->live--;
}

/* Reports a failure as ranks_fail does: the rank tells the others of its failure, unless another rank caused it. The
 * others find it when they look next. */
static void fail(struct rank *r) {
    struct run *run = r->run;
    r->error = *executor_error(r->executor);
    end_rank(r);
    if (r->error.code != ZERO_E_PEER) comm_fail(r->comm, &r->error);
    for (uint32_t k = 0; k < run->ranks && !run->failing; k++)
        clock_add(&run->clock, run->clock.now_ns, EVENT_WAKE, k);
    run->failing = true;
    bool broke = r->error.code == ZERO_E_INTERNAL || r->error.code == ZERO_E_DIVERGED;
    char name[32];
    /* run_violated adds the name itself */
    size_t length = (size_t)snprintf(name, sizeof name, "rank %" PRIu32 ": ", r->index);
    const char *said = r->error.message;
    if (strncmp(said, name, length) == 0) said += length;
    if (broke || !(run->faults.mask & SIM_FAULTS_END)) run_violated(run, r->index, r->error.code, "%s", said);
}

static void stop_waiting(struct rank *r) {
    if (r->waiting) r->wait_ns[r->wait] += r->run->clock.now_ns - r->waits_since;
    r->waiting = false;
}

static void start_waiting(struct rank *r) {
    if (r->busy || r->ended || r->lost || r->phase == RANK_FLUSHED) return;
    r->waiting = true;
    r->wait = rank_blame(r);
    r->waits_since = r->run->clock.now_ns;
}

void rank_go(struct rank *r) {
    const struct sim_sabotage *sabotage = r->run->setup->sabotage;
    bool moved = true;
    if (r->ended || r->lost) return;
    stop_waiting(r);
    while (moved && !r->lost && !r->run->violation.code) {
        if (executor_poll(r->executor, &moved)) {
            fail(r);
            return;
        }
        if (!r->busy && !r->run->violation.code) moved |= advance(r);
        if (sabotage && sabotage->polled) sabotage->polled(sabotage->user, r->index, r->executor);
    }
    if (r->phase == RANK_FLUSHED && executor_idle(r->executor) && !r->ended) end_rank(r);
    start_waiting(r);
}
