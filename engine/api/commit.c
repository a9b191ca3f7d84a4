/* Plan and commit: from a declared model to planned memory, and to an executor over it. */
#include <inttypes.h>

#include "engine/api/engine.h"
#include "engine/base/hash.h"
#include "engine/blueprint/blueprint.h"
#include "engine/config/key.h"
#include "engine/open/device_memory.h"
#include "engine/open/start.h"
#include "engine/run/run.h"
#include "engine/state/shadow.h"
#include "kernels/device_work.h"

_Static_assert((int)TIER_DEVICE == (int)ZERO_DEVICE && (int)TIER_CPU == (int)ZERO_CPU &&
                   (int)TIER_NVME == (int)ZERO_NVME,
               "tiers are numbered alike");

/* ---- the blueprint ---- */

/* The device's memory is measured before the groups' communicators take theirs, and after. */
static zero_status open_groups(zero_engine *e, struct zero_error *error) {
    struct device_room *memory = &e->host.device;
    memory->margin = e->config.device_margin;
    memory->reserved = reservations_bytes(&e->reservations, TIER_DEVICE);
    zero_status status = device_memory_free(e->run.device, &memory->at_commit, error);
    if (!status) status = start_groups(&e->ranks, &e->config.terms, e->group, error);
    return status ? status : device_memory_measure(memory, e->run.device, error);
}

/* The number of ranks on this GPU: if NCCL does not move their data, all ranks are threads on one GPU. */
static uint32_t gpu_sharers(const zero_engine *e) {
    return e->ranks.data == e->ranks.comm ? e->ranks.size : 1;
}

static zero_status make_blueprint(zero_engine *e, struct zero_error *error) {
    struct blueprint_options options = {.config = &e->config,
                                        .model = &e->model,
                                        .optimizer = e->training.optimizer,
                                        .other = e->training.groups.other,
                                        .params = &e->training.groups.params[0],
                                        .state_count = e->training.state_count,
                                        .model_ranks = e->ranks.model_size,
                                        .reservations = &e->reservations,
                                        .device_budget = device_memory_budget(&e->host.device),
                                        .device_room = device_memory_room(&e->host.device, gpu_sharers(e)),
                                        .group = (struct comm_group *const(*)[STREAMS])e->group};
    e->config.terms.discrete = e->run.discrete;
    e->config.terms.page_bytes = /* of a GPU that is only planned for, in the place of the host's */
        e->run.discrete == e->run.device->discrete ? e->run.device->page_bytes : DEVICE_PART_BYTES;
    return blueprint_make(&e->blueprint, &e->config.terms, &options, error);
}

/* Plans again within the budgets: all ranks use the smallest room of any rank, because all must emit the same operations. A
 * rank that failed earlier (`before`) sets no bound. */
static zero_status agree_room(zero_engine *e, uint32_t round, zero_status before, struct zero_error *error) {
    struct blueprint_room room = {UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX};
    struct zero_error unheard = ERROR_NONE;
    if (!before) room = blueprint_room(&e->blueprint, round);
    uint64_t bound[] = {room.chunk_elements, room.resident_bytes, room.grad_resident_bytes,
                        room.device_bytes};
    zero_status status = ranks_least(&e->ranks, bound, 4, "room for chunks", &unheard);
    if (before) return before;
    if (status) return error_pass(error, &unheard);
    room = (struct blueprint_room){bound[0], bound[1], bound[2], bound[3]};
    return blueprint_replan(&e->blueprint, room, error);
}

static zero_status fit_rooms(zero_engine *e, zero_status before, struct zero_error *error) {
    for (uint32_t i = 0; i < blueprint_rooms(&e->config, e->run.discrete); i++)
        before = agree_room(e, i, before, error);
    return before;
}

/* By default updates wait if each rank has room for their gradients in memory.cpu, beside what the plan needs then. */
static zero_status agree_waiting(zero_engine *e, zero_status before, struct zero_error *error) {
    struct config *c = &e->config;
    uint64_t fits = before || blueprint_bytes(&e->blueprint, TIER_CPU) <= c->budget_bytes[TIER_CPU];
    struct zero_error unheard = ERROR_NONE;
    if (!c->chooses_waiting || !(c->terms.waiting_share > 0) || !e->run.discrete) return before;
    zero_status status = ranks_least(&e->ranks, &fits, 1, "room for gradients that wait", &unheard);
    if (status && !before) return error_pass(error, &unheard);
    if (status || fits) return before;
    c->terms.waiting_share = 0;
    if (!before) blueprint_free(&e->blueprint), before = make_blueprint(e, error);
    return fit_rooms(e, before, error);
}

/* ---- spare memory ---- */

/* The bytes of the device that this rank's plan leaves free. 0 if the plan will be refused: nothing is granted then,
 * because the advice plans with the granted memory. */
static uint64_t left_on_device(const zero_engine *e) {
    const uint64_t *budget = e->config.budget_bytes;
    for (int t = 0; t < TIERS; t++)
        if (blueprint_bytes(&e->blueprint, t) > budget[t]) return 0;
    uint64_t left = budget[TIER_DEVICE] - blueprint_bytes(&e->blueprint, TIER_DEVICE),
             unused = device_memory_spare(&e->host.device, e->blueprint.plan.tier_bytes[TIER_DEVICE],
                                          gpu_sharers(e));
    return left < unused ? left : unused;
}

/* All ranks get what the rank with the least room can have. A shared GPU is measured after the first agreement: by then every host
 * program has allocated what it needs before the commit, and no engine has allocated its plan. */
static zero_status grant_spares(zero_engine *e, zero_status before, struct zero_error *error) {
    uint64_t parts[SPARES_MAX] = {0}, asked = 0;
    struct zero_error unheard = ERROR_NONE;
    if (!before) reservations_fit(&e->reservations, UINT64_MAX, parts);
    zero_status status = ranks_least(&e->ranks, parts, SPARES_MAX, "spare memory", &unheard);
    if (before) return before; /* its zeros say that nothing is granted */
    if (status) return error_pass(error, &unheard);
    for (int i = 0; i < SPARES_MAX; i++) asked += parts[i];
    if (!asked) return ZERO_OK;
    status = device_memory_measure(&e->host.device, e->run.device, error);
    reservations_fit(&e->reservations, status ? 0 : left_on_device(e), parts);
    zero_status agreed = ranks_least(&e->ranks, parts, SPARES_MAX, "spare memory", &unheard);
    if (status || agreed) return status ? status : error_pass(error, &unheard);
    e->host.device.spare = reservations_grant(&e->reservations, parts);
    return ZERO_OK;
}

/* ---- the plan ---- */

/* All model ranks must have the same optimizer and groups, because one rank's learning rates are used on all. */
static zero_status meet_peers(zero_engine *e, struct zero_error *error) {
    uint64_t alike =
        groups_settings_hash(&e->training.groups, hash_string(HASH_START, e->training.optimizer->name));
    if (e->host.plans_only) return peers_plan(&e->ranks, &e->model, &e->training.groups), ZERO_OK;
    return peers_meet(&e->peers, &e->ranks, &e->model, &e->training.groups, alike, error);
}

/* A rank that fails still takes part in the agreements, because the other ranks wait there. */
static zero_status lay_plan(zero_engine *e, struct zero_error *error) {
    const struct config *c = &e->config;
    if (c->trace_steps >= 0) e->trace_steps = (struct trace_steps){c->trace_first, (uint64_t)c->trace_steps};
    e->model.dtype = (enum dtype)c->compute_dtype;
    zero_status status = meet_peers(e, error);
    if (!status) status = trace_reserve(e->trace_steps, &e->reservations, error);
    if (!status) status = groups_check(&e->training.groups, &e->model, c, error);
    groups_mark(&e->training.groups, (enum code_format)c->weight_code, &e->model);
    if (!status) status = model_lay_out(&e->model, e->ranks.data_size, c->persistence_threshold, error);
    if (!status) status = make_blueprint(e, error);
    status = agree_waiting(e, fit_rooms(e, status, error), error);
    return grant_spares(e, status, error);
}

/* ---- what the plan came to ---- */

static double drive_life_steps(const zero_engine *e) {
    uint64_t written = (plan_write_bytes(&e->blueprint.plan) + reservations_written_bytes(&e->reservations)) *
                       e->ranks.node_ranks;
    return written ? e->config.nvme_endurance_tbw * 1e12 / (double)written : 0;
}

static void report_plan(const zero_engine *e, zero_plan *out) {
    const struct plan *p = &e->blueprint.plan;
    zero_plan plan = {
        .struct_size = out->struct_size,
        .params = e->model.param_elements,
        .params_padded = e->model.padded_elements,
        .param_bytes = p->row_bytes[MEMORY_PARAMETERS] + p->row_bytes[MEMORY_OFFLOADED_PARAMETERS],
        .grad_bytes = p->row_bytes[MEMORY_GRADIENTS] + p->row_bytes[MEMORY_HOST_GRADIENTS] +
                      p->row_bytes[MEMORY_OFFLOADED_GRADIENTS],
        .resident_state_bytes = p->row_bytes[MEMORY_STATE0] + p->row_bytes[MEMORY_STATE1] +
                                p->row_bytes[MEMORY_DEVICE_STATE0] + p->row_bytes[MEMORY_DEVICE_STATE1] +
                                p->row_bytes[MEMORY_AVERAGES] + p->row_bytes[MEMORY_DEVICE_AVERAGES],
        .gathered_bytes = p->row_bytes[MEMORY_GATHERED],
        .lasting_bytes = p->lasting_bytes,
        .staging_bytes = p->row_bytes[MEMORY_STAGING] + p->row_bytes[MEMORY_MESSAGES] +
                         p->row_bytes[MEMORY_SLOTS] + p->row_bytes[MEMORY_PARAM_STAGING] +
                         p->row_bytes[MEMORY_CHECKPOINT] + p->row_bytes[MEMORY_UPDATE_STAGING] +
                         p->row_bytes[MEMORY_NORMS] + p->row_bytes[MEMORY_GRAD_STAGING] +
                         p->row_bytes[MEMORY_DIRECTIONS] + p->row_bytes[MEMORY_TENSOR_NORMS],
        .drive_read_bytes = plan_read_bytes(p) + reservations_read_bytes(&e->reservations),
        .drive_write_bytes = plan_write_bytes(p) + reservations_written_bytes(&e->reservations),
        .repeat_read_bytes = plan_repeat_read_bytes(p),
        .repeat_write_bytes = plan_repeat_write_bytes(p),
        .drive_life_steps = drive_life_steps(e),
        .master_bytes = p->row_bytes[MEMORY_MASTERS] + p->row_bytes[MEMORY_DEVICE_MASTERS]};
    plan.state_bytes = plan.resident_state_bytes + p->row_bytes[MEMORY_RECORDS];
    for (int t = 0; t < ZERO_TIERS; t++) {
        plan.bytes[t] = blueprint_bytes(&e->blueprint, t);
        plan.reserved_bytes += reservations_bytes(&e->reservations, t);
    }
    sized_fill(out, out->struct_size, &plan, sizeof plan);
}

/* Logs how many gathered elements the limits allow. */
static void log_live(const zero_engine *e) {
    const struct config *c = &e->config;
    bool whole = placement_is(e->blueprint.policy.stage->param_rest, REPLICATE, REPLICATE);
    if (e->ranks.rank || whole || (c->terms.live_max == UINT64_MAX && c->terms.ahead_max == UINT64_MAX))
        return;
    log_line(&e->ranks.log, e->blueprint.plan.live_most > c->terms.live_max ? ZERO_LOG_WARN : ZERO_LOG_INFO,
             "at most %" PRIu64 " elements are gathered at once%s", e->blueprint.plan.live_most,
             e->blueprint.plan.live_most > c->terms.live_max
                 ? ", more than zero_optimization.stage3_max_live_parameters: a single unit needs that many"
                 : "");
}

/* Logs the cost of clipping a step that updates in the backward. */
static void log_repeats(const zero_engine *e) {
    const struct plan *p = &e->blueprint.plan;
    const double mib = 1.0 / (1 << 20);
    if (e->ranks.rank || !e->blueprint.policy.repeats) return;
    log_line(&e->ranks.log, ZERO_LOG_INFO,
             "zero_optimization.update_in_backward: a step whose norm is above gradient_clipping %g is "
             "updated twice: a rank then reads %.1f MiB more from the drive, and writes %.1f MiB more",
             e->config.gradient_clipping, (double)plan_repeat_read_bytes(p) * mib,
             (double)plan_repeat_write_bytes(p) * mib);
}

/* Logs the memory of free order within a bound. */
static void log_bound(const zero_engine *e) {
    const struct plan *p = &e->blueprint.plan;
    const double mib = 1.0 / (1 << 20);
    uint64_t all = 0;
    for (uint32_t i = 0; i < p->buffers; i++)
        if (p->buffer[i].row == MEMORY_GATHERED) all += p->buffer[i].bytes;
    if (e->ranks.rank || !e->model.bound) return;
    log_line(&e->ranks.log, ZERO_LOG_INFO,
             "free order: at most %" PRIu32 " units in use at once: gathered parameters and whole gradients "
             "take %.1f MiB; those of all units have %.1f MiB%s",
             e->model.bound, (double)p->row_bytes[MEMORY_GATHERED] * mib, (double)all * mib,
             p->space_bytes ? "" : ", and this device keeps room for all of them");
}

static const char *mark(const zero_engine *e, const char *key) {
    const struct config_entry *entry = &e->config.entries[config_key_index(config_key_find(key))];
    return entry->source == CONFIG_DEFAULT ? " (default)" : "";
}

/* Logs settings that a host may have left to the defaults. */
static void log_training(const zero_engine *e) {
    const struct config *c = &e->config;
    const struct optimizer *optimizer = e->training.optimizer;
    double lr = e->training.groups.params[0].lr;
    bool brought = optimizer == &e->training.user_optimizer.rows.row, set = lr != c->optimizer.lr;
    if (e->ranks.rank) return;
    log_line(&e->ranks.log, ZERO_LOG_INFO,
             "optimizer %s%s, lr %g%s, gradient_clipping %g%s; a step has %" PRIu64 " samples: %" PRIu64
             " micro-steps%s of %" PRIu64 " on each of %" PRIu32 " ranks",
             optimizer->title ? optimizer->title : optimizer->name, brought ? "" : mark(e, "optimizer.type"),
             lr, set ? "" : mark(e, "optimizer.params.lr"), c->gradient_clipping,
             mark(e, "gradient_clipping"), c->train_batch, c->accumulation_steps,
             mark(e, "gradient_accumulation_steps"), c->micro_batch, e->ranks.data_size);
}

static void log_frozen(const zero_engine *e) {
    if (!e->ranks.rank && !e->blueprint.policy.refreshes)
        log_line(&e->ranks.log, ZERO_LOG_WARN, "no parameter is trained: all are frozen");
}

/* Logs the tiers of the state if it is in more than one. */
static void log_tiers(const zero_engine *e) {
    const struct chunk_layout *layout = &e->blueprint.plan.layout;
    double all = (double)layout->state_bytes, device = (double)layout->device_bytes,
           memory = (double)layout->resident_bytes;
    if (e->ranks.rank || !e->blueprint.terms.device_share || !(all > 0)) return;
    log_line(&e->ranks.log, ZERO_LOG_INFO,
             "optimizer state: %.1f %% on the device, which updates it, %.1f %% in host memory, %.1f %% on "
             "the drive",
             100 * device / all, 100 * (memory - device) / all, 100 * (all - memory) / all);
}

/* The bytes that a step moves to and from the drive, and the bytes that state in memory saves. */
static void log_drive(const zero_engine *e) {
    const struct plan *p = &e->blueprint.plan;
    const struct chunk_layout *layout = &p->layout;
    if (e->ranks.rank || !p->tier_bytes[TIER_NVME]) return;
    double gib = 1.0 / (1 << 30), resident = (double)layout->resident_bytes,
           all = (double)layout->state_bytes;
    log_line(
        &e->ranks.log, ZERO_LOG_INFO,
        "nvme: a step reads %.3f GiB and writes %.3f GiB per rank, %" PRIu32 " chunks of at most %" PRIu64
        " elements at a time; %.1f %% of the optimizer state stays in memory, which saves %.3f GiB each way",
        (double)plan_read_bytes(p) * gib, (double)plan_write_bytes(p) * gib, layout->slots,
        layout->chunk_elements, all > 0 ? 100 * resident / all : 0,
        e->config.optimizer_tier == TIER_NVME ? resident * gib : 0);
    if (p->terms->grad_tier == TIER_NVME)
        log_line(&e->ranks.log, ZERO_LOG_INFO,
                 "nvme: %.3f GiB of reduced gradients are on the drive, %.3f GiB in host memory, and %.3f "
                 "GiB of staging",
                 (double)p->row_bytes[MEMORY_OFFLOADED_GRADIENTS] * gib,
                 (double)p->row_bytes[MEMORY_HOST_GRADIENTS] * gib,
                 (double)p->row_bytes[MEMORY_GRAD_STAGING] * gib);
}

static void log_scratches(const zero_engine *e) {
    const double gib = 1.0 / (1 << 30);
    for (uint32_t i = 0; i < e->reservations.count && !e->ranks.rank; i++) {
        const struct reservation *r = &e->reservations.item[i];
        if (r->scratch)
            log_line(&e->ranks.log, ZERO_LOG_INFO,
                     "nvme: %s: %.3f GiB on the drive; a step reads %.3f GiB and writes %.3f GiB per rank",
                     r->name, (double)r->bytes * gib, (double)r->read_bytes * gib,
                     (double)r->written_bytes * gib);
    }
}

static void log_drive_life(const zero_engine *e) {
    if (!e->ranks.rank && drive_life_steps(e) > 0)
        log_line(&e->ranks.log, ZERO_LOG_INFO,
                 "nvme: %.6g TB of endurance last %.4g steps of the node's %" PRIu32 " ranks",
                 e->config.nvme_endurance_tbw, drive_life_steps(e), e->ranks.node_ranks);
}

/* ---- the calls ---- */

zero_status zero_engine_plan(zero_engine *e, zero_plan *out) {
    TRY(engine_check(e, "zero_engine_plan"));
    if (out) TRY(sized_check(out->struct_size, "zero_plan"));
    if (!e->host.plans_only || e->planned)
        return refuse(ZERO_E_ORDER, "zero_engine_plan: %s",
                      e->planned ? "the engine is planned already"
                                 : "the engine was opened without plan_ranks; call zero_engine_commit");
    struct zero_error error = ERROR_NONE;
    e->planned = true;
    zero_status status = open_groups(e, &error);
    if (!status) status = lay_plan(e, &error);
    if (status) return ranks_fail(&e->ranks, &error);
    if (out) report_plan(e, out);
    return ZERO_OK;
}

/* An optimizer of the host program runs on the CPU. */
static zero_status check_optimizer(const zero_engine *e, struct zero_error *error) {
    const struct optimizer *optimizer = e->training.optimizer;
    bool on_device =
        e->run.discrete && (e->config.optimizer_tier == TIER_DEVICE || e->config.terms.device_share > 0);
    if (!on_device || kernel_optimizer_step(optimizer)) return ZERO_OK;
    return error_set(error, ZERO_E_UNSUPPORTED,
                     "optimizer \"%s\" is the host program's and runs on the CPU: keep its state there, with "
                     "zero_optimization.offload_optimizer.device \"cpu\" or \"nvme\"%s",
                     optimizer->name, e->config.terms.device_share > 0 ? ", and its ratio 1.0" : "");
}

static zero_status start(zero_engine *e, struct zero_error *error) {
    struct trace_source source = {&e->ranks, &e->blueprint.plan,
                                  blueprint_executor_options(&e->blueprint).shape};
    TRY(trace_open(e->trace_steps, &source, &e->trace, error));
    struct start_options options = {&e->host, &e->blueprint, trace_watch(e->trace)};
    zero_status status = start_run(&e->run, &options, error);
    return status ? status : start_scratches(&e->scratches, &e->run, &options, error);
}

static zero_status prepare(zero_engine *e, struct zero_error *error) {
    zero_status status = lay_plan(e, error);
    if (!status) status = check_optimizer(e, error);
    if (!status) status = budget_check(&e->blueprint, &e->config, error);
    if (!status)
        status = host_memory_check(&e->host.memory, blueprint_host_bytes(&e->blueprint), e->host.memory_ranks,
                                   error);
    if (!status)
        status = device_memory_check(&e->host.device, e->run.device,
                                     e->blueprint.plan.tier_bytes[TIER_DEVICE], &e->ranks.log, error);
    return status ? status : start(e, error);
}

/* The rooms take their parts of the plan's memory. */
static void open_rooms(zero_engine *e) {
    state_place(&e->state, start_row(&e->run, &e->blueprint.plan, MEMORY_MESSAGES));
    run_begin(&e->run);
}

/* Ranks that declare different models would add unlike gradients. */
static zero_status compare_models(zero_engine *e) {
    struct zero_error error = ERROR_NONE;
    uint64_t hash = hash_string(model_hash(&e->model), e->training.optimizer->name);
    hash = groups_hash(&e->training.groups, &e->model, hash);
    for (uint32_t i = 0; i < e->model.regions; i++) /* lent regions are gathered in rounds */
        hash = hash_bytes(hash, &e->model.region[i].lends, sizeof e->model.region[i].lends);
    if (!ranks_compare(&e->ranks, hash, ZERO_E_DIVERGED, "model", &error)) return ZERO_OK;
    return ranks_fail(&e->ranks, &error);
}

/* True if operations can run while the program computes: operations that wait for other ranks or a drive, and the copies and sums
 * of units that one rank gathers and reduces alone. */
static bool moves_by_itself(const zero_engine *e) {
    return e->ranks.size > 1 || e->run.discrete || e->blueprint.plan.tier_bytes[TIER_NVME] ||
           !e->blueprint.policy.eager;
}

zero_status zero_engine_commit(zero_engine *e, zero_plan *out) {
    TRY(engine_check(e, "zero_engine_commit"));
    if (out) TRY(sized_check(out->struct_size, "zero_plan"));
    if (e->pass.phase != PHASE_DECLARING)
        return refuse(ZERO_E_ORDER, "zero_engine_commit: the engine is committed already");
    if (e->host.plans_only)
        return refuse(
            ZERO_E_ORDER,
            "zero_engine_commit: this engine has plan_ranks, and only plans: call zero_engine_plan");
    struct zero_error error = ERROR_NONE;
    zero_status status = open_groups(e, &error);
    if (status) return ranks_fail(&e->ranks, &error); /* the others may wait in a group's opening */
    prepare(e, &error);
    TRY(ranks_agree_error(&e->ranks, &error, "the commit"));
    TRY(compare_models(e));
    open_rooms(e);
    if (moves_by_itself(e)) run_start_progress(&e->run);
    e->state.shadow.discarded = e->host.discard_shadow;
    TRY(shadow_open(&e->state));
    e->pass.phase = PHASE_READY;
    e->pass.threads = e->host.threads;
    log_training(e);
    log_live(e);
    log_repeats(e);
    log_bound(e);
    log_frozen(e);
    log_tiers(e);
    log_drive(e);
    log_scratches(e);
    log_drive_life(e);
    if (out) report_plan(e, out);
    return trace_step(e->trace);
}
