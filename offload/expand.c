#include "offload/expand.h"

#include "engine/base/integer.h"

static const struct update_row *row_of(const struct offload_region *r) { return &update_rows[r->scope]; }

/* The legs of a step in their order: first those that lead, then the others, region by region. */
struct turn {
    uint16_t region;
    uint8_t leg;
};

static uint32_t turns(const struct offload *o) { return 2 * UPDATE_LEGS_MAX * o->refreshes; }

/* False: there is no such leg. */
static bool turn_at(const struct offload *o, uint32_t i, struct turn *out) {
    uint32_t half = UPDATE_LEGS_MAX * o->refreshes;
    bool first = i < half;
    *out = (struct turn){o->refresh[i % half / UPDATE_LEGS_MAX], (uint8_t)(i % UPDATE_LEGS_MAX)};
    const struct update_row *row = row_of(&o->region[out->region]);
    return out->leg < row->legs && first == (!o->in_turn && out->leg < row->leads);
}

/* A chunk is fetched for a leg after it was stored in another one, if one reads what the other changes: that is `apart` chunks ago, or
 * in the step before. */
static uint64_t lag_of(const struct offload *o, const struct offload_region *r, uint8_t leg) {
    _Static_assert(UPDATE_LEGS_MAX == 2, "there is one other leg");
    uint8_t other = !leg;
    uint32_t first = offload_leg_first(r, leg), first_other = offload_leg_first(r, other);
    if (!update_rereads(r->scope) || first == r->chunks || first_other == r->chunks) return o->lag;
    uint64_t apart = r->base[leg] + first_other - r->base[other] - first;
    return min64(o->lag, leg ? apart : o->total + apart);
}

void offload_open(struct offload *o) {
    struct turn turn;
    o->total = 0;
    for (uint32_t i = 0; i < turns(o); i++) {
        if (!turn_at(o, i, &turn)) continue;
        struct offload_region *r = &o->region[turn.region];
        r->base[turn.leg] = o->total;
        o->total += r->chunks - offload_leg_first(r, turn.leg);
    }
    o->lag = min64(o->slots, o->total);
    o->steps = o->turn = o->ahead = o->updated = o->fetches = o->updates = 0;
    o->param_sequence = o->grad_sequence = 0;
    for (int stream = 0; stream < STREAMS; stream++) o->points[stream] = 0;
}

uint32_t offload_staged_first(const struct offload_region *r) {
    return r->params || r->grads ? 0 : r->resident;
}

uint32_t offload_leg_first(const struct offload_region *r, uint8_t leg) {
    uint8_t needs = leg_moves(&row_of(r)->leg[leg], r->place, OP_UPDATE, OUTCOME_UPDATED);
    if ((needs & ARRAY_PARAMS && r->params) || (needs & ARRAY_GRADIENT && r->grads)) return 0;
    return needs & ARRAY_MOMENTS || (needs & ARRAY_WEIGHTS && r->weights) ? r->resident : r->chunks;
}

/* A prefetch emits at most one FETCH per update of a region. An update emits at most as many, three UPDATE and one STORE. A
 * reduction becomes three operations. */
uint32_t offload_operations_max(const struct offload *o) { return UPDATE_LEGS_MAX * o->refreshes + 5; }

static struct operation *append(struct operation_list *out, const struct operation *op) {
    struct operation *copy = operation_append(out);
    *copy = *op;
    return copy;
}

static struct operation *append_new(struct operation_list *out, enum operation_kind kind, enum object object,
                                    enum stream stream, uint32_t region) {
    struct operation op = {.kind = (uint8_t)kind,
                           .object = (uint8_t)object,
                           .stream = (uint8_t)stream,
                           .region = (uint16_t)region};
    return append(out, &op);
}

static void set_run(struct operation *op, uint32_t first, uint64_t chunks, uint64_t sequence) {
    op->first = first;
    op->chunks = op->items = (uint32_t)chunks;
    op->sequence = sequence;
}

static void set_pipe(struct operation *op, enum stream stream, int64_t value) {
    op->pipe = (struct pipe){true, (uint8_t)stream, value};
}

/* ---- state ---- */

/* Fetches the chunks of one leg, up to the step's chunk `until`, as far as they were not fetched yet. False: some are left. */
static bool fetch_leg(struct offload *o, struct turn turn, uint64_t until, uint8_t outcome,
                      struct operation_list *out) {
    const struct offload_region *r = &o->region[turn.region];
    const struct update_leg *leg = &row_of(r)->leg[turn.leg];
    uint32_t first = offload_leg_first(r, turn.leg);
    uint64_t base = r->base[turn.leg], end = base + (r->chunks - first), stop = min64(until, end);
    if (stop <= o->ahead) return true;
    struct operation *op = append_new(out, OP_FETCH, (enum object)leg->object, STREAM_FETCH, turn.region);
    uint64_t sequence = o->steps * o->total + o->ahead;
    op->leg = turn.leg;
    set_run(op, (uint32_t)(first + (o->ahead - base)), stop - o->ahead, sequence);
    set_pipe(op, STREAM_STORE, (int64_t)sequence + 1 - (int64_t)lag_of(o, r, turn.leg));
    op->outcome = outcome;
    if (r->grads && leg_moves(leg, r->place, OP_FETCH, (enum outcome)outcome) & ARRAY_GRADIENT)
        op->read[op->reads++] = (struct buffer_ref){BUFFER_GRAD_SHARD, turn.region};
    o->fetches += op->items;
    o->ahead = stop;
    return stop == end;
}

/* Fetches the first `until` chunks of the step: one run per leg. A backward fetches no chunk that needs a gradient from the drive, or
 * the store of a later update, and none after it. */
static void fetch(struct offload *o, uint64_t until, bool backward, uint8_t outcome,
                  struct operation_list *out) {
    struct turn turn;
    for (; o->turn < turns(o) && o->ahead < until; o->turn++) {
        if (!turn_at(o, o->turn, &turn)) continue;
        const struct offload_region *r = &o->region[turn.region];
        bool waits = turn.leg ? update_rereads(r->scope) : r->grads;
        if (backward && waits) return;
        if (!fetch_leg(o, turn, until, outcome, out)) return;
    }
}

static void drop(struct buffer_ref *ref, uint8_t *count, enum buffer_kind kind) {
    uint8_t kept = 0;
    for (uint8_t i = 0; i < *count; i++)
        if (ref[i].kind != kind) ref[kept++] = ref[i];
    *count = kept;
}

/* Parameters on the drive are read into the slot, and new ones are stored from it. */
static void drop_params(struct operation *op) {
    drop(op->write, &op->writes, BUFFER_PARAM_SHARD);
    drop(op->read, &op->reads, BUFFER_PARAM_SHARD);
}

/* Updates that take norms of whole tensors for a part of the shard, or chunk by chunk, share blocks of elements: each
 * hands an unfinished block to the next. */
static struct operation *append_update(const struct offload *o, const struct operation *update,
                                       struct operation_list *out) {
    const struct offload_region *r = &o->region[update->region];
    struct operation *op = append(out, update);
    if (o->hands_over && row_of(r)->leg[op->leg].ordered && (r->device < r->chunks || r->params))
        op->write[op->writes++] = (struct buffer_ref){BUFFER_TENSOR_CUT, 0};
    return op;
}

/* Chunks in the memory of one tier: one item for all, or one item each if the host updates them chunk by chunk. */
static void update_in_memory(struct offload *o, const struct operation *update, uint32_t first, uint32_t end,
                             struct operation_list *out) {
    struct operation *op = append_update(o, update, out);
    op->first = first;
    op->chunks = end - first;
    if (o->by_chunk && end > first && first >= o->region[update->region].device) op->items = op->chunks;
    o->updates += op->items;
}

static void expand_update(struct offload *o, const struct operation *update, struct operation_list *out) {
    const struct offload_region *r = &o->region[update->region];
    const struct update_leg *leg = &row_of(r)->leg[update->leg];
    const uint64_t base = r->base[update->leg];
    uint32_t first = offload_leg_first(r, update->leg), staged = r->chunks - first,
             device = r->device < first ? r->device : first;
    if (device) update_in_memory(o, update, 0, device, out);
    if (first > device || (!device && !staged)) update_in_memory(o, update, device, first, out);
    if (!staged) return;
    fetch(o, base + staged, false, update->outcome, out);
    uint64_t sequence = o->steps * o->total + base, fetched_before = o->fetches - o->ahead;
    struct operation *op = append_update(o, update, out);
    set_run(op, first, staged, sequence);
    set_pipe(op, STREAM_FETCH, (int64_t)(fetched_before + base + 1));
    if (r->params) drop_params(op);
    o->updates += staged;
    o->updated = base + staged;
    op = append_new(out, OP_STORE, (enum object)leg->object, STREAM_STORE, update->region);
    op->leg = update->leg;
    op->outcome = update->outcome;
    set_run(op, first, staged, sequence);
    set_pipe(op, STREAM_UPDATE, (int64_t)(o->updates - staged + 1));
    if (r->params && leg->writes & ARRAY_PARAMS)
        op->write[op->writes++] = (struct buffer_ref){BUFFER_PARAM_SHARD, update->region};
}

/* ---- rings of parameters and of gradients ---- */

/* A run of all chunks of the region, in the ring's next slots. */
static void set_ring(const struct offload *o, struct operation *op, uint64_t sequence) {
    set_run(op, 0, o->region[op->region].chunks, sequence);
    op->piece = o->chunk_elements;
}

/* Each item waits for the item with the same number of the next operation on `stream`. */
static void wait_for_next(const struct offload *o, struct operation *op, enum stream stream) {
    set_pipe(op, stream, (int64_t)o->points[stream] + 1);
}

/* The same, but each item waits for the item `slots` places earlier on `stream`. Other operations on that stream come
 * in between, and then the items wait longer. */
static void wait_for_slot(const struct offload *o, struct operation *op, enum stream stream, uint32_t slots) {
    set_pipe(op, stream, (int64_t)o->points[stream] + 1 - slots);
}

static struct operation *append_ring(struct offload *o, enum operation_kind kind, enum object object,
                                     enum stream stream, uint64_t sequence, struct buffer_ref from,
                                     struct buffer_ref to, uint32_t region, struct operation_list *out) {
    struct operation *op = append_new(out, kind, object, stream, region);
    set_ring(o, op, sequence);
    op->read[op->reads++] = from;
    op->write[op->writes++] = to;
    return op;
}

/* Of a gather whose chunks are read in place: the fetch is the first to use the gathered region's memory. */
static void fetch_in_place(struct operation *fetch, struct operation *gather) {
    fetch->joins = gather->joins;
    fetch->acquires = gather->acquires;
    gather->acquires = 0;
    gather->implied = 1u << STREAM_PARAM;
}

static void expand_gather(struct offload *o, const struct operation *gather, struct operation_list *out) {
    const bool in_place = o->region[gather->region].in_place;
    const struct buffer_ref target =
        in_place ? gather->write[0] : (struct buffer_ref){BUFFER_PARAM_STAGED, 0};
    struct operation *fetch = append_ring(o, OP_FETCH, OBJECT_PARAM, STREAM_PARAM, o->param_sequence,
                                          gather->read[0], target, gather->region, out),
                     *op = append(out, gather);
    fetch->use = gather->use;
    op->read[0] = target;
    set_ring(o, op, o->param_sequence);
    wait_for_next(o, op, STREAM_PARAM);
    o->param_sequence += op->items;
    if (in_place)
        fetch_in_place(fetch, op);
    else
        wait_for_slot(o, fetch, STREAM_GATHER, o->param_slots);
}

static bool makes_gradient(const struct operation *op) {
    return (op->kind == OP_REDUCE || op->kind == OP_CLEAR) && op->write[0].kind == BUFFER_GRAD_SHARD;
}

/* The last of the reductions that make a region's sum. */
static bool ends_sum(const struct operation *op) { return op->final && !op->summed; }

bool offload_stores_gradient(const struct offload_region *r, const struct operation *op) {
    return r->grads && makes_gradient(op) && (r->held ? ends_sum(op) : !op->sums);
}

bool offload_fetches_gradient(const struct offload_region *r, const struct operation *op) {
    bool sum = op->kind == OP_REDUCE && !op->reads;
    return r->grads && !r->held && makes_gradient(op) && (op->add || (sum && !op->sums));
}

/* Stores all chunks from the buffer with the use's sum. They all wait for that buffer, not each for one item. From a device's memory
 * they go through the ring to the drive. */
static void expand_held(struct offload *o, const struct operation *reduction, struct operation_list *out) {
    const struct offload_region *r = &o->region[reduction->region];
    const struct buffer_ref shard = reduction->write[0], held = {BUFFER_GRAD_HELD, reduction->region};
    struct operation *op = append(out, reduction);
    op->write[0] = held;
    if (!ends_sum(reduction)) return;
    op = append_new(out, OP_STORE, OBJECT_GRAD, STREAM_GRAD, reduction->region);
    set_run(op, 0, r->chunks, 0);
    op->read[op->reads++] = held;
    op->write[op->writes++] = shard;
    if (!o->hands_over || !r->grads) return;
    op->write[op->writes++] = (struct buffer_ref){BUFFER_GRAD_STAGED, 0};
    op->sequence = o->grad_sequence;
    wait_for_slot(o, op, STREAM_GRAD, o->grad_slots);
    o->grad_sequence += op->items;
}

static void expand_reduction(struct offload *o, const struct operation *reduction,
                             struct operation_list *out) {
    const struct buffer_ref staged = {BUFFER_GRAD_STAGED, 0}, shard = reduction->write[0];
    bool fetches = offload_fetches_gradient(&o->region[reduction->region], reduction);
    struct operation *op;
    if (reduction->sums) return; /* the reduction before this one has made the sum already */
    if (fetches) {
        op = append_ring(o, OP_FETCH, OBJECT_GRAD, STREAM_PARAM, o->grad_sequence, shard, staged,
                         reduction->region, out);
        op->use = reduction->use;
        wait_for_slot(o, op, STREAM_GRAD, o->grad_slots);
    }
    op = append(out, reduction);
    op->write[0] = staged;
    set_ring(o, op, o->grad_sequence);
    if (fetches)
        wait_for_next(o, op, STREAM_PARAM);
    else
        wait_for_slot(o, op, STREAM_GRAD, o->grad_slots);
    op = append_ring(o, OP_STORE, OBJECT_GRAD, STREAM_GRAD, o->grad_sequence, staged, shard,
                     reduction->region, out);
    wait_for_next(o, op, STREAM_REDUCE);
    /* A chunk is stored after it was reduced, and reduced after it was fetched. Most fetches wait for stores. */
    op->implied = 1u << STREAM_PARAM;
    o->grad_sequence += op->items;
}

static void expand(struct offload *o, const struct operation *op, struct operation_list *out) {
    bool from_shard = op->kind == OP_GATHER && op->read[0].kind == BUFFER_PARAM_SHARD;
    if (op->kind == OP_UPDATE) {
        expand_update(o, op, out);
    } else if (from_shard && o->region[op->region].params) {
        expand_gather(o, op, out);
    } else if (makes_gradient(op) && o->region[op->region].held) {
        expand_held(o, op, out);
    } else if (makes_gradient(op) && o->region[op->region].grads) {
        expand_reduction(o, op, out);
    } else {
        if (op->kind == OP_COMPUTE && op->final) fetch(o, o->updated + o->lag, true, OUTCOME_UPDATED, out);
        if (op->stream == STREAM_UPDATE) o->updates += op->items;
        append(out, op);
    }
}

void offload_expand(struct offload *o, const struct operation *op, struct operation_list *out) {
    uint32_t first = out->count;
    expand(o, op, out);
    for (uint32_t i = first; i < out->count; i++) o->points[out->item[i].stream] += out->item[i].items;
}

void offload_applied(struct offload *o) {
    if (!o->updated) return;
    o->steps++;
    o->ahead = o->updated = o->turn = 0;
}

void offload_drop(struct offload *o) { o->ahead = o->turn = 0; }
