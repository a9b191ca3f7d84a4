#include "engine/run/trace.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/run/events.h"

enum { EVENTS_MAX = 1 << 15, WRITERS_MAX = 16 }; /* a timeline of more ranks is unreadable */

struct trace {
    struct executor_watch watch;
    struct ranks *ranks;
    uint64_t first, steps, seen; /* seen: steps made since the commit */
    uint64_t origin_ns;          /* all ranks left a barrier then */
    bool on;
    struct trace_events events;
    struct trace_event event[EVENTS_MAX];
};

/* ---- the executor's watch: under the engine's lock ---- */

static void started(void *user, const struct operation *op, uint32_t item, const uint32_t *read,
                    const uint32_t *write) {
    struct trace *t = user;
    if (t->on) trace_events_start(&t->events, op, item, write, clock_now_ns());
}

static void done(void *user, const struct operation *op, uint32_t item, const uint32_t *read,
                 const uint32_t *write) {
    struct trace *t = user;
    trace_events_done(&t->events, op, item, clock_now_ns());
}

/* ---- when ---- */

zero_status trace_reserve(struct trace_steps steps, struct reservations *reservations,
                          struct zero_error *error) {
    if (!steps.steps) return ZERO_OK;
    return reservations_add(reservations, ZERO_CPU, sizeof(struct trace), "trace", error);
}

zero_status trace_open(struct trace_steps steps, const struct trace_source *source, struct trace **out,
                       struct zero_error *error) {
    *out = NULL;
    if (!steps.steps) return ZERO_OK;
    struct trace *t = calloc(1, sizeof *t);
    if (!t) return error_set(error, ZERO_E_MEMORY, "no memory for the trace");
    t->watch = (struct executor_watch){.user = t, .started = started, .done = done};
    t->ranks = source->ranks;
    t->events = (struct trace_events){
        .plan = source->plan, .shape = source->shape, .event = t->event, .capacity = EVENTS_MAX};
    t->first = steps.first, t->steps = steps.steps;
    *out = t;
    return ZERO_OK;
}

const struct executor_watch *trace_watch(const struct trace *t) { return t ? &t->watch : NULL; }

void trace_close(struct trace *t) { free(t); }

static void set_on(struct trace *t, bool on) {
    fair_lock_take(&t->ranks->lock);
    if (on) t->origin_ns = clock_now_ns();
    t->on = on;
    fair_lock_give(&t->ranks->lock);
}

zero_status trace_step(struct trace *t) {
    if (!t) return ZERO_OK;
    uint64_t next = ++t->seen; /* counted from 1: the step that begins */
    if (next == t->first + t->steps) set_on(t, false);
    if (next != t->first) return ZERO_OK;
    zero_status status =
        ranks_call(t->ranks, &(struct comm_call){.kind = COMM_BARRIER, .what = "the trace's begin"});
    if (!status) set_on(t, true);
    return status;
}

/* ---- the file ---- */

/* This rank's part; rank 0 makes the file anew, the others must find it. */
static zero_status append(struct trace *t, const char *path, bool last, struct zero_error *error) {
    FILE *file = fopen(path, t->ranks->rank ? "r+" : "w");
    if (!file)
        return error_set(error, ZERO_E_IO, "zero_engine_write_trace: cannot write %s: %s%s", path,
                         strerror(errno),
                         t->ranks->rank && errno == ENOENT ? "; all ranks must see the same directory" : "");
    if (t->ranks->rank)
        fseek(file, 0, SEEK_END);
    else
        trace_events_open("zero", file);
    trace_events_write(&t->events, t->ranks->rank, t->origin_ns, file);
    if (last) trace_events_close(file);
    bool bad = ferror(file);
    bad |= fclose(file) != 0;
    return bad ? error_set(error, ZERO_E_IO, "zero_engine_write_trace: cannot write %s: %s", path,
                           strerror(errno))
               : ZERO_OK;
}

zero_status trace_write(struct trace *t, const char *path) {
    struct ranks *ranks = t->ranks;
    set_on(t, false);
    uint32_t writers = ranks->size < WRITERS_MAX ? ranks->size : WRITERS_MAX;
    struct zero_error error = ERROR_NONE;
    for (uint32_t r = 0; r < writers; r++) {
        const struct rank_report *all;
        if (r == ranks->rank) append(t, path, r == writers - 1, &error);
        TRY(ranks_agree(ranks, &error, (uint64_t[2]){t->events.missed}, "a rank's trace", &all));
    }
    if (t->events.missed)
        log_line(&ranks->log, ZERO_LOG_WARN,
                 "%s shows the first %d operations of the traced steps; %" PRIu64
                 " more had no room: trace fewer steps (trace.steps)",
                 path, EVENTS_MAX, t->events.missed);
    return ZERO_OK;
}
