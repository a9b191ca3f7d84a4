#include "engine/executor/host_moves.h"

#include <math.h>

#include "engine/executor/executor_internal.h"

double host_norm_squared(const struct policy *p, uint32_t data_rank, const struct agreement *all,
                         const uint32_t *at, uint32_t model_ranks) {
    bool both = p->stage->grad_step.axis[AXIS_REPLICATE] == SHARD;
    uint32_t shards = p->mesh[AXIS_SHARD], ranks = shards * p->mesh[AXIS_REPLICATE];
    double sum = 0;
    for (uint32_t i = 0; i < model_ranks * ranks; i++)
        if (both || i % ranks / shards == data_rank / shards) sum += all[at ? at[i] : i].norm_squared;
    return sum;
}

struct host_decision host_decide(const struct policy *p, double norm_squared, double mean, double clip) {
    double norm = sqrt(norm_squared) * mean, factor = clip / (norm + 1e-6);
    float scale = (float)(clip > 0 && factor < 1 ? mean * factor : mean);
    enum outcome outcome = !isfinite(norm)                      ? OUTCOME_SKIPPED
                           : p->repeats && scale != (float)mean ? OUTCOME_REPEATED
                                                                : OUTCOME_UPDATED;
    return (struct host_decision){norm, scale, outcome};
}

static bool has_room(const struct host_moves *m) { return executor_has_room(m->executor); }
static bool is_computing(const struct host_moves *m) { return executor_computing(m->executor); }
static bool is_stored(const struct host_moves *m) {
    return has_room(m) && (!m->commits || executor_stored(m->executor));
}
static bool may_begin(const struct host_moves *m) {
    return host_move_commits(m, MOVE_BEGIN) ? is_stored(m) : has_room(m);
}
static bool is_agreed(const struct host_moves *m) { return executor_reached(m->executor, m->agreed); }
static bool is_settled(const struct host_moves *m) { return !m->settles || executor_idle(m->executor); }

/* The backward of the pass updates. */
static bool updates(const struct host_moves *m) {
    return m->pass.last && !m->pass.evaluating && m->executor->o.shape.policy->update_in_backward;
}

bool host_move_commits(const struct host_moves *m, enum host_move move) {
    bool first = move == MOVE_BEGIN && updates(m) && m->use.position >= m->executor->o.shape.policy->uses;
    return m->commits && (first || move == MOVE_AGREED);
}

static zero_status pass(struct host_moves *m) {
    switch (m->pass.event) {
    case PASS_BEGINS:
        if (updates(m)) executor_settle(m->executor, &m->update);
        return executor_pass(m->executor, m->pass.evaluating, m->pass.last);
    case PASS_RESUMES:
        return executor_resume_pass(m->executor, m->pass.last);
    case PASS_CANCELLED:
    case PASS_STEP_CANCELLED:
        return executor_cancel(m->executor, m->pass.event == PASS_STEP_CANCELLED);
    }
    return ZERO_E_INTERNAL;
}

static zero_status begin(struct host_moves *m) {
    if (m->use.aside) return executor_go_on(m->executor, m->use.position);
    return m->use.recomputes ? executor_recompute(m->executor, m->use.unit, m->use.position)
                             : executor_begin(m->executor, m->use.position);
}

static zero_status end(struct host_moves *m) {
    if (m->use.aside) return executor_step_aside(m->executor);
    return m->use.recomputes ? executor_recomputed(m->executor, m->use.unit) : executor_end(m->executor);
}

static zero_status agree(struct host_moves *m) { return executor_agree(m->executor, m->mine, &m->agreed); }

static zero_status apply(struct host_moves *m) {
    m->commits |= m->executor->o.plan->shadow && m->outcome != OUTCOME_SKIPPED;
    return executor_apply(m->executor, m->outcome, &m->update);
}

static const struct {
    bool (*ready)(const struct host_moves *);
    zero_status (*event)(struct host_moves *); /* or NULL */
} rows[] = {
    [MOVE_PASS] = {has_room, pass},        [MOVE_BEGIN] = {may_begin, begin},
    [MOVE_COMPUTE] = {is_computing, NULL}, [MOVE_END] = {has_room, end},
    [MOVE_AGREE] = {is_stored, agree},     [MOVE_AGREED] = {is_agreed, NULL},
    [MOVE_APPLY] = {has_room, apply},      [MOVE_SETTLE] = {is_settled, NULL},
};

bool host_move_ready(const struct host_moves *m, enum host_move move) { return rows[move].ready(m); }

zero_status host_move_event(struct host_moves *m, enum host_move move) {
    return rows[move].event ? rows[move].event(m) : ZERO_OK;
}

zero_status host_make_moves(const struct host_calls *host, struct host_moves *moves, enum host_move first,
                            enum host_move last) {
    zero_status status = ZERO_OK;
    for (enum host_move move = first; move <= last && !status; move++) {
        status = host->wait(host->user, moves, move);
        if (!status && host->work) status = host->work(host->user, moves, move);
        if (!status) status = host->event(host->user, moves, move);
    }
    return status;
}
