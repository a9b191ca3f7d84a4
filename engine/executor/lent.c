/* Regions that rest in the host program's memory (engine/model/lent.h). A gather brings the ranks' shares in rounds through one
 * bounded staging buffer: in a round each rank gives as many elements of its share as there is room for. Alone, a rank has nothing to
 * gather, and its gradient is its own sum. */
#include "engine/executor/steps.h"
#include "kernels/ordered_sum.h"
#include "kernels/work.h"

const struct model_region *lent_region(const struct executor *e, struct buffer_ref ref) {
    const struct region *r =
        ref.kind == BUFFER_PARAM_FULL || ref.kind == BUFFER_GRAD_FULL ? policy_region(e, ref.region) : NULL;
    bool lent = r && (ref.kind == BUFFER_PARAM_FULL ? r->lent : r->grad_lent);
    return lent ? &e->o.shape.model->region[ref.region] : NULL;
}

/* Block by block as a reduction does it, with the same bits. A block that is not in one piece is copied. */
void lent_sum(struct executor *e, uint32_t region) {
    const struct model_region *r = &e->o.shape.model->region[region];
    enum dtype dtype = e->o.shape.precision.reduced;
    uint64_t bytes = dtype_bytes(dtype);
    float copy[NORM_BLOCK_ELEMENTS];
    e->norm[region] = 0;
    e->normed[region] = true;
    for (uint64_t first = 0, left = r->padded, count, there; left; first += count, left -= count) {
        double square;
        void *block = lent_at(r, LENT_GRADS, bytes, first, &there);
        count = left < NORM_BLOCK_ELEMENTS ? left : NORM_BLOCK_ELEMENTS;
        bool copied = !block || there < count;
        if (copied) lent_read(r, LENT_GRADS, bytes, first, count, block = copy);
        struct ordered_sum_argument sum = {.input = {block},
                                           .count = count,
                                           .target = block,
                                           .sums = &square,
                                           .input_count = 1,
                                           .dtype = dtype,
                                           .target_dtype = dtype};
        kernel_ordered_sum.run(&sum);
        e->norm[region] += square;
        if (copied) lent_write(r, LENT_GRADS, bytes, first, count, copy);
    }
}

zero_status lent_reduce(struct executor *e, struct item *item) {
    lent_sum(e, item->task->op.region);
    item->posted = true;
    e->traffic.reduce_calls++;
    return ZERO_OK;
}

/* ---- rounds of a gather ---- */

enum { ROUND_BYTES = 4 << 20 }; /* of all ranks' shares */

static uint64_t round_bytes(uint64_t members) {
    uint64_t least = members * ALIGN_BYTES;
    return least > ROUND_BYTES ? least : ROUND_BYTES;
}

uint64_t executor_lent_staging_bytes(const struct executor_shape *o) {
    uint64_t most = 0;
    for (uint32_t i = 0; i < o->model->regions; i++) {
        const struct region *r = &o->policy->region[i];
        uint64_t bytes = o->model->region[i].padded * dtype_bytes(o->precision.compute);
        bool gathers = r->lent && !r->frozen && placement_parts(r->state, o->policy->mesh) > 1;
        if (gathers && bytes > most) most = bytes;
    }
    uint64_t members = o->policy->mesh[AXIS_SHARD];
    return most < round_bytes(members) ? most : round_bytes(members);
}

/* The next round of a gather. Each share is `share` elements; the staging buffer has the members' parts, one after another. */
struct round {
    const struct model_region *region;
    uint8_t *staging;
    uint64_t bytes; /* of an element */
    uint64_t share, first, count;
    uint32_t members, me;
};

static struct round round_of(const struct executor *e, const struct item *item) {
    const struct operation *op = &item->task->op;
    const struct comm_group *group = e->o.shape.group[op->axes][op->stream];
    uint32_t staging = item->task->write[1];
    struct round r = {.region = &e->o.shape.model->region[op->region],
                      .staging = buffer_address(e, staging),
                      .bytes = dtype_bytes(e->o.shape.precision.compute),
                      .first = item->gathered,
                      .members = comm_group_size(group),
                      .me = comm_group_index(group)};
    uint64_t room = e->o.plan->buffer[staging].bytes / r.members / ALIGN_BYTES * ALIGN_BYTES / r.bytes;
    r.share = r.region->padded / r.members;
    r.count = r.share - r.first < room ? r.share - r.first : room;
    return r;
}

zero_status lent_gather(struct executor *e, struct item *item, struct comm_group *group,
                        const struct comm_call *whole) {
    if (comm_group_size(group) == 1) {
        item->posted = true;
        e->traffic.gather_calls++;
        return ZERO_OK;
    }
    struct round r = round_of(e, item);
    struct comm_call call = *whole;
    uint8_t *own = r.staging + r.me * r.count * r.bytes;
    lent_read(r.region, LENT_PARAMS, r.bytes, r.me * r.share + r.first, r.count, own);
    call.count = r.count, call.source = own, call.target = r.staging;
    zero_status status = post_counted(e, item, group, &call, 0);
    item->posted = r.first + r.count == r.share;
    return status;
}

/* Copies the other ranks' parts to the host's memory, and goes back to lent_gather for what is left. */
zero_status lent_scatter(struct executor *e, struct item *item) {
    const struct operation *op = &item->task->op;
    if (comm_group_size(e->o.shape.group[op->axes][op->stream]) == 1) return ZERO_OK;
    struct round r = round_of(e, item);
    for (uint32_t m = 0; m < r.members; m++)
        if (m != r.me)
            lent_write(r.region, LENT_PARAMS, r.bytes, m * r.share + r.first, r.count,
                       r.staging + m * r.count * r.bytes);
    item->gathered += r.count;
    if (item->gathered < r.share) item->step -= 2;
    return ZERO_OK;
}
