#include "engine/trace/trace.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"

enum { EVENTS_MAX = 1 << 15, WRITERS_MAX = 16 }; /* a timeline of more ranks is unreadable */

struct event {
    uint64_t began_ns, done_ns; /* done_ns 0: in flight */
    uint32_t item;
    uint16_t region, position;
    uint8_t kind, object, stream;
    bool backward;
};

struct trace {
    struct executor_watch watch;
    const struct trace_source *source;
    uint64_t first, steps, seen; /* seen: steps made since the commit */
    uint64_t origin_ns;          /* all ranks left a barrier then */
    bool on;
    uint32_t count;
    uint64_t missed; /* operations without room in the trace */
    struct event event[EVENTS_MAX];
};

/* ---- the executor's watch: under the engine's lock ---- */

static void started(void *user, const struct operation *op, uint32_t item, const uint32_t *read,
                    const uint32_t *write) {
    struct trace *t = user;
    if (!t->on || op->kind == OP_RELEASE) return; /* a release takes no time */
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
                       .backward = op->kind == OP_COMPUTE && policy_backward(t->source->policy, op->use)};
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
    t->source = source;
    t->first = steps.first, t->steps = steps.steps;
    *out = t;
    return ZERO_OK;
}

const struct executor_watch *trace_watch(const struct trace *t) { return t ? &t->watch : NULL; }

void trace_close(struct trace *t) { free(t); }

static void set_on(struct trace *t, bool on) {
    turn_take(&t->source->ranks->lock);
    if (on) t->origin_ns = clock_now_ns();
    t->on = on;
    turn_give(&t->source->ranks->lock);
}

zero_status trace_step(struct trace *t) {
    if (!t) return ZERO_OK;
    uint64_t next = ++t->seen; /* counted from 1: the step that begins */
    if (next == t->first + t->steps) set_on(t, false);
    if (next != t->first) return ZERO_OK;
    zero_status status =
        ranks_call(t->source->ranks, &(struct comm_call){.kind = COMM_BARRIER, .what = "the trace's begin"});
    if (!status) set_on(t, true);
    return status;
}

/* ---- the file ---- */

/* The host chose the names: characters that JSON reserves are escaped. */
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

static void put_event(const struct trace *t, const struct event *event, FILE *file) {
    fprintf(file, ",\n{\"ph\":\"X\",\"name\":\"%s ", event_name(event));
    put_text(file, event->kind == OP_AGREE
                       ? "the step"
                       : t->source->model->unit[t->source->model->region[event->region].unit]->name);
    fprintf(file, "\",\"cat\":\"%s\",\"pid\":%" PRIu32 ",\"tid\":%d", object_name((enum object)event->object),
            t->source->ranks->rank, (int)event->stream);
    put_micros(file, "ts", event->began_ns - t->origin_ns);
    put_micros(file, "dur", event->done_ns - event->began_ns);
    fprintf(file, ",\"args\":{\"position\":%d,\"item\":%" PRIu32 "}}", (int)event->position, event->item);
}

static void put_rank(const struct trace *t, FILE *file) {
    fprintf(file,
            ",\n{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%" PRIu32
            ",\"args\":{\"name\":\"rank %" PRIu32 "\"}}",
            t->source->ranks->rank, t->source->ranks->rank);
    for (int s = 0; s < STREAMS; s++)
        fprintf(file,
                ",\n{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%" PRIu32
                ",\"tid\":%d,\"args\":{\"name\":\"%s\"}}",
                t->source->ranks->rank, s, stream_name((enum stream)s));
    for (uint32_t i = 0; i < t->count; i++)
        if (t->event[i].done_ns) put_event(t, &t->event[i], file);
}

/* This rank's part; rank 0 makes the file anew, the others must find it. */
static zero_status append(const struct trace *t, const char *path, bool last, struct zero_error *error) {
    FILE *file = fopen(path, t->source->ranks->rank ? "r+" : "w");
    if (!file)
        return error_set(
            error, ZERO_E_IO, "zero_engine_write_trace: cannot write %s: %s%s", path, strerror(errno),
            t->source->ranks->rank && errno == ENOENT ? "; all ranks must see the same directory" : "");
    if (t->source->ranks->rank)
        fseek(file, 0, SEEK_END);
    else
        fputs("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n"
              "{\"ph\":\"M\",\"name\":\"trace\",\"pid\":0,\"args\":{\"name\":\"zero\"}}",
              file);
    put_rank(t, file);
    if (last) fputs("\n]}\n", file);
    bool bad = ferror(file);
    bad |= fclose(file) != 0;
    return bad ? error_set(error, ZERO_E_IO, "zero_engine_write_trace: cannot write %s: %s", path,
                           strerror(errno))
               : ZERO_OK;
}

zero_status trace_write(struct trace *t, const char *path) {
    struct ranks *ranks = t->source->ranks;
    zero_status status = ZERO_OK;
    set_on(t, false);
    uint32_t writers = ranks->size < WRITERS_MAX ? ranks->size : WRITERS_MAX;
    struct zero_error error;
    error_clear(&error);
    for (uint32_t r = 0; r < writers && !status; r++) {
        const struct rank_report *all;
        if (r == ranks->rank) append(t, path, r == writers - 1, &error);
        status = ranks_agree(ranks, &error, (uint64_t[2]){t->missed}, "a rank's trace", &all);
    }
    if (!status && t->missed)
        log_line(&ranks->log, ZERO_LOG_WARN,
                 "trace: there was no room for %" PRIu64 " operations: trace fewer steps", t->missed);
    return status;
}
