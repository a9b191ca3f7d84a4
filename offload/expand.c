#include "offload/expand.h"

void offload_open(struct offload *o) {
    o->total = 0;
    o->early = o->slots;
    for (uint32_t k = 0; k < o->refreshes; k++) {
        struct offload_region *r = &o->region[o->refresh[k]];
        r->base = o->total;
        o->total += r->chunks - offload_staged_first(r);
        if (r->grads && r->base < o->early) o->early = r->base;
    }
    o->lag = o->slots < o->total ? o->slots : o->total;
    o->steps = o->ahead = o->fetches = o->updates = 0;
    o->param_staging = o->grad_staging = 0;
}

uint32_t offload_staged_first(const struct offload_region *r) {
    return r->params || r->grads ? 0 : r->resident;
}

/* A prefetch emits at most one FETCH per region. An update emits at most one FETCH per region, two UPDATE and one
 * STORE. A reduction becomes three operations. */
uint32_t offload_operations_max(const struct offload *o) { return o->refreshes + 4; }

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

/* Fetches the first `until` chunks of the step, as far as they were not fetched yet: one run per region. */
static void fetch(struct offload *o, uint64_t until, struct operation_list *out) {
    for (uint32_t k = 0; k < o->refreshes && o->ahead < until; k++) {
        const struct offload_region *r = &o->region[o->refresh[k]];
        uint32_t first = offload_staged_first(r);
        uint64_t end = r->base + (r->chunks - first), stop = until < end ? until : end;
        if (stop <= o->ahead) continue;
        struct operation *op = append_new(out, OP_FETCH, OBJECT_STATE, STREAM_FETCH, o->refresh[k]);
        uint64_t sequence = o->steps * o->total + o->ahead;
        set_run(op, (uint32_t)(first + (o->ahead - r->base)), stop - o->ahead, sequence);
        set_pipe(op, STREAM_STORE, (int64_t)sequence + 1 - (int64_t)o->lag);
        if (r->grads) op->read[op->reads++] = (struct buffer_ref){BUFFER_GRAD_SHARD, o->refresh[k]};
        o->fetches += op->items;
        o->ahead = stop;
    }
}

static void drop_write(struct operation *op, enum buffer_kind kind) {
    uint8_t kept = 0;
    for (uint8_t i = 0; i < op->writes; i++)
        if (op->write[i].kind != kind) op->write[kept++] = op->write[i];
    op->writes = kept;
}

static void expand_update(struct offload *o, const struct operation *update, struct operation_list *out) {
    const struct offload_region *r = &o->region[update->region];
    uint32_t first = offload_staged_first(r), staged = r->chunks - first;
    if (first || !staged) {
        struct operation *op = append(out, update); /* the part in memory: one item */
        op->chunks = first;
        o->updates++;
    }
    if (!staged) return;
    fetch(o, r->base + staged, out);
    uint64_t sequence = o->steps * o->total + r->base, fetched_before = o->fetches - o->ahead;
    struct operation *op = append(out, update);
    set_run(op, first, staged, sequence);
    set_pipe(op, STREAM_FETCH, (int64_t)(fetched_before + r->base + 1));
    if (r->params) drop_write(op, BUFFER_PARAM_SHARD); /* new parameters go to the slot, then to the drive */
    o->updates += staged;
    op = append_new(out, OP_STORE, OBJECT_STATE, STREAM_STORE, update->region);
    set_run(op, first, staged, sequence);
    set_pipe(op, STREAM_UPDATE, (int64_t)(o->updates - staged + 1));
    if (r->params) op->write[op->writes++] = (struct buffer_ref){BUFFER_PARAM_SHARD, update->region};
}

/* ---- parameters ---- */

static void expand_gather(struct offload *o, const struct operation *gather, struct operation_list *out) {
    struct buffer_ref staged = {BUFFER_PARAM_STAGED, (uint16_t)(o->param_staging++ % PARAM_STAGINGS)};
    struct operation *op = append_new(out, OP_FETCH, OBJECT_PARAM, STREAM_PARAM, gather->region);
    set_run(op, 0, o->region[gather->region].chunks, 0);
    op->use = gather->use;
    op->read[op->reads++] = gather->read[0];
    op->write[op->writes++] = staged;
    append(out, gather)->read[0] = staged;
}

/* ---- gradients ---- */

static bool makes_gradient(const struct operation *op) {
    return (op->kind == OP_REDUCE || op->kind == OP_CLEAR) && op->write[0].kind == BUFFER_GRAD_SHARD;
}

bool offload_stores_gradient(const struct operation *op) { return makes_gradient(op) && !op->summed; }

bool offload_fetches_gradient(const struct operation *op) {
    bool sum = op->kind == OP_REDUCE && !op->reads;
    return makes_gradient(op) && (op->add || (sum && !op->sums));
}

static struct operation *append_run(struct offload *o, enum operation_kind kind, enum stream stream,
                                    uint32_t region, struct buffer_ref from, struct buffer_ref to,
                                    struct operation_list *out) {
    struct operation *op = append_new(out, kind, OBJECT_GRAD, stream, region);
    set_run(op, 0, o->region[region].chunks, 0);
    op->read[op->reads++] = from;
    op->write[op->writes++] = to;
    return op;
}

static void expand_reduction(struct offload *o, const struct operation *op, struct operation_list *out) {
    o->grad_staging += !op->sums;
    struct buffer_ref staged = {BUFFER_GRAD_STAGED, (uint16_t)(o->grad_staging % GRAD_STAGINGS)},
                      shard = op->write[0];
    if (offload_fetches_gradient(op))
        append_run(o, OP_FETCH, STREAM_PARAM, op->region, shard, staged, out)->use = op->use;
    append(out, op)->write[0] = staged;
    if (offload_stores_gradient(op)) append_run(o, OP_STORE, STREAM_GRAD, op->region, staged, shard, out);
}

void offload_expand(struct offload *o, const struct operation *op, struct operation_list *out) {
    bool from_shard = op->kind == OP_GATHER && op->read[0].kind == BUFFER_PARAM_SHARD;
    if (op->kind == OP_UPDATE) {
        expand_update(o, op, out);
    } else if (from_shard && o->region[op->region].params) {
        expand_gather(o, op, out);
    } else if (makes_gradient(op) && o->region[op->region].grads) {
        expand_reduction(o, op, out);
    } else {
        if (op->kind == OP_COMPUTE && op->final) fetch(o, o->early, out);
        append(out, op);
    }
}

void offload_applied(struct offload *o) {
    o->steps++;
    o->ahead = 0;
}

void offload_drop(struct offload *o) { o->ahead = 0; }
