/* The driver's functions of streams, events and graphs. */
#include "tests/cuda/fake_internal.h"

static bool stream_done(const void *of) { return stream_idle(of); }
static bool mark_done(const void *of) { return event_done(of); }

static struct event *event_of(CUevent handle) {
    struct event *e = (struct event *)handle;
    return event_valid(e) ? e : NULL;
}

static bool captured(const struct event *e) { return e->mark && e->mark->graph; }

/* ---- streams and events ---- */

EXPORT CUresult cuStreamCreate(CUstream *out, unsigned flags) {
    ENTER(true);
    *out = (CUstream)stream_create(current_context());
    return call_leave(CUDA_SUCCESS);
}

EXPORT CUresult cuStreamCreateWithPriority(CUstream *out, unsigned flags, int priority) {
    return cuStreamCreate(out, flags);
}

EXPORT CUresult cuStreamDestroy(CUstream handle) {
    ENTER(true);
    struct stream *s = stream_of(handle);
    if (!s) return call_leave(CUDA_ERROR_INVALID_HANDLE);
    call_wait(stream_done, s);
    stream_destroy(s);
    return call_leave(CUDA_SUCCESS);
}

/* Of the default streams, what is current. */
EXPORT CUresult cuStreamGetCtx(CUstream handle, CUcontext *out) {
    ENTER(true);
    const struct stream *s = stream_of(handle);
    *out = s ? (CUcontext)s->context : NULL;
    return call_leave(s ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE);
}

EXPORT CUresult cuStreamQuery(CUstream handle) {
    ENTER(true);
    struct stream *s = stream_of(handle);
    if (!s) return call_leave(CUDA_ERROR_INVALID_HANDLE);
    if (s->capture) return call_leave(graph_invalidate(s->capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED));
    streams_advance();
    return call_leave(stream_idle(s) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY);
}

EXPORT CUresult cuStreamSynchronize(CUstream handle) {
    ENTER(true);
    struct stream *s = stream_of(handle);
    if (!s) return call_leave(CUDA_ERROR_INVALID_HANDLE);
    if (s->capture) return call_leave(graph_invalidate(s->capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED));
    call_wait(stream_done, s);
    return call_leave(CUDA_SUCCESS);
}

EXPORT CUresult cuStreamWaitEvent(CUstream handle, CUevent event, unsigned flags) {
    ENTER(true);
    struct stream *s = stream_with_room(handle);
    struct event *e = event_of(event);
    if (!s || !e) return call_leave(CUDA_ERROR_INVALID_HANDLE);
    CUresult result = stream_wait(s, e);
    streams_advance();
    return call_leave(result);
}

struct host_function {
    CUhostFn function;
    void *user;
};

static void run_host_function(void *argument) {
    const struct host_function *h = argument;
    memory_lock(); /* it is the host that runs */
    h->function(h->user);
}

EXPORT CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void *user) {
    ENTER(true);
    return call_enqueue(stream, NULL, run_host_function, &(struct host_function){function, user},
                        sizeof(struct host_function));
}

EXPORT CUresult cuEventCreate(CUevent *out, unsigned flags) {
    ENTER(true);
    *out = (CUevent)event_create(current_context());
    return call_leave(CUDA_SUCCESS);
}

EXPORT CUresult cuEventDestroy(CUevent handle) {
    ENTER(true);
    struct event *e = event_of(handle);
    if (!e) return call_leave(CUDA_ERROR_INVALID_HANDLE);
    event_destroy(e);
    return call_leave(CUDA_SUCCESS);
}

EXPORT CUresult cuEventRecord(CUevent event, CUstream stream) {
    ENTER(true);
    struct event *e = event_of(event);
    struct stream *s = stream_with_room(stream);
    if (!e || !s) return call_leave(CUDA_ERROR_INVALID_HANDLE);
    CUresult result = event_record(e, s);
    streams_advance();
    return call_leave(result);
}

EXPORT CUresult cuEventQuery(CUevent event) {
    ENTER(true);
    struct event *e = event_of(event);
    if (!e) return call_leave(CUDA_ERROR_INVALID_HANDLE);
    if (captured(e)) return call_leave(graph_invalidate(e->mark->graph, CUDA_ERROR_CAPTURED_EVENT));
    if (graphs_forbid()) return call_leave(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    streams_advance();
    return call_leave(event_done(e) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY);
}

EXPORT CUresult cuEventSynchronize(CUevent event) {
    ENTER(true);
    struct event *e = event_of(event);
    if (!e) return call_leave(CUDA_ERROR_INVALID_HANDLE);
    if (captured(e)) return call_leave(graph_invalidate(e->mark->graph, CUDA_ERROR_CAPTURED_EVENT));
    if (graphs_forbid()) return call_leave(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    call_wait(mark_done, e);
    return call_leave(CUDA_SUCCESS);
}

EXPORT CUresult cuEventElapsedTime(float *milliseconds, CUevent begin, CUevent end) {
    ENTER(true);
    struct event *b = event_of(begin), *e = event_of(end);
    if (!b || !e || !b->mark || !e->mark) return call_leave(CUDA_ERROR_INVALID_HANDLE);
    if (!event_done(b) || !event_done(e)) return call_leave(CUDA_ERROR_NOT_READY);
    *milliseconds = (float)((double)e->mark->time_ns - (double)b->mark->time_ns) * 1e-6f;
    return call_leave(CUDA_SUCCESS);
}

/* ---- graphs ---- */

EXPORT CUresult cuStreamBeginCapture(CUstream handle, CUstreamCaptureMode mode) {
    ENTER(true);
    struct stream *s = stream_of(handle);
    uint64_t captures = number_from("FAKE_CUDA_CAPTURES", 1);
    if (!captures) return call_leave(CUDA_ERROR_NOT_SUPPORTED);
    CUresult result = s ? graph_begin(s, mode) : CUDA_ERROR_INVALID_HANDLE;
    if (!result && captures == 2) graph_invalidate(s->capture, CUDA_SUCCESS);
    return call_leave(result);
}

EXPORT CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode) {
    ENTER(false);
    *mode = graphs_exchange_mode(*mode);
    return call_leave(CUDA_SUCCESS);
}

EXPORT CUresult cuStreamEndCapture(CUstream handle, CUgraph *out) {
    ENTER(true);
    struct stream *s = stream_of(handle);
    struct graph *graph = NULL;
    CUresult result = s ? graph_end(s, &graph) : CUDA_ERROR_INVALID_HANDLE;
    *out = (CUgraph)graph;
    return call_leave(result);
}

static uint64_t instances;

EXPORT CUresult cuGraphInstantiate(CUgraphExec *out, CUgraph graph, unsigned long long flags) {
    ENTER(true);
    if (instances >= number_from("FAKE_CUDA_GRAPHS", UINT64_MAX)) return call_leave(CUDA_ERROR_OUT_OF_MEMORY);
    instances++;
    *out = (CUgraphExec)graph_copy((struct graph *)graph);
    return call_leave(CUDA_SUCCESS);
}

EXPORT CUresult cuGraphLaunch(CUgraphExec graph, CUstream handle) {
    ENTER(true);
    struct stream *s = stream_of(handle);
    if (!s) return call_leave(CUDA_ERROR_INVALID_HANDLE);
    if (s->capture) return call_leave(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    count_graph();
    graph_launch((struct graph *)graph, s);
    streams_advance();
    return call_leave(CUDA_SUCCESS);
}

EXPORT CUresult cuGraphDestroy(CUgraph graph) {
    ENTER(true);
    graph_destroy((struct graph *)graph);
    return call_leave(CUDA_SUCCESS);
}

EXPORT CUresult cuGraphExecDestroy(CUgraphExec graph) {
    ENTER(true);
    instances--;
    graph_destroy((struct graph *)graph);
    return call_leave(CUDA_SUCCESS);
}
