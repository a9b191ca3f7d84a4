/* Regions that rest in the host program's memory (engine/model/lent.h). Collectives on them go in rounds through one bounded
 * staging buffer: each round moves as many elements of each rank's share as the buffer has room for. A rank that is alone has
 * nothing to gather, and its gradient is the sum. */
#include "engine/executor/work/work.h"

#include <string.h>

#include "engine/model/lent.h"

/* ---- rounds ---- */

/* The elements of each share in a round. Blocks of the norm stay whole. */
static uint64_t lent_elements(uint64_t share, uint64_t members, uint64_t bytes) {
    uint64_t most = ROUND_BYTES / bytes / members / NORM_BLOCK_ELEMENTS * NORM_BLOCK_ELEMENTS;
    if (most < NORM_BLOCK_ELEMENTS) most = NORM_BLOCK_ELEMENTS;
    return share < most ? share : most;
}

static uint64_t members_bytes(const struct executor_shape *o, uint32_t region) {
    uint64_t members = o->policy->mesh[AXIS_SHARD], bytes = dtype_bytes(precision_of(o, region).compute);
    return members * bytes * lent_elements(o->model->region[region].padded / members, members, bytes);
}

uint64_t executor_lent_staging_bytes(const struct executor_shape *o) {
    uint64_t most = 0;
    for (uint32_t i = 0; i < o->model->regions && o->policy->mesh[AXIS_SHARD] > 1; i++) {
        const struct region *r = &o->policy->region[i];
        bool params =
            r->lent && placement_parts(r->state, o->policy->mesh) > 1; /* after a fill, frozen ones too */
        bool grads = r->grad_lent && placement_is(r->grad_step, REPLICATE, REPLICATE);
        if ((params || grads) && members_bytes(o, i) > most) most = members_bytes(o, i);
    }
    return most;
}

/* The next round of an item. Its staging buffer has the members' parts, one after another. */
struct round {
    const struct model_region *region;
    enum lent_array array;
    uint8_t *staging;
    uint64_t bytes; /* of an element */
    /* Elements: of each share, moved before this round, in this round, at most in a round. */
    uint64_t share, first, count, most;
    uint32_t members, me;
};

static struct round lent_round(const struct executor *e, const struct item *item) {
    const struct operation *op = &item->task->op;
    const struct comm_group *group = e->o.shape.group[op->axes][op->stream];
    struct round r = {.region = &e->o.shape.model->region[op->region],
                      .array = op->object == OBJECT_GRAD ? LENT_GRADS : LENT_PARAMS,
                      .staging = buffer_address(e, item->task->write[1]),
                      .bytes = dtype_bytes(precision_of(&e->o.shape, op->region).compute),
                      .first = item->moved,
                      .members = comm_group_size(group),
                      .me = comm_group_index(group)};
    r.share = r.region->padded / r.members;
    r.most = lent_elements(r.share, r.members, r.bytes);
    r.count = r.share - r.first < r.most ? r.share - r.first : r.most;
    return r;
}

static bool alone(const struct executor *e, const struct item *item) {
    const struct operation *op = &item->task->op;
    return comm_group_size(e->o.shape.group[op->axes][op->stream]) == 1;
}

static zero_status post_alone(struct item *item, uint64_t *calls) {
    item->posted = true;
    ++*calls;
    return ZERO_OK;
}

static zero_status post_round(struct executor *e, struct item *item, const struct round *r,
                              struct comm_call *call) {
    const struct operation *op = &item->task->op;
    call->count = r->count;
    call->stride = 0;
    zero_status status = post_counted(e, item, e->o.shape.group[op->axes][op->stream], call, 0);
    item->posted = r->first + r->count == r->share;
    return status;
}

static void next_round(struct item *item, const struct round *r, step_fn post) {
    item->moved += r->count;
    if (item->moved < r->share) repeat_from(item, post);
}

/* ---- a gather: to the host's arrays ---- */

zero_status lent_gather(struct executor *e, struct item *item, struct comm_call call) {
    const struct operation *op = &item->task->op;
    if (alone(e, item)) return post_alone(item, &e->traffic.gather_calls);
    struct round r = lent_round(e, item);
    uint8_t *own = r.staging + r.me * r.count * r.bytes;
    if (lent_region(e, op->read[0]))
        lent_read(r.region, r.array, r.bytes, r.me * r.share + r.first, r.count, own);
    else
        memcpy(own, (uint8_t *)buffer_address(e, item->task->read[0]) + r.first * r.bytes, r.count * r.bytes);
    call.source = own, call.target = r.staging;
    return post_round(e, item, &r, &call);
}

zero_status lent_take_gathered(struct executor *e, struct item *item, step_fn post) {
    if (alone(e, item)) return ZERO_OK;
    struct round r = lent_round(e, item);
    for (uint32_t m = 0; m < r.members; m++)
        lent_write(r.region, r.array, r.bytes, m * r.share + r.first, r.count,
                   r.staging + m * r.count * r.bytes);
    next_round(item, &r, post);
    return ZERO_OK;
}
