/* The second policy's operations equal those of an independent executable model (lists.txt): stages, chunk
 * sizes, slots, resident prefixes, parameters on the drive, a skipped step, skipped uses, an evaluation pass. */
#include <stdlib.h>

#include "offload/expand.h"
#include "tests/check.h"
#include "tests/stages/toy.h"

struct list { /* one line of lists.txt */
    char stage[32];
    unsigned micro_steps, depth, chunk, slots, resident, params, scenario;
};

enum { PARAM_SLOTS = 3 }; /* in all lists */

static const char names[] = "eapbch";
static const uint32_t sizes[] = {15, 12, 3, 12, 35, 3};

static void open_offload(const struct list *l, struct toy *t, struct offload *o,
                         struct offload_region *region) {
    for (uint32_t i = 0; i < t->policy.regions; i++) {
        uint32_t padded = (sizes[strchr(names, t->name[i][0]) - names] + 1) / 2 * 2;
        uint32_t shard = padded / placement_parts(t->region[i].state, t->policy.mesh);
        uint32_t chunks = (shard + l->chunk - 1) / l->chunk;
        bool sharded = !placement_is(t->region[i].rest, REPLICATE, REPLICATE);
        region[i] = (struct offload_region){
            .chunks = chunks, .resident = chunks * l->resident / 2, .params = l->params && sharded};
    }
    *o = (struct offload){.slots = l->slots,
                          .param_slots = PARAM_SLOTS,
                          .region = region,
                          .refresh = t->refresh,
                          .refreshes = t->policy.refreshes};
    offload_open(o);
    t->offload = o;
}

static void drive(struct toy *t, unsigned scenario) {
    toy_fill(t);
    for (uint32_t step = 0; step < 3; step++) {
        for (uint32_t micro = 0; micro < t->policy.micro_steps; micro++) {
            bool skips = scenario && step == 2 && micro == t->policy.micro_steps - 1;
            toy_pass(t, false, skips ? "cp" : "");
        }
        toy_step(t, scenario && step == 1);
        if (scenario && step == 0) toy_pass(t, true, "");
    }
    toy_flush(t);
}

/* The model calls every gather, reduction and release by one letter and no axes, on this mesh of one axis. */
static int run_list(const struct list *l, const char *expected) {
    static struct toy toy;
    static char got[1 << 16];
    struct offload offload;
    struct offload_region region[TOY_REGIONS_MAX];
    bool last = !strcmp(l->stage, "zero0") || !strcmp(l->stage, "zero1");
    toy_tied(&toy, toy_stage(l->stage), (const uint32_t[]){2, 1}, l->micro_steps,
             last ? ACCUMULATE_LAST : ACCUMULATE_EVERY, l->depth);
    open_offload(l, &toy, &offload, region);
    drive(&toy, l->scenario);
    toy_letters(&toy, got, sizeof got);
    return CHECK_STRING(got, expected);
}

/* An update in chunks is a fetch, an update and a store. */
static void short_lists_say_so(void) {
    for (uint32_t capacity = 2; capacity <= 3; capacity++) {
        struct operation rows[] = {{.region = 77}, {.region = 77}, {.region = 77}, {.region = 77}};
        struct operation_list list = {rows, 0, capacity};
        struct offload_region region = {.chunks = 4};
        struct offload offload = {
            .slots = 2, .region = &region, .refresh = (const uint16_t[]){0}, .refreshes = 1};
        offload_open(&offload);
        offload_expand(&offload, &(struct operation){.kind = OP_UPDATE, .items = 1}, &list);
        CHECK_INT(operation_list_overflowed(&list), capacity < 3);
        CHECK_INT(rows[capacity].region, 77);
    }
}

/* ---- gradients on the drive ---- */

enum { GRAD_CHUNKS = 3, GRAD_REGION = 1, SLOTS = 2, CHUNK_ELEMENTS = 4096 };

struct drive {
    struct offload_region region[3];
    uint16_t refresh[3];
    struct offload offload;
    struct operation row[16];
    struct operation_list list;
};

/* Three regions of three chunks; the gradients of all but the first are on the drive. */
static void open_drive(struct drive *d) {
    *d = (struct drive){.refresh = {0, 1, 2}};
    for (int i = 0; i < 3; i++) d->region[i] = (struct offload_region){.chunks = GRAD_CHUNKS, .grads = i > 0};
    d->offload = (struct offload){.slots = 8,
                                  .param_slots = SLOTS,
                                  .grad_slots = SLOTS,
                                  .chunk_elements = CHUNK_ELEMENTS,
                                  .region = d->region,
                                  .refresh = d->refresh,
                                  .refreshes = 3};
    d->list = (struct operation_list){d->row, 0, 16};
    offload_open(&d->offload);
}

static const struct operation *expand_one(struct drive *d, struct operation op) {
    d->list.count = 0;
    offload_expand(&d->offload, &op, &d->list);
    return d->row;
}

static void check_op(const struct operation *op, enum operation_kind kind, enum stream stream,
                     uint32_t chunks) {
    CHECK_INT(op->kind, kind);
    CHECK_INT(op->stream, stream);
    CHECK_INT(op->object, OBJECT_GRAD);
    CHECK_INT(op->items, chunks);
}

/* Its place in the ring, and the item of another stream for which its first one waits: 1 is the first that was ever there. */
static void check_ring(const struct operation *op, enum buffer_kind staged, enum buffer_kind rests,
                       uint16_t region, uint64_t sequence, enum stream waits_for, int64_t first) {
    const struct buffer_ref *ref[2] = {op->reads ? &op->read[0] : NULL, &op->write[0]};
    bool found = false;
    for (int i = 0; i < 2; i++) {
        found |= ref[i] && ref[i]->kind == staged;
        if (ref[i] && ref[i]->kind == rests) CHECK_INT(ref[i]->region, region);
    }
    CHECK(found);
    CHECK_INT(op->sequence, sequence);
    CHECK(op->pipe.used);
    CHECK_INT(op->pipe.stream, waits_for);
    CHECK_INT(op->pipe.value, first);
}

static struct operation reduction(uint16_t region, bool add) {
    return (struct operation){.kind = OP_REDUCE,
                              .object = OBJECT_GRAD,
                              .stream = STREAM_REDUCE,
                              .region = region,
                              .items = 1,
                              .add = add,
                              .reads = 1,
                              .read = {{BUFFER_GRAD_FULL, region}},
                              .writes = 1,
                              .write = {{BUFFER_GRAD_SHARD, region}}};
}

static void gradients_go_through_a_ring(void) {
    struct drive d;
    open_drive(&d);
    int64_t fetched = 0, reduced = 0, stored = 0;
    for (uint64_t turn = 0; turn < 4; turn++) {
        bool add = turn > 1;
        const struct operation *op = expand_one(&d, reduction(GRAD_REGION, add));
        uint64_t sequence = turn * GRAD_CHUNKS;
        CHECK_INT(d.list.count, 2u + add);
        if (add) {
            check_op(op, OP_FETCH, STREAM_PARAM, GRAD_CHUNKS);
            check_ring(op++, BUFFER_GRAD_STAGED, BUFFER_GRAD_SHARD, GRAD_REGION, sequence, STREAM_GRAD,
                       stored + 1 - SLOTS);
        }
        check_op(op, OP_REDUCE, STREAM_REDUCE, GRAD_CHUNKS);
        check_ring(op++, BUFFER_GRAD_STAGED, BUFFER_GRAD_FULL, GRAD_REGION, sequence,
                   add ? STREAM_PARAM : STREAM_GRAD, add ? fetched + 1 : stored + 1 - SLOTS);
        check_op(op, OP_STORE, STREAM_GRAD, GRAD_CHUNKS);
        check_ring(op, BUFFER_GRAD_STAGED, BUFFER_GRAD_SHARD, GRAD_REGION, sequence, STREAM_REDUCE,
                   reduced + 1);
        fetched += add * GRAD_CHUNKS, reduced += GRAD_CHUNKS, stored += GRAD_CHUNKS;
    }
    expand_one(&d, reduction(0, true)); /* in memory; its item comes in between */
    CHECK_INT(d.list.count, 1);
    CHECK_INT(d.row[0].write[0].kind, BUFFER_GRAD_SHARD);
    CHECK_INT(d.row[0].items, 1);
    expand_one(&d, reduction(GRAD_REGION, false));
    CHECK_INT(d.row[1].pipe.value, reduced + 2);
}

/* Micro-batches of one use add up in memory, and the last sum goes to the drive: after the sum over the replicate axis, if there is
 * one. */
static void held_sums_are_stored_once(void) {
    struct drive d;
    open_drive(&d);
    d.region[GRAD_REGION].held = true;
    for (int turn = 0; turn < 4; turn++) {
        struct operation op = reduction(GRAD_REGION, turn > 0);
        op.final = turn >= 2, op.summed = turn == 2;
        expand_one(&d, op);
        CHECK_INT(d.list.count, 1u + (turn == 3));
        CHECK_INT(d.row[0].items, 1);
        CHECK_INT(d.row[0].write[0].kind, BUFFER_GRAD_HELD);
    }
    check_op(&d.row[1], OP_STORE, STREAM_GRAD, GRAD_CHUNKS);
    CHECK_INT(d.row[1].read[0].kind, BUFFER_GRAD_HELD);
    CHECK_INT(d.row[1].write[0].kind, BUFFER_GRAD_SHARD);
    CHECK_INT(d.row[1].writes, 1);
    CHECK(!d.row[1].pipe.used);
}

/* If the host updates for a device, the sum waits in the device's memory. A store takes it to the host's memory; or to the drive, through
 * the ring, whose slots it shares with other gradients. */
static void held_sums_leave_a_device(void) {
    struct drive d;
    open_drive(&d);
    d.offload.hands_over = true;
    d.region[0].held = true;
    expand_one(&d, reduction(0, false));
    CHECK_INT(d.list.count, 1);
    struct operation last = reduction(0, true);
    last.final = true;
    expand_one(&d, last);
    CHECK_INT(d.list.count, 2);
    CHECK_INT(d.row[0].write[0].kind, BUFFER_GRAD_HELD);
    check_op(&d.row[1], OP_STORE, STREAM_GRAD, d.region[0].chunks);
    CHECK_INT(d.row[1].write[0].kind, BUFFER_GRAD_SHARD);
    CHECK_INT(d.row[1].writes, 1);
    CHECK(!d.row[1].pipe.used);
    int64_t stored = d.region[0].chunks;
    uint64_t sequence = 0;
    for (int held = 0; held < 3; held++) {
        d.region[GRAD_REGION].held = held != 1;
        last = reduction(GRAD_REGION, false);
        last.final = true;
        expand_one(&d, last);
        check_op(&d.row[1], OP_STORE, STREAM_GRAD, GRAD_CHUNKS);
        CHECK_INT(d.row[1].sequence, sequence);
        if (held != 1) {
            CHECK_INT(d.row[1].write[1].kind, BUFFER_GRAD_STAGED);
            CHECK_INT(d.row[1].pipe.stream, STREAM_GRAD);
            CHECK_INT(d.row[1].pipe.value, stored + 1 - SLOTS);
        }
        sequence += GRAD_CHUNKS, stored += GRAD_CHUNKS;
    }
}

/* Updates in the backward free slots: the next chunks are read into them, unless their gradient is not on the drive yet. */
static void a_backward_fetches_what_it_may(void) {
    for (int grads = 0; grads < 2; grads++) {
        struct drive d;
        open_drive(&d);
        d.offload.slots = SLOTS;
        d.region[1].grads = grads;
        offload_open(&d.offload);
        expand_one(&d, (struct operation){.kind = OP_UPDATE, .items = 1});
        expand_one(&d, (struct operation){.kind = OP_COMPUTE, .items = 1, .final = true});
        CHECK_INT(d.list.count, 2 - grads);
        if (grads) continue;
        CHECK_INT(d.row[0].kind, OP_FETCH);
        CHECK_INT(d.row[0].region, 1);
        CHECK_INT(d.row[0].chunks, SLOTS);
    }
}

/* Alone, a sum over the replicate axis fetches what it sums; after a scatter, that makes it. */
static void sums_go_through_the_ring(void) {
    struct drive d;
    open_drive(&d);
    struct operation sum = reduction(GRAD_REGION, false), clear = sum, scatter = sum;
    sum.reads = 0;
    CHECK_INT(expand_one(&d, sum)->kind, OP_FETCH);
    CHECK_INT(d.list.count, 3);
    scatter.summed = sum.sums = true;
    CHECK_INT(expand_one(&d, scatter)->kind, OP_REDUCE);
    CHECK_INT(d.list.count, 2);
    CHECK(d.row[0].summed);
    expand_one(&d, sum);
    CHECK_INT(d.list.count, 0);
    clear.kind = OP_CLEAR, clear.reads = 0;
    CHECK_INT(expand_one(&d, clear)->kind, OP_CLEAR);
    CHECK_INT(d.list.count, 2);
}

static struct operation gather_of_params(void) {
    return (struct operation){.kind = OP_GATHER,
                              .stream = STREAM_GATHER,
                              .region = GRAD_REGION,
                              .items = 1,
                              .joins = 1u << STREAM_COMPUTE,
                              .acquires = 1,
                              .reads = 1,
                              .read = {{BUFFER_PARAM_SHARD, GRAD_REGION}},
                              .writes = 1,
                              .write = {{BUFFER_PARAM_FULL, GRAD_REGION}}};
}

static void parameters_go_through_a_ring(void) {
    struct drive d;
    open_drive(&d);
    const struct operation gather = gather_of_params();
    d.region[GRAD_REGION].params = true;
    for (uint64_t turn = 0; turn < 3; turn++) {
        int64_t before = (int64_t)turn * GRAD_CHUNKS;
        const struct operation *op = expand_one(&d, gather);
        CHECK_INT(d.list.count, 2);
        CHECK_INT(op->kind, OP_FETCH);
        CHECK_INT(op->items, GRAD_CHUNKS);
        check_ring(op++, BUFFER_PARAM_STAGED, BUFFER_PARAM_SHARD, GRAD_REGION, turn * GRAD_CHUNKS,
                   STREAM_GATHER, before + 1 - SLOTS);
        CHECK_INT(op->kind, OP_GATHER);
        CHECK_INT(op->items, GRAD_CHUNKS);
        CHECK_INT(op->piece, CHUNK_ELEMENTS);
        check_ring(op, BUFFER_PARAM_STAGED, BUFFER_PARAM_FULL, GRAD_REGION, turn * GRAD_CHUNKS, STREAM_PARAM,
                   before + 1);
    }
}

/* The fetch takes the region's memory, and waits for it as the gather would. The gather waits for it chunk by chunk. */
static void parameters_are_read_in_place(void) {
    struct drive d;
    open_drive(&d);
    const struct operation gather = gather_of_params();
    d.region[GRAD_REGION].params = d.region[GRAD_REGION].in_place = true;
    for (int64_t turn = 0; turn < 2; turn++) {
        const struct operation *fetch = expand_one(&d, gather), *op = fetch + 1;
        CHECK_INT(d.list.count, 2);
        CHECK_INT(fetch->kind, OP_FETCH);
        CHECK_INT(fetch->items, GRAD_CHUNKS);
        CHECK_INT(fetch->write[0].kind, BUFFER_PARAM_FULL);
        CHECK_INT(fetch->joins, gather.joins);
        CHECK_INT(fetch->acquires, 1);
        CHECK(!fetch->pipe.used && !fetch->implied);
        CHECK_INT(op->kind, OP_GATHER);
        CHECK_INT(op->acquires, 0);
        CHECK_INT(op->implied, 1u << STREAM_PARAM);
        CHECK_INT(op->read[0].kind, BUFFER_PARAM_FULL);
        CHECK_INT(op->write[0].kind, BUFFER_PARAM_FULL);
        CHECK_INT(op->piece, CHUNK_ELEMENTS);
        CHECK_INT(op->pipe.stream, STREAM_PARAM);
        CHECK_INT(op->pipe.value, turn * GRAD_CHUNKS + 1);
    }
}

/* A backward reads the state of the first region alone; each update of the others reads gradients with it. */
static void updates_fetch_gradients(void) {
    struct drive d;
    open_drive(&d);
    expand_one(&d, (struct operation){.kind = OP_COMPUTE, .final = true, .items = 1});
    CHECK_INT(d.list.count, 2);
    CHECK_INT(d.row[0].kind, OP_FETCH);
    CHECK_INT(d.row[0].region, 0);
    CHECK_INT(d.row[0].reads, 0);
    expand_one(&d, (struct operation){
                       .kind = OP_UPDATE, .stream = STREAM_UPDATE, .region = GRAD_REGION, .items = 1});
    CHECK_INT(d.list.count, 3);
    CHECK_INT(d.row[0].kind, OP_FETCH);
    CHECK_INT(d.row[0].stream, STREAM_FETCH);
    CHECK_INT(d.row[0].reads, 1);
    CHECK_INT(d.row[0].read[0].kind, BUFFER_GRAD_SHARD);
    CHECK_INT(d.row[0].read[0].region, GRAD_REGION);
}

/* Updates that are made again, or taken back: all chunks go through the ring once more, and each waits for its own store. */
static void updates_go_through_the_ring_again(void) {
    static const uint8_t kinds[] = {OP_FETCH, OP_UPDATE, OP_STORE};
    for (uint8_t outcome = OUTCOME_REPEATED; outcome <= OUTCOME_SKIPPED; outcome++) {
        struct drive d;
        open_drive(&d);
        const uint64_t chunks = d.offload.total;
        for (uint8_t round = 0; round < 2; round++) {
            uint64_t sequence = round * chunks;
            for (uint16_t region = 0; region < 2; region++) {
                struct operation update = {
                    .kind = OP_UPDATE, .stream = STREAM_UPDATE, .region = region, .items = 1};
                if (round) update.outcome = outcome;
                const struct operation *op = expand_one(&d, update);
                CHECK_INT(d.list.count, 3);
                for (int i = 0; i < 3; i++) {
                    CHECK_INT(op[i].kind, kinds[i]);
                    CHECK_INT(op[i].outcome, round ? outcome : OUTCOME_UPDATED);
                    CHECK_INT(op[i].sequence, sequence);
                    CHECK_INT(op[i].items, d.region[region].chunks);
                }
                CHECK_INT(op[0].pipe.stream, STREAM_STORE);
                CHECK_INT(op[0].pipe.value, (int64_t)sequence + 1 - (int64_t)d.offload.lag);
                CHECK(op[0].pipe.value + (int64_t)chunks >
                      (int64_t)sequence); /* the same chunk's, or a later one's */
                CHECK_INT(op[0].reads, d.region[region].grads && !(round && outcome == OUTCOME_SKIPPED));
                sequence += d.region[region].chunks;
            }
            offload_applied(&d.offload);
        }
    }
}

/* What went through the ring: each sequence number once, in order, on each of the three streams. */
struct passed {
    uint64_t fetched, stored, updated;
    int64_t points; /* of the update stream */
    int64_t point_of[64];
};

static void note_passed(struct passed *n, const struct drive *d, enum object object, uint32_t first) {
    for (uint32_t i = 0; i < d->list.count; i++) {
        const struct operation *op = &d->row[i];
        if (op->kind == OP_FETCH) {
            CHECK_INT(op->sequence, n->fetched);
            CHECK_INT(op->pipe.stream, STREAM_STORE);
            CHECK_INT(op->pipe.value, (int64_t)op->sequence + 1 - (int64_t)d->offload.lag);
            n->fetched += op->items;
        }
        if (op->kind == OP_UPDATE && op->pipe.used) {
            CHECK_INT(op->sequence, n->updated);
            CHECK_INT(op->first, first);
            CHECK_INT(op->pipe.stream, STREAM_FETCH);
            CHECK_INT(op->pipe.value, (int64_t)op->sequence + 1);
            for (uint32_t k = 0; k < op->items; k++) n->point_of[n->updated++ % 64] = n->points + 1 + k;
        }
        if (op->kind == OP_STORE) {
            CHECK_INT(op->sequence, n->stored);
            CHECK_INT(op->object, object);
            CHECK_INT(op->pipe.stream, STREAM_UPDATE);
            CHECK_INT(op->pipe.value, n->point_of[op->sequence % 64]);
            n->stored += op->items;
        }
        if (op->stream == STREAM_UPDATE) n->points += op->items;
    }
}

/* An update of whole matrices: first all chunks with states and gradient, then all chunks with masters or parameters, as far as these are
 * on the drive. The operation on matrices is a point of the update stream, too. */
static void matrices_go_through_the_ring_twice(void) {
    enum { RESIDENT = 1, STEPS = 3 };
    for (int what = 0; what < 8; what++) {
        struct drive d;
        struct passed n = {0};
        bool grads = what & 1, masters = what & 2, params = what & 4;
        open_drive(&d);
        d.offload.slots = SLOTS;
        for (int i = 0; i < 3; i++) d.region[i] = (struct offload_region){.chunks = GRAD_CHUNKS};
        d.region[1] = (struct offload_region){.chunks = GRAD_CHUNKS,
                                              .resident = RESIDENT,
                                              .scope = SCOPE_MATRIX,
                                              .weights = masters,
                                              .params = params,
                                              .grads = grads};
        offload_open(&d.offload);
        uint32_t first = grads ? 0 : RESIDENT, again = params ? 0 : masters ? RESIDENT : GRAD_CHUNKS;
        CHECK_INT(d.offload.total, 4 * GRAD_CHUNKS - first - again);
        for (int step = 0; step < STEPS; step++) {
            struct operation op = {.stream = STREAM_UPDATE, .items = 1};
            expand_one(&d, (struct operation){.kind = OP_COMPUTE, .final = true, .items = 1});
            note_passed(&n, &d, OBJECT_STATE, 0);
            for (op.region = 0; op.region < 3; op.region++) {
                op.kind = OP_UPDATE, op.object = OBJECT_DIRECTION, op.leg = 0;
                if (op.region == 1) {
                    expand_one(&d, op);
                    CHECK_INT(d.list.count, 3u + (first > 0));
                    CHECK_INT(d.row[0].object, OBJECT_DIRECTION);
                    CHECK_INT(d.row[0].reads, grads);
                    CHECK_INT(d.row[d.list.count - 1].writes, 0);
                    note_passed(&n, &d, OBJECT_DIRECTION, first);
                    op.kind = OP_MATRIX;
                    expand_one(&d, op);
                    CHECK_INT(d.list.count, 1);
                    note_passed(&n, &d, OBJECT_DIRECTION, first);
                }
                op.kind = OP_UPDATE, op.object = OBJECT_STATE, op.leg = op.region == 1;
                expand_one(&d, op);
                for (uint32_t i = 0; i < d.list.count; i++)
                    if (d.row[i].kind == OP_FETCH) CHECK_INT(d.row[i].reads, 0);
                if (op.region == 1)
                    CHECK_INT(d.row[d.list.count - 1].writes, params); /* stored; or updated in memory */
                note_passed(&n, &d, OBJECT_STATE, op.region == 1 ? again : 0);
            }
            offload_applied(&d.offload);
            CHECK_INT(n.fetched, (uint64_t)(step + 1) * d.offload.total);
            CHECK_INT(n.updated, n.fetched);
            CHECK_INT(n.stored, n.fetched);
            CHECK_INT(d.offload.points[STREAM_UPDATE], n.points);
        }
    }
}

struct ring {
    /* In the order of the ring: which chunk, and in which half. */
    uint64_t fetches, stores, fetched[64], stored[64];
};

enum { RING_CHUNK = 16, RING_BEFORE = 1 }; /* region * 16 + chunk * 2 + half */

static void note_ring(struct ring *r, const struct drive *d) {
    for (uint32_t i = 0; i < d->list.count; i++) {
        const struct operation *op = &d->row[i];
        bool fetch = op->kind == OP_FETCH;
        for (uint32_t k = 0; k < op->items && (fetch || op->kind == OP_STORE); k++) {
            uint64_t which = op->region * RING_CHUNK + (op->first + k) * 2 + (op->object == OBJECT_NORM);
            if (fetch) {
                /* the same chunk's other half, whose store this fetch needs, is among those for which it waits */
                int64_t waits = op->pipe.value + k;
                for (uint64_t before = r->fetches; before-- > 0;) {
                    if ((r->fetched[before % 64] ^ which) != RING_BEFORE) continue;
                    CHECK(waits >= (int64_t)before + 1);
                    break;
                }
                CHECK_INT(op->pipe.stream, STREAM_STORE);
                r->fetched[r->fetches++ % 64] = which;
            } else {
                r->stored[r->stores++ % 64] = which;
            }
        }
    }
}

/* Where norms of whole tensors come before the weights: those of all regions first, or, of updates in the backward, region by region; a
 * chunk comes again only when it has been stored. A backward fetches nothing that would wait for an update that is to come. */
static void expand_ring(struct drive *d, struct ring *ring, enum operation_kind kind, enum object object,
                        uint16_t region) {
    uint64_t stored = ring->stores;
    expand_one(d, (struct operation){.kind = (uint8_t)kind,
                                     .object = (uint8_t)object,
                                     .stream = kind == OP_UPDATE ? STREAM_UPDATE : STREAM_COMPUTE,
                                     .leg = object == OBJECT_STATE && region != 1,
                                     .final = kind == OP_COMPUTE,
                                     .region = region,
                                     .items = 1});
    for (uint32_t i = 0; i < d->list.count && kind == OP_COMPUTE; i++)
        if (d->row[i].kind == OP_FETCH)
            CHECK(d->row[i].pipe.value + (int64_t)d->row[i].items - 1 <= (int64_t)stored);
    note_ring(ring, d);
}

static void expand_updates(struct drive *d, struct ring *ring) {
    expand_ring(d, ring, OP_COMPUTE, OBJECT_PARAM, 0);
    for (uint16_t region = 0; region < 3 && !d->offload.in_turn; region += 2)
        expand_ring(d, ring, OP_UPDATE, OBJECT_NORM, region);
    for (uint16_t region = 0; region < 3; region++) {
        if (d->offload.in_turn && region != 1) expand_ring(d, ring, OP_UPDATE, OBJECT_NORM, region);
        expand_ring(d, ring, OP_UPDATE, OBJECT_STATE, region);
        if (d->offload.in_turn) expand_ring(d, ring, OP_COMPUTE, OBJECT_PARAM, 0);
    }
}

static void norms_come_before_all_other_updates(void) {
    for (uint32_t slots = 1; slots <= 8; slots += slots < 4 ? 1 : 4)
        for (int what = 0; what < 32; what++) {
            struct drive d;
            struct ring ring = {0};
            uint32_t resident = what & 1;
            open_drive(&d);
            d.offload.slots = slots, d.offload.in_turn = what & 16;
            d.region[1] = (struct offload_region){.chunks = GRAD_CHUNKS};
            for (int i = 0; i < 3; i += 2)
                d.region[i] = (struct offload_region){.chunks = i ? 1 + resident : GRAD_CHUNKS,
                                                      .resident = resident,
                                                      .scope = SCOPE_TENSOR,
                                                      .weights = what & 8,
                                                      .place = what & 2 ? WEIGHT_SPLIT : WEIGHT_IN_MASTER,
                                                      .params = what & 4};
            offload_open(&d.offload);
            for (int step = 0; step < 3; step++) {
                uint64_t fetched = ring.fetches;
                expand_updates(&d, &ring);
                offload_applied(&d.offload);
                CHECK_INT(ring.fetches - fetched, d.offload.total);
                CHECK_INT(ring.stores, ring.fetches);
            }
            for (uint64_t i = 0; i < ring.stores && i < 64; i++) CHECK_INT(ring.stored[i], ring.fetched[i]);
        }
}

/* In memory: one operation for each memory, and, where the host's results go through staging, an item for each chunk. */
static void updates_in_memory_are_apart(void) {
    for (int by_chunk = 0; by_chunk < 2; by_chunk++)
        for (uint32_t device = 0; device <= GRAD_CHUNKS; device++)
            for (uint32_t resident = device; resident <= GRAD_CHUNKS; resident++) {
                struct drive d;
                const uint32_t ends[3] = {device, resident, GRAD_CHUNKS};
                open_drive(&d);
                d.region[0].device = device, d.region[0].resident = resident;
                d.offload.by_chunk = by_chunk;
                offload_open(&d.offload);
                const struct operation *op = expand_one(
                    &d, (struct operation){.kind = OP_UPDATE, .stream = STREAM_UPDATE, .items = 1});
                uint32_t updates = 0;
                for (uint32_t i = 0, first = 0; i < 3; first = ends[i++]) {
                    uint32_t chunks = ends[i] - first;
                    if (!chunks) continue;
                    op += op->kind == OP_FETCH;
                    CHECK_INT(op->kind, OP_UPDATE);
                    CHECK_INT(op->first, first);
                    CHECK_INT(op->chunks, chunks);
                    CHECK_INT(op->items, (by_chunk && i == 1) || i == 2 ? chunks : 1);
                    CHECK_INT(op->pipe.used, i == 2);
                    updates += op->items;
                    op++;
                }
                CHECK_INT(d.offload.points[STREAM_UPDATE], updates);
                CHECK_INT(d.offload.updates, updates);
                CHECK_INT(d.list.count, (uint32_t)(op - d.row) + (resident < GRAD_CHUNKS));
            }
}

int main(void) {
    short_lists_say_so();
    updates_in_memory_are_apart();
    updates_go_through_the_ring_again();
    matrices_go_through_the_ring_twice();
    norms_come_before_all_other_updates();
    gradients_go_through_a_ring();
    held_sums_are_stored_once();
    held_sums_leave_a_device();
    a_backward_fetches_what_it_may();
    sums_go_through_the_ring();
    parameters_go_through_a_ring();
    parameters_are_read_in_place();
    updates_fetch_gradients();
    static char line[1 << 16];
    FILE *file = fopen("tests/offload/lists.txt", "r");
    int lists = 0;
    while (CHECK(file) && fgets(line, sizeof line, file)) {
        struct list l;
        if (line[0] == '#') continue;
        char *expected = strstr(line, " | ");
        if (!CHECK(expected && sscanf(line, "%31s %u %u %u %u %u %u %u", l.stage, &l.micro_steps, &l.depth,
                                      &l.chunk, &l.slots, &l.resident, &l.params, &l.scenario) == 8))
            break;
        line[strcspn(line, "\n")] = 0;
        if (!run_list(&l, expected + 3)) fprintf(stderr, "in %.*s\n", (int)(expected - line), line);
        lists++;
    }
    CHECK_INT(lists, 168);
    if (file) fclose(file);
    return check_end();
}
