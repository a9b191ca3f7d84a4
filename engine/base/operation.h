/* The closed set of operations that a policy emits and the executor performs. An operation is plain data.
 *
 * A stream is a timeline: its operations start and retire in the order in which they were emitted. A point of
 * a stream is a number: it is reached when that many operations of the stream have retired.
 *
 * A policy names buffers symbolically (what, of which region); the executor binds them to planned memory. The
 * waits of an operation follow from the whole buffers that it reads and writes (hazard.h); policies write
 * none. */
#ifndef ZERO_ENGINE_BASE_OPERATION_H
#define ZERO_ENGINE_BASE_OPERATION_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/limits.h"

#define OPERATION_KINDS(X)                                                                                   \
    X(COMPUTE) /* the host's forward or backward of one use */                                               \
    X(GATHER)  /* shard -> replicate */                                                                      \
    X(REDUCE)  /* partial -> shard, or partial -> replicate on the replicate axis */                         \
    X(RELEASE) /* a gathered buffer's life ends */                                                           \
    X(UPDATE)  /* the optimizer, on one shard */                                                             \
    X(FETCH)   /* a run of chunks comes from a tier */                                                       \
    X(STORE)   /* a run of chunks goes to a tier */                                                          \
    X(COPY)    /* this rank's secondary shard out of a gathered unit (hpZ) */                                \
    X(CLEAR)   /* a gradient that nobody produced is zero */                                                 \
    X(AGREE)   /* norm, skip, status and lr among all ranks */

enum operation_kind {
#define OPERATION_ENUM(name) OP_##name,
    OPERATION_KINDS(OPERATION_ENUM)
#undef OPERATION_ENUM
        OP_KINDS
};

enum object { OBJECT_PARAM, OBJECT_GRAD, OBJECT_STATE, OBJECT_NORM, OBJECTS };

enum stream {
    STREAM_COMPUTE,
    STREAM_GATHER,
    STREAM_REDUCE,
    STREAM_UPDATE,
    STREAM_FETCH,
    STREAM_STORE,
    STREAM_PARAM, /* parameter fetches, apart from state fetches */
    STREAM_CONTROL,
    STREAMS
};

enum buffer_kind {
    BUFFER_PARAM_FULL,   /* a region's whole flat buffer of parameters */
    BUFFER_PARAM_SHARD,  /* this rank's shard, where parameters rest sharded */
    BUFFER_PARAM_SECOND, /* hpZ's secondary shard */
    BUFFER_GRAD_FULL,    /* this rank's whole gradient: a summand, or gathered back */
    BUFFER_GRAD_SHARD, /* the reduced shard, accumulated over micro-steps; where the host updates for a device, in
                              the host's memory */
    BUFFER_STATE,      /* optimizer state of the shard */
    BUFFER_MASTER,     /* its fp32 master weights, where parameters are narrower; with the state */
    BUFFER_STAGING,        /* scratch of a reduction; the region is its index */
    BUFFER_GATHER_STAGING, /* of a quantised gather; the region is its index */
    BUFFER_PARAM_STAGED,   /* a shard of parameters that came from a drive; the region is its index */
    BUFFER_GRAD_HOST,      /* there, where the update reads the whole gradient: a copy of that */
    BUFFER_UPDATE_STAGING, /* parameters on their way from that update to the device; the region is its index */
    BUFFER_KINDS
};

struct buffer_ref {
    uint16_t kind, region;
};

enum { OPERATION_BUFFERS_MAX = 2 * USE_REGIONS_MAX };

/* The first item of a run starts when retired[stream] >= value, item i when >= value + i. */
struct pipe {
    bool used;
    uint8_t stream;
    int64_t value; /* not above 0: no wait */
};

struct operation {
    uint8_t kind, object, stream, axes;
    bool add;      /* REDUCE: onto what the shard already holds */
    bool final;    /* REDUCE, CLEAR: the gradient's last write before the step. COMPUTE: a backward of the
                      step's last micro-step */
    uint8_t joins; /* streams (bits) of which everything emitted so far must have retired */
    uint8_t reads, writes;
    uint16_t acquires; /* writes (bits) whose planned interval begins here, for position `use` */
    uint16_t region;
    uint16_t use; /* the position in the pass that this serves */
    struct buffer_ref read[OPERATION_BUFFERS_MAX], write[OPERATION_BUFFERS_MAX];
    uint32_t items;         /* points that it takes on its stream: 1, or one per chunk of a run */
    uint32_t first, chunks; /* UPDATE, FETCH, STORE: the chunks of the region's shard (offload/expand.h) */
    uint64_t sequence;      /* of its first chunk, among all that were ever staged */
    struct pipe pipe;
    uint64_t end;            /* its last point on its stream; set at emission, like the waits */
    uint64_t after[STREAMS]; /* it starts when retired[s] >= after[s] for every stream s */
};

struct operation_list {
    struct operation *item;
    uint32_t count, capacity; /* capacity 0: it was asked for more rows than it has, and is no longer whole */
};

/* A new row at the list's end. A full list lends its first row again and overflows: nothing is written outside it. Who
 * performs or plans what a list holds asks whether it overflowed. Capacities are above 0 at first. */
struct operation *operation_append(struct operation_list *list);

static inline bool operation_list_overflowed(const struct operation_list *list) {
    return list->capacity == 0;
}

const char *operation_kind_name(enum operation_kind kind); /* "GATHER" */
const char *object_name(enum object object);               /* "param" */
const char *stream_name(enum stream stream);

#endif
