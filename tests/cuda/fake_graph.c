/* Graphs, captured from streams: a queue for each stream that took part. A run of a graph is one transient stream per queue, all after
 * what the launching stream held before, and before what it gets after; the marks of events are new in each run. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "tests/cuda/fake_internal.h"

enum { QUEUES_MAX = 16 };

struct graph {
    pthread_t thread; /* that captures it */
    CUstreamCaptureMode mode;
    bool invalid;
    uint32_t count;
    struct queue queue[QUEUES_MAX]; /* the first: of the stream where the capture began */
};

struct queue *graph_queue(struct graph *graph) {
    if (graph->count == QUEUES_MAX) fake_fail("a graph of more than %d streams", QUEUES_MAX);
    struct queue *q = &graph->queue[graph->count++];
    q->tail = &q->head;
    return q;
}

CUresult graph_begin(struct stream *stream, CUstreamCaptureMode mode) {
    if (stream->capture) return CUDA_ERROR_ILLEGAL_STATE;
    stream->capture = fake_allocate(sizeof *stream->capture);
    stream->capture->thread = pthread_self();
    stream->capture->mode = mode;
    stream->captured = graph_queue(stream->capture);
    return CUDA_SUCCESS;
}

/* A capture that has ended is a graph already. */
CUresult graph_invalidate(const struct graph *graph, CUresult result) {
    for (struct stream *s = streams_first(); s; s = s->next)
        if (s->capture == graph) s->capture->invalid = true;
    return result;
}

bool graph_valid(const struct graph *graph) { return !graph->invalid; }

static _Thread_local CUstreamCaptureMode thread_mode; /* 0: CU_STREAM_CAPTURE_MODE_GLOBAL */

CUstreamCaptureMode graphs_exchange_mode(CUstreamCaptureMode mode) {
    CUstreamCaptureMode before = thread_mode;
    return thread_mode = mode, before;
}

static bool forbids(const struct graph *graph) {
    bool own = graph->mode != CU_STREAM_CAPTURE_MODE_RELAXED && pthread_equal(graph->thread, pthread_self()),
         any = graph->mode == CU_STREAM_CAPTURE_MODE_GLOBAL && thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
    return thread_mode != CU_STREAM_CAPTURE_MODE_RELAXED && (own || any);
}

bool graphs_forbid(void) {
    bool any = false;
    for (struct stream *s = streams_first(); s; s = s->next)
        if (s->capture && forbids(s->capture)) any = s->capture->invalid = true;
    return any;
}

bool graphs_capture(const struct CUctx_st *context) {
    bool any = false;
    for (struct stream *s = streams_first(); s; s = s->next)
        if (s->capture && s->context == context) any = s->capture->invalid = true;
    return any;
}

static const struct operation *last_of(const struct queue *queue) {
    const struct operation *o = queue->head;
    while (o && o->next) o = o->next;
    return o;
}

static bool awaited(const struct graph *graph, const struct mark *mark) {
    for (uint32_t k = 0; k < graph->count; k++)
        for (const struct operation *o = graph->queue[k].head; o; o = o->next)
            if (o->awaits == mark) return true;
    return false;
}

/* Every stream but the first ends with an event that another one waits for. */
static bool joined(const struct graph *graph) {
    for (uint32_t k = 1; k < graph->count; k++) {
        const struct operation *last = last_of(&graph->queue[k]);
        if (!last || !last->records || !awaited(graph, last->records)) return false;
    }
    return true;
}

CUresult graph_end(struct stream *stream, struct graph **out_graph) {
    struct graph *graph = stream->capture;
    if (!graph || stream->captured != &graph->queue[0]) return CUDA_ERROR_ILLEGAL_STATE;
    if (graph->mode != CU_STREAM_CAPTURE_MODE_RELAXED && !pthread_equal(graph->thread, pthread_self()))
        return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    for (struct stream *s = streams_first(); s; s = s->next)
        if (s->capture == graph) s->capture = NULL, s->captured = NULL;
    CUresult result = graph->invalid  ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
                      : joined(graph) ? CUDA_SUCCESS
                                      : CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    if (result) {
        graph_destroy(graph);
        return result;
    }
    *out_graph = graph;
    return CUDA_SUCCESS;
}

void graph_destroy(struct graph *graph) {
    for (uint32_t k = 0; k < graph->count; k++) queue_clear(&graph->queue[k]);
    free(graph);
}

/* ---- copies, with marks of their own ---- */

struct renewed {
    const struct mark *from;
    struct mark *to;
    struct renewed *next;
};

static struct mark *renew(struct renewed **list, const struct mark *from) {
    if (!from) return NULL;
    struct renewed *r = *list;
    while (r && r->from != from) r = r->next;
    if (!r) {
        r = fake_allocate(sizeof *r);
        *r = (struct renewed){.from = from, .to = mark_create(), .next = *list};
        *list = r;
    }
    return mark_hold(r->to);
}

static void copy_queue(struct queue *to, const struct queue *from, struct renewed **marks) {
    for (const struct operation *o = from->head; o; o = o->next) {
        struct operation *copy = queue_append(to, o->bytes);
        copy->records = renew(marks, o->records);
        copy->awaits = renew(marks, o->awaits);
        copy->ready = o->ready;
        copy->run = o->run;
        memcpy(copy->argument, o->argument, o->bytes);
    }
}

static void drop_list(struct renewed *marks) {
    while (marks) {
        struct renewed *next = marks->next;
        mark_drop(marks->to);
        free(marks);
        marks = next;
    }
}

struct graph *graph_copy(const struct graph *graph) {
    struct graph *copy = fake_allocate(sizeof *copy);
    struct renewed *marks = NULL;
    for (uint32_t k = 0; k < graph->count; k++) copy_queue(graph_queue(copy), &graph->queue[k], &marks);
    drop_list(marks);
    return copy;
}

void graph_launch(const struct graph *graph, struct stream *stream) {
    struct renewed *marks = NULL;
    struct mark *begin = mark_create();
    queue_append(&stream->queue, 0)->records = begin;
    for (uint32_t k = 0; k < graph->count; k++) {
        struct stream *run = stream_create(stream->context);
        struct mark *end = mark_create();
        run->transient = true;
        queue_append(&run->queue, 0)->awaits = mark_hold(begin);
        copy_queue(&run->queue, &graph->queue[k], &marks);
        queue_append(&run->queue, 0)->records = end;
        queue_append(&stream->queue, 0)->awaits = mark_hold(end);
    }
    drop_list(marks);
}
