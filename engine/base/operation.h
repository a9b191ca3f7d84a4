/* All operations that a policy emits and the executor performs. An operation is plain data.
 *
 * A stream is a timeline: its operations start and retire in the order in which they were emitted. A point of a stream
 * is a number n: the point is reached when n items of the stream have retired.
 *
 * A policy names a buffer by its kind and its region; the executor binds it to planned memory. hazard.h computes the
 * waits of an operation from the buffers that it reads and writes; a policy sets no waits. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/limits.h"

#define OPERATION_KINDS(X)                                                                                   \
    X(COMPUTE) /* the host's forward or backward of one use */                                               \
    X(GATHER)  /* shard -> replicate */                                                                      \
    X(REDUCE)  /* partial -> shard, or partial -> replicate on the replicate axis */                         \
    X(RELEASE) /* a gathered buffer's life ends */                                                           \
    X(UPDATE)  /* the optimizer, on one shard; one leg of it (update.h) */                                   \
    X(MATRIX)  /* the optimizer, on the whole matrices that this rank owns */                                \
    X(FETCH)   /* a run of chunks comes from a tier */                                                       \
    X(STORE)   /* a run of chunks goes to a tier */                                                          \
    X(COPY)    /* copies this rank's secondary shard out of a gathered unit (hpZ) */                         \
    X(CLEAR)   /* sets a gradient that no backward produced to zero */                                       \
    X(AGREE)   /* all ranks agree on norm, skip, status and lr */

enum operation_kind {
#define OPERATION_ENUM(name) OP_##name,
    OPERATION_KINDS(OPERATION_ENUM)
#undef OPERATION_ENUM
        OP_KINDS
};

/* What becomes of a step, once all ranks have agreed on the norm of its gradients. */
enum outcome {
    OUTCOME_UPDATED,
    /* The norm is above gradient_clipping, and the updates of the backward did not clip: they are repeated from the
     * values before the step. */
    OUTCOME_REPEATED,
    OUTCOME_SKIPPED /* nothing is updated, and the updates of its backward are taken back */
};

enum object { OBJECT_PARAM, OBJECT_GRAD, OBJECT_STATE, OBJECT_NORM, OBJECT_DIRECTION, OBJECTS };

enum stream {
    STREAM_COMPUTE,
    STREAM_GATHER,
    STREAM_REDUCE,
    STREAM_UPDATE,
    STREAM_FETCH,
    STREAM_STORE,
    STREAM_PARAM, /* fetches of parameters, and of gradients that are added to; all others use STREAM_FETCH */
    STREAM_GRAD,  /* stores of gradients */
    STREAM_CONTROL,
    STREAMS
};

enum buffer_kind {
    BUFFER_PARAM_FULL,   /* a region's whole flat buffer of parameters */
    BUFFER_PARAM_SHARD,  /* this rank's shard, where parameters rest sharded */
    BUFFER_PARAM_SECOND, /* hpZ's secondary shard */
    BUFFER_GRAD_FULL,    /* this rank's whole gradient: a summand, or gathered back */
    /* The reduced shard, accumulated over micro-steps. If the host updates for a device, it is in host memory. */
    BUFFER_GRAD_SHARD,
    BUFFER_STATE,  /* optimizer state of the shard */
    BUFFER_MASTER, /* fp32 master weights of the shard, if parameters are narrower; stored with the state */
    /* State and masters of the regions whose state is on the device, while that of other regions is not. No operation
     * names these two buffers: BUFFER_STATE stands for both. */
    BUFFER_DEVICE_STATE,
    BUFFER_DEVICE_MASTER,
    BUFFER_STAGING,        /* scratch of a reduction; the region is its index */
    BUFFER_GATHER_STAGING, /* scratch of a gather of codes, or from a drive; the region is its index */
    BUFFER_PARAM_STAGED, /* the ring of chunks of parameters between a drive and a gather; the region is 0 */
    /* If the host updates for a device and the update reads the whole gradient: a copy of it in host memory. */
    BUFFER_GRAD_HOST,
    BUFFER_UPDATE_STAGING, /* parameters on the way from the host's update to the device; the region is its index */
    BUFFER_LENT_STAGING, /* shares on the way between ranks and the host program's memory; the region is its index */
    BUFFER_GRAD_STAGED, /* the ring of chunks of reduced gradients on the way to a drive; the region is 0 */
    /* If a use has several micro-batches: the whole gradient of every second micro-batch. */
    BUFFER_GRAD_SECOND,
    BUFFER_GRAD_HELD, /* in that case also: the sum of a use's reduced shards, on its way to a drive or from a device */
    /* For an optimizer that updates whole matrices: the directions of a region, in fp32 (kernels/optimizer.h), and scratch. The
     * region is the index. */
    BUFFER_DIRECTION,
    BUFFER_MATRIX_SCRATCH,
    BUFFER_TENSOR_NORMS, /* for an optimizer that needs norms of whole tensors: struct tensor_norms of each rank's part of each tensor */
    /* If the host adds a micro-step's shard to the sum in host memory: one round of the shard, copied from the device. The region
     * is the index of the reduction's BUFFER_STAGING. No operation names this buffer. */
    BUFFER_ROUND_STAGING,
    /* For norms of whole tensors: the unfinished block of an update, which a later update continues (struct tensor_cut); and, for a
     * discrete device, the norms of blocks, which no operation names. The region is 0. */
    BUFFER_TENSOR_CUT,
    BUFFER_TENSOR_SUMS,
    BUFFER_KINDS
};

/* The pipes of runs order the accesses to each slot of a ring; nothing orders the accesses to the whole buffer. */
static inline bool buffer_is_ring(uint16_t kind) {
    return kind == BUFFER_PARAM_STAGED || kind == BUFFER_GRAD_STAGED;
}

struct buffer_ref {
    uint16_t kind, region;
};

enum { OPERATION_BUFFERS_MAX = USE_REGIONS_MAX };

/* Item i of a run (from 0) starts when retired[stream] >= value + i. */
struct pipe {
    bool used;
    uint8_t stream;
    int64_t value; /* 0 or below: no wait */
};

struct operation {
    uint8_t kind, object, stream, axes;
    bool add;   /* REDUCE: adds to the shard's content */
    bool final; /* REDUCE, CLEAR: the gradient's last write before the step. COMPUTE: a backward of the
                      step's last micro-step */
    /* REDUCE: the next reduction sums this one's shard over the replicate axis, in the same event; this is that sum. On
     * a drive, the first makes the sum chunk by chunk, and the second becomes nothing (offload/expand.h). */
    bool summed, sums;
    /* UPDATE, and FETCH and STORE of its chunks (enum outcome): unless OUTCOME_UPDATED, it starts from the values before the
     * step's first update. OUTCOME_SKIPPED: it only restores the parameters. */
    uint8_t outcome;
    uint8_t leg; /* UPDATE, and FETCH and STORE of its chunks: which leg (engine/base/update.h) */
    uint8_t reads, writes;
    uint16_t joins; /* bit per stream: everything emitted on this stream so far must have retired */
    /* Bit per stream: each item waits by the pipe for the point that it needs on this stream. */
    uint16_t implied;
    uint16_t acquires; /* bit per write: the buffer's planned interval begins here, for position `use` */
    uint16_t region;
    uint16_t use; /* the position in the pass that the operation serves */
    struct buffer_ref read[OPERATION_BUFFERS_MAX], write[OPERATION_BUFFERS_MAX];
    uint32_t items;         /* the number of points on its stream: 1, or one per chunk of a run */
    uint32_t first, chunks; /* UPDATE, FETCH, STORE: the chunks of the region's shard (offload/expand.h) */
    uint64_t sequence;      /* how many chunks were staged in its ring before its first chunk */
    /* GATHER, REDUCE, CLEAR: elements of each share that an item moves; 0: one item moves all. */
    uint64_t piece;
    struct pipe pipe;
    uint64_t end;            /* the operation's last point on its stream; set at emission, as `after` is */
    uint64_t after[STREAMS]; /* the operation starts when retired[s] >= after[s] for every stream s */
};

struct operation_list {
    struct operation *item;
    uint32_t count, capacity; /* capacity 0: the list overflowed, and rows are missing */
};

/* Returns a new row at the list's end. A full list overflows: it sets its capacity to 0 and returns its first row, so
 * that no write goes outside the list. A caller that performs or plans the operations of a list first asks whether the
 * list overflowed. A new list's capacity is above 0. */
struct operation *operation_append(struct operation_list *list);

static inline bool operation_list_overflowed(const struct operation_list *list) {
    return list->capacity == 0;
}

const char *operation_kind_name(enum operation_kind kind); /* "GATHER" */
const char *object_name(enum object object);               /* "param" */
const char *stream_name(enum stream stream);
