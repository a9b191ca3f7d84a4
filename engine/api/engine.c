/* Opening and closing an engine. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/api/engine.h"
#include "engine/api/inside.h"
#include "engine/open/join.h"
#include "engine/ranks/local_ranks.h"
#include "engine/ranks/model_ranks.h"
#include "engine/run/run.h"
#include "engine/state/background_save.h"
#include "kernels/quantize.h"

/* Each room borrows from those below it. */
static void connect_rooms(zero_engine *e) {
    e->ranks.step = &e->training.steps;
    e->run.ranks = &e->ranks;
    e->pass.run = &e->run;
    e->pass.state = &e->state;
    e->pass.blueprint = &e->blueprint;
    e->pass.model = &e->model;
    e->state.run = &e->run;
    e->state.ranks = &e->ranks;
    e->state.blueprint = &e->blueprint;
    e->state.model = &e->model;
    e->state.peers = &e->peers;
    e->state.training = &e->training;
    e->step.run = &e->run;
    e->step.state = &e->state;
    e->step.blueprint = &e->blueprint;
    e->step.peers = &e->peers;
    e->step.training = &e->training;
    e->park.run = &e->run;
    e->park.state = &e->state;
    e->park.blueprint = &e->blueprint;
    e->park.host = &e->host;
}

static void close_device(struct device *device) {
    if (device) device->ops->close(device);
}

static zero_engine *make(const zero_runtime *given) {
    zero_engine *e = calloc(1, sizeof *e);
    if (e) e->ranks.outliving = outliving_create();
    if (!e || !e->ranks.outliving) {
        close_device(given->device);
        free(e);
        refuse(ZERO_E_MEMORY, "zero_engine_init: no memory for the engine");
        return NULL;
    }
    connect_rooms(e);
    e->ranks.process = getpid();
    e->host.local = given->local;
    e->host.discard_shadow = given->discard_shadow;
    e->host.interrupted = given->interrupted;
    e->host.interrupted_user = given->interrupted_user;
    e->run.device = given->device;
    e->ranks.log = (struct log){given->log, given->log_user};
    fair_lock_open(&e->ranks.lock);
    error_clear(&e->ranks.error);
    return e;
}

/* ---- the first lines of the log ---- */

static void log_model_ranks(const zero_engine *e) {
    if (e->ranks.model_size == 1) return;
    log_line(&e->ranks.log, ZERO_LOG_INFO,
             "the host program has cut its model for %" PRIu32 " model ranks, each on %" PRIu32 " data ranks",
             e->ranks.model_size, e->ranks.data_size);
}

static void log_mesh(const zero_engine *e) {
    uint64_t group = e->config.shard_ranks;
    if (group == e->ranks.data_size) return;
    log_line(&e->ranks.log, ZERO_LOG_INFO, "ranks share in %" PRIu64 " groups of %" PRIu64 ": %s",
             e->ranks.data_size / group, group,
             e->config.reshard == RESHARD_GROUP
                 ? "each group keeps a second shard of the parameters between forward and backward"
                 : "each group shares one copy; gradients are then added over the copies");
    if (e->config.node_group % group)
        log_line(
            &e->ranks.log, ZERO_LOG_WARN,
            "groups of %" PRIu64 " adjacent ranks cross from one node to another, and groups of %" PRIu64
            " do not: number ranks node by node (mpirun --map-by slot), or choose a divisor of that number",
            group, e->config.node_group);
}

static void log_codes(const zero_engine *e) {
    const struct config_groups *groups = &e->config.groups;
    enum code_format run = (enum code_format)e->config.weight_code;
    if (run)
        log_line(&e->ranks.log, ZERO_LOG_WARN,
                 "inexact by request (zero_quantized_weights): parameters are gathered in blockwise %s",
                 code_format_name(run));
    for (uint32_t g = 0; g < groups->count; g++) {
        int own = groups->item[g].weight_code;
        if (own > CODE_NONE && own != (int)run)
            log_line(&e->ranks.log, ZERO_LOG_WARN,
                     "inexact by request (param_groups[%" PRIu32
                     "].zero_quantized_weights): its parameters are gathered in blockwise %s",
                     g, code_format_name((enum code_format)own));
        else if (own == CODE_NONE && run)
            log_line(&e->ranks.log, ZERO_LOG_INFO,
                     "param_groups[%" PRIu32 "]: its parameters are gathered as they are", g);
    }
}

static void log_keys(const zero_engine *e, const char *keys) {
    log_line(&e->ranks.log, ZERO_LOG_INFO,
             "accepted, and without effect here (zero config --changed says why): %s", keys);
}

/* Lines name all keys that have no effect; with one such key the line says what is done instead. */
static void log_accepted(const zero_engine *e) {
    char keys[900];
    size_t at = 0;
    uint64_t count = e->config.line_count;
    if (count == 1) log_line(&e->ranks.log, ZERO_LOG_INFO, "%s", e->config.lines[0]);
    for (uint64_t i = 0; i < count && count > 1; i++) {
        const char *line = e->config.lines[i];
        int length = (int)strcspn(line, " ");
        if (at + (size_t)length + 2 >= sizeof keys) log_keys(e, keys), at = 0;
        at += (size_t)sprintf(keys + at, "%s%.*s", at ? ", " : "", length, line);
    }
    if (at) log_keys(e, keys);
}

/* What the configuration came to. Rank 0 logs. */
static void log_choices(const zero_engine *e) {
    const struct precision precision = e->config.terms.precision;
    if (e->ranks.rank) return;
    if (e->host.without_gpu.code)
        log_line(&e->ranks.log, ZERO_LOG_WARN, "computes on the CPU, not on this machine's NVIDIA GPU: %s",
                 e->host.without_gpu.message);
    log_accepted(e);
    if (e->config.model.own_code)
        log_line(&e->ranks.log, ZERO_LOG_WARN,
                 "model.auto_map: the model's own code is not run: it is computed as the model_type has it");
    char idle[1000];
    for (uint32_t i = 0; config_idle(&e->config, i, idle, sizeof idle); i++)
        if (*idle) log_line(&e->ranks.log, ZERO_LOG_INFO, "%s", idle);
    char of[64] = "";
    if (e->host.cpus)
        snprintf(of, sizeof of, " (%" PRIu32 " CPUs, shared by %" PRIu32 " ranks)", e->host.cpus,
                 e->host.sharers);
    log_line(&e->ranks.log, ZERO_LOG_INFO,
             "%s, %" PRIu32 " ranks over %s, %" PRIu32
             " threads each%s, compute in %s, gradients reduced %s in %s",
             e->config.terms.stage->name, e->ranks.size, comm_name(e->ranks.data), e->host.threads, of,
             dtype_name(precision.compute), accumulations[e->config.accumulation_mode].when,
             dtype_name(precision.reduced));
    log_model_ranks(e);
    log_mesh(e);
    if (e->config.prescale && e->config.predivide != 1)
        log_line(&e->ranks.log, ZERO_LOG_WARN,
                 "gradient_predivide_factor = %g: has no effect beside prescale_gradients, which divides by "
                 "all ranks",
                 e->config.predivide);
    if (lr_schedule_key(e->config.schedule_row, "total_num_steps") &&
        e->training.schedule.warmup_num_steps > e->training.schedule.total_num_steps)
        log_line(&e->ranks.log, ZERO_LOG_WARN,
                 "scheduler.params.total_num_steps: %s ends after %" PRId64 " steps, before its %" PRId64
                 " steps of warmup do",
                 e->config.schedule_row->name, (int64_t)e->training.schedule.total_num_steps,
                 (int64_t)e->training.schedule.warmup_num_steps);
    log_codes(e);
    if (e->config.quantized_gradients)
        log_line(
            &e->ranks.log, ZERO_LOG_WARN,
            "inexact by request (zero_quantized_gradients): gradients are reduced in blockwise int%" PRIu64,
            e->config.comm.quantized_gradient_bits);
    if (precision.state != DTYPE_F32)
        log_line(&e->ranks.log, ZERO_LOG_WARN,
                 "inexact by request (bf16.bf16_optimizer_states): optimizer states are bf16, rounded "
                 "stochastically from seed %" PRIu64,
                 e->config.seed);
}

/* ---- opening ---- */

static zero_status open_training(zero_engine *e, bool obeys, struct zero_error *error) {
    e->config.host_obeys = obeys;
    zero_status status =
        training_open(&e->training, &e->config, &e->ranks.log, e->ranks.rank, e->ranks.data_size, error);
    if (status) return ranks_fail(&e->ranks, error);
    e->training.fault = &e->ranks.fault;
    log_choices(e);
    return ZERO_OK;
}

/* The other ranks need not wait for one that has not reached them. */
static void tell_threads(const zero_runtime *given, const struct zero_error *error) {
    struct zero_error told = ERROR_NONE;
    bool known = given->local_rank < local_ranks(given->local);
    if (known)
        error_set(&told, error->code, "rank %u could not open its engine: %s", given->local_rank,
                  error->message);
    else
        error_set(&told, error->code, "a rank could not open its engine: %s", error->message);
    told.rank = known ? (int32_t)given->local_rank : -1;
    local_world_fail(local_world_of(given->local), &told);
}

static zero_engine *init(const char *json, const zero_runtime *runtime, bool obeys) {
    zero_runtime given = {0};
    if (runtime && sized_take(&given, sizeof given, runtime, runtime->struct_size, "zero_runtime"))
        return NULL;
    zero_engine *e = make(&given);
    if (!e) return NULL;
    struct zero_error error = ERROR_NONE;
    struct joining joining = {&e->config, &e->ranks, &e->run, &e->host};
    if (!join_ranks(&joining, json, &given, &error) && !open_training(e, obeys, &error)) return e;
    zero_engine_destroy(e);
    if (given.local) tell_threads(&given, &error);
    refuse_error(&error);
    return NULL;
}

zero_engine *zero_engine_init_with(const char *json, const zero_runtime *runtime) {
    failure_call("zero_engine_init_with", NULL);
    return init(json, runtime, false);
}

zero_engine *engine_init_obeying(const char *json, const zero_runtime *runtime) {
    failure_call("zero_engine_init_with", NULL);
    return init(json, runtime, true);
}

zero_engine *zero_engine_init(const char *json) {
    failure_call("zero_engine_init", NULL);
    return init(json, NULL, false);
}

zero_status zero_engine_open(const char *json, const zero_runtime *runtime, zero_engine **out) {
    failure_call("zero_engine_open", NULL);
    if (!out) return refuse(ZERO_E_ARGUMENT, "zero_engine_open: out is NULL");
    zero_engine *e = init(json, runtime, false);
    if (!e) return failure_last()->error.code;
    *out = e;
    return ZERO_OK;
}

zero_status zero_engine_fail(zero_engine *e, const char *why) {
    struct zero_error error = ERROR_NONE;
    if (!engine_given(e, "zero_engine_fail")) return ZERO_E_ARGUMENT;
    TRY(ranks_check(&e->ranks));
    error.rank = (int32_t)e->ranks.rank;
    error_set(&error, ZERO_E_INTERRUPTED, "%s", why && *why ? why : "the program has ended the run");
    ranks_fail(&e->ranks, &error);
    return ZERO_OK;
}

/* ---- closing ---- */

static void close_ranks(zero_engine *e) {
    for (int axes = 0; axes <= AXES_BOTH; axes++)
        for (int s = 0; s < STREAMS; s++)
            if (e->group[axes][s]) comm_group_close(e->group[axes][s]);
    if (e->ranks.data != e->ranks.comm) comm_close(e->ranks.data);
    model_ranks_close(&e->ranks);
    if (e->ranks.world) comm_group_close(e->ranks.world);
    comm_close(e->ranks.comm);
}

/* A forked child has none of the engine's threads, and shares the parent's connections. */
void zero_engine_destroy(zero_engine *e) {
    if (!e || e->ranks.process != getpid()) return;
    ranks_check_host(&e->ranks, false);
    background_save_drop(&e->state);
    if (e->run.executor && !e->ranks.error.code) run_leave(&e->run, 10 * e->config.comm.timeout_s);
    progress_stop(e->run.progress);
    bool failed = e->ranks.error.code || (e->ranks.comm && comm_error(e->ranks.comm)->code);
    bool in_flight = e->run.executor && executor_in_flight(e->run.executor);
    scratches_close(&e->scratches);
    close_ranks(e);
    park_close(&e->park);
    outliving_release(e->ranks.outliving, e->host.local, e->run.tier, e->run.device,
                      e->ranks.size > 1 && (failed || in_flight));
    executor_close(e->run.executor);
    trace_close(e->trace);
    blueprint_free(&e->blueprint);
    model_free(&e->model);
    peers_close(&e->peers);
    manifest_free_entries(&e->state.notes);
    manifest_free_entries(&e->state.shadow.notes);
    config_free(&e->config);
    fair_lock_close(&e->ranks.lock);
    free(e);
}
