/* The host of a virtual rank: the training loop of engine/train.c and engine/step.c. It does one thing at a time, as
 * soon as the executor allows it. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "tools/sim/run.h"

const struct pass_use *rank_use(const struct rank *r) { return &r->run->pass.use[r->use]; }

bool rank_backward(const struct rank *r) {
    return !rank_use(r)->again && policy_backward(&r->policy, rank_use(r)->position);
}

/* A unit uses the same regions in the forward and in the backward. */
static const struct use *current_use(const struct rank *r) { return &r->policy.forward[rank_use(r)->unit]; }

static bool skips(const struct rank *r) {
    return !r->evaluating && r->micro == 0 && (int32_t)rank_use(r)->unit == r->run->setup->skip_unit;
}

/* ---- the host is busy ---- */

static void be_busy(struct rank *r, uint64_t ns) {
    r->busy = true;
    clock_add(&r->run->clock, r->run->clock.now_ns + ns, EVENT_HOST, r->index);
}

static uint64_t compute_ns(const struct rank *r) {
    const struct run *run = r->run;
    if (run->setup->chaos_ns) return run_chaos_ns(run, RANDOM_HOST, r->index, r->turns);
    uint64_t ns = rank_use(r)->compute_ns;
    bool late = sim_fault_on(&run->faults, SIM_STRAGGLER) && r->index == run->faults.straggler;
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

/* ---- passes and uses ---- */

/* Training passes and, if the setup asks for it, an evaluation after each pass and after each step. */
static void end_pass(struct rank *r) {
    const struct sim_setup *s = r->run->setup;
    bool evaluated = r->evaluating;
    r->micro += !evaluated;
    r->evaluating = s->evaluate && !evaluated;
    if (r->evaluating)
        r->next = NEXT_PASS;
    else if (r->step == s->steps)
        r->next = NEXT_FLUSH;
    else
        r->next = r->micro < s->micro_steps ? NEXT_PASS : NEXT_AGREE;
}

/* An evaluation has only the forwards, which come first. */
static uint32_t uses_of_pass(const struct rank *r) {
    return r->evaluating ? r->policy.uses : r->run->pass.uses;
}

/* Goes to the first use, from `use` on, that is not skipped. */
static void go_to(struct rank *r, uint32_t use) {
    r->use = use;
    while (r->use < uses_of_pass(r) && skips(r)) r->use++;
    r->next = NEXT_BEGIN;
    if (r->use == uses_of_pass(r)) end_pass(r);
}

static void begin_pass(struct rank *r) {
    const struct sim_setup *s = r->run->setup;
    if (s->host && !r->evaluating) s->host->pass(s->host->user, r->index, r->step, r->micro);
    executor_pass(r->executor, r->evaluating, r->micro + !r->evaluating == s->micro_steps);
    go_to(r, 0);
}

/* The rank is lost or stuck: its host and its executor stop. */
static bool stop(struct rank *r, enum sim_fault fault, enum event_kind found, uint64_t after_ns) {
    struct run *run = r->run;
    r->lost = true;
    run->live--;
    run->faulted[fault] = true;
    run->fault_ns = run->clock.now_ns;
    clock_add(&run->clock, run->clock.now_ns + after_ns, found, r->index);
    return true;
}

static bool gets_lost(struct rank *r) {
    const struct sim_faults *f = &r->run->faults;
    uint64_t timeout_ns = r->run->setup->timeout_ns;
    bool lost = r->index == f->lost && r->step == f->lost_step && r->use >= f->lost_use;
    bool stuck = r->index == f->stuck && r->step == f->stuck_step && r->use >= f->stuck_use;
    if (sim_fault_on(f, SIM_LOST) && lost) return stop(r, SIM_LOST, EVENT_DEADLINE, timeout_ns);
    return sim_fault_on(f, SIM_STUCK) && stuck &&
           stop(r, SIM_STUCK, EVENT_STUCK, SIM_STUCK_TIMEOUTS * timeout_ns);
}

static void begin_use(struct rank *r) {
    for (uint8_t i = 0; i < current_use(r)->count; i++) {
        const struct region *region = &r->region[current_use(r)->region[i]];
        r->fresh[i] = rank_backward(r) && !region->frozen && !region->partial;
    }
    const struct pass_use *use = rank_use(r);
    if (use->again)
        executor_recompute(r->executor, use->unit, use->position);
    else
        executor_begin(r->executor, use->position);
    r->next = NEXT_COMPUTE;
}

/* The unit's parameters must stay in memory while the host computes with them. */
static bool has_parameters(const struct rank *r) {
    for (uint8_t i = 0; i < current_use(r)->count; i++) {
        struct buffer_ref ref = {BUFFER_PARAM_FULL, current_use(r)->region[i]};
        if (executor_address(r->executor, ref)) continue;
        run_violated(r->run, r->index, ZERO_E_INTERNAL,
                     "%s of \"%s\" computes, and the parameters of \"%s\" were released",
                     rank_backward(r) ? "the backward" : "the forward",
                     r->run->setup->model->unit[rank_use(r)->unit].name, run_unit_name(r->run, ref.region));
        return false;
    }
    return true;
}

static void start_compute(struct rank *r) {
    r->next = NEXT_END;
    if (!has_parameters(r)) return;
    if (r->run->setup->host) data_begin(r);
    uint64_t ns = compute_ns(r);
    r->compute_ns += ns;
    be_busy(r, ns);
}

static void end_use(struct rank *r) {
    if (!has_parameters(r)) return;
    if (r->run->setup->host) data_compute(r);
    if (rank_use(r)->again)
        executor_recomputed(r->executor, rank_use(r)->unit);
    else
        executor_end(r->executor);
    go_to(r, r->use + 1);
}

/* ---- the step ---- */

/* Computes the scale from the gradients' norm as engine/step.c does. Without data no code uses it. */
static double gradient_scale(const struct rank *r) {
    const struct sim_setup *s = r->run->setup;
    double sum = 0, mean = 1.0 / ((double)r->run->ranks * s->micro_steps);
    const struct agreement *all = executor_agreements(r->executor);
    bool both = r->policy.stage->grad_step.axis[AXIS_REPLICATE] == SHARD;
    uint32_t row = r->index / r->policy.mesh[AXIS_SHARD];
    for (uint32_t k = 0; k < r->run->ranks && s->host; k++)
        if (both || k / r->policy.mesh[AXIS_SHARD] == row) sum += all[k].norm_squared;
    double norm = sqrt(sum) * mean;
    bool clips = s->clip > 0 && s->clip / (norm + 1e-6) < 1;
    return clips ? mean * (s->clip / (norm + 1e-6)) : mean;
}

static bool commits(const struct rank *r) { return r->run->setup->shadow && r->uncommitted; }

/* Commits as shadow_commit does, and waits for the page. */
static void commit(struct rank *r) {
    static const uint8_t page[CHUNK_ALIGN_BYTES];
    const struct run *run = r->run;
    drive_set_immediate(r->drive, true);
    executor_commit(r->executor, page);
    drive_set_immediate(r->drive, false);
    r->uncommitted = false;
    uint64_t ns = speeds_ns(CHUNK_ALIGN_BYTES, run->setup->speeds.drive_write_bytes_per_s) +
                  run->setup->speeds.drive_latency_ns;
    be_busy(r, run->setup->chaos_ns ? run_chaos_ns(run, RANDOM_HOST, r->index, r->turns) : ns);
}

static void apply(struct rank *r) {
    const struct sim_setup *s = r->run->setup;
    struct optimizer_scalars scalars[2];
    same_agreement(r);
    r->applied++;
    for (int g = 0; g < 2; g++) optimizer_prepare(s->optimizer, &s->params[g], r->applied, &scalars[g]);
    executor_apply(r->executor, false, (float)gradient_scale(r), scalars, 2, r->applied);
    r->micro = 0;
    r->step++;
    r->uncommitted = true;
    r->evaluating = s->evaluate;
    r->next = NEXT_SETTLE;
}

/* Writes the weights at rest and refreshes them, as zero_engine_fill does. */
static void fill(struct rank *r) {
    drive_set_immediate(r->drive, true);
    data_fill(r);
    executor_written(r->executor);
    executor_flush(r->executor);
    drive_set_immediate(r->drive, false);
    r->next = NEXT_PASS;
}

/* Does one thing that the host can do now, if there is one. */
static bool advance(struct rank *r) {
    struct executor *e = r->executor;
    if (!executor_has_room(e)) return false;
    switch (r->next) {
    case NEXT_FILL:
        fill(r);
        return true;
    case NEXT_PASS:
        if (dawdles(r)) return false;
        begin_pass(r);
        return true;
    case NEXT_BEGIN:
        if (dawdles(r) || gets_lost(r)) return false;
        begin_use(r);
        return true;
    case NEXT_COMPUTE:
        if (!executor_computing(e)) return false;
        start_compute(r);
        return false;
    case NEXT_END:
        end_use(r);
        return true;
    case NEXT_AGREE:
        if (commits(r) && !executor_stored(e)) return false;
        if (dawdles(r)) return false;
        executor_agree(e, &(struct agreement){0}, &r->agreed);
        r->next = NEXT_APPLY;
        return true;
    case NEXT_APPLY:
        if (!executor_reached(e, r->agreed)) return false;
        if (commits(r)) {
            commit(r);
            return false;
        }
        apply(r);
        return true;
    case NEXT_SETTLE:
        if (plan_settles(&r->run->plan) && !executor_idle(e)) return false;
        r->next = r->step < r->run->setup->steps || r->evaluating ? NEXT_PASS : NEXT_FLUSH;
        return true;
    case NEXT_FLUSH:
        executor_flush(e);
        r->next = NEXT_DONE;
        return true;
    case NEXT_DONE:
        return false;
    }
    return false;
}

/* ---- running and ending ---- */

static void end_rank(struct rank *r) {
    r->ended = true;
    r->ended_ns = r->run->clock.now_ns;
    r->run->live--;
}

/* Reports a failure as engine_fail does: the rank tells the others of its failure, unless another rank caused it. The
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
    if (broke || !sim_faults_end(&run->faults)) run_violated(run, r->index, r->error.code, "%s", said);
}

static void stop_waiting(struct rank *r) {
    if (r->waiting) r->wait_ns[r->wait] += r->run->clock.now_ns - r->waits_since;
    r->waiting = false;
}

static void start_waiting(struct rank *r) {
    if (r->busy || r->ended || r->lost || r->next == NEXT_DONE) return;
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
    if (r->next == NEXT_DONE && executor_idle(r->executor) && !r->ended) end_rank(r);
    start_waiting(r);
}
