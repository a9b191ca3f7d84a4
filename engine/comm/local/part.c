#include "engine/comm/local/part.h"

#include <string.h>

#include "engine/comm/ordered.h"
#include "engine/comm/shape.h"
#include "kernels/device_work.h"
#include "kernels/ordered_sum.h"
#include "kernels/stream_copy.h"

const void *part_source(const struct comm_call *call) {
    return call->kind == COMM_BROADCAST ? call->target : call->source;
}

/* ---- work queued on a device ---- */

static zero_status queued(struct comm_work *work, zero_status status, uint64_t ticket,
                          struct zero_error *error) {
    struct comm *comm = work->group->comm;
    if (status) return comm_raise_error(comm, error, false);
    comm->queued += !work->queued;
    work->queued = true,
    work->ticket = ticket; /* a call's work is on one stream, so the last ticket is done last */
    return ZERO_OK;
}

uint8_t part_streams(const struct comm_call *call) { return 1u << DEVICE_GATHER | 1u << DEVICE_REDUCE; }

bool part_queued(const struct comm_work *work, uint64_t *out_ticket) {
    *out_ticket = work->queued ? work->ticket : 0;
    return true;
}

zero_status part_done(struct comm_work *work, bool *out_done) {
    struct comm *comm = work->group->comm;
    struct zero_error error;
    error_clear(&error);
    *out_done = !work->queued;
    if (!work->queued) return ZERO_OK;
    if (comm->device->ops->test(comm->device, work->ticket, out_done, &error))
        return comm_raise_error(comm, &error, false);
    comm->queued -= *out_done;
    work->queued = !*out_done;
    return ZERO_OK;
}

static zero_status copy_on_device(struct comm_work *work, void *target, const void *source, uint64_t bytes) {
    struct device *device = work->group->comm->device;
    struct zero_error error;
    uint64_t ticket = 0;
    error_clear(&error);
    zero_status status = device->ops->copy(device, DEVICE_GATHER, target, source, bytes, &ticket, &error);
    return queued(work, status, ticket, &error);
}

zero_status part_norm(struct device *device, const struct comm_call *call, uint64_t *out_ticket,
                      struct zero_error *error) {
    const struct comm_norm *norm = &call->norm;
    struct norm_total_argument a = {.sums = norm->all, .total = norm->total, .count = norm->blocks};
    struct device_work work = {.kernel = &kernel_norm_total,
                               .stream = DEVICE_REDUCE,
                               .reads = 1,
                               .writes = 1,
                               .read = {{norm->all, norm->blocks * sizeof *norm->all}},
                               .write = {{norm->total, sizeof *norm->total}}};
    if (!norm->sums || !norm->last) return ZERO_OK;
    memcpy(work.argument, &a, sizeof a);
    return device->ops->submit(device, &work, out_ticket, error);
}

static zero_status sum_on_device(struct comm_work *w, uint32_t members, const void *const *pointers,
                                 uint64_t count, uint64_t into) {
    struct device *device = w->group->comm->device;
    const struct comm_call *call = &w->call;
    struct ordered_sum_argument a = {.count = count,
                                     .target = (char *)call->target + into * dtype_bytes(call->target_dtype),
                                     .sums = call->norm.sums,
                                     .input_count = members,
                                     .node_inputs = members / w->group->nodes,
                                     .dtype = call->dtype,
                                     .target_dtype = call->target_dtype,
                                     .add = call->add};
    struct device_work work = {.kernel = &kernel_ordered_sum, .stream = DEVICE_REDUCE, .writes = 1};
    struct zero_error error;
    uint64_t ticket = 0;
    error_clear(&error);
    if (members > ORDERED_INPUTS_MAX)
        return comm_raise(
            w->group->comm, ZERO_E_UNSUPPORTED, -1, false,
            "comm %s: sums of %u ranks on one GPU, and it adds at most %d: start fewer ranks on each GPU",
            w->group->comm->ops->name, members, (int)ORDERED_INPUTS_MAX);
    for (uint32_t m = 0; m < members; m++) a.input[m] = pointers[m];
    work.write[0] = (struct device_span){a.target, count * dtype_bytes(call->target_dtype)};
    if (call->add) work.read[work.reads++] = work.write[0];
    for (uint32_t m = 0; m < members && work.reads < DEVICE_SPANS_MAX; m++)
        work.read[work.reads++] = (struct device_span){(void *)pointers[m], count * dtype_bytes(call->dtype)};
    if (a.sums) work.write[work.writes++] = part_norm_span(call);
    memcpy(work.argument, &a, sizeof a);
    zero_status status = device->ops->submit(device, &work, &ticket, &error);
    if (!status) status = part_norm(device, call, &ticket, &error);
    return queued(w, status, ticket, &error);
}

/* ---- on a device or on the host ---- */

/* Such a large result has left the caches before it is read. */
enum { STREAMED_BYTES = 32 << 20 };

static bool is_streamed(const struct comm_work *work) {
    const struct comm_call *call = &work->call;
    return shape_stride(call) * work->group->count >= STREAMED_BYTES / dtype_bytes(call->dtype);
}

/* Zero bytes may come with NULL pointers, which memcpy does not allow. */
zero_status part_copy(struct comm_work *work, void *target, const void *source, uint64_t bytes) {
    if (!bytes || target == source) return ZERO_OK;
    if (work->group->comm->device) return copy_on_device(work, target, source, bytes);
    if (is_streamed(work))
        stream_copy(target, source, bytes);
    else
        memcpy(target, source, bytes);
    return ZERO_OK;
}

zero_status part_sum(struct comm_work *work, uint32_t members, const void *const *sources, uint64_t first,
                     uint64_t count, uint64_t into, const void **pointers) {
    const struct comm_call *call = &work->call;
    if (count == 0) return ZERO_OK;
    for (uint32_t m = 0; m < members; m++)
        pointers[m] = (const char *)sources[m] + first * dtype_bytes(call->dtype);
    if (work->group->comm->device) return sum_on_device(work, members, pointers, count, into);
    ordered_sum(&(struct ordered){
        .inputs = pointers,
        .input_count = members,
        .node_inputs = members / work->group->nodes,
        .dtype = call->dtype,
        .target_dtype = call->target_dtype,
        .target = (char *)call->target + into * dtype_bytes(call->target_dtype),
        .count = count,
        .add = call->add,
        .written = call->written,
        .written_user = call->written_user,
    });
    return ZERO_OK;
}

zero_status part_complete(struct comm_work *work, uint32_t members, const void *const *sources,
                          const void **pointers) {
    const struct comm_call *call = &work->call;
    uint32_t me = work->group->index;
    uint64_t bytes = call->count * dtype_bytes(call->dtype),
             stride = shape_stride(call) * dtype_bytes(call->dtype);
    zero_status status = ZERO_OK;
    switch (call->kind) {
    case COMM_ALL_GATHER: /* each member begins with its own share, so that members read different shares at a time */
        for (uint32_t i = 0, m = me; i < members && !status; i++, m = m + 1 == members ? 0 : m + 1)
            status = part_copy(work, (char *)call->target + m * stride, sources[m], bytes);
        break;
    case COMM_ALL_TO_ALL:
        for (uint32_t i = 0, m = me; i < members && !status; i++, m = m + 1 == members ? 0 : m + 1)
            status = part_copy(work, (char *)call->target + m * bytes, (const char *)sources[m] + me * bytes,
                               bytes);
        break;
    case COMM_REDUCE_SCATTER:
        return part_sum(work, members, sources, me * shape_stride(call), call->count, 0, pointers);
    case COMM_ALL_REDUCE:
        return part_sum(work, members, sources, 0, call->count, 0, pointers);
    case COMM_BROADCAST:
        return part_copy(work, call->target, sources[call->root], bytes);
    default:
        break;
    }
    return status;
}
