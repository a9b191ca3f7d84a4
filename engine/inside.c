#include "engine/inside.h"

#include "engine/engine.h"

struct blueprint *engine_blueprint(zero_engine *e) {
    return &e->blueprint;
}
struct running *engine_running(zero_engine *e) {
    return &e->run;
}
void engine_plant_faults(zero_engine *e, struct faults *faults) { e->faults = e->park.faults = faults; }
