/* Failures as the host sees them: the thread's last sentence, and the engine's sticky one. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "engine/engine_internal.h"

static _Thread_local char last_error[sizeof((struct zero_error *)0)->message];

const char *zero_last_error(void) { return last_error; }

zero_status last_error_set(zero_status status, const char *format, ...) {
    char line[sizeof last_error];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    strcpy(last_error, line);
    return status;
}

zero_status engine_fail(zero_engine *e, const struct zero_error *error) {
    if (!e->error.code) {
        e->error = *error;
        e->error.step = e->steps;
        turn_take(&e->lock); /* the progress thread may be at work with the comm */
        if (e->comm && error->code != ZERO_E_PEER) comm_fail(e->comm, &e->error);
        comm_abandon(e->data); /* the host may free memory of the GPU next */
        turn_give(&e->lock);
    }
    return engine_check(e);
}

zero_status engine_check(zero_engine *e) {
    if (e->error.code) last_error_set(e->error.code, "%s", e->error.message);
    return e->error.code;
}
