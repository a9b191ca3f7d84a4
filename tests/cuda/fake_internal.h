/* Declarations between the files of the stand-in driver. Every function is called with the driver's lock held, except
 * call_enter, which takes it, and current_context. */
#ifndef ZERO_TESTS_CUDA_FAKE_INTERNAL_H
#define ZERO_TESTS_CUDA_FAKE_INTERNAL_H

#include <stdint.h>

#include "tests/cuda/fake_cuda.h"

/* Reports a misuse that is undefined with the real driver, and ends the process. */
void fake_fail(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

/* fake_cuda.c */
struct CUctx_st {
    int device;
    uint32_t retained;
    struct stream *legacy; /* the default stream; NULL: not used so far */
};

/* The memory that a block may share. */
enum { SHARED_DEFAULT = 48 * 1024, SHARED_MAX = 227 * 1024 };

#define EXPORT __attribute__((visibility("default")))

/* Each of the driver's functions begins with ENTER, and returns by call_leave. */
CUresult call_enter(bool needs_context);
CUresult call_leave(CUresult result);
#define ENTER(needs_context)                                                                                 \
    do {                                                                                                     \
        CUresult entered = call_enter(needs_context);                                                        \
        if (entered) return entered;                                                                         \
    } while (0)

/* Work runs until `done`. Where none is ready, it waits for what another thread will enqueue. */
void call_wait(bool (*done)(const void *), const void *of);
CUresult call_enqueue(CUstream handle, bool (*ready)(void *), void (*run)(void *), const void *argument,
                      size_t bytes);
struct stream *stream_of(CUstream handle);                  /* NULL: there is no such stream */
struct stream *stream_with_room(CUstream handle);           /* the same, once it takes an operation */
struct CUctx_st *current_context(void);                     /* of this thread */
uint64_t number_from(const char *name, uint64_t otherwise); /* of the environment */

/* fake_memory.c */
void memory_open(uint64_t capacity);
CUresult memory_allocate(uint64_t *out_address, size_t bytes);
CUresult memory_free(uint64_t address);
CUresult memory_reserve(uint64_t *out_address, size_t bytes, uint64_t align); /* addresses, without memory */
bool memory_take(size_t bytes);                                               /* memory, without addresses */
void memory_give(size_t bytes);
uint64_t memory_capacity(void);
uint64_t memory_available(void);
bool memory_has(uint64_t address, size_t bytes); /* inside one allocation */
bool memory_is_device(uint64_t address);         /* in the device's range, allocated or not */
void memory_unlock(void);
void memory_lock(void);
void memory_check(void); /* checks the bytes after each allocation */
/* Page-locked host memory: the host memory that a GPU reaches. `drivers`: the driver allocated it. */
CUresult pinned_add(const void *memory, size_t bytes, bool drivers);
CUresult pinned_remove(const void *memory, bool drivers);
bool pinned_has(uint64_t address, size_t bytes);

/* fake_space.c: all pages of reserved addresses have memory */
bool space_has(uint64_t address, size_t bytes);

/* fake_stream.c */
struct graph;

struct mark { /* one recording of an event */
    uint32_t holders;
    bool done;
    uint64_t time_ns;
    const struct graph *graph; /* that it was captured in, or NULL */
};

struct operation {
    struct operation *next;
    struct mark *records, *awaits; /* one of them, or `run` */
    bool (*ready)(void *argument);
    void (*run)(void *argument);
    size_t bytes;
    _Alignas(16) unsigned char argument[];
};

struct queue {
    struct operation *head, **tail;
    uint32_t length;
};

struct stream {
    struct stream *next;
    const struct CUctx_st *context;
    uint64_t rank;
    struct queue queue;
    struct graph *capture; /* what is enqueued goes to `captured` in the place of `queue` */
    struct queue *captured;
    bool transient; /* of a graph's run: ends with its last operation */
};

struct event {
    struct event *next;
    const struct CUctx_st *context;
    struct mark *mark; /* NULL: never recorded */
};

void streams_open(uint64_t seed);
struct stream *stream_create(const struct CUctx_st *context);
void stream_destroy(struct stream *stream);
bool stream_valid(const struct stream *stream);
bool stream_idle(const struct stream *stream);
/* As a GPU's driver, a stream takes about 1000 operations. A call that enqueues one more waits. */
bool stream_has_room(const struct stream *stream);
void stream_enqueue(struct stream *stream, bool (*ready)(void *), void (*run)(void *), const void *argument,
                    size_t bytes);
struct event *event_create(const struct CUctx_st *context);
void event_destroy(struct event *event);
bool event_valid(const struct event *event);
CUresult event_record(struct event *event, struct stream *stream);
CUresult stream_wait(struct stream *stream, const struct event *event);
bool event_done(const struct event *event); /* or never recorded */
bool streams_step(void);                    /* runs one operation; false: none is ready */
void streams_advance(void);                 /* runs some, perhaps none */
bool streams_idle(const struct CUctx_st *context);
bool streams_name(uint64_t first, size_t bytes); /* queued work has an address in this memory */
uint64_t *streams_random(void);

struct mark *mark_create(void);
struct mark *mark_hold(struct mark *mark);
void mark_drop(struct mark *mark);
void *fake_allocate(size_t bytes); /* zeroed */
struct operation *queue_append(struct queue *queue, size_t bytes);
void queue_clear(struct queue *queue);
struct stream *streams_first(void);

/* fake_counts.c */
void count_kernel(bool recorded);
void count_graph(void);
void count_copy(void);
void count_load(void);

/* fake_graph.c */
CUresult graph_begin(struct stream *stream, CUstreamCaptureMode mode);
/* Called for calls that are forbidden while this thread captures, or while any thread captures in the global mode, and
 * for calls that ask for the state of captured work: ends these captures. True if there was one. */
bool graphs_forbid(void);
CUstreamCaptureMode graphs_exchange_mode(CUstreamCaptureMode mode); /* of the calling thread; the one before */
CUresult graph_invalidate(const struct graph *graph, CUresult result); /* the result */
bool graph_valid(const struct graph *graph);
bool graphs_capture(const struct CUctx_st *context); /* invalidates them, too */
CUresult graph_end(struct stream *stream, struct graph **out_graph);
struct queue *graph_queue(struct graph *graph); /* for one more stream that is captured */
struct graph *graph_copy(const struct graph *graph);
void graph_destroy(struct graph *graph);
void graph_launch(const struct graph *graph, struct stream *stream);

#endif
