#include "engine/inside.h"

#include "engine/calls/engine.h"

struct blueprint *engine_blueprint(zero_engine *e) {
    return &e->blueprint;
}
struct running *engine_running(zero_engine *e) {
    return &e->run;
}
struct comm *engine_comm(zero_engine *e, uint32_t *out_node_ranks) {
    *out_node_ranks = e->ranks.node_ranks;
    return e->ranks.comm;
}
uint64_t engine_host_bytes(const zero_engine *e) { return e->host.memory.bytes; }
void engine_plant_faults(zero_engine *e, struct faults *faults) { e->faults = e->park.faults = faults; }
