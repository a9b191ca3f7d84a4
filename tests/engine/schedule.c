#include "tests/engine/schedule.h"

#include <inttypes.h>
#include <string.h>

/* The features of a seed's trainings. Half of the seeds lack each feature, so that a failure involves few features. */
struct features {
    bool ties, unit_skips, backward_skips, evaluation, calls, nan;
};

static uint32_t pick(uint64_t *state, uint32_t n) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((*state >> 33) % n);
}

/* ---- the model ---- */

static int32_t root(const struct schedule *s, int32_t param) {
    while (s->param[param].tied_to >= 0) param = s->param[param].tied_to;
    return param;
}

/* To a parameter of an earlier unit; two of one unit cannot be the same. */
static bool may_tie(const struct schedule *s, int32_t param, int32_t to) {
    uint32_t unit = s->param[param].unit;
    if (s->param[to].unit == unit) return false;
    for (int32_t i = 0; i < param; i++)
        if (s->param[i].unit == unit && root(s, i) == root(s, to)) return false;
    return true;
}

static void add_param(struct schedule *s, uint64_t *state, uint32_t unit, bool ties) {
    int32_t index = (int32_t)s->params++, to = (int32_t)pick(state, s->params);
    struct schedule_param *p = &s->param[index];
    uint32_t most = pick(state, 5) ? SCHEDULE_COUNT_SMALL : SCHEDULE_COUNT_MAX;
    *p = (struct schedule_param){.unit = unit, .count = 1 + pick(state, most), .tied_to = -1};
    if (pick(state, 3) == 0) p->flags = ZERO_NO_DECAY;
    if (pick(state, 5) == 0) p->flags = ZERO_FROZEN;
    if (pick(state, 3) == 0 && ties && may_tie(s, index, to))
        p->tied_to = to, p->count = s->param[to].count, p->flags = 0;
}

static void make_model(struct schedule *s, uint64_t *state, bool ties) {
    s->units = 2 + pick(state, SCHEDULE_UNITS_MAX - 1);
    for (uint32_t u = 0; u < s->units; u++)
        for (uint32_t n = 1 + pick(state, 3); n > 0; n--) add_param(s, state, u, ties);
}

/* Half of the parameters stay fp32. */
static void make_narrow(struct schedule *s, uint64_t *state) {
    s->narrow = true;
    for (uint32_t i = 0; i < s->params; i++)
        if (pick(state, 2) && s->param[i].tied_to < 0) s->param[i].flags |= ZERO_KEEP_FP32;
}

/* ---- the uses ---- */

/* A quarter of the units is left out. */
static uint32_t leave_out(uint64_t *state, uint32_t units) {
    uint32_t out = 0;
    for (uint32_t u = 0; u < units; u++) out |= (uint32_t)(pick(state, 4) == 0) << u;
    return out;
}

static void add_pass(const struct schedule *s, struct schedule_step *step, uint64_t *state, zero_mode mode,
                     const struct features *has) {
    struct schedule_pass *pass = &step->pass[step->passes++];
    uint32_t all = (1u << s->units) - 1;
    *pass = (struct schedule_pass){.mode = mode, .forward = all};
    if (has->unit_skips) pass->forward &= ~leave_out(state, s->units);
    if (mode == ZERO_TRAIN) pass->backward = pass->forward;
    if (has->backward_skips) pass->backward &= ~leave_out(state, s->units);
    if (mode == ZERO_TRAIN && !pass->backward)
        pass->backward = pass->forward; /* a forward alone is refused */
    pass->flush = has->calls && pick(state, 3) == 0;
    pass->sum = has->calls && pick(state, 2);
}

static bool has_backward(const struct schedule_step *step) {
    uint32_t units = 0;
    for (uint32_t i = 0; i < step->passes; i++)
        if (step->pass[i].mode == ZERO_TRAIN) units |= step->pass[i].backward;
    return units != 0;
}

/* The engine refuses a step without a gradient: no pass has a backward, and the last one is a training pass that is still open (a
 * flush, and a call that reads a gradient, end it). That pass uses all units then. This draws nothing, so that every other step of
 * every seed stays as it was. */
static void need_backward(const struct schedule *s, struct schedule_step *step) {
    struct schedule_pass *last = &step->pass[step->passes - 1];
    bool open = last->mode == ZERO_TRAIN && !last->flush && step->inspect < 0;
    if (open && !has_backward(step)) last->forward = last->backward = (1u << s->units) - 1;
}

static void make_step(const struct schedule *s, struct schedule_step *step, uint64_t *state,
                      const struct features *has) {
    *step = (struct schedule_step){.nan_pass = -1, .inspect = -1, .put = -1};
    for (uint32_t m = 0; m < s->micro_steps; m++) {
        if (has->nan && pick(state, 6) == 0) step->nan_pass = (int32_t)step->passes;
        add_pass(s, step, state, ZERO_TRAIN, has);
        if (has->evaluation && pick(state, 2)) add_pass(s, step, state, ZERO_EVAL, has);
    }
    if (!has->calls) return need_backward(s, step);
    int32_t inspect = (int32_t)pick(state, s->params);
    if (!(s->param[root(s, inspect)].flags & ZERO_FROZEN)) step->inspect = inspect;
    need_backward(s, step);
    if (pick(state, 2)) step->put = (int32_t)pick(state, s->params);
    if (pick(state, 2)) step->lr = 0.01 * (1 + pick(state, 5));
    step->refill = pick(state, 6) == 0;
}

void schedule_make(uint64_t seed, struct schedule *out) {
    static const uint32_t thresholds[] = {0, 60, 1000};
    struct schedule *s = out;
    uint64_t state = seed * 0x9e3779b97f4a7c15u;
    *s = (struct schedule){.seed = seed,
                           .ranks = 1 + pick(&state, SCHEDULE_RANKS_MAX),
                           .micro_steps = 1 + pick(&state, SCHEDULE_MICRO_STEPS_MAX),
                           .threshold = thresholds[pick(&state, 3)],
                           .mode = pick(&state, 2) ? "every" : "last"};
    for (uint32_t i = 0; i < SCHEDULE_STAGES; i++) s->depth[i] = pick(&state, 4);
    for (uint32_t i = 0; i < SCHEDULE_STAGES; i++)
        s->tier[i] = (enum schedule_tier)pick(&state, i == 3 ? SCHEDULE_TIERS : SCHEDULE_PARAM_CPU);
    s->slots = 1 + pick(&state, 4);
    s->shard_ranks = s->ranks, s->reshard_ranks = pick(&state, 2);
    bool even = s->ranks % 2 == 0;
    if (even && pick(&state, 2)) s->shard_ranks = s->ranks / 2;
    if (s->ranks == 4 && s->shard_ranks == 4 && pick(&state, 2)) s->reshard_ranks = 2;
    s->backward_depth = pick(&state, 4);
    s->live_max = pick(&state, 2) ? 0 : 1 + pick(&state, 4000);
    s->ahead_max = pick(&state, 2) ? 0 : 1 + pick(&state, 2000);
    struct features has = {.ties = pick(&state, 2),
                           .unit_skips = pick(&state, 2),
                           .backward_skips = pick(&state, 2),
                           .evaluation = pick(&state, 2),
                           .calls = pick(&state, 2),
                           .nan = pick(&state, 2)};
    make_model(s, &state, has.ties);
    for (uint32_t i = 0; i < SCHEDULE_STEPS; i++) make_step(s, &s->step[i], &state, &has);
    if (pick(&state, 3) == 0) make_narrow(s, &state);
}

/* ---- for people ---- */

const char *const schedule_tiers[SCHEDULE_TIERS] = {"device",
                                                    "cpu",
                                                    "nvme",
                                                    "nvme with two paths",
                                                    "parameters on cpu",
                                                    "parameters on nvme",
                                                    "state and parameters on nvme"};

static void print_units(const char *name, uint32_t units, uint32_t used, FILE *file) {
    fprintf(file, " %s ", name);
    for (uint32_t u = 0; u < units; u++) fputc(used >> u & 1 ? '0' + (int)u : '-', file);
}

static void print_step(const struct schedule *s, const struct schedule_step *step, FILE *file) {
    for (uint32_t i = 0; i < step->passes; i++) {
        const struct schedule_pass *p = &step->pass[i];
        fprintf(file, "    %s:", p->mode == ZERO_EVAL ? "evaluation" : "training");
        print_units("forward", s->units, p->forward, file);
        if (p->mode == ZERO_TRAIN) print_units("backward", s->units, p->backward, file);
        fprintf(file, "%s%s%s\n", step->nan_pass == (int32_t)i ? ", NaN" : "", p->flush ? ", flush" : "",
                p->sum ? ", sum" : "");
    }
    fprintf(file, "    step; inspect %" PRId32 ", put %" PRId32 ", lr %g%s\n", step->inspect, step->put,
            step->lr, step->refill ? ", fill" : "");
}

void schedule_print(const struct schedule *s, FILE *file) {
    fprintf(file, "  %s, ranks %u, micro-steps %u, mode %s, threshold %u, slots %u, depth and tier by stage:",
            s->narrow ? "bf16" : "fp32", s->ranks, s->micro_steps, s->mode, s->threshold, s->slots);
    for (uint32_t i = 0; i < SCHEDULE_STAGES; i++)
        fprintf(file, "%s %u %s", i ? "," : "", s->depth[i], schedule_tiers[s->tier[i]]);
    fprintf(file, "\n  shard groups of %u; at stage 3: reshard %u, depth in backward %u, live %u, ahead %u\n",
            s->shard_ranks, s->reshard_ranks, s->backward_depth, s->live_max, s->ahead_max);
    for (uint32_t i = 0; i < s->params; i++) {
        const struct schedule_param *p = &s->param[i];
        fprintf(file, "  unit %u: p%u [%u]%s%s%s", p->unit, i, p->count,
                p->flags & ZERO_FROZEN ? " frozen" : "", p->flags & ZERO_NO_DECAY ? " no decay" : "",
                p->flags & ZERO_KEEP_FP32 ? " fp32" : "");
        if (p->tied_to >= 0) fprintf(file, " tied to p%d", p->tied_to);
        fputc('\n', file);
    }
    for (uint32_t i = 0; i < SCHEDULE_STEPS; i++) {
        fprintf(file, "  step %u:\n", i);
        print_step(s, &s->step[i], file);
    }
}
