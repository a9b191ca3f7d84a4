/* Sizes of a call's buffers and shares. */
#pragma once

#include "engine/comm/comm.h"
#include "kernels/quantize.h"

static inline bool shape_reduces(const struct comm_call *call) {
    return call->kind == COMM_REDUCE_SCATTER || call->kind == COMM_ALL_REDUCE;
}

/* Elements from one share to the next. */
static inline uint64_t shape_stride(const struct comm_call *call) {
    return call->stride ? call->stride : call->count;
}

/* Elements from the first share's begin to the last share's end. */
static inline uint64_t shape_reach(const struct comm_call *call, uint32_t members) {
    return call->count ? (members - 1) * shape_stride(call) + call->count : 0;
}

/* An all-reduce is cut into shares as a reduce-scatter is; its last shares may be short or empty. */
static inline uint64_t shape_share(const struct comm_call *call, uint32_t members) {
    return call->kind == COMM_ALL_REDUCE ? call->count / members + (call->count % members != 0) : call->count;
}

static inline uint64_t shape_share_bytes(const struct comm_call *call, uint32_t members) {
    return call->code ? quantize_bytes(call->count, (enum code_format)call->code)
                      : shape_share(call, members) * dtype_bytes(call->dtype);
}

/* The bytes from a buffer's begin to its end. */
static inline uint64_t shape_source_bytes(const struct comm_call *call, uint32_t members) {
    switch (call->kind) {
    case COMM_ALL_GATHER:
    case COMM_ALL_REDUCE:
        return call->count * dtype_bytes(call->dtype);
    case COMM_REDUCE_SCATTER:
        return call->code ? members * shape_share_bytes(call, members)
                          : shape_reach(call, members) * dtype_bytes(call->dtype);
    case COMM_ALL_TO_ALL:
        return members * call->count * dtype_bytes(call->dtype);
    default:
        return 0; /* broadcast works in its target */
    }
}

static inline uint64_t shape_target_bytes(const struct comm_call *call, uint32_t members) {
    switch (call->kind) {
    case COMM_ALL_GATHER:
        return shape_reach(call, members) * dtype_bytes(call->dtype);
    case COMM_ALL_TO_ALL:
        return members * call->count * dtype_bytes(call->dtype);
    case COMM_REDUCE_SCATTER:
    case COMM_ALL_REDUCE:
        return call->count * dtype_bytes(call->target_dtype);
    case COMM_BROADCAST:
        return call->count * dtype_bytes(call->dtype);
    default:
        return 0;
    }
}

static inline uint64_t shape_first(const struct comm_call *call, uint32_t members, uint32_t member) {
    uint64_t first = member * shape_share(call, members);
    return call->kind == COMM_ALL_REDUCE && first > call->count ? call->count : first;
}

static inline uint64_t shape_count(const struct comm_call *call, uint32_t members, uint32_t member) {
    uint64_t share = shape_share(call, members);
    if (call->kind != COMM_ALL_REDUCE) return share;
    uint64_t left = call->count - shape_first(call, members, member);
    return left < share ? left : share;
}
