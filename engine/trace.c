#include "engine/trace.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"

enum { EVENTS_MAX = 1 << 15, WRITERS_MAX = 16 }; /* more ranks than that nobody looks at */

struct event {
    uint64_t began_ns, done_ns; /* done_ns 0: in flight */
    uint32_t item;
    uint16_t region, position;
    uint8_t kind, object, stream;
    bool backward;
};

struct trace {
    struct executor_watch watch;
    const zero_engine *engine;
    uint64_t first, steps, seen; /* seen: steps made since the commit */
    uint64_t origin_ns;          /* all ranks left a barrier then */
    bool on;
    uint32_t count;
    uint64_t missed; /* operations that there was no room for */
    struct event event[EVENTS_MAX];
};

/* ---- the executor's watch: under the engine's lock ---- */

static void started(void *user, const struct operation *op, uint32_t item, const uint32_t *read,
                    const uint32_t *write) {
    struct trace *t = user;
    if (!t->on || op->kind == OP_RELEASE) return; /* which takes no time */
    if (t->count == EVENTS_MAX) {
        t->missed++;
        return;
    }
    t->event[t->count++] =
        (struct event){.began_ns = clock_now_ns(),
                       .item = item,
                       .region = op->region,
                       .position = op->use,
                       .kind = op->kind,
                       .object = op->object,
                       .stream = op->stream,
                       .backward = op->kind == OP_COMPUTE && policy_backward(&t->engine->policy, op->use)};
}

/* Of the events in flight, which are among the last ones. */
static void done(void *user, const struct operation *op, uint32_t item, const uint32_t *read,
                 const uint32_t *write) {
    struct trace *t = user;
    for (uint32_t i = t->count; i-- > 0;) {
        struct event *e = &t->event[i];
        bool same = e->kind == op->kind && e->object == op->object && e->stream == op->stream &&
                    e->region == op->region && e->item == item && e->position == op->use;
        if (!same || e->done_ns) continue;
        e->done_ns = clock_now_ns();
        return;
    }
}

/* ---- when ---- */

zero_status trace_open(zero_engine *e, struct zero_error *error) {
    const struct config *c = &e->config;
    if (c->trace_steps >= 0) e->trace_first = c->trace_first, e->trace_steps = (uint64_t)c->trace_steps;
    if (!e->trace_steps) return ZERO_OK;
    e->trace = calloc(1, sizeof *e->trace);
    if (!e->trace) return error_set(error, ZERO_E_MEMORY, "no memory for the trace");
    *e->trace = (struct trace){.watch = {.user = e->trace, .started = started, .done = done},
                               .engine = e,
                               .first = e->trace_first,
                               .steps = e->trace_steps};
    zero_status status = zero_engine_reserve(e, ZERO_CPU, sizeof *e->trace, "trace");
    return status ? error_set(error, status, "%s", zero_last_error()) : ZERO_OK;
}

const struct executor_watch *trace_watch(const zero_engine *e) { return e->trace ? &e->trace->watch : NULL; }

void trace_close(zero_engine *e) { free(e->trace); }

static void set_on(zero_engine *e, bool on) {
    turn_take(&e->lock);
    if (on) e->trace->origin_ns = clock_now_ns();
    e->trace->on = on;
    turn_give(&e->lock);
}

zero_status trace_step(zero_engine *e) {
    struct trace *t = e->trace;
    if (!t) return ZERO_OK;
    uint64_t next = ++t->seen; /* counted from 1: the step that begins */
    if (next == t->first + t->steps) set_on(e, false);
    if (next != t->first) return ZERO_OK;
    zero_status status =
        engine_call(e, &(struct comm_call){.kind = COMM_BARRIER, .what = "the trace's begin"});
    if (!status) set_on(e, true);
    return status;
}

zero_status zero_engine_trace(zero_engine *e, uint64_t first_step, uint64_t steps) {
    zero_status status = engine_check_declaring(e, "zero_engine_trace");
    if (status) return status;
    if (!first_step) return refuse(ZERO_E_ARGUMENT, "zero_engine_trace: steps count from 1: first_step is 0");
    e->trace_first = first_step, e->trace_steps = steps;
    return ZERO_OK;
}

/* ---- the file ---- */

/* Names are the host's: what JSON cannot hold as it is, is escaped. */
static void put_text(FILE *file, const char *text) {
    for (const unsigned char *c = (const unsigned char *)text; *c; c++) {
        if (*c == '"' || *c == '\\') fputc('\\', file);
        if (*c < 0x20)
            fprintf(file, "\\u%04x", *c);
        else
            fputc(*c, file);
    }
}

static const char *event_name(const struct event *event) {
    if (event->kind != OP_COMPUTE) return operation_kind_name((enum operation_kind)event->kind);
    return event->backward ? "backward" : "forward";
}

static void put_micros(FILE *file, const char *name, uint64_t ns) {
    fprintf(file, ",\"%s\":%" PRIu64 ".%03" PRIu64, name, ns / 1000, ns % 1000);
}

static void put_event(const zero_engine *e, const struct event *event, FILE *file) {
    fprintf(file, ",\n{\"ph\":\"X\",\"name\":\"%s ", event_name(event));
    put_text(file,
             event->kind == OP_AGREE ? "the step" : e->model.unit[e->model.region[event->region].unit]->name);
    fprintf(file, "\",\"cat\":\"%s\",\"pid\":%" PRIu32 ",\"tid\":%d", object_name((enum object)event->object),
            e->rank, (int)event->stream);
    put_micros(file, "ts", event->began_ns - e->trace->origin_ns);
    put_micros(file, "dur", event->done_ns - event->began_ns);
    fprintf(file, ",\"args\":{\"position\":%d,\"item\":%" PRIu32 "}}", (int)event->position, event->item);
}

static void put_rank(const zero_engine *e, FILE *file) {
    fprintf(file,
            ",\n{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%" PRIu32
            ",\"args\":{\"name\":\"rank %" PRIu32 "\"}}",
            e->rank, e->rank);
    for (int s = 0; s < STREAMS; s++)
        fprintf(file,
                ",\n{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%" PRIu32
                ",\"tid\":%d,\"args\":{\"name\":\"%s\"}}",
                e->rank, s, stream_name((enum stream)s));
    for (uint32_t i = 0; i < e->trace->count; i++)
        if (e->trace->event[i].done_ns) put_event(e, &e->trace->event[i], file);
}

/* This rank's part; rank 0 makes the file anew, the others must find it. */
static zero_status append(const zero_engine *e, const char *path, bool last, struct zero_error *error) {
    FILE *file = fopen(path, e->rank ? "r+" : "w");
    if (!file)
        return error_set(error, ZERO_E_IO, "zero_engine_write_trace: cannot write %s: %s%s", path,
                         strerror(errno),
                         e->rank && errno == ENOENT ? "; all ranks must see the same directory" : "");
    if (e->rank)
        fseek(file, 0, SEEK_END);
    else
        fputs("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n"
              "{\"ph\":\"M\",\"name\":\"trace\",\"pid\":0,\"args\":{\"name\":\"zero\"}}",
              file);
    put_rank(e, file);
    if (last) fputs("\n]}\n", file);
    bool bad = ferror(file);
    bad |= fclose(file) != 0;
    return bad ? error_set(error, ZERO_E_IO, "zero_engine_write_trace: cannot write %s: %s", path,
                           strerror(errno))
               : ZERO_OK;
}

zero_status zero_engine_write_trace(zero_engine *e, const char *path) {
    zero_status status = engine_check_between(e, "zero_engine_write_trace");
    if (status) return status;
    if (!e->trace || !path)
        return refuse(ZERO_E_ARGUMENT, "zero_engine_write_trace: %s",
                      path ? "nothing is traced: call zero_engine_trace before commit, or give trace.steps"
                           : "the path is NULL");
    status = engine_settle(e);
    set_on(e, false);
    uint32_t writers = e->size < WRITERS_MAX ? e->size : WRITERS_MAX;
    struct zero_error error;
    error_clear(&error);
    for (uint32_t r = 0; r < writers && !status; r++) {
        const struct said *all;
        if (r == e->rank) append(e, path, r == writers - 1, &error);
        status = engine_agree_said(e, &error, (uint64_t[2]){e->trace->missed}, "a rank's trace", &all);
    }
    if (!status && e->trace->missed)
        log_line(&e->log, ZERO_LOG_WARN,
                 "trace: there was no room for %" PRIu64 " operations: trace fewer steps", e->trace->missed);
    return status;
}
