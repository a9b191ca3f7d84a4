/* Access to the inside of an engine, for the command, the planner and the simulator, and for tests that inspect plans, let
 * drives fail, or use another file system. Host programs do not need it. */
#pragma once

#include "engine/blueprint/blueprint.h"
#include "engine/checkpoint/storage.h"
#include "engine/comm/comm.h"
#include "engine/run/run.h"

/* zero_engine_init_with for a host that obeys the keys that the engine leaves to it, as `zero train` does. The log does not name them. */
zero_engine *engine_init_obeying(const char *json, const zero_runtime *runtime);

/* After zero_engine_plan or zero_engine_commit: what was planned. The borrower may run the policy; of an engine that only plans. */
struct blueprint *engine_blueprint(zero_engine *engine);

/* Before zero_engine_plan or zero_engine_commit: what the configuration resolves to, for tests of sizes that it has no keys for. */
struct terms *engine_terms(zero_engine *engine);

/* Device, executor, ranks and their log. */
struct running *engine_running(zero_engine *engine);

/* Before commit: the communicator of all ranks, and how many of them are on this rank's node. */
struct comm *engine_comm(zero_engine *engine, uint32_t *out_node_ranks);

/* The host memory that the ranks of this host may take together; UINT64_MAX: unknown. */
uint64_t engine_host_bytes(const zero_engine *engine);

/* zero_engine_save, _load and _prune on another file system. `what`: enum load_what (engine/state/saved.h). */
zero_status engine_save(zero_engine *engine, struct storage *storage, const char *dir);
zero_status engine_load(zero_engine *engine, struct storage *storage, const char *dir, int what);
zero_status engine_prune(zero_engine *engine, struct storage *storage, const char *dir, uint64_t keep);
