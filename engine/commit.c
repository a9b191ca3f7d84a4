/* Commit: from a declared model to planned, budgeted and allocated memory, and an executor over it. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/blueprint.h"
#include "engine/engine_internal.h"
#include "engine/saver.h"
#include "engine/advice.h"
#include "engine/groups.h"
#include "engine/shadow.h"
#include "engine/trace.h"
#include "kernels/ordered_sum.h"
#include "kernels/work.h"

_Static_assert((int)TIER_DEVICE == (int)ZERO_DEVICE && (int)TIER_CPU == (int)ZERO_CPU &&
                   (int)TIER_NVME == (int)ZERO_NVME,
               "tiers are numbered alike");
_Static_assert((int)CONFIG_ACCUMULATE_LAST == (int)ACCUMULATE_LAST, "accumulation modes are numbered alike");

enum { REDUCE_STAGINGS = 2, GATHER_STAGINGS = 2 }; /* one at work while the next begins */

/* ---- groups of ranks ---- */

static zero_status open_group(zero_engine *e, uint8_t axes, enum stream stream, struct zero_error *error) {
    uint32_t *ranks = malloc(e->size * sizeof *ranks), count = 0, shards = e->policy.mesh[AXIS_SHARD];
    if (!ranks) return error_set(error, ZERO_E_MEMORY, "no memory for a list of %" PRIu32 " ranks", e->size);
    for (uint32_t r = 0; r < e->size; r++) {
        bool same_row = r / shards == e->rank / shards, same_column = r % shards == e->rank % shards;
        if ((axes & AXES_SHARD || same_column) && (axes & AXES_REPLICATE || same_row)) ranks[count++] = r;
    }
    zero_status status = comm_group_open(e->data, ranks, count, &e->group[axes][stream]);
    free(ranks);
    return status ? error_pass(error, comm_error(e->data)) : ZERO_OK;
}

/* Gathers and reductions have groups of their own, so that neither waits for the other. */
static zero_status open_groups(zero_engine *e, struct zero_error *error) {
    static const enum stream streams[] = {STREAM_GATHER, STREAM_REDUCE};
    uint8_t most = e->policy.mesh[AXIS_REPLICATE] > 1 ? AXES_BOTH : AXES_SHARD;
    for (uint8_t axes = AXES_SHARD; axes <= most; axes++)
        for (int s = 0; s < 2; s++) {
            zero_status status = open_group(e, axes, streams[s], error);
            if (status) return status;
        }
    return ZERO_OK;
}

static zero_status open_mesh(zero_engine *e, struct zero_error *error) {
    e->policy.mesh[AXIS_SHARD] = (uint32_t)e->config.shard_ranks;
    e->policy.mesh[AXIS_REPLICATE] = e->size / e->policy.mesh[AXIS_SHARD];
    return open_groups(e, error);
}

/* ---- the policy ---- */

static zero_status open_policy(zero_engine *e, struct zero_error *error) {
    struct model *m = &e->model;
    e->regions = calloc(m->regions, sizeof *e->regions);
    e->refresh = calloc(m->regions, sizeof *e->refresh);
    if (!e->regions || !e->refresh)
        return error_set(error, ZERO_E_MEMORY, "no memory for the policy's tables");
    for (uint32_t i = 0; i < m->regions; i++) {
        e->regions[i].frozen = region_frozen(&m->region[i]);
        e->regions[i].persistent = region_persistent(&m->region[i]);
        e->regions[i].elements = m->region[i].padded;
    }
    e->policy.stage = engine_stage(e);
    e->policy.accumulation = (enum accumulation)e->config.accumulation_mode;
    e->policy.micro_steps = (uint32_t)e->config.accumulation_steps;
    e->policy.depth = (uint32_t)e->config.comm.prefetch_depth;
    e->policy.backward_depth = (uint32_t)e->config.comm.backward_depth;
    e->policy.live_max = e->config.live_max;
    e->policy.ahead_max = e->config.ahead_max;
    e->policy.grad_widens = precision_widens(&e->precision);
    e->policy.forward = m->use;
    e->policy.uses = m->units;
    e->policy.region = e->regions;
    e->policy.regions = m->regions;
    e->policy.refresh = e->refresh;
    policy_open(&e->policy);
    return ZERO_OK;
}

/* ---- the plan ---- */

static uint32_t param_bits(const zero_engine *e) { return e->config.quantized_weights ? 8 : 0; }

static uint32_t gradient_bits(const zero_engine *e) {
    return e->config.quantized_gradients ? (uint32_t)e->config.comm.quantized_gradient_bits : 0;
}

static uint64_t staging_bytes(const zero_engine *e, uint64_t (*bytes)(const struct executor_options *)) {
    struct executor_options o = {.policy = (struct policy *)&e->policy,
                                 .model = &e->model,
                                 .precision = e->precision,
                                 .param_bits = param_bits(e),
                                 .gradient_bits = gradient_bits(e),
                                 .gradient_factor = engine_gradient_factor(e),
                                 .separate = e->separate,
                                 .host_updates =
                                     e->separate && e->config.optimizer_tier != CONFIG_TIER_DEVICE,
                                 .native_reduction = e->config.comm.reduction == CONFIG_REDUCTION_NATIVE};
    memcpy(o.group, e->group, sizeof o.group);
    return bytes(&o);
}

static uint64_t agreement_bytes(const zero_engine *e) { return (e->size + 1) * sizeof(struct agreement); }
static uint64_t sum_bytes(const zero_engine *e) { return (e->size + 1) * SUM_VALUES_MAX * sizeof(double); }

/* Beside a separate device: what passes through for the host's calls and its saver, and norms. */
static uint64_t separate_bytes(const zero_engine *e) {
    return e->separate ? 2 * PIECE_BYTES + e->model.regions * sizeof(double) : 0;
}

static uint64_t add_saturated(uint64_t a, uint64_t b) { return a + b < a ? UINT64_MAX : a + b; }

static uint64_t reserved_bytes(const zero_engine *e, int tier) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < e->reservations; i++)
        if ((int)e->reservation[i].tier == tier) bytes = add_saturated(bytes, e->reservation[i].bytes);
    return bytes;
}

static uint64_t planned_bytes(const zero_engine *e, int tier) {
    return add_saturated(e->plan.tier_bytes[tier], reserved_bytes(e, tier));
}

/* What a cpu budget leaves beside the rest of the plan, for state that need not go to the drive. Its rows and
 * buffers are aligned: that much is kept free. */
static uint64_t resident_bytes(const zero_engine *e) {
    uint64_t budget = e->config.budget_bytes[TIER_CPU], planned = planned_bytes(e, TIER_CPU);
    uint64_t aligned = (OPTIMIZER_STATES_MAX + 1) * (e->model.regions * ALIGN_BYTES + 2 * CHUNK_ALIGN_BYTES) +
                       CHUNK_ALIGN_BYTES; /* states, and masters */
    if (e->config.optimizer_tier != CONFIG_TIER_NVME || budget == CONFIG_BYTES_UNLIMITED) return 0;
    if (e->config.nvme_shadow) return 0; /* all of a step is on the drive */
    return budget > planned + aligned ? budget - planned - aligned : 0;
}

/* Chunks as large as the plan has them, or smaller where their slots would break the cpu budget. Of smaller ones there
 * are more, and so there may be more slots. */
static uint64_t fitting_chunk(const zero_engine *e) {
    uint64_t budget = e->config.budget_bytes[TIER_CPU], planned = planned_bytes(e, TIER_CPU);
    uint64_t slots = e->plan.row_bytes[MEMORY_SLOTS], chunk = e->plan.swap.chunk_elements;
    if (planned <= budget || planned - budget >= slots) return chunk;
    uint64_t most = 1 + (e->config.slots ? (uint64_t)e->config.slots : SLOTS_DEFAULT);
    uint64_t room = slots - (planned - budget), pages = most * CHUNK_ALIGN_BYTES;
    double all = (double)(most * e->plan.swap.slot_bytes);
    return room > pages ? (uint64_t)((double)chunk * (double)(room - pages) / all) : chunk;
}

static struct plan_options plan_options(const zero_engine *e) {
    return (struct plan_options){.model = &e->model,
                                 .policy = &e->policy,
                                 .state_count = e->state_count,
                                 .state_tier = (enum tier_kind)e->config.optimizer_tier,
                                 .param_tier = (enum tier_kind)e->config.param_tier,
                                 .chunk_elements_max = e->config.chunk_elements_max,
                                 .slots = (uint32_t)e->config.slots,
                                 .shadow = e->config.nvme_shadow,
                                 .separate = e->separate,
                                 .staging_bytes = staging_bytes(e, executor_staging_bytes),
                                 .gather_staging_bytes = staging_bytes(e, executor_gather_staging_bytes),
                                 .message_bytes =
                                     agreement_bytes(e) + sum_bytes(e) + PIECE_BYTES + separate_bytes(e),
                                 .checkpoint_bytes = saver_bytes(e),
                                 .precision = e->precision};
}

static zero_status make_plan(zero_engine *e, struct zero_error *error) {
    e->policy.stagings = staging_bytes(e, executor_staging_bytes) ? REDUCE_STAGINGS : 0;
    e->policy.gather_stagings = param_bits(e) ? GATHER_STAGINGS : 0;
    struct plan_options options = plan_options(e);
    return plan_make(&e->plan, &options, error);
}

static zero_status refit(zero_engine *e, uint64_t chunk, uint64_t resident, struct zero_error *error) {
    if (chunk == e->plan.swap.chunk_elements && !resident) return ZERO_OK;
    struct plan_options options = plan_options(e);
    options.chunk_elements_max = chunk;
    options.resident_bytes = resident;
    plan_free(&e->plan);
    return plan_make(&e->plan, &options, error);
}

/* The plan again, as the budget leaves room for it: in all ranks the least that any has, for they must emit alike.
 * A rank that has failed `before` sets no bound. */
static zero_status fit_plan(zero_engine *e, zero_status before, struct zero_error *error) {
    enum { CHUNK, RESIDENT, BOUNDS };
    uint64_t bound[BOUNDS] = {UINT64_MAX, UINT64_MAX};
    bool drive = e->config.optimizer_tier == CONFIG_TIER_NVME || e->config.param_tier == CONFIG_TIER_NVME;
    if (!drive) return before;
    if (!before) bound[CHUNK] = fitting_chunk(e), bound[RESIDENT] = resident_bytes(e);
    struct zero_error unheard;
    error_clear(&unheard);
    zero_status status = engine_least(e, bound, BOUNDS, "room for chunks", &unheard);
    if (before) return before;
    if (status) return error_pass(error, &unheard);
    return refit(e, bound[CHUNK], bound[RESIDENT], error);
}

zero_status commit_try(zero_engine *e, uint64_t out_bytes[TIERS], struct zero_error *error) {
    free(e->regions), free(e->refresh);
    plan_free(&e->plan);
    e->regions = NULL, e->refresh = NULL;
    e->plan = (struct plan){0};
    struct policy fresh = {.mesh = {e->policy.mesh[AXIS_SHARD], e->policy.mesh[AXIS_REPLICATE]}};
    e->policy = fresh;
    engine_open_precision(e);
    zero_status status = open_policy(e, error);
    if (!status) status = borrowed_check(e, error);
    if (!status) status = make_plan(e, error);
    if (!status) status = refit(e, fitting_chunk(e), resident_bytes(e), error);
    for (int t = 0; t < TIERS && !status; t++) out_bytes[t] = planned_bytes(e, t);
    return status;
}

static zero_status check_budgets(zero_engine *e, struct zero_error *error) {
    static const char *const names[ZERO_TIERS] = {"device", "cpu", "nvme"};
    uint64_t need[TIERS];
    char owners[320], advice[420];
    for (int t = 0; t < TIERS; t++) need[t] = planned_bytes(e, t);
    for (int t = 0; t < ZERO_TIERS; t++) {
        uint64_t budget = e->config.budget_bytes[t];
        if (need[t] <= budget) continue;
        advice_owners(e, t, owners, sizeof owners);
        advice_write(e, need, advice, sizeof advice);
        return error_set(error, ZERO_E_BUDGET,
                         "memory.%s: the plan needs %" PRIu64 " bytes per rank, %" PRIu64
                         " more than the budget of %" PRIu64 "; %s. The largest: %s",
                         names[t], need[t], need[t] - budget, budget, advice, owners);
    }
    return ZERO_OK;
}

/* ---- allocation ---- */

static uint8_t *row_address(const zero_engine *e, enum memory_row row) {
    struct tier *tier = e->tier[e->plan.row_tier[row]];
    return (uint8_t *)tier->ops->address(tier) + e->plan.row_offset[row];
}

/* Chunks and parameters go to and come from these rows, which are pinned for the drive's requests. */
static uint32_t transfer_buffers(const zero_engine *e, struct device_span out[2]) {
    static const enum memory_row rows[] = {MEMORY_SLOTS, MEMORY_PARAM_STAGING};
    uint32_t count = 0;
    for (int i = 0; i < 2; i++)
        if (e->plan.row_bytes[rows[i]])
            out[count++] = (struct device_span){row_address(e, rows[i]), e->plan.row_bytes[rows[i]]};
    return count;
}

static zero_status open_drive(zero_engine *e, struct zero_error *error) {
    const struct config *c = &e->config;
    const struct config_paths *paths =
        c->optimizer_tier == CONFIG_TIER_NVME ? &c->optimizer_paths : &c->param_paths;
    struct device_span buffers[2];
    char keep[64];
    snprintf(keep, sizeof keep, "zero-shadow-%05" PRIu32 "-of-%05" PRIu32, e->rank, e->size);
    struct tier_options options = {.bytes = e->plan.tier_bytes[TIER_NVME],
                                   .device = e->device,
                                   .requests_max = executor_requests_max(&e->plan),
                                   .log = &e->log,
                                   .faults = e->faults,
                                   .nvme = {.paths = (const char *const *)paths->items,
                                            .path_count = (uint32_t)paths->count,
                                            .block_bytes = (uint32_t)c->aio_block_bytes,
                                            .queue_depth = (uint32_t)c->aio_queue_depth,
                                            .keep = c->nvme_shadow ? keep : NULL,
                                            .discard = e->discard_shadow,
                                            .buffers = buffers,
                                            .buffer_count = transfer_buffers(e, buffers),
                                            .no_uring = c->nvme_uring == CONFIG_URING_NEVER}};
    return tier_open(TIER_NVME, &options, &e->tier[TIER_NVME], error);
}

static zero_status allocate(zero_engine *e, struct zero_error *error) {
    for (int t = 0; t < TIER_NVME; t++) {
        struct tier_options options = {.bytes = e->plan.tier_bytes[t], .device = e->device};
        zero_status status = tier_open((enum tier_kind)t, &options, &e->tier[t], error);
        if (status) return status;
    }
    return open_drive(e, error);
}

static zero_status open_executor(zero_engine *e, struct zero_error *error) {
    struct executor_options o = {.policy = &e->policy,
                                 .model = &e->model,
                                 .plan = &e->plan,
                                 .comm = e->data,
                                 .world = e->world,
                                 .device = e->device,
                                 .separate = e->separate,
                                 .optimizer = e->optimizer,
                                 .state_count = e->state_count,
                                 .rank = e->rank,
                                 .threads = e->threads,
                                 .precision = e->precision,
                                 .param_bits = param_bits(e),
                                 .gradient_bits = gradient_bits(e),
                                 .gradient_factor = engine_gradient_factor(e),
                                 .native_reduction = e->config.comm.reduction == CONFIG_REDUCTION_NATIVE,
                                 .watch = trace_watch(e)};
    memcpy(o.group, e->group, sizeof o.group);
    for (int t = 0; t < TIERS; t++) o.memory[t] = e->tier[t]->ops->address(e->tier[t]);
    if (e->plan.tier_bytes[TIER_NVME]) o.drive = e->tier[TIER_NVME];
    uint8_t *messages = row_address(e, MEMORY_MESSAGES);
    o.agreements = (struct agreement *)(void *)messages;
    e->sum_message = messages + agreement_bytes(e);
    e->piece = e->sum_message + sum_bytes(e);
    for (int i = 0; i < 2; i++) e->bounce[i] = e->piece + (i + 1) * PIECE_BYTES;
    if (e->separate) o.norms = (double *)(void *)(e->piece + 3 * PIECE_BYTES);
    return executor_open(&o, &e->executor, error);
}

/* A rank that fails goes on to where the others meet it. */
static zero_status lay_plan(zero_engine *e, struct zero_error *error) {
    e->model.dtype = e->precision.compute;
    zero_status status = trace_open(e, error);
    if (!status) status = groups_check(e, error);
    if (!status) status = model_lay_out(&e->model, e->size, e->config.persistence_threshold, error);
    if (!status) status = open_policy(e, error);
    if (!status) status = borrowed_check(e, error);
    if (!status) status = make_plan(e, error);
    return fit_plan(e, status, error);
}

/* The host's own optimizer is the host's code. */
static zero_status check_optimizer(const zero_engine *e, struct zero_error *error) {
    bool on_device = e->separate && e->config.optimizer_tier == CONFIG_TIER_DEVICE;
    if (!on_device || kernel_optimizer_step(e->optimizer)) return ZERO_OK;
    return error_set(error, ZERO_E_UNSUPPORTED,
                     "optimizer \"%s\" is the host program's and runs on the CPU: keep its state there, with "
                     "zero_optimization.offload_optimizer.device \"cpu\" or \"nvme\"",
                     e->optimizer->name);
}

/* All that the steps may want. */
static zero_status load_kernels(zero_engine *e, struct zero_error *error) {
    const struct kernel *others[] = {&kernel_ordered_sum, kernel_optimizer_step(e->optimizer)};
    struct device *device = e->device;
    zero_status status = ZERO_OK;
    if (!device->ops->prepare) return ZERO_OK;
    for (int i = 0; i < WORK_KERNELS && !status; i++)
        status = device->ops->prepare(device, work_kernels[i], error);
    for (int i = 0; i < 2 && !status; i++)
        if (others[i]) status = device->ops->prepare(device, others[i], error);
    return status;
}

/* A GPU's tier is not the host's. */
static uint64_t host_bytes(const zero_engine *e) {
    uint64_t device = e->separate ? 0 : planned_bytes(e, TIER_DEVICE);
    return add_saturated(planned_bytes(e, TIER_CPU), device);
}

static zero_status prepare(zero_engine *e, struct zero_error *error) {
    zero_status status = lay_plan(e, error);
    if (!status) status = check_optimizer(e, error);
    if (!status) status = check_budgets(e, error);
    if (!status) status = host_memory_check(&e->host_memory, host_bytes(e), e->memory_ranks, error);
    if (!status) status = allocate(e, error);
    if (!status) status = open_executor(e, error);
    return status ? status : load_kernels(e, error);
}

static double drive_life_steps(const zero_engine *e) {
    uint64_t written = e->plan.swap.step_bytes * e->node_ranks;
    return written ? e->config.nvme_endurance_tbw * 1e12 / (double)written : 0;
}

static void report_plan(const zero_engine *e, zero_plan *out) {
    const struct plan *p = &e->plan;
    zero_plan plan = {.struct_size = out->struct_size,
                      .params = e->model.param_elements,
                      .params_padded = e->model.padded_elements,
                      .param_bytes =
                          p->row_bytes[MEMORY_PARAMETERS] + p->row_bytes[MEMORY_OFFLOADED_PARAMETERS],
                      .grad_bytes = p->row_bytes[MEMORY_GRADIENTS] + p->row_bytes[MEMORY_HOST_GRADIENTS],
                      .resident_state_bytes = p->row_bytes[MEMORY_STATE0] + p->row_bytes[MEMORY_STATE1],
                      .gathered_bytes = p->row_bytes[MEMORY_GATHERED],
                      .staging_bytes = p->row_bytes[MEMORY_STAGING] + p->row_bytes[MEMORY_MESSAGES] +
                                       p->row_bytes[MEMORY_SLOTS] + p->row_bytes[MEMORY_PARAM_STAGING] +
                                       p->row_bytes[MEMORY_CHECKPOINT] + p->row_bytes[MEMORY_UPDATE_STAGING] +
                                       p->row_bytes[MEMORY_NORMS],
                      .drive_read_bytes = p->swap.step_bytes + p->param_fetch_bytes,
                      .drive_write_bytes = p->swap.step_bytes,
                      .drive_life_steps = drive_life_steps(e),
                      .master_bytes = p->row_bytes[MEMORY_MASTERS]};
    plan.state_bytes = plan.resident_state_bytes + p->row_bytes[MEMORY_RECORDS];
    for (int t = 0; t < ZERO_TIERS; t++) {
        plan.bytes[t] = planned_bytes(e, t);
        plan.reserved_bytes += reserved_bytes(e, t);
    }
    memcpy(out, &plan, out->struct_size < sizeof plan ? out->struct_size : sizeof plan);
}

/* What the limits on gathered elements came to. */
static void log_live(const zero_engine *e) {
    const struct config *c = &e->config;
    if (e->rank || c->stage != 3 || (c->live_max == UINT64_MAX && c->ahead_max == UINT64_MAX)) return;
    log_line(&e->log, e->plan.live_most > c->live_max ? ZERO_LOG_WARN : ZERO_LOG_INFO,
             "at most %" PRIu64 " elements are gathered at once%s", e->plan.live_most,
             e->plan.live_most > c->live_max
                 ? ", more than zero_optimization.stage3_max_live_parameters: one unit alone needs them"
                 : "");
}

static void log_frozen(const zero_engine *e) {
    if (!e->rank && !e->policy.refreshes)
        log_line(&e->log, ZERO_LOG_WARN, "no parameter is trained: all are frozen");
}

/* What is on the drive, what that costs per step, and what the part in memory saves. */
static void log_drive(const zero_engine *e) {
    const struct plan *p = &e->plan;
    const struct swap *swap = &p->swap;
    if (e->rank || !p->tier_bytes[TIER_NVME]) return;
    double gib = 1.0 / (1 << 30), resident = (double)swap->resident_bytes, all = (double)swap->state_bytes;
    log_line(
        &e->log, ZERO_LOG_INFO,
        "nvme: a step reads %.3f GiB and writes %.3f GiB per rank, %" PRIu32 " chunks of at most %" PRIu64
        " elements at a time; %.1f %% of the optimizer state stays in memory, which saves %.3f GiB each way",
        (double)(swap->step_bytes + p->param_fetch_bytes) * gib, (double)swap->step_bytes * gib, swap->slots,
        swap->chunk_elements, all > 0 ? 100 * resident / all : 0,
        e->config.optimizer_tier == CONFIG_TIER_NVME ? resident * gib : 0);
    if (drive_life_steps(e) > 0)
        log_line(&e->log, ZERO_LOG_INFO,
                 "nvme: %.6g TB of endurance last %.4g steps of the node's %" PRIu32 " ranks",
                 e->config.nvme_endurance_tbw, drive_life_steps(e), e->node_ranks);
}

zero_status zero_engine_plan(zero_engine *e, zero_plan *out) {
    zero_status status = engine_check(e);
    if (status) return status;
    if (!e->plans_only || e->planned)
        return refuse(ZERO_E_ORDER, "zero_engine_plan: %s",
                      e->planned ? "the engine is planned already"
                                 : "the engine was opened without plan_ranks; commit plans");
    struct zero_error error;
    error_clear(&error);
    e->planned = true;
    status = open_mesh(e, &error);
    if (!status) status = lay_plan(e, &error);
    if (status) return engine_fail(e, &error);
    if (out) report_plan(e, out);
    return ZERO_OK;
}

struct blueprint engine_blueprint(zero_engine *e) {
    return (struct blueprint){.config = &e->config,
                              .model = &e->model,
                              .policy = &e->policy,
                              .plan = &e->plan,
                              .optimizer = e->optimizer,
                              .params = &e->params[0],
                              .group = (struct comm_group *const(*)[STREAMS])e->group,
                              .ranks = e->size,
                              .state_count = e->state_count,
                              .param_bits = param_bits(e),
                              .gradient_bits = gradient_bits(e),
                              .precision = e->precision};
}

zero_status zero_engine_commit(zero_engine *e, zero_plan *out) {
    zero_status status = engine_check(e);
    if (status) return status;
    if (e->phase != PHASE_DECLARING)
        return refuse(ZERO_E_ORDER, "zero_engine_commit: the engine is committed already");
    if (e->plans_only)
        return refuse(
            ZERO_E_ORDER,
            "zero_engine_commit: this engine has plan_ranks, and only plans: call zero_engine_plan");
    struct zero_error error;
    error_clear(&error);
    status = open_mesh(e, &error);
    if (status) return engine_fail(e, &error); /* the others may wait in a group's opening */
    prepare(e, &error);
    status = engine_agree_error(e, &error, "the commit");
    if (status) return status;
    /* Ranks that declare different models would add unlike gradients. */
    if (engine_compare(e, groups_hash(e, model_hash(&e->model)), ZERO_E_DIVERGED, "model", &error))
        return engine_fail(e, &error);
    bool moves = e->size > 1 || e->separate || e->plan.tier_bytes[TIER_NVME];
    if (moves) e->progress = progress_start(&e->lock, e->executor, e->data, e->separate);
    if (moves && !e->progress)
        log_line(&e->log, ZERO_LOG_WARN,
                 "no progress thread: collectives and chunks move only inside the engine's calls");
    status = shadow_open(e);
    if (status) return status;
    e->phase = PHASE_READY;
    log_live(e);
    log_frozen(e);
    log_drive(e);
    if (out) report_plan(e, out);
    return trace_step(e);
}
