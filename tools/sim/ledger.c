#include "tools/sim/ledger.h"

#include <stdlib.h>
#include <string.h>

const char *ledger_buffer_text(uint32_t kind) {
    static const char *const texts[BUFFER_KINDS + 1] = {
        [BUFFER_PARAM_FULL] = "the whole parameters",
        [BUFFER_PARAM_SHARD] = "the shard of the parameters",
        [BUFFER_PARAM_SECOND] = "the secondary shard",
        [BUFFER_GRAD_FULL] = "the whole gradient",
        [BUFFER_GRAD_SECOND] = "the whole gradient",
        [BUFFER_GRAD_SHARD] = "the reduced gradient",
        [BUFFER_STATE] = "the optimizer state",
        [BUFFER_MASTER] = "the master weights",
        [BUFFER_STAGING] = "the scratch of reductions",
        [BUFFER_PARAM_STAGED] = "the parameters from the drive",
        [BUFFER_GRAD_HOST] = "the gradient on the host",
        [BUFFER_UPDATE_STAGING] = "the parameters from the update",
        [BUFFER_LENT_STAGING] = "the shares for the host's memory",
        [BUFFER_GRAD_STAGED] = "the gradient on the way to the drive",
        [BUFFER_ROUND_STAGING] = "a round of the gradient from the device",
        [BUFFER_GRAD_HELD] = "the sum of a use's gradients",
        [BUFFER_DIRECTION] = "the directions",
        [BUFFER_MATRIX_SCRATCH] = "the scratch of matrices",
        [BUFFER_TENSOR_NORMS] = "the norms of tensors",
        [BUFFER_TENSOR_CUT] = "the block of a norm",
        [LEDGER_SLOT] = "a slot of the staging ring"};
    return texts[kind];
}

/* Packs a state and the operation that caused it. */
static uint64_t pack(enum ledger_held held, const struct operation *by) {
    return (uint64_t)held | (by ? (uint64_t)by->kind << 8 | (uint64_t)by->region << 16 : 0);
}

static enum ledger_held held_of(uint64_t packed) { return (enum ledger_held)(packed & 0xff); }

/* Marks buffers that live from step to step and are filled before the first. */
static void fill_at_first(struct ledger_plan *p, enum buffer_kind kind, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        uint32_t buffer = plan_fixed(p->plan, (struct buffer_ref){(uint16_t)kind, (uint16_t)i});
        if (buffer != NO_BUFFER) p->held[buffer] = pack(HELD_WRITTEN, NULL);
    }
}

zero_status ledger_plan_make(struct ledger_plan *out, const struct plan *plan, struct zero_error *error) {
    struct ledger_plan p = {.plan = plan};
    p.span = calloc(plan->buffers + 1, sizeof *p.span);
    p.held = calloc(plan->buffers + 1, sizeof *p.held);
    if (!p.span || !p.held) {
        ledger_plan_free(&p);
        return error_set(error, ZERO_E_MEMORY, "no memory for the simulator's ledger");
    }
    for (uint32_t i = 0; i < plan->buffers; i++) {
        uint64_t place = plan_place(plan, i);
        p.span[i] = (struct ledger_span){place, place + plan->buffer[i].bytes,
                                         (uint32_t)plan->row_tier[plan->buffer[i].row]};
    }
    uint32_t regions = plan->policy->regions;
    fill_at_first(&p, BUFFER_PARAM_FULL, regions);
    fill_at_first(&p, BUFFER_PARAM_SHARD, regions);
    fill_at_first(&p, BUFFER_STATE, regions * PRECISION_STATES_MAX);
    fill_at_first(&p, BUFFER_MASTER, regions);
    *out = p;
    return ZERO_OK;
}

void ledger_plan_free(struct ledger_plan *p) {
    free(p->span);
    free(p->held);
}

zero_status ledger_open(struct ledger *l, const struct ledger_plan *plan, struct zero_error *error) {
    const struct plan *p = plan->plan;
    *l = (struct ledger){.plan = plan, .capacity = 64 + 3 * p->layout.slots};
    l->item = calloc(l->capacity, sizeof *l->item);
    l->held = malloc((p->buffers + 1) * sizeof *l->held);
    l->part = calloc(p->parts + 1, sizeof *l->part);
    if (!l->item || !l->held || !l->part) {
        ledger_close(l);
        return error_set(error, ZERO_E_MEMORY, "no memory for a rank's ledger");
    }
    memcpy(l->held, plan->held, p->buffers * sizeof *l->held);
    return ZERO_OK;
}

void ledger_close(struct ledger *l) {
    free(l->item);
    free(l->held);
    free(l->part);
    l->item = NULL, l->held = NULL, l->part = NULL;
}

/* ---- sharing ---- */

static bool share(const struct ledger_span *a, const struct ledger_span *b) {
    return a->tier == b->tier && a->begin < b->end && b->begin < a->end && a->begin < a->end &&
           b->begin < b->end;
}

/* The first of `count` buffers that shares bytes with a buffer of the other item; NULL: none. */
static const struct buffer_ref *meets(const struct ledger *l, const struct buffer_ref *ref,
                                      const uint32_t *mine, uint8_t count, const uint32_t *theirs,
                                      uint8_t their_count) {
    const struct ledger_span *span = l->plan->span;
    for (uint8_t i = 0; i < count; i++)
        for (uint8_t k = 0; k < their_count && !buffer_is_ring(ref[i].kind); k++)
            if (share(&span[mine[i]], &span[theirs[k]])) return &ref[i];
    return NULL;
}

/* The ring of which an operation uses slots: those of chunks of state, of parameters, of gradients; 0: none. */
static uint32_t ring_of(const struct ledger *l, const struct operation *op, enum buffer_kind *out_kind) {
    const struct chunk_layout *layout = &l->plan->plan->layout;
    for (uint8_t i = 0; i < op->reads + op->writes; i++) {
        *out_kind = (enum buffer_kind)(i < op->reads ? op->read[i] : op->write[i - op->reads]).kind;
        if (buffer_is_ring((uint16_t)*out_kind))
            return *out_kind == BUFFER_PARAM_STAGED ? layout->params.slots : layout->grads.slots;
    }
    *out_kind = (enum buffer_kind)LEDGER_SLOT;
    bool staged = op->object != OBJECT_PARAM && op->object != OBJECT_GRAD;
    return staged && op->pipe.used ? layout->slots : 0;
}

/* Both hold a chunk in the same slot of a ring. */
static bool share_slot(const struct ledger *l, const struct ledger_item *a, const struct ledger_item *b,
                       struct buffer_ref *out) {
    enum buffer_kind kind, other;
    uint32_t slots = ring_of(l, a->op, &kind);
    if (!slots || !ring_of(l, b->op, &other) || kind != other) return false;
    *out = (struct buffer_ref){(uint16_t)kind, a->op->region};
    return (a->op->sequence + a->index) % slots == (b->op->sequence + b->index) % slots;
}

/* True if both operations are queued on the compute stream of a discrete device, which runs them in order. */
static bool queued(const struct ledger *l, const struct operation *a, const struct operation *b) {
    return l->plan->plan->terms->discrete && a->stream == STREAM_COMPUTE && b->stream == STREAM_COMPUTE;
}

/* One operation may write chunks of such a buffer while another one reads other chunks of it. */
static bool by_chunk(uint16_t kind) { return kind == BUFFER_GRAD_SHARD || kind == BUFFER_PARAM_FULL; }

/* The two runs move different chunks of the buffer: of a gradient on the drive, or of a gathered region. */
static bool other_chunk(const struct ledger_item *a, const struct ledger_item *b,
                        const struct buffer_ref *ref) {
    const struct operation *x = a->op, *y = b->op;
    bool runs = by_chunk(ref->kind) && (x->pipe.used || x->piece) && (y->pipe.used || y->piece);
    return runs && x->first + a->index != y->first + b->index;
}

static bool conflict(const struct ledger *l, const struct ledger_item *a, const struct ledger_item *b,
                     struct ledger_fault *out) {
    const struct operation *x = a->op, *y = b->op;
    const struct buffer_ref *ref = NULL;
    struct buffer_ref slot;
    if (x != y && !queued(l, x, y)) {
        ref = meets(l, x->write, a->write, x->writes, b->write, y->writes);
        if (!ref) ref = meets(l, x->write, a->write, x->writes, b->read, y->reads);
        if (!ref) ref = meets(l, x->read, a->read, x->reads, b->write, y->writes);
    }
    if (ref && other_chunk(a, b, ref)) ref = NULL;
    if (!ref && !share_slot(l, a, b, &slot)) return false;
    *out = (struct ledger_fault){.with = y, .ref = ref ? *ref : slot};
    return true;
}

/* ---- contents ---- */

/* Some chunks come while others are read; conflict() tells them apart. */
static bool comes_and_goes(const struct operation *op, const struct buffer_ref *ref, enum ledger_held held) {
    return held == HELD_BEING_WRITTEN && by_chunk(ref->kind) && op->pipe.used;
}

static uint64_t content(const struct ledger *l, uint32_t buffer) {
    const struct hazard_span *span = &l->plan->plan->span[buffer];
    for (uint32_t i = span->first; i < span->end && held_of(l->held[buffer]) == HELD_WRITTEN; i++)
        if (l->part[i].buffer != buffer) return l->part[i].by;
    return l->held[buffer];
}

static bool reads_rubbish(const struct ledger *l, const struct ledger_item *item, struct ledger_fault *out) {
    for (uint8_t i = 0; i < item->op->reads; i++) {
        uint64_t packed = content(l, item->read[i]);
        if (held_of(packed) == HELD_WRITTEN || buffer_is_ring(item->op->read[i].kind)) continue;
        if (comes_and_goes(item->op, &item->op->read[i], held_of(packed))) continue;
        *out = (struct ledger_fault){.ref = item->op->read[i],
                                     .held = held_of(packed),
                                     .by = (enum operation_kind)(packed >> 8 & 0xff),
                                     .by_region = (uint32_t)(packed >> 16 & 0xffff)};
        return true;
    }
    return false;
}

/* The old content of all other buffers with a part of the written buffer is gone. */
static void overwrite(struct ledger *l, uint32_t buffer, const struct operation *op) {
    const struct hazard_span *span = &l->plan->plan->span[buffer];
    for (uint32_t i = span->first; i < span->end; i++)
        l->part[i] = (struct ledger_part){buffer, pack(HELD_OVERWRITTEN, op)};
    l->held[buffer] = pack(op->kind == OP_RELEASE ? HELD_RELEASED : HELD_BEING_WRITTEN, op);
}

/* ---- items ---- */

bool ledger_start(struct ledger *l, const struct ledger_item *item, struct ledger_fault *out) {
    for (uint32_t i = 0; i < l->items; i++)
        if (conflict(l, item, &l->item[i], out)) return false;
    if (reads_rubbish(l, item, out)) return false;
    for (uint8_t i = 0; i < item->op->writes; i++) overwrite(l, item->write[i], item->op);
    l->item[l->items++] = *item;
    return true;
}

void ledger_done(struct ledger *l, const struct operation *op, uint32_t index) {
    uint32_t i = 0;
    while (l->item[i].op != op || l->item[i].index != index) i++;
    struct ledger_item item = l->item[i];
    l->item[i] = l->item[--l->items];
    for (uint8_t k = 0; k < op->writes && op->kind != OP_RELEASE; k++)
        l->held[item.write[k]] = pack(HELD_WRITTEN, op);
}
