/* The rounds of gathers and reductions: which part of each share an item moves at a time, and with which calls. Pure. */
#include "engine/executor/work/work.h"

#include "engine/base/integer.h"

/* The type of the sent elements: a scatter sends summands; a sum over the replicate axis sends the shard. */
static enum dtype reduced_from(const struct precision *p, bool scatter) {
    return scatter ? p->message : p->reduced;
}

bool scatters(const struct operation *op) {
    return op->reads > 0; /* else it sums the shard over the replicate axis */
}

bool sums_replicas(const struct operation *op) { return op->summed && buffer_is_ring(op->write[0].kind); }

/* ---- what a reduction does with its memory ---- */

bool reads_given(const struct executor_shape *o, const struct operation *op) {
    const struct region *r = &o->policy->region[op->region];
    if (!scatters(op) || op->object != OBJECT_GRAD) return false;
    return r->grad_given || (r->grad_lent && comm_group_size(o->group[op->axes][op->stream]) > 1);
}

bool sums_lent(const struct executor_shape *o, const struct operation *op) {
    return scatters(op) && op->object == OBJECT_GRAD && o->policy->region[op->region].grad_lent &&
           !reads_given(o, op);
}

/* The threads of a device cannot narrow elements in place, so a narrower message needs its own memory, and so does one that comes from
 * memory that the host gave. Else the message takes the gradient's place. */
bool stages_message(const struct executor_shape *o, const struct operation *op) {
    struct precision p = moved_precision(o, op);
    return reads_given(o, op) || (o->terms->discrete && dtype_bytes(p.message) < dtype_bytes(p.compute));
}

struct comm_call whole_call(const struct executor_shape *o, const struct operation *op, uint64_t count) {
    struct precision p = moved_precision(o, op);
    bool scatter = scatters(op);
    return (struct comm_call){.kind = scatter ? COMM_REDUCE_SCATTER : COMM_ALL_REDUCE,
                              .dtype = reduced_from(&p, scatter),
                              .target_dtype = p.reduced,
                              .count = count,
                              .native = o->terms->native_reduction,
                              .add = op->add};
}

/* The reduced shard rests in the host's memory, and the device makes it in the gradient's memory, which nobody reads any more. It
 * makes it in the staging buffer instead if the gradient is gone, if the types differ in width (the sum of one round would
 * overwrite elements that later rounds read), or if the reduction adds to the old shard. The sum of a use's micro-batches needs neither:
 * it waits on the device (BUFFER_GRAD_HELD). */
bool stages_shard(const struct executor_shape *o, const struct operation *op) {
    const struct region *r = &o->policy->region[op->region];
    bool leaves = o->host_updates && op->object == OBJECT_GRAD && !r->grad_turns &&
                  !placement_is(r->grad_step, REPLICATE, REPLICATE);
    struct precision p = precision_of(o, op->region);
    if (reads_given(o, op) && r->grad_in_place) return true; /* the sum goes to the host's arrays */
    return leaves && (!scatters(op) || op->add || dtype_bytes(p.reduced) != dtype_bytes(p.compute) ||
                      reads_given(o, op));
}

/* The host adds what a micro-step reduced to the sum in its own memory, so the sum need not cross to the device and back. Both add in
 * fp32, so the bits are the same; a narrower sum would be rounded once more on its way. */
bool executor_host_adds(const struct executor_shape *o, const struct operation *op) {
    return op->add && scatters(op) && stages_shard(o, op) &&
           precision_of(o, op->region).reduced == DTYPE_F32 && !sums_replicas(op);
}

static bool needs_scratch(const struct executor_shape *o, const struct operation *op) {
    struct comm_call call = whole_call(o, op, NORM_BLOCK_ELEMENTS);
    return comm_staging_bytes(o->group[op->axes][op->stream], &call) || codes_reduce(o, op) ||
           stages_shard(o, op) || (scatters(op) && stages_message(o, op));
}

/* True if the sum goes into the gradient's memory in a narrower type. It then overwrites elements of other shares, so the whole
 * message is made first. */
static bool narrows_in_place(const struct executor_shape *o, const struct operation *op) {
    return scatters(op) && stages_message(o, op) && !reads_given(o, op) &&
           o->policy->region[op->region].grad_in_place;
}

/* ---- rounds ---- */

static uint64_t piece_most(const struct executor_shape *o) {
    return o->terms->piece_bytes ? o->terms->piece_bytes : PIECE_BYTES_DEFAULT;
}

static uint64_t piece_of(uint64_t bytes, enum dtype dtype, uint32_t shares) {
    uint64_t most = bytes / shares / dtype_bytes(dtype) / NORM_BLOCK_ELEMENTS * NORM_BLOCK_ELEMENTS;
    return most ? most : NORM_BLOCK_ELEMENTS;
}

/* Over several nodes pieces are as large as for one node's members alone, if there are a few nodes: else the messages from node to node
 * would be small. */
static uint32_t shares_of_piece(const struct comm_group *group) {
    enum { NODES_MOST = 4 };
    uint32_t members = comm_group_size(group), of_node = comm_group_node_members(group);
    return of_node > 1 ? (uint32_t)(members / min64(members / of_node, NODES_MOST)) : members;
}

uint64_t piece_elements(const struct executor_shape *o, enum dtype dtype, const struct comm_group *group) {
    return piece_of(piece_most(o), dtype, shares_of_piece(group));
}

/* A reduction that needs scratch memory goes in rounds, so that this memory is not as large as its region. The bits of a
 * native sum may depend on its size, so it is not cut. */
uint64_t round_elements(const struct executor_shape *o, const struct operation *op) {
    const struct comm_group *group = o->group[op->axes][op->stream];
    if (op->kind == OP_GATHER)
        return stages_gather(op) ? piece_elements(o, precision_of(o, op->region).compute, group) : UINT64_MAX;
    if (op->kind != OP_REDUCE || o->terms->native_reduction || !needs_scratch(o, op)) return UINT64_MAX;
    if (sums_lent(o, op)) return UINT64_MAX;
    if (narrows_in_place(o, op)) return UINT64_MAX;
    bool hosts = reads_given(o, op) && !o->terms->discrete;
    uint64_t bytes = hosts ? min64(ROUND_BYTES, piece_most(o)) : piece_most(o);
    return piece_of(bytes, whole_call(o, op, 0).dtype, scatters(op) ? shares_of_piece(group) : 1);
}

/* The elements of a share that an operation moves: it cuts a region into as many shares as its group has members. */
static uint64_t share_elements(const struct executor_shape *o, const struct operation *op) {
    if (op->object == OBJECT_NORM)
        return tensor_words(o, op->region) / comm_group_size(o->group[op->axes][op->stream]);
    if (op->kind == OP_GATHER)
        return o->model->region[op->region].padded / comm_group_size(o->group[op->axes][op->stream]);
    return part_elements(o, op->region, grad_shard_placement(&o->policy->region[op->region]));
}

struct part item_part(const struct executor_shape *o, const struct operation *op, uint32_t index) {
    struct part part = {.share = share_elements(o, op)};
    part.first = index * op->piece;
    part.count = op->piece ? min64(op->piece, part.share - part.first) : part.share;
    return part;
}

/* The elements that an item moves in its next round. */
struct part round_part(const struct executor_shape *o, const struct operation *op, uint32_t index,
                       uint64_t moved) {
    struct part part = item_part(o, op, index);
    part.first += moved;
    part.count = min64(part.count - moved, round_elements(o, op));
    return part;
}

/* ---- calls ---- */

/* The call of elements, before coding. */
struct comm_call element_call(const struct executor_shape *o, const struct operation *op, uint32_t index,
                              uint64_t moved) {
    struct precision p = moved_precision(o, op);
    struct part part = round_part(o, op, index, moved);
    struct comm_call call = {.kind = COMM_ALL_GATHER,
                             .count = part.count,
                             .stride = part.count < part.share ? part.share : 0,
                             .tag = op->region,
                             .what = o->model->unit[o->model->region[op->region].unit]->name};
    if (op->kind == OP_GATHER) {
        call.dtype = call.target_dtype = op->object == OBJECT_GRAD ? p.reduced : p.compute;
        return call;
    }
    call.kind = scatters(op) ? COMM_REDUCE_SCATTER : COMM_ALL_REDUCE;
    call.dtype = reduced_from(&p, scatters(op));
    call.target_dtype = p.reduced;
    call.native = o->terms->native_reduction;
    call.add = op->add;
    if (!scatters(op)) call.stride = 0;
    return call;
}

struct operation sum_of_scatter(const struct operation *op) {
    struct operation sum = *op;
    sum.axes = AXES_REPLICATE;
    sum.reads = 0;
    sum.add = false;
    return sum;
}

bool executor_next_call(const struct executor_shape *o, const struct operation *op, uint32_t item,
                        struct executor_round *round, struct comm_call *out) {
    bool sums = sums_replicas(op) && !round->sum && round->axes;
    uint64_t count = round_part(o, op, item, round->moved).count;
    if (!sums && round->axes) round->moved += count, count = round_part(o, op, item, round->moved).count;
    struct operation now = sums ? sum_of_scatter(op) : *op;
    if (!count) return false;
    *out = element_call(o, &now, item, round->moved);
    out->count = count;
    *out = coded_call(o, &now, *out);
    round->axes = now.axes;
    round->sum = sums;
    return true;
}
