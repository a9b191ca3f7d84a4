#include "tools/sim/case.h"

#include <inttypes.h>
#include <string.h>

#include "tools/sim/random.h"

/* ---- random choices ---- */

struct dice {
    uint64_t seed, thrown;
};

static uint32_t pick(struct dice *d, uint32_t end) {
    return (uint32_t)random_below(random_draw(d->seed, RANDOM_CASE, d->thrown++, 0), end);
}

/* Ties the parameter to one of an earlier unit. A unit uses each parameter once. */
static void maybe_tie(struct sim_case *c, struct dice *d, struct sim_param *p) {
    uint32_t to = pick(d, c->model.params + 1);
    struct sim_param *owner = &c->param[to];
    if (to >= c->model.params || owner->unit == p->unit || owner->tied_to || pick(d, 2)) return;
    for (uint32_t i = 0; i < c->model.params; i++)
        if (c->param[i].unit == p->unit && c->param[i].tied_to == owner->name) return;
    p->tied_to = owner->name;
    p->count = owner->count;
    p->flags = owner->flags;
}

static void make_model(struct sim_case *c, struct dice *d) {
    c->model = (struct sim_model){c->unit, 1 + pick(d, CASE_UNITS_MAX), c->param, 0};
    bool ties = pick(d, 2), frozen = pick(d, 3) == 0;
    for (uint32_t u = 0; u < c->model.units; u++) {
        snprintf(c->unit[u].name, sizeof c->unit[u].name, "u%" PRIu32, u);
        c->unit[u].flops = 1 + pick(d, 100000);
        for (uint32_t n = 1 + pick(d, 3); n > 0; n--) {
            struct sim_param *p = &c->param[c->model.params];
            *p = (struct sim_param){.unit = u, .count = 1 + pick(d, pick(d, 4) ? 60 : 700)};
            snprintf(p->name, sizeof p->name, "p%" PRIu32, c->model.params);
            if (pick(d, 3) == 0) p->flags |= ZERO_NO_DECAY;
            if (frozen && pick(d, 4) == 0) p->flags |= ZERO_FROZEN;
            if (ties) maybe_tie(c, d, p);
            c->model.params++;
        }
    }
}

static struct speeds make_speeds(struct dice *d) {
    struct speeds_link inside = {1000000 * (1 + pick(d, 9)), 1000000 * (1 + pick(d, 9)), pick(d, 50)};
    struct speeds_link between = {100000 * (1 + pick(d, 9)), 100000 * (1 + pick(d, 9)), pick(d, 500)};
    uint64_t device = 1000000 * (1 + pick(d, 99)), memory = 1000000 * (1 + pick(d, 9));
    return (struct speeds){.flops_per_s = 1000000000,
                           .device_bytes_per_s = device,
                           .host_bytes_per_s = memory,
                           .update_bytes_per_s = memory,
                           .bus_bytes_per_s = pick(d, 2) * 1000000,
                           .inside = inside,
                           .between = between,
                           .drive_read_bytes_per_s = 100000 * (1 + pick(d, 9)),
                           .drive_write_bytes_per_s = 100000 * (1 + pick(d, 9)),
                           .drive_mixed_bytes_per_s = 100000 * (1 + pick(d, 9)),
                           .drive_latency_ns = pick(d, 10000),
                           .node_ranks = 1 + pick(d, 4)};
}

static void choose_mesh(struct sim_setup *s, struct dice *d) {
    s->terms.stage = stages[pick(d, stage_count())];
    s->terms.mesh[AXIS_SHARD] = 1 + pick(d, 5);
    bool second = s->terms.stage->reshard == RESHARD_GROUP;
    s->terms.mesh[AXIS_REPLICATE] = second ? 2 : pick(d, 3) ? 1 : 1 + pick(d, 3);
    if (second) s->terms.mesh[AXIS_SHARD] = 2;
}

static bool is_owner(const struct sim_model *m, uint32_t param) {
    for (uint32_t i = param + 1; i < m->params; i++)
        if (m->param[i].tied_to == m->param[param].name) return true;
    return false;
}

/* Parameters are tied to two of one unit, which vertical order refuses. */
static bool ties_twice(const struct sim_model *m) {
    for (uint32_t i = 0; i + 1 < m->params; i++)
        for (uint32_t k = i + 1; k < m->params; k++)
            if (m->param[i].unit == m->param[k].unit && is_owner(m, i) && is_owner(m, k)) return true;
    return false;
}

static void choose_tiers(struct sim_setup *s, struct dice *d) {
    static const enum tier_kind tiers[] = {TIER_DEVICE, TIER_CPU, TIER_NVME};
    s->terms.state_tier = tiers[pick(d, 3)];
    s->terms.param_tier = tiers[pick(d, 3)];
    s->terms.chunk_elements_max = 16 * (1 + pick(d, 6));
    s->terms.chunk_align_bytes = ALIGN_BYTES;
    s->terms.slots = 1 + pick(d, 5);
    s->terms.resident_bytes = pick(d, 3) ? 0 : pick(d, 8000);
}

static void choose_faults(struct sim_setup *s, struct dice *d) {
    bool drive = s->terms.state_tier == TIER_NVME || s->terms.param_tier == TIER_NVME;
    s->faults = pick(d, 2) ? pick(d, 1u << SIM_FAULT_KINDS) : 0;
    if (!drive) s->faults &= ~(1u << SIM_DRIVE);
    /* leaves these out in half of the cases, so that enough runs reach their end */
    if (pick(d, 2)) s->faults &= ~(uint32_t)SIM_FAULTS_END;
}

/* A shadow keeps all state on the drive. */
static void choose_outcomes(struct sim_setup *s, struct dice *d) {
    s->terms.shadow = s->terms.precision.copies = s->terms.state_tier == TIER_NVME && pick(d, 2);
    if (s->terms.shadow) s->terms.resident_bytes = 0, s->terms.device_share = 0;
    s->terms.update_in_backward = (s->terms.shadow || s->clip == 0) && pick(d, 2);
    s->terms.repeats = s->terms.update_in_backward && s->clip > 0;
    if (s->terms.update_in_backward && !s->terms.shadow) s->terms.waiting_share = pick(d, 5) / 4.;
    s->repeated = pick(d, 16);
    if (s->terms.shadow || !s->terms.update_in_backward) s->skipped = pick(d, 3) ? 0 : pick(d, 16);
    s->terms.precision.average = pick(d, 3) == 0;
}

static const struct sim_param *owner_of(const struct sim_case *c, const struct sim_param *p) {
    for (uint32_t i = 0; i < c->model.params && p->tied_to; i++)
        if (c->param[i].name == p->tied_to) return &c->param[i];
    return p;
}

/* Muon updates matrices of any shape, or Lamb tensors, and AdamW the rest. */
static void choose_whole(struct sim_case *c, struct dice *d) {
    struct sim_setup *s = &c->setup;
    bool tensors = pick(d, 2);
    if (pick(d, 3)) return;
    s->other = s->optimizer;
    memcpy(s->other_params, s->params, sizeof s->params);
    s->optimizer = optimizer_find(tensors ? "lamb" : "muon");
    s->params[0] = s->params[1] = s->optimizer->defaults;
    s->params[0].lr = s->params[1].lr = 0.02;
    s->params[0].weight_decay = 0.1, s->params[1].weight_decay = 0;
    for (uint32_t i = 0; i < c->model.params; i++) {
        struct sim_param *p = &c->param[i];
        const struct sim_param *owner = owner_of(c, p);
        p->other = owner == p ? pick(d, 3) == 0 : owner->other;
        p->columns = owner == p ? 1 + pick(d, (uint32_t)p->count) : owner->columns;
        while (p->count % p->columns) p->columns--;
    }
}

void case_make(uint64_t seed, struct sim_case *c) {
    static const uint64_t thresholds[] = {0, 20, 1000}, chaos[] = {0, 2, 30, 3000};
    static const double clips[] = {0, 0.05, 5}; /* norms are between the last two, and above */
    struct dice d = {seed, 0};
    *c = (struct sim_case){0};
    make_model(c, &d);
    struct sim_setup *s = &c->setup;
    *s = (struct sim_setup){.model = &c->model,
                            .terms.accumulation = pick(&d, 2) ? ACCUMULATE_EVERY : ACCUMULATE_LAST,
                            .terms.micro_steps = 1 + pick(&d, 3),
                            .terms.depth = pick(&d, 4),
                            .terms.live_max = UINT64_MAX,
                            .terms.ahead_max = UINT64_MAX,
                            .steps = 1 + pick(&d, 4),
                            .persistence_threshold = thresholds[pick(&d, 3)],
                            .optimizer = optimizer_find("adamw"),
                            .clip = clips[pick(&d, 3)],
                            .staging = pick(&d, 2),
                            .evaluate = pick(&d, 3) == 0,
                            .skip_unit = pick(&d, 3) ? -1 : (int32_t)pick(&d, c->model.units),
                            .seed = seed,
                            .speeds = make_speeds(&d),
                            .chaos_ns = chaos[pick(&d, 4)],
                            .chaos_events = UINT64_MAX,
                            .timeout_ns = 60000000000};
    s->params[0] = s->params[1] = s->optimizer->defaults;
    s->params[0].lr = s->params[1].lr = 0.02;
    s->params[0].weight_decay = 0.1;
    s->terms.backward_depth = s->terms.depth;
    choose_mesh(s, &d);
    choose_tiers(s, &d);
    if (s->skip_unit < 0)
        s->segments =
            (struct pass_segments){.first = pick(&d, 2), .end = c->model.units, .blocks = pick(&d, 4)};
    choose_faults(s, &d);
    c->with_data = pick(&d, 2);
    s->terms.discrete = !c->with_data && pick(&d, 2);
    s->terms.grad_tier = s->terms.state_tier == TIER_NVME && pick(&d, 2) ? TIER_NVME : TIER_DEVICE;
    s->terms.grad_resident_bytes = pick(&d, 3) ? 0 : pick(&d, 4000);
    s->terms.piece_bytes = pick(&d, 2) ? 0 : 4 * s->terms.chunk_elements_max * (1 + pick(&d, 3));
    s->terms.vertical = s->terms.micro_steps > 1 && pick(&d, 2) && !ties_twice(&c->model);
    s->terms.device_share = s->terms.state_tier != TIER_DEVICE && pick(&d, 2) ? pick(&d, 11) / 10. : 0;
    s->terms.device_bytes = pick(&d, 2) ? UINT64_MAX : pick(&d, 8000);
    choose_outcomes(s, &d);
    choose_whole(c, &d);
    s->terms.node_ranks = s->speeds.node_ranks;
    s->levels = pick(&d, 2);
}

zero_status case_run(const struct sim_setup *setup, bool with_data, struct sim_result *out,
                     struct zero_error *error) {
    return (with_data ? numbers_run : sim_run)(setup, out, error);
}

/* ---- shortening ---- */

enum { TRIES_MAX = 400 };

static bool still_fails(struct sim_shortest *s, struct sim_setup try, struct sim_model model,
                        bool with_data) {
    struct sim_result result = {0};
    struct zero_error error;
    error_clear(&error);
    try.model = &model;
    if (try.segments.end > model.units) try.segments.end = model.units;
    if (s->tried++ >= TRIES_MAX || case_run(&try, with_data, &result, &error) || !result.status) return false;
    s->model = model;
    s->setup = try;
    s->setup.model = &s->model;
    s->result = result;
    return true;
}

static struct sim_model first_units(const struct sim_model *of, uint32_t units) {
    struct sim_model m = *of;
    m.units = units;
    while (m.params && m.param[m.params - 1].unit >= units) m.params--;
    return m;
}

/* Each makes the setup smaller; false: it is already minimal. */
static bool halve_shards(struct sim_setup *s, struct sim_model *m) {
    return s->terms.mesh[AXIS_SHARD] > 1 && (s->terms.mesh[AXIS_SHARD] /= 2);
}
static bool drop_shard(struct sim_setup *s, struct sim_model *m) {
    return s->terms.mesh[AXIS_SHARD] > 1 && s->terms.mesh[AXIS_SHARD]--;
}
static bool halve_copies(struct sim_setup *s, struct sim_model *m) {
    return s->terms.mesh[AXIS_REPLICATE] > 1 && (s->terms.mesh[AXIS_REPLICATE] /= 2);
}
static bool halve_units(struct sim_setup *s, struct sim_model *m) {
    bool more = m->units > 1;
    if (more) *m = first_units(m, m->units / 2);
    return more;
}
static bool drop_unit(struct sim_setup *s, struct sim_model *m) {
    bool more = m->units > 1;
    if (more) *m = first_units(m, m->units - 1);
    return more;
}
static bool halve_steps(struct sim_setup *s, struct sim_model *m) { return s->steps > 1 && (s->steps /= 2); }
static bool drop_step(struct sim_setup *s, struct sim_model *m) { return s->steps > 1 && s->steps--; }
static bool drop_micro_step(struct sim_setup *s, struct sim_model *m) {
    return s->terms.micro_steps > 1 && s->terms.micro_steps--;
}
static bool drop_fault(struct sim_setup *s, struct sim_model *m) {
    return s->faults && (s->faults &= s->faults - 1, true);
}
static bool drop_last_fault(struct sim_setup *s, struct sim_model *m) {
    uint32_t before = s->faults;
    for (uint32_t f = SIM_FAULT_KINDS; f-- > 0 && s->faults == before;) s->faults &= ~(1u << f);
    return s->faults != before;
}
static bool skip_nothing(struct sim_setup *s, struct sim_model *m) {
    return s->skip_unit >= 0 && (s->skip_unit = -1, true);
}
static bool drop_evaluation(struct sim_setup *s, struct sim_model *m) {
    return s->evaluate && (s->evaluate = false, true);
}
static bool drop_segments(struct sim_setup *s, struct sim_model *m) {
    return s->segments.blocks && (s->segments.blocks = 0, true);
}
static bool drop_depth(struct sim_setup *s, struct sim_model *m) {
    return s->terms.depth && (s->terms.depth = s->terms.backward_depth = 0, true);
}
static bool drop_device(struct sim_setup *s, struct sim_model *m) {
    return s->terms.discrete && (s->terms.discrete = false, true);
}
static bool drop_order(struct sim_setup *s, struct sim_model *m) {
    return s->terms.vertical && (s->terms.vertical = false, true);
}
static bool drop_tier(struct sim_setup *s, struct sim_model *m) {
    return s->terms.device_share > 0 && (s->terms.device_share = 0, true);
}
static bool drop_updates(struct sim_setup *s, struct sim_model *m) {
    return s->terms.update_in_backward && (s->terms.update_in_backward = s->terms.repeats = false, true);
}
static bool drop_waiting(struct sim_setup *s, struct sim_model *m) {
    return s->terms.waiting_share > 0 && (s->terms.waiting_share = 0, true);
}
static bool drop_matrices(struct sim_setup *s, struct sim_model *m) {
    if (!s->other) return false;
    s->optimizer = s->other, s->other = NULL;
    memcpy(s->params, s->other_params, sizeof s->params);
    return true;
}
static bool skip_no_step(struct sim_setup *s, struct sim_model *m) {
    return s->skipped && (s->skipped &= s->skipped - 1, true);
}
static bool drop_chaos(struct sim_setup *s, struct sim_model *m) {
    return s->chaos_ns && (s->chaos_ns = 0, true);
}

static bool (*const takes_away[])(struct sim_setup *setup, struct sim_model *model) = {
    halve_shards,  drop_shard,      halve_copies, halve_units,     drop_unit,    halve_steps,
    drop_step,     drop_micro_step, drop_fault,   drop_last_fault, skip_nothing, drop_evaluation,
    drop_segments, drop_depth,      drop_device,  drop_order,      drop_tier,    drop_waiting,
    drop_updates,  drop_matrices,   skip_no_step, drop_chaos};

/* Finds the least number of random events with which the run still fails. */
static void shorten_chaos(struct sim_shortest *s, bool with_data) {
    uint64_t least = 0, most = s->result.events;
    while (least < most && s->tried < TRIES_MAX) {
        struct sim_setup try = s->setup;
        try.chaos_events = least + (most - least) / 2;
        if (still_fails(s, try, s->model, with_data))
            most = try.chaos_events;
        else
            least = try.chaos_events + 1;
    }
}

void case_shorten(const struct sim_setup *failing, bool with_data, struct sim_shortest *out) {
    *out = (struct sim_shortest){0};
    if (!still_fails(out, *failing, *failing->model, with_data)) return;
    for (bool shorter = true; shorter;) {
        shorter = false;
        for (size_t i = 0; i < sizeof takes_away / sizeof *takes_away; i++) {
            struct sim_setup try = out->setup;
            struct sim_model model = out->model;
            while (takes_away[i](&try, &model) && still_fails(out, try, model, with_data)) shorter = true;
        }
    }
    shorten_chaos(out, with_data);
}

/* ---- printing ---- */

void case_print(const struct sim_setup *s, bool with_data, FILE *out) {
    fprintf(out,
            "%s on %" PRIu32 " x %" PRIu32 " ranks, %" PRIu32 " units, %" PRIu32 " steps of %" PRIu32
            " micro-steps%s, reduced %s, depth %" PRIu64
            ", state on %s, parameters on %s, gradients on %s, %" PRIu64 " slots",
            s->terms.stage->name, s->terms.mesh[AXIS_SHARD], s->terms.mesh[AXIS_REPLICATE], s->model->units,
            s->steps, s->terms.micro_steps, s->terms.vertical ? " in each use" : "",
            s->terms.accumulation == ACCUMULATE_LAST ? "last" : "every", s->terms.depth,
            tier_table[s->terms.state_tier]->name, tier_table[s->terms.param_tier]->name,
            tier_table[s->terms.grad_tier]->name, s->terms.slots);
    if (s->skip_unit >= 0) fprintf(out, ", unit %" PRId32 " left out", s->skip_unit);
    if (s->segments.blocks) fprintf(out, ", %" PRIu32 " units recomputed together", s->segments.blocks);
    if (s->terms.device_share > 0)
        fprintf(out, ", up to %g of the state on the device", s->terms.device_share);
    if (s->terms.update_in_backward) fprintf(out, ", updated in the backward");
    if (s->terms.waiting_share > 0) fprintf(out, ", %g of it in the forward", s->terms.waiting_share);
    if (s->other) fprintf(out, ", whole matrices");
    if (s->clip > 0) fprintf(out, ", clipped to %g", s->clip);
    if (s->terms.shadow) fprintf(out, ", with a shadow");
    if (s->terms.precision.average) fprintf(out, ", with averages");
    for (uint32_t k = 0; k < s->steps; k++)
        if (sim_step_bit(s->skipped, k)) fprintf(out, ", step %" PRIu32 " skipped", k + 1);
    if (s->terms.discrete) fprintf(out, ", on a device of its own");
    fprintf(out, "%s%s", s->evaluate ? ", evaluations" : "", with_data ? ", with data" : "");
    for (uint32_t f = 0; f < SIM_FAULT_KINDS; f++)
        if (s->faults >> f & 1) fprintf(out, ", %s", sim_fault_word((enum sim_fault)f));
    if (s->chaos_ns) fprintf(out, ", times of at most %" PRIu64 " ns", s->chaos_ns);
    if (s->chaos_events != UINT64_MAX) fprintf(out, ", by chance for %" PRIu64 " events", s->chaos_events);
    fputc('\n', out);
}

static void tell(const struct sim_case *c, const struct zero_error *error, FILE *out) {
    struct sim_shortest shortest;
    fprintf(out, "seed %" PRIu64 " FAILED: %s\n  in ", c->setup.seed, error->message);
    case_print(&c->setup, c->with_data, out);
    case_shorten(&c->setup, c->with_data, &shortest);
    if (!shortest.result.status) return;
    fputs("  shortest: ", out);
    case_print(&shortest.setup, c->with_data, out);
    fprintf(out, "  there: %s\n  again: zero sim --check 1 --seed %" PRIu64 "\n",
            shortest.result.error.message, c->setup.seed);
}

static void add(struct sim_tally *t, const struct sim_case *c, const struct sim_result *r) {
    uint32_t came = r->faulted | (c->setup.faults & ~(uint32_t)SIM_FAULTS_END);
    t->runs++;
    t->with_data += c->with_data;
    t->recomputed += c->setup.segments.blocks > 0;
    t->chaotic += c->setup.chaos_ns > 0;
    for (uint32_t f = 0; f < SIM_FAULT_KINDS; f++) t->fault[f] += came >> f & 1;
}

uint64_t case_check(uint64_t first, uint64_t count, const struct sim_sabotage *sabotage, FILE *out,
                    struct sim_tally *tally) {
    uint64_t failed = 0;
    for (uint64_t i = 0; i < count; i++) {
        struct sim_case c;
        struct sim_result result = {0};
        struct zero_error error;
        error_clear(&error);
        case_make(first + i, &c);
        c.setup.sabotage = sabotage;
        if (!case_run(&c.setup, c.with_data, &result, &error)) error = result.error;
        if (tally) add(tally, &c, &result);
        if (!error.code) continue;
        failed++;
        tell(&c, &error, out);
    }
    return failed;
}
