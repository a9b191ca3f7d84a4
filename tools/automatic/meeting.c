#include "tools/automatic/meeting.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "engine/api/inside.h"
#include "engine/config/value.h"

static zero_status failed(struct zero_error *error) {
    return error_set(error, ZERO_E_INTERNAL, "%s", zero_last_error());
}

/* The others wait while rank 0 measures and prices. */
enum { PATIENCE_S = 60 };

/* An engine that never commits: its device and its ranks are those of the training. */
zero_status meeting_open(const struct config *c, bool alone, struct meeting *out, struct zero_error *error) {
    char json[256];
    *out = (struct meeting){.local = alone ? zero_local_create(1) : NULL};
    if (alone && !out->local) return failed(error);
    snprintf(json, sizeof json,
             "{\"train_micro_batch_size_per_gpu\": 1, \"comm\": {\"timeout_s\": %.17g}, \"device\": "
             "{\"type\": %s}}",
             fmax(c->comm.timeout_s, PATIENCE_S), config_entry(c, "device.type")->text);
    zero_runtime runtime = {
        .struct_size = sizeof runtime, .local = out->local, .threads = (uint32_t)c->threads, .cuda = 1};
    out->engine = zero_engine_init_with(json, &runtime);
    if (!out->engine) return failed(error);
    out->comm = engine_comm(out->engine, &out->node_ranks);
    out->rank = zero_engine_rank(out->engine), out->ranks = zero_engine_size(out->engine);
    out->threads = (uint32_t)zero_engine_threads(out->engine);
    out->host_bytes = engine_host_bytes(out->engine);
    out->on_gpu = zero_engine_cuda(out->engine, NULL) >= 0;
    uint32_t *members = calloc(out->ranks, sizeof *members);
    if (!members) return error_set(error, ZERO_E_MEMORY, "no memory for %u ranks", out->ranks);
    for (uint32_t r = 0; r < out->ranks; r++) members[r] = r;
    zero_status status = comm_group_open(out->comm, members, out->ranks, &out->all);
    free(members);
    return status ? error_pass(error, comm_error(out->comm)) : ZERO_OK;
}

zero_status meeting_tell(const struct meeting *m, void *bytes, uint64_t count, struct zero_error *error) {
    struct comm_call call = comm_broadcast(bytes, DTYPE_U8, count, 0, "what rank 0 chose");
    return comm_run(m->all, &call) ? error_pass(error, comm_group_error(m->all)) : ZERO_OK;
}

void meeting_close(struct meeting *m) {
    if (m->all) comm_group_close(m->all);
    zero_engine_destroy(m->engine);
    if (m->local) zero_local_destroy(m->local);
    *m = (struct meeting){0};
}
