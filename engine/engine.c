/* Opening and closing an engine. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/calls/engine.h"
#include "engine/calls/given.h"
#include "engine/inside.h"
#include "engine/open/choices.h"
#include "engine/open/join.h"
#include "engine/ranks/local_ranks.h"
#include "engine/ranks/model_ranks.h"
#include "engine/run/progress.h"
#include "engine/state/background_save.h"

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
    turn_open(&e->ranks.lock);
    error_clear(&e->ranks.error);
    return e;
}

static zero_status open_training(zero_engine *e, bool obeys, struct zero_error *error) {
    e->config.host_obeys = obeys;
    zero_status status =
        training_open(&e->training, &e->config, &e->ranks.log, e->ranks.rank, e->ranks.data_size, error);
    if (status) return ranks_fail(&e->ranks, error);
    struct choices choices = {.config = &e->config,
                              .ranks = &e->ranks,
                              .schedule = &e->training.schedule,
                              .precision = blueprint_precision(&e->config),
                              .threads = e->host.threads,
                              .cpus = e->host.cpus,
                              .sharers = e->host.sharers,
                              .without_gpu = &e->host.without_gpu};
    choices_log(&choices);
    return ZERO_OK;
}

static zero_engine *init(const char *json, const zero_runtime *runtime, bool obeys) {
    zero_runtime given = {0};
    if (runtime && given_take(&given, sizeof given, runtime, runtime->struct_size, "zero_runtime"))
        return NULL;
    if (!json) {
        close_device(given.device);
        refuse(ZERO_E_ARGUMENT, "zero_engine_init: json is NULL; give a text or a path");
        return NULL;
    }
    zero_engine *e = make(&given);
    if (!e) return NULL;
    struct zero_error error;
    error_clear(&error);
    struct joining joining = {&e->config, &e->ranks, &e->run, &e->host};
    if (!join_ranks(&joining, json, &given, &error) && !open_training(e, obeys, &error)) return e;
    zero_engine_destroy(e);
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
    turn_close(&e->ranks.lock);
    free(e);
}
