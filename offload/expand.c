#include "offload/expand.h"

/* The updates of a step in their order: first all updates that take norms, if norms come first; then the other
 * updates, region by region. */
struct turn {
    uint16_t region;
    enum update_half half;
};

static uint32_t turns(const struct offload *o) { return (1 + UPDATE_HALVES) * o->refreshes; }

/* False: there is no such update. */
static bool turn_at(const struct offload *o, uint32_t i, struct turn *out) {
    bool first = i < o->refreshes;
    uint32_t k = first ? i : (i - o->refreshes) / UPDATE_HALVES;
    *out = (struct turn){o->refresh[k], first ? HALF_BEFORE : (i - o->refreshes) % UPDATE_HALVES};
    return first == (out->half == HALF_BEFORE && o->region[out->region].measures && !o->in_turn);
}

static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* A chunk is fetched for one half of its update after the other half was stored: `apart` chunks ago, or in the step
 * before. */
static uint64_t lag_of(const struct offload *o, const struct offload_region *r, enum update_half half) {
    uint32_t first[UPDATE_HALVES] = {offload_half_first(r, HALF_BEFORE), offload_half_first(r, HALF_WEIGHTS)};
    uint64_t apart = r->base[HALF_WEIGHTS] + first[HALF_BEFORE] - r->base[HALF_BEFORE] - first[HALF_WEIGHTS];
    if (!r->measures || first[HALF_BEFORE] == r->chunks || first[HALF_WEIGHTS] == r->chunks) return o->lag;
    return least(o->lag, half == HALF_WEIGHTS ? apart : o->total - apart);
}

void offload_open(struct offload *o) {
    struct turn turn;
    o->total = 0;
    for (uint32_t i = 0; i < turns(o); i++) {
        if (!turn_at(o, i, &turn)) continue;
        struct offload_region *r = &o->region[turn.region];
        r->base[turn.half] = o->total;
        o->total += r->chunks - offload_half_first(r, turn.half);
    }
    o->lag = least(o->slots, o->total);
    o->steps = o->ahead = o->updated = o->fetches = o->updates = 0;
    o->param_sequence = o->grad_sequence = 0;
    for (int stream = 0; stream < STREAMS; stream++) o->points[stream] = 0;
}

uint32_t offload_staged_first(const struct offload_region *r) {
    return r->params || r->grads ? 0 : r->resident;
}

uint32_t offload_half_first(const struct offload_region *r, enum update_half half) {
    if (!r->halves) return half == HALF_WEIGHTS ? offload_staged_first(r) : r->chunks;
    if (half == HALF_BEFORE) return r->grads || (r->measures && r->reads && r->params) ? 0 : r->resident;
    return r->params ? 0 : r->weights || r->measures ? r->resident : r->chunks;
}

enum update_half offload_half(const struct operation *op) {
    return op->object == OBJECT_DIRECTION || op->object == OBJECT_NORM ? HALF_BEFORE : HALF_WEIGHTS;
}

/* A prefetch emits at most one FETCH per update of a region. An update emits at most as many, three UPDATE and one STORE. A
 * reduction becomes three operations. */
uint32_t offload_operations_max(const struct offload *o) { return UPDATE_HALVES * o->refreshes + 5; }

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

/* The object of a region's fetches and stores of state. */
static enum object half_object(const struct offload_region *r, enum update_half half) {
    if (half == HALF_WEIGHTS) return OBJECT_STATE;
    return r->measures ? OBJECT_NORM : OBJECT_DIRECTION;
}

/* The update takes the gradient from the drive. */
static bool takes_gradient(const struct offload_region *r, enum update_half half) {
    return r->grads && (half == HALF_BEFORE || !r->halves);
}

/* Fetches the chunks of one update, up to the step's chunk `until`, as far as they were not fetched yet. */
static void fetch_half(struct offload *o, uint16_t region, enum update_half half, uint64_t until,
                       uint8_t outcome, struct operation_list *out) {
    const struct offload_region *r = &o->region[region];
    uint32_t first = offload_half_first(r, half);
    uint64_t base = r->base[half], end = base + (r->chunks - first), stop = until < end ? until : end;
    if (stop <= o->ahead) return;
    struct operation *op = append_new(out, OP_FETCH, half_object(r, half), STREAM_FETCH, region);
    uint64_t sequence = o->steps * o->total + o->ahead;
    set_run(op, (uint32_t)(first + (o->ahead - base)), stop - o->ahead, sequence);
    set_pipe(op, STREAM_STORE, (int64_t)sequence + 1 - (int64_t)lag_of(o, r, half));
    op->outcome = outcome;
    if (takes_gradient(r, half) && outcome != OUTCOME_SKIPPED)
        op->read[op->reads++] = (struct buffer_ref){BUFFER_GRAD_SHARD, region};
    o->fetches += op->items;
    o->ahead = stop;
}

/* Fetches the first `until` chunks of the step: one run per update. */
static void fetch(struct offload *o, uint64_t until, uint8_t outcome, struct operation_list *out) {
    struct turn turn;
    for (uint32_t i = 0; i < turns(o) && o->ahead < until; i++)
        if (turn_at(o, i, &turn)) fetch_half(o, turn.region, turn.half, until, outcome, out);
}

static uint64_t least_after(uint64_t until, uint64_t base, const struct offload *o) {
    return base >= o->updated && base < until ? base : until;
}

/* The number of chunks that a backward may fetch: those that have a slot, and need neither a gradient from the drive nor the store
 * of a later update. With updates in the backward, slots become free during the backward. */
static uint64_t fetchable(const struct offload *o) {
    uint64_t until = o->updated + o->lag;
    for (uint32_t k = 0; k < o->refreshes; k++) {
        const struct offload_region *r = &o->region[o->refresh[k]];
        if (r->grads) until = least_after(until, r->base[r->halves ? HALF_BEFORE : HALF_WEIGHTS], o);
        if (r->measures) until = least_after(until, r->base[HALF_WEIGHTS], o);
    }
    return until;
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
    if (o->hands_over && r->measures && offload_half(op) == HALF_BEFORE &&
        (r->device < r->chunks || r->params))
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
    const enum update_half half = offload_half(update);
    const uint64_t base = r->base[half];
    uint32_t first = offload_half_first(r, half), staged = r->chunks - first,
             device = r->device < first ? r->device : first;
    if (device) update_in_memory(o, update, 0, device, out);
    if (first > device || (!device && !staged)) update_in_memory(o, update, device, first, out);
    if (!staged) return;
    fetch(o, base + staged, update->outcome, out);
    uint64_t sequence = o->steps * o->total + base, fetched_before = o->fetches - o->ahead;
    struct operation *op = append_update(o, update, out);
    set_run(op, first, staged, sequence);
    set_pipe(op, STREAM_FETCH, (int64_t)(fetched_before + base + 1));
    if (r->params) drop_params(op);
    o->updates += staged;
    o->updated = base + staged;
    op = append_new(out, OP_STORE, half_object(r, half), STREAM_STORE, update->region);
    op->outcome = update->outcome;
    set_run(op, first, staged, sequence);
    set_pipe(op, STREAM_UPDATE, (int64_t)(o->updates - staged + 1));
    if (r->params && half == HALF_WEIGHTS)
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

bool offload_stores_gradient(const struct offload_region *r, const struct operation *op) {
    bool last = r->held ? op->final && !op->summed : !op->sums;
    return r->grads && makes_gradient(op) && last;
}

bool offload_fetches_gradient(const struct offload_region *r, const struct operation *op) {
    bool sum = op->kind == OP_REDUCE && !op->reads;
    return r->grads && !r->held && makes_gradient(op) && (op->add || (sum && !op->sums));
}

/* Stores all chunks from the buffer with the use's sum. They all wait for that buffer, not each for one item. */
static void expand_held(struct offload *o, const struct operation *reduction, struct operation_list *out) {
    const struct offload_region *r = &o->region[reduction->region];
    const struct buffer_ref shard = reduction->write[0], held = {BUFFER_GRAD_HELD, reduction->region};
    struct operation *op = append(out, reduction);
    op->write[0] = held;
    if (!offload_stores_gradient(r, reduction)) return;
    op = append_new(out, OP_STORE, OBJECT_GRAD, STREAM_GRAD, reduction->region);
    set_run(op, 0, r->chunks, 0);
    op->read[op->reads++] = held;
    op->write[op->writes++] = shard;
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
    } else if (makes_gradient(op) && o->region[op->region].grads) {
        (o->region[op->region].held ? expand_held : expand_reduction)(o, op, out);
    } else {
        if (op->kind == OP_COMPUTE && op->final) fetch(o, fetchable(o), OUTCOME_UPDATED, out);
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
    o->steps++;
    o->ahead = o->updated = 0;
}

void offload_drop(struct offload *o) { o->ahead = 0; }
