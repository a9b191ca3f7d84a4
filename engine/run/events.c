#include "engine/run/events.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- the executor's watch ---- */

/* The bytes of gathered units and gradients that the item takes; below 0: that it releases. The first item takes them for all. */
static int64_t memory_of(const struct plan *plan, const struct operation *op, uint32_t item,
                         const uint32_t *write) {
    int64_t bytes = 0;
    for (uint8_t i = 0; i < op->writes && !item; i++) {
        bool gathered = write[i] != NO_BUFFER && plan->buffer[write[i]].row == MEMORY_GATHERED;
        bool changes = op->kind == OP_RELEASE || op->acquires & 1u << i;
        if (gathered && changes) bytes += (int64_t)plan->buffer[write[i]].bytes;
    }
    return op->kind == OP_RELEASE ? -bytes : bytes;
}

void trace_events_start(struct trace_events *events, const struct operation *op, uint32_t item,
                        const uint32_t *write, uint64_t now_ns) {
    if (events->count == events->capacity) {
        events->missed++;
        return;
    }
    events->open++;
    events->event[events->count++] = (struct trace_event){
        .began_ns = now_ns,
        .memory = memory_of(events->plan, op, item, write),
        .moved = executor_wire_bytes(&events->shape, op, item) + executor_drive_bytes(events->plan, op, item),
        .item = item,
        .region = op->region,
        .position = op->use,
        .kind = op->kind,
        .object = op->object,
        .stream = op->stream,
        .backward = op->kind == OP_COMPUTE && policy_backward(events->plan->policy, op->use)};
}

/* The operation is among the last events, where those in flight are. */
void trace_events_done(struct trace_events *events, const struct operation *op, uint32_t item,
                       uint64_t now_ns) {
    for (uint32_t i = events->count; events->open && i-- > 0;) {
        struct trace_event *e = &events->event[i];
        bool same = e->kind == op->kind && e->object == op->object && e->stream == op->stream &&
                    e->region == op->region && e->item == item && e->position == op->use;
        if (!same || e->done_ns) continue;
        e->done_ns = now_ns;
        events->open--;
        return;
    }
}

/* ---- lanes ---- */

/* A release takes no time, and an operation that is still in flight has no end. */
static bool is_slice(const struct trace_event *e) { return e->kind != OP_RELEASE && e->done_ns; }

static int by_begin(const void *a, const void *b) {
    const struct trace_event *x = a, *y = b;
    if (x->began_ns != y->began_ns) return x->began_ns < y->began_ns ? -1 : 1;
    return (x->done_ns > y->done_ns) - (x->done_ns < y->done_ns);
}

/* Each slice goes to the first lane of its stream that is free when the slice begins; if none is free, to the last lane. Writes the
 * number of lanes of each stream. */
static void lay_lanes(struct trace_events *events, uint32_t out_lanes[STREAMS]) {
    uint64_t free_ns[STREAMS][TRACE_LANES] = {{0}};
    memset(out_lanes, 0, STREAMS * sizeof *out_lanes);
    qsort(events->event, events->count, sizeof *events->event, by_begin);
    for (uint32_t i = 0; i < events->count; i++) {
        struct trace_event *e = &events->event[i];
        uint32_t lane = 0;
        if (!is_slice(e)) continue;
        while (lane < TRACE_LANES - 1 && free_ns[e->stream][lane] > e->began_ns) lane++;
        free_ns[e->stream][lane] = e->done_ns;
        e->lane = (uint8_t)lane;
        if (lane >= out_lanes[e->stream]) out_lanes[e->stream] = lane + 1;
    }
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

static const char *event_name(const struct trace_event *e) {
    if (e->kind != OP_COMPUTE) return operation_kind_name((enum operation_kind)e->kind);
    return e->backward ? "backward" : "forward";
}

static uint32_t unit_of(const struct plan *plan, const struct trace_event *e) {
    return plan->model->region[e->region].unit;
}

struct out {
    FILE *file;
    const struct plan *plan;
    uint32_t rank;
    uint64_t origin_ns;
};

/* An event of this phase, up to its first own member. */
static void put_head(const struct out *o, const char *phase, uint64_t at_ns) {
    uint64_t ns = at_ns - o->origin_ns;
    fprintf(o->file, ",\n{\"ph\":\"%s\",\"pid\":%" PRIu32 ",\"ts\":%" PRIu64 ".%03" PRIu64, phase, o->rank,
            ns / 1000, ns % 1000);
}

static int thread_of(const struct trace_event *e) { return e->stream * TRACE_LANES + e->lane; }

static void put_slice(const struct out *o, const struct trace_event *e) {
    uint64_t took_ns = e->done_ns - e->began_ns;
    put_head(o, "X", e->began_ns);
    fprintf(o->file, ",\"dur\":%" PRIu64 ".%03" PRIu64 ",\"tid\":%d,\"cat\":\"%s\",\"name\":\"%s ",
            took_ns / 1000, took_ns % 1000, thread_of(e), object_name((enum object)e->object), event_name(e));
    put_text(o->file, e->kind == OP_AGREE ? "the step" : o->plan->model->unit[unit_of(o->plan, e)]->name);
    fprintf(o->file, "\",\"args\":{\"position\":%d,\"item\":%" PRIu32 "}}", (int)e->position, e->item);
}

/* From a time inside the gather to the begin of the compute: a viewer binds the end of an arrow to the slice at that
 * time. */
static void put_flow(const struct out *o, const struct trace_event *gather, const struct trace_event *compute,
                     uint32_t id) {
    const char *name = ",\"cat\":\"gathered\",\"name\":\"gathered\"";
    put_head(o, "s", gather->began_ns);
    fprintf(o->file, ",\"tid\":%d,\"id\":\"%" PRIu32 ".%" PRIu32 "\"%s}", thread_of(gather), o->rank, id,
            name);
    put_head(o, "f", compute->began_ns);
    fprintf(o->file, ",\"tid\":%d,\"id\":\"%" PRIu32 ".%" PRIu32 "\",\"bp\":\"e\"%s}", thread_of(compute),
            o->rank, id, name);
}

/* Each gather of parameters belongs to the next compute of its unit. */
static void put_flows(const struct out *o, const struct trace_events *events) {
    for (uint32_t i = 0; i < events->count; i++) {
        const struct trace_event *gather = &events->event[i];
        if (gather->kind != OP_GATHER || gather->object != OBJECT_PARAM || !gather->done_ns) continue;
        for (uint32_t k = i + 1; k < events->count; k++) {
            const struct trace_event *compute = &events->event[k];
            if (compute->kind != OP_COMPUTE || unit_of(o->plan, compute) != unit_of(o->plan, gather))
                continue;
            if (compute->done_ns && compute->began_ns >= gather->done_ns) put_flow(o, gather, compute, i);
            break;
        }
    }
}

/* The memory that was gathered before the first event is not known: the lowest value is 0. */
static void put_memory(const struct out *o, const struct trace_events *events) {
    int64_t value = 0, least = 0;
    for (uint32_t i = 0; i < events->count; i++) {
        value += events->event[i].memory;
        if (value < least) least = value;
    }
    value = -least;
    for (uint32_t i = 0; i < events->count; i++) {
        const struct trace_event *e = &events->event[i];
        if (!e->memory) continue;
        value += e->memory;
        put_head(o, "C", e->began_ns);
        fprintf(o->file, ",\"name\":\"gathered bytes\",\"args\":{\"bytes\":%" PRId64 "}}", value);
    }
}

/* ---- bytes per second ---- */

enum rate { RATE_WIRE, RATE_READ, RATE_WRITE, RATES };

#define RATE_MAX 1e15 /* of one operation; a simulated machine may be faster than numbers are wide */

struct edge { /* where a rate changes */
    uint64_t at_ns;
    int64_t change;
    enum rate rate;
};

static enum rate rate_of(const struct trace_event *e) {
    return e->kind == OP_FETCH ? RATE_READ : e->kind == OP_STORE ? RATE_WRITE : RATE_WIRE;
}

static int by_time(const void *a, const void *b) {
    const struct edge *x = a, *y = b;
    return (x->at_ns > y->at_ns) - (x->at_ns < y->at_ns);
}

/* Whole numbers, so that a rate is 0 again when nothing moves. */
static uint32_t make_edges(const struct trace_events *events, struct edge *out) {
    uint32_t edges = 0;
    for (uint32_t i = 0; i < events->count; i++) {
        const struct trace_event *e = &events->event[i];
        if (!e->moved || e->done_ns <= e->began_ns) continue;
        double rate = (double)e->moved / (double)(e->done_ns - e->began_ns) * 1e9;
        int64_t per_s = (int64_t)(rate < RATE_MAX ? rate : RATE_MAX);
        out[edges++] = (struct edge){e->began_ns, per_s, rate_of(e)};
        out[edges++] = (struct edge){e->done_ns, -per_s, rate_of(e)};
    }
    qsort(out, edges, sizeof *out, by_time);
    return edges;
}

static void put_rates(const struct out *o, const struct edge *edge, uint32_t edges) {
    int64_t rate[RATES] = {0};
    bool wire = false, drive = false;
    for (uint32_t i = 0; i < edges; i++) {
        rate[edge[i].rate] += edge[i].change;
        wire |= edge[i].rate == RATE_WIRE, drive |= edge[i].rate != RATE_WIRE;
        if (i + 1 < edges && edge[i + 1].at_ns == edge[i].at_ns) continue;
        if (wire) put_head(o, "C", edge[i].at_ns);
        if (wire)
            fprintf(o->file, ",\"name\":\"wire bytes/s\",\"args\":{\"sent\":%" PRId64 "}}", rate[RATE_WIRE]);
        if (drive) put_head(o, "C", edge[i].at_ns);
        if (drive)
            fprintf(o->file,
                    ",\"name\":\"drive bytes/s\",\"args\":{\"read\":%" PRId64 ",\"written\":%" PRId64 "}}",
                    rate[RATE_READ], rate[RATE_WRITE]);
        wire = drive = false;
    }
}

static void put_bandwidth(const struct out *o, const struct trace_events *events) {
    struct edge *edge = calloc(2 * (size_t)events->count + 1, sizeof *edge);
    if (edge) put_rates(o, edge, make_edges(events, edge));
    free(edge);
}

/* ---- all of it ---- */

static void put_thread(const struct out *o, int stream, uint32_t lane) {
    int thread = stream * TRACE_LANES + (int)lane;
    fprintf(o->file,
            ",\n{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%" PRIu32
            ",\"tid\":%d,\"args\":{\"name\":\"%s\"}},\n{\"ph\":\"M\",\"name\":\"thread_sort_index\",\"pid\":"
            "%" PRIu32 ",\"tid\":%d,\"args\":{\"sort_index\":%d}}",
            o->rank, thread, stream_name((enum stream)stream), o->rank, thread, thread);
}

void trace_events_open(const char *program, FILE *file) {
    fprintf(file,
            "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"program\":\"%s\"},\"traceEvents\":[\n"
            "{\"ph\":\"M\",\"name\":\"process_labels\",\"pid\":0,\"args\":{\"labels\":\"%s\"}}",
            program, program);
}

void trace_events_write(struct trace_events *events, uint32_t rank, uint64_t origin_ns, FILE *file) {
    const struct out o = {file, events->plan, rank, origin_ns};
    uint32_t lanes[STREAMS];
    lay_lanes(events, lanes);
    fprintf(file,
            ",\n{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%" PRIu32
            ",\"args\":{\"name\":\"rank %" PRIu32 "\"}}",
            rank, rank);
    for (int s = 0; s < STREAMS; s++)
        for (uint32_t l = 0; l < lanes[s]; l++) put_thread(&o, s, l);
    for (uint32_t i = 0; i < events->count; i++)
        if (is_slice(&events->event[i])) put_slice(&o, &events->event[i]);
    put_flows(&o, events);
    put_memory(&o, events);
    put_bandwidth(&o, events);
}

void trace_events_close(FILE *file) { fputs("\n]}\n", file); }
