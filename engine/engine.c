/* Opening and closing an engine. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine_internal.h"
#include "engine/saver.h"
#include "engine/groups.h"
#include "engine/settings.h"
#include "engine/trace.h"

const char *zero_version(void) { return "0.1.0"; }

uint32_t zero_engine_rank(const zero_engine *e) { return e->rank; }
uint32_t zero_engine_size(const zero_engine *e) { return e->size; }
uint64_t zero_engine_steps(const zero_engine *e) { return e->steps; }
uint32_t zero_engine_threads(const zero_engine *e) { return e->threads; }

_Static_assert((int)ZERO_F32 == (int)DTYPE_F32 && (int)ZERO_BF16 == (int)DTYPE_BF16 &&
                   (int)ZERO_F16 == (int)DTYPE_F16,
               "types are numbered alike");
zero_dtype zero_engine_dtype(const zero_engine *e) { return (zero_dtype)e->precision.compute; }

static zero_status open_optimizer(zero_engine *e, struct zero_error *error) {
    const struct config_optimizer *c = &e->config.optimizer;
    e->optimizer = optimizer_find(c->name);
    if (!e->optimizer)
        return error_set(error, ZERO_E_CONFIG, "optimizer.type: there is no optimizer \"%s\"", c->name);
    e->params[0] = (struct optimizer_params){.lr = c->lr,
                                             .beta1 = c->betas[0],
                                             .beta2 = c->betas[1],
                                             .eps = c->eps,
                                             .weight_decay = c->weight_decay,
                                             .momentum = c->momentum,
                                             .dampening = c->dampening,
                                             .lr_decay = c->lr_decay,
                                             .nesterov = c->nesterov,
                                             .bias_correction = c->bias_correction};
    groups_open(e);
    e->state_count = optimizer_states_used(e->optimizer, &e->params[0]);
    return ZERO_OK;
}

_Static_assert((int)CONFIG_FP32 == (int)DTYPE_F32 && (int)CONFIG_BF16 == (int)DTYPE_BF16 &&
                   (int)CONFIG_FP16 == (int)DTYPE_F16,
               "types are numbered alike");

struct loss_scale engine_loss_scale(const zero_engine *e) {
    const struct config *c = &e->config;
    if (c->compute_dtype != CONFIG_FP16) return (struct loss_scale){.value = 1};
    bool dynamic = c->fp16.loss_scale == 0;
    return (struct loss_scale){.value =
                                   dynamic ? ldexp(1, (int)c->fp16.initial_scale_power) : c->fp16.loss_scale,
                               .dynamic = dynamic,
                               .min = (double)c->fp16.min_loss_scale,
                               .window = c->fp16.loss_scale_window,
                               .hysteresis = c->fp16.hysteresis,
                               .consecutive = c->fp16.consecutive_hysteresis,
                               .allowed = c->fp16.hysteresis};
}

void engine_open_precision(zero_engine *e) {
    const struct config *c = &e->config;
    bool shards_accumulate = c->accumulation_steps > 1 && c->accumulation_mode == CONFIG_ACCUMULATE_EVERY;
    e->precision =
        precision_make((enum dtype)c->compute_dtype, (enum dtype)c->communication_dtype, shards_accumulate);
    e->precision.state = c->bf16_states ? DTYPE_BF16 : DTYPE_F32;
    e->precision.copies = c->nvme_shadow;
    e->precision.split = c->nvme_masters == CONFIG_MASTERS_SPLIT;
    e->loss_scale = engine_loss_scale(e);
}

const struct stage *engine_stage(const zero_engine *e) {
    static const enum stage_index rows[][3] = {
        [0] = {STAGE_ZERO0},
        [1] = {STAGE_ZERO1},
        [2] = {STAGE_ZERO2},
        [3] = {[CONFIG_RESHARD_ALL] = STAGE_ZERO3,
               [CONFIG_RESHARD_NONE] = STAGE_ZERO3_KEEP,
               [CONFIG_RESHARD_GROUP] = STAGE_HPZ},
    };
    return stages[rows[e->config.stage][e->config.reshard]];
}

static void log_mesh(const zero_engine *e) {
    uint64_t group = e->config.shard_ranks;
    if (group == e->size) return;
    log_line(&e->log, ZERO_LOG_INFO, "ranks share in %" PRIu64 " groups of %" PRIu64 ": %s", e->size / group,
             group,
             e->config.reshard == CONFIG_RESHARD_GROUP
                 ? "each keeps a second shard of the parameters between forward and backward"
                 : "each cuts one copy, and gradients are added over the copies after that");
    if (e->config.node_group % group)
        log_line(&e->log, ZERO_LOG_WARN,
                 "groups of %" PRIu64
                 " adjacent ranks reach over the bounds of nodes, which are whole for groups of "
                 "%" PRIu64 ": number ranks node by node (mpirun --map-by slot), or choose a divisor of that",
                 group, e->config.node_group);
}

static void log_choices(const zero_engine *e) {
    if (e->rank) return;
    for (uint64_t i = 0; i < e->config.line_count; i++)
        log_line(&e->log, ZERO_LOG_INFO, "%s", e->config.lines[i]);
    char idle[512];
    for (uint32_t i = 0; config_idle(&e->config, i, idle, sizeof idle); i++)
        if (*idle) log_line(&e->log, ZERO_LOG_INFO, "%s", idle);
    static const char *const modes[] = {[CONFIG_ACCUMULATE_LAST] = "in the last micro-step",
                                        [CONFIG_ACCUMULATE_EVERY] = "in every micro-step"};
    log_line(&e->log, ZERO_LOG_INFO,
             "%s, %" PRIu32 " ranks over %s, %" PRIu32
             " threads each, compute in %s, gradients reduced %s in %s",
             engine_stage(e)->name, e->size, comm_name(e->data), e->threads, dtype_name(e->precision.compute),
             modes[e->config.accumulation_mode], dtype_name(e->precision.reduced));
    log_mesh(e);
    if (e->config.prescale && e->config.predivide != 1)
        log_line(&e->log, ZERO_LOG_WARN,
                 "gradient_predivide_factor = %g: has no effect beside prescale_gradients, which divides by "
                 "all ranks",
                 e->config.predivide);
    bool decays = e->config.schedule_kind == LR_WARMUP_DECAY || e->config.schedule_kind == LR_WARMUP_COSINE;
    if (decays && e->schedule.warmup_num_steps > e->schedule.total_num_steps)
        log_line(&e->log, ZERO_LOG_WARN,
                 "scheduler.params.total_num_steps: %s ends after %" PRId64 " steps, before its %" PRId64
                 " steps of warmup do",
                 lr_schedules[e->config.schedule_kind]->name, (int64_t)e->schedule.total_num_steps,
                 (int64_t)e->schedule.warmup_num_steps);
    if (e->config.quantized_weights)
        log_line(&e->log, ZERO_LOG_WARN,
                 "inexact by request (zero_quantized_weights): parameters are gathered in blockwise int8");
    if (e->config.quantized_gradients)
        log_line(
            &e->log, ZERO_LOG_WARN,
            "inexact by request (zero_quantized_gradients): gradients are reduced in blockwise int%" PRIu64,
            e->config.comm.quantized_gradient_bits);
    if (e->precision.state != DTYPE_F32)
        log_line(&e->log, ZERO_LOG_WARN,
                 "inexact by request (bf16.bf16_optimizer_states): optimizer states are bf16, rounded "
                 "stochastically from seed %" PRIu64,
                 e->config.seed);
}

static zero_status open_parts(zero_engine *e, struct zero_error *error) {
    engine_open_precision(e);
    zero_status status = open_optimizer(e, error);
    if (!status) status = settings_open(e, error);
    if (status) return engine_fail(e, error);
    log_choices(e);
    return ZERO_OK;
}

zero_engine *zero_engine_init_with(const char *json, const zero_runtime *runtime) {
    zero_runtime given = {0};
    if (runtime)
        memcpy(&given, runtime, runtime->struct_size < sizeof given ? runtime->struct_size : sizeof given);
    zero_engine *e = calloc(1, sizeof *e);
    if (e) e->kept = kept_create();
    if (!json || !e || !e->kept) {
        if (given.device) given.device->ops->close(given.device);
        if (e) free(e->kept);
        free(e);
        if (!json)
            return refuse(ZERO_E_ARGUMENT, "zero_engine_init: json is NULL; give a text or a path"), NULL;
        return refuse(ZERO_E_MEMORY, "zero_engine_init: no memory for the engine"), NULL;
    }
    e->local = given.local;
    e->device = given.device;
    e->discard_shadow = given.discard_shadow;
    e->interrupted = given.interrupted;
    e->interrupted_user = given.interrupted_user;
    turn_open(&e->lock);
    error_clear(&e->error);
    e->log = (struct log){given.log, given.log_user};
    struct zero_error error;
    error_clear(&error);
    if (!engine_join(e, json, &given, &error) && !open_parts(e, &error)) return e;
    zero_engine_destroy(e);
    refuse(error.code, "%s", error.message);
    return NULL;
}

zero_engine *zero_engine_init(const char *json) { return zero_engine_init_with(json, NULL); }

void zero_engine_destroy(zero_engine *e) {
    if (!e) return;
    saver_drop(e);
    progress_stop(e->progress);
    bool failed = e->error.code || (e->comm && comm_error(e->comm)->code);
    bool peers_use_it = e->size > 1 && (failed || (e->executor && executor_in_flight(e->executor)));
    for (int axes = 0; axes <= AXES_BOTH; axes++)
        for (int s = 0; s < STREAMS; s++)
            if (e->group[axes][s]) comm_group_close(e->group[axes][s]);
    if (e->data != e->comm) comm_close(e->data);
    if (e->world) comm_group_close(e->world);
    comm_close(e->comm);
    kept_release(e, peers_use_it);
    executor_close(e->executor);
    trace_close(e);
    plan_free(&e->plan);
    free(e->regions);
    free(e->refresh);
    model_free(&e->model);
    manifest_free_entries(&e->notes);
    manifest_free_entries(&e->shadow_notes);
    config_free(&e->config);
    turn_close(&e->lock);
    free(e);
}
