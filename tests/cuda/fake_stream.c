/* Streams are queues of operations; a step runs the head of a queue whose head is ready. Streams have random ranks, and
 * the ready stream of the highest rank goes first. Ranks are drawn again now and then, so that some streams run far
 * ahead of others. With an even seed they are drawn seldom, and a stream of low rank runs only when a caller waits for
 * it.
 *
 * Each recording of an event is its own mark: a wait is for the latest mark at the time of the call, as in CUDA. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/cuda/emulator.h"
#include "tests/cuda/fake_internal.h"

enum { EVENT_LISTS = 1024, OPERATIONS_MAX = 1000 };

static struct stream *streams;
static struct event *events[EVENT_LISTS];             /* by address */
static uint64_t random_state, draw_every, least_rank; /* least_rank: of a stream for which no call waits */

void streams_open(uint64_t seed) {
    random_state = seed;
    draw_every = seed % 2 ? 16 : 128;
    least_rank = seed % 2 ? 0 : UINT64_C(1) << 63;
}
uint64_t *streams_random(void) { return &random_state; }

struct stream *streams_first(void) {
    return streams;
}

void *fake_allocate(size_t bytes) {
    void *memory = calloc(1, bytes);
    if (!memory) fake_fail("the host has no memory");
    return memory;
}

struct mark *mark_create(void) {
    return mark_hold(fake_allocate(sizeof(struct mark)));
}

struct mark *mark_hold(struct mark *mark) {
    if (mark) mark->holders++;
    return mark;
}

void mark_drop(struct mark *mark) {
    if (mark && --mark->holders == 0) free(mark);
}

/* ---- streams ---- */

struct stream *stream_create(const struct CUctx_st *context) {
    struct stream *s = fake_allocate(sizeof *s);
    s->context = context;
    s->rank = emulator_random(&random_state);
    s->queue.tail = &s->queue.head;
    s->next = streams;
    streams = s;
    return s;
}

bool stream_valid(const struct stream *stream) {
    for (const struct stream *s = streams; s; s = s->next)
        if (s == stream) return true;
    return false;
}

bool stream_idle(const struct stream *stream) { return !stream->queue.head; }

bool stream_has_room(const struct stream *stream) {
    return stream->capture || stream->queue.length < OPERATIONS_MAX;
}

bool streams_idle(const struct CUctx_st *context) {
    for (const struct stream *s = streams; s; s = s->next)
        if (s->context == context && s->queue.head) return false;
    return true;
}

static bool names(const struct operation *o, uint64_t first, size_t bytes) {
    for (size_t at = 0; at + sizeof first <= o->bytes; at += sizeof first) {
        uint64_t word;
        memcpy(&word, o->argument + at, sizeof word);
        if (word >= first && word < first + bytes) return true;
    }
    return false;
}

bool streams_name(uint64_t first, size_t bytes) {
    for (const struct stream *s = streams; s; s = s->next)
        for (const struct operation *o = s->queue.head; o; o = o->next)
            if (names(o, first, bytes)) return true;
    return false;
}

void stream_destroy(struct stream *stream) {
    struct stream **link = &streams;
    while (*link != stream) link = &(*link)->next;
    *link = stream->next;
    free(stream);
}

struct operation *queue_append(struct queue *queue, size_t bytes) {
    struct operation *o = fake_allocate(sizeof *o + bytes);
    o->bytes = bytes;
    *queue->tail = o;
    queue->tail = &o->next;
    queue->length++;
    return o;
}

static void take_off(struct queue *queue) {
    struct operation *o = queue->head;
    queue->head = o->next;
    queue->length--;
    if (!queue->head) queue->tail = &queue->head;
    mark_drop(o->records);
    mark_drop(o->awaits);
    free(o);
}

void queue_clear(struct queue *queue) {
    while (queue->head) take_off(queue);
}

static struct operation *append(struct stream *stream, size_t bytes) {
    return queue_append(stream->capture ? stream->captured : &stream->queue, bytes);
}

void stream_enqueue(struct stream *stream, bool (*ready)(void *), void (*run)(void *), const void *argument,
                    size_t bytes) {
    struct operation *o = append(stream, bytes);
    o->ready = ready;
    o->run = run;
    if (bytes) memcpy(o->argument, argument, bytes);
}

/* ---- events ---- */

static struct event **list_of(const struct event *event) {
    return &events[(uintptr_t)event / 64 % EVENT_LISTS];
}

struct event *event_create(const struct CUctx_st *context) {
    struct event *e = fake_allocate(sizeof *e), **list = list_of(e);
    e->context = context;
    e->next = *list;
    *list = e;
    return e;
}

void event_destroy(struct event *event) {
    struct event **link = list_of(event);
    while (*link != event) link = &(*link)->next;
    *link = event->next;
    mark_drop(event->mark);
    free(event);
}

bool event_valid(const struct event *event) {
    for (const struct event *e = *list_of(event); e; e = e->next)
        if (e == event) return true;
    return false;
}

CUresult event_record(struct event *event, struct stream *stream) {
    if (event->context != stream->context) return CUDA_ERROR_INVALID_HANDLE;
    mark_drop(event->mark);
    event->mark = mark_create();
    event->mark->graph = stream->capture;
    append(stream, 0)->records = mark_hold(event->mark);
    return CUDA_SUCCESS;
}

/* To wait for what a graph captures is to be captured by it. */
CUresult stream_wait(struct stream *stream, const struct event *event) {
    if (!event->mark) return CUDA_SUCCESS;
    struct graph *graph = (struct graph *)event->mark->graph;
    if (graph && !stream->capture) {
        stream->capture = graph;
        stream->captured = graph_queue(graph);
    }
    if (stream->capture != graph) return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    append(stream, 0)->awaits = mark_hold(event->mark);
    return CUDA_SUCCESS;
}

bool event_done(const struct event *event) { return !event->mark || event->mark->done; }

/* ---- execution ---- */

static bool ready(const struct stream *s) {
    struct operation *o = s->queue.head;
    if (!o) return false;
    if (o->awaits) return o->awaits->done;
    return !o->ready || o->ready(o->argument);
}

static uint64_t clock_of_events(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void perform(struct operation *o) {
    if (o->run) o->run(o->argument);
    if (!o->records) return;
    o->records->time_ns = clock_of_events();
    o->records->done = true;
}

static void draw_ranks(void) {
    for (struct stream *s = streams; s; s = s->next) s->rank = emulator_random(&random_state);
}

static bool step(uint64_t least) {
    if (emulator_random(&random_state) % draw_every == 0) draw_ranks();
    struct stream *best = NULL;
    for (struct stream *s = streams; s; s = s->next)
        if (s->rank >= least && ready(s) && (!best || s->rank > best->rank)) best = s;
    if (!best) return false;
    memory_unlock();
    perform(best->queue.head);
    take_off(&best->queue);
    if (best->transient && !best->queue.head) stream_destroy(best);
    return true;
}

bool streams_step(void) { return step(0); }

/* Half of the calls run nothing; the others more, seldom many. */
void streams_advance(void) {
    while (emulator_random(&random_state) % 2)
        if (!step(least_rank)) return;
}
