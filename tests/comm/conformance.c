#include "tests/comm/conformance.h"

#include <math.h>
#include <stdlib.h>
#include <time.h>

#include "engine/comm/transport.h"
#include "kernels/quantize.h"
#include "tests/check.h"
#include "tests/comm/reference.h"
#include "tests/comm/ring.h"

static const uint64_t counts[] = {0, 1, 7, 4096, 4097, 10007};
enum { COUNTS = sizeof counts / sizeof *counts };

/* A transport's own order of additions rounds at other places; narrow types round at each addition, by half of the last
 * place of a partial sum. */
static void check_near(const struct ring *ring, const void *target, const void *expected,
                       const struct comm_call *call, uint64_t count) {
    static const double most[] = {[DTYPE_F32] = 512, [DTYPE_BF16] = 512, [DTYPE_F16] = 2}; /* of an element */
    static const int places[] = {[DTYPE_F32] = 24, [DTYPE_BF16] = 8, [DTYPE_F16] = 11};
    double tolerance = ring->members * ldexp(ring->members * most[call->dtype], -places[call->dtype]);
    for (uint64_t i = 0; i < count; i++)
        if (!CHECK_DOUBLE(reference_widen(call->target_dtype, reference_get(target, call->target_dtype, i)),
                          reference_widen(call->target_dtype, reference_get(expected, call->target_dtype, i)),
                          tolerance))
            return;
}

static void take(struct conformance *c, const void *actual, const void *expected, uint64_t bytes,
                 const char *what) {
    if (!CHECK_BYTES(actual, expected, bytes))
        fprintf(stderr, "in %s of rank %u\n", what, comm_rank(c->comm));
    for (uint64_t i = 0, word; i < bytes; i += sizeof word) {
        word = 0;
        memcpy(&word, (const char *)actual + i, bytes - i < sizeof word ? bytes - i : sizeof word);
        c->hash = reference_mix(c->hash ^ word);
    }
}

/* ---- the calls one by one ---- */

static void all_gather(struct conformance *c, struct ring *ring, enum dtype dtype, uint64_t count,
                       bool in_place) {
    uint64_t total = ring->members * count, bytes = dtype_bytes(dtype);
    char *source = reference_make(count, dtype), *target = reference_make(total, dtype),
         *expected = reference_make(total, dtype);
    char *own = target + ring->me * count * bytes;
    reference_fill(in_place ? own : source, dtype, comm_rank(c->comm), 0, count);
    for (uint32_t m = 0; m < ring->members; m++)
        reference_fill(expected + m * count * bytes, dtype, ring->ranks[m], 0, count);
    ring_run(c, ring->group,
             (struct comm_call){.kind = COMM_ALL_GATHER,
                                .dtype = dtype,
                                .count = count,
                                .tag = 1,
                                .what = "gathered",
                                .source = in_place ? own : source,
                                .target = target});
    take(c, target, expected, total * bytes, "all-gather");
    free(source), free(target), free(expected);
}

/* ---- parts of shares: two calls with a stride do what one does without ---- */

enum { PARTS = 2 };

static struct comm_call part_of(struct comm_call whole, uint64_t count, int part) {
    whole.stride = count;
    whole.count = part ? count - count / 3 : count / 3;
    return whole;
}

static void all_gather_parts(struct conformance *c, struct ring *ring, enum dtype dtype, uint64_t count,
                             bool in_place) {
    uint64_t total = ring->members * count, bytes = dtype_bytes(dtype);
    char *source = reference_make(count, dtype), *target = reference_make(total, dtype),
         *expected = reference_make(total, dtype), *own = target + ring->me * count * bytes;
    struct pending pending[PARTS];
    if (in_place) free(source), source = own;
    reference_fill(source, dtype, comm_rank(c->comm), 0, count);
    for (uint32_t m = 0; m < ring->members; m++)
        reference_fill(expected + m * count * bytes, dtype, ring->ranks[m], 0, count);
    for (int part = 0; part < PARTS; part++) {
        struct comm_call call = part_of(
            (struct comm_call){.kind = COMM_ALL_GATHER, .dtype = dtype, .what = "a part"}, count, part);
        uint64_t at = part ? count / 3 * bytes : 0;
        call.source = source + at, call.target = target + at;
        pending[part] = ring_post(c, ring->group, call);
        if (c->device) ring_finish(c, &pending[part]); /* each has a copy of the whole there */
    }
    for (int part = PARTS; part-- > 0 && !c->device;) ring_finish(c, &pending[part]);
    take(c, target, expected, total * bytes, "all-gather in parts");
    if (!in_place) free(source);
    free(target), free(expected);
}

static void reduce_scatter_parts(struct conformance *c, struct ring *ring, enum dtype dtype,
                                 enum dtype target_dtype, uint64_t count) {
    uint64_t total = ring->members * count;
    char *source = reference_make(total, dtype), *target = reference_make(count, target_dtype),
         *expected = reference_make(count, target_dtype);
    struct comm_call whole = {.kind = COMM_REDUCE_SCATTER,
                              .dtype = dtype,
                              .target_dtype = target_dtype,
                              .count = count,
                              .what = "a part"};
    struct pending pending[PARTS];
    reference_fill(source, dtype, comm_rank(c->comm), 0, total);
    reference_sum(expected, &whole, ring->group, ring->me * count, count);
    for (int part = 0; part < PARTS; part++) {
        struct comm_call call = part_of(whole, count, part);
        call.source = source + (part ? count / 3 * dtype_bytes(dtype) : 0);
        call.target = target + (part ? count / 3 * dtype_bytes(target_dtype) : 0);
        pending[part] = ring_post(c, ring->group, call);
        if (c->device) ring_finish(c, &pending[part]); /* each has a copy of the whole there */
    }
    for (int part = PARTS; part-- > 0 && !c->device;) ring_finish(c, &pending[part]);
    take(c, target, expected, count * dtype_bytes(target_dtype), "reduce-scatter in parts");
    free(source), free(target), free(expected);
}

static void all_to_all(struct conformance *c, struct ring *ring, enum dtype dtype, uint64_t count) {
    uint64_t total = ring->members * count, bytes = dtype_bytes(dtype);
    char *source = reference_make(total, dtype), *target = reference_make(total, dtype),
         *expected = reference_make(total, dtype);
    reference_fill(source, dtype, comm_rank(c->comm), 0, total);
    for (uint32_t m = 0; m < ring->members; m++)
        reference_fill(expected + m * count * bytes, dtype, ring->ranks[m], ring->me * count, count);
    ring_run(c, ring->group,
             (struct comm_call){.kind = COMM_ALL_TO_ALL,
                                .dtype = dtype,
                                .count = count,
                                .what = "exchanged",
                                .source = source,
                                .target = target});
    take(c, target, expected, total * bytes, "all-to-all");
    free(source), free(target), free(expected);
}

static void broadcast(struct conformance *c, struct ring *ring, enum dtype dtype, uint64_t count,
                      uint32_t root) {
    char *target = reference_make(count, dtype), *expected = reference_make(count, dtype);
    if (ring->me == root) reference_fill(target, dtype, ring->ranks[root], 0, count);
    reference_fill(expected, dtype, ring->ranks[root], 0, count);
    ring_run(c, ring->group,
             (struct comm_call){
                 .kind = COMM_BROADCAST, .dtype = dtype, .count = count, .root = root, .target = target});
    take(c, target, expected, count * dtype_bytes(dtype), "broadcast");
    free(target), free(expected);
}

struct seen {
    const char *target;
    uint64_t end, bytes;
};

static void written(void *user, const void *block, uint64_t first, uint64_t count) {
    struct seen *seen = user;
    CHECK_INT(first, seen->end);
    CHECK_INT(first % 4096, 0);
    CHECK_INT((const char *)block - seen->target, first * seen->bytes);
    CHECK(count > 0 && count <= 4096);
    seen->end += count;
}

enum form { OUT_OF_PLACE, IN_PLACE, ADD, FORMS };

static void reduce_scatter(struct conformance *c, struct ring *ring, enum dtype dtype,
                           enum dtype target_dtype, uint64_t count, enum form form, bool native) {
    uint64_t total = ring->members * count, first = ring->me * count, bytes = dtype_bytes(target_dtype);
    char *source = reference_make(total, dtype), *separate = reference_make(count, target_dtype),
         *expected = reference_make(count, target_dtype);
    char *target = form == IN_PLACE ? source + first * bytes : separate;
    struct seen seen = {target, 0, bytes};
    struct comm_call call = {.kind = COMM_REDUCE_SCATTER,
                             .dtype = dtype,
                             .target_dtype = target_dtype,
                             .count = count,
                             .what = "reduced",
                             .source = source,
                             .target = target,
                             .add = form == ADD,
                             .native = native,
                             .written = written,
                             .written_user = &seen};
    reference_fill(source, dtype, comm_rank(c->comm), 0, total);
    if (form == ADD) reference_fill(target, target_dtype, comm_rank(c->comm) + 1000, 0, count);
    reference_sum(expected, &call, ring->group, first, count);
    ring_run(c, ring->group, call);
    if (!c->device) CHECK_INT(seen.end, count);
    if (!native) take(c, target, expected, count * bytes, "reduce-scatter");
    if (native) check_near(ring, target, expected, &call, count);
    free(source), free(separate), free(expected);
}

static void all_reduce(struct conformance *c, struct ring *ring, enum dtype dtype, enum dtype target_dtype,
                       uint64_t count, enum form form, bool native) {
    uint64_t bytes = dtype_bytes(target_dtype);
    char *source = reference_make(count, dtype), *separate = reference_make(count, target_dtype),
         *expected = reference_make(count, target_dtype);
    char *target = form == IN_PLACE ? source : separate;
    struct comm_call call = {.kind = COMM_ALL_REDUCE,
                             .dtype = dtype,
                             .target_dtype = target_dtype,
                             .count = count,
                             .what = "reduced",
                             .source = source,
                             .target = target,
                             .add = form == ADD,
                             .native = native};
    reference_fill(source, dtype, comm_rank(c->comm), 0, count);
    if (form == ADD) reference_fill(target, target_dtype, comm_rank(c->comm) + 1000, 0, count);
    reference_sum(expected, &call, ring->group, 0, count);
    ring_run(c, ring->group, call);
    if (!native) take(c, target, expected, count * bytes, "all-reduce");
    if (native) check_near(ring, target, expected, &call, count);
    free(source), free(separate), free(expected);
}

static void reductions(struct conformance *c, struct ring *ring, uint64_t count) {
    for (int dtype = DTYPE_F32; dtype <= DTYPE_F16; dtype++)
        for (int wide = 0; wide <= (dtype != DTYPE_F32); wide++)
            for (int form = 0; form < FORMS; form++) {
                enum dtype source = (enum dtype)dtype, target = wide ? DTYPE_F32 : source;
                if (form == IN_PLACE && target != source) continue;
                reduce_scatter(c, ring, source, target, count, (enum form)form, false);
                bool whole = form != ADD || target == DTYPE_F32;
                if (whole) all_reduce(c, ring, source, target, count, (enum form)form, false);
                if (source != DTYPE_F32 && !strcmp(comm_name(c->comm), "mpi")) continue; /* refused */
                reduce_scatter(c, ring, source, target, count, (enum form)form, true);
                if (whole) all_reduce(c, ring, source, target, count, (enum form)form, true);
            }
}

/* A reduce-scatter of codes, by levels: each share is coded by its rank, and decoded before the sum. */
static void codes_by_levels(struct conformance *c, struct ring *ring, uint64_t count, enum code_format format,
                            bool add) {
    uint32_t of_node = comm_group_node_members(ring->group);
    uint64_t each = quantize_bytes(count, format);
    uint8_t *codes = malloc(ring->members * each + 1);
    float *share = malloc(count * sizeof *share), *target = malloc(count * sizeof *target),
          *expected = calloc(count, sizeof *expected), *node = malloc(count * sizeof *node);
    for (uint32_t m = 0; m < ring->members; m++) {
        reference_fill(share, DTYPE_F32, ring->ranks[m], ring->me * count, count);
        quantize(codes, share, DTYPE_F32, count, format);
        dequantize(share, DTYPE_F32, codes, count, format);
        for (uint64_t i = 0; i < count; i++) {
            volatile float sum = m % of_node ? node[i] + share[i] : share[i], all = expected[i] + sum;
            node[i] = sum;
            if (m % of_node == of_node - 1) expected[i] = m < of_node ? sum : all;
        }
    }
    reference_fill(target, DTYPE_F32, comm_rank(c->comm) + 1000, 0, count);
    for (uint64_t i = 0; i < count && add; i++) expected[i] += target[i];
    for (uint32_t m = 0; m < ring->members; m++) {
        reference_fill(share, DTYPE_F32, comm_rank(c->comm), m * count, count);
        quantize(codes + m * each, share, DTYPE_F32, count, format);
    }
    ring_run(c, ring->group,
             (struct comm_call){.kind = COMM_REDUCE_SCATTER,
                                .dtype = DTYPE_U8,
                                .target_dtype = DTYPE_F32,
                                .count = count,
                                .what = "codes",
                                .source = codes,
                                .target = target,
                                .code = (uint8_t)format,
                                .add = add});
    if (!CHECK_BYTES(target, expected, count * sizeof *target))
        fprintf(stderr, "in codes of rank %u, %s\n", comm_rank(c->comm), code_format_name(format));
    free(codes), free(share), free(target), free(expected), free(node);
}

/* Sums over nodes of two: the same bits, whichever way the elements take. */
static void node_by_node(struct conformance *c, struct ring *ring) {
    comm_group_place(ring->group, 2, 1);
    if (!CHECK_INT(comm_group_node_members(ring->group), ring->members % 2 ? ring->members : 2)) return;
    for (int i = 1; i < COUNTS; i += c->light ? 3 : 1) {
        reductions(c, ring, counts[i]);
        if (counts[i] > 2) reduce_scatter_parts(c, ring, DTYPE_BF16, DTYPE_F32, counts[i]);
        for (enum code_format format = CODE_INT4; format < CODE_FORMATS && comm_group_levels(ring->group);
             format++)
            codes_by_levels(c, ring, counts[i], format, format == CODE_INT8);
    }
}

static void every_call(struct conformance *c, struct ring *ring) {
    for (int i = 0; i < COUNTS; i += c->light ? 2 : 1) {
        for (int dtype = 0; dtype < DTYPES; dtype++) {
            all_gather(c, ring, (enum dtype)dtype, counts[i], false);
            all_gather(c, ring, (enum dtype)dtype, counts[i], true);
            if (counts[i] > 2) all_gather_parts(c, ring, (enum dtype)dtype, counts[i], dtype % 2);
            all_to_all(c, ring, (enum dtype)dtype, counts[i]);
        }
        for (int dtype = DTYPE_F32; dtype <= DTYPE_F16 && counts[i] > 2; dtype++)
            reduce_scatter_parts(c, ring, (enum dtype)dtype, i % 2 ? DTYPE_F32 : (enum dtype)dtype,
                                 counts[i]);
        for (uint32_t root = 0; root < ring->members; root++) broadcast(c, ring, DTYPE_BF16, counts[i], root);
        reductions(c, ring, counts[i]);
        ring_run(c, ring->group, (struct comm_call){.kind = COMM_BARRIER, .what = "the end of a size"});
    }
}

static void large(struct conformance *c, struct ring *ring) {
    uint64_t count = c->light ? 20003 : 1000003;
    all_gather(c, ring, DTYPE_F32, count, true);
    /* From 32 MiB on, the host's copies go past the caches. */
    if (!c->light && ring->members <= 2) all_gather(c, ring, DTYPE_F32, (8 << 20) / ring->members + 5, false);
    reduce_scatter(c, ring, DTYPE_BF16, DTYPE_F32, count, OUT_OF_PLACE, false);
    all_reduce(c, ring, DTYPE_F32, DTYPE_F32, count, IN_PLACE, false);
}

/* ---- many calls at once ---- */

enum { FLIGHT = 12, FLIGHT_COUNT = 5003 };

struct flight {
    struct pending pending;
    struct comm_call call;
    struct ring *ring;
    char *source, *target, *expected;
    uint64_t target_bytes;
    bool done;
};

/* In turn an all-reduce, an all-gather, a reduce-scatter: all-reduces have two halves, which must keep their
 * order. */
static void flight_post(struct conformance *c, struct flight *flight, struct ring *ring, uint32_t i) {
    static const enum comm_kind kinds[] = {COMM_ALL_REDUCE, COMM_ALL_GATHER, COMM_ALL_REDUCE,
                                           COMM_REDUCE_SCATTER};
    enum comm_kind kind = kinds[i % 4];
    uint64_t count = (c->light ? FLIGHT_COUNT / 10 : FLIGHT_COUNT) + i, total = ring->members * count;
    *flight = (struct flight){.ring = ring};
    flight->source = reference_make(total, DTYPE_F32), flight->target = reference_make(total, DTYPE_F32);
    flight->expected = reference_make(total, DTYPE_F32);
    flight->call = (struct comm_call){.kind = kind,
                                      .count = count,
                                      .tag = i,
                                      .what = "flight",
                                      .source = flight->source,
                                      .target = flight->target};
    reference_fill(flight->source, DTYPE_F32, comm_rank(c->comm), 0, total);
    flight->target_bytes = (kind == COMM_ALL_GATHER ? total : count) * 4;
    if (kind == COMM_ALL_GATHER)
        for (uint32_t m = 0; m < ring->members; m++)
            reference_fill(flight->expected + m * count * 4, DTYPE_F32, ring->ranks[m], 0, count);
    else
        reference_sum(flight->expected, &flight->call, ring->group,
                      kind == COMM_REDUCE_SCATTER ? ring->me * count : 0, count);
    flight->pending = ring_post(c, ring->group, flight->call);
}

static void flight_finish(struct conformance *c, struct flight *flight) {
    ring_finish(c, &flight->pending);
    flight->done = true;
}

static void flight_check(struct conformance *c, struct flight *flight) {
    take(c, flight->target, flight->expected, flight->target_bytes, "a call in flight");
    free(flight->source), free(flight->target), free(flight->expected);
}

/* Posts alternate between the groups; each rank waits for them in an order of its own. */
static void in_flight(struct conformance *c, struct ring *const *rings, uint32_t ring_count) {
    struct flight flights[FLIGHT];
    uint64_t random = reference_mix(c->seed ^ comm_rank(c->comm));
    for (uint32_t i = 0; i < FLIGHT; i++) flight_post(c, &flights[i], rings[i % ring_count], i);
    for (uint32_t left = FLIGHT; left; left--) {
        random = reference_mix(random);
        uint32_t pick = (uint32_t)(random % FLIGHT);
        while (flights[pick].done) pick = (pick + 1) % FLIGHT;
        flight_finish(c, &flights[pick]);
    }
    for (uint32_t i = 0; i < FLIGHT; i++) flight_check(c, &flights[i]);
}

/* As if all processes had been stopped for very long after their posts, by a batch system for example. */
static void a_pause_is_no_wait(struct conformance *c, struct ring *ring) {
    struct flight flight;
    nanosleep(&(struct timespec){0, 20000000 * ring->me}, NULL); /* the first ranks wait for the last one */
    flight_post(c, &flight, ring, 1);
    flight.pending.work->posted_ns = 1;
    flight_finish(c, &flight);
    flight_check(c, &flight);
}

static void full_group(struct conformance *c, struct ring *ring) {
    struct pending pending[COMM_CALLS_MAX];
    for (int i = 0; i < COMM_CALLS_MAX; i++) {
        CHECK(!comm_group_full(ring->group));
        pending[i] = ring_post(c, ring->group, (struct comm_call){.kind = COMM_BARRIER});
    }
    CHECK(comm_group_full(ring->group));
    for (int i = COMM_CALLS_MAX; i-- > 0;) ring_finish(c, &pending[i]);
    CHECK(!comm_group_full(ring->group));
}

/* ---- accounts ---- */

static void counters(struct conformance *c, struct ring *ring) {
    struct comm_counters before, after;
    uint64_t n = ring->members, peers = n - 1;
    comm_counters_read(c->comm, &before);
    all_gather(c, ring, DTYPE_BF16, 1000, true);
    reduce_scatter(c, ring, DTYPE_BF16, DTYPE_F32, 1000, ADD, false);
    all_to_all(c, ring, DTYPE_F32, 10);
    all_reduce(c, ring, DTYPE_BF16, DTYPE_F32, 1001, OUT_OF_PLACE, false);
    broadcast(c, ring, DTYPE_BF16, 100, 0);
    comm_counters_read(c->comm, &after);
    uint64_t share = (1001 + n - 1) / n, sent = ring->me == 0 ? peers * 100 : 0;
    CHECK_INT(after.calls[COMM_ALL_GATHER] - before.calls[COMM_ALL_GATHER], 1);
    CHECK_INT(after.elements[COMM_ALL_GATHER] - before.elements[COMM_ALL_GATHER], peers * 1000);
    CHECK_INT(after.elements[COMM_REDUCE_SCATTER] - before.elements[COMM_REDUCE_SCATTER], peers * 1000);
    CHECK_INT(after.elements[COMM_ALL_TO_ALL] - before.elements[COMM_ALL_TO_ALL], peers * 10);
    CHECK_INT(after.elements[COMM_ALL_REDUCE] - before.elements[COMM_ALL_REDUCE], 2 * peers * share);
    CHECK_INT(after.elements[COMM_BROADCAST] - before.elements[COMM_BROADCAST], sent);
    CHECK_INT(after.bytes - before.bytes, peers * (2000 + 2000 + 40 + 6 * share) + 2 * sent);
}

static void fingerprints(struct conformance *c, struct ring *ring) {
    uint64_t mine = comm_fingerprint(c->comm), *all = reference_make(2 * ring->members, DTYPE_F32);
    ring_run(c, ring->group,
             (struct comm_call){.kind = COMM_ALL_GATHER,
                                .dtype = DTYPE_U8,
                                .count = sizeof mine,
                                .source = &mine,
                                .target = all});
    for (uint32_t m = 0; m < ring->members; m++) CHECK(all[m] == mine);
    CHECK(comm_fingerprint(c->comm) != mine);
    free(all);
}

void conformance_idle(struct conformance *conformance) { comm_idle(conformance->comm, 1000000); }

void conformance_run(struct conformance *c) {
    struct ring world, again, pair, placed;
    uint32_t rank = comm_rank(c->comm), size = comm_size(c->comm), first = rank / 2 * 2;
    ring_open(c, &world, 0, 1, size);
    ring_open(c, &again, 0, 1, size);
    ring_open(c, &pair, first, 1, first + 2 < size ? first + 2 : size);
    every_call(c, &world);
    fingerprints(c, &world);
    if (size > 2) every_call(c, &pair);
    ring_open(c, &placed, 0, 1, size);
    if (size > 2) node_by_node(c, &placed);
    large(c, &world);
    in_flight(c, (struct ring *[]){&world}, 1);
    in_flight(c, (struct ring *[]){&world, &pair, &placed}, 3);
    a_pause_is_no_wait(c, &world);
    full_group(c, &again);
    counters(c, &world);
    if (size % 2 == 0) fingerprints(c, &world); /* else the last pair is one rank, and made fewer calls */
    CHECK_INT(comm_error(c->comm)->code, ZERO_OK);
    comm_group_close(again.group);
    ring_open(c, &again, 0, 1, size); /* of the same members as one that was closed */
    all_gather(c, &again, DTYPE_F32, 5, false);
    ring_run(c, world.group, (struct comm_call){.kind = COMM_BARRIER, .what = "the end"});
    comm_group_close(again.group);
    comm_group_close(placed.group);
    comm_group_close(pair.group);
    comm_group_close(world.group);
}
