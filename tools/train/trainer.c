/* What start, loop and end of a rank have in common. */
#include "tools/train/trainer.h"

#include <stdio.h>
#include <unistd.h>

zero_status trainer_failed(struct trainer *t, zero_status status) {
    return agreement_engine_failed(status, t->error);
}

void trainer_enter(const struct trainer *t, enum interrupt_phase phase, const char *doing) {
    if (!t->job->local || t->rank == 0) interrupt_enter(phase, doing);
}

zero_status trainer_sum(struct trainer *t, double *values, uint32_t count) {
    zero_status status = agreement_sum(t->engine, values, count, t->error);
    t->stops = values[FAILED] > 0 || values[INTERRUPTED] > 0;
    return status;
}

zero_status trainer_agree(struct trainer *t) { return trainer_sum(t, (double[AGREED]){0}, AGREED); }

zero_status trainer_count(struct trainer *t) {
    zero_status status = zero_engine_flush(t->engine);
    if (status != ZERO_OK) return trainer_failed(t, status);
    t->counters.struct_size = sizeof t->counters;
    zero_engine_counters(t->engine, &t->counters);
    return ZERO_OK;
}

void trainer_trace(const struct trainer *t, bool drops, char out_path[RUN_PATH_BYTES]) {
    snprintf(out_path, RUN_PATH_BYTES, "%s/trace.json", t->directory.path);
    if (drops) unlink(out_path); /* the file is made anew: a link is replaced, not followed */
}
