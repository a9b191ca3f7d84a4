#include "engine/api/inside.h"

#include "engine/api/engine.h"

struct blueprint *engine_blueprint(zero_engine *e) {
    return &e->blueprint;
}
struct running *engine_running(zero_engine *e) {
    return &e->run;
}
struct terms *engine_terms(zero_engine *engine) {
    return &engine->config.terms;
}

struct comm *engine_comm(zero_engine *e, uint32_t *out_node_ranks) {
    *out_node_ranks = e->ranks.node_ranks;
    return e->ranks.comm;
}
uint64_t engine_host_bytes(const zero_engine *e) { return e->host.memory.bytes; }
